#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sluice beside llama.cpp: same machine, same geometry and weights, same threads, KV in f16, by turns in one run.

    python3 -m venv ~/peers && ~/peers/bin/pip install llama-cpp-python gguf     # some minutes: it is compiled here
    ~/peers/bin/python lab/bench/peers/llamacpp.py --model 135m
    ~/peers/bin/python lab/bench/peers/llamacpp.py --file SmolLM2.gguf --quick

README.md beside this file says what is compared and what is fair about it. (Not named llama_cpp.py: that would be
imported in place of the package.)
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import llama_cpp
    import llama_cpp.llama_cpp as ll
    import numpy as np

    import random_model
except ImportError as missing:
    print(f"llamacpp.py: {missing}. Make an environment and use its interpreter:\n"
          "    python3 -m venv ~/peers && ~/peers/bin/pip install llama-cpp-python gguf\n"
          f"    ~/peers/bin/python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)

ROOT = pathlib.Path(__file__).resolve().parents[3]
ALL_CELLS = ("prefill:512 prefill:4096 prefill:16384 "
             "decode:0x1 decode:0x8 decode:4096x1 decode:4096x8 decode:16384x1 decode:16384x8").split()
QUICK_CELLS = "prefill:512 prefill:4096 decode:0x1 decode:0x8 decode:4096x1 decode:4096x8".split()
BATCH_TOKENS = 2048  # most tokens in a call of llama_decode(), llama.cpp's default; it cuts them into micro-batches
WARM_UP_READ, WARM_UP_STEPS = 512, 2  # as lab/bench/bench_cells.c
FOREIGN = 0.04  # part of the machine that others may take of a run
SAME_PROMPT = 32  # tokens after which both sides' logits are compared
SAME_CORRELATION = 0.99  # required of bf16 weights, where only the rounding of activations differs


def progress(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


class Cell:
    """prefill:TOKENS or decode:DEPTHxBATCH."""

    def __init__(self, text):
        kind, _, rest = text.partition(":")
        n, _, batch = rest.partition("x")
        if kind not in ("prefill", "decode") or not n.isdigit() or (kind == "prefill" and (batch or int(n) == 0)) or (
                batch and (not batch.isdigit() or int(batch) == 0)):
            raise argparse.ArgumentTypeError(f"{text}: expected prefill:TOKENS or decode:DEPTHxBATCH")
        self.text, self.prefill, self.n, self.batch = text, kind == "prefill", int(n), int(batch or 1)


def tokens_of(n, n_vocab):
    """The prompt of lab/bench/bench_cells.c."""
    return (np.arange(n, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(n_vocab)).astype(np.int32)


# --- a machine of our own? -------------------------------------------------------------------------------------------

class Machine:
    """Runs what is to be measured while nobody else computes. Barriers that spin, as llama.cpp's do, are many times
    slower as soon as another process has one of the processors: such a run says nothing about either program."""

    def __init__(self, patience_s, tries):
        self.patience_s, self.tries = patience_s, tries
        self.children = set()  # processes whose work is ours

    def _ticks(self):
        """Time that all processors worked, and that we did: in clock ticks."""
        try:
            fields = [int(f) for f in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        except OSError:
            return 0, 0  # not Linux: believe that we are alone
        own = sum(os.times()[:2]) * os.sysconf("SC_CLK_TCK")
        for pid in self.children:
            after_name = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own += int(after_name[11]) + int(after_name[12])
        return sum(fields[:8]) - fields[3] - fields[4], own

    def foreign(self, fn):
        """fn() and the part of this machine that others took meanwhile."""
        (busy, own), began = self._ticks(), time.monotonic()
        result = fn()
        busy_after, own_after = self._ticks()
        capacity = (time.monotonic() - began) * os.sysconf("SC_CLK_TCK") * os.cpu_count()
        return result, max(0.0, busy_after - busy - own_after + own) / capacity

    def wait_until_free(self):
        """But not for ever."""
        end = time.monotonic() + self.patience_s
        while self.foreign(lambda: time.sleep(0.2))[1] > FOREIGN and time.monotonic() < end:
            pass

    def undisturbed(self, fn):
        """fn() as soon as the machine is free; again when it was not for long enough. The least disturbed result, and
        what others took of it."""
        results = []
        while len(results) < self.tries and (not results or results[-1][1] > FOREIGN):
            self.wait_until_free()
            results.append(self.foreign(fn))
        return min(results, key=lambda result: result[1])


# --- llama.cpp -------------------------------------------------------------------------------------------------------

class Context:
    """A llama_context with room for `n_streams` sequences of `n_slots`, of which `n_seq` are used, and one llama_batch
    that it is fed from."""

    def __init__(self, peer, flash, ubatch, n_slots, n_seq=1, n_streams=1):
        p = ll.llama_context_default_params()
        p.n_ctx, p.n_seq_max, p.kv_unified = (n_slots + 255) // 256 * 256 * n_streams, n_streams, False
        p.n_batch, p.n_ubatch = max(BATCH_TOKENS, ubatch), ubatch
        p.n_threads = p.n_threads_batch = peer.threads
        p.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
        p.type_k = p.type_v = ll.GGML_TYPE_F16
        self.peer, self.n_seq = peer, n_seq
        self.handle = ll.llama_init_from_model(peer.model, p)
        if not self.handle:
            raise SystemExit(f"llamacpp.py: llama.cpp made no context of {n_streams} x {n_slots} slots: out of memory?")
        self.memory = ll.llama_get_memory(self.handle)
        self.batch = ll.llama_batch_init(BATCH_TOKENS, 0, 1)
        shape = (BATCH_TOKENS,)
        self.tokens = np.ctypeslib.as_array(self.batch.token, shape)
        self.positions = np.ctypeslib.as_array(self.batch.pos, shape)
        self.wanted = np.ctypeslib.as_array(self.batch.logits, shape)
        np.ctypeslib.as_array(self.batch.n_seq_id, shape)[:] = 1

    def close(self):
        ll.llama_batch_free(self.batch)
        ll.llama_free(self.handle)

    def _decode(self):
        status = ll.llama_decode(self.handle, self.batch)
        if status != 0:
            raise SystemExit(f"llamacpp.py: llama_decode() failed with {status}")

    def read(self, first, last):
        """Positions first .. last - 1 of sequence 0; logits of the last."""
        for i in range(BATCH_TOKENS):
            self.batch.seq_id[i][0] = 0
        prompt = tokens_of(last, self.peer.n_vocab)
        began = time.perf_counter()
        for i in range(first, last, BATCH_TOKENS):
            n = min(BATCH_TOKENS, last - i)
            self.batch.n_tokens = n
            self.tokens[:n] = prompt[i:i + n]
            self.positions[:n] = np.arange(i, i + n)
            self.wanted[:n] = 0
            self.wanted[n - 1] = i + n == last
            self._decode()
        logits = ll.llama_get_logits_ith(self.handle, -1)  # waits
        return time.perf_counter() - began, logits

    def write(self, depth, n_steps):
        """One token a step in every sequence, from position `depth` on."""
        n = self.n_seq
        for s in range(n):
            self.batch.seq_id[s][0] = s
        self.batch.n_tokens = n
        self.tokens[:n] = tokens_of(n, self.peer.n_vocab)
        self.wanted[:n] = 1
        began = time.perf_counter()
        for step in range(n_steps):
            self.positions[:n] = depth + step
            self._decode()
            ll.llama_get_logits(self.handle)  # waits
        return time.perf_counter() - began

    def cut(self, depth):
        for s in range(self.n_seq):
            ll.llama_memory_seq_rm(self.memory, s, depth, -1)

    def run(self, cell, n):
        """`n` tokens of the cell's prompt, or `n` steps; then back to where it began. Tokens per second."""
        seconds = self.read(0, n)[0] if cell.prefill else self.write(cell.n, n)
        self.cut(0 if cell.prefill else cell.n)
        return n * cell.batch / seconds


class Peer:
    """llama.cpp with one model. Its messages are kept back; what it was built with is in `system`."""

    def __init__(self, gguf_path, threads, machine, repack=True):
        self.machine = machine
        self.silent = ll.llama_log_callback(lambda level, text, data: None)
        ll.llama_log_set(self.silent, ctypes.c_void_p(0))
        ll.llama_backend_init()
        self.threads = threads
        params = ll.llama_model_default_params()
        params.use_extra_bufts = repack
        self.model = ll.llama_model_load_from_file(str(gguf_path).encode(), params)
        if not self.model:
            raise SystemExit(f"llamacpp.py: llama.cpp cannot load {gguf_path}")
        self.n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.system = ll.llama_print_system_info().decode().strip(" |")
        self.n_streams = 1
        self.states = {}  # (flash, depth) -> one sequence of that depth

    def fill(self, depths, n_streams):
        """Read the prompt once with and once without flash attention, and keep the sequence at every depth. All
        contexts that decode must then have the same number of streams; a step does not visit those it does not use."""
        self.n_streams = n_streams
        for flash in (True, False) if depths else ():
            context, at = Context(self, flash, 512, depths[-1], 1, n_streams), 0
            for depth in depths:
                progress(f"llama.cpp: filling a cache of {depth} tokens, flash attention {'on' if flash else 'off'}")
                for first in range(at, depth, 512):
                    self.machine.wait_until_free()
                    context.read(first, min(depth, first + 512))
                size = ll.llama_state_seq_get_size(context.handle, 0)
                state = (ctypes.c_uint8 * size)()
                if ll.llama_state_seq_get_data(context.handle, state, size, 0) != size:
                    raise SystemExit("llamacpp.py: llama.cpp gave less of a sequence than it said")
                self.states[flash, depth], at = state, depth
            context.close()

    def open(self, cell, steps, flash, ubatch):
        """A context at the cell's beginning, warm."""
        if cell.prefill:
            context = Context(self, flash, ubatch, cell.n)
        else:
            context = Context(self, flash, ubatch, cell.n + max(steps, WARM_UP_STEPS), cell.batch, self.n_streams)
        if not cell.prefill and cell.n > 0:
            state = self.states[flash, cell.n]
            for s in range(cell.batch):
                if ll.llama_state_seq_set_data(context.handle, state, len(state), s) == 0:
                    raise SystemExit("llamacpp.py: llama.cpp did not take back its own sequence")
        context.run(cell, min(cell.n, WARM_UP_READ) if cell.prefill else WARM_UP_STEPS)
        return context

    def best(self, cell, steps):
        """Try the settings that matter once each; returns the best one's context and what it is."""
        choices = [(flash, 512) for flash in (True, False)]
        if cell.prefill and 512 < cell.n <= 4096:
            choices += [(flash, 2048) for flash in (True, False)]
        rates = {}
        for choice in choices:
            context = self.open(cell, steps, *choice)
            rates[choice], _ = self.machine.undisturbed(lambda: context.run(cell, cell.n if cell.prefill else steps))
            context.close()
            progress(f"{cell.text}: llama.cpp {setting(choice)}: {rates[choice]:.1f} tokens/s")
        choice = max(rates, key=rates.get)
        return self.open(cell, steps, *choice), setting(choice)


def setting(choice):
    return f"fa {'on' if choice[0] else 'off'}, ubatch {choice[1]}"


# --- sluice ----------------------------------------------------------------------------------------------------------

class Sluice:
    """`sluice bench cells` with one cell: ready, then a run for every line that it is sent."""

    def __init__(self, options, model, cell, runs, extra=()):
        command = [options.sluice, "bench", "cells", "--model", str(model), "--cell", cell, "--runs", str(runs),
                   "--threads", str(options.threads), "--tokens", str(options.steps), "--tier", options.tier,
                   "--json", "--paced", *extra]
        command += ["--weights", options.weights] if options.weights != "bf16" else []
        self.machine = options.machine
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.header = self._line()
        self._line()  # ready
        self.machine.children.add(self.process.pid)

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"llamacpp.py: `{' '.join(self.process.args)}` ended with {self.process.wait()}")
        return json.loads(line)

    def run(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()["value"]

    def close(self):
        self.machine.children.discard(self.process.pid)
        self.process.stdin.close()
        self.process.wait()


# --- comparison ------------------------------------------------------------------------------------------------------

def same_logits(options, peer, model, folder):
    """Do both sides compute the same function? Correlation of the logits after a short prompt, and whether greedy
    decoding agrees about its next token."""
    file = folder / "logits.f32"
    sluice = Sluice(options, model, f"prefill:{SAME_PROMPT}", 1, ["--logits", str(file)])
    sluice.run()
    sluice.close()
    ours = np.fromfile(file, np.float32)
    context = Context(peer, True, 512, SAME_PROMPT)
    theirs = np.ctypeslib.as_array(context.read(0, SAME_PROMPT)[1], (peer.n_vocab,)).copy()
    context.close()
    result = {"correlation": float(np.corrcoef(ours, theirs)[0, 1]),
              "argmax": [int(theirs.argmax()), int(ours.argmax())]}
    progress(f"logits after {SAME_PROMPT} tokens: correlation {result['correlation']:.5f}, "
             f"the next token is {result['argmax'][0]} for llama.cpp and {result['argmax'][1]} for sluice")
    if (options.file or options.weights == "bf16") and not result["correlation"] > SAME_CORRELATION:
        raise SystemExit("llamacpp.py: the two do not compute the same; no figures")
    return result, sluice.header


def pairs_of(cell, options):
    return min(options.pairs, 3) if cell.prefill and cell.n > 4096 else options.pairs


def requantized(path, kind, folder):
    """The file with all matrices of one type, by llama.cpp's own quantizer."""
    made = folder / f"{path.stem}.{kind}.gguf"
    params = ll.llama_model_quantize_default_params()
    params.ftype = {"q8_0": ll.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": ll.LLAMA_FTYPE_MOSTLY_Q4_0}[kind]
    params.allow_requantize = params.pure = True
    if ll.llama_model_quantize(str(path).encode(), str(made).encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"llamacpp.py: llama.cpp cannot make {kind} of {path}")
    return made


def files_of(options, folder):
    """What sluice and llama.cpp read, and in words what it is."""
    if options.file:
        path = requantized(options.file, options.requantize, folder) if options.requantize else options.file
        return path, path, options.file.name, options.requantize or "as they are in the file"
    progress(f"writing {options.model} with random {options.weights} weights to {folder}")
    return *random_model.write(folder, options.model, options.weights), options.model, options.weights


def estimate_minutes(peer, geometry, cells, options):
    """From one prompt of 512 tokens and a guess at memory: the order of magnitude, so that nobody waits unawares."""
    c = random_model.GEOMETRIES[geometry]
    weights, heads = random_model.layer_weights(c), c["num_attention_heads"] * c["head_dim"]
    prompt = Cell("prefill:512")
    context = peer.open(prompt, 0, True, 512)
    seconds_512 = 512 / options.machine.undisturbed(lambda: context.run(prompt, 512))[0]
    context.close()
    flop = lambda n: 2 * weights * n + 2 * c["num_hidden_layers"] * heads * n * n
    read = lambda n: seconds_512 * flop(n) / flop(512)
    kv = 4 * c["num_hidden_layers"] * c["num_key_value_heads"] * c["head_dim"]
    step = lambda cell: (2 * weights + 2 * c["vocab_size"] * c["hidden_size"] + kv * cell.n * cell.batch) / 1e10
    total = 2 * max((cell.n for cell in cells if not cell.prefill), default=0) / 512 * seconds_512
    for cell in cells:
        choices = 2 if not cell.prefill or cell.n > 4096 else 4
        run = read(cell.n) if cell.prefill else step(cell) * options.steps
        total += (choices + 2 * pairs_of(cell, options)) * run
    return 1 + total / 60


def measure(cell, peer, model, options):
    """Pairs of runs, the first by llama.cpp, the second by sluice, and so on by turns of order."""
    context, chosen = peer.best(cell, options.steps)
    n = cell.n if cell.prefill else options.steps
    runs = pairs_of(cell, options)
    sluice = Sluice(options, model, cell.text, options.tries * runs)
    theirs, ours, foreign = [], [], []

    def run(rates, fn):
        rate, others = options.machine.undisturbed(fn)
        rates.append(rate)
        foreign.append(others)

    for pair in range(runs):
        sides = [(theirs, lambda: context.run(cell, n)), (ours, sluice.run)]
        for side in sides if pair % 2 == 0 else reversed(sides):
            run(*side)
        progress(f"{cell.text}: pair {pair + 1} of {runs}: {theirs[-1]:.1f} and {ours[-1]:.1f} tokens/s")
    sluice.close()
    context.close()
    ratios = [a / b for a, b in zip(ours, theirs)]
    return {"cell": cell.text, "llama_cpp": statistics.median(theirs), "sluice": statistics.median(ours),
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios), "setting": chosen,
            "foreign": max(foreign), "llama_cpp_runs": theirs, "sluice_runs": ours}


def processor():
    with contextlib.suppress(OSError):
        for line in open("/proc/cpuinfo", encoding="utf-8"):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def print_row(row, as_json):
    if as_json:
        print(json.dumps(row), flush=True)
        return
    print(f"| {row['cell']} | {row['llama_cpp']:.1f} | {row['sluice']:.1f} | {row['ratio']:.2f} "
          f"({row['ratio_min']:.2f} to {row['ratio_max']:.2f}) | {row['setting']} | {100 * row['foreign']:.0f}% |",
          flush=True)


def compare(options, folder):
    model, gguf_path, name, weights = files_of(options, folder)
    peer = Peer(gguf_path, options.threads, options.machine, not options.no_repack)
    same, sluice_header = same_logits(options, peer, model, folder)
    if not options.file:
        minutes = estimate_minutes(peer, options.model, options.cells, options)
        progress(f"{len(options.cells)} cells; this takes something like {minutes:.0f} minutes")
    header = {"model": name, "weights": weights, "threads": options.threads,
              "processor": processor(), "processors": os.cpu_count(), "kernel": platform.release(),
              "llama_cpp_python": llama_cpp.__version__,
              "system_info": peer.system, "tier": sluice_header["tier"],
              "repack": not options.no_repack, "steps": options.steps, "same": same}
    if options.json:
        print(json.dumps(header), flush=True)
    else:
        print(f"{header['model']}, weights {header['weights']}, KV f16, {header['threads']} threads, "
              f"{header['processor']}\nllama-cpp-python {header['llama_cpp_python']}: {header['system_info']}\n"
              f"sluice: tier {header['tier']}\n\n"
              "| cell | llama.cpp, tokens/s | sluice, tokens/s | sluice / llama.cpp, median (range) of pairs | "
              "llama.cpp's best setting | others' work, at most |\n|---|---|---|---|---|---|", flush=True)
    decodes = [cell for cell in options.cells if not cell.prefill]
    peer.fill(sorted({cell.n for cell in decodes if cell.n > 0}), max((cell.batch for cell in decodes), default=1))
    for cell in options.cells:
        print_row(measure(cell, peer, model, options), options.json)


def main():
    parser = argparse.ArgumentParser(description="Sluice beside llama.cpp, cell by cell, by turns.")
    parser.add_argument("--model", choices=random_model.GEOMETRIES, default="135m", help="geometry [135m]")
    parser.add_argument("--weights", choices=random_model.GGUF_TYPES, default="bf16",
                        help="bf16, int8 (GGUF's q8_0) or int4 (q4_0) [bf16]")
    parser.add_argument("--file", type=pathlib.Path, metavar="FILE.gguf",
                        help="both read this file, as it is, in the place of a random model")
    parser.add_argument("--requantize", choices=["q8_0", "q4_0"],
                        help="with --file: llama.cpp's quantizer makes one of this type of it first")
    parser.add_argument("--cells", type=lambda text: [Cell(t) for t in text.split(",")], metavar="CELL,CELL,...",
                        help="prefill:TOKENS and decode:DEPTHxBATCH [prefill 512, 4096, 16384; decode at 0, 4096, "
                             "16384 of 1 and 8]")
    parser.add_argument("--quick", action="store_true", help="without 16384, and 3 pairs")
    parser.add_argument("--pairs", type=int, default=0,
                        help="pairs of runs of a cell, at most 3 of prompts over 4096 [5]")
    parser.add_argument("--steps", type=int, default=32, help="steps of a decode run [32]")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of either side [one per processor]")
    parser.add_argument("--no-repack", action="store_true",
                        help="llama.cpp computes on quantized weights as they are in the file, without AMX")
    parser.add_argument("--patience", type=float, default=20, metavar="SECONDS",
                        help="to wait before a run while others compute [20]")
    parser.add_argument("--tries", type=int, default=4, help="of a run, where others compute too [4]")
    parser.add_argument("--tier", default="auto", help="sluice's kernels [auto]")
    parser.add_argument("--sluice", default=str(ROOT / "build" / "bin" / "sluice"), metavar="FILE",
                        help="[build/bin/sluice]")
    parser.add_argument("--folder", help="where the models are written, below it [TMPDIR]")
    parser.add_argument("--keep", action="store_true", help="do not remove the models at the end")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, every run in it")
    options = parser.parse_args()
    options.cells = options.cells or [Cell(t) for t in (QUICK_CELLS if options.quick else ALL_CELLS)]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the models are removed then too
    options.machine = Machine(options.patience, options.tries)
    options.pairs = options.pairs or (3 if options.quick else 5)
    if options.requantize and not options.file:
        parser.error("--requantize is for --file")
    if options.file and (not options.file.is_file() or options.weights != "bf16"):
        parser.error(f"--file {options.file}: there is no such file, or --weights is there, too")
    if not os.access(options.sluice, os.X_OK):
        parser.error(f"{options.sluice} is not there: build sluice, or say where it is with --sluice")
    if options.keep:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-peers-", dir=options.folder))
        compare(options, folder)
        progress(f"the models are in {folder}")
        return
    with tempfile.TemporaryDirectory(prefix="sluice-peers-", dir=options.folder) as folder:
        compare(options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
