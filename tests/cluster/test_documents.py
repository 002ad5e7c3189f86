#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Documents: a text is read once and kept on purpose. Questions about it do not read it again, also after every process was killed and
started; answers are those of the whole prompt; what is refused says why, and nothing else is lost."""
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

from bend import Bend
from documents import TEXT, ADD, add, of, names, asking, store_load, settled_load, sluice, read_file
from harness import (BIN, SLOW, Cluster, call, certificates, cluster_pb, document, documents_pb, eventually, in_one_process, inference, question,
                     refused, request, run_tests, store_stats, stub, tokens)
from test_restart import Restarting
import grpc


def test_a_document_is_read_once_and_survives_every_process():
    with Restarting() as cluster:
        disk = ["--disk", os.path.join(cluster.folder, "disk"), "--disk-bytes", "64M"]
        cluster.processes.pop("kvstore-0").stop()
        cluster.start_worker("kvstore-0", disk)
        cluster.wait_ready()
        whole, whole_events = cluster.answer(inference.GenerateRequest(text=TEXT + question(), recipe="full,format=int4", max_new_tokens=12,
                                                                       stop=["."]))
        compacted, _ = add(cluster.channel, "less", recipe="kvzip,format=int4")
        _, compacted_events = cluster.answer(asking("less"))
        made, events = add(cluster.channel, "gpl")
        assert made.n_tokens > 1500 and made.capsule_bytes > 0 and made.store == "kvstore-0" and made.recipe == "full,format=int4", made
        assert any(e.reading.HasField("prefill") for e in events[:-1]), "no progress"
        eventually(lambda: all(of(cluster.channel, "Get", name).on_disk for name in ("gpl", "less")), 10, "the documents on the store's disk")
        first, first_events = cluster.answer(asking("gpl", "What else?"))
        assert first.statistics.n_reused_tokens == made.n_tokens - 1, first.statistics
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
        assert again.statistics.n_reused_tokens == made.n_tokens - 1, again.statistics
        _, last_events = cluster.answer(asking("gpl"))
        assert tokens(last_events) == tokens(whole_events), "another answer after the restart"
        last, last_events = cluster.answer(asking("less"))
        assert tokens(last_events) == tokens(compacted_events) and last.statistics.n_reused_tokens == compacted.n_tokens - 1, last

        of(cluster.channel, "Delete", "less")
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
        assert time.monotonic() - began < 4 * SLOW, "Delete waited for a store that does not answer"
        cluster.kill("kvstore-0")
        cluster.start_worker("kvstore-1")
        eventually(lambda: of(cluster.channel, "Get", "moved").store == "kvstore-1", 60, "the text was read again")
        finished, _ = cluster.answer(asking("moved", "And then?"))
        assert finished.statistics.n_reused_tokens >= made.n_tokens - 64, finished.statistics
        of(cluster.channel, "Delete", "moved")
        # Its time is over.
        add(cluster.channel, "brief", keep_ms=500)
        eventually(lambda: not names(cluster.channel), 10, "the document ended at its time")


def test_documents_take_a_disk_beyond_the_memory():
    """More documents than a store's memory may have stay on its disk; every question finds its own, also after a restart."""
    with tempfile.TemporaryDirectory(prefix="sluice-beyond-") as folder, Cluster(
            worker_args={"kvstore": ["--arena", "12M", "--disk", os.path.join(folder, "disk"), "--disk-bytes", "64M"]}) as cluster:
        made = {name: add(cluster.channel, name, document(9000, seed=seed))[0] for seed, name in enumerate(("one", "two", "three", "four", "five"), 30)}
        kept = sum(one.capsule_bytes for one in made.values())
        assert kept > 12 << 20 and all(one.on_disk and not one.not_on_disk for one in made.values()), made
        for name in (*made, *made):
            finished, _ = cluster.answer(asking(name, "What is it?"))
            assert finished.statistics.n_reused_tokens >= made[name].n_tokens - 64, (name, finished.statistics)
        assert store_load(cluster).stored_bytes <= 12 << 20 and store_stats(cluster.processes["kvstore-0"].address).evicted > 0
        listed = n_jobs(cluster)
        cluster.kill("kvstore-0")
        cluster.processes["kvstore-0"].popen.wait()
        store = cluster.start_worker("kvstore-0")
        eventually(lambda: any(w.info.rpc_address == store.address for w in cluster.workers().workers), 20, "the store is registered again")
        eventually(lambda: all(of(cluster.channel, "Get", name).on_disk for name in made), 20, "the store reports all")
        assert n_jobs(cluster) == listed, "a text was read again"
        # Half of the disk is for everything else.
        said = refused([grpc.StatusCode.FAILED_PRECONDITION], lambda: [add(cluster.channel, f"more-{seed}", document(9000, seed=seed)) for seed in range(40, 60)])
        assert "half of its disk, 33554432 bytes, may be documents" in said and "--disk-bytes" in said, said


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


