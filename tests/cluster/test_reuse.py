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
    for recipe in ("full", "h2o,budget=0.5,chunk=256", "streamingllm,budget=768,chunk=256"):
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
