# SPDX-License-Identifier: Apache-2.0
"""What the tests of documents share."""
import json
import os
import signal
import subprocess
import sys

from harness import BIN, MODEL, ROOT, call, cluster_pb, document, documents_pb, eventually, inference, question, stub

TEXT = document(6000)
ADD = "sluice.v1.Documents.Add"
TAILORKV = "tailorkv"
EXACT = "place=offload/1-,retrieve=near,topk=64"  # layers that stay are in f16: bits of a fresh reading
READER = os.path.join(ROOT, "tools", "read_document.py")


def add(channel, name, text=TEXT, timeout=60, **fields):
    """Adds a document: (document, events)."""
    events = list(stub(channel.unary_stream, ADD)(documents_pb.AddDocumentRequest(name=name, text=text, **fields), timeout=timeout))
    assert events[-1].HasField("document"), events[-1]
    return events[-1].document, events


def of(channel, method, name):
    return call(channel, f"sluice.v1.Documents.{method}", documents_pb.DocumentRequest(name=name))


def names(channel):
    return [d.name for d in call(channel, "sluice.v1.Documents.List", documents_pb.ListDocumentsRequest()).documents]


def asking(name, end=question()[1:], **fields):
    return inference.GenerateRequest(document=name, text=end, max_new_tokens=12, stop=["."], **fields)


def store_load(cluster):
    return [w for w in cluster.workers().workers if w.info.role == cluster_pb.KVSTORE][0].load


def settled_load(cluster):
    """The load of the store when nothing arrives any more: jobs send their capsules after their answers."""
    seen = []

    def is_settled():
        load = store_load(cluster)
        seen.append((load.stored_bytes, load.stored_capsules))
        return len(seen) > 40 and len(set(seen[-40:])) == 1
    eventually(is_settled, 20, "the store settled")
    return store_load(cluster)


def sluice(cluster, *words, text=None):
    run = subprocess.run([os.path.join(BIN, "sluice"), *words, "--coordinator", cluster.coordinator.address], input=text, text=True,
                         capture_output=True, timeout=120)
    return run.returncode, run.stdout, run.stderr


def ask(channel, name):
    """(finished, events) of the question, by any client."""
    events = list(stub(channel.unary_stream, "sluice.v1.Inference.Generate")(asking(name), timeout=60))
    return events[-1].finished, events


def answers_here(questions, recipe, text=TEXT):
    """What one process answers about the text, which it has read under the same recipe: (the reading, the answers)."""
    lines = [{"operation": "document", "name": "gpl", "text": text, "recipe": recipe}]
    lines += [{"document": "gpl", "prompt": "\n" + one, "max_tokens": 12, "temperature": 0, "stop": ["."]} for one in questions]
    run = subprocess.run([os.path.join(BIN, "sluice"), "run", "--local", "--model", MODEL, "--jsonl"],
                         input="".join(json.dumps(line) + "\n" for line in lines), text=True, capture_output=True, timeout=120)
    assert run.returncode == 0, run
    read, *answers = (json.loads(line) for line in run.stdout.splitlines())
    return read, [one["choices"][0]["text"] for one in answers]


def read_file(path, *more):
    run = subprocess.run([sys.executable, READER, path, *more], text=True, capture_output=True, timeout=60)
    return run.returncode, run.stdout, run.stderr


def restart(cluster, *workers):
    for name in workers:
        process = cluster.processes.pop(name)
        process.signal(signal.SIGKILL)
        process.popen.wait(30)
        cluster.start_worker(name)
    cluster.wait_ready()


def reused(made, finished):
    """Returns whether a question did not read the document again: neither its capsule nor its offloaded layers."""
    s = finished.statistics
    return min(s.n_reused_tokens, s.retrieval.reused_tokens) >= made.n_tokens - 64
