# SPDX-License-Identifier: Apache-2.0
"""XXH3 with 64 bits, as in base/hash.h: it names random streams and identifies prompts.

In Python, because a result must not depend on which packages a system has. Inputs of more than 16 bytes use seed 0.
"""
from __future__ import annotations

import struct

MASK = (1 << 64) - 1
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
STRIPE, HEADS, RATE = 64, 8, 8
STRIPES_PER_BLOCK = (len(SECRET) - STRIPE) // RATE


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at:at + 8], "little")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at:at + 4], "little")


def _swap64(x: int) -> int:
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def _rotate(x: int, n: int) -> int:
    return (x << n | x >> (64 - n)) & MASK


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product ^ product >> 64) & MASK


def _avalanche(h: int) -> int:
    h = (h ^ h >> 37) * 0x165667919E3779F9 & MASK
    return h ^ h >> 32


def _avalanche64(h: int) -> int:
    h = (h ^ h >> 33) * P64_2 & MASK
    h = (h ^ h >> 29) * P64_3 & MASK
    return h ^ h >> 32


def _mix16(data: bytes, at: int, secret: int) -> int:
    return _fold(_u64(data, at) ^ _u64(SECRET, secret), _u64(data, at + 8) ^ _u64(SECRET, secret + 8))


def _short(data: bytes, seed: int) -> int:
    n = len(data)
    if n == 0:
        return _avalanche64(seed ^ _u64(SECRET, 56) ^ _u64(SECRET, 64))
    if n < 4:
        combined = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        return _avalanche64(combined ^ ((_u32(SECRET, 0) ^ _u32(SECRET, 4)) + seed & MASK))
    if n <= 8:
        seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
        flip = (_u64(SECRET, 8) ^ _u64(SECRET, 16)) - seed & MASK
        h = _u32(data, n - 4) + (_u32(data, 0) << 32) ^ flip
        h ^= _rotate(h, 49) ^ _rotate(h, 24)
        h = h * 0x9FB21C651E98DF25 & MASK
        h = (h ^ (h >> 35) + n) * 0x9FB21C651E98DF25 & MASK
        return h ^ h >> 28
    low = _u64(data, 0) ^ ((_u64(SECRET, 24) ^ _u64(SECRET, 32)) + seed & MASK)
    high = _u64(data, n - 8) ^ ((_u64(SECRET, 40) ^ _u64(SECRET, 48)) - seed & MASK)
    return _avalanche(n + _swap64(low) + high + _fold(low, high) & MASK)


def _middle(data: bytes) -> int:
    n = len(data)
    h = n * P64_1
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            h += _mix16(data, 16 * i, 32 * i) + _mix16(data, n - 16 * (i + 1), 32 * i + 16)
        return _avalanche(h & MASK)
    h = _avalanche((h + sum(_mix16(data, 16 * i, 16 * i) for i in range(8))) & MASK)
    h += sum(_mix16(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, n // 16))
    return _avalanche((h + _mix16(data, n - 16, 136 - 17)) & MASK)


def _accumulate(acc: list[int], data: bytes, at: int, keys: tuple[int, ...]) -> None:
    for i, value in enumerate(struct.unpack_from("<8Q", data, at)):
        key = value ^ keys[i]
        acc[i ^ 1] = acc[i ^ 1] + value & MASK
        acc[i] = acc[i] + (key & 0xFFFFFFFF) * (key >> 32) & MASK


def _long(data: bytes) -> int:
    acc = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]
    n = len(data)
    last = len(SECRET) - STRIPE
    keys = [struct.unpack_from("<8Q", SECRET, RATE * i) for i in range(STRIPES_PER_BLOCK)]
    scramble = struct.unpack_from("<8Q", SECRET, last)
    for stripe in range((n - 1) // STRIPE):
        _accumulate(acc, data, STRIPE * stripe, keys[stripe % STRIPES_PER_BLOCK])
        if stripe % STRIPES_PER_BLOCK == STRIPES_PER_BLOCK - 1:
            acc = [(a ^ a >> 47 ^ key) * P32_1 & MASK for a, key in zip(acc, scramble)]
    _accumulate(acc, data, n - STRIPE, struct.unpack_from("<8Q", SECRET, last - 7))
    merged = n * P64_1 + sum(_fold(acc[2 * i] ^ _u64(SECRET, 11 + 16 * i), acc[2 * i + 1] ^ _u64(SECRET, 19 + 16 * i))
                             for i in range(HEADS // 2))
    return _avalanche(merged & MASK)


def xxh3(data: bytes, seed: int = 0) -> int:
    """Returns the hash. A seed other than 0 needs at most 16 bytes."""
    if len(data) <= 16:
        return _short(data, seed)
    if seed != 0:
        raise ValueError("a seed needs an input of at most 16 bytes")
    return _middle(data) if len(data) <= 240 else _long(data)


def hash_tokens(ids: list[int]) -> str:
    """Returns the hash of token ids, as answers record it: 16 hexadecimal digits."""
    return f"{xxh3(struct.pack(f'<{len(ids)}i', *ids)):016x}"
