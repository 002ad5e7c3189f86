# SPDX-License-Identifier: Apache-2.0
"""Plans from JSON files. docs/EVALUATION.md has the format; members that it does not list are rejected.

A function reports an error in its own value; the loop over a list prepends the position, and the file name comes first:
'plan.json: recipes[2]: there is no member "recpe"; did you mean "recipe"?'.
"""
from __future__ import annotations

import pathlib
from typing import Any, Callable, Iterable, Optional

from . import strict_json
from .benchmarks import find_benchmark
from .datasets import DatasetConfig
from .errors import EvalError, UsageError
from .nearest import no_such
from .plan import MARK, Claim, Plan
from .tasks import MAX_TOKENS, find_task

MAX_PLAN_BYTES = 16 << 20
PAPERS = pathlib.Path(__file__).resolve().parent / "papers"
Object = dict[str, Any]


def _check_members(value: Object, names: str) -> None:
    for key in value:
        if key not in names.split():
            raise UsageError(no_such("member", key, names.split()))


def _text(value: Object, name: str, required: bool = False) -> Optional[str]:
    text = value.get(name)
    if name in value and not (isinstance(text, str) and text):
        raise UsageError(f'"{name}" must be a text')
    if required and name not in value:
        raise UsageError(f'there is no "{name}"')
    return text


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _integer(value: Object, name: str, least: int, most: int, usual: int) -> int:
    number = value.get(name, usual)
    if name in value and not (_is_integer(number) and least <= number <= most):
        raise UsageError(f'"{name}" must be an integer from {least} to {most}')
    return number


def _list(value: Object, name: str) -> Optional[list[Any]]:
    listed = value.get(name)
    if name in value and not (isinstance(listed, list) and listed):
        raise UsageError(f'"{name}" must be a list of one or more')
    return listed


def _each(root: Object, name: str, read: Callable[[Any], None]) -> None:
    for i, element in enumerate(_list(root, name) or []):
        try:
            read(element)
        except UsageError as error:
            raise UsageError(f"{name}[{i}]: {error}") from error


