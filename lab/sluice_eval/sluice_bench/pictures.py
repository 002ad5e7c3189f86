# SPDX-License-Identifier: Apache-2.0
"""Pictures of a sweep: goodput by rate; at each rate, the distribution of TTFT and the bytes shipped over time."""
from __future__ import annotations

import itertools
import os
import statistics
from typing import Any, Callable

from sluice_eval.errors import EvalError
from sluice_eval.plots import load_pyplot, new_figure, save_figure

from .report import Figures, grouped

MOST_PANELS = 6


def prepare(folder: str) -> None:
    """Makes the folder, before the runs. EvalError: pictures cannot be drawn or written."""
    load_pyplot()
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise EvalError(f"{folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise EvalError(f"{folder}: cannot be written")


def _label(name: str) -> str:
    return name[:60].replace("$", r"\$")


def draw_goodput(lines: list[Figures], slo: str, path: str) -> None:
    """Draws the median goodput of each series by the rate, with the range of its repetitions."""
    figure, axes = new_figure(900, 600)
    highest = 0.0
    for label, by_rate in grouped(lines).items():
        rates = sorted(rate for rate in by_rate if not isinstance(rate, str))
        goodputs = [[line["request_goodput"] for line in by_rate[rate]] for rate in rates]
        middle = [statistics.median(one) for one in goodputs]
        below = [m - min(one) for m, one in zip(middle, goodputs)]
        above = [max(one) - m for m, one in zip(middle, goodputs)]
        axes.errorbar(rates, middle, yerr=[below, above], marker="o", capsize=4, label=_label(label))
        highest = max([highest, *rates])
    axes.plot([0, highest], [0, highest], color="#999999", lw=1, ls=":", label="every request within the SLO")
    axes.set(xlabel="requests/s sent", ylabel=f"goodput, requests/s within {slo}", xlim=(0, None), ylim=(0, None))
    axes.grid(True, color="#dddddd")
    axes.legend()
    save_figure(figure, path)


def _draw_panels(found: dict[Any, dict[str, list[Any]]], curve: Callable[[list[Any]], tuple[list[float], list[float]]], path: str,
                 **axes_set: Any) -> None:
    """Draws a panel for each rate, and in it a curve for each label."""
    rates = list(found)[:MOST_PANELS]
    figure, panels = load_pyplot().subplots(1, len(rates), squeeze=False, sharey=True, layout="constrained", figsize=(4.5 * len(rates), 4.2))
    label_of_y = axes_set.pop("ylabel")
    for axes, rate in zip(panels.flat, rates):
        for label, of_label in found[rate].items():
            axes.step(*curve(sorted(of_label)), where="post", label=_label(label))
        axes.set(title=f"{rate} requests/s", **axes_set)
        axes.grid(True, color="#dddddd")
    panels.flat[0].set_ylabel(label_of_y)
    panels.flat[0].legend(fontsize=8)
    save_figure(figure, path)


def draw_ttft(times: dict[Any, dict[str, list[float]]], path: str) -> None:
    """Draws the share of answers whose first token came within a time. times: milliseconds by rate and label."""
    _draw_panels(times, lambda ordered: (ordered, [100 * (i + 1) / len(ordered) for i in range(len(ordered))]), path, xlabel="TTFT, ms",
                 ylabel="% of answers", xscale="log", ylim=(0, 100))


def draw_bytes(shipped: dict[Any, dict[str, list[tuple[float, int]]]], path: str) -> None:
    """Draws the bytes of all capsules that had arrived by a time: at the latest, when the first token came."""
    _draw_panels(shipped, lambda ordered: ([0.0, *(at_s for at_s, _ in ordered)], [0.0, *itertools.accumulate(n / 1e6 for _, n in ordered)]), path,
                 xlabel="seconds", ylabel="MB from prefill to decode")
