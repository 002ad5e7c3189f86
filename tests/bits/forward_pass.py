# SPDX-License-Identifier: Apache-2.0
"""The forward pass of every model family without any recipe: all logits of eight prompts, in chunks of any size, alone and together."""
import os
import shlex
import subprocess

import cases

PROGRAM = os.path.join(os.path.dirname(cases.BIN), "tests", "bin", "bits_forward")
GOLDEN = os.path.join("tests", "golden")
FAMILIES = [os.path.join(GOLDEN, "families", name) for name in sorted(os.listdir(os.path.join(cases.ROOT, GOLDEN, "families")))]
MODELS = FAMILIES + [os.path.join(GOLDEN, "llama", "gqa"), os.path.join(GOLDEN, "llama", "mha")]
DEMO = os.path.join("models", "demo")
N_TOKENS = 250  # tiny models have 256 positions
CHUNKS, BATCHES = (1, 7, 256), (1, 8)


def observe_one(observations, tier, program, model, chunk, batch, ranks):
    case, how = f"{tier}/forward/{model}", f"chunk={chunk}, batch of {batch}" + f", {ranks} ranks" * (ranks > 1)
    command = [program, tier, str(ranks), str(N_TOKENS), str(chunk), str(batch), model]
    run = subprocess.run(command, capture_output=True, cwd=cases.ROOT, env=cases.environment(tier), timeout=600)
    words = run.stdout.decode().split()
    if run.returncode != 0 or words[::2] != ["logits", "pages"]:
        return observations.fail(case, how, run.stderr.decode().strip(), shlex.join(command))
    observations.add(case, how, dict(zip(words[::2], words[1::2])), shlex.join(command))


def observe(observations, pool, tier, program, quick, ranks):
    # The demo is large for plain C, and not needed there.
    models = MODELS[:1] + MODELS[-2:-1] if quick else MODELS + [DEMO] * (tier != "reference")
    work = [pool.submit(observe_one, observations, tier, program, model, chunk, batch, 1)
            for model in models for chunk in CHUNKS for batch in BATCHES]
    work += [pool.submit(observe_one, observations, tier, program, model, CHUNKS[-1], batch, n)
             for model in (MODELS if ranks else ()) for n in ranks for batch in BATCHES]
    for one in work:
        one.result()
