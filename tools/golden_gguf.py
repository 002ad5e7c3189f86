#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF files for tests, and the folders that they must be equal to; written anew into the build folder, where NumPy is.

    golden_gguf.py --out FOLDER

OUT/families/NAME.gguf   the tiny models of tests/golden/families, as converters make GGUF of them: names, metadata, and for
                         Llamas the rows of q and k in the other order. Their logits are those of Transformers.
OUT/types/TYPE.gguf      a model of one layer whose matrices are random blocks of a type, OUT/types/TYPE, the folder of its
                         numbers in f32, and OUT/types/TYPE.rounded, of those numbers as f16. The formulas here are written
                         from the format's description and use nothing of ours.
OUT/types/mixed.gguf     q, k, v of types that have codes, gate and up of types that have none
OUT/types/tied.gguf      Q4_K without a head of its own; untied.gguf has the embedding a second time, as the head
OUT/whole/NAME           a model of each family with a tokenizer and settings, as a folder and as NAME.gguf; as SmolLM2's do,
                         config.json and the tokenizer name different ends
OUT/tokenizers/NAME      a tokenizer.json of tests/golden/tokenizer/families without flags that GGUF cannot say, and NAME.gguf
"""
import argparse
import json
import pathlib
import struct
import sys

import script
script.needs("numpy", code=77)  # CTest skips it
import numpy as np  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
IDS = dict(F32=0, F16=1, Q4_0=2, Q4_1=3, Q5_0=6, Q5_1=7, Q8_0=8, Q2_K=10, Q3_K=11, Q4_K=12, Q5_K=13, Q6_K=14, BF16=30)


# --- the file ---------------------------------------------------------------------------------------------------------


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(value):
    """(type, bytes) of a value of the metadata."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return U32, struct.pack("<I", value)
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    if isinstance(value, str):
        return STRING, text(value)
    if isinstance(value[0], str):
        return ARRAY, struct.pack("<IQ", STRING, len(value)) + b"".join(map(text, value))
    code, kind = ("f", F32) if isinstance(value[0], float) else ("i", I32)
    return ARRAY, struct.pack("<IQ", kind, len(value)) + struct.pack(f"<{len(value)}{code}", *value)


def write_gguf(path, metadata, tensors, alignment=32):
    """tensors: {name: (type, shape, bytes)}, shapes as of an array."""
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = value_bytes(value)
        head += text(key) + struct.pack("<I", kind) + data
    body = b""
    for name, (kind, shape, data) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), IDS[kind], len(body))
        body += data + bytes(-len(data) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + body)


