#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Purpose: the natural text of the demo model: what Debian installs as documentation, as sentences, and the tokenizer.

Design: manual pages are stripped of roff by a few regular expressions rather than formatted (groff takes minutes, and
its filling of lines would have to be undone). White space collapses to one space and the text is split at ". ", as the
haystacks of `sluice_eval` are. A page belongs to the held-out part by the hash of its path, so any two runs agree. The
licences of /usr/share/common-licenses are haystacks of the evaluation: no sentence of them is taken, wherever a copy
stands.
"""

import argparse
import glob
import gzip
import hashlib
import os
import re
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import script  # noqa: E402
script.needs("numpy", "tokenizers")
import numpy as np  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen2's pattern: one token a digit, so numbers of any length read and copy alike.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HELD_OUT = 50  # one page in this many is held out
FAMILY = 60  # pages of one family (the first word of the name): some programs bring thousands of like pages
LONGEST = 120  # tokens of a sentence; longer ones are tables and synopses

GLYPHS = {
    "lq": '"',
    "rq": '"',
    "aq": "'",
    "oq": "'",
    "cq": "'",
    "dq": '"',
    "em": "--",
    "en": "-",
    "bu": "*",
    "co": "(c)",
    "ha": "^",
    "ti": "~",
    "rs": "\\",
    "ga": "`",
    "mi": "-",
    "hy": "-",
    "Aq": "'",
    "C'": "'",
    "C`": "`",
    'L"': '"',
    'R"': '"',
}


def strip_roff(source):
    """The words of a manual page (man macros); "" for a page of mdoc macros, which are a language of their own."""
    if re.search(r"^\.Dd", source, re.M):
        return ""
    lines, table = [], False
    for line in source.split("\n"):
        if line.startswith((".TS", ".de", ".ig")):
            table = True
        elif line.startswith((".TE", "..")):
            table = False
        if table or line.startswith(("'", '.\\"')):
            continue
        if line.startswith("."):
            macro = re.match(r"\.\s*(\w+)\s*(.*)", line)
            if not macro or macro[1] not in (
                "SH",
                "SS",
                "B",
                "I",
                "R",
                "BR",
                "BI",
                "IB",
                "IR",
                "RB",
                "RI",
                "SM",
                "SB",
                "IP",
                "TP",
            ):
                continue
            words = [a or b for a, b in re.findall(r'"([^"]*)"|(\S+)', macro[2])]
            if macro[1] in ("IP", "TP"):
                words = words[:1] if macro[1] == "IP" else []
            line = ("" if macro[1] in ("BR", "BI", "IB", "IR", "RB", "RI") else " ").join(words)
            if macro[1] in ("SH", "SS"):
                line = line.capitalize() + "."
        lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"\\f(\[\w*\]|\(..|.)|\\s[-+]?\d|\\[&|^%:/,c)]|\\v'[^']*'|\\h'[^']*'|\\k.|\\u|\\d", "", text)
    text = re.sub(r"\\\*?\((..)|\\\*?\[([^\]]+)\]", lambda m: GLYPHS.get(m[1] or m[2], ""), text)
    text = (
        text.replace("\\-", "-")
        .replace("\\e", "\\")
        .replace("\\ ", " ")
        .replace("\\~", " ")
        .replace("\\'", "'")
        .replace("\\`", "`")
    )
    return re.sub(r'\\".*', "", text)


def read_page(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        source = file.read().decode("utf-8", "replace")
    if "/man/" in path:
        return strip_roff(source)
    if path.endswith((".html", ".htm")):
        source = re.sub(r"(?s)<(script|style|pre).*?</\1>|<[^>]+>", " ", source)
        return re.sub(r"&(\w+|#\d+);", lambda m: {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}.get(m[1], " "), source)
    return source


def sentences(text):
    """Text with white space collapsed, split at ". "; a sentence keeps its full stop."""
    parts = re.sub(r"\s+", " ", text).strip().split(". ")
    return [part + ("." if i + 1 < len(parts) else "") for i, part in enumerate(parts) if part]


def pages(root="/usr/share"):
    """Yields (path, sentences) of every page, in an order that does not depend on the machine's file system."""
    patterns = [
        "man/man[1-8]/*",
        "info/*",
        "doc/**/*.txt*",
        "doc/**/*.md*",
        "doc/**/*.rst*",
        "doc/**/*.html",
        "doc/**/README*",
        "doc/*/copyright",
        "perl/**/*.pod",
    ]
    paths = sorted(
        {p for pattern in patterns for p in glob.glob(os.path.join(root, pattern), recursive=True) if os.path.isfile(p)}
    )
    licences = {s for p in glob.glob(os.path.join(root, "common-licenses/*")) for s in sentences(read_page(p))}
    families, seen = {}, set()
    for path in paths:
        family = re.match(r"[A-Za-z0-9]*", os.path.basename(path))[0] if "/man/" in path else os.path.dirname(path)
        families[family] = families.get(family, 0) + 1
        if families[family] > FAMILY or os.path.islink(path) or os.path.getsize(path) > 2 << 20:
            continue
        kept = []
        for sentence in sentences(read_page(path)):
            if not 4 < len(sentence) < 600 or sentence in licences or "Apache" in sentence or not sentence.isascii():
                continue
            mark = hash(sentence)
            if len(sentence) < 40 or mark not in seen:  # long sentences once only: boilerplate teaches nothing
                seen.add(mark)
                kept.append(sentence)
        if kept:
            yield path, kept


