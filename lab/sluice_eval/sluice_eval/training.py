# SPDX-License-Identifier: Apache-2.0
"""The training prompts of retaining heads: rows of a file, synthetic tasks of any length, or all by turns.

Prompt i is a function of the options and i, without end: tasks draw another sample for every index, rows repeat in another
order. So a resumed run gets the same prompts.
"""
from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, Optional

from .datasets import DatasetConfig, read_dataset
from .errors import RefusedError, UsageError
from .haystack import Haystack, open_haystack
from .rng import Random, permute
from .sample import Sample
from .tasks import TASKS, Task, TaskConfig, find_task, make_sample

DEFAULT_TOKENS = 1024
OWN_SEED = 0x6C6561726E  # draws other numbers than an evaluation with the same seed
FACT = re.compile(r" One of the special magic numbers for (\S+) is: ([^.]*)\.?")
QUESTION = "\nWhat is the special magic number for "


@dataclasses.dataclass(frozen=True)
class Form:
    """A task with a needle, in other words: the task decides what is hidden where, and how long the text is."""

    task: str
    fact: str
    question: str
    answer: str


_CODE = (" The code of {key} is {value}.", "\nQuestion: What is the code of {key}?\nAnswer: The code of {key} is", " {value}.")
_LINE = ("\n{key}: {value}\n", "\n{key}:", " {value}")
# To add one: a row. The task must be one whose facts are needles of numbers. models/demo was trained on these, too.
FORMS = {"code": Form("niah-essay", *_CODE), "code-4": Form("multikey-4", *_CODE),
         "line": Form("niah-essay", *_LINE), "line-4": Form("multikey-4", *_LINE)}


def reword(form: Form, sample: Sample) -> tuple[str, str]:
    """Returns the prompt and the completion of a sample of form.task in the form's words."""
    context, found, question = sample.prompt.partition(QUESTION)
    if not found or len(sample.answers) != 1:
        raise ValueError(f"{form.task} asks in other words than its forms know")
    context = FACT.sub(lambda fact: form.fact.format(key=fact[1], value=fact[2]), context)
    return context + form.question.format(key=question.split(" ", 1)[0]), form.answer.format(value=sample.answers[0])


@dataclasses.dataclass(frozen=True)
class Source:
    """A task, or a form of one."""

    name: str
    task: Task
    form: Optional[Form]
    min_tokens: int  # of the prompt
    max_tokens: int


class Prompts:
    """The prompts of the options "data", "tasks", "texts" and "seed". `count` returns the tokens of a text, with the begin token."""

    def __init__(self, options: dict[str, Any], count: Callable[[str], int]) -> None:
        self._count, self._seed, self._data = count, options["seed"], options["data"]
        self._rows: list[Sample] = []
        self._haystack: Optional[Haystack] = None
        self._sources: list[Optional[Source]] = []  # None: the rows
        if self._data:
            config = DatasetConfig("of training", "sluice", self._data, metric="contains-all", max_new_tokens=1)
            self._rows = read_dataset(config)
            self._sources.append(None)
        if options["tasks"]:
            self._haystack = open_haystack(options["texts"], "--text")
        for text in options["tasks"]:
            self._sources += self._parse(text)

    def _parse(self, text: str) -> list[Source]:
        found = re.fullmatch(r"([^:]+)(?::([0-9]{1,9})(?:-([0-9]{1,9}))?)?", text)
        names = {task.name: (task, None) for task in TASKS} | {name: (find_task(form.task), form) for name, form in FORMS.items()}
        least = int(found[2] or DEFAULT_TOKENS) if found else 0
        most = int(found[3] or least) if found else 0
        if not found or found[1] not in (*names, "all") or not 1 <= least <= most:
            raise UsageError(f"--task {text}: expected NAME, NAME:TOKENS or NAME:MIN-MAX, with NAME {', '.join(names)} or all")
        if found[1] != "all":
            return [Source(found[1], *names[found[1]], least, most)]
        sources = [source for name in names if self._fits(source := Source(name, *names[name], least, most))]
        return sources or self._refuse(least)

    def _fits(self, source: Source) -> bool:
        """Returns whether the shortest prompts are well below the requested length: the number of tokens per fact varies."""
        try:
            make_sample(source.task, self._config(source.min_tokens - source.min_tokens // 8, 0), 0)
        except RefusedError:
            return False
        return True

    def _refuse(self, n_tokens: int) -> list[Source]:
        raise UsageError(f"--task all: no task fits into {n_tokens} tokens")

    def _config(self, n_tokens: int, seed: int) -> TaskConfig:
        return TaskConfig(self._count, n_tokens, seed, haystack=self._haystack)

    def _row(self, index: int) -> dict[str, str]:
        """Returns a row. Every row comes once, then all come again in another order."""
        n = len(self._rows)
        at = permute(index % n, n, Random("rows", self._seed, index // n).state)
        row = self._rows[at]
        return {"prompt": row.prompt, "completion": row.answers[0], "where": f"{self._data}: row {at + 1}"}

    def get(self, number: int) -> dict[str, str]:
        """Returns "prompt", "completion" and "where" of prompt `number`: the sources come by turns."""
        index, turn = divmod(number, len(self._sources))
        source = self._sources[turn]
        if source is None:
            return self._row(index)
        random = Random(source.name, self._seed ^ OWN_SEED, index)
        share = (random.next() >> 11) * 2.0 ** -53
        n_tokens = int(source.min_tokens * (source.max_tokens / source.min_tokens) ** share)
        sample = make_sample(source.task, self._config(n_tokens, random.next()), 0)
        prompt, completion = reword(source.form, sample) if source.form else (sample.prompt, sample.completion)
        return {"prompt": prompt, "completion": completion, "where": source.name}
