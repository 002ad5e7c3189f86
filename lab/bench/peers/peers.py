#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sluice beside other engines that read GGUF files: same machine, same file, same threads, by turns.

    lab/bench/peers/peers.py --install all --model FILE.gguf        (once; llama.cpp is compiled: some minutes)
    lab/bench/peers/peers.py --model FILE.gguf
    lab/bench/peers/peers.py --model smollm2 --as f16,q4_0,q8_0 --peers llama.cpp --cells prefill:512,decode:512

Prints a line for every run when it is measured, then a table: a row an engine, medians and ranges over the turns. README.md beside this
file says what is compared and what is fair about it. Exit codes: 0 all was measured, 1 something was not, 2 wrong usage.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import time

from engine import parse_cell

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice"
CELLS, DEEP_CELLS = "prefill:512,prefill:4096,decode:0,decode:512,decode:4096", "prefill:16384,decode:16384"
PROMPT, ANSWER_TOKENS = "The capital of France is", 8
LOAD_S, RUN_S = 900, 1800  # an engine is stuck after this time
FOREIGN = 0.04  # share of the machine that others may use before a run begins
MEMORY_FACTOR = 4  # an engine may take this many times the file's size, for all that is known before it is loaded

# To add an engine: a program that has the conversation of engine.py, and a row: its name for --peers, its rows of the table (with the words
# after FILE and THREADS), its program, the package that it needs and the module that this brings.
PEERS = {
    "llama.cpp": ({"llama.cpp": ["on"], "llama.cpp, no flash attention": ["off"]}, "engine_llamacpp.py", "llama-cpp-python", "llama_cpp"),
    "openvino": ({"openvino-genai": []}, "engine_openvino.py", "openvino-genai", "openvino_genai"),
    "mistral.rs": ({"mistral.rs": []}, "engine_mistralrs.py", "mistralrs", "mistralrs"),
}
KINDS = ("f16", "q4_0", "q4_1", "q8_0")  # that requantize.py makes


class Failed(Exception):
    """An engine could not be started, or does not measure a cell."""


class TimeIsUp(Exception):
    """--time-limit has passed."""


# --- the machine -----------------------------------------------------------------------------------------------------


def ticks():
    """Returns (ticks that all processors worked, ticks stolen from them) since the machine started."""
    with open("/proc/stat", encoding="utf-8") as file:
        fields = [int(f) for f in file.readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4] - fields[7], fields[7]


def process_ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class Watch:
    """Measures which share of the machine others used, and which share the hypervisor took, since it was made."""

    def __init__(self, pid=None):
        self.pid, self.began = pid, time.monotonic()
        self.before = self._now()

    def _now(self):
        busy, stolen = ticks()
        own = sum(os.times()[:2]) * os.sysconf("SC_CLK_TCK")
        return busy - own - (process_ticks(self.pid) if self.pid else 0), stolen

    def shares(self):
        room = max(1e-3, time.monotonic() - self.began) * os.sysconf("SC_CLK_TCK") * os.cpu_count()
        return [max(0.0, (after - before) / room) for before, after in zip(self.before, self._now())]


def wait_until_free(patience_s):
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        watch = Watch()
        time.sleep(0.2)
        if watch.shares()[0] <= FOREIGN:
            return


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in file)}
    return f"{found.get('model name', 'unknown')} (family {found.get('cpu family', '?')}, model {found.get('model', '?')})"


def available_bytes():
    with open("/proc/meminfo", encoding="utf-8") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


