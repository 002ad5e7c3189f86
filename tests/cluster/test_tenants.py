#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tenants of one cluster: each sees its own jobs; none can take the line, the watchers or the workers for itself; who does not read is
not waited for; and what one has had read is not there for others."""
import os
import tempfile
import threading

from harness import (PATIENCE, Cluster, State, call, certificates, cluster_pb, connect, endless, eventually, inference, refused, request, run_tests, stub,
                     worker_pb)
import grpc

FULL = [grpc.StatusCode.RESOURCE_EXHAUSTED]


def test_tenants_see_their_own_jobs():
    with certificates("client/acme/alice", "client/acme/bob", "client/umbrella") as made, \
            Cluster(kvstore=0, certificates=made) as cluster, \
            cluster.channel_of("client/acme/alice") as alice, cluster.channel_of("client/acme/bob") as bob, \
            cluster.channel_of("client/umbrella") as stranger:
        job_id = call(alice, "sluice.v1.Inference.Submit", endless(1000, 400)).job_id
        job = inference.JobRequest(job_id=job_id)
        unknown = [grpc.StatusCode.NOT_FOUND]
        watch = inference.WatchRequest(job_id=job_id)
        for method in ("Get", "Cancel"):
            refused(unknown, call, stranger, f"sluice.v1.Inference.{method}", job)
        refused(unknown, lambda: list(stub(stranger.unary_stream, "sluice.v1.Inference.Watch")(watch, timeout=20)))
        assert not call(stranger, "sluice.v1.Inference.List", inference.ListRequest()).jobs
        for channel in (alice, bob, cluster.channel):
            seen = call(channel, "sluice.v1.Inference.Get", job)
            assert seen.tenant == "acme" and seen.state != inference.CANCELLED, seen
            assert [j.job_id for j in call(channel, "sluice.v1.Inference.List", inference.ListRequest()).jobs] == [job_id]
        assert call(bob, "sluice.v1.Inference.Cancel", job).state == inference.CANCELLED
        # The same idempotency key of two tenants is two jobs.
        asked = request(500, idempotency_key="one")
        first, second = (call(channel, "sluice.v1.Inference.Submit", asked).job_id for channel in (alice, stranger))
        assert first != second and call(bob, "sluice.v1.Inference.Submit", asked).job_id == first
        for channel, job_id in ((alice, first), (stranger, second)):
            list(stub(channel.unary_stream, "sluice.v1.Inference.Watch")(inference.WatchRequest(job_id=job_id), timeout=60))


def watch(channel, job_id, timeout=120):
    return stub(channel.unary_stream, "sluice.v1.Inference.Watch")(inference.WatchRequest(job_id=job_id), timeout=timeout)


def test_a_tenant_has_its_share_of_the_line_and_its_turn():
    """One that fills the line has half of it; the job of another comes next, before those that were there first."""
    with certificates("client/greedy", "client/victim") as made, \
            Cluster(kvstore=0, args=["--arena", "128M"], certificates=made, coordinator_args=["--max-jobs", "2", "--queue", "8"]) as cluster, \
            cluster.channel_of("client/greedy") as greedy, cluster.channel_of("client/victim") as victim:
        submit = "sluice.v1.Inference.Submit"
        theirs = []
        for i in range(2):  # these run
            theirs.append(call(greedy, submit, endless(300 + i, 6000)).job_id)
            eventually(lambda: cluster.get(theirs[-1]).state == State.Value("DECODING"), 30, "it runs")
        theirs += [call(greedy, submit, endless(400 + i, 300)).job_id for i in range(4)]
        said = refused(FULL, call, greedy, submit, endless(500, 300))
        assert "greedy" in said and "share" in said and "retry in" in said, said
        mine = call(victim, submit, request(600)).job_id  # there is room in the line for others
        cluster.cancel(theirs[0])
        assert list(watch(victim, mine))[-1].finished.status_code == 0
        begun = [cluster.get(job_id) for job_id in theirs[2:]]
        mine_ended = cluster.get(mine)
        assert all(job.state == inference.QUEUED or job.statistics.queue_ms > mine_ended.statistics.queue_ms for job in begun), begun
        for job_id in theirs:
            cluster.cancel(job_id)


def test_a_tenant_has_its_share_of_watchers():
    with certificates("client/greedy", "client/victim") as made, \
            Cluster(kvstore=0, args=["--arena", "128M"], certificates=made, coordinator_args=["--max-watchers", "6"]) as cluster, \
            cluster.channel_of("client/greedy") as greedy, cluster.channel_of("client/victim") as victim:
        job_id = call(greedy, "sluice.v1.Inference.Submit", endless(300, 8000)).job_id
        calls = [watch(greedy, job_id) for _ in range(3)]
        for one in calls:
            next(one)
        said = refused(FULL, lambda: next(watch(greedy, job_id)))
        assert "greedy" in said and "share" in said, said
        generate = stub(victim.unary_stream, "sluice.v1.Inference.Generate")
        assert list(generate(request(400), timeout=60))[-1].finished.status_code == 0
        for one in calls:
            one.cancel()
        eventually(lambda: next(watch(greedy, job_id)), 20, "room for a watcher again")
        cluster.cancel(job_id)


def held_open(channel, n_parts, stop):
    """A request in parts of 2 MB that never ends."""
    def parts():
        for _ in range(n_parts):
            yield inference.GenerateRequest(text="x" * 2000000)
        stop.wait(60)
    return stub(channel.stream_stream, "sluice.v1.Inference.SubmitInParts")(parts(), timeout=60)


def test_a_tenant_has_its_share_of_parts_and_of_time():
    """Requests in parts that never end: at most the tenant's share of memory, for a limited time; heartbeats have memory of their own."""
    with certificates("client/greedy", "client/victim") as made, \
            Cluster(kvstore=0, certificates=made, coordinator_args=["--request-memory", "32M", "--parts-timeout", "4s"]) as cluster, \
            cluster.channel_of("client/greedy") as greedy, cluster.channel_of("client/victim") as victim:
        stop = threading.Event()
        too_much = [held_open(greedy, 1, stop) for _ in range(16)]  # more than the share of 12 MiB: its own later calls are refused
        eventually(lambda: any(not one.is_active() for one in too_much), 20, "one is refused")
        assert any(one.is_active() for one in too_much)  # the others hold what the tenant may have
        assert call(victim, "sluice.v1.Inference.Submit", request(600, max_new_tokens=2)).job_id
        calls = []
        for one in too_much:
            try:
                next(one)
            except grpc.RpcError as error:
                calls.append(error)
        stop.set()
        codes = [error.code() for error in calls]
        refused_now = [error for error in calls if error.code() == FULL[0]]
        assert len(calls) == 16 and set(codes) == {FULL[0], grpc.StatusCode.DEADLINE_EXCEEDED}, codes
        assert all("greedy" in error.details() and "share" in error.details() for error in refused_now), refused_now[0].details()
        assert " lost: " not in cluster.coordinator.errors(), cluster.coordinator.errors()


