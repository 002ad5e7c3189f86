#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""revoked_calls.py ADDRESS FOLDER WHO NAME OTHER: calls that are open when the certificate WHO, of the identity NAME, is revoked: the server ends
one that is handled and one whose request has not come, and those of OTHER go on."""
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import script  # noqa: E402
from partial_requests import Client  # noqa: E402

REVOKED = b"was revoked"


def message(job_id):
    return struct.pack(">BI", 0, 2 + len(job_id)) + b"\x0a" + bytes([len(job_id)]) + job_id


def call(client, stream, job_id):
    client.open(stream)
    client.send(stream, message(job_id))
    client.finish(stream)


def main():
    address, folder, who, name, other_who = sys.argv[1:]
    revoked, other = Client(address, folder, who), Client(address, folder, other_who)
    for client in (revoked, other):
        call(client, 1, b"wait")
        client.open(3)
        call(client, 5, b"x")  # accepted after the others
        assert client.answer(5, b"\x0a"), client.received
    subprocess.run(["tools/test-ca.sh", folder, f"-{name}"], check=True)
    for stream in (1, 3):
        assert revoked.answer(stream, REVOKED), revoked.received
    call(revoked, 7, b"x")
    assert revoked.answer(7, REVOKED), revoked.received
    assert not {1, 3} & other.received.keys(), other.received
    other.send(3, message(b"x"))
    other.finish(3)
    assert other.answer(3, b"\x0a"), other.received


if __name__ == "__main__":
    script.needs_arguments(5, "ADDRESS FOLDER WHO NAME OTHER")
    main()
