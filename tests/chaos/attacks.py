# SPDX-License-Identifier: Apache-2.0
"""
What strangers, a greedy tenant and a lying worker do to the cluster of chaos.py: faults as its others, but by peers that follow a protocol.
docs/budget.csv has the bounds that hold them. An attack that gets what it must not get is a violation.
"""
import socket
import ssl
import struct
import threading
import time

import grpc
from harness import SLOW, cluster_pb, inference, refused, stub, worker_pb, call

GREEDY, IMPOSTOR = "client/greedy", "worker/kvstore/impostor"  # certificates that no client or worker of chaos.py has
NAMES = (GREEDY, IMPOSTOR)
ATTACK_S = 3
MANY = 400  # connections: more than a data-plane or an admin port keeps of silent ones
Code = grpc.StatusCode
# A worker that another fault has stopped, or a link that is cut, cannot refuse.
REFUSALS = [Code.PERMISSION_DENIED, Code.UNAUTHENTICATED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED]


def addresses_of(process):
    return [address for address in (process.address, process.fabric, process.admin) if address]


def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=1)


def flood_half_open(scene, rng):
    """Connections that begin nothing, or stop in the middle of a TLS handshake, to every port of a process."""
    name = rng.choice(sorted(scene.bends))
    opened = []
    for address in addresses_of(scene.process(name)):
        for i in range(MANY):
            try:
                opened.append(connect(address))
                if i % 2:
                    opened[-1].send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            except OSError:  # refused: the port keeps no more
                break
    time.sleep(ATTACK_S)
    for connection in opened:
        connection.close()
    return f"{len(opened)} connections to {name}"


def tls_of(scene, who):
    made = scene.cluster.certificates
    context = ssl.create_default_context(cafile=f"{made.folder}/ca.pem")
    context.check_hostname = False
    context.load_cert_chain(made.file(who, "pem"), made.file(who, "key"))
    context.set_alpn_protocols(["h2"])
    return context


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def reset_streams(scene, rng):
    """HTTP/2 streams of a tenant that are opened and reset at once, over connection after connection."""
    method = rng.choice([b"/sluice.v1.Inference/List", b"/sluice.v1.Inference/Generate"])
    head = b"".join(literal(*pair) for pair in ((b":method", b"POST"), (b":scheme", b"https"), (b":path", method), (b":authority", b"x"),
                                                (b"te", b"trailers"), (b"content-type", b"application/grpc")))
    context, n, n_connections, until = tls_of(scene, GREEDY), 0, 0, time.monotonic() + ATTACK_S
    while time.monotonic() < until:
        try:
            with context.wrap_socket(connect(scene.process("coordinator").address), server_hostname="localhost") as connection:
                n_connections += 1
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
                for stream in range(1, 200001, 2):
                    connection.sendall(frame(1, 4, stream, head) + frame(0, 0, stream, bytes(5)) + frame(3, 0, stream, struct.pack(">I", 8)))
                    n += 1
                    if time.monotonic() > until:
                        break
        except OSError:  # closed for it
            time.sleep(0.05)
    return f"{n} streams over {n_connections} connections"


def hold_parts(scene, rng):
    """Requests in parts of 2 MB that never end."""
    stop, n_calls = threading.Event(), rng.choice([8, 64])

    def parts():
        for _ in range(4):
            yield inference.GenerateRequest(text="x" * 2000000)
        stop.wait(60)

    with scene.cluster.channel_of(GREEDY) as channel:
        calls = [stub(channel.stream_stream, "sluice.v1.Inference.SubmitInParts")(parts(), timeout=60) for _ in range(n_calls)]
        time.sleep(ATTACK_S)
        n_held = sum(one.is_active() for one in calls)
        stop.set()
        for one in calls:
            one.cancel()
    return f"{n_held} of {n_calls} calls held"


def lie_in_heartbeats(scene, rng):
    """A worker's own certificate, which reports a term of 2^62, no memory in use, and no progress, again and again."""
    name, n, until = rng.choice(sorted(scene.places)), 0, time.monotonic() + ATTACK_S
    try:
        epoch = next(w.info.epoch for w in scene.cluster.workers().workers if w.info.name == name)
    except (StopIteration, grpc.RpcError):
        return f"none of {name}, which is not registered"
    lie = cluster_pb.HeartbeatRequest(name=name, epoch=epoch, term=1 << 62, load=cluster_pb.WorkerLoad())
    with scene.cluster.channel_of(f"worker/{name.rpartition('-')[0]}/{name}") as channel:
        while time.monotonic() < until:
            try:
                call(channel, "sluice.v1.Cluster.Heartbeat", lie, 2)
                n += 1
            except grpc.RpcError:  # the worker has been replaced, or the coordinator restarts
                pass
            time.sleep(0.05)
    return f"{n} of {name}"


def use_wrong_roles(scene, rng):
    """Certificates of the cluster that may not do what they are used for: every call must be refused, and no byte of a capsule comes."""
    info = cluster_pb.WorkerInfo(name="prefill-0", role=cluster_pb.PREFILL, rpc_address="127.0.0.1:1", fabric_address="127.0.0.1:2", version="0.1.0")
    tries = [("coordinator", who, "sluice.v1.Cluster.RegisterWorker", cluster_pb.RegisterRequest(worker=info), False) for who in NAMES]
    tries += [("coordinator", who, "sluice.v1.Cluster.Heartbeat", cluster_pb.HeartbeatRequest(name="prefill-0", term=1 << 62), False) for who in NAMES]
    tries += [("coordinator", IMPOSTOR, "sluice.v1.Inference.Submit", inference.GenerateRequest(text="x", max_new_tokens=1), False)]
    for worker, method, message, streams in (("prefill-0", "sluice.v1.Prefill.Run", worker_pb.PrefillRequest(), True),
                                             ("decode-1", "sluice.v1.Decode.Reserve", worker_pb.ReserveRequest(term=1 << 62), False),
                                             ("kvstore-1", "sluice.v1.Store.Read", worker_pb.StoreKey(), True)):
        tries += [(worker, who, method, message, streams) for who in NAMES]
    n_refused = 0
    for target, who, method, message, streams in rng.sample(tries, len(tries)):
        with scene.cluster.certificates.channel(scene.process(target).address, who) as channel:
            def ask():
                if streams:
                    return list(stub(channel.unary_stream, method)(message, timeout=2 * SLOW))
                return stub(channel.unary_unary, method)(message, timeout=2 * SLOW)
            try:
                refused(REFUSALS, ask)
                n_refused += 1
            except (AssertionError, grpc.RpcError) as error:
                scene.counts.violation(f"{who} calls {method} of {target}: {error}")
    return f"{n_refused} of {len(tries)} calls refused"


FAULTS = (flood_half_open, reset_streams, hold_parts, lie_in_heartbeats, use_wrong_roles)
