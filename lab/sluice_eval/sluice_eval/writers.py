# SPDX-License-Identifier: Apache-2.0
"""Writers of synthetic prompts.

A writer is a function of (draft, size). With another size it draws the same keys, values and positions from the same
stream, so the number of tokens grows with size, and the largest size that fits can be searched. The unit of size is
sentences of haystack, facts, or words.
"""
from __future__ import annotations

import dataclasses
from typing import Iterable, Optional

import numpy as np

from .haystack import NOISE, Haystack
from .rng import Random, permute, permute_array
from .words import N_PAIRS, N_WORDS, WORDS, split_pair, word_pair

N_NUMBERS = 9000000  # of 7 digits, the first not 0
N_NAMES = 26 ** 5
CHAIN = 5  # variables
N_COMMON, COMMON_TIMES, OTHER_TIMES = 10, 30, 3
MAX_OTHER_WORDS = (N_WORDS - N_COMMON) ** 2  # single words and pairs of them
ZETA_2 = 1.6449340668482264  # the sum of all 1 / rank^2
N_FREQUENT = 3


@dataclasses.dataclass(frozen=True)
class Shape:
    """Facts of a needle task."""

    n_keys: int = 1
    n_values: int = 1  # of a key
    n_asked: int = 1
    uuids: bool = False  # values are uuids, else numbers of 7 digits


@dataclasses.dataclass
class Draft:
    """A prompt that is being written."""

    random: Random
    haystack: Optional[Haystack]
    depth: float  # of the asked fact, 0 to 1; negative: anywhere
    shape: Shape
    parts: list[str] = dataclasses.field(default_factory=list)
    answers: list[str] = dataclasses.field(default_factory=list)
    completion: Optional[str] = None

    def place(self, n_places: int) -> int:
        """Draws a position for the asked fact: by the depth, or anywhere. Draws once in either case."""
        place = self.random.below(n_places)
        return place if self.depth < 0 else int(self.depth * (n_places - 1) + 0.5)


class Supply:
    """Draws different items one after the other, in an order of the sample's own. Skips items that the haystack has."""

    def __init__(self, draft: Draft) -> None:
        self.key = draft.random.next()
        self.count = 0
        self.without = draft.haystack

    def _take(self, n: int) -> int:
        self.count += 1
        return permute(self.count - 1, n, self.key)

    def _is_free(self, text: str) -> bool:
        return self.without is None or not self.without.contains(text)

    def word_key(self) -> str:
        while not self._is_free(text := word_pair(self._take(N_PAIRS))):
            pass
        return text

    def number(self) -> str:
        while not self._is_free(text := str(1000000 + self._take(N_NUMBERS))):
            pass
        return text

    def letters(self, first: str) -> str:
        while True:
            number, text = self._take(N_NAMES), ""
            for _ in range(5):
                text += chr(ord(first) + number % 26)
                number //= 26
            if self._is_free(text):
                return text


def _uuid(random: Random) -> str:
    a, b = random.next(), random.next()
    return f"{a >> 32:08x}-{a >> 16 & 0xFFFF:04x}-{a & 0xFFFF:04x}-{b >> 48:04x}-{b & 0xFFFFFFFFFFFF:012x}"


def _needle(noun: str, key: str, value: str) -> str:
    return f" One of the special magic {noun}s for {key} is: {value}."


def _needle_question(noun: str, key: str) -> str:
    about = f"the special magic {noun} for {key} mentioned in the provided text"
    return f"\nWhat is {about}? The{about[3:]} is"


# --- facts between sentences: size is the number of sentences --------------------------------------------------------

@dataclasses.dataclass
class Fact:
    text: str = ""
    value: str = ""
    key: int = 0
    gap: int = 0  # 0: before the first sentence, size: after the last
    last: bool = False  # the last fact of its gap


def _sorted(facts: Iterable[Fact]) -> list[Fact]:
    return sorted(facts, key=lambda fact: (fact.gap, fact.last))


def _place_facts(draft: Draft, size: int, facts: list[Fact]) -> list[Fact]:
    """Places the first fact, which is asked about, at the depth, and the others anywhere."""
    facts[0].gap = draft.place(size + 1)
    facts[0].last = draft.depth >= 1  # nothing comes between it and the question
    for fact in facts[1:]:
        fact.gap = draft.random.below(size + 1)
    return _sorted(facts)


def _write_context(draft: Draft, size: int, facts: list[Fact]) -> None:
    haystack = draft.haystack
    first = 0 if haystack is NOISE else draft.random.below(haystack.n)  # makes samples of the same text differ
    written = 0
    for fact in facts:
        draft.parts += [haystack.sentences(first + written, fact.gap - written), fact.text]
        written = fact.gap
    draft.parts.append(haystack.sentences(first + written, size - written))


def write_needles(draft: Draft, size: int) -> None:
    shape = draft.shape
    noun = "uuid" if shape.uuids else "number"
    keys: list[str] = []
    facts: list[Fact] = []
    key_supply, numbers = Supply(draft), Supply(draft)
    for k in range(shape.n_keys):
        keys.append(key_supply.word_key())
        for _ in range(shape.n_values):
            value = _uuid(draft.random) if shape.uuids else numbers.number()
            facts.append(Fact(_needle(noun, keys[k], value), value, k))
    facts = _place_facts(draft, size, facts)
    _write_context(draft, size, facts)
    where = "mentioned in the provided text"
    if shape.n_asked > 1:
        asked = ", ".join(keys[:shape.n_asked])
        draft.parts.append(f"\nWhat are all the special magic {noun}s for {asked} {where}? The special magic {noun}s {where} are")
    elif shape.n_values > 1:
        draft.parts.append(f"\nWhat are all the special magic {noun}s for {keys[0]} {where}? "
                           f"The special magic {noun}s for {keys[0]} {where} are")
    else:
        draft.parts.append(_needle_question(noun, keys[0]))
    # Answers in the order of the question; answers of one key in the order of the text.
    draft.answers = [fact.value for k in range(shape.n_asked) for fact in facts if fact.key == k]
    if shape.n_asked > 1:
        draft.completion = " " + ", ".join(f"{key}: {value}" for key, value in zip(keys, draft.answers)) + "."


