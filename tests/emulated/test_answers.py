# SPDX-License-Identifier: Apache-2.0
"""An emulated GPU answers as the processors do: every preset, in one process, token by token. But for
format=int1: emulated tensor cores round activations to bf16, and one bit a number makes of that another text.

The host cannot access its memory, and its work is done only when a thread waits for it. So a missing wait above the table of
operations, or a device pointer that the host follows, crashes here.
"""
import json
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import script  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLUICE = os.path.join(os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin")), "sluice")
MODEL = os.path.join(ROOT, "models", "demo")
QUESTION = "What is the special magic number for lantern mentioned in the provided text? The special magic number for lantern is"
SMALL = "budget=56,chunk=64"  # so that a short text is evicted from twice, the second time of more than a page
# Axes that a preset needs in addition to SMALL, to fit a budget this small.
BESIDE = {"locret": "scope=stabilizers:32+tail:16"}
# Axes that no preset has, and formats: packed pages are attended to in other kernels.
OTHERS = [
    "full,format=f32", "full,format=bf16", "full,format=int8", "full,format=int4", "full,format=int2",
    "h2o,positions=slot," + SMALL, "h2o,when=chunk+step," + SMALL, "snapkv,heads=layer,format=int4," + SMALL,
]


def document():
    with open("/usr/share/common-licenses/GPL-3", encoding="ascii") as file:
        words = file.read().split()
    return " ".join(words[:4] + ["One of the special magic numbers for lantern is: 48213."] + words[4:10])


def run(device, recipe, *options):
    command = [SLUICE, "run", "--local", "--quiet", "--model", MODEL, "--device", device, "--recipe", recipe,
               "--prompt", document(), "--question", QUESTION, "--max-new-tokens", "4", "--ignore-eos", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def presets():
    listed = subprocess.run([SLUICE, "recipes", "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    return [json.loads(line)["name"] for line in listed.splitlines() if "name" in json.loads(line)]


def main():
    recipes = list(OTHERS)
    for name in presets():
        words = [name] + (["topk=32"] if name.startswith("tailorkv") else [] if name == "full" else [SMALL])
        recipes.append(",".join(words + ([BESIDE[name]] if name in BESIDE else [])))
    assert len(recipes) > 25, recipes
    failures = []
    for recipe in recipes:
        there = run("emulated", recipe)
        here = run("cpu", recipe)
        if here.returncode != 0:
            failures.append(f"{recipe}: on the processors: {here.stderr.strip()}")
        elif there.returncode != 0 or here.stdout != there.stdout:
            failures.append(f"{recipe}: {here.stdout!r} on the processors, {there.stdout!r} {there.stderr.strip()}")
        else:
            print(f"{recipe}: {here.stdout!r}", flush=True)
    command = [SLUICE, "profile", "--model", MODEL, "--tokens", "64", "--device", "emulated"]
    looking = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if looking.returncode == 0 or "--device emulated: this command reads tensors as the host" not in looking.stderr:
        failures.append(f"profile --device emulated: {looking.returncode} {looking.stderr}")
    unknown = run("abacus", "full")
    if unknown.returncode == 0 or 'there is no "abacus"; expected auto, cpu, cuda, cuda:N, cuda:A-B or emulated' not in unknown.stderr:
        failures.append(f"--device abacus: {unknown.returncode} {unknown.stderr}")
    large = run("emulated", "full", "--arena", "100G")
    if large.returncode == 0 or "the device has no room for a KV cache of 107374182400 bytes" not in large.stderr:
        failures.append(f"--arena 100G: {large.returncode} {large.stderr}")
    talk = [SLUICE, "chat", "--local", "--quiet", "--model", MODEL, "--device", "emulated", "-n", "2", "--arena"]
    for arena, code, words in ("100G", 3, "no room for a KV cache of 107374182400 bytes"), ("12", 2, "1M or more"), ("64M", 0, ""):
        chat = subprocess.run([*talk, arena], input="hello\n", capture_output=True, text=True, timeout=300)
        if chat.returncode != code or words not in chat.stderr:
            failures.append(f"chat --arena {arena}: {chat.returncode} {chat.stderr}")
    print("\n".join(failures) or f"{len(recipes)} recipes alike")
    return 1 if failures else 0


if __name__ == "__main__":
    script.help_if_asked()
    script.needs_programs(os.path.dirname(SLUICE))
    sys.exit(main())
