# SPDX-License-Identifier: Apache-2.0
"""The pictures of `sluice` commands: `python3 -m sluice_eval.figures KIND FILE.png` draws the data on standard input, a JSON value.

To add one: a function below and a row of KINDS. A command calls it by sl_picture_draw() (lab/picture.h). null is a missing number.
"""
from __future__ import annotations

import json
import math
import sys
from typing import Any

from .errors import FAILED, EvalError, UsageError
from .plots import BLUE, MAX_LABEL, ORANGE, load_pyplot, new_figure, save_figure

NO_LIBRARY = 3  # the exit code without matplotlib
GIB = 1 << 30


def _grid(width: float, height: float, rows: int, columns: int) -> tuple[Any, Any]:
    return load_pyplot().subplots(rows, columns, figsize=(width / 100, height / 100), layout="constrained")


def _label(text: str) -> str:
    return (text[:MAX_LABEL] + "..." * (len(text) > MAX_LABEL)).replace("$", r"\$")


def _numbers(values: list[Any]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _heat(figure: Any, axes: Any, rows: list[list[Any]], extent: tuple[float, float], **colors: Any) -> None:
    """Draws rows as a map, the first on top; their columns go from extent[0] to extent[1]."""
    image = axes.imshow([_numbers(row) for row in rows], aspect="auto", interpolation="nearest",
                        extent=(*extent, len(rows) - 0.5, -0.5), **colors)
    figure.colorbar(image, ax=axes)


def _recipes(names: list[str], rows: list[list[Any]], extent: tuple[float, float]) -> tuple[Any, Any, Any]:
    """Draws a map with a row for each recipe; the panel to its right stays empty."""
    figure, (left, right) = _grid(1900, 480 + 16 * len(rows), 1, 2)
    _heat(figure, left, rows, extent, cmap="OrRd", vmin=0)
    left.set_yticks(range(len(rows)), [_label(name) for name in names], fontsize=8)
    right.set_ylim(len(rows) - 0.5, -0.5)
    right.grid(True, axis="x", color="#dddddd")
    right.set_axisbelow(True)
    return figure, left, right


def fidelity(data: dict[str, Any]) -> Any:
    """Left, the error of every layer; right, the cost of a recipe in predictions, with its bytes."""
    n_layers = len(data["errors"][0])
    figure, left, right = _recipes(data["recipes"], data["errors"], (-0.5, n_layers - 0.5))
    left.set(title="attention output beside the full cache: relative error", xlabel="layer")
    right.barh(range(len(data["above"])), data["above"], height=0.7, color=BLUE, alpha=0.6)
    right.set_yticks(range(len(data["shares"])), [f"{100 * share:.0f}%" for share in data["shares"]], fontsize=8)
    right.set(title="predictions", xlabel="nll above the full cache (nats a token)", ylabel="bytes, of f16")
    return figure


def perplexity(data: list[dict[str, Any]]) -> Any:
    """Left, the cost of a recipe along the text; right, its total with its interval and its slots. The first is the full cache."""
    block, full = data[0]["block"], data[0]["curve"]
    rows = [[math.log(value / least) for value, least in zip(line["curve"], full)] for line in data]
    figure, left, right = _recipes([line["case"] for line in data], rows, (0, len(full) * block))
    left.set(title="above the full cache along the text (nats a token)", xlabel=f"position (blocks of {block} tokens)")
    right.barh(range(len(data)), [line["above_full"] for line in data], height=0.7, color=BLUE, alpha=0.6)
    for place, line in enumerate(data):
        if line["low"] is not None:
            right.plot([line["low"], line["high"]], [place, place], color="black", lw=1.5)
            right.plot([line["above_full"]], [place], "o", color="black", ms=3)
    right.set_yticks(range(len(data)), [f"{line['slots']:.0f}" for line in data], fontsize=8)
    right.set(title="above the full cache, 95% interval", xlabel="nats a token", ylabel="slots")
    return figure


def profile(data: dict[str, Any]) -> Any:
    """Layers above, and their heads below, of a sluice_profile.json."""
    attention, n_layers = data["attention"], len(data["dense_preference"])

    def layers(name: str) -> list[float]:
        return [sum(heads) / len(heads) for heads in attention[name]]

    figure, axes = _grid(1800, 900, 2, 3)
    axes[0][0].axhline(data["threshold"], ls="--", color="black", label="threshold: dense above")
    axes[0][0].plot(data["dense_preference"], marker="o", ms=3, label="outside of the top 5%")
    axes[0][0].set(title="dense preference", ylabel="share of the attention", ylim=(0, 1))
    for name, label in [("first_1", "first slot"), ("first_4", "first 4"), ("first_64", "first 64"), ("last_64", "last 64")]:
        axes[0][1].plot(layers(name), marker="o", ms=3, label=label)
    axes[0][1].set(title="sinks and recency", ylabel="share of the attention", ylim=(0, 1))
    for name, label in [("slots_99", "99% of the attention"), ("slots_95", "95%"), ("slots_90", "90%")]:
        axes[0][2].plot(layers(name), marker="o", ms=3, label=label)
    axes[0][2].set(title="sparsity", ylabel="share of the slots that hold", yscale="log")
    for one in axes[0]:
        one.grid(True, color="#dddddd")
        one.legend()
        one.set(xlabel="layer", xlim=(-0.5, n_layers - 0.5))
    for one, name, title, colors in [
            (axes[1][0], "first_4", "attention on the first 4 slots", {"vmin": 0, "vmax": 1}),
            (axes[1][1], "last_64", "attention on the last 64 slots", {"vmin": 0, "vmax": 1}),
            (axes[1][2], "effective_slots", "effective slots", {"norm": "log"})]:
        _heat(figure, one, [list(heads) for heads in zip(*attention[name])], (-0.5, n_layers - 0.5), cmap="Blues", **colors)
        one.set(title=title, xlabel="layer", ylabel="KV head")
        one.yaxis.get_major_locator().set_params(integer=True)
    return figure


def kept(data: dict[str, Any]) -> Any:
    """The share of every position's slots that each head of a capsule has kept."""
    n_heads, rows = data["kv_heads"], data["map"]
    figure, axes = new_figure(1280, max(400, min(4000, 160 + 12 * len(rows))))
    _heat(figure, axes, rows, (0, data["tokens"]), cmap="Blues", vmin=0, vmax=1)
    step = (len(rows) // n_heads + 39) // 40
    axes.set_yticks(range(0, len(rows), step * n_heads), range(0, len(rows) // n_heads, step))
    axes.set(title=data["title"].replace("$", r"\$"), xlabel="position", ylabel="layer, head by head")
    return figure


def training(data: dict[str, Any]) -> Any:
    """Loss and overlap by step, with means over the last 1/50 of the steps."""
    steps = range(1, len(data["overlap"]) + 1)
    window = max(1, len(steps) // 50)
    figure, left = new_figure(1000, 600)
    right = left.twinx()
    for axes, name, label, color in [(left, "smooth_l1", "smooth-L1 loss", BLUE), (right, "overlap", "overlap of the best tenth", ORANGE)]:
        values = data[name]
        sums = [0.0]
        for value in values:
            sums.append(sums[-1] + value)
        means = [(sums[i] - sums[max(0, i - window)]) / min(i, window) for i in steps]
        axes.plot(steps, values, ",", color=color, alpha=0.4)
        axes.plot(steps, means, color=color, lw=2)
        axes.set_ylabel(label, color=color)
    left.set(title=data["title"].replace("$", r"\$"), xlabel="step", ylim=(0, None))
    right.set_ylim(0, 1)
    left.grid(True, color="#dddddd")
    return figure


def evict(data: list[dict[str, Any]]) -> Any:
    """Hits by the store's size under each policy, and the prefill time that each saves beyond the first one's."""
    figure, (left, right) = _grid(1000, 420, 1, 2)
    policies = list(dict.fromkeys(line["policy"] for line in data))
    first = [line["saved_s"] for line in data if line["policy"] == policies[0]]
    for policy in policies:
        lines = [line for line in data if line["policy"] == policy]
        sizes = [line["store_bytes"] / GIB for line in lines]
        left.plot(sizes, [100 * line["hit_tokens_share"] for line in lines], marker="o", ms=4, label=policy)
        right.plot(sizes, [100 * (line["saved_s"] / least - 1) if least > 0 else 0 for line, least in zip(lines, first)],
                   marker="o", ms=4, label=policy)
    left.axhline(100 * data[0]["limit_tokens_share"], color="black", label="never evicts")
    left.set(title="hits, % of the tokens", ylim=(0, None))
    right.set(title=f"prefill time saved, % more than {policies[0]}")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("memory of the store, GiB")
        axes.grid(True, color="#dddddd")
        axes.legend()
    return figure


KINDS = {"evict": evict, "fidelity": fidelity, "kept": kept, "perplexity": perplexity, "profile": profile, "training": training}


def main(words: list[str]) -> int:
    """Draws, or with `check` only finds out whether it could. Returns the exit code."""
    try:
        load_pyplot()
        if words != ["check"]:
            kind, path = words
            save_figure(KINDS[kind](json.load(sys.stdin)), path)
    except UsageError:
        return NO_LIBRARY
    except EvalError as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
