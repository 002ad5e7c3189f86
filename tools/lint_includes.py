#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/STYLE.md that a program can check. Prints one line a violation; exits with 1 if there is one.

    lint_includes.py ROOT         check the tree
    lint_includes.py --self-test  show that every rule catches a violation, in a temporary tree

The heart is LAYERS: who may include whom. A folder may always include itself. To allow more, change the table here and in
docs/DESIGN.md in the same commit, and say why.
"""
import os
import re
import sys
import tempfile

SERVICES = {"prefill", "decode", "kvstore", "coordinator"}
LIBRARIES = {"base", "kvcache", "engine", "compress", "retrieve", "fabric", "rpc", "proto"}
MEASURES = {"eval", "train"}
ALL = LIBRARIES | SERVICES | MEASURES | {"service", "client", "bench", "tests"}

# folder -> folders it may include; "folder/file.h" allows one header of a folder.
LAYERS = {
    "base": set(),
    "proto": set(),
    "kvcache": {"base", "proto"},
    "engine": {"base", "kvcache"},
    "compress": {"base", "kvcache", "engine/ops.h"},
    "retrieve": {"base", "kvcache", "engine/ops.h", "compress"},
    "fabric": {"base"},
    "rpc": {"base", "proto"},
    "service": LIBRARIES,
    "prefill": LIBRARIES | {"service"},
    "decode": LIBRARIES | {"service"},
    "kvstore": LIBRARIES | {"service"},
    "coordinator": LIBRARIES | {"service"},
    "eval": {"base", "engine/tokenizer.h"},
    "train": {"base", "kvcache", "engine"},
    # Of service/: a job without a cluster, all in this process; and for evaluations how workers get at a recipe and
    # read prompts.
    "client": {"base", "proto", "rpc", "engine", "compress", "kvcache", "eval", "train", "bench",
               "retrieve/annex.h", "retrieve/local_retriever.h", "service/local.h",
               "service/job_chat.h", "service/job_recipe.h", "service/reader.h"},
    "bench": ALL - SERVICES - {"tests"},
    "tests": ALL,
}

# Prefix of a system header -> folders that may include it. Tests may include anything.
WRAPPED = [
    (re.compile(r"uc[pst]/"), {"fabric"}),
    (re.compile(r"grpc/"), {"rpc"}),
    (re.compile(r"lmdb"), {"kvstore"}),
    (re.compile(r"(cuda|cublas|nccl)"), {"engine/cuda"}),
]

MAX_LINES = 650
SPDX = "SPDX-License-Identifier: Apache-2.0"
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)

SOURCES = {".c", ".h", ".cu", ".cuh"}
TEXTS = SOURCES | {".py", ".sh", ".cmake", ".proto", ".md", ".txt", ".yaml", ".yml"}
SKIPPED_FOLDERS = re.compile(r"^(\.git|build.*|results|__pycache__|shared)$")


def files_of(root):
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(s for s in subfolders if not SKIPPED_FOLDERS.match(s))
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            if os.path.splitext(name)[1] in TEXTS or name == "Makefile":
                yield path


def may_include(folder, header):
    """Whether a file of `folder` may include "header"; headers are written from the repository's root."""
    target = header.split("/")[0]
    return target == folder or target in LAYERS[folder] or header in LAYERS[folder]


def check_includes(path, text, complain):
    folder = path.split("/")[0]
    if folder not in LAYERS:
        complain(path, f"folder {folder}/ is not in the table of who may include whom")
        return
    for match in INCLUDE.finditer(text):
        quote, header = match.groups()
        if quote == '"':
            if "/" not in header:
                # Helpers of a test lie beside it; everywhere else a name says where its file is.
                if folder != "tests":
                    complain(path, f'"{header}" is not written from the root of the repository')
            elif header.split("/")[0] not in LAYERS:
                complain(path, f'"{header}" is in no known folder')
            elif not may_include(folder, header):
                complain(path, f'{folder}/ may not include "{header}"')
        for pattern, owners in WRAPPED:
            if pattern.match(header) and folder != "tests" and not any(path.startswith(o + "/") for o in owners):
                complain(path, f"only {', '.join(sorted(owners))}/ may include <{header}>")


def check_guard(path, text, complain):
    guard = "SL_" + re.sub(r"[^A-Z0-9]", "_", path.upper().rsplit(".", 1)[0]) + "_H"
    directives = re.findall(r"^[ \t]*#[ \t]*(\w+)[ \t]*(.*?)[ \t]*$", text, re.M)
    if directives[:2] != [("ifndef", guard), ("define", guard)] or directives[-1][0] != "endif":
        complain(path, f"the include guard must be {guard}")


