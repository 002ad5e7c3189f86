#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""late_request.py ADDRESS MS: a call whose request does not come ends after so long, and not before."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import script  # noqa: E402
from partial_requests import Client  # noqa: E402


def main():
    address, ms = sys.argv[1:]
    client = Client(address)
    began = time.monotonic()
    client.open(1)
    assert client.answer(1, f"the request has not come within {ms} ms".encode()), client.received
    assert time.monotonic() - began > float(ms) / 1000


if __name__ == "__main__":
    script.needs_arguments(2, "ADDRESS MS")
    main()
