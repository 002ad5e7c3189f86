#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Purpose: train the demo model for a number of minutes at given lengths; a run of several stages is several calls.

Design: every step draws a length, makes a batch of that many tokens and takes one step. The exact-match rate of every
task over the last steps is printed: samples are never seen twice, so it is a measurement too. The checkpoint holds the
optimizer; a call with the same --out goes on from it.
"""

import argparse
import json
import os
import queue
import random
import signal
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from data import TASKS, Samples, log_uniform, training_arrays
from model import Llama, Trainer, load, save
from text import Bank


def parse_lengths(text):
    """ "512:0.7,2048:0.3" as ([512, 2048], [0.7, 0.3])."""
    pairs = [item.split(":") for item in text.split(",")]
    return [int(p[0]) for p in pairs], [float(p[1]) if len(p) > 1 else 1.0 for p in pairs]


def batches(forms, rng, lengths, shares, tokens, span, text_share):
    """Endless batches; a share of the sequences skips positions, up to `span`."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    while True:
        length = rng.choices(lengths, shares)[0]
        count = max(1, tokens // length)
        samples = [
            forms.train_sample(length, log_uniform(rng, length, span) if span > length and rng.random() < 0.6 else 0)
            for _ in range(count)
        ]
        yield training_arrays(samples, numbers, text_share)


def ahead(source, depth=4):
    """The items of source, made by a thread while the caller computes."""
    line = queue.Queue(depth)

    def work():
        for item in source:
            line.put(item)

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield line.get()


def answers_right(index, tags, right):
    """Per task [right, asked] of one batch: an answer is a run of positions with one tag, right if every token is."""
    edges = np.flatnonzero((np.diff(tags) != 0) | (np.diff(index) != 1)) + 1
    tally = {}
    for part, good in zip(np.split(tags, edges), np.split(right, edges)):
        if part[0] >= 0:
            entry = tally.setdefault(TASKS[part[0]], [0, 0])
            entry[0] += bool(good.all())
            entry[1] += 1
    return tally


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", required=True, help="folder of the model to write; holds the checkpoint too")
    parser.add_argument("--bank", required=True, help="sentence bank made by text.py")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json")
    parser.add_argument("--start", help="model folder to begin from (default: random weights)")
    parser.add_argument(
        "--plan", help='layers of the new model in terms of --start, e.g. "0,1,+1,2": +n is a silent copy of n'
    )
    parser.add_argument("--minutes", type=float, default=20, help="length of this stage")
    parser.add_argument("--lengths", default="512", help='tokens of a sequence, with shares: "512:0.7,2048:0.3"')
    parser.add_argument("--batch", type=int, default=8192, help="tokens a step")
    parser.add_argument(
        "--rate",
        type=float,
        nargs=2,
        default=(1e-3, 1e-3),
        metavar=("FIRST", "LAST"),
        help="learning rate, linear in time",
    )
    parser.add_argument("--warmup", type=int, default=30, help="steps from rate 0 at the beginning of a stage")
    parser.add_argument("--span", type=int, default=33000, help="largest position shown by skipping; 0: none")
    parser.add_argument(
        "--mix", help='JSON file {"items": {...}, "contexts": {...}} of shares that replace those of data.py'
    )
    parser.add_argument("--text-share", type=float, default=0.25, help="share of the natural text's tokens in the loss")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--no-compile", action="store_true", help="without torch.compile (for machines without a C++ compiler)"
    )
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    checkpoint = os.path.join(args.out, "checkpoint.pt")
    os.makedirs(args.out, exist_ok=True)
    state = torch.load(checkpoint) if os.path.exists(checkpoint) else None
    model = Llama(state["config"]) if state else load(args.start, args.plan) if args.start else Llama()
    model.config["max_position_embeddings"] = 32768
    trainer = Trainer(model.to(args.device))
    seen = {"tokens": 0, "seconds": 0.0}
    if state:
        trainer.restore(state)
        seen = state["seen"]
    forward = trainer.work if args.no_compile else torch.compile(trainer.work, dynamic=False)

    shares = {}
    if args.mix:
        with open(args.mix) as file:
            shares = json.load(file)
    lengths, weights = parse_lengths(args.lengths)
    forms = Samples(Bank(args.bank), Tokenizer.from_file(args.tokenizer), args.seed, **shares)
    source = ahead(batches(forms, random.Random(args.seed), lengths, weights, args.batch, args.span, args.text_share))

    def store():
        torch.save({**trainer.state(), "seen": seen}, checkpoint + ".part")
        os.replace(checkpoint + ".part", checkpoint)
        save(model, args.out, args.tokenizer)

    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):  # the checkpoint is written, then the program ends
        signal.signal(number, lambda *_: stopped.append(True))
    begin = last_log = last_store = time.time()
    tally, losses, tokens_logged, step = {}, [[], []], 0, 0
    while (now := time.time()) - begin < args.minutes * 60 and not stopped:
        tokens, positions, index, target, weight, tags = next(source)
        # A fixed number of counted positions (index 0 at weight 0 fills up): each length compiles once.
        room = -(-tokens.size * 3 // 8 // 64) * 64
        used = min(len(index), room)
        padded = np.zeros((3, room))
        padded[:, :used] = index[:used], target[:used], weight[:used]
        to = lambda a, kind: torch.from_numpy(a).to(args.device, kind)
        cos, sin = trainer.work.angles(to(positions, torch.float32))
        logits = forward(to(tokens, torch.long), cos, sin, to(padded[0], torch.long))
        loss = F.cross_entropy(logits, to(padded[1], torch.long), reduction="none")
        w = to(padded[2], torch.float32)
        ((loss * w).sum() / w.sum()).backward()
        done = (now - begin) / (args.minutes * 60)
        rate = (args.rate[0] + (args.rate[1] - args.rate[0]) * done) * min(1.0, (step + 1) / args.warmup)
        size = trainer.step(rate)

        step += 1
        seen["tokens"] += tokens.size
        tokens_logged += tokens.size
        good = (logits.argmax(-1).cpu().numpy() == padded[1])[:used]
        each, tags = loss.detach().cpu().numpy()[:used], tags[:used]
        for task, (right, asked) in answers_right(index[:used], tags, good).items():
            entry = tally.setdefault(task, [0, 0])
            entry[0], entry[1] = entry[0] + right, entry[1] + asked
        losses[0] += each[tags >= 0].tolist()
        losses[1] += each[tags == -1].tolist()
        if time.time() - last_log > 60:
            rates = " ".join(f"{t}:{tally[t][0] / tally[t][1]:.2f}" for t in TASKS if t in tally)
            print(
                f"{(time.time() - begin) / 60:5.1f} min step {trainer.step_count} {seen['tokens'] / 1e6:.2f}M tok "
                f"{tokens_logged / (time.time() - last_log):.0f}/s rate {rate:.1e} grad {size:.2f} "
                f"answers {np.mean(losses[0]):.3f} "
                f"text {np.mean(losses[1]) if losses[1] else 0:.3f} | {rates}",
                flush=True,
            )
            tally, losses, tokens_logged, last_log = {}, [[], []], 0, time.time()
        if time.time() - last_store > 240:
            store()
            last_store = time.time()
    seen["seconds"] += time.time() - begin
    store()
    print(f"{args.out}: {seen['tokens'] / 1e6:.1f} M tokens in {seen['seconds'] / 60:.0f} min, all stages", flush=True)


if __name__ == "__main__":
    main()