def write_variables(draft: Draft, size: int) -> None:
    names = Supply(draft)
    number = 10000 + draft.random.below(90000)
    facts = _sorted([Fact(gap=draft.random.below(size + 1)) for _ in range(CHAIN)])  # a variable is set before it is used
    for i, fact in enumerate(facts):
        draft.answers.append(names.letters("A"))
        value = number if i == 0 else f"VAR {draft.answers[i - 1]}"
        fact.text = f" VAR {draft.answers[i]} = {value}."
    _write_context(draft, size, facts)
    draft.parts.append(f"\nWhich variables hold the value {number}, directly or through another variable? "
                       f"The variables that hold the value {number} are")


def _write_said_twice(draft: Draft, size: int, what: str, digits: str) -> None:
    fact = Fact(f" The {what} is {digits}. Remember it. {digits} is the {what}.")
    _write_context(draft, size, _place_facts(draft, size, [fact]))
    draft.parts.append(f"\nWhat is the {what}? The {what} is")
    draft.answers.append(digits)


def write_passkey(draft: Draft, size: int) -> None:
    _write_said_twice(draft, size, "pass key", str(10000 + draft.random.below(90000)))


def write_number(draft: Draft, size: int) -> None:
    """Digits come in runs of 1 to 3, the first not 0: they are harder to copy than digits that differ."""
    digits = [1 + draft.random.below(9)]
    n = 0
    while n < 10:
        # A digit that differs from the previous run's: one of the 9 others.
        digit = digits[0] if n == 0 else (digits[n - 1] + 1 + draft.random.below(9)) % 10
        run = min(1 + draft.random.below(3), 10 - n)
        digits[n:] = [digit] * run
        n += run
    _write_said_twice(draft, size, "sequence of digits", "".join(map(str, digits)))


# --- keys and values: size is their number ---------------------------------------------------------------------------

def write_only_needles(draft: Draft, size: int) -> None:
    asked = draft.place(size)
    keys, numbers = Supply(draft), Supply(draft)
    for i in range(size):
        key, value = keys.word_key(), numbers.number()
        draft.parts.append(_needle("number", key, value))
        if i == asked:
            asked_key = key
            draft.answers.append(value)
    draft.parts.append(_needle_question("number", asked_key))


def write_kv(draft: Draft, size: int) -> None:
    asked = draft.place(size)
    for i in range(size):
        key, value = _uuid(draft.random), _uuid(draft.random)
        opening = ",\n " if i else "\n{"
        draft.parts.append(f'{opening}"{key}": "{value}"')
        if i == asked:
            asked_key = key
            draft.answers.append(value)
    draft.parts.append(f'}}\nThe value of the key "{asked_key}" in the object above is "')
    draft.completion = draft.answers[0] + '".'


# --- whole texts: size is the number of words ------------------------------------------------------------------------

def _list_word(word: int, key: int) -> str:
    """Returns word number `word` in the sample's own order, the common ones first.

    After all single words come pairs of words that are not common: an answer that names a pair has not named a common
    word.
    """
    if word < N_WORDS:
        return WORDS[permute(word, N_WORDS, key)]
    n = N_WORDS - N_COMMON
    first, second = split_pair(permute(word - N_WORDS, n * (n - 1), key), n)
    return "-".join(WORDS[permute(N_COMMON + i, N_WORDS, key)] for i in (first, second))


def write_common_words(draft: Draft, size: int) -> None:
    word_key, place_key = draft.random.next(), draft.random.next()
    n_common = N_COMMON * COMMON_TIMES
    n = n_common + OTHER_TIMES * size
    listed = [_list_word(word, word_key) for word in range(N_COMMON + size)]
    for i, entry in enumerate(permute_array(np.arange(n), n, place_key).tolist()):
        word = entry // COMMON_TIMES if entry < n_common else N_COMMON + (entry - n_common) // OTHER_TIMES
        draft.parts.append(f" {i + 1}. {listed[word]}")
    draft.parts.append("\nWhat are the 10 most common words in the list above? The 10 most common words are")
    draft.answers = listed[:N_COMMON]


def write_frequent_words(draft: Draft, size: int) -> None:
    """Rank r appears n / (zeta(2) r^2) times. The word of rank 1 is "..." and does not count."""
    times: list[int] = []
    while (count := int(size / (ZETA_2 * (len(times) + 1) * (len(times) + 1)))) > 0:
        times.append(count)
    supply = Supply(draft)
    place_key = draft.random.next()
    words = ["..."] + [supply.letters("a") for _ in times[1:]]
    entries = [word for word, count in zip(words, times) for _ in range(count)]
    draft.parts += [" " + entries[i] for i in permute_array(np.arange(len(entries)), len(entries), place_key).tolist()]
    draft.parts.append("\nWhat are the three most frequent words in the text above? The three most frequent words are")
    draft.answers = words[1:N_FREQUENT + 1]
