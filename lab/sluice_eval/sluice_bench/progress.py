# SPDX-License-Identifier: Apache-2.0
"""Progress on standard error: a row after each run, and on a terminal a bar before it."""
from __future__ import annotations

import shutil
import sys
import time

from .load import Progress, Run

REDRAW_S = 0.2


class Bar:
    def __init__(self, command: str, n_runs: int) -> None:
        self._command, self._n_runs = command, n_runs
        self._run_number = 0
        self._is_terminal = sys.stderr.isatty()
        self._last = 0.0

    def begin(self, run: Run, n_requests: int) -> None:
        self._n_requests = n_requests
        self._run_number += 1
        self._what = f"run {self._run_number}/{self._n_runs}: {run.series.name} at {run.rate:.4g}/s"

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if not self._is_terminal or now - self._last < REDRAW_S:
            return
        self._last = now
        share = ((self._run_number - 1) + progress.n_ended / max(self._n_requests, 1)) / self._n_runs
        bar = "#" * int(20 * share) + "-" * (20 - int(20 * share))
        text = (f"[{bar}] {self._what}  {progress.n_ended}/{self._n_requests} ended, {progress.n_open} under way, "
                f"{progress.n_missed} refused or failed")
        print(f"\r\x1b[K{text[:shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    def end(self, row: str) -> None:
        erase = "\r\x1b[K" if self._is_terminal else ""
        print(f"{erase}{self._command}: {self._what}: {row}", file=sys.stderr, flush=True)
