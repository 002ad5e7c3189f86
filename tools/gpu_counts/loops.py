#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a GPU executes in the loops of kernels, from the disassembly: the numbers behind docs/GPU_KERNELS.md's predictions.

    loops.py FILE [KERNEL]      a cubin or an object of cmake/cuda.cmake; only kernels whose name has the word

Of every kernel: instructions in all, and each loop (a branch back, and what lies between), innermost or not: instructions without those of
loops within it, and of them products of tensor cores, loads, stores, exponentials, shuffles, barriers. What a branch within a loop passes over is counted
all the same: these are the most. Needs cuobjdump and nvdisasm of the CUDA Toolkit on PATH.
"""
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import script  # noqa: E402

KINDS = {"mma": r"[HI]?MMA|WGMMA|HGMMA", "load": r"LD[GS]?(\.|$)|LDGSTS|LDSM|LDC", "store": r"ST[GS]?(\.|$)|RED", "exp": r"MUFU",
         "shuffle": r"SHFL|MOVM", "barrier": r"BAR|DEPBAR"}


def kernels(path, architecture=None):
    """By name: [(address, opcode, target or None)]"""
    command = ["cuobjdump", "-sass", *(["-arch", architecture] if architecture else []), path]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    found, code = {}, None
    for line in listing.splitlines():
        name = re.search(r"Function : (\S+)", line)
        if name:
            code = found.setdefault(name[1], [])
            code.clear()  # of several architectures the last stays
        at = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z0-9_.]+)(.*?);", line)
        if at and code is not None:
            target = re.search(r"0x([0-9a-f]+)", at[3]) if at[2].startswith("BRA") else None
            code.append((int(at[1], 16), at[2], int(target[1], 16) if target else None))
    return found


def loops(code):
    """[(begin, end)] in instructions: every branch back but the one to itself behind the end."""
    place = {address: i for i, (address, _, _) in enumerate(code)}
    ends = {}
    for i, (address, _, target) in enumerate(code):
        if target is not None and target < address and target in place:
            ends[place[target]] = max(ends.get(place[target], 0), i)
    return sorted(ends.items())


def own(code, all_loops, begin, end):
    """The instructions of a loop without those of loops within it; NOP is what code ends with."""
    within = [loop for loop in all_loops if loop != (begin, end) and begin <= loop[0] and loop[1] <= end]
    return [code[i][1] for i in range(begin, end + 1)
            if code[i][1] != "NOP" and not any(b <= i <= e for b, e in within)]


def counted(opcodes):
    counts = {kind: sum(re.match(pattern, op) is not None for op in opcodes) for kind, pattern in KINDS.items()}
    return f"{len(opcodes):6}  " + "  ".join(f"{kind} {n}" for kind, n in counts.items() if n)


def main():
    for name, code in sorted(kernels(sys.argv[1]).items()):
        if len(sys.argv) > 2 and sys.argv[2] not in name:
            continue
        all_loops = loops(code)
        print(f"{name}: {sum(op != 'NOP' for _, op, _ in code)} instructions")
        for begin, end in all_loops:
            print(f"  {code[begin][0]:#07x}..{code[end][0]:#07x} {counted(own(code, all_loops, begin, end))}")


if __name__ == "__main__":
    script.needs_arguments(1, "FILE [KERNEL]")
    script.needs_tools("cuobjdump", "nvdisasm", way="the CUDA Toolkit has it")
    main()
