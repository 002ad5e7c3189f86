#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Documents by the tool, in chats and over HTTP, and what they cost."""
import contextlib
import hashlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile

from documents import TEXT, add, of, sluice, read_file
from harness import BIN, Cluster, cluster_pb, document, eventually, inference, question, request, run_tests
from test_gateway import Gateway, chatting_model, key_line

KVZIP = "score=reconstruct,scope=sinks:4,budget=0.33,heads=pages,when=end,format=int4"  # recommended for 10% of the bytes


def test_the_command():
    with Cluster() as cluster:
        code, out, err = sluice(cluster, "doc", "add", "gpl", "-", text=TEXT)
        assert code == 0 and out.startswith("added gpl: "), (code, out, err)
        code, out, _ = sluice(cluster, "doc", "ls")
        assert code == 0 and "gpl" in out and "kvstore-0" in out, out
        code, out, _ = sluice(cluster, "doc", "show", "gpl", "--json")
        shown = json.loads(out)
        assert code == 0 and shown["name"] == "gpl" and shown["text_bytes"] == len(TEXT.encode()), shown
        asked = (question()[1:], "--max-new-tokens", "12", "--stop", ".", "--json")
        code, out, err = sluice(cluster, "doc", "ask", "gpl", *asked)
        finished = json.loads(out.splitlines()[-1])["finished"]
        assert code == 0 and finished["statistics"]["n_reused_tokens"] >= shown["n_tokens"] - 64, (code, finished, err)
        assert sluice(cluster, "doc", "add", "other", "-", text=document(3000, "compass", "73150", 3))[0] == 0
        code, out, err = sluice(cluster, "doc", "ask", "other,gpl", *asked)
        joined = json.loads(out.splitlines()[-1])["finished"]
        assert code == 0 and "48213" in joined["text"] and joined["statistics"]["n_reused_tokens"] > shown["n_tokens"], (code, joined, err)
        assert sluice(cluster, "doc", "ask", "gpl,,other", "Why?")[0] == 2 and sluice(cluster, "doc", "ask", "gpl,gpl", "Why?")[0] == 2
        assert sluice(cluster, "doc", "rm", "other")[0] == 0
        code, _, err = sluice(cluster, "doc", "add", "less", "-", "--ship-at-most", "10", text=TEXT)
        less = of(cluster.channel, "Get", "less")
        assert code == 0 and less.recipe == KVZIP and not less.caution and "points" not in err, (less, err)
        code, _, err = sluice(cluster, "doc", "add", "less", "-", "--ship-at-most", "5", text=TEXT)  # what a question in the prompt may have
        assert code == 2 and "no recommended recipe ships so little" in err, (code, err)
        assert sluice(cluster, "doc", "add", "less", "-", "--ship-at-most", "10", "--recipe", "full", text=TEXT)[0] == 2
        assert sluice(cluster, "doc", "rm", "less")[0] == 0
        code, out, _ = sluice(cluster, "run", "--doc", "gpl", "--question", *asked)
        assert code == 0 and json.loads(out.splitlines()[-1])["finished"]["text"] == finished["text"], out
        # A folder, and HTML, whose text a program extracts (tests/unit/cli/test_doc_text.c has the rest).
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("b.txt", TEXT[3000:]), ("a.txt", TEXT[:3000])):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            code, out, err = sluice(cluster, "doc", "add", "code", folder)
            assert code == 0 and "2 text files; skipped: 0" in err, (code, out, err)
            joined = f"==== a.txt ====\n{TEXT[:3000]}\n\n==== b.txt ====\n{TEXT[3000:]}".rstrip("\n") + "\n"
            assert of(cluster.channel, "Get", "code").sha256 == hashlib.sha256(joined.encode()).hexdigest()
            page = os.path.join(folder, "page")
            with open(page, "w", encoding="utf-8") as file:
                file.write(f"<!DOCTYPE html><html><body><pre>{html.escape(TEXT)}</pre></body></html>")
            code, out, err = sluice(cluster, "doc", "add", "page", page)
            if any(shutil.which(program) for program in ("w3m", "lynx", "pandoc")):
                assert code == 0 and "page is HTML" in err and of(cluster.channel, "Get", "page").n_tokens > 1000, (code, out, err)
            else:
                assert code == 2 and "install the package w3m or lynx or pandoc" in err, (code, out, err)
            assert sluice(cluster, "doc", "add", "source", "--as-is", page)[0] == 0
            deck = os.path.join(folder, "deck")
            with zipfile.ZipFile(deck, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("ppt/presentation.xml", '<p:sldId r:id="rId1"/>')
                archive.writestr("ppt/_rels/presentation.xml.rels", '<Relationship Id="rId1" Target="slides/slide1.xml"/>')
                archive.writestr("ppt/slides/slide1.xml", f"<a:p><a:t>{html.escape(TEXT)}</a:t></a:p>")
            code, out, err = sluice(cluster, "doc", "add", "deck", deck)
            assert code == 0 and "deck is an office file: python3 extracted" in err, (code, out, err)
            assert of(cluster.channel, "Get", "deck").sha256 == hashlib.sha256(TEXT.encode() + b"\n").hexdigest()
        code, out, err = sluice(cluster, "doc", "add", "gpl", "-", "--keep", "1h", text=TEXT)  # the same document, which is not a failure
        assert code == 0 and re.fullmatch(r"gpl was there already, and stays as it was: \d+ tokens, .*, replicas 1, ends never\n", out), (code, out)
        code, _, err = sluice(cluster, "doc", "add", "gpl", "-", text=TEXT[:-8])
        assert code == 1 and "is taken, by another text" in err, (code, err)
        code, _, err = sluice(cluster, "doc", "add", "a/b", "-", text=TEXT)
        assert code == 2 and "0x2f" in err, (code, err)
        code, out, err = sluice(cluster, "doc", "keep", "gpl", "--for", "1h")
        assert code == 0 and out.startswith("kept gpl: replicas 1, ends 20"), (code, out, err)
        code, out, _ = sluice(cluster, "doc", "keep", "gpl", "--forever", "--replicas", "1")
        assert code == 0 and out == "kept gpl: replicas 1, ends never\n", out
        for words in (), ("--for", "1h", "--forever"):
            assert sluice(cluster, "doc", "keep", "gpl", *words)[0] == 2
        # Answers say what they cost, and the document what it saved.
        code, out, err = sluice(cluster, "doc", "ask", "gpl", *asked[:-1])
        cost = re.fullmatch(r"(\d+) tokens read, (\d+) not read again; (\S+ \w+) shipped; first token after \d+ ms, \d+ ms in all\n", err)
        assert code == 0 and out == finished["text"] + "\n" and cost, (code, out, err)
        assert int(cost[1]) + int(cost[2]) == finished["statistics"]["n_prompt_tokens"] and int(cost[2]) >= shown["n_tokens"] - 64, err
        assert sluice(cluster, "doc", "ask", "gpl", "--quiet", *asked[:-1]) == (0, out, "")
        eventually(lambda: of(cluster.channel, "Get", "gpl").n_questions == 5, 10, "five answers counted")
        saved = of(cluster.channel, "Get", "gpl")
        assert 5 * (saved.n_tokens - 160) <= saved.saved_tokens <= 5 * saved.n_tokens and saved.read_tokens >= saved.n_tokens - 1, saved
        assert abs(saved.saved_ms - saved.saved_tokens * saved.read_ms / saved.read_tokens) < 1 and saved.read_ms > 0, saved
        code, out, _ = sluice(cluster, "doc", "show", "gpl")
        assert f"{saved.saved_tokens} tokens not read again for 5 questions: about" in out and re.search(r"\d \[\S+, \S+\] of 100 points", out), out
        # The same question with the text read again, in full.
        whole, _ = cluster.answer(inference.GenerateRequest(text=TEXT + question(), recipe="full", max_new_tokens=12, stop=["."], no_reuse=True))
        code, out, err = sluice(cluster, "doc", "ask", "gpl", "--check", *asked[:-1])
        assert code == 0 and out.splitlines() == [finished["text"], whole.text], (out, whole)
        assert "0 not read again (not cached: off)" in err and "check: the answers are the same" in err, err
        eventually(lambda: of(cluster.channel, "Get", "gpl").n_questions == 6, 10, "the question, without the check of its answer")
        code, out, err = sluice(cluster, "doc", "ask", "gpl", "--check", "--json", "--temperature", "2", "Say something.", "-n", "24")
        *events, check = map(json.loads, out.splitlines())
        first, second = (event["finished"] for event in events if "finished" in event)
        assert check == {"check": {"same": first["text"] == second["text"]}}, check
        assert first["statistics"]["sampling"]["seed"] == second["statistics"]["sampling"]["seed"], (first, second)
        assert second["statistics"]["recipe"] == "full" and second["statistics"].get("n_reused_tokens", 0) == 0, second
        code, out, _ = sluice(cluster, "doc", "rm", "gpl")
        assert code == 0 and out.startswith("removed gpl"), out
        code, _, err = sluice(cluster, "doc", "ask", "gpl", "Why?")
        assert code == 1 and "no document gpl" in err, (code, err)
        code, _, err = sluice(cluster, "doc", "sohw", "gpl")
        assert code == 2 and "did you mean show" in err, (code, err)


def test_a_conversation_begins_with_a_document():
    with chatting_model() as model, Cluster(model=model) as cluster:
        def talk(lines, *words, code=0):
            run = subprocess.run([os.path.join(BIN, "sluice"), "chat", "--coordinator", cluster.coordinator.address, "-n", "8", *words],
                                 input="".join(line + "\n" for line in lines), text=True, capture_output=True, timeout=120)
            assert run.returncode == code, run
            return run

        assert "no documents" in talk(["/doc"]).stdout
        made, _ = add(cluster.channel, "gpl")
        add(cluster.channel, "raw", document(3000, seed=3), raw=True)
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "saved")
            asked = question()[1:]
            done = talk(["/doc gpl", asked, "And?", f"/save {saved}", "/doc", "/new", "/doc", "Hello?"], "--json")
            with open(saved, encoding="utf-8") as file:
                body = json.load(file)
        assert body["document"] == "gpl" and body["messages"][0] == {"role": "user", "content": asked}, body
        assert f"gpl: {made.n_tokens} tokens under full,format=int4" in done.stderr and "* gpl" in done.stderr and "  gpl" in done.stderr, done.stderr
        first, second, other = (json.loads(line)["finished"] for line in done.stdout.splitlines())
        whole, _ = cluster.answer(inference.GenerateRequest(recipe="full,format=int4", max_new_tokens=8, no_reuse=True, chat=inference.Chat(
            messages=[inference.ChatMessage(role="user", content=TEXT + question())])))
        assert first["text"] == whole.text, (first, whole)
        for turn in (first, second):
            assert int(turn["statistics"]["n_reused_tokens"]) >= made.n_tokens - 1, turn
        assert int(other["statistics"]["n_prompt_tokens"]) < 64, other
        for lines, words, says in [(["/doc nope"], (), "no document nope"), (["/doc raw"], (), "use `sluice chat --raw`"),
                                   (["/doc gpl"], ("--raw",), "leave out --raw"), (["/doc gpl"], ("--system", "Be brief."), "leave out --system"),
                                   (["Hi", "/doc gpl"], (), "/new first"), (["/doc gpl", "/recipe full"], (), "its own recipe")]:
            assert says in talk(lines, *words, code=2).stderr, lines
        assert "48213" in talk(["/doc raw", "One of the special magic numbers for lantern is: 48213. " + question()], "--raw").stdout


