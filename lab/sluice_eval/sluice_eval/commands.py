# SPDX-License-Identifier: Apache-2.0
"""The commands: run, grid, report, plot, tasks, dump."""
from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import shutil
import sys
from typing import Optional

from . import plots
from .documents import documents  # noqa: F401: a command
from .errors import EvalError, UsageError
from .interrupt import interruptible
from .lm_eval_tasks import write_tasks
from .options import add_recipes, check_plan_options, make_plan
from .outputs import check_place
from .plan import Plan
from .plan_file import read_plan
from .questions import Questions
from .report import Report, Row
from .report_json import report_lines
from .report_text import report_text
from .saved import SavedRun
from .session import Model, Session
from .tables import Table
from .tasks import TASKS, find_task

BLOCKS = ["\u00b7" * 4, "\u2591" * 4, "\u2592" * 4, "\u2593" * 4, "\u2588" * 4]  # from an empty to a full cell
PROGRAM = "sluice_eval"


def _check_output(path: Optional[str]) -> None:
    """Checks that a page can be written, before hours of work."""
    if path is not None:
        check_place(path)


def _write(path: str, text: str) -> None:
    temporary = pathlib.Path(f"{path}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise EvalError(f"{path}: cannot be written: {error.strerror}") from error


def _show(report: Report, subject: str, arguments: argparse.Namespace) -> None:
    if arguments.json:
        for line in report_lines(report):
            print(line)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        print(report_text(report, subject, width=width), end="")
    sys.stdout.flush()
    if arguments.markdown:
        _write(arguments.markdown, report_text(report, subject, is_markdown=True))
    if not any(row.n_answers for row in report.rows):
        raise EvalError("there is no answer; the reasons are above")
    if arguments.png:
        plots.plot_suites(report, arguments.png)


def _finish(session: Session, show: bool = True) -> None:
    if session.cancelled and show:
        raise session.cancelled


def run(arguments: argparse.Namespace) -> None:
    """Asks a model questions with known answers under each recipe, and compares the scores with the full cache's."""
    check_plan_options(arguments)
    plots.check_path(arguments.png)
    _check_output(arguments.markdown)
    with interruptible(), Model(arguments) as model:
        session = Session(f"{PROGRAM} run", arguments, model, make_plan(arguments, model.recipes))
        try:
            _show(session.report, session.subject, arguments)
        except EvalError:
            if not session.cancelled:  # the cancellation is the more useful error
                raise
        _finish(session)


# --- grid ------------------------------------------------------------------------------------------------------------

def _print_map(row: Row, depths: list[float], lengths: list[int]) -> None:
    if math.isnan(row.mean):
        print(f"\n{row.recipe.label}: n/a: {row.cells[0].refused or 'not asked'}")
        return
    print(f"\n{row.recipe.label}: mean {100 * row.mean:.1f}, shipped {100 * row.shipped:.1f}%")
    for d, depth in enumerate(depths):
        cells = row.cells[d * len(lengths):(d + 1) * len(lengths)]
        blocks = [" n/a" if cell.n == 0 and cell.refused else _block(cell.mean) for cell in cells]
        print(f"{100 * depth:6.3g}%  " + "".join("   " + block for block in blocks))
    print(" " * 9 + "".join(f"{length:7d}" for length in lengths))


def _block(score: float) -> str:
    return "    " if math.isnan(score) else BLOCKS[int(4 * score + 0.5)]


def grid(arguments: argparse.Namespace) -> None:
    """Hides a fact at several depths of prompts of several lengths, and maps where each recipe finds it."""
    task = find_task(arguments.task)
    if task.n_facts == 0:
        raise UsageError(f"--task {task.name}: it hides nothing, so there is no depth")
    plots.check_path(arguments.png)
    n = arguments.depths
    depths = [d / (n - 1) for d in range(n)] if n > 1 else [0.5]
    plan = Plan(seed=arguments.seed)
    for depth in depths:  # in this order: the maps rely on it
        for length in arguments.lengths:
            plan.add_task(task, length, depth, arguments.samples or 3)
    with interruptible(), Model(arguments) as model:
        add_recipes(arguments, plan, model.recipes)
        session = Session(f"{PROGRAM} grid", arguments, model, plan)
        if arguments.json:
            for line in report_lines(session.report):
                print(line)
        else:
            print(f"{task.name}, by depth and tokens of the prompt: {BLOCKS[0]} none found, {BLOCKS[2]} half, {BLOCKS[4]} all\n"
                  f"{session.subject}")
            for row in session.report.rows:
                _print_map(row, depths, arguments.lengths)
        if arguments.png and not session.cancelled:
            plots.plot_grid(session.report, depths, arguments.lengths, arguments.png)
        _finish(session)


# --- saved answers ---------------------------------------------------------------------------------------------------

def _saved(arguments: argparse.Namespace) -> SavedRun:
    plan = read_plan(arguments.plan) if arguments.plan else None
    if plan and arguments.samples:
        plan.limit_samples(arguments.samples)
    return SavedRun(arguments.answers, plan)


def report(arguments: argparse.Namespace) -> None:
    """Prints the tables of saved answers. Needs no model."""
    saved = _saved(arguments)
    _show(saved.report, saved.subject, arguments)


def plot(arguments: argparse.Namespace) -> None:
    """Draws the pictures of saved answers. Needs no model."""
    plots.check_path(arguments.png)
    plots.plot_suites(_saved(arguments).report, arguments.png)


# --- questions -------------------------------------------------------------------------------------------------------

def tasks(arguments: argparse.Namespace) -> None:
    """Lists the synthetic tasks."""
    if arguments.json:
        for task in TASKS:
            print(json.dumps({"task": task.name, "metric": task.metric, "min_tokens": task.min_tokens, "summary": task.summary}))
        return
    table = Table(["TASK", "METRIC", ">LEAST TOKENS", ""])
    for task in TASKS:
        table.add(task.name, task.metric, str(task.min_tokens), task.summary)
    print(table.text(), end="")


def dump(arguments: argparse.Namespace) -> None:
    """Writes the questions that `run` would ask, one JSON object a line, or as tasks of lm-evaluation-harness."""
    check_plan_options(arguments)
    with interruptible(), Model(arguments, asks=False) as model:
        plan = make_plan(arguments, model.recipes)
        questions = Questions(plan, model.tokenizer, arguments.essay)
        if arguments.lm_eval:
            write_tasks(arguments.lm_eval, plan, questions)
            return
        for cell, n in enumerate(questions.n_samples):
            for index in range(n):
                prompt = questions.make(cell, index)
                sample = prompt.sample
                line = {"task": plan.cells[cell].name, "tokens": len(prompt.ids), "index": index, "prompt": sample.prompt,
                        "answers": sample.answers, "classes": sample.classes, "metric": sample.metric,
                        "max_new_tokens": sample.max_new_tokens}
                if sample.completion is not None:
                    line["completion"] = sample.completion
                print(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
