#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Cancelling in every state returns every page and lease; Cluster.__exit__ reads the gauges each time."""
import time

from harness import SLOW, Cluster, State, endless, eventually, inference, request, run_tests, states
import grpc


def wait_for_state(cluster, job_id, name, timeout=30):
    def reached():
        state = cluster.get(job_id).state
        assert state not in (State.Value("DONE"), State.Value("FAILED")), f"ended before {name}: {cluster.get(job_id)}"
        return state == State.Value(name)
    eventually(reached, timeout, f"state {name}")


def cancel_and_check(cluster, job_id):
    began = time.monotonic()
    job = cluster.cancel(job_id)
    assert job.state == State.Value("CANCELLED"), job
    assert time.monotonic() - began < 5 * SLOW
    assert cluster.cancel(job_id).state == State.Value("CANCELLED"), "cancelling is idempotent"
    last = list(cluster.watch(job_id))[-1]
    assert last.finished.reason == inference.Finished.CANCELLED_BY_CLIENT and last.finished.status_code == 1
    cluster.assert_clean()


def test_cancel_while_queued():
    with Cluster(kvstore=0, coordinator_args=["--max-jobs", "1"]) as cluster:
        running = cluster.submit(endless())
        queued = cluster.submit(request(3000))
        assert cluster.get(queued).state == State.Value("QUEUED")
        job = cluster.cancel(queued)
        assert job.state == State.Value("CANCELLED")
        cancel_and_check(cluster, running)


def test_cancel_while_prefilling():
    with Cluster() as cluster:
        job_id = cluster.submit(request(30000, recipe="full,chunk=64"))
        wait_for_state(cluster, job_id, "PREFILLING")
        cancel_and_check(cluster, job_id)
        assert cluster.answer(request(3000))[0].text.strip() == "48213"


def test_cancel_while_waiting_for_a_prefill_worker_s_turn():
    with Cluster(kvstore=0, args=["--arena", "128M"]) as cluster:  # neither waits for memory
        first = cluster.submit(request(30000, recipe="full,chunk=64"))
        wait_for_state(cluster, first, "PREFILLING")
        second = cluster.submit(request(32000))  # neither the oldest nor the shortest
        time.sleep(0.3)
        began = time.monotonic()
        assert cluster.cancel(second).state == State.Value("CANCELLED")
        assert time.monotonic() - began < 2 * SLOW, "a job that waits must not wait for the one before it to go"
        assert cluster.get(second).statistics.prefill_ms == 0, "it had its turn"
        cancel_and_check(cluster, first)


def test_cancel_while_shipping():
    # The data plane of the prefill worker stalls, so the job stays where it is.
    for transport in ("shm", "tcp"):
        with Cluster(kvstore=0, transport=transport, worker_args={"prefill": ["--inject", "stall:2"]}) as cluster:
            job_id = cluster.submit(request(4000))
            wait_for_state(cluster, job_id, "SHIPPING")
            cancel_and_check(cluster, job_id)


def test_cancel_while_decoding():
    with Cluster() as cluster:
        job_id = cluster.submit(endless())
        wait_for_state(cluster, job_id, "DECODING")
        cancel_and_check(cluster, job_id)


def test_leaving_a_generate_call_cancels_its_job():
    with Cluster() as cluster:
        call = cluster.generate(endless())
        for event in call:
            if event.HasField("token"):
                break
        job_id = event.job_id
        call.cancel()
        eventually(lambda: cluster.get(job_id).state == State.Value("CANCELLED"), 5, "cancelled")
        cluster.assert_clean()


def test_leaving_a_watch_does_not():
    with Cluster() as cluster:
        job_id = cluster.submit(request(3000))
        call = cluster.watch(job_id)
        next(call)
        call.cancel()
        assert list(cluster.watch(job_id))[-1].finished.text.strip() == "48213"


def test_the_job_s_deadline_ends_it():
    with Cluster() as cluster:
        began = time.monotonic()
        job_id = cluster.submit(endless(deadline_ms=1500))
        last = list(cluster.watch(job_id))[-1].finished
        assert last.status_code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0], last
        assert time.monotonic() - began < 5 * SLOW
        cluster.assert_clean()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
