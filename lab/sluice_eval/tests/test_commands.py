# SPDX-License-Identifier: Apache-2.0
"""The commands as a script sees them, with `sluice run --local --jsonl` and models/demo: exit codes, files, what is said."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from .support import GOLDEN, MODEL, PACKAGE, ROOT, FolderTest, command, lines_of, needs_sluice

from sluice_eval.process import find_sluice

try:
    import matplotlib
except ImportError:
    matplotlib = None

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = ["--model", MODEL, "--tasks", "niah-noise,passkey", "--lengths", "300", "--samples", "3", "--threads", "1",
         "--recipe", "streamingllm,chunk=64;full,format=int4", "--budget", "64"]


@needs_sluice
class Run(FolderTest):
    def path(self, name):
        return str(self.folder / name)

    def test_points_are_those_of_the_c_program(self):
        """The golden answers are those of `sluice eval suites` before it became this package. The words after a right answer, and of a
        wrong one, depend on how the processor rounds."""
        out = self.path("r")
        done = command("run", "--model", MODEL, "--tasks", "passkey,kv", "--lengths", "512", "--samples", "2", "--recipe",
                       "h2o;snapkv;full,format=int4;tailorkv,topk=16", "--budget", "5%,20%", "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, encoding="utf-8") as file:
            found = [[a["recipe"], a["cell"], a["index"], a["score"], a["shipped_bytes"], a["answer"]]
                     for a in map(json.loads, list(file)[1:])]
        golden = json.loads((GOLDEN / "points.json").read_text())
        compared = [sorted([*answer, text.split(".")[0] if answer[3] == 1 else ""] for *answer, text in answers) for answers in (found, golden)]
        self.assertEqual(*compared)

    def test_recipes_stand_beside_the_full_cache(self):
        rows = [line["row"] for line in lines_of(command("run", *SMALL, "--json")) if "row" in line]
        self.assertEqual([(r["name"], r["budget"]) for r in rows],
                         [("full", ""), ("streamingllm,chunk=64", "64"), ("full,format=int4", "")])
        for row in rows:
            self.assertTrue(row["complete"] and row["answers"] == 6 and 0 <= row["mean"] <= 1)
            self.assertEqual(set(row["tasks"]), {"niah-noise", "passkey"})
        self.assertEqual(rows[0]["to_full"], {"mean": 0, "low": 0, "high": 0})
        self.assertGreater(rows[0]["mean"], 0)  # the demo model can do this
        self.assertTrue(rows[1]["shipped"] < rows[2]["shipped"] < 0.5 < rows[0]["shipped"])
        self.assertEqual(rows[1]["slots_per_head"], 64)

    def test_a_run_that_was_stopped_continues(self):
        whole = lines_of(command("run", *SMALL, "--json"))
        out = self.path("r.jsonl")
        for number, code in [(signal.SIGINT, 4), (signal.SIGTERM, 4), (signal.SIGKILL, -9)]:
            environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
            with subprocess.Popen([sys.executable, "-m", "sluice_eval", "run", *SMALL, "--out", out], text=True, cwd=ROOT,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as started:
                while started.poll() is None and self.n_lines(out) < 4:
                    time.sleep(0.002)
                started.send_signal(number)
                stdout, stderr = started.communicate(timeout=120)
            if started.returncode != 0:  # else it was quicker
                self.assertEqual(started.returncode, code, stderr)
                if code == 4:
                    self.assertIn("continues from " + out, stderr)
                    self.assertRegex(stdout, r"[0-9]+ of 18 answers")  # the table so far
            with open(out, "a", encoding="utf-8") as file:
                file.write('{"recipe": "full", "ce')  # as if it had been cut off
            self.assertEqual(lines_of(command("run", *SMALL, "--json", "--out", out)), whole)
            self.assertEqual(self.n_lines(out), 19)  # none twice
            os.remove(out)

    @staticmethod
    def n_lines(path):
        try:
            with open(path, "rb") as file:
                return file.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def test_parts_are_put_together_and_saved_answers_need_no_model(self):
        whole = lines_of(command("run", *SMALL, "--json"))
        data = b""
        for part in "12":
            self.assertEqual(command("run", *SMALL, "--part", part + "/2", "--out", self.path(part)).returncode, 0)
            data += (self.folder / part).read_bytes()
        (self.folder / "all").write_bytes(data)
        self.assertEqual(lines_of(command("run", *SMALL, "--json", "--out", self.path("all"))), whole)
        saved = lines_of(command("report", self.path("all"), "--json", env={"SLUICE_BIN": "/nonexistent"}))
        self.assertEqual([line["row"]["mean"] for line in saved if "row" in line],
                         [line["row"]["mean"] for line in whole if "row" in line])
        done = command("run", *SMALL, "--out", self.path("1"), "--seed", "2")
        self.assertEqual(done.returncode, 1)
        self.assertIn('"seed" is 1 there and 2 now', done.stderr)

    def test_a_plan_is_the_same_as_its_options(self):
        plan = self.write("plan.json", json.dumps({
            "title": "Small", "budgets": [64], "seed": 1, "samples": 3, "lengths": [300], "tasks": ["niah-noise", "passkey"],
            "recipes": ["full", {"name": "streamingllm,chunk=64", "recipe": "streamingllm,chunk=64,budget={budget}"},
                        "full,format=int4"],
            "claims": [{"paper": "P", "text": "quantizing is free", "better": "full,format=int4", "worse": "full", "by": -0.5}]}))
        page = self.path("page.md")
        found = lines_of(command("run", "--model", MODEL, "--threads", "1", "--plan", plan, "--json", "--markdown", page))
        self.assertEqual([line["claim"]["text"] for line in found if "claim" in line], ["quantizing is free"])
        self.assertEqual([line["row"] for line in found if "row" in line],
                         [line["row"] for line in lines_of(command("run", *SMALL, "--json")) if "row" in line])
        text = (self.folder / "page.md").read_text(encoding="utf-8")
        self.assertTrue(text.startswith("# Small\n") and "\n## Claims\n" in text and "| full |" in text)

    def test_what_cannot_be_asked_is_said(self):
        done = command("run", *SMALL, "--recipe", "full,format=f16/50-60:int4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"full,format=f16/50-60:int4 +n/a")
        self.assertIn("layer 60", done.stdout)
        done = command("run", "--model", MODEL, "--tasks", "kv", "--lengths", "100", "--samples", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not fit", done.stdout)
        self.assertIn("there is no answer", done.stderr)

    @unittest.skipUnless(matplotlib, "needs matplotlib (python3-matplotlib)")
    def test_pictures_are_drawn(self):
        done = command("run", *SMALL, "--png", self.path("p"), "--out", self.path("r"))
        self.assertEqual((done.returncode, done.stderr.count("arning")), (0, 0), done.stderr)
        done = command("plot", self.path("r"), "--png", self.path("q"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = command("grid", "--model", MODEL, "--lengths", "200,300", "--depths", "3", "--samples", "1", "--png", self.path("g.png"))
        self.assertEqual((done.returncode, done.stderr.count("arning")), (0, 0), done.stderr)
        names = [f"{prefix}-{kind}.png" for prefix in "pq" for kind in ("bars", "pareto", "tasks")] + ["g.png"]
        self.assertEqual(sorted(name for name in os.listdir(self.folder) if "." in name), sorted(names))
        for name in names:
            self.assertEqual((self.folder / name).read_bytes()[:8], PNG)

    def test_dumped_questions_are_those_that_are_asked(self):
        words = ["--model", MODEL, "--tasks", "niah-noise,multivalue", "--lengths", "300", "--samples", "2"]
        made = lines_of(command("dump", *words))
        self.assertEqual([(m["task"], m["index"]) for m in made],
                         [("niah-noise", 0), ("niah-noise", 1), ("multivalue", 0), ("multivalue", 1)])
        self.assertTrue(all(150 < m["tokens"] <= 300 and m["metric"] == "contains-all" for m in made))
        self.write("made.jsonl", "".join(json.dumps({"prompt": m["prompt"], "answers": m["answers"]}) + "\n" for m in made[:2]))
        plan = self.write("plan.json", json.dumps({"title": "Made", "recipes": ["full"], "datasets": [
            {"name": "made", "format": "sluice", "file": "made.jsonl", "max_new_tokens": 24}]}))
        asked = []
        for name, question in [("a", ["--plan", plan]), ("b", ["--tasks", "niah-noise", "--lengths", "300", "--samples", "2"])]:
            self.assertEqual(command("run", "--model", MODEL, *question, "--out", self.path(name)).returncode, 0)
            with open(self.path(name), encoding="utf-8") as file:
                asked.append([(a["prompt"], a["answer"], a["score"]) for a in map(json.loads, list(file)[1:])])
        self.assertEqual(asked[0], asked[1])

    def test_a_grid_is_a_map(self):
        words = ["grid", "--model", MODEL, "--task", "niah-noise", "--lengths", "200,300", "--depths", "3", "--samples", "1"]
        done = command(*words, "--recipe", "streamingllm,budget=64,chunk=64")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall(r"^ +(?:0|50|100)%  ", done.stdout, re.M)), 6)
        rows = [line["row"] for line in lines_of(command(*words, "--json"))if "row" in line]
        self.assertEqual([(c["depth"], c["tokens"]) for c in rows[0]["cells"]], [(d, n) for d in (0, 0.5, 1) for n in (200, 300)])


class Usage(unittest.TestCase):
    def test_every_command_has_help(self):
        for name in ["run", "grid", "report", "plot", "tasks", "dump"]:
            done = command(name, "--help")
            self.assertEqual(done.returncode, 0, name)
            self.assertIn("Exit codes", done.stdout)
        self.assertIn("niah-essay", command("tasks").stdout)
        self.assertEqual(lines_of(command("tasks", "--json"))[0]["task"], "niah-noise")

    @needs_sluice
    def test_wrong_usage_exits_with_2_and_says_why(self):
        model = ["--model", MODEL]
        for words, said in [
            (["run", *model], "--tasks"), (["run", "--tasks", "niah-noise"], "--model"), (["walk"], "walk"),
            (["run", *model, "--tasks", "niah-esay"], 'did you mean "niah-essay"'),
            (["run", *model, "--tasks", "niah-noise", "--lengths", "4k"], "4k"),
            (["run", *model, "--tasks", "niah-noise", "--recipe", "nonsense"], "nonsense"),
            (["run", *model, "--tasks", "niah-noise", "--recipe", "h2o", "--budget", "much"], "much"),
            (["run", *model, "--tasks", "niah-noise", "--recipe", "h2o,budget={budget}"], "--budget"),
            (["run", *model, "--tasks", "niah-noise", "--weights", "int3"], "int3"),
            (["run", *model, "--tasks", "niah-noise", "--part", "3/2"], "3/2"),
            (["run", *model, "--tasks", "niah-noise", "--plan", "x"], "--plan"),
            (["run", *model, "--plan", "LICENSE"], "LICENSE"),
            (["run", *model, "--tasks", "niah-noise", "--sluice", "/nonexistent/sluice"], "/nonexistent/sluice"),
            (["run", "--model", "/nonexistent", "--tasks", "niah-noise"], "/nonexistent"),
            (["run", "--url", "ftp://x", "--tasks", "niah-noise"], "expected a URL"),
            (["grid", *model, "--task", "multivalue"], "multivalue"), (["grid", *model, "--task", "niah-esay"], "niah-essay"),
            (["dump", *model], "--tasks"), (["report", "LICENSE"], "not a file of results")]:
            done = command(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), (words, done.stderr))
            self.assertIn(said, done.stderr, words)

    @needs_sluice
    def test_the_tool_names_the_command(self):
        for old, new in [("suites", "run"), ("grid", "grid"), ("make", "dump")]:
            done = subprocess.run([find_sluice(), "eval", old, "--model", MODEL], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"`python3 -m sluice_eval {new}`", done.stderr)

    def test_a_package_that_is_missing_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "numpy.py").write_text("raise ModuleNotFoundError('none', name='numpy')", encoding="utf-8")
            done = command("tasks", env={"PYTHONPATH": f"{folder}{os.pathsep}{PACKAGE}"})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^sluice_eval: needs the Python package numpy: `pip install lab/sluice_eval`[^\n]*\n$")

    def test_what_cannot_be_written_is_known_before_the_work(self):
        words = ["run", "--model", MODEL, "--tasks", "niah-noise"]
        for option, path in [("--markdown", "/nonexistent/m"), ("--out", "/nonexistent/r")]:
            done = command(*words, option, path)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(path + ": cannot be written", done.stderr)

    def test_no_output_replaces_what_is_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe, link = os.path.join(folder, "pipe"), os.path.join(folder, "link")
            os.mkfifo(pipe)
            os.symlink("/proc/self/exe", link)  # an open file, as behind /dev/stdout
            for path in (pipe, link):
                done = command("run", "--model", MODEL, "--tasks", "niah-noise", "--markdown", path)
                self.assertEqual((done.returncode, path + ": cannot be written: it is not a file" in done.stderr), (1, True), done.stderr)
            self.assertEqual(sorted(os.listdir(folder)), ["link", "pipe"])


if __name__ == "__main__":
    unittest.main()
