#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Purpose: measures a model folder, per task and length: greedy decoding with the full cache, on texts not trained
on.

Design: one pass over prompt and true answer tells whether greedy decoding gives that answer (it does exactly when every
token of it is the most likely one after those before it). Only where it does not, the model generates, from the keys
and values of the same pass, to see which share of the values it names. Prompts have the shape of `sluice eval`; `sluice
eval` is the judge, this is the trainer's own instrument, made to need no build.
"""

import argparse
import glob
import os
import random
import re
import sys
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import script  # noqa: E402
script.needs("torch", "tokenizers")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from data import Samples  # noqa: E402
from model import load, norm, rotate  # noqa: E402
from text import Bank, read_page, sentences  # noqa: E402

ALL = (
    "noise,essay,multikey-4,multivalue,multiquery,variables,multikey-16,needles,uuid,passkey,number,kv,common,frequent,"
    "code,inline"
)


def forward(model, tokens, start, cache):
    """Hidden states [L][width] of tokens [L] at positions from start; cache, a list, gains the keys and values."""
    eps = model.config["rms_norm_eps"]
    cos, sin = model.angles(torch.arange(start, start + len(tokens))[None])
    x = model.embed(tokens)[None].float()
    for i, layer in enumerate(model.layers):
        h = norm(x, layer.input_layernorm, eps)
        q, k, v = (m(h).view(1, len(tokens), -1, layer.size).transpose(1, 2) for m in (layer.q, layer.k, layer.v))
        k = rotate(k, cos, sin)
        if start:
            k, v = torch.cat([cache[i][0], k], 2), torch.cat([cache[i][1], v], 2)
            cache[i] = (k, v)
        else:
            cache.append((k, v))
        r = layer.heads // layer.groups
        a = F.scaled_dot_product_attention(
            rotate(q, cos, sin), k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), is_causal=start == 0
        )
        x = x + layer.o(a.transpose(1, 2).reshape(1, len(tokens), -1))
        h = norm(x, layer.post_attention_layernorm, eps)
        x = x + layer.down(F.silu(layer.gate(h)) * layer.up(h))
    return norm(x[0], model.norm, eps)


@torch.inference_mode()
def score(model, tokenizer, sample):
    """(share of the answer's values that greedy decoding names, what it said or None when all was right)."""
    _, first, end = sample.answers[0]
    tokens = torch.tensor(sample.tokens)
    cache = []
    hidden = forward(model, tokens, 0, cache)
    guess = F.linear(hidden[first - 1 : end - 1], model.embed.weight).argmax(-1)
    if torch.equal(guess, tokens[first:end]):
        return 1.0, None
    answer = tokenizer.decode(sample.tokens[first:end])
    cache = [(k[:, :, :first], v[:, :, :first]) for k, v in cache]
    said, token = [], guess[0]
    while len(said) < end - first + 4 and token != model.config["vocab_size"] - 3:
        said.append(token.item())
        hidden = forward(model, token[None], first + len(said) - 1, cache)
        token = F.linear(hidden[-1], model.embed.weight).argmax()
    said = tokenizer.decode(said)
    values = [v.split(": ")[-1].strip(' ."') for v in answer.split(",")]
    return sum(v in said for v in values) / len(values), said


@torch.inference_mode()
def text_loss(model, bank, windows, length=2048):
    """Mean negative log-likelihood a token of held-out pages, in windows that begin with the end token."""
    part = bank.parts[True]
    pages = torch.tensor([t for i in part for t in bank[i].tolist()])
    total, count = 0.0, 0
    for w in range(windows):
        at = (len(pages) - length) * w // windows
        tokens = torch.cat([torch.tensor([model.config["vocab_size"] - 3]), pages[at : at + length]])
        logits = F.linear(forward(model, tokens[:-1], 0, []), model.embed.weight).float()
        total += F.cross_entropy(logits, tokens[1:], reduction="sum").item()
        count += length
    return total / count


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("model", help="model folder")
    parser.add_argument("--bank", required=True, help="sentence bank made by text.py")
    parser.add_argument("--tasks", default=ALL, help="comma-separated")
    parser.add_argument("--lengths", default="1024,4096", help="prompt lengths in tokens")
    parser.add_argument("--samples", type=int, default=20, help="samples of each task and length")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--essay",
        choices=("licences", "pages"),
        default="licences",
        help="haystack: /usr/share/common-licenses, or held-out pages",
    )
    parser.add_argument(
        "--nll-windows", type=int, default=20, help="windows of held-out text for the mean loss; 0: skip"
    )
    parser.add_argument(
        "--words", help="file whose quoted lower-case words make the keys (default: the bank's)"
    )
    parser.add_argument("--wrong", type=int, default=0, help="print N wrong answers of each cell")
    args = parser.parse_args()

    model = load(args.model).to(torch.bfloat16).eval()
    tokenizer = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    bank = Bank(args.bank)
    essays = None
    if args.essay == "licences":
        essays = [
            tokenizer.encode(" " + s, add_special_tokens=False).ids
            for p in sorted(glob.glob("/usr/share/common-licenses/*"))
            if not os.path.islink(p)
            for s in sentences(read_page(p))
        ]
    if args.nll_windows:
        print(f"held-out text: {text_loss(model, bank, args.nll_windows):.3f} nats a token", flush=True)
    words = None
    if args.words:
        with open(args.words) as file:
            words = re.findall(r'"([a-z]{3,})"', file.read())
    lengths = [int(n) for n in args.lengths.split(",")]
    print(
        f"{'task':<12}" + "".join(f"{n:>8}" for n in lengths) + f"   mean share of {args.samples} samples", flush=True
    )
    for task in args.tasks.split(","):
        print(f"{task:<12}", end="", flush=True)
        notes, begin = [], time.time()
        for n in lengths:
            forms = Samples(
                bank,
                tokenizer,
                random.Random(f"{args.seed} {task} {n}").random(),
                held_out=True,
                strict=True,
                essays=essays,
                words=words,
            )
            total = 0.0
            for _ in range(args.samples):
                sample = forms.test_sample(task, n)
                share, said = score(model, tokenizer, sample)
                total += share
                if said is not None and len([x for x in notes if x[0] == n]) < args.wrong:
                    _, first, end = sample.answers[0]
                    notes.append((n, tokenizer.decode(sample.tokens[first:end]), said))
            print(f"{100 * total / args.samples:8.1f}", end="", flush=True)
        print(f"   {time.time() - begin:.0f} s")
        for n, answer, said in notes:
            print(f"    {n}: {answer!r} answered {said!r}")


if __name__ == "__main__":
    main()
