#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Offloaded layers of documents outlive a store: on its disk, in another store, and in a file. Answers are the same, bit for bit, and
nothing of the text is read."""
import hashlib
import os
import signal
import struct
import tempfile
import threading

from bend import Bend
from documents import EXACT, TAILORKV, add, of, names, asking, read_file, restart, reused, sluice
from harness import Cluster, call, document, documents_pb, eventually, question, run_tests, stub, tokens
import grpc


def on_disk(folder):
    """[names of files] that the store has on its disk."""
    return sorted(name for name in os.listdir(folder) if name.startswith("capsule-"))


def test_both_parts_are_on_the_disk_of_a_store_that_restarts():
    with tempfile.TemporaryDirectory(prefix="sluice-layers-") as folder:
        disk = os.path.join(folder, "disk")
        with Cluster(worker_args={"kvstore": ["--disk", disk, "--disk-bytes", "256M"]}) as cluster:
            for recipe in (TAILORKV, EXACT):
                made, _ = add(cluster.channel, "gpl", recipe=recipe)
                assert made.on_disk and made.not_on_disk == "", made
                end = "Who may copy it, and how?"
                wanted = {end: tokens(cluster.answer(asking("gpl", end))[1]) for end in (end, question()[1:])}
                for end, answer in wanted.items():
                    restart(cluster, "kvstore-0")
                    finished, events = cluster.answer(asking("gpl", end))  # at once: it waits for the disk
                    s = finished.statistics
                    assert reused(made, finished) and tokens(events) == answer, (recipe, end, s)
                    assert s.queue_ms + s.restore_ms + s.prefill_ms + s.ship_ms < s.ttft_ms, s
                assert of(cluster.channel, "Get", "gpl").store == "kvstore-0"
                files = on_disk(disk)
                of(cluster.channel, "Delete", "gpl")
                eventually(lambda: len(on_disk(disk)) < len(files) - 2, 10, "its segments are removed from the disk")
            cluster.assert_clean()


def test_a_question_that_waits_for_a_disk_says_so():
    with tempfile.TemporaryDirectory(prefix="sluice-layers-") as folder, Cluster(kvstore=0) as cluster:
        bend = Bend(folder, "kvstore-0")
        words = ["--disk", os.path.join(folder, "disk"), "--disk-bytes", "256M"]

        def start():
            cluster.start_worker("kvstore-0", words, bend.environment)
            cluster.wait_ready()
        start()
        add(cluster.channel, "gpl", recipe=EXACT)
        wanted = tokens(cluster.answer(asking("gpl"))[1])
        cluster.kill("kvstore-0")
        cluster.processes.pop("kvstore-0").popen.wait()
        events = []
        with bend.bent("disk_stalls", 1):
            start()
            asked = cluster.generate(asking("gpl"))
            for event in asked:
                events.append(event)
                if event.prefill.restoring:
                    break
        events += asked
        s = events[-1].finished.statistics
        progress = [event.prefill.restoring for event in events if event.HasField("prefill")]
        assert progress[0] and not progress[-1] and tokens(events) == wanted, events
        assert s.restore_ms >= 100 and s.queue_ms + s.restore_ms + s.prefill_ms + s.ship_ms < s.ttft_ms, s  # the store looks for so long


def test_a_full_disk_is_said_of_layers():
    with tempfile.TemporaryDirectory(prefix="sluice-layers-") as folder, Cluster(
            worker_args={"kvstore": ["--arena", "96M", "--disk", os.path.join(folder, "disk"), "--disk-bytes", "16M"]}) as cluster:
        first, _ = add(cluster.channel, "first", recipe=EXACT)
        assert first.on_disk and first.not_on_disk == "", first
        second, _ = add(cluster.channel, "second", document(7000, seed=3), recipe=EXACT)
        assert not second.on_disk and second.not_on_disk.startswith("the disk of kvstore-0 has no room for "), second
        for made in (first, second):
            assert reused(made, cluster.answer(asking(made.name))[0]), made


def test_damaged_layers_are_read_again():
    with tempfile.TemporaryDirectory(prefix="sluice-layers-") as folder:
        disk = os.path.join(folder, "disk")
        with Cluster(worker_args={"kvstore": ["--disk", disk, "--disk-bytes", "256M"]}) as cluster:
            made, _ = add(cluster.channel, "gpl", recipe=EXACT)
            wanted = tokens(cluster.answer(asking("gpl"))[1])
            process = cluster.processes.pop("kvstore-0")
            process.signal(signal.SIGKILL)
            process.popen.wait(30)
            largest = max((os.path.join(disk, name) for name in on_disk(disk)), key=os.path.getsize)
            with open(largest, "r+b") as file:
                file.seek(100000)
                byte = file.read(1)
                file.seek(100000)
                file.write(bytes([byte[0] ^ 1]))
            cluster.start_worker("kvstore-0")
            cluster.wait_ready()
            assert tokens(cluster.answer(asking("gpl"))[1]) == wanted  # the text is read, or what is missing of it
            eventually(lambda: of(cluster.channel, "Get", "gpl").on_disk, 60, "the text was read again, and written")
            finished, events = cluster.answer(asking("gpl"))
            assert reused(made, finished) and tokens(events) == wanted, finished.statistics


def test_a_document_is_deleted_while_it_comes_from_the_disk():
    with tempfile.TemporaryDirectory(prefix="sluice-layers-") as folder:
        disk = os.path.join(folder, "disk")
        with Cluster(worker_args={"kvstore": ["--disk", disk, "--disk-bytes", "256M"]}) as cluster:
            add(cluster.channel, "gpl", recipe=EXACT)
            wanted = tokens(cluster.answer(asking("gpl"))[1])
            restart(cluster, "kvstore-0")
            asked = cluster.generate(asking("gpl"))
            first = next(asked)  # the job has begun
            of(cluster.channel, "Delete", "gpl")
            assert tokens([first, *asked]) == wanted
            assert names(cluster.channel) == []
            cluster.assert_clean()
            add(cluster.channel, "gpl", recipe=EXACT)
            assert tokens(cluster.answer(asking("gpl"))[1]) == wanted


def pin(cluster, name, replicas):
    return call(cluster.channel, "sluice.v1.Documents.Pin", documents_pb.PinDocumentRequest(name=name, replicas=replicas))


def have(cluster, name, n):
    """Waits until n stores have the document."""
    eventually(lambda: len(of(cluster.channel, "Get", name).stores) == n, 30, f"{n} stores have {name}")


def test_replicas_keep_both_parts():
    with Cluster(kvstore=2) as cluster:
        made, _ = add(cluster.channel, "gpl", recipe=TAILORKV, replicas=2)
        assert sorted(made.stores) == ["kvstore-0", "kvstore-1"] and made.replicas == 2, made
        wanted = tokens(cluster.answer(asking("gpl"))[1])
        store = made.store
        cluster.kill(store)
        eventually(lambda: store not in of(cluster.channel, "Get", "gpl").stores, 30, f"{store} is lost")
        finished, events = cluster.answer(asking("gpl"))  # from the copy
        assert reused(made, finished) and tokens(events) == wanted, finished.statistics
        cluster.processes.pop(store)
        cluster.start_worker(store)
        have(cluster, "gpl", 2)
        pin(cluster, "gpl", 1)
        have(cluster, "gpl", 1)
        finished, events = cluster.answer(asking("gpl"))
        assert reused(made, finished) and tokens(events) == wanted, finished.statistics


def test_a_store_that_dies_while_it_is_copied_loses_no_answer():
    with Cluster(kvstore=2) as cluster:
        made, _ = add(cluster.channel, "gpl", recipe=EXACT)
        wanted = tokens(cluster.answer(asking("gpl"))[1])
        pin(cluster, "gpl", 2)
        cluster.kill(made.store)  # before, in or after the copy
        other = ["kvstore-0" if made.store == "kvstore-1" else "kvstore-1"]  # it was copied there, or the text was read again
        eventually(lambda: list(of(cluster.channel, "Get", "gpl").stores) == other, 60, "the other store has it")
        finished, events = cluster.answer(asking("gpl"))
        assert reused(made, finished) and tokens(events) == wanted, finished.statistics


def segments_of(content):
    """[(where its head is in a file, bytes of its pages)] of each segment."""
    at, found = len(content) - struct.unpack_from("<Q", content, 128)[0], []
    while at < len(content):
        assert content[at:at + 8] == b"SLUICESG"
        found.append((at, struct.unpack_from("<Q", content, at + 80)[0]))
        at += 88 + 32 + found[-1][1] + 32
    return found


def with_head(content, at, offset, value):
    """The file with other bytes in a segment's head, whose digest agrees."""
    head = bytearray(content[at:at + 88])
    head[offset:offset + len(value)] = value
    return content[:at] + bytes(head) + hashlib.sha256(content[:at] + head).digest() + content[at + 88 + 32:]


