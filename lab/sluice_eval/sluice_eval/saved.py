# SPDX-License-Identifier: Apache-2.0
"""The report of a file of answers, without a model: by the plan that asked, or by the answers alone."""
from __future__ import annotations

from typing import Optional

from .errors import UsageError
from .plan import Cell, Plan, Recipe
from .report import Report
from .results import Answer, Results
from .tasks import find_task


def _plan_of(results: Results) -> Plan:
    """Returns a plan with the answers' recipes and cells, in the order of the file."""
    plan = Plan()
    recipes = {(answer.name, answer.budget): key[0] for key, answer in results.items()}
    plan.recipes = [Recipe(name, budget, text) for (name, budget), text in recipes.items()]
    if not any((recipe.name, recipe.budget) == ("full", "") for recipe in plan.recipes):
        raise UsageError("the answers lack the recipe full, which the others are compared with")
    plan.put_full_first()
    for name, n_tokens, depth in dict.fromkeys(key[1:4] for key, _ in results.items()):
        plan.cells.append(Cell(name, find_task(name) if n_tokens else None, n_tokens, float(depth)))
    return plan


class SavedRun:
    """Reads the answers. plan None: that of the answers."""

    def __init__(self, path: str, plan: Optional[Plan]) -> None:
        results = Results(path)
        results.close()
        if not results.answers:
            raise UsageError(f"{path}: there is no answer in it")
        self.plan = plan or _plan_of(results)
        by_place: dict[tuple, Answer] = {}
        most: dict[tuple, int] = {}
        for (_, cell, n_tokens, depth, index), answer in results.items():
            place = (cell, n_tokens, depth)
            by_place[(answer.name, answer.budget, *place, index)] = answer
            most[place] = max(most.get(place, 0), index + 1)
        places = [(cell.name, cell.n_tokens, f"{cell.depth if cell.depth >= 0 else -1:.6g}") for cell in self.plan.cells]
        n_samples = [cell.n_samples or most.get(place, 0) for cell, place in zip(self.plan.cells, places)]
        recipes = self.plan.recipes
        self.report = Report(self.plan, n_samples,
                             lambda recipe, cell, index: by_place.get((recipes[recipe].name, recipes[recipe].budget,
                                                                       *places[cell], index)))
        n_done = sum(row.n_answers for row in self.report.rows)
        self.subject = (f"{path}, weights {results.header['weights']}; seed {results.header['seed']}; {len(recipes)} recipes, "
                        f"{len(places)} cells, {n_done} of {sum(n_samples) * len(recipes)} answers")
