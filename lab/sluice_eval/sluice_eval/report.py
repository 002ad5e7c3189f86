# SPDX-License-Identifier: Apache-2.0
"""Results of an evaluation.

The scores of every recipe in every cell, the difference to `full` with its interval, the shipped bytes, which claims hold,
and which recipe is best for how many bytes. Differences are paired: only questions count that both recipes have answered.
"""
from __future__ import annotations

import dataclasses
import math
from typing import Callable, Iterable, Optional

from .bootstrap import NAN, Interval, bootstrap_mean
from .plan import Cell, Claim, Plan, Recipe
from .results import Answer

BOOTSTRAP_SEED = 1
FLOOR = 0.05  # share of full's score: two recipes below it cannot be compared
SHARES = [0.02, 0.05, 0.1, 0.2, 0.35, 0.5]

NOT_MEASURED = "not measured"  # no question has both answers
PRECONDITION_ABSENT = "precondition absent"  # full scores less than the claim needs
BOTH_FAIL = "precondition absent: both fail"
REPRODUCED = "reproduced"  # the whole interval of better - worse lies above `by`
NOT_REPRODUCED = "not reproduced"  # the whole interval lies below `by`
UNDECIDED = "undecided"  # the interval contains `by`


@dataclasses.dataclass
class CellScore:
    """A recipe in one cell."""

    scores: list[float]  # NaN: no answer
    mean: float = NAN
    n: int = 0  # answers
    refused: Optional[str] = None


@dataclasses.dataclass
class Row:
    """A recipe. Every cell has the same weight, regardless of the number of its samples."""

    recipe: Recipe
    cells: list[CellScore]
    offloads: bool  # offloads layers to stores: their bytes are not in `shipped`
    mean: float = NAN  # over the cells that have answers
    shipped: float = NAN  # shares of the full cache in f16; NaN: no answer reports bytes
    resident: float = NAN
    offloaded: float = 0  # share sent to stores; 0 also if no answer reports it
    slots_per_head: float = NAN
    complete: bool = False  # every cell has answers: means can be compared
    tasks: list[float] = dataclasses.field(default_factory=list)
    lengths: list[float] = dataclasses.field(default_factory=list)
    to_full: Interval = Interval()

    @property
    def n_answers(self) -> int:
        return sum(cell.n for cell in self.cells)


@dataclasses.dataclass
class Verdict:
    """A claim at one budget."""

    claim: Claim
    budget: str = ""  # "" if neither recipe has one
    verdict: str = NOT_MEASURED
    better: float = NAN  # means over the claim's cells that both have
    worse: float = NAN
    full: float = NAN
    difference: Interval = Interval()
    n_pairs: int = 0


@dataclasses.dataclass
class Choice:
    """The best recipe among those that ship at most such a share, with or without offloaded layers."""

    most: float
    offloads: bool
    row: Row


def mean(values: Iterable[float]) -> float:
    """Returns the mean, added in order; NaN of nothing."""
    listed = list(values)
    total = 0.0
    for value in listed:
        total += value
    return total / len(listed) if listed else NAN


Lookup = Callable[[int, int, int], Optional[Answer]]  # (recipe, cell, index)


