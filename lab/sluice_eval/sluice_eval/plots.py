# SPDX-License-Identifier: Apache-2.0
"""Pictures of a report, by matplotlib: quality by bytes with the Pareto front, bars, a map of tasks, maps of depths."""
from __future__ import annotations

import math
import os
import pathlib
from typing import TYPE_CHECKING, Any, Optional

from .errors import EvalError, UsageError
from .outputs import check_place

if TYPE_CHECKING:  # its NumPy is not needed to draw
    from .report import Report, Row

DPI = 100
MAX_LABEL = 44  # characters of a recipe's name
BLUE, DARK_BLUE, ORANGE, GRAY = "#1f77b4", "#1f4e79", "#d95f02", "#999999"


def load_pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("pictures need matplotlib: install the package python3-matplotlib, or ask for none") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot


def check_path(path: Optional[str]) -> None:
    """Checks that a picture can be written to `path`, before hours of work. None: no picture is requested."""
    if path is not None:
        load_pyplot()
        check_place(path)


def save_figure(figure: Any, path: str) -> None:
    """Writes the picture, which appears under its name whole or not at all."""
    temporary = pathlib.Path(f"{path}.{os.getpid()}.png")
    try:
        figure.savefig(temporary, dpi=DPI, bbox_inches="tight")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise EvalError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        load_pyplot().close(figure)


def _label(row: Row) -> str:
    name = row.recipe.name
    short = name[:MAX_LABEL] + "..." * (len(name) > MAX_LABEL)
    return f"{short} {row.recipe.budget}".strip().replace("$", r"\$")


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    return load_pyplot().subplots(figsize=(width / DPI, height / DPI), layout="constrained")


def _answered(report: Report) -> list[Row]:
    return [row for row in report.rows if not math.isnan(row.mean)]


def _is_shown(row: Row, offloads: bool) -> bool:
    return row.complete and row.shipped > 0 and row.offloads == offloads


def frontier(report: Report) -> list[Row]:
    """Returns the recipes without offloaded layers that no other one beats in score with fewer bytes, by bytes."""
    rows = sorted((row for row in report.rows if _is_shown(row, False)), key=lambda row: (row.shipped, -row.mean))
    kept: list[Row] = []
    for row in rows:
        if not kept or row.mean > kept[-1].mean:
            kept.append(row)
    return kept


def _place_label(axes: Any, row: Row, color: str, boxes: list[Any]) -> None:
    """Writes the row's name beside its point, on the nearest of some lines above or below that is free."""
    figure = axes.figure
    for lines in sorted(range(-12, 13), key=lambda n: (abs(n), n < 0)):
        text = axes.annotate(_label(row), (100 * row.shipped, 100 * row.mean), xytext=(7, 11 * lines), color=color,
                             textcoords="offset points", fontsize=8, va="center")
        box = text.get_window_extent(figure.canvas.get_renderer())
        if not any(box.overlaps(other) for other in boxes) or lines == -12:
            boxes.append(box)
            return
        text.remove()


def plot_pareto(report: Report, path: str) -> None:
    """Draws the mean score by shipped bytes."""
    figure, axes = new_figure(1300, 800)
    shown = [row for row in report.rows if _is_shown(row, False)]
    stored = [row for row in report.rows if _is_shown(row, True)]
    front = frontier(report)
    for rows, style, label in [
            (shown, {"marker": "o", "ms": 5, "ls": "", "color": GRAY}, "recipes"),
            (front, {"marker": "o", "ms": 7, "lw": 2, "color": BLUE}, "none is better and smaller"),
            (stored, {"marker": "^", "ms": 8, "ls": "", "color": ORANGE}, "layers in stores as well")]:
        if rows:
            axes.plot([100 * row.shipped for row in rows], [100 * row.mean for row in rows], label=label, **style)
    least = min((100 * row.shipped for row in shown + stored), default=1)
    axes.set(xscale="log", xlim=(10 ** math.floor(math.log10(least)), 300), ylim=(0, 105), ylabel="mean score",
             xlabel="bytes shipped, of the full cache in f16")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}%")
    axes.grid(True, color="#dddddd")
    if shown or stored:
        axes.legend(loc="lower right")
    figure.canvas.draw()
    boxes: list[Any] = []
    for rows, color in ((front, DARK_BLUE), (stored, ORANGE)):
        for row in rows:
            _place_label(axes, row, color, boxes)
    save_figure(figure, path)


