# SPDX-License-Identifier: Apache-2.0
"""Questions about texts that have their answers, so that goodput can count right answers alone."""
from __future__ import annotations

import dataclasses
import random
from typing import Iterator

from sluice_eval.haystack import Haystack

from .workloads import WORDS, Drawn, Request

BYTES_PER_WORD = 4.4  # of these texts, for each drawn word of about one token


@dataclasses.dataclass
class Question(Request):
    """Its text is licenses of this system from a drawn sentence on, with a drawn number at a drawn place."""

    haystack: Haystack = Haystack(b" .")

    def prompt(self, salt: str, tokens_per_word: float) -> str:
        draw = random.Random(f"{salt}/{self.number}")
        key, self.right = draw.choice(WORDS), str(draw.randrange(10000, 100000))
        n = max(2, round(self.n_input / tokens_per_word * BYTES_PER_WORD * self.haystack.n / len(self.haystack.text)))
        first, before = draw.randrange(self.haystack.n), draw.randrange(n)
        return (f"{self.haystack.sentences(first, before)} One of the special magic numbers for {key} is: {self.right}."
                f"{self.haystack.sentences(first + before, n - before)}\nWhat is the special magic number for {key} mentioned in the provided text? "
                f"The special magic number for {key} mentioned in the provided text is")


@dataclasses.dataclass(frozen=True)
class Facts(Drawn):
    """Questions at drawn times, about texts of drawn lengths."""

    haystack: Haystack = Haystack(b" .")
    name = "facts"

    def requests(self, rate: float, seed: str) -> Iterator[Request]:
        for one in super().requests(rate, seed):
            yield Question(one.number, one.at_s, one.pieces, one.n_output, haystack=self.haystack)
