#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns of conversations whose worker or store was lost or restarted, and what is left of conversations afterwards."""
import signal

from harness import Cluster, State, cluster_pb, endless, eventually, inference, run_tests, store_stats

BEGIN = "lantern " * 30


def turn(text, name="one", **fields):
    fields = {"recipe": "full", "max_new_tokens": 4, "ignore_eos": True, **fields}
    return inference.GenerateRequest(text=text, conversation=inference.Conversation(id=name, keep_ms=60000), **fields)


def end(cluster, name="one"):
    cluster._call("sluice.v1.Inference.EndConversation", inference.ConversationRequest(id=name))


def kept(cluster):
    return sum(worker.load.leases for worker in cluster.workers().workers if worker.info.role == cluster_pb.DECODE and
               worker.state != cluster_pb.LOST)


def said_of(events):
    return " ".join(e.state.detail for e in events if e.HasField("state"))


def n_read(cluster):
    return cluster._call("sluice.v1.Inference.List", inference.ListRequest()).totals.read_tokens


def test_a_worker_without_room_is_not_waited_for():
    with Cluster(decode=1, worker_args={"decode": ["--max-jobs", "1"]}) as cluster:
        first, _ = cluster.answer(turn(BEGIN))
        long = cluster.submit(endless())
        eventually(lambda: cluster.get(long).n_output_tokens > 0, 20, "the only worker is busy")
        cluster.start_worker("decode-1")
        cluster.wait_ready()
        after, events = cluster.answer(turn(BEGIN + first.text + " again"))
        assert after.status_code == 0 and "has no room now" in said_of(events) and "from its store" in said_of(events), said_of(events)
        assert after.statistics.n_reused_tokens == first.statistics.n_prompt_tokens + 3, after
        cluster.cancel(long)
        end(cluster)


def test_what_a_second_reading_kept_serves_later_turns():
    recipe = "kvzip,budget=0.5,chunk=64"
    with Cluster() as cluster:
        first, events = cluster.answer(turn(BEGIN, recipe=recipe))
        n_tokens = first.statistics.n_prompt_tokens
        assert 0.4 * n_tokens < first.statistics.slots_per_head < 0.6 * n_tokens, first.statistics
        totals = [event.prefill.tokens_total for event in events if event.HasField("prefill")]
        assert totals and all(total == 2 * (n_tokens - 1) - 4 for total in totals), totals  # sinks are not repeated
        second, _ = cluster.answer(turn(BEGIN + first.text + " more", recipe=recipe))
        assert second.status_code == 0 and second.statistics.n_reused_tokens == n_tokens + 3, second
        end(cluster)


def test_a_store_that_stands_still_costs_reading_alone():
    with Cluster(decode=2) as cluster:
        first, _ = cluster.answer(turn(BEGIN))
        cluster.kill("kvstore-0", signal.SIGSTOP)
        cluster.kill(cluster.list()[0].decode_worker)
        before = n_read(cluster)
        after, events = cluster.answer(turn(BEGIN + first.text + " again"))
        assert after.status_code == 0 and after.statistics.n_reused_tokens == 0, (after, said_of(events))
        assert n_read(cluster) - before <= after.statistics.n_prompt_tokens, after
        cluster.kill("kvstore-0", signal.SIGCONT)
        end(cluster)


def test_what_nobody_comes_back_for_is_released():
    with Cluster(decode=2) as cluster:
        first, _ = cluster.answer(turn(BEGIN))
        cluster.answer(turn(BEGIN + first.text + " more", recipe="full,format=int8"))  # another recipe: read anew
        cluster.answer(turn("something else"))
        running = cluster.submit(turn(BEGIN, "two", max_new_tokens=400))
        eventually(lambda: cluster.get(running).n_output_tokens > 0, 20, "a turn runs")
        end(cluster, "two")
        eventually(lambda: cluster.get(running).state == State.DONE, 60, "it has ended")
        eventually(lambda: kept(cluster) == 1, 10, "the last session of the first conversation is all that is kept")
        end(cluster)
        eventually(lambda: kept(cluster) == 0, 10, "nothing is kept of what was ended")


def test_behind_a_stop_string_nothing_is_kept():
    with Cluster() as cluster:
        free, _ = cluster.answer(turn(BEGIN, "free", max_new_tokens=16))
        end(cluster, "free")
        first, _ = cluster.answer(turn(BEGIN))
        stop = free.text[-3:-1]
        second, _ = cluster.answer(turn(BEGIN, "stopped", max_new_tokens=16, stop=[stop]))
        assert second.reason == inference.Finished.STOP_STRING and stop not in second.text, (free, second)
        after, _ = cluster.answer(turn(BEGIN + second.text + " more", "stopped"))
        fresh, _ = cluster.answer(inference.GenerateRequest(text=BEGIN + second.text + " more", recipe="full", max_new_tokens=4,
                                                            ignore_eos=True))
        assert (after.text, after.statistics.n_prompt_tokens) == (fresh.text, fresh.statistics.n_prompt_tokens), (after, fresh)
        end(cluster)
        end(cluster, "stopped")


def stored(cluster):
    return store_stats(cluster.processes["kvstore-0"].address)


def test_copies_go_with_their_turns():
    with Cluster(decode=2) as cluster:
        def copies(n, n_forgotten):
            eventually(lambda: (stored(cluster).capsules, stored(cluster).forgotten) == (n_prompts + n, n_forgotten), 20,
                       f"{n} copies of the conversation, and {n_forgotten} that went: {stored(cluster)}")
        text, said = BEGIN, []
        for number in range(4):
            asked, n_prompts = text, 1  # what prefill has stored of the first prompt stays
            answer, events = cluster.answer(turn(asked))
            said.append(answer)
            text = asked + answer.text + " more"
            copies(min(number + 1, 2), max(number - 1, 0))
        assert all(later.statistics.n_reused_tokens == before.statistics.n_prompt_tokens + 3 for before, later in zip(said, said[1:])), said
        # A client that has lost an answer repeats its request: the turn starts where the turn before ended, and the answer is the same.
        again, events = cluster.answer(turn(asked))
        assert "from its store" in said_of(events) and again.text == answer.text, (again, said_of(events))
        assert again.statistics.n_reused_tokens == answer.statistics.n_reused_tokens, (again, answer)
        copies(2, 2)
        # A turn that is stopped leaves no copy, and both that are there: the next one goes on from the last.
        running = cluster.submit(turn(text, max_new_tokens=6000))
        eventually(lambda: cluster.get(running).n_output_tokens > 0, 20, "a turn runs")
        cluster.cancel(running)
        eventually(lambda: cluster.get(running).state == State.CANCELLED, 20, "it was stopped")
        after, events = cluster.answer(turn(text))
        assert "from its store" in said_of(events), said_of(events)
        assert after.statistics.n_reused_tokens == again.statistics.n_prompt_tokens + 3, (after, again)
        copies(2, 3)
        end(cluster)
        copies(0, 5)


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
