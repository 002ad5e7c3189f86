# SPDX-License-Identifier: Apache-2.0
"""Questions about documents: what a recipe costs if the question is known when a text is compressed, and if it comes later.

    aware         the question stands at the end of the prompt, which is compressed with it
    agnostic      the document is read and compressed first; each question is asked alone on it: read once, ask often
    conversation  as agnostic; earlier questions and their answers precede a question

Answers come from a `sluice` process, from documents of a Sluice server, or from any server with OpenAI's HTTP API, which
has only `full` and gets the document as a shared prefix of its prompts.
"""
from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import os
import pathlib
import sys
from typing import Any, Iterator, Optional

from .answerers import HttpAnswerer
from .bootstrap import bootstrap_mean
from .document_tasks import WRITERS, Document, Question, Texts, make_document, points, read_longbench
from .errors import EvalError, RefusedError, UsageError
from .interrupt import interruptible
from .options import AddArgument, add_model_options
from .process import SluiceProcess
from .session import Model
from .tables import Table

MODES = ("aware", "agnostic", "conversation")
GREEDY = {"temperature": 0}
GREEDY_SLUICE = {"temperature": 0, "top_p": 1, "repetition_penalty": 1}
NAME = "sluice-eval"  # of the document


@dataclasses.dataclass
class Answer:
    text: str
    share: float = math.nan  # shipped bytes of the full cache in f16
    full_bytes: float = math.nan  # of a token, uncompressed
    token_bytes: float = math.nan  # of a document that was read, if its share is not known yet
    prefill_ms: float = math.nan
    step_ms: float = math.nan


class Asker:
    """Asks completions. post: of /completions; a document is read by `read` and then named in requests."""

    recipes = True

    def ask(self, recipe: str, prompt: str, question: Question, document: str = "") -> Answer:
        body = {"prompt": prompt, "max_tokens": question.max_new_tokens, "stop": ["\n\n"] if question.checks or question.metric else ["\n", "."]}
        body |= GREEDY_SLUICE if self.recipes else GREEDY
        if self.recipes:
            body |= {"recipe": recipe} | ({"document": document} if document else {})
        reply = self.post(body)
        measured = reply.get("sluice") or {}
        full = measured.get("full_bytes") or math.nan
        return Answer(reply["choices"][0]["text"], measured.get("capsule_bytes", math.nan) / full,
                      full / (reply.get("usage", {}).get("prompt_tokens") or math.nan), prefill_ms=measured.get("prefill_ms", math.nan),
                      step_ms=measured.get("tpot_ms", math.nan))

    def read(self, recipe: str, text: str) -> Answer:
        raise NotImplementedError

    def forget(self) -> None:
        """Ends what read() began."""

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


