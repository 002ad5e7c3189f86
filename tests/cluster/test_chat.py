#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`sluice chat`, as it is used: by a script, through a pipe, and by a user at a terminal."""
import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import tempfile
import termios
import time
import urllib.request

from harness import BIN, MODEL, SLOW, Cluster, document, eventually, inference, question, run_tests

SLUICE = os.path.join(BIN, "sluice")
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@contextlib.contextmanager
def chatting_model():
    """The demo with a chat template; it has not been trained for one, which does not matter to what is read."""
    with tempfile.TemporaryDirectory(prefix="sluice-chat-") as model:
        for name in os.listdir(MODEL):
            os.symlink(os.path.join(MODEL, name), os.path.join(model, name))
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write(TEMPLATE)
        yield model


def chat(lines, *words, env=None, code=0):
    """Runs chat with these lines as its input, as a script does, and returns its output."""
    done = subprocess.run([SLUICE, "chat", *words], input="".join(f"{line}\n" for line in lines), capture_output=True, text=True,
                          timeout=120 * SLOW, env={**os.environ, **(env or {})}, errors="surrogateescape")
    assert done.returncode == code, done
    return done


def turns(lines, *words):
    """The last event of each turn."""
    said = [json.loads(line)["finished"] for line in chat(lines, *words, "--json").stdout.splitlines()]
    return [(turn["text"], int(turn["statistics"]["n_prompt_tokens"]), int(turn["statistics"]["n_reused_tokens"]),
             int(turn["statistics"]["n_output_tokens"])) for turn in said]


def check_reads_itself(said):
    """Every turn but the first reads what is new and, at most, the token that the answer before has written last."""
    for (_, context, _, written), (_, new_context, reused, _) in zip(said, said[1:]):
        assert context + written - 1 <= reused + 1 and reused < new_context, said


LOCAL = ("--local", "--model", MODEL, "--threads", "1")
QUESTION = question().strip()
ASKED = ["One of the special magic numbers for lantern is: 48213. " + QUESTION, "Once more: " + QUESTION, "And again. " + QUESTION]


def test_a_turn_reads_itself_alone():
    with chatting_model() as model:
        for recipe in ("full", "full,format=int8", "h2o,budget=64,chunk=64", "streamingllm,budget=64"):
            said = turns(["Say something about lanterns.", *ASKED], "--local", "--model", model, "-r", recipe, "-n", "5", "--system", "Be brief.")
            check_reads_itself(said)
            assert len(said) == 4
    said = turns(ASKED, *LOCAL, "-n", "6")
    check_reads_itself(said)
    assert all("48213" in text for text, *_ in said), said


def test_an_answer_that_only_repeats_itself_is_stopped():
    """Without a token that ends an answer, the likeliest ones come again and again. The conversation continues after that."""
    with chatting_model() as model:
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            with open(os.path.join(model, name)) as file:
                text = file.read()
            os.remove(os.path.join(model, name))
            with open(os.path.join(model, name), "w") as file:
                file.write(re.sub('"eos_token_id": [0-9]+', '"eos_token_id": 255', text.replace("<|endoftext|>", "<|other|>")))
        words = ("--local", "--model", model, "--temperature", "0", "--deadline", "60s")
        done = chat(["lantern lantern", "again"], *words)
        assert done.stderr.count("stopped: the answer repeats itself") == 2 and len(done.stdout) > 2 * 1024, done
        (asked, context, _, written), (_, after, *_) = turns(["lantern lantern", "again"], *words)
        assert len(asked) >= 1024 and after > context + written - 10, done  # a part of the conversation
        done = chat(["lantern lantern"], *words, "-n", "1200")
        assert "repeats" not in done.stderr and len(done.stdout) > 1200, done


