#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `sluice simulate` with a cluster whose workers take an accelerator's time: the same requests, rates and recipes.

The cluster is real but for its computation (--tier timed:NAME/SLOWER): coordinator, gRPC, data plane and bytes. The table of times
is counted on the same tier (`sluice bench calibrate`). Prints both figures, and by how much the simulator misses.

    lab/simulate/truth.py --recipes "full;full,format=int4" --rates 0.2,0.3,0.4 --count 100
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PRIORITY = ["chrt", "--rr", "1"] if os.geteuid() == 0 else []  # other work of this machine must not delay what only waits
BIN = os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin"))
FIGURES = ("p50_ttft_ms", "p90_ttft_ms", "p50_tpot_ms", "p90_tpot_ms", "request_goodput")


def sluice(*words, **how):
    return subprocess.run([*PRIORITY, os.path.join(BIN, "sluice"), *map(str, words)], check=True, text=True, **how)


def write_trace(path, arguments):
    """Writes requests of a Poisson process, one a second, whose prompts have nothing in common."""
    rng = random.Random(arguments.seed)
    low, high = (int(n) for n in arguments.input.split("-"))
    at_ms = 0.0
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(arguments.count):
            row = {"timestamp": round(at_ms), "input_length": rng.randint(low, high), "output_length": arguments.output}
            file.write(json.dumps(row) + "\n")
            at_ms += rng.expovariate(1) * 1000


def measure(folder, arguments, recipes):
    """Returns the runs of the real cluster."""
    workers = ["--tier", f"timed:{arguments.accelerator}/{arguments.slower:g}"]
    if arguments.link:
        workers += ["--inject", f"pace:{round(1000 * arguments.link / arguments.slower)}"]
    name = f"truth-{os.getpid()}"
    roles = ["--aggregated", "--decode", arguments.decode] if arguments.prefill == 0 else ["--prefill", arguments.prefill, "--decode", arguments.decode]
    up = sluice("up", "--model", f"{folder}/model", *roles, "--kvstore", 0, "--arena", arguments.arena, "--port", 0, "--http-port", 0,
                "--detach", "--name", name, "--state-file", f"{folder}/state", "--", *workers, stdout=subprocess.PIPE)
    try:
        http = next(word for word in up.stdout.split() if word.startswith("http="))[5:]
        found = sluice("bench", "cluster", "--url", f"http://{http}", "--trace", f"{folder}/trace", "--recipes", ";".join(recipes), "--rates",
                       arguments.rates, "--slo", arguments.slo, "--deadline", "30m", "--json", "--requests", f"{folder}/requests",
                       stdout=subprocess.PIPE)
    finally:
        sluice("down", name, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in found.stdout.splitlines()]


def lengths_asked(folder):
    """Rewrites the trace with the prompts' lengths in the server's tokens: words are not exactly tokens."""
    asked = {}
    with open(f"{folder}/requests", encoding="utf-8") as file:
        for line in file:
            one = json.loads(line)
            if one["prompt_tokens"]:
                asked[one["row"]] = one["prompt_tokens"]
    with open(f"{folder}/trace", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    with open(f"{folder}/asked", "w", encoding="utf-8") as file:
        for number, row in enumerate(rows, 1):
            file.write(json.dumps({**row, "input_length": asked.get(number, row["input_length"])}) + "\n")


def simulate(folder, arguments, recipes):
    link = f"{(arguments.link or 1000) / arguments.slower:g}"
    calibrate = [word for recipe in recipes for word in ("--recipe", recipe)]
    sluice("bench", "calibrate", "-m", f"{folder}/model", "--tier", f"timed:{arguments.accelerator}/{arguments.slower:g}", "--link", link, "--contexts",
           "512,2048,8192", "--call", arguments.call, *calibrate, "-o", f"{folder}/costs", stdout=sys.stderr)
    roles = ["--both", arguments.decode] if arguments.prefill == 0 else ["--prefill", arguments.prefill, "--decode", arguments.decode]
    found = sluice("simulate", "-m", f"{folder}/model", "--costs", f"{folder}/costs", "--trace", f"{folder}/asked", "--rate", arguments.rates,
                   "--slo", arguments.slo, *roles, "--prefill-arena", arguments.arena, "--decode-arena", arguments.arena, "--jobs", 64, "--out-only",
                   "--json", *recipes, stdout=subprocess.PIPE)
    return [json.loads(line) for line in found.stdout.splitlines()]


def compare(real, simulated):
    by_run = {(run["label"], run["request_rate"]): run for run in simulated}
    print(f"{'recipe':24} {'rate':>6} {'host':>5}  " + "  ".join(f"{name.removeprefix('request_'):>24}" for name in FIGURES))
    errors = {name: [] for name in FIGURES}
    for run in real:
        one = by_run[run["label"], run["request_rate"]]
        cells = []
        for name in FIGURES:
            error = 100 * (one[name] / run[name] - 1) if run[name] else float("nan")
            errors[name].append(abs(error))
            cells.append(f"{run[name]:8.4g} {one[name]:8.4g} {error:+5.0f}%")
        void = " void" if run["void"] else ""
        print(f"{run['label']:24} {run['request_rate']:6.3g} {100 * (run['host_busy'] or 0):4.0f}%  " + "  ".join(f"{c:>24}" for c in cells) + void)
    print("largest error: " + ", ".join(f"{name} {max(values):.0f}%" for name, values in errors.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--recipes", default="full;full,format=int4")
    add("--rates", default="0.2,0.3,0.4", help="requests a second of slowed time")
    add("--count", type=int, default=100, help="requests of a run")
    add("--input", default="3000-5000")
    add("--output", type=int, default=64)
    add("--slo", default="ttft:20s,tpot:2s")
    add("--accelerator", default="h100")
    add("--slower", type=float, default=20)
    add("--link", type=float, default=10, help="Gbit/s that leave a worker, in time that is not slowed; 0: no limit")
    add("--prefill", type=int, default=2, help="0: --decode workers are aggregated")
    add("--decode", type=int, default=2)
    add("--arena", default="3G")
    add("--call", type=float, default=1, help="ms of a call of the coordinator")
    add("--seed", type=int, default=1)
    add("--folder", help="keep the files there; what was measured there is not measured again")
    arguments = parser.parse_args()
    recipes = arguments.recipes.split(";")
    with tempfile.TemporaryDirectory(prefix="sluice-truth-") as temporary:
        folder = arguments.folder or temporary
        if os.path.exists(f"{folder}/real.json"):
            with open(f"{folder}/real.json", encoding="utf-8") as file:
                real = json.load(file)
        else:
            sluice("bench", "hollow", "--shape", "llama-3.1-8b", "-o", f"{folder}/model", stdout=subprocess.DEVNULL)
            write_trace(f"{folder}/trace", arguments)
            real = measure(folder, arguments, recipes)
            lengths_asked(folder)
            with open(f"{folder}/real.json", "w", encoding="utf-8") as file:
                json.dump(real, file)
        compare(real, simulate(folder, arguments, recipes))


if __name__ == "__main__":
    main()
