#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Sluice with transformers: the likeliest token and the KL divergence, position by position.

    python3 -m venv ~/beside && ~/beside/bin/pip install torch transformers accelerate gguf      # 5.23 and torch 2.15 were used
    make build && build/bin/sluice pull smollm2
    ~/beside/bin/python tools/beside_transformers.py ~/.cache/sluice/models/smollm2/*.gguf --tier amx --tier avx512

Both sides get the same tokens: the first 512 of each text, as transformers' tokenizer makes them. Transformers dequantizes a GGUF
file to f32 and computes in f32. Its logits are kept in --keep, so that further runs need neither torch nor time. Without
--text: the first 512 tokens of eight of our pages. No test runs this.
"""
import argparse
import hashlib
import pathlib
import subprocess
import sys

import script
script.needs("numpy")
import numpy as np  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["BENCHMARKS", "EVALUATION", "FAILURES", "HTTP", "OPERATIONS", "RANKS", "RECIPES", "SECURITY"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file, or a Hugging Face folder")
    parser.add_argument("--text", type=pathlib.Path, action="append", help="may be given several times")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each text [512]")
    parser.add_argument("--chunk", type=int, default=512, help="tokens that we read at once [512]")
    parser.add_argument("--tier", action="append", help="may be given several times [auto]")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("/tmp"), help="where transformers' logits are kept [/tmp]")
    parser.add_argument("--program", default=ROOT / "build" / "tests" / "bin" / "golden_logits", help="[that of build/]")
    return parser.parse_args()


def transformers_logits(options, texts):
    """Ids [texts][tokens] and logits [texts][tokens][vocabulary], computed once."""
    name = hashlib.sha256(repr([str(options.model), options.tokens]).encode() + "\0".join(texts).encode()).hexdigest()[:16]
    ids_file, logits_file = options.keep / f"beside-{name}.ids.npy", options.keep / f"beside-{name}.logits.npy"
    if not logits_file.exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        where = (options.model,) if options.model.is_dir() else (options.model.parent,)
        file = {} if options.model.is_dir() else {"gguf_file": options.model.name}
        tokenizer = AutoTokenizer.from_pretrained(*where, **file)
        model = AutoModelForCausalLM.from_pretrained(*where, dtype=torch.float32, **file)
        ids = np.array([tokenizer(text).input_ids[: options.tokens] for text in texts])
        logits = np.empty((*ids.shape, model.config.vocab_size), np.float32)
        with torch.no_grad():
            for i, row in enumerate(ids):
                logits[i] = model(torch.tensor(row[None])).logits[0].numpy()
        np.save(ids_file, ids)
        np.save(logits_file, logits)
    return np.load(ids_file), np.load(logits_file, mmap_mode="r")


def our_logits(options, tier, ids):
    """Text by text."""
    command = [options.program, tier, options.model, str(options.chunk)]
    for row in ids:
        done = subprocess.run(command, input=(" ".join(map(str, row)) + "\n").encode(), capture_output=True)
        if done.returncode != 0:
            sys.exit(done.stderr.decode())
        yield np.frombuffer(done.stdout, np.float32).reshape(len(row), -1)


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def compare(theirs, ours):
    """Same likeliest tokens, and the sum of KL(theirs || ours), of one text; 64 positions at once, for memory's sake."""
    same, divergence = 0, 0.0
    for i in range(0, len(theirs), 64):
        a, b = log_softmax(np.asarray(theirs[i : i + 64])), log_softmax(ours[i : i + 64])
        same += int((a.argmax(axis=1) == b.argmax(axis=1)).sum())
        divergence += float((np.exp(a) * (a - b)).sum())
    return same, divergence


def main():
    options = arguments()
    paths = options.text or [ROOT / "docs" / f"{page}.md" for page in PAGES]
    ids, theirs = transformers_logits(options, [path.read_text() for path in paths])
    for tier in options.tier or ["auto"]:
        results = [compare(t, o) for t, o in zip(theirs, our_logits(options, tier, ids))]
        same, positions = [r[0] for r in results], ids.size
        print(f"{tier}: {sum(same)} of {positions}, {100 * sum(same) / positions:.2f}% (texts: {' '.join(map(str, same))}), "
              f"KL {sum(r[1] for r in results) / positions:.2e}", flush=True)


if __name__ == "__main__":
    main()
