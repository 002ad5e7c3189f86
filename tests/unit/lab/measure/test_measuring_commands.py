#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""profile, inspect and eval as a script sees them, on models/demo: exit codes, JSON, files, and that
the same command gives the same numbers whatever the number of threads."""
import html
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../tools"))
import script  # noqa: E402
script.help_if_asked()
script.needs_programs(os.environ.get("SLUICE_BIN", "build/bin"))

SLUICE = os.path.join(os.environ["SLUICE_BIN"], "sluice")
MODEL = "models/demo"
with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as config:
    CONFIG = json.load(config)
POSITIONS = CONFIG["max_position_embeddings"]
SLOWNESS = float(os.environ.get("SLUICE_TEST_SLOWNESS", "1"))
PNG = b"\x89PNG\r\n\x1a\n"
HAS_MATPLOTLIB = subprocess.run(["python3", "-c", "import matplotlib"], capture_output=True, check=False).returncode == 0
SMALL = ["--model", MODEL, "--tokens", "300", "--continuation", "8"]


def run(*words, env=None, cwd=None):
    return subprocess.run([os.path.abspath(SLUICE), *words], capture_output=True, text=True, timeout=280, cwd=cwd,
                          env={**os.environ, **(env or {})})


def lines_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_of(done):
    """The final rows of a bench, without those of single runs and of the machine."""
    lines = lines_of(done)
    assert lines[-1]["case"] == "CPU steal" and 0 <= lines[-1]["value"] <= 100, lines[-1]
    return [line for line in lines[:-1] if not re.search(r", run \d+$", line["case"])]


class Weights(unittest.TestCase):
    def test_quantized_weights_are_smaller_and_predict_nearly_the_same(self):
        command = ["eval", "weights", "--model", MODEL, "--tokens", "300", "--json", "--threads"]
        done = run(*command, "1")
        values = {line["case"]: line["value"] for line in lines_of(done)}
        self.assertEqual(len(values), 18)
        for name, share, error, perplexity, kl, same in [("int8", 0.54, 1e-4, 0.01, 1e-3, 0.97),
                                                         ("int4", 0.29, 1e-2, 0.06, 5e-2, 0.80)]:
            self.assertLess(values[f"{name}: memory"], share * values["stored: memory"])
            self.assertTrue(0 < values[f"{name}: error"] < error)
            self.assertLess(abs(values[f"{name}: perplexity"] / values["stored: perplexity"] - 1), perplexity)
            self.assertTrue(0 < values[f"{name}: kl"] < kl)
            self.assertTrue(same < values[f"{name}: same top"] <= 1)
        self.assertEqual(values["stored: kl"], 0)
        again = {line["case"]: line["value"] for line in lines_of(run(*command, "2"))}
        self.assertEqual({c: v for c, v in again.items() if "load" not in c},
                         {c: v for c, v in values.items() if "load" not in c})


class Usage(unittest.TestCase):
    def test_wrong_usage_exits_with_2_and_says_why(self):
        for words in [
            ["eval"],
            ["eval", "dance"],
            ["eval", "fidelity"],
            ["eval", "fidelity", *SMALL, "--recipe", "nonsense"],
            ["eval", "fidelity", *SMALL, "--budget", "much"],
            ["eval", "fidelity", "--model", "/nonexistent", "--tokens", "0x10"],
            ["eval", "fidelity", "--model", MODEL, "--tokens", str(POSITIONS + 1)],
            ["eval", "fidelity", "--model", MODEL, "extra"],
            ["eval", "fidelity", *SMALL, "--weights", "int3"],
            ["eval", "perplexity"],
            ["eval", "perplexity", "--model", MODEL, "--text", "/dev/null"],
            ["eval", "perplexity", "--model", MODEL, "--recipe", "nonsense"],
            ["eval", "perplexity", "--model", MODEL, "--tokens", "255"],
            ["eval", "perplexity", "--model", MODEL, "--weights", "int3"],
            ["eval", "weights"],
            ["eval", "weights", "--model", MODEL, "--tokens", "0"],
            ["bench", "engine", "--weights", "f8"],
            ["bench", "engine", "--models", "135m,2b"],
            ["bench", "cells"],
            ["bench", "cells", "--cell", "decode:5y2"],
            ["bench", "cells", "--cell", "decode:5x65"],
            ["bench", "coordinator", "--cells", "1:1"],
            ["bench", "tiers", "--size", "300"],
            ["profile"],
            ["profile", "--model", MODEL, "--threshold", "2"],
            ["profile", "--model", MODEL, "--write", "--out", "x"],
            ["profile", "--model", MODEL, "--tokens", "100", "--out", ""],
            ["profile", "--model", MODEL, "--text", "/nonexistent"],
            ["inspect"],
            ["inspect", "LICENSE"],
            ["run", "--prompt", "hi", "--save-capsule", "x"],
            ["bench", "compress", "--recipe", "nonsense"],
            ["bench", "compress", "--runs", "0"],
            ["bench", "ttft", "--model", MODEL, "--tokens", "64", "--recipe", "nonsense"],
            ["bench", "mixed", "--long-tokens", str(POSITIONS + 1)],
            ["bench", "mixed", "--long-tokens", "100", "--short-tokens", "200"],
            ["bench", "mixed", "--synthetic", "--coordinator", "127.0.0.1:1"],
        ]:
            done = run(*words)
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            self.assertTrue(done.stderr, words)
        for words, what in [(["--recpe", "full"], 'there is no option "--recpe"; did you mean "--recipe"?'), (["extra"], "unexpected argument 'extra'")]:
            done = run("bench", "compress", *words)
            self.assertEqual(done.stderr, f"sluice bench compress: {what}; see sluice bench compress --help\n")
            self.assertEqual(done.returncode, 2)

    def test_who_measures_a_model_asks_for_one(self):
        for words in [["eval", "fidelity"], ["eval", "perplexity"], ["eval", "weights"], ["profile"], ["train-heads"]]:
            done = run(*words)
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            self.assertEqual(done.stderr, f"sluice {' '.join(words)}: --model DIR is needed\n")

    def test_a_run_says_which_recipe_it_took(self):
        for words, recipe in ([], "full,format=int8"), (["--ship-at-most", "30"], "full,format=int4"), (["--recipe", "full"], "full"):
            done = run("run", "--local", "--model", MODEL, "--prompt", "hi", "-n", "1", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"recipe       {recipe}\n", done.stderr)

    def test_a_capsule_that_cannot_be_written_is_refused_before_any_work(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in ["/nonexistent/c", folder]:
                done = run("run", "--local", "--model", MODEL, "--prompt", "hi", "--save-capsule", path, "--json")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(path + ": cannot be written", done.stderr)
                self.assertEqual(done.stdout, "")  # not even the first event
            self.assertEqual(os.listdir(folder), [])

    def test_a_prompt_that_is_too_long_stands_behind_nothing(self):
        done = run("run", "--local", "--model", MODEL, "--prompt", "hi", "-n", str(POSITIONS + 1))
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"max_new_tokens {POSITIONS + 1} exceed the model's {POSITIONS} positions", done.stderr)

    def test_every_preset_runs_as_it_is_named(self):
        for preset in [line["name"] for line in lines_of(run("recipes", "--json"))]:
            done = run("run", "--local", "--model", MODEL, "--prompt", "hi", "-n", "1", "--recipe", preset)
            if done.returncode != 0:  # what the model lacks, and nothing else
                self.assertIn("retaining_heads.safetensors", done.stderr, preset)

    def test_every_command_has_help(self):
        for words in [["eval"], ["eval", "fidelity"], ["eval", "perplexity"], ["profile"], ["inspect"], ["bench", "compress"]]:
            done = run(*words, "--help")
            self.assertEqual(done.returncode, 0, words)
            self.assertIn("Usage: sluice " + " ".join(words), done.stdout)

    def test_without_python_the_package_is_named_before_any_work(self):
        done = run("eval", "fidelity", *SMALL, "--png", "/tmp/never.png", env={"PATH": "/nonexistent"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("python3-matplotlib", done.stderr)
        self.assertEqual(done.stdout, "")


class Fidelity(unittest.TestCase):
    def test_every_preset_is_measured_or_skipped_with_the_reason(self):
        presets = [line["name"] for line in lines_of(run("recipes", "--json"))]
        found = lines_of(run("eval", "fidelity", *SMALL, "--budget", "0.3", "--json"))
        for preset in presets:
            own = [line for line in found if line["case"].split(":")[0].split(",")[0] == preset]
            self.assertTrue(own, preset)
            if "skipped" in own[0]:
                self.assertTrue(own[0]["skipped"], preset)
                continue
            values = {line["case"].split(": ")[1]: line for line in own}
            self.assertGreater(values["cache"]["value"], 0)
            self.assertTrue(0 <= values["overlap"]["value"] <= 1, preset)
            self.assertTrue(0 <= values["attention error"]["value"] < 10, preset)
            self.assertAlmostEqual(values["nll"]["value"] - values["nll"]["reference_value"],
                                   values["nll above full"]["value"], places=4)
            self.assertIn(f"attention error, layer {CONFIG['num_hidden_layers'] - 1}", values)
        measured = {line["case"]: line for line in found if "skipped" not in line}
        self.assertEqual(measured["full: attention error"]["value"], 0)
        self.assertEqual(measured["full: nll above full"]["value"], 0)
        # An equal budget: what evicts at 0.3 keeps 90 of 300 slots.
        for preset in ["h2o", "streamingllm", "snapkv", "roco"]:
            self.assertEqual(measured[f"{preset},budget=0.3: slots"]["value"], 90, preset)

    def test_the_budget_is_that_of_every_recipe_that_names_none(self):
        found = lines_of(run("eval", "fidelity", *SMALL, "--budget", "30", "--recipe", "h2o;H2O+caote;h2o, Budget=60;full", "--json"))
        slots = {line["case"]: line["value"] for line in found if line["case"].endswith(": slots")}
        self.assertEqual(slots, {"h2o,budget=30: slots": 30, "H2O+caote,budget=30: slots": 30, "h2o, Budget=60: slots": 60,
                                 "full: slots": 300})
        found = lines_of(run("eval", "perplexity", "--model", MODEL, "--tokens", "512", "--budget", "64", "--json", "--recipe",
                             "h2o;locret,budget=6000"))
        self.assertEqual([(line["case"], line["slots"], line["nothing_evicted"]) for line in found],
                         [("full", 512, False), ("h2o,budget=64", 64, False), ("locret,budget=6000", 512, True)])

    def test_where_nothing_was_evicted_the_row_says_so(self):
        done = run("eval", "fidelity", *SMALL, "--recipe", "h2o;locret")
        rows = [line for line in done.stdout.splitlines() if line.startswith(("h2o ", "locret "))]
        self.assertEqual([row.endswith("nothing was evicted") for row in rows], [False, True, False, False], done.stdout)
        done = run("run", "--local", "--model", MODEL, "--prompt", "hi", "-n", "1", "--recipe", "h2o,budget=1000")
        self.assertIn("nothing was evicted: the budget holds the whole prompt\n", done.stderr)

    def test_an_interruption_leaves_what_was_measured(self):
        recipes = ";".join(f"h2o,budget={n}" for n in range(100, 400))
        for words in (["fidelity", "--tokens", "600", "--continuation", "64"], ["perplexity", "--tokens", "512"]):
            for seconds in (1, 4, 16, 64):  # the first recipe may take long where much else goes on
                going = subprocess.Popen([SLUICE, "eval", *words, "--model", MODEL, "--recipe", recipes, "--threads", "1"],
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                time.sleep(seconds)
                going.send_signal(signal.SIGINT)
                stdout, stderr = going.communicate(timeout=60)
                self.assertEqual(going.returncode, 4, stderr)
                self.assertIn("stopped ", stderr)  # perhaps while the model was loaded
                if "h2o,budget=100 " in stdout:
                    break
            n, of = re.search(r"(\d+) of (\d+) recipes were measured", stderr).groups()
            self.assertTrue(0 < int(n) < int(of), stderr)
            self.assertIn("h2o,budget=100 ", stdout)  # its row
            self.assertIn("skipped  h2o,budget=399: stopped before it was measured", stdout)

    def test_a_signal_ends_the_wait_for_a_text(self):
        for command, number in (("fidelity", signal.SIGINT), ("perplexity", signal.SIGTERM)):
            going = subprocess.Popen([SLUICE, "eval", command, "--model", MODEL, "--text", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            going.stdin.write(b"word " * 40000)  # more than a pipe holds: that this returns says that it reads
            going.send_signal(number)
            try:
                self.assertEqual(going.wait(60), -number, command)
            finally:
                going.kill()
                going.communicate()

    def test_drawing_can_be_interrupted(self):
        with tempfile.TemporaryDirectory() as folder:
            masks = os.path.join(folder, "masks")
            with open(os.path.join(folder, "python3"), "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\nexec grep SigBlk /proc/self/status >>{masks}\n")
            os.chmod(file.name, 0o755)
            run("eval", "fidelity", *SMALL, "--recipe", "full", "--png", os.path.join(folder, "x.png"),
                env={"PATH": f"{folder}:{os.environ['PATH']}"})
            with open(masks, encoding="utf-8") as file:
                self.assertEqual([int(line.split()[1], 16) for line in file], [0, 0, 0])  # two checks, and the report

    def test_results_do_not_depend_on_threads(self):
        words = ["eval", "fidelity", *SMALL, "--recipe", "h2o,budget=0.2,format=int4;d2o", "--recipe", "tailorkv", "--json"]
        self.assertEqual(run(*words, "--threads", "1").stdout, run(*words, "--threads", "3").stdout)

    def test_what_does_not_fit_the_model_is_skipped(self):
        found = lines_of(run("eval", "fidelity", *SMALL, "--recipe", "full;full,format=f16/50-60:int4", "--json"))
        self.assertIn("layer 60", [line for line in found if "skipped" in line][0]["skipped"])
        done = run("eval", "fidelity", *SMALL, "--recipe", "full,format=f16/50-60:int4")
        self.assertEqual(done.returncode, 1)
        self.assertIn("skipped", done.stdout)

    @unittest.skipUnless(HAS_MATPLOTLIB, "needs matplotlib")
    def test_a_picture_is_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "fidelity.png")
            done = run("eval", "fidelity", *SMALL, "--recipe", "full;h2o", "--png", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, "rb") as file:
                self.assertEqual(file.read(8), PNG)
            self.assertEqual(os.listdir(folder), ["fidelity.png"])


class Perplexity(unittest.TestCase):
    WORDS = ["eval", "perplexity", "--model", MODEL, "--tokens", "512"]

    def test_full_is_what_the_other_evaluation_finds(self):
        full = lines_of(run(*self.WORDS, "--recipe", "full", "--json"))
        weights = lines_of(run("eval", "weights", "--model", MODEL, "--tokens", "512", "--json"))
        stored = [line["value"] for line in weights if line["case"] == "stored: perplexity"][0]
        self.assertEqual([line["case"] for line in full], ["full"])
        self.assertAlmostEqual(full[0]["perplexity"] / stored, 1, places=4)
        self.assertEqual([full[0][name] for name in ["above_full", "low", "high"]], [0, 0, 0])

    def test_presets_are_measured_at_equal_budget_or_skipped_with_the_reason(self):
        presets = [line["name"] for line in lines_of(run("recipes", "--json"))]
        words = [*self.WORDS, "--budget", "64", "--text", "LICENSE", "--text", "README.md", "--json", "--threads"]
        done = run(*words, "1")
        found = {line["case"].split(",")[0]: line for line in lines_of(done)}
        self.assertEqual(set(found), set(presets))
        full = found["full"]
        for name in ["streamingllm", "h2o", "tova", "roco+caote", "random"]:
            line = found[name]
            self.assertEqual((line["slots"], line["most_slots"], line["tokens"]), (64, 96, 1024), name)
            self.assertEqual(len(line["curve"]), 2)
            self.assertAlmostEqual(line["nll"] - full["nll"], line["above_full"], places=6)
            self.assertLessEqual(line["low"], line["above_full"])
            self.assertLessEqual(line["above_full"], line["high"])
            logs = [math.log(perplexity) for perplexity in line["curve"]]
            self.assertAlmostEqual(statistics.mean(logs), line["nll"], places=5)  # texts of equal length
        for name in ["snapkv", "d2o", "tailorkv"]:
            self.assertIn("a prompt", found[name]["skipped"])
        self.assertEqual(run(*words, "3").stdout, done.stdout)

    def test_nothing_that_streams_is_a_failure_with_its_reasons(self):
        done = run(*self.WORDS, "--recipe", "snapkv;full,format=int4")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("when=end", done.stdout)
        self.assertIn("format=int4", done.stdout)

    @unittest.skipUnless(HAS_MATPLOTLIB, "needs matplotlib")
    def test_a_picture_is_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "perplexity.png")
            done = run(*self.WORDS, "--recipe", "h2o,budget=64", "--png", path)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(path, "rb") as file:
                self.assertEqual(file.read(8), PNG)
            self.assertEqual(os.listdir(folder), ["perplexity.png"])


class Profile(unittest.TestCase):
    def test_the_profile_is_written_beside_the_model_and_used(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(MODEL, model)
            path = os.path.join(model, "sluice_profile.json")
            if os.path.exists(path):
                os.remove(path)
            words = ["profile", "--model", model, "--tokens", "400", "--threshold", "0.1", "--json"]
            before = sorted(os.listdir(model))
            other = os.path.join(folder, "profile.json")
            dry = lines_of(run(*words, "--out", other))[0]
            self.assertEqual(dry.pop("path"), other)
            with open(other, encoding="utf-8") as file:
                self.assertEqual(json.load(file), dry)
            self.assertEqual(lines_of(run(*words))[0], dry)
            self.assertEqual(sorted(os.listdir(model)), before)  # it is the model's, which only --write changes
            found = lines_of(run(*words, "--write", "--text", "LICENSE", "--text", "LICENSE"))[0]
            with open(path, encoding="utf-8") as file:
                profile = json.load(file)
            self.assertEqual(profile["version"], 1)
            self.assertEqual(profile["dense_layers"], found["dense_layers"])
            self.assertEqual(len(profile["dense_preference"]), CONFIG["num_hidden_layers"])
            self.assertIn(0, profile["dense_layers"])
            self.assertEqual(found.pop("path"), path)
            self.assertEqual(found, profile)
            self.check_statistics(profile)
            # Twice the same text is the same mean, and no text is this one.
            for a, b in zip(dry["dense_preference"], profile["dense_preference"]):
                self.assertAlmostEqual(a, b, places=5)
            self.assertEqual([l for l, p in enumerate(profile["dense_preference"]) if p > 0.1 or l == 0],
                             profile["dense_layers"])
            # A model with it loads, and its dense layers are what the recipe's format applies to.
            self.write_dense(path, profile, [0, 2])
            done = run("run", "--local", "--model", model, "--prompt-file", "LICENSE", "-n", "1", "--quiet", "--recipe",
                       "full,format=f16/dense:int4", "--save-capsule", os.path.join(folder, "c"))
            self.assertEqual(done.returncode, 0, done.stderr)
            layers = lines_of(run("inspect", os.path.join(folder, "c"), "--json"))[0]["layers"]
            self.assertEqual([l["layer"] for l in layers if l["packed_pages"] > 0], [0, 2])

    def check_statistics(self, profile):
        a = profile["attention"]
        self.assertEqual(a["texts"], 2)
        for layer, mean in enumerate(profile["dense_preference"]):
            self.assertAlmostEqual(mean, statistics.mean(a["dense_preference"][layer]), places=5)
            for head in range(CONFIG["num_key_value_heads"]):
                of = {name: rows[layer][head] for name, rows in a.items() if isinstance(rows, list)}
                self.assertEqual(len(of), 9)
                self.assertTrue(0 <= of["first_1"] <= of["first_4"] <= of["first_64"] <= 1 + 1e-6, of)
                self.assertTrue(0 <= of["last_64"] <= 1 + 1e-6, of)
                self.assertTrue(0 < of["slots_90"] <= of["slots_95"] <= of["slots_99"] <= 1, of)
                self.assertTrue(1 <= of["effective_slots"] <= 400, of)

    @unittest.skipUnless(HAS_MATPLOTLIB, "needs matplotlib")
    def test_a_picture_is_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "profile.png")
            done = run("profile", "--model", MODEL, "--tokens", "300", "--png", path)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(path, "rb") as file:
                self.assertEqual(file.read(8), PNG)
            self.assertEqual(os.listdir(folder), ["profile.png"])

    def write_dense(self, path, profile, layers):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**profile, "dense_layers": layers}, file)


class Inspect(unittest.TestCase):
    def test_a_page_shows_what_is_kept_of_each_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            path, text, page = (os.path.join(folder, name) for name in ("capsule", "text", "page.html"))
            words = "First <of> all. " + "It goes on & on. " * 60 + "This is the last sentence."
            with open(text, "w", encoding="utf-8") as file:
                file.write(words)
            shares = {}
            for recipe in "full", "snapkv,budget=0.25":
                done = run("run", "--local", "--model", MODEL, "--prompt-file", text, "-n", "2", "--recipe", recipe, "--save-capsule", path)
                self.assertEqual(done.returncode, 0, done.stderr)
                done = run("inspect", path, "--html", page, "--model", MODEL, "--text", text)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                with open(page, encoding="utf-8") as file:
                    written = file.read()
                shown = html.unescape(re.sub("<[^>]*>", "", written.split("<pre>\n")[1].split("\n</pre>")[0]))
                self.assertEqual(shown.replace("<|endoftext|>", ""), words)
                shares[recipe] = [float(share) for share in re.findall(r'title="sentence \d+: ([\d.]+)%', written)]
                self.assertIn(f"{100 if recipe == 'full' else 25}.", re.search(r"([\d.]+)% of their slots", written).group(1))
                self.assertNotIn("http", written)  # it needs no other file
            self.assertEqual(set(shares["full"]), {100.0})
            self.assertEqual(len(shares["full"]), 62)
            self.assertGreater(len(set(shares["snapkv,budget=0.25"])), 10)
            os.remove(page)
            with open(text + "2", "w", encoding="utf-8") as file:
                file.write("Another text. " * 200)
            for more, why in ((["--text", text + "2"], "is not of this text"), ([], "--text FILE"), (["--text", folder + "/no"], "No such file")):
                done = run("inspect", path, "--html", page, "--model", MODEL, *more)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(why, done.stderr)
            self.assertEqual(run("inspect", path, "--html", page).returncode, 2)
            self.assertFalse(os.path.exists(page))

    def test_a_page_depends_on_no_locale_and_no_module_of_the_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in ("text", "O\u00f9 est-il? " * 20), ("html.py", "raise SystemExit(9)"):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(content)
            model = os.path.abspath(MODEL)
            done = run("run", "--local", "--model", model, "--prompt-file", "text", "-n", "2", "--save-capsule", "capsule", cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            done = run("inspect", "capsule", "--html", "it's a page", "--model", model, "--text", "text", cwd=folder,
                       env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(os.path.join(folder, "it's a page"), encoding="utf-8") as file:
                self.assertIn("O\u00f9 est-il?", file.read())

    def test_a_saved_capsule_tells_what_it_holds(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "capsule")
            done = run("run", "--local", "--model", MODEL, "--prompt-file", "LICENSE", "-n", "2", "--json", "--recipe",
                       "h2o,budget=256,format=int4", "--save-capsule", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = lines_of(run("inspect", path, "--json"))[0]
            self.assertEqual(sum(layer["bytes"] for layer in found["layers"]), found["body_bytes"])
            self.assertEqual(sum(found["bytes_by_format"].values()), found["body_bytes"])
            self.assertEqual({layer["slots_mean"] for layer in found["layers"]}, {256})
            self.assertTrue(found["evicted"])
            self.assertEqual(found["recipe"], "h2o,budget=256,format=int4")
            text = run("inspect", path).stdout
            self.assertIn("h2o,budget=256,format=int4", text)
            if HAS_MATPLOTLIB:
                png = os.path.join(folder, "map.png")
                self.assertEqual(run("inspect", path, "--png", png).returncode, 0)
                with open(png, "rb") as file:
                    self.assertEqual(file.read(8), PNG)
            odd = os.path.join(os.fsencode(folder), b"c\xff") # a file name is any bytes, JSON is UTF-8
            shutil.copy(path, odd)
            self.assertEqual(lines_of(run("inspect", odd, "--json"))[0]["body_bytes"], found["body_bytes"])
            with open(path, "r+b") as file: # damage the last page
                file.seek(-10, os.SEEK_END)
                file.write(b"\xff" * 5)
            done = run("inspect", path)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("digest", done.stderr)

    def test_a_pipe_is_refused_and_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pipe")
            os.mkfifo(path)
            done = run("inspect", path)
            self.assertEqual(done.returncode, 2)
            self.assertIn("not a file", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
