# SPDX-License-Identifier: Apache-2.0
"""
The same cases in a cluster: over shared memory and over TCP, alone and eight at once, read anew and resumed from the kvstore, whose
disk has every capsule as a file. What one process observes before is what they are held to, field by field.

A store gives a capsule back to whatever has the same fingerprint, so recipes that differ only in how decode finds what is
offloaded go into one cluster after the other ("rounds"): in each, the first answer of a case is read anew.
"""
import concurrent.futures
import glob
import os
import sys
import tempfile

import capsule
import cases
import one_process
from observations import digest_words, float_bits

os.environ["SLUICE_BIN"] = cases.BIN
sys.path.insert(0, os.path.join(cases.ROOT, "tests", "cluster"))
from harness import SLOW, Cluster, connect, eventually, inference, worker_pb  # noqa: E402
import grpc  # noqa: E402

N_TOGETHER = 48  # tokens: long enough that the first of eight still writes when the last begins
EIGHT = range(1, 9)
ORDERS = ("alone first", "together first")
# On a busy machine a store may need longer than decode waits for it, and decode does without: other bits, though nothing is wrong.
PATIENT = ["--retrieve-deadline", "20000ms", "--retrieve-lost", "20000ms"]


class Case:
    """A recipe at one chunk size on one tier."""

    def __init__(self, tier, recipe, chunk):
        self.tier, self.recipe, self.chunk = tier, recipe, chunk
        self.name = one_process.case_name(tier, recipe, chunk)
        self.command = f"SLUICE_BIN={cases.BIN} tests/bits/record.py --tier {tier} --only '{recipe.name}'"

    def request(self, text, n_tokens):
        return inference.GenerateRequest(text=text, recipe=self.recipe.at(self.chunk), max_new_tokens=n_tokens, ignore_eos=True,
                                         sampling=inference.Sampling(logprobs=20))


class JobFailed(Exception):
    pass


def answer(cluster, case, text, n_tokens):
    """(statistics, token events)."""
    try:
        finished, events = cluster.answer(case.request(text, n_tokens), timeout=300)
    except grpc.RpcError as error:
        raise JobFailed(f"refused: {error.details()}")
    written = [event for event in events if event.HasField("token")]
    if finished.status_code != 0 or len(written) != n_tokens:
        raise JobFailed(f"{len(written)} of {n_tokens} tokens, status {finished.status_code}: {finished.status_text}")
    if finished.statistics.retrieval.fallbacks != 0:
        raise JobFailed(f"{finished.statistics.retrieval.fallbacks} answers of the store did not come in time: other tokens, and rightly so")
    return finished.statistics, written


def question(case, text):
    """Put as `sluice run --question` puts it."""
    return f"{cases.prompt(case.tier)}\n{text}"


def fields_of(written):
    written = [event.token for event in written]
    return {"tokens": digest_words(token.id for token in written),
            "logprobs": digest_words(float_bits(token.logprob) for token in written),
            "top20": digest_words(f"{a.id}:{float_bits(a.logprob)}" for token in written for a in token.alternatives)}


def assert_reused(statistics, how):
    """That a job was read anew, or resumed in part or whole, as it should be: otherwise nothing would be compared."""
    reused, whole = statistics.n_reused_tokens, statistics.n_prompt_tokens - 1
    if not {"anew": reused == 0, "in part": 0 < reused < whole, "whole": reused == whole}[how]:
        raise JobFailed(f"{reused} of {whole} tokens were resumed; expected: {how}")


def at_once(answers):
    """The most sequences that were being written at one time."""
    edges = [edge for _, written in answers for edge in ((written[0].time_ms, 1), (written[-1].time_ms, -1))]
    now = most = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


