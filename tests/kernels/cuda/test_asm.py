#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Inline assembly of the kernels that reads or writes memory, or orders what does, has a "memory" clobber: without it the compiler may move
loads and stores across it.

    test_asm.py SOURCE_FOLDER
"""
import os
import pathlib
import re
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402

# Instructions that access memory by address or by wgmma's descriptors, and fences and waits. A prefetch is a hint: no value depends on it.
TOUCHES = re.compile(r"\[%|wgmma\.|cp\.async|fence\.|membar|bar\.")
HINT = re.compile(r"^prefetch\.")


def statements(text):
    """(line, template, whole) of every asm statement: to the parenthesis that closes it, strings passed over."""
    for found in re.finditer(r"\basm\s*(?:volatile\s*)?\(", text):
        depth, at, literals = 1, found.end(), []
        while depth:
            if text[at] == '"':
                end = text.index('"', at + 1)
                literals.append((at, text[at + 1:end]))
                at = end
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        whole = text[found.start():at]
        first_colon = next((i for i in range(found.end(), at) if text[i] == ":" and not any(b < i <= b + len(t) for b, t in literals)), at)
        yield text.count("\n", 0, found.start()) + 1, "".join(t for b, t in literals if b < first_colon), whole


def main():
    n = wrong = 0
    for path in sorted(p for kind in ("*.h", "*.cu") for p in pathlib.Path(sys.argv[1], "engine", "tensor", "cuda").rglob(kind)):
        for line, template, whole in statements(path.read_text()):
            n += 1
            if TOUCHES.search(template) and not HINT.match(template) and '"memory"' not in whole:
                print(f'{path}:{line}: no "memory" clobber: {template[:60]}')
                wrong += 1
    print(f"{n} statements, {wrong} wrong")
    return 1 if wrong or n < 20 else 0


if __name__ == "__main__":
    script.needs_arguments(1, "SOURCE_FOLDER")
    sys.exit(main())
