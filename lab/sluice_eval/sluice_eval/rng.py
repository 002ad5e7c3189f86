# SPDX-License-Identifier: Apache-2.0
"""Random numbers of evaluations: the same on every machine, from integers alone, and the same as lab/random.h.

splitmix64 (Steele, Lea & Flood, 2014) draws numbers. A Feistel network over the smallest even number of bits permutes,
iterated until the image is in range. So "the i-th of n things in random order" needs no list.
"""
from __future__ import annotations

try:
    import numpy as np
except ImportError:
    pass  # arrays need it, single numbers do not

from .hashing import MASK, xxh3

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(x: int) -> int:
    """Returns splitmix64's finalizer of x: every bit of the result depends on every bit of x."""
    x = (x ^ x >> 30) * MIX_1 & MASK
    x = (x ^ x >> 27) * MIX_2 & MASK
    return x ^ x >> 31


def mix_array(x: np.ndarray) -> np.ndarray:
    """Returns mix() of each number of an array of uint64."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(MIX_1)
    x = (x ^ x >> np.uint64(27)) * np.uint64(MIX_2)
    return x ^ x >> np.uint64(31)


class Random:
    """A stream of random numbers. Streams whose name, seed or index differ are unrelated."""

    def __init__(self, name: str, seed: int, index: int) -> None:
        # Mixed once more, because the stream of a state plus GOLDEN is the same stream shifted by one step.
        self.state = mix(xxh3(name.encode(), seed) + mix(index + GOLDEN & MASK) & MASK)

    def copy(self) -> Random:
        other = Random.__new__(Random)
        other.state = self.state
        return other

    def next(self) -> int:
        """Returns the next 64 bits."""
        self.state = self.state + GOLDEN & MASK
        return mix(self.state)

    def below(self, n: int) -> int:
        """Returns a number from 0 to n - 1."""
        return self.next() * n >> 64

    def next_array(self, n: int) -> np.ndarray:
        """Returns the next n results of next() as uint64."""
        steps = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        drawn = mix_array(steps + np.uint64(self.state))
        self.state = self.state + n * GOLDEN & MASK
        return drawn


def below_array(drawn: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Returns what below(n) makes of each drawn number; n is uint64 and less than 2^32."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    return ((drawn >> shift) * n + ((drawn & low) * n >> shift)) >> shift


def _half_bits(n: int) -> int:
    half = 1
    while 1 << 2 * half < n:
        half += 1
    return half


def permute(i: int, n: int, key: int) -> int:
    """Returns the image of i under the permutation of 0..n-1 that `key` selects."""
    half = _half_bits(n)
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for step in range(1, 5):
            left, right = right, left ^ mix(key + step * GOLDEN + mix(right) & MASK) & mask
        i = left << half | right
        if i < n:
            return i


def permute_array(i: np.ndarray, n: int, key: int) -> np.ndarray:
    """Returns permute() of each number of an array of uint64."""
    half = np.uint64(_half_bits(n))
    mask = np.uint64((1 << int(half)) - 1)
    out = np.asarray(i, dtype=np.uint64).copy()
    todo = np.arange(len(out))
    while len(todo):
        left, right = out[todo] >> half, out[todo] & mask
        for step in range(1, 5):
            add = np.uint64(key + step * GOLDEN & MASK)
            left, right = right, left ^ mix_array(mix_array(right) + add) & mask
        out[todo] = left << half | right
        todo = todo[out[todo] >= np.uint64(n)]
    return out
