#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Questions on documents that a decode worker answers alone: with what a store has, and the pages of a document shared."""
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import time
import urllib.request

from documents import ADD, add, answers_here, asking, store_load
from harness import (MODEL, Cluster, State, call, cluster_pb, connect, document, documents_pb, eventually, inference, question, refused, run_tests,
                     stub, tokens, worker_pb)
from test_faults import Watcher
from test_restart import Restarting
import grpc


def at_once(cluster, questions, **fields):
    """Answers to questions about a document that are asked together: [(finished, events)], in their order."""
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(lambda text: cluster.answer(asking("gpl", text, **fields)), questions))


def begun(events):
    """How each attempt began, in the words of the job's log."""
    return [e.state.detail for e in events if e.HasField("state") and e.state.state == State.PREFILLING]


def prefixes(cluster, name):
    """What a decode worker counts of stored prefixes: {source or reason: number}, without zeros."""
    with urllib.request.urlopen(f"http://{cluster.processes[name].admin}/metrics", timeout=10) as page:
        lines = [line.split('"') for line in page.read().decode().splitlines() if line.startswith("sluice_prefixes_")]
    return {line[1]: int(line[2][1:]) for line in lines if len(line) == 3 and line[2] != "} 0"}


def gone(cluster, name):
    cluster.processes.pop(name).stop()
    eventually(lambda: not [w for w in cluster.workers().workers if w.info.name == name and w.state == cluster_pb.READY], 10, f"{name} is gone")


def test_decode_answers_without_prefill():
    questions = [question()[1:], *(f"What does section {n} say of licences?" for n in range(9))]
    with Cluster() as cluster:
        made, _ = add(cluster.channel, "gpl")
        other = document(4000, seed=3)
        cluster.answer(inference.GenerateRequest(text=other + question(), recipe="full", max_new_tokens=1))
        eventually(lambda: store_load(cluster).stored_capsules == 2, 10, "a store has both")
        gone(cluster, "prefill-0")
        answers = at_once(cluster, questions)
        for finished, events in answers:
            assert finished.statistics.n_reused_tokens == made.n_tokens - 1 and not finished.statistics.not_cached, finished
            assert ["with the stored beginning" in detail for detail in begun(events)] == [True], events
        assert "48213" in answers[0][0].text, answers[0]
        # They share one copy of the document's pages.
        assert sorted(f.statistics.transport for f, _ in answers) == ["held"] * 9 + ["store"], answers
        assert prefixes(cluster, "decode-0") == {"store": 1, "held": 9}
        eventually(lambda: made.capsule_bytes * 0.9 < [w.load.base_bytes for w in cluster.workers().workers if w.info.role == cluster_pb.DECODE][0]
                   < made.capsule_bytes * 1.1, 10, "one copy of the capsule")

        finished, events = cluster.answer(inference.GenerateRequest(text=other + "\nWhat else?", recipe="full", max_new_tokens=1))
        assert finished.statistics.n_reused_tokens >= 1000 and finished.statistics.transport == "store", finished

        # A conversation goes on with its session, which shares them too.
        turn = {"document": "gpl", "max_new_tokens": 8, "ignore_eos": True, "conversation": inference.Conversation(id="a", keep_ms=60000)}
        said = questions[0] + cluster.answer(inference.GenerateRequest(text=questions[0], **turn))[0].text
        finished, _ = cluster.answer(inference.GenerateRequest(text=said + "\nWhat else?", **turn))
        assert finished.statistics.n_reused_tokens > made.n_tokens, finished
        call(cluster.channel, "sluice.v1.Inference.EndConversation", inference.ConversationRequest(id="a"))

        # Another worker does not have them, and the one that does is preferred.
        cluster.start_worker("decode-1")
        cluster.wait_ready()
        for text in questions[:4]:
            finished, events = cluster.answer(asking("gpl", text))
            assert finished.statistics.transport == "held" and "decode-0" in begun(events)[0], events
        # It dies in the middle: the other one takes the document from the store, and goes on with the same tokens.
        long = lambda n_tokens: inference.GenerateRequest(document="gpl", text=questions[1], max_new_tokens=n_tokens, ignore_eos=True)
        _, whole_events = cluster.answer(long(150))
        watcher = Watcher(cluster, cluster.submit(long(6000)))
        watcher.wait_for_tokens(5)
        cluster.kill("decode-0")
        watcher.wait_for_resumption()
        watcher.wait_for_tokens(150)
        statistics = watcher.cancelled().statistics
        assert statistics.retries >= 1 and tokens(watcher.events)[:150] == tokens(whole_events), statistics
        assert prefixes(cluster, "decode-1") == {"store": 1}, prefixes(cluster, "decode-1")

        # The store is stopped: the worker uses what it holds. What it does not hold is refused within the job's deadline.
        cluster.processes["kvstore-0"].signal(signal.SIGSTOP)
        finished, events = cluster.answer(asking("gpl", questions[2]))
        assert tokens(events) == tokens(answers[2][1]) and finished.statistics.transport == "held", finished
        cluster.processes["kvstore-0"].signal(signal.SIGCONT)

        # Prefill gives the same answers, and reads what follows a document at length.
        cluster.start_worker("prefill-0")
        cluster.wait_ready()
        for (_, events), (finished, same) in zip(answers[:3], at_once(cluster, questions[:3], estimate_errors=True)):
            assert "prefill-0" in begun(same)[0] and finished.statistics.n_reused_tokens == made.n_tokens - 1, same
            assert tokens(events) == tokens(same), "not the answer of prefill"
        finished, events = cluster.answer(asking("gpl", document(3000, seed=4)))
        assert "prefill-0" in begun(events)[0] and finished.statistics.n_reused_tokens == made.n_tokens - 1, events


