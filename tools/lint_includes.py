#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/STYLE.md that a program can check. Prints one line a violation; exits with 1 if there is one.

    lint_includes.py ROOT           check the tree
    lint_includes.py --actual ROOT  print what each folder includes today, as rows of tools/layers.py
    lint_includes.py --self-test    show that every rule catches a violation, in a temporary tree

The table of allowed includes is tools/layers.py.
"""
import collections
import os
import re
import sys
import tempfile
import types

sys.dont_write_bytecode = True
import layers  # noqa: E402
import script  # noqa: E402

MAX_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_FOLDER_FILES = 25
MAX_FOLDER_LINES = 4500
SPDX = "SPDX-License-Identifier: Apache-2.0"
# Reasons, not words, decide (base/status.h). gRPC's own words are read as bytes of a slice, in net/rpc/rpc_client.c.
WORDS_OF_ERROR = re.compile(r"\b(?:strstr|strcasestr|memmem)\s*\([^,()]*?\b\w*(?:err|why|cause|failure)\w*(?:\.|->)text\b")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)

SOURCES = {".c", ".h", ".cc", ".cu", ".cuh"}
TEXTS = SOURCES | {".py", ".sh", ".cmake", ".proto", ".md", ".txt", ".yaml", ".yml"}
SKIPPED_FOLDERS = re.compile(r"^(\.git|build.*|results|__pycache__|shared)$")


def files_of(root):
    """{path: text} of every file that has rules."""
    texts = {}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(s for s in subfolders if not SKIPPED_FOLDERS.match(s))
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            if os.path.splitext(name)[1] in TEXTS or name == "Makefile":
                with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
                    texts[path] = file.read()
    return texts


def is_source(path):
    return os.path.splitext(path)[1] in SOURCES


def is_test(path):
    return path.startswith("tests/")


def includes_of(text):
    """The project's headers that a file includes, as written: from the repository's root."""
    return [header for quote, header in INCLUDE.findall(text) if quote == '"' and "/" in header]


# --- one file ---


def matches(word, header):
    """Returns whether a word of a row allows a header. layers.py says what words mean."""
    if word.endswith("*"):
        return header.startswith(word[:-1])
    return word in (header, os.path.dirname(header))


def names_folder(word, folder):
    """Returns whether a word of a row allows a folder, or some of it."""
    return matches(word, folder + "/") or (word.endswith(".h") and os.path.dirname(word) == folder)


def row_of(folder, rules):
    """The key of a folder's row, or None."""
    if folder in rules.ROWS:
        return folder
    wide = [key for key in rules.ROWS if key.endswith("/*") and (folder + "/").startswith(key[:-1])]
    return max(wide, key=len, default=None)


def check_includes(path, texts, rules, complain):
    text = texts[path]
    folder = os.path.dirname(path)
    row = row_of(folder, rules)
    if row is None:
        complain(path, f"folder {folder}/ has no row in the table of who may include whom")
        return
    words = rules.ROWS[row].split()
    for quote, header in INCLUDE.findall(text):
        if quote == '"':
            if "/" not in header:
                # Helpers of a test lie beside it; everywhere else a name says where its file is.
                if not is_test(path):
                    complain(path, f'"{header}" is not written from the root of the repository')
            elif os.path.dirname(header) != folder and not any(matches(word, header) for word in words):
                complain(path, f'{folder}/ may not include "{header}"')
            elif header not in texts and not header.startswith("proto/"):  # where the build writes headers
                complain(path, f'includes "{header}", which is not there')
        for prefixes, owner in rules.WRAPPED.items():
            if header.startswith(tuple(prefixes.split())) and folder not in owner.split() and not is_test(path):
                complain(path, f"only {'/ and '.join(owner.split())}/ may include <{header}>")


def check_guard(path, text, complain):
    directives = re.findall(r"^[ \t]*#[ \t]*(\w+)[ \t]*(.*?)[ \t]*$", text, re.M)
    if directives[:1] != [("pragma", "once")]:
        complain(path, "a header's first directive must be #pragma once")


