#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Documents: a text is read once and kept on purpose. Questions about it do not read it again, also after every process was killed and
started; answers are those of the whole prompt; what is refused says why, and nothing else is lost."""
import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request

from harness import (BIN, Cluster, State, call, certificates, cluster_pb, document, documents_pb, eventually, inference, question, refused, request,
                     run_tests, stub, tokens)
from test_gateway import Gateway, chatting_model
from test_restart import Restarting
import grpc

TEXT = document(6000)
ADD = "sluice.v1.Documents.Add"


def add(channel, name, text=TEXT, timeout=60, **fields):
    """Adds a document: (document, events)."""
    events = list(stub(channel.unary_stream, ADD)(documents_pb.AddDocumentRequest(name=name, text=text, **fields), timeout=timeout))
    assert events[-1].HasField("document"), events[-1]
    return events[-1].document, events


def of(channel, method, name):
    return call(channel, f"sluice.v1.Documents.{method}", documents_pb.DocumentRequest(name=name))


def names(channel):
    return [d.name for d in call(channel, "sluice.v1.Documents.List", documents_pb.ListDocumentsRequest()).documents]


def asking(name, end=question()[1:], **fields):
    return inference.GenerateRequest(document=name, text=end, max_new_tokens=12, stop=["."], **fields)


def store_load(cluster):
    return [w for w in cluster.workers().workers if w.info.role == cluster_pb.KVSTORE][0].load


def settled_load(cluster):
    """The load of the store when nothing arrives any more: jobs send their capsules after their answers."""
    seen = []

    def is_settled():
        load = store_load(cluster)
        seen.append((load.stored_bytes, load.stored_capsules))
        return len(seen) > 40 and len(set(seen[-40:])) == 1
    eventually(is_settled, 20, "the store settled")
    return store_load(cluster)


def test_a_document_is_read_once_and_survives_every_process():
    with Restarting() as cluster:
        disk = ["--disk", os.path.join(cluster.folder, "disk"), "--disk-bytes", "64M"]
        cluster.processes.pop("kvstore-0").stop()
        cluster.start_worker("kvstore-0", disk)
        cluster.wait_ready()
        whole, whole_events = cluster.answer(inference.GenerateRequest(text=TEXT + question(), recipe="full,format=int4", max_new_tokens=12,
                                                                       stop=["."]))
        made, events = add(cluster.channel, "gpl")
        assert made.n_tokens > 1500 and made.capsule_bytes > 0 and made.store == "kvstore-0" and made.recipe == "full,format=int4", made
        assert any(e.reading.HasField("prefill") for e in events[:-1]), "no progress"
        eventually(lambda: of(cluster.channel, "Get", "gpl").on_disk, 10, "the document on the store's disk")
        first, first_events = cluster.answer(asking("gpl", "What else?"))
        assert made.n_tokens - 64 <= first.statistics.n_reused_tokens <= made.n_tokens, first.statistics
        same, same_events = cluster.answer(asking("gpl"))
        assert tokens(same_events) == tokens(whole_events), "not the answer of the whole prompt"
        assert same.statistics.n_prompt_tokens == whole.statistics.n_prompt_tokens

        for name in ("kvstore-0", "prefill-0", "decode-0"):
            process = cluster.processes.pop(name)
            process.signal(9)
            process.popen.wait(30)
        cluster.down()
        cluster.up()
        for name in ("kvstore-0", "prefill-0", "decode-0"):
            cluster.start_worker(name, disk if name == "kvstore-0" else ())
        cluster.wait_ready()
        eventually(lambda: of(cluster.channel, "Get", "gpl").store == "kvstore-0", 10, "the store reports the document")
        again, again_events = cluster.answer(asking("gpl", "And what is said of patents?"))
        assert made.n_tokens - 64 <= again.statistics.n_reused_tokens <= made.n_tokens, again.statistics
        _, last_events = cluster.answer(asking("gpl"))
        assert tokens(last_events) == tokens(whole_events), "another answer after the restart"

        assert of(cluster.channel, "Delete", "gpl").name == "gpl"
        said = refused([grpc.StatusCode.NOT_FOUND], cluster.answer, asking("gpl"))
        assert "no document gpl" in said, said
        assert not names(cluster.channel)
        cluster.down()
        cluster.up()
        cluster.wait_ready()
        assert not names(cluster.channel), "a removed document came back"


def test_a_document_is_not_evicted():
    with Cluster(worker_args={"kvstore": ["--arena", "16M"]}) as cluster:
        made, _ = add(cluster.channel, "kept")
        cluster.answer(asking("kept", "What is it?"))  # leaves a longer capsule with the same beginning, which goes later
        for seed in range(5):  # more than the store's memory
            cluster.answer(request(5000, seed=seed + 1))
        eventually(lambda: store_load(cluster).stored_bytes <= 16 << 20 and store_load(cluster).leases == 0, 10, "the store settled")
        finished, _ = cluster.answer(asking("kept", "What else?"))
        assert finished.statistics.n_reused_tokens >= made.n_tokens - 64, finished.statistics
        # One more would leave less than half of the store for everything else.
        said = refused([grpc.StatusCode.FAILED_PRECONDITION], add, cluster.channel, "more", document(26000, seed=2))
        assert "kvstore-0" in said and f"kept ({made.capsule_bytes} bytes)" in said, said
        assert names(cluster.channel) == ["kept"]
        before = settled_load(cluster)
        of(cluster.channel, "Delete", "kept")
        eventually(lambda: store_load(cluster).stored_bytes <= before.stored_bytes - made.capsule_bytes and
                   store_load(cluster).stored_capsules < before.stored_capsules, 10, "the store forgot the capsule")
        # Its store is lost, with all that it had: another one gets it.
        made, _ = add(cluster.channel, "moved")
        add(cluster.channel, "gone", document(3000, seed=9))
        cluster.processes["kvstore-0"].signal(signal.SIGSTOP)
        began = time.monotonic()
        of(cluster.channel, "Delete", "gone")
        assert time.monotonic() - began < 1, "Delete waited for a store that does not answer"
        cluster.kill("kvstore-0")
        cluster.start_worker("kvstore-1")
        eventually(lambda: of(cluster.channel, "Get", "moved").store == "kvstore-1", 60, "the text was read again")
        finished, _ = cluster.answer(asking("moved", "And then?"))
        assert finished.statistics.n_reused_tokens >= made.n_tokens - 64, finished.statistics
        of(cluster.channel, "Delete", "moved")
        # Its time is over.
        add(cluster.channel, "brief", keep_ms=500)
        eventually(lambda: not names(cluster.channel), 10, "the document ended at its time")


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
            assert finished.statistics.n_reused_tokens >= made.n_tokens - 64 and not finished.statistics.not_cached, finished
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
        endless = inference.GenerateRequest(document="gpl", text=questions[1], max_new_tokens=150, ignore_eos=True)
        _, whole_events = cluster.answer(endless)
        stream = cluster.generate(endless)
        events = [next(stream)]
        while not events[-1].HasField("token") or events[-1].token.index < 5:
            events.append(next(stream))
        cluster.kill("decode-0")
        events += list(stream)
        assert events[-1].finished.statistics.retries >= 1 and tokens(events) == tokens(whole_events), events[-1]
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
            assert "prefill-0" in begun(same)[0] and finished.statistics.n_reused_tokens >= made.n_tokens - 64, same
            assert tokens(events) == tokens(same), "not the answer of prefill"
        finished, events = cluster.answer(asking("gpl", document(3000, seed=4)))
        assert "prefill-0" in begun(events)[0] and finished.statistics.n_reused_tokens >= made.n_tokens - 64, events


def test_prefill_reads_what_decode_cannot_have():
    with Cluster(worker_args={"decode": ["--arena", "8M"]}) as cluster:
        add(cluster.channel, "gpl")
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


def test_what_is_refused_says_why_and_leaves_nothing():
    with certificates("client/acme/alice", "client/umbrella") as made, \
            Cluster(certificates=made, coordinator_args=["--max-documents", "2"]) as cluster, \
            cluster.channel_of("client/acme/alice") as acme, cluster.channel_of("client/umbrella") as umbrella:
        invalid, exists = [grpc.StatusCode.INVALID_ARGUMENT], [grpc.StatusCode.ALREADY_EXISTS]
        for name in ("", "a/b", "a\nb", "x" * 10000):
            assert "name:" in refused(invalid, add, acme, name)
        assert "evicts" in refused(invalid, lambda: add(acme, "a", recipe="snapkv,budget=256"))
        assert "positions" in refused(invalid, add, acme, "a", document(30000) * 4)
        assert "text:" in refused(invalid, add, acme, "a", "")
        assert "no document" in refused(invalid, add, acme, "a", "short")
        add(acme, "gpl")
        assert "is taken" in refused(exists, add, acme, "gpl", document(3000))
        add(umbrella, "gpl", document(3000, seed=3))  # another tenant's name is its own
        assert of(acme, "Get", "gpl").sha256 != of(umbrella, "Get", "gpl").sha256
        assert names(acme) == ["gpl"] and names(cluster.channel) == ["gpl", "gpl"]
        assert "recipe:" in refused(invalid, lambda: list(stub(acme.unary_stream, "sluice.v1.Inference.Generate")(
            asking("gpl", recipe="full"), timeout=20)))
        refused([grpc.StatusCode.NOT_FOUND], of, acme, "Get", "other")

        # Two adds of one name at once: one wins, the other is told.
        results = []

        def race():
            try:
                results.append(add(acme, "both", document(5000, seed=5))[0].name)
            except grpc.RpcError as error:
                results.append(error.code())
        racers = [threading.Thread(target=race) for _ in range(2)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert sorted(map(str, results)) == sorted(["both", str(exists[0])]), results
        said = refused([grpc.StatusCode.FAILED_PRECONDITION], add, acme, "third")
        assert "both (" in said and "gpl (" in said and "--max-documents" in said, said

        # A call that ends leaves no document; a document that is deleted while it is asked is answered about.
        of(acme, "Delete", "both")
        stream = stub(acme.unary_stream, ADD)(documents_pb.AddDocumentRequest(name="cut", text=document(14000, seed=7)), timeout=60)
        next(stream)
        assert "gpl" in names(acme)
        stream.cancel()
        eventually(lambda: names(acme) == ["gpl"], 10, "nothing of the cancelled document")
        watching = stub(acme.unary_stream, "sluice.v1.Inference.Generate")(inference.GenerateRequest(
            document="gpl", text="And?", max_new_tokens=100, ignore_eos=True), timeout=60)
        next(watching)
        of(acme, "Delete", "gpl")
        events = list(watching)
        assert events[-1].finished.status_code == 0 and events[-1].finished.statistics.n_output_tokens == 100
        assert of(umbrella, "Get", "gpl").store == "kvstore-0", "another tenant's document went"


def sluice(cluster, *words, text=None):
    run = subprocess.run([os.path.join(BIN, "sluice"), *words, "--coordinator", cluster.coordinator.address], input=text, text=True,
                         capture_output=True, timeout=120)
    return run.returncode, run.stdout, run.stderr


def test_the_command():
    with Cluster() as cluster:
        code, out, err = sluice(cluster, "doc", "add", "gpl", "-", text=TEXT)
        assert code == 0 and out.startswith("added gpl: "), (code, out, err)
        code, out, _ = sluice(cluster, "doc", "ls")
        assert code == 0 and "gpl" in out and "kvstore-0" in out, out
        code, out, _ = sluice(cluster, "doc", "show", "gpl", "--json")
        shown = json.loads(out)
        assert code == 0 and shown["name"] == "gpl" and shown["text_bytes"] == len(TEXT.encode()), shown
        asked = (question()[1:], "--max-new-tokens", "12", "--stop", ".", "--json")
        code, out, err = sluice(cluster, "doc", "ask", "gpl", *asked)
        finished = json.loads(out.splitlines()[-1])["finished"]
        assert code == 0 and finished["statistics"]["n_reused_tokens"] >= shown["n_tokens"] - 64, (code, finished, err)
        code, out, _ = sluice(cluster, "run", "--doc", "gpl", "--question", *asked)
        assert code == 0 and json.loads(out.splitlines()[-1])["finished"]["text"] == finished["text"], out
        code, _, err = sluice(cluster, "doc", "add", "gpl", "-", text=TEXT)
        assert code == 1 and "is taken" in err, (code, err)
        code, _, err = sluice(cluster, "doc", "add", "a/b", "-", text=TEXT)
        assert code == 2 and "0x2f" in err, (code, err)
        code, out, _ = sluice(cluster, "doc", "rm", "gpl")
        assert code == 0 and out.startswith("removed gpl"), out
        code, _, err = sluice(cluster, "doc", "ask", "gpl", "Why?")
        assert code == 1 and "no document gpl" in err, (code, err)
        code, _, err = sluice(cluster, "doc", "sohw", "gpl")
        assert code == 2 and "did you mean show" in err, (code, err)


def delete(gateway, path):
    with contextlib.closing(gateway.connect()) as connection:
        connection.request("DELETE", path)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def test_http_and_chats():
    with chatting_model() as model, Cluster(model=model) as cluster, Gateway(cluster) as gateway:
        status, made = gateway.post("/v1/documents", {"name": "gpl", "text": TEXT})
        assert status == 200 and made["object"] == "document" and made["id"] == "gpl" and made["chat"] and made["store"], made
        status, listed = gateway.get("/v1/documents")
        assert status == 200 and [d["id"] for d in json.loads(listed)["data"]] == ["gpl"], listed
        assert json.loads(gateway.get("/v1/documents/gpl")[1])["sha256"] == made["sha256"]
        chat = {"messages": [{"role": "user", "content": question()[1:]}], "max_tokens": 8, "temperature": 0}
        status, whole = gateway.post("/v1/chat/completions", {**chat, "recipe": "full,format=int4", "messages": [
            {"role": "user", "content": TEXT + question()}]})
        status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "gpl"})
        assert status == 200 and reply["choices"] == whole["choices"], (reply, whole)
        turns = chat["messages"] + [{"role": "assistant", "content": "48213"}, {"role": "user", "content": "And?"}]
        status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "gpl", "messages": turns})
        assert status == 200 and reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= made["n_tokens"] - 128, reply["usage"]

        # A text document for completions, and what is refused.
        assert gateway.post("/v1/documents", {"name": "raw", "text": TEXT, "raw": True})[0] == 200
        status, reply = gateway.post("/v1/completions", {"prompt": "And?", "document": "raw", "max_tokens": 4})
        assert status == 200 and reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= made["n_tokens"] - 128, reply["usage"]
        refusal = gateway.refusal(404, "/v1/chat/completions", {**chat, "document": "nope"})
        assert refusal["param"] == "document" and "no document nope" in refusal["message"], refusal
        assert gateway.refusal(400, "/v1/chat/completions", {**chat, "document": "raw"})["param"] == "document"
        assert gateway.refusal(400, "/v1/completions", {"prompt": "And?", "document": "gpl"})["param"] == "document"
        system = [{"role": "system", "content": "Be brief."}, *chat["messages"]]
        assert "first message" in gateway.refusal(400, "/v1/chat/completions", {**chat, "document": "gpl", "messages": system})["message"]
        assert gateway.refusal(409, "/v1/documents", {"name": "gpl", "text": TEXT})["type"] == "invalid_request_error"
        assert gateway.refusal(400, "/v1/documents", {"name": "a/b", "text": TEXT})["param"] == "name"
        assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": TEXT, "pin": 1})["param"] == "pin"
        assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": 5})["param"] == "text"
        assert gateway.refusal(400, "/v1/documents", "{")["type"] == "invalid_request_error"
        assert gateway.get("/v1/documents/nope")[0] == 404 and delete(gateway, "/v1/documents/a%2Fb")[0] == 400
        status, gone = delete(gateway, "/v1/documents/gpl")
        assert status == 200 and gone == {"id": "gpl", "object": "document", "deleted": True}, gone
        assert delete(gateway, "/v1/documents/gpl")[0] == 404 and delete(gateway, "/v1/documents")[0] == 405


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
