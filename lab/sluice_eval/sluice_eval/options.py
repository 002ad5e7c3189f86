# SPDX-License-Identifier: Apache-2.0
"""The options of the commands, and the plan that they make."""
from __future__ import annotations

import argparse
import os
import re
from typing import Callable

from .errors import UsageError
from .plan import MARK, Plan
from .plan_file import read_plan
from .tasks import TASKS, find_task
from .tokenizers import Recipes

DEFAULT_SAMPLES = 10
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
AddArgument = Callable[..., argparse.Action]


def _between(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least} to {most}")
        return int(text)
    return parse


def _duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text)
    if not found or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time such as 30s, 10m or 2h")
    return float(found[1]) * _UNITS[found[2]]


def _numbers(text: str) -> list[int]:
    return [_between(1, (1 << 31) - 1)(part) for part in text.split(",") if part] or _fail("no number")


def _fail(why: str) -> list[int]:
    raise argparse.ArgumentTypeError(why)


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"'{text}': expected I/N, such as 2/4")
    return int(found[1]) - 1, int(found[2])


def add_prompt_options(add: AddArgument) -> None:
    add("--lengths", type=_numbers, default="4096", metavar="N,N", help="lengths of the tasks' prompts, in tokens of this model (4096)")
    add("--samples", type=_between(0, 1 << 20), default=0, metavar="N",
        help="questions of a task and length; 0: as the plan says, or 10")
    add("--seed", type=_between(0, 1 << 48), default=1, metavar="N", help="seed of the tasks (1)")
    add("--essay", action="append", default=[], metavar="FILE",
        help="a text to hide facts in; may be given several times. Default: the licenses of this system")


def add_task_options(add: AddArgument) -> None:
    add("--tasks", metavar="A,B", help="tasks by name (`tasks` lists them), or all")
    add("--plan", metavar="FILE", help="tasks, data sets, recipes, budgets and claims in a file, or the name of a packaged plan "
        "(such as demo), instead of options")
    add("--data", metavar="DIR", help="folder of the plan's data sets. Default: the plan's own")
    add("--max-prompt-tokens", type=_between(0, 1 << 32), default=0, metavar="N",
        help="a data set's longer prompts lose their middle; 0: as the plan says, or the model's context")


def add_model_options(add: AddArgument) -> None:
    add("--model", "-m", metavar="MODEL",
        help="model folder, GGUF file, or a name of `sluice models`; with --url: the model's name at the server (its only one)")
    add("--sluice", metavar="PATH", help="the `sluice` tool. Default: $SLUICE_BIN, this checkout's build, the PATH")
    add("--tokenizer", metavar="DIR", help="with --url: the folder of the served model, to count tokens and to read recipes; "
        "Default: the server's /tokenize")
    add("--url", metavar="URL", help="ask the server with OpenAI's HTTP API there, such as http://127.0.0.1:8000/v1. "
        "Without: a `sluice` process")
    add("--weights", default="stored", metavar="FORMAT", help="format of the model's weights in memory: stored, int8 or int4")
    add("--api-key", default=os.environ.get("OPENAI_API_KEY", ""), metavar="KEY", help="API key of the server. Default: $OPENAI_API_KEY")
    add("--ca-file", metavar="FILE", help="certificates to trust for https")


def add_ask_options(add: AddArgument) -> None:
    add("--recipe", "-r", action="append", default=[], metavar="RECIPE",
        help="recipe to compare with full; may be given several times, or as a list joined by ';'; presets: all of them")
    add("--budget", "-b", metavar="B,B",
        help="such as 5%%,20%%,512: each in the place of {budget}, or of recipes that evict and name none")
    add("--out", "-o", metavar="FILE", help="keep every answer there as a JSON line; a run that was stopped continues from it")
    add("--threads", type=_between(0, 1024), default=0, metavar="N", help="threads of the `sluice` process; 0 is one per processor")
    add("--device", metavar="DEVICE", help="device of the `sluice` process")
    add("--concurrency", type=_between(1, 1024), default=4, metavar="N", help="questions at a time at a server (4)")
    add("--deadline", type=_duration, default="10m", metavar="TIME", help="deadline of one answer, with retries (10m)")
    add("--text-prompts", action="store_true", help="send texts to the server, which takes no token ids")
    add("--json", action="store_true", help="one JSON object a line on standard output")


def add_part_option(add: AddArgument) -> None:
    add("--part", type=_part, default="1/1", metavar="I/N",
        help="ask only this part of the samples; the files of N processes, concatenated, are one run")


# --- the plan --------------------------------------------------------------------------------------------------------

def _add_at_budget(plan: Plan, text: str, budget: str) -> None:
    """Adds a recipe at a budget. "h2o,budget={budget}" is named h2o; if more text follows {budget}, the text is the name."""
    end = f",budget={MARK}"
    whole = text if MARK in text else text + end
    plan.add_recipe(whole.removesuffix(end), budget, whole)


def add_recipes(arguments: argparse.Namespace, plan: Plan, recipes: Recipes) -> None:
    """Adds `full`, the recipes, and the recipes at every budget."""
    budgets = [budget for budget in (arguments.budget or "").split(",") if budget]
    texts = [text for option in arguments.recipe for text in option.split(";") if text]
    for name in texts:
        for text in recipes.presets() if name == "presets" else [name]:
            if MARK in text and not budgets:
                raise UsageError(f"recipe {text[:100]}: {MARK} needs --budget")
            if not budgets or not recipes.takes_budget(text):
                plan.add_recipe(text, "", text)
                continue
            for budget in budgets:
                _add_at_budget(plan, text, budget)
    plan.put_full_first()


def _add_tasks(arguments: argparse.Namespace, plan: Plan) -> None:
    names = [task.name for task in TASKS] if arguments.tasks == "all" else [n for n in arguments.tasks.split(",") if n]
    if not names:
        raise UsageError("--tasks: no task")
    for task in map(find_task, names):
        for length in arguments.lengths:
            plan.add_task(task, length, -1, arguments.samples or DEFAULT_SAMPLES)


def read_plan_option(arguments: argparse.Namespace) -> Plan:
    """Reads the plan's file; --samples and --max-prompt-tokens limit it."""
    plan = read_plan(arguments.plan, arguments.data)
    if arguments.samples:
        plan.limit_samples(arguments.samples)
    plan.max_prompt_tokens = arguments.max_prompt_tokens or plan.max_prompt_tokens
    return plan


def check_plan_options(arguments: argparse.Namespace) -> None:
    """Rejects wrong questions before anything is opened."""
    if arguments.plan:
        if arguments.tasks or getattr(arguments, "recipe", None) or getattr(arguments, "budget", None):
            raise UsageError("--plan says what is asked: leave out --tasks, --recipe and --budget")
    elif not arguments.tasks:
        raise UsageError("what shall be asked? Give --tasks A,B (`tasks` lists them) or --plan FILE")


def make_plan(arguments: argparse.Namespace, recipes: Recipes) -> Plan:
    """Makes the plan from the file, or from the options: tasks at lengths, `full` and the recipes."""
    check_plan_options(arguments)
    if arguments.plan:
        return read_plan_option(arguments)
    plan = Plan(seed=arguments.seed, max_prompt_tokens=arguments.max_prompt_tokens)
    _add_tasks(arguments, plan)
    if hasattr(arguments, "recipe"):
        add_recipes(arguments, plan, recipes)
    else:
        plan.put_full_first()
    return plan
