# SPDX-License-Identifier: Apache-2.0
"""`sluice bench coordinator`: the coordinator alone: a real process, workers that only wait (`sluice bench waiting`), and clients of
Generate (`sluice bench jobs`).

Three phases a cell. First a number of jobs is in flight at all times, which gives the rate. Then jobs come at half of that rate, or at
--second-rate, which gives the added latency: all but what the workers waited. Last, clients ask the workers themselves, at the same
rate: what that adds is theirs, and not the coordinator's. What is printed is void where the clients lagged by more than a tenth of the latency.
Coordinator, workers and clients are processes of their own; each cell has new ones.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Optional

from sluice_eval.errors import EvalError, UsageError

from . import rig
from .options import whole
from .rows import Rows, progress

LOOK_S = 0.2  # between looks at the coordinator's memory
MAX_WORKERS, MAX_JOBS = 1024, 30000
LAG_SHARE = 0.1  # of the median latency that the clients may lag
SPARE_JOBS = 64  # more that the coordinator may have


def _number(least: float, most: float) -> Any:
    def parse(text: str) -> float:
        if not re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text) or not least <= float(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least:g} to {most:g}")
        return float(text)
    return parse


def parser() -> argparse.ArgumentParser:
    made = rig.parser("coordinator", "Measure the coordinator with workers that only wait: jobs a second, added latency, memory a job.",
                      has_device=False)
    add = made.add_argument
    add("--program", default="", metavar="FILE", help="the sluice-coordinator to measure; without it, the one beside this program")
    add("--cells", default="16:256,256:2500,1000:10000", metavar="WORKERS:JOBS,...",
        help="workers, and jobs in flight [16:256,256:2500,1000:10000]")
    add("--seconds", type=_number(1, 3600), default=10.0, metavar="S", help="seconds of each phase [10]")
    add("--second-rate", type=_number(0, 1e6), default=0.0, metavar="N", help="jobs a second in the second phase; 0: half of the first's [0]")
    add("--tokens", type=whole(1, 1024), default=8, metavar="N", help="tokens of an answer [8]")
    add("--prefill-ms", type=whole(0, 60000), default=2, metavar="MS", help="time that a worker waits instead of reading [2]")
    add("--token-ms", type=whole(0, 60000), default=2, metavar="MS", help="time that a worker waits before each token [2]")
    add("--join", default="", metavar="HOST:PORT", help="be only the workers, of this coordinator, until a signal comes")
    add("--workers", type=whole(2, MAX_WORKERS), default=8, metavar="N", help="with --join: half of them prefill [8]")
    return made


def _cells(text: str) -> list[tuple[int, int]]:
    found = []
    for part in text.split(","):
        cell = re.fullmatch("([0-9]{1,9}):([0-9]{1,9})", part)
        if not cell or not 2 <= int(cell[1]) <= MAX_WORKERS or not 1 <= int(cell[2]) <= MAX_JOBS:
            raise UsageError(f"--cells {part[:40]}: expected WORKERS:JOBS, 2 to {MAX_WORKERS} and 1 to {MAX_JOBS}")
        found.append((int(cell[1]), int(cell[2])))
    return found


def _worker_words(arguments: argparse.Namespace, address: str, n_workers: int) -> list[str]:
    return [rig.tool(), "bench", "waiting", "--coordinator", address, "--workers", str(n_workers), "--model", arguments.model,
            "--prefill-ms", str(arguments.prefill_ms), "--token-ms", str(arguments.token_ms)]


class _Use(threading.Thread):
    """What a process uses from now on: the seconds of its CPU, and the most memory and threads."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._over = pid, threading.Event()
        self._cpu_s = self._clock()
        self.idle_kib = self.most_kib = self.status("VmRSS")
        self.most_threads = 0
        self.start()

    def _clock(self) -> float:
        return time.clock_gettime((~self._pid << 3) | 2)  # the clock of a process, as clock_getcpuclockid() makes it

    def status(self, name: str) -> int:
        with open(f"/proc/{self._pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))

    def run(self) -> None:
        with contextlib.suppress(OSError, StopIteration):  # it has ended, which its clients notice
            while not self._over.wait(LOOK_S):
                self.most_kib = max(self.most_kib, self.status("VmRSS"))
                self.most_threads = max(self.most_threads, self.status("Threads"))

    def stop(self) -> float:
        """Returns the seconds of its CPU."""
        self._over.set()
        self.join()
        return self._clock() - self._cpu_s


class Cell:
    def __init__(self, arguments: argparse.Namespace, n_workers: int, n_jobs: int, rows: Rows) -> None:
        self._arguments, self._n_workers, self._n_jobs, self._rows = arguments, n_workers, n_jobs, rows
        self._address, self._workers, self._is_void = "", "", False

    def _print(self, what: str, value: float, unit: str) -> None:
        self._rows.value(f"{self._n_workers} workers, {self._n_jobs} jobs: {what}{' (VOID)' if self._is_void else ''}", value, unit)

    def _phase(self, name: str, rate: float, workers: str = "") -> dict[str, Any]:
        """Runs a phase, and prints what shows whether it counts. Marks what is printed from then on if it does not."""
        words = [rig.tool(), "bench", "jobs", "--coordinator", self._address, "--clients", str(self._n_jobs), "--per-second", f"{rate:.6f}",
                 "--seconds", f"{self._arguments.seconds:g}", "--tokens", str(self._arguments.tokens), *(["--direct", workers] if workers else [])]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
                              preexec_fn=rig.die_with_parent) as process:
            try:
                line = process.stdout.readline()
            except BaseException:
                process.kill()
                raise
        if not line:
            raise EvalError("the clients failed; their output is above")
        found = json.loads(line)
        self._is_void = found["lag_ms_p99"] > LAG_SHARE * found["latency_ms_p50"]
        self._print(f"{name}, clients' lag p99", found["lag_ms_p99"], "ms")
        self._print(f"{name}, refused or failed", found["failed"], "jobs")
        if found["failed"]:
            print(f"the first failure: {found['why']}", file=sys.stderr)
        return found

    def _measure(self, pid: int) -> None:
        use = _Use(pid)
        found = self._phase("full rate", 0)
        cpu_s = use.stop()
        rate = found["jobs_per_s"]
        self._print("jobs", rate, "jobs/s")
        self._print("tokens", rate * self._arguments.tokens, "tokens/s")
        self._print("CPU of the coordinator a job", 1e6 * cpu_s / max(found["ended"], 1), "us")
        self._print("latency p50", found["latency_ms_p50"], "ms")
        self._print("memory a job", (use.most_kib - use.idle_kib) / self._n_jobs, "KiB")
        self._print("threads", use.most_threads, "threads")
        if rate > 0:
            second = self._arguments.second_rate or rate / 2
            name = f"{second:.0f}/s" if self._arguments.second_rate else "half rate"
            found = self._phase(name, second)
            self._print(f"{name}, added p50", found["added_ms_p50"], "ms")
            self._print(f"{name}, added p99", found["added_ms_p99"], "ms")
            alone = self._phase(f"{name} to the workers", second, self._workers)
            self._print(f"{name} to the workers, added p50", alone["added_ms_p50"], "ms")
            self._print(f"{name} to the workers, added p99", alone["added_ms_p99"], "ms")
            self._print(f"{name}, added by the coordinator p50", found["added_ms_p50"] - alone["added_ms_p50"], "ms")

    def run(self) -> None:
        progress(f"{self._n_workers} workers, {self._n_jobs} jobs")
        limit = str(self._n_jobs + SPARE_JOBS)
        program = self._arguments.program or os.path.join(os.path.dirname(rig.tool()), "sluice-coordinator")
        with contextlib.ExitStack() as stack:
            def start(words: list[str]) -> tuple[rig.Child, str]:
                child = rig.Child(words)
                stack.callback(child.stop)
                return child, child.ready_line()
            coordinator, line = start([program, "--listen", "127.0.0.1:0", "--model", self._arguments.model, "--max-jobs", limit, "--queue", limit,
                                       "--max-watchers", limit, "--tenant-share", "100", "--heartbeat", "5s", "--kept-jobs", "1", "--log", "error"])
            if "rpc=" not in line:
                raise EvalError(f"{program}: its ready line has no address")
            self._address = line.split("rpc=")[1].split()[0]
            _, line = start(_worker_words(self._arguments, self._address, self._n_workers))
            self._workers = ",".join(word.partition("=")[2] for word in line.split()[2:])
            self._measure(coordinator.pid)


def _be_workers(arguments: argparse.Namespace) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)  # it would outlive this program
    words = [*_worker_words(arguments, arguments.join, arguments.workers), "--time-limit", f"{1000 * arguments.time_limit:.0f}ms"]
    os.execv(words[0], words)


def _work(arguments: argparse.Namespace, rows: Rows) -> None:
    if arguments.join:
        _be_workers(arguments)
    for n_workers, n_jobs in _cells(arguments.cells):
        Cell(arguments, n_workers, n_jobs, rows).run()


def main(words: Optional[list[str]] = None) -> int:
    return rig.main(parser(), _work, words)


if __name__ == "__main__":
    sys.exit(main())
