#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A thread of a worker stands still while everything else of it runs: liveness is progress, not an open port and a timer."""
import os
import signal
import subprocess
import threading
import time

from harness import BIN, MODEL, PATIENCE, SLOW, Cluster, cluster_pb, connect, eventually, health, in_one_process, inference, request, run_tests, tokens
import grpc
from test_faults import Watcher

FREEZE = os.environ.get("SLUICE_FREEZE_LIB", os.path.join(os.path.dirname(BIN), "tests", "lib", "libfreeze.so"))
FREEZE_SIGNAL = signal.SIGRTMAX - 1
# Preloaded behind nothing: a sanitizer's own library wants to be first, and need not.
ENVIRONMENT = {"LD_PRELOAD": FREEZE, "ASAN_OPTIONS": "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")}
STALL_S = 1.5 * SLOW
STALL = ["--stall-after", f"{STALL_S:g}s"]
NEVER = ["--stall-after", "1h"]
ENDED_ITSELF = 1  # what a worker ends with that has stood still for too long


def job(n_bytes, n_tokens, **fields):
    return inference.GenerateRequest(text=request(n_bytes).text, recipe="full", max_new_tokens=n_tokens, ignore_eos=True, **fields)


def start(cluster, name, extra):
    """A worker whose threads can be made to stand still."""
    return cluster.start_worker(name, extra, ENVIRONMENT)


def all_threads(process, name):
    """Ids of the threads of this name."""
    folder = f"/proc/{process.popen.pid}/task"
    ids = []
    for tid in os.listdir(folder):
        with open(f"{folder}/{tid}/comm") as file:
            if file.read().strip() == name:
                ids.append(int(tid))
    return ids


def freeze(process, thread):
    signal_thread(process.popen.pid, all_threads(process, thread)[0])


def signal_thread(pid, tid):
    """tgkill, which Python does not have: 234 on x86-64, 131 elsewhere."""
    import ctypes
    import platform
    libc = ctypes.CDLL(None, use_errno=True)
    number = 234 if platform.machine() == "x86_64" else 131
    assert libc.syscall(number, pid, tid, FREEZE_SIGNAL) == 0, os.strerror(ctypes.get_errno())


def health_of(process, service=""):
    with connect(process.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check",
                                    request_serializer=health.HealthCheckRequest.SerializeToString,
                                    response_deserializer=health.HealthCheckResponse.FromString)
        return health.HealthCheckResponse.ServingStatus.Name(check(health.HealthCheckRequest(service=service), timeout=5).status)


def state_of(cluster, name):
    return {w.info.name: w.state for w in cluster.workers().workers}[name]


def workers_command(cluster):
    return subprocess.run([os.path.join(BIN, "sluice"), "workers", "--coordinator", cluster.coordinator.address],
                          capture_output=True, text=True, timeout=30 * SLOW, check=True).stdout


class Jobs:
    """So many at once, each with a deadline that is far away."""

    def __init__(self, cluster, n, deadline_s=120):
        self.answers = [None] * n
        self.requests = [job(2000 + 100 * i, 12, deadline_ms=int(deadline_s * SLOW * 1000)) for i in range(n)]
        self.threads = [threading.Thread(target=self.run, args=(cluster, i, deadline_s), daemon=True) for i in range(n)]
        for thread in self.threads:
            thread.start()

    def run(self, cluster, i, timeout):
        try:
            self.answers[i] = cluster.answer(self.requests[i], timeout)
        except grpc.RpcError as error:
            self.answers[i] = error

    def assert_right(self, within_s):
        deadline = time.monotonic() + within_s * SLOW
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self.threads), f"jobs have not ended within {within_s} s"
        for asked, answer in zip(self.requests, self.answers):
            assert not isinstance(answer, grpc.RpcError), answer
            assert answer[0].status_code == 0, answer[0]
            assert tokens(answer[1]) == in_one_process("full", asked.text)
        return [answer[0].statistics.retries for answer in self.answers]


def end_frozen(cluster, name):
    """A process with a frozen thread cannot end in order: by itself, later, or now."""
    process = cluster.processes.pop(name)
    process.popen.kill()
    process.popen.wait()


def engine_stands_still(role, worker_stall, coordinator_stall):
    """Two workers of a role, one with a frozen engine: the cluster afterwards, and the frozen one."""
    name = f"{role}-0"
    counts = {"prefill": 1, "decode": 1, "kvstore": 0, role: 1}
    with Cluster(**counts, coordinator_args=coordinator_stall, worker_args={role: worker_stall}) as cluster:
        end_frozen(cluster, name)  # to be started again with what freezes it
        victim = start(cluster, name, worker_stall)
        cluster.start_worker(f"{role}-1")
        cluster.counts[role] = 2
        eventually(lambda: {w.info.name for w in cluster.workers().workers if w.state == cluster_pb.READY} >= {name, f"{role}-1"},
                   20, "both workers ready")
        freeze(victim, "engine")
        jobs = Jobs(cluster, 4)
        eventually(lambda: state_of(cluster, name) == cluster_pb.STALLED, 15, f"{name} stalled")
        assert "STALLED" in workers_command(cluster)
        if worker_stall is STALL:
            assert health_of(victim) == "NOT_SERVING"
            assert health_of(victim, f"sluice.v1.{role.capitalize()}") == "NOT_SERVING"
            assert "the engine stands still" in victim.errors()
        else:
            assert health_of(victim) == "SERVING", "it has not looked for an hour"
        assert f"worker={name}" in cluster.coordinator.errors() and "stalled" in cluster.coordinator.errors()
        retries = jobs.assert_right(within_s=40)
        assert any(retries), "nobody was given to it"
        assert cluster.answer(request(3000))[0].statistics.retries == 0, "no further job goes there"
        if worker_stall is STALL:  # health for long enough, then it makes room for a successor
            victim.popen.wait(20 * SLOW)
            assert victim.popen.returncode == ENDED_ITSELF, victim.popen.returncode
            assert "this process ends, to be started again" in victim.errors()
        end_frozen(cluster, name)
        eventually(lambda: state_of(cluster, name) == cluster_pb.LOST, 20, f"{name} lost")