def check_export_of_a_stalled_store(cluster, name):
    """An export leaves a store that sends nothing after 5 s, and says what a stalled or lost store did."""
    with tempfile.TemporaryDirectory() as folder:
        cluster.processes[name].signal(signal.SIGSTOP)
        began = time.monotonic()
        code, _, err = sluice(cluster, "doc", "export", "gpl", os.path.join(folder, "gpl.doc"))
        seconds = time.monotonic() - began
        cluster.processes[name].signal(signal.SIGCONT)
        assert code != 0 and not os.path.exists(os.path.join(folder, "gpl.doc")) and seconds < 15, (code, seconds, err)
        assert f"({name}: " in err and "try again" in err and "no coordinator" not in err, err
        eventually(lambda: sluice(cluster, "doc", "export", "gpl", os.path.join(folder, "gpl.doc"))[0] == 0, 20, "the store goes on")
        cluster.kill(name)
        code, _, err = sluice(cluster, "doc", "export", "gpl", os.path.join(folder, "gpl2.doc"))
        if code == 0:  # while the store stalled the text was read again, into the other one
            assert name not in stores_of(cluster.channel, "gpl"), err
        else:
            assert f"({name}: " in err and "no coordinator" not in err, err


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
        check_export_of_a_stalled_store(cluster, stores_of(cluster.channel, "gpl")[0])


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


def test_a_question_waits_for_its_document():
    """A document that is asked while it is being added is read once. A call that is interrupted leaves nothing."""
    def begin(cluster, **fields):
        stream = stub(cluster.channel.unary_stream, "sluice.v1.Inference.Generate")(asking("gpl", **fields), timeout=120)
        seen = []
        for event in stream:
            seen.append(event)
            if event.HasField("state") and "waits for document gpl" in event.state.detail:
                return stream, seen
        raise AssertionError(seen)

    with Cluster(prefill=0) as cluster:
        adding = stub(cluster.channel.unary_stream, ADD)(documents_pb.AddDocumentRequest(name="gpl", text=TEXT), timeout=120)
        next(adding)
        stream, _ = begin(cluster)
        left, seen = begin(cluster)
        cluster.cancel(seen[0].job_id)
        assert "a client cancelled it" in refused([grpc.StatusCode.CANCELLED], list, left)
        cluster.start_worker("prefill-0")
        made, finished = list(adding)[-1].document, list(stream)[-1].finished
        assert finished.status_code == 0 and finished.statistics.n_reused_tokens >= made.n_tokens - 64, finished
        of(cluster.channel, "Delete", "gpl")
        cluster.processes["prefill-0"].signal(signal.SIGSTOP)
        words = [os.path.join(BIN, "sluice"), "doc", "add", "gpl", "-", "--coordinator", cluster.coordinator.address]
        with subprocess.Popen(words, stdin=subprocess.PIPE, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
            command.stdin.write(document(12000, seed=3))
            command.stdin.close()
            eventually(lambda: names(cluster.channel) == ["gpl"], 20, "the text is being read")
            command.send_signal(signal.SIGINT)
            assert command.wait(30) == 4, command.stderr.read()
        eventually(lambda: not names(cluster.channel), 20, "nothing of the document that Ctrl-C stopped")
        cluster.processes["prefill-0"].signal(signal.SIGCONT)


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
        assert "not a document" in refused(invalid, add, acme, "a", "short")
        assert "tokenized" in refused([grpc.StatusCode.DEADLINE_EXCEEDED], lambda: add(acme, "a", document(30000), deadline_ms=1))
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

        assert "no document both" in refused([grpc.StatusCode.NOT_FOUND], lambda: list(stub(umbrella.unary_stream, "sluice.v1.Inference.Generate")(
            inference.GenerateRequest(documents=["gpl", "both"], text="And?"), timeout=20)))

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


def test_a_full_disk_is_said():
    """A document for which the store's disk has no room is in memory only, which everything says that adds or shows it."""
    with tempfile.TemporaryDirectory(prefix="sluice-full-") as folder, Cluster() as plain, Cluster(
            worker_args={"kvstore": ["--arena", "64M", "--disk", os.path.join(folder, "disk"), "--disk-bytes", "16M"]}) as cluster:
        made, _ = add(cluster.channel, "first", document(28000))
        assert made.on_disk and made.not_on_disk == "" and 8 << 20 < made.capsule_bytes < 16 << 20, made
        code, out, err = sluice(cluster, "doc", "add", "second", "-", text=document(28000, seed=5))
        said = "the disk of kvstore-0 has no room for "
        assert code == 0 and out.startswith("added second: ") and f"second is in memory only: {said}" in err, (code, out, err)
        second = of(cluster.channel, "Get", "second")
        assert not second.on_disk and second.not_on_disk.startswith(said), second
        assert f"kvstore-0, in memory only: {said}" in sluice(cluster, "doc", "show", "second")[1]
        assert f"second: {said}" in sluice(cluster, "doc", "ls")[2]
        path = os.path.join(folder, "third")
        add(plain.channel, "third", document(28000, seed=7))
        assert sluice(plain, "doc", "export", "third", path)[0] == 0
        code, _, err = sluice(cluster, "doc", "import", "third", path)
        assert code == 0 and f"third is in memory only: {said}" in err, (code, err)
        # A removed document leaves room for one other: an earlier one may take it, which is offered again every minute.
        of(cluster.channel, "Delete", "first")
        add(cluster.channel, "fourth", document(28000, seed=9))
        eventually(lambda: sorted(of(cluster.channel, "Get", name).not_on_disk[:len(said)] for name in ("second", "third", "fourth")) == ["", said, said], 20,
                   "one of them on the disk")


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


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
