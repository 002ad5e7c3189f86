#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Spans, as a collector receives them: one trace from the client's own span down to every worker, and what happens without a collector."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import secrets
import threading

from harness import SLOW, Cluster, eventually, inference, otlp, request, run_tests
import grpc
from test_gateway import ANSWER, Gateway
from test_operate import value

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Collector(grpc.GenericRpcHandler):
    """Hears OTLP over gRPC. .spans: (service, instance, span)."""

    def __init__(self, port=0):
        self.spans, self.lock, self.partial = [], threading.Lock(), False
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[self], options=[("grpc.so_reuseport", 0)])
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()
        self.address = f"127.0.0.1:{self.port}"

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(
            self.hear, otlp.ExportTraceServiceRequest.FromString,
            lambda reply: reply.SerializeToString()) if details.method == EXPORT else None

    def hear(self, message, _):
        with self.lock:
            for process in message.resource_spans:
                about = attributes(process.resource)
                for scope in process.scope_spans:
                    self.spans += [(about["service.name"], about.get("service.instance.id"), span) for span in scope.spans]
        return otlp.ExportTraceServiceResponse()

    def of(self, trace_id):
        with self.lock:
            return [span for span in self.spans if span[2].trace_id.hex() == trace_id]

    def names(self, trace_id):
        return {span.name for _, _, span in self.of(trace_id)}

    def stop(self):
        self.server.stop(0).wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def attributes(of):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in of.attributes}


class Traced(contextlib.ExitStack):
    """A cluster and its gateway, all of which tell their spans to .collector."""

    def __init__(self, *options, coordinator=(), **kept):
        super().__init__()
        self.collector = self.enter_context(Collector())
        words = ["--otlp", self.collector.address, *options]
        self.cluster = self.enter_context(Cluster(coordinator_args=[*words, *coordinator], args=words, **kept))
        self.gateway = self.enter_context(Gateway(self.cluster, *words))

    def complete(self, traceparent=None, **fields):
        with contextlib.closing(self.gateway.connect()) as connection:
            headers = {"Content-Type": "application/json", **({"traceparent": traceparent} if traceparent else {})}
            connection.request("POST", "/v1/completions", json.dumps({**ANSWER, **fields}), headers)
            reply = connection.getresponse()
            text = json.loads(reply.read())
            assert reply.status == 200, text
            return text


def parent(flags="01"):
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return f"00-{trace_id}-{span_id}-{flags}", trace_id, span_id


def whole_tree(collector, trace_id, root_parent):
    """Every span but one is a part of another, and within its time: all clocks are this machine's. Each process sends its spans when it likes."""
    def orphans():
        spans = [span for _, _, span in collector.of(trace_id)]
        return [(span.name, span.parent_span_id.hex()) for span in spans if span.parent_span_id not in {one.span_id for one in spans}]
    try:
        eventually(lambda: len(orphans()) == 1, 10, "one span has no other around it")
    except AssertionError:
        print("without one around them:", orphans(), flush=True)
        raise
    spans = collector.of(trace_id)
    by_id = {span.span_id: span for _, _, span in spans}
    assert len(by_id) == len(spans), "two spans of one id"
    roots = [span for _, _, span in spans if span.parent_span_id not in by_id]
    assert [span.parent_span_id.hex() for span in roots] == [root_parent], [(s.name, s.parent_span_id.hex()) for s in roots]
    for _, _, span in spans:
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
        outer = by_id.get(span.parent_span_id)
        if outer and span.name != "ship":  # a worker's own measure of it is told afterwards
            slack = 20_000_000 * SLOW
            assert outer.start_time_unix_nano - slack <= span.start_time_unix_nano, (outer.name, span.name)
            # A job goes on behind the Submit that began it.
            assert span.name == "job" or span.end_time_unix_nano <= outer.end_time_unix_nano + slack, (outer.name, span.name)
    return spans


