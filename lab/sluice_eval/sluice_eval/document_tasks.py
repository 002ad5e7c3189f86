# SPDX-License-Identifier: Apache-2.0
"""Documents with several questions each, to be read once and asked often.

A document is a real text (C and Python files of this checkout, licenses of this system, or a table) with random facts in
it. The same seed, number, size and texts give the same document. LongBench's files give documents too: lines with the
same context are questions about one document.

    code-c, code-python   a constant, a default, a return value, the caller of a function, and what a chain of two calls returns
    table                 three cells of a row, a row by a cell, and a sum of two cells
    hops                  two facts apart, which only together answer; one fact alone
    needles               RULER's: one number, one of many keys, all values of a key, variables that name each other, a uuid
    minutes               a meeting's decisions; a summary, from which the model then answers questions
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Callable, Optional

from .datasets import DatasetConfig, make_form, read_line
from .errors import EvalError, UsageError
from .haystack import Haystack, open_haystack
from .metrics import score as metric_score
from .rng import Random
from .sample import Sample
from .words import N_PAIRS, word_pair

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAMES = ("Alice", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene", "Jonas", "Karla", "Louis", "Maria", "Nadia",
         "Oscar", "Paula", "Quinn", "Ralph", "Sofia", "Tomas", "Ursula", "Victor", "Wanda", "Xaver", "Yvonne", "Zeno")
CITIES = ("Lisbon", "Oslo", "Vienna", "Dublin", "Prague", "Athens", "Warsaw", "Madrid", "Geneva", "Helsinki", "Budapest", "Sofia",
          "Zagreb", "Riga", "Tallinn", "Vilnius", "Bern", "Ghent", "Porto", "Krakow")
N_QUESTIONS = 5


@dataclasses.dataclass
class Question:
    kind: str
    text: str  # what follows the document, up to the answer
    answers: list[str]
    max_new_tokens: int = 16
    metric: str = ""  # "": the share of the answers that the first line contains
    checks: list[Question] = dataclasses.field(default_factory=list)  # asked about the answer, which is a summary


@dataclasses.dataclass
class Document:
    name: str
    text: str
    questions: list[Question]


def points(question: Question, answer: str) -> float:
    """Scores an answer, 0 to 1."""
    if question.metric:
        return metric_score(Sample("", question.answers, question.metric, 0), answer)
    line = answer.strip().split("\n")[0].lower()
    return sum(text.lower() in line for text in question.answers) / len(question.answers)


class Drawer:
    """Draws what a document needs. Words and numbers are all different, and none is in the text around them."""

    def __init__(self, random: Random, around: str) -> None:
        self.random, self.around, self.used = random, around, set()

    def _new(self, draw: Callable[[], str]) -> str:
        while True:
            text = draw()
            if text not in self.used and text not in self.around:
                self.used.add(text)
                return text

    def key(self) -> str:
        return self._new(lambda: word_pair(self.random.below(N_PAIRS)))

    def identifier(self) -> str:
        return self._new(lambda: word_pair(self.random.below(N_PAIRS)).replace("-", "_"))

    def number(self, digits: int = 5) -> str:
        return self._new(lambda: str(10 ** (digits - 1) + self.random.below(9 * 10 ** (digits - 1))))

    def of(self, names: tuple[str, ...]) -> str:
        return self._new(lambda: names[self.random.below(len(names))])

    def variable(self) -> str:
        return self._new(lambda: "".join(chr(65 + self.random.below(26)) for _ in range(5)))

    def uuid(self) -> str:
        a, b = self.random.next(), self.random.next()
        return f"{a >> 32:08x}-{a >> 16 & 0xFFFF:04x}-{a & 0xFFFF:04x}-{b >> 48:04x}-{b & 0xFFFFFFFFFFFF:012x}"


def ask(kind: str, question: str, begin: str, answers: list[str], max_new_tokens: int = 16) -> Question:
    return Question(kind, f"Question: {question}\nAnswer: {begin}", answers, max_new_tokens)


def scatter(random: Random, parts: list[str], facts: list[str]) -> list[str]:
    """Puts each fact between two parts, in the order of the facts."""
    places = sorted(random.below(len(parts) + 1) for _ in facts)
    out: list[str] = []
    for i in range(len(parts) + 1):
        out += [fact for fact, place in zip(facts, places) if place == i]
        out += parts[i:i + 1]
    return out


# --- code ------------------------------------------------------------------------------------------------------------

def code_parts(folder: pathlib.Path, suffix: str, random: Random, size: int) -> list[str]:
    """Returns the top-level pieces of one file after the other, `size` bytes or a line less: the last piece is cut."""
    files = sorted((path for path in folder.rglob(f"*{suffix}") if path.stat().st_size > 3000), key=str)
    if not files:
        raise UsageError(f"{folder}: no {suffix} files of 3000 bytes or more; give another folder by --code")
    first, left, parts = random.below(len(files)), size, []
    for i in range(len(files)):
        text = files[(first + i) % len(files)].read_text(encoding="utf-8", errors="replace")
        for part in re.split(r"(?<=\n}\n)" if suffix == ".c" else r"(?m)^(?=def |class )", text):
            parts.append(part if len(part) < left else part[:left].rpartition("\n")[0] + "\n")
            left -= len(part)
            if left <= 0:
                return parts
    return parts


def write_code(random: Random, texts: Texts, size: int, suffix: str) -> tuple[str, list[Question]]:
    folder = texts.code / ("base" if suffix == ".c" and (texts.code / "base").is_dir() else "lab/sluice_eval/sluice_bench" if
                           (texts.code / "lab/sluice_eval/sluice_bench").is_dir() else ".")
    parts = code_parts(folder, suffix, random, size)
    draw = Drawer(random, "".join(parts))
    constant, option, plain, caller, callee = (draw.identifier() for _ in range(5))
    values = [draw.number() for _ in range(4)]
    if suffix == ".c":
        facts = [f"\n#define {constant.upper()} {values[0]}\n", f"\nstatic int {option} = {values[1]}; // can be set by an option\n",
                 f"\nint {plain}(void) {{\n    return {values[2]};\n}}\n", f"\nint {callee}(void) {{\n    return {values[3]};\n}}\n",
                 f"\nint {caller}(void) {{\n    return {callee}();\n}}\n"]
    else:
        facts = [f"\n{constant.upper()} = {values[0]}\n", f"\ndef open_{option}(path, {option}={values[1]}):\n    return path, {option}\n\n",
                 f"\ndef {plain}():\n    return {values[2]}\n\n", f"\ndef {callee}():\n    return {values[3]}\n\n",
                 f"\ndef {caller}():\n    return {callee}()\n\n"]
    questions = [ask("constant", f"What is the value of the constant {constant.upper()}?", f"The value of {constant.upper()} is", values[:1]),
                 ask("default", f"What is the default value of {option}?", f"The default value of {option} is", values[1:2]),
                 ask("return", f"What number does the function {plain} return?", f"The function {plain} returns", values[2:3]),
                 ask("callee", f"Which function does {caller} call?", f"The function {caller} calls", [callee]),
                 ask("chain", f"{caller} calls another function. What number does {caller} return in the end?",
                     f"In the end {caller} returns", values[3:])]
    for i in range(len(facts) - 1, 0, -1):  # the order of the facts is random; a chain's ends are rarely neighbors
        j = random.below(i + 1)
        facts[i], facts[j] = facts[j], facts[i]
    return "".join(scatter(random, parts, facts)), questions


# --- tables and prose ------------------------------------------------------------------------------------------------

def write_table(random: Random, texts: Texts, size: int) -> tuple[str, list[Question]]:
    draw, rows = Drawer(random, ""), []
    while sum(map(len, (" | ".join(row) for row in rows))) < size - 60:
        rows.append([draw.key(), NAMES[random.below(len(NAMES))], CITIES[random.below(len(CITIES))], draw.number(), draw.number(3)
                     if len(rows) < 800 else "1000"])
    text = "| item | owner | city | price | stock |\n|-|-|-|-|-|\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    a, b, c, d = (rows[random.below(len(rows))] for _ in range(4))
    return text, [ask("cell", f"What is the price of the item {a[0]}?", f"The price of {a[0]} is", [a[3]]),
                  ask("cell", f"Who is the owner of the item {b[0]}?", f"The owner of {b[0]} is", [b[1]]),
                  ask("cell", f"In which city is the item {c[0]}?", f"The item {c[0]} is in", [c[2]]),
                  ask("row", f"Which item has the price {d[3]}?", f"The item with the price {d[3]} is", [d[0]]),
                  ask("cells", f"What are the price and the stock of the item {c[0]}?", f"The price and the stock of {c[0]} are", [c[3], c[4]], 24)]


def prose(random: Random, haystack: Haystack, size: int) -> list[str]:
    first, parts, total = random.below(haystack.n), [], 0
    while total < size:
        parts.append(haystack.sentences(first + len(parts), 1))
        total += len(parts[-1])
    return parts


def write_hops(random: Random, texts: Texts, size: int) -> tuple[str, list[Question]]:
    parts = prose(random, texts.haystack, size)
    draw = Drawer(random, "".join(parts))
    people = [draw.of(NAMES) for _ in range(4)]
    boxes = [draw.key() for _ in range(3)]
    cities = [draw.of(CITIES) for _ in range(2)]
    code, born, room = draw.number(), str(1900 + random.below(100)), draw.number(3)
    facts = [f" {people[0]} keeps the ring in the {boxes[0]} box.", f" The {boxes[0]} box stands in {cities[0]}.",
             f" The code word of {people[1]} is {boxes[1]}.", f" The number of the code word {boxes[1]} is {code}.",
             f" {people[2]} was born in the year {born}.", f" {people[3]} is the sister of {people[2]}.",
             f" The {boxes[2]} box is in room {room}, in {cities[1]}."]
    return "".join(scatter(random, parts, facts)), [
        ask("two-facts", f"In which city is the ring of {people[0]}?", f"The ring of {people[0]} is in", cities[:1]),
        ask("two-facts", f"What is the number of the code word of {people[1]}?", f"The number of the code word of {people[1]} is", [code]),
        ask("two-facts", f"In which year was the brother of {people[3]} born?", f"The brother of {people[3]} was born in the year", [born]),
        ask("one-fact", f"In which room is the {boxes[2]} box?", f"The {boxes[2]} box is in room", [room]),
        ask("one-fact", f"In which box is the ring of {people[0]}?", f"The ring of {people[0]} is in the box", boxes[:1])]


def write_needles(random: Random, texts: Texts, size: int) -> tuple[str, list[Question]]:
    parts = prose(random, texts.haystack, size)
    draw = Drawer(random, "".join(parts))
    keys, numbers = [draw.key() for _ in range(8)], [draw.number(7) for _ in range(9)]
    names, start, uuid_key, uuid = [draw.variable() for _ in range(3)], draw.number(), draw.key(), draw.uuid()
    said = " One of the special magic numbers for {} is: {}.".format
    facts = [said(key, number) for key, number in zip(keys, numbers)] + [said(keys[7], numbers[8])]
    facts += [f" VAR {names[0]} = {start}.", f" VAR {names[1]} = VAR {names[0]}.", f" VAR {names[2]} = VAR {names[1]}.",
              f" The special magic uuid for {uuid_key} is: {uuid}."]
    where = "mentioned in the text"
    return "".join(scatter(random, parts, facts)), [
        ask("single", f"What is the special magic number for {keys[0]} {where}?", f"The special magic number for {keys[0]} is", numbers[:1]),
        ask("multi-key", f"What is the special magic number for {keys[4]} {where}?", f"The special magic number for {keys[4]} is", numbers[4:5]),
        ask("multi-value", f"What are all the special magic numbers for {keys[7]} {where}?",
            f"The two special magic numbers for {keys[7]} are", numbers[7:], 32),
        ask("variables", f"Which variables hold the value {start}, directly or through another variable?",
            f"The variables that hold the value {start} are", names, 32),
        ask("uuid", f"What is the special magic uuid for {uuid_key} {where}?", f"The special magic uuid for {uuid_key} is", [uuid], 40)]


def write_minutes(random: Random, texts: Texts, size: int) -> tuple[str, list[Question]]:
    parts = prose(random, texts.haystack, size)
    draw = Drawer(random, "".join(parts))
    chair, host, city, cost, day, topic = draw.of(NAMES), draw.of(NAMES), draw.of(CITIES), draw.number(), str(10 + random.below(18)), draw.key()
    facts = [f"Minutes of the meeting about the project {topic}.\n{chair} led the meeting.", f" The meeting decided that the project {topic} may cost {cost} euros.",
             f" {host} will host the next meeting in {city} on May {day}."]
    text = facts[0] + "".join(scatter(random, parts, facts[1:])) + f" With that, {chair} closed the meeting.\n"
    checks = [ask("check", "Who led the meeting?", "The meeting was led by", [chair]),
              ask("check", "How many euros may the project cost?", "The project may cost", [cost]),
              ask("check", "In which city is the next meeting?", "The next meeting is in", [city])]
    summary = Question("summary", "Task: Summarize the meeting above in three sentences: who led it, what it decided about the project's cost, and "
                       "where the next meeting is.\nSummary:", [], 96, checks=checks)
    return text, [summary, *checks[1:], ask("one-fact", "Who will host the next meeting?", "The next meeting will be hosted by", [host]),
                  ask("one-fact", "On which day in May is the next meeting?", "The next meeting is on May", [day])]


# --- all of them -----------------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Texts:
    """What facts are hidden in."""

    haystack: Haystack
    code: pathlib.Path

    @staticmethod
    def open(essays: list[str], code: Optional[str]) -> Texts:
        return Texts(open_haystack(essays), pathlib.Path(code) if code else ROOT)


WRITERS: dict[str, Callable[[Random, Texts, int], tuple[str, list[Question]]]] = {
    "code-c": lambda random, texts, size: write_code(random, texts, size, ".c"),
    "code-python": lambda random, texts, size: write_code(random, texts, size, ".py"),
    "table": write_table, "hops": write_hops, "needles": write_needles, "minutes": write_minutes,
}


def make_document(task: str, seed: int, index: int, n_tokens: int, texts: Texts, count: Callable[[str], int]) -> Document:
    """Writes a document of at most n_tokens, as near as a few tries come. count: the tokens of a text."""
    size, fitting = 3 * n_tokens, None
    for _ in range(8):
        text, questions = WRITERS[task](Random(f"doc-{task}", seed, index), texts, size)
        n = count(text)
        if n <= n_tokens:
            fitting = (n, text, questions)
            if n >= 0.9 * n_tokens:
                break
        size = max(int(size * 0.96 * n_tokens / n), 64)
    if n > n_tokens and fitting:  # tries that are too short and too long came by turns
        n, text, questions = fitting
    if n > n_tokens:
        raise EvalError(f"{task}: no document of {n_tokens} tokens: its smallest has {n}; ask for more")
    return Document(f"{task}-{index}", text.rstrip("\n") + "\n\n", questions[:N_QUESTIONS])


def read_longbench(path: str, name: str) -> list[Document]:
    """Reads a file of LongBench; name: the task's, such as hotpotqa. Lines with one context are one document."""
    form = make_form(DatasetConfig(name, "longbench", path))
    before, after = form.prompt.split("{context}")
    documents: dict[str, Document] = {}
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvalError(f"--longbench {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            sample, raw = read_line(form, line), json.loads(line)
        except (ValueError, EvalError) as error:
            raise UsageError(f"{path}:{number}: {error}") from error
        document = documents.setdefault(raw["context"], Document(f"{name}-{len(documents)}", before + raw["context"], []))
        document.questions.append(Question(name, after.replace("{input}", raw["input"]), sample.answers, sample.max_new_tokens, sample.metric))
    return list(documents.values())
