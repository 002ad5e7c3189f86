#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The kvstore keeps capsules: a second job with the same prefix, model and recipe does not read it again, and says so."""
import concurrent.futures
import itertools
import os
import re
import subprocess
import threading
import time

from harness import BIN, Cluster, call, cluster_pb, document, eventually, inference, question, request, run_tests, store_stats, tokens
import grpc


def logprobs(events):
    return [event.token.logprob for event in events if event.HasField("token")]


def capsules(cluster):
    """Returns how many were ever stored. Asks the store itself, because heartbeats come later."""
    stats = store_stats(cluster.processes["kvstore-0"].address)
    return stats.capsules + stats.evicted


def answer_after_storing(cluster, job, n):
    """The answer to a job, which leaves n capsules or more in the store."""
    cluster.wait_for_copies()  # of the job before: they would be taken for this one's
    before = capsules(cluster)
    result = cluster.answer(job)
    eventually(lambda: capsules(cluster) >= before + n, 10, f"{n} capsules stored")
    cluster.wait_for_copies()
    return result


def test_the_same_prompt_again_is_not_read():
    with Cluster() as cluster:
        for recipe in ("full", "h2o,budget=0.5", "full,format=int4"):
            first, events = answer_after_storing(cluster, request(5000, recipe=recipe), 1)
            again, again_events = cluster.answer(request(5000, recipe=recipe))
            assert first.statistics.n_reused_tokens == 0
            assert again.statistics.n_reused_tokens == again.statistics.n_prompt_tokens - 1, recipe
            assert tokens(again_events) == tokens(events), recipe
            assert again.statistics.capsule_bytes == first.statistics.capsule_bytes


def test_another_question_about_the_same_document():
    # Exact for full precision and for recipes that resume from a state between two chunks.
    text, other = document(6000), question() + " a number, namely"
    with Cluster() as cluster, Cluster(kvstore=0) as fresh:
        for recipe in ("full", "h2o,budget=768,chunk=256", "streamingllm,budget=768,chunk=256"):
            ask = lambda end: inference.GenerateRequest(text=text + end, recipe=recipe, max_new_tokens=12, stop=["."])
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
        # A finished capsule whose length is a multiple of the chunk is not a state between two chunks.
        ("h2o,budget=512,format=int4,chunk=512", 1025, 1400),
        ("streamingllm,budget=256,when=end,chunk=256", 1025, 1400),
        # A ratio of another prompt is another budget.
        ("h2o,budget=0.25,chunk=256", 700, 2500),
    ]
    with Cluster() as cluster, Cluster(kvstore=0) as fresh:
        for recipe, first, second in cases:
            job = lambda n: inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(n)), recipe=recipe, max_new_tokens=16,
                                                      ignore_eos=True)
            expected_finished, events = fresh.answer(job(second))
            expected = tokens(events)
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


def not_cached(cluster):
    """Returns what prefill has counted: {reason: number}, without zeros."""
    return {name.split('"')[1]: n for name, n in cluster.figures("prefill-0").items() if name.startswith("sluice_prompts_not_cached_total{") and n}


