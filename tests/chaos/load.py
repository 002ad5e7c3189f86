# SPDX-License-Identifier: Apache-2.0
"""
Clients under faults. What they hold the cluster to: every call ends by its deadline, tokens are those of a run without faults, and an
error is one of those that a client can do something about.
"""
import http.client
import threading
import time

from harness import SLOW, call, document, documents_pb, in_one_process, inference, question, stub, tokens
import grpc
from shallow import shallow_model

RECIPES = ["full", "full,format=int8", "h2o,budget=0.5", "snapkv,budget=0.3", "tailorkv", "tailorkv-near"]
LENGTHS = [600, 2500, 6000]
N_TOKENS = 12
SLACK_S = 12 * SLOW  # for an answer behind the deadline: the last RPC to a worker that stands still has its own
Code = grpc.StatusCode
# Lost workers, a lost coordinator, too much work, too late, cancelled by us.
ALLOWED = {Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.CANCELLED}
MODEL = shallow_model(4)


# Each tenant's documents: name -> recipe, stores that keep it. An int4 capsule may continue with other tokens than the whole prompt.
DOCUMENTS = {"exact": ("full", 2), "small": ("full,format=int4", 2), "far": ("place=offload/1-,topk=128", 1)}
DOCUMENT = document(LENGTHS[1], value="10001", seed=1)
ADD = "sluice.v1.Documents.Add"
may_answer = {}  # name -> the tokens that answers may have
exact_text = []  # the text of the answers about the document "exact"


def add_document(channel, name, recipe, replicas, timeout):
    asked = documents_pb.AddDocumentRequest(name=name, text=DOCUMENT, recipe=recipe, raw=True, replicas=replicas,
                                            deadline_ms=int(timeout * 1000))
    return list(stub(channel.unary_stream, ADD)(asked, timeout=timeout))[-1].document


def asking(name):
    return inference.GenerateRequest(document=name, text=question()[1:], max_new_tokens=N_TOKENS, ignore_eos=True)


def add_documents(channel):
    """Adds a tenant's documents and notes how they are answered before any fault."""
    for name, (recipe, replicas) in DOCUMENTS.items():
        give_up, made = time.monotonic() + 60 * SLOW, None
        while made is None:
            try:
                made = add_document(channel, name, recipe, replicas, 60 * SLOW)
            except grpc.RpcError:  # on a busy machine a store can be late at the start
                if time.monotonic() > give_up:
                    raise
                time.sleep(1)
        assert len(made.stores) == replicas, made
        events = list(stub(channel.unary_stream, "sluice.v1.Inference.Generate")(asking(name), timeout=60 * SLOW))
        got = tokens(events)
        if name == "exact":
            exact_text.append(events[-1].finished.text)
        may_answer.setdefault(name, [in_one_process(recipe, DOCUMENT + question(), N_TOKENS, MODEL)])
        assert name == "small" or got == may_answer[name][0], (name, got)
        may_answer[name].append(got)


def check_documents(channel, n_stores=True):
    """Returns what is wrong with a tenant's documents when the faults are over, also if they are in more or fewer stores than asked for."""
    listed = {d.name: d for d in call(channel, "sluice.v1.Documents.List", documents_pb.ListDocumentsRequest()).documents}
    wrong = [f"document {name} is gone" for name in DOCUMENTS if name not in listed]
    for name in DOCUMENTS.keys() & listed.keys():
        try:
            got = tokens(list(stub(channel.unary_stream, "sluice.v1.Inference.Generate")(asking(name), timeout=60 * SLOW)))
        except grpc.RpcError as error:
            got = error.details()
        if got not in may_answer[name]:
            wrong.append(f"document {name}: {got} is none of {may_answer[name]}")
        if n_stores and len(listed[name].stores) != DOCUMENTS[name][1]:
            wrong.append(f"document {name} is in {list(listed[name].stores)}")
    return wrong


class Counts:
    def __init__(self):
        self.lock = threading.Lock()
        self.by_outcome, self.violations, self.answers, self.faults = {}, [], [], []

    def count(self, outcome):
        with self.lock:
            self.by_outcome[outcome] = self.by_outcome.get(outcome, 0) + 1

    def answered(self, began, took):
        with self.lock:
            self.answers.append((began, took))

    def fault(self, name, began):
        with self.lock:
            self.faults.append((name, began, time.monotonic()))

    def print_latencies(self):
        """Prints how long right answers took, by the fault during which they began."""
        rows = {}
        for began, took in self.answers:
            name = next((name for name, start, end in self.faults if start <= began < end), "(no fault)")
            rows.setdefault(name, []).append(took)
        for name, times in sorted(rows.items()):
            times.sort()
            print(f"chaos: answers during {name:18} {len(times):5}  median {times[len(times) // 2]:6.2f} s  p99 {times[int(0.99 * len(times))]:6.2f} s")

    def violation(self, text):
        with self.lock:
            self.violations.append(text)
        print(f"chaos: VIOLATION: {text}", flush=True)


