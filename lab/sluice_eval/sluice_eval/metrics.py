# SPDX-License-Identifier: Apache-2.0
"""Scores answers from 0 to 1, by the published definitions of the benchmarks.

A metric compares a text with each answer and takes the best, the mean or the first. White space, digits and letters are
those of Python's str: the benchmarks are Python. Oddities of the published code that are kept, or not:

- rouge-l follows the package `rouge`: words are sets, and only a period ends a sentence. The package fails on sentences of about a
  thousand words, which LongBench counts as 0; we score them.
- edit-similarity is fuzz.ratio with python-Levenshtein: insertions and deletions, rounded to a percent. Without it, fuzzywuzzy silently
  uses difflib's matching blocks, which differ.
- classification skips the class after a removed one. trec, triviaqa, samsum and lsht score only the first line (`first_line`).
- f1-zh and rouge-l-zh compare characters, as InfiniteBench does. LongBench uses jieba's words; its Chinese scores are lower.
"""
from __future__ import annotations

import collections
import dataclasses
import re
import string
from typing import Callable, Iterable, Optional

from . import choices, rouge
from .errors import EvalError
from .sample import Sample

MAX_LINE_CHARACTERS = 100000  # of a line of code; longer ones take too long to compare
# Chinese punctuation outside ASCII: the incomplete list of LongBench and InfiniteBench.
_WIDE_RANGES = [(0x2013, 0x2014), (0x2018, 0x2019), (0x201B, 0x201F), (0x2026, 0x2027), (0x3001, 0x3003), (0x300B, 0x3011),
                (0x3014, 0x301F), (0x3030, 0x3030), (0x303E, 0x303F), (0xFE4F, 0xFE4F), (0xFF01, 0xFF0D), (0xFF0F, 0xFF0F),
                (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF64)]
_WIDE = {chr(point) for first, last in _WIDE_RANGES for point in range(first, last + 1)}
_ASCII = set(string.punctuation)


def lower(text: str) -> str:
    """Returns the text in lower case, with every sigma as the common one, so that words stay equal."""
    return text.lower().replace("\u03c2", "\u03c3")


# --- the answer itself, and numbers ----------------------------------------------------------------------------------

def _contains(text: str, answer: str) -> float:
    return float(answer in text)


def _exact(text: str, answer: str) -> float:
    return float(text.strip() == answer.strip())


def _share_of_numbers(text: str, number: str) -> float:
    numbers = re.findall(r"\d+", text)
    return numbers.count(number) / len(numbers) if numbers else 0.0


def _labelled(label: str) -> Callable[[str, str], float]:
    def compare(text: str, answer: str) -> float:
        number = re.search(label + r"(\d+)", answer)
        if number is None:
            raise EvalError('an answer names no paragraph: the metric needs "Paragraph 7", or its Chinese form')
        return _share_of_numbers(text, number[1])
    return compare


def _first_number(text: str, answer: str) -> float:
    number = re.search("[0-9]+", text)
    return float(number is not None and number[0] == answer)


def _number(text: str) -> Optional[float]:
    """Returns a decimal number; None unless the whole text is one."""
    if not re.fullmatch(r"[0-9.+-]{1,63}", text):
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _equal_numbers(a: str, b: str) -> float:
    return float(_number(a) is not None and _number(a) == _number(b))


def _first_decimal(text: str, answer: str) -> float:
    number = re.search(r"[0-9]+(\.[0-9]+)?", text)
    return _equal_numbers(number[0], answer.strip()) if number else 0.0


def _last_integer(text: str, answer: str) -> float:
    words = re.findall(r"[^\s.`'\":]+", text)
    return _equal_numbers(words[-1], answer.strip()) if words else 0.0


# --- words -----------------------------------------------------------------------------------------------------------

def _key_words(text: str) -> list[str]:
    return re.findall(r"[^\s:\"'.,?!{}]+", text)


def _kv(text: str, answer: str) -> float:
    return float(answer in _key_words(text))


def _capitals(word: str) -> str:
    return "".join(c.upper() if len(c.upper()) == 1 else c for c in word)


def _speaker(text: str, answer: str) -> float:
    return float(any(_capitals(word) == answer for word in _key_words(text)))