def test_an_answer_says_why_nothing_was_reused():
    said = inference.NotCached.Value
    thins = "tailorkv,score=cis,budget=0.5,when=chunk"
    cases = [  # recipe, tokens of the first prompt, of the second one, which shares 600 with it, and why that is read
        ("full", 900, 900, "NOT_SAID"),
        ("full", 500, 620, "TOO_LITTLE"),         # less than a chunk is the same
        ("full", 2600, 900, "TOO_LITTLE"),        # and here a small part of what would be fetched
        ("snapkv,budget=0.2", 1200, 1300, "NOT_SAID"),
        ("snapkv,budget=0.2", 500, 540, "NOT_STORED"),   # no chunk ends within what both share
        ("h2o,budget=0.5,when=end", 1900, 1300, "NOT_STORED"),
        ("h2o,budget=0.25,chunk=256", 1250, 2200, "OTHER_LENGTH"),
        ("h2o,budget=200,chunk=256", 700, 900, "NOT_SAID"),
        (thins, 1200, 1300, "ONLY_WHOLE"),
    ]
    expected = {}
    with Cluster() as cluster:
        for case, (recipe, first, second, why) in enumerate(cases):
            def job(n, seed, **fields):
                prompt = [2045, 100 + case, *ids(n, seed)[2:]]
                return inference.GenerateRequest(tokens=inference.TokenIds(ids=prompt), recipe=recipe, max_new_tokens=2, ignore_eos=True,
                                                 **fields)
            cluster.wait_for_copies()  # of the case before: they would be taken for this one's
            before = capsules(cluster)
            alone, _ = cluster.answer(job(first, 1))
            assert alone.statistics.not_cached in (said("NOT_CACHED_NOT_STORED"), said("NOT_CACHED_OTHER_LENGTH"),
                                                   said("NOT_CACHED_ONLY_WHOLE")), (recipe, alone)
            eventually(lambda: capsules(cluster) > before, 10, f"{recipe}: the first prompt is stored")
            cluster.wait_for_copies()  # there may be two
            finished, _ = cluster.answer(job(second, 2))
            assert finished.statistics.not_cached == said("NOT_CACHED_" + why), (recipe, first, second, finished.statistics)
            assert (finished.statistics.n_reused_tokens == 0) == (why != "NOT_SAID"), (recipe, finished)
            for one in (alone, finished):
                word = inference.NotCached.Name(one.statistics.not_cached)[len("NOT_CACHED_"):].lower()
                expected[word] = expected.get(word, 0) + 1
        del expected["not_said"]
        assert not_cached(cluster) == expected, (not_cached(cluster), expected)
        lines = [line for line in cluster.processes["prefill-0"].errors().splitlines() if " not_cached=" in line]
        assert len(lines) == sum(expected.values()) and all(line.split()[1] == "info" for line in lines), lines
    with Cluster(kvstore=0) as cluster:
        assert cluster.answer(request(1000))[0].statistics.not_cached == inference.NOT_CACHED_NO_STORE
        assert not_cached(cluster) == {"no_store": 1}


class Lengthy(grpc.GenericRpcHandler):
    """A store that answers every call with more bytes than a reply may have."""
    REPLY = bytes((64 << 20) + 1)

    def __init__(self):
        self.calls = []

    def service(self, details):
        self.calls.append(details.method.rpartition("/")[2])
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.REPLY)


