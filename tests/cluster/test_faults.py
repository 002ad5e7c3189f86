#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 and worse. A job finishes (retried, resumed) or fails with UNAVAILABLE after --worker-wait, and the next job works."""
import signal
import tempfile
import threading
import time

from bend import Bend
from harness import MODEL, SLOW, Cluster, State, cluster_pb, document, endless, eventually, inference, question, request
import grpc
from harness import run_tests, states, tokens
from test_cancel import wait_for_state

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


IMPATIENT = ["--worker-wait", "2300ms"]


class Watcher(threading.Thread):
    """Collects a job's events in the background, and when each token came."""

    def __init__(self, cluster, job_id):
        super().__init__(daemon=True)
        self.cluster, self.job_id, self.events, self.heard = cluster, job_id, [], []
        self.start()

    def run(self):
        for event in self.cluster.watch(self.job_id, timeout=90):
            self.events.append(event)
            if event.HasField("token"):
                self.heard.append((time.monotonic(), event.token.index))

    def wait_for_tokens(self, count, timeout=30):
        eventually(lambda: len(self.heard) >= count, timeout, f"{count} tokens of {self.job_id}")

    def wait_for_resumption(self, timeout=60):
        """Waits until a second decode worker writes."""
        eventually(lambda: states(self.events).count(State.Value("DECODING")) > 1, timeout, f"{self.job_id} is resumed")
        self.wait_for_tokens(len(self.heard) + 20)

    def cancelled(self):
        """Cancels the job, which must not have ended by itself. Every token up to here was heard once, in order."""
        job = self.cluster.cancel(self.job_id)
        assert job.state == State.Value("CANCELLED"), job
        finished = self.finished()
        assert finished.reason == inference.Finished.CANCELLED_BY_CLIENT, finished
        assert [index for _, index in self.heard] == list(range(len(self.heard)))
        return finished

    def finished(self, timeout=60):
        self.join(timeout * SLOW)
        assert self.events and self.events[-1].HasField("finished"), "the job did not end"
        return self.events[-1].finished


def kill_with_nobody_to_take_over(worker, job, state, args=None):
    with Cluster(worker_args=args or {}, coordinator_args=IMPATIENT) as cluster:
        job_id = cluster.submit(job)
        wait_for_state(cluster, job_id, state)
        watcher = Watcher(cluster, job_id)
        if state == "SHIPPING":
            time.sleep(0.3 * SLOW)  # until the injected stall holds it: it must not be left for the next job
        if state == "DECODING":
            eventually(lambda: tokens(watcher.events), 10, "a first token")
        began = time.monotonic()
        cluster.kill(worker)
        finished = watcher.finished()
        took = time.monotonic() - began
        assert finished.status_code == UNAVAILABLE, finished
        assert took < 5 * SLOW, f"{took:.1f} s"
        cluster.start_worker(worker)  # its successor
        cluster.wait_ready()
        assert cluster.answer(request(3000))[0].text.strip() == "48213", "the next job works"


def test_decode_worker_dies_while_decoding():
    kill_with_nobody_to_take_over("decode-0", endless(), "DECODING")


def test_decode_worker_dies_while_shipping():
    kill_with_nobody_to_take_over("decode-0", request(4000), "SHIPPING", {"prefill": ["--inject", "stall:1"]})


def test_prefill_worker_dies_while_prefilling():
    kill_with_nobody_to_take_over("prefill-0", request(30000, recipe="full,chunk=64"), "PREFILLING")


def test_another_prefill_worker_takes_over():
    with Cluster(prefill=2, kvstore=0) as cluster:
        job_id = cluster.submit(request(20000, recipe="full,chunk=64"))
        wait_for_state(cluster, job_id, "PREFILLING")
        watcher = Watcher(cluster, job_id)
        eventually(lambda: cluster.get(job_id).prefill_worker, 5, "a prefill worker chosen")
        cluster.kill(cluster.get(job_id).prefill_worker)
        finished = watcher.finished()
        assert finished.status_code == 0 and finished.text.strip() == "48213", finished
        assert finished.statistics.retries >= 1


