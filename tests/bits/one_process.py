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


def capsule_fields(read, chunk):
    """What the pages hold, alone and with the header, which names the recipe and so, for most, its chunk size."""
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


def counts_of(statistics):
    """What was evicted, merged and fetched, in numbers that a reader of the record understands."""
    return "{} {} {}".format(*(int(statistics[f"slots_{what}"]) for what in ("evicted", "merged", "fetched")))


def run_sluice(tier, arguments, text):
    """(lines of JSON, the command as a shell takes it, what went wrong)."""
    command = [cases.SLUICE, *arguments]
    run = subprocess.run(command, input=text.encode(), capture_output=True, env=cases.environment(tier), timeout=600)
    shown = f"tests/bits/record.py --print-prompt {tier} | SLUICE_TIER={tier} {shlex.join(command)}"
    wrong = run.stderr.decode().strip() if run.returncode else ""
    return [json.loads(line) for line in run.stdout.decode().splitlines()], shown, wrong


def observe_answer(observations, tier, recipe, chunk, folder):
    case, how = case_name(tier, recipe, chunk), f"one process, chunk={chunk}"
    path = os.path.join(folder, f"{tier}-{recipe.name}-{chunk}.capsule".replace(" ", "-"))
    arguments = ["run", "--local", "--model", cases.MODEL, "--recipe", recipe.at(chunk), "--json", "--ignore-eos", "--threads", "1",
                 "--max-new-tokens", str(cases.N_TOKENS), "--prompt-file", "-", "--question", "What is this?",
                 "--question", "And what else?", "--save-capsule", path]
    events, command, wrong = run_sluice(tier, arguments, cases.prompt(tier))
    if wrong:
        return observations.fail(case, how, wrong, command)
    (tokens, statistics), (second, _) = turns_of(events)
    assert len(tokens) == len(second) == cases.N_TOKENS, command
    fields = token_fields(tokens) | capsule_fields(capsule.of_file(path), chunk) | {"counts": counts_of(statistics)}
    # A turn behind an answer is read by the steps of decode or in chunks, as the recipe has it.
    fields["turns"] = digest_words(token_fields(second).values())
    os.remove(path)
    observations.add(case, how, fields, command)


def observe_sampled(observations, tier, recipe):
    case, how = f"{tier}/{recipe.name}/sampled", "one process"
    arguments = ["run", "--local", "--model", cases.MODEL, "--recipe", recipe.at(256), "--json", "--ignore-eos", "--threads", "2",
                 "--max-new-tokens", "40", "--prompt-file", "-", "--question", "What is this?", *SAMPLED]
    events, command, wrong = run_sluice(tier, arguments, cases.prompt(tier))
    if wrong:
        return observations.fail(case, how, wrong, command)
    (tokens, _), = turns_of(events)
    observations.add(case, how, token_fields(tokens), command)


def observe(observations, pool, tier, chosen, quick):
    """The chosen recipes on one tier."""
    chunks = cases.CHUNKS if tier != "reference" or not quick else cases.CHUNKS[:1]
    with tempfile.TemporaryDirectory(prefix="sluice-bits-") as folder:
        work = [pool.submit(observe_answer, observations, tier, recipe, chunk, folder)
                for recipe in chosen for chunk in chunks]
        work += [pool.submit(observe_sampled, observations, tier, recipe) for recipe in chosen if recipe.name in ("full", "steps")]
        for one in work:
            one.result()
