# SPDX-License-Identifier: Apache-2.0
"""`sluice bench ship`: how fast the fabric ships a capsule between two processes of this host, beside other ways in the same minute:
the same ship over another transport, ucx_perftest (package ucx-utils), iperf3; and what shipping adds to a job.

Load on the machine varies, so the references and the ships alternate; rates are medians, and a ratio is the median of each round's
own. The references send the same buffer repeatedly. A buffer of 1 MiB never leaves the caches, so a capsule is also compared with
one of its own size. Both sides of ucx_perftest poll without a pause: on two cores a third busy thread slows it over tcp several
times, and the ships much less, and such ratios are meaningless. Run it on idle cores.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import Optional

from sluice_eval.errors import EvalError, UsageError

from . import rig, ttft
from .options import whole
from .rows import Rows, progress

ROUNDS = 7
MIB = 1 << 20
PORT = 20000 + os.getpid() % 20000
# Shapes with pages, and the same bytes in large pieces.
IN_PIECES = {"64 MiB, pages of 16 KiB": "64 MiB, pieces of 16 MiB", "256 MiB, pages of 16 KiB": "256 MiB, pieces of 64 MiB"}


@dataclasses.dataclass(frozen=True)
class Reference:
    """The same ships over `transport`, or ucx_perftest's `test` over `tls`, or else iperf3."""

    name: str
    transport: str = ""
    tls: str = ""
    test: str = ""
    size: int = 0
    iterations: int = 0


TRANSPORTS = {
    "tcp": (Reference("the same over ucx-tcp", transport="ucx-tcp"),
            Reference("ucx_perftest ucp_am_bw 1 MiB", tls="tcp,self", test="ucp_am_bw", size=MIB, iterations=2000),
            Reference("iperf3")),
    "tls": (Reference("the same over tcp, in the clear", transport="tcp"),),
    "shm": (Reference("ucx_perftest ucp_put_bw 64 MiB", tls="posix,self,tcp", test="ucp_put_bw", size=64 * MIB, iterations=60),
            Reference("ucx_perftest ucp_put_bw 1 MiB", tls="posix,self,tcp", test="ucp_put_bw", size=MIB, iterations=4000)),
}


def parser() -> argparse.ArgumentParser:
    made = rig.parser("ship", "Measure capsules between two processes against other ways, and what shipping adds to a job.")
    made.add_argument("--transport", "-t", choices=[*TRANSPORTS, "all"], default="all", metavar="NAME", help="tcp, tls, shm or all [all]")
    made.add_argument("--certificates", default="", metavar="DIR",
                      help="certificates for tls, made by tools/test-ca.sh DIR worker/kvstore/bench. Default: tls is left out")
    made.add_argument("--tokens", type=whole(0, 1 << 24), default=8000, metavar="N",
                      help="length of the prompt of the job whose time to first token is measured afterwards; 0: none [8000]")
    return made


class Ships:
    """A `sluice bench ships` process."""

    def __init__(self, transport: str, certificates: str) -> None:
        words = [rig.tool(), "bench", "ships", "--transport", transport, *(["--certificates", certificates] if certificates else [])]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
                                         preexec_fn=rig.die_with_parent)

    def _once(self) -> dict[str, float]:
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it has to say is on standard error
        line = self._process.stdout.readline()
        if not line:
            raise EvalError("a process has failed; its output is above")
        return json.loads(line)

    def rates(self) -> dict[str, float]:
        """Returns the GB/s of every shape. After seconds of sleep, waking up halves the rate of the first one: ships once before."""
        self._once()
        return self._once()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _output_beside(server: list[str], client: list[str], **environment: str) -> str:
    """Returns what a program prints that measures with a server of its own; "": it is not installed."""
    if not shutil.which(server[0]):
        return ""
    quiet = {"stderr": subprocess.DEVNULL, "env": {**os.environ, **environment}}
    with subprocess.Popen(server, stdout=subprocess.DEVNULL, **quiet) as running:
        try:
            time.sleep(0.5)
            return subprocess.run(client, stdout=subprocess.PIPE, text=True, check=False, timeout=120, **quiet).stdout
        except subprocess.TimeoutExpired:
            return ""
        finally:
            running.kill()  # it has normally ended by now


