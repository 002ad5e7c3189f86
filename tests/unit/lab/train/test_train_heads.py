#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""train-heads as a script sees it, on models/demo: what it refuses, that it learns, that a run which was stopped or killed
comes to the same file, and that the engine loads it."""
import json
import os
import pathlib
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
HEADS = "retaining_heads.safetensors"
SMALL = ["--task", "passkey:200-300", "--task", "code:200", "--hidden", "24", "--prompts", "12", "--lr", "0.01"]


def command(*words):
    return [SLUICE, "train-heads", "--model", MODEL, *map(str, words)]


def run(*words):
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=280)


class TrainHeads(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / HEADS
        self.checkpoint = self.folder / (HEADS + ".checkpoint")

    def write(self, name, *lines):
        (self.folder / name).write_text("".join(line + "\n" for line in lines))
        return self.folder / name

    def assert_refused(self, code, words, *expected):
        done = run(*words, "--out", self.out)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        for text in expected:
            self.assertIn(text, done.stderr)
        self.assertFalse(self.out.exists())

    def assert_runs(self):
        """The engine takes the heads in self.out for the model's."""
        for name in os.listdir(MODEL):
            if name != HEADS:
                (self.folder / name).symlink_to(pathlib.Path(MODEL).resolve() / name)
        text = self.write("text", "A sentence of some words. " * 40)
        answer = subprocess.run([SLUICE, "run", "--local", "--model", self.folder, "--recipe",
                                 "locret,budget=64,scope=stabilizers:16+tail:16,chunk=64", "--prompt-file", text, "--question",
                                 "What?", "--max-new-tokens", "2"], capture_output=True, text=True, timeout=280)
        self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_what_cannot_be_is_refused_by_name(self):
        row = json.dumps({"prompt": "The code of apple is", "answer": " 1234."})
        good, bad, short = (self.write("good", row), self.write("bad", row, "", '{"prompt": "x"}'),
                            self.write("short", row, row, json.dumps({"prompt": "", "answer": "1"})))
        self.assert_refused(2, [], "--data FILE or --task NAME")
        self.assert_refused(2, ["--task", "dance"], "dance", "niah-essay", "code-4")
        self.assert_refused(2, ["--task", "passkey:500-400"], "NAME:MIN-MAX")
        self.assert_refused(2, ["--task", "multikey-16:300"], "does not fit into a prompt of 300 tokens")
        self.assert_refused(2, ["--data", good, "--prompts", 1, "--batch", 2], "--prompts 1 is below --batch 2")
        self.assert_refused(2, ["--data", good, "--dtype", "f8"], "--dtype f8", "bf16")
        self.assert_refused(2, ["--data", good, "--hidden", 0], "hidden")
        self.assert_refused(2, ["--data", bad], f"{bad}:3")
        self.assert_refused(2, ["--data", short, "--prompts", 3], f"{short}:3", "empty")
        self.assert_refused(1, ["--data", self.folder / "none"], str(self.folder / "none"))
        self.assert_refused(1, ["--task", "niah-essay", "--text", self.folder / "none"], str(self.folder / "none"))
        self.assert_refused(2, ["--steps", 0, "--png", self.folder / "curve.png"], "no curve of --steps 0")
        self.assert_refused(2, [*SMALL, "--memory", "1M"], "12 prompts take", "1.0 MiB", "--prompts 0")
        self.assertNotEqual(run("--data", good, "--steps", 1, "--out", "/nonexistent/heads").returncode, 0)

    def test_a_system_without_python_is_told_what_is_needed(self):
        for environment, said in [({"PATH": "/nonexistent"}, "package python3"), ({"PYTHONHOME": "/nonexistent"}, "python3-numpy")]:
            done = subprocess.run(command(*SMALL, "--steps", 1, "--out", self.out), capture_output=True, text=True, timeout=280,
                                  env={**os.environ, **environment})
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)

    def test_a_run_that_diverges_writes_no_heads(self):
        self.assert_refused(2, [*SMALL, "--steps", 60, "--lr", 1000, "--clip", 0], "training has diverged")

    def test_heads_learn_and_the_engine_loads_them(self):
        done = run(*SMALL, "--steps", 60, "--batch", 2, "--every", 20, "--json", "--png", self.folder / "curve.png",
                   "--out", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        *steps, end = map(json.loads, done.stdout.splitlines())
        self.assertEqual([line["step"] for line in steps], [20, 40, 60])
        self.assertLess(steps[2]["smooth_l1"], 0.8 * steps[0]["smooth_l1"])
        self.assertGreater(steps[2]["overlap"], steps[0]["overlap"])
        self.assertEqual(end["path"], str(self.out))
        self.assertEqual((self.folder / "curve.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertFalse(self.checkpoint.exists())
        self.assert_runs()

    def test_untrained_heads_follow_from_their_seed_alone(self):
        files = {}
        for name, seed, more in [("a", 7, ["--json"]), ("b", 7, ["--data", "/nonexistent"]), ("c", 8, [])]:
            out = self.folder / name
            done = run("--steps", 0, "--hidden", 24, "--seed", seed, "--out", out, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(str(out), done.stdout)
            files[name] = out.read_bytes()
        self.assertEqual(files["a"], files["b"])
        self.assertNotEqual(files["a"], files["c"])
        os.rename(self.folder / "a", self.out)
        self.assert_runs()
        done = run("--steps", 0)  # the model's own heads stay what they are
        self.assertEqual(done.returncode, 2)
        self.assertIn("--out FILE", done.stderr)

    def test_rows_come_by_turns_with_tasks_and_are_read_anew_without_a_pool(self):
        data = self.write("data", *(json.dumps({"prompt": f"The code of apple is {i}. It is", "answer": f" {i}."})
                                    for i in range(3)))
        done = run("--data", data, "--task", "passkey:60", "--hidden", 8, "--steps", 8, "--every", 4, "--out", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 4 of 8: loss", done.stderr)
        self.assertIn(str(self.out), done.stdout)

    def stop(self, sign, wanted):
        """Send a signal once the run has written a checkpoint; the exit code must be as wanted."""
        child = subprocess.Popen(command(*SMALL, "--steps", 400, "--save-every", "20ms", "--out", self.out),
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while not self.checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        child.send_signal(sign)
        _, complaint = child.communicate(timeout=120)
        self.assertEqual(child.returncode, wanted, complaint)
        self.assertTrue(self.checkpoint.exists())
        self.assertFalse(self.out.exists())
        return complaint

    def test_a_run_that_is_stopped_and_continued_goes_on(self):
        """As Ctrl-Z and fg do, while it waits for its trainer, too."""
        child = subprocess.Popen(command("--task", "passkey:80", "--hidden", 8, "--steps", 40, "--out", self.out),
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while child.poll() is None:
            child.send_signal(signal.SIGSTOP)
            time.sleep(0.001)
            child.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        self.assertEqual(child.returncode, 0, child.communicate()[1])

    def test_a_run_that_was_stopped_and_killed_comes_to_the_same_file(self):
        whole = run(*SMALL, "--steps", 400, "--out", self.folder / "whole", "--threads", 1)
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertIn(str(self.checkpoint), self.stop(signal.SIGINT, 4))
        self.stop(signal.SIGKILL, -signal.SIGKILL)
        other = run(*SMALL, "--steps", 400, "--seed", 1, "--out", self.out)
        self.assertEqual(other.returncode, 1)
        self.assertIn("was made with --seed 0, now it is 1", other.stderr)
        other = run(*SMALL, "--steps", 400, "--task", "kv:400", "--out", self.out)
        self.assertEqual(other.returncode, 1)
        self.assertIn("--task", other.stderr)
        done = run(*SMALL, "--steps", 400, "--out", self.out, "--threads", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("going on from step", done.stderr)
        self.assertEqual(self.out.read_bytes(), (self.folder / "whole").read_bytes())
        self.assertFalse(self.checkpoint.exists())


if __name__ == "__main__":
    script.help_if_asked()
    script.needs_programs(os.environ.get("SLUICE_BIN", "build/bin"))
    if subprocess.run(["python3", "-c", "import numpy"], check=False).returncode != 0:
        print("skipped: NumPy is missing (python3-numpy)")
        sys.exit(77)
    unittest.main()
