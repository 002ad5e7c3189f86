#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file again, with all its matrices of one type: requantize.py FILE.gguf f16|q4_0|q4_1|q8_0 TO.gguf. Started by peers.py."""
import os
import sys

import engine

engine.needs("gguf", "all", "FILE.gguf TYPE TO.gguf")
import gguf  # noqa: E402
import numpy  # noqa: E402

FILE_TYPES = {"f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7}  # values of general.file_type


def main(source, kind, target):
    if kind not in FILE_TYPES:
        raise SystemExit(f"requantize.py: {kind}: expected one of {', '.join(FILE_TYPES)}")
    reader, wanted = gguf.GGUFReader(source), gguf.GGMLQuantizationType[kind.upper()]
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(target + ".part", architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == gguf.Keys.General.ARCHITECTURE:
            continue  # the writer's own
        value = FILE_TYPES[kind] if name == gguf.Keys.General.FILE_TYPE else field.contents()
        writer.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if numbers.ndim < 2:  # norms and biases
            writer.add_tensor(tensor.name, numpy.asarray(numbers, numpy.float32))
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(target + ".part", target)


if __name__ == "__main__":
    main(*sys.argv[1:4])
