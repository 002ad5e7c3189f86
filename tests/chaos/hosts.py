# SPDX-License-Identifier: Apache-2.0
"""
A cluster on two hosts, made of network namespaces where that is allowed (root, iproute2), else on this one: real processes with
certificates, that can be restarted with other options under their old name.

Host a has the coordinator, this process, a store and a worker of each role; host b the other workers. Between them is a link that
can be cut and made slow.
"""
import ctypes
import os
import random
import shutil
import socket
import subprocess
import sys

CLONE_NEWNET = 0x40000000
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "cluster"))
from two_hosts import BIN, HOSTS, NAMESPACES, Network, inside  # noqa: E402 (has no gRPC, which starts threads)


class OneHost:
    """One host, for machines without namespaces: there is no link, and so no faults of it."""
    address = {"a": "127.0.0.1", "b": "127.0.0.1"}
    has_link = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def command(self, _host, words):
        return words


class TwoHosts(Network):
    """This thread, and all that it starts from here on, is on host a."""
    address = HOSTS
    has_link = True

    def __enter__(self):
        super().__enter__()
        self.root = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._enter(f"/run/netns/{NAMESPACES['a']}")
        return self

    def _enter(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(path, os.O_RDONLY)
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")
        os.close(fd)

    def __exit__(self, *rest):
        self._enter(f"/proc/self/fd/{self.root}")
        os.close(self.root)
        super().__exit__(*rest)

    def command(self, host, words):
        return inside("b", words) if host == "b" else words

    def cut(self):
        subprocess.run(["ip", "-n", NAMESPACES["b"], "link", "set", "sl-b", "down"], check=True)

    def heal(self):
        subprocess.run(["ip", "-n", NAMESPACES["b"], "link", "set", "sl-b", "up"], check=True)
        for host in HOSTS:
            subprocess.run(["tc", "-n", NAMESPACES[host], "qdisc", "del", "dev", f"sl-{host}", "root"], check=False,
                           stderr=subprocess.DEVNULL)

    def slow(self, gbit):
        self.shape(gbit)


def choose():
    """Two hosts, if this machine lets us make them."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc") or not shutil.which("unshare"):
        return OneHost()
    name = f"sluice-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return TwoHosts() if tried.returncode == 0 else OneHost()


def garbage(address, rng):
    """Sends to a port what a stranger may send: nothing, noise, or the beginning of a protocol."""
    host, port = address.rsplit(":", 1)
    beginnings = [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SLnk"]
    try:
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(rng.choice(beginnings) + rng.randbytes(rng.choice([0, 1, 16, 100, 5000])))
            if rng.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0.2)
            connection.recv(100)
    except OSError:
        pass  # refused, cut, or not answered: as it should be


def seeds(seed):
    """A generator for each purpose, so that what one of them draws does not change the others."""
    return lambda purpose: random.Random(f"{seed}/{purpose}")
