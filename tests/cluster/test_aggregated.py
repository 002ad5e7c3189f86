#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Workers that read prompts and write their answers: the same bits as two workers, losses, the choice of a place, roles that follow the
load, and `sluice up`."""
import concurrent.futures
import contextlib
import json
import os
import re
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

from harness import BIN, MODEL, PATIENCE, SLOW, Cluster, cluster_pb, document, endless, eventually, grpc, in_one_process, inference
from harness import connect, question, refused, run_tests, stub, tokens, worker_pb
from test_faults import Watcher
from test_turns import end, said_of

AGGREGATED = {"decode": ["--aggregated"]}
PATIENT = ["--retrieve-deadline", "20000ms", "--retrieve-lost", "20000ms"]  # a store that answers later changes bits
RECIPES = ["full", "full,format=int8,chunk=128", "snapkv,budget=128,chunk=128", "d2o,budget=128,chunk=128",
           "h2o,budget=200,when=chunk+step,chunk=128", "place=offload/2-,format=f16/2-:int8,topk=64,chunk=128"]
TEXT = document(1600)


def bits(events):
    """Every token with its logarithm of the probability, and those of the alternatives."""
    return [(e.token.id, e.token.logprob, [(a.id, a.logprob) for a in e.token.alternatives]) for e in events if e.HasField("token")]


def ask(recipe, text=TEXT + question(), n_tokens=8, temperature=0.0, **fields):
    sampling = inference.Sampling(temperature=temperature, seed=7, logprobs=2)
    return inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=n_tokens, ignore_eos=True, sampling=sampling, **fields)


def answers_of(cluster):
    """Asks in every way. Returns the bits of each answer, and how many tokens were reused."""
    found, reused = {}, {}

    def note(way, recipe, request):
        finished, events = cluster.answer(request)
        assert finished.status_code == 0, (way, recipe, finished.status_text)
        found[way, recipe], reused[way, recipe] = bits(events), finished.statistics.n_reused_tokens
        return finished
    for recipe in RECIPES:
        n_all = note("greedy", recipe, ask(recipe)).statistics.n_prompt_tokens - 1
        eventually(lambda: note("seeded, again", recipe, ask(recipe, temperature=0.8)).statistics.n_reused_tokens == n_all, 20,
                   f"{recipe}: the store has the whole prompt")
        note("another question", recipe, ask(recipe, TEXT + question("harbor")))
    note("without reuse", "full", ask("full", no_reuse=True))
    for recipe in [recipe for recipe in RECIPES if "offload" not in recipe]:
        talk = inference.Conversation(id=recipe, keep_ms=60000)
        first = note("first turn", recipe, ask(recipe, conversation=talk))
        note("second turn", recipe, ask(recipe, TEXT + question() + first.text + " And again: " + question(), conversation=talk))
        end(cluster, recipe)
    return found, reused


def test_one_worker_has_the_bits_of_two():
    with Cluster(worker_args={"decode": PATIENT}, coordinator_args=PATIENCE) as cluster:
        expected, expected_reuse = answers_of(cluster)
    with Cluster(prefill=0, worker_args={"decode": [*AGGREGATED["decode"], *PATIENT]}, coordinator_args=PATIENCE) as cluster:
        assert cluster.model_reply().ready
        found, reuse = answers_of(cluster)
        large, _ = cluster.answer(ask("full", document(14000)))  # more than blocks may take: it is sent from its pages, and then written
        assert large.statistics.kept == inference.KEPT_STORED, large
        again, events = cluster.answer(ask("full", document(14000)))
        assert again.statistics.n_reused_tokens == again.statistics.n_prompt_tokens - 1, again
        assert tokens(events) == in_one_process("full", document(14000), n_tokens=8)
        readers = {job.prefill_worker for job in cluster.list() if job.prefill_worker}  # none reads for a turn on a session that it has
        assert [w.info.name for w in cluster.workers().workers if w.info.reads] == ["decode-0"] and readers == {"decode-0"}, readers
    for key, answer in expected.items():
        assert found[key] == answer, (key, found[key], answer)
    # A state between two chunks may be left out where a machine is busy; what ends at its own end is not
    for key in [key for key in reuse if key[0] != "another question"]:
        assert reuse[key] == expected_reuse[key], (key, reuse[key], expected_reuse[key])
    assert reuse["another question", "full"] >= 512 and reuse["second turn", "full"] > 0, reuse


def test_many_prompts_are_read_while_answers_are_written():
    """Prompts and answers that take turns on one engine have the tokens of jobs alone."""
    recipes = ["full", "full,format=int8", "h2o,budget=0.4,when=chunk+step,chunk=128"]
    texts = [document(n, seed=n) + question() for n in (1500, 3000, 6000)]
    with Cluster(prefill=0, kvstore=0, worker_args=AGGREGATED, coordinator_args=PATIENCE) as cluster:
        streams = {(recipe, text): cluster.generate(inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=40, ignore_eos=True))
                   for text in texts for recipe in recipes}
        for (recipe, text), stream in streams.items():
            assert tokens(list(stream)) == in_one_process(recipe, text, n_tokens=40), (recipe, len(text))


def test_a_worker_of_both_roles_dies_while_it_reads_and_in_mid_answer():
    with Cluster(prefill=0, decode=3, worker_args=AGGREGATED) as cluster:
        text = document(16000)
        job = cluster.submit(inference.GenerateRequest(text=text, recipe="full,chunk=64", max_new_tokens=4, ignore_eos=True))
        eventually(lambda: cluster.get(job).n_read_tokens > 0, 20, "it is read", every=0.005)
        dead = cluster.get(job).decode_worker
        cluster.kill(dead)
        assert tokens(list(cluster.watch(job))) == in_one_process("full,chunk=64", text, n_tokens=4)
        assert cluster.get(job).decode_worker != dead
        watcher = Watcher(cluster, cluster.submit(endless(recipe="full,format=int8")))
        watcher.wait_for_tokens(20)
        dead = cluster.get(watcher.job_id).decode_worker
        cluster.kill(dead)
        watcher.wait_for_resumption()
        watcher.wait_for_tokens(300)
        statistics = watcher.cancelled().statistics
        assert tokens(watcher.events)[:300] == in_one_process("full,format=int8", document(3000) + question(), n_tokens=300)
        assert statistics.retries >= 1 and cluster.get(watcher.job_id).decode_worker != dead, statistics


def test_a_prompt_is_read_where_its_answer_begins_sooner():
    with Cluster(worker_args=AGGREGATED) as cluster:
        finished, events = cluster.answer(ask("full"))
        assert "decode-0 reads and writes: no rate is measured yet" in said_of(events), said_of(events)
        long = cluster.submit(endless())
        eventually(lambda: cluster.get(long).n_output_tokens > 0, 20, "the worker writes")
        texts = [document(3000, seed=n) + question() for n in range(1, 4)]
        said = [said_of(cluster.answer(ask("full", text))[1]) for text in texts]
        assert "prefill-0 -> decode-0: no rate is measured yet; 0 tokens in line and 1 other jobs here" in said[0], said

        def is_here(words, other_jobs):
            """Returns where the prompt was read. The times are those of reading here, twice as long beside other jobs, and there, with the ship."""
            place, jobs, *times = re.search(r"decode-0( reads and writes)?: (?=[\d.]+ s here \(0 tokens in line, (\d) other jobs\))([\d.]+) s here .*, "
                                            r"([\d.]+) s there \(0 tokens in line, ([\d.]+) s to ship\)", words).groups()
            here, there, ship = map(float, times)
            assert int(jobs) == other_jobs and here > 0 and abs(here - (1 + (other_jobs > 0)) * (there - ship)) < 0.03, words
            assert here <= there if place else here >= there, words
            return bool(place)
        for words in said[1:]:
            is_here(words, 1)
        cluster.cancel(long)
        eventually(lambda: cluster.workers().jobs_running == 0, 20, "the worker is free")
        assert is_here(said_of(cluster.answer(ask("full", document(3000, seed=9) + question()))[1]), 0)
        # Without its prefill worker, everything is read here
        cluster.kill("prefill-0")
        eventually(lambda: any(w.state == cluster_pb.LOST for w in cluster.workers().workers), 20, "it is lost")
        assert cluster.model_reply().ready and cluster.answer(ask("full"))[0].status_code == 0


def test_what_a_worker_cannot_do_is_refused_with_the_reason():
    with Cluster(kvstore=0, prefill=0, worker_args={"decode": ["--aggregated", "--max-chunk", "256"]},
                 coordinator_args=["--worker-wait", "200ms"]) as cluster:
        def words_of(request):
            return refused([grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE], cluster.answer,
                           request)
        assert "chunk=512 is more than this worker's --max-chunk 256" in words_of(ask("h2o,budget=0.5,chunk=512"))
        words = words_of(ask("full,chunk=256", document(30000) * 2))
        assert re.search(r"needs \d+ bytes of KV memory on a decode worker", words), words
        # Submitted, as a job with a deadline of its own waits for a store until then
        words = list(cluster.watch(cluster.submit(ask(RECIPES[-1] + ",chunk=256"))))[-1].finished.status_text
        assert "offloads layers" in words and "kvstores are ready" in words, words
        # An answer that no arena can hold is refused at once, and does not keep others from their turn
        with connect(cluster.processes["decode-0"].address) as channel:
            request = worker_pb.PrefillRequest(job_id="job-1", recipe="full,chunk=256", tokens=inference.TokenIds(ids=[1, 2, 3]),
                                                session_bytes=1 << 50)
            words = refused([grpc.StatusCode.RESOURCE_EXHAUSTED], list, stub(channel.unary_stream, "sluice.v1.Prefill.Run")(request, timeout=60))
            assert "this worker has --arena" in words, words
    with Cluster(kvstore=0) as cluster, connect(cluster.processes["prefill-0"].address) as channel:
        request = worker_pb.PrefillRequest(job_id="job-1", recipe="full", tokens=inference.TokenIds(ids=[1, 2, 3]))
        words = refused([grpc.StatusCode.INVALID_ARGUMENT], list, stub(channel.unary_stream, "sluice.v1.Prefill.Run")(request, timeout=10))
        assert "destination: missing" in words, words


def test_roles_follow_the_load():
    """Long answers, then long prompts: a worker changes its role each time, every answer is right, and no job fails."""
    with Cluster(prefill=0, decode=3, kvstore=0, worker_args={"decode": ["--aggregated", "--max-jobs", "4"]},
                 coordinator_args=[*PATIENCE, "--rebalance", "1s"]) as cluster:
        def roles():
            return sorted(cluster_pb.WorkerRole.Name(w.info.role) for w in cluster.workers().workers
                          if w.state != cluster_pb.LOST and not w.info.reads)

        def load_until(expected, texts, n_tokens, n_at_once):
            answers, over = [], threading.Event()

            def ask_again(text):
                while True:
                    answers.append((text, list(cluster.generate(ask("full,format=int8", text, n_tokens), timeout=300))))
                    if over.is_set():
                        return
            threads = [threading.Thread(target=ask_again, args=(texts[i % len(texts)],)) for i in range(n_at_once)]
            for thread in threads:
                thread.start()
            try:
                eventually(lambda: roles() == expected, 60, f"roles {expected}")
            finally:
                over.set()
                for thread in threads:
                    thread.join()
            right = {text: in_one_process("full,format=int8", text, n_tokens=n_tokens) for text in texts}
            assert len(answers) >= n_at_once and all(tokens(events) == right[text] for text, events in answers)

        eventually(lambda: roles() == ["DECODE", "PREFILL", "PREFILL"], 20, "three workers have roles")
        load_until(["DECODE", "DECODE", "PREFILL"], [document(300, seed=n) + question() for n in range(3)], 300, 10)
        load_until(["DECODE", "PREFILL", "PREFILL"], [document(12000, seed=n) + question() for n in range(3)], 1, 6)
        assert {(job.state, job.prefill_worker != job.decode_worker) for job in cluster.list()} == {(inference.DONE, True)}
        # Its worker dies: another one does both at once
        reader = next(w.info.name for w in cluster.workers().workers if w.info.role == cluster_pb.DECODE)
        cluster.kill(reader)
        eventually(lambda: roles() == ["DECODE", "PREFILL"], 20, "the others have both roles")
        assert cluster.answer(ask("full"))[0].status_code == 0
        cluster.assert_clean()


def test_roles_rest_under_a_constant_load():
    """Long prompts, then long answers: workers go over one way, and stay."""
    said = r"drains, to go over from (\w+) to \w+: for [\d.]+ s, reading kept ([\d.]+) of (\d) workers busy, and writing ([\d.]+) of (\d)"
    with Cluster(prefill=0, decode=4, kvstore=0, worker_args={"decode": ["--aggregated", "--max-jobs", "4"]},
                 coordinator_args=[*PATIENCE, "--rebalance", "1s"]) as cluster:
        def changes():
            return re.findall(said, cluster.coordinator.errors())

        def changes_under(requests, duty):
            """Loads the cluster until a worker has left this duty, and until two more answers of each request. Returns what the log says of all changes."""
            over, n_answers = threading.Event(), [0] * len(requests)

            def ask_again(i):
                while not over.is_set():
                    assert cluster.answer(requests[i])[0].status_code == 0
                    n_answers[i] += 1
            with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
                asking = [pool.submit(ask_again, i) for i in range(len(requests))]
                try:
                    eventually(lambda: any(change[0] == duty for change in changes()), 60, f"a worker that was {duty} goes over")
                    enough = sum(n_answers) + 2 * len(requests)
                    eventually(lambda: sum(n_answers) >= enough, 60, "the load goes on")
                    log = changes()
                finally:
                    over.set()
                for one in asking:
                    one.result()
            eventually(lambda: f"\nsluice_role_changes_total {len(changes())}\n" in page(f"http://{cluster.coordinator.admin}/metrics"), 10,
                       "the metric counts what the log says")
            return log
        prompts = [ask("full,format=int8", document(6000, seed=n) + question(), 1) for n in range(8)]
        (duty, reading, n_read, writing, n_write), = changes_under(prompts, "writing")
        assert (duty, n_read, n_write) == ("writing", "2", "2") and 1.7 <= float(reading) <= 2 and float(writing) <= 0.7, (reading, writing)
        answers = [ask("full,format=int8", document(300, seed=n) + question(), 300) for n in range(16)]
        later = changes_under(answers, "reading")[1:]
        assert len(later) <= 2 and {duty for duty, *_ in later} == {"reading"}, later


def page(url):
    with contextlib.suppress(urllib.error.HTTPError):
        return urllib.request.urlopen(url, timeout=10).read().decode().strip()


def test_up_starts_an_aggregated_cluster():
    sluice = os.path.join(BIN, "sluice")
    with tempfile.TemporaryDirectory(prefix="sluice-up-") as folder:
        env = {**os.environ, "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder}

        def run(*words):
            done = subprocess.run([sluice, *words], capture_output=True, text=True, env=env, timeout=60 * SLOW)
            assert done.returncode == 0, (words, done.stderr)
            return done.stdout
        up = json.loads(run("up", "--aggregated", "--json", "--detach", "--name", "one", "--model", MODEL, "--port", "0", "--http-port", "0",
                            "--kvstore", "0", "--arena", "32M"))
        try:
            assert [p["name"] for p in up["processes"]] == ["coordinator", "decode-0", "gateway"], up
            gateway = next(p for p in up["processes"] if p["name"] == "gateway")
            eventually(lambda: page(f"http://{gateway['admin']}/readyz") == "ok", 10, "the gateway has asked the coordinator")
            assert " BOTH " in run("top", "--once", "--coordinator", up["coordinator"])
            assert " affinity  " in run("status", "one"), run("status", "one")
            metrics = page(f"http://{up['processes'][0]['admin']}/metrics")
            assert 'sluice_workers{role="both",state="ready"} 1' in metrics, metrics
            assert "48213" in run("run", "--coordinator", up["coordinator"], "--recipe", "full", "--max-new-tokens", "8", "--prompt", TEXT + question())
        finally:
            run("down", "one")


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
