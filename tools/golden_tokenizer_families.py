# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers with the pipelines of published families, and what the `tokenizers` library makes of the same
strings with each of them; for tests/unit/text/tokenizer/test_tokenizer_families.c. Run through golden_tokenizer.py --families.

A family has the members of its published tokenizer.json as they are, but a vocabulary of 600 to 900 tokens, trained on
text that comes with any Debian machine. The folder gets

    strings.json   the texts. The characters from U+F8F0 on stand for the family's added tokens, in turn
    NAME.json      tokenizer.json of a family
    NAME.ids       little-endian 16-bit numbers: for each text the number of ids, the ids (with special tokens around the
                   text), then the decoded text: its length in bytes, or 65535 if it is the text itself, and UTF-8.
                   Behind the texts' records, until the end of the file, records of arbitrary ids to be decoded.
"""
import glob
import json
import os
import random
import struct
import unicodedata

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from golden_tokenizer_strings import HAND_WRITTEN, LLAMA3, added, byte_level, random_texts, split

N_TEXTS = 2000
N_DECODED = 200
LONGEST = 40  # characters of a random string
TOKEN = 0xf8f0  # stands for the first added token of the family
N_PLACEHOLDERS = 15
MARK = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SENTENCES = [
    "Все люди рождаются свободными и равными в своем достоинстве и правах.", "人人生而自由,在尊严和权利上一律平等。", "すべての人間は、生まれながらにして自由である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.", "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.", "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।", "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι.", "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Tous les êtres humains naissent libres et égaux en dignité.", "\U0001f600 \U0001f44d\U0001f3fd ok", "for (int i = 0; i < 10; i++) {\n    sum += i * i;\n}\n", "1 22 333 4444 1,000.50 2026-01-31",
]


# --- vocabularies ----------------------------------------------------------------------------------------------------
def corpus():
    files = sorted(glob.glob("/usr/share/common-licenses/*"))[:6] + sorted(glob.glob(os.path.join(os.path.dirname(json.__file__), "*.py")))
    for path in files:
        with open(path, encoding="utf-8", errors="ignore") as file:
            yield file.read(60000)
    for _ in range(30):
        yield "\n".join(SENTENCES)


def train(n_tokens, pre_tokenizer, first_tokens=(), alphabet=(), limit=None):
    """Vocabulary and merges, as [left, right] pairs."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    limits = {"limit_alphabet": limit} if limit else {}
    trainer = trainers.BpeTrainer(vocab_size=n_tokens, special_tokens=list(first_tokens), initial_alphabet=list(alphabet), show_progress=False, **limits)
    tokenizer.train_from_iterator((line for text in corpus() for line in text.splitlines(keepends=True)), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]


def train_bytes(n_tokens, first_tokens=()):
    return train(n_tokens, pre_tokenizers.ByteLevel(add_prefix_space=False), first_tokens, sorted(pre_tokenizers.ByteLevel.alphabet()))


def train_marks(n_tokens, first_tokens, words=f"{MARK}+[^{MARK}]*", limit=None):
    """`words` says within what the merges are learned."""
    steps = [pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=False), pre_tokenizers.Split(tokenizers.Regex(words), "isolated")]
    return train(n_tokens, pre_tokenizers.Sequence(steps), first_tokens, limit=limit)


def drop_merges(vocabulary):
    """Tokens that only ignore_merges finds: without some of the merges that lead to tokens of which no other is made."""
    vocab, merges = vocabulary
    halves = {half for merge in merges for half in merge}
    return vocab, [merge for i, merge in enumerate(merges) if "".join(merge) in halves or i % 3]


def bpe(vocabulary, pairs=False, **members):
    vocab, merges = vocabulary
    plain = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False}
    return {**plain, **members, "vocab": vocab, "merges": merges if pairs else [" ".join(merge) for merge in merges]}


