# SPDX-License-Identifier: Apache-2.0
"""An evaluation as data: the recipes, the questions, and the claims.

Cells are tasks times lengths times depths, and data sets. A recipe without {budget} is asked once; a recipe with it once
per budget. "full" is always asked, first: it is the baseline of the others.
"""
from __future__ import annotations

import dataclasses
import re
from typing import Optional

from .datasets import DatasetConfig, make_form
from .errors import UsageError
from .tasks import MAX_TOKENS, Task

MAX_RECIPES, MAX_CELLS, MAX_RECIPE_BYTES = 512, 4096, 512
MARK = "{budget}"


@dataclasses.dataclass
class Recipe:
    name: str  # as shown in tables: "h2o"
    budget: str  # as written: "5%"; "" for recipes without {budget}
    recipe: str  # {budget} is already replaced

    @property
    def label(self) -> str:
        return f"{self.name} at {self.budget}" if self.budget else self.name


@dataclasses.dataclass
class Cell:
    """A column of a table: a task at a length and a depth, or a data set."""

    name: str
    task: Optional[Task] = None
    n_tokens: int = 0
    depth: float = -1  # negative: anywhere
    n_samples: int = 0  # for a data set 0 means all
    dataset: Optional[DatasetConfig] = None


@dataclasses.dataclass
class Claim:
    """`better` scores above `worse` by more than `by`, at each budget."""

    paper: str
    text: str
    better: str
    worse: str
    by: float = 0
    tasks: list[str] = dataclasses.field(default_factory=list)  # names of cells; none: all
    needs_least: float = 0  # the least mean score of "full"; below it the claim is not tested


def budget_value(budget: str) -> str:
    """Converts "5%" to 0.05; returns slots and ratios as they are."""
    percent = budget.endswith("%")
    try:
        number = float(budget.removesuffix("%"))
    except ValueError:
        number = 0
    whole = re.fullmatch("[0-9]+", budget) is not None
    if not number > 0 or len(budget) > 20 or (percent and number >= 100) or (not percent and not whole and number >= 1):
        raise UsageError(f'a budget must be slots (512), or a share of the prompt ("5%" or 0.05), not "{budget[:32]}"')
    return f"{number / 100:.12g}" if percent else budget


@dataclasses.dataclass
class Plan:
    title: str = ""
    recipes: list[Recipe] = dataclasses.field(default_factory=list)
    cells: list[Cell] = dataclasses.field(default_factory=list)
    claims: list[Claim] = dataclasses.field(default_factory=list)
    seed: int = 1
    max_prompt_tokens: int = 0  # 0: the model's context

    def add_recipe(self, name: str, budget: str, recipe: str) -> None:
        """Adds a recipe. budget: "5%", "0.05" or "512" if the recipe has {budget}, otherwise ""."""
        if not name:
            raise UsageError("a recipe needs a name")
        if MARK in recipe and not budget:
            raise UsageError(f"recipe {name[:64]} has a place for {MARK}, and no budget is given")
        if MARK not in recipe and budget:
            raise UsageError(f"recipe {name[:64]} has no place for a budget: write budget={MARK}")
        text = recipe.replace(MARK, budget_value(budget)) if budget else recipe
        if len(text.encode()) >= MAX_RECIPE_BYTES:
            raise UsageError(f"recipe {name[:64]} is longer than {MAX_RECIPE_BYTES - 1} bytes")
        if len(self.recipes) == MAX_RECIPES:
            raise UsageError(f"a plan has at most {MAX_RECIPES} recipes, every budget counted")
        if any((r.name, r.budget) == (name, budget) for r in self.recipes):
            at = f" at budget {budget}" if budget else ""
            raise UsageError(f"recipe {name[:64]} is there twice{at}; give one of them another name")
        self.recipes.append(Recipe(name, budget, text))

    def put_full_first(self) -> None:
        """Moves "full" to the front; adds it if it is missing."""
        full = next((r for r in self.recipes if (r.name, r.budget) == ("full", "")), None)
        if full is None:
            self.add_recipe("full", "", "full")
            full = self.recipes[-1]
        self.recipes.remove(full)
        self.recipes.insert(0, full)

    def _add_cell(self, cell: Cell) -> None:
        if len(self.cells) == MAX_CELLS:
            raise UsageError(f"a plan has at most {MAX_CELLS} cells: tasks times lengths times depths, data sets")
        if any((c.name, c.task, c.n_tokens, c.depth) == (cell.name, cell.task, cell.n_tokens, cell.depth) for c in self.cells):
            raise UsageError(f"{cell.name} is there twice")
        self.cells.append(cell)

    def add_task(self, task: Task, n_tokens: int, depth: float, n_samples: int) -> None:
        if not task.min_tokens <= n_tokens <= MAX_TOKENS:
            raise UsageError(f"{task.name} has prompts of {task.min_tokens} to {MAX_TOKENS} tokens, not of {n_tokens}")
        if not depth <= 1:
            raise UsageError(f"a depth is from 0, the beginning, to 1, the end, not {depth:g}")
        if depth >= 0 and not task.has_depth:
            raise UsageError(f"{task.name} does not ask about one place: it cannot be put at a depth")
        if n_samples < 1:
            raise UsageError(f"{task.name} needs 1 sample or more, not {n_samples}")
        self._add_cell(Cell(task.name, task, n_tokens, depth if depth >= 0 else -1, n_samples))

    def add_dataset(self, config: DatasetConfig) -> None:
        make_form(config)
        self._add_cell(Cell(config.name, n_samples=config.max_samples, dataset=config))

    def most_tokens(self, max_positions: int) -> int:
        """Returns the tokens of the longest prompt with its answer, at most the model's positions."""
        tokens = [cell.n_tokens + cell.task.max_new_tokens if cell.task else max_positions for cell in self.cells]
        return min(max(tokens, default=max_positions), max_positions)

    def limit_samples(self, n: int) -> None:
        """Asks n samples of every cell."""
        for cell in self.cells:
            cell.n_samples = n
            if cell.dataset:
                cell.dataset.max_samples = n
