# SPDX-License-Identifier: Apache-2.0
"""
A cluster of several coordinators, and the etcd in which they agree on who leads: real processes, all of them. And clients that know all
coordinators: `sluice run`, whose output says what an answer was made of.
"""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness import BIN, MODEL, SLOW, Cluster, call, cluster_pb, connect, eventually, free_port, inference
import grpc

ETCD = shutil.which("etcd")


def listens(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


class Etcd:
    """n servers of one etcd, with certificates if there are any; leaving it ends them and removes what they kept."""

    def __init__(self, n=1, certificates=None):
        self.folder = tempfile.mkdtemp(prefix="sluice-etcd-")
        self.certificates = certificates
        if certificates:
            certificates.make("etcd/etcd")
        self.clients, self.peers = ([free_port() for _ in range(n)] for _ in range(2))
        self.processes = [None] * n
        for i in range(n):
            self.start(i)
        for port in self.clients:
            eventually(lambda p=port: listens(p), 20, "etcd listens")

    @property
    def servers(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.clients)

    def start(self, i):
        certificates, scheme, secured = self.certificates, "http", []
        if certificates:
            scheme = "https"
            for kind in ("", "peer-"):
                secured += [f"--{kind}cert-file", certificates.file("etcd/etcd", "pem"), f"--{kind}key-file",
                            certificates.file("etcd/etcd", "key"), f"--{kind}trusted-ca-file", f"{certificates.folder}/ca.pem",
                            f"--{kind}client-cert-auth"]
        peers = ",".join(f"e{k}={scheme}://127.0.0.1:{port}" for k, port in enumerate(self.peers))
        client, peer = f"{scheme}://127.0.0.1:{self.clients[i]}", f"{scheme}://127.0.0.1:{self.peers[i]}"
        with open(os.path.join(self.folder, f"e{i}.log"), "ab") as log:
            self.processes[i] = subprocess.Popen(
                [ETCD, "--name", f"e{i}", "--data-dir", os.path.join(self.folder, f"e{i}"), "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", peers, "--log-level", "error", *secured], stdout=log, stderr=log)

    def signal(self, number, which=None):
        for i in range(len(self.processes)) if which is None else which:
            self.processes[i].send_signal(number)
            if number == signal.SIGKILL:
                self.processes[i].wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for process in self.processes:
            if process and process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class SeveralCoordinators(Cluster):
    """A Cluster whose `coordinator` is the current leader. Workers and clients know all coordinators."""

    def __init__(self, etcd, n=2, args=(), host="127.0.0.1", **others):
        self.etcd, self.names = etcd, [f"coordinator-{i}" for i in range(n)]
        self.addresses = {name: f"{host}:{free_port()}" for name in self.names}
        self.coordinator_args = list(others.pop("coordinator_args", ()))
        self.channels = {}
        self.expected_model = others.get("model", MODEL)
        super().__init__(args=args, **others)

    def _start(self, name, args, env=None):
        if args[0] == "sluice-coordinator":  # the one that a Cluster starts: here they are several
            for each in self.names:
                self.start_coordinator(each)
            eventually(lambda: self.leader() is not None, 20, "somebody leads")
            return None
        return super()._start(name, args, env)

    def start_coordinator(self, name):
        args = ["sluice-coordinator", "--listen", self.addresses[name], "--model", self.expected_model, "--etcd",
                self.etcd.servers, "--heartbeat", "500ms", *self.coordinator_args]
        if name in self.channels:  # it may wait before it connects again
            self.channels.pop(name).close()
        return super()._start(name, args)

    def addresses_of_all(self):
        return ",".join(self.addresses.values())

    def channel_to(self, name):
        if name not in self.channels:
            self.channels[name] = connect(self.addresses[name], ("grpc.initial_reconnect_backoff_ms", 100),
                                          ("grpc.max_reconnect_backoff_ms", 300))
        return self.channels[name]

    def about(self, name, timeout=2):
        return call(self.channel_to(name), "sluice.v1.Inference.Model", inference.ModelRequest(), timeout)

    def leader(self):
        """Its name, or None."""
        for name in self.names:
            process = self.processes.get(name)
            if process is None or process.popen.poll() is not None:
                continue
            try:
                if not self.about(name, 0.3).standby:
                    return name
            except grpc.RpcError:
                pass
        return None

    def wait_for_leader(self, timeout=20, but=None):
        found = []

        def leads():
            found[:] = [self.leader()]
            return found[0] is not None and found[0] != but
        eventually(leads, timeout, "somebody leads")
        return found[0]

    @property
    def coordinator(self):
        name = self.leader() if hasattr(self, "names") else None
        return self.processes.get(name) if name else None

    @coordinator.setter
    def coordinator(self, _):
        pass

    @property
    def channel(self):
        return self.channel_to(self.wait_for_leader())

    @channel.setter
    def channel(self, _):
        pass

    def channel_of(self, who):
        return None

    def close_channels(self):
        for channel in self.channels.values():
            channel.close()

    def gauges(self):
        """Returns the gauges of all coordinators that run, also the jobs that each has admitted."""
        result = {}
        for name in self.names:
            if self.processes[name].popen.poll() is None:
                reply = call(self.channel_to(name), "sluice.v1.Cluster.Workers", cluster_pb.WorkersRequest(), 5)
                result.update({f"{name}.queued": reply.jobs_queued, f"{name}.running": reply.jobs_running,
                               f"{name}.admitted": reply.coordinator_leases})
        return {**super().gauges(), **result}


class Answer:
    """`sluice run` under way: its events as they come."""

    def __init__(self, cluster, prompt, *options):
        words = [os.path.join(BIN, "sluice"), "run", "--coordinator", cluster.addresses_of_all(), "--json", "--prompt-file", "-",
                 "--log", "info", *options]
        self.events, self.times = [], []
        self.popen = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.popen.stdin.write(prompt.encode())
        self.popen.stdin.close()
        self.said = b""
        self.threads = [threading.Thread(target=self._read, daemon=True), threading.Thread(target=self._read_errors, daemon=True)]
        for thread in self.threads:
            thread.start()

    def _read(self):
        for line in self.popen.stdout:
            self.times.append(time.monotonic())
            self.events.append(json.loads(line))

    def _read_errors(self):
        self.said = self.popen.stderr.read()

    def tokens(self):
        return [e["token"]["id"] for e in list(self.events) if "token" in e]

    def text(self):
        return "".join(e["token"].get("text", "") for e in list(self.events) if "token" in e)

    def wait_for_tokens(self, n, timeout=30):
        eventually(lambda: len(self.tokens()) >= n or self.popen.poll() is not None, timeout, f"{n} tokens", every=0.005)
        assert self.popen.poll() is None, f"ended before {n} tokens: {self.said.decode()}"

    def end(self, timeout=60):
        """Its events, of an answer that succeeds, with every token once and in order."""
        try:
            code = self.popen.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise
        for thread in self.threads:
            thread.join(10)
        assert code == 0, f"exit code {code}: {self.said.decode()}"
        indices = [int(e["token"].get("index", 0)) for e in self.events if "token" in e]
        assert indices == list(range(len(indices))), indices
        finished = self.events[-1]["finished"]
        assert int(finished["statistics"]["n_output_tokens"]) == len(indices), finished
        return self.events
