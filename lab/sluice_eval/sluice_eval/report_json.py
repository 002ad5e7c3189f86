# SPDX-License-Identifier: Apache-2.0
"""A report as JSON lines: {"row": ...} for every recipe, {"claim": ...}, {"choice": ...}. Scores from 0 to 1."""
from __future__ import annotations

import json
import math
from typing import Any, Iterator

from .bootstrap import Interval
from .plan import Cell
from .report import CellScore, Choice, Report, Row, Verdict


def _number(value: float) -> Any:
    """Returns six digits, and None for NaN, which JSON does not have."""
    return None if math.isnan(value) else float(f"{value:.6g}")


def _interval(interval: Interval) -> dict[str, Any]:
    return {name: _number(getattr(interval, name)) for name in ("mean", "low", "high")}


def _cell(cell: Cell, score: CellScore) -> dict[str, Any]:
    line = {"cell": cell.name, "tokens": cell.n_tokens, "answers": score.n, "score": _number(score.mean)}
    if cell.n_tokens and cell.depth >= 0:
        line["depth"] = cell.depth
    if score.refused is not None:
        line["refused"] = score.refused
    return line


def _row(report: Report, row: Row) -> dict[str, Any]:
    return {"name": row.recipe.name, "budget": row.recipe.budget, "recipe": row.recipe.recipe, "mean": _number(row.mean),
            "complete": row.complete, "offloads": row.offloads, "answers": row.n_answers, "shipped": _number(row.shipped),
            "offloaded": _number(row.offloaded), "resident": _number(row.resident),
            "slots_per_head": _number(row.slots_per_head), "to_full": _interval(row.to_full),
            "tasks": dict(zip(report.tasks, map(_number, row.tasks))),
            "cells": [_cell(cell, score) for cell, score in zip(report.plan.cells, row.cells)]}


def _claim(v: Verdict) -> dict[str, Any]:
    return {"paper": v.claim.paper, "text": v.claim.text, "better": v.claim.better, "worse": v.claim.worse, "budget": v.budget,
            "verdict": v.verdict, "better_score": _number(v.better), "worse_score": _number(v.worse),
            "full_score": _number(v.full), "by": v.claim.by, "difference": _interval(v.difference), "pairs": v.n_pairs}


def _choice(choice: Choice) -> dict[str, Any]:
    row = choice.row
    return {"most": choice.most, "name": row.recipe.name, "budget": row.recipe.budget, "recipe": row.recipe.recipe,
            "mean": _number(row.mean), "shipped": _number(row.shipped), "offloaded": _number(row.offloaded),
            "offloads": choice.offloads, "not_worse": not row.to_full.high < 0}


def report_lines(report: Report) -> Iterator[str]:
    """Yields the lines, without newlines."""
    parts = [("row", [_row(report, row) for row in report.rows]), ("claim", list(map(_claim, report.verdicts))),
             ("choice", list(map(_choice, report.choices)))]
    for name, objects in parts:
        for one in objects:
            yield json.dumps({name: one}, ensure_ascii=False, separators=(",", ":"))
