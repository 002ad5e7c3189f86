# SPDX-License-Identifier: Apache-2.0
"""Questions on two documents whose capsules are joined, compared with the same prompt read as one text.

    sluice up --model DIR ; PYTHONPATH=lab/sluice_eval python3 -m sluice_eval.joined --samples 100

A document is sentences of licenses with facts between them; each pair has two of its own:

    one    a number of a key, in the second document
    both   a number of a key in each document
    hop    a name's code word in the first document, and that word's number in the second one: the name's number
    chain  a variable in the first document, and one that is set to it in the second one: both names

Joined prompts are asked before the whole one, whose capsule would serve them. Ctrl-C ends with the pairs so far. Intervals
are those of report pages (bootstrap.py), over pairs.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import urllib.error
import urllib.request

from .bootstrap import Interval, bootstrap_mean
from .errors import CANCELLED, EvalError
from .haystack import Haystack, open_haystack
from .rng import Random
from .words import N_PAIRS, word_pair

KINDS = ("one", "both", "hop", "chain")
NAMES = ("Alice", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene", "Jonas", "Karla", "Louis", "Maria", "Nadia",
         "Oscar", "Paula", "Quinn", "Ralph", "Sofia", "Tomas")
WHERE = "mentioned in the provided text"
NOTHING_JOINED = 1 << 20  # tokens that are read again


@dataclasses.dataclass(frozen=True)
class Facts:
    """Of one pair."""

    keys: tuple[str, str]  # one in each document
    values: tuple[str, str]
    name: str
    word: str  # the name's code word
    word_value: str
    variable: str  # has the number
    number: str
    copy: str  # a variable that is set to the other one


@dataclasses.dataclass(frozen=True)
class Question:
    kind: str
    text: str
    answers: tuple[str, ...]


def draw_facts(seed: int, index: int) -> Facts:
    random = Random("joined", seed, index)
    keys = [word_pair(random.below(N_PAIRS)) for _ in range(3)]
    values = [str(1000000 + random.below(9000000)) for _ in range(3)]
    letters = ["".join(chr(65 + random.below(26)) for _ in range(5)) for _ in range(2)]
    return Facts((keys[0], keys[1]), (values[0], values[1]), NAMES[index % len(NAMES)], keys[2], values[2], letters[0],
                 str(10000 + random.below(90000)), letters[1])


def write_documents(facts: Facts, haystack: Haystack, n_sentences: int, random: Random) -> list[str]:
    """Writes both documents of a pair. Their facts are at random places."""
    number = " One of the special magic numbers for {} is: {}."
    said = [[number.format(facts.keys[0], facts.values[0]), f" The code word of {facts.name} is: {facts.word}.",
             f" VAR {facts.variable} = {facts.number}."],
            [number.format(facts.keys[1], facts.values[1]), number.format(facts.word, facts.word_value),
             f" VAR {facts.copy} = VAR {facts.variable}."]]
    texts = []
    for facts_of_one in said:
        first = random.below(haystack.n)
        sentences = [haystack.sentences(first + i, 1) for i in range(n_sentences)]
        for fact in facts_of_one:
            sentences.insert(random.below(len(sentences) + 1), fact)
        texts.append("".join(sentences).strip() + "\n")
    return texts


def ask_pair(facts: Facts) -> list[Question]:
    number = f"the special magic number for {facts.keys[1]} {WHERE}"
    word = f"the special magic number for the code word of {facts.name} {WHERE}"
    return [
        Question("one", f"What is {number}? The{number[3:]} is", (facts.values[1],)),
        Question("both", f"What are all the special magic numbers for {', '.join(facts.keys)} {WHERE}? The special magic numbers {WHERE} are",
                 facts.values),
        Question("hop", f"What is {word}? The{word[3:]} is", (facts.word_value,)),
        Question("chain", f"Which variables hold the value {facts.number}, directly or through another variable? "
                 f"The variables that hold the value {facts.number} are", (facts.variable, facts.copy)),
    ]


def score(text: str, answers: tuple[str, ...]) -> float:
    return sum(answer in text for answer in answers) / len(answers)


class Server:
    """A gateway of Sluice."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url, self.timeout = url.rstrip("/"), timeout

    def call(self, method: str, path: str, body: dict | None = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise EvalError(f"{path}: {error.code}: {error.read().decode(errors='replace')[:500]}") from error
        except OSError as error:
            raise EvalError(f"{self.url}: {error}") from error

    def add(self, name: str, text: str, recipe: str, chat: bool) -> int:
        return self.call("POST", "/documents", {"name": name, "text": text, "recipe": recipe, "raw": not chat})["n_tokens"]

    def delete(self, name: str) -> None:
        self.call("DELETE", f"/documents/{name}")

    def ask(self, names: list[str], question: Question, chat: bool, **fields: object) -> tuple[str, int]:
        """Returns the answer, and how many tokens of the prompt were not read."""
        body = {"documents": names, "max_tokens": 40, "temperature": 0, **fields}
        body.update({"messages": [{"role": "user", "content": question.text}]} if chat else {"prompt": question.text, "stop": ["\n"]})
        reply = self.call("POST", "/chat/completions" if chat else "/completions", body)
        choice = reply["choices"][0]
        text = choice["message"]["content"] if chat else choice["text"]
        return text, reply["sluice"].get("reused_tokens", 0)


Scores = dict[str, dict[str, list[float]]]  # of every kind and way, in the order of the pairs


def measure_pair(server: Server, arguments: argparse.Namespace, names: list[str], questions: list[Question], n_tokens: int,
                 scores: Scores) -> None:
    """n_tokens: of the second document. Adds scores when all questions have been answered."""
    answers: list[tuple[Question, str, str]] = []
    for n in arguments.reread:
        for question in questions:
            answer, reused = server.ask(names, question, arguments.chat, reread=n)
            if reused < n_tokens:
                raise EvalError(f"{names}: {reused} tokens were not read: the documents are not joined")
            answers.append((question, f"joined, reread {n}", answer))
    whole = {"reread": NOTHING_JOINED} if arguments.resume else {"reuse": False}
    answers += [(question, "one text", server.ask(names, question, arguments.chat, **whole)[0]) for question in questions]
    for question, way, answer in answers:
        scores[question.kind][way].append(score(answer, question.answers))


def measure(server: Server, arguments: argparse.Namespace, scores: Scores) -> None:
    haystack = open_haystack([])
    for index in range(arguments.samples):
        facts = draw_facts(arguments.seed, index)
        texts = write_documents(facts, haystack, arguments.sentences, Random("documents", arguments.seed, index))
        names: list[str] = []
        try:
            for text in texts:
                n_tokens = server.add(f"joined-{arguments.seed}-{index}-{len(names)}", text, arguments.recipe, arguments.chat)
                names.append(f"joined-{arguments.seed}-{index}-{len(names)}")
            measure_pair(server, arguments, names, ask_pair(facts), n_tokens, scores)
        finally:
            for name in names:
                server.delete(name)
        if arguments.verbose:
            print(f"pair {index}: {n_tokens} tokens", file=sys.stderr)


def show(interval: Interval) -> str:
    return f"{100 * interval.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def table(scores: Scores, seed: int) -> str:
    """Writes points of 100: those of one text, and what joining changes, with its 95% interval."""
    ways = [way for way in scores[KINDS[0]] if way != "one text"]
    lines = ["| questions | n | one text | " + " | ".join(ways) + " |", "|-" * (3 + len(ways)) + "|"]
    for kinds in [[kind] for kind in KINDS] + [list(KINDS)]:
        whole = [scores[kind]["one text"] for kind in kinds]
        row = [kinds[0] if len(kinds) == 1 else "all", str(sum(map(len, whole))),
               f"{100 * sum(sum(cell) / len(cell) for cell in whole) / len(whole):.1f}"]
        for way in ways:
            cells = [[a - b for a, b in zip(scores[kind][way], scores[kind]["one text"])] for kind in kinds]
            row.append(show(bootstrap_mean(cells, seed)))
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m sluice_eval.joined", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="a gateway of Sluice (%(default)s)")
    parser.add_argument("--samples", type=int, default=100, metavar="N", help="pairs (%(default)s)")
    parser.add_argument("--sentences", type=int, default=30, metavar="N", help="sentences of each document (%(default)s)")
    parser.add_argument("--recipe", default="full,format=int4", help="recipe of the documents (%(default)s)")
    parser.add_argument("--reread", type=lambda text: [int(n) for n in text.split(",")], default=[0, 32, 128], metavar="N,N",
                        help="tokens of the second document that are read again (0,32,128)")
    parser.add_argument("--resume", action="store_true", help="read one text after its first document's capsule, which is faster")
    parser.add_argument("--chat", action="store_true", help="ask by messages")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="timeout of a call (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="say which pair is asked")
    arguments = parser.parse_args(words)
    ways = [f"joined, reread {n}" for n in arguments.reread] + ["one text"]
    scores: Scores = {kind: {way: [] for way in ways} for kind in KINDS}
    code = 0
    try:
        measure(Server(arguments.url, arguments.timeout), arguments, scores)
    except EvalError as error:
        print(f"sluice_eval joined: {error}", file=sys.stderr)
        code = error.code
    except KeyboardInterrupt:
        code = CANCELLED
    if scores[KINDS[0]]["one text"]:
        print(table(scores, arguments.seed))
    return code


if __name__ == "__main__":
    sys.exit(main())
