#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""partial_requests.py ADDRESS [FOLDER WHO OTHER]: HTTP/2 by hand, over TLS with certificates, to a server with 4 MiB for requests in part.
Of a caller that sends halves of requests, or announces 4 GiB, it refuses those that wait longest; another's, which had begun before, is
answered. Without certificates the server has streams of requests, which it cannot refuse: it closes their connection."""
import contextlib
import os
import select
import socket
import ssl
import struct
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import script  # noqa: E402
from endless_headers import CALL, END_HEADERS, END_STREAM, HEADERS, SETTINGS, connect, frame  # noqa: E402

DATA, RST_STREAM, PING, WINDOW_UPDATE, ACK = 0, 3, 6, 8, 1
MIB = 1 << 20
MOST = 4 * MIB
IN_FLIGHT = 3 * MIB  # what the server had read, and dropped, when it closed the connection
WAIT_S = 60
N = 10  # calls of a caller that sends halves
OVER = b"more than its part of the memory"


class Client:
    """Sends no more than the server's windows take, and keeps what comes."""

    def __init__(self, *where):
        self.connection, self.buffer = connect(*where), b""
        self.is_tls = isinstance(self.connection, ssl.SSLSocket)
        self.changed, self.sending = threading.Condition(), threading.Lock()
        self.initial, self.windows, self.received, self.has_ended = 65535, {0: 65535}, {}, False
        threading.Thread(target=self._read, daemon=True).start()

    def _send(self, data):
        with self.sending:
            self.connection.sendall(data)

    def _bytes(self, n):
        """The next n bytes; fewer at the end."""
        while len(self.buffer) < n:
            if not (self.is_tls and self.connection.pending()):
                select.select([self.connection], [], [])
            with self.sending if self.is_tls else contextlib.nullcontext():  # OpenSSL must not read while another thread writes
                piece = self.connection.recv(1 << 16)
            if not piece:
                break
            self.buffer += piece
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken

    def _read(self):
        with contextlib.suppress(OSError, ValueError):  # it is closed
            while len(head := self._bytes(9)) == 9:
                payload = self._bytes(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()

    def _take(self, kind, flags, stream, payload):
        if kind in (PING, SETTINGS) and not flags & ACK:
            self._send(frame(kind, ACK, 0, payload if kind == PING else b""))
        with self.changed:
            if kind == SETTINGS:
                for key, value in struct.iter_unpack(">HI", payload):
                    if key == 4:
                        self.windows.update({one: room + value - self.initial for one, room in self.windows.items() if one})
                        self.initial = value
            elif kind == WINDOW_UPDATE:
                self.windows[stream] = self.windows.get(stream, self.initial) + struct.unpack(">I", payload)[0]
            elif kind in (HEADERS, DATA, RST_STREAM):
                self.received[stream] = self.received.get(stream, b"") + payload
            self.changed.notify_all()

    def open(self, stream, headers=CALL):
        self._send(frame(HEADERS, END_HEADERS, stream, headers))

    def _has_ended(self, stream):
        return self.has_ended or stream in self.received

    def send(self, stream, data):
        """Returns how many bytes were sent before the call, or the connection, ended."""
        sent = 0
        try:
            while sent < len(data):
                with self.changed:
                    self.windows.setdefault(stream, self.initial)
                    # A refused call gets no more windows
                    assert self.changed.wait_for(lambda: self._has_ended(stream) or min(self.windows[0], self.windows[stream]) > 0, WAIT_S), "no window"
                    n = min(self.windows[0], self.windows[stream], len(data) - sent, 16384)
                    if self._has_ended(stream):
                        return sent
                    self.windows[0] -= n
                    self.windows[stream] -= n
                self._send(frame(DATA, 0, stream, data[sent:sent + n]))
                sent += n
        except OSError:
            pass
        return sent

    def finish(self, stream):
        self._send(frame(DATA, END_STREAM, stream))

    def answer(self, stream, said):
        """Waits until the server has said something on a stream."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.has_ended or said in self.received.get(stream, b""), WAIT_S), self.received
            return said in self.received.get(stream, b"")


def message(n_bytes):
    """A JobRequest, whose job_id has so many bytes."""
    assert n_bytes >= 1 << 14
    body = b"\x0a" + bytes([n_bytes & 127 | 128, n_bytes >> 7 & 127 | 128, n_bytes >> 14]) + b"x" * n_bytes
    return struct.pack(">BI", 0, len(body)) + body


def main():
    address, folder, *names = sys.argv[1:] + [None] * (4 - len(sys.argv[1:]))
    mine, others = ([folder, name] if folder else [] for name in names)
    other, halves = Client(address, *others), message(100000)
    other.open(1)
    other.send(1, halves[:60000])

    greedy = Client(address, *mine)
    for stream in range(1, 2 * N, 2):
        greedy.open(stream)
        greedy.send(stream, message(900000)[:800000])
        if stream >= 2 * 3 + 1:  # four are more than three quarters
            assert greedy.answer(stream - 2 * 3, OVER), greedy.received.keys()
    assert not greedy.has_ended and set(greedy.received) - {0} >= set(range(1, 2 * (N - 3), 2)), greedy.received.keys()
    greedy.open(2 * N + 1)
    greedy.send(2 * N + 1, struct.pack(">BI", 0, (1 << 32) - 1) + bytes(16 * MIB))
    assert greedy.answer(2 * N + 1, OVER) or greedy.has_ended  # the server may be too late
    with contextlib.suppress(OSError):
        greedy.connection.shutdown(socket.SHUT_RDWR)

    if not folder:
        stream = Client(address)
        stream.open(1, CALL.replace(b"/test.Echo/Get", b"/test.Echo/Chat").replace(b":path\x0e", b":path\x0f"))
        sent = stream.send(1, struct.pack(">BI", 0, (1 << 32) - 1) + bytes(16 * MIB))
        with stream.changed:
            assert stream.changed.wait_for(lambda: stream.has_ended, WAIT_S)
        print(f"closed after {sent >> 10} KiB", flush=True)
        assert MOST / 2 < sent < MOST + IN_FLIGHT, sent

    other.send(1, halves[60000:])
    other.finish(1)
    assert other.answer(1, b"\n\1o" if folder else b"x" * 1000), other.received  # the caller's name, or an echo
    other.connection.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    script.needs_arguments(1, "ADDRESS [FOLDER WHO OTHER]")
    main()
