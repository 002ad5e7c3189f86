# SPDX-License-Identifier: Apache-2.0
"""Sends the requests of one run at their times, and collects the answers.

One thread does everything: it sleeps until the next request is due, and reads the streams meanwhile. Its lag is measured where
it would show: as the time from when a request was due until it left, and as the oversleep of a timer.
"""
from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import time
from typing import Any, Callable, Iterator, Optional

from .answer import CUT, FAILED, REFUSED, Answer
from .client import AnyServer, completion
from .host import Host, HostWatch
from .workloads import Request

TICK_S = 0.02
LEAD_S = 0.1  # from the begin of the run to its first request
_OWN_LIMITS = {errno.EMFILE: "no descriptor is left (ulimit -n)", errno.ENFILE: "the system has no descriptor left",
               errno.EADDRNOTAVAIL: "no local port is left", errno.ENOBUFS: "the system has no memory for sockets"}


@dataclasses.dataclass(frozen=True)
class Series:
    """One server with one recipe."""

    name: str
    server: AnyServer
    fields: dict[str, Any]  # of each request, beside the prompt
    recipe: str = ""


@dataclasses.dataclass
class Sent:
    request: Request
    due_s: float
    answer: Answer

    @property
    def lag_s(self) -> float:
        return self.answer.sent_s - self.due_s

    @property
    def is_right(self) -> bool:
        return self.request.right in self.answer.text


@dataclasses.dataclass
class Run:
    """The answers of one series at one rate."""

    series: Series
    rate: float
    repetition: int
    began_s: float = 0.0
    ended_s: float = 0.0  # when the last answer ended
    sent: list[Sent] = dataclasses.field(default_factory=list)
    oversleeps_s: list[float] = dataclasses.field(default_factory=list)
    most_at_once: int = 0
    host: Optional[Host] = None
    stopped: str = ""  # why the run ended before its last request


@dataclasses.dataclass
class Progress:
    run: Run
    n_open: int = 0  # requests without an end
    n_ended: int = 0
    n_missed: int = 0  # refused and failed ones among these


class Sender:
    """Runs one run. `stop` ends it: what is under way is cut, what was measured is kept."""

    def __init__(self, run: Run, salt: str, tokens_per_word: float, deadline_s: float,
                 on_progress: Optional[Callable[[Progress], None]] = None) -> None:
        self.run = run
        self._progress = Progress(run)
        self._salt, self._tokens_per_word, self._deadline_s = salt, tokens_per_word, deadline_s
        self._on_progress = on_progress
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._broken: Optional[BaseException] = None

    def stop(self, why: str) -> None:
        self.run.stopped = self.run.stopped or why
        self._stop.set()

    async def send(self, requests: Iterator[Request]) -> Run:
        run, watch = self.run, HostWatch()
        run.began_s = time.monotonic() + LEAD_S
        ticker = asyncio.create_task(self._tick())
        gc.collect()
        gc.disable()  # a collection would stop all streams
        try:
            for request in requests:
                message = self._message(request)  # before it is due
                if not await self._sleep_until(run.began_s + request.at_s):
                    break
                self._start(request, message, run.began_s + request.at_s)
            while self._tasks and not self._stop.is_set():
                await self._wait(self._tasks)
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            gc.enable()
            ticker.cancel()
        if self._broken:
            raise self._broken
        run.ended_s = max((one.answer.end_s for one in run.sent), default=time.monotonic())
        run.host = watch.stop()
        run.sent.sort(key=lambda one: one.request.number)
        return run

    def _message(self, request: Request) -> bytes:
        prompt = request.prompt(self._salt, self._tokens_per_word)
        return self.run.series.server.message(completion(prompt, request.n_output, self.run.series.fields))

    async def _wait(self, tasks: set[asyncio.Task[None]], timeout_s: Optional[float] = None) -> None:
        """Waits for one of the tasks, the time, or the stop."""
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({*tasks, stopping}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()

    async def _sleep_until(self, due_s: float) -> bool:
        """Returns false if the run is to stop."""
        left = due_s - time.monotonic()
        if left > 0 and not self._stop.is_set():
            await self._wait(set(), left)
        else:
            await asyncio.sleep(0)  # streams are read also while requests are late
        return not self._stop.is_set()

    def _start(self, request: Request, message: bytes, due_s: float) -> None:
        task = asyncio.create_task(self._converse(request, message, due_s))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        self.run.most_at_once = max(self.run.most_at_once, len(self._tasks))

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            self._broken = task.exception()
            self.stop("an error of the generator")

    async def _converse(self, request: Optional[Request], message: bytes, due_s: float) -> None:
        """Sends a request, and then the turns that follow it."""
        while request:
            answer = await self._ask(request, message)
            self.run.sent.append(Sent(request, due_s, answer))
            self._progress.n_ended += 1
            self._progress.n_missed += answer.status in (REFUSED, FAILED)
            request = request.then
            if not request or answer.status == CUT or self._stop.is_set():
                return
            message = self._message(request)
            due_s = time.monotonic() + request.pause_s
            await asyncio.sleep(request.pause_s)

    async def _ask(self, request: Request, message: bytes) -> Answer:
        began_s = time.monotonic()
        try:
            return await self.run.series.server.ask(message, self._deadline_s)
        except OSError as error:
            if error.errno in _OWN_LIMITS:
                row = f" (row {request.row} of the trace)" if request.row else ""
                self.stop(f"request {request.number + 1}{row} could not be sent, with {len(self._tasks)} answers under way: "
                          f"{_OWN_LIMITS[error.errno]}")
                return Answer(CUT, self.run.stopped, began_s, time.monotonic())
            return Answer(FAILED, f"no connection: {error.strerror or error}", began_s, time.monotonic())

    async def _tick(self) -> None:
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.run.oversleeps_s.append(time.monotonic() - due_s)
            if self._on_progress:
                self._progress.n_open = len(self._tasks)
                self._on_progress(self._progress)
