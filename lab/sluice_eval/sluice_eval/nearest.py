# SPDX-License-Identifier: Apache-2.0
"""Suggestions for a mistyped name."""
from __future__ import annotations

import difflib
from typing import Iterable


def no_such(what: str, wanted: str, names: Iterable[str]) -> str:
    """Returns the message for a name that does not exist, with the most similar one."""
    similar = difflib.get_close_matches(wanted, list(names), n=1, cutoff=0.6)
    hint = f'; did you mean "{similar[0]}"?' if similar else ""
    return f'there is no {what} "{wanted[:64]}"{hint}'
