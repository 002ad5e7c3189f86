# SPDX-License-Identifier: Apache-2.0
"""Measures PyTorch at the same shapes as `sluice bench kernels`, and the card's ceilings. One JSON object a line; exit code 3: no PyTorch.

    peers.py peaks                       a copy in GB/s, a bf16 product in TFLOP/s (cuBLASLt)
    peers.py floors "ROWS SLOTS" ...     flash attention and products of Llama-3-8B's shapes, in us
"""
import json
import statistics
import sys

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    assert torch.cuda.is_available(), "PyTorch finds no CUDA device"
except (ImportError, AssertionError) as error:
    print(f"no PyTorch: {error}")
    sys.exit(3)

HEADS, KV_HEADS, D, E, F_SIDE = 32, 8, 128, 4096, 14336
QKV = (HEADS + 2 * KV_HEADS) * D


def seconds_of(work, batch=10, runs=7):
    """The median of some batches, each between two events, after one that is not counted."""
    for _ in range(3):
        work()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(batch):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / batch)
    return statistics.median(times)


def say(**what):
    print(json.dumps(what), flush=True)


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def peaks():
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    say(case="copy", value=2 * source.numel() / seconds_of(lambda: target.copy_(source)) / 1e9, unit="GB/s")
    a, b = random(8192, 8192), random(8192, 8192)
    say(case="gemm peak", value=2 * 8192**3 / seconds_of(lambda: a @ b) / 1e12, unit="TFLOP/s")


def attention(case, size, rows, slots, expanded):
    """KV heads are repeated for the query heads where flash attention cannot group them itself."""
    q, k, v = (random(1, heads, n, D, dtype=torch.float16) for heads, n in ((HEADS, rows), (KV_HEADS, slots), (KV_HEADS, slots)))
    if expanded:
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        us = 1e6 * seconds_of(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=not expanded), batch=3, runs=5)
    say(case=case, size=size, us=us, expanded=expanded)


def floors(sizes):
    for size in sizes:
        rows, slots = map(int, size.split())
        for case, n in (("attend, a prompt, f16", rows), ("attend, a step, f16", 1)):
            try:
                attention(case, size, n, slots, False)
            except RuntimeError:
                attention(case, size, n, slots, True)
        for name, n, k in (("up", 2 * F_SIDE, E), ("down", E, F_SIDE), ("qkv", QKV, E)):
            w = random(n, k).t()
            for m in (rows, 1, 8, 16, 64):
                x = random(m, k)
                case = f"matmul {name}, bf16" if m == rows else f"matmul {name}, {m} row{'s' if m > 1 else ''}, bf16"
                say(case=case, size=size, us=1e6 * seconds_of(lambda: x @ w))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    peaks() if sys.argv[1] == "peaks" else floors(sys.argv[2:])
