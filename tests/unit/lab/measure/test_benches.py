#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The benches as a script sees them, on models/demo: rows, exit codes, limits of time."""
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

from test_measuring_commands import MODEL, SLOWNESS, SLUICE, lines_of, rows_of, run

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../lab/sluice_eval"))
from sluice_bench.ship import IN_PIECES  # noqa: E402


class Tiers(unittest.TestCase):
    def test_every_cell_has_one_chosen_tier_and_steps_with_codes_the_bits_of_plain_c(self):
        command, cells = ["bench", "tiers", "--size", "256", "--seconds", "0", "--json"], {}
        for row in rows_of(run(*command)):
            cells.setdefault(row["case"], []).append(row)
            self.assertGreater(row["value"], 0)
            if row["case"][0] in "Qi" and not row["case"].endswith(" 512"):
                self.assertEqual(row["error"], 0, row)
        self.assertEqual(len(cells), 13 * 4)
        for case, rows in cells.items():
            self.assertEqual([row["chosen"] for row in rows].count(True), 1, case)
        named = rows_of(run(*command, "--only", "Q4_K", env={"SLUICE_TIER": "avx2"}))
        self.assertEqual({row["tier"] for row in named if row["chosen"]}, {"avx2"})
        plain = rows_of(run(*command, "--only", "Q4_K", env={"SLUICE_TIER": "reference"}))
        self.assertFalse(any(row["chosen"] for row in plain))


class Compress(unittest.TestCase):
    def test_every_recipe_stands_beside_the_full_cache(self):
        found = rows_of(run("bench", "compress", "--tokens", "256", "--runs", "1", "--recipe", "h2o,budget=0.5",
                            "--recipe", "kvzip,budget=0.5", "--recipe", "full,format=int4", "--json"))
        self.assertEqual([line["case"].split(", ", 1)[1] for line in found],
                         ["full", "h2o,budget=0.5", "kvzip,budget=0.5", "full,format=int4"])
        self.assertNotIn("reference", found[0])
        for line in found[1:]:
            self.assertEqual(line["reference"], "full")
            self.assertGreater(line["ratio"], 0)