def refuses_damage_before_the_rest(cluster, content):
    """A segment is not given to a store, which would use it, before its digest agreed: nothing of the next one has to be sent."""
    refused, waited = threading.Event(), []
    (first, _), (second, _) = segments_of(content)[:2]
    damaged = bytearray(content[:second])
    damaged[first + 88 + 32] ^= 1

    def pieces():
        yield documents_pb.ImportDocumentRequest(name="gpl", data=bytes(damaged[:first]))
        yield documents_pb.ImportDocumentRequest(data=bytes(damaged[first:]))
        waited.append(refused.wait(20))
    try:
        list(stub(cluster.channel.stream_stream, "sluice.v1.Documents.Import")(pieces(), timeout=60))
        raise AssertionError("a damaged file was taken")
    except grpc.RpcError as error:
        refused.set()
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "segment pages" in error.details(), error
    eventually(lambda: waited, 10, "the client sent all that it had")
    assert waited == [True], "the file was refused at its end"


def test_a_file_carries_both_parts():
    """Exported, imported on another cluster with another store: the same answer, bit for bit, and nothing of the text is read."""
    with tempfile.TemporaryDirectory(prefix="sluice-layers-") as folder:
        answers, whole_path = {}, os.path.join(folder, "tailorkv")
        with Cluster() as cluster:
            for name, recipe in (("tailorkv", TAILORKV), ("exact", EXACT)):
                add(cluster.channel, name, recipe=recipe)
                answers[name] = tokens(cluster.answer(asking(name))[1])
                code, _, err = sluice(cluster, "doc", "export", name, os.path.join(folder, name))
                assert code == 0, err
            add(cluster.channel, "plain")
            assert sluice(cluster, "doc", "export", "plain", os.path.join(folder, "plain"))[0] == 0
            assert sluice(cluster, "doc", "import", "tailorkv", whole_path)[0] == 0  # it is there
            cluster.assert_clean()
        code, out, err = read_file(whole_path)
        assert code == 0 and "version         2\n" in out and "layers          0 bytes" not in out, (out, err)
        code, out, _ = read_file(os.path.join(folder, "plain"))
        assert code == 0 and "version         1\n" in out and "layers          0 bytes" in out, out
        with Cluster(kvstore=2) as cluster:
            for name, answer in answers.items():
                code, _, err = sluice(cluster, "doc", "import", name, os.path.join(folder, name))
                assert code == 0, err
                made = of(cluster.channel, "Get", name)
                finished, events = cluster.answer(asking(name))
                assert reused(made, finished) and tokens(events) == answer, (name, finished.statistics)
                of(cluster.channel, "Delete", name)
            with open(whole_path, "rb") as file:
                content = file.read()
            damaged = os.path.join(folder, "damaged")
            for change, said in ((lambda b: b[:-40], "cut short"), (lambda b: b[:-40] + bytes([b[-40] ^ 1]) + b[-39:], "damaged or edited"),
                                 (lambda b: b + b"x", "bytes follow its end")):
                with open(damaged, "wb") as file:
                    file.write(change(content))
                code, _, err = sluice(cluster, "doc", "import", "gpl", damaged)
                assert code != 0 and said in err, (said, err)
                assert read_file(damaged)[0] == 1
            bf16, int8 = struct.pack("<i", 2), struct.pack("<i", 3)
            for i, offset, value, said in ((0, 8, b"\2", "version 2"), (0, 12, b"\1", "its place differs"),
                                           (0, 16, b"fingers", "its model or recipe differs"), (0, 28, b"\1", "expected"),
                                           (0, 36, 3 * bf16, "its format of pages differs"), (0, 40, int8, "expected"),
                                           (-1, 40, int8, "its format of rows differs"), (0, 56, bytes(4), "out of bounds")):
                with open(damaged, "wb") as file:
                    file.write(with_head(content, segments_of(content)[i][0], offset, value))
                code, _, err = sluice(cluster, "doc", "import", "gpl", damaged)
                assert code != 0 and said in err, (said, err)
            refuses_damage_before_the_rest(cluster, content)
            assert names(cluster.channel) == []
            cluster.assert_clean()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
