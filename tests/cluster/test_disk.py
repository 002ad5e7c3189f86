#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A kvstore with a disk: what memory has evicted, and what a store had before it died, is not read again."""
import os
import shutil
import subprocess
import tempfile

from bend import Bend
from harness import BIN, SLOW, Cluster, cluster_pb, document, eventually, inference, question, request, run_tests, store_stats, tokens


class Folder:
    """A folder for one test, and what a store says about it."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="sluice-disk-")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def cluster(self, arena="12M", size="256M", **fields):
        fields["worker_args"] = {"kvstore": ["--arena", arena, "--disk", self.path, "--disk-bytes", size]}
        return Cluster(**fields)


def stats(cluster, name="kvstore-0"):
    return store_stats(cluster.processes[name].address)


def settled(cluster, at_least):
    """Waits until so many capsules are on disk."""
    eventually(lambda: stats(cluster).disk_capsules >= at_least, 10, f"{at_least} capsules on disk")


def kill_store(cluster):
    cluster.kill("kvstore-0")
    cluster.processes["kvstore-0"].popen.wait()


def start_store(cluster):
    """Another incarnation, known to the coordinator."""
    store = cluster.start_worker("kvstore-0")
    eventually(lambda: any(w.info.rpc_address == store.address and w.state == cluster_pb.READY
                           for w in cluster.workers().workers), 10, "the new incarnation is ready")


def assert_reused(cluster, job, expected):
    finished, events = cluster.answer(job)
    assert finished.statistics.n_reused_tokens == finished.statistics.n_prompt_tokens - 1, finished.statistics
    assert tokens(events) == expected


def test_what_memory_evicted_comes_back_from_disk():
    with Folder() as folder, folder.cluster() as cluster:
        answers = {}
        for seed in range(6):  # some megabytes each, where two have room
            answers[seed] = tokens(cluster.answer(request(5000, seed=seed))[1])
            settled(cluster, seed + 1)
        before = stats(cluster)
        assert before.evicted >= 2 and before.capsules <= 4 and before.disk_hits == 0 and before.disk_dropped == 0
        assert before.disk_bytes > 6 * 3 << 20
        for seed in (0, 1, 2, 0):
            assert_reused(cluster, request(5000, seed=seed), answers[seed])
        after = stats(cluster)
        assert 3 <= after.disk_hits <= 4 and after.hits >= 4, after
        # Another question about a document that memory has lost.
        cluster.answer(request(5000, seed=5))
        other = inference.GenerateRequest(text=document(5000, seed=3) + question() + " a number, namely", recipe="full", max_new_tokens=12,
                                          stop=["."])
        finished, events = cluster.answer(other)
        assert finished.statistics.n_reused_tokens > 0.7 * finished.statistics.n_prompt_tokens
        with Cluster(kvstore=0) as fresh:
            assert tokens(events) == tokens(fresh.answer(other)[1])


def test_a_store_that_was_killed_has_what_it_had():
    with Folder() as folder, folder.cluster(arena="64M") as cluster:
        jobs = [request(5000, recipe=recipe) for recipe in ("full", "h2o,budget=0.5", "full,format=int4")]
        answers = [tokens(cluster.answer(job)[1]) for job in jobs]
        settled(cluster, 4)  # h2o's state between two chunks is one, too
        n = stats(cluster).disk_capsules
        kill_store(cluster)
        start_store(cluster)
        assert stats(cluster).disk_capsules == n and stats(cluster).capsules == 0
        for job, answer in zip(jobs, answers):
            assert_reused(cluster, job, answer)
        assert stats(cluster).disk_hits == 3


def test_a_store_that_was_stopped_has_what_it_had():
    with Folder() as folder:
        with folder.cluster(arena="64M") as cluster:
            answer = tokens(cluster.answer(request(5000))[1])
            eventually(lambda: stats(cluster).capsules >= 1, 10, "stored")
        with folder.cluster(arena="64M") as cluster:
            assert_reused(cluster, request(5000), answer)


def test_a_damaged_capsule_is_read_anew():
    with Folder() as folder, folder.cluster(arena="64M") as cluster:
        answer = tokens(cluster.answer(request(5000))[1])
        settled(cluster, 1)
        kill_store(cluster)
        for name in os.listdir(folder.path):
            if name.startswith("capsule-"):
                with open(os.path.join(folder.path, name), "r+b") as file:
                    file.seek(1 << 20)
                    file.write(b"not what it was")
        start_store(cluster)
        finished, events = cluster.answer(request(5000))
        assert finished.statistics.n_reused_tokens == 0 and tokens(events) == answer
        assert "fails its digest" in cluster.processes["kvstore-0"].errors()
        settled(cluster, 1)  # written anew


def test_a_store_starts_whatever_its_folder_holds():
    """One of four capsules is damaged, one is cut short and one is there twice, beside foreign files: the others serve."""
    with Folder() as folder, folder.cluster(arena="64M") as cluster:
        answers = [tokens(cluster.answer(request(3000, seed=seed))[1]) for seed in range(4)]
        settled(cluster, 4)
        kill_store(cluster)
        paths = sorted((os.path.join(folder.path, name) for name in os.listdir(folder.path) if name.startswith("capsule-")),
                       key=os.path.getmtime)
        assert len(paths) == 4, paths  # written one after another, as the answers came
        with open(paths[0], "r+b") as file:
            file.write(os.urandom(4096))
        os.truncate(paths[1], os.path.getsize(paths[1]) // 2)
        shutil.copy2(paths[2], os.path.join(folder.path, "capsule-00000000000000ff"))
        for name in ("index.mdb", "capsule-of-somebody", "capsule-0000000000000abc"):
            with open(os.path.join(folder.path, name), "wb") as file:
                file.write(os.urandom(10000))
        start_store(cluster)
        assert stats(cluster).disk_capsules == 2
        errors = cluster.processes["kvstore-0"].errors()
        assert "files=4 of 6 were unfinished, damaged" in errors, errors  # two, the older copy, and one that only has such a name
        for seed in (2, 3):
            assert_reused(cluster, request(3000, seed=seed), answers[seed])
        for seed in (0, 1):
            finished, events = cluster.answer(request(3000, seed=seed))
            assert finished.statistics.n_reused_tokens == 0 and tokens(events) == answers[seed]
        settled(cluster, 4)
        assert sorted(name for name in os.listdir(folder.path) if not name.startswith("capsule-0000")) == [
            "capsule-of-somebody", "index.mdb", "owner"]


def test_a_disk_that_failed_is_used_again():
    with Folder() as folder, tempfile.TemporaryDirectory(prefix="sluice-bend-") as bends, Cluster(kvstore=0) as cluster:
        bend = Bend(bends, "kvstore-0")
        cluster.start_worker("kvstore-0", ["--arena", "64M", "--disk", folder.path, "--disk-bytes", "256M"], bend.environment)
        cluster.wait_ready()
        answer = tokens(cluster.answer(request(3000))[1])
        settled(cluster, 1)
        with bend.bent("disk_fails", 1000):
            cluster.answer(request(3000, seed=1))
            eventually(lambda: stats(cluster).disk_failure != "", 10, "the disk has failed")
            assert_reused(cluster, request(3000), answer)  # from memory
        eventually(lambda: stats(cluster).disk_failure == "", 60, "the disk is used again")
        settled(cluster, 1)
        cluster.answer(request(3000, seed=2))
        settled(cluster, 2)
        assert "is used again" in cluster.processes["kvstore-0"].errors()


def test_a_folder_that_cannot_be_used_is_refused():
    with Folder() as folder:
        file = os.path.join(folder.path, "file")
        open(file, "w").close()
        for args, word in ((["--disk", file, "--disk-bytes", "64M"], file), (["--disk", folder.path], "--disk-bytes"),
                           (["--disk", "/proc/nothing", "--disk-bytes", "64M"], "/proc/nothing"),
                           (["--disk-bytes", "64M"], "--disk DIR")):
            done = subprocess.run([os.path.join(BIN, "sluice-kvstore"), "--arena", "16M", *args], capture_output=True,
                                  timeout=30 * SLOW)
            assert done.returncode == (1 if args[1].startswith("/proc") or args[1] == file else 2) and word in done.stderr.decode(), (args, done)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
