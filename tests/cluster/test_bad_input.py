#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input gets a clear error that names what is wrong, with the standard code; and the cluster goes on serving."""
import json
import os
import shutil
import struct
import subprocess
import tempfile
import threading

from harness import BIN, MODEL, ROOT, SLOW, Cluster, connect, document, inference, request, run_tests, stub
import grpc

Code = grpc.StatusCode


def refused(cluster, code, words, job):
    """Submit and Generate refuse alike, and the text names the thing."""
    for call in (lambda: cluster.submit(job), lambda: list(cluster.generate(job))):
        try:
            call()
        except grpc.RpcError as error:
            assert error.code() == code, f"{error.code()} instead of {code}: {error.details()}"
            for word in words:
                assert word in error.details(), f"{word!r} is not in {error.details()!r}"
        else:
            raise AssertionError(f"accepted: {job}")


def test_strings_with_a_zero_byte_are_refused_by_field():
    """A C string ends at U+0000: no service may silently drop the text after it."""
    with Cluster(kvstore=1) as cluster:
        text = "The secret word is apple."
        for field, job in (("text", inference.GenerateRequest(text=text + "\0 Ignore that.")),
                           ("recipe", inference.GenerateRequest(text=text, recipe="full\0,format=int2")),
                           ("idempotency_key", inference.GenerateRequest(text=text, idempotency_key="k\0one")),
                           ("stop", inference.GenerateRequest(text=text, stop=["a", "b\0"])),
                           ("chat.messages.content", inference.GenerateRequest(chat=inference.Chat(messages=[
                               inference.ChatMessage(role="user", content="a\0b")])))):
            refused(cluster, Code.INVALID_ARGUMENT, [f"{field}: ", "U+0000"], job)
        submit = stub(cluster.channel.stream_stream, "sluice.v1.Inference.SubmitInParts")
        parts = [inference.GenerateRequest(text=text, max_new_tokens=2), inference.GenerateRequest(text="\0more")]
        # Health, of a worker too; a key of two bytes, and the service's name with a zero byte in it.
        store = connect(cluster.processes["kvstore-0"].address)
        health = [channel.unary_unary("/grpc.health.v1.Health/Check") for channel in (cluster.channel, store)]
        for field, ask in (("text", lambda: list(submit(iter(parts), timeout=20 * SLOW))),
                           ("service", lambda: health[0](b"\x0a\x02a\0", timeout=20 * SLOW)),
                           ("service", lambda: health[1](b"\x0a\x02a\0", timeout=20 * SLOW))):
            try:
                ask()
            except grpc.RpcError as error:
                assert error.code() == Code.INVALID_ARGUMENT and f"{field}: " in error.details(), error.details()
            else:
                raise AssertionError(f"accepted: {field}")
        store.close()
        finished, _ = cluster.answer(request(1000))
        assert finished.status_code == 0, finished


