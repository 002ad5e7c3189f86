# SPDX-License-Identifier: Apache-2.0
"""`sluice bench mixed`: how a long prompt and short ones affect each other: the time to first token of short jobs that arrive at
random times, alone and beside one long job, and of the long job alone and beside them.

A round has three parts: the long job alone, the short ones alone, both. The short ones arrive at the same times in each part,
spread over the time of the long job alone. Every prompt is random and read once, so nothing is reused. Values are over all
rounds; ratios are medians of rounds.
"""
from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time
from typing import Any, Optional

from sluice_eval.errors import UsageError
from sluice_eval.process import SluiceProcess

from . import hollow, rig
from .options import whole
from .rows import Rows, percentile, progress

N_OUTPUT, JOB_S = 2, 1800
LONG_TOKENS = 32768
SPREAD = 0.8  # of the long job's time alone: the short ones then overlap with it
LOOK_S = 0.01


def parser() -> argparse.ArgumentParser:
    made = rig.parser("mixed", "Measure the time to first token of short prompts alone and beside a long one, and what they cost it.")
    made.add_argument("--recipe", "-r", default="full", metavar="RECIPE", help="recipe of all jobs [full]")
    made.add_argument("--coordinator", "-c", default=os.environ.get("SLUICE_COORDINATOR"), metavar="HOST:PORT",
                      help="a cluster that runs already, with this --model; else one is started here")
    rig.add_tls(made)
    made.add_argument("--synthetic", action="store_true", help="random weights of --model's shape, with as many positions as are needed")
    made.add_argument("--transport", "-t", default="auto", metavar="NAME", help="data plane of the cluster [auto]")
    made.add_argument("--arena", "-a", default="512M", metavar="SIZE", help="memory for KV of each worker [512M]")
    made.add_argument("--long-tokens", type=whole(0, 1 << 24), default=0, metavar="N",
                      help="the long prompt; 0: 32768, or what the model has positions for [0]")
    made.add_argument("--short-tokens", type=whole(2, 1 << 20), default=512, metavar="N", help="each short prompt [512]")
    made.add_argument("--short-jobs", type=whole(1, 64), default=20, metavar="N", help="short jobs [20]")
    made.add_argument("--rounds", type=whole(1, 16), default=3, metavar="N", help="rounds of all measurements [3]")
    return made


@dataclasses.dataclass
class Round:
    """Times to first token, in ms."""

    long_alone: float
    alone: list[float]
    short_work: float  # the time of reading the short prompts alone, summed
    beside: list[float]
    long_beside: float


