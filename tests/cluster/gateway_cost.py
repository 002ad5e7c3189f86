#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of the gateway: the same answers over gRPC, HTTP and HTTPS, by turns, as a client sees them.

    tests/cluster/gateway_cost.py [--turns N] [--tokens N]

Medians of the time to the first token and of the time a token, and their ratios to gRPC's of the same turn. The client is Python's, one
connection a request for HTTP and HTTPS (with its handshake), one for all for gRPC in the clear.
"""
import argparse
import contextlib
import json
import os
import ssl
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Cluster, certificates, document, inference, question  # noqa: E402
from test_gateway import Gateway  # noqa: E402
from test_gateway_access import secured  # noqa: E402

PROMPT = document(4000) + question()


def over_grpc(cluster, n_tokens):
    began, times = time.monotonic(), []
    asked = inference.GenerateRequest(text=PROMPT, recipe="full", max_new_tokens=n_tokens, ignore_eos=True)
    for event in cluster.generate(asked):
        if event.HasField("token"):
            times.append(time.monotonic() - began)
    return times


def over_http(gateway, n_tokens):
    began, times = time.monotonic(), []
    asked = {"prompt": PROMPT, "recipe": "full", "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0, "logprobs": 0}
    with gateway.stream("/v1/completions", asked) as (reply, _):
        for line in reply:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["finish_reason"] is None:
                times.append(time.monotonic() - began)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(certificates("server/gateway"))
        cluster = stack.enter_context(Cluster(kvstore=0))
        context = ssl.create_default_context(cafile=f"{made.folder}/ca.pem")
        context.check_hostname = False
        plain = stack.enter_context(Gateway(cluster))
        https = stack.enter_context(secured(cluster, context, "--https-cert", made.file("server/gateway", "pem"), "--https-key",
                                            made.file("server/gateway", "key")))
        ways = {"gRPC": lambda n: over_grpc(cluster, n), "HTTP": lambda n: over_http(plain, n), "HTTPS": lambda n: over_http(https, n)}
        first, each = {way: [] for way in ways}, {way: [] for way in ways}
        for turn in range(options.turns + 1):
            for way, ask in ways.items():
                times = ask(options.tokens)
                assert len(times) == options.tokens, (way, len(times))
                if turn > 0:
                    first[way].append(times[0])
                    each[way].append((times[-1] - times[0]) / (len(times) - 1))
        print(f"{'':8}{'first token':>14}{'of gRPC':>10}{'a token':>12}{'of gRPC':>10}")
        for way in ways:
            ratios = [[mine / theirs for mine, theirs in zip(kind[way], kind["gRPC"])] for kind in (first, each)]
            print(f"{way:8}{statistics.median(first[way]) * 1e3:11.1f} ms{statistics.median(ratios[0]):10.3f}"
                  f"{statistics.median(each[way]) * 1e3:9.2f} ms{statistics.median(ratios[1]):10.3f}")


if __name__ == "__main__":
    main()
