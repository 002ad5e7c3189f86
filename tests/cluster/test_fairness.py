#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts that are read by turns: short ones do not wait for a long one; no job changes the answer or the memory of another."""
import functools
import threading

from harness import PATIENCE, Cluster as AnyCluster, State, document, eventually, question, request, run_tests, states, tokens
from shallow import shallow_model

LONG = 24000  # bytes, about 8,000 tokens
SHALLOW = shallow_model(4)  # where it is not a matter of how long the long one takes
Cluster = functools.partial(AnyCluster, args=["--arena", "128M"])  # of memory there is enough, unless a test says otherwise


def reading(cluster, job_id):
    return cluster.get(job_id).state == State.Value("PREFILLING")


def begin(cluster, job):
    """Submit a job and wait until some of its prompt has been read."""
    job_id = cluster.submit(job)
    call = cluster.watch(job_id)
    for event in call:
        if event.HasField("prefill") and event.prefill.tokens_done > 0:
            break
    call.cancel()
    return job_id


def begin_long(cluster, **fields):
    job_id = begin(cluster, request(LONG, **fields))
    assert reading(cluster, job_id), "too quick to be a long one"
    return job_id


def answers(cluster, requests):
    """All at once: their events, in the order of the requests, and which request finished when."""
    results, finished, lock = [None] * len(requests), [], threading.Lock()

    def run(i):
        results[i] = list(cluster.generate(requests[i]))
        with lock:
            finished.append(i)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, finished


def test_short_prompts_do_not_wait_for_a_long_one():
    # One recipe whose chunks may be cut anywhere, and one whose chunks stay whole.
    for recipe in ("full", "h2o,budget=0.5,chunk=128"):
        with Cluster(kvstore=0, coordinator_args=PATIENCE) as cluster:  # a job that is tried again begins anew
            long_id = begin_long(cluster, recipe=recipe)
            short_ids = [cluster.submit(request(1500, recipe=recipe, seed=seed)) for seed in range(4)]
            ended = [list(cluster.watch(job_id))[-1] for job_id in short_ids]
            assert all(event.finished.status_code == 0 for event in ended), ended
            events = list(cluster.watch(long_id))
            last = events[-1].finished
            assert last.status_code == 0 and last.statistics.retries == 0, last
            read = next(e.time_ms for e in events if e.HasField("state") and e.state.state == State.Value("DECODING"))
            assert all(event.time_ms < read for event in ended), f"{recipe}: a short job waited for the long one"
            progress = [e.prefill.tokens_done for e in events if e.HasField("prefill")]
            assert progress == sorted(progress) and len(progress) > 1, progress


def test_answers_do_not_depend_on_the_company():
    recipes = ["full", "full,format=int4", "h2o,budget=0.5,chunk=128", "snapkv,budget=256",
               "tova,budget=300,chunk=64,format=int2"]
    requests = [request(n_bytes, recipe=recipe, seed=seed)
                for seed, (n_bytes, recipe) in enumerate([(12000, r) for r in recipes] + [(1500, r) for r in recipes])]
    with Cluster(kvstore=0, model=SHALLOW) as cluster:
        alone = [list(cluster.generate(r)) for r in requests]
        assert all(tokens(events) for events in alone)
        together, finished = answers(cluster, requests)
        for i, (a, b) in enumerate(zip(alone, together)):
            assert tokens(a) == tokens(b), requests[i].recipe
            one, other = a[-1].finished.statistics, b[-1].finished.statistics
            assert one.slots_evicted == other.slots_evicted and one.capsule_bytes == other.capsule_bytes
            if requests[i].recipe == "full,format=int4":  # packed after each step, which has more tokens when the job is alone
                whole = alone[i - i % len(recipes)][-1].finished.statistics.prefill_peak_bytes
                assert max(one.prefill_peak_bytes, other.prefill_peak_bytes) < whole, requests[i].recipe
            else:
                assert one.prefill_peak_bytes == other.prefill_peak_bytes, requests[i].recipe
            assert other.queue_ms + other.prefill_ms <= other.ttft_ms
        # The short ones were first; but a long one may have been read before the others came.
        assert len(set(finished[:4]) & set(range(5, 10))) >= 3, finished


def test_cancelling_the_long_one_in_the_middle():
    with Cluster(kvstore=0) as cluster:
        long_id = begin_long(cluster)
        other_id = begin(cluster, request(12000))
        assert reading(cluster, other_id) and reading(cluster, long_id), "both are open"
        assert cluster.cancel(long_id).state == State.Value("CANCELLED")
        last = list(cluster.watch(other_id))[-1].finished
        assert last.text.strip() == "48213", last
        cluster.assert_clean()
        assert cluster.answer(request(1500))[0].text.strip() == "48213"


def test_a_lost_receiver_ends_its_own_job_only():
    with Cluster(kvstore=0, decode=2) as cluster:
        long_id = begin_long(cluster)
        job = cluster.get(long_id)
        short = cluster.submit(request(6000, recipe="full,chunk=64"))
        eventually(lambda: cluster.get(short).decode_worker != "", 10, "the short job has its workers")
        assert cluster.get(short).decode_worker != job.decode_worker
        cluster.kill(job.decode_worker)
        assert list(cluster.watch(short))[-1].finished.statistics.retries == 0
        last = list(cluster.watch(long_id))[-1].finished
        assert last.status_code == 0 and last.statistics.retries == 1, last


def test_prompts_wait_for_memory():
    # Room for one long prompt and little beside it; more jobs than fit come at once, and all are answered.
    with Cluster(kvstore=0, model=SHALLOW, worker_args={"prefill": ["--arena", "18M"]}) as cluster:
        requests = [request(LONG if i % 3 == 0 else 3000, seed=i) for i in range(9)]
        results, _ = answers(cluster, requests)
        for events in results:
            assert events[-1].finished.status_code == 0, events[-1]
            assert State.Value("DONE") in states(events)


def test_a_stored_prefix_without_room_to_go_on_is_read_anew():
    # The state between two chunks needs room in addition to all that prefill may take: too much for the second worker's arena.
    fields = dict(recipe="h2o,budget=1500,chunk=128", max_new_tokens=8)
    text = document(16000)
    first, second = ({"text": text + question("lantern") + end} for end in ("", " now"))
    with Cluster() as cluster:
        cluster.answer(request(**first, **fields))
        eventually(lambda: cluster.answer(request(**second, **fields))[0].statistics.n_reused_tokens > 0, 10,
                   "a stored prefix")
        expected = cluster.answer(request(**second, **fields))[1]
        cluster.kill("prefill-0")
        cluster.start_worker("prefill-1", ["--arena", "8M"])
        cluster.wait_ready()
        third = {"text": text + question("lantern") + " then"}
        finished, events = cluster.answer(request(**third, **fields))
        assert finished.status_code == 0 and finished.statistics.n_reused_tokens == 0, finished
        assert "no memory to go on from its stored prefix" in cluster.processes["prefill-1"].errors()
        assert tokens(cluster.answer(request(**second, **fields))[1]) == tokens(expected)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
