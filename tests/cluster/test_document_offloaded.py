#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Documents of recipes that offload layers: a store keeps the layers beside the capsule, counts both, and frees both. A prefill worker
reads each question, and the answer is that of one job with the same recipe on the whole prompt."""
import os
import tempfile

from documents import EXACT, TAILORKV, TEXT, add, of, names, asking, restart, reused, sluice, store_load
from harness import Cluster, call, document, documents_pb, eventually, inference, question, refused, request, run_tests, tokens
from test_gateway import chatting_model
from test_restart import Restarting
import grpc


def whole(recipe, end=question()[1:], text=TEXT, **fields):
    """The job whose prompt is a document and a question."""
    fields = {"max_new_tokens": 12, "stop": ["."], **fields}
    return inference.GenerateRequest(text=text + "\n" + end, recipe=recipe, **fields)


def test_the_answer_is_that_of_one_job():
    ends = (question()[1:], "Who may copy it, and how?")
    wanted = {}
    with Cluster() as fresh:  # nothing was stored before
        wanted[EXACT] = [tokens(fresh.answer(whole(EXACT, end))[1]) for end in ends]
    with Cluster() as other:  # layers in few bits: as the next turn after the same beginning
        for recipe in (TAILORKV, "tailorkv-near"):
            other.answer(inference.GenerateRequest(text=TEXT, recipe=recipe, max_new_tokens=1))
            other.wait_for_copies()
            wanted[recipe] = [tokens(other.answer(whole(recipe, end))[1]) for end in ends]
    with Cluster() as cluster:
        for recipe, answers in wanted.items():
            made, _ = add(cluster.channel, "gpl", recipe=recipe)
            assert made.offloaded_bytes > 10 * made.capsule_bytes > 0 and made.store == "kvstore-0", made
            for end, answer in zip(ends, answers):
                for _ in range(2):  # the second time, nothing of it is read
                    finished, events = cluster.answer(asking("gpl", end))
                    assert tokens(events) == answer, (recipe, end, tokens(events), answer)
                    assert reused(made, finished), (recipe, finished.statistics)
            restart(cluster, "prefill-0", "decode-0")
            for end, answer in zip(ends, answers):
                finished, events = cluster.answer(asking("gpl", end))
                assert tokens(events) == answer and reused(made, finished), (recipe, end, finished.statistics)
            of(cluster.channel, "Delete", "gpl")
        cluster.assert_clean()


def test_several_are_read_as_one_text():
    """Stores search the layers that they have, which are those of the first document: what follows it is read, and the answer says so.
    The second question on the same documents finds them stored, up to the last segment of 512 tokens."""
    facts = {"violin": "91847", "compass": "73150"}
    with Cluster() as cluster:
        made = {key: add(cluster.channel, key, document(3000, key, value, 3), recipe=EXACT)[0] for key, value in facts.items()}
        n_all = sum(one.n_tokens for one in made.values())

        def about(key, **fields):
            asked = inference.GenerateRequest(documents=list(facts), text=question(key)[1:], max_new_tokens=12, stop=["."], **fields)
            finished, events = cluster.answer(asked)
            return finished.text, tokens(events), finished.statistics
        answers = []
        for key, least, most in (("violin", made["violin"].n_tokens - 64, made["violin"].n_tokens), ("compass", n_all - 512, n_all + 16)):
            answers.append(about(key))
            s = answers[-1][2]
            assert least <= min(s.n_reused_tokens, s.retrieval.reused_tokens) <= most, (least, most, s)
            assert s.not_joined == inference.NOT_JOINED_OFFLOADED and s.n_prompt_tokens > n_all, s
            cluster.wait_for_copies()
        for (key, value), (text, answer, _) in zip(facts.items(), answers):
            _, wanted, s = about(key, no_reuse=True)
            assert value in text and answer == wanted, (text, answer, wanted)
            assert s.n_reused_tokens == 0 and s.not_joined == inference.NOT_JOINED_OFF, s
        code, _, err = sluice(cluster, "doc", "ask", "violin,compass", question("violin")[1:])
        assert code == 0 and "documents read as one text: offloaded" in err, err


def not_added(cluster, code, name, text=TEXT, **fields):
    return refused([code], lambda: add(cluster.channel, name, text, **fields))


def test_both_parts_are_kept_counted_and_freed():
    def used():
        load = store_load(cluster)
        return load.stored_bytes + load.offloaded_bytes

    def settled():
        """What the store has when nothing arrives any more."""
        seen = []

        def is_settled():
            seen.append((used(), store_load(cluster).leases))
            return len(seen) > 40 and len(set(seen[-40:])) == 1 and seen[-1][1] == 0
        eventually(is_settled, 20, "the store settled")
        return used()

    full = grpc.StatusCode.FAILED_PRECONDITION
    with Cluster(worker_args={"kvstore": ["--arena", "48M", "--keep", "10ms"]}) as cluster:
        made, _ = add(cluster.channel, "kept", recipe=TAILORKV)
        size = made.capsule_bytes + made.offloaded_bytes
        asked, events = cluster.answer(asking("kept"))
        for seed in range(6):  # more than the store's memory
            cluster.answer(request(9000, seed=seed + 1, recipe=TAILORKV))
        eventually(lambda: used() < 48 << 20 and store_load(cluster).leases == 0, 10, "the store settled")
        finished, again = cluster.answer(asking("kept"))
        assert reused(made, finished) and tokens(again) == tokens(events), finished.statistics
        listed = call(cluster.channel, "sluice.v1.Documents.List", documents_pb.ListDocumentsRequest()).documents
        assert [(d.capsule_bytes, d.offloaded_bytes) for d in listed] == [(made.capsule_bytes, made.offloaded_bytes)], listed
        code, out, err = sluice(cluster, "doc", "show", "kept")
        assert code == 0 and "\noffloaded    " in out, (out, err)
        # A second document has the same parts, as the recipes differ only in who searches: it ends without them.
        add(cluster.channel, "near", recipe="tailorkv-near")
        said = not_added(cluster, full, "more", TEXT[::-1], recipe=TAILORKV)  # less than half of the store would be left
        assert "kvstore-0" in said and f"kept ({size} bytes)" in said and f"near ({size} bytes)" in said, said
        of(cluster.channel, "Delete", "near")
        cluster.answer(request(9000, seed=20, recipe=TAILORKV))
        finished, _ = cluster.answer(asking("kept", "What else?"))
        assert reused(made, finished), finished.statistics
        before = settled()
        of(cluster.channel, "Delete", "kept")
        eventually(lambda: used() <= before - made.offloaded_bytes, 10, "the store freed both parts")
        add(cluster.channel, "brief", recipe=TAILORKV, keep_ms=8000)
        before = settled()
        assert names(cluster.channel) == ["brief"] and before >= size, before
        eventually(lambda: not names(cluster.channel), 10, "the document ended at its time")
        eventually(lambda: used() <= before - size, 10, "the store freed both parts of a document whose time is over")
    with Cluster(coordinator_args=["--document-bytes", str(size)]) as cluster:  # the text's bytes are too many
        assert "--document-bytes" in not_added(cluster, full, "gpl", recipe=TAILORKV)
        add(cluster.channel, "gpl")  # the same text, of which only a capsule counts


def test_layers_have_room_beside_documents_that_are_on_disk():
    """Capsules on the disk may be evicted from memory, so they take none of the share that layers need."""
    with tempfile.TemporaryDirectory(prefix="sluice-layers-") as folder, Cluster(
            worker_args={"kvstore": ["--arena", "24M", "--disk", os.path.join(folder, "disk"), "--disk-bytes", "128M"]}) as cluster:
        others = [add(cluster.channel, f"whole-{seed}", document(6000, seed=seed), recipe="full,format=f16")[0] for seed in (30, 31)]
        assert sum(one.capsule_bytes for one in others) > 12 << 20 and all(one.on_disk for one in others), others
        made, _ = add(cluster.channel, "gpl", recipe=TAILORKV)
        for name, one in [("gpl", made), *((one.name, one) for one in others)] * 2:
            finished, _ = cluster.answer(asking(name, "What is it?"))
            assert finished.statistics.n_reused_tokens >= one.n_tokens - 64, (name, finished.statistics)
        assert reused(made, cluster.answer(asking("gpl"))[0])


def test_a_store_that_restarts_gets_both_parts_again():
    with Restarting() as cluster:
        made, _ = add(cluster.channel, "gpl", recipe=TAILORKV)
        _, events = cluster.answer(asking("gpl"))
        restart(cluster, "kvstore-0")
        _, lost = cluster.answer(asking("gpl"))  # reads the text
        assert tokens(lost)
        eventually(lambda: of(cluster.channel, "Get", "gpl").store == "kvstore-0", 60, "the text was read again")
        cluster.down()
        cluster.up()
        cluster.wait_ready()
        eventually(lambda: of(cluster.channel, "Get", "gpl").store == "kvstore-0", 10, "the store reports the document")
        finished, again = cluster.answer(asking("gpl", "What else?"))
        assert reused(made, finished), finished.statistics
        assert tokens(cluster.answer(asking("gpl"))[1]) == tokens(events)


def test_it_is_not_read_while_other_jobs_use_its_stores_memory():
    """Its layers would go to another store than its capsule, so no store would have the document."""
    with Cluster() as cluster:
        size = add(cluster.channel, "probe", recipe=TAILORKV)[0].offloaded_bytes
    with Cluster(kvstore=2, worker_args={"kvstore": ["--arena", str(int(2.6 * size))]}) as cluster:
        jobs = [cluster.submit(whole(TAILORKV, max_new_tokens=4000, ignore_eos=True, stop=[])) for _ in range(2)]
        for job in jobs:  # which begin alike, so they use the same store
            eventually(lambda: cluster.get(job).state == inference.DECODING, 30, "the job is answered")
        said = not_added(cluster, grpc.StatusCode.RESOURCE_EXHAUSTED, "gpl", recipe=TAILORKV)
        assert said.startswith("other jobs use kvstore-") and "no room now for the " in said and "try again" in said, said
        assert names(cluster.channel) == []
        for job in jobs:
            cluster.cancel(job)
        eventually(lambda: all(cluster.get(job).state == inference.CANCELLED for job in jobs), 10, "the jobs ended")
        made, _ = add(cluster.channel, "gpl", recipe=TAILORKV)
        assert made.store, made


def test_a_chat_is_cut_before_what_follows_the_text():
    """The template's end after the text is within the last page; no question has it there, so it must not be in the last segment."""
    with chatting_model() as model:
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write("{% for m in messages %}{{ m['content'] + ' That was all of this turn.\\n' }}{% endfor %}{{ 'assistant:' }}")
        cut_in(model)


