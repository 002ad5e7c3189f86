# SPDX-License-Identifier: Apache-2.0
"""Questions as tasks of lm-evaluation-harness. With the package lm-eval, the harness asks them, without network."""
import importlib.util
import json
import os
import unittest

from .support import MODEL, FolderTest, command, lines_of, needs_sluice

from sluice_eval.lm_eval_tasks import process_results

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
WORDS = ["--model", MODEL, "--tasks", "passkey,niah-noise", "--lengths", "200,300", "--samples", "3"]


@needs_sluice
class Harness(FolderTest):
    def setUp(self):
        super().setUp()
        self.tasks = self.folder / "tasks"
        done = command("dump", *WORDS, "--lm-eval", self.tasks)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_tasks_have_the_questions_and_scores_of_a_run(self):
        made = lines_of(command("dump", *WORDS))
        for name in ["passkey", "niah-noise"]:
            for n_tokens in [200, 300]:
                file = self.tasks / f"sluice-{name}-{n_tokens}.jsonl"
                rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
                questions = [m["prompt"] for m in made if m["task"] == name and n_tokens - 100 < m["tokens"] <= n_tokens]
                self.assertEqual([row["prompt"] for row in rows], questions)
                for row, other in zip(rows, rows[1:] + rows[:1]):
                    self.assertEqual(process_results(row, [row["completion"]]), {"score": 1})
                    self.assertEqual(process_results(row, [other["completion"]]), {"score": 0})

    def test_a_folder_that_cannot_be_written_is_named(self):
        done = command("dump", *WORDS, "--lm-eval", "/proc/none")
        self.assertEqual((done.returncode, "--lm-eval /proc/none: cannot be written" in done.stderr), (1, True), done.stderr)

    @unittest.skipUnless(importlib.util.find_spec("lm_eval"), "needs the package lm-eval")
    def test_the_harness_asks_and_scores(self):
        import lm_eval
        from lm_eval.api.model import LM
        from lm_eval.tasks import TaskManager

        class Knowing(LM):
            def generate_until(self, requests):
                return [request.doc["completion"] if "passkey" in request.task_name else "no" for request in requests]

            def loglikelihood(self, requests):
                raise NotImplementedError

            loglikelihood_rolling = loglikelihood

        manager = TaskManager(include_path=str(self.tasks), include_defaults=False)
        found = lm_eval.simple_evaluate(model=Knowing(), tasks=["sluice"], task_manager=manager, bootstrap_iters=0)["results"]
        self.assertEqual({name: result["score,none"] for name, result in found.items()},
                         {f"sluice-{name}-{n}": score for name, score in [("passkey", 1), ("niah-noise", 0)] for n in (200, 300)})


if __name__ == "__main__":
    unittest.main()
