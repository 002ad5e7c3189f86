#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Workers that compute in several ranks: the reader of a capsule need not know how many made it, and a rank that stands still ends its
worker within seconds.

--all tries every combination of 1, 2 and 4 ranks.
"""
import itertools
import sys

from harness import Cluster, cluster_pb, eventually, in_one_process, inference, request, run_tests, states, tokens
from test_stalls import end_frozen, freeze, job, start, state_of

# Every format, and a recipe of each kind: some compare heads, some keep layers in stores.
RECIPES = ["full,format=f32", "full", "full,format=bf16", "full,format=int8", "full,format=int4", "full,format=f16/2-:int2",
           "full,format=f16/2-:int1", "h2o,budget=0.4,when=chunk+step", "d2o,budget=0.4", "adakv,budget=128,layers=pyramid,format=int4",
           "locret,budget=0.4", "tailorkv,topk=16", "tailorkv-near,topk=16"]
COMBINATIONS = [(2, 4), (4, 1)]  # of prefill, of decode: more, and fewer


def ranks(n):
    return ["--ranks", str(n)]


def test_whoever_reads_a_capsule_need_not_know_how_many_ranks_made_it():
    text = request(2500).text
    asked = [inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=12, ignore_eos=True) for recipe in RECIPES]
    for of_prefill, of_decode in COMBINATIONS:
        with Cluster(worker_args={"prefill": ranks(of_prefill), "decode": ranks(of_decode)}) as cluster:
            for one in asked:
                finished, events = cluster.answer(one)
                assert finished.status_code == 0, (one.recipe, finished)
                expected = in_one_process(one.recipe, one.text)
                assert tokens(events) == expected, (one.recipe, of_prefill, of_decode, tokens(events), expected)
            devices = {w.info.name: w.info.device for w in cluster.workers().workers}
            for name, n in (("prefill-0", of_prefill), ("decode-0", of_decode)):
                assert (f"cpu*{n}/" in devices[name]) == (n > 1), devices


def test_a_rank_that_stands_still_takes_its_worker_along():
    """Long before the engine is called stalled; its jobs go on elsewhere, with the tokens that they would have got."""
    patient = ["--stall-after", "1h"]
    for role in ("decode", "prefill"):
        counts = {"prefill": 1, "decode": 1, "kvstore": 0, role: 0}
        with Cluster(**counts, coordinator_args=patient) as cluster:
            victim = start(cluster, f"{role}-0", [*patient, *ranks(2)])
            cluster.wait_ready()
            asked = job(3000, 600 if role == "decode" else 12)
            found, others = [], 0
            if role == "prefill":
                freeze(victim, "rank-1")
            for event in cluster.generate(asked, 120):
                found.append(event)
                if role == "decode" and len(tokens(found)) == 20 and others == 0:
                    freeze(victim, "rank-1")
                if others == 0 and (len(tokens(found)) == 20 if role == "decode" else inference.PREFILLING in states(found)):
                    cluster.start_worker(f"{role}-1")
                    others = 1
            assert found[-1].HasField("finished") and found[-1].finished.status_code == 0, found[-1]
            assert found[-1].finished.statistics.retries >= 1
            assert tokens(found) == in_one_process("full", asked.text, asked.max_new_tokens)
            assert "rank 1 of 2 has got nothing done for 5.0 s" in victim.errors(), victim.errors()
            eventually(lambda: state_of(cluster, f"{role}-0") == cluster_pb.LOST, 30, f"{role}-0 lost")
            end_frozen(cluster, f"{role}-0")


if __name__ == "__main__":
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        COMBINATIONS[:] = itertools.product((1, 2, 4), repeat=2)
    raise SystemExit(run_tests(globals()))