def prompts():
    return [document(n, value=str(10000 + n), seed=i) + question() for i, n in enumerate(LENGTHS)]


def next_turn(text):
    """Returns the prompt after `text` was answered: the same text, and more; the part that is stored is not prefilled again."""
    return text + " And now once more, slowly." + question()


class Client(threading.Thread):
    """One of a tenant's, with a connection of its own, which it makes anew now and then."""

    def __init__(self, number, rng, connect, texts, counts, stop):
        super().__init__(daemon=True, name=f"client-{number}")
        self.rng, self.connect, self.texts, self.counts, self.stop = rng, connect, texts, counts, stop
        self.n_keys = self.n_documents = 0
        self.wanted = None  # the tokens that the answer may have, unless one process answers the same request

    def run(self):
        n_connections = 0
        while not self.stop.is_set():
            with self.connect(n_connections) as channel:
                n_connections += 1
                for _ in range(self.rng.randrange(1, 12)):
                    if self.stop.is_set():
                        return
                    if self.one(channel) == Code.UNAVAILABLE:  # it may not lead
                        break

    def one(self, channel):
        """Returns the code of an error."""
        rng, code = self.rng, None
        deadline_s = rng.choice([2, 10, 30, 30]) * SLOW
        recipe, text = rng.choice(RECIPES), rng.choice(self.texts)
        asked = inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=N_TOKENS, ignore_eos=True,
                                          deadline_ms=int(deadline_s * 1000))
        act = rng.choice([self.generate, self.generate, self.generate, self.converse, self.leave, self.submit_and_watch,
                          self.submit_and_cancel, self.ask_document, self.ask_document, self.add_and_ask])
        self.wanted = None
        what = f"{act.__name__} {recipe} of {len(text)} bytes within {deadline_s} s"
        began = time.monotonic()
        try:
            got = act(channel, asked, deadline_s)
            if got is not None and got not in (self.wanted or [in_one_process(recipe, asked.text, N_TOKENS, MODEL)]):
                self.counts.violation(f"{what}: tokens {got} are not those of one process")
            self.counts.count("right" if got is not None else "left")
            if got is not None:
                self.counts.answered(began, time.monotonic() - began)
        except grpc.RpcError as error:
            allowed = (error.code() in ALLOWED or error.code() == Code.NOT_FOUND and "there is no job" in error.details()
                       or error.code() == Code.FAILED_PRECONDITION and ("fits never" in error.details()  # by the workers that are left
                                                                        or "are ready" in error.details()  # too few stores
                                                                        or "has no room" in error.details()))
            if not allowed:
                self.counts.violation(f"{what}: {error.code().name}: {error.details()}")
            code = error.code()
            self.counts.count(code.name)
        took = time.monotonic() - began
        if took > deadline_s + SLACK_S:
            self.counts.violation(f"{what}: took {took:.1f} s")
        self.stop.wait(rng.random() * 0.3)
        return code

    @staticmethod
    def answer(events):
        """Tokens of a job that has ended well; the error of one that has not."""
        finished = events[-1].finished if events and events[-1].HasField("finished") else None
        if finished is None or finished.status_code != 0:
            raise Failed(finished)
        if finished.statistics.retrieval.fallbacks > 0:  # a store owed answers, and decode did without: other tokens, and it says so
            return None
        return tokens(events)

    def generate(self, channel, asked, deadline_s):
        return self.answer(list(stub(channel.unary_stream, "sluice.v1.Inference.Generate")(asked, timeout=deadline_s)))

    def converse(self, channel, asked, deadline_s):
        """Two turns within the deadline of one."""
        give_up = time.monotonic() + deadline_s
        first = self.generate(channel, asked, deadline_s)
        if first is not None and first != in_one_process(asked.recipe, asked.text, N_TOKENS, MODEL):
            self.counts.violation(f"first turn of {asked.recipe}: tokens {first} are not those of one process")
        asked.text = next_turn(asked.text)
        return self.generate(channel, asked, max(give_up - time.monotonic(), 0.1))

    def ask_document(self, channel, asked, deadline_s):
        name = self.rng.choice(sorted(DOCUMENTS))
        self.wanted, about = may_answer[name], asking(name)
        about.deadline_ms = asked.deadline_ms
        got = self.generate(channel, about, deadline_s)
        self.counts.count("document")
        return got

    def add_and_ask(self, channel, asked, deadline_s):
        """A document that comes and goes."""
        give_up = time.monotonic() + deadline_s
        self.n_documents += 1
        name = f"{self.name}-{self.n_documents}"
        try:
            add_document(channel, name, "full", self.rng.choice([1, 2]), deadline_s)
            self.wanted = may_answer["exact"]
            return self.generate(channel, asking(name), max(give_up - time.monotonic(), 0.1))
        finally:
            try:
                call(channel, "sluice.v1.Documents.Delete", documents_pb.DocumentRequest(name=name), 5)
            except grpc.RpcError:  # it was not added, or stays until the end
                pass

    def leave(self, channel, asked, deadline_s):
        events = stub(channel.unary_stream, "sluice.v1.Inference.Generate")(asked, timeout=deadline_s)
        for _ in zip(range(self.rng.randrange(8)), events):
            pass
        events.cancel()

    def submit(self, channel, asked, deadline_s):
        """Sent once more if there was no answer: one job by its key."""
        self.n_keys += 1
        asked.idempotency_key = f"{self.name}-{self.n_keys}"
        try:
            return call(channel, "sluice.v1.Inference.Submit", asked, deadline_s / SLOW).job_id
        except grpc.RpcError as error:
            if error.code() != Code.UNAVAILABLE:
                raise
            time.sleep(0.2)
            return call(channel, "sluice.v1.Inference.Submit", asked, deadline_s / SLOW).job_id

    def submit_and_watch(self, channel, asked, deadline_s):
        """With one look away in the middle."""
        give_up = time.monotonic() + deadline_s + SLACK_S / 2
        job_id, events = self.submit(channel, asked, deadline_s), []
        look_away = self.rng.randrange(1, 12)
        watch = stub(channel.unary_stream, "sluice.v1.Inference.Watch")
        for limit in (look_away, None):
            request = inference.WatchRequest(job_id=job_id, from_sequence=events[-1].sequence + 1 if events else 1)
            stream = watch(request, timeout=max(give_up - time.monotonic(), 0.1))
            for event in stream:
                events.append(event)
                if limit and len(events) >= limit:
                    break
            stream.cancel()
            if events[-1].HasField("finished"):
                break
        assert [e.sequence for e in events] == list(range(1, len(events) + 1)), f"{job_id}: events are missing"
        return self.answer(events)

    def submit_and_cancel(self, channel, asked, deadline_s):
        job_id = self.submit(channel, asked, deadline_s)
        time.sleep(self.rng.random())
        call(channel, "sluice.v1.Inference.Cancel", inference.JobRequest(job_id=job_id), (deadline_s + SLACK_S) / SLOW)