class ProcessAsker(Asker):
    def __init__(self, process: SluiceProcess) -> None:
        self._process = process

    def _call(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = self._process.ask(body)
        error = reply.get("error")
        if error and error.get("code") in ("400", "501"):
            raise RefusedError(error["message"])
        if error:
            raise EvalError(error["message"])
        return reply

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._call(body)

    def read(self, recipe: str, text: str) -> Answer:
        read = self._call({"operation": "document", "name": NAME, "text": text, "recipe": recipe})
        return Answer("", read["capsule_bytes"] / read["full_bytes"], prefill_ms=read["prefill_ms"])


class ServerAsker(Asker):
    """A server. One that is not Sluice keeps no documents: its prompts begin with the text, which it may share."""

    def __init__(self, server: HttpAnswerer, url: str) -> None:
        self._server, self._url, self.recipes = server, url.rstrip("/"), server.is_sluice
        self._text = ""  # of the document of a server without documents
        self._kept = False

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._server.post(f"{self._url}/completions", body | {"model": self._server.model})

    def ask(self, recipe: str, prompt: str, question: Question, document: str = "") -> Answer:
        if not self.recipes and recipe != "full":
            raise RefusedError("the server is not Sluice and has no recipes")
        return super().ask(recipe, self._text + prompt if document and not self.recipes else prompt, question, document)

    def read(self, recipe: str, text: str) -> Answer:
        if not self.recipes:
            self._text = text
            return Answer("", 1.0)
        read = self._server.post(f"{self._url}/documents", {"name": NAME, "text": text, "recipe": recipe, "raw": True})
        self._kept = True
        return Answer("", token_bytes=read["capsule_bytes"] / read["n_tokens"])

    def forget(self) -> None:
        if self._kept:
            self._server.delete(f"{self._url}/documents/{NAME}")
        self._kept = False


# --- one document ----------------------------------------------------------------------------------------------------

def _score(asker: Asker, question: Question, answer: str) -> float:
    """Scores an answer; a summary by what the model answers from it alone, under the full cache."""
    if not question.checks:
        return points(question, answer)
    said = [asker.ask("full", f"{answer.strip()}\n\n{check.text}", check) for check in question.checks]
    return sum(points(check, one.text) for check, one in zip(question.checks, said)) / len(said)


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def ask_document(asker: Asker, document: Document, recipe: str, mode: str) -> dict[str, Any]:
    """Returns the scores of all questions, and means of what was measured."""
    scores, answers, before = [], [], ""
    try:
        read = Answer("") if mode == "aware" else asker.read(recipe, document.text)
        for question in document.questions:
            if mode == "aware":
                answer = asker.ask(recipe, document.text + question.text, question)
            else:
                answer = asker.ask(recipe, before + question.text, question, NAME)
            if mode == "conversation":
                before += f"{question.text}{answer.text.rstrip()}\n\n"
            answers.append(answer)
            scores.append(_score(asker, question, answer.text))
    finally:
        asker.forget()
    if mode == "aware":
        read = Answer("", _mean([one.share for one in answers]), prefill_ms=_mean([one.prefill_ms for one in answers]))
    share = read.token_bytes / _mean([one.full_bytes for one in answers]) if math.isnan(read.share) else read.share
    return {"kinds": " ".join(question.kind for question in document.questions), "points": " ".join(f"{100 * score:.0f}" for score in scores),
            "bytes": f"{100 * share:.2f}", "prefill_ms": f"{read.prefill_ms:.0f}", "step_ms": f"{_mean([one.step_ms for one in answers]):.1f}"}


# --- saved lines -----------------------------------------------------------------------------------------------------

FIELDS = ("model", "tokens", "seed", "document", "mode", "recipe", "kinds", "points", "bytes", "prefill_ms", "step_ms", "refused")


class Lines:
    """Results, a line for each document, mode and recipe, written as they come. The same command continues."""

    def __init__(self, path: Optional[str]) -> None:
        self.rows: list[dict[str, str]] = []
        self._file = None
        if path:
            try:
                if os.path.exists(path):
                    with open(path, encoding="utf-8", newline="") as file:
                        self.rows = list(csv.DictReader(file))
                self._file = open(path, "a", encoding="utf-8", newline="")
            except OSError as error:
                raise EvalError(f"{path}: {error.strerror}") from error
            if not self.rows and self._file.tell() == 0:
                csv.writer(self._file, lineterminator="\n").writerow(FIELDS)
        self._done = {self._key(row) for row in self.rows}

    @staticmethod
    def _key(row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in FIELDS[:6])

    def has(self, row: dict[str, Any]) -> bool:
        return self._key(row) in self._done

    def add(self, row: dict[str, Any]) -> None:
        full = {name: str(row.get(name, "")) for name in FIELDS}
        self.rows.append(full)
        self._done.add(self._key(full))
        if self._file:
            csv.writer(self._file, lineterminator="\n").writerow([full[name] for name in FIELDS])
            self._file.flush()


# --- tables ----------------------------------------------------------------------------------------------------------

def _points(row: dict[str, str], kind: str = "") -> list[float]:
    pairs = zip(row["kinds"].split(), map(float, row["points"].split()))
    return [value for name, value in pairs if kind in ("", name)]


def table_rows(rows: list[dict[str, str]], seed: int) -> Iterator[list[str]]:
    """Yields recipe, mode, bytes, points, difference to `full` with its interval over documents, times, n."""
    full = {(row["seed"], row["document"], row["mode"]): row for row in rows if row["recipe"] == "full" and not row["refused"]}
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["mode"], row["recipe"]), []).append(row)
    for (mode, recipe), group in sorted(groups.items(), key=lambda item: MODES.index(item[0][0])):
        asked = [row for row in group if not row["refused"]]
        if not asked:
            yield [recipe, mode, "", f"n/a: {group[0]['refused']}", "", "", "", "0"]
            continue
        paired = [(row, full[row["seed"], row["document"], mode]) for row in asked if (row["seed"], row["document"], mode) in full]
        differences = [_mean(_points(row)) - _mean(_points(whole)) for row, whole in paired]
        interval = bootstrap_mean([differences], seed)
        star = "*" if interval.low > 0 or interval.high < 0 else ""
        around = "" if math.isnan(interval.low) else f" [{interval.low:+.1f}, {interval.high:+.1f}]{star}"
        to_full = "" if recipe == "full" or not paired else f"{interval.mean:+.1f}{around}"
        yield [recipe, mode, f"{_mean([float(row['bytes']) for row in asked]):.1f}%", f"{_mean([_mean(_points(row)) for row in asked]):.1f}", to_full,
               f"{_mean([float(row['prefill_ms']) for row in asked]):.0f}", f"{_mean([float(row['step_ms']) for row in asked]):.1f}",
               f"{sum(len(_points(row)) for row in asked)} in {len(asked)}"]


