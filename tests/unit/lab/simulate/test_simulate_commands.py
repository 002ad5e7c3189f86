#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The commands `sluice simulate`, `sluice plan` and `sluice bench calibrate`."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../tools"))
import script  # noqa: E402
script.help_if_asked()
script.needs_programs(os.environ.get("SLUICE_BIN", "build/bin"))
import yaml  # noqa: E402

SLUICE = os.path.join(os.environ["SLUICE_BIN"], "sluice")
MODEL = "models/demo"
# Times of a machine that reads a token in 0.1 ms.
COSTS = {"machine": "made up", "rows": 256, "prefill": [[1, 0, 0.1], [512, 0, 51.2]],
         "decode": {recipe: [[1, 0, 10], [16, 0, 20]] for recipe in ("full", "full,format=int4")},
         "ship": {"bytes_per_s": 1e8, "latency_ms": 0.1}, "store": {"lookup_ms": 1}, "call_ms": 1}


def run(*words):
    return subprocess.run([SLUICE, *map(str, words)], capture_output=True, text=True, timeout=300)


class Commands(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.costs = self.write("costs", json.dumps(COSTS))

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def simulate(self, *words):
        return run("simulate", "-m", MODEL, "--costs", self.costs, "--input", "500-1500", "--output", "20-40", "--count", "300", *words)

    def test_a_sweep_has_a_line_for_each_rate_and_recipe(self):
        done = self.simulate("--prefill", 2, "--decode", 2, "--rate", "2,20", "--json", "full", "30%")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([(line["label"], line["request_rate"]) for line in lines],
                         [("full", 2), ("30%", 2), ("full", 20), ("30%", 20)])
        for line in lines:
            self.assertEqual(line["completed"] + line["failed"], 300)
            self.assertLessEqual(line["p50_ttft_ms"], line["p90_ttft_ms"])
            self.assertGreater(line["p50_itl_ms"], 5)
        self.assertGreater(lines[0]["capsule_bytes"], 2 * lines[1]["capsule_bytes"])  # 30% is full,format=int4
        self.assertGreater(lines[2]["p90_ttft_ms"], lines[0]["p90_ttft_ms"])
        table = self.simulate("--both", 2, "full").stdout
        self.assertIn("TTFT P50/90/99 MS", table)
        self.assertIn("made up", table)

    def test_a_plan_is_what_the_simulator_finds_enough(self):
        words = ("-m", MODEL, "--costs", self.costs, "--input", "500-1500", "--output", "20-40", "--count", "300", "--rate", "20", "--json", "full")
        done = run("plan", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        apart, both = (json.loads(line) for line in done.stdout.splitlines())
        self.assertEqual((both["prefill_workers"], both["decode_workers"], apart["aggregated_workers"]), (0, 0, 0))
        self.assertGreaterEqual(apart["prefill_workers"], 2)  # 20 prompts of 0.1 s
        self.assertGreaterEqual(both["slo_attainment"], 0.9)
        self.assertGreaterEqual(apart["slo_attainment"], 0.9)
        fewer = self.simulate("--rate", "20", "--json", "--prefill", apart["prefill_workers"] - 1, "--decode", 64, "full")
        self.assertLess(json.loads(fewer.stdout)["slo_attainment"], 0.9)
        none = run("plan", *words, "--slo", "ttft:1ms")
        self.assertEqual(none.returncode, 1, none.stderr)
        self.assertTrue(json.loads(none.stdout.splitlines()[0])["impossible"])
        longer = run("plan", *words, "--input", "100000")
        self.assertEqual(longer.returncode, 1, longer.stderr)
        self.assertIn("request 1: 100000 and ", longer.stderr)  # no number of workers helps
        self.assertEqual(longer.stderr.count("positions"), 1, longer.stderr)

    def test_roles_follow_the_load(self):
        """A minute of long prompts, for which two of four workers are too few, then one of long answers."""
        rows = [{"timestamp": 65 * i, "input_length": 1500, "output_length": 2} for i in range(920)]
        rows += [{"timestamp": 60000 + 110 * i, "input_length": 20, "output_length": 200} for i in range(600)]
        trace = self.write("trace", "".join(json.dumps(row) + "\n" for row in rows))

        def run_of(*workers):
            done = run("simulate", "-m", MODEL, "--costs", self.costs, "--trace", trace, "--json", *workers, "full")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)
        apart, both, follow = run_of("--prefill", 2, "--decode", 2), run_of("--both", 4), run_of("--both", 4, "--rebalance", "1s")
        self.assertEqual((apart["role_changes"], both["role_changes"], follow["completed"]), (0, 0, len(rows)))
        self.assertTrue(2 <= follow["role_changes"] <= 8, follow)  # one reader more, and then two writers
        self.assertGreater(follow["slo_attainment"], 0.9)
        self.assertLess(apart["slo_attainment"], 0.5)

    def test_roles_rest_under_a_constant_load(self):
        """Hundreds of windows of one load: three of six workers read at first, and each goes over once at most."""
        changes = []
        for prompt, answer in (("1000-2000", "2-10"), ("500-1500", "20-200"), ("20-100", "200-400")):
            for rate in (5, 10, 20, 60):
                done = run("simulate", "-m", MODEL, "--costs", self.costs, "--input", prompt, "--output", answer, "--count", 2000, "--rate", rate,
                           "--both", 6, "--rebalance", "1s", "--queue", 100000, "--json", "full")
                self.assertEqual(done.returncode, 0, done.stderr)
                found = json.loads(done.stdout)
                self.assertGreater(found["duration"], 90, found)
                self.assertLessEqual(found["role_changes"], 2, (prompt, answer, rate, found))
                changes.append(found["role_changes"])
        self.assertGreater(sum(changes), 8)

    def test_numbers_of_workers_follow_the_load_as_in_deploy(self):
        rows = [{"timestamp": 100 * i, "input_length": 2000, "output_length": 2} for i in range(6000)]
        trace = self.write("trace", "".join(json.dumps(row) + "\n" for row in rows))

        def run_of(*workers):
            done = self.simulate("--count", len(rows), "--trace", trace, "--json", *workers, "full")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)
        few, follow, all_of = run_of("--prefill", 1, "--decode", 1), run_of("--prefill", 6, "--decode", 3, "--autoscale", 1, "--start", "30s"), \
            run_of("--prefill", 6, "--decode", 3)
        self.assertLess(few["slo_attainment"], 0.2)
        self.assertGreater(follow["slo_attainment"], 0.5)
        self.assertLess(follow["worker_hours"], 0.8 * all_of["worker_hours"])
        self.assertAlmostEqual(all_of["worker_hours"], 9 * all_of["duration"] / 3600, 6)
        with open("lab/simulate/scale.c") as file:
            rule = dict(re.findall(r"#define (\w+) +([\d.]+)", file.read()))
        for role, waiting, second in (("prefill", "PREFILL_WAITING", "PREFILL_BUSY"), ("decode", "DECODE_WAITING", "DECODE_ARENA")):
            with open(f"deploy/components/keda/{role}.yaml") as file:
                spec = yaml.safe_load(file)["spec"]
            thresholds = {one["name"]: float(one["metadata"]["threshold"]) for one in spec["triggers"]}
            self.assertEqual(thresholds, {"waiting": float(rule[waiting]), "busy" if role == "prefill" else "arena": float(rule[second])})
            behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
            up, down = behavior["scaleUp"], behavior["scaleDown"]
            self.assertEqual((up["stabilizationWindowSeconds"], down["stabilizationWindowSeconds"]), (0, 15 * 40))  # SL_SCALE_TICKS
            self.assertEqual([up["policies"], down["policies"]],
                             [[{"type": "Pods", "value": int(rule[f"{way}_WORKERS"]), "periodSeconds": int(rule[f"{way}_S"])}] for way in ("UP", "DOWN")])

    def test_what_is_wrong_is_named(self):
        row = '{"timestamp": %s, "input_length": %s, "output_length": 1, "hash_ids": %s}\n'
        traces = {"back": (row % (5, 9, "[1]") + row % (4, 9, "[1]"), ":2"), "negative": (row % (0, -9, "[1]"), "input_length -9"),
                  "ids": (row % (0, 9, '["a"]'), "hash_ids[0]"), "text": ("hello\n", ":1")}
        for name, (text, says) in traces.items():
            done = self.simulate("--prefill", 1, "--decode", 1, "--trace", self.write(name, text))
            self.assertEqual(done.returncode, 2, name)
            self.assertIn(says, done.stderr, name)
        other = self.write("other", json.dumps({**COSTS, "shape": "2 layers of 64"}))
        for words, says in [(("--prefill", 1), "--decode"), (("--both", 1025), "1024"), (("--both", 1000, "--kvstore", 25), "at most 1024"),
                            (("--both", 1, "--costs", other), "a model with 2 layers of 64"), (("--both", 1, "--rate", "1,x"), "--rate"),
                            (("--both", 1, "--slo", "soon"), "--slo"), (("--both", 1, "--input", "9-8"), "--input"),
                            (("--both", 1, "snapkv"), "calibrate"), (("--both", 1, "--link", "fast"), "--link"),
                            (("--both", 1, "--routing", "deadline"), "--routing"), (("--both", 1, "--routing", "best"), "--routing"),
                            (("--prefill", 1, "--decode", 1, "--rebalance", "1s"), "--both"),
                            (("--prefill", 2, "--decode", 1, "--autoscale", "2"), "--autoscale 2"), (("--both", 2, "--autoscale", "1"), "no --both"),
                            (("--both", 1, "--trace", "/nonexistent"), "/nonexistent"), (("--both", 1, "--costs", "/nonexistent"), "no such file")]:
            done = self.simulate(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)

    def test_calibrate_measures_nothing_for_a_file_that_cannot_be_written(self):
        for path, says in [("/dev/null", "a device"), ("/nonexistent/costs", "No such file"), (self.folder.name, "directory")]:
            done = run("bench", "calibrate", "-m", "/nonexistent", "-o", path)  # without the model it cannot measure
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, f"{re.escape(path)}: cannot be written: .*{says}")

    def test_calibrate_keeps_the_old_table_when_it_is_stopped_or_fails(self):
        path = self.write("old", "of before")
        names = os.listdir(self.folder.name)
        for words, code, says in ((["--time-limit", "1ms"], 0, "stopped at --time-limit"), (["--recipe", "nonsense"], 2, "nonsense")):
            done = run("bench", "calibrate", "-m", MODEL, "--contexts", "64", "--batches", "1", "--link", "10", "-o", path, *words)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(says, done.stderr)
            with open(path) as file:
                self.assertEqual(file.read(), "of before")
            self.assertEqual(os.listdir(self.folder.name), names)

    def test_what_calibrate_writes_can_be_simulated(self):
        path = os.path.join(self.folder.name, "made")
        done = run("bench", "calibrate", "-m", MODEL, "--contexts", "64,256", "--batches", "1,2", "--link", "10", "-o", path, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(any("held_out" in line for line in map(json.loads, done.stdout.splitlines())))
        done = run("simulate", "-m", MODEL, "--costs", path, "--both", 1, "--count", 20, "--input", 200, "--output", 5, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([json.loads(line)["completed"] for line in done.stdout.splitlines()], [20, 20])


if __name__ == "__main__":
    unittest.main(verbosity=2)
