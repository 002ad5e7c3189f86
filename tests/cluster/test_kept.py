#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts in the store: every prompt that a cluster admits is stored. Under a recipe that evicts, so is the beginning from which other prompts
continue. And the reason that is reported where a prompt is not kept."""
import os
import re
import subprocess
import tempfile
import time

import random_folder
from harness import BIN, SLOW, Cluster, cluster_pb, connect, document, eventually, inference, question, run_tests, store_stats, stub, tokens
from shallow import shallow_model

SHALLOW = shallow_model(3)  # where each answer is compared with another
SLUICE = os.path.join(BIN, "sluice")


def not_kept(cluster, reason):
    return cluster.figures("prefill-0")[f'sluice_capsules_not_kept_total{{reason="{reason}"}}']


def ids(n, seed=0, alike=0):
    """Returns n token ids. The first `alike` are the same for every seed."""
    return [2045] + [(i * 37 + i * i * 11 + (seed * 7919 if i >= alike else 0)) % 2000 for i in range(n - 1)]


def test_the_longest_prompt_of_a_cluster_as_it_is_started():
    """A model whose KV of 3,072 tokens is what 16,384 of a larger one take: reading them is a matter of seconds."""
    n, said = 3072, ""
    with tempfile.TemporaryDirectory(prefix="sluice-kept-") as folder:
        model, env = random_folder.make("wide", os.path.join(folder, "model"), positions=n), {**os.environ, "XDG_RUNTIME_DIR": folder}
        up = subprocess.run([SLUICE, "up", "--detach", "--model", model, "--port", "0", "--no-gateway"], capture_output=True, text=True,
                            timeout=120 * SLOW, env=env, stdin=subprocess.DEVNULL)
        try:
            assert up.returncode == 0, up
            address = re.search(r"^ready rpc=(\S+)", up.stdout, re.M).group(1)
            with connect(address) as channel:
                workers = lambda: stub(channel.unary_unary, "sluice.v1.Cluster.Workers")(cluster_pb.WorkersRequest(), timeout=10).workers
                eventually(lambda: sum(w.state == cluster_pb.READY for w in workers()) == 3, 20, "ready")
                store = next(w.info.rpc_address for w in workers() if w.info.role == cluster_pb.KVSTORE)

                def ever_stored():
                    stats = store_stats(store)
                    return stats.capsules + stats.evicted

                def ask(recipe, prompt, n_copies):
                    before = ever_stored()
                    request = inference.GenerateRequest(tokens=inference.TokenIds(ids=prompt), recipe=recipe, max_new_tokens=2, ignore_eos=True)
                    events = list(stub(channel.unary_stream, "sluice.v1.Inference.Generate")(request, timeout=120 * SLOW))
                    eventually(lambda: ever_stored() == before + n_copies, 10, f"{recipe}: {n_copies} more capsules are stored")
                    return events[-1].finished.statistics, tokens(events)
                for recipe, other_reused in (("full", n - 128), ("full,format=int8", None), ("full,format=int4", None), ("snapkv,budget=0.2", n - 512)):
                    first, written = ask(recipe, ids(n - 2), 2 if "snapkv" in recipe else 1)
                    again, written_again = ask(recipe, ids(n - 2), 0)
                    said += f"{recipe}: {first.capsule_bytes >> 20} MiB, again {again.n_reused_tokens}\n"
                    assert again.n_reused_tokens == n - 3 and written_again == written, (recipe, again)
                    assert first.n_prompt_tokens == n - 2 and first.n_reused_tokens == 0 and first.kept == inference.KEPT_PENDING, first
                    assert again.kept == inference.KEPT_STORED, again
                    if other_reused:  # the stored part, and what is prefilled after it, have to be in the arena together
                        other, _ = ask(recipe, ids(n - 2, seed=1, alike=n - 100), 1)
                        said += f"{recipe}: another question {other.n_reused_tokens}\n"
                        assert other.n_reused_tokens == other_reused, (recipe, other)
                arenas = {w.info.arena_bytes for w in workers()}
            assert first.full_bytes > 0.7 * max(arenas), f"{first.full_bytes} of {arenas}: this is not a long prompt"
        finally:
            subprocess.run([SLUICE, "down", "--all"], env=env, capture_output=True, timeout=60)
            print(said, end="")


def test_up_says_which_texts_fit():
    with tempfile.TemporaryDirectory(prefix="sluice-kept-") as folder:
        env = {**os.environ, "XDG_RUNTIME_DIR": folder}
        try:
            for positions, line in ((50000, None), (10 ** 6, "arena         256 MiB a worker: texts of up to 104857 tokens")):
                model = random_folder.make("narrow", os.path.join(folder, str(positions)), positions=positions)
                up = subprocess.run([SLUICE, "up", "--detach", "--model", model, "--port", "0", "--no-gateway", "--kvstore", "0"],
                                    capture_output=True, text=True, timeout=120 * SLOW, env=env, stdin=subprocess.DEVNULL)
                assert up.returncode == 0 and (line in up.stdout if line else "arena  " not in up.stdout), up
            address = re.search(r"^ready rpc=(\S+)", up.stdout, re.M).group(1)
            with connect(address) as channel:  # such a text is admitted
                request = inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(104857 - 16)), recipe="full", max_new_tokens=16)
                job = stub(channel.unary_unary, "sluice.v1.Inference.Submit")(request, timeout=60 * SLOW).job_id
                stub(channel.unary_unary, "sluice.v1.Inference.Cancel")(inference.JobRequest(job_id=job), timeout=60 * SLOW)
        finally:
            subprocess.run([SLUICE, "down", "--all"], env=env, capture_output=True, timeout=60)


def recommended():
    lines = subprocess.run([SLUICE, "recipes", "--recommended"], capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    return sorted({line.split()[1] for line in lines if "%" in line})


def test_every_recommended_recipe_reuses_the_text():
    text, keys = document(9000), ("lantern", "the lantern of the last ship", "a very small lantern, which somebody has lost")
    recipes = recommended()
    assert len(recipes) >= 6 and any("budget=0.2" in recipe for recipe in recipes), recipes
    # The store has room for all of them: a full one may evict what was stored last, if reading it again costs least.
    with Cluster(kvstore=0, model=SHALLOW) as fresh, Cluster(model=SHALLOW, worker_args={"kvstore": ["--arena", "128M"]}) as cluster:
        for recipe in recipes:
            ask = lambda key: inference.GenerateRequest(text=text + question(key), recipe=recipe, max_new_tokens=8, ignore_eos=True)
            expected, reused = [fresh.answer(ask(key)) for key in keys], []
            assert len({finished.statistics.n_prompt_tokens for finished, _ in expected}) == len(keys)
            for key, (_, events) in zip(keys, expected):
                finished, said = cluster.answer(ask(key))
                cluster.wait_for_copies()
                reused.append(finished.statistics.n_reused_tokens)
                assert tokens(said) == tokens(events), (recipe, key)
            print(recipe, reused, "of", [finished.statistics.n_prompt_tokens for finished, _ in expected], flush=True)
            # A share of the prompt that chunks evict down to is another state for every length (docs/RECIPES.md).
            depends = "snapkv" not in recipe and "budget=" in recipe
            assert reused[0] == 0 and (depends or all(n > 0.7 * expected[0][0].statistics.n_prompt_tokens for n in reused[1:])), (recipe, reused)


def test_a_state_between_chunks_serves_what_ends_elsewhere():
    cases = [  # recipe, tokens of two prompts that share 1,200, how many are reused
        ("snapkv,budget=0.2", 1900, 1300, 1024),  # the state that is stored ends within the first question: it is cut
        ("snapkv,budget=0.2", 1300, 2200, 1024),  # and one that ends before it serves a prompt with another budget
        ("tova,budget=0.99,chunk=256", 1300, 1400, 1024),  # nothing has been evicted yet, and no score adds up
        ("h2o,budget=0.9,chunk=256", 1250, 1390, 1024),   # one that adds up cannot be cut, but this ends before the question
        ("h2o,budget=0.25,chunk=256", 1250, 2200, 0),     # evicted to another budget
        ("h2o,budget=0.5,when=end", 1300, 2200, 1024),
        ("h2o,budget=0.5,when=end", 1900, 1300, 0),       # scores have been added up over what the other has not
        ("d2o,budget=0.3", 1300, 2200, 1024),
        ("kvzip,budget=0.3", 1300, 2200, 1024),           # from the first reading; the second one is the prompt's own
        ("pyramidkv,budget=0.3,format=int8", 1300, 2200, 1024),
    ]
    def logprobs(events):
        return [event.token.logprob for event in events if event.HasField("token")]

    with Cluster(kvstore=0, model=SHALLOW) as fresh, Cluster(model=SHALLOW, worker_args={"kvstore": ["--arena", "64M"]}) as cluster:  # which holds all
        for case, (recipe, first, second, expected) in enumerate(cases):
            def job(n, seed):
                prompt = [2045, 100 + case, *ids(n, seed, 1200)[2:]]
                return inference.GenerateRequest(tokens=inference.TokenIds(ids=prompt), recipe=recipe, max_new_tokens=16, ignore_eos=True)
            alone, events = fresh.answer(job(second, 2))
            cluster.answer(job(first, 1))
            cluster.wait_for_copies()
            finished, said = cluster.answer(job(second, 2))
            cluster.wait_for_copies()
            assert finished.statistics.n_reused_tokens == expected, (recipe, first, second, finished.statistics.n_reused_tokens)
            assert tokens(said) == tokens(events) and logprobs(said) == logprobs(events), recipe
            assert finished.statistics.slots_per_head == alone.statistics.slots_per_head
            assert finished.statistics.kept_state in (inference.KEPT_STORED, inference.KEPT_PENDING, inference.KEPT_NOT_SAID), finished.statistics
        assert not_kept(cluster, "late") == 0


def test_a_prompt_larger_than_the_store_is_said():
    with Cluster(worker_args={"kvstore": ["--arena", "2M"]}) as cluster:
        for seed in range(2):
            finished, _ = cluster.answer(inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(1000, seed)), max_new_tokens=2, ignore_eos=True,
                                                                   recipe="full"))
            assert finished.statistics.kept == inference.KEPT_NOT_TOO_LARGE, finished.statistics
        assert not_kept(cluster, "too_large") == 2
        lines = [line for line in cluster.processes["prefill-0"].errors().splitlines() if "not_kept=too_large" in line]
        assert [line.split()[1] for line in lines] == ["warn", "info"] and "--arena" in lines[0], lines


def test_a_copy_gives_way_to_a_job_that_needs_the_memory():
    # 4,096 bytes a token: two prompts do not fit the arena side by side. The copy of the first one stands still on its way.
    job = lambda seed: inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(4000, seed)), max_new_tokens=2, ignore_eos=True, recipe="full")
    with Cluster(worker_args={"prefill": ["--arena", "24M", "--inject", "stall:60"]}) as cluster:
        first, _ = cluster.answer(job(0))
        assert first.status_code == 0 and first.statistics.kept == inference.KEPT_PENDING, first
        time.sleep(2)  # the copy comes to its segment that stands still, in which nothing moves for 15 s
        began = time.monotonic()
        second, _ = cluster.answer(job(1))
        waited = time.monotonic() - began
        assert second.status_code == 0 and second.statistics.retries == 0, second
        assert second.statistics.queue_ms < 3000, (second.statistics.queue_ms, waited)
        assert not_kept(cluster, "pressure") == 1, cluster.figures("prefill-0")
        cluster.wait_for_copies()
        again, _ = cluster.answer(job(1))
        assert again.statistics.n_reused_tokens == 3999 and again.statistics.kept == inference.KEPT_STORED, again


def test_a_prompt_that_took_long_waits_longer_for_its_state():
    n, boundary = 6000, 5632  # where the last chunk begins, which changes the state
    job = inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(n)), max_new_tokens=2, ignore_eos=True, recipe="snapkv,budget=0.2")
    with Cluster(worker_args={"prefill": ["--inject", "stall:3"]}) as cluster:
        began = time.monotonic()
        job_id = cluster.submit(job)
        eventually(lambda: cluster.get(job_id).n_read_tokens >= boundary, 60, "the state is complete")
        read = time.monotonic() - began
        eventually(lambda: cluster.get(job_id).n_read_tokens == n - 1, 60, "the prompt is read")
        waited = time.monotonic() - began - read
        finished = list(cluster.watch(job_id))[-1].finished
        print(f"{read:.2f} s of reading, and {waited:.2f} s for the state and the last chunk")
        assert finished.statistics.kept_state == inference.KEPT_NOT_LATE, finished
        assert waited > 0.5 + min(read, 20) / 6, (read, waited)  # half a second and a quarter of `read`, but not over 5 s


def test_a_state_that_does_not_leave_costs_the_state_alone():
    job = inference.GenerateRequest(tokens=inference.TokenIds(ids=ids(2000)), max_new_tokens=8, ignore_eos=True, recipe="snapkv,budget=0.2")
    with Cluster(kvstore=0) as fresh:
        expected = tokens(fresh.answer(job)[1])
    with Cluster(worker_args={"prefill": ["--inject", "stall:3"]}) as cluster:  # a segment of the state, which is sent first
        finished, events = cluster.answer(job)
        assert finished.status_code == 0 and finished.statistics.retries == 0 and tokens(events) == expected, finished
        assert finished.statistics.kept_state == inference.KEPT_NOT_LATE and finished.statistics.kept == inference.KEPT_PENDING, finished.statistics
        assert not_kept(cluster, "late") == 1, cluster.figures("prefill-0")
        cluster.wait_for_copies()
        again, events = cluster.answer(job)
        assert again.statistics.n_reused_tokens == 1999 and tokens(events) == expected, again


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
