#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden data for engine/compress/: the methods as their papers describe them, in NumPy, sharing no code with the C.

    tools/golden_compress.py [tests/golden/compress]

Writes h2o.txt and streamingllm.txt (the positions that every head keeps after every chunk, and for H2O the accumulated
attention of those) and kivi.txt (codes, scales and zeros of one quantized page). Inputs are not written: they
are a function of (seed, stream, index) that tests/unit/compress/evict/drive.c computes as well. All arithmetic is f64 unless
a format says otherwise; a seed for which a kept set hangs on less than 2e-4 of score is passed over, because f32 may
decide it otherwise.
"""
import sys
from pathlib import Path

import script
script.needs("numpy")
import numpy as np  # noqa: E402
from golden_methods import K, Q, TooCloseToCall, V, rotate, values  # noqa: E402


def attention(q, k, scale, first):
    """Rows of softmax; row r sees the keys up to and including number first + r."""
    logits = scale * (q @ k.T)
    visible = np.arange(k.shape[0])[None, :] <= first + np.arange(q.shape[0])[:, None]
    logits = np.where(visible, logits, -np.inf)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def h2o_head(q, k, chunk, budget, sinks, recent, scale, slot_positions, every_chunk):
    """One KV head: q [n][group][d], k [n][d]. Yields (kept positions, their accumulated attention) after each chunk."""
    n = k.shape[0]
    kept, acc = np.arange(0), np.zeros(0)
    for begin in range(0, n, chunk):
        end = min(begin + chunk, n)
        old = len(kept)
        cache = np.concatenate([kept, np.arange(begin, end)])
        acc = np.concatenate([acc, np.zeros(end - begin)])
        keys, rows = k[cache], q[begin:end]
        if slot_positions:
            keys = rotate(keys, np.arange(len(cache)))
        probabilities = np.zeros((end - begin, len(cache)))
        for g in range(q.shape[1]):
            query = rotate(rows[:, g], old + np.arange(end - begin)) if slot_positions else rows[:, g]
            probabilities += attention(query, keys, scale, old) / q.shape[1]
        acc += probabilities.sum(axis=0)
        if len(cache) > budget and (every_chunk or end == n):
            middle = np.arange(sinks, len(cache) - recent)  # heavy hitters are looked for between sinks and recent
            order = middle[np.lexsort((middle, -acc[middle]))]
            n_heavy = budget - sinks - recent
            if acc[order[n_heavy - 1]] - acc[order[n_heavy]] < 2e-4:
                raise TooCloseToCall
            stay = np.sort(np.concatenate([np.arange(sinks), order[:n_heavy],
                                           np.arange(len(cache) - recent, len(cache))]))
            cache, acc = cache[stay], acc[stay]
        kept = cache
        yield kept, acc


def write_h2o(path):
    cases = [
        # seed, heads, group, d, n, scale, chunk, budget, sinks, recent (a share of the budget), slots?, every chunk?
        (11, 2, 2, 16, 300, 0.1, 64, 100, 0, 0.5, False, True),
        (12, 1, 4, 8, 400, 0.2, 128, 90, 4, 0.25, False, True),
        (13, 3, 1, 32, 200, 0.05, 64, 70, 2, 0.0, False, False),
        (14, 2, 2, 16, 260, 0.1, 64, 80, 4, 0.5, True, True),
    ]
    with open(path, "w") as out:
        for seed, heads, group, d, n, scale, chunk, budget, sinks, share, slots, every_chunk in cases:
            recent = int(share * budget)
            scope = "+".join([f"sinks:{sinks}"] * (sinks > 0) + [f"recent:{share}"] * (recent > 0))
            recipe = (f"score=aas,scope={scope},budget={budget},when={'chunk' if every_chunk else 'end'},format=f32,"
                      f"positions={'slot' if slots else 'original'},chunk={chunk}")
            while True:
                q, k = values(seed, Q, (n, heads, group, d)), values(seed, K, (n, heads, d))
                try:
                    traces = [list(h2o_head(q[:, h], k[:, h], chunk, budget, sinks, recent, scale, slots, every_chunk))
                              for h in range(heads)]
                    break
                except TooCloseToCall:
                    seed += 100
            out.write(f"case {seed} {heads} {group} {d} {n} {scale} {recipe}\n")
            for c in range(len(traces[0])):
                for h in range(heads):
                    kept, acc = traces[h][c]
                    out.write(f"kept {c} {h} " + " ".join(map(str, kept)) + "\n")
                    if c == len(traces[0]) - 1:
                        out.write(f"sums {c} {h} " + " ".join(f"{x:.6g}" for x in acc) + "\n")


def write_streamingllm(path):
    cases = [(21, 2, 1, 8, 500, 64, 100, 4), (22, 1, 2, 16, 300, 128, 37, 1), (23, 1, 1, 8, 64, 64, 65, 4)]
    with open(path, "w") as out:
        for seed, heads, group, d, n, chunk, budget, sinks in cases:
            recipe = f"streamingllm,scope=sinks:{sinks},budget={budget},format=f32,chunk={chunk}"
            out.write(f"case {seed} {heads} {group} {d} {n} 1.0 {recipe}\n")
            for c, end in enumerate(min(e, n) for e in range(chunk, n + chunk, chunk)):
                newest = end - (budget - sinks) if end > budget else 0
                stay = [p for p in range(end) if p < sinks or p >= newest]
                for h in range(heads):
                    out.write(f"kept {c} {h} " + " ".join(map(str, stay)) + "\n")


def quantize(x, bits):
    """Groups along the last axis: codes, and (scale, zero) in f16. x^ = code * scale + zero."""
    x = x.astype(np.float32)
    top = np.float32(2**bits - 1)
    zero = x.min(axis=-1, keepdims=True).astype(np.float16)
    scale = ((x.max(axis=-1, keepdims=True) - x.min(axis=-1, keepdims=True)) / top).astype(np.float16)
    s, z = scale.astype(np.float32), zero.astype(np.float32)
    safe = np.where(s == 0, np.float32(1), s)
    codes = np.where(s == 0, 0, np.rint(np.clip((x - z) / safe, 0, top)))
    return codes.astype(np.uint8), np.concatenate([scale, zero], axis=-1)


def pack(codes, bits):
    """[rows][elements] -> bytes, the first element in the lowest bits."""
    bits_of = (codes[:, :, None] >> np.arange(bits)) & 1
    return np.packbits(bits_of.reshape(codes.shape[0], -1).astype(np.uint8), axis=1, bitorder="little").tobytes().hex()


def write_kivi(path):
    cases = [(31, 16), (32, 64), (33, 128)]
    with open(path, "w") as out:
        for seed, d in cases:
            k, v = values(seed, K, (64, d)), values(seed, V, (64, d))
            for bits in (8, 4, 2, 1):
                k_codes, k_scales = quantize(k.T, bits)  # per channel, over the page's 64 tokens
                group = min(d, 64)
                v_codes, v_scales = quantize(v.reshape(64, d // group, group), bits)  # per token, over 64 channels
                out.write(f"page {seed} {d} {bits}\n")
                out.write(f"k {pack(k_codes, bits)}\nk_scale {k_scales.tobytes().hex()}\n")
                out.write(f"v {pack(v_codes.reshape(64, d), bits)}\nv_scale {v_scales.tobytes().hex()}\n")


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/compress")
    folder.mkdir(parents=True, exist_ok=True)
    write_h2o(folder / "h2o.txt")
    write_streamingllm(folder / "streamingllm.txt")
    write_kivi(folder / "kivi.txt")


if __name__ == "__main__":
    script.help_if_asked()
    main()
