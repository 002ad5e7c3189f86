#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Documents: a text is read once and kept on purpose. Questions about it do not read it again, also after every process was killed and
started; answers are those of the whole prompt; what is refused says why, and nothing else is lost."""
import concurrent.futures
import contextlib
import hashlib
import html
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from bend import Bend
from harness import (BIN, MODEL, ROOT, Cluster, State, call, certificates, cluster_pb, connect, document, documents_pb, eventually, in_one_process, inference,
                     question, refused, request, run_tests, store_stats, stub, tokens, worker_pb)
from test_gateway import Gateway, chatting_model, key_line
from test_restart import Restarting
import grpc

TEXT = document(6000)
ADD = "sluice.v1.Documents.Add"
READER = os.path.join(ROOT, "tools", "read_document.py")


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
        path = os.path.join(cluster.folder, "gpl.doc")
        code, out, err = sluice(cluster, "doc", "export", "gpl", path)  # perhaps before the store has read it back
        assert code == 0 and read_file(path)[0] == 0, (code, out, err)
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


def stores_of(channel, name):
    return sorted(of(channel, "Get", name).stores)


def pin(channel, name, **fields):
    return call(channel, "sluice.v1.Documents.Pin", documents_pb.PinDocumentRequest(name=name, **fields))


def n_jobs(cluster):
    return len(cluster.list())


def test_replicas_outlive_the_loss_of_a_store():
    """A store that is lost, or comes back empty, gets the capsule from another store: no job reads the text again."""
    with Cluster(kvstore=3) as cluster:
        made, _ = add(cluster.channel, "gpl", replicas=2)
        assert made.replicas == 2 and len(made.stores) == 2 and made.store == made.stores[0], made
        # More and fewer stores afterwards.
        assert pin(cluster.channel, "gpl", replicas=3).replicas == 3
        eventually(lambda: len(stores_of(cluster.channel, "gpl")) == 3, 10, "the last store has a copy")
        assert pin(cluster.channel, "gpl", replicas=1).replicas == 1
        eventually(lambda: len(stores_of(cluster.channel, "gpl")) == 1, 10, "two stores forgot it")
        made = pin(cluster.channel, "gpl", replicas=2, keep_ms=3600000)
        assert abs(made.expires_ms / 1000 - time.time() - 3600) < 60 and not pin(cluster.channel, "gpl", keep_ms=0).expires_ms
        eventually(lambda: len(stores_of(cluster.channel, "gpl")) == 2, 10, "a second store has a copy again")
        said = refused([grpc.StatusCode.FAILED_PRECONDITION], lambda: pin(cluster.channel, "gpl", replicas=4))
        assert "4 stores should keep the document, and 3 are ready" in said, said
        assert "keep_ms:" in refused([grpc.StatusCode.INVALID_ARGUMENT], lambda: pin(cluster.channel, "gpl", keep_ms=-1))
        assert "no document" in refused([grpc.StatusCode.NOT_FOUND], lambda: pin(cluster.channel, "lpg", keep_ms=1))
        lost, kept = of(cluster.channel, "Get", "gpl").stores
        spare = ({"kvstore-0", "kvstore-1", "kvstore-2"} - {lost, kept}).pop()
        before, listed = cluster.answer(asking("gpl"))[1], n_jobs(cluster)
        cluster.kill(lost)
        with tempfile.TemporaryDirectory() as folder:  # the other store sends it, before the loss is noticed
            code, _, err = sluice(cluster, "doc", "export", "gpl", os.path.join(folder, "gpl.doc"))
            assert code == 0, err
        eventually(lambda: stores_of(cluster.channel, "gpl") == [kept], 15, "the loss is noticed")
        finished, events = cluster.answer(asking("gpl"))
        assert finished.statistics.n_reused_tokens >= made.n_tokens - 64 and tokens(events) == tokens(before), finished.statistics
        eventually(lambda: stores_of(cluster.channel, "gpl") == sorted([kept, spare]), 20, "the third store has a copy")
        assert n_jobs(cluster) == listed + 1, "a job has read the text again"
        said = refused([grpc.StatusCode.FAILED_PRECONDITION], lambda: add(cluster.channel, "more", document(5000, seed=2), replicas=3))
        assert "3 stores should keep the document, and 2 are ready" in said, said
        assert "replicas:" in refused([grpc.StatusCode.INVALID_ARGUMENT], lambda: add(cluster.channel, "more", replicas=9))
        of(cluster.channel, "Delete", "gpl")
        eventually(lambda: all(store_stats(w.info.rpc_address).forgotten >= 1 for w in cluster.workers().workers
                               if w.info.role == cluster_pb.KVSTORE and w.state == cluster_pb.READY), 10, "both stores forgot it")


def test_the_only_good_copy_is_not_dropped():
    """A store that does not answer still has its copy, but that may be lost soon: the other store's copy stays."""
    with Cluster(kvstore=2) as cluster:
        stalled, kept = add(cluster.channel, "gpl", replicas=2)[0].stores
        state = lambda: [w.state for w in cluster.workers().workers if w.info.name == stalled]
        cluster.processes[stalled].signal(signal.SIGSTOP)
        eventually(lambda: state() != [cluster_pb.READY], 15, "the coordinator notices that the store stalls")
        assert pin(cluster.channel, "gpl", replicas=1).replicas == 1
        time.sleep(1)
        assert kept in stores_of(cluster.channel, "gpl"), "the only good copy was dropped"
        cluster.processes[stalled].signal(signal.SIGCONT)
        eventually(lambda: cluster_pb.READY in state() and len(stores_of(cluster.channel, "gpl")) == 1, 20, "one copy is left")


