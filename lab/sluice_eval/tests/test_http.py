# SPDX-License-Identifier: Apache-2.0
"""Servers with OpenAI's HTTP API: retries, refusals, deadlines, concurrency, servers that are not Sluice."""
import http.server
import json
import threading
import time
import unittest

from .support import FolderTest, command, lines_of

from sluice_eval.answerers import HttpAnswerer, HttpConfig, Question
from sluice_eval.errors import DeadlineError, EvalError, RefusedError, UnavailableError


class Server:
    """A server whose completions are those of `answer(body)`: (status, object)."""

    def __init__(self, answer, owner="someone"):
        self.bodies, self.at_once, self.most_at_once = [], 0, 0
        lock, server = threading.Lock(), self

        class Handler(http.server.BaseHTTPRequestHandler):
            def reply(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "0")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.reply(200, {"data": [{"id": "m", "owned_by": owner}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize":
                    tokens = [sum(map(ord, word)) % 1000 for word in body["prompt"].split()]
                    self.reply(200, {"count": len(tokens), "max_model_len": 5000, "tokens": tokens})
                    return
                with lock:
                    server.bodies.append(body)
                    server.at_once += 1
                    server.most_at_once = max(server.most_at_once, server.at_once)
                    n = len(server.bodies)
                try:
                    self.reply(*answer(body, n))
                except BrokenPipeError:
                    pass
                with lock:
                    server.at_once -= 1

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def text(words):
    return 200, {"choices": [{"text": words}], "usage": {}}


QUESTION = Question("full", [1, 2], "a b", 4)


class Asking(unittest.TestCase):
    def ask(self, answer, recipe="full", owner="someone", **config):
        with Server(answer, owner) as server:
            answerer = HttpAnswerer(HttpConfig(server.url, **{"deadline_s": 20, **config}))
            return answerer.ask(Question(recipe, [1, 2], "a b", 4)), server

    def test_a_request_is_greedy_and_only_sluice_gets_its_fields(self):
        reply, server = self.ask(lambda body, n: text(" x"))
        self.assertEqual(reply.text, " x")
        self.assertEqual(server.bodies, [{"prompt": [1, 2], "max_tokens": 4, "temperature": 0, "model": "m"}])
        _, server = self.ask(lambda body, n: text(" x"), recipe="h2o,budget=0.1", owner="sluice")
        self.assertEqual(server.bodies[0]["recipe"], "h2o,budget=0.1")
        _, server = self.ask(lambda body, n: text(" x"), as_text=True)
        self.assertEqual(server.bodies[0]["prompt"], "a b")
        self.assertRaises(RefusedError, self.ask, lambda body, n: text(" x"), recipe="h2o,budget=0.1")

    def test_measurements_of_sluice_are_read(self):
        measured = {"capsule_bytes": 5, "full_bytes": 10, "decode_resident_bytes": 7, "slots_per_head": 2.5, "offloaded_bytes": 3}
        reply, _ = self.ask(lambda body, n: (200, {"choices": [{"text": ""}], "sluice": measured,
                                                   "usage": {"prompt_tokens_details": {"cached_tokens": 4}}}), owner="sluice")
        self.assertEqual((reply.shipped_bytes, reply.full_bytes, reply.resident_bytes, reply.slots_per_head, reply.n_reused,
                          reply.offloaded_bytes), (5, 10, 7, 2.5, 4, 3))

    def test_a_server_without_room_is_asked_again(self):
        for status in (429, 503):
            _, server = self.ask(lambda body, n, status=status: text("x") if n == 3 else (status, {"error": {"message": "full"}}))
            self.assertEqual(len(server.bodies), 3)
        self.assertRaises(UnavailableError, self.ask, lambda body, n: (503, {"error": {"message": "gone"}}), deadline_s=1.5)

    def test_errors(self):
        for status, kind in [(400, RefusedError), (401, EvalError), (500, EvalError), (504, DeadlineError)]:
            with self.assertRaisesRegex(kind, "because"):
                self.ask(lambda body, n, status=status: (status, {"error": {"message": "because"}}))

        def slow(body, n):
            time.sleep(1.5)
            return text("x")
        self.assertRaises(DeadlineError, self.ask, slow, deadline_s=0.5)


class Commands(FolderTest):
    def test_a_server_that_is_not_sluice_is_evaluated(self):
        def answer(body, n):
            time.sleep(0.05)
            return text(" The pass key is " + str(n))
        with Server(answer) as server:
            words = ["run", "--url", server.url, "--tasks", "passkey", "--lengths", "200", "--samples", "12", "--recipe", "h2o,budget=0.1",
                     "--concurrency", "3", "--out", str(self.folder / "r")]
            rows = [line["row"] for line in lines_of(command(*words, "--json")) if "row" in line]
            self.assertEqual((rows[0]["answers"], rows[1]["answers"], rows[0]["shipped"]), (12, 0, None))
            self.assertIn("has no recipes", rows[1]["cells"][0]["refused"])
            self.assertTrue(1 < server.most_at_once <= 3, server.most_at_once)
            self.assertEqual(command(*words).returncode, 0)
            self.assertEqual(len(server.bodies), 12)  # no question is asked twice

    def test_no_server_is_said(self):
        done = command("run", "--url", "http://127.0.0.1:1/v1", "--deadline", "1s", "--tasks", "passkey", "--tokenizer", "x")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("127.0.0.1:1", done.stderr)

    def test_a_bench_of_documents_says_why_a_server_refuses(self):
        def refuse(body, n):
            return 400, {"error": {"message": "too long" if len(body["prompt"]) > 8000 else "because"}}
        with Server(refuse, "sluice") as server:
            done = command("--url", server.url, "--tokens", "1500", program="sluice_bench.asked")
        self.assertEqual((done.returncode, done.stderr), (1, "sluice bench documents: because\n"))
        done = command("--url", "nonsense", program="sluice_bench.asked")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--url nonsense: expected something like", done.stderr)


if __name__ == "__main__":
    unittest.main()