def test_another_decode_worker_resumes_without_reading_the_prompt_again():
    with Cluster(decode=2) as undisturbed:
        expected = tokens(undisturbed.answer(endless(4000, 800), timeout=90)[1])
    with Cluster(decode=2) as cluster:
        watcher = Watcher(cluster, cluster.submit(endless(4000)))
        watcher.wait_for_tokens(20)
        cluster.wait_for_copies()
        cluster.kill(cluster.get(watcher.job_id).decode_worker)
        watcher.wait_for_resumption()
        watcher.wait_for_tokens(len(expected))
        s = watcher.cancelled().statistics
        assert tokens(watcher.events)[:len(expected)] == expected, "the ones that they would have been"
        assert s.retries >= 1 and s.n_reused_tokens == s.n_prompt_tokens - 1, s


def test_failover_as_clients_see_it():
    """Measures the longest gap in answers when their worker is killed; none is lost, none begins anew."""
    with Cluster(decode=2, worker_args={"decode": ["--arena", "192M"]}) as cluster:  # either has room for all
        watchers = [Watcher(cluster, cluster.submit(endless(2000 + 500 * i))) for i in range(4)]
        for watcher in watchers:
            watcher.wait_for_tokens(20)
        theirs = [watcher for watcher in watchers if cluster.get(watcher.job_id).decode_worker == "decode-0"]
        assert theirs, "decode-0 writes no answer"
        cluster.kill("decode-0")
        for watcher in theirs:
            watcher.wait_for_resumption()
        finished = {watcher: watcher.cancelled() for watcher in watchers}
        silences = [max(later - earlier for (earlier, _), (later, _) in zip(w.heard, w.heard[1:])) for w in watchers]
        print(f"longest silences: {', '.join(f'{s:.2f} s' for s in silences)}", flush=True)
        assert all(finished[watcher].statistics.retries > 0 for watcher in theirs), "an answer of decode-0 was not resumed"
        assert max(silences) < 5 * SLOW, silences


def test_a_decode_worker_that_stands_still_is_lost_too():
    with Cluster(decode=1, coordinator_args=IMPATIENT) as cluster:
        job_id = cluster.submit(endless())
        wait_for_state(cluster, job_id, "DECODING")
        watcher = Watcher(cluster, job_id)
        began = time.monotonic()
        cluster.kill("decode-0", signal.SIGSTOP)
        finished = watcher.finished()
        assert finished.status_code == UNAVAILABLE, finished
        assert time.monotonic() - began < 10 * SLOW
        cluster.kill("decode-0", signal.SIGCONT)
        cluster.wait_ready()
        assert cluster.answer(request(3000))[0].text.strip() == "48213"


def test_jobs_wait_for_a_worker_that_stands_still():
    """The only decode worker is suspended for longer than its liveness timer, in the middle of an answer and while other jobs arrive."""
    with Cluster(worker_args={"decode": ["--arena", "96M"]}) as cluster:  # for that answer and the other jobs
        running = Watcher(cluster, cluster.submit(endless()))
        running.wait_for_tokens(20)
        cluster.kill("decode-0", signal.SIGSTOP)
        eventually(lambda: any(w.state == cluster_pb.LOST for w in cluster.workers().workers), 20, "the worker counts as lost")
        watchers = [Watcher(cluster, cluster.submit(request(2000 + 300 * i, deadline_ms=deadline_ms)))
                    for i, deadline_ms in enumerate([0, 0, 80000, 80000])]
        time.sleep(3 * SLOW)
        assert not any(w.events and w.events[-1].HasField("finished") for w in watchers)
        cluster.kill("decode-0", signal.SIGCONT)
        for watcher in watchers:
            finished = watcher.finished()
            assert finished.status_code == 0 and finished.text.strip() == "48213", finished
        assert any(e.HasField("notice") and "no decode worker" in e.notice.text for e in watchers[0].events), watchers[0].events
        running.wait_for_resumption()
        running.cancelled()


