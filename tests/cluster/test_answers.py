#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The main job gives the right answer, and the same answer however it travels and however it is cut."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import BIN, MODEL, PATIENCE, ROOT, SLOW, Cluster, State, document, endless, eventually, in_one_process, inference, local_tokens
import grpc
from harness import question, request, run_local, run_tests, states, tokens
from test_gateway import Gateway, chatting_model

RECIPES = ["full", "h2o,budget=0.5", "streamingllm,budget=512", "full,format=int4", "h2o,budget=0.5,format=f16/2-:int2"]


def answer_here(prompt, recipe, *options, model=MODEL):
    return local_tokens(run_local(recipe, prompt, "--stop", ".", *options, model=model))


def test_one_process_shm_and_tcp_agree():
    prompt = document(5000) + question()
    expected = {recipe: answer_here(prompt, recipe) for recipe in RECIPES}
    assert all(expected.values())
    for transport in ("shm", "tcp"):
        with Cluster(transport=transport, kvstore=0) as cluster:
            for recipe in RECIPES:
                finished, events = cluster.answer(
                    inference.GenerateRequest(text=prompt, recipe=recipe, max_new_tokens=12, stop=["."]))
                assert tokens(events) == expected[recipe], f"{recipe} over {transport}"
                verb = {"shm": "put", "tcp": "am"}[transport]
                assert finished.statistics.transport.startswith(verb), finished.statistics.transport
            finished, _ = cluster.answer(request(5000))
            assert finished.text.strip() == "48213", finished.text


def test_quantized_weights():
    """One process and a cluster agree on int8 weights, and a worker with others is not let in."""
    prompt, recipe = document(3000) + question(), "h2o,budget=0.5"
    int8 = ["--weights", "int8"]
    expected = answer_here(prompt, recipe, *int8)
    with Cluster(kvstore=1, worker_args={"prefill": int8, "decode": int8}, coordinator_args=int8) as cluster:
        finished, events = cluster.answer(
            inference.GenerateRequest(text=prompt, recipe=recipe, max_new_tokens=12, stop=["."]))
        assert tokens(events) == expected, (tokens(events), expected)
        stranger = subprocess.run([os.path.join(BIN, "sluice-decode"), "--name", "stored", "--coordinator",
                                   cluster.coordinator.address, "--arena", "16M", "--model", MODEL, "--threads", "1"],
                                  capture_output=True, timeout=60 * SLOW)
        assert stranger.returncode == 1 and b"model" in stranger.stderr, stranger.stderr.decode()


def test_a_gguf_file_answers_as_the_folder_does():
    """models/demo as one file, the retaining heads beside it: the same tokens, in one process and in a cluster."""
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    import golden_gguf
    prompt = document(3000) + question()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "demo.gguf")
        golden_gguf.demo(pathlib.Path(path))
        heads = "retaining_heads.safetensors"
        shutil.copy(os.path.join(MODEL, heads), f"{path}.{heads}")
        recipes = ["full,format=int8", "locret,budget=512,scope=stabilizers:128+tail:64,chunk=256"]
        expected = {recipe: answer_here(prompt, recipe) for recipe in recipes}
        assert all(expected.values())
        assert answer_here(prompt, recipes[0], model=folder) == expected[recipes[0]]  # the only one there
        with Cluster(kvstore=1, model=path) as cluster:
            for recipe in recipes:
                _, events = cluster.answer(
                    inference.GenerateRequest(text=prompt, recipe=recipe, max_new_tokens=12, stop=["."]))
                assert tokens(events) == expected[recipe], (recipe, tokens(events), expected[recipe])


def test_full_does_not_depend_on_the_chunk_size():
    with Cluster(kvstore=0) as cluster:
        answers = set()
        for chunk in (64, 192, 512, 2048):
            finished, events = cluster.answer(request(5000, recipe=f"full,chunk={chunk}"))
            answers.add(tuple(tokens(events)))
        assert len(answers) == 1, answers


def test_events_tell_the_story():
    with Cluster(kvstore=0, coordinator_args=PATIENCE) as cluster:
        finished, events = cluster.answer(request(6000, recipe="full,chunk=128"))
        assert [e.sequence for e in events] == list(range(1, len(events) + 1))
        seen = states(events)
        order = [State.Value(s) for s in ("QUEUED", "PREFILLING", "SHIPPING", "DECODING", "DONE")]
        assert [s for s in order if s in seen] == [s for s in seen], seen
        assert seen[-1] == State.Value("DONE")
        progress = [e.prefill for e in events if e.HasField("prefill")]
        assert progress and progress[-1].tokens_total > 1000
        assert [p.tokens_done for p in progress] == sorted(p.tokens_done for p in progress)
        assert "".join(e.token.text for e in events if e.HasField("token")) == finished.text
        s = finished.statistics
        assert 0 < s.prefill_ms <= s.ttft_ms <= s.total_ms
        assert s.n_output_tokens == len(tokens(events))
        # An f16 capsule is what the tokens take, rounded up to pages; a header comes on top.
        assert s.full_bytes <= s.capsule_bytes <= 1.1 * s.full_bytes + 65536, (s.full_bytes, s.capsule_bytes)
        assert s.retries == 0 and s.n_reused_tokens == 0