def functions_of(text):
    """Yields (name, lines, parameters as one text) for every function, in the layout of .clang-format: a definition begins in the first column, and
    a "}" alone there ends a function, where "};" ends everything else."""
    head = None  # the first line of what began in the first column
    signature = ""
    directive = False
    for number, line in enumerate(text.split("\n")):
        directive, was_directive = (directive or line.startswith("#")) and line.endswith("\\"), directive
        if line.startswith("#") or was_directive:
            continue
        if line == "}" and head is not None:
            name = re.search(r"(\w+)\((.*)\)", re.sub(r"__attribute__\(\(.*?\)\)|__launch_bounds__\(.*?\)", "", signature))
            if name:
                yield name.group(1), number - head + 1, name.group(2)
            head = None
        elif re.match(r"\w", line) and not re.fullmatch(r"\w+:", line):  # a label
            head, signature = number, line
        elif head is not None and not signature.endswith(("{", ";")):
            signature += line
        if line.startswith("}"):
            head = None


def check_file(path, texts, rules, complain):
    text = texts[path]
    if is_source(path):
        if not text.startswith("// " + SPDX + "\n"):
            complain(path, f"the first line must be: // {SPDX}")
        n_lines = text.count("\n")
        if n_lines > rules.LONGER.get(path, (MAX_LINES, ""))[0]:
            complain(path, f"{n_lines} lines, at most {MAX_LINES}: one idea a file")
        for name, n_lines, _ in functions_of(text):
            if n_lines > rules.LONGER.get(name, (MAX_FUNCTION_LINES, ""))[0]:
                complain(path, f"{name}() has {n_lines} lines, at most {MAX_FUNCTION_LINES}")
        check_includes(path, texts, rules, complain)
    if os.path.splitext(path)[1] in {".h", ".cuh"}:
        check_guard(path, text, complain)
    match = WORDS_OF_ERROR.search(text) if is_source(path) and not is_test(path) else None
    if match:
        complain(path, f"searches the words of an error ({match.group()}): decide by its reason (base/status.h)")
    match = UNFINISHED.search(text)
    if match:
        complain(path, f"contains {match.group()}: finish it, or describe the limit in words")


# --- folders ---


def folders_of(texts):
    """{folder: [path]} of the product's sources."""
    folders = collections.defaultdict(list)
    for path in texts:
        if is_source(path) and not is_test(path):
            folders[os.path.dirname(path)].append(path)
    return folders


def check_sizes(texts, folders, rules, complain):
    for folder, paths in folders.items():
        n_files = sum(not path.endswith(("h")) for path in paths)
        n_lines = sum(texts[path].count("\n") for path in paths)
        max_files, max_lines, _ = rules.LARGER.get(folder, (MAX_FOLDER_FILES, MAX_FOLDER_LINES, ""))
        if n_files > max_files:
            complain(folder, f"{n_files} sources, at most {max_files}: divide the folder")
        if n_lines > max_lines:
            complain(folder, f"{n_lines} lines, at most {max_lines}: divide the folder")
        if folder in rules.LARGER and n_files <= MAX_FOLDER_FILES and n_lines <= MAX_FOLDER_LINES:
            complain(folder, "needs no exception in LARGER any more")


def check_rows(texts, folders, rules, complain):
    """Rejects rows and words for folders that do not exist, or that no file includes: they are typing errors, or left over."""
    known = set(folders) | {os.path.dirname(path) for path in texts}
    for key, row in rules.ROWS.items():
        headers = {header for path in folders.get(key, ()) for header in includes_of(texts[path])}
        if not key.endswith("*") and key not in known:
            complain(key, "has a row, and no files")
        for word in row.split():
            folder = word.rstrip("*").rstrip("/")
            there = any(name == folder or name.startswith(folder + "/") for name in known)
            if word != "*" and not there and word not in texts:
                complain(key, f"its row names {word}, which is not there")
            elif key in folders and not any(matches(word, header) for header in headers):
                complain(key, f"its row names {word}, and nothing there is included")


def group_of(folder, rules):
    """(name, level) of a folder's group: the longest name in GROUPS that begins it. The level of no group is None."""
    names = [name for name in rules.GROUPS if folder == name or folder.startswith(name + "/")]
    name = max(names, key=len, default=None)
    return name, rules.GROUPS.get(name)


