# SPDX-License-Identifier: Apache-2.0
"""Progress on standard error: a bar on a terminal, else a line now and then."""
from __future__ import annotations

import shutil
import sys
import time

from .plan import Plan
from .runner import State

REDRAW_S, LINE_S = 0.1, 30.0


def _left(seconds: float) -> str:
    """Returns "1 h 20 min left", or nothing while the time is unknown."""
    minutes = int(seconds / 60 + 0.5)
    if seconds < 0:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{minutes} min left" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min left"


class Progress:
    def __init__(self, command: str, plan: Plan, n_samples: list[int]) -> None:
        self._command, self._plan, self._n_samples = command, plan, n_samples
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic()
        self._is_shown = False

    def __call__(self, state: State) -> None:
        over = state.done == state.total
        now = time.monotonic()
        if not over and now - self._last < (REDRAW_S if self._is_terminal else LINE_S):
            return
        self._last = now
        if self._is_terminal:
            self._draw(state)
        else:
            left = _left(state.left_s)
            about = f", about {left}" if left and not over else ""
            print(f"{self._command}: {state.done} of {state.total} answers{about}", file=sys.stderr, flush=True)

    def _draw(self, state: State) -> None:
        cell, recipe = self._plan.cells[state.cell], self._plan.recipes[state.recipe]
        share = state.done / state.total if state.total else 1
        bar = "#" * int(20 * share) + "-" * (20 - int(20 * share))
        text = (f"[{bar}] {state.done}/{state.total} answers  {cell.name[:30]} {state.index + 1}/"
                f"{self._n_samples[state.cell]}, {recipe.name[:40]} {recipe.budget[:8]}  {_left(state.left_s)}")
        print(f"\r\x1b[K{text[:shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        self._is_shown = True

    def hide(self) -> None:
        """Removes the bar."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_shown = False
