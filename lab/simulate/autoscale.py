#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulates a day, in which the load rises and falls, on fixed numbers of workers and on numbers that follow it (deploy/components/keda).

A day is the trace again and again, with the lengths that it has and other prompts each time; arrivals are a Poisson process whose rate
swings once around the trace's own.

    lab/simulate/autoscale.py --model /tmp/h8b --costs /tmp/h8b.json --trace mooncake_conversation.jsonl
"""
import argparse
import json
import math
import os
import random
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLUICE = os.path.join(os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin")), "sluice")


def write_day(path, arguments):
    """Thins a Poisson process of the highest rate; returns the mean rate."""
    with open(arguments.trace, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    mean = len(rows) * 1000 / max(rows[-1]["timestamp"], 1)
    rng, at_s, n, day_s = random.Random(arguments.seed), 0.0, 0, 3600 * arguments.hours
    with open(path, "w", encoding="utf-8") as file:
        while (at_s := at_s + rng.expovariate(mean * (1 + arguments.swing))) < day_s:
            if rng.random() * (1 + arguments.swing) < 1 - arguments.swing * math.cos(2 * math.pi * at_s / day_s):
                row = rows[n % len(rows)]
                file.write(json.dumps({"timestamp": round(1000 * at_s), "input_length": row["input_length"],
                                       "output_length": row["output_length"]}) + "\n")
                n += 1
    return n / day_s


def simulate(path, arguments, prefill, decode, *more):
    words = [SLUICE, "simulate", "-m", arguments.model, "--costs", arguments.costs, "--trace", path, "--slo", arguments.slo, "--link",
             arguments.link, "--prefill", prefill, "--decode", decode, "--prefill-arena", arguments.arena, "--decode-arena", arguments.arena,
             "--max-jobs", 64, "--queue", 1 << 20, "--json", *more, arguments.recipe]
    return json.loads(subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True)
    add("--costs", required=True)
    add("--trace", required=True, help="trace in Mooncake's format")
    add("--recipe", default="full,format=int4")
    add("--hours", type=float, default=24)
    add("--swing", type=float, default=0.8, help="swing of the rate around its mean; below 1")
    add("--fixed", default="2:2,3:2,4:2,5:2,6:2", help="prefill and decode workers")
    add("--most", type=int, default=16, help="workers of a role that follow the load")
    add("--starts", default="30s,2m,10m", help="times until a worker that is added takes jobs")
    add("--link", default="25", help="Gbit/s")
    add("--arena", default="60G")
    add("--slo", default="ttft:5s,tpot:50ms")
    add("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-day-") as folder:
        path = os.path.join(folder, "day")
        rate = write_day(path, arguments)
        runs = [(f"{one} fixed", *map(int, one.split(":"))) for one in arguments.fixed.split(",")]
        runs += [(f"follow, start {start}", arguments.most, arguments.most, "--autoscale", 2, "--start", start)
                 for start in arguments.starts.split(",")]
        print(f"{'prefill, decode workers':24} {'goodput':>8} {'of sent':>8} {'TTFT p90, p99, s':>17} {'worker-hours':>13}   ({rate:.2f} sent/s)")
        for name, *words in runs:
            run = simulate(path, arguments, *words)
            print(f"{name:24} {run['request_goodput']:8.2f} {100 * run['slo_attainment']:7.1f}% {run['p90_ttft_ms'] / 1000:8.2f} "
                  f"{run['p99_ttft_ms'] / 1000:8.2f} {run['worker_hours']:13.1f}", flush=True)


if __name__ == "__main__":
    main()