def test_a_store_that_replies_at_length_is_asked_once():
    lengthy = Lengthy()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[lengthy])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with Cluster(kvstore=0) as cluster:
        began = time.monotonic()
        info = cluster_pb.WorkerInfo(name="lengthy", role=cluster_pb.KVSTORE, rpc_address=address, fabric_address="127.0.0.1:1", version="0.1.0",
                                     epoch=1, arena_bytes=1 << 30)
        call(cluster.channel, "sluice.v1.Cluster.RegisterWorker", cluster_pb.RegisterRequest(worker=info))
        for i in range(4):
            call(cluster.channel, "sluice.v1.Cluster.Heartbeat", cluster_pb.HeartbeatRequest(name="lengthy", epoch=1, load=cluster_pb.WorkerLoad()))
            finished, _ = cluster.answer(request(300 + 20 * i))
            assert finished.status_code == 0 and finished.statistics.not_cached == inference.NOT_CACHED_UNREACHABLE, finished
        n_avoided = int((time.monotonic() - began) // 10)  # it is asked again after 10 s, without a job that waits
        assert 1 <= lengthy.calls.count("Lookup") <= 1 + n_avoided and lengthy.calls.count("Reserve") == 0, lengthy.calls
    server.stop(None).wait()


def test_one_request_can_be_read_anew():
    with Cluster() as cluster:
        first, events = answer_after_storing(cluster, request(4000), 1)
        anew, again = cluster.answer(request(4000, no_reuse=True))
        assert anew.statistics.n_reused_tokens == 0 and anew.statistics.not_cached == inference.NOT_CACHED_OFF, anew
        assert anew.statistics.prefill_ms > 0 and tokens(again) == tokens(events)
        assert anew.statistics.kept == inference.KEPT_PENDING, anew  # the store says that it has it
        after, _ = cluster.answer(request(4000))
        assert after.statistics.n_reused_tokens == after.statistics.n_prompt_tokens - 1
        assert after.statistics.not_cached == inference.NOT_CACHED_NOT_SAID
        run = lambda *more: subprocess.run([os.path.join(BIN, "sluice"), "run", "-c", cluster.coordinator.address, "--raw", "-n", "2",
                                            "--prompt", document(3000), *more], capture_output=True, text=True, timeout=60, check=True).stderr
        assert "0 of them reused (not cached: not_stored)" in run()
        eventually(lambda: "of them reused, 1 read" in run(), 10, "the prompt is stored")
        assert "0 of them reused (not cached: off)" in run("--no-reuse")


def turn(text, name, **fields):
    return inference.GenerateRequest(text=text, max_new_tokens=4, ignore_eos=True, conversation=inference.Conversation(id=name, keep_ms=60000), **fields)


def end(cluster, name):
    cluster._call("sluice.v1.Inference.EndConversation", inference.ConversationRequest(id=name))


def test_a_turn_can_be_read_anew():
    with Cluster(kvstore=0) as fresh, Cluster() as cluster:
        begin = document(2000)
        first, _ = answer_after_storing(cluster, turn(begin, "one", recipe="full,format=int4"), 1)
        text = begin + first.text + " more"
        anew, events = cluster.answer(turn(text, "one", recipe="full,format=int4", no_reuse=True))
        alone, expected = fresh.answer(inference.GenerateRequest(text=text, recipe="full,format=int4", max_new_tokens=4, ignore_eos=True))
        assert anew.statistics.n_reused_tokens == 0 and anew.statistics.not_cached == inference.NOT_CACHED_OFF, anew
        assert tokens(events) == tokens(expected) and logprobs(events) == logprobs(expected)
        after, _ = cluster.answer(turn(text + anew.text + " more", "one", recipe="full,format=int4"))  # goes on from that turn
        assert after.statistics.n_reused_tokens == anew.statistics.n_prompt_tokens + 3, after
        end(cluster, "one")


def test_what_a_hit_on_quantized_pages_may_change():
    """docs/RECIPES.md, Reuse: the bits of a conversation's next turn over the same pages, and close to those of the prompt read alone."""
    with Cluster(kvstore=0) as fresh, Cluster() as cluster:
        for recipe in ("full,format=int8", "full,format=int4"):
            ask = lambda text: inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=4, ignore_eos=True)
            begin = document(4000)
            begin += " a" * ((41 - fresh.answer(ask(begin))[0].statistics.n_prompt_tokens) % 64)  # 40 tokens after the last full page
            cluster.wait_for_copies()  # of the recipe before
            before = capsules(cluster)
            first, _ = cluster.answer(turn(begin, recipe, recipe=recipe))
            eventually(lambda: capsules(cluster) == before + 2, 10, "the prompt and the conversation are stored")
            text, n = begin + first.text + " and the lantern", first.statistics.n_prompt_tokens
            next_turn, by_turn = cluster.answer(turn(text, recipe, recipe=recipe))
            hit, by_hit = cluster.answer(ask(text))
            alone, by_itself = fresh.answer(ask(text))
            assert n % 64 == 41 and next_turn.statistics.n_prompt_tokens == hit.statistics.n_prompt_tokens, (first, next_turn, hit)
            assert next_turn.statistics.n_reused_tokens == n + 3 and hit.statistics.n_reused_tokens == n - 1, (next_turn, hit)
            assert tokens(by_hit) == tokens(by_turn) and logprobs(by_hit) == logprobs(by_turn), (recipe, logprobs(by_hit), logprobs(by_turn))
            differences = [abs(a - b) for a, b in zip(logprobs(by_hit), logprobs(by_itself))]
            print(recipe, "log-probabilities differ by", differences, flush=True)
            assert 0 < differences[0] < 0.05, (recipe, differences)
            end(cluster, recipe)
        # Quantized resident layers beside offloaded ones; no worker retains such a session.
        ask = lambda end, **fields: inference.GenerateRequest(text=document(4000) + end, recipe="tailorkv", max_new_tokens=1, ignore_eos=True,
                                                              **fields)
        cluster.wait_for_copies()
        before = capsules(cluster)
        cluster.answer(ask(""))
        eventually(lambda: capsules(cluster) == before + 1, 10, "the prompt is stored")
        hit, by_hit = cluster.answer(ask(" and the lantern"))
        _, by_itself = cluster.answer(ask(" and the lantern", no_reuse=True))
        assert hit.statistics.n_reused_tokens > 0.9 * hit.statistics.n_prompt_tokens, hit
        difference = abs(logprobs(by_hit)[0] - logprobs(by_itself)[0])
        print("tailorkv: log-probabilities differ by", difference)
        assert 0 < difference < 0.05, difference


