#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Defaults of a request: its seed is drawn and reported, its budget is what fits. And stop strings that name special tokens."""
import contextlib
import json
import os
import subprocess

from harness import BIN, SLOW, Cluster, call, document, inference, local_tokens, question, run_local, run_tests, tokens
import grpc
from test_faults import Watcher
from test_gateway import Gateway, chatting_model

WORDS = {"prompt": "the lantern", "max_tokens": 24, "ignore_eos": True}
END = "<|endoftext|>"  # of the demo model: 2045


def drawn(**fields):
    fields = {"text": "the lantern", "recipe": "full", "max_new_tokens": 24, "ignore_eos": True, **fields}
    seed = {"seed": fields.pop("seed")} if "seed" in fields else {}
    return inference.GenerateRequest(sampling=inference.Sampling(temperature=1, **seed), **fields)


def told(events):
    """The seed of the job's first event, which is that of its last."""
    first = events[0].state.accepted
    used = events[-1].finished.statistics.sampling
    assert first.sampling == used and first.sampling.HasField("seed"), (first, used)
    return used.seed


def run(*options):
    """Events of `sluice run`, and what it says beside them."""
    done = subprocess.run([os.path.join(BIN, "sluice"), "run", "--prompt", "the lantern", "--raw", "-r", "full", "--temperature", "1",
                           "--ignore-eos", *options], capture_output=True, timeout=60 * SLOW)
    assert done.returncode == 0, done.stderr.decode()
    return done


def test_requests_without_a_seed_are_drawn_anew():
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        replies = [gateway.post("/v1/completions", WORDS | {"temperature": 1})[1] for _ in range(3)]
        texts = [reply["choices"][0]["text"] for reply in replies]
        seeds = [reply["sluice"]["sampling"]["seed"] for reply in replies]
        assert len(set(texts)) == len(set(seeds)) == 3 and max(seeds) < 2**53, (texts, seeds)
        for text, seed in zip(texts, seeds):  # which is all that it takes to have the answer again
            assert gateway.complete(**WORDS, temperature=1, seed=seed, stop=[])["choices"][0]["text"] == text
        zeros = [gateway.complete(**WORDS, temperature=1, seed=0, stop=[]) for _ in range(2)]
        assert zeros[0]["choices"] == zeros[1]["choices"] and zeros[0]["sluice"]["sampling"]["seed"] == 0

        answers = [cluster.answer(drawn())[1] for _ in range(3)]
        assert len({tuple(tokens(events)) for events in answers}) == len({told(events) for events in answers}) == 3
        again = cluster.answer(drawn(seed=told(answers[0])))[1]
        assert tokens(again) == tokens(answers[0]) and told(again) == told(answers[0])
        assert told(cluster.answer(drawn(seed=0))[1]) == 0
        # A repeat under a key is the same job, so it has its seed.
        replies = [call(cluster.channel, "sluice.v1.Inference.Submit", drawn(idempotency_key="once")) for _ in range(2)]
        assert replies[0] == replies[1] and replies[0].accepted.sampling.HasField("seed"), replies
        assert told(list(cluster.watch(replies[0].job_id))) == replies[0].accepted.sampling.seed

        for where in (("--coordinator", cluster.coordinator.address), ("--local", "--model", cluster.model)):
            answers = [[json.loads(line) for line in run("--json", *where, "-n", "24").stdout.splitlines()] for _ in range(3)]
            seeds = {answer[-1]["finished"]["statistics"]["sampling"]["seed"] for answer in answers}
            assert len({tuple(local_tokens(answer)) for answer in answers}) == len(seeds) == 3, seeds
            seed = answers[0][-1]["finished"]["statistics"]["sampling"]["seed"]
            again = run(*where, "-n", "24", "--seed", seed)
            assert again.stdout.decode().rstrip("\n") == answers[0][-1]["finished"]["text"].rstrip("\n")
            assert f"seed {seed}\n" in again.stderr.decode(), again.stderr.decode()


