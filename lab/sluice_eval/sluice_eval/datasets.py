# SPDX-License-Identifier: Apache-2.0
"""Questions of published benchmarks from the JSON lines that their authors distribute:

    longbench      {"input", "context", "answers": [...], "all_classes": [...] or null, "length", "_id", ...}
    infinitebench  {"context", "input", "answer": text or [...], "options": [...], "id"}
    ruler          {"input", "outputs": [...], "index", "length"}    (NVIDIA's generator)
    sluice         {"prompt", "answers" or "answer", "classes"}      (plain)

Answers are texts or numbers. Other members are ignored. If a ruler line has "answer_prefix", it ends the prompt. A choice
of infinitebench is scored by the option's text and its letter, which is looked up in "options".

Name and format identify the benchmark's task (benchmarks.py), which supplies missing values.
"""
from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any, Optional

from . import strict_json
from .benchmarks import find_benchmark
from .errors import EvalError, UsageError
from .metrics import METRICS, score
from .sample import Sample

MAX_LINE_BYTES = 64 << 20  # a book of two million tokens, every character escaped, is 20 MiB


@dataclasses.dataclass(frozen=True)
class Format:
    input: str
    answers: str
    prompt: str
    answers2: str = ""
    input_end: str = ""
    metric: Optional[str] = None
    letters: bool = False


FORMATS = {
    "longbench": Format("input", "answers", "{context}\n{input}"),
    "infinitebench": Format("input", "answer", "{context}\n{input}", letters=True),
    "ruler": Format("input", "outputs", "{input}", input_end="answer_prefix", metric="contains-all"),
    "sluice": Format("prompt", "answers", "{input}", answers2="answer", metric="contains-all"),
}


@dataclasses.dataclass
class DatasetConfig:
    """A file of questions. None, 0 and False: as the benchmark's task says."""

    name: str
    format: str
    path: str = ""
    prompt: Optional[str] = None
    metric: Optional[str] = None
    max_new_tokens: int = 0
    max_samples: int = 0  # the first of them; 0: all
    first_line: bool = False  # score only the first line


@dataclasses.dataclass(frozen=True)
class Form:
    """A config whose missing values have been supplied."""

    format: Format
    prompt: str
    metric: str
    max_new_tokens: int
    first_line: bool


def make_form(config: DatasetConfig) -> Form:
    """Completes the config from the benchmark's task of this name, and then from the format."""
    where = f"data set {config.name}"
    if config.format not in FORMATS:
        raise UsageError(f'{where}: there is no format "{config.format}"; there are {", ".join(FORMATS)}')
    form = FORMATS[config.format]
    task = find_benchmark(config.format, config.name)
    if task and task.metric is None and config.metric is None:
        raise UsageError(f"{where} is left out: {task.prompt}")
    known = task if task and task.metric else None
    metric = config.metric or (known.metric if known else form.metric)
    if metric is None:
        raise UsageError(f"{where}: {config.format} has no task of this name: give metric and max_new_tokens")
    if metric not in METRICS:
        raise UsageError(f'{where}: there is no metric "{metric}"')
    max_new_tokens = config.max_new_tokens or (known.max_new_tokens if known else 0)
    if max_new_tokens <= 0:
        raise UsageError(f"{where}: max_new_tokens must be given, and be 1 or more")
    prompt = config.prompt or (known.prompt if known else form.prompt)
    if "{input}" not in prompt and "{context}" not in prompt:
        raise UsageError(f"{where}: the prompt has a place for neither {{context}} nor {{input}}, so every question would be "
                         "the same")
    return Form(form, prompt, metric, max_new_tokens, config.first_line or bool(task and task.first_line))


# --- one line --------------------------------------------------------------------------------------------------------

def _texts(value: Any, name: str) -> list[str]:
    if isinstance(value, list):
        return [text for one in value for text in _texts_of_one(one, name)]
    return _texts_of_one(value, name)


