# SPDX-License-Identifier: Apache-2.0
"""Plans and data sets: what they hold, and that what is wrong in a file is named."""
import json
import unittest

from .support import MODEL, FolderTest, needs_sluice

from sluice_eval.benchmarks import find_benchmark
from sluice_eval.datasets import DatasetConfig, read_dataset
from sluice_eval.errors import EvalError, UsageError
from sluice_eval.plan import Plan, budget_value
from sluice_eval.plan_file import PAPERS, read_plan
from sluice_eval.process import SluiceProcess
from sluice_eval.tokenizers import Recipes

GOOD = {"title": "T", "budgets": ["5%", 512], "recipes": [{"name": "h", "recipe": "h2o,budget={budget}"}, "full,format=int4"],
        "tasks": ["kv", "passkey"], "lengths": [512, 1024], "samples": 3, "seed": 9, "datasets": ["longbench/hotpotqa"],
        "claims": [{"paper": "P", "text": "x", "better": "h", "worse": "full", "tasks": ["kv"], "by": 0.5}]}
LONGBENCH = {"input": "i", "context": "c", "answers": ["x"]}


class Plans(FolderTest):
    def read(self, **changes):
        plan = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
        return read_plan(self.write("plan.json", json.dumps(plan)))

    def test_a_plan_has_cells_and_recipes_at_budgets(self):
        plan = self.read()
        self.assertEqual([(r.name, r.budget, r.recipe) for r in plan.recipes],
                         [("full", "", "full"), ("h", "5%", "h2o,budget=0.05"), ("h", "512", "h2o,budget=512"),
                          ("full,format=int4", "", "full,format=int4")])
        self.assertEqual([(c.name, c.n_tokens, c.n_samples) for c in plan.cells],
                         [("kv", 512, 3), ("kv", 1024, 3), ("passkey", 512, 3), ("passkey", 1024, 3), ("hotpotqa", 0, 0)])
        self.assertEqual(plan.cells[-1].dataset.path, str(self.folder / "longbench/hotpotqa.jsonl"))
        self.assertEqual([c.depth for c in self.read(tasks=["kv"], lengths=[512], depths=[0, 0.5], datasets=None).cells], [0, 0.5])

    def test_what_is_wrong_is_named(self):
        for changes, said in [
                ({"titel": "x"}, 'no member "titel"; did you mean "title"'), ({"title": None}, 'no "title"'),
                ({"seed": -1}, '"seed" must be an integer'), ({"samples": True}, '"samples"'), ({"recipes": []}, '"recipes"'),
                ({"recipes": [{"recpe": "x"}]}, r'recipes\[0\]: there is no member "recpe"; did you mean "recipe"'),
                ({"budgets": None}, 'no "budgets"'), ({"budgets": ["x"]}, "a budget must be"), ({"budgets": ["100%"]}, "a budget"),
                ({"recipes": ["full", "full"]}, "there twice"), ({"tasks": ["kvv"]}, 'did you mean "kv"'),
                ({"tasks": ["kv", "kv"]}, "kv is there twice"), ({"lengths": None}, 'tasks need "lengths"'),
                ({"lengths": [5]}, "kv has prompts of 85"), ({"tasks": ["multivalue"], "depths": [0.5]}, "cannot be put at a depth"),
                ({"tasks": ["kv"], "depths": [2]}, "a depth is from 0"), ({"datasets": ["hotpotqa"]}, "FORMAT/NAME"),
                ({"datasets": ["longbench/nothing"]}, "not a task that we know"),
                ({"datasets": ["infinitebench/math_calc"]}, "is left out"),
                ({"datasets": [{"name": "x", "format": "sluice"}]}, "max_new_tokens"),
                ({"datasets": [{"name": "x", "format": "slice"}]}, "there are longbench"),
                ({"tasks": None, "datasets": None, "claims": None}, "nothing to ask"),
                ({"claims": [{"paper": "P", "text": "x", "better": "hh", "worse": "full"}]}, 'no recipe "hh"'),
                ({"claims": [{**GOOD["claims"][0], "tasks": ["no"]}]}, 'no task or data set "no"'),
                ({"claims": [{**GOOD["claims"][0], "needs": {"recipe": "h", "least": 0.5}}]}, '"full" alone'),
                ({"claims": [{**GOOD["claims"][0], "needs": {"recipe": "full", "least": 2}}]}, '"least"')]:
            with self.assertRaisesRegex(UsageError, said, msg=changes):
                self.read(**changes)
        for text, said in [("{", "plan.json: "), ("[]", "must be a JSON object"), ('{"title": 1, "title": 2}', "there twice")]:
            with self.assertRaisesRegex(UsageError, said):
                read_plan(self.write("plan.json", text))
        self.assertRaises(EvalError, read_plan, str(self.folder / "none"))

    def test_budgets(self):
        self.assertEqual([budget_value(text) for text in ("5%", "0.5%", "512", "0.05")], ["0.05", "0.005", "512", "0.05"])
        for text in ("0", "-1", "100%", "1.5", "x", "", "%"):
            self.assertRaises(UsageError, budget_value, text)

    def test_full_is_first(self):
        plan = Plan()
        plan.add_recipe("a", "", "snapkv")
        plan.put_full_first()
        plan.put_full_first()
        self.assertEqual([r.name for r in plan.recipes], ["full", "a"])
        self.assertRaises(UsageError, plan.add_recipe, "b", "5%", "h2o")
        self.assertRaises(UsageError, plan.add_recipe, "b", "", "h2o,budget={budget}")


