# SPDX-License-Identifier: Apache-2.0
"""
`sluice eval perplexity`: a text streams through the cache of every recipe that can do that, in chunks that no prompt may have, down to
a token. What is digested are its figures, to nine digits: a sum over all tokens, so a change of one bit of one of them may not show.
"""
import json
import os
import shlex
import subprocess

import cases
from observations import digest_words

FIGURES = ("nll", "perplexity", "slots", "most_slots", "curve")
TEXT = os.path.join(cases.ROOT, "LICENSE")


def observe_chunk(observations, tier, chosen, chunk):
    n_tokens = 256 if tier == "reference" else 512
    command = [cases.SLUICE, "eval", "perplexity", "--model", cases.MODEL, "--text", TEXT, "--tokens", str(n_tokens), "--chunk", str(chunk),
               "--threads", "1", "--json", "--recipe", ";".join(recipe.text for recipe in chosen)]
    run = subprocess.run(command, capture_output=True, env=cases.environment(tier), timeout=900)
    shown = f"SLUICE_TIER={tier} {shlex.join(command)}"
    rows = [json.loads(line) for line in run.stdout.decode().splitlines()]
    if "full" not in [recipe.name for recipe in chosen]:
        rows = rows[1:]  # what all others are compared with comes first, asked for or not
    if run.returncode != 0 or len(rows) != len(chosen):
        return observations.fail(f"{tier}/.../stream", f"chunk={chunk}", f"{len(rows)} rows for {len(chosen)} recipes: "
                                 + run.stderr.decode().strip(), shown)
    for recipe, row in zip(chosen, rows):
        if "skipped" not in row:
            case = f"{tier}/{recipe.name}/stream" + f" chunk={chunk}" * recipe.evicts
            observations.add(case, f"chunk={chunk}", {"stream": digest_words(row[figure] for figure in FIGURES)}, shown)


def observe(observations, pool, tier, chosen, quick):
    """The main tier has every chunk size, others one that is not a divisor of anything."""
    main = tier == cases.MAIN_TIERS[-1]
    if quick:
        chosen = [recipe for recipe in chosen if recipe.name in cases.QUICK_EIGHT]
    work = [pool.submit(observe_chunk, observations, tier, chosen, chunk) for chunk in ((1, 7, 256) if main and not quick else (7,))]
    for one in work:
        one.result()
