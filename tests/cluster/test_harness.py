#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the other tests of this folder rely on: a process that has just started can be called at once, and a port is one test's alone."""
import concurrent.futures
import os
import signal
import socket
import subprocess
import sys

from harness import call, connect, eventually, free_port, health, refused, run_tests
import grpc


def test_a_process_that_has_just_started_is_called_at_once():
    address = f"127.0.0.1:{free_port()}"
    slow = ("grpc.initial_reconnect_backoff_ms", 20000)  # what a channel waits before it tries this address again
    with connect(address, slow) as before:
        refused((grpc.StatusCode.UNAVAILABLE,), call, before, "grpc.health.v1.Health.Check", health.HealthCheckRequest(), 5)
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        assert server.add_insecure_port(address)
        server.start()
        with connect(address, slow) as after:
            refused((grpc.StatusCode.UNIMPLEMENTED,), call, after, "grpc.health.v1.Health.Check", health.HealthCheckRequest(), 5)
        server.stop(0)


def test_a_port_is_given_once():
    ports = {free_port() for _ in range(50)}
    assert len(ports) == 50, ports
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass
    # Another process that has no other port to choose from gets none.
    other = ("import random, sys; sys.path.insert(0, sys.argv.pop(1)); import harness; ports = list(map(int, sys.argv[1:]));"
             "random.sample = lambda *_: ports; harness.free_port()")
    tried = subprocess.run([sys.executable, "-c", other, os.path.dirname(os.path.abspath(__file__)), *map(str, ports)],
                           capture_output=True, text=True, timeout=60)
    assert tried.returncode == 1 and "no free port" in tried.stderr, tried


def test_a_test_that_is_killed_leaves_no_process():
    """What it started ends, and what that started: a worker would join the next cluster at this port."""
    starts = ("import subprocess, sys; sys.path.insert(0, sys.argv[1]); import harness; "
              "worker = harness.Process('kvstore-0', ['sluice-kvstore', '--coordinator', f'127.0.0.1:{harness.free_port()}', '--arena', '8M']); "
              "shell = subprocess.Popen(['sh', '-c', 'sleep 600 & echo $!; wait'], stdout=subprocess.PIPE, text=True, start_new_session=True); "
              "print(worker.popen.pid, shell.stdout.readline(), worker.log_path, flush=True); sys.stdin.read()")
    test = subprocess.Popen([sys.executable, "-c", starts, os.path.dirname(os.path.abspath(__file__))], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
    worker, sleeper, log = (test.stdout.readline() + test.stdout.readline()).split()
    assert all(os.path.exists(f"/proc/{pid}") for pid in (worker, sleeper))
    test.kill()
    test.wait()
    try:
        eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in (worker, sleeper)), 10, "what it started has ended")
    except AssertionError:
        os.kill(int(worker), signal.SIGKILL)
        raise
    os.remove(log)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
