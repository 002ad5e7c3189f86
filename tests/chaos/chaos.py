#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Random faults under load: chaos.py [--time SECONDS] [--seed N] [--clients N]

A cluster of real processes with certificates, on two hosts where this machine lets us make them, is asked by several tenants, while its
processes are killed, stopped and started again with other options, single threads stand still, clocks jump, the link is cut and slowed,
connections are reset, the store's disk is full or fails, and strangers send garbage; ports are flooded, streams reset, requests held
open, heartbeats lie, and certificates are used in wrong roles (attacks.py). What must hold: every call ends by its deadline; tokens are those of one process without faults;
errors are of those that clients can act upon; every tenant's documents are there to the end; processes that were not killed live; and when the faults are over, the cluster serves, every gauge
is zero, and descriptors and memory are back. How long answers took is printed for each fault. The same seed draws the same faults in the same order; what they hit depends on the machine.
"""
import argparse
import os
import signal
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import script  # noqa: E402
import hosts  # noqa: E402 (before anything starts a thread: it changes what network they are in)

STALL_S = 4
N_TENANTS = 3
MOST_MORE_KIB = 96 << 10  # that a process may have more after the faults than before


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", type=float, default=180, metavar="SECONDS", help="of faults (180)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of everything that is drawn (1)")
    parser.add_argument("--clients", type=int, default=6, metavar="N", help="at once, in three tenants (6)")
    parser.add_argument("--only", metavar="FAULT,...", help="only these faults")
    return parser.parse_args()


class Scene:
    """The cluster, and what is needed to hurt it."""

    def __init__(self, network, certificates, disk, folder, counts):
        self.network, self.disk, self.counts = network, disk, counts
        # worker -> its host
        self.places = {"kvstore-0": "a", "kvstore-1": "b", "prefill-0": "a", "prefill-1": "b", "decode-0": "b", "decode-1": "a"}
        self.bends = {name: bend.Bend(folder, name) for name in ["coordinator", *self.places]}
        scene = self

        class OnHosts(harness.Cluster):
            def _start(self, name, args, env=None):
                host = scene.places.get(name, "a")
                bent = {**stalls.ENVIRONMENT, **scene.bends[name].environment, "LD_PRELOAD": f"{stalls.FREEZE}:{bend.LIBRARY}"}
                self.processes[name] = harness.Process(name, args, {**(env or {}), **bent},
                                                       lambda words: scene.network.command(host, words))
                self.log_paths.append(self.processes[name].log_path)
                return self.processes[name]

        self.cluster = OnHosts(prefill=0, decode=0, kvstore=0, certificates=certificates, model=load.MODEL,
                               listen=f"{network.address['a']}:{harness.free_port()}",  # its restarts are at the same port
                               coordinator_args=["--stall-after", f"{STALL_S}s", "--deadline", "60s", "--heartbeat", "500ms", "--request-memory", "64M",
                                                 "--state", os.path.join(folder, "state"), "--salt-file", os.path.join(folder, "salt")])
        for name in self.places:
            self.start(name)
        self.cluster.wait_ready(60)
        self.baseline = {}

    def start(self, name, rng=None):
        """With options of its own, if there is something to draw them by."""
        address = f"{self.network.address[self.places[name]]}:0"
        extra = ["--listen", address, "--fabric-listen", address, "--stall-after", f"{STALL_S}s"]
        if name == "kvstore-0":
            extra += ["--disk", self.disk, "--disk-bytes", "24M"]
        if rng:
            extra += ["--arena", rng.choice(["32M", "48M", "64M"]), "--lease", rng.choice(["2s", "3s", "5s"]),
                      "--transport", rng.choice(["auto", "auto", "tcp"])]
        self.cluster.start_worker(name, extra)

    def process(self, name):
        return self.cluster.processes[name]

    def alive(self):
        return [name for name in self.places if self.process(name).popen.poll() is None]

    def bury_and_start(self, name, rng, after_s):
        time.sleep(after_s)
        self.process(name).popen.wait(30)
        self.start(name, rng)

    def note_descriptors(self):
        return {name: len(os.listdir(f"/proc/{p.popen.pid}/fd")) for name, p in self.cluster.processes.items()}

    def own_kib(self):
        """Returns the memory of each process that it shares with no other."""
        found = {}
        for name, p in self.cluster.processes.items():
            with open(f"/proc/{p.popen.pid}/smaps_rollup") as file:
                found[name] = next(int(line.split()[1]) for line in file if line.startswith("Anonymous:"))
        return found


# ---- faults: each takes the scene and a generator, and leaves the cluster able to recover ------------------------------------

def kill(scene, rng):
    name = rng.choice(sorted(scene.places))
    scene.process(name).signal(signal.SIGKILL)
    scene.bury_and_start(name, rng, rng.random() * 2)
    return name


def stop_and_continue(scene, rng):
    name, seconds = rng.choice(sorted(scene.places) + ["coordinator"]), rng.choice([0.3, 1, 3])
    scene.process(name).signal(signal.SIGSTOP)
    time.sleep(seconds)
    scene.process(name).signal(signal.SIGCONT)
    return f"{name} for {seconds} s"


def freeze_a_thread(scene, rng):
    """For good: the worker must notice and end itself, and then it is started again."""
    name = rng.choice(["prefill-0", "prefill-1", "decode-0", "decode-1"])
    process = scene.process(name)
    process.killed = True  # it is to die
    stalls.freeze(process, "engine")
    time.sleep(1)
    give_up = time.monotonic() + 6 * STALL_S
    while process.popen.poll() is None and time.monotonic() < give_up:
        time.sleep(0.2)
    was = "ended itself" if process.popen.poll() is not None else "had nothing to do"
    if process.popen.poll() is None:  # without work a stall cannot be seen, and does no harm
        process.signal(signal.SIGKILL)
    scene.bury_and_start(name, rng, 0)
    return f"engine of {name}, which {was}"


def restart_coordinator(scene, rng):
    """At the same address, with what is in its folder."""
    cluster = scene.cluster
    cluster.coordinator.signal(signal.SIGKILL)
    cluster.coordinator.popen.wait(30)
    time.sleep(rng.random())
    args = list(cluster.coordinator.args)
    args[args.index("--listen") + 1] = cluster.coordinator.address
    cluster.coordinator = cluster._start("coordinator", args)
    return cluster.coordinator.address


def cut_link(scene, rng):
    seconds = rng.choice([0.5, 2, 5])
    scene.network.cut()
    time.sleep(seconds)
    scene.network.heal()
    return f"for {seconds} s"


def slow_link(scene, rng):
    gbit, seconds = rng.choice([0.01, 0.1]), rng.choice([1, 3])
    scene.network.slow(gbit)
    time.sleep(seconds)
    scene.network.heal()
    return f"to {gbit} Gbit/s for {seconds} s"


def strangers(scene, rng):
    addresses = []
    for name, process in scene.cluster.processes.items():
        addresses.append(process.address)
        if getattr(process, "fabric", None):
            addresses.append(process.fabric)
    n = 0
    until = time.monotonic() + 2
    while time.monotonic() < until:
        hosts.garbage(rng.choice(addresses), rng)
        n += 1
    return f"{n} of them"


def fill_disk(scene, rng):
    path, seconds = os.path.join(os.path.dirname(scene.disk), "ballast"), rng.choice([1, 3])
    try:
        with open(path, "wb") as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError:
        pass
    time.sleep(seconds)
    os.remove(path)
    return f"for {seconds} s"


def fail_disk(scene, rng):
    fails, seconds = rng.choice([5, 100, 1000]), rng.choice([1, 3])
    with scene.bends["kvstore-0"].bent("disk_fails", fails):
        time.sleep(seconds)
    return f"{fails} of 1000 calls for {seconds} s"


def reset_connections(scene, rng):
    name, resets, seconds = rng.choice(sorted(scene.bends)), rng.choice([20, 500, 10000]), rng.choice([1, 3])
    with scene.bends[name].bent("link_resets", resets):
        time.sleep(seconds)
    return f"of {name}, at {resets} of 100000 calls for {seconds} s"


def jump_clock(scene, rng):
    """Sets a clock forward or back for a while. Certificates are from today: a process with a clock of last week accepts no client."""
    name, later, seconds = rng.choice(sorted(scene.bends)), rng.choice([-604800, -5, 5, 3600]), rng.choice([1, 3])
    with scene.bends[name].bent("clock_s", later):
        time.sleep(seconds)
    return f"of {name} by {later} s for {seconds} s"


FAULTS = {fault.__name__: fault for fault in (kill, stop_and_continue, freeze_a_thread, restart_coordinator, cut_link, slow_link, strangers,
                                              fill_disk, fail_disk, reset_connections, jump_clock)}
OF_THE_LINK = {"cut_link", "slow_link"}


# ---- the end -----------------------------------------------------------------------------------------------------------------

def check_deaths(scene, counts):
    for name, process in scene.cluster.processes.items():
        if process.popen.poll() is not None and not process.killed:
            process.killed = True  # told once
            counts.violation(f"{name} has died by itself with {process.popen.returncode}:\n" + "\n".join(process.errors().splitlines()[-15:]))


def check_recovery(scene, counts, descriptors):
    """With the faults over: it serves, holds nothing, and has no more descriptors than it had."""
    cluster = scene.cluster
    try:
        cluster.wait_ready(60)
    except AssertionError as error:
        counts.violation(f"not ready when the faults are over: {error}\n{[(w.info.name, w.state) for w in cluster.workers().workers]}")
        return
    for recipe in load.RECIPES:
        asked = harness.inference.GenerateRequest(text=load.prompts()[1], recipe=recipe, max_new_tokens=load.N_TOKENS, ignore_eos=True)
        try:
            _, events = cluster.answer(asked, 60)
            if harness.tokens(events) != harness.in_one_process(recipe, asked.text, load.N_TOKENS, load.MODEL):
                counts.violation(f"{recipe}, when the faults are over: other tokens than one process")
        except Exception as error:
            counts.violation(f"{recipe}, when the faults are over: {error}")
    for tenant in range(N_TENANTS):
        with cluster.channel_of(f"client/tenant-{tenant}/{tenant}") as channel:
            give_up = time.monotonic() + 60
            while (wrong := load.check_documents(channel)) and time.monotonic() < give_up:
                time.sleep(1)
            for text in wrong:
                counts.violation(f"tenant {tenant}, when the faults are over: {text}")
    try:
        cluster.assert_clean(40)
    except AssertionError as error:
        counts.violation(str(error))
    for name, n in scene.note_descriptors().items():
        if n > descriptors[name] + 64:
            counts.violation(f"{name} has {n} descriptors open, and had {descriptors[name]}")
    for name, kib in scene.own_kib().items():
        if kib > scene.baseline[name] + MOST_MORE_KIB:
            counts.violation(f"{name} has {kib} KiB of its own, and had {scene.baseline[name]}")


def run(options, network, folder):
    draw = hosts.seeds(options.seed)
    names = [f"client/tenant-{i % N_TENANTS}/{i}" for i in range(max(options.clients, N_TENANTS))]
    counts, stop = load.Counts(), threading.Event()
    certificates = harness.Certificates(os.path.join(folder, "certificates"), *names, *attacks.NAMES)
    disk = os.path.join(folder, "disk")
    scene = Scene(network, certificates, os.path.join(disk, "store"), folder, counts)
    texts = load.prompts()
    for recipe in load.RECIPES:
        for text in texts:
            for turn in (text, load.next_turn(text)):
                harness.in_one_process(recipe, turn, load.N_TOKENS, load.MODEL)
    for name in names[:N_TENANTS]:
        with scene.cluster.channel_of(name) as channel:
            load.add_documents(channel)
    clients = [load.Client(i, draw(f"client {i}"), lambda who=who: scene.cluster.channel_of(who), texts, counts, stop)
               for i, who in enumerate(names)]
    for client in clients:
        client.start()
    time.sleep(3)
    descriptors, scene.baseline = scene.note_descriptors(), scene.own_kib()
    rng, began = draw("faults"), time.monotonic()
    possible = [name for name in FAULTS if (network.has_link or name not in OF_THE_LINK) and
                (not options.only or name in options.only.split(","))]
    coming = []
    while time.monotonic() - began < options.time:
        coming = coming or rng.sample(possible, len(possible))  # each of them before one comes again
        name = coming.pop()
        at = time.monotonic() - began
        said = FAULTS[name](scene, rng)
        print(f"chaos: {at:6.1f} s  {name}: {said}", flush=True)
        counts.fault(name, began + at)
        check_deaths(scene, counts)
        time.sleep(rng.random() * 3)
    stop.set()
    for client in clients:
        client.join(60 * harness.SLOW)
        if client.is_alive():
            counts.violation(f"{client.name} still waits for an answer, a minute after the last fault")
    check_recovery(scene, counts, descriptors)
    check_deaths(scene, counts)
    print(f"chaos: seed {options.seed}: {dict(sorted(counts.by_outcome.items()))}", flush=True)
    counts.print_latencies()
    codes = {name: process.stop() for name, process in list(scene.cluster.processes.items())[::-1] if not process.killed}
    for name, code in codes.items():
        if code != 0:
            counts.violation(f"{name}, asked to stop, ended with {code}")
    if counts.violations:
        print(scene.cluster.logs(60), file=sys.stderr)
        print(f"chaos: {len(counts.violations)} violations; again: tests/chaos/chaos.py --seed {options.seed} --time {options.time:g}",
              flush=True)
        scene.cluster.kill_all()
        return 1
    if counts.by_outcome.get("right", 0) < options.time / 4:
        print(f"chaos: only {counts.by_outcome.get('right', 0)} right answers: the faults leave no room for work", flush=True)
        return 1
    for path in scene.cluster.log_paths:
        os.remove(path)
    print("chaos: nothing but errors that clients can act upon", flush=True)
    return 0


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the cluster ends with us
    script.needs("grpc", "google.protobuf")
    script.needs_programs(hosts.BIN)
    with hosts.choose() as network, tempfile.TemporaryDirectory(prefix="sluice-chaos-") as folder:
        global attacks, bend, harness, load, stalls
        import attacks  # noqa: E402
        import bend
        import harness
        import load
        import test_stalls as stalls
        for library in (bend.LIBRARY, stalls.FREEZE):  # the loader starts a program without it, and then the fault does nothing
            if not os.path.exists(library):
                script.stop(f"there is no {library}: run `make build`")
        FAULTS.update((fault.__name__, fault) for fault in attacks.FAULTS)
        if not network.has_link:
            print("chaos: one host, and so no faults of the link: two want root, iproute2 and util-linux", flush=True)
        disk = os.path.join(folder, "disk")
        os.mkdir(disk)
        mounted = os.geteuid() == 0 and os.system(f"mount -t tmpfs -o size=32M sluice-chaos {disk}") == 0
        if not mounted:
            print("chaos: no disk of its own for the store, and so none that is full: it wants root", flush=True)
            del FAULTS["fill_disk"]
        try:
            return run(options, network, folder)
        finally:
            if mounted:
                os.system(f"umount -l {disk}")


if __name__ == "__main__":
    sys.exit(main())
