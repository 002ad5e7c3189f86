# SPDX-License-Identifier: Apache-2.0
"""Counters of a Sluice coordinator, from its page of metrics: they cover failed jobs too, which no answer reports."""
from __future__ import annotations

import re
import urllib.request
from typing import Optional

from sluice_eval.errors import EvalError

COUNTERS = ("sluice_job_retries_total", "sluice_capsule_bytes_total", "sluice_full_bytes_total", "sluice_prompt_tokens_total", "sluice_jobs_total")
_SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([0-9.eE+-]+)$')
_LABEL = re.compile(r'(?:outcome|source)="([^"]*)"')


def parse(page: str) -> dict[str, float]:
    """Returns the sum of each counter, by its name and its outcome or source."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        sample = _SAMPLE.match(line)
        if sample and sample[1] in COUNTERS:
            label = _LABEL.search(sample[2] or "")
            name = sample[1].removeprefix("sluice_").removesuffix("_total") + (f"_{label[1]}" if label else "")
            found[name] = found.get(name, 0.0) + float(sample[3])
    return found


def read(url: Optional[str]) -> dict[str, float]:
    """Returns the counters of the page now; nothing without a page."""
    if not url:
        return {}
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = parse(answer.read().decode(errors="replace"))
    except (OSError, ValueError) as error:
        raise EvalError(f"--metrics {url}: {getattr(error, 'reason', error)}") from error
    if not found:
        raise EvalError(f"--metrics {url}: there is none of a Sluice coordinator's counters")
    return found


def difference(before: dict[str, float], after: dict[str, float]) -> Optional[dict[str, float]]:
    """Returns how much each counter grew; None without counters."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()} or None
