#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mistral.rs for peers.py, which starts this program: engine_mistralrs.py FILE.gguf THREADS. engine.py has the conversation."""
import importlib.metadata
import os

import engine

engine.needs("mistralrs", "mistral.rs")
import mistralrs  # noqa: E402

WORD = " the"  # one token of byte-level vocabularies
runner = None


def load(path, threads):
    global runner
    folder, name = os.path.split(os.path.abspath(path))
    runner = mistralrs.Runner(which=mistralrs.Which.GGUF(quantized_model_id=folder, quantized_filename=name), max_seqs=1, prefix_cache_n=0)
    return f"mistralrs {importlib.metadata.version('mistralrs')}, its defaults, no prefix cache"


def complete(prompt, n):
    return runner.send_completion_request(mistralrs.CompletionRequest(
        prompt=prompt, model="default", max_tokens=n, temperature=0.0, top_k=1, ignore_eos=True))


def generate(n, steps):
    """Returns the seconds of the prompt and of the steps after it, which mistral.rs measures itself."""
    usage = complete(WORD * n, steps + 1).usage
    if usage.prompt_tokens != n or usage.completion_tokens != steps + 1:
        raise ValueError(f"read {usage.prompt_tokens} tokens of {n}, wrote {usage.completion_tokens} of {steps + 1}")
    return usage.total_prompt_time_sec, usage.total_completion_time_sec


def answer(prompt, n):
    return complete(prompt, n).choices[0].text


if __name__ == "__main__":
    engine.serve(load, engine.one_sequence(generate), answer)
