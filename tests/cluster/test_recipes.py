#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every method, wherever it works: one process, shared memory and TCP write the same tokens; decode goes on where prefill ended."""
import concurrent.futures
import json
import os
import shutil
import subprocess
import tempfile

from harness import BIN, LAYERS, MODEL, PATIENCE, SLOW, Cluster, document, eventually, inference, local_tokens, question, request, run_local
import grpc
from harness import run_tests, tokens
from test_faults import Watcher

# Presets at a size at which they evict from a short prompt, and combinations that no preset names.
SMALL = {"full": "", "tailorkv": "topk=16", "tailorkv-1": "topk=16", "tailorkv-near": "topk=16"}
MORE = ["h2o,budget=0.4,when=chunk+step,chunk=128", "d2o,budget=0.4,evicted=drop",
        "tova,budget=200,when=end+step", "streamingllm,budget=128,when=chunk+step,chunk=64",
        "roco,scope=tail:64+std:0.3,budget=200,when=end+step", "adakv,budget=128,layers=pyramid,format=int4", "h2o,budget=0.4,evicted=merge,when=end,format=f16/3-:int2",
        "full,format=f16/0-1:int2,place=offload/2-,topk=16"]
PROMPT = document(1200) + question()


def sluice(*args, stdin=""):
    run = subprocess.run([os.path.join(BIN, "sluice"), *args], input=stdin.encode(), capture_output=True, timeout=120 * SLOW)
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def presets():
    """Those that need no retaining heads."""
    code, out, _ = sluice("recipes", "--json")
    assert code == 0
    every = [json.loads(line) for line in out.splitlines()]
    return [p["name"] for p in every if "score=cis" not in p["text"]]


def recipes():
    chosen = presets()
    assert len(chosen) >= 20, chosen
    return [f"{name},{SMALL.get(name, 'budget=0.4,chunk=128')}".rstrip(",") for name in chosen] + MORE


def job(recipe, n_tokens=10, text=PROMPT):
    return inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=n_tokens, ignore_eos=True)


def in_one_process(recipe, *options):
    """(token ids, statistics) of job(recipe) without a cluster."""
    events = run_local(recipe, PROMPT, "--ignore-eos", *options, n_tokens=10)
    return local_tokens(events), events[-1]["finished"]["statistics"]


def test_every_method_writes_the_same_wherever_it_works():
    chosen = recipes()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        expected = dict(zip(chosen, pool.map(in_one_process, chosen)))
    differing = []
    for transport in ("shm", "tcp"):
        with Cluster(transport=transport) as cluster:
            for recipe in chosen:
                finished, events = cluster.answer(job(recipe))
                s, (ids, local) = finished.statistics, expected[recipe]
                if tokens(events) != ids:
                    differing.append((transport, recipe, ids, tokens(events)))
                for field in ("slots_evicted", "slots_merged", "slots_fetched"):
                    assert getattr(s, field) == local[field], f"{recipe}: {field}"
                offloads = "tailorkv" in recipe or "offload" in recipe
                if not offloads:  # one process keeps what a cluster has in its stores
                    assert list(s.slots_min) == local["slots_min"] and list(s.slots_max) == local["slots_max"], recipe
                assert len(s.slots_mean) == LAYERS and sum(getattr(s.kv_bytes, f) for f in local["kv_bytes"]) == \
                    s.decode_resident_bytes, recipe
                if not recipe.startswith(("full", "tailorkv")):
                    assert s.slots_evicted > 0, recipe
                if "merge" in recipe or (recipe.startswith("d2o") and "drop" not in recipe):
                    assert s.slots_merged > 0, recipe
                if offloads:
                    assert s.slots_fetched > 0, recipe
    assert not differing, "\n".join(map(str, differing))


def test_sequences_of_different_recipes_step_together():
    together = ["full", "h2o,budget=128,when=chunk+step,chunk=64", "tailorkv,topk=16", "d2o,budget=128", "tova,budget=64,when=end+step"]
    with Cluster() as cluster:
        alone = {recipe: tokens(cluster.answer(job(recipe, 40))[1]) for recipe in together}
        with concurrent.futures.ThreadPoolExecutor(len(together)) as pool:
            results = dict(zip(together, pool.map(lambda recipe: tokens(cluster.answer(job(recipe, 40))[1]), together)))
        for recipe in together:
            assert len(alone[recipe]) == 40 and results[recipe] == alone[recipe], recipe


