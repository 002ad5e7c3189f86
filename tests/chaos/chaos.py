#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Random faults under load: chaos.py [--time SECONDS] [--seed N] [--clients N]

A cluster of real processes with certificates, on two hosts where this machine lets us make them, is asked by several tenants, while its
processes are killed in turn, each of them at least once, stopped and started again with other options, single threads stand still, clocks jump, the link is cut and slowed,
connections are reset, the store's disk is full or fails, and strangers send garbage; ports are flooded, streams reset, requests held
open, heartbeats lie, and certificates are used in wrong roles (attacks.py). What must hold: every call ends by its deadline; tokens are those of one process without faults;
errors are of those that clients can act upon; after each kill every tenant's documents are answered as before; processes that were not killed live; and when the faults are over, the cluster serves, every gauge
is zero, and descriptors and memory are back. How long answers took is printed for each fault. The same seed draws the same faults in the same order; what they hit depends on the machine.
"""
import argparse
import contextlib
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
    parser.add_argument("--time", type=float, default=180, metavar="SECONDS", help="seconds of faults (180); each comes once, however long that takes")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of everything that is drawn (1)")
    parser.add_argument("--clients", type=int, default=6, metavar="N", help="at once, in three tenants (6)")
    parser.add_argument("--only", metavar="FAULT,...", help="only these faults")
    return parser.parse_args()


class Scene:
    """The cluster, two coordinators of it if there is an etcd, a gateway, and what is needed to hurt them."""

    def __init__(self, network, certificates, etcd, folder, counts):
        self.network, self.disk, self.counts = network, os.path.join(folder, "disk", "store"), counts
        self.to_kill, self.killed = [], {}  # the processes that are killed next, the last first; how often each was
        # worker -> its host
        self.places = {"kvstore-0": "a", "kvstore-1": "b", "prefill-0": "a", "prefill-1": "b", "decode-0": "b", "decode-1": "a"}
        self.coordinators = ["coordinator-0", "coordinator-1"] if etcd else ["coordinator"]
        self.bends = {name: bend.Bend(folder, name) for name in [*self.coordinators, *self.places]}
        common = {"prefill": 0, "decode": 0, "kvstore": 0, "certificates": certificates, "model": load.MODEL}
        args = ["--stall-after", f"{STALL_S}s", "--deadline", "60s", "--heartbeat", "500ms", "--request-memory", "64M",
                "--salt-file", os.path.join(folder, "salt")]
        if etcd:
            certificates.make("coordinator/coordinator")
            args += certificates.options("coordinator/coordinator")
            self.cluster = on_hosts(self, several.SeveralCoordinators)(etcd, host=network.address["a"], coordinator_args=args, **common)
        else:  # its restarts are at the same port
            self.cluster = on_hosts(self, harness.Cluster)(listen=f"{network.address['a']}:{harness.free_port()}",
                                                           coordinator_args=[*args, "--state", os.path.join(folder, "state")], **common)
        for name in self.places:
            self.start(name)
        self.cluster.wait_ready(60)
        self.baseline = {}
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("".join(gateways.key_line(f"sk-{tenant}", f"tenant-{tenant}") for tenant in range(N_TENANTS)))
        certificates.make(*(f"client/tenant-{tenant}" for tenant in range(N_TENANTS)))
        self.gateway_words = ["--keys", keys, "--tenants", certificates.folder]
        self.gateway = gateways.Gateway(self.cluster, *self.gateway_words)

    def connect(self, who, number):
        """Connects a client to a coordinator, by turns to each: only one of them leads."""
        addresses = self.cluster.addresses_of_all().split(",")
        return self.cluster.certificates.channel(addresses[number % len(addresses)], who)

    def coordinator_to_kill(self, leads):
        if self.coordinators == ["coordinator"]:
            return "coordinator"
        leader = self.cluster.wait_for_leader(60)
        return leader if leads else next(name for name in self.coordinators if name != leader)

    def start_coordinator(self, name):
        if name != "coordinator":
            self.cluster.start_coordinator(name)
        else:
            self.cluster.coordinator = self.cluster._start("coordinator", self.cluster.coordinator.args)

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
        """Returns a process by its name; of several coordinators, `coordinator` is the one that leads."""
        if name == "coordinator" and name not in self.coordinators:
            name = self.cluster.wait_for_leader(60)
        return self.cluster.processes[name]

    def alive(self):
        return [name for name in self.places if self.process(name).popen.poll() is None]

    def bury_and_start(self, name, rng, after_s):
        time.sleep(after_s)
        self.process(name).popen.wait(30)
        (self.start_coordinator if name in self.coordinators else lambda name: self.start(name, rng))(name)

    def kill_gateway(self, after_s):
        """Kills it, and starts it at the same address."""
        killed = self.gateway
        killed.popen.kill()
        killed.popen.wait(30)
        time.sleep(after_s)
        os.close(killed.log)
        os.remove(killed.log_path)
        self.gateway = gateways.Gateway(self.cluster, *self.gateway_words, listen=f"{killed.host}:{killed.port}")

    def note_descriptors(self):
        return {name: len(os.listdir(f"/proc/{p.popen.pid}/fd")) for name, p in self.cluster.processes.items()}

    def own_kib(self):
        """Returns the memory of each process that it shares with no other."""
        found = {}
        for name, p in self.cluster.processes.items():
            with open(f"/proc/{p.popen.pid}/smaps_rollup") as file:
                found[name] = next(int(line.split()[1]) for line in file if line.startswith("Anonymous:"))
        return found


def on_hosts(scene, kind):
    """Returns a kind of Cluster whose processes are on the scene's hosts, and bent."""
    class OnHosts(kind):
        def new_process(self, name, args, env):
            host = scene.places.get(name, "a")
            bent = {**stalls.ENVIRONMENT, **scene.bends[name].environment, "LD_PRELOAD": f"{stalls.FREEZE}:{bend.LIBRARY}"}
            return harness.Process(name, args, {**(env or {}), **bent}, lambda words: scene.network.command(host, words))

        def channel_to(self, name):  # of several coordinators
            if name not in self.channels:
                self.channels[name] = self.certificates.channel(self.addresses[name], "operator/me")
            return self.channels[name]

        def channel_of(self, who):
            if not hasattr(self, "names"):
                return super().channel_of(who)
            return self.certificates.channel(self.addresses[self.wait_for_leader(60)], who)
    return OnHosts


