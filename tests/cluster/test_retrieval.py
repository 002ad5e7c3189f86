#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Decoding over layers that kvstores hold: the answers are those of one process, alone and beside others, however offloaded heads are divided
over stores. Stored layers are reused. When a store or a worker is lost or slow, the answer is the same, or the job's log names what
decode had to do without.
"""
import concurrent.futures
import contextlib
import signal
import time

from harness import PATIENCE, SLOW, Cluster, cluster_pb, document, eventually, in_one_process, inference, question, run_tests, store_stats, tokens
import grpc
from test_cancel import cancel_and_check
from test_faults import Watcher

NEAR, PULL = "tailorkv-near,topk=64", "tailorkv,topk=64"
# The machine may be busy: where answers are compared, no layer does without a store that is merely slow.
PATIENT = {"decode": ["--retrieve-deadline", "20000ms", "--retrieve-lost", "20000ms"]}
# A store's replica is asked after half of the deadline. A store that is lost is not waited for any longer.
USUAL = {"decode": ["--retrieve-deadline", "6000ms", "--retrieve-lost", "20000ms"]}
# A store that has no copy elsewhere is waited for until it counts as lost.
BRIEF = {"decode": ["--retrieve-deadline", "8000ms", "--retrieve-lost", "8000ms"]}


def prompt(n_bytes, seed=0):
    return document(n_bytes, seed=seed) + question()


def job(recipe, text, n_tokens=12):
    return inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=n_tokens, ignore_eos=True)


def stores(cluster):
    return [w for w in cluster.workers().workers if w.info.role == cluster_pb.KVSTORE and w.state == cluster_pb.READY]


def all_stats(cluster):
    """{name: what the store itself says}"""
    return {store.info.name: store_stats(store.info.rpc_address) for store in stores(cluster)}


def holders(cluster):
    """Names of the stores that hold a part of a living session."""
    return sorted(name for name, stats in all_stats(cluster).items() if stats.annexes > 0)


def assert_no_remote_kv_is_left(cluster):
    eventually(lambda: not holders(cluster), 10, "no remote KV is left in a store")


@contextlib.contextmanager
def cluster_of(**options):
    """A cluster in which no store holds a remote KV for any job at the end."""
    options.setdefault("worker_args", PATIENT)
    with Cluster(**options) as cluster:
        yield cluster
        assert_no_remote_kv_is_left(cluster)


def begin_decoding(cluster, asked, n_tokens=10):
    """(job id, watcher) of a job that has written some tokens."""
    job_id = cluster.submit(asked)
    watcher = Watcher(cluster, job_id)
    eventually(lambda: len(tokens(watcher.events)) > n_tokens, 60, f"{n_tokens} tokens of {asked.recipe}", every=0.005)
    return job_id, watcher


def assert_same_answer(watcher, expected, what):
    finished = watcher.finished(90)
    assert finished.status_code == 0, f"{what}: {finished}"
    assert tokens(watcher.events) == expected, f"{what}: {expected} {tokens(watcher.events)}"
    assert [e.token.index for e in watcher.events if e.HasField("token")] == list(range(len(expected))), what
    return finished.statistics


def end_of(cluster, asked):
    """The last event of a job that fails."""
    finished = Watcher(cluster, cluster.submit(asked)).finished()
    assert finished.status_code != 0, finished
    return finished


def notices(events):
    return [e.notice.text for e in events if e.HasField("notice")]


# ---- the answer ---------------------------------------------------------------------------------------------------------

def test_a_cluster_writes_what_one_process_writes():
    cases = [(recipe, size) for recipe in (PULL, NEAR) for size in (200, 6000, 14000)]  # which is more tokens than a split
    # The other recipes get more tokens than what is kept and chosen, too.
    cases += [(f"{recipe},{axis}", 3000) for recipe in (PULL, NEAR) for axis in ("scan=int8", "scan=int1", "keep=256")]
    cases += [(NEAR + ",ahead=0", 3000), ("full,format=f16/2-:int8,place=offload/2-,topk=64", 3000)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        expected = list(pool.map(lambda case: in_one_process(case[0], prompt(case[1])), cases))
    for transport in ("shm", "tcp"):
        with cluster_of(transport=transport) as cluster:
            for (recipe, size), ids in list(zip(cases, expected))[:None if transport == "shm" else 4]:
                finished, events = cluster.answer(job(recipe, prompt(size)))
                r = finished.statistics.retrieval
                assert tokens(events) == ids, f"{transport} {recipe} {size}: {ids} {tokens(events)}"
                assert r.fallbacks == 0 and r.replica_asks == 0 and not notices(events), f"{recipe} {size}: {r}"
                assert r.asks > 0, f"{recipe} {size}: {r}"  # even 200 bytes are more tokens than are always attended to


def test_with_every_slot_chosen_it_is_the_answer_of_resident_layers():
    with cluster_of() as cluster:
        for size in (200, 6000):
            expected = tokens(cluster.answer(job("full", prompt(size)))[1])
            for way in ("near", "near,ahead=1", "pull"):
                recipe = f"place=offload/1-,retrieve={way},topk=8000"
                assert tokens(cluster.answer(job(recipe, prompt(size)))[1]) == expected, (recipe, size)


def test_sessions_of_different_recipes_are_decoded_together():
    chosen = ["full", "h2o,budget=256,chunk=64,when=chunk+step", NEAR, PULL, NEAR + ",ahead=0,scan=int1"]
    asked = [job(recipe, prompt(3000 + 400 * i, seed=i), 60) for i, recipe in enumerate(chosen)]
    with cluster_of(kvstore=2) as cluster:
        alone = [tokens(cluster.answer(each)[1]) for each in asked]
    with cluster_of(kvstore=2) as cluster:
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            together = list(pool.map(lambda each: tokens(cluster.answer(each)[1]), asked))
    for recipe, one, other in zip(chosen, alone, together):
        assert len(one) == 60 and one == other, f"{recipe}: {one} {other}"


def test_a_prompt_of_one_token():
    one = inference.TokenIds(ids=[2045])
    ask = lambda recipe: inference.GenerateRequest(tokens=one, recipe=recipe, max_new_tokens=80, ignore_eos=True)
    with cluster_of(kvstore=1) as cluster:
        expected = tokens(cluster.answer(ask("full"))[1])  # nothing is offloaded, and what is generated stays as it is
        for recipe in (NEAR, PULL, "place=offload/1-,retrieve=near,topk=16"):
            finished, events = cluster.answer(ask(recipe))
            assert tokens(events) == expected, f"{recipe}: {expected} {tokens(events)}"
            assert finished.statistics.retrieval.asks == 0


# ---- where offloaded heads lie ----------------------------------------------------------------------------------------------------

def test_a_session_that_no_store_holds_alone():
    text = prompt(9000)
    with cluster_of() as cluster:
        expected = {recipe: tokens(cluster.answer(job(recipe, text, 60))[1]) for recipe in (NEAR, PULL)}
    with cluster_of(kvstore=3, worker_args={**PATIENT, "kvstore": ["--arena", "9M"]}) as cluster:
        for recipe, ids in expected.items():
            watcher = Watcher(cluster, cluster.submit(job(recipe, text, 60)))
            eventually(lambda: len(holders(cluster)) > 1, 30, "the offloaded heads are divided over stores")
            assert_same_answer(watcher, ids, recipe)
            assert_no_remote_kv_is_left(cluster)
    with cluster_of(kvstore=1, worker_args={**PATIENT, "kvstore": ["--arena", "3M"]}) as cluster:
        finished = end_of(cluster, job(NEAR, text))
        assert finished.status_code == grpc.StatusCode.FAILED_PRECONDITION.value[0], finished
        assert "kvstore" in finished.status_text, finished


def test_two_copies_where_no_store_holds_one_alone():
    text = prompt(9000)
    with cluster_of(kvstore=0, worker_args=PATIENT) as cluster:
        # Stores of different sizes cut the offloaded heads of the two copies at different places.
        for i, size in enumerate(("5M", "7M", "9M", "11M", "14M")):
            cluster.start_worker(f"kvstore-{i}", ["--arena", size])
        cluster.wait_ready()
        expected = in_one_process(NEAR, text)
        finished, events = cluster.answer(job(NEAR + ",replicas=2", text))
        assert finished.status_code == 0 and tokens(events) == expected, finished


# ---- what is stored already ---------------------------------------------------------------------------------------------

def test_what_is_stored_serves_again():
    text = prompt(6000)
    with cluster_of() as cluster:
        stored = lambda: sum(s.load.stored_capsules for s in stores(cluster))
        first, events = cluster.answer(job(NEAR, text))
        eventually(lambda: stored() >= 1, 10, "the capsule is stored")
        assert first.statistics.retrieval.offloaded_bytes > 0 == first.statistics.retrieval.reused_tokens
        n_read = first.statistics.n_prompt_tokens - 1  # the last one is decode's

        again, again_events = cluster.answer(job(NEAR, text))
        r = again.statistics.retrieval
        assert tokens(again_events) == tokens(events)
        assert again.statistics.n_reused_tokens == n_read == r.reused_tokens and r.offloaded_bytes == 0, again.statistics

        # Another recipe for the other layers: what is offloaded is the same.
        other, other_events = cluster.answer(job(PULL, text))
        assert tokens(other_events) == in_one_process(PULL, text)
        assert other.statistics.retrieval.reused_tokens == n_read and other.statistics.retrieval.offloaded_bytes == 0, \
            other.statistics

        # The next turn of the conversation.
        turn = text + first.text + ". " + document(2500, key="harbour", value="77015", seed=9) + question("harbour")
        finished, turn_events = cluster.answer(job(NEAR, turn))
        r = finished.statistics.retrieval
        assert 0 < r.reused_tokens and 0 < r.offloaded_bytes < first.statistics.retrieval.offloaded_bytes, finished.statistics
        assert tokens(turn_events) == in_one_process(NEAR, turn)


# ---- who is lost, slow or gone ------------------------------------------------------------------------------------------

def begin_endless(cluster, recipe, text):
    """(job id, watcher) of a job that decodes until it is cancelled, however long the test takes for what it does meanwhile."""
    return begin_decoding(cluster, job(recipe, text, 8000))


def assert_goes_on(watcher, recipe, text):
    """Waits for more tokens, and cancels. Returns the statistics. The tokens are those of one process: no layer did without a store."""
    n_tokens = len(watcher.heard) + 40
    watcher.wait_for_tokens(n_tokens, 90)
    statistics = watcher.cancelled().statistics
    assert tokens(watcher.events)[:n_tokens] == in_one_process(recipe, text, n_tokens), recipe
    assert not notices(watcher.events), notices(watcher.events)
    return statistics


def test_a_store_that_dies_while_it_is_asked():
    text = prompt(5000)
    for recipe in (NEAR, PULL):
        with cluster_of(kvstore=2, worker_args=BRIEF) as cluster:
            _, watcher = begin_endless(cluster, recipe, text)
            lost = holders(cluster)
            assert len(lost) == 1, lost
            cluster.kill(lost[0])
            watcher.wait_for_resumption()
            assert assert_goes_on(watcher, recipe, text).retries >= 1


# Over shared memory pull reads without the store's doing, so that one that stands still is not even noticed. Asking it takes
# TCP.
def transport_that_asks(recipe):
    return "tcp" if recipe == PULL else "auto"


def test_a_second_copy_goes_on_without_the_first():
    text = prompt(5000)
    for recipe, number in ((NEAR, signal.SIGKILL), (PULL, signal.SIGSTOP)):
        with cluster_of(kvstore=2, worker_args=USUAL, transport=transport_that_asks(recipe), coordinator_args=PATIENCE) as cluster:
            _, watcher = begin_endless(cluster, recipe + ",replicas=2", text)
            assert len(holders(cluster)) == 2, holders(cluster)
            asked = {name: stats.questions for name, stats in all_stats(cluster).items()}
            lost, other = sorted(asked, key=asked.get, reverse=True)
            assert asked[lost] > 0, asked
            cluster.kill(lost, number)
            address = cluster.processes[other].address
            n_then = store_stats(address).questions
            eventually(lambda: store_stats(address).questions > n_then + 100, 90, "the second copy is asked")
            assert assert_goes_on(watcher, recipe, text).retries == 0
            if number == signal.SIGSTOP:
                cluster.kill(lost, signal.SIGCONT)
                cluster.wait_ready()


def test_a_slow_store_is_done_without_and_the_log_says_so():
    for recipe in (NEAR, PULL):
        with cluster_of(transport=transport_that_asks(recipe),
                        worker_args={"kvstore": ["--inject", "slow_reply:200"],
                                     "decode": ["--retrieve-deadline", "100ms", "--retrieve-lost", "60000ms"]}) as cluster:
            finished, events = cluster.answer(job(recipe, prompt(3000), 4))
            r = finished.statistics.retrieval
            assert finished.status_code == 0 and len(tokens(events)) == 4, finished
            assert r.fallbacks > 0, r
            assert any("without" in text and "no answer" in text for text in notices(events)), notices(events)


def test_another_decode_worker_asks_the_same_stores():
    text = prompt(5000)
    with cluster_of(decode=2) as cluster:
        job_id, watcher = begin_endless(cluster, NEAR, text)
        eventually(lambda: any(s.load.stored_capsules for s in stores(cluster)), 10, "the capsule is stored")
        cluster.kill(cluster.get(job_id).decode_worker)
        watcher.wait_for_resumption()
        s = assert_goes_on(watcher, NEAR, text)
        assert s.retries >= 1 and s.n_reused_tokens == s.n_prompt_tokens - 1 == s.retrieval.reused_tokens, s
        assert s.retrieval.offloaded_bytes == 0, s


def test_a_client_that_leaves_while_stores_are_asked():
    with cluster_of(kvstore=2) as cluster:
        for recipe in (NEAR, PULL + ",replicas=2"):
            job_id, watcher = begin_decoding(cluster, job(recipe, prompt(4000), 2000))
            assert holders(cluster)
            cancel_and_check(cluster, job_id)
            assert_no_remote_kv_is_left(cluster)
        call = cluster.generate(job(NEAR, prompt(4000), 2000))
        for event in call:
            if event.HasField("token") and event.token.index == 5:
                break
        call.cancel()
        eventually(lambda: cluster.workers().jobs_running == 0, 10, "the job has ended")
        assert cluster.answer(job(NEAR, prompt(4000), 5))[0].status_code == 0, "the next job works"


def test_a_prefill_worker_that_dies_while_it_offloads():
    text = prompt(18000)
    expected = in_one_process(NEAR, text)
    # Data that the lost worker has begun stays until its lease ends: there is room for both.
    with cluster_of(prefill=2, worker_args={**PATIENT, "kvstore": ["--arena", "64M"]}) as cluster:
        job_id = cluster.submit(job(NEAR, text))
        watcher = Watcher(cluster, job_id)
        eventually(lambda: holders(cluster), 20, "a store holds a remote KV")
        cluster.kill(cluster.get(job_id).prefill_worker)
        assert assert_same_answer(watcher, expected, "prefill worker killed").retries >= 1


def test_without_a_store_nothing_is_offloaded():
    with cluster_of(kvstore=0, coordinator_args=["--worker-wait", "1s"]) as cluster:
        for recipe, words in ((NEAR, ["kvstore", "place=resident"]), (NEAR + ",replicas=2", ["kvstore", "2"])):
            began = time.monotonic()
            finished = end_of(cluster, job(recipe, prompt(1000)))
            assert finished.status_code in (grpc.StatusCode.UNAVAILABLE.value[0], grpc.StatusCode.FAILED_PRECONDITION.value[0])
            assert all(word in finished.status_text for word in words), finished
            assert time.monotonic() - began < 5 * SLOW
        assert cluster.answer(job("full", prompt(1000)))[0].status_code == 0, "others go on"


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
