#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer/sentencepiece.json: a small vocabulary of SentencePiece's, as GGUF files have it (tokens, scores,
types), with difficult strings and the ids that SentencePiece itself gives them.

Needs sentencepiece (0.2.1 was used); needed only to change the golden data.
"""
import io
import json
import pathlib
import random

import script
script.needs("sentencepiece")
import sentencepiece  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = dict(normal=1, unknown=2, control=3, user_defined=4, unused=5, byte=6)


def strings(rng):
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line]
    chosen = rng.sample(lines, 60)
    chosen += ["", " ", "  ", "a", " a", "a  b   c", "\n", "a\nb", "\t x", "caf\u00e9", "e\u0301", "\u65e5\u672c\u8a9e", "\U0001f600", "\x04", "\u2581", "a\u2581b"]
    for _ in range(60):
        chosen.append("".join(rng.choice("abehrst  \n01.,\u00e9\u00fc\u4e2d\x07") for _ in range(rng.randint(1, 40))))
    return chosen


def main():
    rng = random.Random(3)
    text = [line for line in (ROOT / "docs" / "DESIGN.md").read_text().splitlines() if line]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, character_coverage=0.99,
        allow_whitespace_only_pieces=True, split_digits=True, minloglevel=2)
    p = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = [("unknown", p.is_unknown), ("control", p.is_control), ("byte", p.is_byte), ("unused", p.is_unused)]
    n = p.get_piece_size()
    texts = strings(rng)
    golden = {
        "tokens": [p.id_to_piece(i) for i in range(n)], "scores": [p.get_score(i) for i in range(n)],
        "types": [next((TYPES[name] for name, test in kinds if test(i)), 1) for i in range(n)],
        "texts": texts, "ids": [p.encode(t) for t in texts],
    }
    path = ROOT / "tests" / "golden" / "tokenizer" / "sentencepiece.json"
    path.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(n, "tokens", len(texts), "texts", path.stat().st_size, "bytes")


if __name__ == "__main__":
    script.help_if_asked()
    main()
