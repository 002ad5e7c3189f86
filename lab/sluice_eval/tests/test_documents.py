# SPDX-License-Identifier: Apache-2.0
"""Questions about documents: the same seed, the same documents; modes, tables, and servers without documents."""
import json
import unittest

from .support import MODEL, FolderTest, command, needs_sluice
from .test_http import Server, text

from sluice_eval.document_tasks import WRITERS, Question, Texts, make_document, points, read_longbench
from sluice_eval.documents import show, table_rows
from sluice_eval.errors import EvalError

SMALL = ["documents", "--model", MODEL, "--tasks", "needles,table", "--documents", "2", "--tokens", "1500", "--threads", "1",
         "--recipe", "streamingllm,budget=64;full,format=int4"]


def count(words):
    return len(words) // 3


class Documents(FolderTest):
    def test_a_seed_decides_a_document_whose_questions_it_answers(self):
        texts = Texts.open([], None)
        for task in WRITERS:
            one, same, other = (make_document(task, seed, 3, 2000, texts, count) for seed in (1, 1, 2))
            self.assertEqual((one.text, one.questions), (same.text, same.questions), task)
            self.assertNotEqual(one.text, other.text)
            self.assertTrue(1400 <= count(one.text) <= 2000, task)
            self.assertEqual(len(one.questions), 5)
            for question in [*one.questions, *(check for q in one.questions for check in q.checks)]:
                for answer in question.answers:
                    self.assertIn(answer, one.text)
                    self.assertNotIn(answer, question.text.replace(one.questions[0].text, ""), question.text)

    def test_a_document_fits_though_tries_are_too_long_and_too_short_by_turns(self):
        sizes = iter([900, 1036] * 4)
        self.assertTrue(make_document("needles", 1, 2, 1024, Texts.open([], None), lambda text: next(sizes)).text)
        self.assertRaises(EvalError, make_document, "needles", 1, 2, 1024, Texts.open([], None), lambda text: 1036)

    def test_points_are_the_share_of_answers_in_the_first_line(self):
        question = Question("variables", "", ["AB", "CD"])
        self.assertEqual([points(question, said) for said in (" ab and CD", "AB\nCD", "no")], [1, 0.5, 0])

    def test_lines_of_longbench_with_one_context_are_one_document(self):
        line = {"context": "C.", "input": "Who?", "answers": ["x"], "all_classes": None, "length": 1, "_id": "1"}
        path = self.write("hotpotqa.jsonl", "".join(json.dumps({**line, **more}) + "\n" for more in ({}, {"input": "Where?"}, {"context": "D."})))
        documents = read_longbench(path, "hotpotqa")
        self.assertEqual([len(document.questions) for document in documents], [2, 1])
        self.assertTrue(documents[0].text.endswith("C.") and "Where?" in documents[0].questions[1].text)
        self.assertEqual(points(documents[0].questions[0], "x"), 1)

    def test_intervals_are_over_documents(self):
        rows = [{"seed": "1", "document": f"d-{i}", "mode": "agnostic", "recipe": recipe, "kinds": "a a", "points": scores, "bytes": "10", "prefill_ms": "5",
                 "step_ms": "1", "refused": ""} for recipe, all_scores in (("full", ["100 100"] * 3), ("r", ["100 0", "0 100", "50 50"]))
                for i, scores in enumerate(all_scores)]
        table = list(table_rows(rows, 1))
        self.assertEqual(table[1][4], "-50.0 [-50.0, -50.0]*")  # every document loses the same, though its questions differ
        self.assertEqual(table[1][7], "6 in 3")

    def test_a_document_of_another_seed_is_another_document(self):
        rows = [{"model": "m", "tokens": "9", "seed": seed, "document": document, "mode": "agnostic", "recipe": recipe, "kinds": "a", "points": scored,
                 "bytes": "10", "prefill_ms": "5", "step_ms": "1", "refused": ""}
                for seed, document, recipe, scored in (("1", "hop-0", "full", "100"), ("1", "hop-0", "r", "100"), ("2", "hop-0", "full", "0"),
                                                       ("2", "hop-0", "r", "0"), ("1", "hop_e-0", "full", "50"))]
        self.assertEqual(list(table_rows(rows, 1))[1][4], "+0.0 [+0.0, +0.0]")
        by_task = show(rows, 1, False, True).split("documents of")
        self.assertIn("2 in 2", by_task[1])  # not those of hop_e, whose name begins as its own


class Commands(FolderTest):
    @needs_sluice
    def test_the_question_comes_with_the_text_or_later(self):
        out = str(self.folder / "answers.csv")
        done = command(*SMALL, "--out", out, "--mode", "aware,agnostic,conversation")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, encoding="utf-8") as file:
            lines = file.readlines()
        self.assertEqual(len(lines), 1 + 2 * 3 * 3)
        again = command(*SMALL, "--out", out, "--mode", "aware,agnostic,conversation")  # everything has been asked
        self.assertEqual(again.stdout, done.stdout)
        self.assertEqual(command("documents", "--report", "--out", out).stdout, done.stdout)
        rows = [line.split() for line in done.stdout.splitlines() if "agnostic" in line]
        self.assertLess(float(rows[1][2][:-1]), 10)  # 64 of 1500 slots
        self.assertTrue(25 < float(rows[2][2][:-1]) < 50, rows)
        self.assertTrue(all(float(line.split(",")[-2]) > 0 < float(line.split(",")[-3]) for line in lines[1:]), lines)  # steps, prefill

    def test_a_report_of_no_file_is_refused_and_writes_none(self):
        out = self.folder / "none.csv"
        for words, said in ((["--out", str(out)], "none.csv: no such file"), ([], "it is missing")):
            done = command("documents", "--report", *words)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(said, done.stderr)
        self.assertFalse(out.exists())

    def test_a_server_without_documents_gets_the_text_before_each_question(self):
        with Server(lambda body, n: text(" 1")) as server:
            done = command("documents", "--url", server.url, "--tasks", "needles", "--documents", "1", "--tokens", "900",
                           "--mode", "agnostic", "--recipe", "h2o")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(server.bodies), 5)
            self.assertEqual(len({body["prompt"].split("Question:")[0] for body in server.bodies}), 1)
            self.assertNotIn("recipe", server.bodies[0])
            self.assertIn("n/a", done.stdout)


if __name__ == "__main__":
    unittest.main()
