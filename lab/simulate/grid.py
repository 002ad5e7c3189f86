#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulates clusters of several sizes, links and recipes, and prints where each is good, as CSV, with a picture by --picture.

Half of the nodes read prompts and half write answers; a row "aggregated" has as many nodes that do both and ship nothing. The load
grows with the nodes.

    sluice bench hollow --shape llama-3.1-8b -o /tmp/h8b
    sluice bench calibrate -m /tmp/h8b --tier timed:h100 --link 100 -r full -r full,format=int4 --batches 1,8,32 -o /tmp/h8b.json
    lab/simulate/grid.py --model /tmp/h8b --costs /tmp/h8b.json --recipes "full;full,format=int4"
"""
import argparse
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLUICE = os.path.join(os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin")), "sluice")


def simulate(arguments, nodes, workers, link):
    """Returns the runs of all recipes."""
    rate = nodes / 2 * arguments.rate
    words = [SLUICE, "simulate", "-m", arguments.model, "--costs", arguments.costs, *workers, "--link", link, "--rate", rate, "--count",
             min(max(int(rate * arguments.seconds), 200), arguments.most), "--input", arguments.input, "--output", arguments.output, "--slo",
             arguments.slo, "--prefill-arena", arguments.arena, "--decode-arena", arguments.arena, "--max-jobs", 64, "--queue", 1 << 20, "--json",
             *arguments.recipes.split(";")]
    done = subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_of(arguments):
    for nodes in map(int, arguments.nodes.split(",")):
        for link in arguments.links.split(","):
            yield nodes, link, simulate(arguments, nodes, ["--prefill", nodes // 2, "--decode", nodes // 2], link)
        yield nodes, "aggregated", simulate(arguments, nodes, ["--both", nodes], arguments.links.split(",")[0])


def draw(path, rows, recipes):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(2 + len(rows), 4))
    for k, recipe in enumerate(recipes):
        axes.bar([i + (k - (len(recipes) - 1) / 2) / (len(recipes) + 1) for i in range(len(rows))], [100 * runs[k]["slo_attainment"] for _, _, runs in rows],
                 1 / (len(recipes) + 1), label=recipe)
    axes.set_xticks(range(len(rows)), [f"{nodes} nodes\n{what}{' Gbit/s' * (what != 'aggregated')}" for nodes, what, _ in rows], fontsize=7)
    axes.set_ylabel("requests within the limits, %")
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncol=len(recipes))  # above the bars
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True)
    add("--costs", required=True)
    add("--recipes", default="full;full,format=int4;full,format=k4v2;10%")
    add("--nodes", default="8,64,1000")
    add("--links", default="25,100,400")
    add("--rate", type=float, default=6, help="requests a second for each two nodes")
    add("--seconds", type=float, default=60)
    add("--most", type=int, default=1000000, help="requests of a run")
    add("--input", default="4000")
    add("--output", default="256")
    add("--arena", default="60G")
    add("--slo", default="ttft:1s,tpot:25ms")
    add("--picture", metavar="FILE")
    arguments = parser.parse_args()
    recipes = arguments.recipes.split(";")
    print("model,nodes,link,recipe,in_slo_percent,goodput,ttft_p90_s,tpot_p90_ms,queue_mean_s,mb_an_answer")
    rows = []
    for nodes, what, runs in rows_of(arguments):
        rows.append((nodes, what, runs))
        for run in runs:
            model = os.path.basename(arguments.model.rstrip("/"))
            mb = run["capsule_bytes"] / max(run["completed"], 1) / 1e6
            print(f'{model},{nodes},{what},"{run["label"]}",{100 * run["slo_attainment"]:.0f},{run["request_goodput"]:.1f},'
                  f'{run["p90_ttft_ms"] / 1000:.2f},{run["p90_tpot_ms"]:.1f},{run["mean_queue_s"]:.2f},{mb:.0f}', flush=True)
    if arguments.picture:
        draw(arguments.picture, rows, recipes)


if __name__ == "__main__":
    main()