def test_a_drawn_seed_outlives_the_decode_worker():
    with Cluster(decode=2) as cluster:
        request = drawn(text=document(2000) + question(), max_new_tokens=8000)
        watcher = Watcher(cluster, cluster.submit(request))
        watcher.wait_for_tokens(40)
        cluster.kill(cluster.get(watcher.job_id).decode_worker)
        watcher.wait_for_resumption()
        assert watcher.cancelled().statistics.retries > 0
        request.sampling.seed, request.max_new_tokens = told(watcher.events), len(tokens(watcher.events))
        assert tokens(cluster.answer(request)[1]) == tokens(watcher.events), "the answer that this seed gives"


def test_turns_of_a_conversation_keep_the_seed():
    with Cluster() as cluster:
        turn = lambda text, **fields: drawn(text=text, conversation=inference.Conversation(id="one", keep_ms=60000), **fields)
        first, events = cluster.answer(turn("the lantern " * 20))
        seed = told(events)
        second, events = cluster.answer(turn("the lantern " * 20 + first.text + " again"))
        assert second.statistics.n_reused_tokens > 0 and told(events) == seed
        # The last question again is asked for another answer; and a turn may name its own.
        assert told(cluster.answer(turn("the lantern " * 20 + first.text + " again"))[1]) != seed
        assert told(cluster.answer(turn("the lantern " * 20 + first.text + " and more", seed=5))[1]) == 5
        cluster._call("sluice.v1.Inference.EndConversation", inference.ConversationRequest(id="one"))


@contextlib.contextmanager
def short_model(n_positions):
    """The demo model with a context that a test can fill."""
    with chatting_model() as model:
        path = os.path.join(model, "config.json")
        with open(path) as file:
            config = json.load(file)
        with open(path, "w") as file:
            json.dump(config | {"max_position_embeddings": n_positions}, file)
        yield model


def test_a_budget_that_nobody_named_is_what_fits():
    with short_model(600) as model, Cluster(kvstore=0, model=model) as cluster, Gateway(cluster) as gateway:
        def ended(reply):
            return reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]
        ids = [2045] + [5 + i % 1000 for i in range(599)]
        words = {"temperature": 0, "ignore_eos": True}
        for n_prompt, n_new in ((100, 128), (590, 10), (599, 1)):
            status, reply = gateway.post("/v1/completions", words | {"prompt": ids[:n_prompt]})
            assert status == 200 and ended(reply) == ("length", n_new), reply
            finished, events = cluster.answer(inference.GenerateRequest(tokens=inference.TokenIds(ids=ids[:n_prompt]), ignore_eos=True))
            assert finished.statistics.n_output_tokens == n_new == events[0].state.accepted.max_new_tokens
            assert finished.reason == inference.Finished.LENGTH
        # A value that the client did name, or a prompt that fills the context, is refused in OpenAI's words.
        status, reply = gateway.post("/v1/completions", words | {"prompt": ids[:590], "max_tokens": 11})
        assert status == 400 and (reply["error"]["param"], reply["error"]["code"]) == ("prompt", "context_length_exceeded"), reply
        status, reply = gateway.post("/v1/completions", words | {"prompt": ids})
        assert status == 400 and reply["error"]["param"] == "prompt" and "leave no room" in reply["error"]["message"], reply
        # A chat goes on to its answer's end, or to that of the context.
        chat = {"messages": [{"role": "user", "content": "the lantern"}], "temperature": 0}
        status, reply = gateway.post("/v1/chat/completions", chat | {"ignore_eos": True})
        assert status == 200 and ended(reply)[0] == "length" and reply["usage"]["total_tokens"] == 600, reply
        for name in ("max_tokens", "max_completion_tokens"):
            assert ended(gateway.post("/v1/chat/completions", chat | {"ignore_eos": True, name: 7})[1]) == ("length", 7)
        for where in (("--coordinator", cluster.coordinator.address), ("--local", "--model", model)):
            for options, total in ((["--raw"], None), ([], 600)):
                done = subprocess.run([os.path.join(BIN, "sluice"), "run", "--prompt", "the lantern", "--ignore-eos", "--json", *options,
                                       "-r", "full", *where], capture_output=True, timeout=60 * SLOW)
                finished = json.loads(done.stdout.splitlines()[-1])["finished"]
                statistics = finished["statistics"]
                n_new = int(statistics["n_output_tokens"])
                assert n_new == (total - int(statistics["n_prompt_tokens"]) if total else 128) and finished["reason"] == "LENGTH", finished