def ask_over_http(gateway, tenant):
    """Asks the tenant's document. Returns the status, and the text of the answer, or all of another reply."""
    body = {"document": "exact", "prompt": question()[1:], "max_tokens": N_TOKENS, "ignore_eos": True, "temperature": 0}
    status, reply = gateway.post("/v1/completions", body, f"sk-{tenant}")
    return status, reply["choices"][0]["text"] if status == 200 and reply.get("choices") else reply


class HttpClient(threading.Thread):
    """Asks a tenant's document at the gateway, again and again."""

    def __init__(self, tenant, scene, counts, stop):
        super().__init__(daemon=True, name=f"http-{tenant}")
        self.tenant, self.scene, self.counts, self.stop = tenant, scene, counts, stop

    def run(self):
        while not self.stop.is_set():
            try:
                status, text = ask_over_http(self.scene.gateway, self.tenant)
                if status == 200 and text != exact_text[0] or status not in (200, 429, 503, 504):
                    self.counts.violation(f"{self.name}: {status} {text}")
                self.counts.count(f"HTTP {status}")
            except (OSError, ValueError, http.client.HTTPException):  # the gateway is killed
                self.counts.count("HTTP lost")
            self.stop.wait(0.2)


class Failed(grpc.RpcError):
    """The failure of a job that a Watch reports, as the error that a Generate would have ended with."""

    def __init__(self, finished):
        super().__init__()
        self.finished = finished

    def code(self):
        number = self.finished.status_code if self.finished else Code.UNAVAILABLE.value[0]
        return next(code for code in Code if code.value[0] == number)

    def details(self):
        return self.finished.status_text if self.finished else "the stream ended before the job"
