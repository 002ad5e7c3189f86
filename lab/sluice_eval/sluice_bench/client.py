# SPDX-License-Identifier: Apache-2.0
"""Asks a server for one streamed completion, and notes when each token came. One connection a request."""
from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
import urllib.parse
from typing import Any, Optional, Union

from sluice_eval.answerers import HttpAnswerer, HttpConfig
from sluice_eval.errors import UnavailableError, UsageError

from .answer import CUT, DONE, FAILED, REFUSED, Answer
from .grpc_client import GrpcServer
from .http_stream import MAX_ERROR, Events, ProtocolError, Reply, error_text

class Server:
    """A server: its address, which is looked up once, and how to talk to it."""

    def __init__(self, url: str, name: str = "", model: str = "", api_key: str = "", ca_file: Optional[str] = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url {url}: expected something like http://127.0.0.1:8000")
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self.name = name
        known = HttpAnswerer(HttpConfig(self.url, model, api_key, ca_file, deadline_s=10))
        models = known.call(f"{self.url}/models", None, time.monotonic() + 10).get("data") or [{}]
        self.model, self.is_sluice = known.model, known.is_sluice
        mine = next((one for one in models if one.get("id") == self.model), {})
        self.max_tokens: Optional[int] = mine.get("max_model_len")
        self.tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self.host = parts.hostname
        port = parts.port or (443 if self.tls else 80)
        try:  # once: a look-up takes time and descriptors
            self.family, _, _, _, address = socket.getaddrinfo(self.host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise UnavailableError(f"{url}: {error.strerror}") from error
        self.address, self.port = address[0], port
        path = urllib.parse.urlsplit(self.url).path
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._head = (f"POST {path}/completions HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
                      f"Accept: text/event-stream\r\nConnection: close\r\n{key}")

    def message(self, fields: dict[str, Any]) -> bytes:
        body = json.dumps({"model": self.model, **fields}).encode()
        return f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def ask(self, message: bytes, deadline_s: float) -> Answer:
        """Sends the message and returns the answer, whatever became of it. OSError: no connection could be made."""
        loop = asyncio.get_running_loop()
        answer, ended = Answer(sent_s=time.monotonic()), loop.create_future()
        stream = _Stream(message, answer, ended)
        timer = loop.call_later(deadline_s, lambda: stream.finish(FAILED, f"no answer within {deadline_s:g} s"))
        connecting = asyncio.ensure_future(loop.create_connection(
            lambda: stream, self.address, self.port, family=self.family, ssl=self.tls,
            server_hostname=self.host if self.tls else None))
        try:
            await asyncio.wait([connecting, ended], return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                connecting.result()
            await ended
        except asyncio.CancelledError:
            stream.finish(CUT, "the run was stopped")
        finally:
            timer.cancel()
            connecting.cancel()
            stream.finish(CUT)
        return answer


def completion(prompt: str, n_output: int, extra: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a greedy, streamed completion of exactly n_output tokens. A field of `extra` that is None is left out."""
    fields = {"prompt": prompt, "max_tokens": n_output, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
              "ignore_eos": True, **extra}
    return {name: value for name, value in fields.items() if value is not None}


class _Stream(asyncio.Protocol):
    """Reads the reply into the answer; `ended` is set when nothing more will come."""

    def __init__(self, message: bytes, answer: Answer, ended: asyncio.Future[None]) -> None:
        self._message, self._answer, self._ended = message, answer, ended
        self._reply, self._events = Reply(), Events()
        self._error = bytearray()
        self._is_finished = self._is_over = False  # a finish_reason came; the answer is complete
        self._transport: Optional[asyncio.Transport] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._message)
        self._message = b""

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        try:
            body = self._reply.feed(data)
            if self._reply.status == 200:
                for event in self._events.feed(body):
                    self._take(event, now)
            else:
                self._error += body[:MAX_ERROR - len(self._error)]
        except ProtocolError as error:
            self.finish(FAILED, str(error))
            return
        if self._events.is_done or self._reply.is_complete:
            self._end()

    def connection_lost(self, error: Optional[Exception]) -> None:
        self._reply.end()
        self._end(error)

    def _take(self, event: dict[str, Any], now: float) -> None:
        answer = self._answer
        if event.get("error"):
            self.finish(FAILED, error_text(json.dumps(event).encode()))
            return
        choices = event.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            reason = choices[0].get("finish_reason")
            text = choices[0].get("text")
            if text or reason is None:
                answer.token_s.append(now)
                answer.text += text if isinstance(text, str) else ""
            self._is_finished = self._is_finished or reason is not None
        usage = event.get("usage")
        if isinstance(usage, dict):
            answer.n_prompt, answer.n_output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
            details = usage.get("prompt_tokens_details")
            answer.n_cached = _count(details, "cached_tokens") or 0
        if isinstance(event.get("sluice"), dict):
            answer.sluice = event["sluice"]

    def _end(self, error: Optional[Exception] = None) -> None:
        status, n = self._reply.status, len(self._answer.token_s)
        if status not in (0, 200):
            text = error_text(bytes(self._error)) or "without a text"
            self.finish(REFUSED if status in (429, 503) else FAILED, f"{status}: {text}")
        elif self._is_finished and n and (self._events.is_done or self._reply.is_complete):
            self.finish(DONE)
        elif status == 0:
            self.finish(FAILED, f"the connection ended without a reply{f': {error}' if error else ''}")
        else:
            what = "the stream" if n or "event-stream" in self._reply.headers.get("content-type", "") else "the reply, which is not a stream,"
            self.finish(FAILED, f"{what} ended after {n} tokens without a finish_reason" if not self._is_finished
                        else f"{what} ended without [DONE]" if n else f"{what} had no token")

    def finish(self, status: str, error: str = "") -> None:
        if not self._is_over:
            self._is_over = True
            self._answer.status, self._answer.error, self._answer.end_s = status, error, time.monotonic()
            if not self._ended.done():  # a cancelled caller has cancelled it
                self._ended.set_result(None)
        if self._transport:
            self._transport.abort()


def _count(usage: Any, name: str) -> Optional[int]:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


AnyServer = Union[Server, GrpcServer]


def open_server(url: str, name: str, model: str, api_key: str, ca_file: Optional[str]) -> AnyServer:
    return GrpcServer(url, name, model) if url.startswith("grpc://") else Server(url, name, model, api_key, ca_file)
