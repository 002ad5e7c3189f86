#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
How long a well-behaved client waits alone and beside each attack: victim.py [--seconds N] [--turns N] [--only ATTACK,...]

A cluster with certificates and a gateway with keys serves the victim's short prompts, by turns over gRPC and HTTP, while an attacker drives
rows of docs/budget.csv to their bounds. The victim runs alone before each attack, so that both figures are of the same time. Prints the
median, the 99th percentile and the number n of answers of each, and how many processors the servers took. Attackers have a nice value of 19:
where they share processors with the servers, their own work is not what is measured; what the servers do for them is.

Fails if a 99th percentile beside an attack is above twice the one alone (--at-most), if the victim gets an error, or if no attack drives a row.
"""
import argparse
import concurrent.futures
import contextlib
import csv
import hashlib
import http.client
import itertools
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "cluster"), os.path.join(os.path.dirname(HERE), "unit/rpc"), os.path.join(os.path.dirname(os.path.dirname(HERE)), "tools")]
import script  # noqa: E402

script.needs("grpc", "google.protobuf")
import grpc  # noqa: E402
import attacks  # noqa: E402
import harness  # noqa: E402
import hosts  # noqa: E402
import partial_requests  # noqa: E402
from harness import inference, stub  # noqa: E402

VICTIM = "client/victim"
KEYS = {"victim": "k-victim", "greedy": "k-greedy", "limited": "k-limited"}  # tenant -> key
SETTLE_S = 1  # an attack reaches its bounds, and what it held is let go
TABLE = os.path.join(HERE, "../../docs/budget.csv")


def stranger_says_nothing(scene, _rng):
    """Connections to the gateway that begin nothing, or a head that does not end."""
    opened = []
    with contextlib.suppress(OSError):  # it keeps no more
        for i in range(attacks.MANY):
            opened.append(attacks.connect(scene.gateway))
            if i % 2:
                opened[-1].send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: ")
    time.sleep(attacks.ATTACK_S)
    for connection in opened:
        connection.close()


def stranger_sends_bodies(scene, _rng):
    """Bodies without a key, byte by byte."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\n"
    opened = []
    with contextlib.suppress(OSError):
        for _ in range(60):
            opened.append(attacks.connect(scene.gateway))
            opened[-1].send(head)
    until = time.monotonic() + attacks.ATTACK_S
    while time.monotonic() < until:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.send(b"{" * 1000)
        time.sleep(0.05)
    for connection in opened:
        connection.close()


def stranger_sends_garbage(scene, rng):
    addresses = [address for process in scene.processes.values() for address in attacks.addresses_of(process)] + [scene.gateway]
    until = time.monotonic() + attacks.ATTACK_S
    while time.monotonic() < until:
        hosts.garbage(rng.choice(addresses), rng)


def stranger_continues_headers(scene, _rng):
    """HTTP/2 headers that do not end."""
    with contextlib.suppress(OSError), \
            attacks.tls_of(scene, attacks.GREEDY).wrap_socket(attacks.connect(scene.cluster.coordinator.address), server_hostname="localhost") as tls:
        tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + attacks.frame(4, 0, 0) + attacks.frame(1, 0, 1, attacks.literal(b":method", b"POST")))
        while True:
            tls.sendall(attacks.frame(9, 0, 1, attacks.literal(b"x", b"y" * 100) * 100))


def ask(scene, path, body, who="greedy"):
    with contextlib.suppress(OSError, http.client.HTTPException), \
            contextlib.closing(http.client.HTTPConnection(scene.gateway, timeout=60)) as connection:
        connection.request("POST", path, body, {"Authorization": f"Bearer {KEYS[who]}"})
        connection.getresponse().read()


