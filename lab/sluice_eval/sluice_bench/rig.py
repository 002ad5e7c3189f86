# SPDX-License-Identifier: Apache-2.0
"""What benches of single jobs share: a cluster on this machine, random prompts for it, and how such a bench runs and ends."""
from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import operator
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, NoReturn, Optional

from sluice_eval.errors import EvalError, UnavailableError, UsageError
from sluice_eval.interrupt import interruptible
from sluice_eval.nearest import no_such
from sluice_eval.process import find_sluice

from . import __version__, command, options
from .host import HostWatch
from .rows import Rows, progress

N_IDS = 256  # ids of prompts are below: every vocabulary has them, and the computation does not depend on them
_READY_S, _STOP_S = 30, 20
START_S = 90  # `sluice up` itself gives up after 60
_TLS = ("tls-ca", "tls-cert", "tls-key", "tls-revoked")


def prompt(n_tokens: int) -> list[int]:
    return random.choices(range(N_IDS), k=n_tokens)


def tool() -> str:
    found = find_sluice()
    if not found:
        raise UsageError("no `sluice` tool: build it (`make build`), or set SLUICE_BIN")
    return found


def model_folder(model: str) -> pathlib.Path:
    """Returns the folder of a model, which may be one of `sluice models`."""
    if os.path.isdir(model):
        return pathlib.Path(model)
    listed = subprocess.run([tool(), "models", "--json"], stdout=subprocess.PIPE, text=True, check=False).stdout
    for found in map(json.loads, listed.splitlines()):
        if found["name"] == model and found["here"]:
            return pathlib.Path(found["path"])
    raise UsageError(f"--model {model}: it is not a folder")


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a bench that is killed leaves no cluster