def test_commands_of_a_script():
    with tempfile.TemporaryDirectory() as folder:
        notes, saved = os.path.join(folder, "notes.txt"), os.path.join(folder, "talk.json")
        with open(notes, "w") as file:
            file.write(document(600))
        done = chat([f"/file {notes}", QUESTION, "/stats", "/recipe h2o,budget=0.5", "/recipe", "And \\", "again: " + QUESTION,
                     f"/save {saved}", "/new", "//hello", "/help", "/quit", "not read"], *LOCAL, "-n", "4")
        assert "bytes, which the next question begins with" in done.stderr and "reads the whole conversation under h2o" in done.stderr, done
        assert re.search(r"^ +1 +\d+ +\d+ +4 ", done.stdout, re.M) and "/file" in done.stdout, done
        with open(saved) as file:
            messages = json.load(file)["messages"]
        assert [m["role"] for m in messages] == ["user", "assistant"] * 2
        assert messages[0]["content"] == document(600) + "\n" + QUESTION and messages[2]["content"] == "And \nagain: " + QUESTION
        assert stat.S_IMODE(os.stat(saved).st_mode) == 0o600
        assert "is not overwritten" in chat([f"/save {saved}"], *LOCAL, code=2).stderr


def test_a_last_line_may_end_with_a_backslash():
    both = [chat(lines, *LOCAL, "-n", "4").stdout for lines in ([QUESTION], [QUESTION + "\\"])]
    assert both[0] and both[0] == both[1], both


def test_as_json_commands_leave_standard_output_alone():
    done = chat(["/stats", QUESTION, "/stats", "/help", "/recipe"], *LOCAL, "-n", "4", "--json")
    assert [list(json.loads(line)).count("finished") for line in done.stdout.splitlines()] == [1], done.stdout
    assert "the last one:" in done.stderr and "/file" in done.stderr and "no answer has come to its end yet" in done.stderr, done.stderr


def test_what_makes_no_sense_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        with open(path("latin"), "wb") as file:
            file.write(b"caf\xe9")
        with open(path("huge"), "wb") as file:
            file.truncate((64 << 20) + 1)
        with open(path("long"), "w") as file:
            file.write("lantern " * 100000)
        os.mkfifo(path("pipe"))
        for line, says in [(f"/file {path('latin')}", "not valid UTF-8 at byte 3"), (f"/file {path('huge')}", "larger than 64 MiB"),
                           (f"/file {path('pipe')}", "is not a file"), (f"/file {folder}", "is not a file"), ("/file", "which one?"),
                           (f"/file {path('nothing')}", "No such file"), ("/recipe nonsense", "nonsense"), ("/stat", "did you mean /stats"),
                           (f"/save {folder}/no/such", "No such file"), ("\udce9t\udce9", "not valid UTF-8"), ("zero\0", "zero byte")]:
            assert says in chat([line], *LOCAL, code=2).stderr, (line, says)
        said = chat([f"/file {path('long')}", "What is it about?"], *LOCAL, code=2).stderr
        assert "positions" in said and "/new" in said and "--max-new-tokens" in said, said
    assert "--local needs --model" in chat([], "--local", code=2).stderr
    assert "no chat template" in chat([], *LOCAL, "--system", "Be brief.", code=2).stderr
    assert "no coordinator at 127.0.0.1:1" in chat(["hi"], "-c", "127.0.0.1:1", code=3).stderr
    assert chat([], *LOCAL).stdout == ""
    full = subprocess.run(f"echo hi | {SLUICE} chat {' '.join(LOCAL)} -n 2 > /dev/full", shell=True, capture_output=True, text=True)
    assert full.returncode == 1 and "standard output cannot be written" in full.stderr, full


