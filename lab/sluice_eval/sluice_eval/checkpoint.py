# SPDX-License-Identifier: Apache-2.0
"""A training run of retaining heads as a file, and the trained heads as the file that engines load.

A checkpoint is lines of text, "name value" each: a magic, the facts of the run, "step" last; an empty line; then f32 arrays in the
machine's byte order: parameters, means, squares, each [n]; smooth-L1, smoothness and overlap of every step; and the SHA-256 of all
before it. It is only valid on the machine and version that wrote it.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import tempfile
from typing import BinaryIO, Iterator

import numpy as np

from .errors import EvalError, UsageError
from .outputs import check_name

MAGIC = "sluice-heads-in-training 2"
Facts = dict[str, str]


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[BinaryIO]:
    """Opens a file that gets its name only when it is complete and on disk."""
    temporary = None
    try:
        check_name(path)
        with tempfile.NamedTemporaryFile(dir=pathlib.Path(path).absolute().parent, prefix=pathlib.Path(path).name + ".",
                                         delete=False) as file:
            temporary = file.name
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise EvalError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def save(path: str, facts: Facts, state: np.ndarray, curve: np.ndarray) -> None:
    """Writes a checkpoint, whole or not at all. state: [3][n]; curve: [3][steps taken]."""
    digest = hashlib.sha256()
    lines = [MAGIC, *(f"{name} {value}" for name, value in facts.items()), f"step {curve.shape[1]}", "", ""]
    with whole_file(path) as file:
        for part in ("\n".join(lines).encode(), state, np.ascontiguousarray(curve)):
            digest.update(part)
            file.write(part)
        file.write(digest.digest())


def _check_fact(path: str, line: str, name: str, value: str) -> None:
    found = line.removeprefix(name + " ")
    if found == line:
        raise EvalError(f"{path} says nothing of {name}: it is of another version; remove it to start anew")
    if found != value:
        raise EvalError(f"{path} was made with {name} {found}, now it is {value}: go on with the same, give another --checkpoint, "
                        "or remove it to start anew")


def load(path: str, facts: Facts, state: np.ndarray, n_steps: int) -> np.ndarray:
    """Reads a checkpoint into `state`, and returns its curve. EvalError names the first other fact; UsageError: it is damaged, and
    the state must not be used. FileNotFoundError: there is none."""
    broken = UsageError(f"{path} is not a whole checkpoint of retaining heads; remove it to start anew")
    try:
        data = memoryview(pathlib.Path(path).read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EvalError(f"{path}: cannot be read: {error.strerror}") from error
    text, end, _ = bytes(data[:1 << 16]).partition(b"\n\n")
    magic, *lines = text.decode("utf-8", "replace").split("\n")
    if not end or magic != MAGIC:
        raise broken
    for line, (name, value) in zip([*lines, ""], facts.items()):
        _check_fact(path, line, name, value)
    name, _, step = lines[-1].partition(" ")
    if len(lines) != len(facts) + 1 or name != "step" or not step.isdecimal() or int(step) > n_steps:
        raise broken
    arrays, digest = data[len(text) + 2:-32], bytes(data[-32:])
    if len(arrays) != 4 * (state.size + 3 * int(step)) or hashlib.sha256(data[:-32]).digest() != digest:
        raise broken
    numbers = np.frombuffer(arrays, np.float32)
    state[:] = numbers[:state.size].reshape(state.shape)
    return numbers[state.size:].reshape(3, int(step)).copy()


def _bf16(values: np.ndarray) -> np.ndarray:
    """Rounds to nearest, ties to even."""
    bits = values.view(np.uint32)
    return (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)).astype(np.uint16)


_ROUND = {"bf16": _bf16, "f16": lambda values: values.astype(np.float16), "f32": lambda values: values}


def write_heads(path: str, matrices: dict[str, np.ndarray], dtype: str) -> None:
    """Writes a safetensors file of this type: bf16, f16 or f32."""
    entries, at = {}, 0
    for name, matrix in matrices.items():
        for wrong in matrix[~np.isfinite(matrix)]:
            raise UsageError(f"training has diverged: a parameter is {wrong:g}; use a smaller learning rate")
        n_bytes = matrix.size * (4 if dtype == "f32" else 2)
        entries[name] = {"dtype": dtype.upper(), "shape": list(matrix.shape), "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with whole_file(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for matrix in matrices.values():
            file.write(np.ascontiguousarray(_ROUND[dtype](matrix)))
