# SPDX-License-Identifier: Apache-2.0
"""The rows of a bench, each with its reference, as the other benches of the tool print them (lab/result.h)."""
from __future__ import annotations

import json
import math
import statistics
import sys
from typing import Any, Optional, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value that `share` of them do not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def median_interval(values: Sequence[float]) -> Optional[tuple[float, float]]:
    """Returns the 95% interval of the median that the sign test gives, whatever the distribution; None: fewer than six have none."""
    n, below, outside = len(values), 0, 0.5 ** len(values)  # outside: the probability that at most `below` of n lie under the median
    while outside <= 0.025:
        below += 1
        outside += math.comb(n, below) * 0.5 ** n
    ordered = sorted(values)
    return (ordered[below - 1], ordered[n - below]) if below > 0 else None


class Rows:
    """Prints a table, or one JSON object a line."""

    def __init__(self, bench: str, as_json: bool) -> None:
        self._bench, self._as_json = bench, as_json

    def value(self, case: str, value: float, unit: str, reference: str = "", reference_value: float = 0.0, ratio: Optional[float] = None,
              interval: Optional[tuple[float, float]] = None) -> None:
        """Prints a value, and beside its reference the ratio: that of the two, unless both alternated and have another, with its interval."""
        ratio = value / reference_value if reference and ratio is None else ratio
        progress("")
        if self._as_json:
            row: dict[str, Any] = {"bench": self._bench, "case": case, "value": _short(value), "unit": unit}
            if reference:
                row |= {"reference": reference, "reference_value": _short(reference_value), "ratio": _short(ratio)}
            if interval:
                row |= {"ratio_low": _short(interval[0]), "ratio_high": _short(interval[1])}
            print(json.dumps(row), flush=True)
        else:
            between = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
            beside = f" {100 * ratio:5.1f}%{between} of {reference} ({value:.1f} of {reference_value:.1f})" if reference else ""
            print(f"{case:<44} {value:12.1f} {unit:<10}{beside}", flush=True)

    def run(self, case: str, number: int, value: float, unit: str) -> None:
        """Prints one of several runs, which count from 1, when it is measured."""
        self.value(f"{case}, run {number}", value, unit)

    def median(self, case: str, values: Sequence[float], unit: str) -> None:
        self.value(case, statistics.median(values), unit)

    def skip(self, case: str, why: str) -> None:
        """Says why a case was not measured."""
        if self._as_json:
            print(json.dumps({"bench": self._bench, "case": case, "skipped": why}), flush=True)
        else:
            print(f"{case:<44} skipped: {why}", flush=True)

    def turns(self, case: str, values: Sequence[float], unit: str, reference: str, references: Sequence[float]) -> None:
        """Prints values that alternated with their references: medians, and the median of the pairs' own ratios with its interval."""
        ratios = [value / other for value, other in zip(values, references)]
        self.value(case, statistics.median(values), unit, reference, statistics.median(references), statistics.median(ratios),
                   median_interval(ratios))


def _short(number: Optional[float]) -> float:
    return float(f"{number:.6g}")


def progress(text: str) -> None:
    """Rewrites a line on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