def test_a_decode_worker_notices_that_its_engine_stands_still():
    engine_stands_still("decode", STALL, NEVER)


def test_a_prefill_worker_notices_that_its_engine_stands_still():
    engine_stands_still("prefill", STALL, NEVER)


def test_the_coordinator_notices_that_an_engine_stands_still():
    engine_stands_still("decode", NEVER, STALL)


def test_an_answer_that_is_being_written_goes_on_elsewhere():
    """Frozen in the middle of jobs: those get the tokens that they would have got."""
    with Cluster(decode=0, coordinator_args=NEVER) as cluster:
        victim = start(cluster, "decode-0", STALL)
        cluster.wait_ready()
        asked = job(3000, 8000)
        watcher = Watcher(cluster, cluster.submit(asked))
        watcher.wait_for_tokens(20)
        freeze(victim, "engine")
        cluster.start_worker("decode-1")
        watcher.wait_for_resumption()
        watcher.wait_for_tokens(600)
        assert watcher.cancelled().statistics.retries >= 1
        assert tokens(watcher.events)[:600] == in_one_process("full", asked.text, 600)
        end_frozen(cluster, "decode-0")


def test_a_data_plane_that_stands_still_is_gone_round():
    """No ship to or from the worker succeeds: its jobs move to others, long before the worker counts as stalled."""
    for role in ("decode", "prefill"):
        counts = {"prefill": 1, "decode": 1, "kvstore": 0, role: 0}
        with Cluster(**counts, coordinator_args=NEVER) as cluster:
            victim = start(cluster, f"{role}-0", ["--stall-after", f"{10 * SLOW:g}s"])
            cluster.start_worker(f"{role}-1")
            cluster.wait_ready()
            freeze(victim, "fabric")
            retries = Jobs(cluster, 4).assert_right(within_s=60)
            assert any(retries), "nobody was given to it"
            eventually(lambda: state_of(cluster, f"{role}-0") == cluster_pb.STALLED, 20, "stalled")
            assert "the data plane stands still" in victim.errors()
            end_frozen(cluster, f"{role}-0")


def test_idle_and_busy_workers_do_not_stand_still():
    """Nothing to do is not a stall, nor are chunks as large as they can be."""
    brief = ["--stall-after", f"{SLOW:g}s"]
    with Cluster(args=brief, coordinator_args=[*brief, *PATIENCE]) as cluster:
        time.sleep(2.5 * SLOW)
        answer = cluster.answer(request(24000, recipe="full,chunk=3072", ignore_eos=True))[0]
        assert answer.status_code == 0 and answer.statistics.retries == 0, answer
        for name, process in cluster.processes.items():
            assert "stands still" not in process.errors() and "stalled" not in process.errors(), process.errors()
        for worker in cluster.workers().workers:
            assert worker.state == cluster_pb.READY, worker


def test_a_store_notices_that_a_thread_stands_still():
    for thread in ("keeper", "builder"):
        with Cluster(kvstore=0, coordinator_args=NEVER) as cluster:
            store = start(cluster, "kvstore-0", STALL)
            cluster.wait_ready()
            freeze(store, thread)
            eventually(lambda: health_of(store) == "NOT_SERVING", 15, f"the store without its {thread} is not serving")
            eventually(lambda: state_of(cluster, "kvstore-0") == cluster_pb.STALLED, 15, "the store stalled")
            assert f"the {thread} stands still" in store.errors()
            assert cluster.answer(request(3000))[0].text.strip() == "48213", "jobs do without it"
            end_frozen(cluster, "kvstore-0")


def test_waiting_for_a_store_is_no_stall():
    """The engine waits for it, so it may not be told to wait for as long as it may stand still."""
    wrong = [os.path.join(BIN, "sluice-decode"), "--model", MODEL, "--stall-after", "2s", "--retrieve-deadline", "2000ms"]
    for command in (wrong, wrong + ["--check"]):
        refused = subprocess.run(command, capture_output=True, text=True, timeout=30 * SLOW)
        assert refused.returncode == 2 and "--stall-after" in refused.stderr, refused


def test_whatever_heartbeat_the_coordinator_asks_for_is_kept():
    for heartbeat in ("200ms", "3s"):
        with Cluster(kvstore=0, coordinator_args=["--heartbeat", heartbeat]) as cluster:
            time.sleep(2)
            assert all(w.state == cluster_pb.READY for w in cluster.workers().workers), cluster.workers()
            assert cluster.answer(request(3000))[0].text.strip() == "48213"
            assert "lost" not in cluster.coordinator.errors(), cluster.coordinator.errors()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
