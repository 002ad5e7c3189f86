# SPDX-License-Identifier: Apache-2.0
"""The questions of a plan, as tokens."""
from __future__ import annotations

import dataclasses
from typing import Iterator, Optional

from .datasets import make_form, read_dataset
from .errors import RefusedError
from .hashing import hash_tokens
from .haystack import Haystack, open_haystack
from .metrics import first_line, score
from .plan import Plan
from .sample import Sample
from .tasks import TaskConfig, make_sample
from .tokenizers import Tokenizer

FAR = 1 << 31  # positions of a model that does not say how many it has


@dataclasses.dataclass(frozen=True)
class Prompt:
    sample: Sample
    ids: list[int]
    is_cut: bool  # ids lack the middle of the sample's text
    hash: str
    first_line: bool  # score only the first line

    def score(self, text: str) -> float:
        return score(self.sample, first_line(text) if self.first_line else text)


class Questions:
    """Reads the plan's data sets, and makes its prompts one by one."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer, essays: list[str]) -> None:
        self._plan, self._tokenizer = plan, tokenizer
        self._max_positions = tokenizer.max_positions or FAR
        self._haystack: Optional[Haystack] = open_haystack(essays) if any(cell.task for cell in plan.cells) else None
        self._datasets = [read_dataset(cell.dataset) if cell.dataset else [] for cell in plan.cells]
        self.n_samples = [cell.n_samples if cell.task else len(samples) for cell, samples in zip(plan.cells, self._datasets)]

    def work(self, cell: int) -> int:
        """Returns an estimate of a question's work, for the remaining time: the prompt's tokens."""
        return self._plan.cells[cell].n_tokens or self._plan.max_prompt_tokens or self._max_positions

    def make(self, cell: int, index: int) -> Prompt:
        """Makes a prompt. RefusedError: the cell has no such question."""
        c = self._plan.cells[cell]
        if c.task:
            config = TaskConfig(lambda text: len(self._tokenizer.encode(text)), c.n_tokens, self._plan.seed, c.depth,
                                self._haystack)
            sample, one_line = make_sample(c.task, config, index), False
        else:
            sample, one_line = self._datasets[cell][index], make_form(c.dataset).first_line
        ids = self._tokenizer.encode(sample.prompt)
        most = self._most_tokens(sample) if c.dataset else len(ids)
        if most < 2:
            raise RefusedError(f"{c.name}: answers of {sample.max_new_tokens} tokens leave no room for a prompt in "
                               f"{self._max_positions} positions")
        is_cut = len(ids) > most
        if is_cut:  # keeps half of the tokens that fit from each end
            ids = ids[:most // 2] + ids[len(ids) - (most - most // 2):]
        return Prompt(sample, ids, is_cut, hash_tokens(ids), one_line)

    def _most_tokens(self, sample: Sample) -> int:
        most = self._max_positions - sample.max_new_tokens
        return min(self._plan.max_prompt_tokens or most, most)

    def all(self) -> Iterator[tuple[int, int]]:
        """Yields (cell, index): the first sample of every cell, then the second of every cell, and so on.

        So a run that is stopped has about equally many answers of every cell.
        """
        for index in range(max(self.n_samples, default=0)):
            for cell, n in enumerate(self.n_samples):
                if index < n:
                    yield cell, index
