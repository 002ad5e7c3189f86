# SPDX-License-Identifier: Apache-2.0
"""Metrics of questions with a choice: named classes (LongBench), options with letters (InfiniteBench).

Published scores come from exactly these steps, including odd ones, so they are reproduced exactly. The answers of a
question with options are the right option's text and its letter.
"""
from __future__ import annotations

import re
from typing import Optional

LETTERS = "ABCD"


def classification(text: str, answers: list[str], classes: list[str]) -> float:
    """Returns 1/n if the right class is among the n that the text names."""
    best = 0.0
    for answer in answers:
        found = [name for name in classes if name in text]
        for name in found:  # skips the class after a removed one, as the published code does
            if name in answer and name != answer:
                found.remove(name)
        if answer in found:
            best = max(best, 1 / len(found))
    return best


def _squeeze(text: str, separators: str) -> str:
    return re.sub(" +", " ", re.sub(f"[{re.escape(separators)}]", " ", text))


def _after_phrase(text: str, phrases: list[str]) -> Optional[str]:
    """Returns the text after the first phrase of the list that occurs and one more character. None: none occurs."""
    for phrase in phrases:
        at = text.find(phrase)
        if at >= 0:
            return text[at + len(phrase) + 1:]
    return None


def _starts(text: str, answers: list[str]) -> bool:
    return text != "" and any(text.startswith(answer) for answer in answers)


def choice(text: str, answers: list[str]) -> bool:
    """Returns whether the letter A to D or the option that the text settles on is an answer."""
    text = text.strip()
    if text and text[0] in LETTERS:
        return text[0] in answers
    if not text or text in answers:
        return text != ""
    text = _squeeze(text, "\n\"'.,?!{}")
    rest = _after_phrase(text, ["answer is:", "answer:", "answer is", "option is"])
    if rest is not None:
        return _starts(rest, answers)
    for word in text.split():
        if word in LETTERS:  # "AB" also counts as a named option, and as wrong
            return word in answers
    return False


def code_choice(text: str, answers: list[str]) -> bool:
    """Is stricter: the letter comes first, or after "answer is:"."""
    text = text.strip()
    if len(text) > 1 and text[1] in ".:" and text[0] in answers:
        return True
    text = _squeeze(text.replace("Option", " ").replace("option", " "), "\n`'\"-*")
    rest = _after_phrase(text, ["answer is:", "is:", "answer:", "correct option is:"])
    return rest is not None and _starts(rest, answers)
