#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The engine reads and answers without the network: a program of it alone writes what `sluice run --local` writes, and links
no library that talks to other machines or encrypts for them.

    test_engine.py SMOKE_PROGRAM FOLDER_OF_PROGRAMS
"""
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import script  # noqa: E402

MODEL, PROMPT, N_TOKENS = "models/demo", "The sky over the harbour was grey. The boats", "12"
NETWORK = re.compile(r"libuc[pmst]|libgrpc|libgpr|libssl|libcrypto|libIPSec_MB|libcurl|libmicrohttpd|libgnutls|librdma|libibverbs")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def main():
    script.needs_arguments(2, "SMOKE_PROGRAM FOLDER_OF_PROGRAMS")
    script.needs_programs(os.path.dirname(sys.argv[1]) or ".", os.path.basename(sys.argv[1]))
    smoke, programs = sys.argv[1], sys.argv[2]
    linked = output("ldd", smoke)
    found = NETWORK.findall(linked)
    assert not found, f"the engine links {found}:\n{linked}"
    # The check can find one: the tool links them.
    assert NETWORK.search(output("ldd", f"{programs}/sluice")), "the tool links nothing of the network: is the pattern right?"
    for recipe in ("full", "h2o,budget=0.5,chunk=64,format=int8", "tailorkv"):
        ours = output(smoke, MODEL, recipe, PROMPT, N_TOKENS)
        tool = output(f"{programs}/sluice", "run", "--local", "--quiet", "--model", MODEL, "--recipe", recipe, "--prompt", PROMPT,
                      "--max-new-tokens", N_TOKENS, "--ignore-eos", "--temperature", "0")
        assert ours.strip() and ours.strip() == tool.strip(), f"{recipe}: {ours!r}, the tool writes {tool!r}"
    print("1 passed, 0 failed")


main()