# --- engines ---------------------------------------------------------------------------------------------------------


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Engine:
    """A process that measures a cell for each line that it is sent."""

    def __init__(self, command, threads, deadline):
        self.command, self.deadline = command, deadline
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
        self.rest, self.peak_bytes = b"", 0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
                                        preexec_fn=die_with_parent)
        self.began, self.said = time.monotonic(), []

    def line(self, limit_s):
        """Returns the next object from the engine's standard output."""
        out, err = self.process.stdout.fileno(), self.process.stderr.fileno()
        end, open_files = min(time.monotonic() + limit_s, self.deadline), {out, err}
        while b"\n" not in self.rest:
            ready = select.select(open_files, [], [], max(0, end - time.monotonic()))[0]
            if not ready:
                self.end()  # a late answer would be taken for the next one
                raise TimeIsUp if end == self.deadline else Failed(f"no answer within {limit_s} s")
            for fd in ready:
                piece = os.read(fd, 1 << 16)
                if not piece:
                    open_files.discard(fd)
                elif fd == out:
                    self.rest += piece
                else:
                    self.said = (self.said + [text for text in piece.decode(errors="replace").splitlines() if text.strip()])[-5:]
            if out not in open_files and err not in open_files:
                self.end()
                raise Failed(self.said[-1] if self.said else f"ended with {self.process.returncode}")
        text, _, self.rest = self.rest.partition(b"\n")
        try:
            return json.loads(text)
        except ValueError:
            raise Failed(f"answered {text[:80]!r}") from None

    def ask(self, text):
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # line() says why it has ended
        return self.line(RUN_S)

    def end(self):
        """Ends the process. Its most resident memory is in peak_bytes; Popen.wait() would lose it."""
        if self.process.returncode is None:
            os.kill(self.process.pid, signal.SIGKILL)  # it may have ended by itself
            _, status, usage = os.wait4(self.process.pid, 0)
            self.process.returncode, self.peak_bytes = os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10

    def close(self):
        self.end()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()


class Peer(Engine):
    def load(self):
        line = self.line(LOAD_S)
        return line["load_s"], line["about"]

    def request(self, **what):
        got = self.ask(json.dumps(what))
        if "error" in got:
            raise Failed(got["error"])
        return got

    def run(self, cell, also, steps):
        return self.request(cell=cell, also=also, steps=steps)["rates"]

    def answer(self, _):
        return self.request(text=PROMPT, steps=ANSWER_TOKENS)["text"]


class Sluice(Engine):
    """`sluice bench cells --paced`: measures its next cell for every line. Its load time includes the start of the process."""

    def load(self):
        header = self.line(LOAD_S)
        return time.monotonic() - self.began, f"sluice, tier {header['tier']}, KV f16"

    def run(self, cell, also, steps):
        got = self.ask("")
        if "error" in got:
            raise Failed(got["error"])
        if got["case"] != cell:
            raise Failed(f"measured {got['case']} instead of {cell}")
        return {cell: got["value"]}

    def answer(self, options):
        command = [options.sluice, "run", "--local", "--raw", "--quiet", "--model", options.file, "--recipe", "full", "--temperature", "0",
                   "--max-new-tokens", str(ANSWER_TOKENS), "--prompt", PROMPT]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=min(LOAD_S, self.deadline - time.monotonic()), check=False)
        except subprocess.TimeoutExpired:
            raise TimeIsUp from None
        if done.returncode != 0:
            raise Failed(done.stderr.strip().splitlines()[-1])
        return done.stdout


# --- turns -----------------------------------------------------------------------------------------------------------


class Row:
    """An engine's figures."""

    def __init__(self, name, start):
        self.name, self.start = name, start  # start() returns an Engine
        self.figures = {}  # cell, "load" or "peak" -> {turn: value}
        self.reasons = {}  # cell -> why it has no figure
        self.missing = ""  # why there is no engine at all
        self.about, self.answer, self.engine = "", None, None

    def add(self, what, turn, value):
        self.figures.setdefault(what, {})[turn] = value

    def median(self, what):
        values = list(self.figures.get(what, {}).values())
        return statistics.median(values) if values else None


class Output:
    """Prints every figure when it is measured: a line of text, or a JSON object."""

    def __init__(self, as_json):
        self.json, self.others = as_json, []

    def event(self, text, **what):
        print(json.dumps(what) if self.json else text, flush=True)

    def figure(self, row, turn, what, value, unit, shares=None):
        self.others += shares[:1] if shares else []
        machine = dict(zip(("others", "steal"), shares), load=os.getloadavg()[0]) if shares else {}
        text = f"others {100 * shares[0]:3.0f}%  steal {100 * shares[1]:3.0f}%  load {machine['load']:.1f}" if shares else ""
        self.event(f"turn {turn}  {row.name:30} {what:16} {value:10.2f} {unit:9} {text}", turn=turn, engine=row.name, cell=what, value=round(value, 4),
                   unit=unit, **{key: round(share, 4) for key, share in machine.items()})


