# SPDX-License-Identifier: Apache-2.0
"""The page of `sluice inspect --html`: which share of each token's and each sentence's slots a capsule has kept, over the text.

`python3 -m sluice_eval.retention FILE` reads {"label", "model", "layers", "kv_heads", "tokens": [[text, share], ...]} from standard
input; a share of null: the capsule does not have the token. A sentence begins at the first token after ".", "!" or "?" and white
space, or after an empty line. The page needs no other file.
"""
from __future__ import annotations

import html
import itertools
import json
import os
import pathlib
import sys
from typing import Any, Iterator, Optional

Token = tuple[str, Optional[float]]
# White to dark blue, as in `sluice inspect --png`.
STYLE = """<style>
body { font: 15px/1.6 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
pre { white-space: pre-wrap; font: inherit }
i { font-style: normal }
span:hover { outline: 1px solid #888 }
.legend i { padding: 0 0.6em }
""" + "".join(f".k{k} {{ background: #{255 - 247 * k // 100:02x}{255 - 207 * k // 100:02x}{255 - 148 * k // 100:02x}"
              f"{'; color: #fff' * (k > 55)} }}\n" for k in range(101)) + "</style>\n"


def sentences(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yields the tokens of one sentence after the other."""
    begun: list[Token] = []
    before = ""  # the end of the text so far
    for token in tokens:
        text = token[0]
        stripped = before.rstrip()
        spaces = before[len(stripped):]
        is_end = stripped.endswith((".", "!", "?")) and bool(spaces or text[:1].isspace())
        is_empty_line = "\n" in spaces[:-1]
        # A run of white space belongs to the sentence before it.
        if begun and (is_end or is_empty_line) and text and not text[-1].isspace():
            yield begun
            begun = []
        begun.append(token)
        before = (before + text)[-4096:]
    if begun:
        yield begun


def percent(token: Token) -> Optional[int]:
    return None if token[1] is None else int(100 * token[1] + 0.5)


def span_of(number: int, tokens: list[Token]) -> str:
    """Returns a sentence: tokens with the same share, in percent, are one element."""
    shares = [share for _, share in tokens if share is not None]
    title = f"sentence {number}: {100 * sum(shares) / len(shares):.1f}% of its slots are kept" if shares \
        else "not in the capsule: decode reads the last token"
    runs = []
    for share, run in itertools.groupby(tokens, percent):
        text = html.escape("".join(text for text, _ in run))
        runs.append(f"<i>{text}</i>" if share is None else f"<i class=k{share}>{text}</i>")
    return f'<span title="{title}">{"".join(runs)}</span>'


def page_of(data: dict[str, Any]) -> str:
    shares = [share for _, share in data["tokens"] if share is not None]
    legend = "".join(f"<i class=k{k}>{k}%</i>" for k in range(0, 101, 20))
    return (f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>What is kept</title>\n{STYLE}'
            f"<h1>What is kept of the text</h1>\n<p>{html.escape(data['label'])}<br>model {data['model']}, {data['layers']} layers of "
            f"{data['kv_heads']} KV heads<br>{len(shares)} tokens, {100 * sum(shares) / len(shares):.1f}% of their slots are kept. "
            "Layers that stores have are not counted.</p>\n"
            f"<p class=legend>{legend} of the slots of a token. Point at a sentence to see its share.</p>\n<pre>\n"
            + "".join(span_of(i + 1, tokens) for i, tokens in enumerate(sentences(data["tokens"]))) + "\n</pre>\n</html>\n")


def main(path: str) -> int:
    """Writes the page, whole or not at all. Returns the exit code."""
    temporary = pathlib.Path(f"{path}.{os.getpid()}")
    try:
        temporary.write_text(page_of(json.load(sys.stdin)), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        print(f"{path}: cannot be written: {error.strerror}", file=sys.stderr)
        temporary.unlink(missing_ok=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