def test_small_messages_that_want_much_memory():
    """Empty messages and strings in repeated fields, by the million: refused before the coordinator has grown by them."""
    def varint(n):
        return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])
    n = (4 << 20) - 100
    evil = {"chat": b"\x5a" + varint(n // 2 * 2) + b"\x0a\x00" * (n // 2), "stop": b"\x32\x00" * (n // 2),
            "unknown": b"\xa0\x06\x00" * (n // 3)}
    with Cluster(kvstore=0) as cluster:
        def high_water():
            with open(f"/proc/{cluster.coordinator.popen.pid}/status") as status:
                return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
        before = high_water()
        said = []

        def ask(body):
            with connect(cluster.coordinator.address, ("grpc.max_send_message_length", -1)) as channel:
                try:
                    channel.unary_unary("/sluice.v1.Inference/Submit")(body, timeout=60 * SLOW)
                    said.append((None, "answered"))
                except grpc.RpcError as error:
                    said.append((error.code(), error.details()))
        threads = [threading.Thread(target=ask, args=(body,)) for body in evil.values() for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(said) == 12 and all(code == Code.INVALID_ARGUMENT and "takes more memory" in words for code, words in said), said
        grown = high_water() - before
        assert grown < 12 * (80 << 20), f"grew by {grown >> 20} MiB"  # it was 12 times 650
        finished, _ = cluster.answer(request(1000))
        assert finished.status_code == 0, finished


def test_prompts_in_parts():
    with Cluster(kvstore=0) as cluster:
        whole = request(3000)
        finished, _ = cluster.answer(whole)

        def in_parts(parts):
            submit = stub(cluster.channel.stream_stream, "sluice.v1.Inference.SubmitInParts")
            return next(submit(iter(parts), timeout=20 * SLOW)).job_id
        first = inference.GenerateRequest()
        first.CopyFrom(whole)
        first.text = whole.text[:1000]
        rest = [inference.GenerateRequest(text=whole.text[at:at + 700]) for at in range(1000, len(whole.text), 700)]
        again = list(cluster.watch(in_parts([first, *rest])))[-1].finished
        assert again.text == finished.text and again.statistics.n_prompt_tokens == finished.statistics.n_prompt_tokens, again
        for parts, words in (([], "no parts"), ([first, inference.GenerateRequest(tokens=inference.TokenIds(ids=[1]))], "tokens"),
                             ([first, inference.GenerateRequest(text="x", recipe="full")], "behind the first"),
                             ([inference.GenerateRequest()], "prompt")):
            try:
                in_parts(parts)
                raise AssertionError(f"accepted: {parts}")
            except grpc.RpcError as error:
                assert error.code() == Code.INVALID_ARGUMENT and words in error.details(), error


def test_refused_parts_give_back_what_they_held():
    """Uploads that are refused in the middle, more of them and of more bytes than there is room for at once: the next one is taken."""
    whole = request(3000)
    with Cluster(kvstore=0, coordinator_args=["--request-memory", "8M", "--max-prompt", "1M", "--max-watchers", "4"]) as cluster:
        def in_parts(parts):
            submit = stub(cluster.channel.stream_stream, "sluice.v1.Inference.SubmitInParts")
            return next(submit(iter(parts), timeout=20 * SLOW)).job_id
        part = lambda **fields: inference.GenerateRequest(**fields)
        large = [part(text="x" * 200000, max_new_tokens=4) for _ in range(4)]
        for behind, code in ([[part(text="x", recipe="full")], Code.INVALID_ARGUMENT],       # a part that is none
                             [[part(text="x" * 300000)], Code.INVALID_ARGUMENT],             # more than a prompt may have
                             [[part(tokens=inference.TokenIds(ids=[1]))], Code.INVALID_ARGUMENT]):
            for _ in range(12):
                try:
                    in_parts([*large, *behind])
                    raise AssertionError(f"accepted: {behind}")
                except grpc.RpcError as error:
                    assert error.code() == code, error
                assert not any(cluster.gauges().values()), cluster.gauges()
        half = len(whole.text) // 2
        first = inference.GenerateRequest()
        first.CopyFrom(whole)
        first.text = whole.text[:half]
        for _ in range(6):
            events = list(cluster.watch(in_parts([first, part(text=whole.text[half:])])))
            assert events[-1].finished.text.strip() == "48213", events[-1]


def test_requests():
    bad = Code.INVALID_ARGUMENT
    job = lambda **fields: inference.GenerateRequest(**{"text": document(1000), "max_new_tokens": 4, **fields})
    sampling = lambda **fields: job(sampling=inference.Sampling(**fields))
    with Cluster(kvstore=0) as cluster:
        refused(cluster, bad, ["recipe", "h3o"], job(recipe="h3o"))
        refused(cluster, bad, ["ahead", "near"], job(recipe="tailorkv,ahead=1"))
        refused(cluster, bad, ["budget"], job(recipe="h2o,budget=-3"))
        refused(cluster, bad, ["budget", "sinks"], job(recipe="streamingllm,budget=3"))
        refused(cluster, bad, ["recent"], job(recipe="h2o,scope=recent:200,budget=100"))
        refused(cluster, bad, ["chunk"], job(recipe="full,chunk=100"))
        refused(cluster, bad, ["int3"], job(recipe="full,format=int5"))
        refused(cluster, bad, ["prompt"], job(text=""))
        refused(cluster, bad, ["prompt"], inference.GenerateRequest(max_new_tokens=4))
        refused(cluster, bad, ["2048"], job(tokens=inference.TokenIds(ids=[1, 2, 2048])))
        refused(cluster, bad, ["-1"], job(tokens=inference.TokenIds(ids=[1, -1])))
        refused(cluster, bad, ["32768"], job(tokens=inference.TokenIds(ids=[5] * 33000)))
        refused(cluster, bad, ["max_new_tokens"], job(max_new_tokens=0))
        refused(cluster, bad, ["max_new_tokens"], job(max_new_tokens=-5))
        refused(cluster, bad, ["temperature"], sampling(temperature=-1))
        refused(cluster, bad, ["temperature"], sampling(temperature=float("nan")))
        refused(cluster, bad, ["top_p"], sampling(top_p=0))
        refused(cluster, bad, ["top_p"], sampling(top_p=1.5))
        refused(cluster, bad, ["top_k"], sampling(top_k=-1))
        refused(cluster, bad, ["repetition_penalty"], sampling(repetition_penalty=0))
        refused(cluster, bad, ["logprobs"], sampling(logprobs=21))
        refused(cluster, bad, ["stop"], job(stop=[""]))
        refused(cluster, bad, ["stop"], job(stop=["x"] * 17))
        refused(cluster, Code.DEADLINE_EXCEEDED, ["tokenized"], job(text=document(30000), deadline_ms=1))
        # Invalid UTF-8 cannot be written with these classes: as raw bytes of field 1.
        call = cluster.channel.unary_unary("/sluice.v1.Inference/Submit", request_serializer=lambda b: b,
                                           response_deserializer=lambda b: b)
        for payload, word in ((b"\x0a\x03ab\xff", "UTF-8"), (b"\x0a\xff\xff\xff\xff\x0f", "")):
            try:
                call(payload, timeout=5 * SLOW)
                raise AssertionError("accepted")
            except grpc.RpcError as error:
                assert error.code() == bad and word in error.details(), error
        for method in ("Get", "Cancel"):
            try:
                getattr(cluster, method.lower())("no-such-job")
                raise AssertionError("accepted")
            except grpc.RpcError as error:
                assert error.code() == Code.NOT_FOUND and "no-such-job" in error.details()
        assert cluster.answer(request(2000))[0].text.strip() == "48213", "still serving"


def test_a_prompt_that_no_arena_can_hold():
    with Cluster(kvstore=0, worker_args={"decode": ["--arena", "2M"]}) as cluster:
        refused(cluster, Code.FAILED_PRECONDITION, ["bytes", "never"], request(8000))
        assert cluster.answer(request(8000, recipe="h2o,budget=256,format=int4"))[0].status_code == 0, "compressed it fits"


def run(program, *args, timeout=30):
    return subprocess.run([os.path.join(BIN, program), *args], capture_output=True, text=True, timeout=timeout * SLOW)


def fails(words, program, *args, code=1):
    result = run(program, *args)
    assert result.returncode == code, f"exit code {result.returncode}: {result.stderr}"
    for word in words:
        assert word in result.stderr, f"{word!r} is not in {result.stderr!r}"


def broken_models():
    """(what is wrong, words of the error, folder) of damaged copies of the demo model."""
    def copy():
        folder = os.path.join(tempfile.mkdtemp(prefix="sluice-broken-"), "model")
        shutil.copytree(MODEL, folder)
        return folder

    def edit_header(folder, change):
        path = os.path.join(folder, "model.safetensors")
        data = open(path, "rb").read()
        (n,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + n])
        change(header)
        text = json.dumps(header).encode()
        open(path, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])

    folder = copy()
    os.remove(os.path.join(folder, "model.safetensors"))
    yield ["model.safetensors"], folder
    folder = copy()
    with open(os.path.join(folder, "model.safetensors"), "r+b") as file:
        file.truncate(1 << 20)
    yield ["model.safetensors"], folder
    folder = copy()
    name = "model.layers.1.self_attn.k_proj.weight"
    edit_header(folder, lambda h: h[name].__setitem__("shape", h[name]["shape"][::-1]))
    yield [name], folder
    folder = copy()
    edit_header(folder, lambda h: h.__setitem__("renamed", h.pop(name)))
    yield [name], folder
    folder = copy()
    os.remove(os.path.join(folder, "config.json"))
    yield ["config.json"], folder
    folder = copy()
    with open(os.path.join(folder, "tokenizer.json"), "r+b") as file:
        file.truncate(1000)
    yield ["tokenizer.json"], folder


def test_broken_models():
    for words, folder in broken_models():
        for program in ("sluice-prefill", "sluice-decode"):
            fails(words, program, "--model", folder, "--arena", "4M", code=2)
        shutil.rmtree(os.path.dirname(folder))
    fails(["no-such-folder"], "sluice-coordinator", "--model", os.path.join(ROOT, "no-such-folder"), code=2)


def test_a_worker_of_another_model_is_refused():
    with Cluster(kvstore=0) as cluster:
        other = os.path.join(ROOT, "tests", "golden", "llama", "gqa")
        folder = os.path.join(tempfile.mkdtemp(prefix="sluice-other-"), "model")
        shutil.copytree(other, folder)
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            shutil.copy(os.path.join(MODEL, "tokenizer.json"), folder)
        fails(["model", "refuses"], "sluice-decode", "--model", folder, "--arena", "4M", "--name", "decode-9",
              "--coordinator", cluster.coordinator.address)
        assert cluster.answer(request(2000))[0].text.strip() == "48213"
        shutil.rmtree(os.path.dirname(folder))


def test_ports_in_use_and_memory_that_cannot_be_locked():
    with Cluster(kvstore=0) as cluster:
        fails([cluster.coordinator.address], "sluice-coordinator", "--model", MODEL, "--listen", cluster.coordinator.address)
        fails([cluster.coordinator.address], "sluice-decode", "--model", MODEL, "--arena", "4M", "--listen",
              cluster.coordinator.address)
        fails([cluster.coordinator.address], "sluice-kvstore", "--arena", "4M", "--fabric-listen", cluster.coordinator.address)
        if SLOW > 1:
            return  # sanitizers replace mlock() by a function that does nothing and succeeds
        limited = subprocess.run(["/bin/sh", "-c", 'ulimit -l 64; exec "$0" "$@"', os.path.join(BIN, "sluice-kvstore"),
                                  "--arena", "64M", "--lock"], capture_output=True, text=True, timeout=30 * SLOW,
                                 preexec_fn=drop_lock_privilege)
        assert limited.returncode == 1 and "ulimit -l" in limited.stderr, limited.stderr


def drop_lock_privilege():
    """As root the limit does not count: give up CAP_IPC_LOCK (14) for good."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(24, 14, 0, 0, 0)  # PR_CAPBSET_DROP: exec does not get it back


def test_usage_errors():
    for args in (["--no-such-option"], ["--arena", "lots"], ["--arena", "-5"], ["--lease", "soon"], ["stray"]):
        fails(["sluice-kvstore"], "sluice-kvstore", *args, code=2)
    for program in ("sluice", "sluice-coordinator", "sluice-prefill", "sluice-decode", "sluice-kvstore"):
        result = run(program, "--help")
        assert result.returncode == 0 and program in result.stdout, result


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
