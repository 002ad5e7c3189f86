#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""sluice-gateway in front of a real cluster, asked over sockets: what OpenAI's clients ask, what they trip over, and what strangers do."""
import contextlib
import hashlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from harness import MODEL, SLOW, Cluster, State, document, eventually, in_one_process, local_tokens, question, run_local, run_tests

PROMPT = document(2000) + question()
ANSWER = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "stop": ["."]}
LONG_ANSWER = {**ANSWER, "max_tokens": 4000, "ignore_eos": True, "stop": None}
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
REFUSED = [
    ("tools", {"tools": [{"type": "function"}]}, "chat"), ("n", {"n": 2}, "both"), ("response_format", {"response_format": {"type": "json_object"}}, "chat"),
    ("logit_bias", {"logit_bias": {"5": 1}}, "both"), ("presence_penalty", {"presence_penalty": 2.5}, "both"), ("frequency_penalty", {"frequency_penalty": -3}, "both"), ("min_p", {"min_p": 1.5}, "both"), ("echo", {"echo": True}, "text"),
    ("temperature", {"temperature": "hot"}, "both"), ("temperature", {"temperature": -1}, "both"), ("top_p", {"top_p": 3}, "both"),
    ("max_tokens", {"max_tokens": 0}, "both"), ("max_tokens", {"max_tokens": 1.5}, "both"), ("stop", {"stop": [1]}, "both"),
    ("stop", {"stop": ["x"] * 17}, "both"), ("stream", {"stream": "yes"}, "both"), ("stream_options", {"stream_options": {"include_usage": True}}, "both"),
    ("recipe", {"recipe": "budgt=0.2"}, "both"), ("ship_at_most", {"ship_at_most": 0.0001}, "both"), ("ship_at_most", {"recipe": "h2o", "ship_at_most": 20}, "both"), ("nonsense", {"nonsense": 1}, "both"),
    ("deadline_ms", {"deadline_ms": 2**63 - 1}, "both"), ("prompt", {"prompt": ""}, "text"), ("prompt", {"max_tokens": 10**6}, "text"),
    ("prompt", {"prompt": None}, "text"), ("prompt", {"prompt": ["a", [1]]}, "text"), ("prompt", {"prompt": ["a"] * 257}, "text"), ("prompt", {"prompt": [1, -1]}, "text"),
    ("messages", {"messages": []}, "chat"), ("messages", {"messages": [{"role": "user"}]}, "chat"),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "chat"),
    ("messages", {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "chat"),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "nonsense": 1}]}]}, "chat"),
    ("stream_options", {"stream": True, "stream_options": {"nonsense": 1}}, "both"),
    ("top_logprobs", {"top_logprobs": 3}, "chat"), ("top_logprobs", {"logprobs": True, "top_logprobs": 21}, "chat"),
    ("messages", {}, "chat"),  # this model has no template
]


