#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""unread_replies.py ADDRESS: long replies that one client does not read, and another reads at once: it does not wait for the first. On a busy
machine the replies themselves may take as long, so one of several attempts decides."""
import os
import socket
import struct
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import script  # noqa: E402
from partial_requests import MIB, SETTINGS, WAIT_S, WINDOW_UPDATE, Client, frame  # noqa: E402

LONG = struct.pack(">BI", 0, 6) + b"\x0a\x04long"  # its reply is a bit longer than 1 MiB
N_UNREAD, N_READ = 60, 20  # each more than one client may have unread, and together less than all may
UNREAD_S = 5  # after which the server stops to wait for a client
ATTEMPTS = 6


def ask(client, n):
    for stream in range(1, 2 * n, 2):
        client.open(stream)
        client.send(stream, LONG)
        client.finish(stream)


def wait_for(client, stream, n_bytes):
    with client.changed:
        assert client.changed.wait_for(lambda: len(client.received.get(stream, b"")) >= n_bytes, WAIT_S), stream


def attempt():
    """Returns how long replies take for the client that reads them."""
    unread, reads = Client(sys.argv[1]), Client(sys.argv[1])
    ask(unread, N_UNREAD)
    wait_for(unread, 1, 1)
    began = time.monotonic()
    reads._send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 24)) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)))
    ask(reads, N_READ)
    for stream in range(1, 2 * N_READ, 2):
        wait_for(reads, stream, MIB)
    took_s = time.monotonic() - began
    print(f"{N_READ} replies after {took_s:.2f} s", flush=True)
    for client in unread, reads:
        client.connection.shutdown(socket.SHUT_RDWR)
    return took_s


def main():
    assert any(attempt() < 0.7 * UNREAD_S for _ in range(ATTEMPTS)), "it waited for the client that does not read"


if __name__ == "__main__":
    script.needs_arguments(1, "ADDRESS")
    main()