def check_file(path, text, complain):
    extension = os.path.splitext(path)[1]
    if extension in SOURCES:
        if not text.startswith("// " + SPDX + "\n"):
            complain(path, f"the first line must be: // {SPDX}")
        n_lines = text.count("\n")
        if n_lines > MAX_LINES:
            complain(path, f"{n_lines} lines, at most {MAX_LINES}: one idea a file")
        check_includes(path, text, complain)
    if extension in {".h", ".cuh"}:
        check_guard(path, text, complain)
    match = UNFINISHED.search(text)
    if match:
        complain(path, f"contains {match.group()}: finish it, or describe the limit in words")


def lint(root):
    complaints = []
    n_files = 0
    for path in files_of(root):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            check_file(path, file.read(), lambda where, what: complaints.append(f"{where}: {what}"))
        n_files += 1
    return complaints, n_files


def self_test():
    spdx = f"// {SPDX}\n"
    good = {
        "base/a.h": spdx + "#ifndef SL_BASE_A_H\n#define SL_BASE_A_H\n#include <stdio.h>\n#endif\n",
        "base/a.c": spdx + '#include "base/a.h"\n',
        "compress/b.c": spdx + '#include "engine/ops.h"\n#include "base/a.h"\n',
        "fabric/f.c": spdx + "#include <ucp/api/ucp.h>\n",
        "rpc/r.c": spdx + '#include <grpc/grpc.h>\n#include "proto/sluice/v1/cluster.pb-c.h"\n',
        "decode/d.c": spdx + '#include "service/worker.h"\n#include "fabric/fabric.h"\n',
        "client/local.c": spdx + '#include "service/local.h"\n',
        "tests/unit/t.c": spdx + '#include "decode/d.h"\n#include "helper.h"\n#include <grpc/grpc.h>\n',
        "docs/a.md": "Words.\n",
    }
    # file, text, and what the one complaint must contain
    bad = [
        ("base/x.c", spdx + '#include "engine/engine.h"\n', 'base/ may not include "engine/engine.h"'),
        ("compress/x.c", spdx + '#include "engine/model.h"\n', 'compress/ may not include "engine/model.h"'),
        ("fabric/x.c", spdx + '#include "rpc/rpc.h"\n', 'fabric/ may not include "rpc/rpc.h"'),
        ("prefill/x.c", spdx + '#include "decode/decode.h"\n', 'prefill/ may not include "decode/decode.h"'),
        ("service/x.c", spdx + '#include "prefill/prefill.h"\n', 'service/ may not include "prefill/prefill.h"'),
        ("client/x.c", spdx + '#  include "coordinator/jobs.h"\n', 'client/ may not include "coordinator/jobs.h"'),
        ("client/y.c", spdx + '#include "service/worker.h"\n', 'client/ may not include "service/worker.h"'),
        ("bench/x.c", spdx + '#include "kvstore/kvstore.h"\n', 'bench/ may not include "kvstore/kvstore.h"'),
        ("decode/x.c", spdx + "#include <ucs/type/status.h>\n", "only fabric/ may include"),
        ("client/z.c", spdx + "#include <grpc/grpc.h>\n", "only rpc/ may include"),
        ("engine/cpu/x.c", spdx + "#include <cuda_runtime.h>\n", "only engine/cuda/ may include"),
        ("base/y.c", spdx + '#include "a.h"\n', "not written from the root"),
        ("attic/x.c", spdx + "\n", "not in the table"),
        ("base/z.c", "int x;\n", "the first line must be"),
        ("base/x.h", spdx + "#ifndef X_H\n#define X_H\n#endif\n", "guard must be SL_BASE_X_H"),
        ("engine/cpu/x.h", spdx + "#pragma once\n", "guard must be SL_ENGINE_CPU_X_H"),
        ("base/long.c", spdx + "\n" * MAX_LINES, f"at most {MAX_LINES}"),
        ("tools/x.py", "# TO" + "DO later\n", "finish it"),
        ("docs/x.md", "FIX" + "ME\n", "finish it"),
    ]

    def complaints_of(files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return lint(root)[0]

    failures = [f"complains about a good tree: {c}" for c in complaints_of(good)]
    for path, text, expected in bad:
        found = complaints_of({**good, path: text})
        if len(found) != 1 or not found[0].startswith(path + ": ") or expected not in found[0]:
            failures.append(f"{path}: expected one complaint with '{expected}', got {found}")
    for failure in failures:
        print(failure)
    print(f"lint self-test: {len(bad)} kinds of violation, {len(failures)} failures")
    return 1 if failures else 0


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if sys.argv[1] == "--self-test":
        return self_test()
    complaints, n_files = lint(sys.argv[1])
    for complaint in complaints:
        print(complaint)
    print(f"lint: {n_files} files, {len(complaints)} violations")
    return 1 if complaints or n_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
