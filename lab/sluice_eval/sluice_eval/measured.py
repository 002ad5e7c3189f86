# SPDX-License-Identifier: Apache-2.0
"""Reports of what `sluice eval` has measured: tables or JSON lines, and pictures. The tool sends the numbers on standard input."""
from __future__ import annotations

import json
import math
import os
import shutil
import sys
from array import array
from typing import Any, Callable, Optional

from . import figures
from .errors import FAILED, EvalError, UsageError
from .rng import Random
from .tables import Table

Data = dict[str, Any]
N_RESAMPLES = 10000
MANY = 256  # differences: the blocks of 65,536 tokens


def _short(value: Any, digits: int) -> Any:
    """Rounds all floats within a value to this many digits; a number that is not finite becomes null."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [_short(one, digits) for one in value]
    return {name: _short(one, digits) for name, one in value.items()} if isinstance(value, dict) else value


def _read(value: Any) -> Any:
    """Returns a value with NaN for each null: numbers that were not finite."""
    if isinstance(value, list):
        return [_read(one) for one in value]
    if isinstance(value, dict):
        return {name: _read(one) for name, one in value.items()}
    return math.nan if value is None else value


def _print_line(line: Data, digits: int = 6) -> None:
    print(json.dumps(_short(line, digits)))


def _print_value(bench: str, case: str, value: float, unit: str, reference: str = "", reference_value: float = 0.0) -> None:
    """Prints a line as the benches do (lab/result.h)."""
    line: Data = {"bench": bench, "case": case, "value": value, "unit": unit}
    if reference:
        line |= {"reference": reference, "reference_value": float(reference_value),
                 "ratio": value / reference_value if reference_value else 0.0}
    _print_line(line)


def _print_table(table: Table) -> None:
    print(table.text(shutil.get_terminal_size().columns if sys.stdout.isatty() else 0), end="")


def _print_skipped(trials: list[Data]) -> None:
    for trial in trials:
        if "skipped" in trial:
            print(f"skipped  {trial['recipe']}: {trial['skipped']}")


def _measured(data: Data) -> list[Data]:
    return [trial for trial in data["trials"] if "skipped" not in trial]


# --- fidelity --------------------------------------------------------------------------------------------------------

def _fidelity_lines(data: Data, trial: Data) -> None:
    def value(what: str, value: float, unit: str, reference: str = "", reference_value: float = 0.0) -> None:
        _print_value("fidelity", f"{trial['recipe']}: {what}", value, unit, reference, reference_value)

    value("cache", trial["bytes_per_token"], "bytes/token", "f16", trial["bytes_per_token"] / trial["share"])
    value("slots", trial["slots"], "slots/head", "prompt", data["n_read"])
    value("evicted", 0.0 if trial["nothing_evicted"] else data["n_read"] - trial["slots"], "slots/head")
    value("attention error", trial["error_mean"], "relative")
    value("overlap", trial["overlap_mean"], "jaccard")
    if trial["recall_mean"] >= 0:
        value("recall", trial["recall_mean"], "share")
    value("nll", trial["nll"], "nats/token", "full cache", data["full_nll"])
    value("nll above full", trial["nll"] - data["full_nll"], "nats/token")
    for layer, (error, overlap, recall) in enumerate(zip(trial["error"], trial["overlap"], trial["recall"])):
        value(f"attention error, layer {layer}", error, "relative")
        value(f"overlap, layer {layer}", overlap, "jaccard")
        if recall >= 0:
            value(f"recall, layer {layer}", recall, "share")


def _fidelity_tables(data: Data) -> None:
    print(f"{data['source']}: a prompt of {data['n_read']} tokens and the {data['n_new']} after it; full cache: nll {data['full_nll']:.4f}\n")
    table = Table(["RECIPE", ">SLOTS", ">BYTES/TOKEN", ">OF F16", ">ERROR", ">OVERLAP", ">RECALL", ">NLL", ">ABOVE FULL", ""])
    layers = Table(["ERROR BY LAYER", *(f">{layer}" for layer in range(data["n_layers"]))])
    for trial in _measured(data):
        table.add(trial["recipe"], f"{trial['slots']:.1f}", f"{trial['bytes_per_token']:.1f}", f"{100 * trial['share']:.1f}%",
                  f"{trial['error_mean']:.4f}", f"{trial['overlap_mean']:.3f}",
                  f"{trial['recall_mean']:.3f}" if trial["recall_mean"] >= 0 else "-", f"{trial['nll']:.4f}",
                  f"{trial['nll'] - data['full_nll']:+.4f}", "nothing was evicted" if trial["nothing_evicted"] else "")
        layers.add(trial["recipe"], *(f"{error:.3f}" for error in trial["error"]))
    if table.rows:
        _print_table(table)
        print()
        _print_table(layers)
        print()
    _print_skipped(data["trials"])


def fidelity(data: Data) -> Any:
    """Prints the report. Returns the data of its picture."""
    for trial in data["trials"] if data["json"] else ():
        if "skipped" in trial:
            _print_line({"bench": "fidelity", "case": trial["recipe"], "skipped": trial["skipped"]})
        else:
            _fidelity_lines(data, trial)
    if not data["json"]:
        _fidelity_tables(data)
    trials = _measured(data)
    return {"recipes": [trial["recipe"] for trial in trials], "shares": [trial["share"] for trial in trials],
            "errors": [trial["error"] for trial in trials], "above": [trial["nll"] - data["full_nll"] for trial in trials]}


# --- perplexity ------------------------------------------------------------------------------------------------------

def _curve(blocks: list[float], n_blocks: list[int]) -> list[float]:
    """Returns the perplexity of each block over the texts that have it. blocks: text after text."""
    texts, at = [], 0
    for n in n_blocks:
        texts.append(blocks[at:at + n])
        at += n
    having = [[text[block] for text in texts if block < len(text)] for block in range(max(n_blocks))]
    return [math.exp(sum(values) / len(values)) for values in having]


def _draws(n: int) -> array:
    """Returns the indexes of all resamples of n differences, which are the same for every recipe. Of more than MANY differences there are
    fewer resamples: without NumPy a million draws take a second."""
    random = Random("bootstrap", 1, 0)
    n_resamples = max(400, min(N_RESAMPLES, N_RESAMPLES * MANY // n))
    return array("I", (random.below(n) for _ in range(n_resamples * n)))


def _quantile(values: list[float], share: float) -> float:
    at = share * (len(values) - 1)
    below = int(at)
    return values[below] + (at - below) * (values[min(below + 1, len(values) - 1)] - values[below])


def interval(differences: list[float], draws: array) -> tuple[Optional[float], Optional[float]]:
    """Returns the 95% interval of the mean, as bootstrap.py does for one cell, without NumPy. None: there is one difference."""
    n = len(differences)
    if n == 1:
        return None, None
    means = sorted(sum(differences[i] for i in draws[at:at + n]) / n for at in range(0, len(draws), n))
    return _quantile(means, 0.025), _quantile(means, 0.975)


def _perplexity_line(data: Data, trial: Data, draws: list[int]) -> Data:
    line = {"bench": "perplexity", "case": trial["recipe"]}
    if "skipped" in trial:
        return {**line, "skipped": trial["skipped"]}
    full, blocks = data["trials"][0], trial["blocks"]
    nll = sum(blocks) / len(blocks)
    above = [own - other for own, other in zip(blocks, full.get("blocks", [0.0] * len(blocks)))]
    low, high = interval(above, draws)
    return {**line, "perplexity": math.exp(nll), "nll": nll, "above_full": sum(above) / len(above), "low": low, "high": high,
            "slots": trial["slots"], "most_slots": trial["most_slots"], "tokens": data["n_tokens"], "chunk": data["chunk"],
            "block": data["block"], "curve": _curve(blocks, data["n_blocks"]),
            "nothing_evicted": trial["evicts"] and trial["slots"] > full.get("slots", 0.0) - 0.5}


def perplexity(data: Data) -> Any:
    """Prints the report. Returns the data of its picture."""
    draws = _draws(sum(data["n_blocks"]))
    lines = [_perplexity_line(data, trial, draws) for trial in data["trials"]]
    measured = [line for line in lines if "skipped" not in line]
    if data["json"]:
        for line in lines:
            _print_line(line, 9)
        return measured
    n_texts = len(data["n_blocks"])
    print(f"{n_texts} text{'' if n_texts == 1 else 's'}, {data['n_tokens']} tokens predicted, each from what is kept of earlier chunks and "
          f"from its own chunk of {data['chunk']}\n")
    table = Table(["RECIPE", ">SLOTS", ">MOST", ">PERPLEXITY", ">ABOVE FULL", ">95% INTERVAL", ""])
    for line in measured:
        interval = "-" if line["low"] is None else f"{line['low']:+.4f} to {line['high']:+.4f}"
        table.add(line["case"], f"{line['slots']:.1f}", str(line["most_slots"]), f"{line['perplexity']:.3f}", f"{line['above_full']:+.4f}",
                  interval, "nothing was evicted" if line["nothing_evicted"] else "")
    _print_table(table)
    _print_skipped(data["trials"])
    return measured


# --- weights ---------------------------------------------------------------------------------------------------------

def weights(data: Data) -> None:
    """Prints the report."""
    stored = data["formats"][0]
    if not data["json"]:
        print(f"{data['source']}: {data['n']} tokens predicted, tier {data['tier']}\n")
    table = Table(["WEIGHTS", ">MEMORY", ">OF STORED", ">LOAD", ">ERROR", ">PERPLEXITY", ">ABOVE STORED", ">KL", ">SAME TOP"])
    for one in data["formats"]:
        table.add(one["name"], f"{one['memory'] / 1e6:.1f} MB", f"{100 * one['memory'] / stored['memory']:.1f}%", f"{one['load']:.2f} s",
                  f"{one['error']:.2e}", f"{one['perplexity']:.4f}", f"{100 * (one['perplexity'] / stored['perplexity'] - 1):+.2f}%",
                  f"{one['kl']:.5f}", f"{100 * one['same_top']:.2f}%")
        for name, unit in [("memory", "bytes"), ("load", "s"), ("error", "relative square"), ("perplexity", ""), ("kl", "nats/token"),
                           ("same_top", "of positions")] if data["json"] else ():
            reference = ("stored", stored[name]) if name in ("memory", "load", "perplexity") else ()
            _print_value("weights", f"{one['name']}: {name.replace('_', ' ')}", float(one[name]), unit, *reference)
    if not data["json"]:
        _print_table(table)


KINDS: dict[str, Callable[[Data], Any]] = {"fidelity": fidelity, "perplexity": perplexity, "weights": weights}


def main(kind: str, png: Optional[str] = None) -> int:
    """Prints the report of a kind, and draws it; or with `check` only shows that it could. Returns the exit code."""
    try:
        if kind == "check":
            return 0
        picture = KINDS[kind](_read(json.load(sys.stdin)))
        sys.stdout.flush()
        if png and picture:
            figures.save_figure(figures.KINDS[kind](picture), png)
    except UsageError:
        return figures.NO_LIBRARY
    except EvalError as error:
        print(error, file=sys.stderr)
        return FAILED
    except OSError as error:
        print(f"standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
