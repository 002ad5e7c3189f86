#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A data plane of certificates: answers are those of one process, the store's rows included, and whoever has a certificate of
another authority is sent nothing, while the others go on."""
import os
import subprocess
import tempfile

import grpc

from harness import ROOT, Cluster, document, inference, in_one_process, question, request, run_tests, tokens


def certificates(folder, *names):
    subprocess.run([os.path.join(ROOT, "tools/test-ca.sh"), folder, *names], check=True)


def options(folder, name):
    return ("--tls-ca", f"{folder}/ca.pem", "--tls-cert", f"{folder}/worker-{name}.pem", "--tls-key", f"{folder}/worker-{name}.key")


def test_answers_over_tls_are_those_of_one_process():
    text = document(4000) + question()
    with tempfile.TemporaryDirectory() as folder:
        certificates(folder, "worker/prefill", "worker/decode", "worker/kvstore")
        arguments = {role: options(folder, role) for role in ("prefill", "decode", "kvstore")}
        with Cluster(transport="tcp", worker_args=arguments) as cluster:
            for recipe in ("full", "tailorkv-near"):
                asked = inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=12, ignore_eos=True)
                for _ in range(2):  # and once from what the store kept
                    finished, events = cluster.answer(asked)
                    assert tokens(events) == in_one_process(recipe, text), recipe
                assert finished.statistics.n_reused_tokens > 0 or recipe != "full", finished.statistics
            cluster.assert_clean()


def test_a_worker_of_another_authority_is_sent_nothing():
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        certificates(ours, "worker/prefill")
        certificates(theirs, "worker/decode")
        arguments = {"prefill": options(ours, "prefill"), "decode": options(theirs, "decode")}
        with Cluster(kvstore=0, transport="tcp", worker_args=arguments) as cluster:
            try:
                finished, _ = cluster.answer(request(2000, deadline_ms=8000), 30)
                raise AssertionError(f"answered: {finished.text}")
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
            assert "certificate" in cluster.processes["prefill-0"].errors(), cluster.processes["prefill-0"].errors()[-600:]
            cluster.assert_clean()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
