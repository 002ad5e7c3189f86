#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Replay a trace in Mooncake's format through the gateway by aiperf, at the times that it tells.

    tests/cluster/replay_trace.py TRACE [--rows N] [--speed X] [--tokens N] [--recipe R] [--url URL --model NAME]

A row is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}: rows with equal ids at their beginning have
a prompt in common, 512 tokens for each id. Without --url a cluster of one prefill and one decode worker and a kvstore is started for it.
aiperf comes from pip (1.2 GB), in PATH or named by SLUICE_AIPERF; its own files stay in --out.
"""
import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, SLOW, Cluster, script  # noqa: E402
from test_gateway import Gateway  # noqa: E402

BLOCK = 512  # tokens that an id of a row stands for


class Failed(Exception):
    pass


def aiperf():
    """The program's path, or None."""
    return os.environ.get("SLUICE_AIPERF") or shutil.which("aiperf")


def block(words, identity, n_tokens):
    """A text of about that many tokens, the same one for the same id."""
    chosen = random.Random(identity)
    return " ".join(chosen.choice(words) for _ in range(max(1, n_tokens)))


def written(rows, speed, most_tokens, words):
    """The rows as aiperf takes them with their texts: by lengths alone it would need its tokenizer in processes that find no local one."""
    for row in rows:
        whole, rest = divmod(row["input_length"], BLOCK)
        ids = row["hash_ids"]
        pieces = [block(words, one, BLOCK) for one in ids[:whole]] + [block(words, f"{ids[-1]} {rest}", rest)] * (rest > 0)
        yield {"timestamp": int(row["timestamp"] / speed), "text_input": " ".join(pieces),
               "output_length": min(row["output_length"], most_tokens)}


def common_words():
    """Words that are one token or two in most vocabularies."""
    with open("/usr/share/common-licenses/GPL-3") as file:
        counts = {}
        for word in file.read().lower().split():
            if word.isalpha() and len(word) < 6:
                counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: (-counts[word], word))[:64]


def replay(url, model, rows, out, extra=(), deadline_s=600):
    """aiperf's report, as it is in its profile_export_aiperf.json. Failed: with the end of what it printed."""
    path = os.path.join(out, "trace.jsonl")
    with open(path, "w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    words = [aiperf(), "profile", "-m", model, "-u", url, "--endpoint-type", "completions", "--streaming", "--tokenizer", MODEL,
             "--input-file", path, "--custom-dataset-type", "mooncake_trace", "--fixed-schedule", "--fixed-schedule-auto-offset",
             "--ui", "none", "--output-artifact-dir", out, "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"]
    for name, value in extra:
        words += ["--extra-inputs", f"{name}:{value}"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=deadline_s * SLOW, stdin=subprocess.DEVNULL)
    report = os.path.join(out, "profile_export_aiperf.json")
    if run.returncode != 0 or not os.path.exists(report):
        raise Failed(f"aiperf ended with {run.returncode}:\n" + (run.stdout + run.stderr)[-3000:])
    with open(report) as file:
        return json.load(file)


def show(report):
    for name in ("request_count", "error_request_count", "input_sequence_length", "output_sequence_length", "time_to_first_token",
                 "inter_token_latency", "request_latency", "usage_prompt_cache_read_tokens"):
        if name in report and report[name]:
            figures = report[name]
            print(f"{name:34}" + "".join(f" {key} {figures[key]:.1f}" for key in ("avg", "p50", "p99") if figures.get(key) is not None)
                  + f" {figures['unit']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster than told [1]")
    parser.add_argument("--tokens", type=int, default=100, help="at most so many of an answer [100]")
    parser.add_argument("--recipe", help="of every job; without: the cluster's own")
    parser.add_argument("--url", help="of a gateway that is there")
    parser.add_argument("--model", default="demo", help="with --url: what it serves [demo]")
    parser.add_argument("--out", help="aiperf's files; without: not kept")
    options = parser.parse_args()
    if not aiperf():
        script.stop("needs aiperf: pip install aiperf, or let SLUICE_AIPERF name the program")
    try:
        with open(options.trace) as file:
            rows = [json.loads(line) for _, line in zip(range(options.rows), file)]
    except (OSError, ValueError) as error:
        script.stop(f"{options.trace}: {error}")
    with contextlib.ExitStack() as stack:
        out = options.out or stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-replay-"))
        os.makedirs(out, exist_ok=True)
        if options.url:
            url, model = options.url, options.model
        else:
            cluster = stack.enter_context(Cluster(worker_args={role: ["--arena", "1G"] for role in ("prefill", "decode", "kvstore")}))
            gateway = stack.enter_context(Gateway(cluster))
            url, model = f"http://{gateway.host}:{gateway.port}", os.path.basename(MODEL)
        extra = [("recipe", options.recipe)] if options.recipe else []
        show(replay(url, model, written(rows, options.speed, options.tokens, common_words()), out, extra))


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(str(error))
