# SPDX-License-Identifier: Apache-2.0
"""`sluice bench ttft`: what disaggregation costs a single job: the time to first token of a cluster on this machine beside one
process that does both phases, by turns in the same run, each second time in the opposite order. The first run of each side is not counted."""
from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any, Optional

from sluice_eval.errors import UsageError
from sluice_eval.process import SluiceProcess

from . import rig
from .options import whole
from .rows import Rows, progress

N_OUTPUT, JOB_S = 8, 120
TRANSPORTS = ("shm", "tcp")
MIB = 1 << 20


def parser() -> argparse.ArgumentParser:
    made = rig.parser("ttft", "Measure the time to first token of a cluster on this machine beside one process doing both phases.")
    made.add_argument("--recipe", "-r", default="full", metavar="RECIPE", help="recipe of all jobs [full]")
    made.add_argument("--tokens", type=whole(2, 1 << 24), default=8000, metavar="N", help="length of the prompt [8000]")
    made.add_argument("--runs", type=whole(1, 1000), default=5, metavar="N", help="runs of every measurement [5]")
    made.add_argument("--tier", default="auto", metavar="NAME", help="kernels to use [auto]")
    return made


class Turns:
    """One process and a cluster of each transport, asked by turns, and what they measured, run by run."""

    def __init__(self, arguments: argparse.Namespace, rows: Rows) -> None:
        self._arguments, self._rows = arguments, rows
        self.measured: dict[str, list[dict[str, Any]]] = {side: [] for side in ("one process", *TRANSPORTS)}

    def _case(self, what: str) -> str:
        return f"ttft {self._arguments.tokens} tokens, {what}"

    def measure(self, local: SluiceProcess, clusters: dict[str, rig.Cluster]) -> None:
        given = self._arguments
        ids = rig.prompt(given.tokens)
        for run in range(given.runs + 1):  # run 0 warms up
            progress(f"run {run} of {given.runs}")
            turn = {}
            for side in list(self.measured)[::-1 if run % 2 else 1]:
                if side in clusters:
                    turn[side] = clusters[side].ask(ids, given.recipe, N_OUTPUT, JOB_S)
                else:
                    turn[side] = rig.measurements(local.ask(rig.request(ids, given.recipe, N_OUTPUT, JOB_S)))
                if run > 0:
                    self._rows.run(self._case(side), run, turn[side]["ttft_ms"], "ms")
            for side, found in turn.items() if run > 0 else ():
                self.measured[side].append(found)

    def print(self) -> None:
        def values(side: str, name: str) -> list[float]:
            return [found[name] for found in self.measured[side]]
        for side in TRANSPORTS:
            ttft_ms, mib = values(side, "ttft_ms"), self.measured[side][-1]["capsule_bytes"] / MIB
            self._rows.turns(self._case(f"{self._arguments.recipe} cluster over {side}"), ttft_ms, "ms", "one process", values("one process", "ttft_ms"))
            self._rows.turns(f"of that reading the prompt, {side}", values(side, "prefill_ms"), "ms", "one process", values("one process", "prefill_ms"))
            self._rows.turns(f"ship after the last chunk ({mib:.1f} MiB), {side}", values(side, "ship_ms"), "ms", "ttft", ttft_ms)
        self._rows.median(self._case("one process"), values("one process", "ttft_ms"), "ms")


def measure(arguments: argparse.Namespace, rows: Rows) -> None:
    if arguments.tier != "auto":  # else the caller's SLUICE_TIER, if any, is for all of them
        os.environ["SLUICE_TIER"] = arguments.tier
    turns = Turns(arguments, rows)
    local_options = ("--device", arguments.device) if arguments.device else ()
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(SluiceProcess(arguments.model, rig.tool(), local_options))
        if arguments.tokens + N_OUTPUT > local.model["max_model_len"]:
            raise UsageError(f"--tokens {arguments.tokens}: the model has {local.model['max_model_len']} positions")
        clusters = {}
        for transport in TRANSPORTS:
            clusters[transport] = rig.Cluster.start(arguments.model, transport, arguments.device)
            stack.callback(clusters[transport].stop)
        local.reserve(arguments.tokens + N_OUTPUT)
        try:
            turns.measure(local, clusters)
        finally:
            if turns.measured[TRANSPORTS[-1]]:  # not of all runs, when it was stopped
                turns.print()


def main(words: Optional[list[str]] = None) -> int:
    return rig.main(parser(), measure, words)


if __name__ == "__main__":
    sys.exit(main())
