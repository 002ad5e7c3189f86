# SPDX-License-Identifier: Apache-2.0
"""JSON that rejects repeated members, numbers that JSON does not have, and texts that no server takes."""
from __future__ import annotations

import json
from typing import Any


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the member "{twice}" is there twice')
    return members


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _check_texts(value: Any) -> None:
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError is a ValueError
        if "\0" in value:
            raise ValueError("the character U+0000 is not allowed")
    elif isinstance(value, list):
        for one in value:
            _check_texts(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            _check_texts(name)
            _check_texts(one)


def loads(text: str) -> Any:
    """Parses a text. ValueError has the reason."""
    value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    if "\\u" in text:  # nothing else can hide such characters
        _check_texts(value)
    return value
