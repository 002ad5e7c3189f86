#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
The leader is killed, or stands still, or etcd does, in the middle of an answer, round after round: no token comes twice and none is
another. Prints how long a client is without success, from the blow to the next token.

    failover_rounds.py --rounds 50
"""
import argparse
import random
import signal
import time

from harness import document, question
from several import Answer, Etcd, SeveralCoordinators

OPTIONS = ("--max-new-tokens", "700", "--ignore-eos", "--temperature", "0.9", "--seed", "11")


def strike(how, cluster, etcd):
    """Returns what undoes it."""
    leader = cluster.wait_for_leader()
    if how == "etcd stops":
        etcd.signal(signal.SIGSTOP)
        time.sleep(4)
        return lambda: etcd.signal(signal.SIGCONT)
    number = signal.SIGKILL if how == "leader killed" else signal.SIGSTOP
    process = cluster.processes[leader]
    cluster.kill(leader, number)
    if number == signal.SIGKILL:
        process.popen.wait()
        return lambda: cluster.start_coordinator(leader)
    return lambda: process.signal(signal.SIGCONT)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    prompt = document(3000) + question()
    gaps = {}
    with Etcd() as etcd, SeveralCoordinators(etcd, n=3) as cluster:
        wanted = Answer(cluster, prompt, *OPTIONS)
        wanted.end()
        for i in range(rounds):
            how = random.choice(["leader killed", "leader stops", "etcd stops"])
            answer = Answer(cluster, prompt, *OPTIONS)
            answer.wait_for_tokens(random.randrange(10, 200))
            began = time.monotonic()
            undo = strike(how, cluster, etcd)
            if how == "etcd stops":
                undo()
            answer.end()
            assert answer.tokens() == wanted.tokens() and answer.text() == wanted.text(), how
            gap = max((b - a for a, b in zip(answer.times, answer.times[1:]) if b > began), default=0)
            gaps.setdefault(how, []).append(gap)
            if how != "etcd stops":
                undo()
            cluster.wait_for_leader()
            print(f"round {i + 1}: {how}, {gap:.2f} s", flush=True)
    for how, seconds in [*gaps.items(), ("all", [s for each in gaps.values() for s in each])]:
        seconds = sorted(seconds)
        print(f"{how}: n {len(seconds)}, median {seconds[len(seconds) // 2]:.2f} s, p99 {seconds[int(0.99 * (len(seconds) - 1))]:.2f} s, "
              f"longest {seconds[-1]:.2f} s")


if __name__ == "__main__":
    main()
