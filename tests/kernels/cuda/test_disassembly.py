#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels as a GPU runs them, by cuobjdump of the CUDA Toolkit (and nvdisasm, which it calls): for every architecture that they were
compiled for the instructions that they are written around are there, nothing but angles uses local memory, and PTX is there for
what is newer. Skipped where the tools are not.

    test_disassembly.py FOLDER [ARCHITECTURE...]    the folder of objects that cmake/cuda.cmake makes; sm_80 and the like: must be there
"""
import os
import re
import shutil
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402

# Instructions that must be in each kernel of an object whose name has the word: a load of 16 bytes is LDG.E.128, or LD.E.128 where the
# pointer came from a page list; on its way to shared memory it is LDGSTS.
WIDE = r"\bLD(G)?\.E\.128\b"
ONCE = r"\bLDG\.E\.NA\.LTC128B(\.128|\.64)?\b"  # gpu::read_once()
WANTED = {
    "dense_few_rows": [("few_rows", [r"HMMA\.16816\.F32\.BF16", ONCE]), ("ELb1E", [WIDE])],
    "dense_some_rows": [("some_rows", [r"HMMA\.16816\.F32\.BF16", r"LDS\.128", ONCE, r"LDGSTS\S*\.128"])],
    "dense_many_rows": [("many_rows", [r"HMMA\.16816\.F32\.BF16", r"LDSM\.16\.M88\.4", r"LDGSTS\S*\.128"])],
    "attention_attend_tensor": [(name, [r"HMMA\.16816\.F32", r"LDSM\.16\.M88\.4", r"LDSM\.16\.MT88\.4", r"LDGSTS\S*\.128"])
                                for name in ("attend_tensor", "attend_alone")],
    "attention_attend_packed": [("attend_packed", [r"HMMA\.16816\.F32", r"HMUL2", r"F2FP\S*SATFINITE", r"MOVM", WIDE])],
    "attention_attend": [("attendILi", [WIDE, r"STS\.128"])],
    "attention_stats": [("add_rows", [WIDE])],
    "attention_stats_tensor": [("stats_tensor", [r"HMMA\.16816\.F32", r"LDSM\.16\.M88\.4", r"MUFU\.EX2", WIDE])],
    "attention_collect": [("collect", [WIDE, r"\bST(G)?\.E\.128\b"])],
    "evict_nearest_tensor": [("nearest_tensor", [r"HMMA\.16816\.F32", r"LDSM\.16\.M88\.4", r"LDGSTS\S*\.128"]), ("invert_norms", [WIDE])],
    "evict_gather": [("gather", [WIDE, r"\bST(G)?\.E\.128\b"])],
    "retrieve_scan": [(f"scanIL12sl_kv_format{i}E", [WIDE]) for i in range(4)],
    "retrieve_rows": [("put_rows", [WIDE, r"\bST(G)?\.E\.128\b"])],
}
# Instructions of one architecture only, which has them whatever else was compiled for.
WANTED_OF = {"dense_wgmma": ("sm_90a", [("wgmma", [r"HGMMA\.64x256x16\.F32\.BF16", r"LDGSTS\S*\.128", r"FENCE\.VIEW\.ASYNC",
                                               r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1"])])}
LOCAL = {"angles"}  # the library's sine of a large angle has a table of the thread's own


def find(name):
    beside = os.path.dirname(os.path.realpath(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"))
    return shutil.which(name) or shutil.which(name, path=beside)


def cuobjdump(*args):
    tool = find("cuobjdump")
    environment = {**os.environ, "PATH": os.path.dirname(find("nvdisasm")) + ":" + os.environ["PATH"]}
    return subprocess.run([tool, *args], capture_output=True, text=True, check=True, timeout=300, env=environment).stdout


def plain(mangled):
    """The name itself of a kernel, which has no namespace: _Z6anglesRKi is angles."""
    length = re.match(r"_Z(\d+)", mangled)
    return mangled[length.end():length.end() + int(length[1])] if length else mangled


def kernels(listing):
    """By name, the instructions of each."""
    found = {}
    for line in listing.splitlines():
        name = re.search(r"Function : (\S+)", line)
        if name:
            found[name[1]] = instructions = []
        elif re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+\S", line):
            instructions.append(line)
    return found


def main():
    folder, wanted = sys.argv[1], set(sys.argv[2:])
    if find("cuobjdump") is None or find("nvdisasm") is None:
        print("skipped: no cuobjdump and nvdisasm of the CUDA Toolkit")
        return 77
    objects = sorted(name[:-2] for name in os.listdir(folder) if name.endswith(".o"))
    failures = [f"{name}: not in {folder}" for name in [*WANTED, *WANTED_OF] if name not in objects]
    for name in objects:
        path = os.path.join(folder, name + ".o")
        there = set(re.findall(r"\.(sm_\d+[af]?)\.", cuobjdump("-lelf", path)))
        if not wanted <= there:
            failures.append(f"{name}: no code for {sorted(wanted - there)}")
        if ".ptx" not in cuobjdump("-lptx", path):
            failures.append(f"{name}: no PTX for what is newer")
        # "Function NAME:" and below it "REG:40 STACK:0 SHARED:0 LOCAL:0 ..."
        usage = re.findall(r"Function (\S+?):\s+REG:\d+ STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", cuobjdump("-res-usage", path))
        if not usage:
            failures.append(f"{name}: cuobjdump says nothing of its registers")
        for kernel, stack, local in usage:
            if (int(stack) or int(local)) and plain(kernel) not in LOCAL:
                failures.append(f"{name}: {kernel} has {stack} bytes of stack and {local} of local memory")
        looked_at = [(architecture, WANTED[name]) for architecture in sorted(there)] if name in WANTED else []
        looked_at += [WANTED_OF[name]] if name in WANTED_OF else []
        for architecture, wanted_here in looked_at:
            found = kernels(cuobjdump("-sass", "-arch", architecture, path))
            for word, patterns in wanted_here:
                chosen = {kernel: lines for kernel, lines in found.items() if word in kernel}
                if not chosen:
                    failures.append(f"{name}: no kernel {word} for {architecture}")
                for kernel, lines in chosen.items():
                    counts = [sum(re.search(pattern, line) is not None for line in lines) for pattern in patterns]
                    print(f"{architecture} {kernel}: {len(lines)} instructions, {' '.join(map(str, counts))} as wanted")
                    failures += [f"{kernel} for {architecture}: no {pattern}" for pattern, n in zip(patterns, counts) if n == 0]
    print("\n".join(failures) or f"{len(objects)} objects as they are meant to be")
    return 1 if failures else 0


if __name__ == "__main__":
    script.needs_arguments(1, "FOLDER [ARCHITECTURE...]")
    sys.exit(main())
