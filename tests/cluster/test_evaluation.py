#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An evaluation over HTTP asks a cluster what it asks one process, and gets the same answers."""
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile

from harness import MODEL, SLOW, Cluster, eventually, run_tests
from test_gateway import Gateway

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Prompts that begin alike would be resumed from each other in the store, of quantized recipes from quantized pages.
SUITES = ["run", "--tasks", "niah-essay,multivalue", "--lengths", "700", "--samples", "2"]
RECIPES = ["--recipe", "h2o,chunk=128;snapkv;streamingllm,chunk=128", "--budget", "20%",
           "--recipe", "full,format=int4;tailorkv,topk=16;d2o,budget=0.3;full,format=f16/50-60:int4"]
LOCAL = ["--model", MODEL]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "lab/sluice_eval")}


def words_of(*words):
    return [sys.executable, "-m", "sluice_eval", *words]


def evaluate(*words):
    run = subprocess.run(words_of(*words), capture_output=True, text=True, timeout=240 * SLOW, check=False, env=ENVIRONMENT)
    return run.returncode, run.stdout, run.stderr


def remote(gateway):
    return ["--url", f"http://{gateway.host}:{gateway.port}/v1", "--tokenizer", MODEL]


def answers(path):
    """The lines of a file of results by their question."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file][1:]
    return {(a["recipe"], a["cell"], a["index"]): a for a in lines}


def test_a_cluster_answers_as_one_process_does():
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder, \
            Cluster(worker_args={"kvstore": ["--arena", "128M"]}) as cluster, Gateway(cluster) as gateway:
        found = []
        for where in (LOCAL, [*remote(gateway), "--concurrency", "3"]):
            out = os.path.join(folder, str(len(found)))
            code, text, errors = evaluate(*SUITES, *RECIPES, *where, "--out", out)
            assert code == 0, errors
            assert "28 of 32 answers" in text, text
            found.append(answers(out))
        local, served = found
        assert local.keys() == served.keys() and len(local) == 32
        for key, a in local.items():
            b = served[key]
            if "f16/50-60" in key[0]:
                assert "layer 60" in a["refused"] and "layer 60" in b["refused"], (a, b)
                continue
            # Prefill holds the newest slots alone of layers that it offloads.
            offloads = "place=offload" in key[0]
            assert (a["offloaded_bytes"] > 0) == offloads, (key, a)
            fields = ["answer", "score", "prompt", "n_prompt", "full_bytes", "offloaded_bytes"]
            for field in fields + ([] if offloads else ["slots_per_head"]):
                assert a[field] == b[field], (key, field, a, b)
            header = b["shipped_bytes"] - a["shipped_bytes"]  # a capsule's
            assert 0 < header < 2000, (key, a["shipped_bytes"], b["shipped_bytes"])
        # Stores have all of it now: that counts as if they had got it.
        out = os.path.join(folder, "again")
        code, text, errors = evaluate(*SUITES, "--recipe", "tailorkv,topk=16", *remote(gateway), "--out", out)
        assert code == 0, errors
        again = {key: a for key, a in answers(out).items() if "place=offload" in key[0]}
        assert len(again) == 4 and all(a["n_reused"] > 0 for a in again.values()), again
        assert all(a["offloaded_bytes"] == served[key]["offloaded_bytes"] > 0 for key, a in again.items()), again
        # A run that one of them began can be continued by the other: it is the same run.
        code, text, errors = evaluate(*SUITES, *RECIPES, "--recipe", "full,format=int8", *remote(gateway), "--out",
                                      os.path.join(folder, "0"))
        assert code == 0, errors
        assert "32 of 36 answers" in text, text


def test_a_cluster_of_another_model_is_refused():
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        code, _, errors = evaluate(*SUITES, *remote(gateway), "--weights", "int8")
        assert code == 1 and "serves another model than" in errors, errors
        assert not cluster.list()


def test_an_interrupt_cancels_the_question_and_keeps_the_answers():
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder, Cluster() as cluster, Gateway(cluster) as gateway:
        out = os.path.join(folder, "r.jsonl")
        command = [*SUITES, *RECIPES, *remote(gateway), "--concurrency", "1", "--out", out]
        with subprocess.Popen(words_of(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as run:
            eventually(lambda: os.path.exists(out) and len(answers(out)) >= 3, 60, "some answers")
            run.send_signal(signal.SIGINT)
            text, errors = run.communicate(timeout=60 * SLOW)
        assert run.returncode == 4, (run.returncode, errors)
        kept = len(answers(out))
        assert f"{kept} of 32 answers" in text and "continues from" in errors, (text, errors)
        eventually(lambda: not any(cluster.gauges().values()), 10, "the question was cancelled")
        code, text, errors = evaluate(*command)
        assert code == 0 and "28 of 32 answers" in text, (text, errors)
        assert len(answers(out)) == 32


if __name__ == "__main__":
    if importlib.util.find_spec("numpy") is None:
        print("skipped: NumPy is missing (python3-numpy)")
        raise SystemExit(77)
    raise SystemExit(run_tests(globals()))
