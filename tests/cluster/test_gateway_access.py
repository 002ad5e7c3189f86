#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Who may use the gateway: keys, certificates, hosts and pages of other sites."""
import contextlib
import json
import os
import re
import socket
import ssl
import tempfile
import time
import warnings

from harness import SLOW, Cluster, certificates, eventually, run_tests
from test_gateway import Gateway, finished_text, raw, running_jobs, key_line, ANSWER


def headers_of(gateway, method, path, headers):
    """(status, headers) of a request whose Host header the caller writes too."""
    with contextlib.closing(gateway.connect()) as connection:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        reply = connection.getresponse()
        reply.read()
        return reply.status, reply.headers


def test_pages_of_other_sites_and_other_hosts():
    """A web page can make a browser ask 127.0.0.1, under its own name too: neither is answered unless an option has it."""
    with Cluster(kvstore=0) as cluster, \
            Gateway(cluster, "--allowed-origins", "https://chat.example,http://b.example:3000", "--allowed-hosts", "gw.example") as gateway:
        def ask(path="/status.json", method="GET", **headers):
            return headers_of(gateway, method, path, {name.replace("_", "-"): value for name, value in headers.items()})
        mine = f"localhost:{gateway.port}"
        for host in ("127.0.0.1", "10.1.2.3:80", "[::1]:8000", mine, "LOCALHOST", "gw.example", "gw.example.:8000"):
            assert ask(Host=host)[0] == 200, host
            assert ask("/health", Host=host)[0] == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "x", ""):
            for path in ("/status.json", "/status", "/metrics", "/health", "/v1/models", "/nothing"):
                assert ask(path, Host=host)[0] == 403, (host, path)
                assert ask(f"http://{mine}{path}", Host=host)[0] != 403, (host, path)  # a target's host replaces the header's
                assert host == "" or ask(f"HTTP://{host}:80{path}", Host=mine)[0] == 403, (host, path)
        for foreign in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
                        {"Origin": "https://chat.example.evil"}, {"Origin": "http://chat.example"}):
            for path in ("/status.json", "/status", "/metrics"):
                status, got = headers_of(gateway, "GET", path, foreign)
                assert status == 403 and got["Access-Control-Allow-Origin"] is None, (foreign, path)
            body = json.dumps(ANSWER).encode()
            head = "".join(f"{name}: {value}\r\n" for name, value in foreign.items())
            sent = f"POST /v1/completions HTTP/1.1\r\nHost: {mine}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n{head}\r\n"
            assert b" 403 " in raw(gateway, sent.encode(), body), foreign
        # Its own pages, a link to its page, tools, and the sites of the option
        assert ask(Origin=f"http://{mine}", Host=mine, Sec_Fetch_Site="same-origin")[0] == 200
        linked = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
        assert ask("/status", Sec_Fetch_Dest="document", **linked)[0] == 200 and ask("/status", Sec_Fetch_Dest="iframe", **linked)[0] == 403
        assert ask("/v1/models", Sec_Fetch_Dest="document", **linked)[0] == 403 and ask(Sec_Fetch_Site="none")[0] == 200
        for origin in ("https://chat.example", "http://b.example:3000"):
            status, got = ask("/v1/models", Origin=origin, Sec_Fetch_Site="cross-site")
            assert status == 200 and got["Access-Control-Allow-Origin"] == origin and "Origin" in got["Vary"], got
            status, got = ask("/v1/chat/completions", "OPTIONS", Origin=origin, Access_Control_Request_Method="POST",
                              Access_Control_Request_Headers="authorization,x-stainless-os")
            assert status == 200 and "POST" in got["Access-Control-Allow-Methods"], got
            assert got["Access-Control-Allow-Headers"] == "authorization,x-stainless-os" and got["Access-Control-Allow-Origin"] == origin, got


