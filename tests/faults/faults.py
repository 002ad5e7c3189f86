#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Faults one by one: faults.py [--every N] [--only ROLE] [--kind KIND]

A job is run again and again, and each time another single call of one process fails: the first allocation of the coordinator, the
second, ...; then those of the other processes; then their sends and receives. Each job must end well, with the tokens of one
without faults, or with an error that says so; the process lives, and holds nothing; and the same job is right the next time.
"""
import argparse
import mmap
import os
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cluster"))
from harness import SLOW, Cluster, document, inference, question, tokens  # noqa: E402
import grpc  # noqa: E402
from shallow import shallow_model  # noqa: E402

KINDS = ["memory", "socket"]
RECIPES = ["full", "h2o,budget=0.5", "tailorkv-near"]
ROLES = ["coordinator", "prefill", "decode", "kvstore"]
ALLOWED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}


class Control:
    """The struct control that tests/faults/wrap.c maps, too."""

    def __init__(self, path):
        with open(path, "wb") as file:
            file.write(bytes(8 * (2 * len(KINDS) + 1)))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.path = path

    def _get(self, place):
        return struct.unpack_from("<q", self.memory, 8 * place)[0]

    def arm(self, kind, n):
        """The n-th call from now fails; 0: none."""
        struct.pack_into("<q", self.memory, 8 * KINDS.index(kind), n)

    def calls(self, kind):
        return self._get(len(KINDS) + KINDS.index(kind))

    def failed(self):
        return self._get(2 * len(KINDS))


class FaultyCluster(Cluster):
    def __init__(self, folder, **arguments):
        self.folder, self.controls = folder, {}
        super().__init__(model=shallow_model(4), **arguments)

    def _start(self, name, args, env=None):
        role = name.split("-")[0]
        self.controls[role] = Control(os.path.join(self.folder, role))
        return super()._start(name, args, {**(env or {}), "SLUICE_FAULTS": self.controls[role].path})


class Faults:
    def __init__(self, cluster):
        self.cluster, self.n_jobs, self.outcomes, self.wrong = cluster, 0, {}, []

    def job(self, recipe):
        """Returns a job with a prompt that no worker has read before."""
        self.n_jobs += 1
        return inference.GenerateRequest(text=document(900, value=str(10000 + self.n_jobs), seed=self.n_jobs % 40) + question(),
                                         recipe=recipe, max_new_tokens=4, ignore_eos=True, deadline_ms=int(20000 * SLOW))

    def run(self, job):
        """Tokens, or the code and the words of the error. Where a store owed answers, and decode did without, which the statistics
        say, tokens may be others: None."""
        try:
            events = list(self.cluster.generate(job, 30))
            return [None] if events[-1].finished.statistics.retrieval.fallbacks > 0 else tokens(events)
        except grpc.RpcError as error:
            return error.code(), error.details()

    def settle(self):
        self.cluster.wait_ready(30)
        self.cluster.assert_clean(30)

    def one(self, role, kind, recipe, n):
        control, job = self.cluster.controls[role], self.job(recipe)
        what = f"{kind} call {n} of {role} under {recipe}"
        control.arm(kind, n)
        first = self.run(job)
        control.arm(kind, 0)
        outcome = "without some answers" if first == [None] else "right" if isinstance(first, list) else first[0].name
        try:
            self.settle()
        except AssertionError as error:
            self.wrong.append(f"{what} ({outcome}): {error}")
        for name, process in self.cluster.processes.items():
            if process.popen.poll() is not None:
                raise AssertionError(f"{what}: {name} has died: {process.errors()[-1500:]}")
        again = self.run(job)
        if not isinstance(again, list):
            self.wrong.append(f"{what} ({outcome}): the next time {again}")
        elif isinstance(first, list) and first != again and [None] not in (first, again):
            self.wrong.append(f"{what}: tokens {first}, and without the fault {again}")
        elif not isinstance(first, list) and first[0] not in ALLOWED:
            self.wrong.append(f"{what}: {first}")
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def calls_of_a_job(self, role, kind, recipe):
        control = self.cluster.controls[role]
        before = control.calls(kind)
        result = self.run(self.job(recipe))
        assert isinstance(result, list), result
        time.sleep(0.1)
        return control.calls(kind) - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th call (1: all)")
    parser.add_argument("--only", choices=ROLES, help="faults of this process alone")
    parser.add_argument("--kind", choices=KINDS, help="run faults of this kind alone")
    options = parser.parse_args()
    began, wrong, n_faults = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory(prefix="sluice-faults-") as folder, FaultyCluster(folder, transport="tcp") as cluster:
        faults = Faults(cluster)
        for recipe in RECIPES:
            for _ in range(2):  # connections are made once
                assert isinstance(faults.run(faults.job(recipe)), list)
            for role in ROLES:
                for kind in KINDS:
                    if (options.only and role != options.only) or (options.kind and kind != options.kind):
                        continue
                    n_calls, failed = faults.calls_of_a_job(role, kind, recipe), cluster.controls[role].failed()
                    for n in range(1 + (n_faults % options.every), n_calls + 1, options.every):
                        faults.one(role, kind, recipe, n)
                        n_faults += 1
                    print(f"faults: {recipe}: {role}: {n_calls} {kind} calls a job, {cluster.controls[role].failed() - failed} made to fail",
                          flush=True)
        wrong = faults.wrong
    print(f"faults: {n_faults} in {time.monotonic() - began:.0f} s: {faults.outcomes}", flush=True)
    for text in wrong:
        print(f"faults: WRONG: {text}", flush=True)
    failed = sum(control.failed() for control in cluster.controls.values())
    return 1 if wrong or failed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
