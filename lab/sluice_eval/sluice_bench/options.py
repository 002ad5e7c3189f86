# SPDX-License-Identifier: Apache-2.0
"""The options of the command, and what they describe: servers, recipes, workload, limits."""
from __future__ import annotations

import argparse
import json
import math
import os
import re
from typing import Any, Callable, Optional, Union

from sluice_eval.errors import UsageError
from sluice_eval.haystack import open_haystack

from . import __version__
from .facts import Facts
from .measure import Slo
from .trace import read_trace
from .workloads import Conversations, Drawn, Lengths, Trace

Workload = Union[Drawn, Conversations, Trace]
PROGRAM = "sluice bench cluster"
SUMMARY = "Send requests at given rates to servers with OpenAI's HTTP API, and measure latencies and goodput."
EPILOG = """A length is N, A-B (uniform), exp:MEAN or lognormal:MEDIAN:SIGMA. docs/BENCHMARKS.md has examples.
Ctrl-C ends with the tables of what was measured. A run is void if the generator itself was late (--max-lag): its row says so.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a server cannot be reached or has no room, 4 stopped by a signal."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
DEFAULT_COUNT = 50


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not re.fullmatch(_NUMBER, text) or not least <= float(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least:g} to {most:g}")
        return float(text)
    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least} to {most}")
        return int(text)
    return parse


def duration(text: str) -> float:
    found = re.fullmatch(f"({_NUMBER})(ms|s|m|h)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time such as 100ms, 2s or 10m")
    return float(found[1]) * _UNITS[found[2]]


def slo(text: str) -> Slo:
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition(":")
        if name not in ("ttft", "tpot", "e2el") or name in limits:
            raise argparse.ArgumentTypeError(f"'{part}': expected ttft:TIME, tpot:TIME and e2el:TIME, each once")
        limits[name] = duration(value)
    return Slo(**limits)


def rates(text: str) -> list[float]:
    found = [math.inf if part == "inf" else _number(1e-6, 1e6)(part) for part in text.split(",")]
    if 0 in found or len(set(found)) != len(found):
        raise argparse.ArgumentTypeError(f"'{text}': expected different rates above 0, such as 0.5,1,2")
    return found


def lengths(least: float, unit: Callable[[str], float] = float) -> Callable[[str], Lengths]:
    def value(text: str) -> float:
        try:
            found = unit(text)
        except ValueError:
            found = -1.0
        if not least <= found <= 1e8:
            raise argparse.ArgumentTypeError(f"'{text}' is not a length from {least:g} on")
        return found

    def parse(text: str) -> Lengths:
        kind, *values = text.split(":")
        if kind == "exp" and len(values) == 1:
            return Lengths("exponential", value(values[0]))
        if kind == "lognormal" and len(values) == 2:
            return Lengths("lognormal", value(values[0]), _number(0, 10)(values[1]))
        first, dash, last = text.partition("-")
        made = Lengths("uniform", value(first), value(last)) if dash else Lengths("fixed", value(text))
        if dash and made.a > made.b:
            raise argparse.ArgumentTypeError(f"'{text}': the first is above the second")
        return made
    return parse


def _body(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return found


def named(text: str) -> tuple[str, str]:
    """Returns the name and the URL of NAME=URL; the name is empty without one."""
    found = re.match(r"([\w.-]+)=(?=https?:|grpc:)", text)
    return (found[1], text[found.end():]) if found else ("", text)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=PROGRAM, description=SUMMARY, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   usage="%(prog)s [options]", allow_abbrev=False)
    add = made.add_argument
    add("--version", action="version", version=__version__)
    add("--url", action="append", type=named, metavar="[NAME=]URL", help="the server, or several by turns; grpc://HOST:PORT is a Sluice "
        "coordinator without certificates [http://127.0.0.1:8000]")
    add("--model", "-m", default="", metavar="MODEL", help="the model's name at the servers. Default: their first one")
    add("--api-key", default=os.environ.get("OPENAI_API_KEY", ""), metavar="KEY", help="API key of the servers. Default: $OPENAI_API_KEY")
    add("--ca-file", metavar="FILE", help="certificates to trust for https")
    add("--recipes", default="", metavar="R;R", help="recipes, by turns, of servers that are Sluice; N%% is the recipe recommended to ship "
        "so much; default is the cluster's own; R@POINTS names the points of its answers, from an evaluation, in tables and pictures")
    add("--trace", metavar="FILE", help="replay a trace in Mooncake's format: its times, lengths and shared blocks")
    add("--scale-rate", type=_number(1e-6, 1e6), default=1.0, metavar="X", help="factor of the trace's own rate, without --rates [1]")
    add("--scale-lengths", type=_number(1e-6, 1e3), default=1.0, metavar="X", help="factor of the trace's prompts and answers [1]")
    add("--conversations", action="store_true", help="conversations: each turn repeats all before it")
    add("--facts", action="store_true", help="questions about licenses of this system with a fact in them: goodput counts right answers alone")
    add("--rates", type=rates, metavar="N,N", help="requests a second, turns included, or inf [1; a trace: its own]")
    add("--count", type=whole(1, 10**7), metavar="N", help=f"requests of each run [{DEFAULT_COUNT}; a trace: all rows]")
    add("--duration", type=duration, metavar="TIME", help="duration of each run, in place of --count: as many requests as the rate has in it")
    add("--burstiness", type=_number(1e-3, 1e3), default=1.0, metavar="X",
        help="shape of the gamma distribution of gaps; 1 is Poisson, less comes in bursts [1]")
    add("--input", type=lengths(1), default="512", metavar="LENGTH", help="tokens of a prompt, or of a conversation's first message [512]")
    add("--output", type=lengths(1), default="64", metavar="LENGTH", help="tokens of an answer [64]")
    add("--shared", type=whole(0, 10**7), default=0, metavar="N", help="tokens that all prompts of a run begin with [0]")
    add("--turns", type=lengths(1), default="4", metavar="LENGTH", help="turns of a conversation [4]")
    add("--message", type=lengths(1), default="64", metavar="LENGTH", help="tokens of its later messages, or of a tool's output [64]")
    add("--think", type=lengths(0, duration), default="exp:2s", metavar="TIMES", help="a user's pause before a turn, as a length [exp:2s]")
    add("--max-input", type=whole(1, 10**8), metavar="N", help="cut longer prompts. Default: to the model's context, where servers say it")
    add("--max-output", type=whole(1, 10**8), metavar="N", help="cut longer answers")
    add("--seed", type=whole(0, 1 << 48), default=1, metavar="N", help="seed of all draws; the same seed sends the same bytes [1]")
    add("--repetitions", type=whole(1, 1000), default=1, metavar="N", help="repetitions of each run, series by turns [1]")
    add("--slo", type=slo, default="ttft:2s,tpot:100ms", metavar="LIMITS", help="limits that a good answer meets; also e2el:TIME [ttft:2s,tpot:100ms]")
    add("--max-lag", type=duration, default="50ms", metavar="TIME", help="a run is void if the generator's lag has a higher p99 [50ms]")
    add("--max-busy", type=_number(1, 100), metavar="PERCENT", help="a run is void if this machine was busier: for workers that only wait, on it")
    add("--deadline", type=duration, default="10m", metavar="TIME", help="deadline of one answer [10m]")
    add("--pause", type=duration, default="1s", metavar="TIME", help="time between two runs [1s]")
    add("--tokens-per-word", type=_number(0.1, 20), metavar="X", help="tokens of a word of the prompts. Default: the servers are asked")
    add("--body", type=_body, default="{}", metavar="JSON", help='further fields of each request; null drops one: {"ignore_eos":null}')
    add("--metrics", action="append", type=named, default=[], metavar="[NAME=]URL", help="a Sluice coordinator's page of metrics")
    add("--json", "-j", action="store_true", help="one JSON object a run on standard output, with vLLM's names")
    add("--requests", metavar="FILE", help="write one JSON object a request there")
    add("--pictures", metavar="DIR", help="draw goodput.png, ttft.png and bytes.png there (needs matplotlib)")
    return made


def describe(made: argparse.ArgumentParser) -> str:
    """Returns the JSON description that `sluice` prints of its commands (base/options/describe.h). "config": no file or variable sets options."""
    found = []
    for action in made._actions:
        if action.dest in ("help", "version"):
            continue
        letter = next((word[1] for word in action.option_strings if not word.startswith("--")), "")
        text, _, default = (action.help or "").replace("%%", "%").removesuffix("]").rpartition(" [")
        is_flag = action.nargs == 0
        found.append({"name": action.option_strings[0][2:], "letter": letter, "default": default if text else "",
                      "help": text or (action.help or "").replace("%%", "%"), "list": isinstance(action.default, list) or action.dest == "url",
                      **({} if is_flag else {"metavar": action.metavar})})
    return json.dumps({"name": made.prog, "usage": "[options]", "summary": made.description, "epilog": made.epilog, "options": found, "config": False})


def workload(arguments: argparse.Namespace) -> Workload:
    if sum(map(bool, (arguments.trace, arguments.conversations, arguments.facts))) > 1:
        raise UsageError("--trace, --conversations and --facts are different workloads")
    if arguments.trace:
        return Trace(read_trace(arguments.trace, arguments.count), arguments.scale_lengths)
    n = arguments.count or DEFAULT_COUNT
    if arguments.conversations:
        return Conversations(n, arguments.input, arguments.output, arguments.turns, arguments.message, arguments.think, arguments.burstiness,
                             arguments.shared)
    if arguments.facts:
        return Facts(n, arguments.input, arguments.output, arguments.burstiness, haystack=open_haystack([]))
    return Drawn(n, arguments.input, arguments.output, arguments.burstiness, arguments.shared)


def rates_of(arguments: argparse.Namespace, made: Workload) -> list[float]:
    if arguments.rates:
        if arguments.duration and math.inf in arguments.rates:
            raise UsageError("--duration: a rate of inf has no time")
        return arguments.rates
    return [made.own_rate * arguments.scale_rate] if isinstance(made, Trace) else [1.0]


def recipes(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Returns the name, the points of its answers ("": not named) and the fields of each recipe."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for part in text.split(";"):
        one, at, points = part.strip().partition("@")
        share = re.fullmatch(f"({_NUMBER})%", one)
        if at and not re.fullmatch(_NUMBER, points):
            raise UsageError(f"--recipes: {part.strip()}: the points after @ are not a number")
        if one and one in found:
            raise UsageError(f"--recipes: {one} is there twice")
        if one:
            found[one] = points, {"ship_at_most": float(share[1])} if share else {} if one == "default" else {"recipe": one}
    return [(one, *rest) for one, rest in found.items()] or [("default", "", {})]


def metrics_of(arguments: argparse.Namespace, server_name: str) -> Optional[str]:
    """Returns the page of metrics of a server: the one of its name, or without a name the only one."""
    for name, url in arguments.metrics:
        if name == server_name:
            return url
    return None
