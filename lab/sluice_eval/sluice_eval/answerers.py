# SPDX-License-Identifier: Apache-2.0
"""Answers the questions of an evaluation, greedily: a `sluice` process, or a server with OpenAI's HTTP API."""
from __future__ import annotations

import dataclasses
import http.client
import json
import random
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Optional, Protocol

from .errors import CancelledError, DeadlineError, EvalError, RefusedError, UnavailableError
from .process import SluiceProcess
from .tokenizers import Recipes

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # before a retry


@dataclasses.dataclass(frozen=True)
class Question:
    recipe: str
    ids: list[int]
    text: Optional[str]  # None: the tokens are not those of a text
    max_new_tokens: int


@dataclasses.dataclass(frozen=True)
class Reply:
    text: str
    n_reused: int = 0
    shipped_bytes: int = 0
    offloaded_bytes: int = 0
    full_bytes: int = 0
    resident_bytes: int = 0
    slots_per_head: float = 0
    ttft_ms: float = 0
    tpot_ms: float = 0


class Answerer(Protocol):
    """`concurrency` questions may be asked at a time, from several threads."""

    concurrency: int
    place: str  # for the report: where answers come from; "" for this machine

    def ask(self, question: Question) -> Reply:
        """Returns the answer. RefusedError: the model or the prompt's length rejects the question."""

    def close(self) -> None:
        """Ends questions that are being answered."""


def request_of(question: Question, as_text: bool = False) -> dict[str, Any]:
    """Returns the greedy request, regardless of the model's own settings, that all servers understand."""
    prompt = question.text if as_text and question.text is not None else question.ids
    return {"prompt": prompt, "max_tokens": question.max_new_tokens, "temperature": 0}


def _sluice_fields(question: Question) -> dict[str, Any]:
    return {"recipe": question.recipe, "top_p": 1, "repetition_penalty": 1}


def _reply_of(answer: dict[str, Any]) -> Reply:
    measured = answer.get("sluice", {})
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return Reply(answer["choices"][0]["text"], details.get("cached_tokens") or 0, measured.get("capsule_bytes", 0),
                 measured.get("offloaded_bytes", 0), measured.get("full_bytes", 0), measured.get("decode_resident_bytes", 0),
                 measured.get("slots_per_head", 0), measured.get("ttft_ms", 0), measured.get("tpot_ms", 0))


class ProcessAnswerer:
    """Asks a `sluice run --local --jsonl` process, which stays loaded."""

    concurrency, place = 1, ""

    def __init__(self, process: SluiceProcess) -> None:
        self._process = process

    def ask(self, question: Question) -> Reply:
        answer = self._process.ask(request_of(question) | _sluice_fields(question))
        error = answer.get("error")
        if error is None:
            return _reply_of(answer)
        if error.get("code") == "400":
            raise RefusedError(error["message"])
        raise {"429": UnavailableError, "503": UnavailableError, "504": DeadlineError}.get(error.get("code"), EvalError)(
            f"{question.recipe[:100]}: {error['message']}")

    def close(self) -> None:
        self._process.close()


@dataclasses.dataclass
class HttpConfig:
    url: str  # up to /v1
    model: str = ""  # "": the server's only one
    api_key: str = ""
    ca_file: Optional[str] = None
    concurrency: int = 4
    deadline_s: float = 600  # of an answer, with its retries
    as_text: bool = False  # the server takes no token ids


