#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds docs/FAILURE_TESTS.md to docs/FAILURES.md, docs/FAILOVER.md and the tests: each failure has a row, and each test named there exists.

    lint_failures.py ROOT         check
    lint_failures.py --self-test  show that every check finds something
"""
import os
import re
import sys
import tempfile

import script

PAGES = ["docs/FAILURES.md", "docs/FAILOVER.md"]
APPENDIX = "docs/FAILURE_TESTS.md"
BREAKS = "| what breaks |"
FILE = re.compile(r"^(?:tests/)?[\w/]+\.(?:c|py|h)$")


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def rows(text):
    """Returns the first cells of the tables of what breaks."""
    found, inside = [], False
    for line in text.split("\n"):
        if line.startswith(BREAKS):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|-"):
            found.append(line.split("|")[1].strip())
    return found


def names(text):
    """Returns the tests that the tables' last cells name."""
    cells = [line.rstrip().rstrip("|").split("|")[-1] for line in text.split("\n") if line.startswith("| ")]
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def check(root):
    complaints = []
    failures = [row for page in PAGES for row in rows(read(root, page))]
    tested = rows(read(root, APPENDIX))
    complaints += [f"{APPENDIX}: no row of tests for \"{row}\"" for row in failures if row not in tested]
    complaints += [f"{APPENDIX}: \"{row}\" is in neither {' nor '.join(PAGES)}" for row in tested if row not in failures]
    complaints += [f"{APPENDIX}: two rows for \"{row}\"" for row in set(tested) if tested.count(row) > 1]
    words, files = set(), set()
    for folder, folders, entries in os.walk(os.path.join(root, "tests")):
        folders[:] = [f for f in folders if f not in ("corpus", "golden", "__pycache__")]
        for entry in entries:
            if entry.endswith((".c", ".h", ".py", ".txt")):
                path = os.path.join(folder, entry)
                files.add(os.path.relpath(path, root))
                words |= set(re.findall(r"\btest_\w+", read(root, os.path.relpath(path, root))))
    for name in names(read(root, APPENDIX)):
        if FILE.match(name):
            known = any(path == name or path.endswith("/" + name) for path in files)
        elif name.startswith("test_"):
            known = any(w.startswith(name[:-1]) for w in words) if name.endswith("*") else name in words
        else:
            continue  # a program, a function or an option
        complaints += [] if known else [f"{APPENDIX}: {name} is not in tests/"]
    return complaints, len(failures)


def self_test():
    def complaints(failures, tests):
        with tempfile.TemporaryDirectory() as root:
            head = "| what breaks | x |\n|---|---|\n"
            for name, text in ((PAGES[0], head + failures), (PAGES[1], ""), (APPENDIX, head + tests), ("tests/a/test_b.c", "void test_one(void)\n")):
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            return check(root)[0]

    assert not complaints("| a | b |\n", "| a | cluster `test_one`, `test_o*`, `tests/a/test_b.c` |\n")
    for failures, tests, wanted in (("| a | b |\n| c | d |\n", "| a | `test_one` |\n", "no row of tests for \"c\""),
                                    ("| a | b |\n", "| a | `test_one` |\n| c | `test_one` |\n", "is in neither"),
                                    ("| a | b |\n", "| a | x |\n| a | y |\n", "two rows"),
                                    ("| a | b |\n", "| a | `test_two` |\n", "test_two is not"),
                                    ("| a | b |\n", "| a | `test_p*` |\n", "test_p* is not"),
                                    ("| a | b |\n", "| a | `fuzz_c.c` |\n", "fuzz_c.c is not")):
        found = complaints(failures, tests)
        assert len(found) == 1 and wanted in found[0], (wanted, found)
    print("lint_failures: every check finds what it is for")
    return 0


def main():
    script.needs_arguments(1, "ROOT | --self-test")
    if sys.argv[1] == "--self-test":
        return self_test()
    complaints, n = check(sys.argv[1])
    for complaint in complaints:
        print(complaint)
    print(f"lint_failures: {n} failures, {len(complaints)} complaints")
    return 1 if complaints or n == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
