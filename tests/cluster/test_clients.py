#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A foreign client: Debian's grpcio, with Generate, Watch after a reconnect, deadlines, Health, reflection."""
import time

from harness import SLOW, Cluster, State, connect, endless, eventually, health, inference, reflection, request, run_tests, stub, tokens
import grpc


def test_generate():
    with Cluster() as cluster:
        finished, _ = cluster.answer(request(5000))
        assert finished.text.strip() == "48213" and finished.reason == inference.Finished.STOP_STRING


def test_an_idempotency_key_makes_one_job():
    with Cluster(kvstore=0) as cluster:
        asked = request(1500, idempotency_key="order 66")
        ids = {cluster.submit(asked) for _ in range(3)}
        assert len(ids) == 1 and len(cluster.list()) == 1, ids
        events = list(cluster.watch(ids.pop()))
        assert tokens(list(cluster.generate(asked))) == tokens(events)  # the answer that is there already
        try:
            cluster.submit(request(1600, idempotency_key="order 66"))
            raise AssertionError("another request under the same key was taken")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.ALREADY_EXISTS and "idempotency_key" in error.details(), error
        try:
            cluster.submit(request(100, idempotency_key="k" * 129))
            raise AssertionError("a key that is too long was taken")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "idempotency_key" in error.details(), error
        cancelled = endless(500, 4000, idempotency_key="once more")
        first = cluster.submit(cancelled)
        cluster.cancel(first)
        second = cluster.submit(cancelled)
        assert second != first
        cluster.cancel(second)


def test_requests_that_name_no_recipe():
    for arguments, recipe in (((), "full,format=int8"), (("--recipe", "tova,budget=0.4"), "tova,budget=0.4")):
        with Cluster(kvstore=0, coordinator_args=arguments) as cluster:
            for named in ("", "full"):
                finished, _ = cluster.answer(request(2000, recipe=named))
                assert finished.status_code == 0, finished
                assert finished.statistics.recipe == (named or recipe), finished.statistics.recipe


def test_watch_after_a_reconnect_misses_nothing():
    with Cluster() as cluster:
        job_id = cluster.submit(endless())
        seen = []
        call = cluster.watch(job_id)
        for event in call:
            seen.append(event)
            if len(tokens(seen)) == 10:
                break
        call.cancel()
        cluster.channel.close()  # the connection goes, too
        cluster.channel = connect(cluster.coordinator.address)
        time.sleep(0.2)
        for event in cluster.watch(job_id, from_sequence=seen[-1].sequence + 1):
            seen.append(event)
            if event.HasField("token") and event.token.index == 500:
                assert cluster.cancel(job_id).state == State.Value("CANCELLED"), "it ended before the client was back"
        assert [e.sequence for e in seen] == list(range(1, seen[-1].sequence + 1))
        assert seen[-1].HasField("finished") and len(tokens(seen)) > 500
        everything = list(cluster.watch(job_id))
        assert [e.sequence for e in everything] == [e.sequence for e in seen]
        assert tokens(everything) == tokens(seen)


def test_two_watchers_see_the_same():
    with Cluster() as cluster:
        job_id = cluster.submit(request(3000))
        calls = [cluster.watch(job_id) for _ in range(3)]
        results = [[(e.sequence, e.WhichOneof("what")) for e in call] for call in calls]
        assert results[0] == results[1] == results[2]


def test_deadline_of_a_call():
    with Cluster() as cluster:
        began = time.monotonic()
        try:
            list(cluster.generate(endless(), timeout=2 / SLOW))
            raise AssertionError("the deadline did not end the call")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - began < 10 * SLOW
        eventually(lambda: not any(cluster.gauges().values()), 10, "the deadline reached the workers")


def test_get_and_list():
    with Cluster() as cluster:
        ids = [cluster.submit(request(2000, label=f"job {i}")) for i in range(3)]
        for job_id in ids:
            list(cluster.watch(job_id))
        jobs = cluster.list()
        assert [j.job_id for j in jobs[:3]] == ids[::-1] and jobs[0].label == "job 2"
        assert all(j.state == inference.DONE and j.statistics.ttft_ms > 0 for j in jobs)
        assert cluster.get(ids[0]).recipe


def test_health():
    with Cluster() as cluster:
        for process in cluster.processes.values():
            channel = connect(process.address)
            check = stub(channel.unary_unary, "grpc.health.v1.Health.Check")
            assert check(health.HealthCheckRequest(), timeout=5 * SLOW).status == health.HealthCheckResponse.SERVING
            try:
                check(health.HealthCheckRequest(service="no.such.Service"), timeout=5 * SLOW)
                raise AssertionError("an unknown service has a status")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND
            channel.close()


def test_reflection():
    with Cluster() as cluster:
        ask = stub(cluster.channel.stream_stream, "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo")
        requests = [reflection.ServerReflectionRequest(list_services=""),
                    reflection.ServerReflectionRequest(file_containing_symbol="sluice.v1.Inference"),
                    reflection.ServerReflectionRequest(file_containing_symbol="no.such.Thing")]
        services, file, missing = ask(iter(requests), timeout=10 * SLOW)
        names = {s.name for s in services.list_services_response.service}
        assert {"sluice.v1.Inference", "sluice.v1.Cluster", "grpc.health.v1.Health"} <= names, names
        from google.protobuf import descriptor_pb2
        described = [descriptor_pb2.FileDescriptorProto.FromString(b)
                     for b in file.file_descriptor_response.file_descriptor_proto]
        methods = {m.name for f in described for s in f.service if s.name == "Inference" for m in s.method}
        assert methods == {"Generate", "Submit", "SubmitInParts", "Watch", "Cancel", "Get", "List", "Model", "EndConversation"}, methods
        assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_unknown_methods():
    with Cluster() as cluster:
        call = cluster.channel.unary_unary("/sluice.v1.Inference/NoSuchMethod", request_serializer=lambda b: b,
                                           response_deserializer=lambda b: b)
        try:
            call(b"", timeout=5 * SLOW)
            raise AssertionError("answered")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
