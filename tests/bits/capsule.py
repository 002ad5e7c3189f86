# SPDX-License-Identifier: Apache-2.0
"""
A capsule as numbers (engine/kvcache/capsule.h, engine/kvcache/page.h, proto/sluice/v1/capsule.proto), read by a second pair of eyes.

What is digested is the header, but for its version and whose prompt it is of (which is a matter of salts), and all that pages hold. The last page of a head has room for slots that do not exist; whatever
bytes lie there travel along and mean nothing, so they are left out. So are the gaps between the parts of a page.
"""
import hashlib
import struct

PAGE_SLOTS = 64
BITS = {0: 32, 1: 16, 2: 16, 3: 8, 4: 4, 5: 2, 6: 1, 7: 3}  # of an element, by enum sl_kv_format
FIRST_QUANTIZED = 3
PAIRS = {32: (1, 3), 33: (1, 4), 34: (1, 5), 35: (3, 1), 36: (3, 4), 37: (3, 5),  # formats of keys and of values
         38: (4, 1), 39: (4, 3), 40: (4, 5), 41: (5, 1), 42: (5, 3), 43: (5, 4), 44: (1, 7), 45: (3, 7),
         46: (4, 7), 47: (7, 1), 48: (7, 3), 49: (7, 4), 50: (7, 5), 51: (5, 7)}
IDENTITY = (1, 12)  # of a header's fields: version, prefix_hash
FILE_MAGIC, FILE_HEAD = b"SLUICECP", 48  # engine/kvcache/capsule_file.h
STORE_SIZES_AT = 64  # of a file in a store's folder: kvstore/disk/file.h


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data):
    """(number, value, the field's own bytes) of a protobuf message; values are integers, or bytes of a length."""
    at = 0
    while at < len(data):
        begin = at
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            length = {1: 8, 5: 4}[kind]
            value, at = int.from_bytes(data[at:at + length], "little"), at + length
        yield key >> 3, value, data[begin:at]


def _packed(data):
    values, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values


class Layer:
    def __init__(self, data):
        number = {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 10: 0}
        lists = {7: [], 8: []}
        for field, value, _ in _fields(data):
            if field in lists:
                lists[field] += _packed(value) if isinstance(value, bytes) else [value]
            else:
                number[field] = value
        self.work = (number[1], number[3], number[5])    # format, score planes, positions
        self.packed = (number[2], number[4], number[6])
        self.n_slots, self.n_packed, self.offloaded = lists[7], lists[8], bool(number[10])


class Header:
    def __init__(self, data):
        number = {}
        layers = []
        for field, value, _ in _fields(data):
            if field == 10:
                layers.append(Layer(value))
            else:
                number[field] = value
        self.recipe_fingerprint = number[3]
        self.head_dim, self.n_tokens, self.body_bytes = number[6], number.get(8, 0), number.get(9, 0)
        self.layers = layers
        self.anonymous = b"".join(text for field, _, text in _fields(data) if field not in IDENTITY)


def _align(n_bytes):
    return (n_bytes + 63) // 64 * 64


def _page(kind, d):
    """(bytes of a page, its parts in order: (offset, rows, bytes of a row)); a part of one row is always whole."""
    fmt, n_states, has_positions = kind
    keys, values = PAIRS.get(fmt, (fmt, fmt))
    at, parts = 0, []

    def part(rows, row_bytes):
        nonlocal at
        parts.append((at, rows, row_bytes))
        at = _align(at + rows * row_bytes)

    group = d if d <= 64 else 64 if d % 64 == 0 else 32
    for half, n_scales in ((keys, d), (values, PAGE_SLOTS * d // group)):
        if half < FIRST_QUANTIZED:
            part(PAGE_SLOTS, d * BITS[half] // 8)
        else:
            part(1, PAGE_SLOTS * d * BITS[half] // 8)
            part(1, n_scales * 2 * 2)
    if has_positions:
        part(PAGE_SLOTS, 4)
    planes = at
    for plane in range(n_states):
        parts.append((planes + plane * PAGE_SLOTS * 4, PAGE_SLOTS, 4))
    return _align(planes + n_states * PAGE_SLOTS * 4), parts


def _digest_layer(layer, d, body, at):
    """(digest of what the layer's pages hold, where the next layer begins)."""
    hashed = hashlib.blake2b(digest_size=8)
    for n_slots, n_packed in zip(layer.n_slots, layer.n_packed):
        for page in range((n_slots + PAGE_SLOTS - 1) // PAGE_SLOTS):
            n_bytes, parts = _page(layer.packed if page < n_packed else layer.work, d)
            held = min(n_slots - page * PAGE_SLOTS, PAGE_SLOTS)
            for offset, rows, row_bytes in parts:
                hashed.update(body[at + offset:at + offset + min(rows, held) * row_bytes])
            at += n_bytes
    return hashed.digest(), at


class Capsule:
    """pages: the digest of what the pages hold; whole: with the header, see above."""

    def __init__(self, header, body):
        self.header, self.layers, at = Header(header), [], 0
        for layer in self.header.layers:
            digest, at = _digest_layer(layer, self.header.head_dim, body, at)
            self.layers.append(digest)
        assert at == len(body) == self.header.body_bytes, (at, len(body), self.header.body_bytes)
        held = b"".join(self.layers)
        self.pages = hashlib.blake2b(held, digest_size=8).hexdigest()
        self.whole = hashlib.blake2b(self.header.anonymous + held, digest_size=8).hexdigest()

    def is_resident_part_of(self, other):
        """One process has all layers in its capsule, a cluster those that no store keeps."""
        return self.header.n_tokens == other.header.n_tokens and all(
            layer.offloaded or mine == theirs for layer, mine, theirs in zip(self.header.layers, self.layers, other.layers))


def of_file(path):
    """Reads a file that `sluice run --save-capsule` has written."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == FILE_MAGIC, f"{path} is not a capsule"
    label_bytes, header_bytes = struct.unpack_from("<IQ", data, 12)
    begin = FILE_HEAD + label_bytes
    return Capsule(data[begin:begin + header_bytes], data[begin + header_bytes:])


def of_store(path):
    """Reads a file of a kvstore's disk (kvstore/disk/file.h): a head, header and body; the head has their lengths."""
    with open(path, "rb") as file:
        data = file.read()
    header_bytes, body_bytes = struct.unpack_from("<QQ", data, STORE_SIZES_AT)
    begin = len(data) - body_bytes
    return Capsule(data[begin - header_bytes:begin], data[begin:])