def show(rows: list[dict[str, str]], seed: int, markdown: bool, by_task: bool) -> str:
    text = []
    for model, tokens in sorted({(row["model"], row["tokens"]) for row in rows}):
        mine = [row for row in rows if (row["model"], row["tokens"]) == (model, tokens)]
        titles = ["RECIPE", "QUESTIONS", ">BYTES", ">POINTS", "TO FULL", ">PREFILL MS", ">STEP MS", ">N"]
        tasks = sorted({row["document"].rsplit("-", 1)[0] for row in mine}) if by_task else [""]
        for task in tasks:
            table = Table(titles)
            for row in table_rows([row for row in mine if task in ("", row["document"].rsplit("-", 1)[0])], seed):
                table.add(*row)
            text.append(f"{model}, documents of {tokens} tokens{', ' * bool(task)}{task}:\n\n" + (table.markdown() if markdown else table.text()))
    return "\n".join(text)


# --- the command -----------------------------------------------------------------------------------------------------

def add_document_options(add: AddArgument) -> None:
    add("--tasks", default=",".join(WRITERS), metavar="A,B", help="tasks that documents are made of (%(default)s)")
    add("--longbench", action="append", default=[], metavar="TASK=FILE", help="a file of LongBench instead of tasks, such as "
        "hotpotqa=hotpotqa.jsonl; may be given several times")
    add("--documents", type=int, default=30, metavar="N", help="documents that are read under each recipe, each with 5 questions (30)")
    add("--tokens", type=int, default=2048, metavar="N", help="tokens of a document, at most (2048)")
    add("--recipe", "-r", action="append", default=[], metavar="RECIPE", help="recipe to compare with full; several times, or joined by ';'")
    add("--mode", default="aware,agnostic", metavar="A,B", help=f"when the question comes: {', '.join(MODES)} (%(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="seed of the documents (1)")
    add("--essay", action="append", default=[], metavar="FILE", help="a text to hide facts in. Default: the licenses of this system")
    add("--code", metavar="DIR", help="a folder with C and Python files (this checkout)")
    add("--out", "-o", metavar="FILE", help="write each result there as a line of CSV; the same command continues from it")
    add("--report", action="store_true", help="print the tables of --out, and ask nothing")
    add("--by-task", action="store_true", help="a table for each task")
    add("--markdown", action="store_true", help="print tables as Markdown")
    add("--threads", type=int, default=0, metavar="N", help="threads of the `sluice` process; 0 is one per processor")
    add("--device", metavar="DEVICE", help="device of the `sluice` process")
    add("--deadline", type=float, default=600, metavar="S", help="deadline of one answer (600)")
    add_model_options(add)


def _documents(arguments: argparse.Namespace, count: Any) -> Iterator[Document]:
    if arguments.longbench:
        for one in arguments.longbench:
            name, _, path = one.partition("=")
            yield from read_longbench(path, name)[:arguments.documents]
        return
    tasks = [task for task in arguments.tasks.split(",") if task]
    unknown = [task for task in tasks if task not in WRITERS]
    if unknown or not tasks:
        raise UsageError(f"--tasks: there is no {', '.join(unknown) or 'task'}; there are {', '.join(WRITERS)}")
    texts = Texts.open(arguments.essay, arguments.code)
    for index in range(arguments.documents):
        yield make_document(tasks[index % len(tasks)], arguments.seed, index // len(tasks), arguments.tokens, texts, count)


def _measure(arguments: argparse.Namespace, model: Model, modes: list[str], lines: Lines) -> None:
    recipes = ["full"] + [text for option in arguments.recipe for text in option.split(";") if text and text != "full"]
    if model.server is None:
        model.process.reserve(min(2 * arguments.tokens + 1024, model.tokenizer.max_positions))
    asker = ServerAsker(model.server, arguments.url) if model.server else ProcessAsker(model.process)
    name = pathlib.Path(model.name).name
    for document in _documents(arguments, lambda text: len(model.tokenizer.encode(text))):
        for mode in modes:
            for recipe in recipes:
                row = {"model": name, "tokens": arguments.tokens, "seed": arguments.seed, "document": document.name, "mode": mode, "recipe": recipe}
                if lines.has(row):
                    continue
                try:
                    row |= ask_document(asker, document, recipe, mode)
                except RefusedError as error:
                    row |= {"kinds": "", "points": "", "refused": str(error)}
                lines.add(row)


def documents(arguments: argparse.Namespace) -> None:
    """Compares recipes by questions about documents: known when a text is compressed, and coming later."""
    modes = [mode for mode in arguments.mode.split(",") if mode]
    if not modes or any(mode not in MODES for mode in modes):
        raise UsageError(f"--mode {arguments.mode}: there are {', '.join(MODES)}")
    if arguments.report and not os.path.isfile(arguments.out or ""):
        raise UsageError(f"--report prints tables of --out: {arguments.out or 'it is missing'}{': no such file' * bool(arguments.out)}")
    lines = Lines(arguments.out)
    stopped = False
    if not arguments.report:
        with interruptible(), Model(arguments) as model:
            try:
                _measure(arguments, model, modes, lines)
            except KeyboardInterrupt:
                stopped = True
    if lines.rows:
        print(show(lines.rows, arguments.seed, arguments.markdown, arguments.by_task))
    if stopped:
        print("sluice_eval documents: stopped by a signal; the same command continues from --out", file=sys.stderr)
        raise KeyboardInterrupt