class Engine(unittest.TestCase):
    def test_every_cell_stands_beside_its_bound(self):
        found = rows_of(run("bench", "engine", "--model", MODEL, "--models", "none", "--max-tokens", "600", "--runs", "1",
                            "--breakdown", "--json"))
        cells = {line["case"]: line for line in found}
        self.assertTrue(found[0]["case"].startswith("read bound: a sum over "))
        for case, reference in [("prefill:512", "GEMM peak, GFLOP/s"), ("decode:512", "read bound, GB/s"),
                                ("decode:512x16", "batch 1, tokens/s")]:
            line = cells[f"{MODEL}: {case}"]
            self.assertEqual((line["unit"], line["reference"]), ("tokens/s", reference))
            self.assertGreater(line["ratio"], 0)
        memory = cells[f"{MODEL}: memory over the weights"]["value"]
        self.assertTrue(0 < cells[f"{MODEL}:   of it the KV cache"]["value"] < memory)
        # The operations of a cell and the rest are all of its time.
        shares = [line["ratio"] for line in found if line["case"].startswith(f"{MODEL}: prefill:512  ")]
        self.assertGreater(len(shares), 8)
        self.assertAlmostEqual(sum(shares), 1, places=2)

    def test_an_interrupt_leaves_no_random_model_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            if shutil.disk_usage(folder).free < 3 << 30:
                self.skipTest("a random model of 1b takes 2.5 GB")
            bench = subprocess.Popen([SLUICE, "bench", "engine", "--models", "1b"], stderr=subprocess.PIPE, text=True,
                                     stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": folder})
            while not os.listdir(folder) and bench.poll() is None:
                time.sleep(0.01)
            bench.send_signal(signal.SIGINT)
            stderr = bench.communicate(timeout=120)[1]
            self.assertEqual(bench.returncode, 4, stderr)
            self.assertIn("stopped by a signal", stderr)
            self.assertEqual(os.listdir(folder), [])


class Mixed(unittest.TestCase):
    def test_short_prompts_alone_stand_beside_those_with_company(self):
        small = ["--long-tokens", "1200", "--short-tokens", "64", "--short-jobs", "3", "--rounds", "1", "--arena", "64M"]
        for words in [[], ["--synthetic"]]:
            found = rows_of(run("bench", "mixed", *small, *words, "--json"))
            self.assertEqual([line["case"].split(",")[0] for line in found],
                             ["p50 ttft", "p50 ttft", "p99 ttft", "p99 ttft", "ttft", "what the short jobs cost the long one"])
            for line in found[1:5:2] + found[4:5]:
                self.assertEqual(line["reference"], "alone")
                self.assertGreater(line["ratio"], 0)


class Ships(unittest.TestCase):
    def test_every_line_ships_each_shape_once(self):
        done = subprocess.run([SLUICE, "bench", "ships", "--transport", "shm"], input="\n\n", capture_output=True, text=True, timeout=280)
        self.assertEqual(done.returncode, 0, done.stderr)
        rounds = lines_of(done)
        self.assertEqual(len(rounds), 2)
        for rates in rounds:
            self.assertLessEqual({*IN_PIECES, *IN_PIECES.values()}, set(rates))
            self.assertGreater(min(rates.values()), 0)

    def test_a_transport_that_is_none_is_named(self):
        for words in (["bench", "ship", "--transport", "pigeon"], ["bench", "ship", "--transport", "tls"], ["bench", "ships", "--transport", "tls"]):
            done = run(*words)
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            self.assertIn("--transport", done.stderr)
        done = subprocess.run([SLUICE, "bench", "ships", "--transport", "pigeon"], input="\n", capture_output=True, text=True, timeout=280)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("pigeon", done.stderr)


class Store(unittest.TestCase):
    SMALL = ["--largest", "64K", "--clients", "2", "--entries", "5000", "--runs", "1", "--json"]

    def check(self, found):
        puts = [f"{call} 64 KiB over {way}, {rest}" for way in ("shm", "tcp")
                for call, rest in (("PUT", "1 client"), ("GET", "1 client"), ("GET", "1 client: look-up"), ("GET", "1 client: fetch"),
                                   ("PUT", "2 clients"), ("GET", "2 clients"))]
        self.assertEqual([line["case"] for line in found],
                         ["memory of the index", "look-up of 128k tokens, half of them stored, among 5120 entries", *puts,
                          "look-up of 128k tokens, one client, by gRPC"])
        for line in found:
            self.assertGreater(line["value"], 0, line)
        self.assertTrue(50 < found[0]["value"] < 500, found[0])

    @unittest.skipUnless(shutil.which("redis-server"), "no redis-server is installed")
    def test_capsules_and_redis_by_turns(self):
        found = rows_of(run("bench", "store", *self.SMALL))
        self.check(found)
        both = [line.get("reference") for line in found[2:14] if ": " not in line["case"]]
        self.assertEqual(both, ["redis, Unix socket"] * 4 + ["redis, TCP"] * 4)

    def test_without_redis_the_store_is_measured_alone(self):
        done = run("bench", "store", *self.SMALL, env={"PATH": "/nowhere"})
        self.assertIn("no redis-server is in PATH (package redis-server): the store is measured alone\n", done.stderr)
        self.check(rows_of(done))


class Limits(unittest.TestCase):
    def test_every_bench_stops_at_its_limit_with_the_rows_that_it_has(self):
        tiny = ["--rows", "64", "--slots", "64", "--hidden-size", "64", "--ffn", "64", "--vocab", "64", "--heads", "4", "--kv-heads", "2", "--copy", "1M"]
        benches = {
            "engine": ["--models", "none", "--model", MODEL, "--runs", "101", "--seconds", "60"],
            "calibrate": ["--model", MODEL, "--link", "10", "--out", os.path.join(tempfile.gettempdir(), f"costs-{os.getpid()}.json")],
            "cells": ["--model", MODEL, *["--cell", "prefill:64"] * 2, "--runs", "101", "--cell", "prefill:4096"],
            "kernels": [*tiny, "--runs", "101", "--seconds", "60"],
            "tiers": ["--size", "256", "--seconds", "9"],
            "compress": ["--model", MODEL, "--tokens", "256", "--runs", "31"],
            "decode": ["--model", MODEL, "--tokens", "1024", "--steps", "4096"],
            "ttft": ["--model", MODEL, "--tokens", "64", "--runs", "32", "--tier", "avx2"],
            "mixed": ["--model", MODEL, "--long-tokens", "256", "--short-tokens", "32", "--short-jobs", "2", "--rounds", "16"],
            "ship": ["--transport", "shm", "--tokens", "0"],
            "coordinator": ["--model", MODEL, "--cells", "4:8,4:8", "--seconds", "60"],
            "store": ["--largest", "64K", "--clients", "2", "--entries", "2048", "--runs", "128"],
        }
        offered = re.findall(r"^  (\w+) ", run("bench", "--help").stdout, re.M)
        # memory and evict time nothing; cluster's runs have a --duration; ships are as many as there are lines; jobs and waiting are parts of coordinator
        self.assertEqual(sorted(offered), sorted([*benches, "cluster", "documents", "evict", "hollow", "jobs", "memory", "ships", "waiting"]))
        for name, words in benches.items():
            limit = 2 if name in ("cells", "kernels") else 1
            began = time.monotonic()
            done = run("bench", name, *words, "--time-limit", f"{limit}s", "--json")
            seconds = time.monotonic() - began
            self.assertEqual(done.returncode, 0, (name, done.stderr))
            lines = lines_of(done)
            self.assertEqual((lines[-1]["bench"], lines[-1]["case"]), ("machine", "CPU steal"), name)
            if seconds > limit:
                self.assertIn(f"sluice bench {name}: stopped at --time-limit", done.stderr)
            self.assertLess(seconds, 45 * SLOWNESS, name)  # some seconds where nothing else runs
            if name in ("cells", "kernels"):  # the others' first row may take longer
                self.assertGreater(len(lines), 1, (name, done.stderr))

    def test_kernels_end_before_there_are_data(self):
        lines = lines_of(run("bench", "kernels", "--time-limit", "1ms", "--json"))
        self.assertEqual([line["case"] for line in lines], ["CPU steal"])

    def test_ttft_has_the_kernels_of_the_environment(self):
        done = run("bench", "ttft", "--model", MODEL, "--tokens", "64", "--runs", "1", env={"SLUICE_TIER": "abacus"})
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, "(prefill|decode)-0 exited with code 2\n")  # no processor has such kernels

    def test_rows_are_there_before_the_bench_ends(self):
        with subprocess.Popen([SLUICE, "bench", "compress", "--model", MODEL, "--tokens", "128", "--runs", "31", "--recipe", "full,format=int4", "--json"],
                              stdout=subprocess.PIPE, text=True) as bench:
            first = json.loads(bench.stdout.readline())
            bench.send_signal(signal.SIGINT)
            rest = [json.loads(line) for line in bench.stdout]
            self.assertEqual(bench.wait(timeout=60), 4)
        self.assertTrue(first["case"].endswith(", run 1"), first)
        self.assertLess(len(rest), 2 * 31)


if __name__ == "__main__":
    unittest.main(verbosity=2)