def test_a_hit_changes_what_the_table_says():
    """docs/RECIPES.md, Reuse, for every family of recipes: the bits of a prompt that is read alone, except over quantized pages that nothing
    evicts from."""
    lines = subprocess.run([os.path.join(BIN, "sluice"), "recipes"], capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    presets = [line.split()[0] for line in lines[1:] if "+" not in line.split()[0]] + ["h2o+caote", "snapkv+fastcaote"]
    assert {"full", "h2o", "snapkv", "d2o", "locret", "tailorkv-near"} < set(presets), presets
    axes = {"locret": "budget=100,scope=stabilizers:32+tail:16", "tailorkv": "", "full": ""}
    cases = [(",".join(filter(None, [name, axes.get(name.split("-")[0], "budget=100"), "chunk=64"])), name.startswith("tailorkv")) for name in presets]
    cases += [(f"{recipe},chunk=64", quantized) for recipe, quantized in (
        ("full,format=f32", False), ("full,format=bf16", False), ("full,format=int8", True), ("full,format=int4", True),
        ("h2o,budget=100,format=int4", False), ("snapkv,budget=0.4,format=int4", False), ("tailorkv,format=f16", False))]
    with Cluster() as cluster:
        for case, (recipe, quantized) in enumerate(cases):
            def job(n, seed, **fields):  # the first 300 tokens are the same
                prompt = [2045, 100 + case, *ids(300)[2:], *(seed * 7 + i for i in range(n - 300))]
                return inference.GenerateRequest(tokens=inference.TokenIds(ids=prompt), recipe=recipe, max_new_tokens=3, ignore_eos=True, **fields)
            # Its state between two chunks ends at 256. The number of capsules does not tell: the last recipe's may still arrive.
            eventually(lambda seeds=itertools.count(3): cluster.answer(job(310, next(seeds)))[0].statistics.n_reused_tokens == 256, 10,
                       f"{recipe}: stored")
            hit, by_hit = cluster.answer(job(360, 2))
            _, alone = cluster.answer(job(360, 2, no_reuse=True))
            assert hit.statistics.n_reused_tokens == 256 and hit.statistics.not_cached == inference.NOT_CACHED_NOT_SAID, (recipe, hit)
            difference = abs(logprobs(by_hit)[0] - logprobs(alone)[0])
            if quantized:
                assert 0 < difference < 0.3, (recipe, difference)  # pages of 1 bit: 0.22 with avx512bf16
            else:
                assert tokens(by_hit) == tokens(alone) and logprobs(by_hit) == logprobs(alone), (recipe, difference)


def test_a_prompt_goes_on_from_all_of_a_stored_one():
    """Where no layer evicts or is offloaded, also within a page. Others go on between chunks, or at whole pages."""
    cases = (("full", 359), ("full,format=f32", 359), ("full,format=int8", 359), ("full,format=int4", 359),
             ("place=offload/1-,retrieve=near,topk=64", 320), ("h2o,budget=100,when=chunk", 320))
    with Cluster() as cluster:
        for case, (recipe, expected) in enumerate(cases):
            def job(n, end, **fields):  # of 360 tokens, or these and n - 360 others
                prompt = [2045, 100 + case, *ids(360)[2:], *(7 * end + i for i in range(n - 360))]
                return inference.GenerateRequest(tokens=inference.TokenIds(ids=prompt), recipe=f"{recipe},chunk=64", max_new_tokens=3,
                                                 ignore_eos=True, **fields)
            before = capsules(cluster)
            cluster.answer(job(360, 0))
            eventually(lambda: capsules(cluster) > before, 10, f"{recipe}: stored")
            cluster.wait_for_copies()
            hit, by_hit = cluster.answer(job(400, 1))
            _, alone = cluster.answer(job(400, 1, no_reuse=True))
            assert hit.statistics.n_reused_tokens == expected, (recipe, hit)
            if "int" not in recipe:
                assert tokens(by_hit) == tokens(alone) and logprobs(by_hit) == logprobs(alone), recipe


def test_a_store_that_stands_still_costs_a_delay_not_the_job():
    with Cluster(worker_args={"kvstore": ["--inject", "stall:1"]}) as cluster:
        first, events = answer_after_storing(cluster, request(4000), 1)
        finished, again = cluster.answer(request(4000), timeout=40)
        assert finished.status_code == 0 and tokens(again) == tokens(events)
        assert finished.statistics.n_reused_tokens == 0 and finished.statistics.retries == 1
        assert finished.statistics.not_cached == inference.NOT_CACHED_UNREACHABLE, finished.statistics
        assert not_cached(cluster)["unreachable"] == 1


class Silent(grpc.GenericRpcHandler):
    """A store that does not reply."""

    def __init__(self):
        self.asked, self.over = [], threading.Event()

    def service(self, details):
        def reply(_request, _context):
            self.asked.append(details.method)
            self.over.wait(60)
            return b""
        return grpc.unary_unary_rpc_method_handler(reply)


def test_a_store_that_does_not_answer_is_not_asked_by_every_job():
    with Cluster(kvstore=0) as cluster:
        store = Silent()
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[store])
        info = cluster.workers().workers[0].info
        info.name, info.role, info.epoch, info.reads, info.model_fingerprint = "kvstore-0", cluster_pb.KVSTORE, 1, False, 0
        info.rpc_address, info.fabric_address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", "127.0.0.1:1"
        server.start()
        call(cluster.channel, "sluice.v1.Cluster.RegisterWorker", cluster_pb.RegisterRequest(worker=info))

        def beat():
            while not store.over.wait(0.1):
                call(cluster.channel, "sluice.v1.Cluster.Heartbeat",
                     cluster_pb.HeartbeatRequest(name=info.name, epoch=info.epoch, load=cluster_pb.WorkerLoad()))
        beats = threading.Thread(target=beat)
        beats.start()
        try:
            for seed in range(8):
                finished, _ = cluster.answer(request(1000, seed=seed), timeout=60)
                assert finished.status_code == 0, finished
            assert 0 < store.asked.count("/sluice.v1.Store/Lookup") < 8, store.asked
        finally:
            store.over.set()
            beats.join()
            server.stop(None).wait()


