# SPDX-License-Identifier: Apache-2.0
"""The table of all runs, and JSON lines of runs and requests."""
from __future__ import annotations

import datetime
import json
import math
import statistics
from typing import Any, Iterable, Optional

from sluice_eval.tables import Table

from . import __version__
from .load import Run, Sent
from .measure import Slo

GOOD_SHARE = 0.9  # of requests: a rate below it is too high (DistServe)
Figures = dict[str, Any]


def run_line(run: Run, figures: Figures, setting: Figures) -> Figures:
    """Returns the JSON object of a run: vLLM's names first, then what it has no name for."""
    series = run.series
    return {"date": datetime.datetime.now().strftime("%Y%m%d-%H%M%S"), "endpoint_type": "openai", "backend": "openai", "label": series.name,
            "model_id": series.server.model, "tokenizer_id": None, "num_prompts": len(run.sent),
            "request_rate": run.rate if math.isfinite(run.rate) else "inf", "max_concurrency": None, **setting, **figures,
            "recipe": series.recipe or None, "repetition": run.repetition + 1, "url": series.server.url, "generator": f"sluice_bench {__version__}"}


def request_line(run: Run, one: Sent, slo: Slo) -> Figures:
    answer, request = one.answer, one.request

    def ms(seconds: Optional[float]) -> Optional[float]:
        return None if seconds is None else round(1000 * seconds, 3)
    has_tokens = len(answer.token_s) > 0
    return {"label": run.series.name, "request_rate": run.rate if math.isfinite(run.rate) else "inf", "repetition": run.repetition + 1,
            "request": request.number + 1, "row": request.row or None, "status": answer.status, "error": answer.error or None,
            "good": slo.is_met(answer) and one.is_right, "right": one.is_right if request.right else None, "due_ms": ms(one.due_s - run.began_s), "lag_ms": ms(one.lag_s), "input_tokens": request.n_input,
            "prompt_tokens": answer.n_prompt, "max_tokens": request.n_output, "output_tokens": answer.n_tokens, "cached_tokens": answer.n_cached,
            "ttft_ms": ms(answer.ttft_s) if has_tokens else None, "tpot_ms": ms(answer.tpot_s) if has_tokens else None,
            "e2el_ms": ms(answer.e2e_s) if has_tokens else None,
            "itls_ms": [ms(b - a) for a, b in zip(answer.token_s, answer.token_s[1:])], "sluice": answer.sluice or None}


def dumps(line: Figures) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# --- the table -------------------------------------------------------------------------------------------------------

def _numbers(lines: list[Figures], name: str) -> list[float]:
    return [line[name] for line in lines if line[name] is not None]


def _median(lines: list[Figures], name: str, scale: float = 1, digits: int = 0) -> str:
    numbers = _numbers(lines, name)
    return f"{scale * statistics.median(numbers):.{digits}f}" if numbers else "-"


def _with_range(lines: list[Figures], name: str) -> str:
    numbers = _numbers(lines, name)
    if not numbers:
        return "-"
    text = f"{statistics.median(numbers):.2f}"
    return text if len(numbers) == 1 else f"{text} ({min(numbers):.2f}-{max(numbers):.2f})"


def _percentiles(lines: list[Figures], name: str, digits: int = 0) -> str:
    return "/".join(_median(lines, f"p{percent}_{name}_ms", digits=digits) for percent in (50, 90, 99))


def _per_answer(lines: list[Figures], name: str, of: str, scale: float, digits: int) -> str:
    shares = [line[name] / line[of] for line in lines if line.get(name) is not None and line.get(of)]
    return f"{scale * statistics.median(shares):.{digits}f}" if shares else "-"


def row(line: Figures) -> str:
    """Returns a run in a line, and why it is void."""
    def ms(name: str, digits: int) -> str:
        return "-" if line[name] is None else f"{line[name]:.{digits}f}"
    text = (f"goodput {line['request_goodput']:.2f}/s, p50 TTFT {ms('p50_ttft_ms', 0)}, TPOT {ms('p50_tpot_ms', 1)} ms, {line['completed']} done, "
            f"{line['failed']} failed")
    return text + (f", VOID: {line['void']}" if line["void"] else "")


def _by_series(lines: Iterable[Figures]) -> dict[str, dict[Any, list[Figures]]]:
    """Returns the runs in which a request ended by label and rate, in the order in which they came."""
    found: dict[str, dict[Any, list[Figures]]] = {}
    for line in lines:
        if line["completed"] + line["failed"] > 0:
            found.setdefault(line["label"], {}).setdefault(line["request_rate"], []).append(line)
    return found


def grouped(lines: Iterable[Figures]) -> dict[str, dict[Any, list[Figures]]]:
    """Returns the runs that count: those that are not void."""
    return _by_series(line for line in lines if not line["void"])


def _number_of(runs: list[Figures], counting: list[Figures]) -> str:
    n_void = len(runs) - len(counting)
    return str(len(counting)) if n_void == 0 else f"{len(counting)} + {n_void} VOID" if counting else f"{n_void} VOID"


def table(lines: list[Figures]) -> Table:
    """Returns a row for each rate and series: medians of the repetitions, of goodput with their range. Void ones count only where all are."""
    made = Table([">rate", "series", ">runs", ">done", ">refused", ">failed", ">goodput (range)", ">in SLO %", ">right %", ">TTFT p50/90/99 ms", ">TPOT", ">ITL",
                  ">ITL/request", ">E2E", ">MB/answer", ">reused %", ">retries", ">busy %", ">steal %", ">lag p99 ms"])
    found = _by_series(lines)
    rates = dict.fromkeys(line["request_rate"] for line in lines)
    for rate in rates:
        for label, by_rate in found.items():
            if rate not in by_rate:
                continue
            counting = [line for line in by_rate[rate] if not line["void"]]
            runs = counting or by_rate[rate]
            made.add(rate if isinstance(rate, str) else f"{rate:.4g}", label, _number_of(by_rate[rate], counting), *(
                str(sum(run[name] for run in runs)) for name in ("completed", "refused")), str(sum(run["failed"] - run["refused"] for run in runs)),
                _with_range(runs, "request_goodput"), _median(runs, "slo_attainment", 100), _per_answer(runs, "right", "completed", 100, 0), _percentiles(runs, "ttft"), _percentiles(runs, "tpot", 1),
                _percentiles(runs, "itl", 1), _percentiles(runs, "itl_per_request", 1), _percentiles(runs, "e2el"),
                _per_answer(runs, "capsule_bytes", "completed", 1e-6, 2), _per_answer(runs, "cached_tokens", "total_input_tokens", 100, 0),
                str(sum(_numbers(runs, "retries"))) if _numbers(runs, "retries") else "-",
                _median(runs, "host_busy", 100), _median(runs, "host_steal", 100, 1), _median(runs, "lag_p99_ms"))
    return made


def highest_good(lines: list[Figures]) -> list[str]:
    """Returns a sentence for each series: the highest rate up to which enough requests met the SLO, in runs that were not stopped."""
    sentences = []
    for label, by_rate in grouped(line for line in lines if not line["stopped"]).items():
        best = None
        for rate in sorted((rate for rate in by_rate if not isinstance(rate, str))):
            if (statistics.median(_numbers(by_rate[rate], "slo_attainment") or [0])) < GOOD_SHARE:
                break
            best = rate
        sentences.append(f"{label}: {f'up to {best:.4g} requests/s' if best is not None else 'at no rate'}")
    return sentences
