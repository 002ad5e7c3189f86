#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Measures the capacity of coordinator and gateway alone. Both are real; workers compute nothing (`sluice bench coordinator --join`); each client sends one
request after the other (many_clients.c); all run on this machine. Prints answers a second, their times, and each process's CPU use.

    tests/cluster/capacity.py [--clients 1,16,64,256] [--seconds 8] [--tokens 16] [--token-ms 2] [--state]
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import BIN, MODEL, Process, script  # noqa: E402

OURS = os.path.join(os.path.dirname(BIN), "tests", "bin")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(way, address, clients, options, processes):
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    children = os.times()
    run = subprocess.run([os.path.join(OURS, "many_clients"), way, address, str(clients), str(options.seconds), str(options.tokens)],
                         capture_output=True, check=True, text=True)
    result = json.loads(run.stdout)
    after = os.times()
    used = {name: (cpu_seconds(pid) - before[name]) / result["seconds"] for name, pid in processes.items()}
    used["clients"] = (after.children_user + after.children_system - children.children_user - children.children_system) / result["seconds"]
    return result, used


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1,16,64,256", help="how many at once, each for itself")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--token-ms", type=int, default=2, help="time that a worker waits for each token")
    parser.add_argument("--ways", default="grpc,http")
    parser.add_argument("--state", action="store_true", help="a coordinator that keeps jobs on a disk")
    options = parser.parse_args()
    script.needs_programs(OURS, "many_clients")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-capacity-"))
        state = ["--state", os.path.join(folder, "jobs")] if options.state else []

        def started(name, words):
            process = Process(name, [*words, "--log", "warn"])
            stack.callback(os.remove, process.log_path)
            stack.callback(process.stop)
            return process
        coordinator = started("coordinator", ["sluice-coordinator", "--listen", "127.0.0.1:0", "--model", MODEL, "--max-jobs", "4096", "--queue",
                                              "4096", "--max-watchers", "8192", *state])
        workers = stack.enter_context(subprocess.Popen([os.path.join(BIN, "sluice"), "bench", "coordinator", "--join", coordinator.address, "--model",
                                                        MODEL, "--token-ms", str(options.token_ms)], stdout=subprocess.PIPE))
        stack.callback(workers.terminate)
        assert workers.stdout.readline().startswith(b"ready workers=8 "), "the workers did not start"
        words = ["sluice-gateway", "--listen", "127.0.0.1:0", "--coordinator", coordinator.address, "--max-requests", "4096", "--log", "warn"]
        with subprocess.Popen([os.path.join(BIN, words[0]), *words[1:]], stdout=subprocess.PIPE) as gateway:
            stack.callback(gateway.terminate)
            addresses = {"grpc": coordinator.address, "http": gateway.stdout.readline().split()[1].decode().split("=")[1]}
            processes = {"coordinator": coordinator.popen.pid, "gateway": gateway.pid, "workers": workers.pid}
            print("| way | clients | answers/s | p50, ms | p99, ms | failed | coordinator | gateway | workers | clients |\n"
                  "|---|---|---|---|---|---|---|---|---|---|")
            for way in options.ways.split(","):
                for clients in map(int, options.clients.split(",")):
                    result, used = ask(way, addresses[way], clients, options, processes)
                    print(f"| {way} | {clients} | {result['answers'] / result['seconds']:.0f} | {result['p50_ms']} | {result['p99_ms']} | "
                          f"{result['failures']} | " + " | ".join(f"{used[name]:.2f}" for name in (*processes, "clients")) + " |", flush=True)
            gateway.terminate()


if __name__ == "__main__":
    main()