def sentencepiece(vocabulary, **members):
    return bpe(vocabulary, **{"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **members})


# --- steps -----------------------------------------------------------------------------------------------------------
def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def template(before=(), after=()):
    special = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    text = lambda name: {"Sequence": {"id": name, "type_id": 0}}
    single = [special(t) for t, _ in before] + [text("A")] + [special(t) for t, _ in after]
    names = {t: {"id": t, "ids": [id], "tokens": [t]} for t, id in [*before, *after]}
    return {"type": "TemplateProcessing", "single": single, "pair": single + [text("B")], "special_tokens": names}


PREPEND = {"type": "Prepend", "prepend": MARK}
SPACES_TO_MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
MARKS_TO_SPACES = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def sp_tokens(**flags):
    return [added(i, content, special=True, **flags) for i, content in enumerate(("<unk>", "<s>", "</s>"))]


def behind(vocabulary, contents, skip=0, **flags):
    """Added tokens whose ids follow those of the vocabulary, but for the first `skip`."""
    return [added(len(vocabulary[0]) + skip + i, content, **{"special": True, **flags}) for i, content in enumerate(contents)]


def flags(first):
    """Tokens with every flag, which no published file has at once."""
    return [added(first, "<l>", lstrip=True), added(first + 1, "<r>", rstrip=True), added(first + 2, "<lr>", lstrip=True, rstrip=True, special=True), added(first + 3, "<l><r>"),
            added(first + 4, "lone", single_word=True), added(first + 5, "<w>", single_word=True, lstrip=True), added(first + 6, "norm al", normalized=True),
            added(first + 7, "%%", normalized=True, single_word=True, rstrip=True), added(first + 8, "lonely", special=True)]


# --- families --------------------------------------------------------------------------------------------------------
def byte_level_families():
    plain, words = train_bytes(800), train_bytes(800)
    yield "llama3", {
        "added_tokens": behind(plain, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
        "pre_tokenizer": sequence("pretokenizers", split(LLAMA3), byte_level(trim_offsets=True)),
        "post_processor": sequence("processors", byte_level(add_prefix_space=True, use_regex=True), template([("<|begin_of_text|>", len(plain[0]))])),
        "decoder": byte_level(add_prefix_space=True, trim_offsets=True, use_regex=True), "model": bpe(drop_merges(plain), pairs=True, ignore_merges=True)}
    yield "qwen2", {
        "added_tokens": behind(plain, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) + behind(plain, ["<tool_call>", "</tool_call>"], skip=3, special=False),
        "normalizer": {"type": "NFC"}, "pre_tokenizer": sequence("pretokenizers", split(QWEN2), byte_level()),
        "post_processor": byte_level(), "decoder": byte_level(), "model": bpe(plain, continuing_subword_prefix="", end_of_word_suffix="")}
    model = bpe(words, continuing_subword_prefix="", end_of_word_suffix="")
    del model["type"], model["byte_fallback"]
    gpt2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    yield "gpt2", {
        "added_tokens": behind(words, ["<|endoftext|>"], normalized=True), "pre_tokenizer": gpt2,
        "post_processor": {**gpt2, "add_prefix_space": True, "trim_offsets": False}, "decoder": {**gpt2, "add_prefix_space": True}, "model": model}
    yield "gpt2_flags", {
        "added_tokens": behind(words, ["<|endoftext|>"], normalized=True) + flags(len(words[0]) + 1), "pre_tokenizer": {**gpt2, "add_prefix_space": True},
        "post_processor": template(after=[("<|endoftext|>", len(words[0]))]), "decoder": gpt2, "model": model}
    names = [f">>{name}<<" for name in ("TITLE", "ABSTRACT", "INTRODUCTION", "SUMMARY", "COMMENT", "ANSWER", "QUESTION", "DOMAIN", "PREFIX", "SUFFIX", "MIDDLE")] + ["<|endoftext|>"]
    falcon = byte_level(trim_offsets=True, use_regex=True)
    yield "falcon", {
        "added_tokens": [added(i, name, special=True) for i, name in enumerate(names)],
        "pre_tokenizer": sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, falcon, {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")),
        "post_processor": {**falcon, "add_prefix_space": True, "trim_offsets": False}, "decoder": {**falcon, "add_prefix_space": True}, "model": bpe(train_bytes(800, names))}


def sentencepiece_families():
    first = ["<unk>", "<s>", "</s>"] + BYTES
    words, runs = train_marks(850, first), train_marks(900, first, words="[^\n]{1,40}")
    begin = template([("<s>", 1)])
    to_marks = sequence("normalizers", PREPEND, SPACES_TO_MARKS)
    to_spaces = sequence("decoders", MARKS_TO_SPACES, FALLBACK, FUSE, STRIP)
    yield "llama2", {"added_tokens": sp_tokens(), "normalizer": to_marks, "post_processor": begin, "decoder": to_spaces, "model": sentencepiece(words)}
    yield "yi", {
        "added_tokens": sp_tokens(normalized=True) + behind(runs, ["<|im_start|>", "<|im_end|>"], normalized=True), "normalizer": sequence("normalizers", SPACES_TO_MARKS),
        "post_processor": template(), "decoder": sequence("decoders", MARKS_TO_SPACES, FALLBACK, FUSE), "model": sentencepiece(runs)}
    yield "mistral", {"added_tokens": sp_tokens(), "normalizer": to_marks, "post_processor": begin, "decoder": to_spaces, "model": sentencepiece(runs)}
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    yield "mistral3", {
        "added_tokens": sp_tokens() + behind(words, ["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"]), "pre_tokenizer": metaspace,
        "post_processor": begin, "decoder": to_spaces, "model": sentencepiece(words, pairs=True, ignore_merges=False)}
    phi3 = sp_tokens()[:2] + [added(2, "</s>", rstrip=True)] + behind(words, ["<|endoftext|>"])
    phi3 += behind(words, ["<|assistant|>", "<|system|>", "<|end|>", "<|user|>"], skip=1, rstrip=True)
    yield "phi3", {"added_tokens": phi3, "normalizer": to_marks, "post_processor": begin, "decoder": to_spaces, "model": sentencepiece(words)}
    few = train_marks(450, ["<unk>", "<s>", "</s>"], limit=120)
    old = {"type": "Metaspace", "replacement": MARK, "add_prefix_space": True}
    yield "metaspace", {
        "added_tokens": sp_tokens() + flags(len(few[0])), "pre_tokenizer": {**old, "prepend_scheme": "always", "split": True}, "post_processor": template([("<s>", 1)], [("</s>", 2)]),
        "decoder": {**old, "prepend_scheme": "always", "split": True}, "model": sentencepiece(few, byte_fallback=False, fuse_unk=False)}
    yield "metaspace_never", {
        "added_tokens": sp_tokens() + flags(len(few[0])), "normalizer": {"type": "NFC"}, "pre_tokenizer": {**metaspace, "prepend_scheme": "never"},
        "decoder": {**metaspace, "prepend_scheme": "never"}, "model": sentencepiece(few, byte_fallback=False)}


# --- strings ---------------------------------------------------------------------------------------------------------
def place_tokens(rng, text):
    """Put one to three added tokens into a text, next to white space and next to each other."""
    around = ["", "", " ", "  ", "\n", "\u3000", "a", "_", "\u0301", "-"]
    for _ in range(rng.randint(1, 3)):
        at = rng.choice([0, len(text), rng.randint(0, len(text))])
        text = text[:at] + rng.choice(around) + chr(TOKEN + rng.randrange(N_PLACEHOLDERS)) + rng.choice(around) + text[at:]
    return text


def newer_mark(c):
    """A combining mark that the library's tables, of an older Unicode, do not order. It must come behind U+0334."""
    return unicodedata.combining(c) > 1 and normalizers.NFC().normalize_str(c + "\u0334") == c + "\u0334"


def texts(rng):
    tokens = [chr(TOKEN + i) for i in range(N_PLACEHOLDERS)]
    found = HAND_WRITTEN + SENTENCES + tokens + [before + token + behind for token in tokens for before in ("", " ", "x", "  ") for behind in ("", " ", "\n ", "y")]
    found += ["".join(tokens), " ".join(tokens), "lone lonely alone", "lone", "\u00e9lone", "lone\u0301", "lone1", "lone_", "\u200clone", "lone\u200d", "lone-lone", "a norm  al b", "norm al", "%% %%a %%%%", "\u2581", "\u2581\u2581a \u2581", "a\u2581 b", " \u2581"]
    found += [unit * n for unit, n in [("a", 2000), (" ", 300), ("ab", 300), ("\u65e5", 100), ("the ", 100), ("\U0001f600", 40), ("\u0301", 100), ("<0x0A>", 20), ("0", 200), ("\n", 100), ("!", 200), ("\u2581", 200), ("_", 200)]]
    unassigned = ["\u0378", "\ufdd0", "\U0010fffe", "\U000e0080", "\U0003fffd", "\ue000", "\ud7ff\ue000"]
    found += [before + c + "b 1" for c in unassigned for before in ("", "a", " ")]
    corpus_lines = [line for text in corpus() for line in text.splitlines() if 20 < len(line) < 120]
    found += rng.sample(corpus_lines, 150)
    for text in random_texts(rng, 20 * N_TEXTS):
        if len(text) > LONGEST or any(newer_mark(c) for c in text):
            continue
        found.append(place_tokens(rng, text) if rng.random() < 0.4 else text)
        if len(found) % 64 == 0:
            found = list(dict.fromkeys(found))
            if len(found) >= N_TEXTS:
                break
    return found[:N_TEXTS]


def fill_in(text, tokens):
    for i in range(N_PLACEHOLDERS):
        text = text.replace(chr(TOKEN + i), tokens[i % len(tokens)])
    return text


def arbitrary_ids(rng, vocabulary, fallback):
    """Ids that no text gives. Of tokens of single bytes only runs that hold no whole character (the library takes whole
    characters back when the run turns out to be broken, which a stream cannot)."""
    ids = []
    for _ in range(rng.randint(1, 12)):
        if not fallback:
            ids.append(rng.randrange(len(vocabulary) + 3))
            continue
        ids.append(rng.choice([i for token, i in vocabulary.items() if token not in BYTES]))
        if rng.random() < 0.4:
            for byte in rng.choice([b"\xf0\x9f\x98", b"\xe2\x96", b"\x80\x80", b"\xff", b"\xc3", b"\xe2\x82\xac", b"A"]):
                ids.append(vocabulary[f"<0x{byte:02X}>"])
            ids.append(rng.choice([i for token, i in vocabulary.items() if token[0].isalpha()]))
    return ids


def record_bytes(ids, decoded, text):
    utf8 = decoded.encode()
    assert len(ids) < 65536 and len(utf8) < 65535
    same = decoded == text
    return struct.pack(f"<H{len(ids)}HH", len(ids), *ids, 65535 if same else len(utf8)) + (b"" if same else utf8)


def record(folder, seed):
    os.makedirs(folder, exist_ok=True)
    strings = texts(random.Random(seed))
    with open(f"{folder}/strings.json", "w", encoding="utf-8") as file:
        json.dump(strings, file, ensure_ascii=False, separators=(",", ":"), indent=0)
    for name, members in [*byte_level_families(), *sentencepiece_families()]:
        root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, **members}
        with open(f"{folder}/{name}.json", "w", encoding="utf-8") as file:
            json.dump(root, file, ensure_ascii=False, separators=(",", ":"))
        tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/{name}.json")
        assert all(tokenizer.token_to_id(t["content"]) == t["id"] for t in root["added_tokens"]), name
        tokens = [t["content"] for t in root["added_tokens"]]
        rng = random.Random(seed)
        with open(f"{folder}/{name}.ids", "wb") as file:
            for string in strings:
                text = fill_in(string, tokens)
                ids = tokenizer.encode(text, add_special_tokens=True).ids
                file.write(record_bytes(ids, tokenizer.decode(ids, skip_special_tokens=True), text))
            for _ in range(N_DECODED):
                ids = arbitrary_ids(rng, root["model"]["vocab"], root["model"].get("byte_fallback"))
                file.write(record_bytes(ids, tokenizer.decode(ids, skip_special_tokens=True), None))
        print(f"{name}: {len(strings)} strings, {tokenizer.get_vocab_size()} tokens")
