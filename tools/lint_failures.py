#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds docs/FAILURES.md and tests/failures.csv to the tests: each failure has one row, each row names a test, and each test named exists.

A row of tests/failures.csv that does not say what happens has further tests of a failure on the page.

    lint_failures.py ROOT         check
    lint_failures.py --self-test  show that every check finds something
"""
import csv
import os
import re
import sys
import tempfile

import script

PAGE, INTERNAL = "docs/FAILURES.md", "tests/failures.csv"
BREAKS = "| what breaks |"
FILE = re.compile(r"^(?:tests/)?[\w/]+\.(?:c|py|h|txt)$")


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def rows_of_page(text):
    """Returns (what breaks, tests, False) of each row of the tables of what breaks."""
    found, inside = [], False
    for line in text.split("\n"):
        if line.startswith(BREAKS):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|-"):
            cells = [cell.strip() for cell in line.rstrip().rstrip("|").split("|")[1:]]
            found.append((cells[0], re.findall(r"`([^`]+)`", cells[-1]), False))
    return found


def rows_of_table(text):
    """Returns (what breaks, tests, whether it adds to a row of the page) of each row."""
    return [(row["what breaks"], row["tests"].split(), row["what happens"] == "") for row in csv.DictReader(text.splitlines())]


def known(name, words, files):
    """Returns whether tests/ has this test: a file, or a function, whose name may end in *."""
    if FILE.match(name):
        return any(path == name or path.endswith("/" + name) for path in files)
    return any(w.startswith(name[:-1]) for w in words) if name.endswith("*") else name in words


def tests_of(root):
    """Returns (names of test functions, files) of tests/."""
    words, files = set(), set()
    for folder, folders, entries in os.walk(os.path.join(root, "tests")):
        folders[:] = [f for f in folders if f not in ("corpus", "golden", "__pycache__")]
        for entry in entries:
            if entry.endswith((".c", ".h", ".py", ".txt")):
                path = os.path.join(folder, entry)
                files.add(os.path.relpath(path, root))
                words |= set(re.findall(r"\btest_\w+", read(root, os.path.relpath(path, root))))
    return words, files


def check(root):
    words, files = tests_of(root)
    complaints, failures = [], []
    for name, rows in ((PAGE, rows_of_page(read(root, PAGE))), (INTERNAL, rows_of_table(read(root, INTERNAL)))):
        for failure, tests, adds in rows:
            complaints += [f"{name}: no test of \"{failure}\""] if not tests else []
            complaints += [f"{name}: two rows for \"{failure}\""] if failure in failures and not adds else []
            complaints += [f"{name}: {PAGE} has no row for \"{failure}\""] if failure not in failures and adds else []
            complaints += [f"{name}: {test} is not in tests/" for test in tests if not known(test, words, files)]
            failures += [] if adds else [failure]
    return complaints, len(failures)


def self_test():
    def complaints(page, table=""):
        with tempfile.TemporaryDirectory() as root:
            for name, text in ((PAGE, "| what breaks | what happens | tests |\n|---|---|---|\n" + page),
                               (INTERNAL, "what breaks,what happens,tests\n" + table), ("tests/a/test_b.c", "void test_one(void)\n")):
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            return check(root)[0]

    assert not complaints("| a | b | `test_one`, `test_o*`, `tests/a/test_b.c` |\n", "c,d,test_one test_b.c\na,,test_one\n")
    for page, table, wanted in (("| a | b `test_one` | |\n", "", "no test of \"a\""),
                                ("", "a,b,\n", "no test of \"a\""),
                                ("", "a,,test_one\n", "has no row for \"a\""),
                                ("| a | b | `test_one` |\n| a | c | `test_one` |\n", "", "two rows"),
                                ("| a | b | `test_one` |\n", "a,b,test_one\n", "two rows"),
                                ("| a | b | `test_two` |\n", "", "test_two is not"),
                                ("| a | b | `test_p*` |\n", "", "test_p* is not"),
                                ("", "a,b,fuzz_c.c\n", "fuzz_c.c is not")):
        found = complaints(page, table)
        assert len(found) == 1 and wanted in found[0], (wanted, found)
    print("lint_failures: every check finds what it is for")
    return 0


def main():
    script.needs_arguments(1, "ROOT | --self-test")
    if sys.argv[1] == "--self-test":
        return self_test()
    script.needs_project(sys.argv[1])
    complaints, n = check(sys.argv[1])
    for complaint in complaints:
        print(complaint)
    print(f"lint_failures: {n} failures, {len(complaints)} complaints")
    return 1 if complaints or n == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