def open_engine(row, turn, options, out):
    """Starts an engine and prints its load time; in the first turn also what it answers. Returns whether it runs."""
    wait_until_free(options.patience)
    try:
        row.engine = row.start()
        watch = Watch(row.engine.process.pid)
        load_s, row.about = row.engine.load()
        row.add("load", turn, load_s)
        out.figure(row, turn, "load", load_s, "s", watch.shares())
        if row.answer is None:
            row.answer = row.engine.answer(options)
            out.event(f"turn {turn}  {row.name:30} answers {row.answer!r} to {PROMPT!r}", engine=row.name, about=row.about, answer=row.answer)
        return True
    except (Failed, OSError) as why:
        if row.figures:
            row.reasons.setdefault(f"turn {turn}", str(why))
        else:
            row.missing = str(why)
        out.event(f"turn {turn}  {row.name:30} {why}", engine=row.name, turn=turn, error=str(why))
        close_engine(row, None, out)
        return False


def close_engine(row, turn, out):
    if row.engine:
        row.engine.close()
    if row.engine and turn is not None:
        peak = row.engine.peak_bytes / 1e9
        row.add("peak", turn, peak)
        out.figure(row, turn, "peak", peak, "GB")
    row.engine = None


def measure(row, turn, cell, also, options, out):
    """One run of a cell, which may measure a decode cell of the same depth too."""
    wait_until_free(options.patience)
    if time.monotonic() >= options.deadline:
        raise TimeIsUp
    try:
        watch = Watch(row.engine.process.pid)
        rates = row.engine.run(cell, also, options.steps)
        shares = watch.shares()
        for what, rate in rates.items():
            row.add(what, turn, rate)
            out.figure(row, turn, what, rate, "tokens/s", shares)
    except (Failed, OSError) as why:
        row.reasons.setdefault(cell, str(why))
        out.event(f"turn {turn}  {row.name:30} {cell:16} {why}", engine=row.name, turn=turn, cell=cell, error=str(why))


def take_turn(rows, turn, options, out):
    """Loads all engines of `rows`, then measures every cell, each engine once, and stops them."""
    order = rows[turn % len(rows):] + rows[:turn % len(rows)]
    try:
        running = [row for row in order if open_engine(row, turn, options, out)]
        for cell in options.cells:
            depth = parse_cell(cell)[1]
            also = next((other for other in options.cells if cell.startswith("prefill") and other.startswith("decode")
                         and parse_cell(other)[1:] == (depth, 1)), None)
            for row in running:
                if turn not in row.figures.get(cell, {}):
                    measure(row, turn, cell, also, options, out)
    finally:
        for row in order:
            close_engine(row, turn, out)


def take_turns(rows, options, out):
    """Returns whether there was time for all turns. Engines run one after the other where memory has no room for all at once."""
    present = [row for row in rows if not row.missing]
    together = MEMORY_FACTOR * os.path.getsize(options.file) * len(present) < available_bytes()
    try:
        for turn in range(1, options.turns + 1):
            for group in [present] if together else [[row] for row in present]:
                take_turn(group, turn, options, out)
        return True
    except TimeIsUp:
        out.event(f"stopped: --time-limit {options.time_limit:.0f} s", stopped=True)
        return False


# --- the table -------------------------------------------------------------------------------------------------------


def text_of(row, what, digits=None):
    values = list(row.figures.get(what, {}).values())
    if not values:
        return "not measured" if row.reasons.get(what) else ""
    middle = statistics.median(values)
    digits = digits if digits is not None else 0 if middle >= 100 else 1
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(sluice, others, cell):
    """Returns the name of the fastest peer, and Sluice's ratio to it in every turn that both measured; or None."""
    there = [row for row in others if row.figures.get(cell)]
    if not there or not sluice.figures.get(cell):
        return None
    best = max(there, key=lambda row: row.median(cell))
    own, theirs = sluice.figures[cell], best.figures[cell]
    both = [own[turn] / theirs[turn] for turn in own if turn in theirs]
    return (best.name, both) if both else None