def in_threads(n, what):
    threads = [threading.Thread(target=what, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tenant_sends_json(scene, _rng):
    """Bodies of 16 MB that are much larger when they are parsed."""
    body = b'{"prompt": [' + b",".join([b"[{},{}]"] * 2000000)[:15 << 20] + b"]}"
    in_threads(4, lambda _: ask(scene, "/v1/completions", body))


def calls(scene, n, method, requests):
    """Begins n streamed calls as the greedy tenant, holds them for a while without reading, and cancels them."""
    with scene.cluster.channel_of(attacks.GREEDY) as channel:
        began = [stub(channel.unary_stream, method)(request, timeout=60) for request in itertools.islice(requests, n)]
        time.sleep(attacks.ATTACK_S)
        for one in began:
            one.cancel()


def tenant_reads_nothing(scene, _rng):
    """Opens streams of one long job and reads none of them."""
    with scene.cluster.channel_of(attacks.GREEDY) as channel:
        asked = inference.GenerateRequest(text="x", max_new_tokens=200, ignore_eos=True)
        job_id = stub(channel.unary_unary, "sluice.v1.Inference.Submit")(asked, timeout=20).job_id
    calls(scene, 600, "sluice.v1.Inference.Watch", itertools.repeat(inference.WatchRequest(job_id=job_id)))


def tenant_fills_the_line(scene, rng):
    """More jobs than the line takes of a tenant, of a token each."""
    calls(scene, 300, "sluice.v1.Inference.Generate",
          (inference.GenerateRequest(text=f"{rng.random()}", max_new_tokens=1, ignore_eos=True) for _ in itertools.count()))


def tenant_fills_memory(scene, rng):
    """Long answers that together need more KV memory than the decode worker has."""
    calls(scene, 16, "sluice.v1.Inference.Generate",
          (inference.GenerateRequest(text=f"{rng.random()}", max_new_tokens=3000, ignore_eos=True) for _ in itertools.count()))


def tenant_sends_long_texts(scene, _rng):
    """Texts whose bytes fit the model, and whose tokens do not."""
    text = "a!" * 60000
    with scene.cluster.channel_of(attacks.GREEDY) as channel:
        def submit(_):
            until = time.monotonic() + attacks.ATTACK_S
            while time.monotonic() < until:
                with contextlib.suppress(grpc.RpcError):
                    stub(channel.unary_unary, "sluice.v1.Inference.Submit")(inference.GenerateRequest(text=text, max_new_tokens=1), timeout=20)
        in_threads(8, submit)


def answers(scene, n, request):
    """Asks for answers in n threads, each one after the other, and reads them. request(i) has another number for each."""
    numbers, until = itertools.count(), time.monotonic() + attacks.ATTACK_S
    with scene.cluster.channel_of(attacks.GREEDY) as channel:
        def generate(_):
            while time.monotonic() < until:
                with contextlib.suppress(grpc.RpcError):
                    list(stub(channel.unary_stream, "sluice.v1.Inference.Generate")(request(next(numbers)), timeout=20))
        in_threads(n, generate)


def tenant_keeps_conversations(scene, rng):
    """Begins conversations. A worker keeps the session of each."""
    answers(scene, 8, lambda i: inference.GenerateRequest(text=f"{rng.random()}", max_new_tokens=1, ignore_eos=True, conversation=inference.Conversation(
        id=f"{i}-{rng.random()}", keep_ms=20000)))


def tenant_stores_prompts(scene, rng):
    """Sends prompts of 500 tokens, which the store keeps. No two are equal, and every second one has a new recipe."""
    answers(scene, 4, lambda i: inference.GenerateRequest(text=harness.document(500, value=str(i), seed=rng.randrange(1 << 30)), max_new_tokens=1,
                                                          recipe=f"h2o,budget={rng.uniform(0.2, 0.9):.6f}" if i % 2 else ""))


def tenant_adds_documents(scene, rng):
    """Adds more documents than a tenant may have."""
    with scene.cluster.channel_of(attacks.GREEDY) as channel:
        def add(_):
            until = time.monotonic() + attacks.ATTACK_S
            while time.monotonic() < until:
                asked = harness.documents_pb.AddDocumentRequest(name=f"d{rng.random()}", text=harness.document(400, seed=rng.randrange(1 << 30)), raw=True)
                with contextlib.suppress(grpc.RpcError):
                    list(stub(channel.unary_stream, "sluice.v1.Documents.Add")(asked, timeout=20))
        in_threads(2, add)


def tenant_sends_lists(scene, rng):
    """Sends lists of as many prompts as a request may have."""
    until = time.monotonic() + attacks.ATTACK_S

    def send(_):
        while time.monotonic() < until:
            ask(scene, "/v1/completions", json.dumps({"prompt": [f"{rng.random()}" for _ in range(256)], "max_tokens": 16, "logprobs": 5}))
    in_threads(4, send)


def tenant_exceeds_its_limits(scene, rng):
    """A key of 60 requests a minute sends as many as it can."""
    until = time.monotonic() + attacks.ATTACK_S

    def send(_):
        while time.monotonic() < until:
            ask(scene, "/v1/completions", json.dumps({"prompt": f"{rng.random()}", "max_tokens": 16}), "limited")
    in_threads(8, send)


def tenant_searches_layers(scene, rng):
    """Asks for long answers under recipes that leave layers in the store. For each token the store searches them, or decode does."""
    answers(scene, 4, lambda i: inference.GenerateRequest(text=harness.document(1500, value=str(i), seed=rng.randrange(1 << 30)), max_new_tokens=100,
                                                          ignore_eos=True, recipe=f"tailorkv,topk=64,retrieve={rng.choice(['near', 'pull'])}"))


def tenant_lacks_workers(scene, rng):
    """Jobs whose layers two stores must hold, where there is one."""
    calls(scene, 300, "sluice.v1.Inference.Generate", (inference.GenerateRequest(
        text=harness.document(200, seed=rng.randrange(1 << 30)), max_new_tokens=1, recipe="tailorkv,replicas=2") for _ in itertools.count()))


class Lengthy(grpc.GenericRpcHandler):
    """Answers every call with more bytes than a reply may have."""
    REPLY = bytes((64 << 20) + 1)

    def service(self, _details):
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.REPLY)


def store_replies_at_length(scene, rng):
    """A store with a certificate of the cluster, which the workers ask for stored prefixes."""
    made, until = scene.cluster.certificates, time.monotonic() + attacks.ATTACK_S
    ca, key, pem = (open(path, "rb").read() for path in (f"{made.folder}/ca.pem", made.file(attacks.IMPOSTOR, "key"), made.file(attacks.IMPOSTOR, "pem")))
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[Lengthy()])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, pem)], ca, True))
    server.start()
    info = next(worker.info for worker in scene.cluster.workers().workers if worker.info.role == harness.cluster_pb.KVSTORE)
    info.name, info.rpc_address, info.epoch = attacks.IMPOSTOR.rpartition("/")[2], f"127.0.0.1:{port}", rng.randrange(1 << 62) | 1
    beat = harness.cluster_pb.HeartbeatRequest(name=info.name, epoch=info.epoch, load=harness.cluster_pb.WorkerLoad())
    with scene.cluster.channel_of(attacks.IMPOSTOR) as channel:
        harness.call(channel, "sluice.v1.Cluster.RegisterWorker", harness.cluster_pb.RegisterRequest(worker=info))
        while time.monotonic() < until:
            harness.call(channel, "sluice.v1.Cluster.Heartbeat", beat)
            time.sleep(0.1)
    server.stop(None).wait()