class Unread:
    """A client that asks for a stream and never reads: its connection takes what fits, and no more."""

    def __init__(self, address, job_id):
        self.channel = connect(address, ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
        self.stream = watch(self.channel, job_id, 300)


def test_who_does_not_read_is_not_waited_for():
    with Cluster(kvstore=0, args=["--arena", "128M"], coordinator_args=["--reader-timeout", "500ms", "--max-watchers", "4"]) as cluster:
        job_id = cluster.submit(endless(300, 8000, sampling=inference.Sampling(logprobs=20)))
        unread = [Unread(cluster.coordinator.address, job_id) for _ in range(4)]
        eventually(lambda: "has read nothing for 500 ms" in cluster.coordinator.errors(), 60, "the coordinator gives one up")
        eventually(lambda: cluster.coordinator.errors().count("has read nothing") == 4, 60, "all four")
        cluster.cancel(job_id)
        for one in unread:
            one.channel.close()


# ---- caches -------------------------------------------------------------------------------------------------------------

TWO = ("client/acme/alice", "client/acme/bob", "client/umbrella")  # tenants
# On a machine that stands still for seconds, no job is tried again, which would reuse what it read, and no store gives up a transfer.
PATIENT = {"args": ["--lease", "30s"], "coordinator_args": PATIENCE}


def ask(cluster, who, asked):
    """Runs a job of `who`. Returns (statistics, the prefill worker)."""
    with cluster.channel_of(who) as channel:
        job_id = call(channel, "sluice.v1.Inference.Submit", asked).job_id
        finished = list(watch(channel, job_id))[-1].finished
        assert finished.status_code == 0, finished
        return finished.statistics, call(channel, "sluice.v1.Inference.Get", inference.JobRequest(job_id=job_id)).prefill_worker


def store(cluster):
    with cluster.certificates.channel(cluster.processes["kvstore-0"].address, "operator/me") as channel:
        return call(channel, "sluice.v1.Store.Stats", worker_pb.StoreStatsRequest())


def settle(cluster, n_capsules, field="capsules"):
    def settled():
        stats = store(cluster)
        return getattr(stats, field) >= n_capsules and stats.leases == 0
    eventually(settled, 20, f"{n_capsules} {field} in the store")


def is_read_anew(cluster, who, asked):
    """Runs a job of `who` and asserts that it reuses nothing. Returns its prefill worker."""
    before = store(cluster)
    statistics, worker = ask(cluster, who, asked)
    after = store(cluster)
    assert statistics.n_reused_tokens == 0 == statistics.retrieval.reused_tokens, (who, statistics)
    assert (after.hits, after.disk_hits) == (before.hits, before.disk_hits) and after.misses > before.misses, (who, before, after)
    return worker


def is_reused(cluster, who, asked):
    statistics, worker = ask(cluster, who, asked)
    assert statistics.n_reused_tokens == statistics.n_prompt_tokens - 1, (who, statistics)
    return worker


def test_what_a_tenant_had_read_is_not_in_memory_for_others():
    with certificates(*TWO) as made, Cluster(prefill=2, certificates=made, **PATIENT) as cluster:
        alice, bob, stranger = TWO
        asked = request(4000)
        reader = is_read_anew(cluster, alice, asked)
        settle(cluster, 1)
        # Idle workers take turns, except for a tenant whose prompt one of them has read.
        assert is_read_anew(cluster, stranger, asked) != reader, "a stranger was sent where the prompt had been read"
        settle(cluster, 2)
        is_read_anew(cluster, "operator/me", asked)
        settle(cluster, 3)
        assert is_reused(cluster, bob, asked) == reader
        is_reused(cluster, stranger, asked)
        # Reuse of a shared prefix is per tenant, too; and so it is where only a whole prompt is reused.
        longer = request(4000, text=asked.text + asked.text[:1000])
        assert ask(cluster, bob, longer)[0].n_reused_tokens > 500
        evicts = request(4000, recipe="h2o,budget=768,chunk=256")
        is_read_anew(cluster, alice, evicts)
        settle(cluster, 6)
        is_read_anew(cluster, stranger, evicts)
        is_reused(cluster, alice, evicts)


def test_what_a_tenant_had_read_is_not_in_a_store_for_others():
    """The same for offloaded layers: each head's segments, and the names of thinned ones."""
    for recipe in ("tailorkv,topk=64", "tailorkv-near,topk=64", "tailorkv,topk=64,score=cis,budget=0.5,when=chunk"):
        with certificates(*TWO) as made, Cluster(certificates=made, **PATIENT) as cluster:
            alice, bob, stranger = TWO
            asked = request(4000, recipe=recipe)
            is_read_anew(cluster, alice, asked)
            settle(cluster, 1)
            stretches = store(cluster).stretches
            is_read_anew(cluster, stranger, asked)
            settle(cluster, 2)
            assert store(cluster).stretches == 2 * stretches, recipe
            for who in (bob, stranger):
                statistics, _ = ask(cluster, who, asked)
                assert statistics.retrieval.reused_tokens == statistics.n_prompt_tokens - 1 == statistics.n_reused_tokens, statistics
                assert statistics.retrieval.offloaded_bytes == 0, statistics


def test_what_a_tenant_had_read_is_not_on_disk_for_others():
    with tempfile.TemporaryDirectory(prefix="sluice-disk-") as folder, certificates(*TWO) as made:
        alice, bob, stranger = TWO
        asked, salts = request(4000), [f"{made.folder}/salt", f"{made.folder}/other"]
        disk = {"kvstore": ["--disk", f"{folder}/disk", "--disk-bytes", "64M"]}
        start = lambda *salt: Cluster(certificates=made, worker_args=disk, **{**PATIENT, "coordinator_args": [*PATIENCE, *salt]})
        with start("--salt-file", salts[0]) as cluster:
            is_read_anew(cluster, alice, asked)
            settle(cluster, 1, "disk_capsules")
            cluster.kill("kvstore-0")
            cluster.processes["kvstore-0"].popen.wait()
            again = cluster.start_worker("kvstore-0")
            eventually(lambda: any(w.info.rpc_address == again.address and w.state == cluster_pb.READY
                                   for w in cluster.workers().workers), 10, "the store is back")
            assert store(cluster).disk_capsules == 1
            is_read_anew(cluster, stranger, asked)
            is_reused(cluster, bob, asked)
            assert store(cluster).disk_hits == 1
            settle(cluster, 2, "disk_capsules")
        assert os.stat(salts[0]).st_mode & 0o777 == 0o600 and os.stat(salts[0]).st_size == 32
        with start("--salt-file", salts[0]) as cluster:  # all of it anew: the secret is that of before
            is_reused(cluster, stranger, asked)
            assert store(cluster).disk_hits == 1
        with start("--salt-file", salts[1]) as cluster:  # another secret
            is_read_anew(cluster, alice, asked)
            assert "--salt-file" not in cluster.coordinator.errors()
        with start() as cluster:  # a salt that was not kept
            is_read_anew(cluster, alice, asked)
            assert cluster.coordinator.errors().count("no --salt-file") == 1


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
