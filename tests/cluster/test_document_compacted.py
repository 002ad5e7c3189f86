#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Documents whose recipe evicts: read once, kept as a small part of their cache, and asked anything."""
import os
import signal
import subprocess
import tempfile

from documents import TEXT, add, answers_here, asking, of, sluice
from harness import BIN, MODEL, Cluster, call, cluster_pb, document, eventually, inference, question, refused, run_tests, tokens
from test_document_answers import at_once, prefixes
from test_gateway import chatting_model
import grpc

RECIPE = "score=reconstruct,scope=sinks:4,budget=0.33,heads=pages,when=end,format=int4"  # that is recommended for 10% of the bytes
FACT = question()[1:]
QUESTIONS = [FACT, "What is this text about?", "Say something else.\nAnd then?", document(700, "compass", "73150", 5) + question("compass"), "Why?"]


HEADS = "locret,budget=0.5,scope=stabilizers:256+tail:32,chunk=256,format=int4"  # what retaining heads expect, without a second reading


def answer(cluster, end, name="gpl"):
    finished, events = cluster.answer(asking(name, end))
    return finished, tokens(events)


def test_it_is_the_document_of_one_process_on_every_cluster():
    read, here = answers_here(QUESTIONS, RECIPE)
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        made, _ = add(cluster.channel, "gpl", recipe=RECIPE)
        assert made.n_tokens == read["n_tokens"] and made.recipe == RECIPE, (made, read)
        assert made.capsule_bytes < 0.13 * read["full_bytes"] and made.lost_points, (made, read)
        first = [answer(cluster, end) for end in QUESTIONS]
        assert [one.text for one, _ in first] == here and "48213" in here[0] and "73150" in here[3], (first, here)
        for finished, _ in first:  # only the question is read, however long
            statistics = finished.statistics
            assert statistics.n_reused_tokens == read["n_tokens"] - 1, statistics
        assert [(one.statistics.transport, one.statistics.capsule_bytes) for one, _ in first] == [("store", made.capsule_bytes)] + [("held", 0)] * 4, first
        path = os.path.join(folder, "gpl.doc")
        code, _, err = sluice(cluster, "doc", "export", "gpl", path)
        assert code == 0 and os.path.getsize(path) < made.capsule_bytes + made.text_bytes + 4096, err
        code, out, err = sluice(cluster, "doc", "ask", "gpl", "--check", FACT, "-n", "12", "--stop", ".")
        assert code == 0 and out.splitlines()[0] == here[0] and "check: the text is read again, under the recipe full" in err, (out, err)
        code, out, _ = sluice(cluster, "doc", "show", "gpl")
        assert code == 0 and f"recipe       {RECIPE}" in out and "of 100 points with Qwen2.5-Coder-1.5B at 2048 tokens" in out, out
        with Cluster() as second:
            code, _, err = sluice(second, "doc", "import", "there", path)
            assert code == 0, err
            assert [answer(second, end, "there")[1] for end in QUESTIONS] == [ids for _, ids in first]
            with open(path, "rb") as file:
                content = bytearray(file.read())
            content[-5000] ^= 1
            with open(path, "wb") as file:
                file.write(content)
            code, _, err = sluice(second, "doc", "import", "bad", path)
            assert code == 2 and "edited" in err, (code, err)


def test_retaining_heads_keep_a_document():
    read, here = answers_here(QUESTIONS, HEADS)
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster, Cluster() as second:
        made, _ = add(cluster.channel, "gpl", recipe=HEADS)
        assert made.n_tokens == read["n_tokens"] and made.capsule_bytes < 0.25 * read["full_bytes"], (made, read)
        first = [answer(cluster, end) for end in QUESTIONS]
        assert [one.text for one, _ in first] == here and "48213" in here[0] and "73150" in here[3], (first, here)
        assert [one.text for one, _ in first] == [answer(cluster, end)[0].text for end in QUESTIONS], "a question changed the document"
        assert all(one.statistics.n_reused_tokens == read["n_tokens"] - 1 for one, _ in first), first
        path = os.path.join(folder, "gpl.doc")
        for words in ("export", "gpl"), ("import", "there"):
            code, _, err = sluice(cluster if words[0] == "export" else second, "doc", *words, path)
            assert code == 0, err
        assert [answer(second, end, "there")[1] for end in QUESTIONS] == [ids for _, ids in first]


