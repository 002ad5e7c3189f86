# SPDX-License-Identifier: Apache-2.0
"""Parses an HTTP/1.1 reply and the events in it, piece by piece as the bytes come."""
from __future__ import annotations

import json
from typing import Any, Iterator, Optional

MAX_HEAD, MAX_LINE, MAX_ERROR = 1 << 16, 1 << 22, 1 << 16  # bytes


class ProtocolError(Exception):
    """The reply is not HTTP, or not a stream of events."""


class Reply:
    """The head and the body of one reply."""

    def __init__(self) -> None:
        self.status = 0  # 0: the head is not complete
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self._buffer = bytearray()
        self._is_chunked = False
        self._left: Optional[int] = None  # bytes of the body or of the chunk; None: until the connection ends

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes of the body that are in `data`."""
        self._buffer += data
        if not self.status and not self._parse_head():
            return b""
        return self._chunks() if self._is_chunked else self._plain()

    def end(self) -> None:
        """Notes that the connection has ended."""
        if self.status and not self._is_chunked and self._left is None:
            self.is_complete = True

    def _parse_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise ProtocolError("the reply's head is too long")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[:end + 4]
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ProtocolError(f"the reply is not HTTP/1.1: {lines[0][:60]!r}")
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if words[1].startswith("1"):  # such as 100 Continue: the reply comes after it
            return self._parse_head()
        self.status = int(words[1])
        self._is_chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        self._left = 0 if self._is_chunked else int(length) if length.isdigit() else None
        return True

    def _plain(self) -> bytes:
        body = bytes(self._buffer)
        self._buffer.clear()
        if self._left is not None:
            body = body[:self._left]
            self._left -= len(body)
            self.is_complete = self._left == 0
        return body

    def _chunks(self) -> bytes:
        """A chunk is its size, a line's end, its bytes and a line's end."""
        parts, at = [], 0
        while not self.is_complete:
            if self._left:
                part = self._buffer[at:at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
            line_end = self._buffer.find(b"\r\n", at)
            if line_end == at:  # the end of a chunk's bytes
                at += 2
                continue
            if line_end < 0:
                if len(self._buffer) - at > MAX_HEAD:
                    raise ProtocolError("a chunk's size is too long")
                break
            try:
                self._left = int(bytes(self._buffer[at:line_end]).split(b";")[0], 16)
            except ValueError as error:
                raise ProtocolError("a chunk has no size") from error
            at = line_end + 2
            self.is_complete = self._left == 0
        del self._buffer[:at]
        return b"".join(parts)


class Events:
    """Server-sent events: the objects after "data:". Comments and other fields are ignored."""

    def __init__(self) -> None:
        self.is_done = False  # [DONE] came
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        if len(rest) > MAX_LINE:
            raise ProtocolError("a line of the stream is too long")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                self.is_done = True
                continue
            try:
                event = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"an event is not JSON: {bytes(text[:60])!r}") from error
            if not isinstance(event, dict):
                raise ProtocolError(f"an event is not a JSON object: {bytes(text[:60])!r}")
            yield event


def error_text(body: bytes) -> str:
    """Returns the message of an error's body: OpenAI's form, another one, or plain text."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace").strip()[:200]
    while isinstance(found, dict):
        found = found.get("error", found.get("message", found.get("detail")))
    return str(found)[:500]
