# SPDX-License-Identifier: Apache-2.0
"""Answers on disk, and the report of answers."""
import dataclasses
import json
import math
import unittest

from .support import FolderTest

from sluice_eval import report as reports
from sluice_eval.errors import EvalError, UsageError
from sluice_eval.plan import Claim, Plan
from sluice_eval.report import Report
from sluice_eval.report_json import report_lines
from sluice_eval.report_text import report_text
from sluice_eval.results import Answer, Results, RunId, make_key
from sluice_eval.saved import SavedRun
from sluice_eval.tables import Table
from sluice_eval.tasks import find_task

RUN = RunId("0123456789abcdef", "stored", "fedcba9876543210", 1)


def answer(name="full", score=1.0, shipped=100, **more):
    return Answer(name, "", "0" * 16, 9, score=score, answer="a\u20ac\n", shipped_bytes=shipped, full_bytes=100, **more)


class Files(FolderTest):
    def setUp(self):
        super().setUp()
        self.path = str(self.folder / "r.jsonl")

    def fill(self, n=3):
        results = Results(self.path, RUN)
        for i in range(n):
            results.add(make_key("full", "kv", 512, -1, i), answer(score=i / 4))
        results.add(make_key("h2o", "kv", 512, 0.5, 0), dataclasses.replace(answer("h2o"), refused="no"))
        results.close()

    def test_answers_are_read_as_they_were_written(self):
        self.fill()
        results = Results(self.path, RUN)
        self.assertEqual(results.find(make_key("full", "kv", 512, -1, 2)), answer(score=0.5))
        self.assertEqual(results.find(make_key("h2o", "kv", 512, 0.5, 0)).refused, "no")
        self.assertIsNone(results.find(make_key("full", "kv", 512, -1, 3)))

    def test_a_truncated_line_is_dropped_and_files_may_be_concatenated(self):
        self.fill()
        whole = (self.folder / "r.jsonl").read_bytes()
        for cut in range(len(whole)):
            (self.folder / "r.jsonl").write_bytes(whole[:cut])
            results = Results(self.path, RUN)
            results.close()
            self.assertEqual(len(results.answers), max(0, whole[:cut].count(b"\n") - 1))
            self.assertTrue((self.folder / "r.jsonl").read_bytes().endswith(b"\n"))
        (self.folder / "r.jsonl").write_bytes(whole + whole)
        self.assertEqual(len(Results(self.path, RUN).answers), 4)

    def test_files_of_other_runs_and_other_files_are_refused(self):
        self.fill()
        with self.assertRaisesRegex(EvalError, '"seed" is 1 there and 2 now'):
            Results(self.path, dataclasses.replace(RUN, seed=2))
        for text, said in [("hello", "not a file of results"), ("{}\n", "not a file of results"), ("\n", "not a file of results")]:
            with self.assertRaisesRegex(UsageError, said):
                Results(self.write("x", text), RUN)
            self.assertEqual((self.folder / "x").read_text(), text)
        first = (self.folder / "r.jsonl").read_text().split("\n")[0] + "\n"
        for line in ("{}", "x", '{"recipe": 1}', '{"sluice_eval": 1}'):
            self.assertRaises(EvalError, Results, self.write("x", first + line + "\n"), RUN)
        self.assertRaises(EvalError, Results, "/nonexistent/r", RUN)
        self.assertRaises(UsageError, Results, "/dev/null", RUN)

    def test_only_one_run_writes(self):
        first = Results(self.path, RUN)
        with self.assertRaisesRegex(EvalError, "another run"):
            Results(self.path, RUN)
        first.close()
        Results(self.path, RUN).close()

    def test_a_saved_run_needs_no_model(self):
        self.fill()
        with self.assertRaises(UsageError):
            SavedRun(self.write("empty", ""), None)
        saved = SavedRun(self.path, None)
        self.assertEqual([row.recipe.name for row in saved.report.rows], ["full", "h2o"])
        self.assertEqual(saved.report.rows[0].cells[0].scores, [0, 0.25, 0.5])
        self.assertIn("n/a: h2o, kv of 512 tokens: no", report_text(saved.report, saved.subject))