def test_a_text_that_ends_with_a_line_break():
    """The break and the one before a question are one token: one process reads the same tokens as a cluster, and answers alike."""
    text = TEXT + " one\n"
    read, here = answers_here(QUESTIONS, RECIPE, text)
    whole, _ = answers_here([], "full", text)
    with Cluster() as cluster:
        made, _ = add(cluster.channel, "gpl", text, recipe=RECIPE)
        counted, _ = cluster.answer(inference.GenerateRequest(text=text, max_new_tokens=1))
        assert made.n_tokens == read["n_tokens"] == whole["n_tokens"] == counted.statistics.n_prompt_tokens - 1, (made, read, whole, counted)
        assert [answer(cluster, end)[0].text for end in QUESTIONS] == here and "48213" in here[0], here
        full, _ = add(cluster.channel, "full", text)
        assert full.n_tokens == whole["n_tokens"], (full, whole)


def test_what_is_refused():
    with Cluster() as cluster:
        for recipe, why in ((HEADS.replace(",format=int4", ""), "evicts again for each, unless it has format=int8"), ("tailorkv,score=cis,budget=0.5,when=chunk", "evicts before it offloads, so that only the same prompt finds the slots again; for example full,format=int4")):
            says = refused([grpc.StatusCode.INVALID_ARGUMENT], lambda name: add(cluster.channel, name, recipe=recipe), "gpl")
            assert why in says, says
        for recipe in ("h2o,format=int4", "snapkv"):
            says = refused([grpc.StatusCode.INVALID_ARGUMENT], lambda name: add(cluster.channel, name, recipe=recipe), "gpl")
            assert "evicts for the first one" in says and "kvzip" in says, says
        add(cluster.channel, "gpl", recipe=RECIPE)
        add(cluster.channel, "other", document(3000, "compass", "73150", 3), recipe=RECIPE)
        joined = inference.GenerateRequest(documents=["other", "gpl"], text=FACT, max_new_tokens=12, stop=["."])
        says = refused([grpc.StatusCode.INVALID_ARGUMENT], cluster.answer, joined)
        assert f"other was read under {RECIPE}, which evicts: it is asked alone" in says, says


def test_ten_at_once_share_one_copy():
    with Cluster(kvstore=2) as cluster:
        made, _ = add(cluster.channel, "gpl", recipe=RECIPE)
        answers = at_once(cluster, [FACT] * 10)
        ids = tokens(answers[0][1])
        for finished, again in answers:
            assert tokens(again) == ids and finished.statistics.n_reused_tokens == made.n_tokens - 1, finished.statistics
        assert "48213" in answers[0][0].text and prefixes(cluster, "decode-0") == {"store": 1, "held": 9}, answers
        eventually(lambda: made.capsule_bytes * 0.9 < [w.load.base_bytes for w in cluster.workers().workers if w.info.role == cluster_pb.DECODE][0]
                   < made.capsule_bytes * 1.1, 10, "one copy of the capsule")
        # Long questions fill pages of their own. Without its store the worker uses what it holds.
        long = [document(700, "compass", str(n), n) + question("compass") for n in (73150, 91847)]
        for (finished, _), fact in zip(at_once(cluster, long), ("73150", "91847")):
            assert fact in finished.text and finished.statistics.transport == "held", finished
        cluster.processes[made.store].signal(signal.SIGSTOP)
        finished, again = answer(cluster, FACT)
        cluster.processes[made.store].signal(signal.SIGCONT)
        assert again == ids and finished.statistics.transport == "held", finished


