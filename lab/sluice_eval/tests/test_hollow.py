# SPDX-License-Identifier: Apache-2.0
"""Models without weights: their files, and a cluster of workers that take an accelerator's time."""
import json
import os
import pathlib
import re
import struct
import subprocess
import unittest
import urllib.request

from .support import MODEL, FolderTest, command, needs_sluice

from sluice_bench import hollow
from sluice_eval.process import find_sluice


def make(folder, *words):
    return command("--output", folder, *words, program="sluice_bench.hollow")


class Files(FolderTest):
    def test_files(self):
        folder = self.folder / "m"
        done = make(folder, "--shape", "llama-3.1-8b")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("16.1 GB", done.stdout)
        weights = folder / "model.safetensors"
        n_bytes, = struct.unpack("<Q", weights.open("rb").read(8))
        tensors = json.loads(weights.open("rb").read(8 + n_bytes)[8:])
        config = json.loads((folder / "config.json").read_text())
        end = max(tensor["data_offsets"][1] for tensor in tensors.values())
        self.assertEqual(weights.stat().st_size, 8 + n_bytes + end)
        self.assertEqual((8 + n_bytes) % 64, 0)
        self.assertEqual(tensors["model.layers.31.self_attn.k_proj.weight"]["shape"], [1024, 4096])
        self.assertLess(weights.stat().st_blocks * 512, 1 << 20)  # a hole
        self.assertIs(config["sluice_hollow"], True)
        self.assertEqual(config["eos_token_id"], json.loads(pathlib.Path(MODEL, "config.json").read_text())["eos_token_id"])

    def test_sizes_are_those_of_the_models(self):
        billions = {"llama-3.1-8b": 8.03, "llama-3.1-70b": 70.6, "qwen2.5-7b": 7.6, "qwen2.5-32b": 32.8, "smollm2-135m": 0.135}
        for shape, expected in billions.items():
            tensors = hollow.tensors_of(hollow.config_of(shape, {}))
            n = sum(size[0] * (size[1] if len(size) > 1 else 1) for size in tensors.values())
            self.assertLess(abs(n / 1e9 / expected - 1), 0.01, shape)

    def test_bad_input(self):
        self.write("something", "")
        for words, text in ((("--output", self.folder), "is not empty"), (("--output", self.folder / "n", "--tokenizer", "/nowhere"), "/nowhere"),
                            ((), "--output"), (("--shape", "gpt-5", "-o", "x"), "invalid choice")):
            done = command(*words, program="sluice_bench.hollow")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


@needs_sluice
class Cluster(FolderTest):
    def setUp(self):
        super().setUp()
        self.model = str(self.folder / "m")
        self.assertEqual(make(self.model, "--shape", "smollm2-135m").returncode, 0)
        self.sluice = find_sluice()
        self.environment = {**os.environ, "HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder)}

    def run_sluice(self, *words):
        return subprocess.run([self.sluice, *words], capture_output=True, text=True, timeout=200, env=self.environment, check=False)

    def up(self, *workers, model=None):
        return self.run_sluice("up", "--detach", "--name", "hollow", "--model", model or self.model, "--port", "0", "--http-port", "0", "--prefill", "2",
                               "--decode", "2", "--kvstore", "0", "--arena", "128M", "--ready-timeout", "60s", "--", *workers)

    def test_a_cluster_answers(self):
        done = self.up("--tier", "timed:h100", "--inject", "pace:1000")
        self.addCleanup(self.run_sluice, "down", "hollow")
        self.assertEqual(done.returncode, 0, done.stderr)
        url = "http://" + re.search(r"^ready .* http=(\S+)", done.stdout, re.M)[1]
        shipped = {}
        for recipe in ("full", "full,format=k4v2", "h2o,budget=0.25", "snapkv,budget=0.25,format=int8"):
            body = {"prompt": "word " * 1500, "max_tokens": 8, "recipe": recipe, "temperature": 0.7, "reuse": False}
            request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=100) as reply:
                answer = json.load(reply)
            self.assertEqual(answer["usage"]["completion_tokens"], 8)
            self.assertEqual(len(set(answer["choices"][0]["text"])), 1)  # one letter
            shipped[recipe] = answer["sluice"]["capsule_bytes"] / answer["sluice"]["full_bytes"]
        self.assertGreater(shipped["full"], 0.95)
        self.assertTrue(0.18 < shipped["full,format=k4v2"] < 0.27, shipped)
        self.assertTrue(0.2 < shipped["h2o,budget=0.25"] < 0.3, shipped)
        self.assertTrue(0.1 < shipped["snapkv,budget=0.25,format=int8"] < 0.17, shipped)

    def test_models_with_weights_and_hollow_ones_are_not_confused(self):
        for tier, model, text in (("timed:h100", MODEL, "sluice bench hollow"), ("auto", self.model, "only --tier timed:NAME runs it")):
            done = self.up("--tier", tier, model=model)
            if done.returncode == 0:
                self.run_sluice("down", "hollow")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
