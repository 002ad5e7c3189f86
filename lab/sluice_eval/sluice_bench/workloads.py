# SPDX-License-Identifier: Apache-2.0
"""Makes requests: when each leaves, its prompt, and the length of its answer.

Every draw comes from the seed. The lengths and the order of arrivals are the same at all rates and for all series of a repetition;
only the times are scaled. Texts differ between runs, so that no run finds the prompts of an earlier one in a cache.
"""
from __future__ import annotations

import dataclasses
import functools
import math
import random
from typing import Iterator, Optional

from .trace import BLOCK, Row

# Words that are one token, with the space before them, in most vocabularies.
WORDS = """the of and to in a is that for it was on as with be by this have from or one not but what all were when we there an which
their if do will each about how out them then many some so would other into has more two like time see no make than first been now
people my made over did only way find use may water very after where most know through back much before go good new write our me man
any day same right look think also around another came come work three must because does part even place well such here take why help
put different away again off went old number great tell men say small every still between name home big give air line set own under
read last never us left end along while might next sound below something both few those always show large often together house world
going want school important until form food keep children feet land side without boy""".split()


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A distribution of lengths, in tokens or seconds."""

    kind: str  # fixed, uniform, exponential, lognormal
    a: float  # the value; the least; the mean; the median
    b: float = 0  # uniform: the most; lognormal: sigma of the logarithm

    def draw(self, rng: random.Random) -> float:
        if self.kind == "uniform":
            return rng.uniform(self.a, self.b)
        if self.kind == "exponential":
            return rng.expovariate(1 / self.a) if self.a else 0.0
        if self.kind == "lognormal":
            return self.a * math.exp(rng.gauss(0, self.b))
        return self.a

    def tokens(self, rng: random.Random) -> int:
        return max(1, round(self.draw(rng)))


Piece = tuple[str, int]  # the name of a text, and how many of its first tokens


@dataclasses.dataclass
class Request:
    number: int
    at_s: Optional[float]  # after the run's begin; None: pause_s after the end of the turn before
    pieces: tuple[Piece, ...]
    n_output: int
    row: int = 0  # of the trace
    right: str = ""  # the answer has to contain it
    pause_s: float = 0
    then: Optional[Request] = None  # the conversation's next turn

    @property
    def n_input(self) -> int:
        return sum(n for _, n in self.pieces)

    def prompt(self, salt: str, tokens_per_word: float) -> str:
        return render(self.pieces, salt, tokens_per_word)

    def cut(self, most: int) -> bool:
        """Removes what exceeds `most` tokens from the prompt's end. Returns whether there was any."""
        if self.n_input <= most:
            return False
        kept, left = [], most
        for name, n in self.pieces:
            if left > 0:
                kept.append((name, min(n, left)))
            left -= n
        self.pieces = tuple(kept)
        return True


def _words(name: str, n: int) -> str:
    """Returns n words, each after a space. Texts of one name begin alike."""
    return " " + " ".join(random.Random(name).choices(WORDS, k=n))


_short_words = functools.lru_cache(maxsize=4096)(_words)  # blocks of a trace, which come again


def render(pieces: tuple[Piece, ...], salt: str, tokens_per_word: float) -> str:
    """Returns the prompt: the same one for the same pieces and salt."""
    parts = []
    for name, n_tokens in pieces:
        n = max(1, round(n_tokens / tokens_per_word))
        parts.append((_short_words if n <= BLOCK else _words)(f"{salt}/{name}", n))
    return "".join(parts)


