#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
How good are the tests? Plants small bugs by rule, one at a time, builds, runs the tests of the file's folder, and lists what lives.

    tools/mutate.py --sample 20 coordinator/jobs fabric/link     # 20 bugs in these folders, drawn by --seed
    tools/mutate.py --since HEAD~5                                # in the lines that changed since then
    tools/mutate.py --list --sample 200 kvstore                   # what would be planted; nothing is built

Works on a copy of HEAD in build-mutate/, built once. A bug dies if the build or a test fails, or a test takes too long. What lives is
either a test that is missing, or a change that makes no difference: look at each.
"""
import argparse
import functools
import os
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.join(ROOT, "build-mutate", "tree")
BUILD = os.path.join(ROOT, "build-mutate", "build")

# What is found in a line of code, and what takes its place.
RULES = [
    ("off by one", r" < ", " <= "), ("off by one", r" <= ", " < "), ("off by one", r" > ", " >= "), ("off by one", r" >= ", " > "),
    ("negated", r" == ", " != "), ("negated", r" != ", " == "), ("and for or", r" && ", " || "), ("or for and", r" \|\| ", " && "),
    ("plus for minus", r" - ", " + "), ("minus for plus", r" \+ ", " - "), ("constant", r"\b1\b", "2"), ("constant", r"\b0\b", "1"),
    ("condition dropped", r"^(\s*)if \((.+)\) \{$", r"\1if (0 && (\2)) {"),
    ("condition forced", r"^(\s*)if \((.+)\) \{$", r"\1if (1 || (\2)) {"),
    ("call dropped", r"^(\s+)(\w*(?:free|release|unref|give|close|destroy|unlock|return_|cancel|take_out|forget)\w*\(.*\);)$", r"\1;"),
    ("success told", r"\breturn sl_fail\(err, \w+,", "return 0 ? SL_OK : sl_fail(err, SL_OK,"),
]
# Not worth planting in: what is not code, what only speaks, what a compiler checks.
SKIPPED = re.compile(r"^\s*(//|\*|/\*|#)|sl_log_|assert\(|static const|SL_OPTION|printf|^\s*\{\"|^\s*case |^enum|^#define")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="folders or files; with --since, those that changed")
    parser.add_argument("--sample", type=int, default=20, metavar="N", help="bugs to plant (20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample (1)")
    parser.add_argument("--since", metavar="COMMIT", help="only in lines that changed since then")
    parser.add_argument("--tests", metavar="REGEX", help="tests to run, for all of them; else those of the file's folder")
    parser.add_argument("--timeout", type=int, default=120, metavar="SECONDS", help="of the tests of one bug (120)")
    parser.add_argument("--list", action="store_true", help="print the bugs and plant none")
    return parser.parse_args()


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout


def changed_lines(since):
    """{path: numbers of lines} of what HEAD has and `since` had not."""
    lines, path = {}, None
    for line in git("diff", "-U0", since, "HEAD", "--", "*.c").splitlines():
        if line.startswith("+++ b/"):
            path = line[6:]
        match = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if match and path:
            first, n = int(match[1]), int(match[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + n))
    return lines


def candidates(options):
    """Every (path, number of the line, rule, new line)."""
    changed = changed_lines(options.since) if options.since else None
    paths = [p for p in git("ls-files", "*.c").splitlines() if not p.startswith(("tests/", "tools/", "lab/"))]
    for path in paths:
        if options.folders and not any(path == f or path.startswith(f.rstrip("/") + "/") for f in options.folders):
            continue
        if changed is not None and path not in changed:
            continue
        with open(os.path.join(ROOT, path)) as file:
            for number, line in enumerate(file.read().split("\n"), 1):
                if SKIPPED.search(line) or (changed is not None and number not in changed[path]):
                    continue
                code = line.split(" // ")[0]
                for rule, pattern, replacement in RULES:
                    for match in re.finditer(pattern, code):
                        if code[:match.start()].count('"') % 2 == 0:
                            new = code[:match.start()] + match.expand(replacement) + code[match.end():]
                            yield path, number, rule, new


def tests_of(path):
    """By name: unit_kvstore_disk_folder tests kvstore/disk/, and where nothing is named so far down, what tests the folder above."""
    words = os.path.dirname(path).split("/")
    while words:
        names = build_tests("^unit_" + "_".join(words))
        if names:
            return "^unit_" + "_".join(words), names
        words.pop()
    return None, []


def prepare():
    shutil.rmtree(TREE, ignore_errors=True)
    os.makedirs(TREE)
    archive = subprocess.Popen(["git", "-C", ROOT, "archive", "HEAD"], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", TREE], stdin=archive.stdout, check=True)
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    # Assertions stay: they are tests, too.
    subprocess.run(["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1", "-DCMAKE_C_FLAGS=-Wno-error",
                    *launcher], check=True, stdout=subprocess.DEVNULL)


@functools.lru_cache(maxsize=None)
def build_tests(regex):
    """Before the first bug of a folder: its tests, which must pass. Their names."""
    listed = subprocess.run(["ctest", "--test-dir", BUILD, "-N", "-R", regex], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"Test +#\d+: (\S+)", listed)
    if names:
        subprocess.run(["cmake", "--build", BUILD, "--target", *names], check=True, stdout=subprocess.DEVNULL)
    return names


def fate(options, path, number, new):
    """"" if it lives; else what it died of."""
    regex, names = (options.tests, build_tests(options.tests)) if options.tests else tests_of(path)
    if not names:
        return "?no tests are named after this folder"
    source = os.path.join(TREE, path)
    with open(source) as file:
        text = file.read()
    lines = text.split("\n")
    lines[number - 1] = new
    try:
        with open(source, "w") as file:
            file.write("\n".join(lines))
        built = subprocess.run(["cmake", "--build", BUILD, "--target", *names], capture_output=True, text=True)
        if built.returncode != 0:
            return "the build"
        run = ["ctest", "--test-dir", BUILD, "-R", regex, "--stop-on-failure", "-j", str(os.cpu_count()), "--timeout", str(options.timeout)]
        tested = subprocess.run(run, capture_output=True, text=True, timeout=20 * options.timeout)
        failed = re.findall(r"Test +#\d+: (\S+) \.+\**(?:Failed|Timeout|Exception|Subprocess)", tested.stdout)
        return (failed[0] if failed else "a test") if tested.returncode != 0 else ""
    finally:
        with open(source, "w") as file:
            file.write(text)


def main():
    options = arguments()
    bugs = list(candidates(options))
    if not bugs:
        sys.exit("mutate: nothing to plant a bug in")
    sample = random.Random(options.seed).sample(bugs, min(options.sample, len(bugs)))
    print(f"mutate: {len(sample)} of {len(bugs)} bugs, seed {options.seed}", flush=True)
    if options.list:
        for path, number, rule, new in sample:
            print(f"{path}:{number}: {rule}: {new.strip()}")
        return 0
    prepare()
    lived, died, unknown = [], 0, 0
    for i, (path, number, rule, new) in enumerate(sample, 1):
        began = time.monotonic()
        of = fate(options, path, number, new)
        died += bool(of) and not of.startswith("?")
        unknown += of.startswith("?")
        lived += [] if of else [(path, number, rule, new)]
        print(f"{i:4d}/{len(sample)} {'LIVES' if not of else of} ({time.monotonic() - began:.0f} s)  {path}:{number}: {rule}: {new.strip()}", flush=True)
    print(f"mutate: {died} died, {len(lived)} live, {unknown} have no tests", flush=True)
    for path, number, rule, new in lived:
        print(f"lives: {path}:{number}: {rule}: {new.strip()}")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
