# SPDX-License-Identifier: Apache-2.0
"""What the tests share: this checkout's tool and model, and commands of the package."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "lab/sluice_eval"
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
MODEL = str(ROOT / "models/demo")
sys.path.insert(0, str(PACKAGE))

try:
    import numpy  # noqa: F401
except ImportError:
    print("skipped: NumPy is missing (python3-numpy)", flush=True)
    sys.exit(77)

from sluice_eval.process import find_sluice  # noqa: E402

needs_sluice = unittest.skipUnless(find_sluice(), "needs the `sluice` tool: build it, or set SLUICE_BIN")


def command(*words, env=None, program="sluice_eval"):
    """Runs `python3 -m sluice_eval`; returns the finished process."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), **(env or {})}
    return subprocess.run([sys.executable, "-m", program, *map(str, words)], capture_output=True, text=True, timeout=280,
                          env=environment, cwd=ROOT, check=False)


def lines_of(done):
    """Returns the JSON lines of a finished process."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class FolderTest(unittest.TestCase):
    """Has a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)
