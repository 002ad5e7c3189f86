#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The kvstore keeps capsules: a second job with the same prefix, model and recipe does not read it again, and says so."""
from harness import Cluster, cluster_pb, document, eventually, inference, question, request, run_tests, tokens


def stored(cluster):
    return sum(w.load.stored_capsules for w in cluster.workers().workers if w.info.role == cluster_pb.KVSTORE)


def answer_after_storing(cluster, job, at_least):
    result = cluster.answer(job)
    eventually(lambda: stored(cluster) >= at_least, 10, f"{at_least} capsules stored")
    return result


def test_the_same_prompt_again_is_not_read():
    for recipe in ("full", "h2o,budget=0.5", "full,format=int4"):
        with Cluster() as cluster:
            first, events = answer_after_storing(cluster, request(5000, recipe=recipe), 1)
            again, again_events = cluster.answer(request(5000, recipe=recipe))
            assert first.statistics.n_reused_tokens == 0
            assert again.statistics.n_reused_tokens == again.statistics.n_prompt_tokens - 1, recipe
            assert tokens(again_events) == tokens(events), recipe
            assert again.statistics.capsule_bytes == first.statistics.capsule_bytes


def test_another_question_about_the_same_document():
    # Exact for full precision and for recipes that resume from a state between two chunks.
    for recipe in ("full", "h2o,budget=768,chunk=256", "streamingllm,budget=768,chunk=256"):
        with Cluster() as cluster:
            text = document(6000)
            ask = lambda end: inference.GenerateRequest(text=text + end, recipe=recipe, max_new_tokens=12, stop=["."])
            other = question() + " a number, namely"
            with Cluster(kvstore=0) as fresh:
                expected = tokens(fresh.answer(ask(other))[1])
            answer_after_storing(cluster, ask(question()), 1 if recipe == "full" else 2)
            finished, events = cluster.answer(ask(other))
            reused, total = finished.statistics.n_reused_tokens, finished.statistics.n_prompt_tokens
            assert total * 0.7 < reused < total - 1, f"{recipe}: {reused} of {total}"
            assert tokens(events) == expected, recipe


def ids(n, seed=0):
    """n token ids of which the first 600 are the same for every seed."""
    return [2045] + [(i * 37 + i * i * 11 + (seed * 7919 if i > 600 else 0)) % 2000 for i in range(n - 1)]


def test_what_only_looks_like_a_prefix_is_not_used():
    cases = [
        # A finished capsule whose length is a multiple of the chunk is no state between two chunks.
        ("h2o,budget=512,format=int4,chunk=512", 1025, 1400),
        ("streamingllm,budget=256,when=end,chunk=256", 1025, 1400),
        # A ratio of another prompt is another budget.
        ("h2o,budget=0.25,chunk=256", 700, 2500),
    ]
    for recipe, first, second in cases:
        job = lambda n: inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(n)), recipe=recipe, max_new_tokens=16,
                                                  ignore_eos=True)
        with Cluster(kvstore=0) as fresh:
            expected_finished, events = fresh.answer(job(second))
            expected = tokens(events)
        with Cluster() as cluster:
            answer_after_storing(cluster, job(first), 2)
            finished, events = cluster.answer(job(second))
            assert tokens(events) == expected, recipe
            assert finished.statistics.slots_per_head == expected_finished.statistics.slots_per_head


def test_a_large_capsule_is_not_fetched_for_a_small_part_of_it():
    with Cluster() as cluster:
        job = lambda n, seed: inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(n, seed)), max_new_tokens=2,
                                                        ignore_eos=True)
        answer_after_storing(cluster, job(5000, 1), 1)
        assert cluster.answer(job(2000, 2))[0].statistics.n_reused_tokens == 0


def test_a_store_that_stands_still_costs_a_delay_not_the_job():
    with Cluster(worker_args={"kvstore": ["--inject", "stall:1"]}) as cluster:
        first, events = answer_after_storing(cluster, request(4000), 1)
        finished, again = cluster.answer(request(4000), timeout=40)
        assert finished.status_code == 0 and tokens(again) == tokens(events)
        assert finished.statistics.n_reused_tokens == 0 and finished.statistics.retries == 1


def test_other_recipes_and_other_text_do_not_match():
    with Cluster() as cluster:
        answer_after_storing(cluster, request(4000), 1)
        for other in (request(4000, recipe="full,format=int8"), request(4000, recipe="full", seed=3)):
            assert cluster.answer(other)[0].statistics.n_reused_tokens < 64


def test_the_budget_holds_and_the_oldest_goes():
    with Cluster(worker_args={"kvstore": ["--arena", "12M"]}) as cluster:
        for seed in range(8):  # about 3.5 MiB each
            cluster.answer(request(5000, seed=seed))
        def settled():
            store = [w for w in cluster.workers().workers if w.info.role == cluster_pb.KVSTORE][0]
            return 1 <= store.load.stored_capsules <= 4 and store.load.stored_bytes <= 12 << 20 and store.load.leases == 0
        eventually(settled, 10, "the store settled within its budget")
        assert cluster.answer(request(5000, seed=7))[0].statistics.n_reused_tokens > 0, "the youngest is still there"
        assert cluster.answer(request(5000, seed=0))[0].statistics.n_reused_tokens < 64, "the oldest is gone"


def test_a_job_survives_the_loss_of_the_store():
    with Cluster() as cluster:
        first, events = answer_after_storing(cluster, request(4000), 1)
        cluster.kill("kvstore-0")
        finished, again = cluster.answer(request(4000))
        assert tokens(again) == tokens(events) and finished.statistics.n_reused_tokens == 0


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
