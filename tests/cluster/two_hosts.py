#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""When does compression pay? Two hosts, made of network namespaces with a veth pair between them, a link shaped to 1 and to
10 Gbit/s, and the same prompt under several recipes: time to first token, time per token, bytes.

    sudo tests/cluster/two_hosts.py                     # a table; some minutes
    sudo tests/cluster/two_hosts.py --json --tokens 16000 --rates 1,10

Host a has the coordinator, the prefill worker and the kvstore, host b the decode worker: so a capsule crosses the link, and
so does everything that decode asks of the store. Each host has a /dev/shm, an IPC namespace and a name of its own: shared
memory cannot be used, and the script checks that tcp was. The model is random, of the geometry asked for (--model takes a
folder): what is measured does not depend on weights. Needs root, iproute2, and tc's tbf. Both hosts share this machine's
processors.
"""
import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import random_folder

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tools"))
import script  # noqa: E402

BIN = os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin"))
HOSTS = {"a": "10.77.0.1", "b": "10.77.0.2"}
NAMESPACES = {host: f"sluice-{os.getpid()}-{host}" for host in HOSTS}  # two runs at once do not share hosts
RECIPES = ["full", "full,format=int4", "locret,budget=0.1,scope=stabilizers:128+tail:64,chunk=512", "tailorkv", "tailorkv-near,ahead=0",
           "tailorkv-near"]


def run(*command, check=True):
    return subprocess.run(command, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Network:
    """Two namespaces, joined; gone when left. Those of a run that was killed go when the next one begins."""

    def __enter__(self):
        for owner in set(re.findall(r"^sluice-(\d+)-[ab]\b", run("ip", "netns", "list").stdout, re.M)):
            if not os.path.exists(f"/proc/{owner}"):
                for host in HOSTS:
                    run("ip", "netns", "del", f"sluice-{owner}-{host}", check=False)
        for name in NAMESPACES.values():
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "sl-a", "netns", NAMESPACES["a"], "type", "veth", "peer", "name", "sl-b", "netns", NAMESPACES["b"])
        for host, address in HOSTS.items():
            run("ip", "-n", NAMESPACES[host], "addr", "add", f"{address}/24", "dev", f"sl-{host}")
            for device in (f"sl-{host}", "lo"):
                run("ip", "-n", NAMESPACES[host], "link", "set", device, "up")
        return self

    def shape(self, gbit):
        """In both directions; a bucket of a millisecond."""
        for host in HOSTS:
            burst = max(int(gbit * 1e9 / 8 / 1000), 65536)
            run("tc", "-n", NAMESPACES[host], "qdisc", "replace", "dev", f"sl-{host}", "root", "tbf", "rate", f"{gbit}gbit",
                "burst", str(burst), "latency", "50ms")

    def __exit__(self, *_):
        for name in NAMESPACES.values():
            run("ip", "netns", "del", name, check=False)


def inside(host, command):
    """`command` on a host: its network, its IPC, its name, its /dev/shm."""
    script = f'mount -t tmpfs -o size=90% sluice /dev/shm && hostname sluice-{host} && exec "$@"'
    return ["ip", "netns", "exec", NAMESPACES[host], "unshare", "--mount", "--ipc", "--uts", "sh", "-c", script, "sh", *command]


class Process:
    def __init__(self, name, host, command):
        self.name = name
        self.log = tempfile.TemporaryFile(mode="w+")
        self.popen = subprocess.Popen(inside(host, command), stdout=subprocess.PIPE, stderr=self.log, text=True,
                                      env={**os.environ, "UCX_MEM_EVENTS": "n"})
        line = []
        reader = threading.Thread(target=lambda: line.append(self.popen.stdout.readline()), daemon=True)
        reader.start()
        reader.join(60)
        match = re.search(r"ready rpc=(\S+)", line[0] if line else "")
        if not match:
            sys.exit(f"two_hosts: {name} did not start:\n{self.errors()}")
        self.address = match.group(1)

    def errors(self):
        self.log.seek(0)
        return self.log.read()[-4000:]

    def stop(self):
        self.popen.terminate()
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class Cluster:
    def __init__(self, model, arena):
        self.processes = []
        coordinator = self._start("coordinator", "a", ["--listen", f"{HOSTS['a']}:0", "--model", model, "--insecure"])
        self.coordinator = coordinator.address
        for role, host in (("prefill", "a"), ("kvstore", "a"), ("decode", "b")):
            args = ["--name", f"{role}-0", "--coordinator", self.coordinator, "--listen", f"{HOSTS[host]}:0", "--fabric-listen",
                    f"{HOSTS[host]}:0", "--insecure", "--arena", arena, "--log", "warn"]
            self._start(role, host, args + ([] if role == "kvstore" else ["--model", model]))

    def _start(self, role, host, args):
        self.processes.append(Process(role, host, [os.path.join(BIN, f"sluice-{role}"), *args]))
        return self.processes[-1]

    def job(self, recipe, prompt, n_new):
        command = inside("a", [os.path.join(BIN, "sluice"), "run", "--json", "--coordinator", self.coordinator, "--recipe", recipe,
                               "--prompt-file", prompt, "--question", "?", "--max-new-tokens", str(n_new), "--ignore-eos",
                               "--deadline", "20m"])
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        finished = [line["finished"] for line in lines if "finished" in line]
        if done.returncode != 0 or not finished:
            sys.exit(f"two_hosts: {recipe}: exit code {done.returncode}\n{done.stderr[-2000:]}\n" +
                     "\n".join(f"--- {p.name}\n{p.errors()}" for p in self.processes))
        return finished[0]["statistics"]

    def stop(self):
        for process in reversed(self.processes):
            process.stop()


def words(n_tokens, seed):
    """Text of about that many tokens of the demo model's tokenizer; another one for every seed, so that nothing is reused."""
    with open("/usr/share/common-licenses/GPL-3", encoding="utf-8") as file:
        vocabulary = file.read().split()
    pick = random.Random(seed)
    return " ".join(pick.choice(vocabulary) for _ in range(int(n_tokens / 2.1)))


