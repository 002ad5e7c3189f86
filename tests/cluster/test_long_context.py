#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A model with frequencies of its own for long contexts (longrope): prefill, decode and the store agree on which are meant."""
import json
import os
import tempfile

from harness import MODEL, Cluster, document, in_one_process, inference, question, run_tests, tokens
from test_reuse import answer_after_storing

ORIGINAL = 512  # tokens of the context that the short frequencies are for


def make_model(folder):
    """The demo model with another config.json."""
    config = json.load(open(os.path.join(MODEL, "config.json")))
    config["rope_scaling"] = {"rope_type": "longrope", "attention_factor": 1.0, "short_factor": [1.0] * 32,
                              "long_factor": [2.0 + i for i in range(32)], "original_max_position_embeddings": ORIGINAL}
    json.dump(config, open(os.path.join(folder, "config.json"), "w"))
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        os.symlink(os.path.join(MODEL, name), os.path.join(folder, name))


def test_the_frequencies_of_a_job_are_those_of_its_length():
    with tempfile.TemporaryDirectory() as model:
        make_model(model)
        prompt = document(1000) + question()
        with Cluster(model=model) as cluster:
            job = lambda n_new: inference.GenerateRequest(text=prompt, recipe="full", max_new_tokens=n_new, ignore_eos=True)
            short, short_events = answer_after_storing(cluster, job(8), 1)
            n_prompt = short.statistics.n_prompt_tokens
            assert 256 < n_prompt < ORIGINAL - 8, n_prompt
            n_long = ORIGINAL - n_prompt + 1
            long, long_events = answer_after_storing(cluster, job(n_long), 1)
            # The same prompt, but not the same keys: what the first job has stored is of no use to the second.
            assert long.statistics.n_reused_tokens == 0
            for n_new, events in ((8, short_events), (n_long, long_events)):
                assert tokens(events) == in_one_process("full", prompt, n_new, model=model)
                again, again_events = cluster.answer(job(n_new))
                assert again.statistics.n_reused_tokens == n_prompt - 1
                assert tokens(again_events) == tokens(events)
            assert tokens(long_events)[:8] != tokens(short_events), "either set would have done"


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
