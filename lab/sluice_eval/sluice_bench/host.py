# SPDX-License-Identifier: Apache-2.0
"""Reads how busy this machine is, how much the hypervisor took, and how much of it the generator used."""
from __future__ import annotations

import dataclasses
import os
import resource
import time
from typing import Optional

_IDLE, _IOWAIT, _STEAL, _N = 3, 4, 7, 8  # fields of the line "cpu" in /proc/stat, see proc(5)


@dataclasses.dataclass(frozen=True)
class Host:
    """Shares of the processors over a time; None where the kernel does not say."""

    busy: Optional[float]
    steal: Optional[float]
    generator_cores: float  # processor seconds a second


class HostWatch:
    def __init__(self) -> None:
        self._began, self._cpu, self._ticks = time.monotonic(), _own_cpu_s(), _ticks()

    def stop(self) -> Host:
        elapsed = max(time.monotonic() - self._began, 1e-9)
        cores = (_own_cpu_s() - self._cpu) / elapsed
        used = [after - before for before, after in zip(self._ticks, _ticks())]
        if not used:
            return Host(None, None, cores)
        total = sum(used) or 1
        return Host(1 - (used[_IDLE] + used[_IOWAIT] + used[_STEAL]) / total, used[_STEAL] / total, cores)


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _ticks() -> list[int]:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return [int(word) for word in file.readline().split()[1:_N + 1]]
    except (OSError, ValueError):
        return []


def raise_descriptor_limit() -> None:
    """Raises the limit of open descriptors as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def raise_priority() -> None:
    """Lets this process run before others where that is permitted: it needs little of a processor, but must be on time."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return  # only root may; the lag is measured anyway
