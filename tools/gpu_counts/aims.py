#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the predictions of `sluice bench kernels` (lab/bench/bench_kernels.c) for whole prompts and steps of Llama-3.1-8B on an H200, and
compares them with the targets. Nothing here was measured.

    aims.py             prints the table of docs/GPU_KERNELS.md
    aims.py --json      prints what the report of the kit (tools/gpu_kit) compares with what it has measured

Launches and what waits for them are not in it, nor is the fabric.
"""
import json
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.append(os.path.join(ROOT, "tools"))
import script  # noqa: E402

BANDWIDTH, PRODUCTS = 4.3e12, 480e12  # of a copy, and of our product of 4,096 by 4,096 (docs/GPU_KERNELS.md)
LAYERS, HEADS, KV_HEADS, D, E, F, V = 32, 32, 8, 128, 4096, 14336, 128256
MATRICES = LAYERS * (E * (HEADS + 2 * KV_HEADS) * D + HEADS * D * E + 3 * E * F)  # weights of products, but the head's
HEAD = V * E
LOCRET_GB = 16.82  # sluice bench memory --geometry 8b --tokens 131072 --recipe locret
ROTATED = 1280 / 1692  # cycles of a page in attention, and where its keys are rotated by their slots


def predicted():
    """By case, its fraction of the floor."""
    with open(os.path.join(ROOT, "lab/bench/bench_kernels.c"), encoding="utf-8") as file:
        rows = re.findall(r'^    \{"([^"]+)", .*?([0-9.]+)\},$', file.read(), re.M)
    return {name: float(fraction) for name, fraction in rows}


P = predicted()


def seen(n, budget, chunk):
    """Slots that the rows of a prompt attend to, in all; and those that its chunks move when they evict."""
    total = moved = 0
    held = 0
    for first in range(0, n, chunk):
        rows = min(chunk, n - first)
        total += rows * held + rows * rows / 2
        held += rows
        if budget and held > budget:
            held = budget
            moved += held
    return total, moved


def prefill(n, budget=0, chunk=512, folds=False, rotated=False):
    slots, moved = seen(n, budget, chunk)
    attention = 4 * HEADS * D * LAYERS * slots / (PRODUCTS * P["attend, a prompt, f16"] * (ROTATED if rotated else 1))
    fold = 2 * HEADS * D * LAYERS * slots / (PRODUCTS * P["fold"]) if folds else 0
    products = 2 * MATRICES * n / (PRODUCTS * P["matmul down, bf16"])
    around = n * LAYERS * 4 * (10 * E + 2 * (HEADS + 2 * KV_HEADS) * D + 2 * F) / (BANDWIDTH * P["norm"])
    evict = moved * LAYERS * 2 * 2 * KV_HEADS * D * 2 / (BANDWIDTH * P["gather"])
    return {"products": products, "attention": attention, "fold": fold, "around": around, "gather": evict}


def weights_of(rows):
    """Seconds of a step's products: by shape, as far as a case has it; o is qkv's, and the head up's."""
    qkv, down, up = LAYERS * E * (2 * HEADS + 2 * KV_HEADS) * D, LAYERS * E * F, LAYERS * 2 * E * F + HEAD
    return sum(2 * n / (BANDWIDTH * P[f"matmul {name}, {rows}, bf16"]) for name, n in (("qkv", qkv), ("down", down), ("up", up)))


def decode(sequences, slots, layers, page_bytes, case, rows):
    """Returns the seconds of weights at this many rows and pages of this many layers, and the floor."""
    weights, pages = 2 * (MATRICES + HEAD), sequences * slots / 64 * KV_HEADS * layers * page_bytes
    floor = (weights + pages) / BANDWIDTH
    return weights_of(rows) + pages / (BANDWIDTH * P[case]), floor, pages / (BANDWIDTH * P[case]), pages / BANDWIDTH


def print_json(n, cases, slots):
    """Predictions, and the operations and bytes from which the report computes its floors."""
    seconds = {name: sum(parts.values()) for name, parts, _ in cases}
    operations, rate = 2 * MATRICES * n + 4 * HEADS * D * LAYERS * slots, PRODUCTS * P["matmul down, bf16"]
    batch, batch_floor, *_ = decode(64, 8192, LAYERS, 9216, "attend, a step, int4", "64 rows")
    one, one_floor, *_ = decode(1, n, 1, 2 * 64 * D * 2 // 8 + 1024, "attend, a step, int2", "1 row")
    print(json.dumps({
        "prefill_flop": operations,
        "weight_bytes": 2 * (MATRICES + HEAD),
        "int4_page_bytes": 64 * 8192 / 64 * KV_HEADS * LAYERS * 9216,
        "full_of_products": operations / rate / seconds["full"],
        "h2o_of_full": seconds["h2o,budget=0.25,chunk=2048"] / seconds["full"],
        "locret_of_full": seconds["locret"] / seconds["full"],
        "tailorkv_of_floor": one / one_floor,
        "int4_of_bandwidth": batch_floor / batch,
        "locret_gb": LOCRET_GB,
    }, indent=1))


def main():
    n = 131072
    whole = prefill(n, chunk=2048)
    cases = [("full", whole, None), ("h2o,budget=0.25,chunk=2048", prefill(n, n // 4, 2048, folds=True), 1.0), ("h2o,budget=0.2", prefill(n, n // 5, 512, folds=True), 0.6),
             ("h2o,budget=0.2,chunk=2048", prefill(n, n // 5, 2048, folds=True), 0.6),
             ("locret", prefill(n, 6000, 3072, rotated=True), 0.6)]
    slots, _ = seen(n, 0, 2048)
    if "--json" in sys.argv[1:]:
        print_json(n, cases, slots)
        return
    operations, rate = 2 * MATRICES * n + 4 * HEADS * D * LAYERS * slots, PRODUCTS * P["matmul down, bf16"]
    print(f"prefill of 128k, full: {operations / 1e15:.1f} PFLOP, {operations / rate:.1f} s at the {rate / 1e12:.0f} TFLOP/s of its products: "
          f"{operations / rate / sum(whole.values()):.2f} of that (aim 0.6)")
    for name, parts, aim in cases:
        total = sum(parts.values())
        text = ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts.items() if seconds > 0.05)
        ratio = f", {total / sum(whole.values()):.2f} of full (aim {aim})" if aim else ""
        print(f"prefill of 128k, {name}: {total:.1f} s{ratio}: {text}")
    seconds, floor, pages, pages_floor = decode(64, 8192, LAYERS, 9216, "attend, a step, int4", "64 rows")
    print(f"decode, 64 sequences of 8k, int4: attention {pages * 1e3:.1f} ms, {pages_floor / pages:.2f} of bandwidth (aim 0.7); "
          f"the step {seconds * 1e3:.1f} ms, {floor / seconds:.2f}")
    seconds, floor, pages, _ = decode(1, n, 1, 2 * 64 * D * 2 // 8 + 1024, "attend, a step, int2", "1 row")
    rows = LAYERS * KV_HEADS * (64 + 128) * 2 * D * 2 / (BANDWIDTH * P["attend_slots, the kept"])
    print(f"decode at 128k, tailorkv, one dense layer: {(seconds + rows) * 1e3:.1f} ms, {(seconds + rows) / floor:.1f} times "
          f"weights and resident KV (aim 1.5): weights {(seconds - pages) * 1e3:.1f}, pages {(pages + rows) * 1e3:.2f}; "
          "what the stores answer not in it")


if __name__ == "__main__":
    script.help_if_asked()
    main()