def test_bytes_that_are_not_valid_are_not_used():
    with Cluster(worker_args={"kvstore": ["--inject", "corrupt:1"]}) as cluster:
        ask = lambda end, **fields: inference.GenerateRequest(text=document(4000) + end, max_new_tokens=4, ignore_eos=True, **fields)
        answer_after_storing(cluster, ask(""), 1)
        finished, events = cluster.answer(ask(" and the lantern"))
        assert finished.statistics.not_cached == inference.NOT_CACHED_FAILED and finished.statistics.n_reused_tokens == 0, finished.statistics
        assert not_cached(cluster) == {"not_stored": 1, "failed": 1}
        _, alone = cluster.answer(ask(" and the lantern", no_reuse=True))
        assert tokens(events) == tokens(alone) and logprobs(events) == logprobs(alone)


def test_other_recipes_and_other_text_do_not_match():
    with Cluster() as cluster:
        answer_after_storing(cluster, request(4000), 1)
        for other in (request(4000, recipe="full,format=int8"), request(4000, recipe="full", seed=3)):
            assert cluster.answer(other)[0].statistics.n_reused_tokens < 64


def test_the_budget_holds_and_the_oldest_goes():
    checkpoints = ["--checkpoint-after", "1ms", "--checkpoint-share", "0.01"]
    with Cluster(worker_args={"kvstore": ["--arena", "12M"], "prefill": checkpoints}) as cluster:
        for seed in range(8):  # about 3.5 MiB each
            cluster.answer(request(5000, seed=seed))
        said = cluster.figures("prefill-0")
        assert said['sluice_checkpoints_total{result="too_large"}'] == 8, "one of each prompt exceeds a hundredth of the store"
        assert said['sluice_checkpoints_total{result="stored"}'] == 0, said
        cluster.wait_for_copies()
        stats = store_stats(cluster.processes["kvstore-0"].address)
        assert 1 <= stats.capsules <= 4 and stats.bytes <= 12 << 20, stats
        assert 4 <= stats.evicted == cluster.figures("kvstore-0")["sluice_store_evicted_total"], stats
        assert cluster.answer(request(5000, seed=7))[0].statistics.n_reused_tokens > 0, "the youngest is still there"
        assert cluster.answer(request(5000, seed=0))[0].statistics.n_reused_tokens < 64, "the oldest is gone"


def test_a_job_survives_the_loss_of_the_store():
    with Cluster() as cluster:
        first, events = answer_after_storing(cluster, request(4000), 1)
        cluster.kill("kvstore-0")
        finished, again = cluster.answer(request(4000))
        assert tokens(again) == tokens(events) and finished.statistics.n_reused_tokens == 0


def test_a_policy_says_who_reads():
    """Three jobs with one beginning: its reader gets them, or each worker in turn."""
    def readers(policy):
        with Cluster(prefill=2, coordinator_args=["--routing", policy]) as cluster:
            for _ in range(3):
                cluster.answer(request(2000))
            return re.findall(r"PREFILLING (prefill-\d)", cluster.coordinator.errors())
    one, *others = readers("affinity")
    assert others == [one, one], others
    first, second, third = readers("round-robin")
    assert first == third != second, (first, second, third)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
