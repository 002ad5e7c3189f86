# SPDX-License-Identifier: Apache-2.0
"""The demo model cut off behind its first layers: what compares one answer with another needs no right ones, and long prompts
are read in a fraction of the time."""
import atexit
import functools
import json
import os
import shutil
import struct
import tempfile

from harness import MODEL


def _cut_retaining_heads(source, target, n_layers):
    """Those of the first layers alone: the loader takes no others."""
    with open(source, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = file.read()
    kept, pieces, offset = {}, [], 0
    for name, tensor in header.items():
        if name != "__metadata__" and int(name.split(".")[1]) < n_layers:
            begin, end = tensor["data_offsets"]
            kept[name] = {**tensor, "data_offsets": [offset, offset + end - begin]}
            pieces.append(body[begin:end])
            offset += end - begin
    text = json.dumps({**kept, **{k: v for k, v in header.items() if k == "__metadata__"}}).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))


@functools.lru_cache(maxsize=None)
def shallow_model(n_layers):
    """A model folder, which is removed when the test ends."""
    folder = tempfile.mkdtemp(prefix="sluice-shallow-")
    atexit.register(shutil.rmtree, folder)
    with open(os.path.join(MODEL, "config.json")) as file:
        config = {**json.load(file), "num_hidden_layers": n_layers}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    _cut_retaining_heads(os.path.join(MODEL, "retaining_heads.safetensors"), os.path.join(folder, "retaining_heads.safetensors"),
                         n_layers)
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        os.symlink(os.path.join(MODEL, name), os.path.join(folder, name))
    return folder