def test_a_full_store_is_passed_over():
    """Of three stores one is too small. A document whose first store has room gets its second copy at the other large store."""
    with Cluster(kvstore=2) as cluster:
        cluster.start_worker("kvstore-2", ["--arena", "1M"])
        eventually(lambda: sum(w.info.role == cluster_pb.KVSTORE and w.state == cluster_pb.READY for w in cluster.workers().workers) == 3, 10,
                   "three stores are ready")
        n_added = 0
        for seed in range(8):
            name, text = f"text-{seed}", document(3000, seed=seed + 20)
            try:
                made, _ = add(cluster.channel, name, text, replicas=2)
            except grpc.RpcError as error:  # prefill sends the capsule to the first store: only if that is the small one
                assert error.code() == grpc.StatusCode.FAILED_PRECONDITION and "kvstore-2" in error.details(), error
                assert "kvstore-2" in refused([grpc.StatusCode.FAILED_PRECONDITION], add, cluster.channel, name, text)
                continue
            n_added += 1
            assert sorted(made.stores) == ["kvstore-0", "kvstore-1"], made
        assert n_added > 0


def reused(cluster, worker):
    """Returns the reused tokens of each job that the prefill worker has finished."""
    return [int(found) for found in re.findall(r"status=ok tokens=\d+ reused=(\d+)", cluster.processes[worker].errors())]


def test_reading_goes_on_where_it_stopped():
    text, other = document(16000), document(16000, seed=1)
    arenas = {"prefill": ["--arena", "128M", "--checkpoint-after", "50ms"], "kvstore": ["--arena", "192M"], "decode": ["--arena", "64M"]}
    at_once = in_one_process("full,format=int4", text + question())
    with Restarting(prefill=2, worker_args=arenas) as cluster:
        def adding(name, text, until):
            """Begins to add a document; returns the call, and the worker that reads it, when more than `until` of it is read."""
            stream = stub(cluster.channel.unary_stream, ADD)(documents_pb.AddDocumentRequest(name=name, text=text), timeout=120)
            worker = None
            for event in stream:
                if event.reading.HasField("state") and "->" in event.reading.state.detail:
                    worker = event.reading.state.detail.split(" ")[0]
                progress = event.reading.prefill
                if progress.tokens_done > until * progress.tokens_total > 0:
                    return stream, worker
            raise AssertionError("the text was read too soon")

        # The worker is killed: another one goes on.
        stream, first = adding("killed", text, 0.6)
        cluster.kill(first)
        made = list(stream)[-1].document
        second = {"prefill-0": "prefill-1", "prefill-1": "prefill-0"}[first]
        assert made.store == "kvstore-0" and len(reused(cluster, second)) == 1, made
        print(f"worker killed: {reused(cluster, second)[0]} of {made.n_tokens} tokens not read again")
        assert reused(cluster, second)[0] > 0.2 * made.n_tokens
        _, events = cluster.answer(asking("killed"))
        assert tokens(events) == at_once[:len(tokens(events))], "another answer than that of a text that was read at once"
        stats = store_stats([w.info.rpc_address for w in cluster.workers().workers if w.info.role == cluster_pb.KVSTORE][0])
        assert stats.capsules <= 2, "a checkpoint is left"  # the document, and the question with it

        # The coordinator is killed: the call fails, and when the client repeats it, the worker goes on.
        stream, _ = adding("cut", other, 0.6)
        cluster.down()
        refused([grpc.StatusCode.UNAVAILABLE], list, stream)
        cluster.up()
        eventually(lambda: sum(w.state == cluster_pb.READY for w in cluster.workers().workers) == 3, 20, "the workers are back")
        assert names(cluster.channel) == ["killed"], "a document that was not added"
        made, _ = add(cluster.channel, "cut", other)
        print(f"coordinator killed: {reused(cluster, second)[-1]} of {made.n_tokens} tokens not read again")
        assert reused(cluster, second)[-1] > 0.2 * made.n_tokens


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
        finished, events = cluster.answer(asked)
        assert tokens(events) == tokens(whole_events) and finished.statistics.n_reused_tokens > made.n_tokens, finished
        assert "is still being read" in begun(events)[1] and "prefill-0" in begun(events)[2], begun(events)
        assert prefixes(cluster, "decode-0") == {"store": 1, "failed": 1}


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

        for method in ("Get", "Delete"):  # another tenant's names, and names that cannot be
            refused([grpc.StatusCode.NOT_FOUND], of, umbrella, method, "both")
            assert "name:" in refused(invalid, of, acme, method, "x/" * 5000)
        refused([grpc.StatusCode.NOT_FOUND], lambda: pin(umbrella, "both", keep_ms=1))
        assert "name:" in refused(invalid, lambda: pin(acme, "x" * 10000, keep_ms=1))
        assert "no document" in refused([grpc.StatusCode.NOT_FOUND], lambda: list(stub(umbrella.unary_stream, "sluice.v1.Inference.Generate")(
            asking("both"), timeout=20)))

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


