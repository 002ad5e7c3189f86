#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record what the `tokenizers` library makes of difficult strings, for tests/unit/text/tokenizer/test_tokenizer.c and, with
--families, for test_tokenizer_families.c (see golden_tokenizer_families.py).

Needs `pip install tokenizers` (any recent version; the ids do not depend on it). The output is one JSON document:

    [{"name": ..., "patch": {...}, "cases": [[text, [ids]], [text, [ids], decoded], ...]}, ...]

`patch` replaces top-level members of the model's tokenizer.json, so that pipelines which the demo model does not use are
tested with its vocabulary. Ids are without the begin token. `decoded` is left out where decoding gives the text back, and
null where the library takes the text of an added token for bytes in its alphabet ("caf\u00e9" comes out as "caf\ufffd").
"""
import argparse
import json
import random
import re
import unicodedata

import script
script.needs("tokenizers")
import tokenizers  # noqa: E402

import golden_tokenizer_families  # noqa: E402
from golden_tokenizer_strings import HAND_WRITTEN, LLAMA3, SPECIALS, added, byte_level, random_texts, runs, split  # noqa: E402

def variants(model):
    last = model["added_tokens"]
    yield "demo", {}, 1800
    yield "gpt2", {"pre_tokenizer": byte_level(use_regex=True), "normalizer": None}, 400
    yield "gpt2 with a space in front", {"pre_tokenizer": byte_level(use_regex=True, add_prefix_space=True)}, 400
    yield "digits", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, byte_level(use_regex=True)]}}, 200
    yield "split with a space in front", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(r"\p{N}|\s+"), byte_level(add_prefix_space=True)]}}, 200
    yield "llama 3", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(LLAMA3), byte_level()]}, "model": {**model["model"], "ignore_merges": True}}, 200
    yield "scripts and empty matches", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(r"[\p{Han}\p{Hiragana}]+|\p{Lu}*"), split(r"(?<=\S)\s|[^\S\n]{2,}(?=x)"), byte_level()]}}, 300
    yield "added tokens that take spaces", {"added_tokens": last + [
        added(2048, "<l>", lstrip=True), added(2049, "<r>", rstrip=True), added(2050, "<lr>", lstrip=True, rstrip=True), added(2051, "<l><r>"),
        added(2052, "cafe\u0301", normalized=True), added(2053, "\u212b", normalized=True), added(2054, "\u1e9b\u0323"), added(2055, "  ", normalized=True)]}, 400


EXTRA = {"added tokens that take spaces": [
    "a <l> b", "a  <l>  b", "a <r> b", "a  <r>  b", "  <lr>  ", "<r> <l>", "<r>  <l>  <r>", "<l><r>", " <l><r> ", "<l> <r>", "<lr> <lr>", "a\u3000<l>\u00a0b", "a\u180e<l>b", "<r>\u2003\nx",
    "cafe\u0301", "caf\u00e9s", "caf\u00e9", "\u00c5", "A\u030a", "\u212b", "\u1e9b\u0323", "\u1e69", "\u017f\u0323\u0307", "a  b   c", "x <l><l> y", "<r>\n<l>", "\u00e9<r>\u3000", "<l", "  <l>", "<r>  "]}


def record(model, name, patch, n_random, seed):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**model, **patch}))
    rng = random.Random(seed)
    texts = HAND_WRITTEN + EXTRA.get(name, []) + (list(runs()) if name == "demo" else [])
    tokens = [t["content"] for t in patch.get("added_tokens", [])]
    for text in random_texts(rng, n_random):
        for token in rng.sample(tokens, min(3, len(tokens))):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(["", " ", "  "]) + token + rng.choice(["", " ", "\n"]) + text[at:]
        texts.append(text)
    cases = []
    for text in dict.fromkeys(texts):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=True)
        if name == "demo":  # what the C test relies on: decoding gives the normal form, without the special tokens
            parts = re.split("|".join(map(re.escape, SPECIALS)), text)
            assert decoded == "".join(unicodedata.normalize("NFC", part) for part in parts), ascii(text)
        if any(token["id"] in ids and not token["content"].isascii() for token in patch.get("added_tokens", [])):
            decoded = None
        cases.append([text, ids] if decoded == text else [text, ids, decoded])
    return {"name": name, "patch": patch, "cases": cases}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/demo", help="model folder (default: %(default)s)")
    parser.add_argument("--out", default="tests/golden/tokenizer/demo.json", help="file to write (default: %(default)s)")
    parser.add_argument("--families", metavar="FOLDER", help="write the pipelines of published families to this folder instead")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random strings (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.families:
        golden_tokenizer_families.record(arguments.families, arguments.seed)
        return
    with open(f"{arguments.model}/tokenizer.json", encoding="utf-8") as file:
        model = json.load(file)
    groups = []
    for name, patch, n_random in variants(model):
        group = record(model, name, patch, n_random, arguments.seed)
        print(f"{name}: {len(group['cases'])} strings")
        groups.append(group)
    for group in groups:  # a vocabulary is too long to repeat: the test knows that this member is a patch of the model
        if "model" in group["patch"]:
            group["patch"]["model"] = {k: v for k, v in group["patch"]["model"].items() if model["model"].get(k) != v}
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write("[\n")
        for i, group in enumerate(groups):
            head = json.dumps({"name": group["name"], "patch": group["patch"]}, ensure_ascii=False)
            lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in group["cases"])
            file.write(f'{head[:-1]}, "cases": [\n{lines}\n]}}{"," if i + 1 < len(groups) else ""}\n')
        file.write("]\n")


if __name__ == "__main__":
    main()
