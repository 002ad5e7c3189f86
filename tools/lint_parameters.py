#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds functions of the product to 7 parameters (docs/STYLE.md): more of them belong into a struct that has a name. Tests and tools are not the
product. A callback has the parameters that its library gives it: GIVEN names those.

    lint_parameters.py ROOT           name every such function; exits with 1 if there is one
    lint_parameters.py --self-test    show that such functions are found, in the ways in which C and CUDA write them, and no others
"""
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import script  # noqa: E402
from lint_includes import functions_of, is_source  # noqa: E402

MOST = 7
SKIPPED = ("tests/", "tools/")
GIVEN = {  # path, function: the type of the library
    ("gateway/exchange.c", "sl_exchange_handle"): "MHD_AccessHandlerCallback",
    ("net/admin/admin.c", "handle"): "MHD_AccessHandlerCallback",
    ("gateway/https.c", "sl_https_give_certificate"): "gnutls_certificate_retrieve_function3",
}


def n_parameters(text):
    """Returns how many parameters there are between the parentheses of a definition."""
    depth, n = 0, 1
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        n += letter == "," and depth == 0
    return 0 if text.strip() in ("", "void") else n


def too_many(text):
    """Yields (name, number) for each function of a file with more parameters than allowed."""
    for name, _, parameters in functions_of(text):
        if n_parameters(parameters) > MOST:
            yield name, n_parameters(parameters)


def found_in(root):
    """Yields (path, name, number) for each such function of the tree that git tracks."""
    paths = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    for path in paths:
        full = os.path.join(root, path)
        if is_source(path) and not path.startswith(SKIPPED) and os.path.exists(full):
            with open(full, encoding="utf-8", errors="replace") as file:
                for name, n in too_many(file.read()):
                    yield path, name, n


def self_test():
    eight = ", ".join(f"int a{i}" for i in range(8))
    seven = ", ".join(f"int a{i}" for i in range(7))
    wrapped = eight.replace(", ", ",\n    ")
    for text in (f"static int f({eight}) {{\n}}\n", f"int\nf({wrapped}) {{\n}}\n", f"__attribute__((target(\"a,b\"))) void f({eight}) {{\n}}\n",
                 f"template <int N>\n__global__ void __launch_bounds__(128, 2) f({eight}) {{\n}}\n", f"void f({seven}, void (*g)(int, int)) {{\n}}\n",
                 f"struct sl_x *f({eight}) {{\n    if (a0) {{\n    }}\n}}\n"):
        assert [name for name, _ in too_many(text)] == ["f"], text
    for text in (f"static int f({seven}) {{\n}}\n", "int f(void) {\n}\n", "int f(int a, int (*g)(int, int, int, int, int, int, int, int)) {\n}\n",
                 f"int f({eight});\n", f"struct s {{\n    int a, b, c, d, e, f, g, h;\n}};\n", "int f(int a) {\n    g(1, 2, 3, 4, 5, 6, 7, 8);\n}\n"):
        assert not list(too_many(text)), text
    print("lint_parameters: finds functions with too many parameters, and no others")
    return 0


def main():
    script.needs_arguments(1, "ROOT | --self-test")
    if sys.argv[1] == "--self-test":
        return self_test()
    script.needs_project(sys.argv[1])
    script.needs_tools("git", way="apt-get install git")
    root = sys.argv[1]
    n_found, unneeded = 0, set(GIVEN)
    for path, name, n in found_in(root):
        if (path, name) in GIVEN:
            unneeded.discard((path, name))
            continue
        n_found += 1
        print(f"{path}: {name}() has {n} parameters, at most {MOST}: those that belong together are a struct")
    for path, name in sorted(unneeded):
        print(f"{path}: {name}() is in GIVEN and has at most {MOST} parameters")
    print(f"lint_parameters: {n_found} functions with more than {MOST} parameters")
    return 1 if n_found or unneeded else 0


if __name__ == "__main__":
    sys.exit(main())
