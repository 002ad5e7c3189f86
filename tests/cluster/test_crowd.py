# SPDX-License-Identifier: Apache-2.0
"""Connections to the gateway that ask nothing: those that do are answered meanwhile."""
import os
import resource
import select
import socket
import threading
import time

from harness import ARENA, MODEL, SLOW, Cluster, Process, connect, eventually, run_tests
import grpc
from test_gateway import Gateway
from test_operate import becomes, probe


def ended(connection):
    return select.select([connection], [], [], 0)[0] and connection.recv(100) == b""


def test_ten_thousand_that_say_nothing():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    n = min(10000, hard - 500)
    with Cluster(kvstore=0) as cluster, Gateway(cluster, "--max-connections", "1000", "--first-timeout", "1h", "--idle-timeout", "1h") as gateway:
        crowd, stop = [], threading.Event()

        def come():
            while len(crowd) < n and not stop.is_set():
                try:
                    crowd.append(socket.create_connection((gateway.host, gateway.port), 1))
                except TimeoutError:
                    pass  # the queue of those that were not taken yet is full
        coming = threading.Thread(target=come)
        coming.start()
        try:
            eventually(lambda: len(crowd) > 2000, 60, "more than there are places for")
            for _ in range(3):
                assert gateway.complete(max_tokens=1)["usage"]["completion_tokens"] == 1
            files = len(os.listdir(f"/proc/{gateway.popen.pid}/fd"))
            assert files < 1100, files
        finally:
            stop.set()
            coming.join()
            for connection in crowd:
                connection.close()
        eventually(lambda: gateway.metric('sluice_gateway_connections{state="waiting"}') < 20, 20, "they are gone")
        assert gateway.metric("sluice_gateway_connections_closed_total") > 200


def test_a_head_that_never_ends_and_a_client_that_stays():
    with Cluster(kvstore=0) as cluster, Gateway(cluster, "--first-timeout", "1s", "--idle-timeout", "1h") as gateway:
        with socket.create_connection((gateway.host, gateway.port), 10 * SLOW) as slow, \
             socket.create_connection((gateway.host, gateway.port), 10 * SLOW) as polite:
            polite.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in polite.recv(1000)
            began = time.monotonic()
            slow.sendall(b"GET /health HTTP/1.1\r\n")
            try:
                while not ended(slow):
                    assert time.monotonic() - began < 20 * SLOW, "a byte at a time keeps it open"
                    slow.sendall(b"x")
                    time.sleep(0.1)
            except (BrokenPipeError, ConnectionResetError):
                pass
            time.sleep(1)  # another one's time between requests is an hour
            polite.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in polite.recv(1000)


def crowd_of(port, n):
    """Opens n connections that say nothing, without those that were reset; fewer once the listener's backlog is full."""
    crowd = []
    for _ in range(n):
        try:
            crowd.append(socket.create_connection(("127.0.0.1", port), 10 * SLOW))
        except ConnectionError:
            pass
        except TimeoutError:
            break
    return crowd


def test_more_connections_than_descriptors():
    """A process has 1,024 descriptors: its other parts can still open files meanwhile, and its port answers once the clients are gone."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def few(words):
        return ["prlimit", "--nofile=512:1024", *words]

    def answers(process):
        with connect(process.address) as channel:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=1 * SLOW)

    coordinator = Process("coordinator", ["sluice-coordinator", "--listen", "127.0.0.1:0", "--model", MODEL], wrap=few)
    worker = Process("decode-0", ["sluice-decode", "--name", "decode-0", "--coordinator", coordinator.address, "--arena", ARENA,
                                  "--model", MODEL, "--threads", "1"], wrap=few)
    for process in (worker, coordinator):
        with open(f"/proc/{process.popen.pid}/limits") as limits:
            assert next(line.split()[3:5] for line in limits if line.startswith("Max open files")) == ["1024", "1024"]
        answers(process)
        crowd = crowd_of(int(process.address.rsplit(":", 1)[1]), 1100)
        assert len(crowd) > 768, len(crowd)
        becomes(process, "/livez", 200, f"the gRPC port {process.address} refuses connections")
        assert 700 < len(os.listdir(f"/proc/{process.popen.pid}/fd")) < 800
        for connection in crowd:
            connection.close()
        answers(process)
        becomes(process, "/livez", 200, "ok\n")
    for process in (worker, coordinator):
        assert process.stop() == 0
        os.remove(process.log_path)


def test_more_http_connections_than_descriptors():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Cluster(kvstore=0) as cluster, Gateway(cluster, wrap=lambda words: ["prlimit", "--nofile=1024", *words]) as gateway:
        assert "768 are accepted" in gateway.errors()
        crowd = crowd_of(gateway.port, 1100)
        assert len(crowd) > 768, len(crowd)
        assert probe(gateway, "/livez") == (200, "ok\n")
        assert gateway.complete(max_tokens=1)["usage"]["completion_tokens"] == 1
        for connection in crowd:
            connection.close()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