def test_certificates_on_both_sides():
    with certificates() as made, Cluster(kvstore=0, certificates=made) as cluster:
        made.make("server/gateway")
        files = ("--https-cert", made.file("server/gateway", "pem"), "--https-key", made.file("server/gateway", "key"))
        context = ssl.create_default_context(cafile=f"{made.folder}/ca.pem")
        context.check_hostname = False
        with secured(cluster, context, *files) as gateway:
            assert finished_text(gateway.complete()).strip() == "48213"
            for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                assert speaks(gateway, version) == (version >= ssl.TLSVersion.TLSv1_2), version
            assert not speaks(gateway, ssl.TLSVersion.TLSv1_2, "AES128-SHA:AES256-GCM-SHA384:ECDHE-ECDSA-AES128-SHA")  # no forward secrecy, or CBC
            chunks, done = gateway.chunks("/v1/completions", ANSWER)
            assert done and len(chunks) > 3
            raw(gateway, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            asked = {**ANSWER, "max_tokens": 4000, "ignore_eos": True, "stop": None}
            with gateway.stream("/v1/completions", asked) as (reply, connection):
                reply.read(500)
            eventually(lambda: running_jobs(cluster) == 0, 5, "the job is cancelled")


def ask(address, sent, context=None):
    """Returns the status codes of the answers, until the server closes the connection."""
    host, port = address.rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), 20 * SLOW))
        if context:
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname="localhost"))
        got = b""
        with contextlib.suppress(OSError):  # a server that has refused the request reads no further; its answer is there
            connection.sendall(sent)
        with contextlib.suppress(OSError):
            while some := connection.recv(65536):
                got += some
        return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+) ", got)]


def test_forms_of_requests_at_every_listener():
    """Heads and chunks that two readers could take for different requests; nothing is read after them."""
    plain = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
    closing = plain + b"Connection: close\r\n"
    malformed = (plain.replace(b"metrics", b"metrics%00x"), plain.replace(b"metrics", b"metrics\0x"), plain.replace(b"metrics", b"metrics%zz"),
                 plain.replace(b"metrics", b"metrics?a=%00"), plain + b"Content-Length : 5\r\n", plain + b"A b: c\r\n",
                 plain + b"A: b\rContent-Length: 5\r\n", plain + b"Host: localhost\r\n", b"GET /metrics HTTP/1.1\r\nA: b\r\n",
                 plain + b"Content-Length: 2\r\nContent-Length: 2\r\n", plain + b"Content-Length: 7\r\nTransfer-Encoding: chunked\r\n",
                 plain + b"Transfer-Encoding: gzip, chunked\r\n", *(plain.replace(b"/metrics", target) for target in (
                     b"metrics", b"http:///metrics", b"http://", b"http://me@localhost/metrics", b"http://local%68ost/metrics",
                     b"http:%2F%2Flocalhost/metrics", b"http://" + b"a" * 256 + b"/metrics")))
    sizes = {b"2": 200, b"02;a=b": 200, b"2;a": 200, b'2;a="x;y";b': 200, b"2;a ; b = c": 200, b"2;" + b"a" * 200: 200,
             b"2;": 400, b"2;;": 400, b"2;=b": 400, b'2;a="x': 400, b'2;a="\\': 400, b"2;a=b c": 400, b"2;a=\x00": 400, b"2;\x01=": 400,
             b"2;a\rb": 400, b"2;a=\xff": 400, b"2;" + b"a" * 300: 400, b"2;" + b"a" * 200000: 400, b"0x2": 400, b"+2": 400, b" 2": 400,
             b"-1": 400, b"": 400, b"g": 400, b"0" * 17 + b"2": 400}
    rest = json.dumps(ANSWER).encode()[1:]
    head = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with certificates("server/gateway") as made, Cluster(kvstore=0) as cluster, \
            Gateway(cluster, "--admin-listen", "127.0.0.1:0") as gateway:
        context = ssl.create_default_context(cafile=f"{made.folder}/ca.pem")
        with secured(cluster, context, "--https-cert", made.file("server/gateway", "pem"), "--https-key",
                     made.file("server/gateway", "key")) as https:
            for address, tls in ((f"{gateway.host}:{gateway.port}", None), (f"{https.host}:{https.port}", context), (gateway.admin, None)):
                is_admin = address == gateway.admin
                for target in (b"/metrics", b"http://localhost/metrics", b"hTTps://127.0.0.1:1/metrics?a=b"):
                    assert ask(address, closing.replace(b"/metrics", target) + b"\r\n", tls) == [200], (address, target)
                for one in malformed:
                    assert set(ask(address, one + b"\r\n", tls)) == {400}, (address, one)
                for size, status in sizes.items():
                    path = b"GET /livez" if is_admin else b"POST /v1/completions"
                    body = size + b"\r\n{ \r\n%x\r\n%s\r\n0\r\n\r\n" % (len(rest), rest)
                    got = ask(address, path + head + body + closing + b"\r\n", tls)
                    assert got == [400 if is_admin else status], (address, size[:20], len(size), got)
            # The line of a later chunk, and of the last one, that comes in pieces.
            for end in (b"0;\x01\r\n\r\n", b"0;" + b"a" * 300 + b"\r\n\r\n"):
                with socket.create_connection((gateway.host, gateway.port), 20 * SLOW) as slow:
                    for piece in (b"POST /v1/completions" + head + b"2\r\n{ \r\n%x;a=b\r" % len(rest), b"\n" + rest, b"\r\n" + end[:2], end[2:]):
                        slow.sendall(piece)
                        time.sleep(0.05)
                    assert b" 400 " in slow.recv(65536), end[:20]