# ---- faults: each takes the scene and a generator, and leaves the cluster able to recover ------------------------------------

def everything(scene):
    """Returns what kill() kills, by name."""
    return [*sorted(scene.places), "gateway", "leader", *(["standby"] if len(scene.coordinators) > 1 else [])]


def kill(scene, rng):
    """Kills each process before one comes again, starts it again, and asks every document of every tenant."""
    scene.to_kill = scene.to_kill or rng.sample(everything(scene), len(everything(scene)))
    what = scene.to_kill.pop()
    pause_s = rng.random() * 2
    if what == "gateway":
        name = what
        scene.kill_gateway(pause_s)
    else:
        name = scene.coordinator_to_kill(what == "leader") if what in ("leader", "standby") else what
        scene.process(name).signal(signal.SIGKILL)
        scene.bury_and_start(name, rng, pause_s)
    scene.killed[what] = scene.killed.get(what, 0) + 1
    began = time.monotonic()
    n_right = sum(ask_documents(scene, tenant, f"after the kill of {name}") for tenant in range(N_TENANTS))
    return f"{name if name == what else f'{name}, the {what}'}; {n_right} documents are right {time.monotonic() - began:.1f} s later"


def ask_documents(scene, tenant, when):
    """Asks a tenant's documents until they are answered rightly; returns how many are. One that is not within a minute must be
    told as lost, by its name."""
    give_up, wrong = time.monotonic() + 60 * harness.SLOW, ["not asked"]
    while wrong and time.monotonic() < give_up:
        try:
            with scene.cluster.channel_of(f"client/tenant-{tenant}/{tenant}") as channel:
                wrong = load.check_documents(channel, n_stores=False)
        except load.grpc.RpcError as error:  # no coordinator yet
            wrong = [error.details()]
        if wrong:
            time.sleep(0.3)
    for text in wrong:
        scene.counts.violation(f"tenant {tenant}, {when}: {text}")
    return len(load.DOCUMENTS) - len(wrong)


def stop_and_continue(scene, rng):
    name, seconds = rng.choice(sorted(scene.bends)), rng.choice([0.3, 1, 3])
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