def test_errors_are_estimated_where_asked_and_only_there():
    cases = ["h2o,budget=0.4,chunk=128,format=int4", "streamingllm,budget=128,when=chunk+step,chunk=64", "d2o,budget=0.4",
             "full"]
    one = inference.TokenIds(ids=[2045])  # nothing to prefill
    with Cluster() as cluster:
        for recipe in cases:
            plain, _ = cluster.answer(job(recipe, text="Another beginning. " + PROMPT))
            assert not plain.statistics.HasField("errors"), recipe
            asked = job(recipe)
            asked.estimate_errors = True
            finished, events = cluster.answer(asked)
            ids, local = in_one_process(recipe, "--estimate-errors")
            assert tokens(events) == ids == in_one_process(recipe)[0], recipe
            s = finished.statistics
            assert s.n_reused_tokens == 0 and list(s.slots) == local["slots"] and len(s.slots) == LAYERS * 2, recipe
            for field, values in local["errors"].items():
                assert len(values) == LAYERS, recipe
                assert all(abs(a - b) < 1e-6 for a, b in zip(getattr(s.errors, field), values)), f"{recipe}: {field}"
            assert all((0 < share < 1) == (recipe != "full") for share in s.errors.evicted_attention), recipe
            assert all((error > 0) == ("int4" in recipe) for error in s.errors.key_error), recipe
            assert cluster.get(finished_id(events)).statistics.errors == s.errors, recipe

            # The same again: the whole capsule comes out of the store, which estimates nothing.
            again, _ = eventually_reused(cluster, asked)
            assert not again.statistics.HasField("errors"), recipe
        finished, _ = cluster.answer(inference.GenerateRequest(tokens=one, recipe="h2o,budget=64,chunk=64,when=chunk+step",
                                                               max_new_tokens=100, ignore_eos=True, estimate_errors=True))
        assert all(rows == 100 - 64 for rows in finished.statistics.errors.evicting_rows), finished.statistics.errors


def finished_id(events):
    return events[-1].job_id


def eventually_reused(cluster, asked):
    results = []

    def reused():
        results.append(cluster.answer(asked))
        return results[-1][0].statistics.n_reused_tokens == results[-1][0].statistics.n_prompt_tokens - 1

    eventually(reused, 20, "the capsule out of the store")
    return results[-1]


def test_the_budget_holds_while_decoding():
    one = inference.TokenIds(ids=[2045])  # nothing to prefill: everything is read by steps
    with Cluster(kvstore=0) as cluster:
        for prompt in ({"text": PROMPT}, {"tokens": one}):
            finished, events = cluster.answer(inference.GenerateRequest(
                recipe="h2o,budget=64,chunk=64,when=chunk+step", max_new_tokens=150, ignore_eos=True, **prompt))
            assert len(tokens(events)) == 150
            s = finished.statistics
            assert max(s.slots_max) <= 64 and min(s.slots_min) >= 60, (list(s.slots_min), list(s.slots_max))
            assert s.slots_evicted >= LAYERS * (150 - 64)


def test_memory_that_steps_give_back_is_still_theirs():
    """More jobs than the decode worker's arena holds: those that were admitted never run out of it."""
    chosen = ["h2o,budget=256,chunk=64,when=chunk+step", "d2o,budget=200", "tailorkv,topk=16", "h2o,budget=300,chunk=64"]
    with Cluster(worker_args={"decode": ["--arena", "4M"]}, coordinator_args=PATIENCE) as cluster:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            ends = list(pool.map(lambda i: cluster.answer(job(chosen[i % len(chosen)], 70))[0], range(12)))
        assert all(end.status_code == 0 and end.statistics.retries == 0 for end in ends), ends