def test_a_chat_without_a_budget_leaves_room_for_others():
    """The demo model takes 4 KiB a token: of 16 MiB, a chat takes no more than a quarter."""
    with chatting_model() as model, Cluster(kvstore=0, model=model, worker_args={"decode": ["--arena", "16M"]}) as cluster:
        chat = inference.GenerateRequest(chat=inference.Chat(messages=[inference.ChatMessage(role="user", content="the lantern")]),
                                         recipe="full", ignore_eos=True)
        jobs = [cluster.submit(chat) for _ in range(3)]
        n_new = cluster.get(jobs[0]).max_new_tokens
        assert 512 < n_new <= 1024, n_new
        for job in jobs:
            assert list(cluster.watch(job))[-1].finished.statistics.n_output_tokens == n_new


def test_an_answer_ends_where_the_tokenizer_says():
    """A folder whose config.json names another token: as SmolLM2's does."""
    prompt = document(1500) + question()
    with chatting_model() as model:
        for name in ("config.json", "generation_config.json"):
            with open(os.path.join(model, name)) as file:
                document_of_it = json.load(file)
            with open(os.path.join(model, name), "w") as file:
                json.dump(document_of_it | {"eos_token_id": 5 if name == "config.json" else None}, file)
        wanted = local_tokens(run_local("full", prompt, "--raw", n_tokens=40))
        assert 2045 == wanted[-1] and len(wanted) < 40
        assert local_tokens(run_local("full", prompt, "--raw", n_tokens=40, model=model)) == wanted
        with Cluster(kvstore=0, model=model) as cluster:
            finished, events = cluster.answer(inference.GenerateRequest(text=prompt, recipe="full", max_new_tokens=40))
            assert tokens(events) == wanted and finished.reason == inference.Finished.STOP_TOKEN, finished


def test_a_stop_string_matches_a_special_token():
    prompt = document(1500) + question()
    ask = lambda **fields: inference.GenerateRequest(text=prompt, recipe="full", max_new_tokens=40, **fields)
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        ended, _ = cluster.answer(ask())  # by the token
        on, events = cluster.answer(ask(ignore_eos=True))
        at = tokens(events).index(2045)
        assert ended.reason == inference.Finished.STOP_TOKEN and ended.statistics.n_output_tokens == at + 1 < 40, ended
        stopped, events = cluster.answer(ask(ignore_eos=True, stop=[END]))
        assert stopped.reason == inference.Finished.STOP_STRING and len(tokens(events)) == at + 1, stopped
        assert stopped.text == ended.text and len(on.text) > len(ended.text)
        both, _ = cluster.answer(ask(stop=[END]))
        assert both.reason == inference.Finished.STOP_TOKEN and both.text == ended.text, both
        reply = gateway.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "stop": END})[1]
        assert reply["choices"][0]["text"] == ended.text and reply["choices"][0]["finish_reason"] == "stop", reply
        here = run_local("full", prompt, "--raw", "--ignore-eos", "--stop", END, n_tokens=40)
        assert here[-1]["finished"]["text"] == ended.text and here[-1]["finished"]["reason"] == "STOP_STRING", here[-1]


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