FAULTS = {fault.__name__: fault for fault in (kill, stop_and_continue, freeze_a_thread, cut_link, slow_link, strangers,
                                              fill_disk, fail_disk, reset_connections, jump_clock)}
OF_THE_LINK = {"cut_link", "slow_link"}


# ---- the end -----------------------------------------------------------------------------------------------------------------

def check_deaths(scene, counts):
    for name, process in scene.cluster.processes.items():
        if process.popen.poll() is not None and not process.killed:
            process.killed = True  # told once
            counts.violation(f"{name} has died by itself with {process.popen.returncode}:\n" + "\n".join(process.errors().splitlines()[-15:]))
    if scene.gateway.popen.poll() is not None:
        counts.violation(f"the gateway has died by itself with {scene.gateway.popen.returncode}:\n{scene.gateway.errors()[-1500:]}")


def check_gateway(scene, counts):
    """With the faults over, it answers about a document within a minute."""
    give_up, said = time.monotonic() + 60 * harness.SLOW, "not asked"
    while said and time.monotonic() < give_up:
        try:
            status, text = load.ask_over_http(scene.gateway, 0)
            said = "" if status == 200 and text == load.exact_text[0] else f"{status} {text}"
        except (OSError, ValueError, load.http.client.HTTPException) as error:
            said = repr(error)
        time.sleep(0.3 if said else 0)
    if said:
        counts.violation(f"the gateway, when the faults are over: {said}")


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
    check_gateway(scene, counts)
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


def run(options, network, folder, etcd):
    draw = hosts.seeds(options.seed)
    names = [f"client/tenant-{i % N_TENANTS}/{i}" for i in range(max(options.clients, N_TENANTS))]
    counts, stop = load.Counts(), threading.Event()
    certificates = harness.Certificates(os.path.join(folder, "certificates"), *names, *attacks.NAMES)
    scene = Scene(network, certificates, etcd, folder, counts)
    texts = load.prompts()
    for recipe in load.RECIPES:
        for text in texts:
            for turn in (text, load.next_turn(text)):
                harness.in_one_process(recipe, turn, load.N_TOKENS, load.MODEL)
    for name in names[:N_TENANTS]:
        with scene.cluster.channel_of(name) as channel:
            load.add_documents(channel)
    clients = [load.Client(i, draw(f"client {i}"), lambda number, who=who: scene.connect(who, number), texts, counts, stop)
               for i, who in enumerate(names)]
    clients += [load.HttpClient(tenant, scene, counts, stop) for tenant in range(N_TENANTS)]
    for client in clients:
        client.start()
    time.sleep(3)
    descriptors, scene.baseline = scene.note_descriptors(), scene.own_kib()
    rng, began = draw("faults"), time.monotonic()
    possible = [name for name in FAULTS if (network.has_link or name not in OF_THE_LINK) and
                (not options.only or name in options.only.split(","))]
    possible += ["kill"] * (len(everything(scene)) - 1) if "kill" in possible else []
    coming = rng.sample(possible, len(possible))
    within_first_round = True  # which ends however long that takes: each fault has come, and each process was killed
    while within_first_round or time.monotonic() - began < options.time:
        name = coming.pop()
        at = time.monotonic() - began
        said = FAULTS[name](scene, rng)
        print(f"chaos: {at:6.1f} s  {name}: {said}", flush=True)
        counts.fault(name, began + at)
        check_deaths(scene, counts)
        if not coming:  # each of them comes before one comes again
            coming, within_first_round = rng.sample(possible, len(possible)), False
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
    print(f"chaos: killed: {', '.join(f'{name} {n}' for name, n in sorted(scene.killed.items()))}", flush=True)
    scene.gateway.__exit__(None, None, None)
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
        global attacks, bend, gateways, harness, load, several, stalls
        import attacks  # noqa: E402
        import bend
        import harness
        import load
        import several
        import test_gateway as gateways
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
        if not several.ETCD:
            print("chaos: one coordinator: two agree in an etcd on which of them leads, and etcd is not installed", flush=True)
        try:
            with several.Etcd() if several.ETCD else contextlib.nullcontext() as etcd:
                return run(options, network, folder, etcd)
        finally:
            if mounted:
                os.system(f"umount -l {disk}")


if __name__ == "__main__":
    sys.exit(main())
