#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how a tenant that floods the gateway affects another one: the other's time in line and to the first token, alone, beside a flood,
and beside a flood whose key has a limit of answers at once.

    tests/cluster/tenants_turns.py [--requests N] [--at-once N] [--flood N] [--answers N] [--max-jobs N] [--prompt BYTES]

In each of the three cases in turn, one tenant sends N requests, so many at once; the other has clients that never pause. Prints p50 and p99 of
the times that the cluster has measured of each job (`sluice` of its answer), and the ratio of the p99 to that of being alone. Prints also the
tenant's share of the jobs that ended meanwhile, which does not depend on how busy this machine is otherwise. A tenant that sends one request
after the other never waits while it is alone, and waits for one job slot beside a flood. A tenant with more requests than run at once has half
of the job slots.
"""
import argparse
import concurrent.futures
import contextlib
import os
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Cluster, certificates, document  # noqa: E402
from test_gateway import Gateway, key_line  # noqa: E402

ROUNDS = 5


class Flood:
    """Clients of one key that ask again as soon as they are answered, or refused."""

    def __init__(self, gateway, key, n, ask):
        self.stop, self.refused, self.answered = threading.Event(), 0, 0
        self.threads = [threading.Thread(target=self.run, args=(gateway, key, ask, i)) for i in range(n)]

    def run(self, gateway, key, ask, client):
        number = 0
        while not self.stop.is_set():
            status, _ = ask(gateway, key, 1000 + client * 1000 + number)
            number += 1
            if status == 200:
                self.answered += 1
            else:
                self.refused += 1
                self.stop.wait(1)  # as Retry-After says

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100, help="requests of each case")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--flood", type=int, default=16)
    parser.add_argument("--answers", type=int, default=2)
    parser.add_argument("--max-jobs", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()

    def ask(gateway, key, number):
        body = {"prompt": f"{number} " + document(options.prompt, seed=number % 50), "temperature": 0, "max_tokens": options.tokens, "ignore_eos": True}
        return gateway.post("/v1/completions", body, key)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-turns-"))
        made = stack.enter_context(certificates("client/quiet", "client/loud"))
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write(key_line("sk-quiet", "quiet") + key_line("sk-loud", "loud") + key_line("sk-bounded", "loud", f"answers={options.answers}"))
        cluster = stack.enter_context(Cluster(kvstore=0, certificates=made, args=["--arena", "128M"],
                                              coordinator_args=["--max-jobs", str(options.max_jobs)]))
        gateway = stack.enter_context(Gateway(cluster, "--keys", keys, "--tenants", made.folder))
        cases = {"alone": None, "beside a flood": "sk-loud", f"beside a flood, answers={options.answers}": "sk-bounded"}
        seen, answered = {case: [] for case in cases}, dict.fromkeys(cases, 0)
        number = 0
        for _ in range(ROUNDS):
            for case, key in cases.items():
                with Flood(gateway, key, options.flood, ask) if key else contextlib.nullcontext() as flood:
                    n = options.requests // ROUNDS
                    with concurrent.futures.ThreadPoolExecutor(options.at_once) as clients:
                        for status, reply in clients.map(lambda i: ask(gateway, "sk-quiet", i), range(number, number + n)):
                            assert status == 200, reply
                            seen[case].append(reply["sluice"])
                    number += n
                    answered[case] += flood.answered if flood else 0
                print(f"  {case}: the flood was refused {flood.refused if flood else 0} times", flush=True)
        print(f"{'':34}{'of all jobs':>13}{'in line p50':>14}{'p99':>12}{'of alone':>10}{'first token p50':>18}{'p99':>12}{'of alone':>10}")
        for case, figures in seen.items():
            line = f"{case:34}{100 * len(figures) / (len(figures) + answered[case]):11.0f} %"
            for name, width in (("queue_ms", 11), ("ttft_ms", 15)):
                values, alone = ([one[name] for one in which] for which in (figures, seen["alone"]))
                line += f"{share(values, 0.5):{width}.1f} ms{share(values, 0.99):9.1f} ms{share(values, 0.99) / share(alone, 0.99):10.2f}"
            print(line)


if __name__ == "__main__":
    main()
