# SPDX-License-Identifier: Apache-2.0
"""Training of heads: what its checkpoints and its heads' files are worth after any end, and how long prompts are cut."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import numpy as np

from .support import PACKAGE, FolderTest

from sluice_eval.checkpoint import load, save, write_heads
from sluice_eval.errors import EvalError, UsageError
from sluice_eval.train_heads import cut

FACTS = {"--model": "1234", "--hidden": "32"}
N_STEPS = 30
# Writes both files over and over, until it is killed.
WRITER = """
import sys
import numpy as np
from sluice_eval.checkpoint import save, write_heads
state = np.arange(3 * 50000, dtype=np.float32).reshape(3, 50000)
while True:
    save(sys.argv[1], {"--model": "1234", "--hidden": "32"}, state, np.ones((3, 7), np.float32))
    write_heads(sys.argv[2], {"layers.0.w1": state[0].reshape(100, 500)}, "bf16")
"""


def read_heads(path):
    data = pathlib.Path(path).read_bytes()
    n = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + n]), data[8 + n:]


class Checkpoint(FolderTest):
    def setUp(self):
        super().setUp()
        self.path = str(self.folder / "run")
        self.state = np.random.default_rng(1).random((3, 400), np.float32)
        self.curve = np.random.default_rng(2).random((3, 11), np.float32)

    def load(self, facts=None, n_steps=N_STEPS):
        """Returns the state and the curve in the file."""
        state = np.zeros_like(self.state)
        return state, load(self.path, facts or FACTS, state, n_steps)

    def test_what_was_saved_comes_back(self):
        self.assertRaises(FileNotFoundError, self.load)
        for curve in (self.curve, self.curve[:, :0]):
            save(self.path, FACTS, self.state, curve)
            state, found = self.load()
            np.testing.assert_array_equal(state, self.state)
            np.testing.assert_array_equal(found, curve)
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o644)
        self.assertEqual(os.listdir(self.folder), ["run"])

    def test_that_of_another_run_is_refused_by_name(self):
        save(self.path, FACTS, self.state, self.curve)
        with self.assertRaisesRegex(EvalError, "was made with --hidden 32, now it is 64") as caught:
            self.load({**FACTS, "--hidden": "64"})
        self.assertNotIsInstance(caught.exception, UsageError)
        self.assertRaisesRegex(EvalError, "says nothing of --seed", self.load, {**FACTS, "--seed": "0"})
        self.assertRaisesRegex(UsageError, "not a whole checkpoint", self.load, {"--model": "1234"})
        self.assertRaisesRegex(UsageError, "not a whole checkpoint", self.load, FACTS, 10)  # fewer steps than it has taken

    def test_a_broken_one_is_refused(self):
        save(self.path, FACTS, self.state, self.curve)
        whole = pathlib.Path(self.path).read_bytes()
        n = len(whole)
        for length, changed in [(0, 0), (10, 0), (50, 0), (n - 1, 0), (n - 33, 0), (n, n - 1), (n, n // 2), (n, 200), (n, 2), (n + 1, n)]:
            data = bytearray(whole + b"\0")[:length]
            if changed < length:
                data[changed] ^= 1
            pathlib.Path(self.path).write_bytes(data)
            self.assertRaisesRegex(UsageError, "/run is not a whole checkpoint", self.load)
        pathlib.Path(self.path).write_bytes(whole)
        np.testing.assert_array_equal(self.load()[0], self.state)

    def test_a_folder_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(EvalError, "/nonexistent/run: cannot be written"):
            save("/nonexistent/run", FACTS, self.state, self.curve)
        with self.assertRaisesRegex(EvalError, "/nonexistent/heads: cannot be written"):
            write_heads("/nonexistent/heads", {"w": self.state}, "f16")
        os.mkfifo(self.path)
        with self.assertRaisesRegex(EvalError, "/run: cannot be written: it is not a file"):
            save(self.path, FACTS, self.state, self.curve)
        self.assertEqual(os.listdir(self.folder), ["run"])

    def test_a_full_disk_leaves_the_old_file_and_no_other(self):
        save(self.path, FACTS, self.state, self.curve)
        code = ("import resource, signal, sys; import numpy as np; from sluice_eval.checkpoint import save\n"
                "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
                "save(sys.argv[1], {}, np.ones((3, 400), np.float32), np.ones((3, 0), np.float32))")
        done = subprocess.run([sys.executable, "-c", code, self.path], capture_output=True, text=True, timeout=280, check=False,
                              env={**os.environ, "PYTHONPATH": str(PACKAGE)})
        self.assertIn("/run: cannot be written", done.stderr)
        self.assertEqual(os.listdir(self.folder), ["run"])
        np.testing.assert_array_equal(self.load()[0], self.state)


class Killed(FolderTest):
    def test_a_kill_while_writing_leaves_whole_files(self):
        """A process that does nothing but write is killed now and then: what is under the names is always whole."""
        paths = [str(self.folder / name) for name in ("run", "heads")]
        expected = np.arange(3 * 50000, dtype=np.float32).reshape(3, 50000)

        def written():
            return os.stat(paths[1]).st_mtime_ns if os.path.exists(paths[1]) else None
        for i in range(8):
            before = written()
            child = subprocess.Popen([sys.executable, "-c", WRITER, *paths], env={**os.environ, "PYTHONPATH": str(PACKAGE)})
            deadline = time.monotonic() + 120
            while written() == before and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep((3 + 7 * i % 40) / 1000)  # it writes the next ones
            child.send_signal(signal.SIGKILL)
            self.assertEqual(child.wait(60), -signal.SIGKILL)  # it had not given up
            state = np.zeros_like(expected)
            self.assertEqual(load(paths[0], FACTS, state, N_STEPS).shape, (3, 7))
            np.testing.assert_array_equal(state, expected)
            header, data = read_heads(paths[1])
            self.assertEqual(header["layers.0.w1"], {"dtype": "BF16", "shape": [100, 500], "data_offsets": [0, 100000]})
            self.assertEqual(len(data), 100000)


class Heads(FolderTest):
    def test_numbers_are_rounded_to_nearest(self):
        values = np.array([1.0, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -1 - 2 ** -7 - 2 ** -20, 3e38, 2 ** -24], np.float32)
        path = str(self.folder / "heads")
        write_heads(path, {"w": values}, "bf16")
        header, data = read_heads(path)
        bits = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(bits[:4], np.array([1, 1, 1 + 2 ** -6, -1 - 2 ** -7], np.float32))  # ties to even
        self.assertLess(abs(bits[4] / 3e38 - 1), 0.004)
        write_heads(path, {"w": values[:4], "v": values[:3]}, "f16")
        header, data = read_heads(path)
        self.assertEqual(header["v"], {"dtype": "F16", "shape": [3], "data_offsets": [8, 14]})
        np.testing.assert_array_equal(np.frombuffer(data, np.float16), np.concatenate([values[:4], values[:3]]).astype(np.float16))
        write_heads(path, {"w": values}, "f32")
        self.assertEqual(read_heads(path)[1], values.tobytes())

    def test_those_that_are_not_finite_are_not_written(self):
        path = str(self.folder / "heads")
        for wrong in (np.nan, np.inf):
            self.assertRaisesRegex(UsageError, "has diverged", write_heads, path, {"w": np.array([1, wrong], np.float32)}, "bf16")
        self.assertEqual(os.listdir(self.folder), [])


class Cut(unittest.TestCase):
    def test_long_prompts_lose_their_beginning(self):
        before, after = list(range(12)), list(range(100, 105))
        for most in range(3, 20):
            tokens, n_prompt = cut(before, after, most)
            kept = min(most, 17)
            self.assertEqual(n_prompt, max(kept - 5, 2))  # an answer as long as that loses its end
            self.assertEqual(tokens, (before + after)[12 - n_prompt:][:kept])


if __name__ == "__main__":
    unittest.main()