class Series:
    """One transport, one order; a cluster a round."""

    def __init__(self, observations, transport, order, chunk):
        self.observations, self.transport, self.order = observations, transport, order
        self.chunk = chunk  # at which recipes are asked eight at once
        self.together = []  # of each batch of eight, how many were written at one time

    def observe(self, case, how, name, work):
        """Add what work() returns, or why there is nothing, to a case."""
        how = f"cluster over {self.transport}, {how}"
        try:
            self.observations.add(name, how, work(), case.command)
        except JobFailed as error:
            self.observations.fail(name, how, str(error), case.command)

    def long_prompt(self, cluster, case, reused):
        statistics, written = answer(cluster, case, question(case, cases.QUESTION), cases.N_TOKENS)
        assert_reused(statistics, reused)
        fields = fields_of(written)
        if reused == "anew":
            fields["counts"] = one_process.counts_of({name: getattr(statistics, name) for name in one_process.COUNTS})
        return fields

    def other_question(self, cluster, case):
        statistics, written = answer(cluster, case, question(case, cases.OTHER_QUESTION), cases.N_TOKENS)
        assert_reused(statistics, "in part")
        return fields_of(written)

    def eight(self, cluster, case, reused, together):
        one = lambda index: answer(cluster, case, cases.prompt(case.tier, index), N_TOGETHER)
        if together:
            with concurrent.futures.ThreadPoolExecutor(len(EIGHT)) as pool:
                answers = list(pool.map(one, EIGHT))
            self.together.append(at_once(answers))
        else:
            answers = [one(index) for index in EIGHT]
        for statistics, _ in answers:
            assert_reused(statistics, reused)
        every = [fields_of(written) for _, written in answers]
        return {name: digest_words(fields[name] for fields in every) for name in every[0]}

    def stored(self, folder, case, with_eight):
        """The capsules of a case: the finished one, and, where they are there, all: of eight more prompts, and between chunks."""
        expected = self.observations.capsules[case.name, case.chunk]
        found = [c for path in glob.glob(os.path.join(folder, "capsule-*")) for c in (capsule.of_store(path),)
                 if c.header.recipe_fingerprint == expected.header.recipe_fingerprint]
        finished = [c for c in found if c.is_resident_part_of(expected)]
        if len(finished) != 1:
            raise JobFailed(f"{len(finished)} of the store's {len(found)} capsules are what one process makes")
        if any(layer.offloaded for layer in finished[0].header.layers):
            fields = {f"resident {case.chunk}": finished[0].whole}
        else:
            fields = one_process.capsule_fields(finished[0], case.chunk)
        if with_eight:
            fields[f"stored {case.chunk}"] = digest_words(sorted(c.whole for c in found))
        return fields

    def run_round(self, chosen, eight):
        with tempfile.TemporaryDirectory(prefix="sluice-bits-") as folder:
            store = ["--arena", "1G", "--disk", folder, "--disk-bytes", "8G"]
            tier = ["--tier", chosen[0].tier]
            with Cluster(transport=self.transport, args=tier, worker_args={"kvstore": store, "decode": PATIENT}) as cluster:
                self.answer_round(cluster, folder, chosen, [case for case in chosen if case.recipe.name in eight and case.chunk == self.chunk])

    def answer_round(self, cluster, folder, chosen, chosen_for_eight):
        together_first = self.order == "together first"
        hows = ("eight at once", "one by one") if together_first else ("one by one", "eight at once")
        for case in chosen:
            self.observe(case, "read anew", case.name, lambda: self.long_prompt(cluster, case, "anew"))
        for case in chosen_for_eight:
            self.observe(case, f"{hows[0]}, read anew", f"{case.name}/eight",
                         lambda: self.eight(cluster, case, "anew", together_first))
        settle(cluster)
        for case in chosen:
            self.observe(case, "in the kvstore", case.name, lambda: self.stored(folder, case, case in chosen_for_eight))
            self.observe(case, "resumed", case.name, lambda: self.long_prompt(cluster, case, "whole"))
            if case.recipe.name in cases.RESUMED_IN_PART and case.chunk == cases.chunks(case.tier)[0]:
                self.observe(case, "resumed in part", f"{case.name}/other", lambda: self.other_question(cluster, case))
        for case in chosen_for_eight:
            self.observe(case, f"{hows[1]}, resumed", f"{case.name}/eight",
                         lambda: self.eight(cluster, case, "whole", not together_first))


def settle(cluster):
    """Everything that is on its way to the store is there, and on its disk."""
    address = cluster.processes["kvstore-0"].address
    with connect(address) as channel:
        call = channel.unary_unary("/sluice.v1.Store/Stats", request_serializer=worker_pb.StoreStatsRequest.SerializeToString,
                                   response_deserializer=worker_pb.StoreStatsReply.FromString)

        def is_settled():
            stats = call(worker_pb.StoreStatsRequest(), timeout=10 * SLOW)
            assert stats.disk_dropped == 0 and not stats.disk_failure, stats
            return not any(cluster.gauges().values()) and stats.leases == 0 and stats.disk_capsules == stats.capsules > 0
        eventually(is_settled, 60, "every capsule in the store and on its disk")


def rounds(observations, chosen):
    """Cases in rounds in which no two share a fingerprint."""
    fingerprint = lambda case: observations.capsules[case.name, case.chunk].header.recipe_fingerprint
    found = []
    for case in chosen:
        for one in found:
            if all(fingerprint(other) != fingerprint(case) for other in one):
                one.append(case)
                break
        else:
            found.append([case])
    return found


def run_series(observations, tier, chosen, transport, order, chunks, eight, n_rounds):
    """eight: names of recipes. How many sequences of each batch of eight were written at one time."""
    series = Series(observations, transport, order, chunks[0])
    every = [Case(tier, recipe, chunk) for recipe in chosen for chunk in (chunks if recipe.cut else chunks[:1])]
    known = [case for case in every if (case.name, case.chunk) in observations.capsules]  # others have failed already
    for one in rounds(observations, known)[:n_rounds]:
        series.run_round(one, eight)
    return series.together