class Child:
    """A process that says on its standard output when it is ready."""

    def __init__(self, words: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # the child would block on a pipe that is full
        try:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors, text=True,
                                             start_new_session=True, preexec_fn=die_with_parent)
        except OSError as error:
            raise EvalError(f"cannot start {words[0]}: {error.strerror}") from error
        self.pid = self._process.pid

    def ready_line(self) -> str:
        if not select.select([self._process.stdout], [], [], START_S)[0]:
            raise UnavailableError(f"{self._process.args[0]} is not ready after {START_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            sys.stderr.write(self._errors.read().decode(errors="replace"))
            kind = UsageError if self._process.returncode == 2 else UnavailableError
            raise kind("the cluster did not start; its output is above")
        return line

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def _newest_job(coordinator: str, tls: list[str]) -> dict[str, Any]:
    """Returns a coordinator's newest job; {}: there is none. The errors are the tool's."""
    done = subprocess.run([tool(), "jobs", "--coordinator", coordinator, *tls, "--limit", "1", "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        kind = UnavailableError if done.returncode == 3 else UsageError if done.returncode == 2 else EvalError
        raise kind(done.stderr.strip().removeprefix("sluice jobs: "))
    return json.loads(done.stdout or "{}")


class Cluster:
    """A prefill and a decode worker on this machine, without a KV store, so that nothing is reused; or a cluster that runs
    already. Either is asked by a gateway of its own."""

    def __init__(self, child: Child, addresses_of: Callable[[str], tuple[str, str]], tls: list[str]) -> None:
        """addresses_of: returns those of the gateway and of the coordinator, from the child's line."""
        self._child, self._tls = child, tls
        try:
            http_address, self._coordinator = addresses_of(child.ready_line())
            host, _, port = http_address.rpartition(":")
            self._address = host, int(port)
            self._wait_until_healthy()
        except BaseException:
            child.stop()
            raise

    @classmethod
    def start(cls, model: str, transport: str, device: str = "", arena: str = "") -> Cluster:
        progress(f"starting a cluster over {transport}")
        words = [tool(), "up", "--model", model, "--kvstore", "0", "--port", "0", "--http-port", "0", "--transport", transport,
                 "--workers-log", "warn", "--ready-timeout", "60s", "--verbose", "--keep-going", "--json"]
        words += [*(["--device", device] if device else []), *(["--arena", arena] if arena else [])]
        return cls(Child(words), lambda line: operator.itemgetter("http", "coordinator")(json.loads(line)), [])

    @classmethod
    def join(cls, address: str, tls: list[str]) -> Cluster:
        """Asks a coordinator. The tool finds out first whether that can be reached, and says why not."""
        _newest_job(address, tls)
        gateway = os.path.join(os.path.dirname(tool()), "sluice-gateway")
        words = [gateway, "--coordinator", address, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log", "warn", *tls]
        return cls(Child(words), lambda line: (line.split("http=")[1].split()[0], address), tls)

    def _call(self, method: str, path: str, body: Optional[str], seconds: float) -> tuple[int, bytes]:
        """Returns the reply's status and body."""
        connection = http.client.HTTPConnection(*self._address, timeout=seconds)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"the gateway does not answer: {error}") from error
        finally:
            connection.close()

    def _wait_until_healthy(self) -> None:
        """Waits until the gateway knows a coordinator that has workers."""
        deadline_s = time.monotonic() + _READY_S
        while (found := self._call("GET", "/health", None, _READY_S))[0] != 200:
            if time.monotonic() > deadline_s:
                raise UnavailableError(f"the cluster is not ready: {found[1].decode(errors='replace').strip()}")
            time.sleep(0.05)

    def ask(self, ids: list[int], recipe: str, n_output: int, seconds: float) -> dict[str, Any]:
        """Runs a job, and returns its measurements."""
        body = json.dumps(request(ids, recipe, n_output, seconds))
        return measurements(json.loads(self._call("POST", "/v1/completions", body, seconds + 15)[1]))

    def is_reading(self) -> bool:
        """Returns whether part of the newest job's prompt has been read."""
        job = _newest_job(self._coordinator, self._tls)
        return job.get("state") == "PREFILLING" and job["n_read_tokens"] > 0

    def stop(self) -> None:
        self._child.stop()


def request(ids: list[int], recipe: str, n_output: int, seconds: float) -> dict[str, Any]:
    """Returns a request for a greedy answer, whatever the model's own settings are."""
    return {"prompt": ids, "recipe": recipe, "max_tokens": n_output, "ignore_eos": True, "temperature": 0, "top_p": 1, "repetition_penalty": 1,
            "reuse": False, "deadline_ms": int(1000 * seconds)}


def measurements(reply: dict[str, Any]) -> dict[str, Any]:
    """Returns what a reply says of its job's times and bytes (docs/HTTP.md: "sluice")."""
    if "error" in reply:
        raise (UsageError if reply["error"].get("code") == "400" else EvalError)(reply["error"]["message"])
    return reply["sluice"]


def tls_words(arguments: argparse.Namespace) -> list[str]:
    given = {name: getattr(arguments, name.replace("-", "_")) for name in _TLS}
    return [word for name, value in given.items() if value for word in (f"--{name}", value)]


# ---- how a bench runs ------------------------------------------------------------------------------------------------


class LimitReached(KeyboardInterrupt):
    """--time-limit has passed: the rows that were measured stay."""


class _Help(argparse.HelpFormatter):
    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Optional[str] = None) -> None:
        super().add_usage(usage, actions, groups, prefix or "Usage: ")  # as the programs in C have it


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as the programs in C do."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown and unknown[0].startswith("-"):
            self.error(no_such("option", unknown[0].partition("=")[0], self._option_string_actions))
        if unknown:
            self.error(f"unexpected argument '{unknown[0]}'")
        return found

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser(bench: str, summary: str, has_device: bool = True) -> argparse.ArgumentParser:
    made = _Parser(prog=f"sluice bench {bench}", description=summary, usage="%(prog)s [options]", allow_abbrev=False,
                                   formatter_class=_Help)
    made.add_argument("--version", action="version", version=__version__)
    made.add_argument("--model", "-m", default=os.environ.get("SLUICE_MODEL", "demo"), metavar="MODEL",
                      help="model folder, GGUF file, or a name of `sluice models` [demo]")
    if has_device:
        made.add_argument("--device", default=os.environ.get("SLUICE_DEVICE", ""), metavar="DEVICE", help="as of `sluice up`")
    made.add_argument("--time-limit", type=lambda text: 0.0 if text == "0" else options.duration(text), default=0.0, metavar="TIME",
                      help="stop after this time, with the rows that were measured; 0: never [0]")
    made.add_argument("--json", "-j", action="store_true", help="one JSON object a line")
    return made


def add_tls(made: argparse.ArgumentParser) -> None:
    for name in _TLS:
        made.add_argument(f"--{name}", default=os.environ.get(f"SLUICE_{name.replace('-', '_').upper()}"), metavar="FILE", help="as of `sluice run`")


def main(made: argparse.ArgumentParser, work: Callable[[argparse.Namespace, Rows], None], words: Optional[list[str]]) -> int:
    """Runs a bench: its work, until a signal or --time-limit comes, and the share of the processors that the hypervisor took."""
    bench = made.prog.rpartition(" ")[2]

    def reach_limit(*_: object) -> None:
        raise LimitReached

    def run(arguments: argparse.Namespace) -> None:
        watch = HostWatch()
        signal.signal(signal.SIGALRM, reach_limit)
        signal.setitimer(signal.ITIMER_REAL, arguments.time_limit)
        try:
            with interruptible():
                work(arguments, Rows(bench, arguments.json))
        except LimitReached:
            print(f"{made.prog}: stopped at --time-limit", file=sys.stderr)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            progress("")
        Rows("machine", arguments.json).value("CPU steal", 100 * (watch.stop().steal or 0), "%")
    return command.start(made, run, words)


class Job(threading.Thread):
    """A function that runs beside others. join_result() returns what it returned, or raises what it raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function, self.result, self.error = function, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:
            self.error = error

    def join_result(self) -> Any:
        self.join()
        if self.error:
            raise self.error
        return self.result