def test_a_reader_that_goes_ends_it():
    process = subprocess.Popen([SLUICE, "chat", *LOCAL, "-n", "4000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"lantern lantern lantern\n" * 20)
    process.stdin.flush()
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60 * SLOW) == 1 and b"cannot be written" in process.stderr.read()
    process.stdin.close()


class Terminal:
    """A user at a terminal."""

    def __init__(self, *words, env=None, program=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(program or SLUICE, [program, *words] if program else [SLUICE, "chat", *words],
                      {**os.environ, "TERM": "xterm", **(env or {})})
        self.shown = self.all = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern, timeout=60):
        """Until it is shown, behind what was expected before."""
        deadline = time.monotonic() + timeout * SLOW
        while not (found := re.search(pattern, self.shown)):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.fd], [], [], max(left, 0))
            assert ready, f"no {pattern!r} in {self.shown[-600:]!r}"
            try:
                more = os.read(self.fd, 4096).decode(errors="replace")
                self.shown += more
                self.all += more
            except OSError as error:
                raise AssertionError(f"it ended without {pattern!r}: {self.shown[-600:]!r}") from error
        self.shown = self.shown[found.end():]
        return found

    def prompt(self, before=""):
        """Until it waits for a line: the editor takes the terminal over a moment behind its prompt."""
        self.expect(before + "> ")
        eventually(lambda: not termios.tcgetattr(self.fd)[3] & termios.ICANON, 20, "the line editor")

    def end(self):
        """Its exit code, once it has ended by itself; one that does not end is killed."""
        with contextlib.suppress(OSError):
            while select.select([self.fd], [], [], 20 * SLOW)[0] and (more := os.read(self.fd, 4096)):
                self.shown += more.decode(errors="replace")
        with contextlib.suppress(AssertionError):
            eventually(lambda: os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), 20, "it has ended")
        os.kill(self.pid, signal.SIGKILL)  # which one that has ended does not mind
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def test_at_a_terminal():
    with tempfile.TemporaryDirectory() as state:
        env = {"XDG_STATE_HOME": state}
        here = Terminal(*LOCAL, "-n", "12000", env=env)
        here.expect("continues the text as it is")
        here.prompt()
        here.type("lantern lantern lantern\x7f\x7frn lantern\r")  # with a word that is typed again
        here.expect(r"\r\x1b\[K[^\x1b\r]{20}")  # progress has gone, and an answer comes that is long
        here.type("\x03")
        here.expect("sluice chat: stopped")
        here.prompt()
        here.type("/nothing\r")
        here.prompt("there is no /nothing.*\r\n")
        here.type("given up")
        here.expect("given up")
        here.type("\x03")
        here.prompt()
        here.type("/stats\r")
        here.prompt("the last one:(.|\n)*")
        here.type("\x1b[A\r")  # the line before
        here.prompt("the last one:(.|\n)*")
        here.type("\x04")
        code = here.end()
        assert code == 0, (code, here.all[-1500:])
        history = os.path.join(state, "sluice", "chat-history")
        assert stat.S_IMODE(os.stat(history).st_mode) == 0o600
        with open(history) as file:
            kept = file.read()
        assert "lantern\\040lantern\\040lantern\\040lantern" in kept and "/stats" in kept and "given" not in kept, kept
        again = Terminal(*LOCAL, "--no-history", env=env)
        again.prompt()
        again.type("/help\r")
        again.expect("/recipe")
        os.kill(again.pid, signal.SIGTERM)
        assert again.end() == 4
        with open(history) as file:
            assert "/help" not in file.read()


def test_a_turn_says_what_was_read_and_why():
    with Cluster() as cluster:
        here = Terminal("-c", cluster.coordinator.address, "-n", "4", "--no-history")
        here.prompt()
        here.type("lantern lantern lantern\r")
        here.expect(r"\[(\d+) of \1 tokens read, not cached: not_stored, \S+ \w+ shipped, \d+ written, the first after \d+ ms, all after \d+ ms\]")
        here.prompt()
        here.type("lantern\r")
        read, n = here.expect(r"\[(\d+) of (\d+) tokens read, \d+ written, the first").groups()
        assert int(read) < int(n), (read, n)
        here.prompt()
        here.type("\x04")
        assert here.end() == 0, here.all[-1500:]


def test_two_at_once_keep_the_lines_of_both():
    with tempfile.TemporaryDirectory() as state:
        both = [Terminal(*LOCAL, env={"XDG_STATE_HOME": state}) for _ in range(2)]
        lines = ["/help", "/stats", "/recipe", "/new"]
        for here in both:
            here.prompt()
        for i, line in enumerate(lines):
            both[i % 2].type(line + "\r")
            both[i % 2].prompt(f"{line}(.|\n)*\n")
        for here in both:
            here.type("\x04")
            assert here.end() == 0, here.all[-1500:]
        with open(os.path.join(state, "sluice", "chat-history")) as file:
            assert file.read().splitlines()[1:] == lines


