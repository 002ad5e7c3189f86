# SPDX-License-Identifier: Apache-2.0
"""The metrics against the packages that the benchmarks call (tools/golden_metrics.py), on hostile texts; the bootstrap."""
import json
import math
import unittest

from .support import ROOT

from sluice_eval.bootstrap import bootstrap_mean
from sluice_eval.measured import _draws, interval
from sluice_eval.errors import EvalError
from sluice_eval.metrics import METRICS, first_line, score
from sluice_eval.sample import Sample

CASES = json.loads((ROOT / "tests/golden/metrics/scores.json").read_text(encoding="utf-8"))


def sample(metric, answers, classes=()):
    return Sample("", list(answers), metric, 1, list(classes))


class Metrics(unittest.TestCase):
    def test_they_agree_with_the_packages(self):
        self.assertGreaterEqual(len(CASES), 300)
        for case in CASES:
            found = score(sample(case["metric"], case["answers"], case.get("classes") or []), case["text"])
            self.assertAlmostEqual(found, case["score"], delta=1e-9, msg=case)

    def test_every_metric_has_cases(self):
        for name in METRICS:
            self.assertGreaterEqual(sum(case["metric"] == name for case in CASES), 10, name)

    def test_what_cannot_be_judged_is_said(self):
        for metric, answers, said in [("f1", [], "without answers"), ("classification", ["x"], "needs the classes"),
                                      ("paragraph", ["7"], "names no paragraph")]:
            with self.assertRaisesRegex(EvalError, said):
                score(sample(metric, answers), "text")
        with self.assertRaisesRegex(EvalError, "100000 characters"):
            score(sample("edit-similarity", ["x"]), "y" * 100001)

    def test_the_first_line(self):
        self.assertEqual([first_line(text) for text in ("", "\n\na\nb", "a", "\n")], ["", "a", "a", ""])


class Bootstrap(unittest.TestCase):
    def test_cells_have_equal_weight(self):
        self.assertEqual(bootstrap_mean([[1.0], [0.0, 0.0, 0.0]], 1).mean, 0.5)

    def test_one_sample_a_cell_has_no_interval(self):
        found = bootstrap_mean([[1.0], [], [0.5]], 1)
        self.assertEqual(found.mean, 0.75)
        self.assertTrue(math.isnan(found.low) and math.isnan(found.high))
        self.assertTrue(math.isnan(bootstrap_mean([[]], 1).mean))

    def test_the_interval_is_that_of_the_c_program(self):
        found = bootstrap_mean([[0.0, 1.0, 0.5, 0.25], [1.0, 0.0, 0.125]], 1)
        again = bootstrap_mean([[0.0, 1.0, 0.5, 0.25], [1.0, 0.0, 0.125]], 1)
        self.assertEqual(found, again)
        many = [[i * i % 101 / 101 for i in range(60)]]
        self.assertNotEqual(bootstrap_mean(many, 1), bootstrap_mean(many, 2))
        self.assertEqual((found.mean, found.low, found.high), EXPECTED)

    def test_one_cell_is_the_same_without_numpy(self):
        differences = [0.1, 0.9, 0.3, 0.4, 0.7, 0.2]
        found = bootstrap_mean([differences], 1)
        low, high = interval(differences, _draws(6))
        self.assertAlmostEqual(low, found.low, places=12)
        self.assertAlmostEqual(high, found.high, places=12)
        self.assertEqual(interval([0.25], _draws(1)), (None, None))

    def test_a_coin_is_covered(self):
        found = bootstrap_mean([[float(i % 2) for i in range(100)]], 3)
        self.assertEqual(found.mean, 0.5)
        self.assertAlmostEqual(found.low, 0.4, delta=0.02)
        self.assertAlmostEqual(found.high, 0.6, delta=0.02)


EXPECTED = (0.40625, 0.125, 0.72916666666666674)  # two cells of unequal size

if __name__ == "__main__":
    unittest.main()
