#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Commands without traps: what somebody may type who has read nothing, and what it must not lead to. No cluster is needed."""
import http.server
import os
import re
import signal
import subprocess
import threading
import unittest

BIN = os.environ["SLUICE_BIN"]
SLUICE = os.path.join(BIN, "sluice")
MODEL = "models/demo"
NOWHERE = "127.0.0.1:1"
# What asks a coordinator, with the arguments that it wants.
ASKING = {"run": ["-p", "hi"], "submit": ["-p", "hi"], "watch": ["x", "--timeout", "200ms"], "cancel": ["x"], "jobs": [], "top": ["--once"],
          "workers": [], "drain": ["x"], "compare": ["x"]}
# What opens a model.
OPENING = [["run", "--local", "-p", "hi"], ["run", "-p", "hi", "-c", NOWHERE], ["up"], ["eval", "fidelity"], ["eval", "perplexity"],
           ["eval", "weights"], ["eval", "grid"], ["profile"], ["train-heads"], ["bench", "compress"], ["bench", "mixed"],
           ["bench", "ttft"], ["bench", "engine"], ["plan", "--cells", "/dev/null"]]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


def run(*words, program="sluice", env=None, **kinds):
    kinds.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([os.path.join(BIN, program), *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=120,
                          env={**os.environ, **(env or {})}, **kinds)


class ExitCodes(unittest.TestCase):
    """docs/OPERATIONS.md's table, which `sluice --help` has in a line."""

    def ends(self, code, done, says=""):
        self.assertEqual(done.returncode, code, done)
        self.assertIn(says, done.stderr)

    def test_the_help_has_the_table(self):
        told = dict(re.findall(r"(\d) ([a-z ]+)[,.]", run("--help").stdout.split("Exit codes:")[1]))
        with open("docs/OPERATIONS.md", encoding="utf-8") as file:
            documented = re.findall(r"^\| (\d) \|", file.read(), re.M)
        self.assertEqual(sorted(told), sorted(documented))

    def test_a_model_that_is_not_there_is_wrong_usage(self):
        for words in OPENING:
            self.ends(2, run(*words, "--model", "/nonexistent"), "/nonexistent")
        for program in ("sluice-prefill", "sluice-decode", "sluice-coordinator"):
            self.ends(2, run("--model", "/nonexistent", program=program), "/nonexistent")

    def test_so_is_a_file_or_an_option(self):
        self.ends(2, run("inspect", "/nonexistent"), "/nonexistent")
        for command, words in ASKING.items():
            self.ends(2, run(command, *words, "--nope"), "--nope")
            self.ends(2, run(command, *words, "-c", "foo"), "HOST:PORT")

    def test_nobody_at_the_address(self):
        for command, words in ASKING.items():
            self.ends(3, run(command, *words, "-c", NOWHERE), f"no coordinator at {NOWHERE}")

    def test_somebody_else_at_the_address(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = subprocess.Popen([os.path.join(BIN, "sluice-kvstore"), "--arena", "16M", "--listen", "127.0.0.1:0"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            worker = re.search(r"rpc=(\S+)", store.stdout.readline()).group(1)
            for address in (f"127.0.0.1:{server.server_port}", worker):
                for command, words in ASKING.items():
                    self.ends(3, run(command, *words, "-c", address), f"no coordinator at {address}, where something else listens")
        finally:
            store.terminate()
            store.communicate()
            server.shutdown()
            server.server_close()

    def test_standard_output_on_a_full_disk(self):
        local = ["run", "--local", "-m", MODEL, "-p", "hi", "-n", "4"]
        for words in (["--version"], ["--help"], ["recipes"], ["run", "--help"], local, [*local, "--json"], [*local, "--quiet"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                self.ends(1, run(*words, stdout=full), "standard output cannot be written")

    def test_a_deadline_and_an_interruption(self):
        local = ["run", "--local", "-m", MODEL, "-p", "word " * 3000, "-n", "1000", "--ignore-eos", "--raw", "-r", "full"]
        self.ends(5, run(*local, "--deadline", "1ms"))
        for number in (signal.SIGINT, signal.SIGTERM):
            going = subprocess.Popen([SLUICE, *local, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            going.stdout.readline()  # the first event: it reads
            going.send_signal(number)
            self.assertEqual(going.wait(60), 4, going.communicate()[1])
            going.communicate()


if __name__ == "__main__":
    unittest.main(verbosity=2)
