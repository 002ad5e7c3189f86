#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An evaluation asks a cluster what it asks one process, and gets the same answers."""
import json
import os
import signal
import subprocess
import tempfile
import time

from harness import BIN, MODEL, SLOW, Cluster, eventually, run_tests

# Prompts that begin alike would be resumed from each other in the store, of quantized recipes from quantized pages.
SUITES = ["eval", "suites", "--model", MODEL, "--tasks", "niah-essay,multivalue", "--lengths", "700", "--samples", "2"]
RECIPES = ["--recipe", "h2o,chunk=128;snapkv;streamingllm,chunk=128", "--budget", "20%",
           "--recipe", "full,format=int4;tailorkv,topk=16;d2o,budget=0.3;full,format=f16/50-60:int4",
           "--recipe", "tailorkv,topk=16,score=cis,budget=0.5,when=chunk"]


def sluice(*args):
    run = subprocess.run([os.path.join(BIN, "sluice"), *args], capture_output=True, timeout=240 * SLOW, check=False)
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def answers(path):
    """The lines of a file of results by their question."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file][1:]
    return {(a["recipe"], a["cell"], a["index"]): a for a in lines}


def test_a_cluster_answers_as_one_process_does():
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder, \
            Cluster(worker_args={"kvstore": ["--arena", "128M"]}) as cluster:  # for all that is asked
        found = []
        for where in ([], ["--coordinator", cluster.coordinator.address]):
            out = os.path.join(folder, str(len(found)))
            code, text, errors = sluice(*SUITES, *RECIPES, *where, "--out", out)
            assert code == 0, errors
            assert "32 of 36 answers" in text, text
            found.append(answers(out))
        local, remote = found
        assert local.keys() == remote.keys() and len(local) == 36
        for key, a in local.items():
            b = remote[key]
            if "f16/50-60" in key[0]:
                assert "layer 60" in a["refused"] and "layer 60" in b["refused"], (a, b)
                continue
            # Then prefill holds the newest slots alone. What stores get is measured there, and reckoned here.
            offloads = "place=offload" in key[0]
            assert (a["offloaded_bytes"] > 0) == offloads, (key, a)
            fields = ["answer", "score", "prompt", "n_prompt", "full_bytes", "offloaded_bytes"]
            for field in fields + ([] if offloads else ["slots_per_head"]):
                assert a[field] == b[field], (key, field, a, b)
            # A capsule's header goes on top; of recipes that offload one process reckons what a cluster ships.
            header = b["shipped_bytes"] - a["shipped_bytes"]
            assert 0 < header < 2000, (key, a["shipped_bytes"], b["shipped_bytes"])
        # Stores have all of it now: that counts as if they had got it.
        out = os.path.join(folder, "again")
        code, text, errors = sluice(*SUITES, "--recipe", "tailorkv,topk=16", "--coordinator", cluster.coordinator.address,
                                    "--out", out)
        assert code == 0, errors
        again = {key: a for key, a in answers(out).items() if "place=offload" in key[0]}
        assert len(again) == 4 and all(a["n_reused"] > 0 for a in again.values()), again
        assert all(a["offloaded_bytes"] == remote[key]["offloaded_bytes"] > 0 for key, a in again.items()), again
        # A run that one of them began can be continued by the other: it is the same run.
        code, text, errors = sluice(*SUITES, *RECIPES, "--recipe", "full,format=int8", "--coordinator",
                                    cluster.coordinator.address, "--out", os.path.join(folder, "0"))
        assert code == 0, errors
        assert "36 of 40 answers" in text, text


def test_a_cluster_of_another_model_is_refused():
    with Cluster(kvstore=0) as cluster:
        code, _, errors = sluice(*SUITES, "--coordinator", cluster.coordinator.address, "--weights", "int8")
        assert code == 1 and "serves another model than" in errors, errors
        assert not cluster.list()


def test_an_interrupt_cancels_the_question_and_keeps_the_answers():
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder, Cluster() as cluster:
        out = os.path.join(folder, "r.jsonl")
        command = [os.path.join(BIN, "sluice"), *SUITES, *RECIPES, "--coordinator", cluster.coordinator.address, "--out", out]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            eventually(lambda: os.path.exists(out) and len(answers(out)) >= 3, 60, "some answers")
            run.send_signal(signal.SIGINT)
            text, errors = run.communicate(timeout=60 * SLOW)
        assert run.returncode == 4, (run.returncode, errors)
        kept = len(answers(out))
        assert f"{kept} of 36 answers" in text and "goes on from" in errors, (text, errors)
        began = time.monotonic()
        eventually(lambda: not any(cluster.gauges().values()), 10, "the question was cancelled")
        assert time.monotonic() - began < 10
        code, text, errors = sluice(*command[1:])
        assert code == 0 and "32 of 36 answers" in text, (text, errors)
        assert len(answers(out)) == 36


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