def cut_in(model):
    with Cluster(model=model) as cluster:
        n_tokens = add(cluster.channel, "probe")[0].n_tokens
        text = TEXT + " a" * ((257 - n_tokens) % 512)
        assert add(cluster.channel, "probe2", text)[0].n_tokens % 512 == 257  # of which the last segment would have 256
        made, _ = add(cluster.channel, "gpl", text, recipe=TAILORKV)
        chat = inference.Chat(messages=[inference.ChatMessage(role="user", content="Who may copy it?")])
        finished, _ = cluster.answer(inference.GenerateRequest(document="gpl", chat=chat, max_new_tokens=8))
        assert made.chat and reused(made, finished), (made, finished.statistics)


def test_what_is_not_kept_is_refused_by_name():
    with Cluster(kvstore=2) as cluster:
        bad = grpc.StatusCode.INVALID_ARGUMENT
        said = not_added(cluster, bad, "twice", recipe="tailorkv,replicas=2")
        assert said.startswith("recipe: ") and "leave replicas=2 out" in said, said
        said = not_added(cluster, bad, "thin", recipe="tailorkv,score=cis,budget=0.5,when=chunk")
        assert said.startswith("recipe: ") and "full,format=int4" in said, said
        said = not_added(cluster, bad, "short", recipe="place=offload/2-,format=f16/2-:int8,topk=64")
        assert said.startswith("text: ") and "4096" in said, said
        add(cluster.channel, "gpl", recipe=TAILORKV)
        add(cluster.channel, "near", recipe="tailorkv,scan=int1")  # the same capsule, and another index of the keys
        for name in ("gpl", "near"):
            finished, _ = cluster.answer(asking(name))
            assert reused(of(cluster.channel, "Get", name), finished), finished.statistics
        said = refused([bad], cluster.answer, inference.GenerateRequest(documents=["gpl", "near"], text="Why?", max_new_tokens=4))
        assert said.startswith("documents: ") and "only capsules of one recipe" in said, said
        assert sorted(names(cluster.channel)) == ["gpl", "near"]


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
