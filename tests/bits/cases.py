# SPDX-License-Identifier: Apache-2.0
"""
The recorded cases: recipes at a size at which they evict from a short prompt, prompts, tiers.

To add a recipe: a line in MORE. Presets are taken from `sluice recipes`, so a new one is a case by itself.
"""
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin")))
SLUICE = os.path.join(BIN, "sluice")
MODEL = os.path.join(ROOT, "models", "demo")

# Chunk sizes of recipes (multiples of a page), and the length of the long prompt. The reference is plain C: it gets less to read.
TIERS = {"reference": ((64, 128), 300), "avx2": ((64, 256), 1500), "avx512": ((64, 256), 1500), "avx512bf16": ((64, 256), 1500),
         "amx2": ((64, 256), 1500), "amx": ((64, 256), 1500)}
MAIN_TIERS = ("reference", "avx2")  # of the others --quick checks only a few recipes, and nothing in clusters
N_TOKENS = 12  # of every answer
QUESTION, NEXT_QUESTION, OTHER_QUESTION = "What is this?", "And what else?", "Who may use it, and what for?"

# Presets of fixed budgets would keep everything of prompts as short as these.
SIZES = {"full": "", "tailorkv": "topk=16", "tailorkv-1": "topk=16", "tailorkv-near": "topk=16",
         "locret": "budget=0.4,scope=stabilizers:64+tail:32"}
EVICTS = "budget=0.4"
# Axes and formats that no preset names.
MORE = {
    "f32": "full,format=f32",
    "bf16": "full,format=bf16",
    "int8": "full,format=int8",
    "int4": "full,format=int4",
    "int3": "full,format=int3",
    "k4v3": "full,format=k4v3",
    "k4v2": "full,format=k4v2",
    "int1": "full,format=f16/2-:int1",
    "steps": "h2o,budget=0.4,when=chunk+step",
    "steps at the end": "tova,budget=100,when=end+step",
    "slots": "streamingllm,budget=80,when=chunk+step",
    "drop": "d2o,budget=0.4,evicted=drop",
    "merge": "h2o,budget=0.4,evicted=merge,when=end,format=f16/3-:int2",
    "adaptive": "adakv,budget=128,layers=pyramid,format=int4",
    "caote-heads": "tova,budget=0.4,value=caote-heads,exempt=0",
    "packed": "h2o,budget=0.4,format=f16/2-:int4",
    "offload": "full,format=f16/0-1:int2,place=offload/2-,topk=16",
    "ahead": "tailorkv,topk=16,retrieve=near,ahead=1,scan=int8,keep=64",
    "one bit": "tailorkv,topk=16,retrieve=near,scan=int1",
    "exact": "full,place=offload/2-,topk=16",
    "boundary": "h2o,budget=80",
    "repeated": "kvzip,score=reconstruct_sum,budget=0.4,heads=adaptive,format=int4",
    "pages": "kvzip,budget=0.4,heads=pages,format=int4",
    "global": "h2o,budget=0.4,scope=sinks:4,heads=global,when=end",
    "thin": "tailorkv,topk=16,score=cis,budget=0.5,when=chunk",
}
# Asked another question about the prompt that is in the store. Those of full precision, and those that go on from a state between
# two chunks, must give what they give when all is read anew; a quantized cache goes on from quantized pages.
RESUMED_EXACTLY = ("full", "f32", "bf16", "boundary", "slots", "exact")
RESUMED_IN_PART = RESUMED_EXACTLY + ("int8", "int4", "k4v2", "tailorkv", "tailorkv-near")
# The recipes of `make test`: one of every kind.
QUICK = ("full", "streamingllm", "h2o", "snapkv", "d2o", "locret", "tailorkv", "tailorkv-near", "int4", "steps", "adaptive", "packed",
         "thin", "kvzip")
QUICK_EIGHT = ("h2o", "int4", "tailorkv")


def environment(tier):
    """Returns the environment of the executables: no SLUICE_ variables of the shell, and the tier."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")} | {"SLUICE_TIER": tier, "UCX_MEM_EVENTS": "n"}


class NoSuchRecipe(ValueError):
    pass


class Recipe:
    """One line of the grid, without its chunk size."""

    def __init__(self, name, text, axes):
        self.name, self.text = name, text
        # When a recipe evicts after each chunk, or sums attention chunk by chunk, another chunk size gives other bits.
        self.cut = any(word in axes for word in ("when=chunk", "score=aas", "score=aqas", "score=mas", "score=reconstruct"))
        self.evicts = "budget=" in text

    def at(self, chunk):
        return f"{self.text},chunk={chunk}"


def recipes(quick=False, only=None):
    """Every preset of the executables at hand, and MORE; those of QUICK, or those of these names, alone."""
    run = subprocess.run([SLUICE, "recipes", "--json"], capture_output=True, check=True, timeout=60)
    presets = {p["name"]: p["text"] for p in map(json.loads, run.stdout.decode().splitlines())}
    found = [Recipe(name, f"{name},{SIZES.get(name, EVICTS)}".rstrip(","), axes) for name, axes in presets.items()]
    # The recipe's own text follows its preset's, and both are searched: "when=end" after h2o depends on chunks because of its sums.
    found += [Recipe(name, text, f"{text},{presets.get(text.split(',')[0], '')}") for name, text in MORE.items()]
    unknown = set(only or ()) - {recipe.name for recipe in found}
    if unknown:
        raise NoSuchRecipe(f"no such recipe: {', '.join(sorted(unknown))}; there are {', '.join(r.name for r in found)}")
    wanted = only or (QUICK if quick else [recipe.name for recipe in found])
    return [recipe for recipe in found if recipe.name in wanted]


def tiers():
    """Those of TIERS that this processor can run. Whatever else goes wrong is for the cases to show."""
    usable = []
    for tier in TIERS:
        run = subprocess.run([SLUICE, "run", "--local", "--model", MODEL, "--recipe", "full", "--prompt", "a", "--question", "b",
                              "--max-new-tokens", "1", "--quiet"], capture_output=True, env=environment(tier), timeout=120)
        if b"no kernels of tier" not in run.stderr:
            usable.append(tier)
    return usable


def chunks(tier):
    return TIERS[tier][0]


def prompt(tier, index=0):
    """Prompt 0 is the long one, 1 to 8 are short; no two begin alike."""
    with open(os.path.join(ROOT, "LICENSE")) as file:
        text = " ".join(file.read().split())
    n_bytes = TIERS[tier][1] if index == 0 else 200 + 30 * index
    begin = text.index(" ", 700 * index) + 1 if index else 0
    return text[begin:begin + n_bytes]
