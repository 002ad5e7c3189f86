#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/llama: what PyTorch and Transformers say a Llama computes.

Two tiny models with random weights, as Hugging Face folders, each with the logits of one prompt; and greedy
continuations of models/demo in bf16. Needs torch and transformers (4.46 was used); needed only to change the golden
data. The answers are plain binary files that golden_models.c reads:

    <model>/golden.bin        i32 n_tokens, i32 n_vocab, i32 ids[n_tokens], f32 logits[n_tokens][n_vocab]
    demo/<name>.bin           i32 n_prompt, i32 n_output, i32 prompt[n_prompt], i32 output[n_output]
"""
import json
import pathlib
import random
import struct

import script
script.needs("torch", "tokenizers", "transformers")
import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "golden" / "llama"
PROMPT_TOKENS = 101


def write_ids(file, ids):
    file.write(struct.pack(f"<{len(ids)}i", *ids))


def tiny(name, shard_size, **config):
    """A random model, large enough in scale that every part of it moves the logits."""
    torch.manual_seed(len(name))
    model = LlamaForCausalLM(LlamaConfig(attn_implementation="eager", **config)).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)
    folder = OUT / name
    model.save_pretrained(folder, max_shard_size=shard_size)
    ids = torch.randint(0, config["vocab_size"], (1, PROMPT_TOKENS))
    with torch.no_grad():
        logits = model(ids).logits[0]
    with open(folder / "golden.bin", "wb") as file:
        file.write(struct.pack("<2i", PROMPT_TOKENS, config["vocab_size"]))
        write_ids(file, ids[0].tolist())
        file.write(logits.numpy().astype("<f4").tobytes())
    print(name, "logits", float(logits.min()), float(logits.max()))


FILLER = (
    "The command reads its arguments from the standard input when no file is given. "
    "If the option is not recognized, a message is written to the standard error and the exit status is 1. "
    "The environment variable sets the default directory for temporary files. "
    "On success the function returns zero, and on error it returns -1 and sets errno. "
    "Each line of the configuration file holds one keyword followed by its value. "
    "The buffer must be large enough to hold the result, including the terminating null byte. "
    "Signals that arrive while the call is blocked are delivered after it returns. "
)


def demo(name, n_tokens, needle, question, answer, place):
    """A fact planted in filler text, and what the demo model answers greedily to the question about it."""
    folder = ROOT / "models" / "demo"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.load(open(folder / "config.json"))
    model = LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.bfloat16, attn_implementation="eager").eval()
    sentences = FILLER.split(". ")[:-1]
    shuffled = random.Random(name)
    text = []
    while len(tokenizer.encode(". ".join(text)).ids) < n_tokens:
        text.append(shuffled.choice(sentences))
    text.insert(int(len(text) * place), needle.strip(" ."))
    prompt = [config["bos_token_id"]] + tokenizer.encode(". ".join(text) + "." + question).ids
    ids, past, output = torch.tensor([prompt]), None, []
    margin = float("inf")
    with torch.no_grad():
        for _ in range(8):
            step = model(ids, past_key_values=past, use_cache=True)
            past, logits = step.past_key_values, step.logits[0, -1].float()
            best = torch.topk(logits, 2).values
            margin = min(margin, float(best[0] - best[1]))
            output.append(int(logits.argmax()))
            ids = torch.tensor([[output[-1]]])
            if tokenizer.decode(output).strip().startswith(answer):
                break
    print(name, len(prompt), "->", repr(tokenizer.decode(output)), "least margin", margin)
    assert tokenizer.decode(output).strip().startswith(answer)
    (OUT / "demo").mkdir(parents=True, exist_ok=True)
    with open(OUT / "demo" / f"{name}.bin", "wb") as file:
        file.write(struct.pack("<2i", len(prompt), len(output)))
        write_ids(file, prompt)
        write_ids(file, output)


def main():
    tiny("mha", "200KB", vocab_size=128, hidden_size=64, intermediate_size=172, num_hidden_layers=2,
         num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, rms_norm_eps=1e-6,
         tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
    tiny("gqa", "10MB", vocab_size=160, hidden_size=48, intermediate_size=100, num_hidden_layers=3,
         num_attention_heads=6, num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5,
         rope_theta=500.0, tie_word_embeddings=True, bos_token_id=1, eos_token_id=[2, 3],
         rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 64})
    demo("magic", 500, "One of the special magic numbers for harbor is: 48213.",
         "\nWhat is the special magic number for harbor mentioned in the provided text? "
         "The special magic number for harbor mentioned in the provided text is", "48213", 0.4)
    demo("code", 900, "The code of silver-meadow is 907154.",
         "\nQuestion: What is the code of silver-meadow?\nAnswer: The code of silver-meadow is", "907154", 0.2)
    demo("late", 1400, "The code of lantern is 3391.",
         "\nQuestion: What is the code of lantern?\nAnswer: The code of lantern is", "3391", 0.8)


if __name__ == "__main__":
    script.help_if_asked()
    main()