def timed(cluster, job_id, began):
    """(statistics, events, seconds from `began` to the first token and to the end, as its client sees them)."""
    events, first = [], None
    for event in cluster.watch(job_id):
        first = first or (event.HasField("token") and time.monotonic() - began)
        events.append(event)
    return events[-1].finished.statistics, events, first, time.monotonic() - began


def test_the_time_to_the_first_token_is_told_by_stages():
    """Queue, reading and shipping add up, each of them shows its own delay, and the client waits for no less than is told."""
    with Cluster(kvstore=0, coordinator_args=["--max-jobs", "1", "--heartbeat", "5s"]) as cluster:
        def check(s, events, first, total):
            stages = s.queue_ms + s.prefill_ms + s.ship_ms
            assert 0 < s.prefill_ms and 0 <= s.ship_ms and 0 <= s.queue_ms and stages <= s.ttft_ms <= s.total_ms, s
            assert s.ttft_ms <= first * 1000 + 1 and s.total_ms <= total * 1000 + 1, (s, first, total)
            assert abs((s.total_ms - s.ttft_ms) - s.tpot_ms * (s.n_output_tokens - 1)) < 0.01, s
            shipped = [e.ship for e in events if e.HasField("ship")]
            assert shipped and shipped[-1].bytes_sent == shipped[-1].bytes_total, shipped
            assert 0 < s.capsule_bytes - shipped[-1].bytes_total < 65536, (s.capsule_bytes, shipped[-1])  # the header
        began = time.monotonic()
        before = cluster.submit(endless(3000, 1500))
        waits = cluster.submit(request(3000))
        s = timed(cluster, before, began)[0]
        waited = timed(cluster, waits, began)
        check(*waited)
        assert waited[0].queue_ms >= s.total_ms - 1000, (waited[0], s)  # it had its turn behind the other one
        assert waited[0].ttft_ms - waited[0].queue_ms < waited[0].queue_ms, waited[0]

        # The receiver stands still until half a second after the last chunk: that time counts as ship time, and as nothing else.
        began = time.monotonic()
        job_id = cluster.submit(request(8000, recipe="full,chunk=128"))
        for event in cluster.watch(job_id):
            if event.HasField("prefill"):
                cluster.kill("decode-0", signal.SIGSTOP)  # at the first chunk, and again
                if event.prefill.tokens_done == event.prefill.tokens_total:
                    break
        time.sleep(0.5)
        cluster.kill("decode-0", signal.SIGCONT)
        s, events, _, total = timed(cluster, job_id, began)
        check(s, events, total, total)
        assert s.retries == 0 and s.ship_ms >= 400, s
        assert s.queue_ms + s.prefill_ms <= s.ttft_ms - 400, s


def test_a_stored_prompt_is_shipped_and_not_read():
    with Cluster(kvstore=1) as cluster:
        first, _ = cluster.answer(request(3000))
        eventually(lambda: any(w.load.stored_bytes for w in cluster.workers().workers), 10, "the capsule is stored")
        again, _ = cluster.answer(request(3000))
        s = again.statistics
        assert s.n_reused_tokens > 0 and s.prefill_ms == 0 and 0 < s.ship_ms <= s.ttft_ms, s
        assert first.statistics.prefill_ms > 0 and first.text == again.text


def test_compression_ships_and_holds_less():
    with Cluster(kvstore=0) as cluster:
        full = cluster.answer(request(8000))[0].statistics
        h2o = cluster.answer(request(8000, recipe="h2o,budget=0.25"))[0].statistics
        int2 = cluster.answer(request(8000, recipe="full,format=int2"))[0].statistics
        both = cluster.answer(request(8000, recipe="h2o,budget=0.25,format=int2"))[0].statistics
    assert h2o.capsule_bytes < 0.33 * full.capsule_bytes
    assert int2.capsule_bytes < 0.25 * full.capsule_bytes
    assert both.capsule_bytes < 0.12 * full.capsule_bytes
    assert both.decode_resident_bytes < 0.2 * full.decode_resident_bytes
    # Evicting at every chunk bounds memory while reading, too.
    assert h2o.prefill_peak_bytes < 0.6 * full.prefill_peak_bytes
    assert h2o.slots_evicted > 0 and int2.slots_evicted == 0


def test_tokens_in_and_sampling():
    with Cluster(kvstore=0) as cluster:
        sampled = inference.Sampling(temperature=0.8, top_k=40, seed=7, logprobs=3)
        make = lambda: inference.GenerateRequest(text=document(2000), max_new_tokens=20, sampling=sampled, ignore_eos=True)
        first, second = cluster.answer(make())[1], cluster.answer(make())[1]
        assert tokens(first) == tokens(second) and len(tokens(first)) == 20
        for event in (e for e in first if e.HasField("token")):
            alternatives = event.token.alternatives
            assert len(alternatives) == 3 and event.token.logprob <= alternatives[0].logprob + 1e-6 <= 1e-6
        # Token ids as a prompt; and a prompt of one token, of which nothing can be prefilled.
        for ids in ([2045, 5, 6, 7, 8], [2045]):
            finished, events = cluster.answer(
                inference.GenerateRequest(tokens=inference.TokenIds(ids=ids), max_new_tokens=4, ignore_eos=True))
            assert len(tokens(events)) == 4 and finished.statistics.n_prompt_tokens == len(ids)


