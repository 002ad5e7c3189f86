# SPDX-License-Identifier: Apache-2.0
"""A random Llama of a named geometry, in two forms with the same weights: a Hugging Face folder (config.json and
model.safetensors, bf16) and a GGUF file.

Weights are Gaussian with variance 1 / inputs, those of q and k a little more, so that attention is peaked and a wrong
rotation shows in the logits. Tensors are made, written to both and forgotten one by one: memory stays small.
"""
import json
import pathlib
import struct

import gguf
import numpy as np

_COMMON = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", torch_dtype="bfloat16")


def _config(layers, heads, kv_heads, head_dim, hidden, intermediate, vocab, theta, tied):
    return dict(_COMMON, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                head_dim=head_dim, hidden_size=hidden, intermediate_size=intermediate, vocab_size=vocab,
                rope_theta=theta, tie_word_embeddings=tied, max_position_embeddings=131072, rms_norm_eps=1e-5)


GEOMETRIES = {
    "135m": _config(30, 9, 3, 64, 576, 1536, 49152, 1e5, True),  # SmolLM2-135M
    "1b": _config(16, 32, 8, 64, 2048, 8192, 128256, 5e5, True),  # Llama-3.2-1B, without its scaling of rope
    "8b-layers": _config(4, 32, 8, 128, 4096, 14336, 128256, 5e5, False),  # Llama-3-8B, 4 of its 32 layers
}

# --weights -> what GGUF calls it. int8 and int4 are the plain types with one scale for 32 weights.
GGUF_TYPES = {
    "bf16": gguf.GGMLQuantizationType.BF16,
    "int8": gguf.GGMLQuantizationType.Q8_0,
    "int4": gguf.GGMLQuantizationType.Q4_0,
}

_QK_GAIN = 1.4


def layer_weights(c):
    """Weights of all layers' matrices."""
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    return c["num_hidden_layers"] * c["hidden_size"] * (2 * q + 2 * kv + 3 * c["intermediate_size"])


def _tensors(c):
    """(name in safetensors, name in GGUF, shape, heads whose rows GGUF interleaves or 0, gain), in file order."""
    hidden, inner, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    yield "model.embed_tokens", "token_embd", (c["vocab_size"], hidden), 0, 1.0
    for l in range(c["num_hidden_layers"]):
        for name, short, shape, interleaved, gain in (
            ("input_layernorm", "attn_norm", (hidden,), 0, 1.0),
            ("self_attn.q_proj", "attn_q", (heads * d, hidden), heads, _QK_GAIN),
            ("self_attn.k_proj", "attn_k", (kv_heads * d, hidden), kv_heads, _QK_GAIN),
            ("self_attn.v_proj", "attn_v", (kv_heads * d, hidden), 0, 1.0),
            ("self_attn.o_proj", "attn_output", (hidden, heads * d), 0, 1.0),
            ("post_attention_layernorm", "ffn_norm", (hidden,), 0, 1.0),
            ("mlp.gate_proj", "ffn_gate", (inner, hidden), 0, 1.0),
            ("mlp.up_proj", "ffn_up", (inner, hidden), 0, 1.0),
            ("mlp.down_proj", "ffn_down", (hidden, inner), 0, 1.0),
        ):
            yield f"model.layers.{l}.{name}", f"blk.{l}.{short}", shape, interleaved, gain
    yield "model.norm", "output_norm", (hidden,), 0, 1.0
    if not c["tie_word_embeddings"]:
        yield "lm_head", "output", (c["vocab_size"], hidden), 0, 1.0


def _bf16(x):
    """f32 to the nearest bf16, as u16."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _widen(half):
    return (half.astype(np.uint32) << 16).view(np.float32)


def _make(generator, shape, gain):
    """The tensor in bf16, as u16: norms are 1."""
    if len(shape) == 1:
        return np.full(shape, 0x3F80, np.uint16)
    x = generator.standard_normal(shape, np.float32)
    x *= gain / shape[1] ** 0.5
    return _bf16(x)


def _interleave(half, n_heads):
    """GGUF's llama rotates neighbours (0, 1), (2, 3), ...; Hugging Face's rotates halves (0, d/2), (1, d/2 + 1), ..."""
    rows, columns = half.shape
    return half.reshape(n_heads, 2, rows // n_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _to_gguf(half, n_heads, gguf_type):
    """What GGUF stores of a bf16 tensor: norms are f32, everything else is of the type at hand."""
    if half.ndim == 1:
        return _widen(half)
    half = np.ascontiguousarray(_interleave(half, n_heads) if n_heads else half)
    if gguf_type == gguf.GGMLQuantizationType.BF16:
        return half.view(np.uint8)
    step = max(1, (1 << 24) // half.shape[1])  # rows at once: the quantizer works in f32
    pieces = [gguf.quants.quantize(_widen(half[i:i + step]), gguf_type) for i in range(0, len(half), step)]
    return np.concatenate(pieces)


def _gguf_writer(path, c, gguf_type):
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("no_vocab")  # ids go in, logits come out
    for _, name, shape, _, _ in _tensors(c):
        if len(shape) == 1:
            w.add_tensor_info(name + ".weight", shape, np.dtype(np.float32), 4 * shape[0])
            continue
        bytes_shape = gguf.quant_shape_to_byte_shape(shape, gguf_type)
        w.add_tensor_info(name + ".weight", bytes_shape, np.dtype(np.uint8), int(np.prod(bytes_shape)), gguf_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    return w


def write(folder, geometry, weights):
    """Write folder/hf and folder/model.gguf; returns their paths."""
    c, gguf_type = GEOMETRIES[geometry], GGUF_TYPES[weights]
    hf, gguf_path = pathlib.Path(folder) / "hf", pathlib.Path(folder) / "model.gguf"
    hf.mkdir()
    (hf / "config.json").write_text(json.dumps(c, indent=1))
    header, offset = {}, 0
    for name, _, shape, _, _ in _tensors(c):
        end = offset + 2 * int(np.prod(shape))
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    writer = _gguf_writer(gguf_path, c, gguf_type)
    generator = np.random.default_rng(1)
    with open(hf / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, shape, n_heads, gain in _tensors(c):
            half = _make(generator, shape, gain)
            half.tofile(file)
            writer.write_tensor_data(_to_gguf(half, n_heads, gguf_type))
    writer.close()
    return hf, gguf_path
