#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""eval suites, grid and make as a script sees them, on models/demo with short prompts: exit codes, files, what is said, and
that a run which was interrupted or killed ends with the table of one that was not."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../tools"))
import script  # noqa: E402

SLUICE = os.path.join(os.environ["SLUICE_BIN"], "sluice")
MODEL = "models/demo"
PNG = b"\x89PNG\r\n\x1a\n"
SMALL = ["--model", MODEL, "--tasks", "niah-noise,passkey", "--lengths", "300", "--samples", "3", "--threads", "1",
         "--recipe", "streamingllm,chunk=64;full,format=int4", "--budget", "64"]


def run(*words, env=None):
    return subprocess.run([SLUICE, "eval", *words], capture_output=True, text=True, timeout=280,
                          env={**os.environ, **(env or {})})


def lines_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def without_times(rows):
    for line in rows:
        line.get("row", {}).pop("ttft_ms", None)
    return rows


class Suites(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_recipes_stand_beside_the_full_cache(self):
        rows = [line["row"] for line in lines_of(run("suites", *SMALL, "--json")) if "row" in line]
        self.assertEqual([(r["name"], r["budget"]) for r in rows],
                         [("full", ""), ("streamingllm,chunk=64", "64"), ("full,format=int4", "")])
        for row in rows:
            self.assertTrue(row["complete"])
            self.assertEqual(row["answers"], 6)
            self.assertEqual(set(row["tasks"]), {"niah-noise", "passkey"})
            self.assertTrue(0 <= row["mean"] <= 1)
        self.assertEqual(rows[0]["to_full"], {"mean": 0, "low": 0, "high": 0})
        self.assertGreater(rows[0]["mean"], 0)  # the demo model can do this
        self.assertTrue(rows[1]["shipped"] < rows[2]["shipped"] < 0.5 < rows[0]["shipped"])
        self.assertEqual(rows[1]["slots_per_head"], 64)

    def test_results_do_not_depend_on_threads(self):
        one, two = (without_times(lines_of(run("suites", *SMALL, "--json", "--threads", n))) for n in "12")
        self.assertEqual(one, two)

    def test_a_run_that_was_stopped_goes_on(self):
        whole = without_times(lines_of(run("suites", *SMALL, "--json")))
        out = self.path("r.jsonl")
        for number, code in [(signal.SIGINT, 4), (signal.SIGKILL, -9)]:
            for wanted in (3, 9):
                started = subprocess.Popen([SLUICE, "eval", "suites", *SMALL, "--out", out], text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                while started.poll() is None and self.n_lines(out) < wanted:
                    time.sleep(0.002)
                started.send_signal(number)
                stdout, stderr = started.communicate(timeout=120)
                if started.returncode == 0:
                    continue  # it was quicker
                self.assertEqual(started.returncode, code, stderr)
                if number == signal.SIGINT:
                    self.assertIn("goes on from " + out, stderr)
                    self.assertRegex(stdout, r"[0-9]+ of 18 answers")  # the table so far
            with open(out, "a", encoding="utf-8") as file:
                file.write('{"recipe": "full", "ce')  # as if it had been cut off
            self.assertEqual(without_times(lines_of(run("suites", *SMALL, "--json", "--out", out))), whole)
            with open(out, encoding="utf-8") as file:
                answers = [json.loads(line) for line in file][1:]
            self.assertEqual(len(answers), 18)  # none twice
            os.remove(out)

    @staticmethod
    def n_lines(path):
        try:
            with open(path, "rb") as file:
                return file.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def test_parts_are_put_together(self):
        whole = without_times(lines_of(run("suites", *SMALL, "--json")))
        parts = [self.path(name) for name in "ab"]
        for i, part in enumerate(parts):
            self.assertEqual(run("suites", *SMALL, "--part", f"{i + 1}/2", "--out", part).returncode, 0)
        with open(self.path("all"), "wb") as file:
            for part in parts:
                with open(part, "rb") as piece:
                    file.write(piece.read())
        self.assertEqual(without_times(lines_of(run("suites", *SMALL, "--json", "--out", self.path("all")))), whole)

    def test_results_of_another_seed_are_not_mixed_in(self):
        out = self.path("r.jsonl")
        self.assertEqual(run("suites", *SMALL, "--out", out).returncode, 0)
        done = run("suites", *SMALL, "--out", out, "--seed", "2")
        self.assertEqual(done.returncode, 1)
        self.assertIn('"seed" is 1 there and 2 now', done.stderr)

    def test_a_plan_is_the_same_as_its_options(self):
        plan = self.path("plan.json")
        with open(plan, "w", encoding="utf-8") as file:
            json.dump({"title": "Small", "budgets": [64], "seed": 1, "samples": 3, "lengths": [300],
                       "tasks": ["niah-noise", "passkey"],
                       "recipes": ["full", {"name": "streamingllm,chunk=64",
                                            "recipe": "streamingllm,chunk=64,budget={budget}"}, "full,format=int4"],
                       "claims": [{"paper": "P", "text": "quantizing is free", "better": "full,format=int4",
                                   "worse": "full", "by": -0.5}]}, file)
        words = ["--model", MODEL, "--threads", "1", "--plan", plan]
        found = without_times(lines_of(run("suites", *words, "--json")))
        claims = [line["claim"] for line in found if "claim" in line]
        self.assertEqual([c["text"] for c in claims], ["quantizing is free"])
        self.assertIn(claims[0]["verdict"], ["reproduced", "undecided", "not reproduced"])
        self.assertEqual([line["row"] for line in found if "row" in line],
                         [line["row"] for line in without_times(lines_of(run("suites", *SMALL, "--json"))) if "row" in line])
        page = self.path("page.md")
        self.assertEqual(run("suites", *words, "--markdown", page).returncode, 0)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("# Small\n"))
        self.assertIn("\n## Claims\n", text)
        self.assertIn("| full |", text)

    def test_what_cannot_be_asked_is_said(self):
        done = run("suites", *SMALL, "--recipe", "full,format=f16/50-60:int4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"full,format=f16/50-60:int4 +n/a")
        self.assertIn("layer 60", done.stdout)
        done = run("suites", "--model", MODEL, "--tasks", "niah-noise", "--lengths", "2000000", "--samples", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("positions", done.stdout)
        self.assertIn("there is no answer", done.stderr)

    @unittest.skipUnless(shutil.which("gnuplot"), "needs gnuplot")
    def test_pictures_are_drawn(self):
        done = run("suites", *SMALL, "--png", self.path("p"))
        self.assertEqual((done.returncode, done.stderr.count("warning")), (0, 0), done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["p-bars.png", "p-pareto.png", "p-tasks.png"])
        done = run("grid", "--model", MODEL, "--lengths", "200,300", "--depths", "3", "--samples", "1", "--png", self.path("g.png"))
        self.assertEqual((done.returncode, done.stderr.count("warning")), (0, 0), done.stderr)
        for name in os.listdir(self.folder):
            with open(self.path(name), "rb") as file:
                self.assertEqual(file.read(8), PNG)


class Usage(unittest.TestCase):
    def test_wrong_usage_exits_with_2_and_says_why(self):
        model = ["--model", MODEL]
        for words, said in [
            (["suites", *model], "--tasks"),
            (["suites", "--tasks", "niah-noise"], "--model"),
            (["suites", *model, "--tasks", "niah-esay"], 'did you mean "niah-essay"'),
            (["suites", *model, "--tasks", "niah-noise", "--lengths", "4k"], "4k"),
            (["suites", *model, "--tasks", "niah-noise", "--recipe", "nonsense"], "nonsense"),
            (["suites", *model, "--tasks", "niah-noise", "--recipe", "h2o", "--budget", "much"], "much"),
            (["suites", *model, "--tasks", "niah-noise", "--recipe", "h2o,budget={budget}"], "--budget"),
            (["suites", *model, "--tasks", "niah-noise", "--weights", "int3"], "int3"),
            (["suites", *model, "--tasks", "niah-noise", "--part", "3/2"], "3/2"),
            (["suites", *model, "--tasks", "niah-noise", "--plan", "x"], "--plan"),
            (["suites", *model, "--plan", "LICENSE"], "LICENSE"),
            (["grid", *model, "--task", "multivalue"], "multivalue"),
            (["grid", *model, "--task", "niah-esay"], "niah-essay"),
            (["make", *model], "--tasks"),
        ]:
            done = run(*words)
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            self.assertIn(said, done.stderr, words)
            self.assertEqual(done.stdout, "", words)

    def test_what_cannot_be_written_is_known_before_the_work(self):
        words = ["suites", "--model", MODEL, "--tasks", "niah-noise"]
        for option, path in [("--out", "/nonexistent/r"), ("--markdown", "/nonexistent/m")]:
            done = run(*words, option, path)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(path + ": cannot be written", done.stderr)
        done = run(*words, "--png", "/tmp/never", env={"PATH": "/nonexistent"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("gnuplot-nox", done.stderr)

    def test_no_cluster_is_said(self):
        done = run("suites", "--model", MODEL, "--tasks", "niah-noise", "--coordinator", "127.0.0.1:1")
        self.assertEqual(done.returncode, 3)
        self.assertTrue(done.stderr)

    def test_every_command_has_help(self):
        for name in ["suites", "grid", "make"]:
            done = run(name, "--help")
            self.assertEqual(done.returncode, 0, name)
            self.assertIn("Usage: sluice eval " + name, done.stdout)
        self.assertIn("niah-essay", run("suites", "--list").stdout)


class Others(unittest.TestCase):
    def test_prompts_for_others_are_those_that_are_asked(self):
        words = ["--model", MODEL, "--tasks", "niah-noise,multivalue", "--lengths", "300", "--samples", "2"]
        made = lines_of(run("make", *words))
        self.assertEqual([(m["task"], m["index"]) for m in made],
                         [("niah-noise", 0), ("niah-noise", 1), ("multivalue", 0), ("multivalue", 1)])
        for m in made:
            self.assertTrue(150 < m["tokens"] <= 300)
            self.assertTrue(all(answer in m["prompt"] and answer in m["completion"] for answer in m["answers"]))
            self.assertEqual(m["metric"], "contains-all")
        self.assertEqual(made, lines_of(run("make", *words)))
        self.assertNotEqual(made, lines_of(run("make", *words, "--seed", "2")))
        # As a data set from a file they are the same questions, with the same answers.
        with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder:
            with open(os.path.join(folder, "made.jsonl"), "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"prompt": m["prompt"], "answers": m["answers"]}) + "\n" for m in made[:2])
            plan = os.path.join(folder, "plan.json")
            with open(plan, "w", encoding="utf-8") as file:
                json.dump({"title": "Made", "recipes": ["full"],
                           "datasets": [{"name": "made", "format": "sluice", "file": "made.jsonl", "max_new_tokens": 24}]}, file)
            outs = [os.path.join(folder, name) for name in "ab"]
            for out, question in zip(outs, [["--plan", plan], ["--tasks", "niah-noise", "--lengths", "300", "--samples", "2"]]):
                self.assertEqual(run("suites", "--model", MODEL, *question, "--out", out).returncode, 0)
            asked = []
            for out in outs:
                with open(out, encoding="utf-8") as file:
                    asked.append([(a["prompt"], a["answer"], a["score"]) for a in map(json.loads, list(file)[1:])])
            self.assertEqual(asked[0], asked[1])

    def test_a_grid_is_a_map(self):
        done = run("grid", "--model", MODEL, "--task", "niah-noise", "--lengths", "200,300", "--depths", "3", "--samples", "1",
                   "--recipe", "streamingllm,budget=64,chunk=64")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall(r"^ +(?:0|50|100)%  ", done.stdout, re.M)), 6)
        rows = [line["row"] for line in lines_of(run("grid", "--model", MODEL, "--task", "niah-noise", "--lengths", "200,300",
                                                     "--depths", "3", "--samples", "1", "--json"))]
        self.assertEqual([(c["depth"], c["tokens"]) for c in rows[0]["cells"]],
                         [(d, n) for d in (0, 0.5, 1) for n in (200, 300)])


if __name__ == "__main__":
    script.help_if_asked()
    script.needs_programs(os.environ.get("SLUICE_BIN", "build/bin"))
    unittest.main(verbosity=2)