def test_a_request_is_one_trace_from_the_client_to_the_workers():
    with Traced() as traced:
        traceparent, trace_id, span_id = parent()
        reply = traced.complete(traceparent, recipe="tailorkv-near,topk=64", stream=False)
        wanted = {"POST /v1/completions", "sluice.v1.Inference/Submit", "sluice.v1.Inference/Watch", "job", "queue", "reserve", "prefill",
                  "ship", "decode", "first token", "retrieval", "sluice.v1.Decode/Reserve", "sluice.v1.Prefill/Run",
                  "sluice.v1.Decode/Run", "sluice.v1.Store/OpenAnnex"}
        try:
            eventually(lambda: wanted <= traced.collector.names(trace_id), 10, "all spans are told")
        except AssertionError:
            print("missing:", wanted - traced.collector.names(trace_id), "among", traced.collector.names(trace_id), flush=True)
            raise
        spans = whole_tree(traced.collector, trace_id, span_id)
        by_name = {span.name: (service, instance, span) for service, instance, span in spans}
        assert by_name["POST /v1/completions"][0] == "sluice-gateway"
        assert by_name["job"][0] == "sluice-coordinator"
        assert by_name["sluice.v1.Prefill/Run"][:2] == ("sluice-prefill", "prefill-0")
        assert by_name["sluice.v1.Decode/Run"][:2] == ("sluice-decode", "decode-0")
        assert by_name["sluice.v1.Store/OpenAnnex"][:2] == ("sluice-kvstore", "kvstore-0")
        job = attributes(by_name["job"][2])
        assert job["gen_ai.usage.input_tokens"] == reply["usage"]["prompt_tokens"], (job, reply["usage"])
        assert job["gen_ai.usage.output_tokens"] > 0 and "place=offload" in job["sluice.recipe"], job
        assert 0 < job["sluice.capsule_bytes"] < job["sluice.full_bytes"], job
        assert attributes(by_name["retrieval"][2])["sluice.asks"] > 0
        assert attributes(by_name["prefill"][2])["sluice.worker"] == "prefill-0"
        assert all(span.status.code == 0 for _, _, span in spans), [(s.name, s.status) for _, _, s in spans if s.status.code]


def test_grpc_clients_hand_down_their_trace_and_logs_have_it():
    with Traced("--log-format", "json") as traced:
        traceparent, trace_id, span_id = parent()
        from harness import stub
        generate = stub(traced.cluster.channel.unary_stream, "sluice.v1.Inference.Generate")
        events = list(generate(request(3000), timeout=60, metadata=[("traceparent", traceparent)]))
        job_id = events[-1].job_id
        eventually(lambda: {"job", "sluice.v1.Inference/Generate", "sluice.v1.Decode/Run"} <= traced.collector.names(trace_id), 10,
                   "spans are told")
        whole_tree(traced.collector, trace_id, span_id)
        lines = [json.loads(line) for process in traced.cluster.processes.values() for line in process.errors().splitlines()
                 if line.startswith("{")]
        of_job = [line for line in lines if line.get("trace") == trace_id]
        assert {line["process"] for line in of_job} >= {"coordinator"}, lines[-20:]
        assert {line["job"] for line in of_job if "job" in line} == {job_id}
        # Two contexts are none: the job begins a trace of its own.
        both = [("traceparent", parent()[0]), ("traceparent", traceparent)]
        list(generate(request(3000, seed=2), timeout=60, metadata=both))
        eventually(lambda: sum(span.name == "job" for _, _, span in traced.collector.spans) == 2, 10, "the second job is told")
        assert sum(span.name == "job" for _, _, span in traced.collector.of(trace_id)) == 1


def test_only_what_somebody_wants_to_see_is_told():
    with Traced("--otlp-share", "0") as traced:
        traceparent, unwanted, _ = parent("00")
        traced.complete(traceparent)
        for nonsense in ("00-xyz", "ff-" + "1" * 32 + "-" + "1" * 16 + "-01", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "x" * 4000):
            traced.complete(nonsense)
        traced.complete()
        traceparent, wanted, span_id = parent()
        traced.complete(traceparent)
        eventually(lambda: {"POST /v1/completions", "sluice.v1.Decode/Run"} <= traced.collector.names(wanted), 10, "the wanted one is told")
        others = [span.name for _, _, span in traced.collector.spans if span.trace_id.hex() != wanted]
        assert not others and not traced.collector.of(unwanted), others


def test_a_job_that_fails_says_so_in_its_trace():
    with Traced(prefill=2, coordinator=["--worker-wait", "2s"]) as traced:
        traced.cluster.kill("prefill-0")
        traceparent, trace_id, span_id = parent()
        traced.complete(traceparent, seed=5)
        traced.cluster.kill("prefill-1")
        with contextlib.closing(traced.gateway.connect()) as connection:
            connection.request("POST", "/v1/completions", json.dumps({**ANSWER, "prompt": "Nothing reads this."}),
                               {"Content-Type": "application/json", "traceparent": traceparent})
            assert connection.getresponse().status == 503
        def failed():
            return [span for _, _, span in traced.collector.of(trace_id) if span.name == "job" and span.status.code == 2]
        eventually(failed, 15, "the failure is told")
        assert failed()[0].status.message, failed()


def test_a_collector_that_is_away_costs_spans_alone():
    with Traced() as traced:
        port = traced.collector.port
        traced.complete()
        eventually(lambda: any(span.name == "job" for _, _, span in traced.collector.spans), 10, "the first is told")
        traced.collector.stop()
        coordinator = traced.cluster.processes["coordinator"]
        for seed in range(3):
            traced.complete(seed=seed)
        eventually(lambda: value(coordinator, "sluice_spans_dropped_total") > 0, 20, "lost spans are counted")
        assert coordinator.errors().count("takes no spans") == 1, coordinator.errors()
        with Collector(port) as back:
            def heard():
                traced.complete()
                return any(span.name == "job" for _, _, span in back.spans)
            eventually(heard, 30, "the collector hears again")


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
