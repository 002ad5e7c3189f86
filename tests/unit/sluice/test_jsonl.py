#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`sluice run --local --jsonl`: answers in the order of the lines, errors of a line, bounds, ends of the input, signals."""
import json
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402
script.help_if_asked()
script.needs_programs(os.environ.get("SLUICE_BIN", "build/bin"))

SLUICE = os.path.join(os.environ.get("SLUICE_BIN", "build/bin"), "sluice")
COMMAND = [SLUICE, "run", "--local", "--jsonl", "--model", "models/demo", "--threads", "1"]
ASK = {"prompt": "The river runs on. The mill wheel", "max_tokens": 4, "temperature": 0, "recipe": "full"}


def run(data, *options):
    if not isinstance(data, bytes):
        data = "".join(json.dumps(line) + "\n" for line in data).encode()
    done = subprocess.run([*COMMAND, *options], input=data, capture_output=True, timeout=280, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


class Answers(unittest.TestCase):
    def test_answers_have_the_form_of_the_api_and_the_order_of_the_lines(self):
        code, lines, errors = run([ASK, {**ASK, "recipe": "h2o,budget=8"}, {**ASK, "max_tokens": 2}])
        self.assertEqual((code, len(lines), errors), (0, 3, ""))
        self.assertEqual([line["usage"]["completion_tokens"] for line in lines], [4, 4, 2])
        self.assertEqual([line["sluice"]["recipe"] for line in lines], ["full", "h2o,budget=8", "full"])
        self.assertTrue(all(line["object"] == "text_completion" for line in lines))
        self.assertTrue(lines[0]["choices"][0]["text"].startswith(lines[2]["choices"][0]["text"]))
        self.assertLess(lines[1]["sluice"]["slots_per_head"], lines[0]["sluice"]["slots_per_head"])

    def test_an_answer_is_that_of_sluice_run(self):
        done = subprocess.run([SLUICE, "run", "--local", "--model", "models/demo", "--raw", "-p", ASK["prompt"], "-n", "4",
                               "--temperature", "0", "--recipe", "full", "--quiet"], capture_output=True, text=True, check=True)
        self.assertEqual(run([ASK])[1][0]["choices"][0]["text"], done.stdout.rstrip("\n"))

    def test_token_ids_ask_what_their_text_asks(self):
        tokens = run([{"operation": "tokenize", "prompt": ASK["prompt"]}])[1][0]["tokens"]
        _, (a, b), _ = run([ASK, {**ASK, "prompt": tokens}])
        self.assertEqual(a["choices"], b["choices"])
        self.assertEqual(a["usage"]["prompt_tokens"], len(tokens))

    def test_a_line_can_be_read_anew(self):
        ask = {**ASK, "prompt": list(range(5, 705)), "max_tokens": 1}
        _, lines, _ = run([ask, ask, {**ask, "reuse": False}])
        self.assertEqual([line["usage"]["prompt_tokens_details"]["cached_tokens"] for line in lines], [0, 512, 0])
        self.assertEqual([line["sluice"].get("not_cached") for line in lines], [None, None, "off"])
        self.assertEqual(lines[0]["choices"], lines[2]["choices"])

    def test_a_seed_repeats_an_answer(self):
        ask = {**ASK, "temperature": 1.5, "max_tokens": 12}
        _, lines, _ = run([{**ask, "seed": 5}, {**ask, "seed": 5}, {**ask, "seed": 6}])
        texts = [line["choices"][0]["text"] for line in lines]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.assertEqual(lines[0]["sluice"]["sampling"]["seed"], 5)


    def test_room_is_made_for_long_sequences_before_the_first_answer(self):
        room = {"operation": "reserve", "tokens": 2000}
        _, lines, _ = run([room, {**room, "tokens": 4000}, ASK, room, {**room, "tokens": 10 ** 9}])
        self.assertLess(lines[0]["arena_bytes"], lines[1]["arena_bytes"])
        self.assertIn("choices", lines[2])
        self.assertIn("before the first answer", lines[3]["error"]["message"])
        self.assertIn("tokens", lines[4]["error"]["message"])
        small = run([{**ASK, "prompt": [5] * 30000}], "--arena", "2M")[1][0]
        self.assertIn("error", small)


    def test_a_document_names_the_field_that_is_wrong(self):
        document = {"operation": "document", "name": "d", "text": "The river", "recipe": "full"}
        _, lines, _ = run([{**document, field: wrong} for field, wrong in (("name", ""), ("text", None), ("recipe", 7))])
        self.assertEqual([line["error"]["param"] for line in lines], ["name", "text", "recipe"])

    def test_questions_about_a_document_do_not_see_each_other(self):
        document = {"operation": "document", "name": "d", "text": "The river runs on. The mill wheel turns. " * 40, "recipe": "full"}
        ask = {**ASK, "document": "d", "prompt": "The river"}
        code, lines, _ = run([document, ask, {**ask, "prompt": "A cart goes by. The mill"}, ask, {**ASK, "prompt": document["text"] + "The river"},
                              {**document, "name": "e", "recipe": "snapkv,budget=96"}, ask,
                              {**ask, "document": "e", "recipe": ""}, {**ask, "document": "e"}])
        texts = [line["choices"][0]["text"] if "choices" in line else line for line in lines]
        self.assertEqual((code, texts[1], texts[1]), (0, texts[3], texts[4]))
        self.assertEqual(lines[3]["usage"]["prompt_tokens_details"]["cached_tokens"], lines[0]["n_tokens"] - 1)
        self.assertLess(lines[5]["capsule_bytes"], lines[0]["capsule_bytes"] / 2)
        self.assertIn("is e", lines[6]["error"]["message"])  # one document at a time
        self.assertLess(lines[7]["sluice"]["slots_per_head"], 120)
        self.assertTrue(lines[7]["sluice"]["recipe"].startswith("snapkv,budget=96"), lines[7]["sluice"]["recipe"])  # not the model's default
        self.assertIn("was read under snapkv", lines[8]["error"]["message"])


class Errors(unittest.TestCase):
    def test_an_error_of_a_line_is_its_answer_and_the_run_goes_on(self):
        bad = [{"prompt": "x", "foo": 1}, {"prompt": "x", "recipe": "h2x"}, {"prompt": [0, 10 ** 6]}, {"max_tokens": 3}, [1],
               {**ASK, "stream": True}, {**ASK, "logprobs": 1}, {"prompt": "x", "temperature": -1}, {"operation": "walk"},
               {"operation": "recipe", "recipe": "h2x"}, {"messages": []}, {"prompt": "x", "max_tokens": 10 ** 6}, {"prompt": []}]
        said = ["foo", "h2x", "1000000", "prompt is missing", "not an object", "stream", "logprobs", "temperature", "operation",
                "h2x", "messages", "position", "no tokens"]
        code, lines, _ = run([line for one in bad for line in (one, ASK)])
        self.assertEqual((code, len(lines)), (0, 2 * len(bad)))
        for i, word in enumerate(said):
            self.assertIn(word, lines[2 * i]["error"]["message"])
            self.assertEqual(lines[2 * i + 1]["choices"], lines[1]["choices"])

    def test_text_that_is_no_json_is_an_error_of_its_line(self):
        good = json.dumps(ASK).encode()
        code, lines, _ = run(b"nonsense\n\n  \n" + good + b"\n\xff\xfe\n{\"prompt\": \"a\\u0000\"}\n\0\n" + good)  # no newline at the end
        self.assertEqual(code, 0)
        self.assertEqual([("error" in line) for line in lines], [True, False, True, True, True, False])

    def test_a_long_line_is_refused_and_skipped(self):
        limit = 128 << 20
        long = b'{"prompt": "' + b"x" * limit + b'"}\n'
        code, lines, _ = run(long + json.dumps(ASK).encode() + b"\n" + long[:-1])
        self.assertEqual(code, 0)
        self.assertEqual([line.get("error", {}).get("code") for line in lines], ["413", None, "413"])

    def test_a_deadline_is_an_error_of_its_line(self):
        _, lines, _ = run([{**ASK, "max_tokens": 4000, "ignore_eos": True, "deadline_ms": 20}, ASK])
        self.assertIn("error", lines[0])
        self.assertIn("choices", lines[1])


class Run(unittest.TestCase):
    def test_no_line_is_no_answer(self):
        self.assertEqual(run(b""), (0, [], ""))

    def test_wrong_usage_exits_with_2(self):
        for words, said in [(["--local", "--jsonl"], "--model"), (["--jsonl", "--model", "models/demo"], "--local"),
                            (["--local", "--jsonl", "--model", "models/demo", "-p", "x"], "leave out"),
                            (["--local", "--jsonl", "--model", "models/demo", "--temperature", "0"], "leave out"),
                            (["--local", "--jsonl", "--model", "models/demo", "--save-capsule", "/tmp/c"], "--save-capsule"),
                            (["--local", "--jsonl", "--model", "/nonexistent"], "/nonexistent"),
                            (["--local", "--jsonl", "--model", "models/demo", "--weights", "int3"], "int3")]:
            done = subprocess.run([SLUICE, "run", *words], input="", capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), (words, done.stderr))
            self.assertIn(said, done.stderr, words)

    def test_an_output_that_is_closed_ends_the_run(self):
        with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            try:
                process.stdin.write(b'{"operation": "model"}\n' * 100)
                process.stdin.close()
            except BrokenPipeError:
                pass
            self.assertNotEqual(process.wait(timeout=60), 0)
            process.stderr.close()
            process.stdin = None

    def test_a_signal_ends_it_while_it_waits_and_while_it_answers(self):
        for ask in (ASK, {**ASK, "max_tokens": 20000, "ignore_eos": True}):
            with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                process.stdin.write(json.dumps(ASK).encode() + b"\n" + json.dumps(ask).encode() + b"\n")
                process.stdin.flush()
                self.assertIn(b"choices", process.stdout.readline())
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(timeout=60), 4)
                process.stdin.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
