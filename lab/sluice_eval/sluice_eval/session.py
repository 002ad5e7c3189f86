# SPDX-License-Identifier: Apache-2.0
"""Runs an evaluation from its plan to its report."""
from __future__ import annotations

import argparse
from typing import Optional

from .answerers import Answerer, HttpAnswerer, HttpConfig, ProcessAnswerer
from .errors import CancelledError, UsageError
from .plan import Plan
from .process import SluiceProcess, find_sluice
from .progress import Progress
from .questions import Questions
from .report import Report
from .results import Results, RunId
from .runner import Runner
from .tokenizers import FileTokenizer, Recipes, ServerTokenizer, SluiceTokenizer, Tokenizer


class Model:
    """The model under evaluation: its tokenizer, and what reads its recipes. Closes its process at the end of `with`."""

    def __init__(self, arguments: argparse.Namespace, asks: bool = True) -> None:
        self.process: Optional[SluiceProcess] = None
        self.server: Optional[HttpAnswerer] = None
        self._arguments = arguments
        if not arguments.model and not arguments.url:
            raise UsageError("--model DIR is needed, or --url URL")
        if arguments.url:
            self.server = HttpAnswerer(_http_config(arguments))
            try:
                self._open_tokenizer(self.server)
            except BaseException:
                self.__exit__()
                raise
        else:
            options = ["--weights", arguments.weights]
            if asks:
                options += ["--threads", str(arguments.threads)]
                options += ["--deadline", f"{max(1, int(1000 * arguments.deadline))}ms"]
                options += ["--device", arguments.device] if arguments.device else []
            self.process = SluiceProcess(arguments.model, arguments.sluice, tuple(options))
            self.tokenizer: Tokenizer = SluiceTokenizer(self.process)
        self.recipes = Recipes(self.process)
        if self.server:
            self.server.use_recipes(self.recipes)

    def _open_tokenizer(self, server: HttpAnswerer) -> None:
        arguments = self._arguments
        if not arguments.tokenizer:
            self.tokenizer = ServerTokenizer(arguments.url, server.model, server.post)
        elif find_sluice(arguments.sluice):
            self.process = SluiceProcess(arguments.tokenizer, arguments.sluice, ("--weights", arguments.weights))
            server.check_model(self.process.model["fingerprint"], arguments.tokenizer)
            self.tokenizer = SluiceTokenizer(self.process)
        else:
            self.tokenizer = FileTokenizer(arguments.tokenizer)

    @property
    def answerer(self) -> Answerer:
        return self.server or ProcessAnswerer(self.process)

    def run_id(self, seed: int) -> RunId:
        """Returns the run's identity. A local process and a server of the same model have the same."""
        name = self.process.model["fingerprint"] if self.process else self.server.model
        return RunId(name, self._arguments.weights, self.tokenizer.fingerprint, seed)

    @property
    def name(self) -> str:
        return self._arguments.model or self.server.model

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.close()


def _http_config(arguments: argparse.Namespace) -> HttpConfig:
    if not arguments.url.startswith(("http://", "https://")):
        raise UsageError(f"--url {arguments.url}: expected a URL such as http://127.0.0.1:8000/v1")
    return HttpConfig(arguments.url, arguments.model or "", arguments.api_key, arguments.ca_file,
                      getattr(arguments, "concurrency", 1), getattr(arguments, "deadline", 60),
                      getattr(arguments, "text_prompts", False))


class Session:
    """A finished or interrupted run: its report, and one line that describes it."""

    def __init__(self, command: str, arguments: argparse.Namespace, model: Model, plan: Plan) -> None:
        self._arguments, self._model, self._plan = arguments, model, plan
        self.cancelled: Optional[CancelledError] = None
        canonical = [model.recipes.canonical(recipe.recipe) for recipe in plan.recipes]
        if model.server is None:
            model.process.reserve(plan.most_tokens(model.tokenizer.max_positions))
        results = Results(arguments.out, model.run_id(plan.seed))
        try:
            questions = Questions(plan, model.tokenizer, arguments.essay)
            progress = Progress(command, plan, questions.n_samples)
            part, n_parts = getattr(arguments, "part", (0, 1))
            runner = Runner(plan, canonical, questions, model.answerer, results, part, n_parts, progress)
            try:
                runner.run()
            except KeyboardInterrupt:
                more = f"; the same command continues from {arguments.out}" if arguments.out else ""
                self.cancelled = CancelledError(f"stopped by a signal{more}")
            finally:
                progress.hide()
            self.report = Report(plan, questions.n_samples, lambda *place: results.find(runner.key(*place)),
                                 model.recipes.offloads)
            self.subject = self._describe(questions.n_samples)
        finally:
            results.close()

    def _describe(self, n_samples: list[int]) -> str:
        place = self._model.answerer.place
        n_done = sum(row.n_answers for row in self.report.rows)
        return (f"{self._model.name}, weights {self._arguments.weights}{', ' * bool(place)}{place}; seed {self._plan.seed}; "
                f"{len(self._plan.recipes)} recipes, {len(self._plan.cells)} cells, {n_done} of "
                f"{sum(n_samples) * len(self._plan.recipes)} answers")
