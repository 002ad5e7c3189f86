# SPDX-License-Identifier: Apache-2.0
"""The training prompts of heads: rows and tasks by turns, facts in other words, and what is refused."""
import json
import os
import unittest
from unittest import mock

from .support import ROOT, FolderTest

from sluice_eval.errors import EvalError, UsageError
from sluice_eval.sample import Sample
from sluice_eval.tasks import TASKS
from sluice_eval.training import FORMS, Prompts, reword

OPTIONS = {"data": None, "tasks": [], "texts": [str(ROOT / "LICENSE")], "seed": 3}
ROW = '{"prompt": "p", "answers": ["x"]}'


def count(text):
    """Counts words instead of tokens, and quarters of long ones, so that no tokenizer is needed."""
    return sum(1 + len(word) // 8 for word in text.split())


def prompts(**options):
    return Prompts({**OPTIONS, **options}, count)


class Tasks(unittest.TestCase):
    def test_forms_say_all_facts_and_the_question_in_other_words(self):
        facts = "A text. One of the special magic numbers for stone-window is: 7001234. More of it." \
                " One of the special magic numbers for apple is: 5550001."
        sample = Sample(facts + "\nWhat is the special magic number for apple mentioned in the provided text? The special magic "
                        "number for apple mentioned in the provided text is", ["5550001"], "", 1)
        self.assertEqual(reword(FORMS["code-4"], sample),
                         ("A text. The code of stone-window is 7001234. More of it. The code of apple is 5550001.\nQuestion: What "
                          "is the code of apple?\nAnswer: The code of apple is", " 5550001."))
        self.assertEqual(reword(FORMS["line-4"], sample),
                         ("A text.\nstone-window: 7001234\n More of it.\napple: 5550001\n\napple:", " 5550001"))

    def test_forms_fit_what_their_tasks_write(self):
        for name in FORMS:
            got = prompts(tasks=[f"{name}:300"]).get(0)
            self.assertNotIn("magic", got["prompt"] + got["completion"], name)
            self.assertIn(got["completion"].strip(" ."), got["prompt"], name)

    def test_lengths_are_spread_between_the_limits_and_prompts_repeat(self):
        made, again = prompts(tasks=["passkey:80-160"]), prompts(tasks=["passkey:80-160"])
        lengths = [count(made.get(i)["prompt"]) for i in range(24)]
        self.assertTrue(min(lengths) < 110 and 120 < max(lengths) <= 160, lengths)
        self.assertEqual(made.get(5), again.get(5))
        self.assertNotEqual(made.get(5), made.get(6))
        self.assertNotEqual(made.get(5), prompts(tasks=["passkey:80-160"], seed=4).get(5))

    def test_all_are_the_tasks_that_fit(self):
        few = prompts(tasks=["all:100"])
        names = {few.get(i)["where"] for i in range(40)}
        self.assertLessEqual({"passkey", "code", "line"}, names)
        self.assertNotIn("common-words", names)
        many = prompts(tasks=["all:4000"])
        self.assertEqual({many.get(i)["where"] for i in range(len(TASKS) + len(FORMS))}, {task.name for task in TASKS} | set(FORMS))
        self.assertRaisesRegex(UsageError, "no task fits into 3 tokens", prompts, tasks=["all:3"])

    def test_a_system_without_licenses_needs_the_option_text(self):
        with mock.patch("sluice_eval.haystack.LICENSES", ROOT / "none"):
            self.assertRaisesRegex(EvalError, "give a text file with --text", prompts, tasks=["passkey:80"], texts=[])

    def test_wrong_tasks_are_refused(self):
        for text in ("dance", "passkey:", "passkey:x", "passkey:0", "passkey:5-4", "passkey:5-", ":5"):
            with self.assertRaisesRegex(UsageError, "NAME:MIN-MAX, with NAME niah-noise, .*code-4"):
                prompts(tasks=[text])


class Rows(FolderTest):
    def rows(self, text):
        return prompts(data=self.write("data.jsonl", text))

    def test_rows_come_by_turns_with_tasks_and_again_in_another_order(self):
        data = self.write("rows", "".join(json.dumps({"prompt": f"row {name}", "answer": name}) + "\n" for name in "ABC"))
        made = prompts(data=data, tasks=["passkey:80"])
        got = [made.get(i) for i in range(24)]
        self.assertTrue(all("pass key" in one["prompt"] for one in got[1::2]))
        orders = ["".join(one["completion"] for one in got[start:start + 6:2]) for start in range(0, 24, 6)]
        self.assertTrue(all(sorted(order) == ["A", "B", "C"] for order in orders), orders)
        self.assertGreater(len(set(orders)), 1)
        self.assertTrue(all(one["where"] == f"{data}: row {'ABC'.index(one['completion']) + 1}" for one in got[::2]))

    def test_the_first_answer_is_learned(self):
        made = self.rows('\ufeff{"prompt": "p", "answers": [0.5, "b"], "answer": "no", "more": [1]}\r\n \t\n')
        self.assertEqual((made.get(0)["prompt"], made.get(0)["completion"]), ("p", "0.5"))

    def test_wrong_rows_are_refused_by_their_line(self):
        for line, said in [("{", "data.jsonl:2: "), ("[1]", "must be a JSON object"), ('{"prompt": "i", "prompt": "j"}', "twice"),
                           ('{"answers": ["x"]}', 'no "prompt"'), ('{"prompt": "i"}', 'no "answers"'),
                           ('{"prompt": "i", "answers": null}', 'no "answers"'), ('{"prompt": "i", "answers": []}', "is empty"),
                           ('{"prompt": "i", "answers": [["x"]]}', '"answers" must be'), ('{"prompt": "i", "answer": true}', "must be"),
                           ('{"prompt": 1, "answers": ["x"]}', '"prompt" must be a text'), ('{"prompt": "", "answers": ["x"]}', "empty"),
                           ('{"prompt": "a\\u0000b", "answers": ["x"]}', "U\\+0000"), ('{"prompt": "\\ud800", "answer": "x"}', "surrogate"),
                           (ROW + " {}", "data.jsonl:2")]:
            with self.assertRaisesRegex(UsageError, said):
                self.rows(f"{ROW}\n{line}\n{ROW}\n")
        for text in ("", "\n \t\r\n"):
            with self.assertRaisesRegex(UsageError, "no question in it"):
                self.rows(text)
        self.assertRaisesRegex(EvalError, "/nonexistent/rows", prompts, data="/nonexistent/rows")
        self.assertRaisesRegex(EvalError, str(self.folder), prompts, data=str(self.folder))

    def test_a_line_without_end_is_refused(self):
        path = self.write("data.jsonl", "")
        os.truncate(path, (64 << 20) + 1)  # zeros, which take no room
        self.assertRaisesRegex(UsageError, "data.jsonl:1: longer than 64 MiB", prompts, data=path)


if __name__ == "__main__":
    unittest.main()
