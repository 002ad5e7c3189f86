# SPDX-License-Identifier: Apache-2.0
"""Packages of the Python package index, for what compares us with others' programs: brought into a folder once, where pip is installed and the
index can be reached. Nothing is installed into the system, and nothing that we serve with comes from there."""
import os
import shutil
import subprocess
import sys


class Unavailable(Exception):
    pass


def bring(target, *words):
    """The folder `target` with these packages (pip's words). Unavailable says why not: then what wanted them is skipped, never passed."""
    if os.path.exists(os.path.join(target, "complete")):
        return target
    # Asks the index once: without an index, pip must not wait.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "0", "--timeout", "15",
               "--target", target, *words]
    result = subprocess.run(install, capture_output=True, text=True)
    if result.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        raise Unavailable(f"pip cannot install {' '.join(words)}: {(result.stderr.strip().splitlines() or ['no reason'])[-1][:120]}")
    open(os.path.join(target, "complete"), "w").close()
    return target