def test_bodies_have_a_common_limit():
    """Bodies that come in hold memory until --body-memory is full: the next one is refused, and taken when they have gone."""
    limit, n_bytes = 1 << 20, 60000  # a body takes at most twice its bytes
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % n_bytes
    body = json.dumps(ANSWER).encode().ljust(n_bytes)
    with Cluster(kvstore=0) as cluster, Gateway(cluster, "--max-body", "64K", "--body-memory", "1M") as gateway, contextlib.ExitStack() as stack:
        def held():
            return gateway.metric("sluice_gateway_body_bytes")

        def begin():
            """Sends a body but its last byte."""
            connection = stack.enter_context(socket.create_connection((gateway.host, gateway.port), 20 * SLOW))
            connection.sendall(head + body[:-1])
            return connection
        while (before := held()) <= limit - 2 * n_bytes:
            begin()
            eventually(lambda: held() >= before + n_bytes - 1, 20, "it is read")
        others = [begin() for _ in range(10)]
        for _ in range(100):  # each asks the gateway, which reads the bodies meanwhile
            assert held() <= limit, held()
        replies = []
        for connection in others:
            connection.sendall(body[-1:])
            replies.append(connection.recv(65536))
        assert any(b" 429 " in reply and b"--body-memory" in reply for reply in replies), replies
        stack.close()
        eventually(lambda: held() == 0, 20, "the memory is given back")
        assert gateway.post("/v1/completions", body.decode())[0] == 200