def _texts_of_one(value: Any, name: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [str(value) if isinstance(value, int) else f"{value:.17g}"]
    raise ValueError(f'"{name}" must be a text, a number, or a list of those')


def _text(line: dict[str, Any], name: str) -> str:
    value = line.get(name)
    if value is None:
        raise ValueError(f'there is no "{name}", which the prompt of this data set has a place for')
    if not isinstance(value, str):
        raise ValueError(f'"{name}" must be a text')
    return value


def _options(line: dict[str, Any]) -> str:
    options = line.get("options")
    if not isinstance(options, list) or not options:
        raise ValueError('there is no "options", which the prompt of this data set has a place for')
    if len(options) > 26 or not all(isinstance(option, str) for option in options):
        raise ValueError('"options" must be at most 26 texts')
    return "\n".join(f"{chr(ord('A') + i)}. {option}" for i, option in enumerate(options))


def _prompt(form: Form, line: dict[str, Any]) -> str:
    def replace(place: re.Match[str]) -> str:
        if place[0] == "{options}":
            return _options(line)
        if place[0] == "{context}":
            return _text(line, "context")
        end = form.format.input_end
        return _text(line, form.format.input) + (_text(line, end) if end and line.get(end) is not None else "")
    prompt = re.sub(r"\{(?:context|input|options)\}", replace, form.prompt)
    if not prompt:
        raise ValueError("the prompt is empty")
    return prompt


def _add_letter(answers: list[str], line: dict[str, Any]) -> list[str]:
    """Adds the letter of a choice: the file may only have the option's text."""
    if len(answers) == 2 and answers[1] in ("A", "B", "C", "D"):
        return answers
    options = line.get("options")
    if len(answers) == 1 and isinstance(options, list) and answers[0] in options[:4]:
        return [*answers, "ABCD"[options.index(answers[0])]]
    raise ValueError('the answer is none of the first four "options"')


def read_line(form: Form, text: str) -> Sample:
    """Parses a line. ValueError or EvalError: it is not a question of this form."""
    line = strict_json.loads(text)
    if not isinstance(line, dict):
        raise ValueError("a line must be a JSON object: {...}")
    name = form.format.answers if line.get(form.format.answers) is not None else form.format.answers2
    if not name or line.get(name) is None:
        raise ValueError(f'there is no "{form.format.answers}"')
    answers = _texts(line[name], name)
    if not answers:
        raise ValueError(f'"{name}" is empty: nothing would be right')
    if form.format.letters and "choice" in form.metric:
        answers = _add_letter(answers, line)
    classes = line.get("all_classes") if line.get("all_classes") is not None else line.get("classes")
    sample = Sample("", answers, form.metric, form.max_new_tokens, _texts(classes, "classes") if classes is not None else [])
    score(sample, "")  # finds answers that the metric cannot read now, not after the model has answered
    sample.prompt = _prompt(form, line)
    return sample


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not valid UTF-8; convert the file with iconv") from error


def read_dataset(config: DatasetConfig) -> list[Sample]:
    """Reads the file. UsageError names the file and the line."""
    form = make_form(config)
    samples: list[Sample] = []
    path = pathlib.Path(config.path)
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise EvalError(f"data set {config.name}: there is no file {path}; get it from the benchmark's authors") from error
    except OSError as error:
        raise EvalError(f"data set {config.name}: {path}: {error.strerror}") from error
    with file:
        number = 0
        while config.max_samples == 0 or len(samples) < config.max_samples:
            data = file.readline(MAX_LINE_BYTES + 2)
            number += 1
            if not data:
                break
            # Some editors begin a file with a byte order mark.
            data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
            try:
                if len(data.removesuffix(b"\n")) > MAX_LINE_BYTES:
                    raise ValueError(f"longer than {MAX_LINE_BYTES >> 20} MiB; JSON lines have one object a line")
                if data.strip(b" \t\r\n"):
                    samples.append(read_line(form, _decode(data.removesuffix(b"\n"))))
            except (ValueError, EvalError) as error:
                raise UsageError(f"{path}:{number}: {error}") from error
    if not samples:
        raise UsageError(f"{path}: there is no question in it")
    return samples
