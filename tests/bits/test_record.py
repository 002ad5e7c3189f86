#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""record.py finds what it is there to find: another digest, another recipe, another way to the same case; and nothing else."""
import contextlib
import io
import os
import shutil
import struct
import tempfile
import unittest
import unittest.mock

import record  # first: it says what is missing
import capsule
import cases
from observations import Observations, read_record, write_record

TIER, RECIPE = "reference", "h2o"
CASE = f"{TIER}/{RECIPE}/chunk=64"
PROMPT = "Licensed under the Apache License, Version 2.0: you may not use this file except in compliance with it. " * 2


def run(*arguments):
    """(exit code, what was printed) of record.py on two recipes and a short prompt."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), unittest.mock.patch("cases.prompt", lambda tier: PROMPT):
        code = record.main(["--quick", "--local", "--tier", TIER, "--only", RECIPE, "--only", "int4", *arguments])
    return code, out.getvalue()


class TestRecord(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="sluice-bits-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.file = os.path.join(cls.folder, "recorded.json")
        code, out = run("--record", "--file", cls.file)
        assert code == 0, out
        cls.cases = read_record(cls.file)["cases"]

    def test_the_same_is_equal(self):
        code, out = run("--file", self.file)
        self.assertEqual(code, 0, out)
        self.assertTrue(out.endswith("equal\n"), out)

    def test_a_tampered_record_names_case_fields_and_command(self):
        tampered = {case: dict(fields) for case, fields in self.cases.items()}
        for field in ("tokens", "logprobs", "pages", "capsule 64", "counts", "turns"):
            tampered[CASE][field] = "0" + tampered[CASE][field][::-1]
        other = os.path.join(self.folder, "tampered.json")
        write_record(other, record.this_platform(), tampered)
        code, out = run("--file", other)
        self.assertEqual(code, 1, out)
        failures = [line for line in out.splitlines() if "recorded" in line and line.startswith(TIER)]
        self.assertEqual(len(failures), 1, out)
        self.assertTrue(failures[0].startswith(f"{CASE}, one process, chunk=64: is not as recorded: "), out)
        for field in ("tokens", "logprobs", "pages", "capsule 64", "counts", "turns"):
            self.assertIn(f"{field} (recorded 0", failures[0])
        self.assertIn(f"SLUICE_TIER={TIER} {cases.SLUICE} run --local", out)

    def test_an_altered_recipe_differs(self):
        with unittest.mock.patch("cases.EVICTS", "budget=0.41"):
            code, out = run("--file", self.file)
        self.assertEqual(code, 1, out)
        self.assertIn(f"{CASE}, one process, chunk=64: is not as recorded: ", out)
        self.assertNotIn(f"{TIER}/int4,", out)  # has no budget

    def test_a_record_of_other_cases_is_no_record(self):
        other = os.path.join(self.folder, "other.json")
        write_record(other, record.this_platform(), {"avx2/nothing": {"tokens": "0"}})
        code, out = run("--file", other)
        self.assertEqual(code, 1, out)
        self.assertIn("no case in common", out)

    def test_usage(self):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(record.main(["--only", "wizardry"]), 2)
            self.assertIn("no such recipe: wizardry", errors.getvalue())
            for missing in (os.path.join(self.folder, "missing.json"), self.folder):
                self.assertEqual(record.main(["--file", missing]), 2)
                self.assertIn(f"{missing} is not a file", errors.getvalue())
            with self.assertRaises(SystemExit) as end:
                record.main(["--tier", "abacus"])
        self.assertEqual(end.exception.code, 2)


class TestObservations(unittest.TestCase):
    def test_ways_that_disagree(self):
        seen = Observations()
        seen.add("a/b", "one", {"tokens": "1", "pages": "2"}, "true")
        seen.add("a/b", "other", {"tokens": "1", "pages": "3"}, "false")
        self.assertEqual(seen.check_agreement(), 2)
        self.assertEqual(len(seen.failures), 1)
        self.assertIn("a/b, other: differs in pages (one has 2, this 3)\n    false", seen.failures[0])


class TestCapsule(unittest.TestCase):
    """Makes one layer with one head of 66 slots of 8 numbers in f16; its second page has two slots."""

    def make(self, *flipped):
        part = 64 * 8 * 2
        body = bytearray(4 * part)
        for at in flipped:
            body[at] ^= 1
        layer = bytes([1 << 3, 1, 2 << 3, 1, 7 << 3 | 2, 1, 66, 8 << 3 | 2, 1, 0])
        header = bytes([3 << 3 | 1]) + bytes(8) + bytes([6 << 3, 8, 8 << 3, 66, 9 << 3]) + struct.pack("BB", len(body) & 127 | 128, len(body) >> 7)
        header += bytes([10 << 3 | 2, len(layer)]) + layer
        return capsule.Capsule(header, bytes(body))

    def test_what_is_held_counts_and_what_lies_behind_does_not(self):
        page, k = 2 * 64 * 8 * 2, 64 * 8 * 2
        whole = self.make()
        for held in (0, k - 1, k, page - 1, page, page + 2 * 16 - 1, page + k, page + k + 2 * 16 - 1):
            self.assertNotEqual(self.make(held).pages, whole.pages, held)
        for behind in (page + 2 * 16, page + k - 1, page + k + 2 * 16, 2 * page - 1):
            self.assertEqual(self.make(behind).pages, whole.pages, behind)
            self.assertEqual(self.make(behind).whole, whole.whole, behind)


if __name__ == "__main__":
    record.script.help_if_asked()
    record.script.needs_programs(cases.BIN)
    unittest.main()