def read_safetensors(path):
    """{name: array}; of bf16 the bits, as u2."""
    data = path.read_bytes()
    (n,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            kind = {"F32": "<f4", "BF16": "<u2"}[entry["dtype"]]
            tensors[name] = np.frombuffer(data[8 + n + begin : 8 + n + end], kind).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    header, body = {}, b""
    for name, array in tensors.items():
        data = array.astype("<f4").tobytes()
        header[name] = dict(dtype="F32", shape=list(array.shape), data_offsets=[len(body), len(body) + len(data)])
        body += data
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


# --- names and metadata -----------------------------------------------------------------------------------------------

NAMES = {
    "model.embed_tokens": "token_embd", "transformer.word_embeddings": "token_embd", "model.norm": "output_norm",
    "transformer.ln_f": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
    "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}


def gguf_name(name):
    stem, suffix = name.rsplit(".", 1)
    for prefix in ("model.layers.", "transformer.h."):
        if stem.startswith(prefix):
            layer, rest = stem[len(prefix) :].split(".", 1)
            return f"blk.{layer}.{NAMES[rest]}.{suffix}"
    return f"{NAMES[stem]}.{suffix}"


def interleave(array, head_dim):
    """Rows of a head as llama.cpp rotates them: channel i and i + d/2 become neighbours."""
    heads = array.reshape(-1, 2, head_dim // 2, *array.shape[1:])
    return heads.swapaxes(1, 2).reshape(array.shape)


def metadata_of(config):
    family = config["architectures"][0].removesuffix("ForCausalLM").lower()
    a = "llama" if family == "mistral" else family
    rope = config.get("rope_parameters") or {}
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    metadata = {
        "general.architecture": a, "general.name": "test",
        f"{a}.block_count": config["num_hidden_layers"], f"{a}.embedding_length": config["hidden_size"],
        f"{a}.feed_forward_length": config.get("intermediate_size") or config["ffn_hidden_size"],
        f"{a}.attention.head_count": heads, f"{a}.context_length": config["max_position_embeddings"],
        f"{a}.attention.head_count_kv": 1 if a == "falcon" else config["num_key_value_heads"],
        f"{a}.rope.freq_base": float(config.get("rope_theta") or rope.get("rope_theta", 10000.0)),
        f"{a}.rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        "tokenizer.ggml.bos_token_id": config["bos_token_id"], "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }
    if "rms_norm_eps" in config:
        metadata[f"{a}.attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    else:
        metadata[f"{a}.attention.layer_norm_epsilon"] = config["layer_norm_epsilon"]
    if config.get("head_dim"):
        metadata[f"{a}.attention.key_length"] = metadata[f"{a}.attention.value_length"] = head_dim
    if config.get("sliding_window"):
        metadata[f"{a}.attention.sliding_window"] = config["sliding_window"]
    if rope.get("rope_type") in ("linear", "yarn"):
        metadata[f"{a}.rope.scaling.type"] = rope["rope_type"]
        metadata[f"{a}.rope.scaling.factor"] = float(rope["factor"])
    if "original_max_position_embeddings" in rope:
        metadata[f"{a}.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return metadata, a, head_dim, rope


def convert(folder, path, more=()):
    config = json.loads((folder / "config.json").read_text())
    metadata, a, head_dim, rope = metadata_of(config)
    tensors = {}
    for name, array in read_safetensors(folder / "model.safetensors").items():
        if a == "llama" and ("q_proj" in name or "k_proj" in name):
            array = interleave(array, head_dim)
        tensors[gguf_name(name)] = ("F32" if array.dtype == "<f4" else "BF16", array.shape, array.tobytes())
    if rope.get("rope_type") == "longrope":
        for which in ("short", "long"):
            factors = np.array(rope[f"{which}_factor"], "<f4")
            tensors[f"rope_factors_{which}.weight"] = ("F32", factors.shape, factors.tobytes())
        # A converter writes what the scale of cosines comes to
        scale = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
        scale = (1 + np.log(scale) / np.log(rope["original_max_position_embeddings"])) ** 0.5
        metadata[f"{a}.rope.scaling.attn_factor"] = float(scale)
    write_gguf(path, metadata | dict(more), tensors)


# --- types ------------------------------------------------------------------------------------------------------------


def halves(blocks, at):
    return blocks[:, at : at + 2].copy().view("<f2").astype("f4")


def bits(blocks, first, last, shifts, mask):
    """[n][len(shifts)][last - first] fields of bytes first to last."""
    return (blocks[:, None, first:last] >> np.array(shifts, "u1")[None, :, None]) & mask


def by_nibbles(blocks, at):
    return bits(blocks, at, at + 16, (0, 4), 15).reshape(-1, 32).astype("i4")


def fifth(blocks, at):
    return (np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little").astype("i4")) << 4


def q4_0(b):
    return halves(b, 0) * (by_nibbles(b, 2) - 8).astype("f4")


def q4_1(b):
    return halves(b, 0) * by_nibbles(b, 4).astype("f4") + halves(b, 2)


def q5_0(b):
    return halves(b, 0) * ((by_nibbles(b, 6) | fifth(b, 2)) - 16).astype("f4")


def q5_1(b):
    return halves(b, 0) * (by_nibbles(b, 8) | fifth(b, 4)).astype("f4") + halves(b, 2)


def q8_0(b):
    return halves(b, 0) * b[:, 2:34].view("i1").astype("f4")


def two_bits(b, at):
    parts = [bits(b, at + 32 * n, at + 32 * n + 32, (0, 2, 4, 6), 3).reshape(-1, 128) for n in (0, 1)]
    return np.concatenate(parts, axis=1).astype("i4")


def q2_k(b):
    scales, least = np.repeat(b[:, :16] & 15, 16, axis=1), np.repeat(b[:, :16] >> 4, 16, axis=1)
    return (halves(b, 80) * scales.astype("f4")) * two_bits(b, 16).astype("f4") - halves(b, 82) * least.astype("f4")


def q3_k(b):
    low = np.concatenate([b[:, 96:104] & 15, b[:, 96:104] >> 4], axis=1)
    high = bits(b, 104, 108, (0, 2, 4, 6), 3).reshape(-1, 16)
    scales = np.repeat((low | high << 4).astype("i4") - 32, 16, axis=1)
    subtracted = bits(b, 0, 32, range(8), 1).reshape(-1, 256) == 0
    return halves(b, 108) * scales.astype("f4") * (two_bits(b, 32) - 4 * subtracted).astype("f4")


def six_bit_scales(b):
    q = b[:, 4:16]
    scales = np.concatenate([q[:, :4] & 63, q[:, 8:12] & 15 | q[:, :4] >> 6 << 4], axis=1)
    least = np.concatenate([q[:, 4:8] & 63, q[:, 8:12] >> 4 | q[:, 4:8] >> 6 << 4], axis=1)
    return np.repeat(scales, 32, axis=1).astype("f4"), np.repeat(least, 32, axis=1).astype("f4")


def runs_of_nibbles(b, at):
    parts = [bits(b, at + 32 * n, at + 32 * n + 32, (0, 4), 15).reshape(-1, 64) for n in range(4)]
    return np.concatenate(parts, axis=1).astype("i4")


def q4_k(b):
    scales, least = six_bit_scales(b)
    return halves(b, 0) * scales * runs_of_nibbles(b, 16).astype("f4") - halves(b, 2) * least


def q5_k(b):
    scales, least = six_bit_scales(b)
    codes = runs_of_nibbles(b, 48) | bits(b, 16, 48, range(8), 1).reshape(-1, 256).astype("i4") << 4
    return halves(b, 0) * scales * codes.astype("f4") - halves(b, 2) * least


def q6_k(b):
    low = [bits(b, 64 * n, 64 * n + 64, (0, 4), 15).reshape(-1, 128) for n in (0, 1)]
    high = [bits(b, 128 + 32 * n, 160 + 32 * n, (0, 2, 4, 6), 3).reshape(-1, 128) for n in (0, 1)]
    codes = np.concatenate(low, axis=1).astype("i4") | np.concatenate(high, axis=1).astype("i4") << 4
    scales = np.repeat(b[:, 192:208].view("i1"), 16, axis=1).astype("f4")
    return halves(b, 208) * scales * (codes - 32).astype("f4")


# (weights and bytes of a block, where it has f16 and how large they are, the formula)
TYPES = {
    "Q4_0": (32, 18, {0: 0.02}, q4_0), "Q4_1": (32, 20, {0: 0.01, 2: 0.1}, q4_1), "Q5_0": (32, 22, {0: 0.01}, q5_0),
    "Q5_1": (32, 24, {0: 0.005, 2: 0.1}, q5_1), "Q8_0": (32, 34, {0: 0.001}, q8_0),
    "Q2_K": (256, 84, {80: 0.005, 82: 0.005}, q2_k), "Q3_K": (256, 110, {108: 0.001}, q3_k),
    "Q4_K": (256, 144, {0: 0.0002, 2: 0.001}, q4_k), "Q5_K": (256, 176, {0: 0.0001, 2: 0.001}, q5_k),
    "Q6_K": (256, 210, {208: 0.00005}, q6_k),
}


def random_blocks(kind, shape, rng):
    """(bytes, numbers) of a matrix."""
    if kind in ("F32", "F16", "BF16"):
        numbers = rng.normal(0, 0.1, shape).astype("f4")
        if kind == "F16":
            data = numbers.astype("<f2")
            return data.tobytes(), data.astype("f4")
        words = numbers.view("<u4") & 0xFFFF0000 if kind == "BF16" else numbers.view("<u4")
        data = (words >> 16).astype("<u2") if kind == "BF16" else words
        return data.tobytes(), words.view("f4")
    weights, n_bytes, places, formula = TYPES[kind]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // weights, n_bytes), dtype="u1")
    for at, size in places.items():
        scale = (rng.uniform(0.5, 1, len(blocks)) * size * rng.choice([-1, 1], len(blocks))).astype("<f2")
        blocks[:, at : at + 2] = scale.view("u1").reshape(-1, 2)
    return blocks.tobytes(), formula(blocks).reshape(shape)


ROUNDED = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K", "Q6_K")  # have no codes of 8 bits that say the same

CONFIG = dict(architectures=["LlamaForCausalLM"], hidden_size=256, intermediate_size=256, num_hidden_layers=1, head_dim=128,
              num_attention_heads=2, num_key_value_heads=1, vocab_size=32, max_position_embeddings=128, rms_norm_eps=1e-5,
              tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
SHAPES = {"self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256), "self_attn.v_proj": (128, 256),
          "self_attn.o_proj": (256, 256), "mlp.gate_proj": (256, 256), "mlp.up_proj": (256, 256), "mlp.down_proj": (256, 256)}


def to_f16(array):
    return array.astype("<f2").astype("<f4")


def random_model(out, name, kind_of, is_rounded):
    rng = np.random.default_rng(sum(name.encode()))
    shapes = {f"model.layers.0.{n}.weight": s for n, s in SHAPES.items()}
    shapes |= {"model.embed_tokens.weight": (32, 256), "lm_head.weight": (32, 256)}
    numbers, tensors = {}, {}
    for full, shape in shapes.items():
        kind = kind_of(full)
        data, values = random_blocks(kind, shape, rng)
        tensors[gguf_name(full)] = (kind, shape, data)
        if "q_proj" in full or "k_proj" in full:  # of the file's rows, in a folder's order
            values = values.reshape(-1, 64, 2, shape[1]).swapaxes(1, 2).reshape(shape)
        numbers[full] = values
    for full in ("model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight", "model.norm.weight"):
        numbers[full] = rng.uniform(0.5, 1.5, 256).astype("f4")
        tensors[gguf_name(full)] = ("F32", (256,), numbers[full].tobytes())
    write_gguf(out / f"{name}.gguf", metadata_of(CONFIG)[0], tensors)
    rounded = {full: to_f16(array) if array.ndim == 2 and is_rounded(full) else array for full, array in numbers.items()}
    for folder, arrays in ((out / name, numbers), (out / f"{name}.rounded", rounded)):
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / "model.safetensors", arrays)
        (folder / "config.json").write_text(json.dumps(CONFIG))


def tied_pair(out):
    """tied.gguf, whose head is the embedding, and untied.gguf, which has that twice."""
    rng = np.random.default_rng(1)
    shapes = {f"model.layers.0.{n}.weight": s for n, s in SHAPES.items()} | {"model.embed_tokens.weight": (32, 256)}
    tensors = {gguf_name(full): ("Q4_K", shape, random_blocks("Q4_K", shape, rng)[0]) for full, shape in shapes.items()}
    for full in ("model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight", "model.norm.weight"):
        tensors[gguf_name(full)] = ("F32", (256,), np.ones(256, "<f4").tobytes())
    metadata = metadata_of(CONFIG)[0]
    write_gguf(out / "tied.gguf", metadata, tensors)
    write_gguf(out / "untied.gguf", metadata, tensors | {"output.weight": tensors["token_embd.weight"]})


# --- tokenizers -------------------------------------------------------------------------------------------------------


def tokenizer_metadata(root, pre):
    """Returns the metadata of a byte-level tokenizer.json; its added tokens must have no flags."""
    vocab = root["model"]["vocab"]
    added = [t for t in root["added_tokens"] if t["content"] not in vocab]
    tokens, types = [""] * (len(vocab) + len(added)), [1] * (len(vocab) + len(added))
    for token, i in vocab.items():
        tokens[i] = token
    for t in root["added_tokens"]:
        tokens[t["id"]], types[t["id"]] = t["content"], 3 if t["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in root["model"]["merges"]]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges}


def tokenizer(out, name, pre):
    """A tokenizer.json without what GGUF has no words for, and the same as metadata."""
    root = json.loads((GOLDEN / "tokenizer" / "families" / f"{name}.json").read_text())
    added = [t for t in root["added_tokens"] if t["content"] not in root["model"]["vocab"]]
    root["added_tokens"] = [dict(id=t["id"], content=t["content"], special=t["special"], normalized=False) for t in added]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(root))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(chat_template="{{ messages[0]['content'] }}")))
    metadata = {"general.architecture": "llama", "tokenizer.chat_template": "{{ messages[0]['content'] }}"}
    if "TemplateProcessing" in json.dumps(root["post_processor"]):
        known = root["post_processor"]["processors"][1]["special_tokens"]
        metadata["tokenizer.ggml.bos_token_id"] = known["<|begin_of_text|>"]["ids"][0]
    write_gguf(out / f"{name}.gguf", metadata | tokenizer_metadata(root, pre), {})


def small_tokenizer():
    """Returns a tokenizer.json of 64 tokens, cut out of GPT-2's."""
    root = json.loads((GOLDEN / "tokenizer" / "families" / "gpt2.json").read_text())
    letters = "abcdefghijklmnopqrstuvwxyz"
    merges = ["t h", "h e", "th e", "\u0120 t", "\u0120 the", "i n"]
    tokens = [*letters, *letters.upper(), "\u0120", ".", ",", *(merge.replace(" ", "") for merge in merges)]
    root["model"] |= dict(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    root["added_tokens"] = [dict(id=len(tokens) + i, content=content, special=True, normalized=False)
                            for i, content in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))]
    return root


def whole(out, name):
    """A family's tiny model with everything that decides an answer, in both forms."""
    source, folder, root = GOLDEN / "families" / name, out / name, small_tokenizer()
    text_end, _, turn_end = (token["id"] for token in root["added_tokens"])
    chat = "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
    config = json.loads((source / "config.json").read_text()) | dict(bos_token_id=text_end, eos_token_id=text_end)
    settings = dict(do_sample=True, temperature=0.7, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.1, eos_token_id=text_end)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    for file, content in (("config", config), ("generation_config", settings), ("tokenizer", root),
                          ("tokenizer_config", dict(eos_token="<|im_end|>", chat_template=chat))):
        (folder / f"{file}.json").write_text(json.dumps(content))
    sampling = {"temp": "temperature", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"}
    convert(folder, out / f"{name}.gguf", tokenizer_metadata(root, "gpt-2") | {"tokenizer.chat_template": chat, "general.sampling.top_k": 20}
            | {"tokenizer.ggml.eos_token_id": turn_end} | {f"general.sampling.{key}": settings[name] for key, name in sampling.items()})


def demo(path):
    """models/demo as a file."""
    folder = ROOT / "models" / "demo"
    root = json.loads((folder / "tokenizer.json").read_text())
    convert(folder, path, tokenizer_metadata(root, "qwen2") | {"tokenizer.ggml.add_bos_token": True})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    for folder in ("families", "types", "tokenizers", "whole"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name in ("llama", "mistral", "qwen2", "qwen3", "phi3", "phi3_longrope", "falcon"):
        convert(GOLDEN / "families" / name, out / "families" / f"{name}.gguf")
        whole(out / "whole", name)
    for kind in IDS:
        random_model(out / "types", kind, lambda full, kind=kind: kind, lambda full, kind=kind: kind in ROUNDED)
    mixed = {"q_proj": "Q4_0", "k_proj": "Q5_0", "v_proj": "Q3_K", "gate_proj": "Q4_K", "up_proj": "Q6_K", "embed_tokens": "Q6_K"}
    random_model(out / "types", "mixed", lambda full: mixed.get(full.split(".")[-2], "Q4_0"),
                 lambda full: mixed.get(full.split(".")[-2]) in ROUNDED)
    tied_pair(out / "types")
    for name, pre in (("gpt2", "gpt-2"), ("llama3", "llama-bpe"), ("qwen2", "qwen2"), ("falcon", "falcon")):
        tokenizer(out / "tokenizers", name, pre)


if __name__ == "__main__":
    main()
