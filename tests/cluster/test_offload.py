#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Offloaded layers go to kvstores while the prompt is being read, and come back where attention needs them.

Attention leaves the worker in splits of 4096 slots: SPLIT is a prompt of one split and some, SPLITS one of two and some, for two
tiles that are read back.
"""
import functools
import signal
import tempfile

import random_folder
from harness import Cluster as AnyCluster, State, cluster_pb, eventually, inference, run_tests, store_stats, tokens
from shallow import shallow_model
from test_cancel import wait_for_state
from test_faults import Watcher

# Everything is chosen, so that the answer is that of attention over all slots.
ALL = "place=offload/1-,retrieve=near,topk=32768"
SPLIT, SPLITS = 4500, 8500
SHALLOW = 4  # layers, of which all but the first are offloaded
Cluster = functools.partial(AnyCluster, model=shallow_model(SHALLOW))


def ids(n, seed=1):
    return [2045] + [(i * i * 11 + i * 37 + seed * 7919) % 2000 for i in range(n - 1)]


def job(n, recipe, n_new=8, seed=1, prompt=None):
    return inference.GenerateRequest(tokens=inference.TokenIds(ids=prompt or ids(n, seed)), recipe=recipe,
                                     max_new_tokens=n_new, ignore_eos=True)


def stores(cluster):
    return [w for w in cluster.workers().workers if w.info.role == cluster_pb.KVSTORE]


def all_stats(cluster):
    return [store_stats(store.info.rpc_address) for store in stores(cluster)]


def test_the_answer_is_that_of_resident_layers():
    resident = {}
    for transport in ("shm", "tcp"):
        with Cluster(transport=transport) as cluster:
            for seed, n in enumerate((200, 3000, SPLITS)):  # of which none begins like another
                if n not in resident:
                    resident[n] = cluster.answer(job(n, "full", seed=seed))
                full, full_events = resident[n]
                finished, events = cluster.answer(job(n, ALL, seed=seed))
                assert tokens(events) == tokens(full_events), f"{transport} {n}: {tokens(events)} {tokens(full_events)}"
                total, rest = full.statistics.capsule_bytes, finished.statistics.capsule_bytes  # of all layers, and of 1
                assert total / SHALLOW <= rest < total / (SHALLOW - 1), (transport, n, total, rest)
                offloaded = finished.statistics.retrieval.offloaded_bytes
                assert abs(offloaded - (total - rest)) < 4096, (transport, n, total, rest, offloaded)
            eventually(lambda: all(s.annexes == 0 for s in all_stats(cluster)), 10, "no remote KV is left")


def test_prefill_holds_a_bounded_part_of_it():
    # The model has as many layers as the demo model, of one head each. The prompt is so long that the bounded part is a small one.
    with tempfile.TemporaryDirectory() as folder, \
            Cluster(model=random_folder.make("narrow", folder), args=["--arena", "64M"]) as cluster:
        full = cluster.answer(job(16000, "full", n_new=2))[0].statistics
        peaks = [cluster.answer(job(n, ALL, n_new=2))[0].statistics.prefill_peak_bytes for n in (12000, 16000)]
        n_layers = random_folder.GEOMETRIES["narrow"][0]
        # One layer whole; of each other one a split, what is on its way and a chunk, and two tiles of one of them.
        page = full.capsule_bytes / (n_layers * 16000)
        bound = lambda n: page * (n + (n_layers - 1) * (4096 + 3 * 512 + 64) + 2 * 4096)
        assert peaks[0] <= bound(12000) and peaks[1] <= bound(16000), (peaks, bound(12000), bound(16000))
        assert peaks[1] < full.prefill_peak_bytes * 0.6, (peaks[1], full.prefill_peak_bytes)


def test_what_is_stored_is_neither_read_nor_shipped_again():
    with Cluster() as cluster:
        prompt = ids(SPLIT)
        first, events = cluster.answer(job(0, ALL, prompt=prompt))
        eventually(lambda: stores(cluster)[0].load.stored_capsules >= 1, 10, "the capsule is stored")
        again, again_events = cluster.answer(job(0, ALL, prompt=prompt))
        n_read = again.statistics.n_prompt_tokens - 1  # the last one is decode's
        assert tokens(again_events) == tokens(events)
        assert again.statistics.n_reused_tokens == n_read and again.statistics.retrieval.reused_tokens == n_read
        assert again.statistics.retrieval.offloaded_bytes == 0
        # The next turn of a conversation: the answer and what comes after it.
        longer = prompt + tokens(events) + ids(SPLIT // 2, seed=5)
        with Cluster() as fresh:
            expected, expected_events = fresh.answer(job(0, ALL, prompt=longer))
        finished, turn_events = cluster.answer(job(0, ALL, prompt=longer))
        assert tokens(turn_events) == tokens(expected_events)
        assert finished.statistics.n_reused_tokens == n_read // 64 * 64 == finished.statistics.retrieval.reused_tokens
        assert finished.statistics.retrieval.offloaded_bytes < expected.statistics.retrieval.offloaded_bytes * 0.4


def test_rows_may_be_kept_in_fewer_bits():
    with Cluster() as cluster:
        for n in (3000, SPLITS):
            finished, events = cluster.answer(job(n, "place=offload/2-,format=f16/2-:int8,topk=64", n_new=4))
            assert finished.status_code == 0 and len(tokens(events)) == 4


def test_a_store_that_is_lost_while_prefill_reads():
    with Cluster(kvstore=2) as cluster:
        expected = tokens(cluster.answer(job(SPLITS, "full"))[1])
        job_id = cluster.submit(job(SPLITS, ALL))
        wait_for_state(cluster, job_id, "PREFILLING")
        watcher = Watcher(cluster, job_id)
        # Not by their leases: the copy of the first answer's capsule may still be on its way to the other store.
        used = lambda: [w.info.name for w, s in zip(stores(cluster), all_stats(cluster)) if s.annexes > 0]
        eventually(used, 10, "a store holds a remote KV")
        cluster.kill("prefill-0", signal.SIGSTOP)  # however quick it is, it has not read everything
        assert cluster.get(job_id).state == State.Value("PREFILLING"), "too quick to lose a store meanwhile"
        cluster.kill(used()[0])
        cluster.kill("prefill-0", signal.SIGCONT)
        finished = watcher.finished()
        assert finished.status_code == 0, finished
        assert finished.statistics.retries >= 1
        assert tokens(watcher.events) == expected


def test_a_job_that_is_cancelled_leaves_nothing_in_the_stores():
    with Cluster(args=["--arena", "64M"]) as cluster:
        job_id = cluster.submit(job(20000, ALL))
        wait_for_state(cluster, job_id, "PREFILLING")
        eventually(lambda: any(w.load.leases > 0 for w in stores(cluster)), 10, "a store holds a remote KV")
        cluster.cancel(job_id)
        eventually(lambda: all(s.annexes == 0 for s in all_stats(cluster)), 10, "no remote KV is left")


def test_several_prompts_are_read_by_turns():
    recipes = [ALL, ALL + ",format=bf16", "full", ALL]
    with Cluster(kvstore=2) as cluster:
        expected = [tokens(cluster.answer(job(SPLIT, recipe, seed=i))[1]) for i, recipe in enumerate(recipes)]
    with Cluster(kvstore=2) as cluster:
        watchers = [Watcher(cluster, cluster.submit(job(SPLIT, recipe, seed=i))) for i, recipe in enumerate(recipes)]
        for watcher, answer in zip(watchers, expected):
            assert watcher.finished().status_code == 0
            assert tokens(watcher.events) == answer


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