def arrivals(n: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Returns n times in seconds; the last is n / rate. Gaps are exponential at a burstiness of 1; below it, they are more uneven."""
    if math.isinf(rate):
        return [0.0] * n
    gaps = [rng.gammavariate(burstiness, 1) for _ in range(n)]
    scale = n / rate / (sum(gaps) or 1)
    times, now = [], 0.0
    for gap in gaps:
        now += gap * scale
        times.append(now)
    return times


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Requests that have nothing in common but, perhaps, a beginning."""

    n_requests: int
    n_input: Lengths
    n_output: Lengths
    burstiness: float = 1.0
    n_shared: int = 0  # tokens that all prompts begin with
    name = "drawn"

    def requests(self, rate: float, seed: str) -> Iterator[Request]:
        rng = random.Random(f"{seed}/lengths")
        times = arrivals(self.n_requests, rate, self.burstiness, random.Random(f"{seed}/times"))
        shared: tuple[Piece, ...] = (("shared", self.n_shared),) if self.n_shared else ()
        for i, at_s in enumerate(times):
            yield Request(i, at_s, (*shared, (f"prompt {i}", self.n_input.tokens(rng))), self.n_output.tokens(rng))


@dataclasses.dataclass(frozen=True)
class Conversations:
    """Conversations of several turns. A turn repeats what was said before it; its user thinks after the last answer.

    The text of earlier answers is drawn, not the server's, so that the same seed sends the same bytes. Only first turns are open:
    a later one waits for the answer before it.
    """

    n_requests: int  # turns of all conversations
    n_input: Lengths  # of the first message
    n_output: Lengths
    turns: Lengths
    n_message: Lengths  # of later messages: a user's, or the output of a tool
    think_s: Lengths
    burstiness: float = 1.0
    n_shared: int = 0
    name = "conversations"

    def requests(self, rate: float, seed: str) -> Iterator[Request]:
        rng = random.Random(f"{seed}/lengths")
        firsts, n = [], 0
        while n < self.n_requests:
            n_turns = min(self.turns.tokens(rng), self.n_requests - n)
            firsts.append(self._conversation(rng, n, n_turns))
            n += n_turns
        times = arrivals(len(firsts), rate * len(firsts) / n, self.burstiness, random.Random(f"{seed}/times"))
        for first, at_s in zip(firsts, times):
            first.at_s = at_s
            yield first

    def _conversation(self, rng: random.Random, number: int, n_turns: int) -> Request:
        pieces: tuple[Piece, ...] = (("shared", self.n_shared),) if self.n_shared else ()
        first: Optional[Request] = None
        last: Optional[Request] = None
        for turn in range(number, number + n_turns):
            pieces = (*pieces, (f"message {turn}", (self.n_message if last else self.n_input).tokens(rng)))
            n_output = self.n_output.tokens(rng)
            request = Request(turn, None, pieces, n_output, pause_s=self.think_s.draw(rng) if last else 0)
            pieces = (*pieces, (f"answer {turn}", n_output))
            if last:
                last.then = request
            first, last = first or request, request
        return first


@dataclasses.dataclass(frozen=True)
class Trace:
    """A trace's rows at their times; a rate scales the times so that it is their mean."""

    rows: list[Row]
    lengths: float = 1.0  # scale of all lengths, blocks included
    name = "trace"

    @property
    def own_rate(self) -> float:
        """Returns the mean rate in requests a second; infinite if all rows have one time."""
        last = self.rows[-1].at_s
        return len(self.rows) / last if last > 0 else math.inf

    @property
    def n_requests(self) -> int:
        return len(self.rows)

    def requests(self, rate: float, seed: str) -> Iterator[Request]:
        del seed  # a trace draws nothing
        for i, row in enumerate(self.rows):
            at_s = row.at_s * self.own_rate / rate if math.isfinite(self.own_rate) else i / rate
            yield Request(i, at_s, self._pieces(row), self._scaled(row.n_output), row.number)

    def _scaled(self, n: int) -> int:
        return max(1, round(n * self.lengths))

    def _pieces(self, row: Row) -> tuple[Piece, ...]:
        if row.ids is None:
            return ((f"row {row.number}", self._scaled(row.n_input)),)
        whole = row.n_input // BLOCK
        pieces = [(f"block {one}", self._scaled(BLOCK)) for one in row.ids[:whole]]
        rest = row.n_input % BLOCK
        return (*pieces, (f"block {row.ids[-1]}", self._scaled(rest))) if rest else tuple(pieces)
