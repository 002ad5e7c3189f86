# SPDX-License-Identifier: Apache-2.0
"""`sluice bench hollow`: writes a model without weights, for workers that take an accelerator's time and compute nothing."""
from __future__ import annotations

import argparse
import json
import pathlib
import random
import shutil
import struct
import sys
from typing import Any, Optional

from sluice_eval.errors import EvalError, UsageError

from . import __version__
from .command import start

PROGRAM = "sluice bench hollow"
SUMMARY = "Write a folder with the shape of a model and no weights, for --tier timed:NAME."
EPILOG = """The file of weights is sparse: it takes no room on a disk. The tokenizer is that of another model folder, by default the
demo's; the prompts' words are its tokens. Then:
  sluice up --model FOLDER --prefill 4 --decode 4 --arena 4G -- --tier timed:h100
  sluice bench cluster --rates 1,2,4 --input 8000 --output 128
Exit codes: 0 done, 1 failed, 2 wrong usage."""

_BLOCK_BYTES = 1 << 20

# name: layers, heads, KV heads, hidden, intermediate, vocabulary, context, tied embeddings
SHAPES = {
    "llama-3.1-8b": (32, 32, 8, 4096, 14336, 128256, 131072, False),
    "llama-3.1-70b": (80, 64, 8, 8192, 28672, 128256, 131072, False),
    "qwen2.5-7b": (28, 28, 4, 3584, 18944, 152064, 131072, False),
    "qwen2.5-32b": (64, 40, 8, 5120, 27648, 152064, 131072, False),
    "smollm2-135m": (30, 9, 3, 576, 1536, 49152, 8192, True),
}


def config_of(shape: str, special: dict[str, Any]) -> dict[str, Any]:
    """Returns config.json. `special` has the tokenizer's ids of the text's beginning and end."""
    layers, heads, kv_heads, hidden, intermediate, vocabulary, context, tied = SHAPES[shape]
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "sluice_hollow": True, "hidden_act": "silu", "hidden_size": hidden,
            "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": hidden // heads, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "vocab_size": vocabulary,
            "max_position_embeddings": context, "tie_word_embeddings": tied, "torch_dtype": "bfloat16", **special}


def tensors_of(config: dict[str, Any]) -> dict[str, list[int]]:
    """Returns the shape of every tensor, by name."""
    hidden, wide, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    found = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found |= {f"{at}.self_attn.q_proj.weight": [q, hidden], f"{at}.self_attn.k_proj.weight": [kv, hidden],
                  f"{at}.self_attn.v_proj.weight": [kv, hidden], f"{at}.self_attn.o_proj.weight": [hidden, q],
                  f"{at}.mlp.gate_proj.weight": [wide, hidden], f"{at}.mlp.up_proj.weight": [wide, hidden],
                  f"{at}.mlp.down_proj.weight": [hidden, wide], f"{at}.input_layernorm.weight": [hidden],
                  f"{at}.post_attention_layernorm.weight": [hidden]}
    return found


def _random_weights(n: int) -> bytes:
    """Returns bf16 numbers of 0.008 to 0.03 and of either sign."""
    found = bytearray(2 * n)
    found[0::2] = random.randbytes(n)
    found[1::2] = random.randbytes(n).translate(bytes(0x3c | 0x80 * (byte & 1) for byte in range(256)))
    return bytes(found)


def write_weights(path: pathlib.Path, config: dict[str, Any], are_random: bool = False) -> int:
    """Writes a safetensors file whose data are a hole, or random. Returns its size."""
    directory: dict[str, Any] = {}
    end = 0
    for name, shape in tensors_of(config).items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        directory[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(directory, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64 + 56)  # the data begin at a multiple of 64
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end if are_random else 0, _BLOCK_BYTES):
            file.write(_random_weights(min(_BLOCK_BYTES, end - at) // 2))
        file.truncate(8 + len(text) + end)
    return 8 + len(text) + end


def _special_ids(folder: pathlib.Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
        return {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    except (OSError, ValueError) as error:
        raise UsageError(f"--tokenizer: {folder}/config.json cannot be read: {error}") from error


def make(shape: str, folder: pathlib.Path, tokenizer: pathlib.Path) -> int:
    """Writes the folder. Returns the size that its weights pretend to have."""
    config = config_of(shape, _special_ids(tokenizer))
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / name, folder / name)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        return write_weights(folder / "model.safetensors", config)
    except OSError as error:
        raise EvalError(f"{error.filename or folder}: {error.strerror}") from error


def config_like(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the config.json of a Llama model with the shape of another one."""
    try:
        config = json.loads((folder / "config.json").read_text())
        config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
        config.setdefault("tie_word_embeddings", False)
        config.pop("rope_scaling", None)
        return config | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"--synthetic: {folder} has no shape to take: {error}") from error


def make_random(folder: pathlib.Path, config: dict[str, Any], tokenizer: pathlib.Path, n_positions: int) -> None:
    """Writes a model of a shape with random weights, the tokenizer of another one, and this many positions."""
    config = {key: value for key, value in config.items() if key != "sluice_hollow"} | {"max_position_embeddings": n_positions}
    try:
        (folder / "tokenizer.json").symlink_to((tokenizer / "tokenizer.json").resolve(strict=True))
        (folder / "config.json").write_text(json.dumps(config))
        write_weights(folder / "model.safetensors", config, are_random=True)
    except OSError as error:
        raise UsageError(f"--synthetic: {error}") from error


def _demo() -> Optional[pathlib.Path]:
    package = pathlib.Path(__file__).resolve().parent
    for folder in (package.parents[2] / "models/demo", package.parents[1] / "models/demo"):
        if (folder / "tokenizer.json").exists():
            return folder
    return None


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=PROGRAM, description=SUMMARY, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   usage="%(prog)s --shape NAME --output FOLDER [options]", allow_abbrev=False)
    made.add_argument("--version", action="version", version=__version__)
    made.add_argument("--shape", default="llama-3.1-8b", choices=list(SHAPES), metavar="NAME", help=f"one of {', '.join(SHAPES)} [llama-3.1-8b]")
    made.add_argument("--output", "-o", metavar="FOLDER", help="the new folder")
    made.add_argument("--tokenizer", metavar="FOLDER", help="the model whose tokenizer it gets. Default: models/demo")
    return made


def _run(arguments: argparse.Namespace) -> None:
    tokenizer = pathlib.Path(arguments.tokenizer) if arguments.tokenizer else _demo()
    if not arguments.output:
        raise UsageError("--output: name the new folder")
    if not tokenizer:
        raise UsageError("--tokenizer: there is no models/demo here; name another model's folder")
    size = make(arguments.shape, pathlib.Path(arguments.output), tokenizer)
    print(f"{arguments.output}: {arguments.shape} without weights; they would take {size / 1e9:.1f} GB")


def main(words: Optional[list[str]] = None) -> int:
    return start(parser(), _run, words)


if __name__ == "__main__":
    sys.exit(main())
