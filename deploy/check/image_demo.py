#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
README's demo question, answered by a cluster whose processes all live in the image: deploy/check/image_demo.py ROOT.

ROOT is the folder that deploy/image/build.sh has made. Every process gets what a container runtime would give it, by mount namespaces
and chroot alone: ROOT bound read-only, a /proc, a /dev of its own with /dev/shm, the model read-only, user 65532 without a capability.
No shell is run inside, for there is none. Needs root.
"""
import ctypes
import os
import re
import select
import subprocess
import sys
import tempfile
import time

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
USER = 65532
CLONE_NEWNS, CLONE_NEWIPC = 0x20000, 0x8000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 38, 24
libc = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind, flags, data=""):
    checked(libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()), f"mount on {target}")


def bind_read_only(source, target):
    mount(source, target, "", MS_BIND)
    mount("", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def enter(root, model):
    """In a child that is about to become a program of the image."""
    os.umask(0o022)
    checked(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC), "unshare")
    mount("", "/", "", MS_REC | MS_PRIVATE)
    bind_read_only(root, root)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=512m")
    mount("tmpfs", f"{root}/models", "tmpfs", MS_NOSUID | MS_NODEV)
    os.mkdir(f"{root}/models/demo")
    bind_read_only(model, f"{root}/models/demo")
    os.chroot(root)
    os.chdir("/")
    for capability in range(64):  # those beyond the last are refused
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


class Jail:
    def __init__(self, root, model, log):
        self.root, self.model, self.log, self.running = os.path.realpath(root), model, log, []

    def popen(self, words, **more):
        # The path is looked up behind the chroot.
        return subprocess.Popen([f"/bin/{words[0]}", *words[1:]], stderr=self.log, preexec_fn=lambda: enter(self.root, self.model),
                                env={"PATH": "/bin", "UCX_MEM_EVENTS": "n"}, **more)

    def serve(self, *words):
        """Start a service; what its first line says: {"rpc": "127.0.0.1:41327", ...}."""
        process = self.popen(words, stdout=subprocess.PIPE)
        self.running.append((words[0], process))
        if not select.select([process.stdout], [], [], 60)[0]:
            raise AssertionError(f"{words[0]} is not ready within 60 s")
        line = process.stdout.readline().decode()
        if not line.startswith("ready "):
            raise AssertionError(f"{words[0]} did not start: {line!r}")
        self.look_at(words[0], process.pid)
        return dict(re.findall(r"(\w+)=(\S+)", line))

    def look_at(self, name, pid):
        with open(f"/proc/{pid}/status") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        assert status["Uid"].split() == [str(USER)] * 4 and status["Gid"].split() == [str(USER)] * 4, f"{name} runs as {status['Uid']}"
        for which in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[which], 16) == 0, f"{name} has {which} {status[which]}"
        assert status["NoNewPrivs"] == "1", f"{name} may gain privileges"
        with open(f"/proc/{pid}/mountinfo") as file:
            mounts = [line.split() for line in file]
        own_root = [mount for mount in mounts if mount[4] == "/"]
        assert own_root and "ro" in own_root[-1][5].split(","), f"{name} could write into its root"
        assert os.path.samestat(os.stat(f"/proc/{pid}/root/."), os.stat(self.root)), f"{name} has another root"

    def stop(self):
        """Ask all to end, the last started first; the exit codes."""
        codes = {}
        for name, process in reversed(self.running):
            process.terminate()
            try:
                codes[name] = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = f"killed: did not end ({process.wait()})"
            process.stdout.close()
        self.running.clear()
        return codes


def document():
    """20 kB of a licence, with a fact in the middle: as tools/demo.sh makes it."""
    with open("/usr/share/common-licenses/GPL-3") as file:
        text = " ".join(file.read().split())[:20000]
    return text[:10000] + " One of the special magic numbers for lantern is: 48213. " + text[10000:]


QUESTION = ("What is the special magic number for lantern mentioned in the provided text? The special magic number for lantern "
            "mentioned in the provided text is")


def ask(jail, coordinator):
    job = jail.popen(["sluice", "run", "--coordinator", coordinator, "--prompt", document(), "--question", QUESTION, "--stop", ".",
                      "--max-new", "16", "--recipe", "full,format=int8"], stdout=subprocess.PIPE)
    try:
        answer, _ = job.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        job.kill()
        raise AssertionError("the job is not answered within 120 s")
    assert job.returncode == 0, f"sluice run ended with {job.returncode}"
    assert "48213" in answer.decode(), f"the answer is {answer.decode()!r}"


def over_http(address):
    import urllib.request
    body = ('{"prompt": "One of the special magic numbers for lantern is: 48213. ' + QUESTION +
            '", "max_tokens": 8, "stop": ".", "temperature": 0}').encode()
    request = urllib.request.Request(f"http://{address}/v1/completions", body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as reply:
        text = reply.read().decode()
    assert "48213" in text, f"the gateway's answer is {text}"


def run(root, model=os.path.join(PROJECT, "models", "demo")):
    """Raises AssertionError or OSError with what is wrong."""
    with tempfile.TemporaryFile() as log:
        jail = Jail(root, model, log)
        try:
            coordinator = jail.serve("sluice-coordinator", "--listen", "127.0.0.1:0", "--model", "/models/demo")["rpc"]
            for role in ("prefill", "decode"):
                jail.serve(f"sluice-{role}", "--coordinator", coordinator, "--model", "/models/demo", "--arena", "64M")
            jail.serve("sluice-kvstore", "--coordinator", coordinator, "--arena", "64M")
            gateway = jail.serve("sluice-gateway", "--coordinator", coordinator, "--listen", "127.0.0.1:0")["http"]
            time.sleep(1)  # a job that comes before the first beat of a store does without it
            ask(jail, coordinator)
            over_http(gateway)
        except BaseException:
            jail.stop()
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-8000:])
            raise
        codes = jail.stop()
        assert all(code == 0 for code in codes.values()), f"exit codes {codes}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run(sys.argv[1])
    print("the demo question is answered from the image")