def train_tokenizer(texts, size):
    """A byte-level BPE of `size` entries. The special tokens come last, where models/demo has them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[]
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


class Bank:
    """Sentences as tokens: sentence i is tokens[start[i]:start[i + 1]], with its leading space; pages lie whole."""

    def __init__(self, path):
        data = np.load(path)
        self.tokens, self.start, self.held_out, self.words = (
            data["tokens"],
            data["start"],
            data["held_out"],
            list(data["words"]),
        )
        self.parts = {False: np.flatnonzero(~self.held_out), True: np.flatnonzero(self.held_out)}

    def __getitem__(self, i):
        return self.tokens[self.start[i] : self.start[i + 1]]


def common_words(texts, count=6000):
    """The most frequent lower-case words of 3 to 9 letters: material for keys and lists."""
    tally = {}
    for text in texts:
        for word in re.findall(r"(?<= )[a-z]{3,9}(?=[ ,.])", text):
            tally[word] = tally.get(word, 0) + 1
    return sorted(sorted(tally), key=lambda w: -tally[w])[:count]


def main():
    parser = argparse.ArgumentParser(
        description="Build the sentence bank (and a tokenizer, unless one is given) from installed documentation."
    )
    parser.add_argument("--out", required=True, help="the bank to write (.npz)")
    parser.add_argument(
        "--tokenizer", required=True, help="tokenizer.json: used where it exists, made and written where not"
    )
    parser.add_argument("--vocab", type=int, default=2048, help="entries of a tokenizer to make")
    parser.add_argument("--root", default="/usr/share", help="where man, doc, info and perl lie")
    args = parser.parse_args()

    book = list(pages(args.root))
    held = [int(hashlib.sha256(path.encode()).hexdigest(), 16) % HELD_OUT == 0 for path, _ in book]
    texts = [" " + " ".join(kept) for _, kept in book]
    print(f"{len(book)} pages, {sum(map(len, texts)) / 1e6:.1f} MB, {sum(held)} pages held out", flush=True)
    if not os.path.exists(args.tokenizer):
        train_tokenizer([t for t, h in zip(texts, held) if not h], args.vocab).save(args.tokenizer)
        print(f"made {args.tokenizer}", flush=True)
    tokenizer = Tokenizer.from_file(args.tokenizer)
    flat, flags = [], []
    for (_, kept), h in zip(book, held):
        flat += [" " + s for s in kept]
        flags += [h] * len(kept)
    encoded = tokenizer.encode_batch(flat, add_special_tokens=False)
    kept = [(e.ids, f) for e, f in zip(encoded, flags) if len(e.ids) <= LONGEST]
    start = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in kept])])
    np.savez(
        args.out,
        tokens=np.concatenate([np.array(ids, np.uint16) for ids, _ in kept]),
        start=start,
        held_out=np.array([f for _, f in kept]),
        words=np.array(common_words(texts)),
    )
    print(f"{args.out}: {len(kept)} sentences, {start[-1] / 1e6:.2f} M tokens")


if __name__ == "__main__":
    main()
