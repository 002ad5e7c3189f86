#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`sluice bench memory` says without computing what a device's memory holds at most when all of it is computed: on the emulated device, which
counts its blocks. And longer prompts take more, but for recipes that evict.

    test_memory.py      with SLUICE_BIN
"""
import json
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402
script.help_if_asked()
script.needs_programs(os.environ.get("SLUICE_BIN", "build/bin"))

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "models", "demo")


def bench(recipe, tokens, *options):
    command = [os.path.join(os.environ["SLUICE_BIN"], "sluice"), "bench", "memory", "--model", MODEL, "--recipe", recipe,
               "--tokens", str(tokens), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{recipe}: {done.stderr}"
    return json.loads(done.stdout)


for recipe in ("h2o,budget=48,chunk=64,format=int4", "locret,budget=48,scope=stabilizers:8+tail:8,chunk=64"):
    said, did = bench(recipe, 130), bench(recipe, 130, "--compute")
    assert said == did, f"{recipe}: {said}, and computing {did}"
    assert said["peak_bytes"] >= said["weight_bytes"] + said["engine_bytes"] + said["held_bytes"], said
    assert said["held_bytes"] <= said["arena_bytes"], said
    longer = bench(recipe, 2000)
    assert longer["arena_bytes"] == said["arena_bytes"], f"{recipe}: {said}, of a longer prompt {longer}"
assert bench("full", 2000)["arena_bytes"] > 3 * bench("full", 500)["arena_bytes"]
print("what is said is what is taken")
