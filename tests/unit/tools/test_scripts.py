#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Starts every script of tools/, tests/ and lab/bench/ as a person might who has just cloned the repository: with --help and without arguments, in an
empty folder, without a built tree, without Python's packages and with a PATH of the simplest programs. Each prints help or says in plain words
what it lacks; no one prints a traceback.

    test_scripts.py [WORD]      only scripts whose path contains the word
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
# Enough for a shell script to find itself and to print a text.
SIMPLE = ("basename", "cat", "dirname", "env", "expr", "grep", "mkdir", "rm", "sed", "sh", "sort", "tr", "uname")
NEEDS_NOTHING = {
    "tools/gpu_counts/aims.py": "adds up figures that it has, and needs nothing",
}
NO_HELP = {
    "tools/gpu_kit/peers.py": "the kit ships it without tools/script.py, and visit.py starts it",
}
SLOWNESS = float(os.environ.get("SLUICE_TEST_SLOWNESS", "1"))


def scripts():
    """Returns the paths of all scripts that are programs: their first line names an interpreter, or they ask whether they are __main__."""
    found = []
    for folder in ("tests", "tools", "lab/bench"):
        for here, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                path = os.path.join(here, name)
                if not name.endswith((".py", ".sh")) or os.path.samefile(path, __file__):
                    continue
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                if text.startswith("#!") or '__name__ == "__main__"' in text:
                    found.append(os.path.relpath(path, ROOT))
    return sorted(found)


def start(path, words, folder, packages):
    """Runs a script. Without `packages` Python finds its standard library alone."""
    command = ["/bin/sh"] if path.endswith(".sh") else [sys.executable, "-B", *([] if packages else ["-S"])]
    nothing = os.path.join(folder, "nothing")
    environment = {"PATH": os.path.join(folder, "path"), "HOME": os.path.join(folder, "home"), "SLUICE_BIN": nothing, "LANG": "C.UTF-8", "TMPDIR": nothing}
    if packages:
        environment["PATH"] = os.environ["PATH"]
    return subprocess.run([*command, os.path.join(ROOT, path), *words], cwd=nothing, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=120 * SLOWNESS)


def faults(path, folder):
    """Returns what is wrong with how a script starts."""
    wrong = []

    def check(words, done, allowed, what):
        said = (done.stdout + done.stderr).strip()
        if "Traceback" in said or not said or not allowed(done.returncode):
            wrong.append(f"{path} {' '.join(words)} ({what}): exit code {done.returncode}\n{said[-600:]}")

    helped = start(path, ["--help"], folder, False)
    check(["--help"], helped, lambda code: path in NO_HELP or code == 0, "help")
    if path not in NO_HELP and len(helped.stdout.split()) < 8:
        wrong.append(f"{path} --help says too little: {helped.stdout}")
    check([], start(path, [], folder, False), lambda code: (code == 0) == (path in NEEDS_NOTHING), "nothing there")
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    # A folder that is not there, instead of the project's
    if re.search(rf"^ +{re.escape(os.path.basename(path))} ROOT\b", text, re.M):
        check(["missing"], start(path, ["missing"], folder, True), lambda code: code == 2, "no such folder")
    # With Python's packages, what is missing are the programs. Only scripts that need these are started so: others would begin to work.
    if path.endswith(".py") and ("import harness" in text or "from harness" in text or "needs_programs" in text):
        check([], start(path, [], folder, True), lambda code: code != 0, "packages there, programs missing")
    left = os.listdir(os.path.join(folder, "nothing"))
    if left:
        wrong.append(f"{path} leaves {left}")
    return wrong


def faults_in_folder(path):
    """Starts a script in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="sluice-scripts-", ignore_cleanup_errors=True) as folder:
        for name in ("path", "nothing", "home"):
            os.mkdir(os.path.join(folder, name))
        for name in SIMPLE:
            os.symlink(shutil.which(name), os.path.join(folder, "path", name))
        try:
            return faults(path, folder)
        except subprocess.TimeoutExpired as error:
            return [f"{path}: {error}: it begins to work instead of saying what it lacks"]


def main():
    chosen = [path for path in scripts() if all(word in path for word in sys.argv[1:])]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = [one for found in pool.map(faults_in_folder, chosen) for one in found]
    for one in wrong:
        print(one)
    print(f"{len(chosen)} scripts started, {len(wrong)} faults")
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