def check_groups(rules, complain):
    """A row names folders of its own group and of lower ones, whatever else it allows."""
    for key, row in rules.ROWS.items():
        group, level = group_of(key, rules)
        for word in row.split():
            other, other_level = group_of(word.rstrip("*").rstrip("/"), rules)
            if group and other and other != group and other_level >= level:
                complain(key, f"its row names {word}: group {group} is not above group {other}")


STRUCT = re.compile(r"^struct (sl_\w+) \{", re.M)


def check_structs(texts, rules, complain):
    """One name, one idea: no struct is defined in two files."""
    first = {}
    for path in sorted(texts):
        if is_source(path) and not is_test(path):
            for name in STRUCT.findall(texts[path]):
                if name in first and first[name] != path and name not in rules.OPAQUE:
                    complain(path, f"struct {name} is defined in {first[name]} too")
                first.setdefault(name, path)


def include_edges(texts, folders):
    """Returns {folder: {folder: (file, header)}}: the folders that each folder includes, with one example each."""
    edges = collections.defaultdict(dict)
    for folder, paths in folders.items():
        for path in sorted(paths):
            for header in includes_of(texts[path]):
                target = os.path.dirname(header)
                if target != folder and target in folders:
                    edges[folder].setdefault(target, (path, header))
    return edges


def path_between(edges, start, end):
    """The shortest way from start to end, at least one edge long; or None."""
    came_from = {}
    front = [start]
    while front:
        ahead = []
        for node in front:
            for target in sorted(edges.get(node, {})):
                if target not in came_from:
                    came_from[target] = node
                    ahead.append(target)
        if end in came_from:
            way = [end]
            while len(way) == 1 or way[-1] != start:
                way.append(came_from[way[-1]])
            return way[::-1]
        front = ahead
    return None


def check_circles(texts, folders, rules, complain):
    edges = include_edges(texts, folders)
    open_circles = [set(circle.split()) for circle in rules.OPEN_CIRCLES]
    found = set()
    for folder in sorted(folders):
        way = path_between(edges, folder, folder)
        if way is None or frozenset(way) in found:
            continue
        found.add(frozenset(way))
        if set(way) not in open_circles:
            steps = [edges[a][b] for a, b in zip(way, way[1:])]
            shown = ", ".join(f"{path} includes {header}" for path, header in steps)
            complain(folder, f"circle {' -> '.join(way)}: {shown}")
    for circle in open_circles:
        if circle not in found:
            complain(" ".join(sorted(circle)), "is not a circle any more: take it out of OPEN_CIRCLES")


# --- CMake ---


def targets_of(texts):
    """{folder: {target: its targets of the project}} of every sl_library() of the product, and {folder: words of its file}."""
    targets = collections.defaultdict(dict)
    words = {}
    for path, text in texts.items():
        if os.path.basename(path) != "CMakeLists.txt" or is_test(path):
            continue
        folder = os.path.dirname(path)
        text = re.sub(r"#.*", "", text)
        words[folder] = set(re.findall(r"[^\s()]+", text))
        for call in re.findall(r"\bsl_library\(([^)]*)\)", text):
            name = folder.replace("/", "_")
            linked = call[call.find("DEPS"):].split() if "DEPS" in call else []
            targets[folder][name] = {word[3:] for word in linked if word.startswith("sl_")}
        for name in re.findall(r"\badd_library\(sl_(\w+)", text):
            targets[folder][name] = set()
    return targets, words


def builder_of(folder, words):
    """The nearest folder at or above this one that has a CMakeLists.txt."""
    while folder and folder not in words:
        folder = os.path.dirname(folder)
    return folder


