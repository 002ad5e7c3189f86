# SPDX-License-Identifier: Apache-2.0
"""Directs a training run of retaining heads: `sluice train-heads` starts this module, and computes what it asks for.

The two talk over standard input, a socket: a line with the options comes first, then every request of this module, a line, is answered
by a line (lab/train/cmd_train_heads.c lists them). The heads' parameters and moments are in memory that both map. A run that is stopped,
by Ctrl-C or by a kill, leaves a checkpoint at most --save-every old; the same command finds it and continues to the same bits, because
prompt i and its place in the order are functions of the options and i.
"""
from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import sys
import time
from typing import Any

import numpy as np

from . import checkpoint
from .errors import FAILED, USAGE, CancelledError, EvalError, RefusedError, UsageError
from .rng import MASK, Random, permute
from .training import Prompts

REDRAW_S = 0.1
RECENT_STEPS = 25  # steps that a report covers
N_DIGESTED = 16  # prompts that represent all if none is kept


class Worker:
    """The process that computes. `stopped`: it has received a signal."""

    def __init__(self) -> None:
        self._to = os.fdopen(os.dup(sys.stdin.fileno()), "w", encoding="utf-8")
        self.stopped = False

    def receive(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            sys.exit(1)  # it has said why
        return json.loads(line)

    def send(self, **request: Any) -> None:
        try:
            print(json.dumps(request), file=self._to, flush=True)
        except BrokenPipeError:
            sys.exit(1)  # it was killed

    def ask(self, **request: Any) -> dict[str, Any]:
        self.send(**request)
        reply = self.receive()
        self.stopped = reply["stopped"]
        return reply

    def check(self) -> None:
        if self.stopped:
            raise CancelledError("stopped")


def format_bytes(n: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while n >= 1024 and len(units) > 1:
        n /= 1024
        units.pop(0)
    return f"{n:.0f} B" if units[0] == "B" else f"{n:.1f} {units[0]}"


def format_time(seconds: float) -> str:
    s = int(seconds + 0.5)
    if s >= 3600:
        return f"{s // 3600}h {s // 60 % 60}m"
    return f"{s // 60}m {s % 60}s" if s >= 60 else f"{s}s"


class Bar:
    """A line on standard error that is drawn again and again, if that is a terminal."""

    def __init__(self) -> None:
        self.is_shown = sys.stderr.isatty()
        self._last = 0.0

    def draw(self, phase: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if self.is_shown and now - self._last > REDRAW_S:
            self._last = now
            share = done / total if total else 0.0
            bar = ("=" * int(40 * share) + ">").ljust(40)[:40]
            text = f"{phase} [{bar}] {int(100 * share):3d}%  {done}/{total}  {note}"
            print(f"\r{text[:shutil.get_terminal_size().columns - 1]}\033[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Examples:
    """The examples that steps learn from: read once and kept, or read again for every step."""

    def __init__(self, worker: Worker, options: dict[str, Any], bar: Bar) -> None:
        self._worker, self._options, self._bar = worker, options, bar
        self._prompts = Prompts(options, lambda text: len(worker.ask(encode=text, begins=True)["tokens"]))
        self._n = options["prompts"]
        digest = hashlib.sha256()
        made, n_bytes, n_fit = [], 0, -1
        for i in range(self._n or N_DIGESTED):
            tokens, n_prompt = self._make(i)
            worker.check()
            digest.update(np.array([n_prompt, *tokens], np.int64))
            n_bytes += self._bytes(n_prompt)
            n_fit = i if n_fit < 0 and n_bytes > options["memory"] else n_fit
            if self._n:
                made.append((tokens, n_prompt))
        self.digest = digest.hexdigest()
        if self._n and n_fit >= 0:
            raise UsageError(f"{self._n} prompts take {format_bytes(n_bytes)} and --memory is {format_bytes(options['memory'])}, enough "
                             f"for {n_fit}: use --prompts {n_fit}, or --prompts 0 to read them anew for every step")
        self._read(made, n_bytes)

    def _bytes(self, n_prompt: int) -> int:
        """Returns the bytes of an example: features in bf16 and labels in f32 for each token and layer."""
        heads = self._options["heads"]
        return len(heads["offsets"]) * (n_prompt * (2 * heads["columns"] + 4 * heads["kv_heads"]) + 8)

    def _make(self, index: int) -> tuple[list[int], int]:
        """Returns the tokens of prompt `index` and its answer, and how many are the prompt's. A long prompt loses its beginning."""
        made = self._prompts.get(index)
        before = self._worker.ask(encode=made["prompt"], begins=True)["tokens"]
        after = self._worker.ask(encode=made["completion"], begins=False)["tokens"]
        if len(before) < 2:
            raise UsageError(f"{made['where']}: a prompt of {len(before)} tokens: there is nothing to learn from it")
        return cut(before, after, self._options["max_tokens"])

    def _read(self, made: list[tuple[list[int], int]], n_bytes: int) -> None:
        total = sum(n_prompt for _, n_prompt in made)
        done = 0
        try:
            for i, (tokens, n_prompt) in enumerate(made):
                self._bar.draw("reading prompts", done, total)
                self._worker.ask(read=tokens, prompt=n_prompt, at=i)
                self._worker.check()
                done += n_prompt
        finally:
            self._bar.clear()
        if made and not self._options["json"]:
            print(f"{len(made)} prompts of {total} tokens together have been read: {format_bytes(n_bytes)}", file=sys.stderr)

    def learn(self, index: int) -> int:
        """Learns from example `index` of the run. Returns its tokens."""
        at = 0
        if self._n:
            at = permute(index % self._n, self._n, Random("order", self._options["seed"] & MASK, index // self._n).state)
        else:
            tokens, n_prompt = self._make(index)
            self._worker.ask(read=tokens, prompt=n_prompt, at=at)
        return self._worker.ask(learn=at)["tokens"]


def cut(before: list[int], after: list[int], most: int) -> tuple[list[int], int]:
    """Joins a prompt of at least 2 tokens and its answer to at most `most` tokens. Returns them, and how many are the prompt's: it
    loses its beginning, and only where 2 of its tokens would not be left, the answer its end."""
    begin = min(max(len(before) + len(after) - most, 0), len(before) - 2)
    return (before + after)[begin:begin + most], len(before) - begin


class Training:
    def __init__(self, worker: Worker, options: dict[str, Any], out: str, path: str) -> None:
        self._worker, self._options, self._out, self._path = worker, options, out, path
        heads = options["heads"]
        memory = mmap.mmap(heads["memory"], 3 * heads["n"] * 4)
        self._state = np.frombuffer(memory, np.float32).reshape(3, heads["n"])
        self._curve = np.zeros((3, options["steps"]), np.float32)  # smooth-L1, smoothness, overlap
        self._step = self._n_tokens = self._begin_step = 0
        self._begin = 0.0
        self._bar = Bar()
        self._facts: checkpoint.Facts = {}

    def _list_facts(self, digest: str) -> None:
        """Lists what determines a run's bits. A resumed run may use another number of threads, and write another type."""
        names = ["hidden", "steps", "warm_up", "batch", "prompts", "lr", "smooth", "clip", "max_tokens", "seed"]
        self._facts = {"--model": self._options["fingerprint"]}
        self._facts |= {f"--{name.replace('_', '-')}": str(self._options[name]) for name in names}
        self._facts["--data, --task and --text of digest"] = digest

    def _resume(self) -> None:
        """Continues from a checkpoint, if there is one."""
        try:
            curve = checkpoint.load(self._path, self._facts, self._state, self._options["steps"])
        except FileNotFoundError:
            return
        self._step = curve.shape[1]
        self._curve[:, :self._step] = curve
        self._worker.ask(resume=self._step)
        if not self._options["json"]:
            print(f"going on from step {self._step} of {self._options['steps']} ({self._path})", file=sys.stderr)

    def _recent(self) -> tuple[float, float, float]:
        """Returns the means of smooth-L1, smoothness and overlap over the last steps."""
        recent = self._curve[:, max(self._step - RECENT_STEPS, 0):self._step].astype(np.float64)
        smooth_l1, smoothness, overlap = recent.mean(axis=1)
        return float(smooth_l1), float(smoothness), float(overlap)

    def _report(self) -> None:
        options, steps = self._options, self._options["steps"]
        on_terminal = self._bar.is_shown and not options["json"]
        if not on_terminal and self._step % options["every"] != 0 and self._step != steps:
            return
        seconds = max(time.monotonic() - self._begin, 1e-9)
        smooth_l1, smoothness, overlap = self._recent()
        rate = self._n_tokens / seconds
        left = format_time((steps - self._step) * seconds / (self._step - self._begin_step))
        if options["json"]:
            print_json(step=self._step, steps=steps, smooth_l1=smooth_l1, smoothness=smoothness, overlap=overlap, tokens_per_s=rate)
        elif on_terminal:
            self._bar.draw("step", self._step, steps, f"loss {smooth_l1:.2f}  overlap {overlap:.2f}  {rate:.0f} tokens/s  {left} left")
        else:
            print(f"step {self._step} of {steps}: loss {smooth_l1:.4f}, overlap {overlap:.3f}, {rate:.0f} tokens/s, {left} left",
                  file=sys.stderr, flush=True)

    def _save(self) -> None:
        checkpoint.save(self._path, self._facts, self._state, self._curve[:, :self._step])

    def _take_steps(self, examples: Examples) -> None:
        options = self._options
        self._begin = saved = time.monotonic()
        self._begin_step = self._step
        while self._step < options["steps"]:
            first = self._step * options["batch"]
            self._n_tokens += sum(examples.learn(first + i) for i in range(options["batch"]))
            self._curve[:, self._step] = self._worker.ask(step=True)["loss"]
            self._step += 1
            self._report()
            stopped = self._worker.stopped and self._step < options["steps"]
            if stopped or time.monotonic() - saved >= options["save_ms"] / 1000:
                self._save()
                saved = time.monotonic()
            if stopped:
                self._bar.clear()
                raise CancelledError(f"stopped behind step {self._step}; the same command goes on from {self._path}")
        self._bar.clear()

    def _write_heads(self) -> None:
        heads, hidden = self._options["heads"], self._options["hidden"]
        matrices = {}
        for layer, (w1, w2) in enumerate(heads["offsets"]):
            for number, at, shape in [(1, w1, (hidden, heads["columns"])), (2, w2, (heads["kv_heads"], hidden))]:
                matrices[f"layers.{layer}.w{number}"] = self._state[0, at:at + shape[0] * shape[1]].reshape(shape)
        checkpoint.write_heads(self._out, matrices, self._options["dtype"])

    def run(self) -> None:
        """Trains new heads and writes them to their file."""
        examples = Examples(self._worker, self._options, self._bar)
        self._list_facts(examples.digest)
        self._resume()
        self._take_steps(examples)
        self._write_heads()
        if self._options["draw"]:
            self._worker.ask(draw={"title": readable(self._out), "smooth_l1": self._curve[0].tolist(),
                                   "overlap": self._curve[2].tolist()})
        if os.path.exists(self._path):
            os.unlink(self._path)
        smooth_l1, smoothness, overlap = self._recent()
        if self._options["json"]:
            print_json(path=readable(self._out), smooth_l1=smooth_l1, smoothness=smoothness, overlap=overlap)
        else:
            print(f"written to {self._out}: smooth-L1 {smooth_l1:.4f}, overlap {overlap:.3f} over the last steps", flush=True)

    def write_untrained(self) -> None:
        self._write_heads()
        if self._options["json"]:
            print_json(path=readable(self._out))
        else:
            print(f"written to {self._out}: untrained heads of seed {self._options['seed']}", flush=True)


def readable(path: str) -> str:
    """Returns a path, which may have any bytes, as text."""
    return os.fsencode(path).decode("utf-8", "replace")


def print_json(**fields: Any) -> None:
    """Prints a line; numbers have six digits."""
    print(json.dumps({name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in fields.items()}), flush=True)


def main(out: str, path: str) -> int:
    """Runs until the heads are written, or until a failure has been sent. Returns the exit code."""
    worker = Worker()
    try:
        options = worker.receive()
        training = Training(worker, options, out, path)
        if options["steps"]:
            training.run()
        else:
            training.write_untrained()
        worker.send(done=True)
        return 0
    except (EvalError, RefusedError) as error:
        worker.send(error=readable(str(error)), code=getattr(error, "code", USAGE))
    except OSError as error:
        worker.send(error=readable(str(error)), code=FAILED)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