def head_of(path):
    return b"".join(attacks.literal(*pair) for pair in ((b":method", b"POST"), (b":scheme", b"https"), (b":path", path), (b":authority", b"x"),
                                                        (b"te", b"trailers"), (b"content-type", b"application/grpc")))


def open_streams(scene, window, request):
    """Calls over connections whose windows have so much room for replies."""
    head = head_of(b"/sluice.v1.Inference/Model")
    context, opened, until = attacks.tls_of(scene, attacks.GREEDY), [], time.monotonic() + attacks.ATTACK_S
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            opened.append(context.wrap_socket(attacks.connect(scene.cluster.coordinator.address), server_hostname="localhost"))
            opened[-1].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + attacks.frame(4, 0, 0, struct.pack(">HI", 4, window)) + attacks.frame(4, 1, 0))
            for stream in range(1, 2000, 2):
                opened[-1].sendall(attacks.frame(1, 4, stream, head) + (request and attacks.frame(0, 1, stream, request)))
            time.sleep(0.1)
    for connection in opened:
        connection.close()


def tenant_reads_no_replies(scene, _rng):
    open_streams(scene, 0, bytes(5))


def tenant_sends_no_requests(scene, _rng):
    open_streams(scene, 1 << 16, b"")


def tenant_sends_parts_of_requests(scene, _rng):
    """Three of four MB of each request, over connections that the coordinator closes for it."""
    head, part, until = head_of(b"/sluice.v1.Inference/Submit"), struct.pack(">BI", 0, 4 << 20) + bytes(3 << 20), time.monotonic() + attacks.ATTACK_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            client = partial_requests.Client(scene.cluster.coordinator.address, scene.cluster.certificates.folder, attacks.GREEDY.replace("/", "-"))
            for stream in range(1, 400, 2):
                client.open(stream, head)
                client.send(stream, part)
                if client.has_ended or time.monotonic() > until:
                    break
            client.connection.shutdown(socket.SHUT_RDWR)


