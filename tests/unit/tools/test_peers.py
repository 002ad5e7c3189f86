#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""lab/bench/peers/peers.py: turns, ranges, limits and what it says of engines that are missing or fail, with engines that only pretend."""
import contextlib
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import script  # noqa: E402
script.help_if_asked()
script.needs_programs(os.environ.get("SLUICE_BIN", "build/bin"), "sluice")
sys.path.insert(0, str(ROOT / "lab" / "bench" / "peers"))
import peers  # noqa: E402

SLUICE = os.path.join(os.environ.get("SLUICE_BIN", "build/bin"), "sluice")
CELLS = "prefill:64,decode:0,decode:64"

# An engine whose rates are FACTOR times those of the script's turn; it notes every request in LOG.
PEER = """#!/usr/bin/python3
import json, os, sys, time
name, factor, log, way = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]
if way == "broken":
    print("libpeer.so is missing", file=sys.stderr)
    sys.exit(3)
starts = os.path.join(os.path.dirname(log), name)
with open(starts, "a") as file:
    file.write("x")
turn = os.path.getsize(starts)
print(json.dumps({"load_s": 0.5 * turn, "about": name + " 1.0"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    with open(log, "a") as file:
        file.write(name + " " + asked.get("cell", "answer") + "\\n")
    if "text" in asked:
        got = {"text": " Paris"}
    elif way == "hangs":
        time.sleep(600)
    elif way == "dies" and asked["cell"] == "decode:64":
        print("out of slots", file=sys.stderr)
        sys.exit(1)
    elif way == "refuses" and asked["cell"].startswith("decode"):
        got = {"error": "no decode here"}
    else:
        got = {"rates": {cell: factor * turn for cell in (asked["cell"], asked["also"]) if cell}}
    print(json.dumps(got), flush=True)
"""

# `sluice bench cells --paced` and `sluice run`, whose rates are 100 in every turn.
TOOL = """#!/usr/bin/python3
import json, sys
if sys.argv[1] == "run":
    print(" Paris")
    sys.exit(0)
with open(LOG, "a") as file:
    file.write("Sluice starts\\n")
print(json.dumps({"bench": "cells", "tier": "avx9"}), flush=True)
for cell in [sys.argv[i + 1] for i, word in enumerate(sys.argv) if word == "--cell"]:
    if not sys.stdin.readline():
        break
    with open(LOG, "a") as file:
        file.write("Sluice " + cell + "\\n")
    print(json.dumps({"bench": "cells", "case": cell, "value": 100.0}), flush=True)
"""


