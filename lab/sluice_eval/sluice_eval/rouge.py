# SPDX-License-Identifier: Apache-2.0
"""ROUGE-L at the level of summaries (Lin, 2004).

For every sentence of the answer: the union of its longest common subsequences with all sentences of the text.
F = 2PR / (P + R) with P over the text's words, R over the answer's. Two packages that benchmarks use count differently,
and the result depends on which of several longest subsequences is chosen:

    rouge-l      `rouge` (LongBench): sentences end with a period, words with white space, case counts. Words are sets.
                 An empty sentence has one empty word.
    rouge-lsum   `rouge_score` (InfiniteBench): sentences are lines, words are runs of a-z and 0-9 in lower case. A word
                 counts as often as it occurs in both.
"""
from __future__ import annotations

import collections
import re

import numpy as np

from .errors import EvalError

MAX_TABLE_CELLS = 256 << 20
Sentences = list[list[str]]


def _table(answer: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Returns [n_answer + 1][n_text + 1], the lengths of the longest common subsequences of all prefixes."""
    table = np.zeros((len(answer) + 1, len(text) + 1), dtype=np.uint32)
    for i, word in enumerate(answer):
        above = table[i]
        longer = np.where(text == word, above[:-1] + 1, 0)
        np.maximum.accumulate(np.maximum(above[1:], longer), out=table[i + 1, 1:])
    return table


def _mark(answer: np.ndarray, text: np.ndarray, answer_first: bool, taken: list[bool]) -> None:
    """Marks one of the longest subsequences, traced from the end.

    On ties, answer_first skips the answer's word, otherwise the text's.
    """
    table = _table(answer, text)
    i, j = len(answer), len(text)
    while i > 0 and j > 0:
        without_answer, without_text = table[i - 1, j], table[i, j - 1]
        if answer[i - 1] == text[j - 1]:
            taken[i - 1] = True
            i, j = i - 1, j - 1
        elif without_text <= without_answer if answer_first else without_text < without_answer:
            i -= 1
        else:
            j -= 1


def _taken_words(text: Sentences, answer: Sentences, answer_first: bool) -> list[str]:
    """Returns the answer's words that are part of a longest subsequence."""
    ids: dict[str, int] = {}
    numbers = [[np.array([ids.setdefault(word, len(ids)) for word in sentence], dtype=np.int64) for sentence in side]
               for side in (text, answer)]
    longest = [max(map(len, side)) + 1 for side in (answer, text)]
    if longest[0] * longest[1] > MAX_TABLE_CELLS:
        raise EvalError(f"ROUGE of sentences of {longest[0] - 1} and {longest[1] - 1} words is too much work: "
                        "2^28 pairs is the most")
    words: list[str] = []
    for sentence, marked in zip(answer, numbers[1]):
        taken = [False] * len(sentence)
        for other in numbers[0]:
            _mark(marked, other, answer_first, taken)
        words += [word for word, is_taken in zip(sentence, taken) if is_taken]
    return words


def _words(sentences: Sentences) -> list[str]:
    return [word for sentence in sentences for word in sentence]


def _of_sets(text: Sentences, answer: Sentences) -> float:
    """Returns F as the package `rouge` computes it; its 1e-8 prevents 0 / 0."""
    if not text or not answer:
        return 0.0
    common = len(set(_taken_words(text, answer, False)))
    recall, precision = common / len(set(_words(answer))), common / len(set(_words(text)))
    return 2 * (precision * recall / (precision + recall + 1e-8))


def _of_counts(text: Sentences, answer: Sentences) -> float:
    """Returns F as `rouge_score` computes it: a marked word counts only as often as the text has it."""
    n_text, n_answer = len(_words(text)), len(_words(answer))
    if n_text == 0 or n_answer == 0:
        return 0.0
    left = collections.Counter(_words(text))
    hits = 0
    for word in _taken_words(text, answer, True):
        if left[word] > 0:
            left[word] -= 1
            hits += 1
    if hits == 0:
        return 0.0
    recall, precision = hits / n_answer, hits / n_text
    return 2 * precision * recall / (precision + recall)


def _split(text: str, end: str) -> list[str]:
    return [sentence for sentence in text.split(end) if sentence]


def rouge_l(text: str, answer: str) -> float:
    """Compares words; both sides as written."""
    return _of_sets(*[[sentence.split() or [""] for sentence in _split(side, ".")] for side in (text, answer)])


def rouge_l_zh(text: str, answer: str) -> float:
    """Compares characters."""
    return _of_sets(*[[[c for c in sentence if not c.isspace()] or [""] for sentence in _split(side, ".")]
                      for side in (text, answer)])


def rouge_lsum(text: str, answer: str) -> float:
    """Compares words by lines; both sides in lower case."""
    return _of_counts(*[[re.findall("[a-z0-9]+", sentence) for sentence in _split(side, "\n")] for side in (text, answer)])
