#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""endless_headers.py ADDRESS [FOLDER WHO]: HTTP/2 by hand, over TLS with a certificate. A header block in several frames is served;
of one that does not end, the server takes few bytes, and closes the connection. So it does with pings and settings whose acknowledgments
are not read."""
import os
import socket
import ssl
import struct
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402

HEADERS, SETTINGS, PING, CONTINUATION = 1, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
MOST = 32 << 20  # the kernel's buffers take some megabytes of what the server does not read


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def field(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value  # literal, without the table


CALL = b"".join(field(*pair) for pair in ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/test.Echo/Get"), (b":authority", b"x"),
                                          (b"te", b"trailers"), (b"content-type", b"application/grpc")))


def connect(address, folder=None, who=None):
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=20)
    if folder:
        context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        context.load_cert_chain(f"{folder}/{who}.pem", f"{folder}/{who}.key")
        context.set_alpn_protocols(["h2"])
        connection = context.wrap_socket(connection, server_hostname="localhost")
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
    return connection


def is_served(connection, block, step):
    """Sends a header block in pieces of `step` bytes. True: an answer has come."""
    pieces = [block[i:i + step] for i in range(0, len(block), step)]
    for i, piece in enumerate(pieces):
        flags = END_HEADERS if i == len(pieces) - 1 else 0
        connection.sendall(frame(CONTINUATION if i else HEADERS, flags | (0 if i else END_STREAM), 1, piece))
    received = b""
    while True:
        got = connection.recv(65536)
        if not got:
            return False
        received += got
        at = 0
        while at + 9 <= len(received):
            if received[at + 3] == HEADERS:
                return True
            at += 9 + int.from_bytes(received[at:at + 3], "big")


def bytes_taken(connection, piece):
    """Sends pieces of a header block that does not end. Returns their bytes when the server closes the connection."""
    connection.sendall(frame(HEADERS, 0, 1, CALL))
    pieces, sent = frame(CONTINUATION, 0, 1, piece) * (1 if piece else 1000), 0
    try:
        while sent < MOST:
            connection.sendall(pieces)
            sent += len(pieces)
    except OSError:
        pass
    return sent


def acknowledged_bytes_taken(connection, kind, payload):
    """Sends frames that the server acknowledges, and reads nothing. Returns their bytes when the server closes the connection."""
    frames, sent = frame(kind, 0, 0, payload) * 1000, 0
    try:
        while sent < MOST:
            connection.sendall(frames)
            sent += len(frames)
    except OSError:
        pass
    return sent


def main():
    with connect(*sys.argv[1:]) as one:
        if not is_served(one, CALL + field(b"k", b"v" * 100) * 40, 7):  # more frames than bytes in most
            sys.exit("a header block in pieces was not answered")
    for what in (field(b"k", b"v" * 100) * 150, b"v" * 16000, b""):
        with connect(*sys.argv[1:]) as one:
            taken = bytes_taken(one, what)
            print(f"pieces of {len(what)} bytes: closed after {taken >> 10} KiB")
            if taken >= MOST:
                sys.exit("a header block without an end was read on and on")
    for kind, payload in (PING, bytes(8)), (SETTINGS, b""):
        with connect(*sys.argv[1:]) as one:
            taken = acknowledged_bytes_taken(one, kind, payload)
            print(f"frames of type {kind}: closed after {taken >> 10} KiB")
            if taken >= MOST:
                sys.exit("pings or settings were read on and on")


if __name__ == "__main__":
    script.needs_arguments(1, "ADDRESS [FOLDER WHO]")
    main()