def delete(gateway, path):
    with contextlib.closing(gateway.connect()) as connection:
        connection.request("DELETE", path)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def test_adding_what_is_there_costs_no_tokens():
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(key_line("sk", "a", "tokens=1"))
        made, _ = add(cluster.channel, "gpl")
        with Gateway(cluster, "--keys", keys) as gateway:
            for _ in range(2):  # a minute has one token: after the first prompt that is read, a second one is refused
                status, again = gateway.post("/v1/documents", {"name": "gpl", "text": TEXT}, "sk")
                assert status == 200 and again["created"] == made.created_ms // 1000, (status, again)


def check_bench(gateway):
    """`sluice bench documents` asks each way the same questions, reads a document once, and leaves none behind."""
    words = [os.path.join(BIN, "sluice"), "bench", "documents", "--url", f"http://{gateway.host}:{gateway.port}", "--tokens", "1500",
             "--questions", "4", "--again", "1", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done
    int4, k4v2, cache, again = [json.loads(line) for line in done.stdout.splitlines()]
    asked_far = subprocess.run([*words, "--ways", "tailorkv"], capture_output=True, text=True, timeout=300)
    far = json.loads(asked_far.stdout)  # its layers in f16, most of them beside the capsule
    assert far["questions"] == 4 and far["read_tokens"] < 800 and far["kept_bytes"] > 2 * int4["kept_bytes"] > far["fetched_bytes"], asked_far
    assert [one["questions"] for one in (int4, k4v2, cache, again)] == [4, 4, 4, 1], done.stdout
    assert int4["read_tokens"] < 800 < 1200 < again["read_tokens"] and cache["read_tokens"] < 2 * again["read_tokens"], done.stdout
    assert 0.6 < k4v2["kept_bytes"] / int4["kept_bytes"] < 0.9 and again["fetched_bytes"] > 3 * int4["kept_bytes"] / 2, done.stdout
    assert not [one for one in json.loads(gateway.get("/v1/documents")[1])["data"] if one["id"].startswith("bench-")]
    done = subprocess.run([*words[:5], "--ways", "full;full"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "different ways" in done.stderr, done


def check_caution(cluster, gateway, chat):
    """A text that is longer than its recipe was measured to hold at: said by the command, gRPC and HTTP, and in each answer."""
    code, out, err = sluice(cluster, "doc", "add", "long", "-", "--ship-at-most", "10", text=document(12000, seed=9))
    caution = of(cluster.channel, "Get", "long").caution
    assert code == 0 and "hold up to 2048 tokens: at 8192 it lost" in caution and "kvzip,heads=pages,budget=0.56,format=int4 (17% of the bytes)" in caution, (out, caution)
    assert err.count(f"tokens: {caution}\n") == 1 and f"caution      {caution}\n" in sluice(cluster, "doc", "show", "long")[1], err
    assert json.loads(gateway.get("/v1/documents/long")[1])["caution"] == caution
    status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "long"})
    assert status == 200 and reply["sluice"]["caution"] == caution, reply
    assert delete(gateway, "/v1/documents/long")[0] == 200


def check_caution_before_reading(cluster):
    """`doc add` prints the caution before it reads the text, so the user can stop it and choose another recipe."""
    words = [os.path.join(BIN, "sluice"), "doc", "add", "longer", "-", "--ship-at-most", "10", "--coordinator", cluster.coordinator.address]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as adding:
        adding.stdin.write(document(24000, seed=3))
        adding.stdin.close()
        assert "hold up to 2048 tokens" in adding.stderr.readline()
        adding.send_signal(signal.SIGINT)
        assert adding.wait(60) == 4, adding.stdout.read()
    eventually(lambda: "longer" not in sluice(cluster, "doc", "ls")[1], 30, "the document is gone")


def test_http_and_chats():
    with chatting_model() as model, Cluster(model=model) as cluster, Gateway(cluster) as gateway:
        status, made = gateway.post("/v1/documents", {"name": "gpl", "text": TEXT})
        assert status == 200 and made["replicas"] == 1 and made["stores"] == ["kvstore-0"] and made["object"] == "document" and made["id"] == "gpl" and made["chat"] and made["store"], made
        assert made["ends_with_cluster"] is True  # its coordinator keeps no state
        status, listed = gateway.get("/v1/documents")
        assert status == 200 and [d["id"] for d in json.loads(listed)["data"]] == ["gpl"], listed
        assert json.loads(gateway.get("/v1/documents/gpl")[1])["sha256"] == made["sha256"]
        chat = {"messages": [{"role": "user", "content": question()[1:]}], "max_tokens": 8, "temperature": 0}
        status, whole = gateway.post("/v1/chat/completions", {**chat, "recipe": "full,format=int4", "messages": [
            {"role": "user", "content": TEXT + question()}]})
        status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "gpl"})
        assert status == 200 and reply["choices"] == whole["choices"], (reply, whole)
        turns = chat["messages"] + [{"role": "assistant", "content": "48213"}, {"role": "user", "content": "And?"}]
        status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "gpl", "messages": turns})
        assert status == 200 and reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= made["n_tokens"] - 1, reply["usage"]

        with tempfile.TemporaryDirectory() as folder:  # a document for chats travels, too
            path = os.path.join(folder, "gpl.doc")
            assert sluice(cluster, "doc", "export", "gpl", path)[0] == 0 and "a user's message" in read_file(path)[1]
            assert sluice(cluster, "doc", "import", "copy", path)[0] == 0
        status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "copy"})
        assert status == 200 and reply["choices"] == whole["choices"], (reply, whole)
        assert delete(gateway, "/v1/documents/copy")[0] == 200

        # A text document for completions, and what is refused.
        status, raw = gateway.post("/v1/documents", {"name": "raw", "text": TEXT, "raw": True})
        assert status == 200, raw
        status, reply = gateway.post("/v1/completions", {"prompt": "And?", "document": "raw", "max_tokens": 4})
        assert status == 200 and reply["usage"]["prompt_tokens_details"]["cached_tokens"] == raw["n_tokens"] - 1, (reply["usage"], raw)
        refusal = gateway.refusal(404, "/v1/chat/completions", {**chat, "document": "nope"})
        assert refusal["param"] == "document" and "no document nope" in refusal["message"] and refusal["code"] == "document_not_found", refusal
        for names in "gpl", [], ["gpl", 5], ["gpl"] * 9, ["gpl", "gpl"]:
            assert gateway.refusal(400, "/v1/chat/completions", {**chat, "documents": names})["param"] == "documents"
        assert gateway.refusal(404, "/v1/chat/completions", {**chat, "documents": ["gpl", "nope"]})["code"] == "document_not_found"
        assert gateway.post("/v1/documents", {"name": "other", "text": document(3000, seed=3)})[0] == 200
        status, joined = gateway.post("/v1/chat/completions", {**chat, "documents": ["gpl", "other"], "reread": 16})
        status_of_all, reply = gateway.post("/v1/chat/completions", {**chat, "documents": ["gpl", "other"], "reuse": False})
        assert status == status_of_all == 200 and joined["usage"]["prompt_tokens"] == reply["usage"]["prompt_tokens"], (joined, reply)
        assert reply["sluice"].get("reused_tokens", 0) == 0 and joined["sluice"]["reused_tokens"] > made["n_tokens"], (joined, reply)
        assert delete(gateway, "/v1/documents/other")[0] == 200
        assert gateway.refusal(400, "/v1/chat/completions", {**chat, "document": "raw"})["param"] == "document"
        assert gateway.refusal(400, "/v1/completions", {"prompt": "And?", "document": "gpl"})["param"] == "document"
        empty = gateway.refusal(400, "/v1/documents", {"name": "empty"})
        assert empty["param"] == "text" and empty["message"].startswith("text: "), empty
        system = [{"role": "system", "content": "Be brief."}, *chat["messages"]]
        assert "first message" in gateway.refusal(400, "/v1/chat/completions", {**chat, "document": "gpl", "messages": system})["message"]
        again = gateway.post("/v1/documents", {"name": "gpl", "text": TEXT})[1]
        assert again["created"] == made["created"] and again["was_there"] and made["was_there"] is False, (made, again)
        assert "was_there" not in json.loads(gateway.get("/v1/documents/gpl")[1])
        assert gateway.refusal(409, "/v1/documents", {"name": "gpl", "text": TEXT[:-8]})["type"] == "invalid_request_error"
        assert gateway.refusal(400, "/v1/documents", {"name": "a/b", "text": TEXT})["param"] == "name"
        assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": TEXT, "pin": 1})["param"] == "pin"
        assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": 5})["param"] == "text"
        for few in (5, "10"):
            assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": TEXT, "ship_at_most": few})["param"] == "ship_at_most"
        assert "one of them" in gateway.refusal(400, "/v1/documents", {"name": "b", "text": TEXT, "ship_at_most": 10, "recipe": "full"})["message"]
        status, less = gateway.post("/v1/documents", {"name": "less", "text": TEXT, "ship_at_most": 10, "recipe": None})
        assert status == 200 and less["recipe"] == KVZIP and less["caution"] == "", less
        assert gateway.post("/v1/documents", {"name": "less", "text": TEXT, "ship_at_most": 10, "recipe": ""})[1]["was_there"]
        assert delete(gateway, "/v1/documents/less")[0] == 200
        check_caution(cluster, gateway, chat)
        check_caution_before_reading(cluster)
        assert gateway.refusal(400, "/v1/documents", {"name": "b", "text": TEXT, "replicas": 0})["param"] == "replicas"
        assert "2 stores" in gateway.refusal(409, "/v1/documents", {"name": "b", "text": TEXT, "replicas": 2})["message"]
        assert gateway.refusal(400, "/v1/documents", "{")["type"] == "invalid_request_error"
        status, reply = gateway.get("/v1/documents/nope")
        assert status == 404 and json.loads(reply)["error"]["code"] == "document_not_found", reply
        assert delete(gateway, "/v1/documents/a%2Fb")[0] == 400
        # The same over HTTP.
        status, reply = gateway.post("/v1/chat/completions", {**chat, "document": "gpl"})
        cost, usage = reply["sluice"], reply["usage"]
        assert "caution" not in cost, cost
        assert cost["reused_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] >= made["n_tokens"] - 1, reply
        assert cost["read_tokens"] + cost["reused_tokens"] == usage["prompt_tokens"] and cost["capsule_bytes"] > 0 and cost["total_ms"] > 0, reply
        eventually(lambda: json.loads(gateway.get("/v1/documents/gpl")[1])["questions"] == 4, 10, "four answers counted")
        shown = json.loads(gateway.get("/v1/documents/gpl")[1])
        assert shown["saved_tokens"] >= 4 * (made["n_tokens"] - 1) and shown["saved_ms"] > 0 and re.fullmatch(r"\S+ \[\S+, \S+\]", shown["lost_points"]), shown
        status, gone = delete(gateway, "/v1/documents/gpl")
        assert status == 200 and gone == {"id": "gpl", "object": "document", "deleted": True}, gone
        assert delete(gateway, "/v1/documents/gpl")[0] == 404 and delete(gateway, "/v1/documents")[0] == 405
        check_bench(gateway)

        # The text was read, and the store did not take it: prefill avoids a store for 10 s after that has failed.
        ready = lambda: sum(w.state == cluster_pb.READY for w in cluster.workers().workers)
        cluster.processes["kvstore-0"].signal(signal.SIGSTOP)
        cluster.answer(request(1500, seed=77))
        eventually(lambda: "not_kept=unreachable" in cluster.processes["prefill-0"].errors(), 10, "the copy failed")
        time.sleep(2)  # a look-up has 2 s: one that the store answers in time would end that
        cluster.processes["kvstore-0"].signal(signal.SIGCONT)
        eventually(lambda: ready() == 3, 5, "the store is back")
        refusal = gateway.refusal(507, "/v1/documents", {"name": "full", "text": document(5000, seed=8)})
        assert "the text was read, but no store has its" in refusal["message"] and "unreachable" in refusal["message"], refusal
        assert gateway.get("/v1/documents/full")[0] == 404


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