def test_a_worker_that_is_asked_to_stop_finishes_what_it_has_begun():
    with Cluster(decode=2, args=["--grace", f"{60 * SLOW:g}s"]) as cluster:
        watcher = Watcher(cluster, cluster.submit(endless()))
        watcher.wait_for_tokens(20)
        name = cluster.get(watcher.job_id).decode_worker
        cluster.kill(name, signal.SIGTERM)
        eventually(lambda: any(w.info.name == name and w.state == cluster_pb.DRAINING for w in cluster.workers().workers), 20, "it stops")
        watcher.wait_for_tokens(len(watcher.heard) + 500)
        assert watcher.cancelled().statistics.retries == 0
        assert cluster.processes.pop(name).popen.wait(20 * SLOW) == 0


def test_a_corrupted_transfer_is_noticed_and_repeated():
    for transport in ("shm", "tcp"):
        with Cluster(kvstore=0, transport=transport, worker_args={"prefill": ["--inject", "corrupt:3"]}) as cluster:
            finished, events = cluster.answer(request(4000))
            assert finished.status_code == 0 and finished.text.strip() == "48213", finished
            assert finished.statistics.retries == 1


def restart_coordinator(cluster):
    host_port = cluster.coordinator.address
    cluster.kill("coordinator")
    cluster.processes.pop("coordinator").popen.wait()
    time.sleep(0.6)  # workers find no coordinator
    cluster.coordinator = cluster._start("coordinator", ["sluice-coordinator", "--listen", host_port, "--model", MODEL])
    cluster.wait_ready(30)
    assert cluster.answer(request(3000))[0].text.strip() == "48213"


def test_a_restarted_coordinator_gets_its_workers_back():
    with Cluster(kvstore=0) as cluster:
        restart_coordinator(cluster)


def test_a_clock_that_is_set_back_stops_nobody():
    """gRPC's timers wait by the time of day: what they should end or begin again must not depend on them."""
    with tempfile.TemporaryDirectory(prefix="sluice-bend-") as folder, Cluster(decode=0, kvstore=0, coordinator_args=["--heartbeat", "500ms"]) as cluster:
        bend = Bend(folder, "decode-0")
        cluster.start_worker("decode-0", (), bend.environment)
        cluster.counts["decode"] = 1
        cluster.wait_ready()
        with bend.bent("clock_s", 3600):
            time.sleep(1)
        time.sleep(3)  # timers that were set meanwhile are waited for now
        restart_coordinator(cluster)


def test_many_jobs_at_once_with_losses_and_cancels_leave_nothing_behind():
    with Cluster(prefill=2, decode=2, worker_args={"decode": ["--arena", "128M"]}) as cluster:
        long = Watcher(cluster, cluster.submit(endless()))
        long.wait_for_tokens(1)
        results = []

        def client(index):
            for round_ in range(3):
                try:
                    if (index + round_) % 4 == 0:
                        call = cluster.generate(endless(2000, 1000))
                        for _ in zip(range(5), call):
                            pass
                        call.cancel()
                    else:
                        results.append(cluster.answer(request(2000 + 300 * index, seed=index))[0])
                except grpc.RpcError as error:
                    results.append(error)

        clients = [threading.Thread(target=client, args=(i,)) for i in range(6)]
        for thread in clients:
            thread.start()
        eventually(lambda: len(results) >= 3, 60, "some are answered")
        cluster.kill(cluster.get(long.job_id).decode_worker)
        long.wait_for_resumption()
        assert long.cancelled().statistics.retries == 1
        for thread in clients:
            thread.join(120 * SLOW)
        right = sum(1 for r in results if not isinstance(r, grpc.RpcError) and r.text.strip() == "48213")
        assert right >= 0.7 * len(results) and len(results) >= 12, [str(r)[:200] for r in results]
        wrong = [r for r in results if not isinstance(r, grpc.RpcError) and r.status_code == 0 and r.text.strip() != "48213"]
        assert not wrong, "an answer is right or an error, never silently wrong"


if __name__ == "__main__":
    raise SystemExit(run_tests({k: v for k, v in globals().items() if k != "kill_with_nobody_to_take_over"}))