def test_a_lost_store():
    with Cluster(kvstore=2) as cluster:
        made, _ = add(cluster.channel, "gpl", recipe=RECIPE)
        _, ids = answer(cluster, FACT)
        cluster.start_worker("decode-1")
        cluster.wait_ready()
        cluster.kill("decode-0")  # which holds it
        cluster.kill(made.store)
        whole, _ = answer(cluster, FACT)  # reads all of it, under the recipe of the document
        assert whole.status_code == 0 and "48213" in whole.text and whole.statistics.n_reused_tokens == 0, whole

        def is_as_before():  # the text was read again: exactly the tokens of its capsule
            finished, again = answer(cluster, FACT)
            return again == ids and finished.statistics.n_reused_tokens == made.n_tokens - 1
        eventually(is_as_before, 60, "another store has it")


def test_conversations_go_on_from_it():
    with Cluster(kvstore=2) as cluster:
        made, _ = add(cluster.channel, "gpl", recipe=RECIPE, replicas=2)
        assert len(made.stores) == 2, made

        def turn(text, name):
            return cluster.answer(inference.GenerateRequest(document="gpl", text=text, max_new_tokens=8, ignore_eos=True,
                                                            conversation=inference.Conversation(id=name, keep_ms=60000)))[0]
        first = turn(FACT, "a")
        assert "48213" in first.text and first.statistics.n_reused_tokens == made.n_tokens - 1, first
        assert turn(FACT, "b").text == first.text
        second = turn(FACT + first.text + " And?", "a")
        assert second.statistics.n_reused_tokens == first.statistics.n_prompt_tokens + 7, second
        call(cluster.channel, "sluice.v1.Inference.EndConversation", inference.ConversationRequest(id="a"))
        cluster.kill("decode-0")  # the sessions go on from their copies in a store, which are not copies of each other
        cluster.start_worker("decode-1")
        cluster.wait_ready()
        again = turn(FACT + first.text + " And?", "b")
        assert again.text == second.text and again.statistics.n_reused_tokens == second.statistics.n_reused_tokens, (again, second)
        call(cluster.channel, "sluice.v1.Inference.EndConversation", inference.ConversationRequest(id="b"))
        cluster.kill(made.stores[0])
        eventually(lambda: answer(cluster, FACT)[0].statistics.n_reused_tokens == made.n_tokens - 1, 20, "the other store serves it")


def test_a_chat_is_cut_before_what_follows_the_text():
    with chatting_model() as model, Cluster(model=model) as cluster, tempfile.TemporaryDirectory() as folder:
        made, _ = add(cluster.channel, "gpl", recipe=RECIPE)
        chat = inference.Chat(messages=[inference.ChatMessage(role="user", content=FACT)])
        finished, _ = cluster.answer(inference.GenerateRequest(document="gpl", chat=chat, max_new_tokens=8))
        assert made.chat and finished.statistics.n_reused_tokens == made.n_tokens - 1, (made, finished)
        path, page = os.path.join(folder, "gpl.doc"), os.path.join(folder, "page.html")
        assert sluice(cluster, "doc", "export", "gpl", path)[0] == 0
        shown = subprocess.run([os.path.join(BIN, "sluice"), "inspect", path, "--html", page, "--model", model], capture_output=True, text=True)
        assert shown.returncode == 0 and os.path.getsize(page) > 10000, shown


def local(command, *words, lines=""):
    run = subprocess.run([os.path.join(BIN, "sluice"), command, "--local", "-n", "2", *words], input=lines, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run
    return run.stderr


def test_one_process_tells_of_texts_that_are_longer_than_a_recipe_holds_at():
    said = "for questions that come later, the recipe was measured to hold up to 2048 tokens: at 8192 it lost "
    questions = ("--ship-at-most", "10", "--question", FACT, "--question", "And?")
    with tempfile.TemporaryDirectory() as folder:
        for text, cautions in ((document(9000), 1), (document(4000), 0)):
            path = os.path.join(folder, "text")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            assert local("run", "--model", MODEL, "--prompt-file", path, *questions).count(f"tokens: {said}") == cautions, len(text)
    with chatting_model() as model:  # once, by the turn that reads it
        err = local("chat", "--model", model, "--ship-at-most", "10", lines=f"Hello?\n{document(9000)}\nAnd?\n".replace(". ", ".  "))
        assert err.count(f"were read: {said}") == 1, err


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
