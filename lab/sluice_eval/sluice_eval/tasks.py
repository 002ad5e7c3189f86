# SPDX-License-Identifier: Apache-2.0
"""Synthetic tasks of any length, for any tokenizer, from a seed: the tasks of RULER and InfiniteBench in our own words.

A task is a row of a table and a writer. One search that counts tokens finds how much haystack fits, for all tasks. The
same (task, tokenizer, tokens, seed, index) gives the same bytes on every machine. `python3 -m sluice_eval tasks` lists them.
"""
from __future__ import annotations

import dataclasses
import math
from typing import Callable, Optional

from . import writers
from .errors import EvalError, RefusedError, UsageError
from .haystack import NOISE, Haystack
from .nearest import no_such
from .rng import Random
from .sample import Sample
from .words import N_PAIRS
from .writers import Draft, Shape

MAX_TOKENS = 1 << 26  # of a prompt
FIRST_STEP = 32
N_SECANTS = 10  # then bisection: it also ends for texts with unequal units
MOST_AT_ONCE = 8  # sizes grow at most by this factor: a short prompt predicts a long one poorly
UNBOUNDED = (1 << 63) - 1


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    summary: str
    metric: str
    max_new_tokens: int
    n_facts: int  # hidden facts; 0: the question is about the text itself
    has_depth: bool  # the question is about one fact, which can be placed at a depth
    min_tokens: int  # a shorter prompt has no room for it with any tokenizer
    write: Callable[[Draft, int], None]
    haystack: str = ""  # "noise", "essay", or none
    shape: Shape = Shape()
    min_size: int = 0
    max_size: int = 0  # largest size with enough different words; 0: any


# To add a task: a row here, and a writer if none fits.
_ALL = "contains-all"
_NEEDLES = writers.write_needles
TASKS = [
    Task("niah-noise", "the number of one key, in four sentences repeated", _ALL, 24, 1, True, 40, _NEEDLES, "noise"),
    Task("niah-essay", "the number of one key, in running text", _ALL, 24, 1, True, 40, _NEEDLES, "essay"),
    Task("niah-uuid", "the uuid of one key, in running text", _ALL, 64, 1, True, 50, _NEEDLES, "essay", Shape(uuids=True)),
    Task("multikey-4", "the number of one of 4 keys", _ALL, 24, 4, True, 70, _NEEDLES, "essay", Shape(n_keys=4)),
    Task("multikey-16", "the number of one of 16 keys", _ALL, 24, 16, True, 200, _NEEDLES, "essay", Shape(n_keys=16)),
    Task("multikey-needles", "the number of one key among as many as fit", _ALL, 24, 1, True, 70, writers.write_only_needles,
         min_size=4, max_size=N_PAIRS),
    Task("multivalue", "all 4 numbers of one key", _ALL, 96, 4, False, 70, _NEEDLES, "essay", Shape(n_values=4)),
    Task("multiquery", "the numbers of all of 4 keys", _ALL, 160, 4, False, 80, _NEEDLES, "essay", Shape(n_keys=4, n_asked=4)),
    Task("variables", "the 5 variables that one number was passed on to", _ALL, 64, 5, False, 45, writers.write_variables, "noise"),
    Task("common-words", "the 10 words that a list has 30 times", _ALL, 160, 0, False, 950, writers.write_common_words,
         min_size=10, max_size=writers.MAX_OTHER_WORDS),
    # With fewer words, ranks 4 and 5 might be equally frequent.
    Task("frequent-words", "the 3 most frequent of made-up words", _ALL, 40, 0, False, 75, writers.write_frequent_words,
         min_size=80),
    # InfiniteBench's:
    Task("passkey", "5 digits that are said twice", "first-number", 16, 1, True, 25, writers.write_passkey, "noise"),
    Task("number", "10 digits in runs that are said twice", "first-number", 24, 1, True, 30, writers.write_number, "noise"),
    Task("kv", "the value of a key in a JSON object of uuids", "kv", 64, 1, True, 85, writers.write_kv, min_size=4),
]
_BY_NAME = {task.name: task for task in TASKS}