def test_an_answer_goes_on_elsewhere_after_the_loss_of_its_decode_worker():
    chosen = ["h2o,budget=128,chunk=64,when=chunk+step", "d2o,budget=128", "tailorkv,topk=16"]
    with Cluster(decode=2, worker_args={"decode": ["--arena", "128M"]}) as cluster:
        expected = {recipe: tokens(cluster.answer(job(recipe, 160))[1]) for recipe in chosen}
        watchers = {recipe: Watcher(cluster, cluster.submit(job(recipe, 8000))) for recipe in chosen}
        for watcher in watchers.values():
            watcher.wait_for_tokens(10)
        lost = cluster.get(watchers[chosen[0]].job_id).decode_worker
        resumed = [watcher for watcher in watchers.values() if cluster.get(watcher.job_id).decode_worker == lost]
        cluster.kill(lost)
        for watcher in resumed:
            watcher.wait_for_resumption()
        for recipe, watcher in watchers.items():
            watcher.wait_for_tokens(160)
            assert watcher.cancelled().statistics.retries == (watcher in resumed), recipe
            assert tokens(watcher.events)[:160] == expected[recipe], recipe


def test_turns_read_only_what_is_new():
    code, out, errors = sluice("run", "--local", "--model", MODEL, "--recipe", "h2o,budget=256,chunk=64", "--json",
                               "--max-new-tokens", "8", "--threads", "2", "--prompt", document(1800), "--question", "One?",
                               "--question", "And two?", "--question", "And three?")
    assert code == 0, errors
    ends = [line["finished"]["statistics"] for line in map(json.loads, out.splitlines()) if "finished" in line]
    assert len(ends) == 3
    assert ends[0]["n_reused_tokens"] == 0 and ends[0]["n_prompt_tokens"] > 500
    for before, turn in zip(ends, ends[1:]):
        assert turn["n_reused_tokens"] == before["n_prompt_tokens"] + before["n_output_tokens"] - 1
        assert 2 <= turn["n_prompt_tokens"] - turn["n_reused_tokens"] <= 20
        assert turn["slots_per_head"] <= 256
    code, _, errors = sluice("submit", "--prompt", "a", "--question", "b", "--question", "c")
    assert code == 2 and "--local" in errors, errors


def refused(cluster, cases):
    """Every case (recipe, status, words of its text) is refused, and nothing is begun."""
    for recipe, expected, words in cases:
        try:
            cluster.submit(job(recipe))
        except grpc.RpcError as error:
            assert error.code() == expected, f"{recipe}: {error}"
            assert all(word in error.details() for word in words), f"{recipe}: {error.details()}"
        else:
            raise AssertionError(f"{recipe} was accepted")
    assert not cluster.list(), "nothing was begun"


def test_recipes_that_cannot_be_are_refused_before_any_work():
    code = grpc.StatusCode
    cases = [
        ("tailorkv,ahead=1", code.INVALID_ARGUMENT, ["ahead", "near"]),
        ("place=offload/0", code.INVALID_ARGUMENT, ["layer 0"]),
        ("place=offload/9", code.INVALID_ARGUMENT, ["layer 9", f"0 to {LAYERS - 1}"]),
        ("format=f16/9-:int4", code.INVALID_ARGUMENT, ["layer 9", f"0 to {LAYERS - 1}"]),
        (f"h2o,exempt=0-{LAYERS - 1}", code.INVALID_ARGUMENT, ["exempt"]),
        ("full,when=step", code.INVALID_ARGUMENT, ["budget"]),
        ("d2o,format=int4", code.INVALID_ARGUMENT, ["when=step", "int4"]),
        ("tailorkv,budget=0.1,when=step", code.INVALID_ARGUMENT, ["offload", "when=chunk"]),
        ("wizardry", code.INVALID_ARGUMENT, ["wizardry", "tailorkv"]),
    ]
    with Cluster(kvstore=0) as cluster:
        refused(cluster, cases)
        assert cluster.answer(request(2000))[0].status_code == 0


def test_a_model_without_retaining_heads_refuses_what_needs_them():
    code = grpc.StatusCode
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder:
        model = shutil.copytree(MODEL, os.path.join(folder, "demo"), ignore=shutil.ignore_patterns("retaining_heads.*"))
        with Cluster(kvstore=0, model=model) as cluster:
            refused(cluster, [
                ("locret", code.FAILED_PRECONDITION, ["retaining_heads.safetensors", "tools/convert_retaining_heads.py"]),
                ("score=cis,budget=100,when=chunk", code.FAILED_PRECONDITION, ["retaining_heads.safetensors"]),
            ])


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