def test_a_question_reads_no_token_of_its_document():
    """Its capsule has all but the last token of what every question begins with: reading needs one more for a token to write."""
    bits = lambda events: [(e.token.id, e.token.logprob) for e in events if e.HasField("token")]
    with Cluster() as cluster:
        for recipe in ("full", "full,format=int4"):
            made, _ = add(cluster.channel, "gpl", document(4000), recipe=recipe)
            add(cluster.channel, "other", document(3000, "compass", "73150", 3), recipe=recipe)
            assert (made.n_tokens - 1) % 64 > 1, made
            cluster.wait_for_copies()
            stored = store_load(cluster).stored_capsules

            def asked(text, **fields):
                return cluster.answer(inference.GenerateRequest(text=text, max_new_tokens=4, ignore_eos=True,
                                                                sampling=inference.Sampling(logprobs=1), **fields))
            # The last ones are asked when a younger capsule begins with the document, too: that of the long question.
            for n, text in enumerate((question()[1:], "Why?", document(3000, seed=4), "And now?", document(3000, seed=9))):
                finished, events = asked(text, document="gpl")
                assert ("prefill-0" in begun(events)[0]) == (len(text) > 2000), events
                assert finished.statistics.n_reused_tokens == made.n_tokens - 1, (recipe, text[:20], finished.statistics)
                if recipe == "full":
                    _, alone = asked(text, document="gpl", no_reuse=True)
                    assert bits(events) == bits(alone), (text[:20], bits(events), bits(alone))
                if n == 2:
                    eventually(lambda: store_load(cluster).stored_capsules > stored, 10, "the long question's capsule is stored")
            # One process that has read the same answers alike, also over quantized pages.
            texts = [question()[1:], "Why?", document(1200, seed=6)]
            answers = [cluster.answer(asking("gpl", text))[0].text for text in texts]
            assert answers == answers_here(texts, recipe, document(4000))[1], answers
            # The first of several is taken whole, too.
            joined, _ = asked("Why?", documents=["gpl", "other"])
            assert joined.statistics.n_reused_tokens > made.n_tokens - 1, joined
            for name in ("gpl", "other"):
                call(cluster.channel, "sluice.v1.Documents.Delete", documents_pb.DocumentRequest(name=name))


def test_prefill_reads_what_decode_cannot_have():
    with Cluster(worker_args={"decode": ["--arena", "8M"]}) as cluster:
        add(cluster.channel, "gpl")
        # It refuses a prompt whose beginning no worker has read: nothing has promised memory for that.
        unread = worker_pb.DecodeRequest(job_id="unread", prompt=inference.TokenIds(ids=range(5, 105)), max_new_tokens=1, recipe="full")
        with connect(cluster.processes["decode-0"].address) as channel:
            assert "prompt of 100 tokens" in refused([grpc.StatusCode.FAILED_PRECONDITION], lambda: list(
                stub(channel.unary_stream, "sluice.v1.Decode.Run")(unread, timeout=20)))
        _, whole_events = cluster.answer(asking("gpl"))
        # Two thirds of these fit at once: others wait for memory, or go to prefill after all.
        questions = [f"What does section {n} say of licences?" for n in range(9)]
        apart = [cluster.answer(asking("gpl", text, ignore_eos=True)) for text in questions]
        together = at_once(cluster, questions, ignore_eos=True)
        assert [tokens(events) for _, events in together] == [tokens(events) for _, events in apart], together
        assert any(finished.statistics.transport == "held" for finished, _ in together), together
        cluster.start_worker("decode-1")
        cluster.wait_ready()
        gone(cluster, "decode-0")
        cluster.processes["kvstore-0"].signal(signal.SIGSTOP)  # and no worker holds the document
        began = time.monotonic()
        finished, events = cluster.answer(asking("gpl"))
        cluster.processes["kvstore-0"].signal(signal.SIGCONT)
        assert tokens(events) == tokens(whole_events) and time.monotonic() - began < 20, events
        why = inference.NotCached.Name(finished.statistics.not_cached)
        assert why in ("NOT_CACHED_UNREACHABLE", "NOT_CACHED_NO_STORE"), finished
        assert "prefill-0" in begun(events)[-1] and "(unreachable)" in "".join(e.state.detail for e in events), events
        assert prefixes(cluster, "decode-1") == {"unreachable": 1}


