#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
A coordinator with --state is killed in the middle of answers, or asked to end, and comes back. Jobs go on under their ids. A client that
watches them, by gRPC, by `sluice run` or over HTTP, sees the answer of an undisturbed cluster, and no token twice.
"""
import contextlib
import os
import shutil
import signal
import sqlite3
import tempfile
import threading
import time

from harness import MODEL, State, Cluster, call, document, eventually, inference, question, refused, run_tests, tokens
import grpc
from several import ETCD, Answer, Etcd, SeveralCoordinators
from test_gateway import Gateway

PROMPT = document(3000) + question()
JOB = dict(text=PROMPT, max_new_tokens=600, ignore_eos=True, sampling=inference.Sampling(temperature=0.9, seed=11))
RUN = ("--max-new-tokens", "600", "--ignore-eos", "--temperature", "0.9", "--seed", "11")


class Restarting(Cluster):
    """A Cluster whose coordinator has a folder, and comes back at its address."""

    def __init__(self, coordinator_args=(), **others):
        self.folder = tempfile.mkdtemp(prefix="sluice-state-")
        self.more = list(coordinator_args)
        super().__init__(coordinator_args=["--state", os.path.join(self.folder, "state"), *self.more], **others)

    def down(self, number=signal.SIGKILL):
        process = self.processes.pop("coordinator")
        process.signal(number)
        process.popen.wait(30)

    def up(self):
        self.coordinator = self._start("coordinator", ["sluice-coordinator", "--listen", self.coordinator.address, "--model", MODEL,
                                                       "--state", os.path.join(self.folder, "state"), *self.more])

    def __exit__(self, *what):
        super().__exit__(*what)
        shutil.rmtree(self.folder)


def read_on(cluster, job, last):
    """Returns the events after a number, by a client that tries until a coordinator answers."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return list(cluster.watch(job, last + 1))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE and time.monotonic() < deadline, error
            time.sleep(0.1)


def assert_whole(events, wanted):
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    indices = [e.token.index for e in events if e.HasField("token")]
    assert indices == list(range(len(indices))), indices
    assert events[-1].finished.status_code == 0, events[-1]
    assert tokens(events) == tokens(wanted), "not the tokens of an undisturbed answer"
    assert events[-1].finished.text == wanted[-1].finished.text


def test_jobs_go_on_when_the_coordinator_was_killed():
    with Restarting() as cluster:
        _, wanted = cluster.answer(inference.GenerateRequest(**JOB))
        long_ago = wanted[0].job_id
        request = inference.GenerateRequest(idempotency_key="once", **JOB)
        job = cluster.submit(request)
        seen = []
        with_gateway = []
        with Gateway(cluster) as gateway:
            asked = {"prompt": PROMPT, "temperature": 0.9, "seed": 11, "max_tokens": 600, "ignore_eos": True}
            poster = threading.Thread(target=lambda: with_gateway.append(gateway.post("/v1/completions", asked)))
            poster.start()
            client = Answer(cluster, PROMPT, *RUN)
            client.wait_for_tokens(40)
            stream = cluster.watch(job)
            for event in stream:
                seen.append(event)
                if event.HasField("token") and event.token.index == 60:
                    break
            cluster.down()
            try:
                seen += list(stream)  # what was on its way
            except grpc.RpcError:
                pass
            time.sleep(1)
            cluster.up()
            assert cluster.submit(request) == job, "its key is known"
            assert_whole(seen + read_on(cluster, job, seen[-1].sequence), wanted)
            client.end()
            assert client.tokens() == tokens(wanted)
            poster.join(60)
            status, reply = with_gateway[0]
            assert status == 200 and reply["choices"][0]["text"] == wanted[-1].finished.text, reply
        assert list(cluster.watch(long_ago)) == wanted, "what had ended is as it was"
        assert cluster.get(long_ago).state == State.Value("DONE")