class Turns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = self.path("log", "")
        self.model = self.path("model.gguf", "GGUF")
        self.tool = self.path("sluice", TOOL.replace("LOG", repr(self.log)))
        self.peer = self.path("peer", PEER)

    def path(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def engine(self, name, factor, way="works"):
        return f"--engine={name}={self.peer} {name} {factor} {self.log} {way}"

    def run_peers(self, *words, sluice=None):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = peers.main(["--model", self.model, "--sluice", sluice or self.tool, "--peers", "none", "--patience", "0", "--cells", CELLS,
                               "--venv", self.folder.name, *words])
        return code, printed.getvalue()

    def lines(self, *words, **more):
        code, text = self.run_peers("--json", *words, **more)
        return code, [json.loads(line) for line in text.splitlines()]

    def test_engines_take_turns_and_each_gives_medians_and_ranges(self):
        code, lines = self.lines(self.engine("one", 10), self.engine("two", 80))
        self.assertEqual(code, 0)
        summaries = {line["engine"]: line["summary"] for line in lines if "summary" in line}
        self.assertEqual(list(summaries), ["Sluice", "one", "two"])
        for cell in CELLS.split(","):
            self.assertEqual(summaries["one"][cell], {"median": 20, "min": 10, "max": 30, "turns": 3})
            self.assertEqual(summaries["Sluice"][cell]["median"], 100)
        self.assertEqual(summaries["two"]["load"], {"median": 1.0, "min": 0.5, "max": 1.5, "turns": 3})
        for name in summaries:
            self.assertGreater(summaries[name]["peak"]["min"], 1e-3, name)  # Python takes more than a megabyte
            self.assertEqual(summaries[name]["peak"]["turns"], 3, name)
        # Sluice's 100 beside the faster one's 80, 160 and 240
        ratio = next(line for line in lines if line.get("best") and line["cell"] == "decode:64")
        self.assertEqual((ratio["best"], ratio["ratio"], round(ratio["ratio_min"], 3), ratio["ratio_max"]), ("two", 0.625, 0.417, 1.25))
        self.assertEqual({line["answer"] for line in lines if "answer" in line and "about" in line and "summary" not in line}, {" Paris", " Paris\n"})

    def test_every_engine_runs_a_cell_before_the_next_cell_and_begins_once(self):
        self.run_peers(self.engine("one", 10), self.engine("two", 80))
        with open(self.log, encoding="utf-8") as file:
            runs = [line.split() for line in file if "answer" not in line and "starts" not in line]
        # decode:64 comes with the prompt of 64 for those who can: only Sluice is asked for it
        orders = [["one", "two", "Sluice"], ["two", "Sluice", "one"], ["Sluice", "one", "two"]]
        expected = []
        for order in orders:
            for cell in ("decode:0", "prefill:64"):
                expected += [[name, cell] for name in order]
            expected.append(["Sluice", "decode:64"])
        self.assertEqual(runs, expected)

    def test_engines_run_alone_where_memory_is_small(self):
        before, peers.available_bytes = peers.available_bytes, lambda: 1
        try:
            self.run_peers(self.engine("one", 10), "--turns", "1")
        finally:
            peers.available_bytes = before
        with open(self.log, encoding="utf-8") as file:
            names = [line.split()[0] for line in file if "answer" not in line and "starts" not in line]
        self.assertEqual(names, ["Sluice"] * 3 + ["one"] * 2)

    def test_lines_are_printed_when_they_are_measured(self):
        command = [sys.executable, str(ROOT / "lab/bench/peers/peers.py"), "--model", self.model, "--sluice", self.tool, "--peers", "none", "--patience", "0",
                   "--cells", CELLS, self.engine("slow", 10, "hangs"), "--time-limit", "60"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            seen = ""
            while "Sluice" not in seen or "load" not in seen:
                seen += process.stdout.readline()
            self.assertIsNone(process.poll())
            process.terminate()
            process.wait(timeout=30)
        self.assertIn("others", seen)
        self.assertIn("steal", seen)

    def test_a_limit_ends_a_run_that_hangs_and_prints_the_rest(self):
        began = time.monotonic()
        code, text = self.run_peers(self.engine("fine", 10), self.engine("stuck", 1, "hangs"), "--time-limit", "3s", "--turns", "1")
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(code, 1)
        self.assertIn("stopped: --time-limit 3 s", text)
        self.assertIn("| fine | ", text)
        self.assertIn("CPU steal", text)

    def test_an_engine_that_fails_says_why_and_the_others_go_on(self):
        code, text = self.run_peers(self.engine("broken", 1, "broken"), self.engine("dies", 1, "dies"), self.engine("refuses", 10, "refuses"))
        self.assertEqual(code, 1)
        rows = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
        self.assertIn("libpeer.so is missing", rows["broken"])
        self.assertEqual(rows["refuses"].count("not measured"), 1)
        self.assertIn("refuses: decode:0: no decode here", text)
        self.assertIn("100 (100 to 100)", rows["Sluice"])

    def test_an_engine_that_ends_in_a_cell_keeps_its_other_figures(self):
        code, text = self.run_peers(self.engine("dies", 7, "dies"), "--cells", "prefill:63,decode:64", "--turns", "1")
        self.assertEqual(code, 1)
        self.assertIn("| dies | 7.0 (7.0 to 7.0) | not measured |", text)
        self.assertIn("dies: decode:64: out of slots", text)

    def test_a_missing_engine_is_a_row_that_says_how_to_install_it(self):
        code, text = self.run_peers("--peers", "openvino", "--turns", "1")
        self.assertEqual(code, 1)
        self.assertIn("| openvino-genai | not installed: `lab/bench/peers/peers.py --install openvino` |", text)
        self.assertIn("| Sluice | 100 (100 to 100)", text)

    def test_wrong_usage_is_one_sentence(self):
        for words in (["--cells", "prefill:0"], ["--cells", "decode:5y"], ["--peers", "vllm"], ["--time-limit", "soon"], ["--turns", "0"], ["--model", "/nowhere"],
                      ["--sluice", "/nowhere"]):
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()) as said:
                peers.parse(["--model", self.model, "--sluice", self.tool, *words])
            self.assertEqual(ended.exception.code, 2)
            self.assertIn("error: ", said.getvalue())

    def test_cells_are_ordered_by_depth_and_prompts_come_first(self):
        self.assertEqual(peers.cells_of("decode:4096x8,decode:64x1,prefill:64,decode:0"), ["decode:0", "prefill:64", "decode:64", "decode:4096x8"])
        options = peers.parse(["--model", self.model, "--sluice", self.tool, "--deep"])
        self.assertEqual(options.cells[-2:], ["prefill:16384", "decode:16384"])

    def test_sluice_itself_takes_turns(self):
        self.model = str(ROOT / "models" / "demo")
        code, lines = self.lines(self.engine("one", 10), "--turns", "2", "--steps", "4", "--tier", "avx2", sluice=SLUICE)
        self.assertEqual(code, 0, lines)
        summary = next(line["summary"] for line in lines if "summary" in line)
        for cell in CELLS.split(","):
            self.assertEqual(summary[cell]["turns"], 2)
            self.assertGreater(summary[cell]["min"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
