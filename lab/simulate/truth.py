#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `sluice simulate` with a cluster whose workers take an accelerator's time: the same requests, rates and recipes.

The cluster is real but for its computation (--tier timed:NAME/SLOWER): coordinator, gRPC, data plane and bytes. The table of times
is counted on the same tier (`sluice bench calibrate`). Even rows of the trace set three rates: --shares of the highest at which
the simulator keeps 90% of them within the limits, and answers half as many a second. Odd rows are sent to both. Prints both figures, and by how much the simulator misses;
exit code 1 if it misses a claimed figure by more than --within, or a claim's run is VOID: the host was busier than --most-busy.

    lab/simulate/truth.py --trace mooncake_conversation.jsonl --recipes "full;full,format=int4"

With --engine the cluster computes: the table is measured on this machine, which nothing else may use.

    lab/simulate/truth.py --engine smollm2 --prefill 1 --decode 1 --recipes full,format=int4 --count 20

With --against timed it is compared with timed workers in place of the simulator: a hollow model of --shape on --tier timed:TFLOPS:GBPS,
whose two numbers make the workers' times those of the measured table (medians over its prompts and steps).

    lab/simulate/truth.py --engine smollm2 --against timed --prefill 1 --decode 1 --count 15 --input 400-800 --claim ""
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin"))
FIGURES = ("p50_ttft_ms", "p90_ttft_ms", "p50_tpot_ms", "p90_tpot_ms", "request_goodput")