def test_a_drawn_seed_outlives_the_coordinator():
    request = inference.GenerateRequest(text=PROMPT, max_new_tokens=600, ignore_eos=True, sampling=inference.Sampling(temperature=0.9))
    with Restarting() as cluster:
        job = cluster.submit(request)
        for event in cluster.watch(job):
            if event.HasField("token") and event.token.index == 60:
                break
        cluster.down()
        cluster.up()
        events = read_on(cluster, job, 0)
        used = events[-1].finished.statistics.sampling
        assert events[0].state.accepted.sampling == used and used.HasField("seed"), (events[0], used)
        assert "started again" in " ".join(e.state.detail for e in events if e.HasField("state"))
        request.sampling.seed = used.seed
        assert_whole(events, cluster.answer(request)[1])


def test_jobs_go_on_when_the_coordinator_was_asked_to_end():
    with Restarting(["--grace", "200ms"]) as cluster:
        _, wanted = cluster.answer(inference.GenerateRequest(**JOB))
        job = cluster.submit(inference.GenerateRequest(**JOB))
        seen = []
        for event in cluster.watch(job):
            seen.append(event)
            if event.HasField("token") and event.token.index == 30:
                break
        cluster.down(signal.SIGTERM)
        cluster.up()
        assert_whole(seen + read_on(cluster, job, seen[-1].sequence), wanted)
        # Again and again, without a watcher, and once while the job waits in line.
        job = cluster.submit(inference.GenerateRequest(**JOB))
        for pause in (0, 0.3, 1.0):
            time.sleep(pause)
            cluster.down()
            cluster.up()
        assert_whole(read_on(cluster, job, 0), wanted)
        refused((grpc.StatusCode.NOT_FOUND,), cluster.get, "job-1-1")


def test_what_a_crash_of_the_system_takes_is_written_again():
    """The last second of the log is gone: a client that knows tokens by their index sees none twice, and the answer is the same."""
    with Restarting() as cluster:
        _, wanted = cluster.answer(inference.GenerateRequest(**JOB))
        for cut in (60, 10 ** 6):  # events: some tokens; all but the first
            client = Answer(cluster, PROMPT, *RUN)
            client.wait_for_tokens(200)
            cluster.down()
            seen = len(client.tokens())
            folder = os.path.join(cluster.folder, "state")
            with contextlib.closing(sqlite3.connect(os.path.join(folder, "jobs.db"))) as database:
                (job, last), = database.execute("SELECT job, max(first) FROM batches WHERE job = (SELECT max(number) FROM jobs)")
                database.execute("DELETE FROM batches WHERE job = ? AND first > ?", (job, max(last - cut, 0)))
                database.commit()
            cluster.up()
            client.end()
            assert client.tokens() == tokens(wanted) and len(tokens(wanted)) > seen >= 200


def test_where_another_one_leads_its_jobs_are_given_up():
    if not ETCD:
        print("skipped: etcd is not installed")
        return
    folder = tempfile.mkdtemp(prefix="sluice-state-")

    class WithState(SeveralCoordinators):
        def start_coordinator(self, name):
            self.coordinator_args = ["--state", os.path.join(folder, name)]
            return super().start_coordinator(name)

    with Etcd() as etcd, WithState(etcd, n=2) as cluster:
        old = cluster.leader()
        job = cluster.submit(inference.GenerateRequest(text=PROMPT, max_new_tokens=4000, ignore_eos=True))
        next(iter(cluster.watch(job)))
        cluster.kill(old)
        cluster.processes[old].popen.wait()
        cluster.wait_for_leader(but=old)
        cluster.start_coordinator(old)
        get = lambda: call(cluster.channel_to(old), "sluice.v1.Inference.Get", inference.JobRequest(job_id=job))
        eventually(lambda: get().state == State.Value("FAILED"), 10, "it is known that another one leads")
        assert "leads now" in get().status_text, get()
        # One that leads again goes on with its own.
        leader = cluster.leader()
        short = cluster.submit(inference.GenerateRequest(text=PROMPT, max_new_tokens=300, ignore_eos=True))
        next(iter(cluster.watch(short)))
        for name in (old, leader):
            cluster.kill(name)
            cluster.processes[name].popen.wait()
        cluster.start_coordinator(leader)
        cluster.wait_for_leader()
        events = list(cluster.watch(short))
        assert events[-1].finished.status_code == 0 and len(tokens(events)) == 300, events[-1]
        assert [e.sequence for e in events] == list(range(1, len(events) + 1))
        cluster.start_coordinator(old)
    shutil.rmtree(folder)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
