# SPDX-License-Identifier: Apache-2.0
"""`sluice bench compress`: what each recipe adds to, or saves from, the time of reading a prompt with the full cache.

One process reads, as workers do. Every round reads the prompt once under each recipe, the full cache first, so load on the machine
affects all of them alike; a ratio is the median of the rounds' own ratios. A warm-up round is not counted. Eviction costs work, but
later chunks need not attend to evicted slots: ratios below 100% are plausible.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any, Optional

from sluice_eval.errors import UsageError
from sluice_eval.process import SluiceProcess

from . import hollow, rig
from .options import whole
from .rows import Rows, progress

N_OUTPUT, JOB_S = 1, 1800
BUDGETS = ("0.2", "0.5", "1024")
SHAPE = "smollm2-135m"  # of --synthetic


def parser() -> argparse.ArgumentParser:
    made = rig.parser("compress", "Measure the prefill time of each recipe beside the full cache's.")
    made.add_argument("--recipe", "-r", action="append", default=[], metavar="RECIPE",
                      help="recipe; may be given several times. Default: every preset, those that evict at budgets 0.2, 0.5 and 1024")
    made.add_argument("--synthetic", action="store_true", help="a random model of 135 M parameters instead")
    made.add_argument("--tokens", type=whole(1, 1 << 24), default=8000, metavar="N", help="length of the prompt [8000]")
    made.add_argument("--runs", type=whole(1, 31), default=3, metavar="N", help="rounds [3]")
    made.add_argument("--threads", type=whole(0, 1024), default=0, metavar="N", help="0: one per processor [0]")
    return made


def _presets(process: SluiceProcess) -> list[str]:
    listed = subprocess.run([rig.tool(), "recipes", "--json"], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = []
    for name in (json.loads(line)["name"] for line in listed.splitlines()):
        evicts = process.ask({"operation": "recipe", "recipe": name})["evicts"]
        found += [f"{name},budget={budget}" for budget in BUDGETS] if evicts else [name]
    return [*(one for one in found if one != "full"), "full,format=int4"]


class Rounds:
    def __init__(self, process: SluiceProcess, arguments: argparse.Namespace, rows: Rows) -> None:
        self._process, self._arguments, self._rows = process, arguments, rows
        self._ids = rig.prompt(arguments.tokens)
        self._times_ms: dict[str, list[float]] = {recipe: [] for recipe in ("full", *(arguments.recipe or _presets(process)))}
        self._skipped: dict[str, str] = {}  # by recipe, why

    def _read(self, recipe: str) -> dict[str, Any]:
        return self._process.ask(rig.request(self._ids, recipe, N_OUTPUT, JOB_S))

    def _warm_up(self) -> None:
        """Reads once under each recipe. One that does not fit is an error if it was named, and else skipped."""
        for recipe in self._times_ms:
            progress(f"warming up: {recipe}")
            reply = self._read(recipe)
            if "error" in reply and (self._arguments.recipe or recipe == "full"):
                raise UsageError(f"{recipe[:100]}: {reply['error']['message']}")
            if "error" in reply:
                self._skipped[recipe] = reply["error"]["message"]

    def measure(self) -> None:
        self._warm_up()
        for number in range(1, self._arguments.runs + 1):
            times_ms = {}
            for recipe in (one for one in self._times_ms if one not in self._skipped):
                progress(f"round {number} of {self._arguments.runs}: {recipe}")
                times_ms[recipe] = rig.measurements(self._read(recipe))["prefill_ms"]
                self._rows.run(self._case(recipe), number, times_ms[recipe], "ms")
            for recipe, ms in times_ms.items():
                self._times_ms[recipe].append(ms)

    def _case(self, recipe: str) -> str:
        return f"prefill {self._arguments.tokens} tokens, {recipe}"

    def print(self) -> None:
        """Prints the complete rounds."""
        full_ms = self._times_ms["full"]
        for recipe, ms in self._times_ms.items() if full_ms else ():
            if recipe in self._skipped:
                self._rows.skip(recipe, self._skipped[recipe])
            elif recipe == "full":
                self._rows.median(self._case(recipe), ms, "ms")
            else:
                self._rows.turns(self._case(recipe), ms, "ms", "full", full_ms)


def _measure(arguments: argparse.Namespace, model: str, rows: Rows) -> None:
    options = ("--threads", str(arguments.threads), *(("--device", arguments.device) if arguments.device else ()))
    with SluiceProcess(model, rig.tool(), options) as process:
        if arguments.tokens + N_OUTPUT > process.model["max_model_len"]:
            raise UsageError(f"--tokens {arguments.tokens}: the model has {process.model['max_model_len']} positions")
        rounds = Rounds(process, arguments, rows)
        process.reserve(arguments.tokens + N_OUTPUT)
        try:
            rounds.measure()
        finally:
            rounds.print()


def _work(arguments: argparse.Namespace, rows: Rows) -> None:
    if not arguments.synthetic:
        _measure(arguments, arguments.model, rows)
        return
    with tempfile.TemporaryDirectory(prefix="sluice-model-") as folder:
        demo = rig.model_folder("demo")
        hollow.make_random(pathlib.Path(folder), hollow.config_of(SHAPE, {}), demo, arguments.tokens + N_OUTPUT)
        _measure(arguments, folder, rows)


def main(words: Optional[list[str]] = None) -> int:
    return rig.main(parser(), _work, words)


if __name__ == "__main__":
    sys.exit(main())
