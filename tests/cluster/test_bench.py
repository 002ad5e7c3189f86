#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `make bench-cluster` runs, in its smallest form: two modes and two recipes by turns with pictures, the coordinator, the store, and
the simulator beside timed workers; and two hosts over a shaped link."""
import concurrent.futures
import json
import os
import shutil
import subprocess
import tempfile

from harness import BIN, ROOT, SLOW, inference, run_tests, worker_pb
import grpc

ENVIRONMENT = {**os.environ, "SLUICE_BIN": BIN, "PATH": "/usr/bin:" + os.environ["PATH"]}  # the distribution's Python has matplotlib


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=200 * SLOW, env=ENVIRONMENT)
    assert done.returncode == 0, done
    return done.stdout


def rows(*words):
    """Returns the figures that a bench prints, by name."""
    lines = map(json.loads, run(os.path.join(BIN, "sluice"), "bench", *words, "--json").splitlines())
    return {line["case"]: line["value"] for line in lines if "run" not in line}


def test_modes_and_recipes_take_turns():
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        out = run(os.path.join(ROOT, "tools/bench_cluster.sh"), "--modes", "aggregated,disaggregated", "--recipes", "full@50;10%@40", "--rates", "4,8",
                  "--duration", "1s", "--repetitions", "1", "--input", "200-300", "--output", "4-8", "--slo", "e2el:1m", "--max-lag", "1m", "--json",
                  "--pictures", folder)
        assert sorted(os.listdir(folder)) == ["bytes.png", "goodput.png", "ttft.png"], os.listdir(folder)
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["label"] for line in lines} == {f"{mode} {recipe}" for mode in ("aggregated", "disaggregated")
                                                 for recipe in ("full (50 points)", "10% (40 points)")}, out
    assert len(lines) == 8 and all(line["completed"] == line["num_prompts"] > 0 and line["slo_attainment"] == 1 for line in lines), out
    shipped = {line["label"]: line["capsule_bytes"] for line in lines if line["request_rate"] == 8}
    assert shipped["disaggregated 10% (40 points)"] < shipped["disaggregated full (50 points)"] / 4, shipped


def test_the_coordinator_alone():
    """A thousand jobs wait for tokens at once, and take less than 64 KiB each."""
    for _ in range(3):  # a busy host adds memory of threads and of messages that wait: the least is the jobs'
        found = rows("coordinator", "--cells", "16:1000", "--token-ms", "400", "--seconds", "6", "--second-rate", "50")
        told = {name.partition(": ")[2].removesuffix(" (VOID)"): value for name, value in found.items()}
        if told["memory a job"] < 64:
            break
    assert told["jobs"] > 1 and told["full rate, refused or failed"] == told["50/s, refused or failed"] == 0, found
    assert abs(told["tokens"] / told["jobs"] - 8) < 0.001 and told["50/s, added p99"] > 0, found
    assert told["50/s to the workers, added p99"] > 0 == told["50/s to the workers, refused or failed"], found
    assert 0 < told["memory a job"] < (64 if SLOW == 1 else 1 << 20), found  # sanitizers take more


class Worker(grpc.GenericRpcHandler):
    """Grants memory, and reports that it reads a prompt; if it has an end, then that."""
    def __init__(self, *ends):
        self.events = [worker_pb.PrefillEvent(prefill=inference.PrefillProgress(tokens_done=1 << 40, tokens_total=1 << 41)), *ends]

    def service(self, details):
        if details.method.endswith("/Reserve"):
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: worker_pb.Grant().SerializeToString())
        return grpc.unary_stream_rpc_method_handler(lambda _request, _context: iter([event.SerializeToString() for event in self.events]))


def test_workers_that_do_more_than_wait():
    for worker in Worker(), Worker(worker_pb.PrefillEvent(done=worker_pb.PrefillDone())):
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[worker])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        long = address.replace(":", ":" + "0" * 200)  # as that of a host with a long name
        found = json.loads(run(os.path.join(BIN, "sluice"), "bench", "jobs", "--direct", f"{long},{address}", "--per-second", "5", "--seconds", "1"))
        assert found["failed"] > 0 and "without a result" in found["why"], found
        server.stop(None).wait()


def test_the_store_alone():
    found = rows("store", "--largest", "64K", "--clients", "2", "--runs", "1", "--entries", "1024")
    for transport in ("shm", "tcp"):
        assert found[f"GET 64 KiB over {transport}, 2 clients"] > 0, found
        assert 0 < found[f"GET 64 KiB over {transport}, 1 client: look-up"] < 1e6, found


def test_two_hosts():
    """Prefill with a store, and decode, in network namespaces over a shaped link."""
    probe = f"sluice-probe-{os.getpid()}"
    if os.geteuid() != 0 or not shutil.which("tc") or subprocess.run(["ip", "netns", "add", probe], check=False).returncode != 0:
        print("no network namespaces can be made here")
        return
    subprocess.run(["ip", "netns", "del", probe], check=True)
    out = run(os.path.join(ROOT, "tests/cluster/two_hosts.py"), "--geometry", "narrow", "--tokens", "400", "--new-tokens", "4", "--rates", "1", "--runs", "1",
              "--arena", "64M", "--recipe", "full", "--recipe", "full,format=int4", "--json")
    full, int4 = map(json.loads, out.splitlines())
    assert (full["rate_gbit"], full["recipe"], int4["recipe"]) == (1, "full", "full,format=int4") and full["ttft_ms"] > 0, out
    assert 0 < int4["capsule_mib"] < 0.7 * full["capsule_mib"], out


def test_the_simulator_beside_timed_workers():
    """So few requests that all are within the limits even at once: the rates that are tried end where the cluster does not keep up."""
    out = run("/usr/bin/python3", os.path.join(ROOT, "lab/simulate/truth.py"), "--recipes", "full,format=int4", "--slower", "1", "--count", "4", "--claim", "",
              "--most-busy", "2", "--input", "200-300", "--output", "8")
    rows_, last = [line.split() for line in out.splitlines()[1:4]], out.splitlines()[4]
    assert [row[0] for row in rows_] == 3 * ["full,format=int4"] and last.startswith("largest error: p50_ttft_ms "), out
    low, middle, high = sorted(float(row[1]) for row in rows_)
    assert 0 < low < middle < high < 1000 and abs(high - 2 * low) < 0.05 * high, out


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
