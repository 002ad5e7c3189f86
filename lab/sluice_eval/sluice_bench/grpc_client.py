# SPDX-License-Identifier: Apache-2.0
"""Asks a Sluice coordinator by gRPC, without a gateway. The few messages are encoded here (proto/sluice/v1/inference.proto)."""
from __future__ import annotations

import asyncio
import struct
import time
import urllib.parse
from typing import Any, Iterator, Optional, Union

from sluice_eval.errors import EvalError, UnavailableError, UsageError

from .answer import CUT, DONE, FAILED, REFUSED, Answer

_SERVICE = "/sluice.v1.Inference/"
_SAMPLING, _TEMPERATURE = 4, 1  # fields of GenerateRequest, and of Sampling
_FIELDS = {"prompt": (1, str), "recipe": (3, str), "max_tokens": (5, int), "ignore_eos": (8, bool)}  # of GenerateRequest, by their HTTP names
_TOKEN, _FINISHED = 7, 8  # of Event
_STATUS_CODE, _STATUS_TEXT, _TEXT_WHOLE, _STATISTICS = 2, 3, 4, 5  # of Finished
_STATISTICS_OF = {"capsule_bytes": 10, "full_bytes": 11, "decode_resident_bytes": 13, "retries": 16}
_HTTP_ONLY = {"stream", "stream_options", "model"}  # the meaning of the call itself


def encode(number: int, value: Union[int, float, str, bytes]) -> bytes:
    """Returns one field: a varint, a float of 32 bits, or bytes with their length."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(n: int) -> bytes:
    out = bytearray()
    n &= 2**64 - 1  # negative numbers have ten bytes
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def decode(data: bytes) -> Iterator[tuple[int, Union[int, bytes]]]:
    """Yields the fields of a message: numbers, or bytes. EvalError: it is not a message."""
    at = 0
    try:
        while at < len(data):
            key, at = _read_varint(data, at)
            if key & 7 == 0:
                value, at = _read_varint(data, at)
                yield key >> 3, value
                continue
            n, at = _read_varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            if at + n > len(data):
                raise IndexError
            yield key >> 3, data[at:at + n]
            at += n
    except (IndexError, KeyError) as error:
        raise EvalError("a message of the server is not protobuf") from error


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    n = shift = 0
    while True:
        n |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return n, at


class GrpcServer:
    """A coordinator without certificates. One connection carries all streams."""

    is_sluice = True

    def __init__(self, url: str, name: str = "", model: str = "") -> None:
        try:
            import grpc
            import grpc.aio
        except ImportError as error:
            raise UsageError("grpc:// needs grpcio: install the package python3-grpcio, or use the gateway's http://") from error
        self._grpc, self.url, self.name = grpc, url, name
        self._address = urllib.parse.urlsplit(url).netloc
        self._generate: Optional[Any] = None
        if not self._address or ":" not in self._address:
            raise UsageError(f"--url {url}: expected something like grpc://127.0.0.1:7600")
        with grpc.insecure_channel(self._address) as channel:
            try:
                known = dict(decode(channel.unary_unary(f"{_SERVICE}Model")(b"", timeout=10)))
            except grpc.RpcError as error:
                raise UnavailableError(f"{url}: {error.details() or error.code().name}") from error
        self.model = known.get(1, b"").decode()
        if model and model != self.model:
            raise UsageError(f"--model {model}: {url} has {self.model}")
        self.max_tokens: Optional[int] = known.get(3)

    def message(self, fields: dict[str, Any]) -> bytes:
        left = {name: value for name, value in fields.items() if name not in _HTTP_ONLY}
        temperature = left.pop("temperature", 0)
        self._check("temperature", temperature, (int, float))
        data = encode(_SAMPLING, encode(_TEMPERATURE, float(temperature)))
        for name, value in left.items():
            if name not in _FIELDS:
                raise UsageError(f"{self.url}: {name} is of the HTTP API: name a recipe, or use the gateway's http://")
            number, kind = _FIELDS[name]
            self._check(name, value, kind)
            data += encode(number, value)
        return data

    def _check(self, name: str, value: Any, kind: Any) -> None:
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if not fits or (not isinstance(value, str) and not -2**31 <= value < 2**31):
            raise UsageError(f"{self.url}: {name}: {value!r:.40} is not of its type")

    async def ask(self, message: bytes, deadline_s: float) -> Answer:
        if self._generate is None:
            self._generate = self._grpc.aio.insecure_channel(self._address).unary_stream(f"{_SERVICE}Generate")
        answer = Answer(sent_s=time.monotonic())
        call = self._generate(message, timeout=deadline_s)
        try:
            async for event in call:
                _take(answer, event, time.monotonic())
        except self._grpc.RpcError as error:
            answer.status, answer.error = self._failure(error, deadline_s)
        except asyncio.CancelledError:
            call.cancel()
            answer.status, answer.error = CUT, "the run was stopped"
        if answer.status == FAILED and not answer.error:
            answer.error = f"the stream ended after {len(answer.token_s)} tokens without a result"
        answer.end_s = time.monotonic()
        return answer

    def _failure(self, error: Any, deadline_s: float) -> tuple[str, str]:
        codes, code = self._grpc.StatusCode, error.code()
        if code == codes.DEADLINE_EXCEEDED:
            return FAILED, f"no answer within {deadline_s:g} s"
        return REFUSED if code in (codes.RESOURCE_EXHAUSTED, codes.UNAVAILABLE) else FAILED, f"{code.name}: {error.details()}"


def _take(answer: Answer, event: bytes, now: float) -> None:
    for number, value in decode(event):
        if number == _TOKEN:
            answer.token_s.append(now)
        elif number == _FINISHED:
            finished = dict(decode(value))
            answer.text = finished.get(_TEXT_WHOLE, b"").decode(errors="replace")
            code = finished.get(_STATUS_CODE, 0)
            answer.status = DONE if code == 0 and answer.token_s else FAILED
            answer.error = "" if answer.status == DONE else f"{code}: {finished.get(_STATUS_TEXT, b'no token').decode(errors='replace')}"
            known = dict(decode(finished.get(_STATISTICS, b"")))
            answer.n_prompt, answer.n_output, answer.n_cached = (known.get(n, 0) for n in (1, 2, 3))
            answer.sluice = {name: known.get(n, 0) for name, n in _STATISTICS_OF.items()}