def sluice(*words, **how):
    return subprocess.run([os.path.join(BIN, "sluice"), *map(str, words)], check=True, text=True, **how)


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read_rows(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def drawn(arguments):
    """Returns requests of a Poisson process, one a second, whose prompts have nothing in common."""
    rng = random.Random(arguments.seed)
    low, high = (int(n) for n in arguments.input.split("-"))
    at_ms = 0.0
    for _ in range(2 * arguments.count):
        yield {"timestamp": round(at_ms), "input_length": rng.randint(low, high), "output_length": arguments.output}
        at_ms += rng.expovariate(1) * 1000


def spread(rows):
    """Returns the rows with those of one timestamp spread until the next one: which of them comes first would be chance."""
    times = sorted({row["timestamp"] for row in rows})
    following = dict(zip(times, times[1:] + [2 * times[-1] - times[-2]]))
    for at in times:
        same = [row for row in rows if row["timestamp"] == at]
        for i, row in enumerate(same):
            yield {**row, "timestamp": round(at + (following[at] - at) * i / len(same))}


def write_halves(folder, arguments):
    """Writes the even rows and the odd ones. Those of a trace are scaled, and share nothing."""
    rows = list(drawn(arguments))
    if arguments.trace:
        rows = [{"timestamp": row["timestamp"], "input_length": max(2, min(round(row["input_length"] * arguments.scale), arguments.longest)),
                 "output_length": max(2, round(row["output_length"] * arguments.scale))}
                for row in spread(read_rows(arguments.trace)[:2 * arguments.count])]
    write_rows(f"{folder}/even", rows[::2])
    write_rows(f"{folder}/trace", [{**row, "timestamp": row["timestamp"] - rows[1]["timestamp"]} for row in rows[1::2]])


def model(folder, arguments):
    return arguments.engine or f"{folder}/model"


def computing(arguments):
    """Returns the options of a worker, and of `sluice bench calibrate`."""
    return ["--threads", 1] if arguments.engine else ["--tier", f"timed:{arguments.accelerator}/{arguments.slower:g}"]


def hollow(folder, shape):
    sluice("bench", "hollow", "--shape", shape, "-o", f"{folder}/model", stdout=subprocess.DEVNULL)


def measure(folder, arguments, recipes, rates):
    """Returns the runs of the real cluster."""
    workers = computing(arguments)
    if arguments.link:
        workers += ["--inject", f"pace:{round(1000 * arguments.link / arguments.slower)}"]
    name = f"truth-{os.getpid()}"
    roles = ["--aggregated", "--decode", arguments.decode] if arguments.prefill == 0 else ["--prefill", arguments.prefill, "--decode", arguments.decode]
    try:
        up = sluice("up", "--model", model(folder, arguments), *roles, "--kvstore", 0, "--arena", arguments.arena, "--port", 0, "--http-port", 0,
                    "--detach", "--name", name, "--state-file", f"{folder}/state", "--", *workers, stdout=subprocess.PIPE)
        http = next(word for word in up.stdout.split() if word.startswith("http="))[5:]
        found = sluice("bench", "cluster", "--url", f"http://{http}", "--trace", f"{folder}/trace", "--recipes", ";".join(recipes), "--rates",
                       rates, "--slo", arguments.slo, "--deadline", "30m", "--json", "--requests", f"{folder}/requests", stdout=subprocess.PIPE)
    finally:
        subprocess.run([os.path.join(BIN, "sluice"), "down", name], stdout=subprocess.DEVNULL, check=False)
    return sorted((json.loads(line) for line in found.stdout.splitlines()), key=lambda run: (run["label"], run["request_rate"]))


def write_asked(folder, run):
    """Writes the trace with the prompts' lengths of a run in the server's tokens: words are not exactly tokens, nor the same ones each time."""
    asked = {one["row"]: one["prompt_tokens"] for one in read_rows(f"{folder}/requests")
             if (one["label"], one["request_rate"]) == (run["label"], run["request_rate"]) and one["prompt_tokens"]}
    write_rows(f"{folder}/asked", [{**row, "input_length": asked.get(number, row["input_length"])}
                                   for number, row in enumerate(read_rows(f"{folder}/trace"), 1)])


def calibrate(folder, arguments, recipes, name="costs"):
    link = f"{(arguments.link or 1000) / arguments.slower:g}"
    chosen = [word for recipe in recipes for word in ("--recipe", recipe)]
    contexts, batches = ("512,2048", "1,4") if arguments.engine or arguments.against == "timed" else ("512,2048,8192", "1,4,16")
    sluice("bench", "calibrate", "-m", model(folder, arguments), *computing(arguments), "--link", link, "--contexts", contexts,
           "--batches", batches, "--call", arguments.call, *chosen, "-o", f"{folder}/{name}", stdout=sys.stderr)


def simulate(folder, trace, arguments, recipes, rates):
    roles = ["--both", arguments.decode] if arguments.prefill == 0 else ["--prefill", arguments.prefill, "--decode", arguments.decode]
    found = sluice("simulate", "-m", model(folder, arguments), "--costs", f"{folder}/costs", "--trace", f"{folder}/{trace}", "--rate", rates,
                   "--slo", arguments.slo, *roles, "--prefill-arena", arguments.arena, "--decode-arena", arguments.arena, "--jobs", 64, "--out-only",
                   "--json", *recipes, stdout=subprocess.PIPE)
    return [json.loads(line) for line in found.stdout.splitlines()]


def ratio(measured, counted, of):
    """Returns the median of the measured times over the counted ones, of the prompts or the steps of one answer."""
    times = [{(recipe, *row[:-1]): row[-1] for recipe, rows in table[of].items() for row in rows if of == "reading" or row[0] == 1}
             for table in (measured, counted)]
    return statistics.median(ms / times[1][at] for at, ms in times[0].items())


def fit(folder, arguments, recipes):
    """Returns the name of an accelerator that takes as long as the measured table says."""
    peak, bandwidth = 0.1, 10.0
    with open(f"{folder}/costs", encoding="utf-8") as file:
        measured = json.load(file)
    for _ in range(6):  # a product takes the time of its operations or of its bytes: each number changes what the other one decides
        arguments.accelerator = f"{peak:.4g}:{bandwidth:.4g}"
        calibrate(folder, arguments, recipes, "counted")
        with open(f"{folder}/counted", encoding="utf-8") as file:
            counted = json.load(file)
        peak /= ratio(measured, counted, "reading")
        bandwidth /= ratio(measured, counted, "decode")
    return arguments.accelerator


def measure_timed(folder, arguments, recipes, real):
    """Returns the runs of timed workers with the rates, and the prompts' lengths, of the engine's."""
    write_asked(folder, real[0])
    os.replace(f"{folder}/asked", f"{folder}/trace")
    timed = argparse.Namespace(**{**vars(arguments), "engine": None})
    hollow(folder, arguments.shape)
    print(f"timed workers: {fit(folder, timed, recipes)} (TFLOP/s : GB/s)")
    return measure(folder, timed, recipes, ",".join(f"{rate:g}" for rate in sorted({run["request_rate"] for run in real})))


def holds(run):
    """Returns whether the cluster keeps up. So few requests that even all at once are within the limits do not tell by those."""
    return run["slo_attainment"] >= 0.9 and run["request_throughput"] >= run["request_rate"] / 2


def choose_rates(folder, arguments, recipes):
    """Returns three rates that the even rows set, for the first recipe."""
    highest = 1 / arguments.slower
    for step in (2, 1.1):
        while holds(simulate(folder, "even", arguments, recipes[:1], f"{step * highest:.4g}")[0]):
            highest *= step
    return ",".join(f"{float(share) * highest:.3g}" for share in arguments.shares.split(","))


def compare(real, simulated, arguments):
    """Prints the table. Returns whether every claim holds."""
    print(f"{'recipe':24} {'rate':>6} {'host':>5}  " + "  ".join(f"{name.removeprefix('request_'):>24}" for name in FIGURES))
    errors = {name: [] for name in FIGURES}
    good = True
    for run, one in zip(real, simulated, strict=True):
        cells = []
        for name in FIGURES:
            error = 100 * (one[name] / run[name] - 1) if run[name] else 100.0 * (one[name] > 0)
            errors[name].append(abs(error))
            cells.append(f"{run[name]:8.4g} {one[name]:8.4g} {error:+5.0f}%")
        busy = run["host_busy"] or 0
        void = " VOID" if run["void"] or busy > arguments.most_busy else ""
        good = good and not void
        print(f"{run['label']:24} {run['request_rate']:6.3g} {100 * busy:4.0f}%  " + "  ".join(f"{c:>24}" for c in cells) + void)
    print("largest error: " + ", ".join(f"{name} {max(values):.0f}%" for name, values in errors.items()))
    claims = [name for name in arguments.claim.split(",") if name]
    return not claims or good and all(max(errors[name]) <= arguments.within for name in claims)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--recipes", default="full;full,format=int4")
    add("--trace", help="trace in Mooncake's format. Default: requests are drawn")
    add("--scale", type=float, default=0.1, help="factor of the trace's lengths")
    add("--longest", type=int, default=3000, help="tokens of a prompt of the trace")
    add("--rates", help="requests a second of slowed time. Default: even rows set them")
    add("--shares", default="0.4,0.6,0.8", help="shares of the highest rate; above 1 the cluster is overloaded")
    add("--count", type=int, default=30, help="requests of a run")
    add("--input", default="1000-2000", help="tokens of drawn prompts")
    add("--output", type=int, default=32, help="tokens of drawn answers")
    add("--slo", default="ttft:2500ms,tpot:40ms")
    add("--engine", metavar="MODEL", help="compute with this model, one thread a worker, in place of waiting")
    add("--against", choices=("simulator", "timed"), default="simulator", help="compare the engine with this [simulator]")
    add("--shape", default="smollm2-135m", help="shape of the timed workers' hollow model, with --against timed [smollm2-135m]")
    add("--accelerator", default="h100")
    add("--slower", type=float, default=5)
    add("--link", type=float, default=10, help="Gbit/s that leave a worker, in time that is not slowed; 0: no limit")
    add("--prefill", type=int, default=2, help="0: --decode workers are aggregated")
    add("--decode", type=int, default=2)
    add("--arena", default="2G")
    add("--call", type=float, default=2, help="ms of a call of the coordinator, with what else the host does for it")
    add("--seed", type=int, default=1)
    add("--within", type=float, default=10, help="percent")
    add("--claim", default=",".join(FIGURES), help="figures that must be within it")
    add("--most-busy", type=float, help="share of the host's time [0.7, with --engine 1]")
    add("--folder", help="keep the files there; what was measured there is not measured again")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.against == "timed" and not arguments.engine:
        parser.error("--against timed: the engine is compared with it: give --engine MODEL")
    arguments.slower = 1 if arguments.engine else arguments.slower
    if arguments.most_busy is None:
        arguments.most_busy = 1 if arguments.engine else 0.7
    recipes = arguments.recipes.split(";")
    with tempfile.TemporaryDirectory(prefix="sluice-truth-") as temporary:
        folder = arguments.folder or temporary
        os.makedirs(folder, exist_ok=True)
        if not os.path.exists(f"{folder}/real.json"):
            if not arguments.engine:
                hollow(folder, "llama-3.1-8b")
            write_halves(folder, arguments)
            calibrate(folder, arguments, recipes)
            rates = arguments.rates or choose_rates(folder, arguments, recipes)
            write_rows(f"{folder}/real.json", measure(folder, arguments, recipes, rates))
        real, simulated = read_rows(f"{folder}/real.json"), []
        if arguments.against == "timed":
            simulated = measure_timed(folder, arguments, recipes, real)
        for run in real if arguments.against == "simulator" else []:
            write_asked(folder, run)
            simulated += simulate(folder, "asked", arguments, [run["label"]], f"{run['request_rate']:g}")
        sys.exit(0 if compare(real, simulated, arguments) else 1)


if __name__ == "__main__":
    main()
