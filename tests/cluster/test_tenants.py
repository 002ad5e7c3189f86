#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tenants of one cluster: each sees its own jobs; none can take the line, the watchers or the workers for itself; who does not read is
not waited for; and what one has had read is not there for others."""
import contextlib
import hashlib
import os
import re
import socket
import struct
import sys
import tempfile
import threading

from harness import (PATIENCE, SLOW, Cluster, State, call, certificates, cluster_pb, connect, documents_pb, endless, eventually, inference, refused, request,
                     run_tests, stub, worker_pb)
import grpc
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../unit/rpc"))
import partial_requests  # noqa: E402

FULL = [grpc.StatusCode.RESOURCE_EXHAUSTED]


def test_tenants_see_their_own_jobs():
    with certificates("client/acme/alice", "client/acme/bob", "client/umbrella") as made, \
            Cluster(kvstore=0, certificates=made) as cluster, \
            cluster.channel_of("client/acme/alice") as alice, cluster.channel_of("client/acme/bob") as bob, \
            cluster.channel_of("client/umbrella") as stranger:
        job_id = call(alice, "sluice.v1.Inference.Submit", endless(1000)).job_id
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


def test_job_ids_tell_nothing_of_other_tenants():
    """Every bit of an id is random. In ids that count, or have a time in them, a tenant sees how many jobs others have, or when."""
    with certificates("client/acme", "client/umbrella") as made, Cluster(kvstore=0, certificates=made) as cluster, \
            cluster.channel_of("client/acme") as one, cluster.channel_of("client/umbrella") as other:
        ids = [call(channel, "sluice.v1.Inference.Submit", request(100, max_new_tokens=1)).job_id for _ in range(40) for channel in (one, other)]
        assert len(set(ids)) == 80 and all(re.fullmatch("job-[0-9a-f]{16}", job_id) for job_id in ids), ids
        numbers = [int(job_id[4:], 16) for job_id in ids]
        # A random bit is equal in all 80 ids with a probability of 2^-79, any of the 64 bits with 2^-73.
        still = [bit for bit in range(64) if len({number >> bit & 1 for number in numbers}) == 1]
        assert not still, (still, ids)


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
            theirs.append(call(greedy, submit, endless(300 + i)).job_id)
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
        job_id = call(greedy, "sluice.v1.Inference.Submit", endless(300)).job_id
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


def beginning_of_a_document(fingerprint, text_bytes):
    """The head of a file (net/document/exported.h), whose text does not come."""
    recipe = b"full"
    head = b"SLUICEDC" + struct.pack("<IIQQQQQII", 1, 2, fingerprint, 1, text_bytes, 1, 1, len(recipe), 0) + bytes(64) + recipe
    return head + hashlib.sha256(head).digest()


def test_a_tenant_has_its_share_of_the_memory_of_calls_that_wait():
    """Jobs that wait with their texts, and files whose texts do not arrive, leave memory for requests of others."""
    with certificates("client/greedy", "client/victim") as made, \
            Cluster(certificates=made, coordinator_args=["--request-memory", "1M", "--max-jobs", "2"]) as cluster, \
            cluster.channel_of("client/greedy") as greedy, cluster.channel_of("client/victim") as victim:
        fingerprint = call(victim, "sluice.v1.Inference.Model", inference.ModelRequest()).fingerprint
        stop = threading.Event()

        def imports(n_bytes):
            def pieces():
                yield documents_pb.ImportDocumentRequest(name="d", data=beginning_of_a_document(fingerprint, n_bytes))
                stop.wait(120)
            return stub(greedy.stream_stream, "sluice.v1.Documents.Import")(pieces(), timeout=120)

        def generates(n_bytes):
            return stub(greedy.unary_stream, "sluice.v1.Inference.Generate")(endless(n_bytes, 2000), timeout=120)
        for waits, sizes in (imports, [65536] * 24 + [2048] * 40), (generates, [6000] * 48 + [200] * 40):
            held = [waits(n_bytes) for n_bytes in sizes]
            eventually(lambda: sum(not one.is_active() for one in held) >= 5, 60, "some are refused")
            assert call(victim, "sluice.v1.Inference.Submit", request(6000, max_new_tokens=1)).job_id
            said = next(one.details() for one in held if not one.is_active())
            assert "greedy" in said and "share" in said, said
            assert any(one.is_active() for one in held)  # the others hold what the tenant may have
            for one in held:
                one.cancel()
        stop.set()


def test_a_connection_without_a_certificate_has_its_share_of_watchers_and_memory():
    """Without certificates, a connection of this machine counts as a tenant."""
    with Cluster(kvstore=0, args=["--arena", "128M"], coordinator_args=["--max-watchers", "32", "--request-memory", "32M"]) as cluster, \
            cluster.channel_of(None, ("grpc.use_local_subchannel_pool", 1)) as greedy, \
            cluster.channel_of(None, ("grpc.use_local_subchannel_pool", 1)) as victim:
        job_id = call(greedy, "sluice.v1.Inference.Submit", endless(300)).job_id
        calls = [watch(greedy, job_id) for _ in range(16)]
        for one in calls:
            next(one)
        said = refused(FULL, lambda: next(watch(greedy, job_id)))
        assert "16 calls follow jobs of this client, its share" in said, said
        for one in calls:
            one.cancel()
        eventually(lambda: next(watch(greedy, job_id)), 20, "room for a watcher again")
        cluster.cancel(job_id)
        stop = threading.Event()
        held = [held_open(greedy, 1, stop) for _ in range(12)]  # all of them are more than the share of 12 MiB
        eventually(lambda: any(not one.is_active() for one in held), 20, "one is refused")
        said = next(one.details() for one in held if not one.is_active())
        assert "unfinished requests of this client take its share" in said, said
        assert any(one.is_active() for one in held)
        assert list(stub(victim.unary_stream, "sluice.v1.Inference.Generate")(request(600, max_new_tokens=2), timeout=60))[-1].finished.status_code == 0
        stop.set()
        for one in held:
            one.cancel()


def test_a_tenant_has_its_share_of_calls():
    """Many calls of one tenant at once leave places to others: here long texts, which wait for a turn to be tokenized."""
    share, asked = 10, inference.GenerateRequest(text="a!" * 60000, max_new_tokens=1)  # 4 % of 1 and 256 more
    with certificates("client/greedy", "client/victim") as made, \
            Cluster(certificates=made, kvstore=0, coordinator_args=["--max-watchers", "1", "--tenant-share", "4"]) as cluster, \
            cluster.channel_of("client/greedy") as greedy, cluster.channel_of("client/victim") as victim:
        calls = [stub(greedy.unary_unary, "sluice.v1.Inference.Submit").future(asked, timeout=120) for _ in range(8 * share)]
        assert call(victim, "sluice.v1.Inference.Submit", request(100, max_new_tokens=1)).job_id
        said = [one.exception().details() for one in calls]
        n_refused = sum("handles 10 calls of greedy already, its share; retry in 1000 ms" in text for text in said)
        assert 0 < n_refused < len(calls) and not any("handles 257" in text for text in said), said
        figures = cluster.figures("coordinator")
        assert figures['sluice_calls_refused_total{of="caller"}'] == n_refused and figures['sluice_calls_refused_total{of="all"}'] == 0, figures
        eventually(lambda: cluster.figures("coordinator")["sluice_calls"] == 0, 20, "they have ended")


class Unread:
    """A client that asks for a stream and never reads: its connection takes what fits, and no more."""

    def __init__(self, cluster, job_id, who=None):
        self.channel = cluster.channel_of(who, ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
        self.stream = watch(self.channel, job_id, 300)


def test_who_does_not_read_is_not_waited_for():
    with Cluster(kvstore=0, args=["--arena", "128M"], coordinator_args=["--reader-timeout", "500ms", "--max-watchers", "8"]) as cluster:
        job_id = cluster.submit(endless(300, sampling=inference.Sampling(logprobs=20)))
        unread = [Unread(cluster, job_id) for _ in range(4)]
        eventually(lambda: "has read nothing for 500 ms" in cluster.coordinator.errors(), 60, "the coordinator gives one up")
        eventually(lambda: cluster.coordinator.errors().count("has read nothing") == 4, 60, "all four")
        cluster.cancel(job_id)
        for one in unread:
            one.channel.close()


def test_who_does_not_read_keeps_no_turn():
    """Events of a tenant are sent in turns, fewer than processors. Its clients that do not read wait without one, and another gets its events."""
    with certificates("client/acme") as made, \
            Cluster(kvstore=0, args=["--arena", "128M"], certificates=made, coordinator_args=["--reader-timeout", "1h"]) as cluster, \
            cluster.channel_of("client/acme") as reader:
        job_id = call(reader, "sluice.v1.Inference.Submit", endless(300, 1000, sampling=inference.Sampling(logprobs=20))).job_id
        wanted = len(list(watch(reader, job_id)))
        unread = [Unread(cluster, job_id, "client/acme") for _ in range(os.cpu_count())]
        for _ in range(20):  # soon these cannot take more
            assert len(list(watch(reader, job_id, 60))) == wanted
        for one in unread:
            one.channel.close()


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def frames(connection):
    """Yields (kind, flags, stream, payload) of what comes over an HTTP/2 connection. Answers pings."""
    with connection.makefile("rb") as file:
        while head := file.read(9):
            payload = file.read(int.from_bytes(head[:3], "big"))
            if head[3] == 6 and not head[4] & 1:
                connection.sendall(frame(6, 1, 0, payload))
            yield head[3], head[4], int.from_bytes(head[5:], "big"), payload


def head_of(path):
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"), (b"te", b"trailers"),
        (b"content-type", b"application/grpc")))


def begin(address, stack, window):
    """Returns a connection whose streams have so much room for replies."""
    host, port = address.rsplit(":", 1)
    connection = stack.enter_context(socket.create_connection((host, int(port))))
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, window)) + frame(4, 1, 0))
    return connection


def test_calls_whose_requests_do_not_come_are_bounded():
    """Of callers who have most of them, those that wait longest are refused; another caller's stays, and is answered."""
    n_calls, n_connections, most = 500, 4, 1536
    with Cluster(kvstore=0) as cluster, contextlib.ExitStack() as stack:
        job_id, head = cluster.submit(request(100, max_new_tokens=1)), head_of(b"/sluice.v1.Inference/Get")
        asked = inference.JobRequest(job_id=job_id).SerializeToString()
        first, *opened = [begin(cluster.coordinator.address, stack, 1 << 20) for _ in range(1 + n_connections)]
        ended, told, answered = set(), threading.Event(), threading.Event()

        def read(connection):
            for kind, _, stream, payload in frames(connection):
                if connection is first and kind == 0 and stream == 1:
                    answered.set()
                elif kind in (1, 3):
                    ended.add((connection, stream))
                if b"waits for the requests of 1536 calls" in payload:
                    told.set()
        for connection in (first, *opened):
            threading.Thread(target=read, args=(connection,), daemon=True).start()
        first.sendall(frame(1, 4, 1, head))
        for connection in opened:
            for stream in range(1, 2 * n_calls, 2):
                connection.sendall(frame(1, 4, stream, head))
                if stream % 500 == 1:
                    assert cluster.get(job_id).job_id == job_id  # others are answered
        n_over = 1 + n_calls * n_connections - most
        eventually(lambda: len(ended) >= n_over, 60, "those that do not fit are refused")
        assert len(ended) < n_over + 10 and (first, 1) not in ended and told.is_set(), len(ended)  # others' calls took some places
        first.sendall(frame(0, 1, 1, struct.pack(">BI", 0, len(asked)) + asked))
        assert answered.wait(20)
        for connection in (first, *opened):
            connection.shutdown(socket.SHUT_RDWR)