class _Reader:
    """Reads one file."""

    def __init__(self, root: Object, data_dir: str) -> None:
        self._root, self._data_dir, self._plan = root, data_dir, Plan()

    def read(self) -> Plan:
        root, plan = self._root, self._plan
        _check_members(root, "title budgets recipes tasks lengths depths samples seed datasets max_prompt_tokens claims")
        plan.title = _text(root, "title", required=True) or ""
        plan.seed = _integer(root, "seed", 0, (1 << 63) - 1, 1)
        plan.max_prompt_tokens = _integer(root, "max_prompt_tokens", 1, MAX_TOKENS, 0)
        _list(root, "budgets")  # recipes read it; this checks its type
        _each(root, "recipes", self._recipe)
        plan.put_full_first()
        _each(root, "tasks", self._task)
        _each(root, "datasets", self._dataset)
        if not plan.cells:
            raise UsageError('there is nothing to ask: give "tasks" or "datasets"')
        _each(root, "claims", self._claim)
        return plan

    def _recipe(self, element: Any) -> None:
        budgets = None
        if isinstance(element, dict):
            _check_members(element, "name recipe budgets")
            recipe = _text(element, "recipe", required=True) or ""
            name = _text(element, "name") or recipe
            budgets = _list(element, "budgets")
        elif isinstance(element, str):
            name = recipe = element
        else:
            raise UsageError('a recipe must be a text or {"name", "recipe", "budgets"}')
        if budgets is None and MARK not in recipe:
            self._plan.add_recipe(name, "", recipe)
            return
        budgets = budgets or self._root.get("budgets")
        if not budgets:
            raise UsageError(f'recipe {name[:64]} has a place for {MARK}, and there are no "budgets"')
        for budget in budgets:
            if not isinstance(budget, str) and not _is_number(budget):
                raise UsageError('a budget must be a number or a text such as "5%"')
            self._plan.add_recipe(name, budget if isinstance(budget, str) else f"{budget:.12g}", recipe)

    def _task(self, element: Any) -> None:
        if not isinstance(element, str):
            raise UsageError("a task must be a text")
        task = find_task(element)
        n_samples = _integer(self._root, "samples", 1, 1000000, 20)
        lengths = _list(self._root, "lengths")
        if lengths is None:
            raise UsageError('tasks need "lengths": how many tokens their prompts have')
        for length in lengths:
            if not _is_integer(length):
                raise UsageError('"lengths" must be integers: tokens')
            for depth in _list(self._root, "depths") or [None]:
                if depth is not None and not (_is_number(depth) and depth >= 0):
                    raise UsageError('"depths" must be numbers from 0 to 1')
                self._plan.add_task(task, length, -1 if depth is None else float(depth), n_samples)

    def _dataset(self, element: Any) -> None:
        if isinstance(element, str):
            format_name, slash, name = element.partition("/")
            if not slash or not format_name:
                raise UsageError(f'"{element[:64]}" is not of the form FORMAT/NAME')
            if find_benchmark(format_name, name) is None:
                raise UsageError(f'{element[:64]} is not a task that we know; write {{"name", "format", "file", "metric", ...}}')
            config = DatasetConfig(name, format_name)
        elif isinstance(element, dict):
            config = self._dataset_members(element)
        else:
            raise UsageError('a data set must be a text or {"name", "format", ...}')
        config.path = str(pathlib.Path(self._data_dir) / (config.path or f"{config.format}/{config.name}.jsonl"))
        self._plan.add_dataset(config)

    @staticmethod
    def _dataset_members(element: Object) -> DatasetConfig:
        _check_members(element, "name format file prompt metric max_new_tokens samples first_line")
        if not isinstance(element.get("first_line", False), bool):
            raise UsageError('"first_line" must be true or false')
        return DatasetConfig(_text(element, "name", required=True) or "", _text(element, "format", required=True) or "",
                             _text(element, "file") or "", _text(element, "prompt"), _text(element, "metric"),
                             _integer(element, "max_new_tokens", 1, 1 << 20, 0),
                             _integer(element, "samples", 1, (1 << 63) - 1, 0), element.get("first_line", False))

    def _claim(self, element: Any) -> None:
        if not isinstance(element, dict):
            raise UsageError('a claim must be {"paper", "text", "better", "worse", ...}')
        _check_members(element, "paper text better worse by tasks needs")
        recipes = [recipe.name for recipe in self._plan.recipes]
        cells = [cell.name for cell in self._plan.cells]
        paper, text, better, worse = (_text(element, name, required=True) or "" for name in ("paper", "text", "better", "worse"))
        _check_names("recipe", [better, worse], recipes)
        by = element.get("by", 0)
        if not _is_number(by):
            raise UsageError('"by" must be a number')
        tasks = _list(element, "tasks") or []
        _check_names("task or data set", tasks, cells)
        self._plan.claims.append(Claim(paper, text, better, worse, by, tasks, _needs(element)))


def _check_names(what: str, wanted: Iterable[Any], names: list[str]) -> None:
    for name in wanted:
        if name not in names:
            raise UsageError(no_such(what, name if isinstance(name, str) else "", names))


def _needs(element: Object) -> float:
    needs = element.get("needs")
    if needs is None:
        return 0
    if not isinstance(needs, dict):
        raise UsageError('"needs" must be {"recipe": "full", "least": SCORE}')
    _check_members(needs, "recipe least")
    if _text(needs, "recipe", required=True) != "full":
        raise UsageError('a claim can need something of "full" alone')
    least = needs.get("least", 0)
    if not _is_number(least) or not 0 < least <= 1:
        raise UsageError('"least" must be a score above 0, of at most 1')
    return float(least)


def _find(path: str) -> pathlib.Path:
    """Returns the file, or the plan of that name that comes with the package."""
    packaged = PAPERS / f"{path}.json"
    return packaged if "/" not in path and not pathlib.Path(path).exists() and packaged.exists() else pathlib.Path(path)


def read_plan(path: str, data_dir: Optional[str] = None) -> Plan:
    """Reads a plan. data_dir: the folder with the files of data sets; None: the plan's own folder."""
    file = _find(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_PLAN_BYTES + 1)
    except OSError as error:
        raise EvalError(f"{path}: {error.strerror}") from error
    if len(data) > MAX_PLAN_BYTES:
        raise UsageError(f"{path}: a plan has at most {MAX_PLAN_BYTES >> 20} MiB")
    try:
        root = strict_json.loads(data.decode())
        if not isinstance(root, dict):
            raise UsageError("a plan must be a JSON object: {...}")
        return _Reader(root, data_dir or str(file.parent)).read()
    except (ValueError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from error