def test_a_disk_that_fails_keeps_no_document_and_loses_none():
    with tempfile.TemporaryDirectory(prefix="sluice-bend-") as folder, Restarting() as cluster:
        bend, args = Bend(folder, "coordinator"), list(cluster.coordinator.args)
        args[args.index("--listen") + 1] = cluster.coordinator.address
        cluster.down()
        cluster.coordinator = cluster._start("coordinator", args, bend.environment)
        eventually(lambda: sum(w.state == cluster_pb.READY for w in cluster.workers().workers) == 3, 20, "the workers are back")
        add(cluster.channel, "kept")
        with bend.bent("disk_fails", 1000):
            failed = [grpc.StatusCode.UNAVAILABLE]
            assert "document-" in refused(failed, add, cluster.channel, "lost", document(4000, seed=4))
            assert "document-" in refused(failed, lambda: pin(cluster.channel, "kept", keep_ms=3600000))
            assert names(cluster.channel) == ["kept"] and of(cluster.channel, "Get", "kept").expires_ms == 0
        add(cluster.channel, "lost", document(4000, seed=4))
        cluster.down()
        cluster.up()
        eventually(lambda: sum(w.state == cluster_pb.READY for w in cluster.workers().workers) == 3, 20, "the workers are back")
        assert names(cluster.channel) == ["kept", "lost"]
        finished, _ = cluster.answer(asking("kept", "What else?"))
        assert finished.statistics.n_reused_tokens > 1500, finished.statistics


def sluice(cluster, *words, text=None):
    run = subprocess.run([os.path.join(BIN, "sluice"), *words, "--coordinator", cluster.coordinator.address], input=text, text=True,
                         capture_output=True, timeout=120)
    return run.returncode, run.stdout, run.stderr


def ask(channel, name):
    """(finished, events) of the question, by any client."""
    events = list(stub(channel.unary_stream, "sluice.v1.Inference.Generate")(asking(name), timeout=60))
    return events[-1].finished, events


def edited(path, out, at, xor=1):
    """A copy of a file with one byte changed."""
    with open(path, "rb") as file:
        content = bytearray(file.read())
    content[at] ^= xor
    with open(out, "wb") as file:
        file.write(content)
    return out


def local(*words):
    run = subprocess.run([os.path.join(BIN, "sluice"), *words], text=True, capture_output=True, timeout=60)
    return run.returncode, run.stdout, run.stderr


def read_file(path, *more):
    run = subprocess.run([sys.executable, READER, path, *more], text=True, capture_output=True, timeout=60)
    return run.returncode, run.stdout, run.stderr