def print_table(rows, options, out):
    sluice, others = rows[0], rows[1:]
    if out.json:
        for row in rows:
            out.event("", engine=row.name, about=row.about, answer=row.answer, missing=row.missing or None, reasons=row.reasons,
                      summary={what: {"median": row.median(what), "min": min(turns.values()), "max": max(turns.values()), "turns": len(turns)}
                               for what, turns in row.figures.items()})
        for cell in options.cells:
            found = ratios(sluice, others, cell)
            if found:
                out.event("", cell=cell, best=found[0], ratio=statistics.median(found[1]), ratio_min=min(found[1]), ratio_max=max(found[1]))
        return
    print("\n| engine | " + " | ".join(options.cells) + " | load, s | peak RSS, GB |\n" + "|-" * (len(options.cells) + 3) + "|")
    for row in rows:
        if row.missing:
            print(f"| {row.name} | {row.missing} |" + " |" * (len(options.cells) + 1))
        else:
            print(f"| {row.name} | " + " | ".join(text_of(row, cell) for cell in options.cells)
                  + f" | {text_of(row, 'load', 1)} | {text_of(row, 'peak', 2)} |")
    found = [ratios(sluice, others, cell) for cell in options.cells]
    print("| Sluice / the fastest other | " + " | ".join(f"{statistics.median(f[1]):.2f} ({min(f[1]):.2f} to {max(f[1]):.2f})" if f else "" for f in found)
          + " | | |\n")
    for row in rows:
        if row.about:
            print(f"{row.name}: {row.about}")
        for cell, why in row.reasons.items():
            print(f"{row.name}: {cell}: {why}")
    sys.stdout.flush()


# --- files and programs ----------------------------------------------------------------------------------------------


def python_of(options):
    return options.venv / "bin" / "python"


def install(names, options):
    """Makes the environment and installs packages there."""
    if not python_of(options).exists():
        code = subprocess.run([sys.executable, "-m", "venv", options.venv], check=False).returncode
        if code != 0:
            return code
    packages = ["gguf"] + [PEERS[name][2] for name in names]
    print(f"installing {' '.join(packages)} into {options.venv}", file=sys.stderr, flush=True)
    links = ["--find-links", options.find_links] if options.find_links else []
    return subprocess.run([python_of(options), "-m", "pip", "install", "--prefer-binary", *links, *packages], check=False).returncode


def has_module(options, module):
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return python_of(options).exists() and subprocess.run([python_of(options), "-c", code], check=False).returncode == 0


def rows_of(options):
    cells = [word for cell in options.cells for word in ("--cell", cell)]
    sluice = [options.sluice, "bench", "cells", "--paced", "--json", "--runs", "1", "--model", options.file, "--threads", str(options.threads), "--tokens",
              str(options.steps), "--tier", options.tier, *cells]
    rows = [Row("Sluice", lambda: Sluice(sluice, options.threads, options.deadline))]
    for name in options.peers:
        variants, program, _, module = PEERS[name]
        there = has_module(options, module)
        for label, words in variants.items():
            command = [python_of(options), HERE / program, options.file, str(options.threads), *words]
            rows.append(Row(label, lambda command=command: Peer(command, options.threads, options.deadline)))
            if not there:
                rows[-1].missing = f"not installed: `lab/bench/peers/peers.py --install {name}`"
    for text in options.engine:
        name, _, command = text.partition("=")
        words = [*command.split(), options.file, str(options.threads)]
        rows.append(Row(name, lambda words=words: Peer(words, options.threads, options.deadline)))
    return rows


def pulled(name):
    """Returns the GGUF file that `sluice pull NAME` has brought, or the path as it is."""
    found = sorted((CACHE / "models" / name).glob("*.gguf"))
    return str(found[0]) if not os.path.exists(name) and len(found) == 1 else name


def converted(options, kind):
    """Returns the model's file with all matrices of one type, which is made once."""
    if kind == "":
        return options.model
    made = CACHE / "peers" / f"{pathlib.Path(options.model).stem}.{kind}.gguf"
    if not made.exists():
        if not has_module(options, "gguf"):
            raise SystemExit("peers.py: --as needs the package gguf: peers.py --install all")
        made.parent.mkdir(parents=True, exist_ok=True)
        if subprocess.run([python_of(options), HERE / "requantize.py", options.model, kind, made], check=False).returncode != 0:
            raise SystemExit(f"peers.py: {options.model} could not be made {kind}: see above")
    return str(made)


def compare(options, out):
    """Measures one file. Returns whether all was measured."""
    rows = rows_of(options)
    watch, loads = Watch(), [os.getloadavg()[0]]
    out.event(f"{time.strftime('%Y-%m-%d %H:%M')}  {os.path.basename(options.file)}, {options.threads} threads, {processor()}, load average {loads[0]:.1f}",
              date=time.strftime("%Y-%m-%d %H:%M"), model=os.path.basename(options.file), threads=options.threads, processor=processor(), load=loads[0],
              cells=options.cells, turns=options.turns, steps=options.steps)
    for row in rows:
        if row.missing:
            out.event(f"{row.name}: {row.missing}", engine=row.name, missing=row.missing)
    complete = take_turns(rows, options, out)
    print_table(rows, options, out)
    stolen, loads = watch.shares()[1], [*loads, os.getloadavg()[0]]
    others = statistics.median(out.others) if out.others else 0.0
    out.event(f"CPU steal {100 * stolen:.1f}%, load average {loads[0]:.1f} at the beginning, {loads[1]:.1f} at the end; in the median run others used "
              f"{100 * others:.0f}% of the machine", steal=stolen, loads=loads, others=others)
    return complete and all(not row.missing and not row.reasons for row in rows)


