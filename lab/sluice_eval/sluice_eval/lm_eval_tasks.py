# SPDX-License-Identifier: Apache-2.0
"""Questions as tasks of lm-evaluation-harness: a folder that its --include_path names. The harness asks, our metrics score."""
from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from .errors import EvalError
from .metrics import first_line, score
from .plan import Cell, Plan
from .questions import Prompt, Questions
from .sample import Sample

GROUP = "sluice"
SCORER = "sluice_score"  # a file beside the tasks: the harness loads functions from there alone
TASK = """tag: {group}
task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {rows}
test_split: test
output_type: generate_until
doc_to_text: prompt
doc_to_target: completion
generation_kwargs:
  until: []
  do_sample: false
  max_gen_toks: {max_new_tokens}
process_results: !function {scorer}.process_results
metric_list:
  - metric: score
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1
"""


def process_results(row: dict[str, Any], answers: list[str]) -> dict[str, float]:
    """Scores the answer to a row, as `run` does. The harness calls it."""
    sample = Sample(row["prompt"], row["answers"], row["metric"], row["max_new_tokens"], row["classes"])
    return {"score": score(sample, first_line(answers[0]) if row["first_line"] else answers[0])}


def _name(cell: Cell) -> str:
    """Returns a name such as sluice-kv-4096, or sluice-kv-4096-0.5 with a depth."""
    parts = [GROUP, re.sub(r"[^\w.-]", "-", cell.name)]
    return "-".join(parts + [str(cell.n_tokens)] * (cell.n_tokens > 0) + [f"{cell.depth:g}"] * (cell.depth >= 0))


def write_tasks(folder: str, plan: Plan, questions: Questions) -> None:
    """Writes a task for each cell of the plan."""
    path = pathlib.Path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{SCORER}.py").write_text(f"from {__name__} import process_results  # noqa: F401\n", encoding="utf-8")
        for i, cell in enumerate(plan.cells):
            prompts = [questions.make(i, index) for index in range(questions.n_samples[i])]
            task = _name(cell)
            rows = path / f"{task}.jsonl"
            rows.write_text("".join(_row(prompt) for prompt in prompts), encoding="utf-8")
            (path / f"{task}.yaml").write_text(TASK.format(
                group=GROUP, task=task, rows=json.dumps(str(rows)), scorer=SCORER,
                max_new_tokens=max((prompt.sample.max_new_tokens for prompt in prompts), default=1)), encoding="utf-8")
    except OSError as error:
        raise EvalError(f"--lm-eval {folder}: cannot be written: {error.strerror}") from error


def _row(prompt: Prompt) -> str:
    sample = prompt.sample
    row = {"prompt": sample.prompt, "completion": sample.completion or sample.answers[0], "answers": sample.answers,
           "classes": sample.classes, "metric": sample.metric, "max_new_tokens": sample.max_new_tokens,
           "first_line": prompt.first_line}
    return json.dumps(row, ensure_ascii=False) + "\n"
