#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what entropy coding would save of capsules, and at which link it would pay; docs/quality/entropy.csv has its lines.

    sluice run --local --model smollm2 --recipe full,format=int4 --prompt-file LICENSE --raw --max-new-tokens 1 --save-capsule FILE
    tools/capsule_bytes.py smollm2=FILE ...   prints lines of CSV; the name before = is the model's. It needs NumPy and libzstd

how       stored: zstd over the body as it is, by MiB; planes: each part of the pages of a layer together, its two-byte numbers split
          into bytes, positions as differences; entropy: order 0 of the codes, which bounds rANS, with one table for a half's codes,
          or tables for pages or for channels of a head, whose bytes count; deltas: positions in one byte, more where they need it;
          unfilled: the slots of last pages that no token uses
MB/s      of the stored form, by one thread's processor time
Gbit/s    a slower link gains if a capsule is compressed, sent and decompressed one after the other
"""
import csv
import ctypes
import struct
import sys
import time

import script

BITS = {0: 32, 1: 16, 2: 16, 3: 8, 4: 4, 7: 3, 5: 2, 6: 1}  # by number on the wire (engine/kvcache/format.h)
CODES, PAIRS = (3, 4, 7, 5, 6), {46: (4, 7), 40: (4, 5)}
SLOTS, MIB = 64, 1 << 20
HEAD = ["model", "recipe", "bytes", "how", "saves_percent", "compress_mb_s", "decompress_mb_s", "pays_below_gbit_s"]


class Refused(Exception):
    pass


# --- the file (engine/kvcache/capsule_file.h, page.h; proto/sluice/v1/capsule.proto) -----------------------------------

def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def message(data):
    """Returns {field: its values} of a protobuf message."""
    fields, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            n, at = varint(data, at) if key & 7 == 2 else (8 if key & 7 == 1 else 4, at)
            value, at = data[at:at + n], at + n
        fields.setdefault(key >> 3, []).append(value)
    return fields


def counts(fields, number):
    found = []
    for value in fields.get(number, []):
        at = 0
        while isinstance(value, bytes) and at < len(value):
            n, at = varint(value, at)
            found.append(n)
        found += [value] if isinstance(value, int) else []
    return found


class Layout:
    """Where the parts of a page are."""

    def __init__(self, fields, first, head_dim):
        of = lambda number: fields.get(number, [0])[0]
        self.k, self.v = PAIRS.get(of(first), (of(first), of(first)))
        if self.k not in BITS or self.v not in BITS:
            raise Refused(f"format {of(first)} is not among those that this script reads")
        group = head_dim if head_dim <= 64 else 64 if head_dim % 64 == 0 else 32
        sizes = {"k": head_dim * SLOTS * BITS[self.k] // 8, "k scale": head_dim * 4 * (self.k in CODES), "v": head_dim * SLOTS * BITS[self.v] // 8,
                 "v scale": SLOTS * head_dim // group * 4 * (self.v in CODES), "positions": 4 * SLOTS * of(first + 4), "states": 4 * SLOTS * of(first + 2)}
        self.parts, self.bytes = {}, 0
        for name, n in sizes.items():
            self.parts[name] = (self.bytes, n)
            self.bytes += (n + 63) // 64 * 64


def read(path):
    """Returns the recipe, a head's channels, the body, and (layer, head, packed, layout, offset, used slots) of each page."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:8] != b"SLUICECP" or len(data) < 48:
        raise Refused("no capsule file")
    _, n_label, n_header, n_body = struct.unpack_from("<IIQQ", data, 8)
    header = message(data[48 + n_label:48 + n_label + n_header])
    body, pages, at = data[48 + n_label + n_header:], [], 0
    for layer, fields in enumerate(map(message, header[10])):
        work, packed = Layout(fields, 1, header[6][0]), Layout(fields, 2, header[6][0])
        slots = counts(fields, 7)
        for head, (n, n_packed) in enumerate(zip(slots, counts(fields, 8) or [0] * len(slots))):
            for page in range((n + SLOTS - 1) // SLOTS):
                layout = packed if page < n_packed else work
                pages.append((layer, head, page < n_packed, layout, at, min(SLOTS, n - SLOTS * page)))
                at += layout.bytes
    if at != n_body or n_body != len(body):
        raise Refused("damaged: its pages are not its body")
    return data[48:48 + n_label].rstrip(b"\0").decode(), header[6][0], body, pages


# --- zstd --------------------------------------------------------------------------------------------------------------

class Zstd:
    def __init__(self):
        self.lib = ctypes.CDLL("libzstd.so.1")
        for name in ("ZSTD_compressBound", "ZSTD_compressCCtx", "ZSTD_decompressDCtx"):
            getattr(self.lib, name).restype = ctypes.c_size_t
        self.lib.ZSTD_createCCtx.restype = self.lib.ZSTD_createDCtx.restype = ctypes.c_void_p
        self.contexts = ctypes.c_void_p(self.lib.ZSTD_createCCtx()), ctypes.c_void_p(self.lib.ZSTD_createDCtx())

    def measure(self, pieces, level):
        """Returns the compressed bytes, and the least seconds to compress and to decompress them."""
        size, n, seconds = ctypes.c_size_t, 0, [0, 0]
        for piece in pieces:
            out = ctypes.create_string_buffer(self.lib.ZSTD_compressBound(size(len(piece))))
            back, least = ctypes.create_string_buffer(len(piece)), [float("inf")] * 2
            for _ in range(1 if level > 9 else 3):
                begin = time.thread_time()
                written = self.lib.ZSTD_compressCCtx(self.contexts[0], out, size(len(out)), piece, size(len(piece)), level)
                middle = time.thread_time()
                read_back = self.lib.ZSTD_decompressDCtx(self.contexts[1], back, size(len(piece)), out, size(written))
                least = [min(least[0], middle - begin), min(least[1], time.thread_time() - middle)]
            if read_back != len(piece) or back.raw != piece:
                raise Refused("zstd does not give back what it got")
            n, seconds = n + written, [a + b for a, b in zip(seconds, least)]
        return n, *seconds


def planes(np, body, pages):
    """Returns the body with each part of a layer's pages together, bytes of two-byte numbers apart, positions as differences."""
    streams = {}
    for layer, _, packed, layout, at, _ in pages:
        for name, (offset, n) in layout.parts.items():
            part = np.frombuffer(body, np.uint8, n, at + offset)
            if name == "positions" and n:
                part = np.diff(part.view(np.int32), prepend=0).astype(np.int32).view(np.uint8)
            if n and (name.endswith("scale") or (name in "kv" and not packed)):
                part = part.reshape(-1, 2).T
            streams.setdefault((layer, packed, name), []).append(part.tobytes())
    return [b"".join(stream) for stream in streams.values() if stream[0]]


# --- entropy -----------------------------------------------------------------------------------------------------------

def unpack(np, raw, rows, bits):
    """Returns codes [rows][codes of a row]."""
    rows = raw.reshape(rows, -1)
    ones = np.unpackbits(rows, axis=1, bitorder="little").reshape(len(rows), -1, bits)
    return np.packbits(ones, axis=2, bitorder="little")[:, :, 0]


def code_bytes(np, groups, n_codes):
    """Returns the bytes of groups [groups][codes] of codes, each by its own table of 12 bits a code."""
    numbers = np.stack([(groups == code).sum(1) for code in range(n_codes)], 1)
    share = numbers / numbers.sum(1, keepdims=True)
    return float(-(numbers * np.log2(np.where(share > 0, share, 1))).sum() / 8 + len(groups) * n_codes * 12 / 8)


def entropies(np, head_dim, body, pages):
    """Yields a name, and the bytes that tables of this kind save of the packed codes."""
    saved = {"entropy, one table": 0.0, "entropy, by page": 0.0, "entropy, by channel": 0.0}
    for name in ("k", "v"):
        codes, bits = {}, 0
        for layer, head, packed, layout, at, _ in pages:
            bits = BITS[getattr(layout, name)] if packed else bits
            if packed:
                offset, n = layout.parts[name]
                rows = unpack(np, np.frombuffer(body, np.uint8, n, at + offset), head_dim if name == "k" else SLOTS, bits)
                codes.setdefault((layer, head), []).append(rows if name == "k" else rows.T)  # [channel][slot]
        if not codes or bits > 8:
            continue
        of_pages = np.stack([page for of_head in codes.values() for page in of_head]).reshape(-1, head_dim * SLOTS)
        stored = of_pages.size * bits / 8
        saved["entropy, one table"] += stored - code_bytes(np, of_pages.reshape(1, -1), 1 << bits)
        saved["entropy, by page"] += stored - code_bytes(np, of_pages, 1 << bits)
        saved["entropy, by channel"] += stored - sum(code_bytes(np, np.concatenate(of_head, 1), 1 << bits) for of_head in codes.values())
    yield from saved.items()


def lines(np, zstd, path):
    """Yields how, the share that it saves, and for zstd MB/s to compress and to decompress."""
    recipe, head_dim, body, pages = read(path)
    unfilled = sum(layout.bytes * (SLOTS - used) / SLOTS for _, _, _, layout, _, used in pages)
    deltas = sum(layout.parts["positions"][1] * 3 / 4 for _, _, _, layout, _, _ in pages)
    for how, n in (("unfilled", unfilled), ("deltas", deltas), *entropies(np, head_dim, body, pages)):
        yield [recipe, len(body), how, f"{100 * n / len(body):.1f}", "", "", ""]
    for how, pieces in (("stored", [body[at:at + MIB] for at in range(0, len(body), MIB)]), ("planes", planes(np, body, pages))):
        for level in (1, 3, 19):
            n, compress, decompress = zstd.measure(pieces, level)
            speed, saves = [len(body) / seconds / 1e6 for seconds in (compress, decompress)], 1 - n / len(body)
            yield [recipe, len(body), f"zstd -{level}, {how}", f"{100 * saves:.1f}", *(f"{one:.0f}" for one in speed),
                   f"{saves / (1 / speed[0] + 1 / speed[1]) * 8 / 1000:.2f}"]


def main():
    script.needs_arguments(1, "MODEL=FILE ...")
    script.needs("numpy")
    import numpy as np
    try:
        zstd, out = Zstd(), csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(HEAD)
        for word in sys.argv[1:]:
            model, _, path = word.partition("=")
            out.writerows([model, *line] for line in lines(np, zstd, path))
    except (OSError, Refused) as error:
        script.stop(str(error), 1)


if __name__ == "__main__":
    main()