def plot_bars(report: Report, path: str) -> None:
    """Draws the mean score of each recipe, with the interval of its difference to `full`."""
    rows = _answered(report)
    figure, axes = new_figure(1000, 240 + 18 * len(rows))
    places = list(range(len(rows)))
    axes.barh(places, [100 * row.mean for row in rows], height=0.7, color=BLUE, alpha=0.6)
    for place, row in zip(places, rows):
        if not math.isnan(row.to_full.low):
            full = row.mean - row.to_full.mean  # mean of full, on the same questions
            axes.plot([100 * (full + row.to_full.low), 100 * (full + row.to_full.high)], [place, place], color="#222222", lw=2)
    axes.set(xlim=(0, 100), ylim=(len(rows) - 0.5, -0.5), xlabel="mean score; lines: 95% interval of the difference to full")
    axes.set_yticks(places, [_label(row) for row in rows], fontsize=8)
    axes.grid(True, axis="x", color="#dddddd")
    save_figure(figure, path)


def _heat_map(axes: Any, values: list[list[float]]) -> Any:
    return axes.imshow([[100 * value for value in row] for row in values], cmap="RdYlGn", vmin=0, vmax=100, aspect="auto")


def plot_tasks(report: Report, path: str) -> None:
    """Draws the score of each recipe and task as a heat map."""
    rows = _answered(report)
    figure, axes = new_figure(560 + 64 * len(report.tasks), 240 + 20 * len(rows))
    figure.colorbar(_heat_map(axes, [row.tasks for row in rows] or [[math.nan] * len(report.tasks)]))
    for y, row in enumerate(rows):
        for x, value in enumerate(row.tasks):
            if not math.isnan(value):
                axes.text(x, y, f"{100 * value:.0f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(report.tasks)), report.tasks, rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
    save_figure(figure, path)


def plot_suites(report: Report, prefix: str) -> None:
    """Draws PREFIX-pareto.png, PREFIX-bars.png and PREFIX-tasks.png."""
    plot_pareto(report, f"{prefix}-pareto.png")
    plot_bars(report, f"{prefix}-bars.png")
    plot_tasks(report, f"{prefix}-tasks.png")


def plot_grid(report: Report, depths: list[float], lengths: list[int], path: str) -> None:
    """Draws a map of the scores by depth and length for each recipe. The plan's cells are in the order of the depths."""
    rows = _answered(report)
    across = max(1, min(3, len(rows)))
    down = max(1, -(-len(rows) // across))
    figure, all_axes = load_pyplot().subplots(down, across, squeeze=False, layout="constrained",
                                          figsize=(4.8 * across, (160 + 22 * len(depths)) * down / DPI))
    for axes in all_axes.flat[len(rows):]:
        axes.axis("off")
    for axes, row in zip(all_axes.flat, rows):
        means = [cell.mean for cell in row.cells]
        image = _heat_map(axes, [means[d * len(lengths):(d + 1) * len(lengths)] for d in range(len(depths))])
        figure.colorbar(image, ax=axes)
        axes.set(title=_label(row), xlabel="tokens of the prompt", ylabel="depth of the fact")
        axes.set_xticks(range(len(lengths)), map(str, lengths))
        axes.set_yticks(range(len(depths)), [f"{100 * depth:.3g}%" for depth in depths])
    save_figure(figure, path)