FACTS = {"a": ("lantern", "48213", 0), "b": ("compass", "73150", 3), "c": ("anchor", "60724", 9)}


def about(names, key, **fields):
    return inference.GenerateRequest(documents=names, text=question(FACTS[key][0])[1:], max_new_tokens=12, stop=["."], **fields)


@contextlib.contextmanager
def short_model(n_positions):
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "short")
        shutil.copytree(MODEL, model)
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = {**json.load(file), "max_position_embeddings": n_positions}
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        yield model


def test_decode_joins_documents():
    """Capsules that were read apart are joined: each fact is found, whichever document has it. Else all is read as one text."""
    with short_model(4800) as model, Cluster(model=model) as cluster:
        made = {}

        def add_all(names, form):
            for name in names:
                made[name] = add(cluster.channel, name, document(4000, *FACTS[name]), recipe=f"full,format={form}")[0].n_tokens

        def check(names):
            for key in names:
                finished, events = cluster.answer(about(names, key))
                s = finished.statistics
                # Each later document lacks up to a page at its end, and its first 32 tokens.
                assert sum(made[n] for n in names) - 1 - 128 * (len(names) - 1) <= s.n_reused_tokens < s.n_prompt_tokens - 32 * (len(names) - 1), s
                assert s.slots_per_head == s.n_reused_tokens and s.not_joined == inference.NOT_JOINED_NOT_SAID, s
                assert finished.text.strip() == FACTS[key][1] and s.transport in ("store", "held"), finished
                assert ["with the stored beginning" in detail for detail in begun(events)] == [True], events

        add_all("ab", "int8")
        check(["a", "b"])
        check(["b", "a"])
        for name in "ab":
            got = call(cluster.channel, "sluice.v1.Documents.Get", documents_pb.DocumentRequest(name=name))
            assert got.n_questions == 4 and 4 * (got.n_tokens - 160) <= got.saved_tokens <= 4 * got.n_tokens, got
            call(cluster.channel, "sluice.v1.Documents.Delete", documents_pb.DocumentRequest(name=name))
        add_all("abc", "int4")
        check(["c", "a", "b"])
        # More that is read again is less that is joined. A document that is named alone is not joined.
        less, _ = cluster.answer(about(["c", "a"], "a", reread=160))
        more, _ = cluster.answer(about(["c", "a"], "a", reread=0))
        assert more.statistics.n_reused_tokens - less.statistics.n_reused_tokens == 160, (less, more)
        alone, alone_events = cluster.answer(about(["b"], "b"))
        assert tokens(alone_events) == tokens(cluster.answer(asking("b", question("compass")[1:]))[1]), alone
        assert alone.statistics.n_reused_tokens == made["b"] - 1, alone
        # Later ones that are too short to be joined are read by the decode worker.
        for name, text in (("e", document(2000, seed=6)), ("s", document(160, seed=7))):
            add(cluster.channel, name, text, recipe="full,format=int4,chunk=64")
        finished, events = cluster.answer(inference.GenerateRequest(documents=["e", "s"], text="And?", max_new_tokens=2))
        assert finished.statistics.not_joined == inference.NOT_JOINED_NOTHING and finished.statistics.n_reused_tokens > 500, finished
        assert ["with the stored beginning" in detail for detail in begun(events)] == [True], events
        # A long question goes to prefill, which reads all after the first document.
        finished, events = cluster.answer(inference.GenerateRequest(documents=["b", "a"], text=document(2000, seed=4), max_new_tokens=2))
        assert "prefill-0" in begun(events)[0] and finished.statistics.n_reused_tokens < made["b"], finished
        assert finished.statistics.not_joined == inference.NOT_JOINED_UNAVAILABLE, finished

        # Names that cannot be joined are refused.
        invalid, missing = [grpc.StatusCode.INVALID_ARGUMENT], [grpc.StatusCode.NOT_FOUND]

        def said(codes, names, **fields):
            return refused(codes, lambda: cluster.answer(about(names, "a", **fields)))
        add(cluster.channel, "d", document(2500, seed=5), recipe="full,format=int8")
        assert "d under full,format=int8" in said(invalid, ["a", "d"]) and "a is named twice" in said(invalid, ["a", "b", "a"])
        assert "no document nope" in said(missing, ["a", "nope"]) and "not both" in said(invalid, ["a", "b"], document="c")
        assert "at most 8" in said(invalid, list("abcdefghi")) and "reread: is -1" in said(invalid, ["a", "b"], reread=-1)
        assert "recipe: document a" in said(invalid, ["a", "b"], recipe="full")
        assert "begins with one document" in said(invalid, ["a", "b"], conversation=inference.Conversation(id="x", keep_ms=1000))
        long = said(invalid, ["a", "b", "c", "d"], no_reuse=True)
        assert "together, and the model has 4800 positions" in long, long

        # A worker takes no tokens for others.
        part = worker_pb.JoinedPart(tokens=inference.TokenIds(ids=range(5, 205)), n_tokens=128, at=50, kvstore_address="127.0.0.1:1")
        wrong = worker_pb.DecodeRequest(job_id="wrong", prompt=inference.TokenIds(ids=range(5, 305)), max_new_tokens=1,
                                        recipe="full,format=int4", kvstore_address="127.0.0.1:1", joined=[part])
        with connect(cluster.processes["decode-0"].address) as channel:
            assert "not those of the prompt" in refused([grpc.StatusCode.FAILED_PRECONDITION], lambda: list(
                stub(channel.unary_stream, "sluice.v1.Decode.Run")(wrong, timeout=20)))

        # A document that is deleted while it is asked is answered about. What the store has lost, prefill reads: as one text.
        _, whole_events = cluster.answer(about(["b", "c"], "c", no_reuse=True))
        stream = cluster.generate(inference.GenerateRequest(documents=["a", "b"], text="And?", max_new_tokens=100, ignore_eos=True))
        next(stream)
        call(cluster.channel, "sluice.v1.Documents.Delete", documents_pb.DocumentRequest(name="a"))
        events = list(stream)
        assert events[-1].finished.status_code == 0 and events[-1].finished.statistics.n_output_tokens == 100, events[-1]
        cluster.kill("kvstore-0")
        cluster.start_worker("kvstore-0")
        cluster.wait_ready()
        finished, events = cluster.answer(about(["b", "c"], "c"))
        assert "prefill-0" in begun(events)[-1] and tokens(events) == tokens(whole_events), events