def check_targets(texts, folders, rules, complain):
    targets, words = targets_of(texts)
    home = {name: folder for folder, made in targets.items() for name in made}
    for folder, paths in folders.items():
        sources = [path for path in paths if not path.endswith("h")]
        builder = builder_of(folder, words)
        for path in sources:
            if not {path, os.path.relpath(path, builder or ".")} & words.get(builder, set()):
                complain(path, "is in no CMakeLists.txt")
        wanted = folder.replace("/", "_")
        made = targets[builder]
        if not made and all("sl_program" in words.get(builder, ()) for path in sources):
            continue  # a program and nothing else
        if list(made) != [wanted]:
            complain(folder, f"its library must be {wanted}, is {' '.join(made) or 'missing'}")
            continue
        included = {builder_of(os.path.dirname(name), words) for path in paths for name in includes_of(texts[path])} - {folder}
        linked = {home.get(name): name for name in made[wanted]}
        row = rules.ROWS.get(row_of(folder, rules), "").split()
        for target in sorted(included - set(linked)):
            if targets[target] and any(names_folder(word, target) for word in row):
                complain(folder, f"includes {target}/, and does not link it")
        for target in sorted(set(linked) - included, key=str):
            what = f"includes nothing of {target}/" if target else "no folder makes that"
            complain(folder, f"links sl_{linked[target]}, and {what}")


def lint(root, rules):
    complaints = []

    def complain(where, what):
        complaints.append(f"{where}: {what}")

    texts = files_of(root)
    for path in texts:
        check_file(path, texts, rules, complain)
    folders = folders_of(texts)
    check_rows(texts, folders, rules, complain)
    check_groups(rules, complain)
    check_structs(texts, rules, complain)
    check_sizes(texts, folders, rules, complain)
    check_circles(texts, folders, rules, complain)
    check_targets(texts, folders, rules, complain)
    return complaints, len(texts)


def print_actual(root):
    texts = files_of(root)
    for folder, paths in sorted(folders_of(texts).items()):
        included = {os.path.dirname(header) for path in paths for header in includes_of(texts[path])}
        print(f'    "{folder}": "{" ".join(sorted(included - {folder}))}",')


# --- the self-test ---

SELF_TEST_RULES = {
    "OPAQUE": ["sl_opaque"],
    "GROUPS": {"base": 0, "tensor": 1, "fabric": 2, "rpc": 2, "decode": 3},
    "ROWS": {
        "base": "",
        "proto": "",
        "kvcache": "proto/*",
        "tensor": "base",
        "tensor/cpu": "base tensor",
        "compress": "base tensor/ops.h",
        "fabric": "base",
        "rpc": "proto/*",
        "decode": "fabric tensor/*",
        "sluice": "decode",
        "tests/*": "*",
    },
    "WRAPPED": {"ucp/ ucs/": "fabric", "grpc/": "rpc", "cuda": "tensor/cuda"},
    "LARGER": {"decode": (1, MAX_FOLDER_LINES + 300, "a test")},
    "LONGER": {"long_by_permission": (MAX_FUNCTION_LINES + 5, "a test")},
    "OPEN_CIRCLES": [],
}


def source(text=""):
    return f"// {SPDX}\n{text}"


def header(text=""):
    return source(f"#pragma once\n{text}")


def including(*names):
    return source("".join(f"#include {name}\n" if name[0] == "<" else f'#include "{name}"\n' for name in names))


def function(name, n_lines, result="static int"):
    return f"{result} {name}(int a,\n    int b) {{\n" + "    a += b;\n" * (n_lines - 4) + "out:\n}\n"


def library(sources, deps=""):
    return f"# words (in parentheses)\nsl_library(\n  SOURCES {sources} {{more}}\n  DEPS m {deps})\n"


