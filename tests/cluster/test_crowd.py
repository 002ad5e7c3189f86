# SPDX-License-Identifier: Apache-2.0
"""Connections to the gateway that ask nothing: those that do are answered meanwhile."""
import os
import resource
import select
import socket
import threading
import time

from harness import SLOW, Cluster, eventually, run_tests
from test_gateway import Gateway


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
            polite.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
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
            polite.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in polite.recv(1000)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
