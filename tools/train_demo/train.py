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
import sys
import threading
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import script  # noqa: E402
script.needs("numpy", "torch", "tokenizers")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from data import TASKS, Samples, log_uniform, training_arrays  # noqa: E402
from model import Llama, Trainer, load, save  # noqa: E402
from text import Bank  # noqa: E402


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


class Report:
    """Counts since the last printed line: losses, and the answers that were right."""

    def __init__(self):
        self.begin, self.tokens, self.tally, self.answers, self.text = time.time(), 0, {}, [], []

    def add(self, batch, loss, guess):
        """loss, guess: of the counted positions of the batch, in their order."""
        tokens, _, index, target, _, tags = batch
        used = len(loss)
        self.tokens += tokens.size
        for task, (right, asked) in answers_right(index[:used], tags[:used], guess == target[:used]).items():
            entry = self.tally.setdefault(task, [0, 0])
            entry[0], entry[1] = entry[0] + right, entry[1] + asked
        self.answers += loss[tags[:used] >= 0].tolist()
        self.text += loss[tags[:used] == -1].tolist()

    def line(self):
        mean = lambda values: f"{np.mean(values):.3f}" if values else "-"
        rates = " ".join(f"{t}:{self.tally[t][0] / self.tally[t][1]:.2f}" for t in TASKS if t in self.tally)
        return (
            f"{self.tokens / (time.time() - self.begin):.0f} tok/s, loss of answers {mean(self.answers)}, "
            f"of text {mean(self.text)} | {rates}"
        )


def backward(forward, model, batch, device):
    """Gradients of one batch into the model; (loss, likeliest token) of the positions that count."""
    tokens, positions, index, target, weight, _ = batch
    # A fixed number of counted positions (index 0 at weight 0 fills up): each length compiles once.
    room = -(-tokens.size * 3 // 8 // 64) * 64
    used = min(len(index), room)
    padded = np.zeros((3, room))
    padded[:, :used] = index[:used], target[:used], weight[:used]
    put = lambda array, kind: torch.from_numpy(array).to(device, kind)
    cos, sin = model.angles(put(positions, torch.float32))
    logits = forward(put(tokens, torch.long), cos, sin, put(padded[0], torch.long))
    loss = F.cross_entropy(logits, put(padded[1], torch.long), reduction="none")
    w = put(padded[2], torch.float32)
    ((loss * w).sum() / w.sum()).backward()
    return loss.detach()[:used].cpu().numpy(), logits.argmax(-1)[:used].cpu().numpy()


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--out", required=True, help="folder of the model to write; holds the checkpoint too")
    add("--bank", required=True, help="sentence bank made by text.py")
    add("--tokenizer", required=True, help="tokenizer.json")
    add("--start", help="model folder to begin from (default: random weights)")
    add("--plan", help='layers of the new model in terms of --start, e.g. "0,1,+1,2": +n is a silent copy of n')
    add("--minutes", type=float, default=20, help="length of this stage")
    add("--lengths", default="512", help='tokens of a sequence, with shares: "512:0.7,2048:0.3"')
    add("--batch", type=int, default=6144, help="tokens a step")
    rate = "learning rate, linear in time"
    add("--rate", type=float, nargs=2, default=(1e-3, 1e-3), metavar=("FIRST", "LAST"), help=rate)
    add("--warmup", type=int, default=30, help="steps from rate 0 at the beginning of a stage")
    add("--span", type=int, default=33000, help="largest position shown by skipping; 0: none")
    add("--mix", help='JSON file {"items": {...}, "contexts": {...}} of shares that replace those of forms.py, data.py')
    add("--text-share", type=float, default=0.25, help="share of the natural text's tokens in the loss")
    add("--seed", type=int, default=int(time.time()) % 100000, help="seed of the samples and the first weights")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    add("--no-compile", action="store_true", help="do not use torch.compile (for machines without a C++ compiler)")
    return parser.parse_args()


def main():
    args = arguments()
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
    samples = Samples(Bank(args.bank), Tokenizer.from_file(args.tokenizer), args.seed, **shares)
    source = ahead(batches(samples, random.Random(args.seed), lengths, weights, args.batch, args.span, args.text_share))

    def store():
        torch.save({**trainer.state(), "seen": seen}, checkpoint + ".part")
        os.replace(checkpoint + ".part", checkpoint)
        save(model, args.out, args.tokenizer)

    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):  # the checkpoint is written, then the program ends
        signal.signal(number, lambda *_: stopped.append(True))
    begin = last = last_store = time.time()
    report, step = Report(), 0
    while last - begin < args.minutes * 60 and not stopped:
        batch = next(source)
        loss, guess = backward(forward, trainer.work, batch, args.device)
        done = (last - begin) / (args.minutes * 60)
        rate = (args.rate[0] + (args.rate[1] - args.rate[0]) * done) * min(1.0, (step + 1) / args.warmup)
        size = trainer.step(rate)
        report.add(batch, loss, guess)
        step += 1
        now = time.time()
        seen["tokens"] += batch[0].size
        seen["seconds"] += now - last
        last = now
        if now - report.begin > 60:
            print(
                f"{(now - begin) / 60:5.1f} min, step {trainer.step_count}, {seen['tokens'] / 1e6:.2f} M tokens, "
                f"rate {rate:.1e}, gradient {size:.2f}, {report.line()}",
                flush=True,
            )
            report = Report()
        if now - last_store > 240:
            store()
            last_store = now
    store()
    print(f"{args.out}: {seen['tokens'] / 1e6:.1f} M tokens in {seen['seconds'] / 60:.0f} min, all stages", flush=True)


if __name__ == "__main__":
    main()