def good_tree():
    table = "static const int table[] = {\n" + "    1,\n" * MAX_FUNCTION_LINES + "};\n"
    macro = "#define TWICE(x) \\\n    do { \\\n" + "        x; \\\n" * MAX_FUNCTION_LINES + "    } while (0)\n"
    return {
        "base/CMakeLists.txt": library("a.c"),
        "base/a.h": header("#include <stdio.h>\n"),
        "base/a.c": including("base/a.h") + table + macro + function("f", MAX_FUNCTION_LINES, "struct sl_x *"),
        "proto/CMakeLists.txt": "add_library(sl_proto STATIC ${generated})\n",
        "proto/d.h": header(),
        "kvcache/CMakeLists.txt": library("c.c", "sl_proto"),
        "kvcache/c.c": including("proto/sluice/v1/capsule.pb-c.h", "proto/d.h"),
        "tensor/CMakeLists.txt": library("ops.c", "sl_base"),
        "tensor/ops.h": header(),
        "tensor/model.h": header(),
        "tensor/ops.c": including("base/a.h"),
        "tensor/cpu/CMakeLists.txt": library("cpu.c", "sl_base sl_tensor"),
        "tensor/cpu/cpu.h": header(),
        "tensor/cpu/cpu.c": including("tensor/ops.h", "base/a.h"),
        "compress/CMakeLists.txt": library("b.c", "sl_base sl_tensor"),
        "compress/b.c": including("tensor/ops.h", "base/a.h") + function("long_by_permission", MAX_FUNCTION_LINES + 5),
        "fabric/CMakeLists.txt": library("f.c", "sl_base"),
        "fabric/fabric.h": header(),
        "fabric/f.c": including("<ucp/api/ucp.h>", "base/a.h"),
        "rpc/CMakeLists.txt": library("r.c", "sl_proto"),
        "rpc/r.c": including("<grpc/grpc.h>", "proto/sluice/v1/cluster.pb-c.h"),
        "decode/CMakeLists.txt": library("d.c", "sl_fabric sl_tensor_cpu"),
        "decode/d.h": header(),
        "decode/d.c": including("tensor/cpu/cpu.h", "fabric/fabric.h"),
        **{f"decode/{i}.h": header("int x;\n" * (MAX_LINES - 10)) for i in range(8)},
        "sluice/CMakeLists.txt": "sl_program(NAME sluice SOURCES main.c DEPS sl_decode)\n",
        "sluice/main.c": including("decode/d.h"),
        "tests/unit/t.c": including("decode/d.h", "helper.h", "<grpc/grpc.h>") + 'char *x = strstr(err.text, "x");\n',
        "docs/a.md": "Words.\n",
    }


