#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Small jobs for a long time: soak.py [--minutes N] [--warmup MINUTES] [--rate JOBS_A_SECOND] [--tolerance KIB_AN_HOUR]

A cluster with a gateway gets small jobs at a steady rate: over gRPC and HTTP, with several recipes, some of them cancelled, refused, or
left by their client. Memory that a process keeps for each job shows as a slope. It must be flat after the warm-up, in which retained jobs
and indexes reach their bounds. Memory that processes share (the arenas) is counted apart: its bound is the arenas' size. So are malloc's caches
of threads, by switching them off: each grows for most of an hour, to at most 7 blocks of each of 64 sizes, 236 KiB.

Fails if a slope is above the tolerance, if shared memory is above its bound, if descriptors or threads grow, or if a job fails.
"""
import argparse
import itertools
import os
import random
import signal
import statistics
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "cluster"), os.path.join(os.path.dirname(os.path.dirname(HERE)), "tools")]
import script  # noqa: E402

SAMPLE_S = 5
RECIPES = ["full", "full,format=int8", "h2o,budget=0.5", "tailorkv"]
# The coordinator's bounds are small, so what it retains has turned over several times before the warm-up ends. With the defaults, a thousand
# jobs, its memory is flat later.
BOUNDS = ["--prefixes", "2048", "--kept-jobs", "200"]
ARENA_KIB = 48 << 10  # harness.ARENA


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, metavar="N", help="minutes of jobs (60)")
    parser.add_argument("--warmup", type=float, default=10, metavar="MINUTES", help="before memory must be flat (10)")
    parser.add_argument("--rate", type=float, default=4, metavar="N", help="jobs a second (4)")
    parser.add_argument("--tolerance", type=float, default=1024, metavar="KIB",
                        help="growth of a process in an hour that counts as flat (1024: 73 bytes a job)")
    parser.add_argument("--csv", metavar="FILE", help="write every sample there")
    options = parser.parse_args()
    if options.minutes < options.warmup + 2:
        parser.error("--minutes: at least two more than --warmup")
    return options


def sample(pid):
    """Returns (own KiB, shared KiB, descriptors, threads) of a process."""
    with open(f"/proc/{pid}/status") as file:
        kib = {words[0]: int(words[1]) for words in (line.split() for line in file) if words[0] in ("RssAnon:", "RssShmem:")}
    return kib["RssAnon:"], kib["RssShmem:"], len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def slope(points):
    """Returns the median slope of all pairs of points (Theil and Sen): single jumps do not count."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if b[0] - a[0] > 30]
    return statistics.median(slopes)


class Load(threading.Thread):
    def __init__(self, cluster, gateway, rate):
        super().__init__(daemon=True)
        self.cluster, self.gateway, self.rate = cluster, gateway, rate
        self.stop, self.wrong, self.n_done = threading.Event(), [], 0
        self.rng = random.Random(1)

    def grpc_job(self, text, recipe):
        request = harness.inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=6, ignore_eos=True)
        finished, _ = self.cluster.answer(request)
        assert finished.status_code == 0, finished.status_text

    def http_job(self, text, recipe):
        status, reply = self.gateway.post("/v1/completions", {"prompt": text, "recipe": recipe, "max_tokens": 6, "temperature": 0})
        assert status == 200, reply

    def cancelled(self, text, recipe):
        request = harness.inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=400, ignore_eos=True)
        self.cluster.cancel(self.cluster.submit(request))

    def left(self, text, recipe):
        """The client closes its connection after the first bytes of a streamed answer."""
        with self.gateway.stream("/v1/completions", {"prompt": text, "recipe": recipe, "max_tokens": 400, "temperature": 0}) as (reply, _):
            reply.read(20)

    def refused(self, text, _recipe):
        status, reply = self.gateway.post("/v1/completions", {"prompt": text, "recipe": "nonsense"})
        assert status == 400, reply

    def run(self):
        kinds = [self.grpc_job, self.http_job] * 4 + [self.cancelled, self.left, self.refused]
        began = time.monotonic()
        for i in itertools.count():
            if self.stop.wait(max(0, began + i / self.rate - time.monotonic())):
                return
            # Three lengths of fifty texts, each with another number: some prompts begin alike, none is the same
            text = harness.document(self.rng.choice([300, 600, 900]), value=str(10000 + i), seed=i % 50) + harness.question()
            kind = kinds[i % len(kinds)]
            try:
                kind(text, RECIPES[i // len(kinds) % len(RECIPES)])
                self.n_done += 1
            except Exception as error:
                self.wrong.append(f"job {i} ({kind.__name__}): {error}")


def report(samples, options, n_workers):
    """Prints a row for each process. Returns what is wrong."""
    wrong = []
    print(f"{'process':12} {'own KiB: start':>14} {'after warm-up':>13} {'end':>7} {'KiB/hour':>9} {'shared KiB':>10} {'fds':>9} {'threads':>9}")
    for name, rows in samples.items():
        warm = [row for row in rows if row[0] >= options.warmup * 60]
        growth = 3600 * slope([(at, own) for at, own, *_ in warm])
        first, last = (tuple(statistics.median(column) for column in zip(*rows)) for rows in (warm[:12], warm[-12:]))
        shared = max(row[2] for row in rows)
        print(f"{name:12} {rows[0][1]:14} {first[1]:13.0f} {last[1]:7.0f} {growth:9.0f} {shared:10} {first[3]:4.0f}-{last[3]:<4.0f} "
              f"{first[4]:4.0f}-{last[4]:<4.0f}")
        if growth > options.tolerance:
            wrong.append(f"{name} grows by {growth:.0f} KiB in an hour, at most {options.tolerance:.0f}")
        if shared > n_workers * ARENA_KIB:
            wrong.append(f"{name} shares {shared} KiB, more than all arenas: {n_workers * ARENA_KIB}")
        wrong += [f"{name} has {last[column]:.0f} {what}, and had {first[column]:.0f}" for column, what in ((3, "descriptors"), (4, "threads"))
                  if last[column] > first[column] + 4]
    return wrong


def run(options, cluster, gateway):
    pids = {**{name: process.popen.pid for name, process in cluster.processes.items()}, "gateway": gateway.popen.pid}
    samples = {name: [] for name in pids}
    load, began = Load(cluster, gateway, options.rate), time.monotonic()
    load.start()
    while (at := time.monotonic() - began) < options.minutes * 60:
        for name, pid in pids.items():
            samples[name].append((at, *sample(pid)))
        time.sleep(SAMPLE_S)
    load.stop.set()
    load.join(60)
    if options.csv:
        with open(options.csv, "w") as file:
            file.write("second,process,own_kib,shared_kib,descriptors,threads\n")
            file.writelines(f"{at:.0f},{name},{','.join(map(str, rest))}\n" for name, rows in samples.items() for at, *rest in rows)
    wrong = report(samples, options, len(cluster.processes) - 1)
    wrong += load.wrong[:10] + ([f"{len(load.wrong)} jobs went wrong"] if load.wrong else [])
    print(f"soak: {load.n_done} jobs in {options.minutes:g} minutes", flush=True)
    return wrong


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the cluster ends with us
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.tcache_count=0"
    script.needs("grpc", "google.protobuf")
    global harness
    import harness
    from test_gateway import Gateway
    with harness.Cluster(coordinator_args=BOUNDS) as cluster, Gateway(cluster) as gateway:
        wrong = run(options, cluster, gateway)
    for text in wrong:
        print(f"soak: {text}")
    if not wrong:
        print("soak: memory is flat")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