def find_task(name: str) -> Task:
    """Returns a task. Its absence is a UsageError that suggests a similar name."""
    if name not in _BY_NAME:
        raise UsageError(no_such("task", name, _BY_NAME))
    return _BY_NAME[name]


@dataclasses.dataclass
class TaskConfig:
    count_tokens: Callable[[str], int]  # of a prompt, with its begin token
    n_tokens: int  # most tokens of the prompt; it has as many as fit
    seed: int
    depth: float = -1  # of the asked fact, from 0 to 1; negative: anywhere
    haystack: Optional[Haystack] = None  # for tasks that hide facts in running text


@dataclasses.dataclass
class _Trial:
    size: int
    n_tokens: int
    draft: Draft


def _try_size(task: Task, config: TaskConfig, random: Random, size: int) -> _Trial:
    """Writes a prompt of a size. Every trial begins at the start of the random stream."""
    haystack = {"noise": NOISE, "essay": config.haystack}.get(task.haystack)
    draft = Draft(random.copy(), haystack, config.depth, task.shape)
    task.write(draft, size)
    return _Trial(size, config.count_tokens("".join(draft.parts)), draft)


def _guess_size(last: _Trial, before: _Trial, n_tokens: int, fits: int, too_large: int) -> int:
    """Returns where the line through the last two trials reaches n_tokens, strictly between the bounds."""
    slope = (last.n_tokens - before.n_tokens) / (last.size - before.size)
    most = float(MOST_AT_ONCE * fits + FIRST_STEP)
    guess = math.floor(last.size + (n_tokens - last.n_tokens) / slope) if slope > 0 else most
    return int(max(min(guess, most, float(too_large) - 1), fits + 1))


def _fill(task: Task, config: TaskConfig, random: Random, best: _Trial) -> _Trial:
    """Returns the trial of the largest size that fits. best: that of the smallest size, which fits."""
    too_large = task.max_size + 1 if task.max_size else UNBOUNDED
    size, before, step = best.size + FIRST_STEP, best, 1
    while best.size + 1 < too_large:
        last = _try_size(task, config, random, min(size, too_large - 1))
        if last.n_tokens <= config.n_tokens:
            best = last
        else:
            too_large = last.size
        if step > N_SECANTS and too_large != UNBOUNDED:
            size = best.size + (too_large - best.size) // 2
        elif best.size + 1 < too_large:
            size = _guess_size(last, before, config.n_tokens, best.size, too_large)
        before, step = last, step + 1
    return best


def _check(task: Task, config: TaskConfig) -> None:
    if not config.depth <= 1:
        raise UsageError(f"{task.name}: a depth of {config.depth:g}; it is from 0 to 1, or negative for anywhere")
    if config.depth >= 0 and not task.has_depth:
        raise UsageError(f"{task.name} does not ask about one place; leave the depth out")
    if task.haystack == "essay" and config.haystack is None:
        raise EvalError(f"{task.name} needs a text to hide facts in; give one")
    if config.n_tokens > MAX_TOKENS:
        raise RefusedError(f"{task.name}: a prompt of {config.n_tokens} tokens; at most {MAX_TOKENS} can be made")


def make_sample(task: Task, config: TaskConfig, index: int) -> Sample:
    """Makes sample number `index`. RefusedError: the length has no room, or the task has not enough different words."""
    _check(task, config)
    random = Random(task.name, config.seed, index)
    best = _try_size(task, config, random, task.min_size)
    if best.n_tokens > config.n_tokens:
        raise RefusedError(f"{task.name} does not fit into a prompt of {config.n_tokens} tokens: it needs {best.n_tokens}")
    best = _fill(task, config, random, best)
    if task.max_size and best.size >= task.max_size:
        raise RefusedError(f"{task.name} has different words for {best.n_tokens} tokens, not for {config.n_tokens}")
    draft = best.draft
    completion = draft.completion if draft.completion is not None else " " + ", ".join(draft.answers) + "."
    return Sample("".join(draft.parts), draft.answers, task.metric, task.max_new_tokens, completion=completion)