def test_who_lets_too_many_calls_wait_loses_the_connection():
    """Of a caller with as many calls as may wait, a connection that opens more is closed after some hundred; its others stay."""
    head = head_of(b"/sluice.v1.Inference/Get")
    with certificates("client/acme", "client/umbrella") as made, Cluster(kvstore=0, certificates=made) as cluster:
        first, second = (partial_requests.Client(cluster.coordinator.address, made.folder, "client-acme") for _ in range(2))
        for stream in range(1, 2 * 1400, 2):
            first.open(stream, head)
        first.open(2801, head)
        first.finish(2801)
        assert first.answer(2801, b"the request is missing")  # so all before it wait
        with contextlib.suppress(OSError):
            for stream in range(1, 2 * 1300, 2):  # fewer than a connection may have
                second.open(stream, head)
        with second.changed:
            assert second.changed.wait_for(lambda: second.has_ended, 5) or SLOW > 1  # hundreds a second
        assert not first.has_ended
        if second.has_ended:
            eventually(lambda: "lets too many wait" in cluster.coordinator.errors(), 5, "it says why")
            again, other = (partial_requests.Client(cluster.coordinator.address, made.folder, who) for who in ("client-acme", "client-umbrella"))
            for one in (again, other):
                with contextlib.suppress(OSError):
                    for stream in range(1, 2 * 150, 2):
                        one.open(stream, head)
            with again.changed:
                assert again.changed.wait_for(lambda: again.has_ended, 10 * SLOW), "for some seconds it may have fewer calls at once"
            assert not other.has_ended and not first.has_ended
            other.connection.shutdown(socket.SHUT_RDWR)
        assert "ulimit" not in cluster.coordinator.errors()  # more descriptors would not help
        with cluster.channel_of("client/umbrella") as channel:
            assert call(channel, "sluice.v1.Inference.Submit", request(100, max_new_tokens=1)).job_id
        first.connection.shutdown(socket.SHUT_RDWR)


