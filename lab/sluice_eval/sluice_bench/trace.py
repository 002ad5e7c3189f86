# SPDX-License-Identifier: Apache-2.0
"""Reads traces in Mooncake's format.

A row is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, ...]}. An id stands for a block of 512
tokens of the prompt, the last one for the rest; equal ids are equal blocks. Without hash_ids, a prompt shares nothing.
"""
from __future__ import annotations

import array
import dataclasses
import json
import math
from typing import Any, Iterator, Optional

from sluice_eval import strict_json
from sluice_eval.errors import UsageError

BLOCK = 512  # tokens of an id
MAX_TOKENS = 1 << 27
MAX_ID = (1 << 63) - 1


@dataclasses.dataclass(frozen=True)
class Row:
    number: int  # of its line, from 1
    at_s: float  # after the trace's first row
    n_input: int
    n_output: int
    ids: Optional[array.array]  # None: nothing is shared


def _tokens(row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ValueError(f'"{name}" must be a whole number from 1 to {MAX_TOKENS}, and is {str(value)[:40]}')
    return value


def _time(row: dict[str, Any]) -> float:
    value = row.get("timestamp")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise ValueError(f'"timestamp" must be a number of milliseconds from 0 on, and is {str(value)[:40]}')
    return value / 1000


def _ids(row: dict[str, Any], n_input: int) -> Optional[array.array]:
    ids = row.get("hash_ids")
    if ids is None:
        return None
    if not isinstance(ids, list):
        raise ValueError('"hash_ids" must be a list')
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= MAX_ID:
            raise ValueError(f'"hash_ids" must be whole numbers from 0 on, and one is {str(one)[:40]!r}')
    wanted = math.ceil(n_input / BLOCK)
    if len(ids) != wanted:
        raise ValueError(f'{n_input} tokens are {wanted} blocks of {BLOCK}, and "hash_ids" has {len(ids)}')
    return array.array("q", ids)


def _parse(line: str) -> tuple[float, int, int, Optional[array.array]]:
    try:
        row = strict_json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg}, column {error.colno}") from error
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    n_input = _tokens(row, "input_length")
    return _time(row), n_input, _tokens(row, "output_length"), _ids(row, n_input)


def _rows(path: str, lines: Iterator[str]) -> Iterator[Row]:
    first = last = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            at_s, n_input, n_output, ids = _parse(line)
            if last is not None and at_s < last:
                raise ValueError(f"its time, {1000 * at_s:.15g} ms, is before the last row's, {1000 * last:.15g} ms")
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: row {number}: {error}") from error
        first = at_s if first is None else first
        last = at_s
        yield Row(number, at_s - first, n_input, n_output, ids)


def read_trace(path: str, most: Optional[int] = None) -> list[Row]:
    """Returns the rows, at most `most` of them. UsageError names the row that is wrong."""
    rows: list[Row] = []
    try:
        with open(path, encoding="utf-8") as file:
            for row in _rows(path, file):
                rows.append(row)
                if len(rows) == most:
                    break
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: row {len(rows) + 1} or a later one is not UTF-8") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if not rows:
        raise UsageError(f"{path}: there is no row")
    return rows
