# SPDX-License-Identifier: Apache-2.0
"""`sluice bench documents`: many questions about one long text, whose answers are known: as documents, and by reading it again."""
from __future__ import annotations

import argparse
import dataclasses
import os
import random
import statistics
import sys
import time
import urllib.request
from typing import Any, Optional

from sluice_eval.answerers import HttpAnswerer, HttpConfig
from sluice_eval.errors import UsageError
from sluice_eval.haystack import Haystack, open_haystack
from sluice_eval.plots import new_figure, save_figure
from sluice_eval.tables import Table

from . import __version__
from .command import start
from .options import duration, whole
from .pictures import prepare
from .report import dumps

PROGRAM = "sluice bench documents"
SUMMARY = "Ask many questions about one long text: time, bytes and right answers of each way to keep it."
EPILOG = """A way is a recipe, whose text is added once as a document; cache:RECIPE sends the whole text with every question and lets the cluster
reuse its cache; again:RECIPE has it read anew for every question. Times to the first token are the coordinator's.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached."""
WAYS = "full,format=int4;full,format=k4v2;cache:full;again:full"
NAMES = ("Ada", "Boris", "Clara", "Dmitri", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas")
CALIBRATION = 20  # sentences


@dataclasses.dataclass
class Way:
    kind: str  # "document", "cache" or "again"
    recipe: str
    read_s: float = 0.0
    kept_bytes: Optional[int] = None
    first_ms: list[float] = dataclasses.field(default_factory=list)
    answered_s: list[float] = dataclasses.field(default_factory=list)  # when each answer was there, without the reading of a document
    total_s: float = 0.0  # of all questions, likewise
    shipped_bytes: int = 0
    n_read: int = 0
    n_right: int = 0

    @property
    def name(self) -> str:
        return self.recipe if self.kind == "document" else f"{self.kind}:{self.recipe}"


def ways_of(text: str) -> list[Way]:
    found = []
    for one in filter(None, (part.strip() for part in text.split(";"))):
        kind, colon, recipe = one.partition(":")
        found.append(Way(kind, recipe) if colon and kind in ("cache", "again") else Way("document", one))
    if not found or len({way.name for way in found}) != len(found):
        raise UsageError("--ways: name different ways, such as full,format=int4;cache:full")
    return found


def make_text(haystack: Haystack, n_sentences: int, n_facts: int, seed: int) -> tuple[str, list[tuple[str, str]]]:
    """Returns a text with facts at even distances, and each fact's question and answer."""
    draw = random.Random(seed)
    numbers = draw.sample(range(10000, 100000), n_facts)
    parts, questions = [], []
    for i, number in enumerate(numbers):
        first, last = i * n_sentences // n_facts, (i + 1) * n_sentences // n_facts
        name = f"{NAMES[i % len(NAMES)]} {i // len(NAMES) + 1}"
        parts.append(haystack.sentences(first, last - first) + f" The secret code of {name} is {number}.")
        questions.append((f"\nQuestion: What is the secret code of {name}?\nAnswer: The secret code of {name} is", str(number)))
    return "".join(parts), questions


class Run:
    def __init__(self, arguments: argparse.Namespace) -> None:
        if not arguments.url.startswith(("http://", "https://")):
            raise UsageError(f"--url {arguments.url}: expected something like http://127.0.0.1:8000")
        self._arguments = arguments
        self._http = HttpAnswerer(HttpConfig(arguments.url.rstrip("/").removesuffix("/v1") + "/v1", arguments.model, arguments.api_key, None,
                                             deadline_s=arguments.deadline))
        self._url = arguments.url.rstrip("/").removesuffix("/v1") + "/v1"
        if not self._http.is_sluice:
            raise UsageError(f"{self._url}: it is not Sluice and has no documents")
        haystack = open_haystack([arguments.text] if arguments.text else [])
        n = round(CALIBRATION * arguments.tokens / self._count(haystack.sentences(0, CALIBRATION)))
        self.text, self.questions = make_text(haystack, n, arguments.questions, arguments.seed)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._http.call(f"{self._url}/{path}", body, time.monotonic() + self._arguments.deadline)

    def _complete(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self._post("completions", {"model": self._http.model, "temperature": 0, "max_tokens": 8,
                                          "deadline_ms": int(1000 * self._arguments.deadline), **fields})

    def _count(self, text: str) -> int:
        return int(self._complete({"prompt": text, "max_tokens": 1, "reuse": False})["usage"]["prompt_tokens"])

    def _delete(self, name: str) -> None:
        headers = {"Authorization": f"Bearer {self._arguments.api_key}"} if self._arguments.api_key else {}
        try:
            urllib.request.urlopen(urllib.request.Request(f"{self._url}/documents/{name}", headers=headers, method="DELETE"), timeout=30).close()
        except OSError as error:
            print(f"{PROGRAM}: document {name} is left at {self._url}: {error}", file=sys.stderr)

    def run(self, way: Way) -> None:
        """Reads the text if the way does that once, and asks the questions, one after the other."""
        name = f"bench-{os.getpid()}"
        questions = self.questions if way.kind != "again" else self.questions[:self._arguments.again]
        prefix = {"prompt": self.text}
        if way.kind == "document":
            begin = time.monotonic()
            self._post("documents", {"name": name, "text": self.text, "recipe": way.recipe, "raw": True,
                                     "deadline_ms": int(1000 * self._arguments.deadline)})
            way.read_s = time.monotonic() - begin
            shown = self._http.call(f"{self._url}/documents/{name}", None, time.monotonic() + 30)
            way.kept_bytes = shown.get("capsule_bytes", shown.get("bytes"))
            if way.kept_bytes is not None:
                way.kept_bytes += shown.get("offloaded_bytes", 0)
            prefix = {"document": name, "prompt": ""}
        try:
            begin = time.monotonic()
            for question, answer in questions:
                self._ask(way, prefix, question, answer)
                way.answered_s.append(time.monotonic() - begin)
            way.total_s = way.answered_s[-1]
        finally:
            if way.kind == "document":
                self._delete(name)

    def _ask(self, way: Way, prefix: dict[str, str], question: str, answer: str) -> None:
        fields: dict[str, Any] = {**prefix, "prompt": prefix["prompt"] + question}
        if way.kind != "document":
            fields |= {"recipe": way.recipe, "reuse": way.kind == "cache"}
        reply = self._complete(fields)
        figures = reply["sluice"]
        way.first_ms.append(figures["ttft_ms"])
        way.n_read += figures["read_tokens"]
        way.shipped_bytes += figures["capsule_bytes"]
        way.n_right += answer in reply["choices"][0]["text"]
        if sys.stderr.isatty():
            print(f"\r{way.name}: {len(way.first_ms)} questions ", end="", file=sys.stderr, flush=True)


def line_of(way: Way, n_tokens: int) -> dict[str, Any]:
    n = len(way.first_ms)
    return {"way": way.name, "questions": n, "tokens": n_tokens, "reading_s": round(way.read_s, 3), "kept_bytes": way.kept_bytes,
            "median_ttft_ms": round(statistics.median(way.first_ms), 2), "least_ttft_ms": round(min(way.first_ms), 2),
            "most_ttft_ms": round(max(way.first_ms), 2), "questions_s": round(way.total_s, 3), "read_tokens": way.n_read,
            "fetched_bytes": way.shipped_bytes, "right": way.n_right, "points": round(100 * way.n_right / n, 1)}


def show(lines: list[dict[str, Any]]) -> None:
    table = Table(["way", ">questions", ">reading s", ">first token ms, median (range)", ">all questions s", ">MB kept", ">MB fetched a question",
                   ">tokens read a question", ">right %"])
    for line in lines:
        n = line["questions"]
        kept = f"{line['kept_bytes'] / 1e6:.1f}" if line["kept_bytes"] else "-"
        table.add(line["way"], str(n), f"{line['reading_s']:.1f}" if line["reading_s"] else "-",
                  f"{line['median_ttft_ms']:.0f} ({line['least_ttft_ms']:.0f}-{line['most_ttft_ms']:.0f})", f"{line['questions_s']:.1f}", kept,
                  f"{line['fetched_bytes'] / n / 1e6:.1f}", f"{line['read_tokens'] / n:.0f}", f"{line['points']:g}")
    print(table.text(0), end="")


def draw(ways: list[Way], path: str) -> None:
    """Draws the seconds after which each number of questions was answered, reading included."""
    figure, axes = new_figure(900, 600)
    for way in ways:
        axes.step([way.read_s, *(way.read_s + s for s in way.answered_s)], range(len(way.answered_s) + 1), where="post", label=way.name)
    axes.set(xlabel="seconds, reading included", ylabel="questions answered", xscale="log", ylim=(0, None))
    axes.grid(True, color="#dddddd")
    axes.legend()
    save_figure(figure, path)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=PROGRAM, description=SUMMARY, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   usage="%(prog)s [options]", allow_abbrev=False)
    add = made.add_argument
    add("--version", action="version", version=__version__)
    add("--url", default="http://127.0.0.1:8000", metavar="URL", help="the gateway [http://127.0.0.1:8000]")
    add("--model", "-m", default="", metavar="MODEL", help="the model's name there. Default: its first one")
    add("--api-key", default=os.environ.get("OPENAI_API_KEY", ""), metavar="KEY", help="API key. Default: $OPENAI_API_KEY")
    add("--tokens", type=whole(200, 10**7), default=8000, metavar="N", help="tokens of the text, about [8000]")
    add("--questions", type=whole(1, 100000), default=50, metavar="N", help="facts in it, and questions [50]")
    add("--again", type=whole(1, 100000), default=5, metavar="N", help="questions of ways that read the text again [5]")
    add("--ways", default=WAYS, metavar="W;W", help=f"how the text is kept [{WAYS}]")
    add("--text", metavar="FILE", help="the text between the facts. Default: licenses of this system")
    add("--seed", type=whole(0, 1 << 48), default=1, metavar="N", help="seed of the facts [1]")
    add("--deadline", type=duration, default="10m", metavar="TIME", help="deadline of one answer [10m]")
    add("--json", "-j", action="store_true", help="one JSON object a way")
    add("--pictures", metavar="DIR", help="draw documents.png there (needs matplotlib)")
    return made


def _run(arguments: argparse.Namespace) -> None:
    ways = ways_of(arguments.ways)
    if arguments.pictures:
        prepare(arguments.pictures)
    run = Run(arguments)
    lines = []
    for way in ways:
        run.run(way)
        lines.append(line_of(way, arguments.tokens))
        if arguments.json:
            print(dumps(lines[-1]), flush=True)
    if not arguments.json:
        show(lines)
    if arguments.pictures:
        draw(ways, os.path.join(arguments.pictures, "documents.png"))


def main(words: Optional[list[str]] = None) -> int:
    return start(parser(), _run, words)


if __name__ == "__main__":
    sys.exit(main())
