# SPDX-License-Identifier: Apache-2.0
"""The command line: `python3 -m sluice_eval COMMAND`."""
from __future__ import annotations

import argparse
import os
import sys
from typing import Optional

try:
    from . import __version__, commands, options
    from .documents import add_document_options
except ModuleNotFoundError as missing:
    sys.exit(f"sluice_eval: needs the Python package {missing.name}: `pip install lab/sluice_eval` in the checkout brings it")
from .errors import CANCELLED, FAILED, EvalError, RefusedError

EPILOG = """docs/EVALUATION.md describes tasks, metrics, plans and the tables. Ctrl-C ends a run with the tables of the answers
so far; with --out the same command continues from there.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server has no room or cannot be reached, 4 stopped by a signal, 5 deadline."""


def _pictures(add: options.AddArgument) -> None:
    add("--markdown", metavar="FILE", help="the tables as a page")
    add("--png", metavar="PREFIX", help="draw PREFIX-pareto.png, -bars.png and -tasks.png (needs matplotlib)")


def _saved(add: options.AddArgument) -> None:
    add("answers", metavar="FILE", help="answers that `run --out` has written")
    add("--plan", metavar="FILE", help="the plan that asked them: the order of its recipes and cells, and its claims")
    add("--samples", type=int, default=0, metavar="N", help="with --plan: questions of a task and length; 0: as the plan says")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m sluice_eval", epilog=EPILOG, description=sys.modules["sluice_eval"].__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str) -> options.AddArgument:
        function = getattr(commands, name)
        made = subparsers.add_parser(name, help=function.__doc__, description=function.__doc__, epilog=EPILOG)
        made.set_defaults(function=function)
        return made.add_argument

    add = command("run")
    for group in (options.add_model_options, options.add_prompt_options, options.add_task_options, options.add_ask_options,
                  options.add_part_option, _pictures):
        group(add)
    add = command("grid")
    for group in (options.add_model_options, options.add_prompt_options, options.add_ask_options):
        group(add)
    add("--task", default="niah-essay", metavar="TASK", help="task that hides a fact and asks for it (niah-essay)")
    add("--depths", type=int, default=11, choices=range(1, 102), metavar="N",
        help="number of places, evenly from the beginning to the end (11)")
    add("--png", metavar="FILE", help="draw the maps (needs matplotlib)")
    add_document_options(command("documents"))
    add = command("report")
    _saved(add)
    _pictures(add)
    add("--json", action="store_true", help="one JSON object a line on standard output")
    add = command("plot")
    _saved(add)
    add("--png", required=True, metavar="PREFIX", help="PREFIX-pareto.png, -bars.png and -tasks.png")
    command("tasks")("--json", action="store_true", help="one JSON object a line")
    add = command("dump")
    for group in (options.add_model_options, options.add_prompt_options, options.add_task_options):
        group(add)
    add("--lm-eval", metavar="DIR", help="write tasks of lm-evaluation-harness there; to ask a gateway: `lm_eval run --include_path DIR "
        "--tasks sluice --model local-completions --model_args base_url=http://HOST:8000/v1/completions,model=NAME,"
        "tokenizer_backend=None,tokenized_requests=False`")
    return parser


def main(words: Optional[list[str]] = None) -> int:
    arguments = _parser().parse_args(words)
    try:
        arguments.function(arguments)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        return FAILED
    except KeyboardInterrupt:
        print("sluice_eval: stopped by a signal", file=sys.stderr)
        return CANCELLED
    except (EvalError, RefusedError) as error:
        print(f"sluice_eval {arguments.command}: {error}", file=sys.stderr)
        return getattr(error, "code", FAILED)


if __name__ == "__main__":
    sys.exit(main())