def violations():
    """(what to change in the good tree, where the one complaint is, what it must contain, rules that are different)"""

    def file(path, text, where, what, **rules):
        return {path: text}, where or path, what, rules

    def added(path, text, what):
        """One more source, which its CMakeLists.txt names."""
        folder, name = os.path.split(path)
        build = folder + "/CMakeLists.txt"
        return {path: text, build: good_tree()[build].replace("{more}", name)}, path, what, {}

    def build(folder, text, what):
        return file(folder + "/CMakeLists.txt", text, folder, what)

    big = header("int x;\n" * (MAX_LINES - 10))
    many = " ".join(f"{i}.c" for i in range(MAX_FOLDER_FILES))
    rows = SELF_TEST_RULES["ROWS"]
    circle = {
        "tensor/ops.c": including("tensor/cpu/cpu.h"),
        "tensor/CMakeLists.txt": library("ops.c", "sl_tensor_cpu"),
    }
    return [
        # allowed includes
        added("base/x.c", including("proto/sluice/v1/x.pb-c.h"), 'base/ may not include "proto/sluice/v1/x.pb-c.h"'),
        added("compress/x.c", including("tensor/model.h"), 'compress/ may not include "tensor/model.h"'),
        added("compress/x.c", source('#  include "tensor/cpu/cpu.h"\n'), 'compress/ may not include "tensor/cpu/cpu.h"'),
        added("fabric/x.c", including("rpc/rpc.h"), 'fabric/ may not include "rpc/rpc.h"'),
        added("rpc/x.c", including("<ucs/type/status.h>"), "only fabric/ may include"),
        added("compress/x.c", including("<grpc/grpc.h>"), "only rpc/ may include"),
        added("tensor/cpu/x.c", including("<cuda_runtime.h>"), "only tensor/cuda/ may include"),
        added("base/x.c", including("a.h"), "not written from the root"),
        added("base/x.c", including("base/b.h"), 'includes "base/b.h", which is not there'),
        file("attic/x.h", header(), None, "folder attic/ has no row"),
        ({"base/deep/x.h": header(), "base/deep/CMakeLists.txt": "sl_library()\n"}, "base/deep/x.h",
         "folder base/deep/ has no row", {}),
        ({}, "attic", "has a row, and no files", {"ROWS": {**rows, "attic": "base"}}),
        ({}, "base", "its row names attic/*, which is not there", {"ROWS": {**rows, "base": "attic/*"}}),
        (circle, "tensor", "circle tensor -> tensor/cpu -> tensor: tensor/ops.c includes tensor/cpu/cpu.h, tensor/cpu/",
         {"ROWS": {**rows, "tensor": "tensor/cpu"}}),
        ({}, "compress", "its row names fabric, and nothing there is included",
         {"ROWS": {**rows, "compress": rows["compress"] + " fabric"}}),
        ({"tensor/ops.c": including("fabric/fabric.h"), "tensor/CMakeLists.txt": library("ops.c", "sl_fabric")},
         "tensor", "group tensor is not above group fabric", {"ROWS": {**rows, "tensor": "fabric"}}),
        ({}, "base fabric", "not a circle any more", {"OPEN_CIRCLES": ["fabric base"]}),
        # files
        file("base/a.c", "int x;\n", None, "the first line must be"),
        file("base/x.h", source("#ifndef SL_BASE_X_H\n#define SL_BASE_X_H\n#endif\n"), None, "must be #pragma once"),
        file("tensor/cpu/x.h", source("int x;\n"), None, "must be #pragma once"),
        added("base/e.c", source('static bool x = strstr(err->text, "x");\n'), "searches the words of an error"),
        added("base/e.c", source("static void *x = memmem(run->io_err.text, 9, x, 2);\n"), "searches the words of an error"),
        file("tools/x.py", "# TO" + "DO later\n", None, "finish it"),
        file("docs/x.md", "FIX" + "ME\n", None, "finish it"),
        ({"base/y.h": header("struct sl_y {\n};\n"), "tensor/z.h": header("struct sl_y {\n};\n")}, "tensor/z.h",
         "struct sl_y is defined in base/y.h too", {}),
        # sizes
        added("base/long.c", source("\n" * MAX_LINES), f"at most {MAX_LINES}"),
        added("base/f.c", source(function("f", 9) + function("g", MAX_FUNCTION_LINES + 1)), "g() has 81 lines"),
        added("base/f.c", source(function("f", 81, "static __attribute__((always_inline)) int")), "f() has 81 lines"),
        ({}, "compress/b.c", "long_by_permission() has 85 lines", {"LONGER": {}}),
        ({f"base/{i}.h": big.replace("BIG", str(i)) for i in range(8)}, "base", f"lines, at most {MAX_FOLDER_LINES}", {}),
        ({**{f"base/{i}.c": source() for i in range(25)}, "base/CMakeLists.txt": library("a.c " + many)},
         "base", "26 sources, at most 25", {}),
        file("decode/0.h", header(), "decode", "needs no exception"),
        file("decode/8.h", big.replace("BASE_BIG", "DECODE_8"), "decode", f"lines, at most {MAX_FOLDER_LINES + 300}"),
        # CMake
        file("base/new.c", source(), None, "is in no CMakeLists.txt"),
        build("rpc", "add_executable(r r.c)\n", "must be rpc, is missing"),
        build("decode", library("d.c", "sl_fabric"), "includes tensor/cpu/, and does not link it"),
        build("fabric", library("f.c", "sl_base sl_rpc"), "links sl_rpc, and includes nothing of rpc/"),
        build("fabric", library("f.c", "sl_base sl_attic"), "links sl_attic, and no folder makes that"),
    ]


def self_test():
    def complaints_of(changes, rules):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**good_tree(), **changes}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return lint(root, types.SimpleNamespace(**{**SELF_TEST_RULES, **rules}))[0]

    failures = [f"complains about a good tree: {c}" for c in complaints_of({}, {})]
    bad = violations()
    for changes, where, what, rules in bad:
        found = complaints_of(changes, rules)
        if len(found) != 1 or not found[0].startswith(where + ": ") or what not in found[0]:
            failures.append(f"{where}: expected one complaint with '{what}', got {found}")
    for failure in failures:
        print(failure)
    print(f"lint self-test: {len(bad)} kinds of violation, {len(failures)} failures")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) == 3 and sys.argv[1] == "--actual":
        print_actual(sys.argv[2])
        return 0
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    script.needs_project(sys.argv[1])
    complaints, n_files = lint(sys.argv[1], layers)
    for complaint in complaints:
        print(complaint)
    print(f"lint: {n_files} files, {len(complaints)} violations")
    return 1 if complaints or n_files == 0 else 0


if __name__ == "__main__":
    script.help_if_asked()
    sys.exit(main())
