# SPDX-License-Identifier: Apache-2.0
"""
Runs a process as a container runtime does, by mount namespaces, an overlay and chroot alone. The process gets the image's root, read-only,
with mounts of its own; a /proc, a /dev/shm, a /tmp; user 65532 without a capability; a memory limit where control groups can be written.
The image has no shell, so none is run. Needs root.
"""
import ctypes
import os
import re
import select
import subprocess
import tempfile

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


def enter(root, scratch, mounts, group):
    """In a child that is about to become a program of the image. mounts: {path: folder or file that is bound there read-only, or None
    for an empty one that is the user's}. scratch: an empty folder, on which the root is put together."""
    os.umask(0o022)
    if group:
        with open(os.path.join(group, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
    checked(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC), "unshare")
    mount("", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV)
    upper, work, merged = (os.path.join(scratch, name) for name in ("upper", "work", "merged"))
    for folder in (upper, work, merged):
        os.mkdir(folder)
    mount("overlay", merged, "overlay", MS_NOSUID, f"lowerdir={root},upperdir={upper},workdir={work}")
    for path, source in mounts.items():
        target = merged + path
        if source and os.path.isfile(source):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "a").close()
        else:
            os.makedirs(target, exist_ok=True)
    # A container sees its own group as the root of the hierarchy.
    seen = merged + ("/sys/fs/cgroup" if group and not group.startswith("/sys/fs/cgroup/memory/") else "/sys/fs/cgroup/memory")
    os.makedirs(seen, exist_ok=True)
    mount("", merged, "", MS_REMOUNT | MS_RDONLY | MS_NOSUID)
    if group:
        mount(group, seen, "", MS_BIND)
        mount("", seen, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)
    mount("proc", f"{merged}/proc", "proc", MS_NOSUID | MS_NODEV)
    mount("tmpfs", f"{merged}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=512m")
    for path, source in mounts.items():
        if source:
            mount(source, merged + path, "", MS_BIND)
            mount("", merged + path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)
        else: # as the kubelet leaves it for fsGroup
            mount("tmpfs", merged + path, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=2770,gid={USER}")
    os.chroot(merged)
    os.chdir("/")
    for capability in range(64):  # those beyond the last are refused
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([USER])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def memory_group(name, limit_bytes):
    """A control group with a limit, of version 2 or 1; None: none can be made here."""
    for parent, file in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        group = os.path.join(parent, name)
        if not os.path.exists(os.path.join(parent, "cgroup.procs")):  # not the root of a hierarchy
            continue
        try:
            os.mkdir(group)
        except OSError:
            continue
        try:
            with open(os.path.join(group, file), "r+") as limit:
                limit.write(str(limit_bytes))
            return group
        except OSError:
            os.rmdir(group)
    return None


class Jail:
    """Processes of one image. Left as a context, all that still runs is asked to end, and must."""

    def __init__(self, root):
        self.root, self.running, self.groups = os.path.realpath(root), {}, []
        self.folder = tempfile.mkdtemp(prefix="sluice-jail-")
        self.log = tempfile.TemporaryFile()

    def popen(self, words, mounts=None, environment=None, limit_bytes=None, **more):
        scratch = tempfile.mkdtemp(dir=self.folder)
        group = memory_group(os.path.basename(self.folder) + f"-{len(self.groups)}", limit_bytes) if limit_bytes else None
        if group:
            self.groups.append(group)
        # The path is looked up behind the chroot.
        return subprocess.Popen(words, stderr=self.log, preexec_fn=lambda: enter(self.root, scratch, mounts or {}, group),
                                env={"PATH": "/bin", "UCX_MEM_EVENTS": "n", **(environment or {})}, **more)

    def serve(self, name, words, **more):
        """Start a service; what its first line says: {"rpc": "127.0.0.1:41327", ...}."""
        process = self.popen(words, stdout=subprocess.PIPE, **more)
        self.running[name] = process
        if not select.select([process.stdout], [], [], 60)[0]:
            raise AssertionError(f"{name} is not ready within 60 s")
        line = process.stdout.readline().decode()
        if not line.startswith("ready "):
            raise AssertionError(f"{name} did not start: {line!r}")
        look_at(name, process.pid)
        return dict(re.findall(r"(\w+)=(\S+)", line))

    def begin(self, name, words, **more):
        """Start a service that does not say when it is ready."""
        self.running[name] = self.popen(words, stdout=subprocess.PIPE, **more)

    def stop(self, name, timeout=60):
        """The exit code; a word about it where there is none."""
        process = self.running.pop(name)
        process.terminate()
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"killed: did not end within {timeout} s"
        finally:
            process.stdout.close()

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        codes = {name: self.stop(name) for name in reversed(list(self.running))}  # the last started first
        for group in self.groups:
            os.rmdir(group)
        subprocess.run(["rm", "-rf", self.folder], check=True)
        if kind is None:
            wrong = {name: code for name, code in codes.items() if code not in (0, -15)}  # -15: who does not catch it
            assert not wrong, f"exit codes {wrong}\n{self.said()[-4000:]}"


def look_at(name, pid):
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    assert status["Uid"].split() == [str(USER)] * 4 and status["Gid"].split() == [str(USER)] * 4, f"{name} runs as {status['Uid']}"
    for which in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[which], 16) == 0, f"{name} has {which} {status[which]}"
    assert status["NoNewPrivs"] == "1", f"{name} may gain privileges"
    with open(f"/proc/{pid}/mountinfo") as file:
        own_root = [mount for mount in (line.split() for line in file) if mount[4] == "/"]
    assert own_root and "ro" in own_root[-1][5].split(","), f"{name} could write into its root"
    assert not os.path.exists(f"/proc/{pid}/root/bin/sh"), f"{name} sees a shell"
