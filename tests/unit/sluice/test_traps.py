#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Commands without traps: what a user may type who has read no documentation, and what it must not cause. No cluster is needed."""
import fcntl
import http.server
import json
import fcntl
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402
script.help_if_asked()
script.needs_programs(os.environ.get("SLUICE_BIN", "build/bin"))

BIN = os.environ["SLUICE_BIN"]
SLUICE = os.path.join(BIN, "sluice")
MODEL = "models/demo"
NOWHERE = "127.0.0.1:1"
# Commands that need a coordinator, with the arguments that they require.
ASKING = {"run": ["-p", "hi"], "chat": [], "submit": ["-p", "hi"], "watch": ["x", "--timeout", "200ms"], "cancel": ["x"], "jobs": [], "top": ["--once"],
          "workers": [], "drain": ["x"], "compare": ["x"], "doc": ["ls"]}
# Commands that open a model.
OPENING = [["run", "--local", "-p", "hi"], ["chat", "--local"], ["run", "-p", "hi", "-c", NOWHERE], ["up"], ["eval", "fidelity"], ["eval", "perplexity"],
           ["eval", "weights"], ["profile"], ["train-heads"], ["bench", "compress"], ["bench", "mixed"],
           ["bench", "ttft"], ["bench", "engine"], ["plan", "--costs", "/dev/null"], ["simulate", "--costs", "/dev/null", "--both", "1"],
           ["bench", "calibrate", "-o", os.path.join(tempfile.gettempdir(), "costs.json")]]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