def _perftest(it: Reference) -> float:
    """Returns the GB/s of one ucx_perftest between two processes; 0: it is not installed, or failed."""
    server = ["ucx_perftest", "-p", str(PORT)]
    client = [*server, "127.0.0.1", "-t", it.test, "-s", str(it.size), "-n", str(it.iterations), "-w", "5"]
    for line in _output_beside(server, client, UCX_TLS=it.tls, UCX_NET_DEVICES="lo").splitlines():
        fields = line.split()
        if fields[:1] == ["Final:"] and len(fields) > 6:
            return float(fields[6]) * MIB / 1e9  # bandwidth over the whole run
    return 0.0


def _iperf() -> float:
    """Returns the GB/s of iperf3 over two seconds; 0: it is not installed, or failed."""
    out = _output_beside(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(PORT)], ["iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-t", "2", "-J"])
    try:
        return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 8e9
    except (ValueError, KeyError):
        return 0.0


class Comparison:
    """The ships over a transport and its references, by turns, and their GB/s by shape."""

    def __init__(self, transport: str, rows: Rows) -> None:
        self._transport, self._rows = transport, rows
        self._references = TRANSPORTS[transport]
        self._rounds: list[tuple[dict[str, float], list[dict[str, float]]]] = []

    def _round(self, own: Ships, beside: dict[str, Ships]) -> tuple[dict[str, float], list[dict[str, float]]]:
        others = []
        for it in self._references:
            others.append(beside[it.transport].rates() if it.transport else {"": _perftest(it) if it.test else _iperf()})
        return own.rates(), others

    def measure(self, certificates: str) -> None:
        with contextlib.ExitStack() as stack:
            def start(transport: str) -> Ships:
                return stack.enter_context(contextlib.closing(Ships(transport, certificates)))
            own = start(self._transport)
            beside = {it.transport: start(it.transport) for it in self._references if it.transport}
            for ships in (*beside.values(), own):
                ships.rates()  # warms up
            for number in range(1, ROUNDS + 1):
                progress(f"ship over {self._transport}: round {number} of {ROUNDS}")
                rates, others = self._round(own, beside)
                for shape, rate in rates.items():
                    self._rows.run(f"{self._transport}: {shape}", number, rate, "GB/s")
                self._rounds.append((rates, others))

    def _print(self, shape: str, name: str, others: list[float], is_optional: bool) -> None:
        """Prints a shape beside a reference, or alone if there is none: of several, the first one's line stands for that."""
        case, rates = f"{self._transport}: {shape}", [own[shape] for own, _ in self._rounds]
        if statistics.median(others) > 0:
            self._rows.turns(case, rates, "GB/s", name, others)
        elif not is_optional:
            self._rows.median(case, rates, "GB/s")

    def print(self) -> None:
        for shape in self._rounds[0][0] if self._rounds else ():
            for i, it in enumerate(self._references):
                self._print(shape, it.name, [others[i].get(shape, others[i].get("", 0.0)) for _, others in self._rounds], i > 0)
            if shape in IN_PIECES:
                self._print(shape, "the same in large pieces", [own[IN_PIECES[shape]] for own, _ in self._rounds], False)


def _work(arguments: argparse.Namespace, rows: Rows) -> None:
    if arguments.transport == "tls" and not arguments.certificates:
        raise UsageError("--transport tls: needs --certificates")
    for transport in TRANSPORTS if arguments.transport == "all" else [arguments.transport]:
        if transport != "tls" or arguments.certificates:
            comparison = Comparison(transport, rows)
            try:
                comparison.measure(arguments.certificates)
            finally:
                comparison.print()
    if arguments.tokens > 0:
        words = ["--model", arguments.model, "--tokens", str(arguments.tokens), "--device", arguments.device]
        ttft.measure(ttft.parser().parse_args(words), Rows("ttft", arguments.json))


def main(words: Optional[list[str]] = None) -> int:
    return rig.main(parser(), _work, words)


if __name__ == "__main__":
    sys.exit(main())
