# SPDX-License-Identifier: Apache-2.0
"""A Llama folder of a named geometry with random bf16 weights, the demo model's tokenizer and random retaining heads: what
measurements of a whole cluster need when the answer does not matter. Standard library only."""
import json
import os
import shutil
import struct

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "models", "demo")

GEOMETRIES = {  # layers, heads, KV heads, head_dim, hidden, intermediate
    "narrow": (8, 1, 1, 64, 64, 128),
    "wide": (8, 16, 16, 128, 128, 128),  # few tokens fill an arena
    "135m": (30, 9, 3, 64, 576, 1536),
    "large": (6, 32, 8, 64, 2048, 8192),  # some gigabytes of weights
    "1b": (16, 32, 8, 64, 2048, 8192),
}
RETAINING = 1024
PIECE = 1 << 20  # weights made at once


def _bf16(count, scale_exponent):
    """`count` numbers of random sign and mantissa, of a magnitude from 2^scale_exponent up to twice that."""
    exponent = 127 + scale_exponent
    keep, fixed = 0x807F, exponent << 7
    pieces = []
    while count > 0:
        n = min(count, PIECE)
        mask = int.from_bytes(struct.pack("<H", keep) * n, "little")
        plus = int.from_bytes(struct.pack("<H", fixed) * n, "little")
        pieces.append((int.from_bytes(os.urandom(2 * n), "little") & mask | plus).to_bytes(2 * n, "little"))
        count -= n
    return b"".join(pieces)


def _write(path, tensors, zeros=False):
    """tensors: (name, shape, scale exponent; None: ones). zeros: a hole in their place, which takes no room on the disk."""
    header, offset = {}, 0
    for name, shape, _ in tensors:
        n_bytes = 2
        for n in shape:
            n_bytes *= n
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if zeros:
            file.truncate(8 + len(text) + offset)
            return
        for name, shape, scale in tensors:
            count = 1
            for n in shape:
                count *= n
            file.write(struct.pack("<H", 0x3F80) * count if scale is None else _bf16(count, scale))


def _scale(inputs):
    """Returns the scale of weights whose products with `inputs` numbers of variance 1 have about that variance."""
    return -(max(inputs, 2).bit_length() // 2) - 1


def make(geometry, folder, positions=131072, zeros=False):
    layers, heads, kv_heads, d, hidden, inner = GEOMETRIES[geometry]
    with open(os.path.join(DEMO, "config.json")) as file:
        config = json.load(file)
    config.update(num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=d,
                  hidden_size=hidden, intermediate_size=inner, max_position_embeddings=positions, tie_word_embeddings=True)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(DEMO, name), folder)
    tensors, retaining = [("model.embed_tokens.weight", (config["vocab_size"], hidden), -1)], []
    for l in range(layers):
        p = f"model.layers.{l}."
        tensors += [(p + "input_layernorm.weight", (hidden,), None),
                    (p + "self_attn.q_proj.weight", (heads * d, hidden), _scale(hidden)),
                    (p + "self_attn.k_proj.weight", (kv_heads * d, hidden), _scale(hidden)),
                    (p + "self_attn.v_proj.weight", (kv_heads * d, hidden), _scale(hidden)),
                    (p + "self_attn.o_proj.weight", (hidden, heads * d), _scale(heads * d)),
                    (p + "post_attention_layernorm.weight", (hidden,), None),
                    (p + "mlp.gate_proj.weight", (inner, hidden), _scale(hidden)),
                    (p + "mlp.up_proj.weight", (inner, hidden), _scale(hidden)),
                    (p + "mlp.down_proj.weight", (hidden, inner), _scale(inner))]
        retaining += [(f"layers.{l}.w1", (RETAINING, (heads + 2 * kv_heads) * d), _scale((heads + 2 * kv_heads) * d)),
                      (f"layers.{l}.w2", (kv_heads, RETAINING), _scale(RETAINING))]
    tensors.append(("model.norm.weight", (hidden,), None))
    _write(os.path.join(folder, "model.safetensors"), tensors, zeros)
    _write(os.path.join(folder, "retaining_heads.safetensors"), retaining, zeros)
    return folder