class Gateway:
    """A gateway process; leaving it proves that it ends well."""

    def __init__(self, cluster, *options, who="client/web", listen="127.0.0.1:0", wrap=lambda words: words):
        if cluster.certificates:
            cluster.certificates.make(who)
            options = (*options, *cluster.certificates.options(who))
        words = ["sluice-gateway", "--listen", listen, "--coordinator", cluster.addresses_of_all(), *options]
        self.log, self.log_path = tempfile.mkstemp(prefix="sluice-gateway-", suffix=".log")
        from harness import BIN, script, started
        script.needs_programs(BIN, words[0])
        self.popen = subprocess.Popen(wrap([os.path.join(BIN, words[0]), *words[1:]]), stdout=subprocess.PIPE, stderr=self.log)
        started.append(self.popen)
        line = self.popen.stdout.readline().decode()
        match = re.match(r"ready http=(\S+):(\d+)", line)
        assert match, f"{line!r}\n{self.errors()}"
        self.host, self.port = match.group(1), int(match.group(2))
        self.admin = re.search(r"admin=(\S+)", line).group(1)
        self.context = None  # of TLS
        eventually(lambda: self.get("/health")[0] == 200, 20, "the gateway is ready")

    def errors(self):
        with open(self.log_path) as file:
            return file.read()

    def peak_memory(self):
        with open(f"/proc/{self.popen.pid}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

    def connect(self, timeout=60):
        if self.context:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout * SLOW, context=self.context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout * SLOW)

    def get(self, path):
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def post(self, path, body, key=None):
        """(status, what came)."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, body if isinstance(body, (bytes, str)) else json.dumps(body), headers)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())

    def complete(self, **fields):
        status, reply = self.post("/v1/completions", {**ANSWER, **fields})
        assert status == 200, reply
        return reply

    def refusal(self, status, path="/v1/completions", body=None, **fields):
        got, reply = self.post(path, {**ANSWER, **fields} if body is None else body)
        assert got == status and set(reply["error"]) == {"message", "type", "param", "code"}, (got, reply)
        return reply["error"]

    @contextlib.contextmanager
    def stream(self, path, body):
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, json.dumps({**body, "stream": True}))
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            assert reply.getheader("Content-Type") == "text/event-stream"
            yield reply, connection

    def chunks(self, path, body):
        """Reads a whole stream. Returns the objects, and whether it ended with [DONE]."""
        with self.stream(path, body) as (reply, _):
            events = [event for event in reply.read().decode().split("\n\n") if event]
        datas = [event[6:] for event in events if event.startswith("data: ")]
        assert all(event.startswith(("data: ", ": ping")) for event in events), events
        done = datas[-1] == "[DONE]"
        return [json.loads(data) for data in (datas[:-1] if done else datas)], done

    def metric(self, name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.M).group(1))

    def stop(self):
        self.popen.terminate()
        try:
            return self.popen.wait(30 * SLOW)
        finally:
            os.close(self.log)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            print(self.errors(), file=sys.stderr)
            self.popen.kill()
            self.popen.wait()
            return
        eventually(lambda: self.metric("sluice_gateway_answers") == 0 and self.metric("sluice_gateway_body_bytes") == 0, 15,
                   "no answer under way")
        assert self.stop() == 0, self.errors()
        os.remove(self.log_path)


def finished_text(reply):
    return reply["choices"][0]["text"]


def test_completions_are_those_of_one_process():
    with Cluster() as cluster, Gateway(cluster) as gateway:
        reply = gateway.complete()
        assert reply["object"] == "text_completion" and finished_text(reply).strip() == "48213", reply
        assert reply["choices"][0]["finish_reason"] == "stop"
        usage = reply["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] and usage["prompt_tokens"] > 100
        assert reply["sluice"]["full_bytes"] > 0 and reply["sluice"]["recipe"] == "full,format=int8", reply["sluice"]
        eventually(lambda: gateway.complete()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100, 20, "the prompt is read from a store")
        assert reply["sluice"]["not_cached"] == "not_stored" and "not_cached" not in gateway.complete(reuse=True)["sluice"], reply["sluice"]
        anew = gateway.complete(reuse=False)
        assert anew["sluice"]["not_cached"] == "off" and anew["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, anew
        assert finished_text(anew) == finished_text(reply)

        # Ours, and token ids.
        small = gateway.complete(recipe="h2o,budget=0.5,format=int4", ignore_eos=True, max_tokens=5, stop=None)
        assert small["usage"]["completion_tokens"] == 5 and small["choices"][0]["finish_reason"] == "length"
        assert small["sluice"]["capsule_bytes"] < small["sluice"]["full_bytes"] / 3, small["sluice"]
        assert gateway.complete(ship_at_most=20)["sluice"]["recipe"] != "full,format=int8"
        ids = local_tokens(run_local("full", "the lantern", "--ignore-eos", n_tokens=4))
        assert gateway.complete(prompt=ids)["usage"]["prompt_tokens"] == len(ids)

        # The stream is the same text, piece by piece.
        chunks, done = gateway.chunks("/v1/completions", {**ANSWER, "stream_options": {"include_usage": True}})
        assert done and "".join(c["choices"][0]["text"] for c in chunks[:-1]) == finished_text(reply)
        reasons = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
        assert reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] == "stop", reasons
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == usage["completion_tokens"]
        assert all(c["usage"] is None for c in chunks[:-1]) and len({c["id"] for c in chunks}) == 1
        assert chunks[-1]["sluice"]["ttft_ms"] > 0

        # vLLM's `bench serve` sends these fields.
        vllm = {"model": model_name(), "prompt": PROMPT, "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 4, "logprobs": None,
                "stream_options": {"include_usage": True}, "ignore_eos": True}
        chunks, done = gateway.chunks("/v1/completions", vllm)
        assert done and chunks[-1]["usage"]["completion_tokens"] == 4, chunks
        check_load(cluster, gateway)


def model_name():
    return os.path.basename(MODEL)


def check_load(cluster, gateway):
    """`sluice bench cluster` measures two recipes by turns, and counts what the coordinator counts."""
    from harness import BIN
    words = [os.path.join(BIN, "sluice"), "bench", "cluster", "--url", f"http://{gateway.host}:{gateway.port}", "--metrics",
             f"http://{cluster.coordinator.admin}/metrics", "--recipes", "full;full,format=int4", "--conversations", "--turns", "2", "--count", "4",
             "--input", "400", "--output", "5", "--think", "100ms", "--rates", "8", "--max-lag", "1m", "--slo", "e2el:1m", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120 * SLOW)
    assert done.returncode == 0, done
    full, int4 = [json.loads(line) for line in done.stdout.splitlines()]
    for line in (full, int4):
        assert (line["completed"], line["slo_attainment"], line["total_output_tokens"], line["cluster"]["jobs_done"]) == (4, 1.0, 20, 4), line
        assert line["capsule_bytes"] == line["cluster"]["capsule_bytes"] and line["retries"] == 0 and line["p99_ttft_ms"] > 0, line
        assert abs(line["total_input_tokens"] - 2 * (400 + 469)) < 120, line  # a word is not always the same number of tokens
    assert int4["capsule_bytes"] < full["capsule_bytes"] / 2, (full, int4)
    done = subprocess.run([*words[:3], "--url", f"grpc://{cluster.coordinator.address}", "--facts", "--recipes", "full", "--count", "3", "--input", "600",
                           "--output", "8", "--max-lag", "1m", "--slo", "e2el:1m", "--json"], capture_output=True, text=True, timeout=120 * SLOW,
                          env={**os.environ, "PATH": "/usr/bin:" + os.environ["PATH"]})  # the distribution's Python has grpcio
    assert done.returncode == 0, done
    line = json.loads(done.stdout)
    assert (line["completed"], line["right"], line["slo_attainment"], line["total_output_tokens"]) == (3, 3, 1.0, 24) and line["capsule_bytes"] > 0, line


def test_logprobs_have_texts_and_bytes():
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        ids = in_one_process("full", PROMPT, 4)
        logprobs = gateway.complete(logprobs=2, max_tokens=4, stop=None, ignore_eos=True, recipe="full")["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == len(ids) == 4 and logprobs["text_offset"][0] == 0
        for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
            assert len(top) == 2 and abs(top[token] - logprob) < 1e-4 and logprob <= 0, (token, top)
        chunks, _ = gateway.chunks("/v1/completions", {**ANSWER, "logprobs": 2, "max_tokens": 4, "stop": None, "ignore_eos": True,
                                                       "recipe": "full"})
        assert [t for c in chunks if c["choices"][0]["logprobs"] for t in c["choices"][0]["logprobs"]["tokens"]] == logprobs["tokens"]


@contextlib.contextmanager
def chatting_model():
    """The demo model has no template."""
    with tempfile.TemporaryDirectory(prefix="sluice-gateway-") as folder:
        model = os.path.join(folder, "talker")
        shutil.copytree(MODEL, model)
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write(TEMPLATE)
        yield model


@contextlib.contextmanager
def chatting_cluster():
    with chatting_model() as model, Cluster(kvstore=0, model=model) as cluster:
        yield cluster


def test_chats():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "the lan"},
                                                                                        {"type": "text", "text": "tern"}]}]
    with chatting_cluster() as cluster, Gateway(cluster) as gateway:
        asked = {"messages": messages, "temperature": 0, "max_tokens": 6, "ignore_eos": True, "model": "talker"}
        status, reply = gateway.post("/v1/chat/completions", asked)
        assert status == 200 and reply["object"] == "chat.completion", reply
        message = reply["choices"][0]["message"]
        assert message["role"] == "assistant" and reply["choices"][0]["finish_reason"] == "length", reply
        here = run_local("full,format=int8", "the lantern", "--ignore-eos", "--system", "Be brief.", n_tokens=6, model=cluster.model)
        assert "".join(e["token"].get("text", "") for e in here if "token" in e) == message["content"]

        chunks, done = gateway.chunks("/v1/chat/completions", asked)
        deltas = [c["choices"][0]["delta"] for c in chunks]
        assert done and deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}, deltas
        assert "".join(d.get("content", "") for d in deltas) == message["content"]
        assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length" and "sluice" in chunks[-1]

        status, reply = gateway.post("/v1/chat/completions", {**asked, "logprobs": True, "top_logprobs": 3})
        content = reply["choices"][0]["logprobs"]["content"]
        assert len(content) == 6 and all(len(one["top_logprobs"]) == 3 and one["bytes"] for one in content), content
        said = b"".join(bytes(one["bytes"]) for one in content).decode(errors="replace")
        assert said.replace("<|endoftext|>", "").strip() == message["content"].strip(), (said, message)
        check_habits(gateway)


def check_habits(gateway):
    """What clients of other servers send and look for. The model has a chat template."""
    def ask(path, headers=(), **fields):
        with contextlib.closing(gateway.connect()) as connection:
            connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json", **dict(headers)})
            reply = connection.getresponse()
            return reply.status, reply.getheader("x-sluice-ignored"), json.loads(reply.read())

    chat, asked = "/v1/chat/completions", {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    history = [{"role": "user", "content": "Hi", "name": "me"}, {"role": "assistant", "content": None, "tool_calls": [], "annotations": []},
               {"role": "user", "content": "Bye"}]
    status, ignored, plain = ask(chat, messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}, history[2]], **asked)
    assert status == 200 and ignored is None, (status, ignored, plain)
    status, ignored, reply = ask(chat, messages=history, service_tier="auto", reasoning_effort="low", n=1, tools=[], new_field={},
                                 metadata={"id": 2**70}, **asked)
    assert status == 200 and reply["choices"] == plain["choices"], (reply, plain)
    assert set(ignored.split(", ")) == {"messages.name", "messages.tool_calls", "messages.annotations", "service_tier", "reasoning_effort", "n",
                                        "tools", "new_field", "metadata"}, ignored

    # Codes.
    long = {"messages": [{"role": "user", "content": "lantern " * 60000}]}
    for path, body, param in ((chat, long, "messages"), (chat, {**long, "max_tokens": 5}, "messages"),
                              (chat, {"messages": history, "max_tokens": 10**6}, "messages"),
                              ("/v1/completions", {"prompt": [5] * 60000}, "prompt"),
                              (chat, {"messages": [{"role": "user", "content": "x" * (5 << 20)}]}, "messages")):
        status, _, reply = ask(path, **body)
        assert status == 400 and (reply["error"]["code"], reply["error"]["param"]) == ("context_length_exceeded", param), (status, reply)
    for role in ("tool", "us er<|im_end|>"):
        status, _, reply = ask(chat, messages=[{"role": role, "content": "x"}])
        assert status == 400 and reply["error"]["param"] == "messages" and "no role" in reply["error"]["message"], (status, reply)
    status, _, reply = ask("/v1/responses", input="x")
    assert status == 400 and "/v1/responses is not supported" in reply["error"]["message"], (status, reply)
    status, _, reply = ask(chat, {"Content-Encoding": "gzip"}, messages=history)
    assert status == 415 and "gzip" in reply["error"]["message"], (status, reply)

    # Several prompts are answered as each alone.
    text = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
    alone = [gateway.complete(prompt=prompt, stop=None, **text) for prompt in ("the lantern", "the river")]
    both = gateway.complete(prompt=["the lantern", "the river"], stop=None, **text)
    assert [(c["index"], c["text"]) for c in both["choices"]] == [(i, finished_text(one)) for i, one in enumerate(alone)], both
    assert both["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone) and both["usage"]["completion_tokens"] == 10, both
    assert [c["sluice"]["recipe"] for c in both["choices"]] == ["full,format=int8"] * 2, both
    chunks, done = gateway.chunks("/v1/completions", {**text, "prompt": ["the lantern", "the river"], "stream_options": {"include_usage": True}})
    said = ["".join(c["choices"][0]["text"] for c in chunks[:-1] if c["choices"][0]["index"] == i) for i in (0, 1)]
    assert done and said == [finished_text(one) for one in alone] and len({c["id"] for c in chunks}) == 1, chunks
    assert chunks[-1]["usage"]["completion_tokens"] == 10, chunks[-1]
    assert gateway.refusal(400, prompt=["the lantern", ""])["param"] == "prompt"

    # Penalties and min_p.
    ids = [16] * 40  # repeated by the model
    def tokens(**fields):
        drawn = gateway.complete(prompt=ids, stop=None, max_tokens=24, ignore_eos=True, logprobs=0, **fields)
        return drawn["choices"][0]["logprobs"]["tokens"], drawn["sluice"]["sampling"]
    greedy, _ = tokens(temperature=0)
    for name in ("frequency_penalty", "presence_penalty"):
        penalized, sampling = tokens(temperature=0, **{name: 2})
        assert sampling[name] == 2 and len(set(penalized)) > len(set(greedy)), (name, greedy, penalized)
    narrow, sampling = tokens(temperature=2, min_p=1, seed=7)
    assert narrow == greedy and sampling["min_p"] == 1 and tokens(temperature=2, seed=7)[0] != greedy, (narrow, greedy)

    # A client that leaves before its answer is not a failure of the gateway, and is counted also beside an older connection.
    failures = gateway.metric('sluice_gateway_requests_total{code="5xx"}')
    with contextlib.ExitStack() as stack:
        for n_left in (1, 2):
            with socket.create_connection((gateway.host, gateway.port), 10 * SLOW) as leaving:
                body = json.dumps({**ANSWER, "max_tokens": 2000, "ignore_eos": True, "stop": None})
                leaving.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                eventually(lambda: gateway.metric("sluice_gateway_answers") == 1, 20, "it is being answered")
            eventually(lambda: gateway.metric('sluice_gateway_requests_total{code="499"}') == n_left, 20, "a client that left")
            stack.enter_context(socket.create_connection((gateway.host, gateway.port), 10 * SLOW)).sendall(b"GET ")
    assert gateway.metric('sluice_gateway_requests_total{code="5xx"}') == failures


def test_models_health_and_metrics():
    with Cluster(kvstore=0, coordinator_args=["--model-name", "pocket"]) as cluster, Gateway(cluster) as gateway:
        status, text = gateway.get("/v1/models")
        model = json.loads(text)["data"][0]
        assert status == 200 and model["id"] == "pocket" and model["max_model_len"] > 1000, text
        assert gateway.get("/v1/models/pocket")[0] == 200 and gateway.get("/v1/models/other")[0] == 404
        refusal = gateway.refusal(404, model="other")
        assert refusal["param"] == "model" and refusal["code"] == "model_not_found", refusal
        gateway.complete(model="pocket")
        names = set(re.findall(r"^(\w+)", re.sub(r"^#.*\n", "", gateway.get("/metrics")[1], flags=re.M), re.M))
        assert names == {"sluice_gateway_requests_total", "sluice_gateway_limited_total", "sluice_gateway_answers", "sluice_gateway_connections",
                         "sluice_gateway_connections_closed_total",
                         "sluice_gateway_body_bytes", "sluice_gateway_ready"}, names
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=gateway.get("/metrics")[1], text=True, capture_output=True)
            assert checked.returncode == 0, checked
        cluster.kill("decode-0")
        eventually(lambda: gateway.get("/health")[0] == 503, 20, "no decode worker, no health")
        assert "no workers" in gateway.get("/health")[1]


def test_what_is_not_done_is_refused_by_name():
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        for param, fields, where in REFUSED:
            for kind, path, body in (("chat", "/v1/chat/completions", chat), ("text", "/v1/completions", ANSWER)):
                if where in (kind, "both") and not (kind == "chat" and param == "recipe"):  # a chat has no template, first
                    error = gateway.refusal(400, path, {**body, **fields})
                    assert error["param"] == param and error["type"] == "invalid_request_error", (fields, error)
        for body in (b"", b"{", b"[]", b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "\xff"}', b"[" * 100000, b'{"prompt":"\\u0000"}'):
            gateway.refusal(400, body=body)
        assert gateway.refusal(404, "/v2/completions", {})["param"] is None
        assert gateway.refusal(404, "/v1/chat/completion", {})["message"].endswith("did you mean /v1/chat/completions")
        for method, path, allowed in (("GET", "/v1/completions", "POST"), ("POST", "/health", "GET, HEAD"), ("DELETE", "/v1/models/x", "GET, HEAD")):
            with contextlib.closing(gateway.connect()) as connection:
                connection.request(method, path)
                reply = connection.getresponse()
                assert reply.status == 405 and reply.getheader("Allow") == allowed, (path, reply.status, reply.getheaders())
        # Never ignored, but nothing either: what says nothing.
        gateway.complete(n=1, tools=None, presence_penalty=0, logit_bias={}, user="me", max_tokens=1)


def raw(gateway, head, body=b"", timeout=10):
    """Sends bytes over a socket and returns the unparsed reply."""
    with socket.create_connection((gateway.host, gateway.port), timeout * SLOW) as connection:
        connection.sendall(head + body)
        got = b""
        with contextlib.suppress(OSError):
            while chunk := connection.recv(65536):
                got += chunk
        return got


def test_strangers_and_slow_ones():
    with Cluster(kvstore=0) as cluster:
        limits = ("--max-body", "64K", "--body-memory", "1M", "--body-timeout", "1s", "--idle-timeout", "2s", "--max-connections", "600",
                  "--max-requests", "2")
        with Gateway(cluster, *limits) as gateway:
            post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            assert b" 413 " in raw(gateway, post + b"Content-Length: 17825792\r\n\r\n", b"x" * 100)
            chunked = b"".join(b"4000\r\n" + b" " * 0x4000 + b"\r\n" for _ in range(6)) + b"0\r\n\r\n"
            assert b" 413 " in raw(gateway, post + b"Transfer-Encoding: chunked\r\n\r\n", chunked)
            assert b" 400 " in raw(gateway, post + b"Content-Length: 5\r\n\r\n", b"{\"pro")
            # The end of the body is given in two ways: bytes that a proxy takes for the body could be read as another client's request.
            for twice in (b"Content-Length: 2\r\nContent-Length: 2", b"Content-Length: 7\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked"):
                got = raw(gateway, post + twice + b"\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert got.count(b"HTTP/1.1 ") == 1 and b" 400 " in got and b"Transfer-Encoding: chunked" in got, (twice, got)
            assert b" 431 " in raw(gateway, b"GET /health HTTP/1.1\r\n" + b"".join(b"H%d: %s\r\n" % (i, b"x" * 500) for i in range(200)) + b"\r\n")
            for garbage in (b"\x16\x03\x01\x02\x00\x01", b"\x00" * 5000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET\r\n\r\n"):
                raw(gateway, garbage)

            # Slow writers: byte by byte for longer than a body may take.
            with socket.create_connection((gateway.host, gateway.port), 10 * SLOW) as slow:
                slow.sendall(post + b"Content-Length: 6\r\n\r\n{")
                for _ in range(5):
                    time.sleep(0.3)
                    slow.sendall(b" ")
                assert b" 408 " in slow.recv(1000)

            # Idle connections hold no thread, and end.
            idle = [socket.create_connection((gateway.host, gateway.port), 10 * SLOW) for _ in range(500)]
            gateway.complete(max_tokens=1)
            threads = len(os.listdir(f"/proc/{gateway.popen.pid}/task"))
            assert threads < 60, threads
            eventually(lambda: len(os.listdir(f"/proc/{gateway.popen.pid}/fd")) < 100, 15, "idle connections are closed")
            for connection in idle:
                connection.close()

            # More answers than may be: 429, and who was first is answered.
            asked = {**ANSWER, "max_tokens": 400, "ignore_eos": True, "stop": None}
            with gateway.stream("/v1/completions", asked), gateway.stream("/v1/completions", asked):
                assert gateway.refusal(429)["type"] == "rate_limit_error"


def test_what_fits_never_is_the_requests_matter():
    with Cluster(kvstore=0, worker_args={"decode": ["--arena", "2M"]}) as cluster, Gateway(cluster) as gateway:
        error = gateway.refusal(400, prompt=document(8000), recipe="full")
        assert error["type"] == "invalid_request_error" and "fits never" in error["message"], error
        gateway.complete(prompt=document(8000), recipe="h2o,budget=256,format=int4", max_tokens=1)


def test_a_long_body_holds_nobody_up():
    """It is parsed by the thread that answers it: meanwhile others are served, and are told that it is being answered."""
    ids = json.dumps({"prompt": [7] * (5 << 20) + [-1]})  # 15 MB
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        def is_seen_being_parsed():
            replies = []
            asking = threading.Thread(target=lambda: replies.append(gateway.refusal(400, body=ids)))
            asking.start()
            seen = False
            while asking.is_alive():
                seen = seen or (gateway.metric("sluice_gateway_answers") == 1 and gateway.metric("sluice_gateway_body_bytes") > len(ids))
            assert replies and f"prompt[{5 << 20}]" in replies[0]["message"], replies
            return seen
        eventually(is_seen_being_parsed, 60, "somebody is served meanwhile")


def open_files(gateway):
    folder = f"/proc/{gateway.popen.pid}/fd"
    return [os.readlink(f"{folder}/{name}") for name in os.listdir(folder) if os.path.lexists(f"{folder}/{name}")]


def refuses(gateway):
    try:
        socket.create_connection((gateway.host, gateway.port), 5 * SLOW).close()
        return False
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it came while the socket was being shut
        return True


def test_files_of_connections_and_of_the_listener():
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Cluster(kvstore=0) as cluster:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(few, 256), most))
        try:
            gateway = Gateway(cluster, "--grace", "20s")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
        with open(f"/proc/{gateway.popen.pid}/limits") as file:
            soft, hard = re.search(r"^Max open files +(\S+) +(\S+)", file.read(), re.M).groups()
        assert soft == hard, "a connection is a file: as many as may be"

        # While it drains it accepts no new connection, and the number of its socket is not reused: a thread may still use it.
        with open(f"/proc/{gateway.popen.pid}/net/tcp") as file:
            inode = re.search(rf":{gateway.port:04X} 00000000:0000 0A(?: +\S+){{5}} +(\d+)", file.read()).group(1)
        with gateway.stream("/v1/completions", {**ANSWER, "max_tokens": 2000, "ignore_eos": True, "stop": None}) as (reply, _):
            reply.read(100)
            gateway.popen.send_signal(signal.SIGTERM)
            eventually(lambda: refuses(gateway), 10, "it accepts no new connection", every=0.005)
            assert f"socket:[{inode}]" in open_files(gateway)
            assert reply.read().decode().endswith("data: [DONE]\n\n")
        assert gateway.popen.wait(20 * SLOW) == 0, gateway.errors()


def running_jobs(cluster):
    return cluster.workers().jobs_running


def test_a_client_that_leaves_cancels_its_job():
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        with gateway.stream("/v1/completions", LONG_ANSWER) as (reply, _):
            reply.read(500)
            assert running_jobs(cluster) == 1
        eventually(lambda: running_jobs(cluster) == 0, 5, "the job has ended")
        assert [job.state for job in cluster.list()] == [State.Value("CANCELLED")], cluster.list()

        # While it waits for all of it, and nothing is being sent. The end of what a client sends looks like a client that closes.
        for leave in (lambda connection: connection.close(), lambda connection: connection.sock.shutdown(socket.SHUT_WR)):
            connection = gateway.connect()
            connection.request("POST", "/v1/completions", json.dumps(LONG_ANSWER))
            eventually(lambda: running_jobs(cluster) == 1, 10, "the job runs")
            leave(connection)
            eventually(lambda: running_jobs(cluster) == 0, 5, "the job is cancelled")
            connection.close()


def test_a_client_that_does_not_read_is_left():
    with Cluster(kvstore=0) as cluster, Gateway(cluster, "--reader-timeout", "1s") as gateway:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((gateway.host, gateway.port))
            body = json.dumps({**LONG_ANSWER, "logprobs": 20, "stream": True}).encode()
            deaf.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            # Also if the job ends first, on a fast machine
            eventually(lambda: "has taken nothing" in gateway.errors(), 60, "the log names the client that does not read")
            eventually(lambda: running_jobs(cluster) == 0, 60, "its job is cancelled")


def test_pings_and_failures_in_the_middle():
    with Cluster(kvstore=0, coordinator_args=["--retries", "0", "--worker-wait", "2300ms"]) as cluster, Gateway(cluster, "--ping", "100ms") as gateway:
        with gateway.stream("/v1/completions", LONG_ANSWER) as (reply, _):
            reply.read(500)
            cluster.kill("decode-0", signal.SIGSTOP)
            time.sleep(0.5)
            cluster.kill("decode-0")
            end = reply.read().decode()
            last = [event for event in end.split("\n\n") if event.startswith("data: ")][-1]
            assert last != "data: [DONE]" and json.loads(last[6:])["error"]["code"] == "503", last
            assert ": ping" in end
        status, reply = gateway.post("/v1/completions", ANSWER)
        assert status == 503 and reply["error"]["type"] == "server_error", reply


def test_it_stops_in_order():
    asked = {**ANSWER, "max_tokens": 60, "ignore_eos": True, "stop": None}
    with Cluster(kvstore=0) as cluster:
        gateway = Gateway(cluster, "--grace", "20s")
        with gateway.stream("/v1/completions", asked) as (reply, _):
            reply.read(100)
            gateway.popen.send_signal(signal.SIGTERM)
            assert reply.read().decode().endswith("data: [DONE]\n\n"), "what is under way is finished"
        assert gateway.popen.wait(20 * SLOW) == 0, gateway.errors()

        gateway = Gateway(cluster, "--grace", "100ms")
        with gateway.stream("/v1/completions", {**asked, "max_tokens": 4000}) as (reply, _):
            reply.read(100)
            gateway.popen.send_signal(signal.SIGTERM)
            assert '"error"' in reply.read().decode()
        assert gateway.popen.wait(20 * SLOW) == 0, gateway.errors()
        eventually(lambda: running_jobs(cluster) == 0, 10, "its job is cancelled")


def key_line(key, tenant, limits=""):
    return f"{hashlib.sha256(key.encode()).hexdigest()} {tenant} {limits}\n"


def test_a_coordinator_that_is_not_there_is_told_of_once():
    """Gateways may start long before it: models take their time."""
    from harness import BIN
    with socket.socket() as nobody, tempfile.TemporaryFile() as log:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        gateway = subprocess.Popen([os.path.join(BIN, "sluice-gateway"), "--listen", "127.0.0.1:0", "--coordinator",
                                    f"127.0.0.1:{nobody.getsockname()[1]}"], stdout=subprocess.PIPE, stderr=log)
        assert gateway.stdout.readline().startswith(b"ready ")
        time.sleep(1)  # in which it asks ten times
        gateway.terminate()
        assert gateway.wait(20 * SLOW) == 0
        gateway.stdout.close()
        log.seek(0)
        said = [line for line in log.read().decode().splitlines() if " ready=0 " in line]
        assert len(said) == 1, said


def test_wrong_options_name_the_remedy():
    from harness import BIN
    for words, said in ((["--listen", "0.0.0.0:0"], "--insecure"), (["--https-cert", "/dev/null/x", "--https-key", "y"], "/dev/null/x"),
                        (["--https-cert", "/dev/null"], "belong together"), (["--keys", "/dev/null/k"], "/dev/null/k"), (["--tenants", "x"], "--keys"), (["--jwt-keys", "/dev/null/j"], "/dev/null/j"), (["--jwt-issuer", "x"], "--jwt-keys"), (["--listen", "nowhere"], "HOST:PORT"),
                        (["--allowed-hosts", "a.example,gw.example:18433"], '"gw.example:18433"'), (["--allowed-hosts", "https://gw.example"], "--allowed-hosts"),
                        (["--allowed-origins", "https://chat.example/"], '"https://chat.example/"'), (["--allowed-origins", "*,chat.example"], '"chat.example"'),
                        (["--allowed-origins", "https://chat.example:443"], "usual port"), (["--check", "--allowed-hosts", "a:1"], '"a:1"')):
        refused = subprocess.run([os.path.join(BIN, "sluice-gateway"), *words], capture_output=True, text=True, timeout=30 * SLOW)
        assert refused.returncode in (1, 2) and said in refused.stderr, refused


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