def test_a_terminal_that_changes():
    here = Terminal(*LOCAL, "--no-history")
    here.prompt()
    here.type("half of it")
    here.expect("half of it")
    fcntl.ioctl(here.fd, termios.TIOCSWINSZ, struct.pack("4H", 30, 60, 0, 0))  # and SIGWINCH
    here.expect("> .*half of it")  # drawn anew
    modes = termios.tcgetattr(here.fd)
    modes[3] |= termios.ICANON | termios.ECHO  # as a shell leaves it behind a stop
    termios.tcsetattr(here.fd, termios.TCSANOW, modes)
    os.kill(here.pid, signal.SIGCONT)
    here.prompt()
    here.type("\x03")
    here.prompt()
    here.type("\x04")
    assert here.end() == 0, here.all[-1500:]


# A shell with one job: when the job stops, prints the terminal's modes; continues the job when a line is typed.
SHELL = """
import os, signal, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    modes = termios.tcgetattr(0)[3]
    print("stopped, lines", bool(modes & termios.ICANON), "echo", bool(modes & termios.ECHO), flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
"""


def test_a_stop_leaves_the_terminal_as_it_was():
    here = Terminal("-c", SHELL, SLUICE, "chat", *LOCAL, "--no-history", "-n", "12000", program="/usr/bin/python3")
    here.prompt()
    here.type("half of it")
    here.expect("half of it")
    for _ in range(2):
        here.type("\x1a")
        here.expect("stopped, lines True echo True")
        here.type("go on\r")
        here.prompt()  # in its own modes
        here.expect("half of it")  # which is there still
    here.type(" lantern\r")
    here.expect(r"\r\x1b\[K[^\x1b\r]{20}")  # an answer that is long: the editor is not there
    here.type("\x1a")
    here.expect("stopped, lines True echo True")
    here.type("go on\r")
    here.expect("[^\x1b\r]{20}")
    here.type("\x03")
    here.prompt("sluice chat: stopped(.|\n)*")
    here.type("\x04")
    assert here.end() == 0, here.all[-1500:]


