#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulates a load that alternates between long prompts and long answers, with every fixed split of the nodes, with roles that follow the
load, and with nodes that have both roles. Prints the share of requests within the limits.

    sluice bench hollow --shape llama-3.1-8b -o /tmp/h8b
    sluice bench calibrate -m /tmp/h8b --tier timed:h100 --link 25 -r full,format=int4 --batches 1,8,32 -o /tmp/h8b.json
    lab/simulate/phases.py --model /tmp/h8b --costs /tmp/h8b.json
"""
import argparse
import json
import os
import random
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLUICE = os.path.join(os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin")), "sluice")


def trace(arguments):
    draw, at, rows = random.Random(arguments.seed), 0.0, []
    while at < arguments.phases * arguments.seconds:
        reads = int(at // arguments.seconds) % 2 == 0
        lengths = [(6000, 10000), (20, 60)] if reads else [(300, 700), (400, 800)]
        rows.append({"timestamp": int(at * 1000), "input_length": draw.randint(*lengths[0]), "output_length": draw.randint(*lengths[1])})
        at += draw.expovariate(arguments.prompts if reads else arguments.answers)
    return "".join(json.dumps(row) + "\n" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True)
    add("--costs", required=True)
    add("--recipe", default="full,format=int4")
    add("--nodes", type=int, default=6)
    add("--seconds", type=float, default=1200, help="seconds of a phase")
    add("--phases", type=int, default=2)
    add("--prompts", type=float, default=9, help="long prompts a second")
    add("--answers", type=float, default=17, help="long answers a second")
    add("--rebalance", default="10s")
    add("--slo", default="ttft:2s,tpot:50ms")
    add("--arena", default="40G")
    add("--seed", type=int, default=1)
    arguments = parser.parse_args()
    n = arguments.nodes
    series = {f"{k} read, {n - k} write": ["--prefill", k, "--decode", n - k] for k in range(1, n)}
    series |= {f"roles follow, {arguments.rebalance}": ["--both", n, "--rebalance", arguments.rebalance], "both roles": ["--both", n]}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(trace(arguments))
        file.flush()
        for name, workers in series.items():
            words = [SLUICE, "simulate", "-m", arguments.model, "--costs", arguments.costs, "--trace", file.name, *workers, "--slo", arguments.slo,
                     "--prefill-arena", arguments.arena, "--decode-arena", arguments.arena, "--queue", 1 << 20, "--json", arguments.recipe]
            run = json.loads(subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True).stdout)
            print(f"{name:20} {100 * run['slo_attainment']:5.1f}% in the limits, goodput {run['request_goodput']:.2f}/s, first token p50 "
                  f"{run['p50_ttft_ms']:.0f} ms, p90 {run['p90_ttft_ms']:.0f} ms, changes {run['role_changes']}", flush=True)


if __name__ == "__main__":
    main()
