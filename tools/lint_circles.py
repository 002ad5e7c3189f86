#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files that need each other are one file, or hide a third. Prints every circle between files of the product by calls, from the
symbols of a build's objects, and between headers by includes; exits with 1 if there is one that is not allowed below.

    lint_circles.py BUILD        check a build, its source folder being the one that CMake was run for
    lint_circles.py --self-test  show that circles are found, with files compiled in a temporary folder
"""
import collections
import json
import os
import shlex
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from lint_includes import files_of, includes_of, is_test  # noqa: E402
import script  # noqa: E402

# Circles that stay: files, and why. A grammar that nests is parsed by functions that call each other.
ALLOWED = [
    ("engine/text/chat/chat_expression.c engine/text/chat/chat_operand.c", "an operand may be an expression in brackets"),
]


def objects_of(build):
    """({source: object} of the product, the source folder), from CMake's list of what it compiles. Generated files are left out."""
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
        root = next(line.split("=", 1)[1].strip() for line in file if line.startswith("CMAKE_HOME_DIRECTORY"))
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    objects = {}
    for command in commands:
        source = os.path.relpath(command["file"], root).replace(os.sep, "/")
        inside_build = os.path.realpath(command["file"]).startswith(os.path.realpath(build) + os.sep)
        if not source.startswith("..") and not is_test(source) and not inside_build:
            words = shlex.split(command["command"])
            objects[source] = os.path.join(command["directory"], words[words.index("-o") + 1])
    return objects, root


def symbols_of(objects):
    """({symbol: source that defines it}, {source: symbols that it leaves to others})."""
    defined = {}
    undefined = collections.defaultdict(set)
    source_of = {os.path.realpath(path): source for source, path in objects.items()}
    listing = subprocess.run(["nm", "--extern-only", "--format=posix", "--print-file-name", *source_of],
                             check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        path, _, rest = line.partition(": ")
        symbol, kind = rest.split()[:2]
        if kind in "Uwv":
            undefined[source_of[path]].add(symbol)
        else:
            defined[symbol] = source_of[path]
    return defined, undefined


def call_edges(objects):
    """{source: {source: [symbol]}}"""
    defined, undefined = symbols_of(objects)
    edges = {source: collections.defaultdict(list) for source in objects}
    for source, symbols in undefined.items():
        for symbol in sorted(symbols):
            if symbol in defined:
                edges[source][defined[symbol]].append(symbol)
    return edges


def include_edges(root):
    """{header: {header: []}}"""
    texts = files_of(root)
    return {path: {header: [] for header in includes_of(text)}
            for path, text in texts.items() if path.endswith(".h") and not is_test(path)}


def circles(edges):
    """The strongly connected components of more than one node (Tarjan)."""
    order, lowest, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in order:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == order[node]:
            circle = set()
            while node not in circle:
                circle.add(stack.pop())
            if len(circle) > 1:
                found.append(circle)

    sys.setrecursionlimit(10000)
    for node in sorted(edges):
        if node not in order:
            visit(node)
    return sorted(found, key=sorted)


def complaints_of(build, allowed):
    objects, root = objects_of(build)
    allowed = [set(files.split()) for files, _ in allowed]
    complaints = [f"{source}: is not built" for source, path in objects.items() if not os.path.exists(path)]
    if complaints or not objects:
        return complaints or ["the build has no objects"]
    found = []
    for how, edges in [("calls", call_edges(objects)), ("includes", include_edges(root))]:
        for circle in circles(edges):
            found.append(circle)
            if circle in allowed:
                continue
            lines = [f"circle of {len(circle)} files by {how}: {' '.join(sorted(circle))}"]
            for source in sorted(circle):
                for target in sorted(set(edges[source]) & circle - {source}):
                    lines.append(f"    {source} -> {target}  {' '.join(edges[source][target])}".rstrip())
            complaints.append("\n".join(lines))
    complaints += [f"not a circle any more: {' '.join(sorted(circle))}" for circle in allowed if circle not in found]
    return complaints


def self_test():
    files = {
        "a.c": "int b(void); int a(void); int a(void) { return b(); }",
        "b.c": "int c(void); int b(void); int b(void) { return c(); }",
        "c.c": "int c(void); int c(void) { return 1; }",
        "back.c": "int a(void); int c(void); int c(void) { return a() - 1; }",  # in the place of c.c: closes the circle
        "x.h": '#include "x/y.h"\n',
        "y.h": '#include "x/x.h"\n',
    }

    def found(sources, headers, allowed=()):
        with tempfile.TemporaryDirectory() as root:
            build = os.path.join(root, "build")
            for folder in (build, os.path.join(root, "x")):
                os.mkdir(folder)
            commands = []
            for name in (*sources, *headers):
                path = os.path.join(root, "x", name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(files[name])
                if name in sources:
                    command = ["cc", "-c", path, "-o", name + ".o"]
                    subprocess.run(command, cwd=build, check=True)
                    commands.append({"directory": build, "file": path, "command": shlex.join(command)})
            with open(os.path.join(build, "compile_commands.json"), "w", encoding="utf-8") as file:
                json.dump(commands, file)
            with open(os.path.join(build, "CMakeCache.txt"), "w", encoding="utf-8") as file:
                file.write(f"CMAKE_HOME_DIRECTORY:INTERNAL={root}\n")
            return complaints_of(build, allowed)

    three = "x/a.c x/b.c x/back.c"
    cases = [
        (found(["a.c", "b.c", "c.c"], ["x.h"]), []),
        (found(["a.c", "b.c", "back.c"], []), [f"circle of 3 files by calls: {three}\n    x/a.c -> x/b.c  b\n"
                                               "    x/b.c -> x/back.c  c\n    x/back.c -> x/a.c  a"]),
        (found(["a.c", "b.c", "back.c"], [], [(three, "a test")]), []),
        (found(["a.c", "b.c", "c.c"], [], [(three, "a test")]), [f"not a circle any more: {three}"]),
        (found(["a.c"], ["x.h", "y.h"]),
         ["circle of 2 files by includes: x/x.h x/y.h\n    x/x.h -> x/y.h\n    x/y.h -> x/x.h"]),
        (found([], []), ["the build has no objects"]),
    ]
    failures = [f"expected {expected}, got {got}" for got, expected in cases if got != expected]
    for failure in failures:
        print(failure)
    print(f"circles self-test: {len(cases)} cases, {len(failures)} failures")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if not os.path.exists(os.path.join(sys.argv[1], "CMakeCache.txt")):
        script.stop(f"{sys.argv[1]} is not a build folder: run `make build` first")
    complaints = complaints_of(sys.argv[1], ALLOWED)
    for complaint in complaints:
        print(complaint)
    print(f"circles: {len(complaints)} that are not allowed")
    return 1 if complaints else 0


if __name__ == "__main__":
    script.help_if_asked()
    sys.exit(main())