def run(*words, program="sluice", env=None, **kinds):
    kinds.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([os.path.join(BIN, program), *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=120,
                          env={**os.environ, **(env or {})}, **kinds)


def every_program():
    """Returns how programs and commands describe themselves; without the load generator, whose options are not in base/options and whose
    names are those of other load generators."""
    programs = []

    def walk(*words):
        told = json.loads(run(*words, "--describe").stdout)
        for command in told.get("commands", []):
            walk(*words, command["name"])
        if "options" in told and told.get("config", True):
            programs.append(told)
    walk()
    for program in ("coordinator", "prefill", "decode", "kvstore", "gateway"):
        programs.append(json.loads(run("--describe", program=f"sluice-{program}").stdout))
    return programs


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
        self.ends(1, run("down", "nonexistent"), "no cluster nonexistent runs on this machine; `sluice status` lists them")
        for command, words in ASKING.items():
            self.ends(2, run(command, *words, "--nope"), "--nope")
            self.ends(2, run(command, *words, "-c", "foo"), "HOST:PORT")

    def test_so_are_options_of_servers_that_miss_others(self):
        model = ["--model", MODEL]
        for program, words, says in (("prefill", [], "no model: give --model"), ("decode", [], "no model: give --model"),
                                     *((program, ["--tls-ca", "x", *words], "--tls-ca, --tls-cert and --tls-key belong together") for program, words in
                                       (("decode", model), ("kvstore", []), ("coordinator", model), ("gateway", []))),
                                     ("gateway", ["--https-cert", "x"], "--https-cert and --https-key belong together")):
            self.ends(2, run("--check", *words, program=f"sluice-{program}"), says)
        self.ends(2, run("up", *model, "--evict", "x", "--port", "0", "--http-port", "0"), "sluice up: --evict x: unknown policy; there are lru, ttl, share, cost")
        open_to_all = ["--listen", "0.0.0.0:0", "--admin-listen", "none"]
        self.ends(2, run(*open_to_all, program="sluice-gateway"), "give --https-cert and --https-key, or --insecure")
        self.ends(2, run(*open_to_all, "--arena", "16M", program="sluice-kvstore"), "give --tls-ca, --tls-cert and --tls-key, or --insecure")

    def test_nobody_at_the_address(self):
        for command, words in ASKING.items():
            self.ends(3, run(command, *words, "-c", NOWHERE), f"no coordinator at {NOWHERE}")

    def test_options_before_the_command_of_doc(self):
        for words in (["-c", NOWHERE], ["-c" + NOWHERE], ["--coordinator=" + NOWHERE, "--json"], ["--coordinator", NOWHERE, "--timeout", "5s"]):
            self.ends(3, run("doc", *words, "rm", "name"), f"no coordinator at {NOWHERE}")
        self.ends(2, run("doc", "-c", NOWHERE, "sohw"), "did you mean show")
        self.ends(2, run("doc", "-c", NOWHERE), "unknown command '-c'")
        self.ends(2, run("doc", "--nope", "rm", "name"), "unknown command '--nope'")
        self.ends(2, run("doc", "-c"), "unknown command '-c'")

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


class Environment(unittest.TestCase):
    def test_what_is_left_in_it_does_not_reach_a_command(self):
        left = {"SLUICE_PROMPT": "another text", "SLUICE_MAX_NEW_TOKENS": "3", "SLUICE_QUIET": "yes", "SLUICE_LOG": "error"}
        done = run("run", "--local", "--model", MODEL, "-n", "1", env=left)
        self.assertEqual(done.returncode, 2)
        self.assertIn("nothing to read", done.stderr)
        self.assertIn("SLUICE_PROMPT in the environment is not a variable of Sluice's, and ignored\n", done.stderr)

    def test_few_are_taken(self):
        self.assertIn("no coordinator at 127.0.0.1:2:", run("jobs", env={"SLUICE_COORDINATOR": "127.0.0.1:2"}).stderr)
        done = run("run", "--local", "-p", "hi", "-n", "1", "--quiet", env={"SLUICE_MODEL": MODEL})
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_command_line_goes_first_whatever_stands_there(self):
        local = ["run", "--local", "-p", "hi", "-n", "1", "--quiet"]
        done = run(*local, "--model", MODEL, env={"SLUICE_MODEL": "nope"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = run(*local, "--model", MODEL, env={"SLUICE_MODEL": "nope", "SLUICE_TIMEOUT": "5"})  # which nothing replaces
        self.assertEqual(done.returncode, 2)
        self.assertIn("SLUICE_TIMEOUT: '5' is not a time", done.stderr)
        self.assertEqual(run("--check", "--arena", "64M", program="sluice-kvstore", env={"SLUICE_ARENA": "much"}).returncode, 0)

    def test_what_is_misspelt_is_said(self):
        for program, words, name, meant in (("sluice", ["recipes"], "SLUICE_COORDINATR", "SLUICE_COORDINATOR"),
                                            ("sluice-kvstore", ["--nope"], "", ""),
                                            ("sluice-kvstore", ["--check"], "SLUICE_TRANSPROT", "SLUICE_TRANSPORT")):
            stderr = run(*words, program=program, env={name: "x"} if name else {}).stderr
            self.assertEqual("is not a variable of Sluice's" in stderr, bool(name), stderr)
            self.assertIn(f": is {meant} meant?" if name else "", stderr)
        for name in ("SLUICE_ARENA", "SLUICE_BIN", "SLUICE_TEST_SLOWNESS"):  # others' are passed over
            self.assertEqual(run("recipes", env={name: "1"}).stderr, "")

    def test_the_list_of_what_servers_take_is_whole(self):
        names = set()
        for program in ("coordinator", "prefill", "decode", "kvstore", "gateway"):
            names |= {option["name"] for option in json.loads(run("--describe", program=f"sluice-{program}").stdout)["options"]}
        with open("base/options/environment.c", encoding="utf-8") as file:
            table = re.search(r"of_servers\[\] = \{(.*?)\};", file.read(), re.S).group(1)
        self.assertEqual(sorted(re.findall(r'"([a-z-]+)"', table)), sorted(names))
        with open("docs/OPERATIONS.md", encoding="utf-8") as file:
            page = file.read()
        with open("base/options/environment.c", encoding="utf-8") as file:
            table = re.search(r"of_tool\[\] = \{(.*?)\};", file.read(), re.S).group(1)
        for name in re.findall(r'"([a-z-]+)"', table):
            self.assertIn("`SLUICE_" + name.upper().replace("-", "_") + "`", page)


class Options(unittest.TestCase):
    """One name has one meaning, whatever the program: long names and letters."""
    # Allowed differences: how many may be given, and what else than a file may hold it.
    VARIANTS = [{"HOST:PORT,...", "HOST:PORT"}, {"DIR", "FILE", "PREFIX"}, {"N", "N,N,..."}, {"TASK", "NAME[:TOKENS]"}, {"N", "R"},
                {"B", "B,B"}, {"NAME", "NAME,..."}, {"SIZE", "SIZE|auto"}, {"MODEL", "DIR"}]

    @classmethod
    def setUpClass(cls):
        cls.programs = every_program()

    def test_a_letter_has_one_name_and_a_name_one_letter(self):
        self.assertGreater(len(self.programs), 30)
        names, letters = {}, {}
        for program in self.programs:
            for option in program["options"]:
                if option["letter"]:
                    names.setdefault(option["letter"], set()).add(option["name"])
                letters.setdefault(option["name"], set()).add(option["letter"])
        self.assertEqual({letter: found for letter, found in names.items() if len(found) > 1}, {})
        self.assertEqual({name: found for name, found in letters.items() if len(found) > 1}, {})

    def test_a_name_takes_one_kind_of_value(self):
        kinds = {}
        for program in self.programs:
            for option in program["options"]:
                kinds.setdefault(option["name"], set()).add(option.get("metavar"))
        differ = {name: found for name, found in kinds.items() if len(found) > 1 and not any(found <= variants for variants in self.VARIANTS)}
        self.assertEqual(differ, {})

    def test_no_name_is_the_plural_of_another(self):
        names = {option["name"] for program in self.programs for option in program["options"]}
        # Counts (--coordinators, --prompts), lists of what the other is one of (--tasks, --models), and a file of them (--cells).
        allowed = {"coordinator", "prompt", "task", "model", "cell"}
        self.assertEqual({name for name in names if name + "s" in names} - allowed, set())

    def test_help_fits_a_narrow_terminal(self):
        for width in (66, 80):
            leader, follower = os.openpty()
            fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
            self.assertEqual(run("jobs", "--help", stdout=follower).returncode, 0)
            os.close(follower)
            text = b""
            try:
                while piece := os.read(leader, 65536):
                    text += piece
            except OSError:
                pass  # as a terminal ends
            os.close(leader)
            options = text.decode().split("Options:")[1].split("In the environment")[0]
            self.assertLessEqual(max(map(len, options.splitlines())), width, options)
            self.assertEqual([line for line in options.splitlines() if line.endswith(" ")], [])


class Doctor(unittest.TestCase):
    """`sluice doctor`: a check that fails on purpose, and what `up` does about it. tests/unit/cli/test_doctor.c has the rest."""
    ASKED = ["doctor", "-c", NOWHERE, "--port", "0", "--http-port", "0", "--arena", "1M", "--workers", "1"]

    def found(self, *words, **kinds):
        done = run(*self.ASKED, "--json", *words, **kinds)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def test_every_line_says_what_it_means(self):
        code, lines = self.found()
        self.assertEqual((code, [line for line in lines if line["health"] == "failed"]), (0, []), lines)
        self.assertLessEqual({"versions", "processor", "open files", "locked memory", "memory", "huge pages", "segments", "shared memory", "disk", "clock",
                              "coordinator"}, {line["check"] for line in lines})
        self.assertTrue(all(line["text"] and (line["remedy"] or line["health"] == "ok") for line in lines), lines)
        text = run(*self.ASKED).stdout.splitlines()
        self.assertEqual([line.split()[0] for line in text], [line["health"] for line in lines])

    def test_few_descriptors_stop_it_and_a_cluster(self):
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        code, lines = self.found(preexec_fn=few)
        self.assertEqual((code, [line["check"] for line in lines if line["health"] == "failed"]), (1, ["open files"]), lines)
        with tempfile.TemporaryDirectory() as folder:
            done = run("up", "--model", MODEL, "--port", "0", "--http-port", "0", env={"XDG_RUNTIME_DIR": folder}, preexec_fn=few)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("open files: hard limit 64", done.stderr)
        self.assertIn("Remedy: ulimit", done.stderr)

    def test_ports_and_peers(self):
        with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
            code, lines = self.found("--http-port", str(server.server_port), "--etcd", f"http://127.0.0.1:{server.server_port},{NOWHERE}")
        failed = [line for line in lines if line["health"] == "failed"]
        self.assertEqual((code, [line["check"] for line in failed]), (1, ["port", "etcd"]), lines)
        self.assertIn("Address already in use", failed[0]["text"])
        self.assertIn(NOWHERE, failed[1]["text"])
        self.assertEqual([line["health"] for line in lines if line["check"] == "etcd"], ["ok", "failed"])

    def test_a_certificate_that_ends_soon(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=x", "-keyout", f"{folder}/x.key",
                            "-out", f"{folder}/x.pem"], check=True, capture_output=True)
            code, lines = self.found("--pem", folder)
            ending = [line for line in lines if line["check"] == "certificate"]
            self.assertEqual((code, [line["health"] for line in ending]), (0, ["warning"]), lines)
            self.assertRegex(ending[0]["text"], r"x\.pem ends in [23] days")
            code, lines = self.found("--pem", f"{folder}/none")
            self.assertEqual((code, lines[-1]["check"], lines[-1]["health"]), (1, "certificate", "failed"), lines)


class Recipes(unittest.TestCase):
    def test_a_budget_is_shown(self):
        """Also that of the preset itself, which the canonical text leaves out."""
        self.assertIn("budget=0.2", run("recipes", "h2o,budget=0.2").stdout)
        self.assertIn("budget=0.3", run("recipes", "h2o,budget=0.3").stdout)


class NarrowTerminal(unittest.TestCase):
    """The output fits the terminal."""

    def lines(self, columns, *words):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([os.path.join(BIN, "sluice"), *words], stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # no process writes any more
            pass
        os.close(ours)
        self.assertEqual(process.wait(60), 0)
        return text.decode().replace("\r\n", "\n").split("\n")

    def test_help_and_tables_fit(self):
        for columns in (40, 60, 80, 120):
            for words in (["jobs", "--help"], ["eval", "perplexity", "--help"], ["recipes"]):
                lines = [line for line in self.lines(columns, *words) if not line.startswith("Usage: ")]
                self.assertLessEqual(max(map(len, lines)), columns, (words, lines))
                self.assertIn("newest" if words == ["recipes"] else "deadline.", " ".join(lines))


class ConfigFile(unittest.TestCase):
    def config(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
        return ["--config", self.path]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "sluice.yaml")

    def test_it_says_what_the_command_line_leaves_open(self):
        words = self.config(f"""# of all programs
model: {MODEL}
arena: 64M            # of servers: no affair of a command
sluice run:
  prompt: hi
  recipe: h2o, budget=0.5
  max-new-tokens: 2
  local: yes
sluice-decode:
  max-jobs: nonsense
""")
        for more, env, recipe in ([], {}, "h2o,budget=0.5"), (["-r", "full"], {}, "full"), ([], {"SLUICE_CONFIG": self.path}, "h2o,budget=0.5"):
            done = run("run", *([] if env else words), *more, env=env)
            self.assertEqual(done.returncode, 0, done)
            self.assertIn(f"recipe       {recipe}\n", done.stderr)
        done = run("run", *words, env={"SLUICE_MODEL": "/nonexistent"})  # which goes before the file
        self.assertIn("/nonexistent", done.stderr)
        done = run("--check", *words, program="sluice-kvstore")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("--check", *words, program="sluice-decode")
        self.assertEqual(done.returncode, 2)
        self.assertIn("sluice.yaml:10: max-jobs: 'nonsense' is not a whole number", done.stderr)

    def test_one_is_for_all_programs(self):
        words = self.config(f"model: {MODEL}\nprefill: 2\nhttp-port: 0\narena: 64M\n")
        for program in ("sluice-decode", "sluice-gateway"):
            self.assertEqual(run("--check", *words, program=program).returncode, 0, program)
        self.assertEqual(run("recipes", *words).returncode, 0)

    def test_the_lists_of_programs_and_of_what_they_take_are_whole(self):
        programs = every_program()
        with open("base/options/environment.c", encoding="utf-8") as file:
            page = file.read()
        names, options = (sorted(re.findall(r'"([a-z -]+)"', re.search(table + r"\[\] = \{(.*?)\};", page, re.S).group(1)))
                          for table in ("programs", "of_commands"))
        self.assertEqual(names, sorted(program["name"] for program in programs))
        servers = {option["name"] for program in programs for option in program["options"] if program["name"].startswith("sluice-")}
        self.assertEqual(options, sorted({option["name"] for program in programs for option in program["options"]} - servers))

    def test_lists(self):
        words = self.config("sluice eval fidelity:\n  recipe: [full, 'h2o,budget=0.5']\n  tokens: 300\n  continuation: 4\n")
        done = run("eval", "fidelity", "--model", MODEL, *words)
        self.assertEqual(re.findall(r"^(\S+) ", done.stdout.split("ERROR BY LAYER")[0], re.M)[2:], ["full", "h2o,budget=0.5"], done)
        done = run("eval", "fidelity", "--model", MODEL, *words, "--recipe", "h2o,budget=30")
        self.assertNotIn("full  ", done.stdout)

    def test_what_is_wrong_is_said_with_its_line(self):
        for text, says in [("cordinator: x:1\n", ":1: sluice jobs has no option cordinator: did you mean coordinator"),
                           ("log: warn\nsluice jobs:\n  limmit: 3\n", ":3: sluice jobs has no option limmit: did you mean limit"),
                           ("log: warn\nlog: info\n", ":2: log is already set in line 1"), ("- a\n", ":1: expected `option: value`"),
                           ("log: {a: b}\n", ":1: expected a value"), ("? \n", ":1: expected the name"), ('"log\\0": info\n', ":1: expected the name"), ("log: *x\n", ":1: "), ("log: 'a\n", ":2: found unexpected end"),
                           ("timeout: 5\n", ":1: timeout: '5' is not a time with its unit")]:
            done = run("jobs", *self.config(text))
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(self.path + says, done.stderr)
        for text, says in [("log: warn\nsluice-decod:\n  arena: 1G\n", ":2: there is no program or command sluice-decod: did you mean sluice-decode"),
                           ("sluice eval: {text: x}\n", ":1: there is no program or command sluice eval\n"),
                           ("log: warn\n---\nlog: info\n", ":2: expected one document"), ("---\n---\nlog: warn\n", ":2: expected one document")]:
            done = run("recipes", *self.config(text))
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(self.path + says, done.stderr)
        for text in ("", "# nothing\n", "---\n", "---\nlog: warn\n...\n", "sluice run: {prompt: x}\n", "sluice-kvstore: {arena: 1G}\n"):
            self.assertEqual(run("recipes", *self.config(text)).returncode, 0, text)
        done = run("recipes", "--config", "/nonexistent")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--config /nonexistent: No such file", done.stderr)
        done = run("recipes", "--config", "/tmp")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--config /tmp: is a folder; name a file", done.stderr)
        self.assertEqual(run("recipes", "--help", *self.config("nonsense: 1\n")).returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