def seconds_of(text):
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        return float(text[:-1]) * units[text[-1:]] if text[-1:] in units else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected seconds, or a number with s, m or h") from None


def names_of(text):
    names = list(PEERS) if text == "all" else [] if text == "none" else text.split(",")
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name}: expected all, none or some of {', '.join(PEERS)}")
    return names


def cells_of(text):
    """Returns cells ascending by depth, prompts first: an engine that ends at one has measured all that are smaller."""
    try:
        parsed = {cell.removesuffix("x1"): parse_cell(cell) for cell in text.split(",")}
    except ValueError as why:
        raise argparse.ArgumentTypeError(str(why)) from None
    return sorted(parsed, key=lambda cell: (parsed[cell][1], not parsed[cell][0], parsed[cell][2]))


def kinds_of(text):
    if set(text.split(",")) - set(KINDS):
        raise argparse.ArgumentTypeError(f"{text}: expected some of {', '.join(KINDS)}")
    return text.split(",")


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file, or a name that `sluice pull` has brought")
    parser.add_argument("--as", dest="kinds", metavar="TYPE,...", type=kinds_of, default=[""],
                        help=f"a table for each of {', '.join(KINDS)}: all matrices of the file made of that type first")
    parser.add_argument("--peers", type=names_of, default=list(PEERS), metavar="NAME,...", help=f"some of {', '.join(PEERS)}; or none [all]")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME=COMMAND", help="one more, which has the conversation of engine.py")
    parser.add_argument("--cells", type=cells_of, metavar="CELL,...", help=f"prefill:TOKENS and decode:DEPTH or decode:DEPTHxSEQUENCES [{CELLS}]")
    parser.add_argument("--deep", action="store_true", help=f"{DEEP_CELLS} as well")
    parser.add_argument("--turns", type=int, default=3, help="[3]")
    parser.add_argument("--steps", type=int, default=32, help="steps of a decode run [32]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of each engine [one per processor]")
    parser.add_argument("--time-limit", type=seconds_of, default=float("inf"), metavar="TIME", help="print what there is after 90, 90s, 15m or 1h")
    parser.add_argument("--patience", type=float, default=20, metavar="SECONDS", help="wait that long before a run while others compute [20]")
    parser.add_argument("--tier", default="auto", help="sluice's kernels [auto]")
    parser.add_argument("--sluice", default=str(ROOT / "build" / "bin" / "sluice"), metavar="FILE", help="[build/bin/sluice]")
    parser.add_argument("--venv", type=pathlib.Path, default=CACHE / "peers" / "venv", metavar="DIR", help="where the engines are [~/.cache/sluice/peers/venv]")
    parser.add_argument("--install", type=names_of, metavar="NAME,...", help="install these, or all, there first")
    parser.add_argument("--find-links", metavar="DIR", help="with --install: a folder with wheels, as pip has it")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(words)
    if options.install is None and options.model is None:
        parser.error("--model FILE.gguf is needed; `sluice pull smollm2` brings a small one: --model smollm2")
    options.cells = cells_of(",".join(options.cells or CELLS.split(",")) + ("," + DEEP_CELLS if options.deep else ""))
    if options.model is not None:
        options.model = pulled(options.model)
        if not os.path.isfile(options.model) and not options.engine:
            parser.error(f"--model {options.model}: there is no such file")
        if not os.access(options.sluice, os.X_OK):
            parser.error(f"{options.sluice} is not there: build sluice, or say where it is with --sluice")
    if min(options.turns, options.steps, options.threads) < 1:
        parser.error("--turns, --steps and --threads are at least 1")
    return options


def main(words=None):
    options = parse(words)
    if options.install is not None:
        code = install(options.install, options)
        if code != 0 or options.model is None:
            return code
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # engines are ended then too
    options.deadline = time.monotonic() + options.time_limit
    complete = True
    for kind in options.kinds:
        options.file = converted(options, kind)
        complete = compare(options, Output(options.json)) and complete
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
