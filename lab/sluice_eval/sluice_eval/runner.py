# SPDX-License-Identifier: Apache-2.0
"""Asks every question of a plan under every recipe, scores the answers and stores them.

Each question is asked under all recipes, `full` first, so a prompt is made and tokenized once. Answers in the results are
not asked again. One thread makes prompts and stores answers; the answerer's threads wait for answers.
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from typing import Callable, Iterator, Optional

from .answerers import Answerer, Question
from .errors import EvalError, RefusedError
from .plan import Plan
from .questions import Prompt, Questions
from .results import Answer, Key, Results, make_key


@dataclasses.dataclass
class State:
    """Progress of a run, and the question that was asked last."""

    total: int = 0  # answers, including earlier ones
    done: int = 0
    cell: int = 0
    index: int = 0
    recipe: int = 0
    left_s: float = -1  # estimate; negative: not known yet


@dataclasses.dataclass
class Runner:
    plan: Plan
    canonical: list[str]  # recipes of the plan in canonical form
    questions: Questions
    answerer: Answerer
    results: Results
    part: int = 0  # this process asks samples part, part + n_parts, ...
    n_parts: int = 1
    on_progress: Optional[Callable[[State], None]] = None

    def __post_init__(self) -> None:
        self._state = State()
        self._began = time.monotonic()
        self._work_done = self._work_left = 0.0

    def key(self, recipe: int, cell: int, index: int) -> Key:
        c = self.plan.cells[cell]
        return make_key(self.canonical[recipe], c.name, c.n_tokens, c.depth, index)

    def _done(self, recipe: int, cell: int, index: int) -> Optional[Answer]:
        """Returns the answer. A rejected question is asked again: another build may support it."""
        answer = self.results.find(self.key(recipe, cell, index))
        return answer if answer and answer.refused is None else None

    def _ours(self) -> Iterator[tuple[int, int]]:
        return ((cell, index) for cell, index in self.questions.all() if index % self.n_parts == self.part)

    def run(self) -> None:
        """Runs the questions. Any failure but a refusal ends the run; the results keep the answers so far."""
        for cell, index in self._ours():
            for recipe in range(len(self.plan.recipes)):
                self._state.total += 1
                if self._done(recipe, cell, index):
                    self._state.done += 1
                else:
                    self._work_left += self.questions.work(cell)
        pool = concurrent.futures.ThreadPoolExecutor(self.answerer.concurrency)
        asked: dict[concurrent.futures.Future[Answer], tuple[int, int, int]] = {}
        try:
            for cell, index in self._ours():
                for recipe, prompt in self._missing(cell, index):
                    self._state.cell, self._state.index, self._state.recipe = cell, index, recipe
                    self._tell()
                    asked[pool.submit(self._ask, recipe, prompt)] = (recipe, cell, index)
                    self._collect(asked, self.answerer.concurrency)
            self._collect(asked, 1)
        except BaseException:
            self.answerer.close()
            for future in asked:
                future.cancel()
            pool.shutdown(wait=True)
            self._keep_finished(asked)
            raise
        pool.shutdown()
        self._tell()

    def _missing(self, cell: int, index: int) -> Iterator[tuple[int, Prompt]]:
        """Yields the recipes that lack an answer to a question, with its prompt."""
        recipes = range(len(self.plan.recipes))
        before = [self._done(recipe, cell, index) for recipe in recipes]
        if all(before):
            return
        try:
            prompt = self.questions.make(cell, index)
        except RefusedError as error:
            for recipe in recipes:
                self._keep(recipe, cell, index, self._blank(recipe, "0" * 16, 0, str(error)))
            return
        if any(answer and answer.prompt != prompt.hash for answer in before):
            raise EvalError(f"the results have answers to another prompt as number {index} of {self.plan.cells[cell].name}: "
                            "the text it is made of has changed; write to another file")
        yield from ((recipe, prompt) for recipe in recipes if not before[recipe])

    def _blank(self, recipe: int, prompt: str, n_prompt: int, refused: Optional[str] = None) -> Answer:
        r = self.plan.recipes[recipe]
        return Answer(r.name, r.budget, prompt, n_prompt, refused=refused)

    def _ask(self, recipe: int, prompt: Prompt) -> Answer:
        text = None if prompt.is_cut else prompt.sample.prompt
        question = Question(self.plan.recipes[recipe].recipe, prompt.ids, text, prompt.sample.max_new_tokens)
        answer = self._blank(recipe, prompt.hash, len(prompt.ids))
        try:
            reply = self.answerer.ask(question)
        except RefusedError as error:
            answer.refused = str(error)
            return answer
        measured = dataclasses.asdict(reply)
        text = measured.pop("text")
        return dataclasses.replace(answer, score=prompt.score(text), answer=text, **measured)

    def _collect(self, asked: dict, room: int) -> None:
        """Stores finished answers; waits until fewer than `room` are being asked."""
        while len(asked) >= room:
            finished, _ = concurrent.futures.wait(asked, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in finished:
                self._keep(*asked[future], future.result())
                del asked[future]

    def _keep_finished(self, asked: dict) -> None:
        """Stores answers that came while the run was failing."""
        for future, place in asked.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                self._keep(*place, future.result())

    def _keep(self, recipe: int, cell: int, index: int, answer: Answer) -> None:
        key = self.key(recipe, cell, index)
        before = self.results.find(key)
        if not (answer.refused is not None and before and before.refused == answer.refused):
            self.results.add(key, answer)
        work = self.questions.work(cell)
        self._state.done += 1
        self._work_done += work if answer.refused is None else 0
        self._work_left -= work

    def _tell(self) -> None:
        if self._work_done > 0:
            self._state.left_s = (time.monotonic() - self._began) * self._work_left / self._work_done
        if self.on_progress:
            self.on_progress(self._state)