class Reports(unittest.TestCase):
    def make(self, scores, claims=(), shipped=(100, 20, 8), offloads=None):
        """scores: [recipe][cell][index]; None: refused."""
        plan = Plan(claims=list(claims))
        for name in ("full", "b", "c"):
            plan.add_recipe(name, "", "full")
        for task in ("kv", "passkey"):
            plan.add_task(find_task(task), 512, -1, len(scores[0][0]))

        def find(recipe, cell, index):
            score = scores[recipe][cell][index]
            one = answer(plan.recipes[recipe].name, score or 0, shipped[recipe])
            return one if score is not None else dataclasses.replace(one, refused="no room")
        return Report(plan, [len(scores[0][0])] * 2, find, lambda recipe: offloads)

    def test_means_are_over_cells_and_paired(self):
        found = self.make([[[1, 1], [1, 0]], [[0, 1], [None, 0]], [[None, None], [1, 1]]])
        full, b, c = found.rows
        self.assertEqual((full.mean, b.mean, c.mean), (0.75, 0.25, 1))
        self.assertEqual((full.complete, b.complete, c.complete), (True, True, False))
        self.assertEqual((b.shipped, b.to_full.mean, full.to_full.mean), (0.2, -0.25, 0))
        self.assertEqual(c.to_full.mean, 0.5)
        text = report_text(found, "s")
        self.assertIn("n/a: c, kv of 512 tokens: no room", text)
        self.assertRegex(text, r"\nc +n/a +100\.0 +100\.0\? ")
        self.assertIn("| c | n/a |", report_text(found, "s", is_markdown=True))
        self.assertEqual([list(json.loads(line)) for line in report_lines(found)][:3], [["row"]] * 3)
        self.assertEqual(json.loads(list(report_lines(found))[2])["row"]["cells"][0]["score"], None)

    def test_verdicts(self):
        def verdict(b, c, **claim):
            scores = [[[1.0] * 20] * 2, [[b] * 20] * 2, [[c] * 20] * 2]
            return self.make(scores, [Claim("P", "t", "b", "c", **claim)]).verdicts[0].verdict
        self.assertEqual(verdict(0.9, 0.5), reports.REPRODUCED)
        self.assertEqual(verdict(0.5, 0.9), reports.NOT_REPRODUCED)
        self.assertEqual(verdict(1.0, 0.5, by=0.5), reports.UNDECIDED)
        self.assertEqual(verdict(0.01, 0.02), reports.BOTH_FAIL)
        self.assertEqual(verdict(0.9, 0.5, needs_least=1), reports.REPRODUCED)
        self.assertEqual(verdict(None, 0.5), reports.NOT_MEASURED)
        scores = [[[0.5] * 20] * 2, [[0.5] * 20] * 2, [[0.4] * 20] * 2]
        found = self.make(scores, [Claim("P", "t", "b", "c", needs_least=0.6), Claim("P", "t", "x", "c")])
        self.assertEqual([v.verdict for v in found.verdicts], [reports.PRECONDITION_ABSENT, reports.NOT_MEASURED])
        self.assertIn("precondition absent: full has 50.0 of 60.0", report_text(found, "s"))
        self.assertTrue(math.isnan(found.verdicts[1].better))

    def test_choices_are_the_best_for_their_bytes(self):
        found = self.make([[[1.0] * 2] * 2, [[0.9] * 2] * 2, [[0.8] * 2] * 2], shipped=(100, 20, 8))
        self.assertEqual([(choice.most, choice.row.recipe.name) for choice in found.choices], [(0.1, "c"), (0.2, "b")])
        found = self.make([[[1.0] * 2] * 2, [[0.9] * 2] * 2, [[0.9] * 2] * 2], shipped=(100, 20, 8), offloads=True)
        self.assertEqual([(choice.most, choice.offloads, choice.row.recipe.name) for choice in found.choices], [(0.1, True, "c")])


class Tables(unittest.TestCase):
    def test_a_table_fits_a_narrow_terminal(self):
        table = Table(["JOB", "STATE", ">TTFT", "RECIPE"])
        table.add("job-1", "DONE", "12 ms", "h2o,budget=0.2")
        table.add("job-22", "CANCELLED", "-", "full|x")
        self.assertEqual(table.text(), "JOB     STATE       TTFT  RECIPE\njob-1   DONE       12 ms  h2o,budget=0.2\n"
                         "job-22  CANCELLED      -  full|x\n")
        self.assertEqual(table.text(40), table.text())
        self.assertEqual(table.text(30), "JOB     STATE       TTFT\n    RECIPE\njob-1   DONE       12 ms\n    h2o,budget=0.2\n"
                         "job-22  CANCELLED      -\n    full|x\n")
        self.assertIn("| job-22 | CANCELLED | - | full\\|x |\n", table.markdown())


if __name__ == "__main__":
    unittest.main()