def number(statistics_, *path):
    value = statistics_
    for name in path:
        value = (value or {}).get(name, 0)
    return float(value)


def measure(cluster, options, rate, recipe, folder):
    """Median over runs; the first of a recipe warms connections up and is not counted."""
    rows = []
    for i in range(options.runs + 1):
        prompt = os.path.join(folder, "prompt.txt")
        with open(prompt, "w", encoding="utf-8") as file:
            file.write(words(options.tokens if i else 300, f"{rate} {recipe} {i}"))
        began = time.monotonic()
        s = cluster.job(recipe, prompt, options.new_tokens)
        if i == 0:
            continue
        if "shm" in s.get("transport", ""):
            sys.exit(f"two_hosts: {recipe} went over {s['transport']}: the hosts are not apart")
        steps = max(number(s, "n_output_tokens") - 1, 1)
        rows.append({"tokens": number(s, "n_prompt_tokens"), "ttft_ms": number(s, "ttft_ms"), "tpot_ms": number(s, "tpot_ms"),
                     "ship_ms": number(s, "ship_ms"), "capsule_mib": number(s, "capsule_bytes") / 2**20,
                     "full_mib": number(s, "full_bytes") / 2**20,
                     "resident_mib": number(s, "decode_resident_bytes") / 2**20,
                     "kib_a_step": number(s, "retrieval", "bytes_received") / steps / 1024,
                     "fallbacks": number(s, "retrieval", "fallbacks"), "seconds": time.monotonic() - began})
    result = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    return {"rate_gbit": rate, "recipe": recipe, "runs": options.runs, **result}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometry", default="135m", choices=sorted(random_folder.GEOMETRIES), help="geometry of the random model")
    parser.add_argument("--model", help="a model folder instead")
    parser.add_argument("--tokens", type=int, default=8000, help="tokens of the prompt, about [8000]")
    parser.add_argument("--new-tokens", type=int, default=24, help="tokens of the answer [24]")
    parser.add_argument("--rates", default="1,10", help="rates of the link, Gbit/s [1,10]")
    parser.add_argument("--recipe", action="append", help="may be given several times [" + "; ".join(RECIPES) + "]")
    parser.add_argument("--runs", type=int, default=3, help="runs of each cell [3]")
    parser.add_argument("--arena", default="2G", help="memory for KV of each worker [2G]")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        script.stop("needs root, and ip and tc: apt-get install iproute2")
    script.needs_programs(BIN)
    with tempfile.TemporaryDirectory(prefix="sluice-hosts-") as folder, Network() as network:
        model = options.model or random_folder.make(options.geometry, os.path.join(folder, "model"))
        cluster = Cluster(os.path.abspath(model), options.arena)
        try:
            if not options.json:
                print(f"{'Gbit/s':>6}  {'recipe':58} {'TTFT ms':>9} {'of it ship':>10} {'ms/token':>9} {'capsule MiB':>11} "
                      f"{'resident MiB':>12} {'KiB/step':>9}")
            for rate in [float(r) for r in options.rates.split(",")]:
                network.shape(rate)
                for recipe in options.recipe or RECIPES:
                    row = measure(cluster, options, rate, recipe, folder)
                    print(json.dumps(row) if options.json else
                          f"{rate:6g}  {recipe:58} {row['ttft_ms']:9.0f} {row['ship_ms']:10.0f} {row['tpot_ms']:9.1f} "
                          f"{row['capsule_mib']:11.2f} {row['resident_mib']:12.2f} {row['kib_a_step']:9.1f}"
                          + (f"   {row['fallbacks']:.0f} fallbacks" if row["fallbacks"] else ""), flush=True)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
