#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Documents as files: exported, imported on another cluster, over HTTP too, and what is refused."""
import contextlib
import hashlib
import json
import os
import socket
import struct
import subprocess
import tempfile
import threading
import time

from documents import TEXT, add, of, names, asking, sluice, ask, read_file
from test_gateway import Gateway, key_line
from harness import BIN, MODEL, ROOT, SLOW, Cluster, certificates, document, documents_pb, eventually, refused, run_tests, stub, tokens
import grpc


def edited(path, out, at, xor=1):
    """A copy of a file with one byte changed."""
    with open(path, "rb") as file:
        content = bytearray(file.read())
    content[at] ^= xor
    with open(out, "wb") as file:
        file.write(content)
    return out


def local(*words):
    run = subprocess.run([os.path.join(BIN, "sluice"), *words], text=True, capture_output=True, timeout=60)
    return run.returncode, run.stdout, run.stderr


def test_a_document_travels_as_a_file():
    with certificates("client/acme/alice", "client/umbrella") as made, tempfile.TemporaryDirectory() as folder, \
            Cluster(certificates=made) as cluster, cluster.channel_of("client/acme/alice") as acme, \
            cluster.channel_of("client/umbrella") as umbrella:
        path, short = os.path.join(folder, "gpl.doc"), os.path.join(folder, "short.doc")
        text_file, other = os.path.join(folder, "gpl.txt"), os.path.join(folder, "other.doc")
        with open(text_file, "w", encoding="utf-8") as file:
            file.write(TEXT)
        alice = made.options("client/acme/alice")
        original, _ = add(acme, "gpl")
        _, events = ask(acme, "gpl")
        code, out, err = sluice(cluster, "doc", "export", "gpl", path, "--json", *alice)
        said = json.loads(out)
        assert code == 0 and said["bytes"] == os.path.getsize(path) and said["n_tokens"] == original.n_tokens, (said, err)
        add(acme, "longer", document(7000, seed=4))
        assert sluice(cluster, "doc", "export", "longer", other, *alice)[0] == 0
        with open(other, "rb") as file:
            longer = file.read()
        of(acme, "Delete", "longer")
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert sluice(cluster, "doc", "export", "gpl", short, "--no-text", *alice)[0] == 0
        assert os.path.getsize(path) - os.path.getsize(short) == len(TEXT.encode()) + 32
        with open(path, "rb") as file:
            whole = file.read()
        assert TEXT.encode() in whole and TEXT.encode()[:64] not in open(short, "rb").read()

        # The reader in Python agrees, and finds what was edited.
        code, out, err = read_file(path)
        assert code == 0 and original.recipe in out and original.sha256 in out and "capsule body" in out, (out, err)
        code, out, err = read_file(edited(path, other, len(whole) - 40))
        assert code == 1 and "capsule body" in err, (out, err)
        assert read_file(short)[0] == 0
        page = os.path.join(folder, "page.html")
        code, out, err = local("inspect", path, "--html", page, "--model", MODEL, "--json")
        shown = json.loads(out)
        assert code == 0 and shown["recipe"] == original.recipe and shown["document"]["sha256"] == original.sha256, (out, err)
        written = open(page, encoding="utf-8").read()
        assert "100.0% of their slots" in written and written.count("100.0% of its slots") == written.count('title="sentence') > 20
        code, _, err = local("inspect", short, "--html", page, "--model", MODEL)
        assert code == 2 and "--text FILE" in err, (code, err)
        assert local("inspect", short, "--html", page, "--model", MODEL, "--text", text_file)[0] == 0
        code, _, err = local("inspect", other)
        assert code == 2 and "capsule body" in err, (code, err)
        # Nothing is written where there is no room, and nothing is left.
        code, _, err = sluice(cluster, "doc", "export", "gpl", "/dev/full/x", *alice)
        assert code == 1 and "/dev/full/x" in err, (code, err)
        run = subprocess.run(["bash", "-c", 'ulimit -f 64; trap "" XFSZ; exec "$@"', "-", os.path.join(BIN, "sluice"), "doc", "export", "gpl", other + "2",
                              "--coordinator", cluster.coordinator.address, *alice], text=True, capture_output=True, timeout=60)
        assert run.returncode == 1 and "cannot be written" in run.stderr, run
        assert not [name for name in os.listdir(folder) if name.startswith("other.doc2")]

        # Under a tenant with another salt, and on a cluster whose store is another: the same tokens, which are not read again.
        code, out, err = sluice(cluster, "doc", "import", "mine", path, *made.options("client/umbrella"))
        assert code == 0 and out.startswith("imported mine: "), (code, out, err)
        finished, again = ask(umbrella, "mine")
        assert tokens(again) == tokens(events) and finished.statistics.n_reused_tokens >= original.n_tokens - 64, finished.statistics
        assert names(acme) == ["gpl"] and names(umbrella) == ["mine"]
        with Cluster() as second:
            code, out, err = sluice(second, "doc", "import", "there", path, "--json", "--keep", "1h")
            shown = json.loads(out)
            assert code == 0 and shown["expires_ms"] - shown["created_ms"] == 3600000 and shown["sha256"] == original.sha256 and shown["store"] == "kvstore-0", (shown, err)
            finished, again = second.answer(asking("there"))
            assert tokens(again) == tokens(events), "another answer on the other cluster"
            assert finished.statistics.n_reused_tokens >= original.n_tokens - 64, finished.statistics
            again_path = os.path.join(folder, "again.doc")
            assert sluice(second, "doc", "export", "there", again_path)[0] == 0
            assert open(again_path, "rb").read() == whole, "the same document is another file"
            refuse_files(second, folder, whole, longer, short, text_file)
            second.kill("kvstore-0")
            assert names(second.channel) == ["there", "with-text"]