class Talk:
    """A program that talks to chat line by line."""

    def __init__(self, cluster, *words):
        self.process = subprocess.Popen([SLUICE, "chat", "-c", cluster.coordinator.address, "--json", *words], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ask(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def answer(self):
        """As turns() has it, and the job's id."""
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        event = json.loads(line)
        turn = event["finished"]
        statistics = turn["statistics"]
        return (turn["text"], *(int(statistics[f"n_{what}_tokens"]) for what in ("prompt", "reused", "output"))), event["job_id"]

    def turn(self, line):
        self.ask(line)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(30 * SLOW) == 0, self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()


def details(cluster, job_id):
    return " ".join(e.state.detail for e in cluster.watch(job_id) if e.HasField("state"))


def kept(cluster):
    """Sessions that wait for their next turn, by what the workers say themselves: a heartbeat may be older than the last turn."""
    n = 0
    for process in cluster.processes.values():
        if process.name.startswith("decode") and not process.killed:
            with urllib.request.urlopen(f"http://{process.admin}/metrics", timeout=10 * SLOW) as page:
                n += int(float(re.search(r"^sluice_kept_sessions (\S+)$", page.read().decode(), re.M)[1]))
    return n


def kill_who_writes(cluster, n_before):
    """Kill the decode worker of the job behind so many, as soon as it has written something."""
    eventually(lambda: len(cluster.list()) > n_before, 20, "the job has begun", every=0.002)  # its answer takes a fifth of a second
    job_id = cluster.list()[0].job_id
    next((event for event in cluster.watch(job_id) if event.HasField("token")), None)
    cluster.kill(cluster.get(job_id).decode_worker)


def lost_while_it_wrote(cluster, job_id):
    events = list(cluster.watch(job_id))
    began = [event.HasField("token") for event in events].index(True)
    return any("lost" in event.state.detail for event in events[began:] if event.HasField("state"))


def long_talk(recipe, n_turns):
    """A conversation through decode workers that are killed, one between two turns and one while it writes: each answer, and what each
    turn reads, is as if nothing had happened. Where an answer has ended before its worker does, the next turn tries again."""
    lines = [f"{ASKED[i % 3]} {i} lantern{'s' * i}." for i in range(n_turns)]
    words = ("-r", recipe, "-n", "150")
    with chatting_model() as model, Cluster(decode=2, model=model) as cluster:
        expected = turns(lines, "--local", "--model", model, *words)
        talk, names = Talk(cluster, *words), (f"decode-{i}" for i in itertools.count(2))
        said, how, n_killed, in_the_middle = [], [], 0, False
        for i, line in enumerate(lines):
            talk.ask(line)
            tries = i >= n_turns // 2 and not in_the_middle
            if tries:
                kill_who_writes(cluster, i)
                cluster.start_worker(next(names))
            turn, job_id = talk.answer()
            said.append(turn)
            how.append(details(cluster, job_id))
            in_the_middle |= tries and lost_while_it_wrote(cluster, job_id)
            n_killed += tries
            if i == n_turns // 3:
                cluster.kill(cluster.get(job_id).decode_worker)
                cluster.start_worker(next(names))
        assert in_the_middle, how
        differ = [(i, *both, how[i]) for i, both in enumerate(zip(said, expected)) if both[0] != both[1]]
        assert not differ, differ
        check_reads_itself(said)
        assert "where the session of the turn before is" in how[1] and "from its store" in how[n_turns // 3 + 1], how
        assert sum("from its store" in one for one in how) <= 1 + 2 * n_killed and not any("prefill" in one for one in how[1:]), how
        talk.end()
        eventually(lambda: kept(cluster) == 0, 10, "nothing is kept of a conversation that was ended")


def test_twenty_turns_through_two_kills():
    long_talk("full,format=int8", 20)


def test_a_recipe_that_evicts_goes_through_kills():
    long_talk("h2o,budget=96,chunk=64", 6)
    long_talk("tova,budget=96", 6)


def test_a_client_that_vanishes_leaves_nothing():
    with Cluster() as cluster:
        talk = Talk(cluster, "-n", "4", "--keep", f"{6 * SLOW:g}s")
        talk.turn(ASKED[0])
        eventually(lambda: kept(cluster) == 1, 5, "the session is kept")
        talk.process.kill()
        talk.process.communicate()
        eventually(lambda: kept(cluster) == 0, 30, "the lease has ended")


def test_idle_conversations_make_room():
    words = ("-r", "full", "-n", "4")
    lines = [document(16000).replace("\n", " ") + QUESTION, ASKED[0], ASKED[1]]
    expected = turns(lines, *LOCAL, *words)
    # The store has room for both prompts and for the copies of the session.
    with Cluster(worker_args={"kvstore": ["--arena", "192M"]}) as cluster:
        talk = Talk(cluster, *words)
        said = [talk.turn(lines[0])[0]]
        eventually(lambda: kept(cluster) == 1, 10, "the session is kept")
        # A prompt as large as the arena: no request is refused, or waits, because of an idle conversation.
        finished, _ = cluster.answer(inference.GenerateRequest(text=document(24000), recipe="full", max_new_tokens=4))
        assert finished.status_code == 0 and finished.statistics.n_prompt_tokens > 7000, finished
        eventually(lambda: kept(cluster) == 0, 10, "the idle conversation has made room")
        turn, job_id = talk.turn(lines[1])
        assert "from its store" in details(cluster, job_id)
        said += [turn, talk.turn(lines[2])[0]]
        assert said == expected, (said, expected)
        talk.end()


def test_without_a_store_a_lost_session_is_read_again():
    words = ("-r", "full", "-n", "4")
    expected = turns(ASKED, *LOCAL, *words)
    with Cluster(kvstore=0, decode=2) as cluster:
        talk = Talk(cluster, *words)
        first, job_id = talk.turn(ASKED[0])
        cluster.kill(cluster.get(job_id).decode_worker)
        again, _ = talk.turn(ASKED[1])
        assert again[2] == 0 and [first, (*again[:2], expected[1][2], again[3]), talk.turn(ASKED[2])[0]] == expected, (first, again)
        talk.end()


def test_what_offloads_reads_everything():
    with Cluster(kvstore=2) as cluster:
        talk = Talk(cluster, "-r", "full,place=offload/1-2,retrieve=near,scope=sinks:4+recent:20,topk=16,channels=4", "-n", "2")
        talk.turn(ASKED[0])
        assert kept(cluster) == 0
        turn, job_id = talk.turn(ASKED[1])
        assert "prefill" in details(cluster, job_id), turn
        talk.end()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