def test_decode_continues_no_checkpoint():
    """A checkpoint of a longer text has the document's beginning, in pages that are not quantized: prefill reads after it."""
    arenas = {"prefill": ["--arena", "128M", "--checkpoint-after", "50ms"], "kvstore": ["--arena", "192M"], "decode": ["--arena", "64M"]}
    long = document(16000)
    end = long.index(" ", len(long) // 3)
    long = long[:end] + "\n" + long[end + 1:]  # as the text of a question follows that of its document
    asked = asking("gpl", long[end + 1:end + 1000] + question())
    with Restarting(worker_args=arenas) as cluster:
        made, _ = add(cluster.channel, "gpl", long[:end])
        _, whole_events = cluster.answer(asked)
        assert prefixes(cluster, "decode-0") == {"store": 1}
        stream = stub(cluster.channel.unary_stream, ADD)(documents_pb.AddDocumentRequest(name="long", text=long), timeout=120)
        checkpoints = []
        while not checkpoints or checkpoints[-1] < made.n_tokens + 512:  # it has all of `asked`
            assert not next(stream).HasField("document"), "the text was read too soon"
            checkpoints = [int(n) for n in re.findall(r"tokens=(\d+) checkpoint=stored", cluster.processes["prefill-0"].errors())]
        stream.cancel()
        page = lambda name: urllib.request.urlopen(f"http://{cluster.processes[name].admin}/metrics", timeout=10).read().decode()
        assert re.search(r'\nsluice_checkpoints_total{result="stored"} [1-9]', page("prefill-0")), page("prefill-0")
        assert re.search(r"\nsluice_store_checkpoint_bytes [1-9]", page("kvstore-0")), page("kvstore-0")
        fetches = lambda: [w.load.progress for w in cluster.workers().workers if w.info.role == cluster_pb.KVSTORE][0]
        time.sleep(1)  # for the store's next report
        fetched = fetches()
        finished, events = cluster.answer(asked)
        assert tokens(events) == tokens(whole_events) and finished.statistics.n_reused_tokens > made.n_tokens, finished
        time.sleep(1)
        assert fetches() == fetched + 1, "the checkpoint was fetched by prefill alone"
        assert "is still being read" in begun(events)[1] and "prefill-0" in begun(events)[2], begun(events)
        assert prefixes(cluster, "decode-0") == {"store": 1, "failed": 1}


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