def test_a_document_travels_as_a_file():
    with certificates("client/acme/alice", "client/umbrella") as made, tempfile.TemporaryDirectory() as folder, \
            Cluster(certificates=made) as cluster, cluster.channel_of("client/acme/alice") as acme, \
            cluster.channel_of("client/umbrella") as umbrella:
        path, short = os.path.join(folder, "gpl.doc"), os.path.join(folder, "short.doc")
        text_file, other = os.path.join(folder, "gpl.txt"), os.path.join(folder, "other.doc")
        with open(text_file, "w", encoding="utf-8") as file:
            file.write(TEXT)
        alice = made.options("client/acme/alice")
        original, _ = add(acme, "gpl")
        _, events = ask(acme, "gpl")
        code, out, err = sluice(cluster, "doc", "export", "gpl", path, "--json", *alice)
        said = json.loads(out)
        assert code == 0 and said["bytes"] == os.path.getsize(path) and said["n_tokens"] == original.n_tokens, (said, err)
        add(acme, "longer", document(7000, seed=4))
        assert sluice(cluster, "doc", "export", "longer", other, *alice)[0] == 0
        with open(other, "rb") as file:
            longer = file.read()
        of(acme, "Delete", "longer")
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert sluice(cluster, "doc", "export", "gpl", short, "--no-text", *alice)[0] == 0
        assert os.path.getsize(path) - os.path.getsize(short) == len(TEXT.encode()) + 32
        with open(path, "rb") as file:
            whole = file.read()
        assert TEXT.encode() in whole and TEXT.encode()[:64] not in open(short, "rb").read()

        # The reader in Python agrees, and finds what was edited.
        code, out, err = read_file(path)
        assert code == 0 and original.recipe in out and original.sha256 in out and "capsule body" in out, (out, err)
        code, out, err = read_file(edited(path, other, len(whole) - 40))
        assert code == 1 and "capsule body" in err, (out, err)
        assert read_file(short)[0] == 0
        page = os.path.join(folder, "page.html")
        code, out, err = local("inspect", path, "--html", page, "--model", MODEL, "--json")
        shown = json.loads(out)
        assert code == 0 and shown["recipe"] == original.recipe and shown["document"]["sha256"] == original.sha256, (out, err)
        written = open(page, encoding="utf-8").read()
        assert "100.0% of their slots" in written and written.count("100.0% of its slots") == written.count('title="sentence') > 20
        code, _, err = local("inspect", short, "--html", page, "--model", MODEL)
        assert code == 2 and "--text FILE" in err, (code, err)
        assert local("inspect", short, "--html", page, "--model", MODEL, "--text", text_file)[0] == 0
        code, _, err = local("inspect", other)
        assert code == 2 and "capsule body" in err, (code, err)
        # Nothing is written where there is no room, and nothing is left.
        code, _, err = sluice(cluster, "doc", "export", "gpl", "/dev/full/x", *alice)
        assert code == 1 and "/dev/full/x" in err, (code, err)
        run = subprocess.run(["bash", "-c", 'ulimit -f 64; trap "" XFSZ; exec "$@"', "-", os.path.join(BIN, "sluice"), "doc", "export", "gpl", other + "2",
                              "--coordinator", cluster.coordinator.address, *alice], text=True, capture_output=True, timeout=60)
        assert run.returncode == 1 and "cannot be written" in run.stderr, run
        assert not [name for name in os.listdir(folder) if name.startswith("other.doc2")]

        # Under a tenant with another salt, and on a cluster whose store is another: the same tokens, which are not read again.
        code, out, err = sluice(cluster, "doc", "import", "mine", path, *made.options("client/umbrella"))
        assert code == 0 and out.startswith("imported mine: "), (code, out, err)
        finished, again = ask(umbrella, "mine")
        assert tokens(again) == tokens(events) and finished.statistics.n_reused_tokens >= original.n_tokens - 64, finished.statistics
        assert names(acme) == ["gpl"] and names(umbrella) == ["mine"]
        with Cluster() as second:
            code, out, err = sluice(second, "doc", "import", "there", path, "--json", "--keep", "1h")
            shown = json.loads(out)
            assert code == 0 and shown["expires_ms"] - shown["created_ms"] == 3600000 and shown["sha256"] == original.sha256 and shown["store"] == "kvstore-0", (shown, err)
            finished, again = second.answer(asking("there"))
            assert tokens(again) == tokens(events), "another answer on the other cluster"
            assert finished.statistics.n_reused_tokens >= original.n_tokens - 64, finished.statistics
            again_path = os.path.join(folder, "again.doc")
            assert sluice(second, "doc", "export", "there", again_path)[0] == 0
            assert open(again_path, "rb").read() == whole, "the same document is another file"
            refuse_files(second, folder, whole, longer, short, text_file)
            second.kill("kvstore-0")
            assert names(second.channel) == ["there", "with-text"]