def refuse_files(cluster, folder, whole, longer, short, text_file):
    """Tries files that are refused; the documents `there` and `with-text` are left."""
    path = os.path.join(folder, "bad.doc")

    def refused_file(content, code, *words, name="bad"):
        with open(path, "wb") as file:
            file.write(content)
        got, out, err = sluice(cluster, "doc", "import", name, path)
        assert got == code and all(word in err for word in words), (got, out, err)
    text_at, end = whole.index(TEXT.encode()), len(whole)
    refused_file(b"x" * 500, 2, "not a document")
    refused_file(b"", 2, "cut short", "head")
    refused_file(whole[:text_at + 100], 2, "cut short", "text")
    refused_file(whole[:-1], 2, "cut short", "body")
    refused_file(whole[:end // 2], 2, "cut short", "body")
    refused_file(whole + b"x", 2, "follow its end")
    for at, part in ((24, "head"), (text_at + 9, "text"), (text_at + len(TEXT.encode()) + 40, "capsule header"), (end - 5000, "capsule body")):
        changed = bytearray(whole)
        changed[at] ^= 1
        refused_file(bytes(changed), 2, "edited", part)
    refused_file(whole[:8] + b"\3" + whole[9:], 2, "version 3", "reads 1 to 2")
    refused_file(signed(whole, 16, b"\1" * 8), 1, "another model", "0101010101010101")
    refused_file(signed(whole, 96, b"\1" * 32), 1, "tokenizer")
    refused_file(with_capsule_of(whole, longer), 1, "is not the one of this text")
    before = of(cluster.channel, "Get", "there")
    with open(path, "wb") as file:
        file.write(whole)
    code, out, err = sluice(cluster, "doc", "import", "there", path, "--json")  # the same document: as adding it again
    assert code == 0 and json.loads(out)["created_ms"] == before.created_ms, (out, err)
    refused_file(whole[:-1], 2, "cut short", "body", name="there")
    code, _, err = sluice(cluster, "doc", "add", "taken", text_file, "--recipe", "full")
    assert code == 0, err
    refused_file(whole, 1, "is taken", "by the same text, but read under", name="taken")
    of(cluster.channel, "Delete", "taken")
    refused_file(whole, 2, "0x2f", name="a/b")
    code, _, err = sluice(cluster, "doc", "import", "bad", os.path.join(folder, "none"))
    assert code == 2 and "No such file" in err, (code, err)
    code, _, err = sluice(cluster, "doc", "import", "bad", short)
    assert code == 2 and "--text" in err, (code, err)
    code, _, err = sluice(cluster, "doc", "import", "bad", short, "--text", short + "x")
    assert code == 2, (code, err)
    with open(text_file + "2", "w", encoding="utf-8") as file:
        file.write(TEXT[:-1] + "!")
    code, _, err = sluice(cluster, "doc", "import", "bad", short, "--text", text_file + "2")
    assert code == 2 and "is not the text" in err, (code, err)
    code, out, err = sluice(cluster, "doc", "import", "with-text", short, "--text", text_file)
    assert code == 0 and out.startswith("imported with-text"), (code, out, err)
    assert names(cluster.channel) == ["there", "with-text"]


def parts_of(whole):
    """The parts of a file with its text, without their digests."""
    text, header, body, recipe = struct.unpack_from("<QQQI", whole, 32)
    parts, at = [], 0
    for n in (128 + recipe, text, header, body):
        parts.append(whole[at:at + n])
        at += n + 32
    return parts


def joined(parts):
    """The file of these parts, with digests that agree."""
    whole = b""
    for part in parts:
        whole += part
        whole += hashlib.sha256(whole).digest()
    return whole


def signed(whole, at, value):
    """The file with other bytes in its head."""
    head, *others = parts_of(whole)
    return joined([head[:at] + value + head[at + len(value):], *others])


def with_capsule_of(whole, another):
    """The file with another one's capsule."""
    head, text, *_ = parts_of(whole)
    header, body = parts_of(another)[2:]
    return joined([head[:40] + struct.pack("<QQ", len(header), len(body)) + head[56:], text, header, body])


def test_what_stops_an_import():
    with Cluster() as cluster, tempfile.TemporaryDirectory() as folder, Cluster(worker_args={"kvstore": ["--arena", "6M"]}) as small:
        path = os.path.join(folder, "gpl.doc")
        add(cluster.channel, "gpl", document(12000))
        assert sluice(cluster, "doc", "export", "gpl", path)[0] == 0
        whole = open(path, "rb").read()
        code, _, err = sluice(small, "doc", "import", "gpl", path)
        assert code == 1 and "no room" in err and "--arena" in err, (code, err)
        assert not names(small.channel)

        def pieces(n, then=lambda: None):
            yield documents_pb.ImportDocumentRequest(name="half", data=whole[:n])
            then()
            yield documents_pb.ImportDocumentRequest(data=whole[n:])
        send = stub(cluster.channel.stream_stream, "sluice.v1.Documents.Import")
        of(cluster.channel, "Delete", "gpl")
        assert "deadline" in refused([grpc.StatusCode.INVALID_ARGUMENT], lambda: list(send(pieces(100))))

        # A client that goes away leaves nothing.
        waits, entered = threading.Event(), threading.Event()

        def wait():
            eventually(lambda: "half" in names(cluster.channel), 10, "the import began")
            entered.set()
            waits.wait(10)
        call_ = send(pieces(len(whole) // 2, wait), timeout=60)
        assert entered.wait(20)
        call_.cancel()
        waits.set()
        eventually(lambda: not names(cluster.channel), 10, "nothing of the cancelled import")

        # A store that dies while it takes the capsule.
        said = refused([grpc.StatusCode.UNAVAILABLE], lambda: list(send(pieces(len(whole) // 2, lambda: (eventually(
            lambda: "half" in names(cluster.channel), 10, "the import began"), cluster.kill("kvstore-0"))), timeout=60)))
        assert "kvstore-0" in said, said
        assert not names(cluster.channel)
        cluster.start_worker("kvstore-1")
        cluster.wait_ready()
        # Until the coordinator has noticed that the other store is lost, a retry may succeed: exit code 3.
        codes = []

        def is_imported():
            codes.append(sluice(cluster, "doc", "import", "half", path)[0])
            return codes[-1] == 0
        eventually(is_imported, 20, "the import with another store")
        assert set(codes) <= {0, 3} and names(cluster.channel) == ["half"], codes


def curl(gateway, path, *options, key="sk-acme"):
    """(status, headers, body) of a request."""
    with tempfile.TemporaryDirectory() as folder:
        out, head = os.path.join(folder, "out"), os.path.join(folder, "head")
        run = subprocess.run(["curl", "-sS", "-o", out, "-D", head, "-w", "%{http_code}", "-H", f"Authorization: Bearer {key}", *options,
                              f"http://{gateway.host}:{gateway.port}{path}"], text=True, capture_output=True, timeout=120)
        assert run.returncode == 0, run
        lines = [line.split(": ", 1) for line in open(head, encoding="latin1").read().splitlines() if ": " in line]
        content = open(out, "rb").read() if os.path.exists(out) else b""
        return int(run.stdout), {name.lower(): value for name, value in lines}, content


def test_a_document_travels_over_http():
    with certificates("client/acme", "client/umbrella") as made, tempfile.TemporaryDirectory() as folder, Cluster(certificates=made) as cluster, \
            cluster.channel_of("client/acme") as acme, cluster.channel_of("client/umbrella") as umbrella, Cluster() as second:
        keys, path = os.path.join(folder, "keys"), os.path.join(folder, "long.sluicedoc")
        with open(keys, "w", encoding="ascii") as file:
            file.write(key_line("sk-acme", "acme") + key_line("sk-umbrella", "umbrella"))
        original, _ = add(acme, "long", document(12000))
        _, wanted = ask(acme, "long")
        limits = ["--max-body", "64K", "--body-memory", "1M"]  # a file is larger than either
        with Gateway(cluster, "--keys", keys, "--tenants", made.folder, *limits) as gateway, Gateway(second, *limits) as plain:
            status, head, whole = curl(gateway, "/v1/documents/long/export")
            assert status == 200 and head["content-type"] == "application/octet-stream", (status, head)
            assert head["content-disposition"] == 'attachment; filename="long.sluicedoc"' and int(head["content-length"]) == len(whole)
            assert sluice(cluster, "doc", "export", "long", path, *made.options("client/acme"))[0] == 0
            assert open(path, "rb").read() == whole and len(whole) > 2 << 20
            status, head, _ = curl(gateway, "/v1/documents/long/export", "-I")
            assert status == 200 and int(head["content-length"]) == len(whole), (status, head)
            # Under another name, under another tenant, and on another cluster: the same answer, bit for bit.
            for at, name, key, channel in ((gateway, "mine", "sk-umbrella", umbrella), (gateway, "import", "sk-acme", acme), (plain, "there", "", second.channel)):
                status, _, reply = curl(at, f"/v1/documents/import?name={name}&keep_ms=3600000", "--data-binary", f"@{path}", "-H", "Expect:", key=key)
                shown = json.loads(reply)
                assert status == 200 and shown["id"] == name and shown["sha256"] == original.sha256, (status, reply)
                assert of(channel, "Get", name).expires_ms - shown["created"] * 1000 in range(3600000, 3601001), shown
                finished, again = ask(channel, name)
                assert tokens(again) == tokens(wanted) and finished.statistics.n_reused_tokens >= original.n_tokens - 64, finished.statistics
            assert json.loads(curl(gateway, "/v1/documents/import")[2])["id"] == "import"  # a document of this name
            assert curl(gateway, "/v1/documents/import", "-X", "DELETE")[0] == 200
            status, _, reply = curl(plain, "/v1/documents/import?name=there", "-T", path, "-X", "POST", key="")  # it asks first (Expect)
            assert status == 200 and json.loads(reply)["id"] == "there", reply
            assert curl(plain, "/v1/documents/import?name=there", "--data-binary", f"@{path}", "-H", "Transfer-Encoding: chunked",
                        key="")[0] == 200
            refuse_over_http(gateway, plain, folder, path, whole)
            assert names(acme) == ["long"] and names(umbrella) == ["mine"] and names(second.channel) == ["there"]


def refuse_over_http(gateway, plain, folder, path, whole):
    """Requests that are refused, and uploads that are cut; they leave nothing."""
    def refusal(at, status, request, *options, key=""):
        got, _, reply = curl(at, request, *options, key=key)
        error = json.loads(reply)["error"]
        assert got == status and set(error) == {"message", "type", "param", "code"}, (got, reply)
        return error
    bad, huge = os.path.join(folder, "bad"), os.path.join(folder, "huge")
    body = ["--data-binary", f"@{bad}"]
    assert refusal(gateway, 404, "/v1/documents/long/export", key="sk-umbrella")["code"] == "document_not_found"  # another tenant's
    assert refusal(gateway, 401, "/v1/documents/import?name=x", "--data-binary", f"@{path}", key="sk-none")
    assert refusal(gateway, 401, "/v1/documents/import?name=x", "--data-binary", f"@{path}", "-H", "Expect:", key="sk-none")
    assert refusal(gateway, 405, "/v1/documents/long/export", "-X", "DELETE", key="sk-acme")
    assert refusal(plain, 400, "/v1/documents/import", "--data-binary", f"@{path}")["param"] == "name"
    assert refusal(plain, 400, "/v1/documents/import?name=a%2Fb", "--data-binary", f"@{path}")["param"] == "name"
    assert "nam" in refusal(plain, 400, "/v1/documents/import?nam=x", "--data-binary", f"@{path}")["message"]
    assert refusal(plain, 400, "/v1/documents/import?name=x&keep_ms=1h", "--data-binary", f"@{path}")["param"] == "keep_ms"
    assert plain.get("/v1/documents/nope/export")[0] == 404
    for content, word in ((b"", "cut short"), (whole[:-1], "cut short"), (b"x" * 500, "not a document")):
        with open(bad, "wb") as file:
            file.write(content)
        error = refusal(plain, 400, "/v1/documents/import?name=bad", *body)
        assert error["param"] == "file" and word in error["message"], error
    edited(path, bad, len(whole) - 5000)
    assert "capsule body" in refusal(plain, 400, "/v1/documents/import?name=bad", *body)["message"]
    # A body that goes on behind the file is read to its end, and never held.
    with open(huge, "wb") as file:
        file.write(whole + bytes(96 << 20))
    before = plain.peak_memory()
    assert "follow its end" in refusal(plain, 400, "/v1/documents/import?name=bad", "--data-binary", f"@{huge}", "-H", "Expect:")["message"]
    assert plain.peak_memory() - before < 8 << 20, (before, plain.peak_memory())
    # A malformed chunk in the middle, and as the last one.
    for first, last in ((b';a="x', b"0"), (b"", b"0;=")):
        with contextlib.closing(socket.create_connection((plain.host, plain.port))) as client:
            client.sendall(b"POST /v1/documents/import?name=bad HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.sendall(b"%x%s\r\n%s\r\n%s\r\n\r\n" % (len(whole), first, whole, last))
            assert client.recv(100).startswith(b"HTTP/1.1 400"), (first, last)
        eventually(lambda: plain.get("/v1/documents/bad")[0] == 404, 20, "nothing of a malformed body")
    # A client that goes away in the middle, in either direction.
    with contextlib.ExitStack() as uploads:
        for name in ("half", "other-half"):
            client = uploads.enter_context(contextlib.closing(socket.create_connection((plain.host, plain.port))))
            client.sendall(b"POST /v1/documents/import?name=%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (name.encode(), len(whole)))
            client.sendall(whole[:len(whole) // 2])
            eventually(lambda n=name: plain.get(f"/v1/documents/{n}")[0] == 200, 20, "the import began")
        for options in ([], ["-H", "Expect:"]):  # the buffers of two transfers are all that --body-memory allows
            assert "--body-memory" in refusal(plain, 429, "/v1/documents/import?name=third", "--data-binary", f"@{path}", *options)["message"]
        assert "--body-memory" in refusal(plain, 429, "/v1/documents/half/export")["message"]
    eventually(lambda: plain.get("/v1/documents/half")[0] == 404, 20, "nothing of a cut upload")
    eventually(lambda: plain.get("/v1/documents/other-half")[0] == 404, 20, "nothing of a cut upload")
    with contextlib.closing(socket.create_connection((plain.host, plain.port))) as client:
        client.sendall(b"GET /v1/documents/there/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    eventually(lambda: plain.metric("sluice_gateway_answers") == 0, 20, "no transfer is under way")
    assert curl(plain, "/v1/documents/there", "-I")[0] == 200
    with Cluster(worker_args={"kvstore": ["--arena", "6M"]}) as small, Gateway(small) as full:
        for options in ([], ["-H", "Expect:"]):
            assert "no room" in refusal(full, 409, "/v1/documents/import?name=big", "--data-binary", f"@{path}", *options)["message"]
        assert not names(small.channel)


def begin_export(gateway):
    """The socket of a client that has read nothing of a document's file yet."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)  # over loopback the kernel tells of what was read in steps of 64 KiB
    client.settimeout(20 * SLOW)
    client.connect((gateway.host, gateway.port))
    client.sendall(b"GET /v1/documents/license/export HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


def test_a_client_that_reads_slowly_gets_its_file():
    with Cluster(args=["--arena", "128M"]) as cluster, Gateway(cluster, "--reader-timeout", f"{SLOW}s") as gateway:
        with open(os.path.join(ROOT, "LICENSE"), encoding="utf-8") as file:
            status, reply = gateway.post("/v1/documents", {"name": "license", "text": file.read(), "recipe": "full"})
        assert status == 200 and reply["capsule_bytes"] > 8 << 20, reply
        with begin_export(gateway) as slow:
            n_bytes, begin = 0, time.monotonic()
            while n_bytes < 6 << 20:  # more than what waits in sockets
                received = len(slow.recv(8192))
                assert received > 0, f"{n_bytes} bytes: {gateway.errors()}"
                n_bytes += received
                if time.monotonic() < begin + 4 * SLOW:  # a piece of 128 KiB takes it 1.6 s
                    time.sleep(0.1 * SLOW)
        assert "has taken nothing" not in gateway.errors(), gateway.errors()
        clients_that_read_nothing(gateway, 16)


def clients_that_read_nothing(gateway, n):
    """What they take is what is counted for them, and not what gRPC would read ahead of them."""
    before = gateway.peak_memory()
    with contextlib.ExitStack() as clients:
        for _ in range(n):
            clients.enter_context(begin_export(gateway))
        eventually(lambda: gateway.errors().count("has taken nothing") >= n, 30, "they have been waited for")
    if SLOW == 1:  # sanitizers keep what was freed
        grown = gateway.peak_memory() - before
        assert grown < n * (3 << 19), grown / n  # 512 KiB are counted; threads and malloc take some more


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
