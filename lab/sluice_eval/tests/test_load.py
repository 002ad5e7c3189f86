# SPDX-License-Identifier: Apache-2.0
"""The load generator: what it sends and when, what servers do to it, what it measures, and what ends it."""
import array
import contextlib
import http.server
import io
import json
import os
import re
import resource
import signal
import socketserver
import subprocess
import sys
import threading
import time
import types
import unittest
import unittest.mock

from .support import PACKAGE, ROOT, FolderTest, command, lines_of, needs_sluice

from sluice_bench import cluster_metrics, measure, options, pictures, report, rig
from sluice_bench.answer import DONE, FAILED, REFUSED, Answer
from sluice_bench.grpc_client import GrpcServer, decode, encode
from sluice_bench.host import Host
from sluice_bench.http_stream import Events, ProtocolError, Reply
from sluice_bench.load import Run, Sent, Series
from sluice_bench.rows import Rows, median_interval
from sluice_bench.trace import read_trace
from sluice_bench.workloads import Conversations, Drawn, Lengths, Request, Trace, arrivals, render
from sluice_eval.errors import EvalError, UnavailableError, UsageError
from sluice_eval.process import find_sluice

FIXED = Lengths("fixed", 8)
PAGE = """# HELP sluice_job_retries_total Attempts.
sluice_job_retries_total {retries}
sluice_capsule_bytes_total{{recipe="full",transport="tcp"}} {bytes}
sluice_capsule_bytes_total{{recipe="full,format=int8",transport="tcp"}} 5
sluice_prompt_tokens_total{{source="reused"}} 7
"""