def refuse_files(cluster, folder, whole, longer, short, text_file):
    """Tries files that are refused; the documents `there` and `with-text` are left."""
    path = os.path.join(folder, "bad.doc")

    def refused_file(content, code, *words, name="bad"):
        with open(path, "wb") as file:
            file.write(content)
        got, out, err = sluice(cluster, "doc", "import", name, path)
        assert got == code and all(word in err for word in words), (got, out, err)
    text_at, end = whole.index(TEXT.encode()), len(whole)
    refused_file(b"x" * 500, 2, "not a document")
    refused_file(b"", 2, "cut short", "head")
    refused_file(whole[:text_at + 100], 2, "cut short", "text")
    refused_file(whole[:-1], 2, "cut short", "body")
    refused_file(whole[:end // 2], 2, "cut short", "body")
    refused_file(whole + b"x", 2, "follow its end")
    for at, part in ((24, "head"), (text_at + 9, "text"), (text_at + len(TEXT.encode()) + 40, "capsule header"), (end - 5000, "capsule body")):
        changed = bytearray(whole)
        changed[at] ^= 1
        refused_file(bytes(changed), 2, "edited", part)
    refused_file(whole[:8] + b"\2" + whole[9:], 2, "version 2", "reads version 1")
    refused_file(signed(whole, 16, b"\1" * 8), 1, "another model", "0101010101010101")
    refused_file(signed(whole, 96, b"\1" * 32), 1, "tokenizer")
    refused_file(with_capsule_of(whole, longer), 1, "is not the one of this text")
    before = of(cluster.channel, "Get", "there")
    with open(path, "wb") as file:
        file.write(whole)
    code, out, err = sluice(cluster, "doc", "import", "there", path, "--json")  # the same document: as adding it again
    assert code == 0 and json.loads(out)["created_ms"] == before.created_ms, (out, err)
    refused_file(whole[:-1], 2, "cut short", "body", name="there")
    code, _, err = sluice(cluster, "doc", "add", "taken", text_file, "--recipe", "full")
    assert code == 0, err
    refused_file(whole, 1, "is taken", "by the same text, but read under", name="taken")
    of(cluster.channel, "Delete", "taken")
    refused_file(whole, 2, "0x2f", name="a/b")
    code, _, err = sluice(cluster, "doc", "import", "bad", os.path.join(folder, "none"))
    assert code == 2 and "No such file" in err, (code, err)
    code, _, err = sluice(cluster, "doc", "import", "bad", short)
    assert code == 2 and "--text" in err, (code, err)
    code, _, err = sluice(cluster, "doc", "import", "bad", short, "--text", short + "x")
    assert code == 2, (code, err)
    with open(text_file + "2", "w", encoding="utf-8") as file:
        file.write(TEXT[:-1] + "!")
    code, _, err = sluice(cluster, "doc", "import", "bad", short, "--text", text_file + "2")
    assert code == 2 and "is not the text" in err, (code, err)
    code, out, err = sluice(cluster, "doc", "import", "with-text", short, "--text", text_file)
    assert code == 0 and out.startswith("imported with-text"), (code, out, err)
    assert names(cluster.channel) == ["there", "with-text"]


def parts_of(whole):
    """The parts of a file with its text, without their digests."""
    text, header, body, recipe = struct.unpack_from("<QQQI", whole, 32)
    parts, at = [], 0
    for n in (128 + recipe, text, header, body):
        parts.append(whole[at:at + n])
        at += n + 32
    return parts


def joined(parts):
    """The file of these parts, with digests that agree."""
    whole = b""
    for part in parts:
        whole += part
        whole += hashlib.sha256(whole).digest()
    return whole


def signed(whole, at, value):
    """The file with other bytes in its head."""
    head, *others = parts_of(whole)
    return joined([head[:at] + value + head[at + len(value):], *others])


def with_capsule_of(whole, another):
    """The file with another one's capsule."""
    head, text, *_ = parts_of(whole)
    header, body = parts_of(another)[2:]
    return joined([head[:40] + struct.pack("<QQ", len(header), len(body)) + head[56:], text, header, body])


def test_what_stops_an_import():
    with Cluster() as cluster, tempfile.TemporaryDirectory() as folder, Cluster(worker_args={"kvstore": ["--arena", "6M"]}) as small:
        path = os.path.join(folder, "gpl.doc")
        add(cluster.channel, "gpl", document(12000))
        assert sluice(cluster, "doc", "export", "gpl", path)[0] == 0
        whole = open(path, "rb").read()
        code, _, err = sluice(small, "doc", "import", "gpl", path)
        assert code == 1 and "no room" in err and "--arena" in err, (code, err)
        assert not names(small.channel)

        def pieces(n, then=lambda: None):
            yield documents_pb.ImportDocumentRequest(name="half", data=whole[:n])
            then()
            yield documents_pb.ImportDocumentRequest(data=whole[n:])
        send = stub(cluster.channel.stream_stream, "sluice.v1.Documents.Import")
        of(cluster.channel, "Delete", "gpl")
        assert "deadline" in refused([grpc.StatusCode.INVALID_ARGUMENT], lambda: list(send(pieces(100))))

        # A client that goes away leaves nothing.
        waits, entered = threading.Event(), threading.Event()

        def wait():
            eventually(lambda: "half" in names(cluster.channel), 10, "the import began")
            entered.set()
            waits.wait(10)
        call_ = send(pieces(len(whole) // 2, wait), timeout=60)
        assert entered.wait(20)
        call_.cancel()
        waits.set()
        eventually(lambda: not names(cluster.channel), 10, "nothing of the cancelled import")

        # A store that dies while it takes the capsule.
        said = refused([grpc.StatusCode.UNAVAILABLE], lambda: list(send(pieces(len(whole) // 2, lambda: (eventually(
            lambda: "half" in names(cluster.channel), 10, "the import began"), cluster.kill("kvstore-0"))), timeout=60)))
        assert "kvstore-0" in said, said
        assert not names(cluster.channel)
        cluster.start_worker("kvstore-1")
        cluster.wait_ready()
        # Until the coordinator has noticed that the other store is lost, a retry may succeed: exit code 3.
        codes = []

        def is_imported():
            codes.append(sluice(cluster, "doc", "import", "half", path)[0])
            return codes[-1] == 0
        eventually(is_imported, 20, "the import with another store")
        assert set(codes) <= {0, 3} and names(cluster.channel) == ["half"], codes


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
        # A folder, and HTML, whose text a program extracts (tests/unit/cli/test_doc_text.c has the rest).
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("b.txt", TEXT[3000:]), ("a.txt", TEXT[:3000])):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            code, out, err = sluice(cluster, "doc", "add", "code", folder)
            assert code == 0 and "2 text files; skipped: 0" in err, (code, out, err)
            joined = f"==== a.txt ====\n{TEXT[:3000]}\n\n==== b.txt ====\n{TEXT[3000:]}".rstrip("\n") + "\n"
            assert of(cluster.channel, "Get", "code").sha256 == hashlib.sha256(joined.encode()).hexdigest()
            page = os.path.join(folder, "page")
            with open(page, "w", encoding="utf-8") as file:
                file.write(f"<!DOCTYPE html><html><body><pre>{html.escape(TEXT)}</pre></body></html>")
            code, out, err = sluice(cluster, "doc", "add", "page", page)
            if any(shutil.which(program) for program in ("w3m", "lynx", "pandoc")):
                assert code == 0 and "page is HTML" in err and of(cluster.channel, "Get", "page").n_tokens > 1000, (code, out, err)
            else:
                assert code == 2 and "install the package w3m or lynx or pandoc" in err, (code, out, err)
            assert sluice(cluster, "doc", "add", "source", "--as-is", page)[0] == 0
        code, out, err = sluice(cluster, "doc", "add", "gpl", "-", text=TEXT)
        assert code == 0 and out.startswith("added gpl: "), "the same document, because the client may not know that it is there"
        code, _, err = sluice(cluster, "doc", "add", "gpl", "-", text=TEXT[:-8])
        assert code == 1 and "is taken, by another text" in err, (code, err)
        code, _, err = sluice(cluster, "doc", "add", "a/b", "-", text=TEXT)
        assert code == 2 and "0x2f" in err, (code, err)
        code, out, err = sluice(cluster, "doc", "keep", "gpl", "--for", "1h")
        assert code == 0 and out.startswith("kept gpl: replicas 1, ends 20"), (code, out, err)
        code, out, _ = sluice(cluster, "doc", "keep", "gpl", "--forever", "--replicas", "1")
        assert code == 0 and out == "kept gpl: replicas 1, ends never\n", out
        for words in (), ("--for", "1h", "--forever"):
            assert sluice(cluster, "doc", "keep", "gpl", *words)[0] == 2
        # Answers say what they cost, and the document what it saved.
        code, out, err = sluice(cluster, "doc", "ask", "gpl", *asked[:-1])
        cost = re.fullmatch(r"(\d+) tokens read, (\d+) not read again; (\S+ \w+) shipped; first token after \d+ ms, \d+ ms in all\n", err)
        assert code == 0 and out == finished["text"] + "\n" and cost, (code, out, err)
        assert int(cost[1]) + int(cost[2]) == finished["statistics"]["n_prompt_tokens"] and int(cost[2]) >= shown["n_tokens"] - 64, err
        assert sluice(cluster, "doc", "ask", "gpl", "--quiet", *asked[:-1]) == (0, out, "")
        eventually(lambda: of(cluster.channel, "Get", "gpl").n_questions == 4, 10, "four answers counted")
        saved = of(cluster.channel, "Get", "gpl")
        assert 4 * (saved.n_tokens - 64) <= saved.saved_tokens <= 4 * saved.n_tokens and saved.read_tokens >= saved.n_tokens - 1, saved
        assert abs(saved.saved_ms - saved.saved_tokens * saved.read_ms / saved.read_tokens) < 1 and saved.read_ms > 0, saved
        code, out, _ = sluice(cluster, "doc", "show", "gpl")
        assert f"{saved.saved_tokens} tokens not read again for 4 questions: about" in out and "3.2 [0.5, 6.2] of 100 points" in out, out
        # The same question with the text read again, in full.
        whole, _ = cluster.answer(inference.GenerateRequest(text=TEXT + question(), recipe="full", max_new_tokens=12, stop=["."], no_reuse=True))
        code, out, err = sluice(cluster, "doc", "ask", "gpl", "--check", *asked[:-1])
        assert code == 0 and out.splitlines() == [finished["text"], whole.text], (out, whole)
        assert "0 not read again (not cached: off)" in err and "check: the answers are the same" in err, err
        eventually(lambda: of(cluster.channel, "Get", "gpl").n_questions == 5, 10, "the question, without the check of its answer")
        code, out, err = sluice(cluster, "doc", "ask", "gpl", "--check", "--json", "--temperature", "2", "Say something.", "-n", "24")
        *events, check = map(json.loads, out.splitlines())
        first, second = (event["finished"] for event in events if "finished" in event)
        assert check == {"check": {"same": first["text"] == second["text"]}}, check
        assert first["statistics"]["sampling"]["seed"] == second["statistics"]["sampling"]["seed"], (first, second)
        assert second["statistics"]["recipe"] == "full" and second["statistics"].get("n_reused_tokens", 0) == 0, second
        code, out, _ = sluice(cluster, "doc", "rm", "gpl")
        assert code == 0 and out.startswith("removed gpl"), out
        code, _, err = sluice(cluster, "doc", "ask", "gpl", "Why?")
        assert code == 1 and "no document gpl" in err, (code, err)
        code, _, err = sluice(cluster, "doc", "sohw", "gpl")
        assert code == 2 and "did you mean show" in err, (code, err)


def test_a_conversation_begins_with_a_document():
    with chatting_model() as model, Cluster(model=model) as cluster:
        def talk(lines, *words, code=0):
            run = subprocess.run([os.path.join(BIN, "sluice"), "chat", "--coordinator", cluster.coordinator.address, "-n", "8", *words],
                                 input="".join(line + "\n" for line in lines), text=True, capture_output=True, timeout=120)
            assert run.returncode == code, run
            return run

        assert "no documents" in talk(["/doc"]).stdout
        made, _ = add(cluster.channel, "gpl")
        add(cluster.channel, "raw", document(3000, seed=3), raw=True)
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "saved")
            asked = question()[1:]
            done = talk(["/doc gpl", asked, "And?", f"/save {saved}", "/doc", "/new", "/doc", "Hello?"], "--json")
            with open(saved, encoding="utf-8") as file:
                body = json.load(file)
        assert body["document"] == "gpl" and body["messages"][0] == {"role": "user", "content": asked}, body
        assert f"gpl: {made.n_tokens} tokens under full,format=int4" in done.stderr and "* gpl" in done.stderr and "  gpl" in done.stderr, done.stderr
        first, second, other = (json.loads(line)["finished"] for line in done.stdout.splitlines())
        whole, _ = cluster.answer(inference.GenerateRequest(recipe="full,format=int4", max_new_tokens=8, no_reuse=True, chat=inference.Chat(
            messages=[inference.ChatMessage(role="user", content=TEXT + question())])))
        assert first["text"] == whole.text, (first, whole)
        for turn in (first, second):
            assert int(turn["statistics"]["n_reused_tokens"]) >= made.n_tokens - 128, turn
        assert int(other["statistics"]["n_prompt_tokens"]) < 64, other
        for lines, words, says in [(["/doc nope"], (), "no document nope"), (["/doc raw"], (), "use `sluice chat --raw`"),
                                   (["/doc gpl"], ("--raw",), "leave out --raw"), (["/doc gpl"], ("--system", "Be brief."), "leave out --system"),
                                   (["Hi", "/doc gpl"], (), "/new first"), (["/doc gpl", "/recipe full"], (), "its own recipe")]:
            assert says in talk(lines, *words, code=2).stderr, lines
        assert "48213" in talk(["/doc raw", "One of the special magic numbers for lantern is: 48213. " + question()], "--raw").stdout


