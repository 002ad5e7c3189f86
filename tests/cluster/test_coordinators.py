#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Several coordinators that elect their leader in a real etcd. Leaders are killed and suspended, and etcd is, in the middle of answers: clients
see no token twice and no wrong token, and no worker holds anything at the end. failover_rounds.py repeats this as often as asked, and
measures.
"""
import base64
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from documents import ADD, TEXT, add, ask, asking, names, of
from harness import (BIN, MODEL, Cluster, call, certificates, cluster_pb, connect, document, eventually, inference, question, refused, request,
                     documents_pb, run_tests, stub, tokens, worker_pb)
import grpc
from several import ETCD, Answer, Etcd, SeveralCoordinators
from test_gateway import Gateway, chatting_model

UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE,)
PROMPT = document(3000) + question()
# Sampled, with a stop string that is met and alternatives told: whatever an answer can have.
SAMPLED = ("--max-new-tokens", "700", "--ignore-eos", "--temperature", "0.9", "--seed", "11")
GREEDY = ("--max-new-tokens", "700", "--ignore-eos")


def undisturbed(cluster, options):
    answer = Answer(cluster, PROMPT, *options)
    answer.end()
    return answer


def assert_same(answer, wanted):
    answer.end()
    assert answer.tokens() == wanted.tokens(), f"{len(answer.tokens())} tokens, not those of an undisturbed answer"
    assert answer.text() == wanted.text()
    assert answer.events[-1]["finished"]["text"] == wanted.events[-1]["finished"]["text"]


def test_a_killed_leader_is_followed_and_answers_go_on():
    with Etcd() as etcd, SeveralCoordinators(etcd, n=3) as cluster:
        wanted = [undisturbed(cluster, GREEDY), undisturbed(cluster, SAMPLED)]
        first = cluster.leader()
        standby = next(name for name in cluster.names if name != first)
        # Those that do not lead say who does, and answer what is not an order.
        said = refused(UNAVAILABLE, call, cluster.channel_to(standby), "sluice.v1.Inference.Submit", request())
        assert cluster.addresses[first] in said, said
        assert cluster.about(standby).leader == cluster.addresses[first] and cluster.about(standby).ready
        workers = call(cluster.channel_to(standby), "sluice.v1.Cluster.Workers", cluster_pb.WorkersRequest()).workers
        assert {w.info.name for w in workers if w.state == cluster_pb.READY} == {"prefill-0", "decode-0", "kvstore-0"}, workers
        refused(UNAVAILABLE, call, cluster.channel_to(standby), "sluice.v1.Inference.Get", inference.JobRequest(job_id="job-1"))
        # An operator's drain command outlives the leader that received it.
        call(cluster.channel_to(first), "sluice.v1.Cluster.Drain", cluster_pb.DrainRequest(name="kvstore-0"))
        refused(UNAVAILABLE, call, cluster.channel_to(standby), "sluice.v1.Cluster.Drain", cluster_pb.DrainRequest(name="decode-0"))

        with Gateway(cluster) as gateway:
            asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 700, "ignore_eos": True, "logprobs": 2}
            replies = []
            poster = threading.Thread(target=lambda: replies.append(gateway.post("/v1/completions", asked)))
            answers = [Answer(cluster, PROMPT, *GREEDY), Answer(cluster, PROMPT, *SAMPLED)]
            poster.start()
            for answer in answers:
                answer.wait_for_tokens(30)
            cluster.kill(first)
            for answer, same in zip(answers, wanted):
                assert_same(answer, same)
            poster.join(60)
            status, reply = replies[0]
            assert status == 200, reply
            assert reply["choices"][0]["text"] == wanted[0].text(), reply["choices"][0]["text"]
            assert len(reply["choices"][0]["logprobs"]["tokens"]) == 700
            second = cluster.wait_for_leader()
            state = {w.info.name: w.state for w in cluster.workers().workers}
            assert state["kvstore-0"] == cluster_pb.DRAINING, state
            call(cluster.channel, "sluice.v1.Cluster.Drain", cluster_pb.DrainRequest(name="kvstore-0", undo=True))
            # One that comes back has its workers, and waits for its turn; one that is asked to end makes way at once.
            cluster.start_coordinator(first)
            eventually(lambda: cluster.about(first).standby and cluster.about(first).ready, 20, "the restarted one is ready to lead")
            cluster.processes.pop(second).stop()
            cluster.names.remove(second)
            began = time.monotonic()
            cluster.wait_for_leader()
            assert time.monotonic() - began < 3, "nobody waits for a lease that was given back"
            assert gateway.complete()["choices"][0]["text"].strip() == "48213"
            cluster.wait_ready()


def keys_of(etcd, beginning):
    """The keys of etcd that begin so."""
    ends = beginning[:-1] + chr(ord(beginning[-1]) + 1)
    asked = {"key": base64.b64encode(beginning.encode()).decode(), "range_end": base64.b64encode(ends.encode()).decode(), "keys_only": True}
    with urllib.request.urlopen(f"http://{etcd.servers}/v3/kv/range", json.dumps(asked).encode(), 10) as reply:
        return [base64.b64decode(pair["key"]).decode() for pair in json.load(reply).get("kvs", [])]


def doc(addresses, *words, text=None):
    return subprocess.run([os.path.join(BIN, "sluice"), "doc", *words, "--coordinator", ",".join(addresses)], input=text, text=True,
                          capture_output=True, timeout=120)


def test_documents_are_the_next_leaders():
    with Etcd() as etcd, SeveralCoordinators(etcd, n=3) as cluster, tempfile.TemporaryDirectory() as folder:
        first = cluster.leader()
        standby = next(name for name in cluster.names if name != first)
        original, _ = add(cluster.channel_to(first), "gpl", keep_ms=3600000)
        _, wanted = ask(cluster.channel_to(first), "gpl")
        # A coordinator that does not lead says who does, and changes nothing.
        there = cluster.channel_to(standby)
        for method in ("Get", "Delete"):
            assert cluster.addresses[first] in refused(UNAVAILABLE, of, there, method, "gpl"), method
        assert cluster.addresses[first] in refused(UNAVAILABLE, names, there)
        assert cluster.addresses[first] in refused(UNAVAILABLE, lambda: list(
            stub(there.unary_stream, ADD)(documents_pb.AddDocumentRequest(name="other", text=TEXT), timeout=20)))
        assert cluster.addresses[first] in refused(UNAVAILABLE, ask, there, "gpl")
        # Two calls add one name at two coordinators at once: one of them does. The commands go on to the leader.
        one, two = os.path.join(folder, "one"), os.path.join(folder, "two")
        for path, seed in ((one, 1), (two, 2)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(document(4000, seed=seed))
        order = list(cluster.addresses.values())
        runs = []
        threads = [threading.Thread(target=lambda a=addresses, f=path: runs.append(doc(a, "add", "both", f)))
                   for addresses, path in ((order, one), (order[::-1], two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(run.returncode for run in runs) == [0, 1], runs
        failed = next(run.stderr for run in runs if run.returncode)
        assert "both" in failed and ("is taken" in failed or "is adding" in failed), failed
        assert names(cluster.channel_to(first)) == ["both", "gpl"]
        assert len(keys_of(etcd, "/sluice/documents/")) == 2 and len(keys_of(etcd, "/sluice/texts/")) == 2

        cluster.kill(first)
        second = cluster.wait_for_leader(but=first)
        finished, again = ask(cluster.channel_to(second), "gpl")  # as the first call to it: it has read them by then
        assert tokens(again) == tokens(wanted), "another answer at the next leader"
        eventually(lambda: of(cluster.channel_to(second), "Get", "gpl").store == "kvstore-0", 10, "the store is known")
        finished, again = ask(cluster.channel_to(second), "gpl")
        assert tokens(again) == tokens(wanted) and finished.statistics.n_reused_tokens >= original.n_tokens - 64, finished.statistics
        kept = of(cluster.channel_to(second), "Get", "gpl")
        assert (kept.sha256, kept.created_ms, kept.expires_ms) == (original.sha256, original.created_ms, original.expires_ms), kept
        assert [run.returncode for run in (doc(order, "rm", "both"), doc(order, "keep", "gpl", "--forever"))] == [0, 0]

        # The killed one is back and follows, and others lead after it: what was deleted meanwhile does not come back.
        cluster.start_coordinator(first)
        eventually(lambda: cluster.about(first).standby, 20, "the restarted one follows")
        refused(UNAVAILABLE, of, cluster.channel_to(first), "Get", "gpl")
        cluster.processes.pop(second).stop()
        cluster.names.remove(second)
        third = cluster.wait_for_leader(but=second)
        assert names(cluster.channel_to(third)) == ["gpl"] and of(cluster.channel_to(third), "Get", "gpl").expires_ms == 0
        assert tokens(ask(cluster.channel_to(third), "gpl")[1]) == tokens(wanted)
        of(cluster.channel_to(third), "Delete", "gpl")
        assert not keys_of(etcd, "/sluice/documents/") and not keys_of(etcd, "/sluice/texts/")
        # Without etcd there is no leader, so a text is not added, and the call says so.
        etcd.signal(signal.SIGSTOP)
        refused(UNAVAILABLE, lambda: (add(cluster.channel_to(third), "late"), time.sleep(0.1)))
        threading.Timer(2, lambda: etcd.signal(signal.SIGCONT)).start()
        added = doc(order, "add", "waits", one)  # the command waits for the election
        assert added.returncode == 0, added
        assert doc(order, "rm", "waits").returncode == 0
        cluster.wait_for_leader()
        eventually(lambda: names(cluster.channel) == [], 20, "nothing of it is left")


def test_a_drawn_seed_is_kept_by_the_next_leader():
    """The seed that the first coordinator drew."""
    with chatting_model() as model, Etcd() as etcd, SeveralCoordinators(etcd, n=2, model=model) as cluster:
        options = ("--ignore-eos", "--temperature", "0.9", "--deadline", "10m")
        answers = [Answer(cluster, PROMPT, *options, "-n", "700"), Answer(cluster, PROMPT, *options, "--raw", "-n", "700")]
        for answer in answers:
            answer.wait_for_tokens(30)
        cluster.kill(cluster.leader())
        for answer in answers:
            answer.end()
            seed = answer.events[-1]["finished"]["statistics"]["sampling"]["seed"]
            first = next(e["state"]["accepted"] for e in answer.events if "state" in e)
            assert first["sampling"]["seed"] == seed, (first, seed)
            assert len({e["job_id"] for e in answer.events}) == 2, "it went on at the next leader"
            raw = ["--raw"] if answer is answers[1] else []
            assert_same(Answer(cluster, PROMPT, *options, *raw, "-n", "700", "--seed", seed), answer)


def test_a_leader_that_wakes_up_is_refused():
    with Etcd() as etcd, SeveralCoordinators(etcd, n=2) as cluster:
        wanted = undisturbed(cluster, SAMPLED)
        old = cluster.leader()
        old_term = cluster.about(old).term
        answers = [Answer(cluster, PROMPT, *SAMPLED) for _ in range(2)]
        for answer in answers:
            answer.wait_for_tokens(20)
        cluster.kill(old, signal.SIGSTOP)
        for answer in answers:
            assert_same(answer, wanted)
        new_term = cluster.about(cluster.wait_for_leader(but=old)).term
        assert new_term > old_term
        # The requests that the old leader had prepared when it was suspended, as they arrive now.
        decode = cluster.processes["decode-0"]
        prefill = cluster.processes["prefill-0"]
        store = cluster.processes["kvstore-0"]
        aborted = (grpc.StatusCode.ABORTED,)
        orders = [(decode, "Decode.Reserve", worker_pb.ReserveRequest(job_id="old", capsule_bytes=4096, session_bytes=0, term=old_term)),
                  (decode, "Decode.Release", worker_pb.ReleaseRequest(lease_id="x", term=old_term)),
                  (store, "Store.Release", worker_pb.ReleaseRequest(lease_id="x", term=old_term))]
        streams = [(decode, "Decode.Run", worker_pb.DecodeRequest(job_id="old", term=old_term)),
                   (prefill, "Prefill.Run", worker_pb.PrefillRequest(job_id="old", term=old_term))]
        for worker, method, message in orders:
            with connect(worker.address) as channel:
                assert "term" in refused(aborted, call, channel, f"sluice.v1.{method}", message)
                if method == "Decode.Reserve":  # of no coordinator among several
                    message.term = 0
                    refused(aborted, call, channel, f"sluice.v1.{method}", message)
        for worker, method, message in streams:
            with connect(worker.address) as channel:
                assert "term" in refused(aborted, lambda c=channel, m=method, q=message:
                                         list(stub(c.unary_stream, f"sluice.v1.{m}")(q, timeout=20)))
        cluster.kill(old, signal.SIGCONT)
        eventually(lambda: cluster.about(old).standby and cluster.about(old).leader, 10, "it sees that another one leads")
        refused(UNAVAILABLE, call, cluster.channel_to(old), "sluice.v1.Inference.Submit", request())


def test_without_etcd_nobody_leads_and_what_runs_goes_on():
    with Etcd(3) as etcd, SeveralCoordinators(etcd, n=2, decode=2) as cluster:
        wanted = undisturbed(cluster, GREEDY)
        leader = cluster.leader()
        term = cluster.about(leader).term
        etcd.signal(signal.SIGSTOP, [0])  # one of three: nothing has happened
        assert_same(Answer(cluster, PROMPT, *GREEDY), wanted)
        time.sleep(4)
        assert cluster.about(leader).term == term, "one of three servers makes no difference"
        etcd.signal(signal.SIGKILL, [1])  # the majority is gone
        long = cluster.watch(cluster.submit(inference.GenerateRequest(text=PROMPT, max_new_tokens=4000, ignore_eos=True)))
        next(iter(long))
        eventually(lambda: cluster.about(leader).standby, 8, "the leader fences itself")
        refused(UNAVAILABLE, call, cluster.channel_to(leader), "sluice.v1.Inference.Submit", request())
        events = list(long)  # half a minute where the machine is busy
        assert events[-1].finished.status_code == 0 and len(tokens(events)) == 4000, events[-1]
        assert all(p.popen.poll() is None for p in cluster.processes.values()), "nobody ends because etcd is away"
        waiting = Answer(cluster, PROMPT, *GREEDY)  # until a coordinator leads, for half a minute at most
        time.sleep(1)
        etcd.signal(signal.SIGCONT, [0])
        etcd.start(1)
        assert_same(waiting, wanted)
        etcd.signal(signal.SIGSTOP)  # all of it, with its connections open
        eventually(lambda: all(cluster.about(name).standby for name in cluster.names), 8, "nobody leads")
        etcd.signal(signal.SIGCONT)
        cluster.wait_for_leader()


def words(events):
    return [e.token.text for e in events if e.HasField("token")]


def assert_goes_on(cluster, job, wanted, delivered):
    """Submitted again, as to a next leader, with the first tokens of an answer: what comes makes it whole, byte for byte."""
    resumption = inference.Resumption(delivered=inference.TokenIds(ids=tokens(wanted)[:delivered]), elapsed_ms=10)
    events = list(cluster.watch(cluster.submit(inference.GenerateRequest(resumption=resumption, **job))))
    assert events[-1].finished.status_code == 0, events[-1]
    assert tokens(wanted)[:delivered] + tokens(events) == tokens(wanted), delivered
    assert "".join(words(wanted)[:delivered] + words(events)) == "".join(words(wanted)), (delivered, words(events))
    assert events[-1].finished.text == wanted[-1].finished.text
    assert events[-1].finished.reason == wanted[-1].finished.reason


def test_an_answer_goes_on_at_any_boundary():
    # Some tokens drawn at random are pieces of characters. They are sent when the character is complete, or known to be invalid.
    with Cluster(kvstore=0) as cluster:
        for seed in range(1, 30):  # which of them draw pieces depends on the processor's kernels
            job = dict(text="The licence", recipe="full", max_new_tokens=200, ignore_eos=True, sampling=inference.Sampling(temperature=4, seed=seed))
            _, wanted = cluster.answer(inference.GenerateRequest(**job))
            pieces = [i for i, text in enumerate(words(wanted)) if text == ""]
            if len(pieces) >= 2:
                break
        assert len(pieces) >= 2, "no piece of a character in 29 answers"
        for i in pieces:
            for delivered in (i, i + 1, i + 2):
                assert_goes_on(cluster, job, wanted, delivered)
        assert_goes_on(cluster, job, wanted, 200)
        # A stop string over several tokens, of which each boundary is one: what may be its beginning is held back until it is known.
        half = "".join(words(wanted)[80:83])
        for stop in (half, half[:-1] + "\x01"):  # is met; is only begun
            stopped = dict(job, stop=[stop])
            _, whole = cluster.answer(inference.GenerateRequest(**stopped))
            assert (whole[-1].finished.reason == inference.Finished.STOP_STRING) == (stop == half), whole[-1]
            for delivered in range(79, 84):
                if delivered <= len(tokens(whole)):
                    assert_goes_on(cluster, stopped, whole, delivered)


def test_a_chat_goes_on_at_the_next_leader():
    asked = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 1.5, "seed": 3, "max_tokens": 900, "ignore_eos": True, "stop": ["\x01\x02"]}

    def content(sse):
        chunks = [json.loads(line[6:]) for line in sse.split("\n\n") if line.startswith("data: ") and line != "data: [DONE]"]
        assert sse.endswith("data: [DONE]\n\n"), sse[-300:]
        return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks), chunks[-1]["choices"][0]["finish_reason"]

    with chatting_model() as model, Etcd() as etcd, SeveralCoordinators(etcd, n=2, kvstore=0, model=model) as cluster, Gateway(cluster) as gateway:
        with gateway.stream("/v1/chat/completions", asked) as (reply, _):
            wanted = content(reply.read().decode())
        leader = cluster.leader()
        with gateway.stream("/v1/chat/completions", asked) as (reply, _):
            begun = reply.read(20000)
            cluster.kill(leader)
            assert content((begun + reply.read()).decode()) == wanted
        assert cluster.wait_for_leader() != leader


def test_an_etcd_with_certificates():
    with certificates("coordinator/coordinator") as own, certificates("coordinator/coordinator") as foreign, Etcd(certificates=own) as etcd:
        def by(who):
            return ["--etcd-ca", f"{own.folder}/ca.pem", "--etcd-cert", who.file("coordinator/coordinator", "pem"), "--etcd-key",
                    who.file("coordinator/coordinator", "key")]
        with SeveralCoordinators(etcd, n=2, kvstore=0, coordinator_args=by(own)) as cluster:
            first = cluster.leader()
            cluster.answer(request(2000))
            cluster.kill(first)
            cluster.wait_for_leader(but=first)
            # A coordinator that etcd refuses does not lead, and neither does one that does not know etcd's authority; both keep trying.
            names = ["stranger", "mistrustful"]
            for name, words_of in zip(names, (by(foreign), ["--etcd-ca", f"{foreign.folder}/ca.pem", *by(own)[2:]])):
                cluster.addresses[name] = cluster.addresses[first]
                cluster.coordinator_args = words_of
                cluster.start_coordinator(name)
                process = cluster.processes.pop(name)
                eventually(lambda: "etcd" in process.errors(), 10, "it says that etcd refuses it")
                about = call(cluster.channel_to(name), "sluice.v1.Inference.Model", inference.ModelRequest(), 5)
                assert about.standby and not about.leader, about
                assert process.stop() == 0


def has_jobs(path):
    """Returns whether a coordinator has written jobs to this database."""
    if not os.path.exists(path):
        return False
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT count(*) FROM jobs").fetchone()[0] > 0


def test_up_starts_several():
    with tempfile.TemporaryDirectory(prefix="sluice-up-") as folder:
        state, log = os.path.join(folder, "state"), open(os.path.join(folder, "log"), "w")
        words_of = [os.path.join(BIN, "sluice"), "up", "--model", MODEL, "--coordinators", "2", "--kvstore", "0", "--port", "0",
                    "--no-gateway", "--keep-going", "--coordinator-state", os.path.join(folder, "jobs"), "--state-file", state]
        with log, open(log.name) as said:
            nobody = subprocess.run(words_of, env={**os.environ, "PATH": folder}, stdout=log, stderr=subprocess.PIPE, timeout=30)
            assert nobody.returncode != 0 and b"etcd is not installed" in nobody.stderr, nobody
            up = subprocess.Popen(words_of, stdout=log, stderr=log)
            try:
                eventually(lambda: os.path.exists(state) or up.poll() is not None, 30, "all are up")
                assert up.poll() is None, said.read()
                with open(state) as file:
                    about = json.load(file)
                run = [os.path.join(BIN, "sluice"), "run", "--coordinator", about["coordinator"], "--prompt", "The licence", "--max-new-tokens",
                       "4", "--json"]
                with contextlib.ExitStack() as stack:  # one leads by now, so the first call of any kind finds it
                    channels = [stack.enter_context(connect(address)) for address in about["coordinator"].split(",")]
                    replies = [call(channel, "sluice.v1.Inference.Model", inference.ModelRequest()) for channel in channels]
                    assert [reply.standby for reply in replies].count(False) == 1, replies
                before = subprocess.run(run, capture_output=True, timeout=60, check=True)
                # The leader is killed: the other coordinator leads.
                leaders = [p for p in about["processes"] if has_jobs(os.path.join(folder, "jobs", p["name"], "jobs.db"))]
                assert len(leaders) == 1, leaders
                os.kill(leaders[0]["pid"], signal.SIGKILL)
                after = subprocess.run(run, capture_output=True, timeout=60, check=True)
                ids = [[json.loads(line)["token"]["id"] for line in run.stdout.splitlines() if b'"token"' in line] for run in (before, after)]
                assert ids[0] == ids[1] and len(ids[0]) == 4, ids
            finally:
                up.terminate()
                assert up.wait(30) == 0, said.read()


if __name__ == "__main__":
    if not ETCD:
        print("skipped: etcd is not installed (Debian's etcd-server)")
        sys.exit(77)
    sys.exit(run_tests(globals()))
