# SPDX-License-Identifier: Apache-2.0
"""The answers of an evaluation, each written to disk immediately, so that a run that was stopped or killed can continue.

A file of JSON lines. The first describes the run:

    {"sluice_eval": 1, "model": "9d0c...", "weights": "stored", "tokenizer": "51ab...", "seed": 1}

and every other one is an answer:

    {"recipe": "h2o,budget=0.2", "cell": "niah-essay", "tokens": 4096, "depth": -1.0, "index": 0,    which question
     "name": "h2o", "budget": "20%", "prompt": "8f31...", "n_prompt": 4093, "n_reused": 0,
     "score": 1.0, "answer": " 4817263.",                     or instead of these:  "refused": "why"
     "shipped_bytes": 1048576, "offloaded_bytes": 0, "full_bytes": 5242880, "resident_bytes": 1114112,
     "slots_per_head": 818.6, "ttft_ms": 212.5, "tpot_ms": 1.3}

An answer is identified by its recipe, in canonical form, and its question, whichever run writes it; of several, the last
one counts. A line that was truncated when its writer was killed is dropped. "prompt" is a hash of the tokens. It detects
answers to other prompts under the same name before they are mixed. One process at a time may open a file for writing.
"""
from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import stat
from typing import Any, Iterable, Optional

from . import strict_json
from .errors import EvalError, UsageError

VERSION = 1
Key = tuple[str, str, int, str, int]
_NUMBERS = ["shipped_bytes", "offloaded_bytes", "full_bytes", "resident_bytes", "slots_per_head", "ttft_ms", "tpot_ms"]


@dataclasses.dataclass(frozen=True)
class RunId:
    """What all answers of a file have in common."""

    model: str  # fingerprint of the model with its weights, or its name at a server
    weights: str
    tokenizer: str
    seed: int


@dataclasses.dataclass
class Answer:
    name: str  # of the recipe, as in the plan
    budget: str
    prompt: str  # hash of the tokens
    n_prompt: int = 0
    n_reused: int = 0  # tokens that were not read again; excluded from ttft_ms
    refused: Optional[str] = None  # the reason for no answer
    score: float = 0
    answer: str = ""
    shipped_bytes: int = 0
    offloaded_bytes: int = 0  # 0 in lines of older files without this number, for any recipe
    full_bytes: int = 0
    resident_bytes: int = 0
    slots_per_head: float = 0
    ttft_ms: float = 0
    tpot_ms: float = 0


def make_key(recipe: str, cell: str, n_tokens: int, depth: float, index: int) -> Key:
    """Returns the key of a question under a recipe. n_tokens 0: a data set; a negative depth: anywhere."""
    return recipe, cell, n_tokens, f"{depth if depth >= 0 else -1:.6g}", index


def _line_of(key: Key, answer: Answer) -> dict[str, Any]:
    recipe, cell, n_tokens, depth, index = key
    line = {"recipe": recipe, "cell": cell, "tokens": n_tokens, "depth": float(depth), "index": index, "name": answer.name,
            "budget": answer.budget, "prompt": answer.prompt, "n_prompt": answer.n_prompt, "n_reused": answer.n_reused}
    if answer.refused is not None:
        return {**line, "refused": answer.refused}
    return {**line, "score": answer.score, "answer": answer.answer, **{name: getattr(answer, name) for name in _NUMBERS}}


def _read_line(line: Any) -> Optional[tuple[Key, Answer]]:
    """Returns None if the line is not an answer."""
    try:
        key = make_key(line["recipe"], line["cell"], line["tokens"], line["depth"], line["index"])
        answer = Answer(line["name"], line["budget"], line["prompt"], line["n_prompt"], line["n_reused"])
        int(answer.prompt, 16)
        if "refused" in line:
            answer.refused = line["refused"]
            texts, numbers = [answer.refused], [0]
        else:
            answer.score, answer.answer = line["score"], line["answer"]
            for name in _NUMBERS:
                setattr(answer, name, line.get(name, 0) if name == "offloaded_bytes" else line[name])
            texts, numbers = [answer.answer], [answer.score, *(getattr(answer, name) for name in _NUMBERS)]
    except (KeyError, TypeError, ValueError):
        return None
    texts += [key[0], key[1], answer.name, answer.budget]
    numbers += [key[2], key[4], answer.n_prompt, answer.n_reused]
    whole = all(isinstance(text, str) for text in texts) and all(
        isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers)
    return (key, answer) if whole else None


class Results:
    """Answers by their key, in memory and, with a path, in a file."""

    def __init__(self, path: Optional[str] = None, run: Optional[RunId] = None) -> None:
        """Opens the file for a run, which it must belong to. run None: reads an existing file of any run."""
        self.answers: dict[Key, Answer] = {}
        self.header: dict[str, Any] = {"sluice_eval": VERSION, **dataclasses.asdict(run)} if run else {}
        self._path, self._fd = path, -1
        if path is not None:
            try:
                self._open(path, run is not None)
            except BaseException:
                self.close()
                raise

    def _open(self, path: str, writes: bool) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC if writes else os.O_RDONLY, 0o666)
        except OSError as error:
            raise EvalError(f"{path}: cannot be {'written' if writes else 'read'}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise UsageError(f"{path}: not a file")
        if writes:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise EvalError(f"{path}: another run is writing to it") from error
        with open(path, "rb") as file:
            data = file.read()
        used = self._read_lines(data)
        if writes and used < len(data):
            os.ftruncate(self._fd, used)
        if writes and used == 0:
            self._write(self.header)

    def _read_lines(self, data: bytes) -> int:
        """Reads the lines; returns how many bytes are whole lines."""
        used = 0
        for number, line in enumerate(data.split(b"\n")[:-1]):  # what follows the last newline was truncated
            try:
                parsed = strict_json.loads(line.decode())
            except ValueError:
                parsed = None
            # Files of the same run may have been concatenated, and each begins with a first line.
            if number == 0 or (isinstance(parsed, dict) and "sluice_eval" in parsed):
                self._check_first(parsed)
            else:
                read = _read_line(parsed)
                if read is None:
                    raise UsageError(f"{self._path}: line {number + 1} is not an answer; remove it, or write to another file")
                self.answers[read[0]] = read[1]
            used += len(line) + 1
        mark = b'{"sluice_eval"'
        if used == 0 and data and data[:len(mark)] != mark[:len(data)]:
            raise self._not_results()
        return used

    def _not_results(self) -> UsageError:
        return UsageError(f"{self._path}: not a file of results of an evaluation")

    def _check_first(self, line: Any) -> None:
        if not isinstance(line, dict) or "sluice_eval" not in line:
            raise self._not_results()
        if not self.header:
            self.header = line
        for name, value in self.header.items():
            if line.get(name) != value:
                was = json.dumps(line[name])[:40] if name in line else "missing"
                raise EvalError(f'{self._path}: its answers are of another run ("{name}" is {was} there and '
                                f"{json.dumps(value)[:40]} now); write to another file")

    def _write(self, line: dict[str, Any]) -> None:
        """Writes the whole line, or a part without its newline, which is dropped when the file is read again."""
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
        try:
            while data:
                data = data[os.write(self._fd, data):]
        except OSError as error:
            raise EvalError(f"{self._path}: cannot be written: {error.strerror}") from error

    def find(self, key: Key) -> Optional[Answer]:
        return self.answers.get(key)

    def add(self, key: Key, answer: Answer) -> None:
        if self._fd >= 0:
            self._write(_line_of(key, answer))
        self.answers[key] = answer

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def items(self) -> Iterable[tuple[Key, Answer]]:
        return self.answers.items()
