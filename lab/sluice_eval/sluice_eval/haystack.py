# SPDX-License-Identifier: Apache-2.0
"""Text files as one running text of sentences, to hide facts in.

All files form one text in which every run of white space is one space; it begins with a space. A sentence ends with a
period before a space and begins with that space. A sentence of more than 600 bytes is cut at a space, or at a
character if it has no space.
"""
from __future__ import annotations

import pathlib

from .errors import EvalError, UsageError

LICENSES = pathlib.Path("/usr/share/common-licenses")
MAX_SENTENCE_BYTES = 600
CONTINUES = 0x80  # bytes 10xxxxxx continue a character


class Haystack:
    """A text and the start of each of its sentences."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.begins = [0]
        while self.begins[-1] < len(text):
            self.begins.append(_sentence_end(text, self.begins[-1]))
        self.n = len(self.begins) - 1

    def sentences(self, first: int, n: int) -> str:
        """Returns n sentences from number `first` on. The text wraps around."""
        parts = []
        while n > 0:
            first %= self.n
            end = min(first + n, self.n)
            parts.append(self.text[self.begins[first]:self.begins[end]])
            n -= end - first
            first = end
        return b"".join(parts).decode()

    def contains(self, text: str) -> bool:
        return text.encode() in self.text


def _sentence_end(text: bytes, begin: int) -> int:
    limit = min(begin + MAX_SENTENCE_BYTES, len(text))
    stop = text.find(b". ", begin, limit)
    if stop >= 0:
        return stop + 1
    if limit == len(text):
        return limit
    space = text.rfind(b" ", begin + 2, limit + 1)
    if space >= 0:
        return space
    while text[limit] & 0xC0 == CONTINUES:
        limit -= 1
    return limit


NOISE = Haystack(b" The river runs on. The mill wheel turns. A cart goes by. The road is dry.")


def _read(path: pathlib.Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise EvalError(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise EvalError(f"{path}: {error.strerror}") from error
    if b"\0" in data:
        raise UsageError(f"{path}: not a text: it has a byte 0")
    text = b"".join(b" " + word for word in data.split())
    if not text:
        raise UsageError(f"{path}: there is no text in it")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        before = text[max(0, error.start - 20):error.start].decode(errors="replace")
        raise UsageError(f'{path}: not UTF-8: the byte 0x{text[error.start]:02x} after "{before}"; convert it with iconv') from error
    return text


def open_haystack(paths: list[str], option: str = "--essay") -> Haystack:
    """Reads the files, which `option` names. Without any: the licenses of this system, without links, which would repeat a text."""
    files = [pathlib.Path(path) for path in paths]
    if not files:
        if LICENSES.is_dir():
            files = [file for file in LICENSES.iterdir() if file.is_file() and not file.is_symlink()]
        files.sort(key=lambda file: file.name.encode())
        if not files:
            raise EvalError(f"no texts in {LICENSES} to hide facts in; give a text file with {option}")
    return Haystack(b"".join(_read(file) for file in files))