def delete(gateway, path):
    with contextlib.closing(gateway.connect()) as connection:
        connection.request("DELETE", path)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def test_adding_what_is_there_costs_no_tokens():
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(key_line("sk", "a", "tokens=1"))
        made, _ = add(cluster.channel, "gpl")
        with Gateway(cluster, "--keys", keys) as gateway:
            for _ in range(2):  # a minute has one token: after the first prompt that is read, a second one is refused
                status, again = gateway.post("/v1/documents", {"name": "gpl", "text": TEXT}, "sk")
                assert status == 200 and again["created"] == made.created_ms // 1000, (status, again)


def test_http_and_chats():
    with chatting_model() as model, Cluster(model=model) as cluster, Gateway(cluster) as gateway:
        status, made = gateway.post("/v1/documents", {"name": "gpl", "text": TEXT})
        assert status == 200 and made["replicas"] == 1 and made["stores"] == ["kvstore-0"] and made["object"] == "document" and made["id"] == "gpl" and made["chat"] and made["store"], made
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

        with tempfile.TemporaryDirectory() as folder:  # a document for chats travels, too
            path = os.path.join(folder, "gpl.doc")
            assert sluice(cluster, "doc", "export", "gpl", path)[0] == 0 and "a user's message" in read_file(path)[1]
            assert sluice(cluster, "doc", "import", "copy", path)[0] == 0
        status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "copy"})
        assert status == 200 and reply["choices"] == whole["choices"], (reply, whole)
        assert delete(gateway, "/v1/documents/copy")[0] == 200

        # A text document for completions, and what is refused.
        assert gateway.post("/v1/documents", {"name": "raw", "text": TEXT, "raw": True})[0] == 200
        status, reply = gateway.post("/v1/completions", {"prompt": "And?", "document": "raw", "max_tokens": 4})
        assert status == 200 and reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= made["n_tokens"] - 128, reply["usage"]
        refusal = gateway.refusal(404, "/v1/chat/completions", {**chat, "document": "nope"})
        assert refusal["param"] == "document" and "no document nope" in refusal["message"] and refusal["code"] == "document_not_found", refusal
        refusal = gateway.refusal(400, "/v1/chat/completions", {**chat, "documents": ["gpl"]})
        assert refusal["param"] == "documents" and "one document" in refusal["message"] and refusal["code"] == "400", refusal
        assert gateway.refusal(400, "/v1/chat/completions", {**chat, "document": "raw"})["param"] == "document"
        assert gateway.refusal(400, "/v1/completions", {"prompt": "And?", "document": "gpl"})["param"] == "document"
        system = [{"role": "system", "content": "Be brief."}, *chat["messages"]]
        assert "first message" in gateway.refusal(400, "/v1/chat/completions", {**chat, "document": "gpl", "messages": system})["message"]
        assert gateway.post("/v1/documents", {"name": "gpl", "text": TEXT})[1]["created"] == made["created"]
        assert gateway.refusal(409, "/v1/documents", {"name": "gpl", "text": TEXT[:-8]})["type"] == "invalid_request_error"
        assert gateway.refusal(400, "/v1/documents", {"name": "a/b", "text": TEXT})["param"] == "name"
        assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": TEXT, "pin": 1})["param"] == "pin"
        assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": 5})["param"] == "text"
        assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": TEXT, "replicas": 0})["param"] == "replicas"
        assert "2 stores" in gateway.refusal(409, "/v1/documents", {"name": "b", "text": TEXT, "replicas": 2})["message"]
        assert gateway.refusal(400, "/v1/documents", "{")["type"] == "invalid_request_error"
        status, reply = gateway.get("/v1/documents/nope")
        assert status == 404 and json.loads(reply)["error"]["code"] == "document_not_found", reply
        assert delete(gateway, "/v1/documents/a%2Fb")[0] == 400
        # The same over HTTP.
        status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "gpl"})
        cost, usage = reply["sluice"], reply["usage"]
        assert cost["reused_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] >= made["n_tokens"] - 128, reply
        assert cost["read_tokens"] + cost["reused_tokens"] == usage["prompt_tokens"] and cost["capsule_bytes"] > 0 and cost["total_ms"] > 0, reply
        eventually(lambda: json.loads(gateway.get("/v1/documents/gpl")[1])["questions"] == 3, 10, "three answers counted")
        shown = json.loads(gateway.get("/v1/documents/gpl")[1])
        assert shown["saved_tokens"] >= 3 * (made["n_tokens"] - 128) and shown["saved_ms"] > 0 and shown["lost_points"] == "3.2 [0.5, 6.2]", shown
        status, gone = delete(gateway, "/v1/documents/gpl")
        assert status == 200 and gone == {"id": "gpl", "object": "document", "deleted": True}, gone
        assert delete(gateway, "/v1/documents/gpl")[0] == 404 and delete(gateway, "/v1/documents")[0] == 405

        # The text was read, and the store did not take it: prefill avoids a store for 10 s after it has lost it.
        ready = lambda: sum(w.state == cluster_pb.READY for w in cluster.workers().workers)
        cluster.processes["kvstore-0"].signal(signal.SIGSTOP)
        cluster.answer(request(1500, seed=77))
        eventually(lambda: "not_kept=unreachable" in cluster.processes["prefill-0"].errors(), 10, "the copy failed")
        cluster.processes["kvstore-0"].signal(signal.SIGCONT)
        eventually(lambda: ready() == 3, 5, "the store is back")
        refusal = gateway.refusal(507, "/v1/documents", {"name": "full", "text": document(5000, seed=8)})
        assert "the text was read, but no store has its" in refusal["message"] and "unreachable" in refusal["message"], refusal
        assert gateway.get("/v1/documents/full")[0] == 404


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
