# SPDX-License-Identifier: Apache-2.0
"""A report as tables, for a terminal or for a page in Markdown. Scores and differences in points of 100."""
from __future__ import annotations

import math
from typing import Iterator

from .bootstrap import Interval
from .report import PRECONDITION_ABSENT, Report, Row, Verdict
from .tables import Table


def _points(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _difference(d: Interval) -> str:
    """Returns "-3.2 [-5.0, -1.1] *": a star if the interval does not contain 0."""
    if math.isnan(d.mean):
        return "-"
    if math.isnan(d.low):
        return f"{100 * d.mean:+.1f}"
    star = " *" if d.low > 0 or d.high < 0 else ""
    return f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]{star}"


def _shipped(row: Row) -> str:
    """Returns "4.2% +47.9%": the shares sent to decode, and to stores; "4.2% +" if no answer reports the latter."""
    if math.isnan(row.shipped):
        return "-"
    if row.offloaded > 0:
        return f"{100 * row.shipped:.1f}% +{100 * row.offloaded:.1f}%"
    return f"{100 * row.shipped:.1f}%" + (" +" if row.offloads else "")


class _Writer:
    def __init__(self, report: Report, is_markdown: bool, width: int) -> None:
        self._report, self._is_markdown, self._width = report, is_markdown, width
        self._has_budgets = any(row.recipe.budget for row in report.rows)
        self._has_lengths = len(report.lengths) > 1

    def _table(self, table: Table) -> str:
        return table.markdown() if self._is_markdown else table.text(self._width)

    def _heading(self, text: str) -> str:
        return f"\n## {text}\n\n" if self._is_markdown else f"\n{text}\n\n"

    def whole(self, subject: str) -> str:
        title = self._report.plan.title
        head = (f"# {title}\n\n" if self._is_markdown else f"{title}\n") if title else ""
        return "".join([head, f"{subject}\n\n", self._scores(), self._legend(), self._refusals(), self._verdicts(),
                        self._choices()])

    def _scores(self) -> str:
        r = self._report
        titles = ["RECIPE"] + [">BUDGET"] * self._has_budgets + [">" + task for task in r.tasks]
        titles += [f">AT {n}" for n in r.lengths] * self._has_lengths + [">MEAN", ">SHIPPED", "TO FULL, 95%"]
        table = Table(titles)
        for row in r.rows:
            table.add(*self._score_cells(row))
        return self._table(table)

    def _score_cells(self, row: Row) -> Iterator[str]:
        yield row.recipe.name
        if self._has_budgets:
            yield row.recipe.budget
        for task, score in zip(self._report.tasks, row.tasks):
            refused = any(cell.name == task and scores.refused is not None
                          for cell, scores in zip(self._report.plan.cells, row.cells))
            yield "n/a" if math.isnan(score) and refused else _points(score)
        if self._has_lengths:
            yield from map(_points, row.lengths)
        if math.isnan(row.mean):
            yield from "--"
        else:
            yield _points(row.mean) + ("" if row.complete else "?")
            yield _shipped(row)
        yield " " if row is self._report.rows[0] else _difference(row.to_full)

    def _legend(self) -> str:
        rows = self._report.rows
        stores = " +: what stores get beside it." if any(row.offloads for row in rows) else ""
        parts = "" if all(row.complete for row in rows) else "\n?: not of all cells, not to be compared."
        return ("\nScores in points of 100. SHIPPED: bytes of the full cache in f16. TO FULL: difference on the same questions, "
                f"with the\ninterval of a paired bootstrap; * where that does not reach 0.{stores}{parts}\n")

    def _refusals(self) -> str:
        """Returns the reasons of rejections, one per recipe and task."""
        lines = []
        for row in self._report.rows:
            last = ""
            for cell, scores in zip(self._report.plan.cells, row.cells):
                if scores.refused is None or scores.refused == last:
                    continue
                last = scores.refused
                length = f" of {cell.n_tokens} tokens" if cell.n_tokens else ""
                lines.append(f"{'- ' * self._is_markdown}n/a: {row.recipe.label}, {cell.name}{length}: {last}\n")
        return "\n" * bool(lines) + "".join(lines)

    def _verdicts(self) -> str:
        if not self._report.verdicts:
            return ""
        table = Table(["PAPER", "CLAIM", ">BUDGET", ">BETTER", ">WORSE", "DIFFERENCE, 95%", ">LEAST", "VERDICT"])
        for v in self._report.verdicts:
            table.add(v.claim.paper, v.claim.text, v.budget, _points(v.better), _points(v.worse), _difference(v.difference),
                      f"{100 * v.claim.by:+.1f}", _verdict(v))
        return self._heading("Claims") + self._table(table)

    def _choices(self) -> str:
        if not self._report.choices:
            return ""
        table = Table([">SHIPS ABOUT", "OFFLOADS", "RECIPE", ">MEAN", ">SHIPPED", "TO FULL, 95%", "TEXT"])
        for choice in self._report.choices:
            row = choice.row
            table.add(f"{100 * choice.most:.0f}%", "yes" if choice.offloads else "no", row.recipe.label, _points(row.mean),
                      _shipped(row), _difference(row.to_full), row.recipe.recipe)
        return self._heading("The best recipe for each number of bytes") + self._table(table)


def _verdict(v: Verdict) -> str:
    if v.verdict == PRECONDITION_ABSENT:
        return f"{v.verdict}: full has {100 * v.full:.1f} of {100 * v.claim.needs_least:.1f}"
    return v.verdict


def report_text(report: Report, subject: str, is_markdown: bool = False, width: int = 0) -> str:
    """Returns the report. subject: one line that describes the evaluation. width: of the terminal; 0: no limit."""
    return _Writer(report, is_markdown, width).whole(subject)
