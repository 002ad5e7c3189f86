# SPDX-License-Identifier: Apache-2.0
"""Emulated GPUs that are ranks of one model, each with memory of its own: their capsules have the bytes that one such GPU makes, whatever
the recipe, and their answers are the CPU's. In a cluster, the other worker need not know that there are ranks."""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
sys.path.insert(0, os.path.join(ROOT, "tests", "bits"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import capsule as capsules  # noqa: E402
from harness import SLOW, Cluster, in_one_process, inference, run_tests, tokens  # noqa: E402
from test_answers import BESIDE, MODEL, OTHERS, QUESTION, SLUICE, SMALL, document, presets  # noqa: E402
from test_stalls import end_frozen, freeze, start  # noqa: E402
from test_cluster import ON_DEVICE, expected, fail_on, job  # noqa: E402

# Rows, heads and slots as ranks divide them; where ALL_RECIPES is set, every recipe that one device is tried with.
SOME = ["full,format=int4", "d2o,heads=layer," + SMALL, "snapkv,heads=adaptive,when=end,budget=56"]
ALL = "ALL_RECIPES" in os.environ


def every():
    named = [name + ("" if name == "full" else ",topk=32" if name.startswith("tailorkv") else "," + SMALL) for name in presets()]
    return OTHERS + [",".join([recipe] + [BESIDE[name] for name in BESIDE if recipe.startswith(name)]) for recipe in named]


def run(recipe, capsule, *device, **environment):
    command = [SLUICE, "run", "--local", "--quiet", "--model", MODEL, "--recipe", recipe, "--prompt", document(), "--question", QUESTION,
               "--max-new-tokens", "4", "--ignore-eos", "--device", *device]
    return subprocess.run(command + (["--save-capsule", capsule] if capsule else []), capture_output=True, text=True, timeout=600 * SLOW,
                          env={**os.environ, **environment})


def test_capsules_do_not_know_how_many_ranks_made_them():
    with tempfile.TemporaryDirectory() as folder:
        for i, recipe in enumerate(every() if ALL else SOME):
            one, several = os.path.join(folder, "one"), os.path.join(folder, "several")
            ranks = os.environ.get("RANKS", "4" if i == 0 else "2")
            here = run(recipe, None, "cpu")
            runs = [run(recipe, one, "emulated"), run(recipe, several, "emulated", "--ranks", ranks)]
            for done in [here] + runs:
                assert done.returncode == 0 and done.stdout == here.stdout, (recipe, here.stdout, done.stdout, done.stderr)
            of_one, of_several = capsules.of_file(one), capsules.of_file(several)
            assert of_one.whole == of_several.whole, f"{recipe}: {ranks} ranks make another capsule"
            print(f"{recipe}: {ranks} ranks as one", flush=True)


def answer_on(role, recipe):
    with Cluster(kvstore=1, worker_args={role: ON_DEVICE + ["--ranks", "2"]}) as cluster:
        for time in ("first", "second"):
            _, events = cluster.answer(job(recipe), timeout=120)
            assert tokens(events) == expected(recipe), f"{recipe}, the {time} time: {tokens(events)}"
            cluster.assert_clean()
        log = cluster.processes[f"{role}-0"].errors()
        assert "rank=1 of=2 weights=" in log, log


def test_prefill_on_ranks():
    answer_on("prefill", "tailorkv-near,topk=32")


def test_decode_on_ranks():
    answer_on("decode", "snapkv,format=int4," + SMALL)


def test_a_rank_that_goes_wrong_takes_its_worker_along():
    fail_on("decode", "200@1", "--ranks", "2", says=" of device 1 was made to fail")


def test_a_rank_that_stands_still_takes_its_worker_along():
    """Its thread, which queues what its device is to do: long before the engine is called stalled."""
    patient = ["--stall-after", "1h"]
    with Cluster(prefill=1, decode=0, kvstore=0, coordinator_args=patient) as cluster:
        victim = start(cluster, "decode-0", [*patient, *ON_DEVICE, "--ranks", "2"])
        cluster.wait_ready()
        asked = inference.GenerateRequest(text=document() + " " + QUESTION, recipe="full", max_new_tokens=24, ignore_eos=True)
        found, others = [], 0
        for event in cluster.generate(asked, 120):
            found.append(event)
            if len(tokens(found)) == 3 and others == 0:
                freeze(victim, "rank-1")
                cluster.start_worker("decode-1")
                others = 1
        assert found[-1].finished.status_code == 0 and found[-1].finished.statistics.retries >= 1, found[-1]
        assert tokens(found) == in_one_process("full", asked.text, asked.max_new_tokens)
        assert "rank 1 of 2 has got nothing done for 5.0 s" in victim.errors(), victim.errors()
        end_frozen(cluster, "decode-0")


def test_a_rank_whose_device_stands_still_takes_its_worker_along():
    """A kernel of one rank never ends: the thread that waits for the step gets an error in time, which names the rank."""
    done = run("full", None, "emulated", "--ranks", "2", SLUICE_EMULATED_STALL="40")
    assert done.returncode != 0 and "rank 1 of 2 has got nothing done for 5.0 s" in done.stderr, done


def test_a_rank_without_memory_is_named():
    done = run("full", None, "emulated", "--ranks", "2", SLUICE_EMULATED_SMALL="1")
    assert done.returncode != 0 and "rank 1 of 2: the device has no room for " in done.stderr, done


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