class Ratios(unittest.TestCase):
    def test_the_interval_of_a_median_is_that_of_the_sign_test(self):
        # Between the ranks that tables of the sign test give for 95%; fewer than six values have none
        for n, ranks in {6: (1, 6), 8: (1, 8), 9: (2, 8), 25: (8, 18), 100: (40, 61)}.items():
            self.assertEqual(median_interval(list(range(n, 0, -1))), ranks)
        self.assertIsNone(median_interval([1.0] * 5))

    def test_values_by_turns_have_the_interval_of_their_own_ratios(self):
        found = {}
        for as_json in (True, False):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                Rows("ttft", as_json).turns("case", [2, 2, 2, 2, 2, 3], "ms", "one process", [2, 1, 1, 1, 1, 1])
            found[as_json] = out.getvalue()
        self.assertEqual({"ratio": 2, "ratio_low": 1, "ratio_high": 3}.items() - json.loads(found[True]).items(), set())
        self.assertIn(" 200.0% [100.0, 300.0] of one process (2.0 of 1.0)", found[False])


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """A server with OpenAI's HTTP API. `answer(handler, body, n)` answers the n-th completion; without one, each is whole."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self, answer=None, owner="someone"):
        self.bodies, self.times, server = [], [], self
        lock = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def send(self, status, body, kind="application/json", headers=()):
                self.send_response(status)
                for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *headers):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def event(self, data):
                text = data if isinstance(data, bytes) else b"data: " + json.dumps(data).encode() + b"\r\n\r\n"
                self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
                self.wfile.flush()

            def begin(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()

            def tokens(self, n, gap_s=0.0):
                for i in range(n):
                    time.sleep(gap_s if i else 0)
                    self.event({"choices": [{"text": " x", "finish_reason": None}], "usage": None})

            def end_stream(self, body, usage=True, **fields):
                self.event({"choices": [{"text": "", "finish_reason": "length"}]})
                if usage:
                    n = body["max_tokens"]
                    words = len(body["prompt"].split())
                    self.event({"choices": [], **fields, "usage": {"prompt_tokens": 2 * words + 1, "completion_tokens": n,
                                                                   "prompt_tokens_details": {"cached_tokens": 3}}})
                self.event(b"data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")

            def whole(self, body, **fields):
                self.begin()
                self.event(b": ping\n\n")
                self.tokens(body["max_tokens"])
                self.end_stream(body, **fields)

            def do_GET(self):
                if self.path == "/metrics":
                    n = len(server.bodies)
                    self.send(200, PAGE.format(retries=n, bytes=100 * n).encode(), "text/plain")
                else:
                    self.send(200, json.dumps({"data": [{"id": "m", "owned_by": owner, "max_model_len": 4000}]}).encode())

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(raw)
                measured = body["max_tokens"] > 2 and "calibration" not in body  # warm-up and calibration are shorter
                with lock:
                    if measured:
                        server.bodies.append(raw)
                        server.times.append(time.monotonic())
                    n = len(server.bodies)
                try:
                    if answer and measured:
                        answer(self, body, n)
                    else:
                        self.whole(body)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                self.close_connection = True

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def bench(*words, **keywords):
    return command(*words, program="sluice_bench", **keywords)


SMALL = ("--input", "20", "--output", "6", "--pause", "0s", "--max-lag", "5s")


# --- what is sent ----------------------------------------------------------------------------------------------------

class Sending(unittest.TestCase):
    def test_arrivals_have_the_rate_and_the_burstiness(self):
        import random
        for burstiness, spread in ((1.0, 1.0), (0.25, 2.0), (100.0, 0.1)):
            times = arrivals(20000, 4, burstiness, random.Random(1))
            gaps = [b - a for a, b in zip([0.0, *times], times)]
            mean = sum(gaps) / len(gaps)
            deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
            self.assertAlmostEqual(times[-1], 5000)
            self.assertAlmostEqual(deviation / mean, spread, delta=0.05 * max(spread, 1))

    def test_the_same_seed_is_the_same_requests_at_all_rates(self):
        one, two, other = (list(Drawn(50, Lengths("lognormal", 300, 1), Lengths("exponential", 20)).requests(rate, seed))
                           for rate, seed in ((1, "a"), (2, "a"), (1, "b")))
        self.assertEqual([r.pieces for r in one], [r.pieces for r in two])
        for a, b in zip(one, two):
            self.assertAlmostEqual(a.at_s, 2 * b.at_s)
        self.assertNotEqual([r.n_input for r in one], [r.n_input for r in other])
        self.assertEqual(render(one[0].pieces, "s", 1.5), render(two[0].pieces, "s", 1.5))
        self.assertNotEqual(render(one[0].pieces, "s", 1.5)[:20], render(one[0].pieces, "t", 1.5)[:20])
        self.assertEqual(len(render((("x", 300),), "s", 1.5).split()), 200)

    def test_conversations_repeat_what_was_said(self):
        work = Conversations(23, FIXED, FIXED, Lengths("uniform", 1, 6), Lengths("fixed", 5), Lengths("exponential", 0.5), n_shared=100)
        n = 0
        for first in work.requests(2, "s"):
            turn = first
            self.assertEqual(first.pieces[0], ("shared", 100))
            while turn.then:
                self.assertEqual(turn.then.pieces[:len(turn.pieces)], turn.pieces)
                self.assertEqual(turn.then.n_input, turn.n_input + turn.n_output + 5)
                self.assertIsNone(turn.then.at_s)
                turn, n = turn.then, n + 1
            n += 1
        self.assertEqual(n, 23)

    def test_a_prompt_is_cut_at_its_end(self):
        request = Request(0, 0.0, (("a", 10), ("b", 10), ("c", 5)), 1)
        self.assertFalse(request.cut(25))
        self.assertTrue(request.cut(13))
        self.assertEqual(request.pieces, (("a", 10), ("b", 3)))


class Traces(FolderTest):
    def trace(self, *rows):
        return self.write("trace.jsonl", "".join(json.dumps(row) + "\n" if isinstance(row, dict) else row + "\n" for row in rows))

    def row(self, at=0, n_input=600, n_output=5, ids=(1, 2)):
        return {"timestamp": at, "input_length": n_input, "output_length": n_output, "hash_ids": list(ids)}

    def test_equal_ids_are_equal_beginnings(self):
        rows = read_trace(self.trace(self.row(1000), self.row(3000, 1100, 9, (1, 2, 7)), self.row(5000, 512, 1, (8,))))
        work = Trace(rows, 0.5)
        a, b, c = (render(request.pieces, "salt", 1.0) for request in work.requests(work.own_rate, ""))
        self.assertTrue(b.startswith(a))
        self.assertEqual([len(text.split()) for text in (a, b, c)], [256 + 44, 550, 256])
        self.assertNotEqual(a[:50], c[:50])
        self.assertEqual([r.at_s for r in work.requests(work.own_rate, "")], [0, 2, 4])
        self.assertEqual([r.at_s for r in work.requests(7.5, "")], [0, 0.2, 0.4])
        self.assertEqual([r.at_s for r in Trace(rows[:1]).requests(2, "")], [0])

    def test_a_wrong_row_is_named(self):
        for row, why in [(self.row(-1), "timestamp"), (self.row(999), "before the last row's"), (self.row(1e4, -5), "input_length"),
                         (self.row(1e4, 600, 0), "output_length"), (self.row(1e4, 600.5), "input_length"), (self.row(1e4, ids=(1,)), "2 blocks"),
                         (self.row(1e4, ids=(1, "x")), "'x'"), (self.row(1e4, ids=(1, True)), "True"), (self.row(1e4, ids=(1, -2)), "-2"),
                         (self.row(1e4, ids=(1, 1 << 70)), "hash_ids"), ("[1]", "not a JSON object"), ("{", "it is not JSON"), ('{"timestamp": NaN}', "NaN"),
                         ("[" * 100000, "row 2"), (self.row("5"), "timestamp"), (self.row(True), "timestamp"), (self.row(1e4, 1 << 40), "input_length")]:
            with self.assertRaisesRegex(UsageError, f"row 2: .*{why}" if why != "row 2" else why):
                read_trace(self.trace(self.row(1000), row))
        self.assertRaisesRegex(UsageError, "no row", read_trace, self.trace(""))
        self.assertRaisesRegex(UsageError, "No such file", read_trace, str(self.folder / "none"))
        self.assertEqual(len(read_trace(self.trace(self.row(1000), self.row(2000), self.row(-1)), 2)), 2)
        (self.folder / "trace.jsonl").write_bytes(b'{"\xff"}\n')
        self.assertRaisesRegex(UsageError, "UTF-8", read_trace, str(self.folder / "trace.jsonl"))

    def test_nothing_is_sent_of_a_wrong_trace(self):
        with Server() as server:
            done = bench("--url", server.url, "--trace", self.trace(self.row(9), self.row(5)), "--max-lag", "5s")
            self.assertEqual((done.returncode, server.bodies), (2, []))
            self.assertIn("row 2: its time, 5 ms, is before the last row's, 9 ms", done.stderr)
            done = bench("--url", server.url, "--trace", self.trace(self.row(0), self.row(5)), "--max-lag", "5s")
            self.assertEqual((done.returncode, len(server.bodies)), (0, 2), done.stderr)


# --- replies ---------------------------------------------------------------------------------------------------------

class Parsing(unittest.TestCase):
    def test_a_reply_may_come_in_any_pieces(self):
        events = b'data: {"a":1}\r\n\r\n: ping\n\ndata:{"a":2}\n\nevent: x\ndata: [DONE]\n\n'
        chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(events[i:i + 7]), events[i:i + 7]) for i in range(0, len(events), 7)) + b"0\r\n\r\n"
        head = b"HTTP/1.1 200 OK\r\ntransfer-ENCODING: Chunked\r\n\r\n"
        plain = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(events), events)
        for whole in (head + chunks, plain, b"HTTP/1.1 100 Continue\r\n\r\n" + plain):
            for size in (1, 2, 3, 10, len(whole)):
                reply, stream, found = Reply(), Events(), []
                for i in range(0, len(whole), size):
                    found += [event["a"] for event in stream.feed(reply.feed(whole[i:i + size]))]
                self.assertEqual((found, stream.is_done, reply.is_complete, reply.status), ([1, 2], True, True, 200))

    def test_what_is_no_reply_is_refused(self):
        for data in (b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"x" * 70000,
                     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70000):
            self.assertRaises(ProtocolError, Reply().feed, data)
        for data in (b"data: {\n", b"data: 5\n", b"data: " + b"[" * 100000 + b"\n"):
            self.assertRaises(ProtocolError, list, Events().feed(data))


class Measuring(unittest.TestCase):
    def run_of(self, *answers):
        run = Run(Series("s", None, {}), 1.0, 0, began_s=100.0, ended_s=110.0)
        run.sent = [Sent(Request(i, 0.0, (("x", 7),), 3), 100.0, answer) for i, answer in enumerate(answers)]
        return run

    def answer(self, *times, n_output=None, status=DONE):
        return Answer(status, "", 100.001, 105.0, array.array("d", times), 50, n_output)

    def test_figures(self):
        run = self.run_of(self.answer(101.001, 101.101, 101.301, n_output=3), self.answer(103.001), self.answer(100.101, 100.601, n_output=6),
                          self.answer(status=FAILED), self.answer(status=REFUSED))
        found = measure.summary(run, measure.Slo(ttft=1.5, tpot=0.2), 0.05)
        self.assertEqual([found[name] for name in ("completed", "failed", "refused", "total_input_tokens", "total_output_tokens")], [3, 2, 1, 150, 10])
        for name, value in [("request_goodput", 0.2), ("slo_attainment", 0.4), ("median_ttft_ms", 1000), ("p99_ttft_ms", 2960), ("p50_tpot_ms", 125),
                            ("mean_itl_ms", 800 / 3), ("median_itl_per_request_ms", 325), ("p50_e2el_ms", 1300), ("lag_p99_ms", 1)]:
            self.assertAlmostEqual(found[name], value, places=6, msg=name)
        self.assertIsNone(found["void"])
        self.assertIn("p99 1 ms, and 0 ms", measure.summary(run, measure.Slo(), 0.0001)["void"])
        run.oversleeps_s = [0.2] * 10  # its timer tells when no request does
        self.assertIn("p99 200 ms", measure.summary(run, measure.Slo(), 0.05)["void"])
        run.oversleeps_s, run.host = [], Host(0.8, 0.0, 0.1)
        self.assertIsNone(measure.summary(run, measure.Slo(), 0.05, 0.8)["void"])
        self.assertIn("80% busy, and 70% are", measure.summary(run, measure.Slo(), 0.05, 0.7)["void"])

    def test_void_runs_have_rows(self):
        run = self.run_of(self.answer(101.001, 101.101, n_output=2))
        run.series = Series("s", types.SimpleNamespace(model="m", url="u"), {})
        lines = [report.run_line(run, measure.summary(run, measure.Slo(), most_lag_s), {}) for most_lag_s in (0.05, 0.0001, 0.0001)]
        lines[0] |= {"request_rate": 2.0}
        lines[1] |= {"request_rate": 2.0, "request_goodput": 9.0}  # void beside one that counts: not in the median
        self.assertRegex(report.table(lines).text(), r"(?m)^ *2  s +1 \+ 1 VOID .* 0\.10 ")
        self.assertRegex(report.table(lines).text(), r"(?m)^ *1  s +1 VOID .* 0\.10 ")
        self.assertEqual(report.grouped(lines), {"s": {2.0: lines[:1]}})
        self.assertEqual(report.highest_good(lines), ["s: up to 2 requests/s"])

    def test_nothing_measured_is_no_zero(self):
        found = measure.summary(self.run_of(), measure.Slo(), 1)
        self.assertIsNone(found["p99_ttft_ms"])
        self.assertEqual(found["request_goodput"], 0)

    def test_a_recipe_has_a_color_and_a_server_a_kind_of_line(self):
        lines = [{"label": f"{url} {recipe or ''}", "url": url, "recipe": recipe}
                 for url, recipe in (("a", "full"), ("b", "full"), ("a", "10%"), ("b", "10%"), ("c", None))]
        styles = [pictures._styles(lines)[line["label"]] for line in lines]
        self.assertEqual([style["color"] for style in styles], ["C0", "C0", "C1", "C1", "C2"])
        self.assertEqual([style["linestyle"] for style in styles], ["-", "--", "-", "--", ":"])

    def test_counters_are_summed_over_their_labels(self):
        before, after = (cluster_metrics.parse(PAGE.format(retries=n, bytes=100 * n)) for n in (1, 4))
        self.assertEqual(cluster_metrics.difference(before, after), {"job_retries": 3, "capsule_bytes": 300, "prompt_tokens_reused": 0})


# --- runs ------------------------------------------------------------------------------------------------------------

class Running(FolderTest):
    def one(self, answer=None, *words, code=0, **keywords):
        """Returns the line of the only run, those of the requests, and what was said."""
        out = self.folder / "requests"
        with Server(answer, **keywords) as server:
            done = bench("--url", server.url, "--json", "--requests", out, *SMALL, *words)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout), [json.loads(line) for line in out.read_text().splitlines()], done.stderr

    def test_the_same_seed_sends_the_same_bytes(self):
        sent = []
        for seed in (1, 1, 2):
            with Server() as server:
                self.assertEqual(bench("--url", server.url, *SMALL, "--count", "6", "--rates", "100", "--seed", seed, "--repetitions", "2").returncode, 0)
                sent.append(sorted(server.bodies))
        self.assertEqual(sent[0], sent[1])
        self.assertEqual(len(set(sent[0])), 12)  # no run finds the prompts of another one in a cache
        self.assertFalse(set(sent[0]) & set(sent[2]))

    def test_requests_leave_whatever_the_server_does(self):
        def slow(handler, body, n):
            handler.begin()
            time.sleep(1)
            handler.tokens(3, 0.05)
            handler.tokens(3)
            handler.end_stream(body)
        line, requests, _ = self.one(slow, "--count", "20", "--rates", "40")
        self.assertEqual((line["completed"], line["max_concurrent_requests"], line["tokens_per_word"]), (20, 20, 2.0))
        self.assertTrue(1 <= line["duration"] < 10, line["duration"])
        self.assertTrue(all(1000 <= one["ttft_ms"] < 5000 and one["tpot_ms"] >= 15 and one["output_tokens"] == 6 for one in requests), requests)
        self.assertAlmostEqual(max(one["due_ms"] for one in requests), 500, delta=1)
        self.assertGreaterEqual(line["p90_itl_ms"], 40)

    def test_only_sluice_gets_recipes_and_series_take_turns(self):
        def measured(handler, body, n):
            handler.whole(body, sluice={"capsule_bytes": 1000, "full_bytes": 4000, "retries": 1})
        with Server(measured, owner="sluice") as ours, Server() as other:
            words = ("--url", f"a={ours.url}", "--url", f"b={other.url}/v1", "--recipes", "full@95.8;12.5%;default", "--metrics", f"a={ours.url}/metrics",
                     *SMALL, "--count", "4", "--rates", "50,100", "--repetitions", "2", "--pictures", self.folder / "p", "--body", '{"ignore_eos":null,"top_k":1}')
            done = bench(*words, "--json")
            lines = lines_of(done)
            self.assertEqual([line["label"] for line in lines[:8]], ["a full (95.8 points)", "a 12.5%", "a default", "b",
                                                                       "a 12.5%", "a default", "b", "a full (95.8 points)"])
            self.assertEqual(len(lines), 16)
            bodies = [json.loads(raw) for raw in ours.bodies]
            self.assertEqual(sum(body.get("recipe") == "full" for body in bodies), 16)
            self.assertEqual(sum(body.get("ship_at_most") == 12.5 for body in bodies), 16)
            self.assertEqual({"recipe", "ship_at_most", "ignore_eos"} & set(json.loads(other.bodies[0])), set())
            self.assertEqual(json.loads(other.bodies[0])["top_k"], 1)
            self.assertEqual((lines[0]["capsule_bytes"], lines[0]["retries"], lines[0]["cached_tokens"]), (4000, 4, 12))
            self.assertEqual((lines[3]["capsule_bytes"], lines[3]["cluster"]), (None, None))
            for name in ("goodput", "ttft", "bytes"):
                self.assertEqual((self.folder / f"p/{name}.png").read_bytes()[:4], b"\x89PNG")
            self.assertIn("a full (95.8 points): up to 100 requests/s", done.stderr)
            self.assertEqual(bench("--url", other.url, "--recipes", "full").returncode, 2)

    def test_refused_and_failed_requests_miss(self):
        def stop(handler, body, n):
            handler.begin()
            handler.tokens(2)
            handler.wfile.write(b"0\r\n\r\n")

        def cut(handler, body, n):
            handler.begin()
            handler.tokens(2)

        def no_done(handler, body, n):
            handler.begin()
            handler.tokens(2)
            handler.event({"choices": [{"text": "", "finish_reason": "stop"}]})

        def in_stream(handler, body, n):
            handler.begin()
            handler.tokens(1)
            handler.event({"error": {"message": "worker lost"}})

        def late(handler, body, n):
            time.sleep(6)

        cases = [(lambda handler, body, n: handler.send(500, b'{"error":{"message":"broken"}}'), "500: broken"),
                 (lambda handler, body, n: handler.send(503, b"no room"), "503: no room"),
                 (lambda handler, body, n: handler.send(429, b'{"error":{"message":"later"}}'), "429: later"),
                 (stop, "ended after 2 tokens without a finish_reason"), (cut, "ended after 2 tokens"), (no_done, "without [DONE]"),
                 (in_stream, "worker lost"), (lambda handler, body, n: None, "ended without a reply"), (late, "no answer within 3 s"),
                 (lambda handler, body, n: handler.send(200, b"{}"), "not a stream"),
                 (lambda handler, body, n: handler.wfile.write(b"x\r\n\r\n"), "not HTTP")]

        def answer(handler, body, n):
            (cases[n - 1][0] if n <= len(cases) else type(handler).whole)(handler, body, *([n] if n <= len(cases) else []))
        line, requests, said = self.one(answer, "--count", str(len(cases) + 5), "--rates", "20", "--deadline", "3s")
        self.assertEqual((line["completed"], line["failed"], line["refused"]), (5, len(cases), 2), said)
        self.assertAlmostEqual(line["slo_attainment"], 5 / len(requests))
        for _, text in cases:
            self.assertTrue(any(text in (one["error"] or "") for one in requests), (text, requests))
        self.assertIn("1 request, first number", said)

    def test_all_failed_is_a_failure(self):
        line, _, said = self.one(lambda handler, body, n: handler.send(500, b"x"), "--count", "3", "--rates", "50", code=1)
        self.assertEqual((line["completed"], line["failed"]), (0, 3))
        self.assertIn("no request was answered", said)

    def test_without_usage_pieces_are_counted(self):
        def answer(handler, body, n):
            handler.begin()
            handler.tokens(4)
            handler.end_stream(body, usage=False)
        line, requests, said = self.one(answer, "--count", "3", "--rates", "50")
        self.assertEqual((line["total_output_tokens"], line["without_usage"], requests[0]["prompt_tokens"]), (12, 3, None))
        self.assertIn("sent no usage", said)

    def test_a_generator_that_lags_voids_the_run(self):
        line, _, said = self.one(None, "--count", "3", "--rates", "50", "--max-lag", "0.001ms")
        self.assertIn("the generator lagged", line["void"])
        self.assertIn("1 of 1 runs are VOID", said)
        self.assertRegex(said, r"run 1/1: .*, 3 done, 0 failed, VOID: the generator lagged: p99 ")

    def test_wrong_answers_miss(self):
        def answer(handler, body, n):
            number = re.search(r"magic numbers for (\w+) is: (\d+)\.", body["prompt"])
            assert body["prompt"].endswith(f"number for {number[1]} mentioned in the provided text is")
            handler.begin()
            for text in (" " + number[2][:2], number[2][2:] if n % 3 else "", ". "):
                handler.event({"choices": [{"text": text, "finish_reason": None}]})
            handler.end_stream(body)
        line, requests, _ = self.one(answer, "--facts", "--count", "6", "--rates", "50", "--input", "300")
        self.assertEqual((line["completed"], line["right"], sum(one["good"] for one in requests)), (6, 4, 4))
        self.assertAlmostEqual(line["slo_attainment"], 4 / 6)
        self.assertTrue(all(abs(one["prompt_tokens"] / 2 - 150) < 60 for one in requests), requests)  # its words are two tokens each

    def test_conversations_wait_for_answers(self):
        line, requests, _ = self.one(None, "--count", "9", "--rates", "50", "--conversations", "--turns", "3", "--think", "100ms", "--message", "5")
        self.assertEqual(line["completed"], 9)
        for i in (0, 3, 6):
            first, second, third = requests[i:i + 3]
            self.assertGreaterEqual(second["due_ms"], first["due_ms"] + first["e2el_ms"] + 99)
            self.assertEqual(third["input_tokens"], 20 + 2 * (6 + 5))


class Ending(FolderTest):
    def wait(self, handler, body, n):
        handler.begin()
        handler.tokens(1)
        time.sleep(20 if n > 6 else 0)
        handler.tokens(5)
        handler.end_stream(body)

    def start(self, url, *words, **keywords):
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        return subprocess.Popen([sys.executable, "-m", "sluice_bench", "--url", url, *SMALL, "--requests", str(self.folder / "r"), *words],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT, **keywords)

    def test_an_interrupt_keeps_what_was_measured(self):
        with Server(self.wait) as server:
            process = self.start(server.url, "--count", "20", "--rates", "50,1", "--json")
            deadline = time.monotonic() + 60
            while len(server.bodies) < 20 and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 4, said)
        line = json.loads(out)
        self.assertEqual((line["completed"], line["failed"], line["unfinished"], line["stopped"]), (6, 0, 14, "stopped by a signal"))
        self.assertEqual(line["slo_attainment"], 1.0)
        self.assertIn("goodput", said)
        self.assertEqual(len((self.folder / "r").read_text().splitlines()), 20)

    def test_no_descriptor_ends_the_run_with_the_row(self):
        trace = self.write("t", "".join(json.dumps({"timestamp": 20 * i, "input_length": 20, "output_length": 6, "hash_ids": [i]}) + "\n"
                                        for i in range(100)))
        limit = 40
        with Server(self.wait) as server:
            process = self.start(server.url, "--trace", trace, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
            out, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, said)
        self.assertRegex(said, r"request \d+ \(row \d+ of the trace\) could not be sent, with \d+ answers under way: no descriptor is left")
        self.assertRegex(out, r"(?m)^ *50\.51  m +1 +6 +0 +0 ")
        self.assertNotIn("At least", out)  # nothing is claimed of a run that was stopped
        lines = [json.loads(line) for line in (self.folder / "r").read_text().splitlines()]
        self.assertEqual(sum(line["status"] == "done" for line in lines), 6)

    def test_a_file_that_cannot_be_written_is_said_before_anything_is_sent(self):
        with Server() as server:
            done = bench("--url", server.url, *SMALL, "--requests", self.folder / "none/r")
            self.assertEqual((done.returncode, server.bodies), (1, []))
            self.assertIn("none/r: No such file", done.stderr)


class Options(unittest.TestCase):
    def test_it_describes_itself(self):
        page = json.loads(bench("--describe").stdout)
        found = {option["name"]: option for option in page["options"]}
        self.assertEqual((found["rates"]["default"], found["slo"]["default"], found["url"]["list"], found["json"]["letter"]),
                         ("1; a trace: its own", "ttft:2s,tpot:100ms", True, "j"))
        self.assertNotIn("metavar", found["json"])

    @needs_sluice
    def test_the_tool_starts_it(self):
        words = [find_sluice(), "bench", "serve", "--slo", "x"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("argument --slo", done.stderr)
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PATH": "/nonexistent"})
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("it needs python3, which cannot be started: No such file", done.stderr)

    def test_wrong_options_are_refused(self):
        for words in (["--rates", "0"], ["--rates", "1,1"], ["--rates", "x"], ["--slo", "ttft:2"], ["--slo", "itl:2s"], ["--input", "0"],
                      ["--input", "9-3"], ["--input", "exp:"], ["--output", "lognormal:5"], ["--think", "3"], ["--body", "[]"], ["--body", "{"],
                      ["--count", "0"], ["--burstiness", "0"], ["--pause", "1"], ["--url", "ftp://x"], ["--trace", "/dev/null", "--conversations"], ["--facts", "--conversations"],
                      ["--url", "grpc://x"], ["--url", "grpc://127.0.0.1:1", "--recipes", "full;full"],
                      ["--rates", "inf", "--duration", "5s"], ["--recipes", "full;full"], ["--recipes", "full@90;full"], ["--recipes", "full@good"], ["--recipes", "full@"]):
            with self.subTest(words), open(os.devnull, "w", encoding="utf-8") as nothing:
                from unittest import mock

                from sluice_bench.__main__ import main
                with mock.patch("sys.stderr", nothing):
                    try:
                        code = main(words)
                    except SystemExit as error:
                        code = error.code
                self.assertEqual(code, 2)

    def test_messages_of_grpc(self):
        data = encode(1, "é") + encode(5, 300) + encode(2, 1.5) + encode(4, encode(1, 7))
        self.assertEqual(list(decode(data)), [(1, "é".encode()), (5, 300), (2, b"\0\0\xc0?"), (4, b"\x08\x07")])
        for cut in (data[:1], data[:3], data[:-1], b"\x0b", b"\xff"):
            self.assertRaises(EvalError, list, decode(cut))
        server = GrpcServer.__new__(GrpcServer)  # without a server
        server.url, asked = "grpc://h:1", {"prompt": "é", "max_tokens": -1, "temperature": 0, "ignore_eos": True, "stream": True}
        message = dict(decode(server.message(asked)))  # the server refuses the number
        self.assertEqual(message, {1: "é".encode(), 4: b"\x0d\0\0\0\0", 5: 2**64 - 1, 8: 1})
        self.assertNotIn(5, dict(decode(server.message({"prompt": "x"}))))
        for name, value in (("max_tokens", "x"), ("max_tokens", 2**31), ("max_tokens", 1.5), ("max_tokens", True), ("prompt", [1]), ("recipe", 7),
                            ("temperature", "hot"), ("temperature", float("nan")), ("ignore_eos", 1), ("logprobs", 1)):
            with self.assertRaisesRegex(UsageError, name):
                server.message({**asked, name: value})

    def test_a_server_has_a_name_if_one_is_given(self):
        self.assertEqual(options.named("a=grpc://h:1"), ("a", "grpc://h:1"))
        self.assertEqual(options.named("a-1=http://h:1"), ("a-1", "http://h:1"))
        self.assertEqual(options.named("http://h:1/?a=http://x"), ("", "http://h:1/?a=http://x"))


class Children(unittest.TestCase):
    def test_one_that_does_not_start_or_get_ready_is_told(self):
        self.assertRaisesRegex(EvalError, "cannot start /nonexistent: No such file", rig.Child, ["/nonexistent"])
        child = rig.Child(["sleep", "600"])
        try:
            with unittest.mock.patch.object(rig, "START_S", 0.1):
                self.assertRaisesRegex(UnavailableError, "sleep is not ready after 0.1 s", child.ready_line)
        finally:
            child.stop()


if __name__ == "__main__":
    unittest.main()
