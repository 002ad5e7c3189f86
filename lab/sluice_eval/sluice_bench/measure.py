# SPDX-License-Identifier: Apache-2.0
"""Figures of one run, under the names that vLLM's `bench serve` gives them.

TTFT is the time from when the request left to the first token, E2EL to the last one. TPOT is the mean time of an answer's tokens
after the first. ITL is pooled: every gap between two tokens of all answers. ITL_PER_REQUEST takes the mean gap of each answer.
Goodput counts answers within every limit, a second, from the first request to the last answer; refused and failed requests miss, and wrong answers where the
right ones are known.
"""
from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any, Iterable, Optional, Sequence

from .answer import CUT, DONE, FAILED, REFUSED, Answer
from .load import Run

PERCENTILES = (50, 90, 99)


@dataclasses.dataclass(frozen=True)
class Slo:
    """The longest times of a good answer in seconds; None: no limit."""

    ttft: Optional[float] = None
    tpot: Optional[float] = None
    e2el: Optional[float] = None

    def is_met(self, answer: Answer) -> bool:
        if answer.status != DONE:
            return False
        times = ((self.ttft, answer.ttft_s), (self.tpot, answer.tpot_s or 0.0), (self.e2el, answer.e2e_s))
        return all(limit is None or took <= limit for limit, took in times)

    def text(self) -> str:
        limits = ((name, getattr(self, name)) for name in ("ttft", "tpot", "e2el"))
        return ", ".join(f"{name.upper()} {1000 * limit:g} ms" for name, limit in limits if limit is not None) or "none"


def percentile(ordered: Sequence[float], percent: float) -> Optional[float]:
    """Returns a percentile of sorted numbers, between the two nearest as NumPy does; None of none."""
    if not ordered:
        return None
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(name: str, seconds: Iterable[float]) -> dict[str, Optional[float]]:
    ordered = sorted(1000 * one for one in seconds)
    figures: dict[str, Optional[float]] = {
        f"mean_{name}_ms": statistics.fmean(ordered) if ordered else None,
        f"median_{name}_ms": percentile(ordered, 50),
        f"std_{name}_ms": statistics.pstdev(ordered) if ordered else None}
    for percent in PERCENTILES:
        figures[f"p{percent}_{name}_ms"] = percentile(ordered, percent)
    return figures


def _gaps(answer: Answer) -> list[float]:
    return [after - before for before, after in zip(answer.token_s, answer.token_s[1:])]


def lag_s(run: Run) -> float:
    """Returns the p99 of the generator's own lag: of requests that left late, or of its timer, whichever is worse."""
    return max(percentile(sorted(lags), 99) or 0.0 for lags in ([one.lag_s for one in run.sent], run.oversleeps_s))


def _peak_tokens(run: Run) -> float:
    """Returns the most tokens in one second."""
    seconds: dict[int, int] = {}
    for one in run.sent:
        for at in one.answer.token_s:
            seconds[int(at - run.began_s)] = seconds.get(int(at - run.began_s), 0) + 1
    return float(max(seconds.values(), default=0))


def _sluice_figures(done: list[Answer]) -> dict[str, Any]:
    """Returns sums over the answers of a Sluice server; null of another one's."""
    names = {"capsule_bytes": "capsule_bytes", "full_bytes": "full_bytes", "decode_resident_bytes": "resident_bytes",
             "offloaded_bytes": "offloaded_bytes", "retries": "retries"}
    measured = [answer.sluice for answer in done if answer.sluice]
    return {ours: sum(one.get(theirs) or 0 for one in measured) if measured else None for theirs, ours in names.items()}


def summary(run: Run, slo: Slo, most_lag_s: float, most_busy: Optional[float] = None) -> dict[str, Any]:
    """Returns the run's figures. Requests that were cut by the end of the run count nowhere but in "unfinished"."""
    answers = [one.answer for one in run.sent]
    by_status = {status: [a for a in answers if a.status == status] for status in (DONE, REFUSED, FAILED, CUT)}
    done = by_status[DONE]
    ended = len(answers) - len(by_status[CUT])
    duration = max(run.ended_s - run.began_s, 1e-9)
    good = sum(slo.is_met(one.answer) and one.is_right for one in run.sent)
    n_right = sum(one.is_right for one in run.sent if one.answer.status == DONE)
    gaps = [_gaps(answer) for answer in done]
    n_input = sum(a.n_prompt if a.n_prompt is not None else one.request.n_input for a, one in zip(answers, run.sent) if a.status == DONE)
    n_output = sum(answer.n_tokens for answer in done)
    lag = lag_s(run)
    void = f"the generator lagged: p99 {1000 * lag:.0f} ms, and {1000 * most_lag_s:.0f} ms are permitted" if lag > most_lag_s else None
    host = run.host
    if not void and most_busy and host and host.busy and host.busy > most_busy:
        void = f"the host was {100 * host.busy:.0f}% busy, and {100 * most_busy:g}% are permitted"
    return {
        "duration": duration, "completed": len(done), "failed": len(by_status[FAILED]) + len(by_status[REFUSED]),
        "refused": len(by_status[REFUSED]), "unfinished": len(by_status[CUT]),
        "total_input_tokens": n_input, "total_output_tokens": n_output,
        "request_throughput": len(done) / duration, "request_goodput": good / duration,
        "slo_attainment": good / ended if ended else None,
        "right": n_right if any(one.request.right for one in run.sent) else None,
        "output_throughput": n_output / duration, "total_token_throughput": (n_input + n_output) / duration,
        "max_output_tokens_per_s": _peak_tokens(run), "max_concurrent_requests": run.most_at_once,
        **_spread("ttft", (a.ttft_s for a in done)),
        **_spread("tpot", (a.tpot_s for a in done if a.tpot_s is not None)),
        **_spread("itl", (gap for one in gaps for gap in one)),
        **_spread("itl_per_request", (statistics.fmean(one) for one in gaps if one)),
        **_spread("e2el", (a.e2e_s for a in done)),
        "cached_tokens": sum(answer.n_cached for answer in done), **_sluice_figures(done),
        "without_usage": sum(answer.n_output is None for answer in done),
        "lag_p99_ms": 1000 * lag, "host_busy": host and host.busy, "host_steal": host and host.steal,
        "generator_cores": host and host.generator_cores, "stopped": run.stopped or None, "void": void}


def first_errors(run: Run, most: int = 3) -> list[str]:
    """Returns the most frequent errors, with their number and the first request that had each."""
    found: dict[str, list[Any]] = {}
    for one in run.sent:
        if one.answer.status in (REFUSED, FAILED):
            found.setdefault(one.answer.error, []).append(one.request)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))[:most]
    return [f"{len(requests)} {'request' if len(requests) == 1 else 'requests'}, first number {requests[0].number + 1}"
            f"{f' (row {requests[0].row})' if requests[0].row else ''}: {text}" for text, requests in ordered]
