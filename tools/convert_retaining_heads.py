#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make retaining_heads.safetensors for a model folder from a checkpoint of Locret's retaining heads.

The checkpoint is a PyTorch state dict (.bin, .pt, .pth: needs torch) or a safetensors file, with the keys

    model.layers.<i>.self_attn.fc1.weight    [R][(heads + 2 KV heads) * head_dim]
    model.layers.<i>.self_attn.fc2.weight    [KV heads][R]

(a prefix in front of "layers" may differ). They become layers.<i>.w1 and layers.<i>.w2, values untouched. Shapes are
checked against the model's config.json; what does not fit is refused, and nothing is written.
"""
import argparse
import json
import os
import pathlib
import re
import struct
import sys

FILE_NAME = "retaining_heads.safetensors"
KEY = re.compile(r"(?:^|.*\.)layers\.(\d+)\.self_attn\.fc([12])\.weight")
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class Refused(Exception):
    """The input is not what it should be; the text says what it should be."""


def read_shapes(model_dir):
    """From config.json: number of layers, columns of W1, rows of W2."""
    path = pathlib.Path(model_dir) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        n_heads = config["num_attention_heads"]
        n_kv_heads = config.get("num_key_value_heads") or n_heads
        head_dim = config.get("head_dim") or config["hidden_size"] // n_heads
        return config["num_hidden_layers"], (n_heads + 2 * n_kv_heads) * head_dim, n_kv_heads
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path}: not the configuration of a model: {error}") from error


def read_safetensors(path):
    """Name -> (dtype, shape, bytes)."""
    data = pathlib.Path(path).read_bytes()
    try:
        (header_bytes,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + header_bytes])
        body = memoryview(data)[8 + header_bytes:]
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(body):
                raise Refused(f"{path}: tensor {name} lies outside of the file: it is truncated")
            tensors[name] = (entry["dtype"], list(entry["shape"]), bytes(body[begin:end]))
        return tensors
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{path}: not a safetensors file: {error}") from error


def tensor_entry(tensor):
    """A torch tensor as (dtype, shape, bytes), its values untouched where the engine knows the type."""
    import ctypes

    import torch
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    if tensor.dtype == torch.float64:
        tensor = tensor.float()
    if tensor.dtype not in names:
        raise Refused(f"a tensor of type {tensor.dtype}: expected float32, float16 or bfloat16")
    tensor = tensor.detach().cpu().contiguous()
    size = tensor.numel() * tensor.element_size()
    return names[tensor.dtype], list(tensor.shape), ctypes.string_at(tensor.data_ptr(), size)


def read_pickle(path):
    try:
        import torch
    except ImportError as error:
        raise Refused(f"{path} is a PyTorch file, and torch is not installed: pip install torch, or convert it to "
                      "safetensors elsewhere") from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # never runs code from the file
    except Exception as error:  # torch raises what it likes
        raise Refused(f"{path}: torch cannot read it: {error}") from error
    if not isinstance(state, dict):
        raise Refused(f"{path}: holds a {type(state).__name__}, expected a state dict")
    return {name: tensor_entry(value) for name, value in state.items() if hasattr(value, "data_ptr")}


def select_heads(tensors, n_layers, columns, n_kv_heads, path):
    """The heads among a checkpoint's tensors, under our names, every shape checked."""
    found = {}
    for name, entry in tensors.items():
        match = KEY.fullmatch(name)
        if match is None:
            if ".fc" in name:
                raise Refused(f"{path}: {name} belongs to heads of another form: expected fc1.weight and fc2.weight of "
                              "every layer, without biases")
            continue
        found[int(match[1]), int(match[2])] = entry
    if not found:
        raise Refused(f"{path}: no retaining heads: expected keys such as model.layers.0.self_attn.fc1.weight, found "
                      + (", ".join(sorted(tensors)[:3]) or "none"))
    beyond = max(layer for layer, _ in found)
    if beyond >= n_layers:
        raise Refused(f"{path}: has layer {beyond}, the model has layers 0 to {n_layers - 1}")
    hidden = found[0, 1][1][0] if (0, 1) in found and len(found[0, 1][1]) == 2 else None
    heads = {}
    for layer in range(n_layers):
        for w in (1, 2):
            key = f"model.layers.{layer}.self_attn.fc{w}.weight"
            if (layer, w) not in found:
                raise Refused(f"{path}: {key} is missing; the model has {n_layers} layers")
            dtype, shape, data = found[layer, w]
            expected = [hidden, columns] if w == 1 else [n_kv_heads, hidden]
            if shape != expected:
                raise Refused(f"{path}: {key} has shape {shape}, the model's configuration wants "
                              + f"[{expected[0] or 'R'}, {expected[1] or 'R'}]")
            if dtype not in ELEMENT_BYTES or len(data) != ELEMENT_BYTES[dtype] * shape[0] * shape[1]:
                raise Refused(f"{path}: {key} has type {dtype} and {len(data)} bytes, expected F32, F16 or BF16 of that "
                              "shape")
            heads[f"layers.{layer}.w{w}"] = (dtype, shape, data)
    return heads


def write_heads(path, heads):
    """A safetensors file, complete or not there at all."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in heads.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = pathlib.Path(f"{path}.part")
    with open(part, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for _, _, data in heads.values():
            file.write(data)
    os.replace(part, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="state dict (.bin, .pt, .pth) or .safetensors with the heads")
    parser.add_argument("model", help="folder of the model that they were trained for")
    parser.add_argument("-o", "--output", help=f"where to write (default: {FILE_NAME} in the model's folder)")
    args = parser.parse_args()
    output = pathlib.Path(args.output) if args.output else pathlib.Path(args.model) / FILE_NAME
    try:
        n_layers, columns, n_kv_heads = read_shapes(args.model)
        read = read_safetensors if args.checkpoint.endswith(".safetensors") else read_pickle
        heads = select_heads(read(args.checkpoint), n_layers, columns, n_kv_heads, args.checkpoint)
        write_heads(output, heads)
    except Refused as error:
        sys.exit(f"convert_retaining_heads: {error}")
    except OSError as error:
        sys.exit(f"convert_retaining_heads: {error.filename}: {error.strerror}")
    hidden = heads["layers.0.w1"][1][0]
    print(f"{output}: {n_layers} layers, {hidden} hidden, {sum(len(h[2]) for h in heads.values()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
