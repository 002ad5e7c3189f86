# SPDX-License-Identifier: Apache-2.0
"""Runs every series at every rate, by turns and repeatedly, and keeps what was measured when something ends it."""
from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import math
import signal
import sys
from typing import IO, Any, Iterator, Optional

from sluice_eval.errors import CancelledError, EvalError, UnavailableError, UsageError

from . import cluster_metrics, options
from .answer import DONE, REFUSED, Answer
from .client import AnyServer, completion, open_server
from .host import raise_descriptor_limit, raise_priority
from .load import Run, Sender, Series
from .measure import first_errors, summary
from .progress import Bar
from .report import Figures, dumps, request_line, row, run_line
from .workloads import Request, Trace, render

CALIBRATION_WORDS = (32, 544)  # the difference of two prompts, without what servers add to each
WARM_TOKENS = 48
MARGIN = 0.95  # of the context: words do not have exactly this many tokens


def open_servers(arguments: argparse.Namespace) -> list[AnyServer]:
    return [open_server(url, name, arguments.model, arguments.api_key, arguments.ca_file)
            for name, url in arguments.url or [("", "http://127.0.0.1:8000")]]


def make_series(servers: list[AnyServer], arguments: argparse.Namespace) -> list[Series]:
    """Returns every recipe of each Sluice server, and every other server."""
    found = []
    if arguments.recipes and not any(server.is_sluice for server in servers):
        raise UsageError("--recipes: no server is Sluice")
    for server in servers:
        for recipe, points, fields in options.recipes(arguments.recipes) if server.is_sluice else [("", "", {})]:
            label = " ".join(part for part in (server.name, recipe, points and f"({points} points)") if part) or server.model
            found.append(Series(label, server, {**fields, **arguments.body}, recipe))
    labels = [series.name for series in found]
    if len(set(labels)) != len(labels):
        raise UsageError("--url: give each server a name: --url a=URL --url b=URL")
    return found


