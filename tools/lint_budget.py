#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds docs/budget.csv, what a caller can make a process hold, to the code: each row names what sets its bound, a metric, and its tests.

    lint_budget.py ROOT                check
    lint_budget.py ROOT --drive BUILD  run the tests of every row, which drive it to its bound, and print the rows with what came out
    lint_budget.py --self-test         show that every check finds something

What sets a bound is an option of a program, or a constant or function of the source. Every caller has a row for each kind of resource.
"""
import csv
import os
import re
import subprocess
import sys
import tempfile

import script
from lint_failures import known, read, tests_of

TABLE, METRICS = "docs/budget.csv", "tests/cluster/metrics.txt"
CALLERS = ("stranger", "tenant", "worker")
KINDS = ("bytes", "descriptors", "threads", "CPU", "log lines")
COLUMNS = ("caller", "holds", "resource", "process", "at most", "set by", "shown by", "driven by")
TEST_S = 300  # for a test that hangs
PROGRAMS = ("base", "coordinator", "decode", "engine", "gateway", "kvstore", "net", "prefill")


def names_of(root):
    """Returns the options ("--x") and the identifiers of the programs' source."""
    found = set()
    for program in PROGRAMS:
        for folder, _, entries in os.walk(os.path.join(root, program)):
            for entry in entries:
                if entry.endswith((".c", ".h")):
                    text = read(root, os.path.relpath(os.path.join(folder, entry), root))
                    found |= set(re.findall(r"\b[A-Za-z_]\w+", text))
                    found |= {f"--{name}" for name in re.findall(r"(?:\{|SL_OPTION_ROW\()\s*\"([a-z-]+)\",", text)}
    return found


def check(root):
    """Returns (complaints, number of rows)."""
    words, files = tests_of(root)
    names = names_of(root)
    metrics = {line.split()[1] for line in read(root, METRICS).splitlines() if line.strip()}
    rows = list(csv.DictReader(read(root, TABLE).splitlines()))
    complaints = []
    for row in rows:
        where = f"{TABLE}: {row['caller']}, {row['resource']}"
        empty = [column for column in COLUMNS if not (row.get(column) or "").strip()]
        if empty or set(row) != set(COLUMNS):
            complaints.append(f"{where}: nothing under {', '.join(empty)}" if empty else f"{where}: other columns than {', '.join(COLUMNS)}")
            continue
        complaints += [f"{where}: the caller is not one of {', '.join(CALLERS)}"] if row["caller"] not in CALLERS else []
        complaints += [f"{where}: it holds {row['holds']}, none of {', '.join(KINDS)}"] if row["holds"] not in KINDS else []
        complaints += [f"{where}: there is no {name}" for name in row["set by"].split() if name not in names]
        complaints += [f"{where}: \"at most\" names {name}, and \"set by\" does not" for name in re.findall(r"--[a-z-]+", row["at most"])
                       if name not in row["set by"].split()]
        complaints += [f"{where}: {metric} is not in {METRICS}" for metric in row["shown by"].split() if metric not in metrics]
        complaints += [f"{where}: {test} is not in tests/" for test in row["driven by"].split() if not known(test, words, files)]
    have = {(row["caller"], row["holds"]) for row in rows}
    complaints += [f"{TABLE}: no row for the {kind} of a {caller}" for caller in CALLERS for kind in KINDS if (caller, kind) not in have]
    return complaints, len(rows)


def commands_of(root, build, test):
    """Returns the commands that run a test: programs of the unit tests contain the names of their tests; others are scripts."""
    for folder, _, entries in os.walk(os.path.join(root, "tests", "cluster")):
        for entry in entries:
            if entry.endswith(".py") and re.search(rf"^def {test}\b", read(folder, entry), re.M):
                return [["/usr/bin/python3", os.path.join(folder, entry), test]]
    programs = os.path.join(build, "tests", "bin")
    named = subprocess.run(["grep", "-lwr", test, programs], capture_output=True, text=True, check=False).stdout.split()
    return [[program] for program in sorted(named) if os.path.basename(program).startswith("unit_")]


def drive(root, build):
    """Runs each test once. Returns 1 if one failed, or if none was run."""
    outcomes, environment = {}, {**os.environ, "SLUICE_BIN": os.path.join(build, "bin"), "UCX_MEM_EVENTS": "n"}

    def outcome(command):
        if tuple(command) not in outcomes:
            try:
                ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False, timeout=TEST_S)
                outcomes[tuple(command)] = ended.returncode
            except subprocess.TimeoutExpired:
                outcomes[tuple(command)] = -1
        return outcomes[tuple(command)]

    for row in csv.DictReader(read(root, TABLE).splitlines()):
        results = {test: [outcome(command) for command in commands_of(root, build, test)] for test in row["driven by"].split()}
        said = ", ".join(f"{test} {'not run' if not codes else 'FAILED' if any(codes) else 'ok'}" for test, codes in results.items())
        print(f"{row['caller']:9}{row['holds']:12}{row['resource']}: {row['at most']}\n{'':21}{said}", flush=True)
    failed = [" ".join(command) for command, code in outcomes.items() if code]
    print("\n".join(["lint_budget: failed:", *failed]) if failed else f"lint_budget: {len(outcomes)} commands drove the rows to their bounds")
    return 1 if failed or not outcomes else 0


def self_test():
    good = [f"{caller},{kind},r,all,--o and MOST,--o MOST,m,test_one" for caller in CALLERS for kind in KINDS]

    def complaints(*rows):
        with tempfile.TemporaryDirectory() as root:
            for name, text in ((TABLE, "\n".join([",".join(COLUMNS), *rows])), (METRICS, "all m gauge {} M.\n"),
                               ("tests/a/test_b.c", "void test_one(void)\n"), ("gateway/main.c", '{"o", 0,\nenum { MOST = 1 };\n')):
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            return check(root)[0]

    assert not complaints(*good), complaints(*good)
    for row, wanted in (("tenant,bytes,r,all,x,--p,m,test_one", "there is no --p"), ("tenant,bytes,r,all,x,LEAST,m,test_one", "there is no LEAST"),
                        ("tenant,bytes,r,all,--o,MOST,m,test_one", "names --o"), ("tenant,bytes,r,all,x,--o,n,test_one", "n is not in tests/cluster"),
                        ("tenant,bytes,r,all,x,--o,m,test_two", "test_two is not"), ("tenant,bytes,r,all,x,--o,,test_one", "nothing under shown by"),
                        ("guest,bytes,r,all,x,--o,m,test_one", "the caller"), ("tenant,time,r,all,x,--o,m,test_one", "it holds time")):
        found = complaints(*good, row)
        assert len(found) == 1 and wanted in found[0], (wanted, found)
    found = complaints(*good[1:])
    assert len(found) == 1 and "no row for the bytes of a stranger" in found[0], found
    print("lint_budget: every check finds what it is for")
    return 0


def main():
    if len(sys.argv) == 4 and sys.argv[2] == "--drive":
        script.needs_project(sys.argv[1])
        return drive(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[3]))
    script.needs_arguments(1, "ROOT | ROOT --drive BUILD | --self-test")
    if sys.argv[1] == "--self-test":
        return self_test()
    script.needs_project(sys.argv[1])
    complaints, n = check(sys.argv[1])
    for complaint in complaints:
        print(complaint)
    print(f"lint_budget: {n} rows, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