def speaks(gateway, version, ciphers="ALL"):
    """Returns whether a client that knows only this version of TLS and these ciphers is served."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    with socket.create_connection((gateway.host, gateway.port), 10 * SLOW) as plain:
        try:
            context.wrap_socket(plain).close()
            return True
        except (ssl.SSLError, OSError):
            return False


def test_a_certificate_that_is_replaced():
    """Later clients see the new certificate; open connections stay, and a damaged file changes nothing."""
    with certificates("server/gateway") as made, Cluster(kvstore=0) as cluster:
        context = ssl.create_default_context(cafile=f"{made.folder}/ca.pem")
        pem, key = made.file("server/gateway", "pem"), made.file("server/gateway", "key")
        with secured(cluster, context, "--https-cert", pem, "--https-key", key) as gateway:
            def serial():
                with socket.create_connection((gateway.host, gateway.port), 10 * SLOW) as plain, \
                        context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                    return wrapped.getpeercert()["serialNumber"]
            first = serial()
            with gateway.stream("/v1/completions", {**ANSWER, "max_tokens": 3000, "ignore_eos": True, "stop": None}) as (reply, _):
                reply.read(100)
                made.make("server/gateway")
                eventually(lambda: serial() != first, 10, "the new certificate")
                assert reply.read().decode().endswith("data: [DONE]\n\n")
            second = serial()
            for path in (pem, key):
                with open(path) as file:
                    whole = file.read()
                with open(path, "w") as file:
                    file.write(whole[:len(whole) // 2])
                n_told = gateway.errors().count("the previous certificate stays in use")
                eventually(lambda: serial() == second and gateway.errors().count("the previous certificate stays in use") > n_told, 20,
                           "the damaged file is told of")
                with open(path, "w") as file:
                    file.write(whole)
            made.make("server/other")
            os.replace(made.file("server/other", "key"), key)  # another's
            time.sleep(1.2)
            assert serial() == second


def secured(cluster, context, *options):
    """Gateway asks for its own health, which needs the context first."""
    class Secured(Gateway):
        def connect(self, timeout=60):
            self.context = context
            return super().connect(timeout)
    return Secured(cluster, *options)


def stranger(path, length):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-acm\r\n%s\r\n\r\n" % (path.encode(), length)


def test_keys_are_tenants():
    """Neither finds what the other has had read, and the cluster knows whose a job is."""
    with tempfile.TemporaryDirectory(prefix="sluice-keys-") as folder, certificates() as made, Cluster(certificates=made) as cluster:
        made.make("client/acme", "client/beta", "client/acme/alice")  # the last one is client-acme-alice.pem, and of the tenant acme
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write(key_line("sk-acme", "acme") + key_line("sk-beta", "beta", "answers=1") + key_line("sk-gone", "gone") + key_line("sk-two", "acme-alice"))
        with Gateway(cluster, "--keys", keys, "--tenants", made.folder) as gateway:
            def ask(key, **fields):
                return gateway.post("/v1/completions", {**ANSWER, **fields}, key)

            for key in (None, "", "sk-acm", "sk-acmee"):
                status, reply = ask(key)
                assert status == 401 and reply["error"]["type"] == "authentication_error" and reply["error"]["code"] == "invalid_api_key", (key, reply)
            assert gateway.get("/v1/models")[0] == 401 and gateway.get("/health")[0] == 200 and gateway.get("/metrics")[0] == 200
            for path in ("/", "/h", "/healthz", "/metrics/", "/models", "/status.json", "/v1/models/demo"):  # unknown paths are not open
                assert gateway.get(path)[0] == 401, path
            # A caller without a key is refused by the head, and holds nothing: its body is not read, or it is read and discarded.
            for path in ("/v1/completions", "/nothing"):
                for length in (b"Content-Length: 16000000\r\nExpect: 100-continue", b"Content-Length: 10\r\nExpect: 100-continue", b"Transfer-Encoding: chunked"):
                    got = raw(gateway, stranger(path, length), timeout=5)
                    assert b" 401 " in got and b"Connection: close" in got, (path, length, got)
            with socket.create_connection((gateway.host, gateway.port), 60 * SLOW) as sender:
                sender.sendall(stranger("/v1/completions", b"Content-Length: 16000000") + b"x" * 8000000)
                assert gateway.metric("sluice_gateway_body_bytes") == 0
                sender.sendall(b"x" * 8000000)  # a client that reads nothing before its body is sent does not see a broken pipe
                got = sender.recv(65536)
                assert b" 401 " in got and b"Connection: close" in got, got
            assert gateway.metric("sluice_gateway_body_bytes") == 0
            for key in ("sk-gone", "sk-two"):
                status, reply = ask(key)
                assert status == 503 and "certificate" in reply["error"]["message"], reply

            def cached(key):
                status, reply = ask(key)
                assert status == 200, reply
                return reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached("sk-acme") == 0
            eventually(lambda: cached("sk-acme") > 100, 20, "acme finds its own")
            assert cached("sk-beta") == 0, "beta finds nothing of acme's"
            assert {job.tenant for job in cluster.list()} == {"acme", "beta"}

            # One answer at a time for beta; acme does not mind.
            body = json.dumps({**ANSWER, "max_tokens": 2000, "ignore_eos": True, "stop": None, "stream": True})
            with contextlib.closing(gateway.connect()) as connection:
                connection.request("POST", "/v1/completions", body, {"Authorization": "Bearer sk-beta"})
                reply = connection.getresponse()
                assert reply.status == 200 and reply.read(100)
                assert ask("sk-beta")[0] == 429 and ask("sk-acme")[0] == 200

            with open(keys, "w") as file:
                file.write(key_line("sk-acme", "acme"))
            eventually(lambda: ask("sk-beta")[0] == 401, 10, "a removed key is refused")
            assert ask("sk-acme")[0] == 200


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