# attack -> rows of docs/budget.csv, by their resources or the beginnings of those
ATTACKS = {
    attacks.flood_half_open: ["gRPC connections", "a gRPC connection that", "data-plane connections", "admin connections", "connections"],
    stranger_says_nothing: ["HTTP connections", "an HTTP connection", "a request line"],
    stranger_sends_bodies: ["a body without"],
    stranger_sends_garbage: ["refused connections", "transfers to a worker"],
    stranger_continues_headers: ["headers of a gRPC call"],
    attacks.reset_streams: ["calls cancelled"],
    attacks.hold_parts: ["a request in parts", "all unfinished requests", "a gRPC request", "all gRPC requests"],
    tenant_reads_nothing: ["calls that follow jobs", "a client that does not read", "events of a job", "events that are sent"],
    tenant_reads_no_replies: ["replies that"],
    tenant_sends_no_requests: ["calls whose requests"],
    tenant_sends_parts_of_requests: ["requests that have come"],
    tenant_fills_the_line: ["jobs", "messages that wait", "ended jobs", "index of prompts", "memory that was freed", "jobs on disk", "spans that"],
    tenant_fills_memory: ["KV memory of jobs", "a job"],
    tenant_keeps_conversations: ["conversations", "sessions between turns"],
    tenant_stores_prompts: ["stored capsules", "label values"],
    tenant_adds_documents: ["documents"],
    tenant_sends_lists: ["answers to a list"],
    tenant_exceeds_its_limits: ["requests and tokens"],
    tenant_searches_layers: ["remote KV that is open", "searches of offloaded", "leases"],
    tenant_lacks_workers: ["a job without a worker"],
    tenant_sends_json: ["an HTTP body", "all HTTP bodies", "HTTP answers"],
    tenant_sends_long_texts: ["tokenizing", "calls that are handled"],
    attacks.lie_in_heartbeats: ["heartbeats", "reports of newer terms", "calls of workers"],
    store_replies_at_length: ["a reply to a call"],
    attacks.use_wrong_roles: ["registrations", "errors and names"],
}
NAMED = {attack.__name__: attack for attack in ATTACKS}


def attack(name, path):
    """Makes an attack again and again, until this process is killed."""
    with open(path) as file:
        told = json.load(file)
    made = harness.Certificates(told["certificates"])
    processes = {who: types.SimpleNamespace(**fields) for who, fields in told["processes"].items()}
    cluster = types.SimpleNamespace(certificates=made, coordinator=processes["coordinator"],
                                    channel_of=lambda who: made.channel(processes["coordinator"].address, who))
    operator = cluster.channel_of("operator/me")
    cluster.workers = lambda: harness.call(operator, "sluice.v1.Cluster.Workers", harness.cluster_pb.WorkersRequest())
    places = [who for who in processes if who != "coordinator"]
    scene = types.SimpleNamespace(cluster=cluster, gateway=told["gateway"], processes=processes, bends=processes, places=places,
                                  process=processes.__getitem__, counts=types.SimpleNamespace(violation=print))
    # One worker of each role: the chaos has two.
    processes.update({f"{role}-1": processes[f"{role}-0"] for role in ("decode", "kvstore")})
    for i in itertools.count():
        NAMED[name](scene, random.Random(i))


class Victim:
    def __init__(self, cluster, gateway):
        self.gateway = gateway
        self.channel = cluster.channel_of(VICTIM)
        self.n = 0

    def ask(self):
        """Returns how long an answer took."""
        self.n += 1
        text = harness.document(300, value=str(10000 + self.n), seed=self.n) + harness.question()
        began = time.monotonic()
        if self.n % 2:
            request = inference.GenerateRequest(text=text, max_new_tokens=4, ignore_eos=True)
            *_, last = stub(self.channel.unary_stream, "sluice.v1.Inference.Generate")(request, timeout=60)
            assert last.finished.status_code == 0, last.finished.status_text
        else:
            status, reply = self.gateway.post("/v1/completions", {"prompt": text, "max_tokens": 4, "ignore_eos": True}, KEYS["victim"])
            assert status == 200, reply
        return time.monotonic() - began

    def run(self, seconds):
        """Returns (times, errors) of a while."""
        times, errors, until = [], [], time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                times.append(self.ask())
            except (AssertionError, grpc.RpcError, OSError) as error:
                errors.append(str(error)[:300])
            time.sleep(0.01)
        return times, errors


def percentile(times, share):
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))] if times else float("inf")


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


class Costs:
    """How many processors each server takes while the victim runs."""

    def __init__(self, pids):
        self.pids, self.wall_s, self.used_s = pids, 0, dict.fromkeys(pids, 0)

    @contextlib.contextmanager
    def counted(self):
        before, began = {name: processor_seconds(pid) for name, pid in self.pids.items()}, time.monotonic()
        yield
        self.wall_s += time.monotonic() - began
        for name, pid in self.pids.items():
            self.used_s[name] += processor_seconds(pid) - before[name]

    def of(self, *names):
        return sum(self.used_s[name] for name in names or self.pids) / self.wall_s


