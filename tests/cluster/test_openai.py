#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own client against the gateway: its types are what answers, refusals and limits must fit. From the Python package index
(tools/index_packages.py); where that cannot be reached this is skipped."""
import os
import sys
import tempfile

from harness import BIN, ROOT, Cluster, eventually, run_tests, script
from test_gateway import Gateway, chatting_cluster, key_line, running_jobs

sys.path.insert(0, os.path.join(ROOT, "tools"))
from index_packages import Unavailable, bring  # noqa: E402


def client_of(gateway, key="none"):
    return openai.OpenAI(base_url=f"http://{gateway.host}:{gateway.port}/v1", api_key=key, max_retries=0)


def refused(kind, what, **fields):
    """The error, of OpenAI's class for it."""
    try:
        what(**fields)
    except kind as error:
        return error
    raise AssertionError(f"{fields} was answered")


def test_answers_and_refusals():
    with chatting_cluster() as cluster, Gateway(cluster) as gateway:
        client = client_of(gateway)
        messages = [{"role": "user", "content": "the lantern"}]
        whole = client.chat.completions.create(model="talker", messages=messages, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)
        pieces = list(client.chat.completions.create(model="talker", messages=messages, max_tokens=6, temperature=0, stream=True,
                                                     stream_options={"include_usage": True}, extra_body={"ignore_eos": False}))
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert text == whole.choices[0].message.content and pieces[-1].usage.prompt_tokens == whole.usage.prompt_tokens
        assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
        assert [m.id for m in client.models.list()] == ["talker"]
        assert client.completions.create(model="talker", prompt="the lantern", max_tokens=3).usage.completion_tokens <= 3
        for error, fields in ((openai.BadRequestError, {"n": 2}), (openai.NotFoundError, {"model": "other"})):
            refused(error, client.chat.completions.create, **{"model": "talker", "messages": messages, **fields})
        with client.chat.completions.create(model="talker", messages=messages, max_tokens=4000, stream=True,
                                            extra_body={"ignore_eos": True}) as endless:
            next(iter(endless))
        eventually(lambda: running_jobs(cluster) == 0, 5, "the job is cancelled")


def test_keys_and_limits():
    asked = {"model": "talker", "prompt": "the lantern", "max_tokens": 1}
    with tempfile.TemporaryDirectory(prefix="sluice-openai-") as folder, chatting_cluster() as cluster:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write(key_line("sk-one", "a", "tokens=1") + key_line("sk-free", "b"))
        with Gateway(cluster, "--keys", keys) as gateway:
            error = refused(openai.AuthenticationError, client_of(gateway, "sk-none").completions.create, **asked)
            assert error.status_code == 401 and error.type == "authentication_error", error
            client = client_of(gateway, "sk-one")
            whole = client.completions.with_raw_response.create(**asked)
            assert whole.headers["x-ratelimit-limit-tokens"] == "1" and whole.parse().usage.prompt_tokens > 1
            error = refused(openai.RateLimitError, client.completions.create, **asked)
            assert float(error.response.headers["retry-after"]) > 1 and error.type == "rate_limit_error" and error.code == "429", error
            assert client_of(gateway, "sk-free").completions.create(**asked).usage.completion_tokens == 1


if __name__ == "__main__":
    script.help_if_asked()
    script.needs_programs(BIN)  # before anything is fetched
    try:
        sys.path.insert(0, bring(os.path.join(os.path.dirname(BIN), "index-packages", "openai"), "openai>=1.50,<4"))
    except Unavailable as why:
        print(f"skipped: {why}")
        raise SystemExit(77)
    import openai
    raise SystemExit(run_tests(globals()))