class Sweep:
    def __init__(self, arguments: argparse.Namespace, workload: options.Workload, series: list[Series]) -> None:
        self._arguments, self._workload, self._series = arguments, workload, series
        self._rates = options.rates_of(arguments, workload)
        self._sender: Optional[Sender] = None
        self._main: Optional[asyncio.Task[None]] = None
        self._requests: Optional[IO[str]] = None
        self._is_cancelled = False
        self._context = min((one.server.max_tokens for one in series if one.server.max_tokens), default=None)
        self._tokens_per_word: dict[AnyServer, float] = {}
        self.lines: list[Figures] = []
        self.ttfts_ms: dict[Any, dict[str, list[float]]] = {}  # by rate and label
        self.shipped: dict[Any, dict[str, list[tuple[float, int]]]] = {}  # likewise, of the first repetition: when capsules had arrived, bytes
        self.notes: dict[str, None] = {}

    def run(self) -> Optional[EvalError]:
        """Runs everything. Returns why it ended early; None: it did not."""
        raise_descriptor_limit()
        raise_priority()
        try:
            if self._arguments.requests:
                self._requests = open(self._arguments.requests, "w", encoding="utf-8")
            asyncio.run(self._run())
        except EvalError as error:
            return error
        except OSError as error:
            return EvalError(f"{error.filename or self._arguments.requests or 'the system'}: {error.strerror}")
        except asyncio.CancelledError:
            return CancelledError("stopped by a signal")
        finally:
            if self._requests:
                self._requests.close()
        return None

    async def _run(self) -> None:
        self._main = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        for series in self._series:
            await self._prepare(series)
        n_series = len(self._series)
        bar = Bar(options.PROGRAM, self._arguments.repetitions * len(self._rates) * n_series)
        turns = itertools.product(range(self._arguments.repetitions), enumerate(self._rates), range(n_series))
        for i, (repetition, (at_rate, rate), turn) in enumerate(turns):
            k = (turn + repetition + at_rate) % n_series  # no series is always the first
            if i > 0:
                await asyncio.sleep(self._arguments.pause)
            await self._run_one(Run(self._series[k], rate, repetition), f"{self._arguments.seed}/{repetition}/{at_rate}/{k}", bar)

    def _on_signal(self) -> None:
        self._is_cancelled = True
        if self._sender:
            self._sender.stop("stopped by a signal")
        elif self._main:
            self._main.cancel()

    # --- before the runs ---------------------------------------------------------------------------------------------

    async def _ask(self, series: Series, name: str, n_tokens: int, n_output: int) -> Answer:
        prompt = render(((name, n_tokens),), str(self._arguments.seed), 1.0)
        try:
            answer = await series.server.ask(series.server.message(completion(prompt, n_output, series.fields)), self._arguments.deadline)
        except OSError as error:
            raise UnavailableError(f"{series.server.url}: {error.strerror or error}") from error
        if answer.status != DONE:
            kind = UnavailableError if answer.status == REFUSED else UsageError if answer.error.startswith("4") else EvalError
            raise kind(f"{series.name}: {answer.error}")
        return answer

    async def _prepare(self, series: Series) -> None:
        """Asks the server once before anything is measured, and how many tokens the prompts' words are."""
        await self._ask(series, f"warm {series.name}", WARM_TOKENS, 2)
        if series.server in self._tokens_per_word:
            return
        known = self._arguments.tokens_per_word
        if known is None:
            few, many = [(await self._ask(series, f"calibration {n}", n, 1)).n_prompt for n in CALIBRATION_WORDS]
            if few is None or many is None or many <= few:
                self.notes[f"{series.server.url} sends no usage: a word of the prompts is taken for a token, a piece of text for a token"] = None
            else:
                known = (many - few) / (CALIBRATION_WORDS[1] - CALIBRATION_WORDS[0])
        self._tokens_per_word[series.server] = known or 1.0

    # --- a run -------------------------------------------------------------------------------------------------------

    def _requests_at(self, rate: float, seed: str) -> tuple[Iterator[Request], int]:
        """Returns the requests of a run, and about how many they are."""
        workload, length_s = self._workload, self._arguments.duration
        if length_s and not isinstance(workload, Trace):
            workload = dataclasses.replace(workload, n_requests=max(1, round(rate * length_s)))
        requests = workload.requests(rate, seed)
        if length_s and isinstance(workload, Trace):
            requests = itertools.takewhile(lambda one: one.at_s < length_s, requests)
            return map(self._within_limits, requests), min(workload.n_requests, math.ceil(rate * length_s))
        return map(self._within_limits, requests), workload.n_requests

    def _within_limits(self, first: Request) -> Request:
        request: Optional[Request] = first
        while request:
            if self._arguments.max_output:
                request.n_output = min(request.n_output, self._arguments.max_output)
            limit = self._arguments.max_input or (self._context and max(1, int(MARGIN * self._context) - request.n_output))
            if limit and request.cut(limit):
                self.notes[f"prompts were cut to {'--max-input' if self._arguments.max_input else 'what the context holds'}"] = None
            request = request.then
        return first

    async def _run_one(self, run: Run, salt: str, bar: Bar) -> None:
        arguments, server = self._arguments, run.series.server
        requests, n = self._requests_at(run.rate, f"{arguments.seed}/{run.repetition}")
        page = options.metrics_of(arguments, server.name)
        before = cluster_metrics.read(page)
        bar.begin(run, n)
        self._sender = Sender(run, salt, self._tokens_per_word[server], arguments.deadline, bar)
        try:
            await self._sender.send(requests)
        finally:
            self._sender = None
        self._keep(run, cluster_metrics.difference(before, cluster_metrics.read(page)))
        bar.end(row(self.lines[-1]))
        self._complain(run)
        if self._is_cancelled:
            raise CancelledError("stopped by a signal: the table has what was measured")
        if run.stopped:
            raise EvalError(f"{run.stopped}; the table has what was measured before")

    def _keep(self, run: Run, counters: Optional[dict[str, float]]) -> None:
        arguments = self._arguments
        setting = {"burstiness": arguments.burstiness, "workload": self._workload.name, "seed": arguments.seed, "slo": arguments.slo.text(),
                   "tokens_per_word": self._tokens_per_word[run.series.server]}
        line = run_line(run, summary(run, arguments.slo, arguments.max_lag, arguments.max_busy and arguments.max_busy / 100), setting) | {"cluster": counters}
        if counters and "job_retries" in counters:  # these cover failed jobs too
            line["retries"] = int(counters["job_retries"])
        self.lines.append(line)
        if not line["void"]:
            found = self.ttfts_ms.setdefault(line["request_rate"], {}).setdefault(run.series.name, [])
            done = [one.answer for one in run.sent if one.answer.status == DONE]
            found += [1000 * answer.ttft_s for answer in done]
            if run.repetition == 0 and any(answer.sluice for answer in done):
                self.shipped.setdefault(line["request_rate"], {})[run.series.name] = [
                    (answer.token_s[0] - run.began_s, answer.sluice.get("capsule_bytes") or 0) for answer in done]
        if arguments.json:
            print(dumps(line), flush=True)
        if self._requests:
            self._requests.writelines(dumps(request_line(run, one, arguments.slo)) + "\n" for one in run.sent)
            self._requests.flush()

    def _complain(self, run: Run) -> None:
        line = self.lines[-1]
        what = f"{options.PROGRAM}: {run.series.name} at {run.rate:.4g}/s"
        if line["without_usage"]:
            self.notes["a server sent no usage: pieces of text are counted for tokens"] = None
        if run.stopped:
            self.notes["the last run was stopped early: its figures are of the requests that had ended"] = None
        for error in first_errors(run):
            print(f"{what}: {error}", file=sys.stderr, flush=True)
