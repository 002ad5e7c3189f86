#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Offloaded layers under a budget: what kvstores never get, and that the answers are those of one process all the same."""
import concurrent.futures
import contextlib
import functools

import harness
from harness import document, eventually, inference, question, run_tests, tokens
from shallow import shallow_model
from test_offload import all_stats, ids, stores

MODEL = shallow_model(4)
in_one_process = functools.partial(harness.in_one_process, model=MODEL)
HALF = ",score=cis,budget=0.5,when=chunk"
# Chunks that no split and no segment is a multiple of.
RECIPES = ["tailorkv,topk=64" + HALF, "tailorkv-near,topk=64" + HALF + ",chunk=192",
           "tailorkv-near,topk=64,ahead=0,scan=int1,score=random,budget=0.3,when=chunk,seed=3"]
# The machine may be busy: no layer does without a store that is merely slow.
PATIENT = {"decode": ["--retrieve-deadline", "20000ms", "--retrieve-lost", "20000ms"]}


@contextlib.contextmanager
def cluster_of(**options):
    with harness.Cluster(**{"worker_args": PATIENT, "model": MODEL, **options}) as cluster:
        yield cluster
        eventually(lambda: all(s.annexes == 0 for s in all_stats(cluster)), 10, "no remote KV is left")


def text_of(n_bytes, seed=0):
    return document(n_bytes, seed=seed) + question()


def job(recipe, text, n_new=12):
    return inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=n_new, ignore_eos=True)


def test_a_cluster_writes_what_one_process_writes():
    cases = [(recipe, size) for recipe in RECIPES for size in (200, 6000, 14000)]  # 14,000 bytes are more tokens than a split
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        expected = list(pool.map(lambda case: in_one_process(case[0], text_of(case[1])), cases))
    for transport in ("shm", "tcp"):
        with cluster_of(transport=transport, kvstore=2) as cluster:
            for (recipe, size), answer in zip(cases, expected):
                finished, events = cluster.answer(job(recipe, text_of(size)))
                r = finished.statistics.retrieval
                assert tokens(events) == answer, f"{transport} {recipe} {size}: {answer} {tokens(events)}"
                assert r.fallbacks == 0 and (size == 200 or r.asks > 0), f"{recipe} {size}: {r}"
            finished, events = cluster.answer(job(RECIPES[0] + ",replicas=2", text_of(6000)))
            assert tokens(events) == expected[1], f"{transport}, two replicas: {expected[1]} {tokens(events)}"


def test_what_comes_back_while_a_long_prompt_is_read():
    """More slots than a split, behind chunks that are not cut at splits: half of these tokens are."""
    text = "".join(text_of(11000, seed=i) for i in range(3))
    expected = in_one_process(RECIPES[1], text)
    with cluster_of() as cluster:
        finished, events = cluster.answer(job(RECIPES[1], text))
        assert finished.statistics.n_prompt_tokens > 2 * 4096 + 1024, finished.statistics.n_prompt_tokens
        assert tokens(events) == expected, f"{expected} {tokens(events)}"


def test_half_of_the_slots_are_half_of_the_bytes():
    ask = lambda recipe: inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(6145)), recipe=recipe, max_new_tokens=4,
                                                   ignore_eos=True)
    with cluster_of() as cluster:
        whole, half = (cluster.answer(ask("tailorkv-near" + budget))[0].statistics for budget in ("", HALF))
        assert 2 * half.retrieval.offloaded_bytes == whole.retrieval.offloaded_bytes > 0, (half, whole)
        assert half.capsule_bytes == whole.capsule_bytes


def test_a_budget_of_everything_is_none():
    with cluster_of() as cluster:
        for size in (200, 6000):
            expected = tokens(cluster.answer(job("full", text_of(size)))[1])
            for budget in ("", ",score=cis,budget=0.9999999,when=chunk"):
                finished, events = cluster.answer(job("place=offload/1-,topk=8000" + budget, text_of(size)))
                assert tokens(events) == expected, (size, budget, expected, tokens(events))
        # A smaller budget is not enough: the fact in the middle is among what it may lose.
        lost = tokens(cluster.answer(job("place=offload/1-,topk=8000,score=random,budget=0.05,when=chunk", text_of(6000)))[1])
        assert lost != expected


def test_the_same_prompt_is_found_again_and_no_other():
    recipe, text = RECIPES[0], text_of(6000)
    with cluster_of() as cluster:
        longer = text + " " + text_of(3000, seed=1)
        expected = tokens(cluster.answer(job(recipe, longer))[1])
    with cluster_of() as cluster:
        first, events = cluster.answer(job(recipe, text))
        eventually(lambda: stores(cluster)[0].load.stored_capsules >= 1, 10, "the capsule is stored")
        again, again_events = cluster.answer(job(recipe, text))
        n_read = again.statistics.n_prompt_tokens - 1  # the last one is decode's
        assert tokens(again_events) == tokens(events)
        assert again.statistics.n_reused_tokens == n_read == again.statistics.retrieval.reused_tokens, again
        assert again.statistics.retrieval.offloaded_bytes == 0 < first.statistics.retrieval.offloaded_bytes
        for other, answer in ((longer, expected), (text, None)):
            asked = job(recipe if answer else recipe.replace("0.5", "0.4"), other)
            finished, other_events = cluster.answer(asked)
            assert finished.statistics.n_reused_tokens == 0 == finished.statistics.retrieval.reused_tokens, finished
            assert answer is None or tokens(other_events) == answer


def test_what_is_not_possible_is_refused_by_name():
    with cluster_of() as cluster:
        for recipe, says in (("tailorkv,score=aas,budget=0.5,when=chunk", "score=aas with place=offload and a budget"),
                             ("tailorkv,score=cis,budget=500,when=chunk", "use a ratio")):
            try:
                finished = cluster.answer(job(recipe, text_of(200)))[0]
                text = finished.status_text
            except Exception as error:  # refused before there was a job
                text = str(error)
            assert says in text, (recipe, text)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
