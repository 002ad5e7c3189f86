#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A model that takes seconds to load, as `sluice up` and `sluice run --local` show it; and the limit for starting, which counts from the last
progress. The model is a file with a hole in place of its weights; a worker is slowed down by stopping it."""
import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import random_folder
from harness import BIN, SLOW, eventually, run_tests

SLUICE = os.path.join(BIN, "sluice")
LIMIT = 8 * SLOW  # of --ready-timeout, in seconds


@contextlib.contextmanager
def place():
    """A folder with a model of 0.8 GB, and an environment in which `sluice down` finds the test's clusters alone."""
    with tempfile.TemporaryDirectory(prefix="sluice-loading-") as folder:
        yield random_folder.make("large", os.path.join(folder, "model"), zeros=True), {**os.environ, "XDG_RUNTIME_DIR": folder}


class Up:
    """`sluice up` in the foreground, and what it says on standard error."""

    def __init__(self, model, env, terminal=None, options=(), sluice=SLUICE, weights=("--private-weights",)):
        words = [sluice, "up", "--model", model, "--weights", "int4", "--port", "0", "--no-gateway", "--kvstore", "0", "--arena", "32M",
                 "--ready-timeout", f"{LIMIT}s", "--name", "loads", *options,
                 "--", "--threads", "1", *weights]
        self.began, self.ready, self.log = time.monotonic(), 0, None
        self.popen = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE if terminal is None else terminal, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.popen.stdout:
            if line.startswith("ready rpc=") or line.startswith('{"coordinator"'):
                self.ready = time.monotonic() - self.began
            if line.startswith("log "):
                with open(line.split()[1]) as file:
                    self.log = file.read()

    def worker(self, name):
        """The process id of a worker that has begun to load."""
        def find():
            with open(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children") as file:
                for pid in map(int, file.read().split()):
                    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as line:
                        words = line.read().split("\0")
                        if name in words and "--check" not in words:
                            return pid
            return 0
        eventually(find, 60, f"the start of {name}")
        time.sleep(0.6 * SLOW)
        pid = find()
        assert pid, f"{name} has ended"
        return pid

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.popen.kill()  # and the kernel its processes
        self.popen.wait()

    def end(self):
        """Ends the process. Returns its standard error, unless that is a terminal."""
        self.popen.send_signal(signal.SIGINT)
        said = self.popen.stderr.read() if self.popen.stderr else ""
        self.popen.wait(60 * SLOW)
        return said


def slow_down(pid, seconds):
    """Let a process run for a seventh of the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2.4 * SLOW)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.4 * SLOW)


def drawn(terminal, until):
    """Returns what is written to a terminal until a condition holds. The kernel passes it on later than it was written, by a thread of its
    own that waits where processors are busy: the end is a second without more."""
    said, ends = b"", False
    while not ends or select.select([terminal], [], [], SLOW)[0]:
        ends = ends or until()
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(terminal, 65536):
                said += piece
        time.sleep(0.02)
    return said.decode()


def percentages(text):
    """Those of the bar: `loading model [==>  ]  12%  1.0 GiB/...`."""
    return [int(percent) for percent in re.findall(r"\rloading model \[[=> ]+\] +(\d+)%  [0-9.]+ \w+/[0-9.]+ [MG]iB", text)]


def rises(percent):
    """A fast machine draws the bar a few times."""
    return percent != [] and percent == sorted(percent) and 0 < percent[-1] <= 100


def test_lines_without_a_terminal_and_a_slow_worker():
    """Slower than the limit, and never without progress for so long."""
    with place() as (model, env):
        with Up(model, env) as up:
            slow_down(up.worker("decode-0"), 1.5 * LIMIT)
            eventually(lambda: up.ready or up.popen.poll() is not None, 120, "the end of loading")
            said = up.end()
        assert up.ready > 1.5 * LIMIT, (up.ready, said)
        lines = re.findall(r"^sluice: loading model: (\d+)% of 1\.\d GiB, decode-0 (\d+)%, prefill-0 (\d+)%$", said, re.M)
        assert lines and lines == sorted(lines, key=lambda line: [int(n) for n in line]), said
        assert "\r" not in said and "\033" not in said, said
        # Workers say it themselves: in the cluster's log without the lines for `up`.
        assert re.search(r"decode-0     \| .* info  decode-0 runtime: loading .*/model: \d+% of 7\d\d\.\d MB after \d+ s$", up.log, re.M), up.log
        assert "loading done=" not in up.log, up.log


def test_a_worker_without_progress_is_named():
    with place() as (model, env):
        with Up(model, env) as up:
            pid = up.worker("decode-0")
            stopped = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            code = up.popen.wait(20 * LIMIT)
            said = up.popen.stderr.read()
        assert code == 5 and not up.ready, (code, said)
        assert LIMIT - 2 < time.monotonic() - stopped < 3 * LIMIT + 10 * SLOW, (time.monotonic() - stopped, said)
        assert re.search(rf"^sluice up: decode-0 was not ready within {int(1000 * LIMIT)} ms of its last progress \(--ready-timeout\), "
                         r"with \d+% of the model loaded$", said, re.M), said


def test_a_line_on_a_terminal():
    with place() as (model, env):
        ours, theirs = pty.openpty()
        os.set_blocking(ours, False)
        with Up(model, env, terminal=theirs) as up:
            said = drawn(ours, lambda: up.ready or up.popen.poll() is not None)
            up.end()
        seen = percentages(said)
        assert up.ready and rises(seen), said
        assert re.search(r"[MG]iB  decode-0 \d+%, prefill-0 \d+%", said), said
        assert "sluice: loading" not in said and said.endswith("\r\033[K"), said  # no lines, and nothing is left of it

        words = [SLUICE, "run", "--local", "--model", model, "--weights", "int4", "--arena", "32M", "--prompt", "a b", "-n", "1"]
        for more in [], ["--quiet"]:
            run = subprocess.Popen([*words, *more], stdout=subprocess.DEVNULL, stderr=theirs)
            said = drawn(ours, lambda run=run: run.poll() is not None)
            assert run.returncode == 0, said
            seen = percentages(said)
            assert seen == [] if more else rises(seen), said
        os.close(theirs)
        os.close(ours)


def test_no_control_characters_without_a_terminal_or_for_programs():
    with place() as (model, env):
        ours, theirs = pty.openpty()
        os.set_blocking(ours, False)
        with Up(model, env, terminal=theirs, options=["--json"]) as up:
            said = drawn(ours, lambda: up.ready or up.popen.poll() is not None)
            up.end()
        os.close(theirs)
        os.close(ours)
        assert up.ready and "\033" not in said and said.count("\r") == said.count("\r\n"), said  # of the terminal's line ends
        assert re.search(r"^sluice: loading model: \d+% of 1\.\d GiB, decode-0 \d+%, prefill-0 \d+%\r$", said, re.M), said

        words = [SLUICE, "run", "--local", "--model", model, "--weights", "int4", "--arena", "32M", "--threads", "1", "--prompt", "a b", "-n", "1"]
        for more, n_least, n_most in ([], 1, 99), (["--quiet"], 0, 0), (["--json"], 0, 0):
            run = subprocess.run([*words, *more], capture_output=True, text=True)
            assert run.returncode == 0 and "\033" not in run.stdout + run.stderr and "\r" not in run.stdout + run.stderr, run
            lines = re.findall(r"^sluice run: loading model: \d+% of 7\d\d\.\d MiB$", run.stderr, re.M)
            assert n_least <= len(lines) <= n_most, run.stderr


def test_a_signal_ends_the_loading_before_the_first_line_is_answered():
    with place() as (model, env):
        words = [SLUICE, "run", "--local", "--jsonl", "--model", model, "--weights", "int4", "--arena", "32M", "--threads", "1", "--private-weights"]
        with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            run.stdin.write('{"prompt": "a b", "max_tokens": 1}\n')
            run.stdin.flush()

            def is_loading():
                with open(f"/proc/{run.pid}/maps") as maps:
                    return model in maps.read()
            eventually(is_loading, 20, "a process that loads the model")
            run.send_signal(signal.SIGINT)
            said = run.communicate()
        assert (run.returncode, *said) == (4, "", "sluice run: stopped while the model was loaded\n"), (run.returncode, said)


def test_processes_that_are_waited_for_are_named():
    """A worker that takes seconds to start, beside a model that takes none."""
    with tempfile.TemporaryDirectory(prefix="sluice-loading-") as folder:
        programs = os.path.join(folder, "programs")
        os.mkdir(programs)
        shutil.copy(SLUICE, programs)  # it looks for the others in its own folder
        for name in os.listdir(BIN):
            if name.startswith("sluice-") and name != "sluice-decode":
                os.symlink(os.path.join(BIN, name), os.path.join(programs, name))
        with open(f"{programs}/sluice-decode", "w") as file:
            file.write(f'#!/bin/sh\ncase " $* " in *" --check "*) ;; *) sleep {14 * SLOW} ;; esac\nexec {BIN}/sluice-decode "$@"\n')
        os.chmod(f"{programs}/sluice-decode", 0o755)
        with Up(random_folder.DEMO, {**os.environ, "XDG_RUNTIME_DIR": folder}, options=["--ready-timeout", "60s"], sluice=f"{programs}/sluice") as up:
            eventually(lambda: up.ready or up.popen.poll() is not None, 120, "the cluster")
            said = up.end()
        assert up.ready and re.search(r"^sluice: waiting for decode-0: \d+ s$", said, re.M), said


def memory(pid):
    """What a process has of shared memory in MB: mapped, and its part of that."""
    with open(f"/proc/{pid}/smaps") as file:
        of_weights = re.findall(r"/memfd:sluice-weights-.*?Rss: +(\d+) kB\nPss: +(\d+) kB", file.read(), re.S)
    return [sum(int(number) for number in column) / 1000 for column in zip(*of_weights)]


def lists(pid):
    """The lists of users of shared weights that name a process."""
    found = []
    for folder, _, names in os.walk("/dev/shm"):
        for path in (os.path.join(folder, name) for name in names if f"/sluice-{os.geteuid()}-" in folder):
            with contextlib.suppress(OSError), open(path) as file:
                found += [path] if re.search(rf"^{pid} ", file.read(), re.M) else []
    return found


def test_workers_share_the_weights():
    """The first one packs, the second waits with its progress, and the weights outlive the first."""
    with place() as (model, env):
        with Up(model, env, weights=()) as up:
            eventually(lambda: up.ready or up.popen.poll() is not None, 120, "the end of loading")
            assert up.ready, up.popen.stderr.read()
            eventually(lambda: up.log is not None, 20, "the path of the log")
            if refused := re.search(r"weights are not shared: (the kernel has no huge pages .*)$", up.log, re.M):
                print(f"skipped: {refused[1]}")
                return
            pids = [up.worker(name) for name in ("prefill-0", "decode-0")]
            mapped, parts = zip(*map(memory, pids))
            assert all(190 < each < 220 for each in mapped), (mapped, parts)  # 0.36 billion weights as int4
            assert all(part < 0.55 * each for part, each in zip(parts, mapped)), (mapped, parts)
            left = lists(pids[0])
            assert len(left) == 1 and left == lists(pids[1]), left
            os.kill(pids[0], signal.SIGKILL)
            eventually(lambda: memory(pids[1])[1] > 0.9 * mapped[1], 20, "the weights of one process alone")
            said = up.end()
        # Both show progress in the same proportion, which the one that waits has from the other.
        lines = re.findall(r"decode-0 (\d+)%, prefill-0 (\d+)%$", said, re.M)
        assert all(abs(int(a) - int(b)) < 40 for a, b in lines if int(a) > 0 and int(b) > 0), said
        assert not os.path.exists(left[0]), "a list without users"


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