@needs_sluice
class Papers(unittest.TestCase):
    def test_every_plan_has_recipes_that_exist_and_claims_that_can_be_judged(self):
        files = sorted(PAPERS.glob("*.json"))
        self.assertGreaterEqual(len(files), 12)
        with SluiceProcess(MODEL) as process:
            recipes = Recipes(process)
            for file in files:
                plan = read_plan(str(file), "/nonexistent")
                canonical = [recipes.canonical(recipe.recipe) for recipe in plan.recipes]
                self.assertEqual(canonical[0], "full")
                self.assertGreater(len(plan.recipes), 1, file)
                for claim in plan.claims:
                    budgets = [{r.budget for r in plan.recipes if r.name == name} for name in (claim.better, claim.worse)]
                    self.assertTrue(budgets[0] & budgets[1] or {""} in budgets, (file, claim))
        self.assertEqual(read_plan("demo").title, read_plan(str(PAPERS / "demo.json")).title)


class DataSets(FolderTest):
    def read(self, text, name="hotpotqa", form="longbench", **more):
        return read_dataset(DatasetConfig(name, form, self.write("data.jsonl", text), **more))

    def test_the_forms_of_the_benchmarks(self):
        one = self.read("\ufeff" + json.dumps({**LONGBENCH, "all_classes": None, "length": 7}) + "\r\n \n")[0]
        self.assertEqual((one.answers, one.metric, one.max_new_tokens, one.classes), (["x"], "f1", 32, []))
        self.assertTrue(one.prompt.startswith("Read the text below.\n\nc\n\nAnswer") and one.prompt.endswith("Question: i\nAnswer:"))
        trec = self.read(json.dumps({**LONGBENCH, "all_classes": ["x", "y"]}), "trec_e")[0]
        self.assertEqual((trec.classes, trec.metric), (["x", "y"], "classification"))
        choice = self.read(json.dumps({"input": "q", "context": "c", "answer": ["two"], "options": ["one", "two"]}),
                           "longbook_choice_eng", "infinitebench")[0]
        self.assertEqual(choice.answers, ["two", "B"])
        self.assertIn("A. one\nB. two", choice.prompt)
        ruler = self.read(json.dumps({"input": "Q", "answer_prefix": " A", "outputs": [1, 0.5]}), "vt", "ruler")[0]
        self.assertEqual((ruler.prompt, ruler.answers), ("Q A", ["1", "0.5"]))
        mine = self.read('{"prompt": "{input}", "answer": "x"}\nrubbish', "mine", "sluice", max_new_tokens=5, max_samples=1)
        self.assertEqual((len(mine), mine[0].prompt), (1, "{input}"))
        own = self.read(json.dumps({**LONGBENCH, "options": ["o", "p"]}), prompt="{x}{input}{input} {options}{", metric="exact")[0]
        self.assertEqual((own.prompt, own.metric), ("{x}ii A. o\nB. p{", "exact"))

    def test_a_bad_line_is_named(self):
        good = json.dumps(LONGBENCH)
        for line, said in [("{", "data.jsonl:2: "), ("[1]", "must be a JSON object"), ('{"input": "i", "input": "j"}', "there twice"),
                           ('{"context": "c", "answers": ["x"]}', 'no "input"'), ('{"input": "i", "answers": ["x"]}', 'no "context"'),
                           ('{"input": "i", "context": "c"}', 'no "answers"'),
                           ('{"input": "i", "context": "c", "answers": []}', "is empty"),
                           ('{"input": "i", "context": "c", "answers": [["x"]]}', '"answers" must be'),
                           ('{"input": 1, "context": "c", "answers": ["x"]}', '"input" must be a text'),
                           ('{"input": "a\\u0000b", "context": "c", "answers": ["x"]}', "U.0000"),
                           ('{"input": "\\ud800", "context": "c", "answers": ["x"]}', "surrogates"),
                           ('{"input": NaN}', "not a number"), (good + " {}", "data.jsonl:2")]:
            with self.assertRaisesRegex(UsageError, said, msg=line):
                self.read(f"{good}\n{line}\n{good}")
        for text in ("", "\n \t\r\n"):
            with self.assertRaisesRegex(UsageError, "no question in it"):
                self.read(text)
        (self.folder / "b").write_bytes(good.encode() + b"\n\xc3(")
        with self.assertRaisesRegex(UsageError, "b:2: byte 0 is not valid UTF-8"):
            read_dataset(DatasetConfig("hotpotqa", "longbench", str(self.folder / "b")))
        with self.assertRaisesRegex(UsageError, "data.jsonl:1: classification needs"):
            self.read(good, metric="classification")
        self.assertRaises(EvalError, read_dataset, DatasetConfig("hotpotqa", "longbench", "/nonexistent"))

    def test_a_line_is_bounded(self):
        with open(self.folder / "long", "wb") as file:
            file.truncate((64 << 20) + 1)
        with self.assertRaisesRegex(UsageError, "long:1: longer than 64 MiB"):
            read_dataset(DatasetConfig("hotpotqa", "longbench", str(self.folder / "long")))

    def test_longbench_e_means_the_same_tasks(self):
        self.assertEqual(find_benchmark("longbench", "trec_e"), find_benchmark("longbench", "trec"))
        self.assertIsNone(find_benchmark("ruler", "vt_e"))


if __name__ == "__main__":
    unittest.main()