def rows_not_driven():
    with open(TABLE, encoding="utf-8") as file:
        resources = [row["resource"] for row in csv.DictReader(file)]
    driven = set()
    for beginning in (beginning for beginnings in ATTACKS.values() for beginning in beginnings):
        found = [beginning] if beginning in resources else [resource for resource in resources if resource.startswith(beginning)]
        assert found, f"no row of {TABLE} begins with {beginning}"
        driven.update(found)
    return [resource for resource in resources if resource not in driven]


def drive(options, cluster, gateway, folder):
    path = os.path.join(folder, "scene.json")
    with open(path, "w") as file:
        json.dump({"certificates": cluster.certificates.folder, "gateway": f"{gateway.host}:{gateway.port}",
                   "processes": {name: {"address": p.address, "fabric": p.fabric, "admin": p.admin} for name, p in cluster.processes.items()}}, file)
    victim, wrong = Victim(cluster, gateway), []
    victim.run(2)
    pids = {name: process.popen.pid for name, process in [*cluster.processes.items(), ("gateway", gateway)]}
    print(f"{'attack':28} {'alone: p50 ms':>13} {'p99':>7} {'beside: p50':>11} {'p99':>7} {'ratio':>6} {'alone: n':>8} {'beside: n':>9} {'errors':>6} "
          f"{'CPUs: alone':>11} {'beside':>6}  most of it")
    for name in options.only.split(",") if options.only else NAMED:
        alone, beside, errors, costs_alone, costs_beside = [], [], [], Costs(pids), Costs(pids)
        for _ in range(options.turns):
            with costs_alone.counted():
                times, failed = victim.run(options.seconds)
            alone += times
            errors += failed
            attacker = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--attack", name, "--scene", path],
                                        preexec_fn=lambda: os.nice(19))
            try:
                # It imports gRPC first. The victim asks meanwhile: a tenant leaves room to others while they ask.
                errors += victim.run(SETTLE_S + 1)[1]
                with costs_beside.counted():
                    times, failed = victim.run(options.seconds)
                beside += times
                errors += failed
                assert attacker.poll() is None, f"{name} has ended by itself"
            finally:  # it never ends by itself
                attacker.kill()
                attacker.wait()
            time.sleep(SETTLE_S)
        ratio = percentile(beside, 0.99) / percentile(alone, 0.99)
        most = max(pids, key=lambda name: costs_beside.of(name) - costs_alone.of(name))  # pylint: disable=cell-var-from-loop
        print(f"{name:28} {percentile(alone, 0.5):13.1f} {percentile(alone, 0.99):7.1f} {percentile(beside, 0.5):11.1f} "
              f"{percentile(beside, 0.99):7.1f} {ratio:6.2f} {len(alone):8} {len(beside):9} {len(errors):6} "
              f"{costs_alone.of():11.2f} {costs_beside.of():6.2f}  {most} {costs_alone.of(most):.2f} -> {costs_beside.of(most):.2f}", flush=True)
        wrong += [f"{name}: the p99 is {ratio:.2f} times what it is alone"] if ratio > options.at_most else []
        wrong += [f"{name}: {text}" for text in errors[:3]]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, metavar="N", help="seconds of each measurement (10)")
    parser.add_argument("--turns", type=int, default=2, metavar="N", help="alone and beside it (2)")
    parser.add_argument("--at-most", type=float, default=2, metavar="RATIO", help="largest ratio of the 99th percentiles (2)")
    parser.add_argument("--only", metavar="ATTACK,...", help="attacks to measure, among " + ", ".join(NAMED))
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--scene", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        return attack(options.attack, options.scene)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the cluster ends with us
    from test_gateway import Gateway
    spans = ["--otlp", "127.0.0.1:1"]  # no collector takes them
    with tempfile.TemporaryDirectory(prefix="sluice-victim-") as state, harness.certificates(VICTIM, "client/greedy", *attacks.NAMES) as made, \
            harness.Cluster(certificates=made, args=spans, coordinator_args=["--state", state, *spans]) as cluster:
        keys = os.path.join(made.folder, "keys")
        with open(keys, "w") as file:
            file.writelines(f"{hashlib.sha256(key.encode()).hexdigest()} {tenant}{' requests=60' * (tenant == 'limited')}\n" for tenant, key in KEYS.items())
        os.chmod(keys, 0o600)
        with Gateway(cluster, "--keys", keys, "--tenants", made.folder) as gateway:
            wrong = drive(options, cluster, gateway, made.folder)
    wrong += [f"no attack drives this row of {os.path.basename(TABLE)}: {resource}" for resource in rows_not_driven()]
    for text in wrong:
        print(f"victim: {text}")
    print("victim: served as if alone" if not wrong else f"victim: {len(wrong)} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