class HttpAnswerer:
    """Asks a server, with retries while it has no room (429, 503) or cannot be reached."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._url = config.url.rstrip("/")
        self._context = ssl.create_default_context(cafile=config.ca_file) if self._url.startswith("https") else None
        self._closed = threading.Event()
        self.concurrency = config.concurrency
        self.place = f"by the server at {self._url}"
        self._recipes = Recipes()
        models = self.call(f"{self._url}/models", None, time.monotonic() + min(config.deadline_s, 10)).get("data") or [{}]
        self.model = config.model or models[0].get("id", "")
        mine = next((model for model in models if model.get("id") == self.model), {})
        self.is_sluice = mine.get("owned_by") == "sluice"
        self._fingerprint = mine.get("fingerprint")

    def check_model(self, fingerprint: str, folder: str) -> None:
        """Rejects a Sluice server of another model than the folder's."""
        if self._fingerprint not in (None, fingerprint):
            raise EvalError(f"{self._url} serves another model than {folder}, or with other --weights: give the folder and the "
                            "format that the cluster was started with")

    def use_recipes(self, recipes: Recipes) -> None:
        """Plans with these what stores get of a prompt if they already had a part of it."""
        self._recipes = recipes

    def post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        return self.call(url, body, time.monotonic() + self._config.deadline_s)

    def get(self, url: str) -> dict[str, Any]:
        return self.call(url, None, time.monotonic() + self._config.deadline_s)

    def delete(self, url: str) -> dict[str, Any]:
        return self.call(url, None, time.monotonic() + self._config.deadline_s, "DELETE")

    def call(self, url: str, body: Optional[dict[str, Any]], end: float, method: Optional[str] = None) -> dict[str, Any]:
        """Returns the JSON answer; without a method, GET without a body. Waits between retries, up to the time `end`."""
        wait = FIRST_WAIT_S
        while True:
            try:
                return self._call_once(url, body, end, method)
            except UnavailableError as error:
                pause = min(float(getattr(error, "retry_after", 0) or wait * random.uniform(0.5, 1.5)), LONGEST_WAIT_S)
                if time.monotonic() + pause >= end:
                    raise
                if self._closed.wait(pause):
                    raise CancelledError("stopped") from error
                wait = min(2 * wait, LONGEST_WAIT_S)

    def _call_once(self, url: str, body: Optional[dict[str, Any]], end: float, method: Optional[str]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._config.api_key:
            headers["Authorization"] = f"Bearer {self._config.api_key}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data, headers, method=method)
        left = max(end - time.monotonic(), 0.001)
        try:
            with urllib.request.urlopen(request, timeout=left, context=self._context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise _error_of(url, error) from error
        except TimeoutError as error:
            raise DeadlineError(f"{url}: no answer within {self._config.deadline_s:g} s") from error
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise DeadlineError(f"{url}: no answer within {self._config.deadline_s:g} s") from error
            raise UnavailableError(f"{url}: {getattr(error, 'reason', error)}") from error
        except ValueError as error:
            raise EvalError(f"{url}: the answer is not JSON: {error}") from error

    def ask(self, question: Question) -> Reply:
        body = request_of(question, self._config.as_text) | {"model": self.model}
        if self.is_sluice:
            body |= _sluice_fields(question) | {"deadline_ms": int(1000 * self._config.deadline_s)}
        elif question.recipe != "full":
            raise RefusedError("the server is not Sluice and has no recipes")
        answer = self.post(f"{self._url}/completions", body)
        reply = _reply_of(answer)
        if answer.get("sluice", {}).get("stored_tokens"):  # then the statistics only cover the rest
            planned = self._recipes.planned_offload(question.recipe, len(question.ids) - 1)
            reply = dataclasses.replace(reply, offloaded_bytes=planned)
        return reply

    def close(self) -> None:
        self._closed.set()


def _error_of(url: str, error: urllib.error.HTTPError) -> Exception:
    try:
        body = json.load(error)
        found = body.get("error", body)
        message = found.get("message", str(body)) if isinstance(found, dict) else str(found)
    except (ValueError, AttributeError, OSError):
        message = error.reason
    if error.code in (400, 404, 405, 413, 422):
        return RefusedError(str(message))
    if error.code in (429, 502, 503):
        unavailable = UnavailableError(f"{url}: {message}")
        after = error.headers.get("Retry-After", "")
        unavailable.retry_after = float(after) if after.isdigit() else 0
        return unavailable
    return (DeadlineError if error.code == 504 else EvalError)(f"{url}: {error.code}: {message}")