def test_replies_that_are_not_read_are_bounded():
    """A client whose windows have no room for a reply: of its calls, those that wait longest are given up. Another's is not."""
    n_calls, most = (1, 900, 900, 600), 1536
    with Cluster(kvstore=0) as cluster, contextlib.ExitStack() as stack:
        job_id = cluster.submit(request(100, max_new_tokens=1))
        assert list(watch(cluster.channel, job_id))[-1].finished.status_code == 0
        asked, head = inference.JobRequest(job_id=job_id).SerializeToString(), head_of(b"/sluice.v1.Inference/Get")
        ended, opened = set(), [begin(cluster.coordinator.address, stack, 0) for _ in n_calls]

        def read(i):
            begun = set()  # refused calls end at once
            with contextlib.suppress(OSError):  # the test has ended
                for kind, flags, stream, _ in frames(opened[i]):
                    if kind == 1 and not flags & 1:
                        begun.add(stream)
                    elif kind in (1, 3) and stream in begun:
                        ended.add((i, stream))
                    elif kind == 0:
                        ended.add(("a reply came", i, stream))
        for i, connection in enumerate(opened):
            threading.Thread(target=read, args=(i,), daemon=True).start()
            for stream in range(1, 2 * n_calls[i], 2):
                connection.sendall(frame(1, 4, stream, head) + frame(0, 1, stream, struct.pack(">BI", 0, len(asked)) + asked))
                if stream % 500 == 1:  # fewer at once than the server refuses
                    assert cluster.get(job_id).job_id == job_id  # others are answered
        eventually(lambda: len(ended) >= sum(n_calls) - most, 60, "those that do not fit are given up")
        assert not any(one[0] == 0 for one in ended), "the only call of a caller"
        assert len(ended) < sum(n_calls) / 2 and not any(len(one) > 2 for one in ended), ended
        for connection in opened:
            connection.shutdown(socket.SHUT_RDWR)


def test_replies_that_are_not_read_end():
    """A client whose window has no room for a reply loses its call after the time for readers."""
    with Cluster(kvstore=0, coordinator_args=["--reader-timeout", "500ms"]) as cluster, contextlib.ExitStack() as stack:
        asked = inference.JobRequest(job_id=cluster.submit(request(100, max_new_tokens=1))).SerializeToString()
        connection, ended = begin(cluster.coordinator.address, stack, 0), threading.Event()

        def read():
            for kind, flags, stream, _ in frames(connection):
                if stream == 1 and (kind == 3 or kind == 1 and flags & 1):
                    ended.set()
        threading.Thread(target=read, daemon=True).start()
        connection.sendall(frame(1, 4, 1, head_of(b"/sluice.v1.Inference/Get")) + frame(0, 1, 1, struct.pack(">BI", 0, len(asked)) + asked))
        assert ended.wait(20)
        connection.shutdown(socket.SHUT_RDWR)


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
