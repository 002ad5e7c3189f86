# SPDX-License-Identifier: Apache-2.0
"""`sluice run --local`: the capsule as a file, the answer's tokens and their log-probabilities, a second turn; every chunk size."""
import json
import os
import shlex
import subprocess
import tempfile

import capsule
import cases
from observations import digest_words, float_bits

SAMPLED = ["--temperature", "0.8", "--top-k", "40", "--top-p", "0.9", "--repetition-penalty", "1.1", "--seed", "7"]
SAMPLED_RECIPES = ("full", "steps")


def capsule_fields(read, chunk):
    """Returns the digests of the pages, alone and with the header, which names the recipe and so, for most, its chunk size."""
    return {"pages": read.pages, f"capsule {chunk}": read.whole}


def case_name(tier, recipe, chunk):
    return f"{tier}/{recipe.name}/chunk={chunk}" if recipe.cut else f"{tier}/{recipe.name}"


def turns_of(events):
    """The tokens of each turn, and its statistics."""
    turns, tokens = [], []
    for event in events:
        if "token" in event:
            tokens.append(event["token"])
        if "finished" in event:
            turns.append((tokens, event["finished"]["statistics"]))
            tokens = []
    return turns


def token_fields(tokens):
    return {"tokens": digest_words(t["id"] for t in tokens), "logprobs": digest_words(float_bits(t["logprob"]) for t in tokens)}


COUNTS = ("slots_evicted", "slots_merged", "slots_fetched")


def counts_of(statistics):
    """In numbers that a reader of the record understands."""
    return " ".join(str(statistics[name]) for name in COUNTS)


def run(observations, tier, recipe, chunk, case, *options):
    """The turns of an answer and the command as a shell takes it; None if there is none, which is a failure then."""
    command = [cases.SLUICE, "run", "--local", "--model", cases.MODEL, "--recipe", recipe.at(chunk), "--json", "--ignore-eos",
               "--prompt-file", "-", *options]
    done = subprocess.run(command, input=cases.prompt(tier).encode(), capture_output=True, env=cases.environment(tier), timeout=600)
    shown = f"tests/bits/record.py --print-prompt {tier} | SLUICE_TIER={tier} {shlex.join(command)}"
    if done.returncode != 0:
        return observations.fail(case, f"one process, chunk={chunk}", done.stderr.decode().strip(), shown)
    return turns_of(map(json.loads, done.stdout.decode().splitlines())), shown


def observe_answer(observations, tier, recipe, chunk, ranks, folder):
    case, how = case_name(tier, recipe, chunk), f"one process, chunk={chunk}" + f", {ranks} ranks" * (ranks > 1)
    path = os.path.join(folder, f"{tier}-{recipe.name}-{chunk}-{ranks}.capsule".replace(" ", "-"))
    done = run(observations, tier, recipe, chunk, case, "--threads", "1", "--ranks", str(ranks), "--max-new-tokens", str(cases.N_TOKENS),
               "--question", cases.QUESTION, "--question", cases.NEXT_QUESTION, "--save-capsule", path)
    if done is None:
        return
    ((tokens, statistics), (second, _)), command = done
    assert len(tokens) == len(second) == cases.N_TOKENS, command
    saved = capsule.of_file(path)
    fields = token_fields(tokens) | capsule_fields(saved, chunk) | {"counts": counts_of(statistics)}
    # A turn behind an answer is read by the steps of decode or in chunks, as the recipe has it.
    fields["turns"] = digest_words(token_fields(second).values())
    os.remove(path)
    observations.add(case, how, fields, command.replace(path, "one.capsule"))
    observations.capsules[case, chunk] = saved


def observe_tokens(observations, tier, recipe, case, *options):
    done = run(observations, tier, recipe, cases.chunks(tier)[0], case, *options)
    if done is not None:
        ((tokens, _),), command = done
        observations.add(case, "one process", token_fields(tokens), command)


def observe(observations, pool, tier, chosen, chunks, ranks):
    """The chosen recipes on one tier, by one rank and by several: the bits are the same."""
    answer = ("--question", cases.QUESTION, "--threads", "2", "--max-new-tokens")
    with tempfile.TemporaryDirectory(prefix="sluice-bits-") as folder:
        work = []
        for recipe in chosen:
            name = case_name(tier, recipe, chunks[0])
            work += [pool.submit(observe_answer, observations, tier, recipe, chunk, 1, folder) for chunk in chunks]
            work += [pool.submit(observe_answer, observations, tier, recipe, chunks[0], n, folder) for n in ranks]
            also = {}
            if recipe.name in SAMPLED_RECIPES:
                also["sampled"] = (*answer, "40", *SAMPLED)
            if recipe.name == "full":
                also |= {f"weights={weights}": (*answer, str(cases.N_TOKENS), "--weights", weights) for weights in ("int8", "int4")}
                for n in ranks:
                    work += [pool.submit(observe_tokens, observations, tier, recipe, f"{name}/weights={weights}", *answer,
                                         str(cases.N_TOKENS), "--weights", weights, "--ranks", str(n)) for weights in ("int8", "int4")]
            if recipe.name in cases.RESUMED_EXACTLY:
                also["other"] = ("--question", cases.OTHER_QUESTION, *answer[2:], str(cases.N_TOKENS))
            work += [pool.submit(observe_tokens, observations, tier, recipe, f"{name}/{what}", *options)
                     for what, options in also.items()]
        for one in work:
            one.result()
