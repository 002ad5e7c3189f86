# SPDX-License-Identifier: Apache-2.0
"""JSON that rejects an object with the same member twice, and numbers that JSON does not have."""
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
    raise ValueError(f"{text} is no number of JSON")


def loads(text: str) -> Any:
    """Parses a text. ValueError has the reason."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