class Rounds:
    def __init__(self, arguments: argparse.Namespace, long_tokens: int, cluster: rig.Cluster, rows: Rows) -> None:
        self._arguments, self._long_tokens, self._cluster, self._rows = arguments, long_tokens, cluster, rows
        times = list(itertools.accumulate(random.expovariate(1) for _ in range(arguments.short_jobs)))  # a Poisson process
        self._arrivals = [0.0, *(at / times[-1] for at in times[:-1])]
        self.done: list[Round] = []

    def _start(self, n_tokens: int, at_s: float = 0.0) -> rig.Job:
        ids = rig.prompt(n_tokens)

        def ask() -> dict[str, Any]:
            time.sleep(max(0.0, at_s - time.monotonic()))
            return self._cluster.ask(ids, self._arguments.recipe, N_OUTPUT, JOB_S)
        return rig.Job(ask)

    def _run_short(self, span_ms: float) -> tuple[list[float], float]:
        """Runs the short jobs, spread over a time from now on. Returns their times, and that of reading them, summed."""
        now_s = time.monotonic()
        jobs = [self._start(self._arguments.short_tokens, now_s + at * span_ms / 1000) for at in self._arrivals]
        found = []
        for job in jobs:
            found.append(job.join_result())
            progress(f"short jobs: {len(found)} of {len(jobs)}")
        return [one["ttft_ms"] for one in found], sum(one["prefill_ms"] for one in found)

    def _run_both(self, span_ms: float) -> tuple[list[float], float]:
        long_job = self._start(self._long_tokens)
        while long_job.is_alive() and not self._cluster.is_reading():
            time.sleep(LOOK_S)
        beside, _ = self._run_short(span_ms)
        return beside, long_job.join_result()["ttft_ms"]

    def measure(self) -> None:
        self._run_short(0)  # warms up
        span_ms = 0.0
        for number in range(1, self._arguments.rounds + 1):
            progress(f"round {number} of {self._arguments.rounds}: the long job alone")
            long_alone = self._start(self._long_tokens).join_result()["ttft_ms"]
            self._rows.run("the long job alone", number, long_alone, "ms")
            span_ms = span_ms or SPREAD * long_alone
            alone, short_work = self._run_short(span_ms)
            self._rows.run("p50 of the short jobs alone", number, percentile(alone, 0.5), "ms")
            beside, long_beside = self._run_both(span_ms)
            self._rows.run("p50 of the short jobs beside the long one", number, percentile(beside, 0.5), "ms")
            self._rows.run("the long job beside the short ones", number, long_beside, "ms")
            self.done.append(Round(long_alone, alone, short_work, beside, long_beside))

    def _print_short(self, share: float) -> None:
        name = f"p{100 * share:.0f} ttft, {self._arguments.short_tokens} tokens"
        alone, beside = (percentile([ms for one in self.done for ms in times(one)], share)
                         for times in (lambda one: one.alone, lambda one: one.beside))
        ratio = statistics.median(percentile(one.beside, share) / percentile(one.alone, share) for one in self.done)
        self._rows.value(f"{name}, alone", alone, "ms")
        self._rows.value(f"{name} beside {self._long_tokens}", beside, "ms", "alone", alone, ratio)

    def print(self) -> None:
        self._print_short(0.5)
        self._print_short(0.99)
        alone, beside = [one.long_alone for one in self.done], [one.long_beside for one in self.done]
        self._rows.turns(f"ttft, {self._long_tokens} tokens beside {self._arguments.short_jobs} short jobs", beside, "ms", "alone", alone)
        more = statistics.median(after - before for after, before in zip(beside, alone))
        self._rows.value("what the short jobs cost the long one", more, "ms", "what reading them takes alone",
                         statistics.median(one.short_work for one in self.done))


def _long_tokens(arguments: argparse.Namespace) -> int:
    """Checks the options. Returns the length of the long prompt."""
    if arguments.synthetic and arguments.coordinator:
        raise UsageError("--synthetic: makes a model for a cluster that is started here, not at --coordinator")
    with SluiceProcess(arguments.model, rig.tool()) as process:
        n_positions = process.model["max_model_len"]
    most = n_positions - N_OUTPUT
    long_tokens = arguments.long_tokens or (LONG_TOKENS if arguments.synthetic else min(LONG_TOKENS, most))
    if not arguments.synthetic and long_tokens > most:
        raise UsageError(f"--long-tokens {long_tokens}: the model has {n_positions} positions; --synthetic makes one with more")
    if arguments.short_tokens > long_tokens:
        raise UsageError(f"--short-tokens {arguments.short_tokens}: more than --long-tokens {long_tokens}")
    return long_tokens


def _measure(arguments: argparse.Namespace, long_tokens: int, model: str, rows: Rows) -> None:
    if arguments.coordinator:
        cluster = rig.Cluster.join(arguments.coordinator, rig.tls_words(arguments))
    else:
        cluster = rig.Cluster.start(model, arguments.transport, arguments.device, arguments.arena)
    rounds = Rounds(arguments, long_tokens, cluster, rows)
    try:
        rounds.measure()
    finally:
        try:
            if rounds.done:  # not all, when it was stopped
                rounds.print()
        finally:
            cluster.stop()


def _work(arguments: argparse.Namespace, rows: Rows) -> None:
    long_tokens = _long_tokens(arguments)
    if not arguments.synthetic:
        _measure(arguments, long_tokens, arguments.model, rows)
        return
    with tempfile.TemporaryDirectory(prefix="sluice-model-") as folder:
        like = rig.model_folder(arguments.model)
        hollow.make_random(pathlib.Path(folder), hollow.config_like(like), like, long_tokens + N_OUTPUT)
        _measure(arguments, long_tokens, folder, rows)


def main(words: Optional[list[str]] = None) -> int:
    return rig.main(parser(), _work, words)


if __name__ == "__main__":
    sys.exit(main())