class Report:
    """Computed from a plan and its answers. offloads: whether a recipe leaves layers in stores; None: see its answers."""

    def __init__(self, plan: Plan, n_samples: list[int], lookup: Lookup,
                 offloads: Callable[[str], Optional[bool]] = lambda recipe: None) -> None:
        self.plan, self._n_samples = plan, n_samples
        self.tasks = list(dict.fromkeys(cell.name for cell in plan.cells))
        self.lengths = list(dict.fromkeys(cell.n_tokens for cell in plan.cells if cell.n_tokens))
        self.rows = [self._row(i, lookup, offloads) for i in range(len(plan.recipes))]
        for row in self.rows:
            row.to_full, _ = self._compare(row, self.rows[0])
        self.verdicts = [verdict for claim in plan.claims for verdict in self._judge(claim)]
        self.choices = [choice for kind in (False, True) for choice in self._choose(kind)]

    def _row(self, index: int, lookup: Lookup, offloads: Callable[[str], Optional[bool]]) -> Row:
        recipe = self.plan.recipes[index]
        answers = [[lookup(index, cell, i) for i in range(n)] for cell, n in enumerate(self._n_samples)]
        cells = [_score(cell) for cell in answers]
        given = [[a for a in cell if a and a.refused is None] for cell in answers]
        given = [cell for cell in given if cell]
        stored = [[a for a in cell if a.offloaded_bytes > 0] for cell in given]
        known = offloads(recipe.recipe)
        row = Row(recipe, cells, any(stored) if known is None else known, complete=len(given) == len(cells))
        if given:
            row.mean = mean(cell.mean for cell in cells if cell.n)
            row.slots_per_head = mean(mean(a.slots_per_head for a in cell) for cell in given)
        if any(a.full_bytes for cell in given for a in cell):
            row.shipped = mean(_share(cell, "shipped_bytes") for cell in given)
            row.resident = mean(_share(cell, "resident_bytes") for cell in given)
        if any(stored):
            row.offloaded = mean(_share(cell, "offloaded_bytes") for cell in stored if cell)
        row.tasks = [self._mean_of(row, lambda cell, name=name: cell.name == name) for name in self.tasks]
        row.lengths = [self._mean_of(row, lambda cell, n=n: cell.n_tokens == n) for n in self.lengths]
        return row

    def _mean_of(self, row: Row, wanted: Callable[[Cell], bool], other: Optional[Row] = None) -> float:
        """Returns the mean of a row over the wanted cells in which `other` has answers, too."""
        return mean(score.mean for i, (cell, score) in enumerate(zip(self.plan.cells, row.cells))
                    if wanted(cell) and score.n and (other is None or other.cells[i].n))

    def _compare(self, a: Row, b: Row, wanted: Callable[[Cell], bool] = lambda cell: True) -> tuple[Interval, int]:
        """Returns the difference a - b over the questions that both have answered, and how many these are."""
        cells = [[x - y for x, y in zip(one.scores, other.scores) if not math.isnan(x - y)]
                 for cell, one, other in zip(self.plan.cells, a.cells, b.cells) if wanted(cell)]
        return bootstrap_mean(cells, BOOTSTRAP_SEED), sum(map(len, cells))

    # --- claims ------------------------------------------------------------------------------------------------------

    def _judge(self, claim: Claim) -> list[Verdict]:
        """Returns the verdicts: of the claim's recipes, at one budget if both have one."""
        verdicts = []
        for better in self.rows:
            for worse in self.rows:
                budgets = better.recipe.budget, worse.recipe.budget
                if (better.recipe.name, worse.recipe.name) == (claim.better, claim.worse) and (
                        budgets[0] == budgets[1] or "" in budgets):
                    verdicts.append(self._judge_pair(claim, better, worse))
        return verdicts or [Verdict(claim)]

    def _judge_pair(self, claim: Claim, better: Row, worse: Row) -> Verdict:
        def wanted(cell: Cell) -> bool:
            return not claim.tasks or cell.name in claim.tasks
        v = Verdict(claim, better.recipe.budget or worse.recipe.budget, better=self._mean_of(better, wanted, worse),
                    worse=self._mean_of(worse, wanted, better), full=self._mean_of(self.rows[0], wanted))
        v.difference, v.n_pairs = self._compare(better, worse, wanted)
        v.verdict = verdict_of(v)
        return v

    # --- which recipe for how many bytes -----------------------------------------------------------------------------

    def _choose(self, offloads: bool) -> list[Choice]:
        """Returns the best recipe for each share of bytes, where it differs from that for fewer bytes."""
        choices: list[Choice] = []
        for most in SHARES:
            # Up to a tenth above the share still counts: scores and positions are shipped with the slots, and pages are
            # not divided.
            rows = [row for row in self.rows if row.complete and row.offloads == offloads and row.shipped <= 1.1 * most]
            if rows:
                best = min(rows, key=lambda row: (-row.mean, row.shipped))
                if not choices or choices[-1].row is not best:
                    choices.append(Choice(most, offloads, best))
        return choices


def _score(answers: list[Optional[Answer]]) -> CellScore:
    cell = CellScore([NAN if a is None or a.refused is not None else a.score for a in answers])
    given = [score for score in cell.scores if not math.isnan(score)]
    cell.n, cell.mean = len(given), mean(given)
    refusals = [a.refused for a in answers if a is not None and a.refused is not None]
    cell.refused = refusals[-1] if refusals else None
    return cell


def _share(answers: list[Answer], name: str) -> float:
    """Returns the answers' bytes as a share of the full cache's."""
    full = sum(a.full_bytes for a in answers)
    return sum(getattr(a, name) for a in answers) / full if full else 0.0


def verdict_of(v: Verdict) -> str:
    if v.n_pairs == 0:
        return NOT_MEASURED
    if v.claim.needs_least > 0 and not v.full >= v.claim.needs_least:
        return PRECONDITION_ABSENT
    if not (v.better > FLOOR * v.full or v.worse > FLOOR * v.full):
        return BOTH_FAIL
    if v.difference.low > v.claim.by:
        return REPRODUCED
    return NOT_REPRODUCED if v.difference.high < v.claim.by else UNDECIDED