def refusal(cluster, chat):
    try:
        cluster.submit(inference.GenerateRequest(chat=chat))
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
        return error.details()
    raise AssertionError("accepted")


def test_a_model_with_generation_settings():
    """The model's settings apply to fields that a request leaves out, on every path; the request's win; an operator can change the default."""
    words = {"prompt": "the lantern", "max_tokens": 16, "seed": 7, "ignore_eos": True, "recipe": "full,format=int8"}
    ask = lambda **sampling: inference.GenerateRequest(text="the lantern", recipe="full,format=int8", max_new_tokens=16, ignore_eos=True,
                                                       sampling=inference.Sampling(seed=7, **sampling))
    greedy = in_one_process("full,format=int8", "the lantern", n_tokens=16)
    with chatting_model() as model:
        with open(os.path.join(model, "generation_config.json")) as file:
            settings = json.load(file)
        with open(os.path.join(model, "generation_config.json"), "w") as file:
            json.dump(settings | {"do_sample": True, "temperature": 2.0, "top_k": 50}, file)
        here = lambda *options: local_tokens(run_local("full,format=int8", "the lantern", "--ignore-eos", "--raw", "--seed", "7", *options,
                                                       n_tokens=16, model=model))
        with Cluster(kvstore=0, model=model) as cluster, Gateway(cluster) as gateway:
            told = cluster.model_reply().sampling
            assert (told.temperature, told.top_k, told.HasField("top_p")) == (2.0, 50, False), told
            finished, events = cluster.answer(ask())
            drawn, used = tokens(events), finished.statistics.sampling
            assert (used.temperature, used.top_k, used.top_p, used.repetition_penalty, used.seed) == (2.0, 50, 1.0, 1.0, 7), used
            assert tokens(cluster.answer(ask())[1]) == drawn == here() != greedy
            assert tokens(cluster.answer(ask(temperature=0))[1]) == here("--temperature", "0") == here("--generation-config", "none") == greedy
            status, reply = gateway.post("/v1/completions", words)
            assert status == 200 and reply["choices"][0]["text"] == finished.text and reply["sluice"]["sampling"]["temperature"] == 2, reply
            assert gateway.post("/v1/completions", words | {"temperature": 0})[1]["sluice"]["sampling"]["top_k"] == 50
        with Cluster(kvstore=0, model=model, coordinator_args=["--generation-config", "none"]) as cluster:
            assert not cluster.model_reply().sampling.HasField("temperature")
            assert tokens(cluster.answer(ask())[1]) == greedy


def test_a_chat_is_rendered_by_the_models_template():
    template = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics here') }}"
                "{% endif %}{{ m.content }}\n{% endfor %}")
    message = inference.ChatMessage
    with tempfile.TemporaryDirectory() as model:
        for name in os.listdir(MODEL):
            os.symlink(os.path.join(MODEL, name), os.path.join(model, name))
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write(template)
        system, user = "Read this.", document(2000) + question()
        chat = inference.Chat(messages=[message(role="system", content=system), message(role="user", content=user)])
        with Cluster(kvstore=0, model=model) as cluster:
            ask = lambda **prompt: cluster.answer(
                inference.GenerateRequest(max_new_tokens=12, stop=["."], recipe="full", **prompt))
            finished, events = ask(chat=chat)
            # The begin token is the template's own, so that the prompt has it once, as a text does.
            plain, plain_events = ask(text=f"{system}\n{user}\n")
            assert finished.statistics.n_prompt_tokens == plain.statistics.n_prompt_tokens
            assert tokens(events) == tokens(plain_events) != []
            assert answer_here(user, "full", "--system", system, model=model) == tokens(events)
            # By default a model that takes chats gets the prompt as a chat, here and in a cluster; --raw sends the text as it is.
            turn = inference.Chat(messages=[message(role="user", content="lantern")])
            for words, prompt in (((), {"chat": turn}), (("--raw",), {"text": "lantern"})):
                n_tokens = ask(**prompt)[0].statistics.n_prompt_tokens
                for where in (("--local", "--model", model), ("--coordinator", cluster.coordinator.address)):
                    done = subprocess.run([os.path.join(BIN, "sluice"), "run", "--prompt", "lantern", "-n", "1", "-r", "full", "--json",
                                           *words, *where], capture_output=True, timeout=60 * SLOW)
                    finished = json.loads(done.stdout.splitlines()[-1])["finished"]
                    assert int(finished["statistics"]["n_prompt_tokens"]) == n_tokens, (words, where, done)
            critic = inference.Chat(messages=[message(role="critic", content="meh")])
            assert "no critics here" in refusal(cluster, critic)
    with Cluster(kvstore=0) as cluster:  # the demo itself has none
        assert "chat: the model has no chat template" in refusal(cluster, chat)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
