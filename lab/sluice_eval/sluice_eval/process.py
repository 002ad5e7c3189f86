# SPDX-License-Identifier: Apache-2.0
"""A `sluice run --local --jsonl` process: one request a line, one answer a line."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import threading
from typing import Any, Optional

from .errors import EvalError, UsageError

_CODES = {1: EvalError, 2: UsageError}


def find_sluice(path: Optional[str] = None) -> Optional[str]:
    """Returns the `sluice` tool: the path, $SLUICE_BIN, this checkout's build, or the PATH. None: there is none."""
    if path:
        return path
    folder = os.environ.get("SLUICE_BIN")
    build = pathlib.Path(__file__).resolve().parents[3] / "build/bin"
    for candidate in [folder and pathlib.Path(folder), build]:
        if candidate and os.access(candidate / "sluice", os.X_OK):
            return str(candidate / "sluice")
    return shutil.which("sluice")


class SluiceProcess:
    """Asks one process. Calls from several threads wait for each other. Close it, or use it in a `with` statement."""

    def __init__(self, model_dir: str, sluice: Optional[str] = None, options: tuple[str, ...] = ()) -> None:
        tool = find_sluice(sluice)
        if tool is None:
            raise UsageError("no `sluice` tool: build it (`make build`), or give --sluice PATH")
        self._command = [tool, "run", "--local", "--jsonl", "--model", model_dir, *options]
        self._lock = threading.Lock()
        try:
            # A session of its own: Ctrl-C reaches this program alone, which keeps the answers and ends the process.
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise UsageError(f"{tool}: {error.strerror}") from error
        self._said: list[bytes] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.model = self.ask({"operation": "model"})

    def _listen(self) -> None:
        """Collects what the process says on standard error; a full pipe would stop it."""
        for line in self._process.stderr:
            self._said = [*self._said, line][-20:]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request, which is {"error": ...} if the line failed."""
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except (BrokenPipeError, ValueError):
                self._fail()
            line = self._process.stdout.readline()
            if not line.endswith(b"\n"):
                self._fail()
            return json.loads(line)

    def reserve(self, n_tokens: int) -> None:
        """Makes room for prompts and answers of this many tokens, before the first answer."""
        reply = self.ask({"operation": "reserve", "tokens": n_tokens})
        if "error" in reply:
            raise EvalError(reply["error"]["message"])

    def _fail(self) -> None:
        code = self._process.wait()
        self._listener.join(timeout=5)
        said = b"".join(self._said).decode(errors="replace").strip()
        said = said.removeprefix("sluice run: ")
        raise _CODES.get(code, EvalError)(said or f"`{' '.join(self._command)}` ended with exit code {code}")

    def close(self) -> None:
        """Ends the process, in the middle of an answer if need be."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._listener.join(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def __enter__(self) -> SluiceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
