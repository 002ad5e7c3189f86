# SPDX-License-Identifier: Apache-2.0
"""Pictures of a sweep: goodput by rate; at each rate, the distribution of TTFT and the bytes shipped over time."""
from __future__ import annotations

import itertools
import os
import statistics
from typing import Any, Callable, Optional

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


def _styles(lines: list[Figures]) -> dict[str, dict[str, Any]]:
    """Returns how to draw each label: a recipe has a color, and a server a kind of line and a marker."""
    recipes = list(dict.fromkeys(line["recipe"] or line["label"] for line in lines))
    servers = list(dict.fromkeys(line["url"] for line in lines))
    return {line["label"]: {"color": f"C{recipes.index(line['recipe'] or line['label']) % 10}", "label": _label(line["label"]),
                            "linestyle": ("-", "--", ":", "-.")[servers.index(line["url"]) % 4]} for line in lines}


def draw_goodput(lines: list[Figures], slo: str, path: str) -> None:
    """Draws the median goodput of each series by the rate, with the range of its repetitions."""
    figure, axes = new_figure(900, 600)
    series, styles = grouped(lines), _styles(lines)
    highest, most = 0.0, 0.0
    for i, (label, by_rate) in enumerate(series.items()):
        rates = sorted(rate for rate in by_rate if not isinstance(rate, str))
        goodputs = [[line["request_goodput"] for line in by_rate[rate]] for rate in rates]
        middle = [statistics.median(one) for one in goodputs]
        ranges = [[m - min(one) for m, one in zip(middle, goodputs)], [max(one) - m for m, one in zip(middle, goodputs)]]
        beside = 1 + 0.008 * (i - (len(series) - 1) / 2)  # so that ranges at one rate do not cover each other
        axes.errorbar([beside * rate for rate in rates], middle, yerr=ranges, marker="o", markersize=4, capsize=2, **styles[label])
        highest = max([highest, *rates])
        most = max([most, *(max(one) for one in goodputs)])
    axes.plot([0, highest], [0, highest], color="#999999", lw=1, ls=":", label="every request")
    axes.set(title=f"within {slo}; medians and ranges", xlabel="requests/s sent", ylabel="goodput, requests/s", xlim=(0, None),
             ylim=(0, 1.15 * most or None))
    axes.grid(True, color="#dddddd")
    axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncol=2)
    save_figure(figure, path)


def _draw_panels(found: dict[Any, dict[str, list[Any]]], lines: list[Figures], curve: Callable[[list[Any]], tuple[list[float], list[float]]],
                 path: str, limit: Optional[float] = None, **axes_set: Any) -> None:
    """Draws a panel for each rate, in it a curve for each label, and at the limit of x a line."""
    rates, styles = list(found)[:MOST_PANELS], _styles(lines)
    figure, panels = load_pyplot().subplots(1, len(rates), squeeze=False, sharex=True, sharey=True, layout="constrained",
                                            figsize=(4.5 * len(rates), 4.2))
    label_of_y = axes_set.pop("ylabel")
    shown: dict[str, Any] = {}  # a series may have no answer at a rate
    for axes, rate in zip(panels.flat, rates):
        for label, of_label in found[rate].items():
            shown[label], = axes.step(*curve(sorted(of_label)), where="post", **styles[label])
        if limit is not None:
            shown["limit"] = axes.axvline(limit, color="#999999", lw=1, ls=":", label="limit of a good answer")
        axes.set(title=f"{rate} requests/s", **axes_set)
        axes.grid(True, color="#dddddd")
    panels.flat[0].set_ylabel(label_of_y)
    figure.legend(handles=list(shown.values()), fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0), ncol=min(len(rates), 4))
    save_figure(figure, path)


def draw_ttft(times: dict[Any, dict[str, list[float]]], lines: list[Figures], limit_s: Optional[float], path: str) -> None:
    """Draws the share of answers whose first token came within a time. times: milliseconds by rate and label."""
    _draw_panels(times, lines, lambda ordered: (ordered, [100 * (i + 1) / len(ordered) for i in range(len(ordered))]), path,
                 None if limit_s is None else 1000 * limit_s, xlabel="TTFT, ms", ylabel="% of answers", xscale="log", ylim=(0, 100))


def draw_bytes(shipped: dict[Any, dict[str, list[tuple[float, int]]]], lines: list[Figures], path: str) -> None:
    """Draws the bytes of all capsules that had arrived by a time: at the latest, when the first token came."""
    _draw_panels(shipped, lines, lambda ordered: ([0.0, *(at_s for at_s, _ in ordered)], [0.0, *itertools.accumulate(n / 1e6 for _, n in ordered)]),
                 path, xlabel="seconds", ylabel="MB from prefill to decode")
