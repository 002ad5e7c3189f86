#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/families: what PyTorch and Transformers say models of every family compute.

Tiny models with random weights, as Hugging Face folders written by save_pretrained, each with the logits of its prompts.
Needs torch and transformers (5.23 was used); needed only to change the golden data. golden.bin is, prompt after
prompt:

    i32 n_tokens, i32 n_vocab, i32 ids[n_tokens], f32 logits[n_tokens][n_vocab]

Every family has what it can have and others cannot: biases that are not 0, windows shorter than the prompt, norms of
heads, rotations of half a head, and the kinds of RoPE: linear, yarn, and longrope below and beyond its original context.
"""
import pathlib
import struct

import script
script.needs("torch", "transformers")
import torch  # noqa: E402
import transformers  # noqa: E402

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "families"
VOCAB = 64

# Shared by all but Falcon: 4 heads over 2, and a head_dim that is not hidden / heads where the family has the key.
SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None)
ROPE = dict(rope_theta=500.0)  # a prompt of some tokens turns all channels by a good deal


def tiny(name, family, prompts, **config):
    """A random model, large enough in scale that every part of it moves the logits."""
    torch.manual_seed(sum(name.encode()))
    config_class = getattr(transformers, f"{family}Config")
    model_class = getattr(transformers, f"{family}ForCausalLM")
    model = model_class(config_class(attn_implementation="eager", **config)).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)
            elif parameter_name.endswith("bias"):
                parameter.normal_(0.0, 0.5)
            else:
                parameter.uniform_(0.5, 1.5)  # of a norm
    folder = OUT / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    with open(folder / "golden.bin", "wb") as file:
        for n_tokens in prompts:
            ids = torch.randint(0, VOCAB, (1, n_tokens))
            with torch.no_grad():
                logits = model(ids, use_cache=False).logits[0]
            file.write(struct.pack(f"<{2 + n_tokens}i", n_tokens, VOCAB, *ids[0].tolist()))
            file.write(logits.numpy().astype("<f4").tobytes())
            print(name, n_tokens, "tokens, logits", float(logits.min()), "to", float(logits.max()))


def main():
    tiny("llama", "Llama", [40], **SIZES, head_dim=16, attention_bias=True, mlp_bias=True,
         rope_parameters=dict(rope_type="linear", factor=2.0, **ROPE))
    tiny("mistral", "Mistral", [40], **SIZES, head_dim=16, sliding_window=11,
         rope_parameters=dict(rope_type="default", **ROPE))
    tiny("qwen2", "Qwen2", [40], **SIZES, tie_word_embeddings=True,
         rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, **ROPE))
    tiny("qwen2_window", "Qwen2", [40], **SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1,
         rope_parameters=dict(rope_type="default", **ROPE))
    tiny("qwen3", "Qwen3", [40], **SIZES, head_dim=16, rope_parameters=dict(rope_type="default", **ROPE))
    tiny("phi3", "Phi3", [40], **SIZES, sliding_window=13, original_max_position_embeddings=256,
         rope_parameters=dict(rope_type="default", **ROPE))
    # wider heads, half of which rotates
    long = {**SIZES, "num_attention_heads": 2, "num_key_value_heads": 1}
    tiny("phi3_longrope", "Phi3", [24, 40], **long, original_max_position_embeddings=32,
         rope_parameters=dict(rope_type="longrope", partial_rotary_factor=0.5, short_factor=[1.0, 1.1, 1.25, 1.5],
                              long_factor=[1.5, 2.0, 4.0, 7.5], original_max_position_embeddings=32, **ROPE))
    tiny("falcon", "Falcon", [40], vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
         ffn_hidden_size=64, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
         rope_parameters=dict(rope_type="default", **ROPE))


if __name__ == "__main__":
    script.help_if_asked()
    main()
