#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Round after round, in the middle of an answer, the leader is killed or suspended, or etcd is suspended, or etcd loses its majority. No token
comes twice and none is wrong; every few rounds, the test checks that no lease is left. Prints how long a client waits after the fault: `gap`
of the answer that was being written, and `next` of a request that comes just then, to its first token. When etcd is away, that request comes
once no coordinator leads any more, and a second of its time is etcd's.

    failover_rounds.py --rounds 50
"""
import argparse
import random
import signal
import time

from harness import document, eventually, question
from several import Answer, Etcd, SeveralCoordinators

OPTIONS = ("--max-new-tokens", "700", "--ignore-eos", "--temperature", "0.9", "--seed", "11")
KINDS = ("leader killed", "leader stops", "etcd stops", "majority lost")
AWAY = 1  # seconds that etcd is away after no coordinator leads any more


def strike(how, cluster, etcd):
    """Causes the failure. Returns a function that undoes it."""
    leader = cluster.wait_for_leader()
    if how in ("etcd stops", "majority lost"):
        which = [0, 1, 2] if how == "etcd stops" else random.sample(range(3), 2)
        etcd.signal(signal.SIGSTOP, which)
        return lambda: etcd.signal(signal.SIGCONT, which)
    number = signal.SIGKILL if how == "leader killed" else signal.SIGSTOP
    process = cluster.processes[leader]
    cluster.kill(leader, number)
    if number == signal.SIGKILL:
        process.popen.wait()
        return lambda: cluster.start_coordinator(leader)
    return lambda: process.signal(signal.SIGCONT)


def play(how, cluster, etcd, prompt, wanted):
    """(gap, next) in seconds."""
    answer = Answer(cluster, prompt, *OPTIONS)
    answer.wait_for_tokens(random.randrange(10, 200))
    began = time.monotonic()
    undo = strike(how, cluster, etcd)
    if how in ("etcd stops", "majority lost"):
        eventually(lambda: cluster.leader() is None, 10, "nobody leads")
        asked = time.monotonic()
        following = Answer(cluster, prompt, *OPTIONS)
        time.sleep(AWAY)
        undo()
    else:
        asked = began
        following = Answer(cluster, prompt, *OPTIONS)
    for each in (answer, following):
        each.end(120)
        assert each.tokens() == wanted.tokens() and each.text() == wanted.text(), how
    if how not in ("etcd stops", "majority lost"):
        undo()
    first = next(t for t, event in zip(following.times, following.events) if "token" in event)
    return max((b - a for a, b in zip(answer.times, answer.times[1:]) if b > began), default=0), first - asked


def row(how, rounds):
    words = [f"| {how} | {len(rounds)}"]
    for i in (0, 1):
        seconds = sorted(each[i] for each in rounds)
        words.append(f"{seconds[len(seconds) // 2]:.2f} / {seconds[int(0.99 * (len(seconds) - 1))]:.2f} / {seconds[-1]:.2f}")
    return " | ".join(words) + " |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="seed of what is drawn")
    options = parser.parse_args()
    random.seed(options.seed)
    prompt = document(3000) + question()
    rounds = {how: [] for how in KINDS}
    with Etcd(3) as etcd, SeveralCoordinators(etcd, n=3) as cluster:
        wanted = Answer(cluster, prompt, *OPTIONS)
        wanted.end()
        for i in range(options.rounds):
            how = KINDS[i % len(KINDS)]
            rounds[how].append(play(how, cluster, etcd, prompt, wanted))
            cluster.wait_for_leader(60)
            if i % 5 == 4:
                cluster.assert_clean(30)
            print(f"round {i + 1}: {how}, gap {rounds[how][-1][0]:.2f} s, next {rounds[how][-1][1]:.2f} s", flush=True)
    print("| what happens | rounds | gap: median / p99 / longest, s | next: median / p99 / longest, s |\n|---|---|---|---|")
    for how, played in [*rounds.items(), ("all", [each for played in rounds.values() for each in played])]:
        if played:
            print(row(how, played))


if __name__ == "__main__":
    main()