def _f1(a: list[str], b: list[str]) -> float:
    shared = sum((collections.Counter(a) & collections.Counter(b)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(a), shared / len(b)
    return 2 * precision * recall / (precision + recall)


def _squad_words(text: str) -> list[str]:
    """Removes punctuation, joining what it separated, and then separate articles."""
    plain = "".join(c for c in lower(text) if c not in _ASCII)
    return re.sub(r"\b(?:a|an|the)\b", " ", plain).split()


def _characters(text: str) -> list[str]:
    return [c for c in lower(text) if c not in _ASCII and c not in _WIDE and not c.isspace()]


# --- a line of code --------------------------------------------------------------------------------------------------

def _common_length(a: str, b: str) -> int:
    """Returns the length of the longest common subsequence, with the table's rows as bits (Hyyro, 2004)."""
    places: dict[str, int] = collections.defaultdict(int)
    for i, c in enumerate(b):
        places[c] |= 1 << i
    mask = (1 << len(b)) - 1
    row = mask
    for c in a:
        both = row & places[c]
        row = (row + both | row - both) & mask
    return len(b) - bin(row).count("1")


def _edit_similarity(text: str, answer: str) -> float:
    """Compares the first line that is code; lines with a backquote, # or // count as fences and comments."""
    lines = text.lstrip("\n").split("\n")
    line = next((one for one in lines if not any(mark in one for mark in ("`", "#", "//"))), "")
    if not line or not answer or line == answer:
        return float(line == answer)
    longest = max(len(line), len(answer))
    if longest > MAX_LINE_CHARACTERS:
        raise EvalError(f"edit-similarity compares lines of at most {MAX_LINE_CHARACTERS} characters, and one has {longest}")
    total = len(line) + len(answer)
    edits = total - 2 * _common_length(line, answer)
    return round(100 * (1 - edits / total)) / 100


# --- the table -------------------------------------------------------------------------------------------------------

Score = Callable[[str, list[str], list[str]], float]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _each(compare: Callable[[str, str], float], read: Callable[[str], str] = str,
          fold: Callable[[Iterable[float]], float] = max) -> Score:
    return lambda text, answers, classes: fold([compare(read(text), read(answer)) for answer in answers])


def _first(values: Iterable[float]) -> float:
    return next(iter(values))


@dataclasses.dataclass(frozen=True)
class Metric:
    summary: str
    score: Score


# To add one: a row, and cases in tools/golden_metrics.py.
METRICS = {
    "contains-all": Metric("share of the answers that the text contains, case ignored", _each(_contains, lower, _mean)),
    "contains-any": Metric("1 if the text contains one of the answers, case ignored", _each(_contains, lower)),
    "exact": Metric("1 if the text, trimmed, is one of the answers", _each(_exact)),
    "f1": Metric("F1 of words, without case, punctuation and articles",
                 _each(lambda text, answer: _f1(_squad_words(text), _squad_words(answer)))),
    "f1-zh": Metric("F1 of characters, without case, punctuation and spaces",
                    _each(lambda text, answer: _f1(_characters(text), _characters(answer)))),
    "rouge-l": Metric("F of the longest common subsequences of words, by sentences that end with a period", _each(rouge.rouge_l)),
    "rouge-l-zh": Metric("the same of characters", _each(rouge.rouge_l_zh)),
    "rouge-lsum": Metric("F of the longest common subsequences of words, by lines", _each(rouge.rouge_lsum, lower)),
    "edit-similarity": Metric("of the first line that is code, in steps of a percent", _each(_edit_similarity)),
    "classification": Metric("1/n if n classes are in the text and the right one is among them", choices.classification),
    "count": Metric("share of the text's numbers that are the answer", _each(_share_of_numbers)),
    "paragraph": Metric('share of the text\'s numbers that are N of the answer "Paragraph N"', _each(_labelled("Paragraph "))),
    "paragraph-zh": Metric("the same of the Chinese form of the answer", _each(_labelled("\u6bb5\u843d"))),
    "first-number": Metric("1 if the first run of digits is an answer", _each(_first_number)),
    "first-decimal": Metric("1 if the first number, with a fraction or without, equals an answer", _each(_first_decimal)),
    "last-integer": Metric("1 if the last word is a number that equals an answer", _each(_last_integer)),
    "kv": Metric("1 if an answer is one of the text's words", _each(_kv)),
    "speaker": Metric("1 if the first answer is one of the text's words, in capitals", _each(_speaker, fold=_first)),
    "choice": Metric("1 if the letter A to D or the option that the text settles on is an answer",
                     lambda text, answers, classes: float(choices.choice(text, answers))),
    "code-choice": Metric('the same, more strictly: the letter comes first, or after "answer is:"',
                          lambda text, answers, classes: float(choices.code_choice(text, answers))),
}


def score(sample: Sample, text: str) -> float:
    """Scores a model's text. EvalError: the sample does not fit its metric, or the text is too long to be compared."""
    if sample.metric == "classification" and not (sample.classes and sample.answers):
        raise EvalError("classification needs the classes and the right one of them")
    if not sample.answers:
        raise EvalError("a question without answers cannot be judged")
    return METRICS[sample.metric].score(text, sample.answers, sample.classes)


def first_line(text: str) -> str:
    """Drops leading newlines and everything after the first line, as the benchmarks do before scoring some tasks."""
    return text.lstrip("\n").split("\n", 1)[0]
