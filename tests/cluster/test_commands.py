#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster in the background, for a user who types `sluice up --detach`, `status`, `run` and `down`; and what the commands show
of jobs that failed."""
import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time

from harness import BIN, MODEL, SLOW, document, eventually, run_tests

SLUICE = os.path.join(BIN, "sluice")
UP = ["up", "--detach", "--model", MODEL, "--port", "0", "--http-port", "0", "--arena", "32M"]


class Here:
    """A folder for clusters of ours alone, all of which are stopped in the end."""

    def __init__(self, folder):
        self.env = {**os.environ, "XDG_RUNTIME_DIR": folder}

    def run(self, *words):
        return subprocess.run([SLUICE, *words], capture_output=True, text=True, timeout=90 * SLOW, env=self.env, stdin=subprocess.DEVNULL)

    def clusters(self):
        return {line["name"]: line for line in map(json.loads, self.run("status", "--json").stdout.splitlines())}

    def process(self, name, i):
        return self.clusters()[name]["processes"][i]

    def up(self, name, *words):
        done = self.run(*UP, "--name", name, *words)
        assert done.returncode == 0, done
        return re.search(r"^ready rpc=(\S+)", done.stdout, re.M).group(1), done.stdout


@contextlib.contextmanager
def here():
    with tempfile.TemporaryDirectory(prefix="sluice-here-") as folder:
        place = Here(folder)
        try:
            yield place
        finally:
            place.run("down", "--all")


def alive(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def test_a_cluster_behind_the_terminal():
    with here() as place:
        assert place.run("status").returncode == 3 and place.run("down").returncode == 1
        address, said = place.up("one", "--no-gateway")
        assert "decode-0" in said and "info" not in said and "sluice down one" in said, said  # workers, and none of what they say
        log = re.search(r"^log +(\S+)", said, re.M).group(1)
        with open(log) as file:
            assert "decode-0     | " in file.read()
        again = place.run(*UP, "--name", "one")
        assert again.returncode == 1 and "runs already: `sluice down one`" in again.stderr, again
        done = place.run("run", "--coordinator", address, "--wait", "20s", "--prompt", "one two", "-n", "2")
        assert done.returncode == 0 and done.stdout, done

        one = place.clusters()["one"]
        pids = {process["name"]: process["pid"] for process in one["processes"]}
        assert one["coordinator"] == address and set(pids) == {"coordinator", "kvstore-0", "decode-0", "prefill-0"}, one
        os.kill(pids["decode-0"], signal.SIGKILL)  # another process takes its place
        eventually(lambda: place.process("one", 2)["rpc"] and place.process("one", 2)["pid"] != pids["decode-0"], 20, "a decode worker again")
        done = place.run("run", "--coordinator", address, "--wait", "20s", "--prompt", "one two three", "-n", "2")
        assert done.returncode == 0 and done.stdout, done
        with open(log) as file:
            assert re.search(r"decode-0 was killed by signal 9.*started again in 0.2 s", file.read())

        place.up("two", "--no-gateway", "--kvstore", "0")
        which = place.run("down")
        assert which.returncode == 2 and "one, two" in which.stderr, which
        assert place.run("down", address).stdout == "one has ended\n" and set(place.clusters()) == {"two"}
        assert not any(alive(process["pid"]) for process in one["processes"]) and not os.path.exists(log)


def test_documents_stay_in_a_folder():
    with here() as place, tempfile.TemporaryDirectory(prefix="sluice-keep-") as folder:
        kept, text = os.path.join(folder, "a", "b"), os.path.join(folder, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.write(document(3000))
        for said in ("added gpl: ", "gpl was there already, and stays as it was: "):
            address, _ = place.up("one", "--no-gateway", "--state", kept)
            added = place.run("doc", "add", "gpl", text, "--coordinator", address)
            assert added.returncode == 0 and added.stdout.startswith(said) and added.stderr == "", added
            assert "in memory and on disk" in place.run("doc", "show", "gpl", "--coordinator", address).stdout
            jobs = place.run("jobs", "--json", "--coordinator", address).stdout
            assert place.run("down").returncode == 0
        assert jobs.count('"label":"document gpl"') == 1, jobs  # the text was not read again
        if shutil.which("etcd"):  # a second coordinator, later: the documents move to etcd, and one alone cannot have them
            for _ in range(2):
                address, _ = place.up("one", "--no-gateway", "--state", kept, "--coordinators", "2")
                eventually(lambda: "in memory and on disk" in place.run("doc", "show", "gpl", "--coordinator", address).stdout, 20, "the document in etcd")
                assert place.run("down").returncode == 0
            alone = place.run(*UP, "--no-gateway", "--state", kept)
            assert alone.returncode == 2 and "give --coordinators 2" in alone.stderr, alone
        address, _ = place.up("one", "--no-gateway")
        added = place.run("doc", "add", "gpl", text, "--coordinator", address)
        assert added.returncode == 0 and added.stderr == "gpl ends with the cluster; `sluice up --state DIR` keeps documents\n", added
        assert "never, and with the cluster" in place.run("doc", "show", "gpl", "--coordinator", address).stdout


def test_what_ends_with_its_coordinator():
    with here() as place:
        place.up("short", "--no-gateway", "--kvstore", "0")
        short = place.clusters()["short"]
        os.kill(short["processes"][0]["pid"], signal.SIGKILL)
        eventually(lambda: not alive(short["pid"]), 20, "the end of the cluster")
        with open(os.path.join(place.env["XDG_RUNTIME_DIR"], "sluice", "short", "cluster.log")) as file:
            said = file.read()
        assert "all that the processes said" not in said, said  # there it is already
        ended = place.clusters()["short"]
        assert not ended["running"] and place.run("status").returncode == 3, ended
        assert "had ended already" in place.run("down", "short").stdout and place.clusters() == {}


def test_a_cluster_that_does_not_come_up_says_why():
    with here() as place:
        address, _ = place.up("first", "--no-gateway", "--kvstore", "0")
        taken = place.run(*UP[:4], "--port", address.rsplit(":", 1)[1], "--no-gateway", "--detach", "--name", "second")
        assert taken.returncode == 1 and address in taken.stderr, taken
        waited = place.run("run", "--coordinator", "127.0.0.1:1", "--wait", "300ms", "--prompt", "x")
        assert waited.returncode == 3, waited


def test_a_worker_that_hangs_is_started_again():
    with here() as place:
        place.up("hangs", "--no-gateway", "--kvstore", "0", "--ready-timeout", f"{3 * SLOW}s")
        folder = os.path.join(place.env["XDG_RUNTIME_DIR"], "sluice", "hangs")

        def decode():
            with open(os.path.join(folder, "cluster.json")) as file:
                return json.load(file)["processes"][1]

        def end_and_hold():
            """Kills the decode worker and suspends its successor before it is ready; None: it was ready too soon."""
            before = decode()["pid"]
            os.kill(before, signal.SIGKILL)
            eventually(lambda: decode()["pid"] not in (0, before), 20, "its successor in the file, be it ready or not")
            pid = decode()["pid"]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.3)  # for what it said before
            if not decode()["rpc"]:
                return pid
            os.kill(pid, signal.SIGCONT)
            return None

        hung = end_and_hold() or end_and_hold() or end_and_hold()
        assert hung, "nobody was seen before he was ready"
        eventually(lambda: not alive(hung), 20, "the end of what hangs")
        eventually(lambda: decode()["pid"] not in (0, hung) and decode()["rpc"], 20, "a decode worker again")
        with open(os.path.join(folder, "cluster.log")) as file:
            assert "decode-0 was not ready within" in file.read()


def test_a_cluster_that_is_starting_can_be_stopped():
    with here() as place:
        starting = subprocess.Popen([SLUICE, *UP, "--name", "slow", "--no-gateway"], env=place.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        eventually(lambda: "slow" in place.clusters(), 20, "its name")
        done = place.run("down", "slow")
        assert done.returncode == 0 and "slow has ended" in done.stdout, done
        starting.communicate(timeout=60 * SLOW)
        assert place.clusters() == {}


def test_down_all_goes_on_after_one_that_does_not_end():
    with here() as place:
        for name in "one", "two":
            place.up(name, "--no-gateway", "--kvstore", "0")
        one = place.clusters()["one"]
        os.kill(one["pid"], signal.SIGSTOP)  # it cannot end
        ended = os.path.join(place.env["XDG_RUNTIME_DIR"], "sluice", "ended")
        os.mkdir(ended, 0o700)
        try:
            done = place.run("down", "--all", "--wait", "1s")
            assert "one has not ended within" in done.stderr and "ended had ended already" in done.stdout, done
        finally:
            os.kill(one["pid"], signal.SIGCONT)
        assert done.returncode == 5 and not os.path.exists(ended), done
        eventually(lambda: not place.clusters(), 30, "the end of both")


def test_up_leaves_alone_what_is_not_its_own():
    with here() as place:
        notes = os.path.join(place.env["XDG_RUNTIME_DIR"], "notes.txt")
        with open(notes, "w") as file:
            file.write("of somebody's\n")
        for environment, words, says in (
            ({"SLUICE_BOGUSVAR": "1"}, ["--bogus"], "sluice up: unknown option --bogus"),
            ({"SLUICE_LOG_FORMAT": "json"}, ["--log", "nonsense="], "sluice up: log filter: '' is not a level"),
        ):
            place.env |= environment
            done = place.run("up", "--model", MODEL, "--port", "0", "--http-port", "0", "--state-file", notes, "--", *words)
            assert done.returncode == 2 and says in done.stderr.splitlines()[-1] and "{" not in done.stderr, done
            for name in environment:
                del place.env[name]
        for words, says in ((["--routing", "robin"], "expected affinity, deadline, least-loaded or round-robin"),
                            (["--rebalance", "5s"], "give --aggregated, too")):
            done = place.run("up", "--model", MODEL, "--port", "0", *words)
            assert done.returncode == 2 and says in done.stderr.splitlines()[-1], done
        assert os.path.exists(notes)  # it was never ours
        with open("/dev/full", "w") as full:
            done = subprocess.run([SLUICE, *UP, "--name", "untold", "--no-gateway", "--state-file", notes], stdout=full, stderr=subprocess.PIPE, text=True,
                                  env=place.env, timeout=90 * SLOW)
        assert done.returncode == 1 and "stopping the cluster" in done.stderr, done
        assert place.clusters() == {} and not os.path.exists(notes)  # now it was


def check_comparison(place, words):
    """One prompt under four recipes, on a terminal of 80 columns: two tables of two."""
    compared = ["compare", *words, "--prompt", document(3000), "--question", "What is it?", "-n", "60", "--ignore-eos", "--temperature", "1"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    recipes = ["full", "h2o,budget=0.2", "h2o,budget=0.3", "tova"]
    process = subprocess.Popen([SLUICE, *compared, *recipes], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=place.env)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # as a terminal ends
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert process.wait(60 * SLOW) == 0, (shown, process.stderr.read())
    lines = shown.decode().replace("\r\n", "\n").splitlines()
    assert len(lines) == 31 and max(map(len, lines)) <= 80 and lines[15] == "", lines
    for table, titles in ((lines[:15], r" full +h2o$"), (lines[16:], r" h2o,budget=0\.3 +tova$")):
        assert re.search(titles, table[0]) and re.search(r"^answer +\S.*\.\.\. .*\.\.\.$", table[1]), table
    jobs = [json.loads(line) for line in place.run("jobs", *words, "--json").stdout.splitlines()]
    seeds = {job["recipe"]: job["statistics"]["sampling"]["seed"] for job in jobs if job["state"] == "DONE"}
    assert set(seeds) == {"full", "h2o", "h2o,budget=0.3", "tova"} and len(set(seeds.values())) == 1, seeds  # the same random seed
    refused = place.run(*compared, "full", "nonsense")
    assert refused.returncode == 2 and "nonsense" in refused.stderr, refused
    assert len(place.run("jobs", *words, "--json").stdout.splitlines()) == len(jobs)  # none was answered before
    refused = place.run(*compared, "--recipe", "full", "h2o")
    assert refused.returncode == 2 and "are the arguments" in refused.stderr, refused


def test_what_is_unknown_of_a_job_is_no_number():
    with here() as place:
        address, _ = place.up("jobs", "--no-gateway", "--kvstore", "0")
        words = ["--coordinator", address]
        prefill = next(one["pid"] for one in place.clusters()["jobs"]["processes"] if one["name"] == "prefill-0")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(document(6000))
            file.flush()
            os.kill(prefill, signal.SIGSTOP)  # the job ends at its deadline, before its prompt is read
            job = place.run("submit", *words, "--prompt-file", file.name, "--deadline", "2s")
            assert job.returncode == 0, job
            job = job.stdout.strip()
        assert place.run("watch", job, *words).returncode == 5
        os.kill(prefill, signal.SIGCONT)
        check_comparison(place, words)
        table = place.run("compare", job, *words).stdout
        assert "0.0x" not in table and " 0 ms" not in table, table
        assert re.search(r"smaller than f16 by +-$", table, re.M) and re.search(r"time to first token +-$", table, re.M), table


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
