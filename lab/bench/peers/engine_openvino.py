#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI for peers.py, which starts this program: engine_openvino.py FILE.gguf THREADS. engine.py has the conversation."""
import time

import engine

engine.needs("openvino_genai", "openvino")
import openvino  # noqa: E402
import openvino_genai  # noqa: E402

GREEDY = dict(do_sample=False, apply_chat_template=False)
pipeline, n_vocab, n_prompts = None, 0, 0


def load(path, threads):
    global pipeline, n_vocab
    pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
    n_vocab = len(pipeline.get_tokenizer().get_vocab())
    return f"openvino-genai {openvino_genai.__version__}, its defaults (KV cache of 8 bits)"


def generate(n, steps):
    """Returns the seconds to the first token and those of the steps after it. Each prompt begins with another token: the pipeline keeps
    prefixes."""
    global n_prompts
    n_prompts += 1
    ids = openvino.Tensor([engine.prompt_of(n, n_vocab, n_prompts)])
    arrivals, began = [], time.perf_counter()

    def on_token(_):
        arrivals.append(time.perf_counter())
        return openvino_genai.StreamingStatus.RUNNING

    class Streamer(openvino_genai.StreamerBase):
        def write(self, token):
            return on_token(token)

        def end(self):
            pass

    pipeline.generate(ids, openvino_genai.GenerationConfig(max_new_tokens=steps + 1, ignore_eos=True, **GREEDY), Streamer())
    if len(arrivals) != steps + 1:
        raise ValueError(f"wrote {len(arrivals)} tokens of {steps + 1}")
    return arrivals[0] - began, arrivals[-1] - arrivals[0]


def answer(prompt, n):
    return pipeline.generate(prompt, openvino_genai.GenerationConfig(max_new_tokens=n, **GREEDY))


if __name__ == "__main__":
    engine.serve(load, engine.one_sequence(generate), answer)
