# SPDX-License-Identifier: Apache-2.0
"""The command line: `sluice bench cluster`, or `python3 -m sluice_bench`."""
from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from typing import Optional

from sluice_eval.errors import EvalError

from . import command, options, pictures, report
from .sweep import Sweep, make_series, open_servers


def _show(sweep: Sweep, slo: str, as_json: bool) -> None:
    """Prints the table; as a note on standard error if JSON has standard output."""
    out = sys.stderr if as_json else sys.stdout
    if not any(line["completed"] + line["failed"] for line in sweep.lines):
        return
    width = shutil.get_terminal_size().columns if out.isatty() else 0
    print(report.table(sweep.lines).text(width), end="", file=out)
    cores = f"{os.cpu_count()} processors here; busy and steal are theirs"
    print(f"SLO: {slo}. {cores}.", file=out)
    if any(math.isfinite(rate) for line in sweep.lines for rate in [float(line["request_rate"])]):
        if good := report.highest_good(sweep.lines):
            print(f"At least {100 * report.GOOD_SHARE:g}% within the SLO: {'; '.join(good)}.", file=out)
    if n_void := sum(line["void"] is not None for line in sweep.lines):
        print(f"{n_void} of {len(sweep.lines)} runs are VOID, for the reasons above: give the generator a machine of its own, or a lower rate.", file=out)
    for note in sweep.notes:
        print(f"Note: {note}.", file=out)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.pictures:
        pictures.prepare(arguments.pictures)
    workload = options.workload(arguments)
    options.rates_of(arguments, workload)
    options.recipes(arguments.recipes)
    sweep = Sweep(arguments, workload, make_series(open_servers(arguments), arguments))
    failure = sweep.run()
    slo = arguments.slo.text()
    _show(sweep, slo, arguments.json)
    if arguments.pictures and sweep.ttfts_ms:
        pictures.draw_goodput(sweep.lines, slo, os.path.join(arguments.pictures, "goodput.png"))
        pictures.draw_ttft(sweep.ttfts_ms, sweep.lines, arguments.slo.ttft, os.path.join(arguments.pictures, "ttft.png"))
    if arguments.pictures and sweep.shipped:
        pictures.draw_bytes(sweep.shipped, sweep.lines, os.path.join(arguments.pictures, "bytes.png"))
    if failure:
        raise failure
    if not any(line["completed"] for line in sweep.lines):
        raise EvalError("no request was answered; the reasons are above")


def main(words: Optional[list[str]] = None) -> int:
    return command.start(options.parser(), _run, words)


if __name__ == "__main__":
    sys.exit(main())
