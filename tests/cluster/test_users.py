#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Users of a gateway: tenants identified by tokens of an external issuer, and their limits."""
import base64
import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time

from documents import add
from harness import Cluster, call, certificates, eventually, inference, refused, run_tests, stub
import grpc
from test_gateway import ANSWER, Gateway, key_line


def openssl(*words, **more):
    return subprocess.run(["openssl", *words], check=True, capture_output=True, **more).stdout


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Signer:
    """A key pair in a folder, and tokens that it signs."""

    def __init__(self, folder, name, alg):
        self.alg, self.path = alg, os.path.join(folder, f"{name}.key")
        kind = {"RS256": ["RSA", "-pkeyopt", "rsa_keygen_bits:2048"], "ES256": ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]}[alg]
        openssl("genpkey", "-algorithm", *kind, "-out", self.path)
        self.public = openssl("pkey", "-in", self.path, "-pubout").decode()

    def token(self, header=None, **claims):
        claims = {"iss": "https://who", "aud": ["sluice", "others"], "exp": int(time.time()) + 600, "tenant": "acme", **claims}
        body = ".".join(base64url(json.dumps(part).encode()) for part in ({"alg": self.alg, **(header or {})}, claims))
        signature = openssl("dgst", "-sha256", "-sign", self.path, input=body.encode())
        return f"{body}.{base64url(signature if self.alg == 'RS256' else plain(signature))}"


def plain(der):
    """r and s of an ECDSA signature, 32 bytes each, of its DER: 30 n 02 n r 02 n s."""
    r = der[4:4 + der[3]]
    s = der[6 + len(r):]
    return b"".join(int.from_bytes(n, "big").to_bytes(32, "big") for n in (r, s))


def test_tokens_are_tenants():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-jwt-"))
        made = stack.enter_context(certificates("client/acme", "client/beta"))
        cluster = stack.enter_context(Cluster(kvstore=0, certificates=made))
        signer, other = Signer(folder, "one", "RS256"), Signer(folder, "other", "ES256")
        keys, jwt_keys = os.path.join(folder, "keys"), os.path.join(folder, "jwt-keys.pem")

        def write(path, text):
            with open(path, "w") as file:
                file.write(text)
        write(keys, key_line("sk-beta", "beta"))
        write(jwt_keys, signer.public)
        gateway = stack.enter_context(Gateway(cluster, "--keys", keys, "--tenants", made.folder, "--jwt-keys", jwt_keys,
                                              "--jwt-issuer", "https://who", "--jwt-audience", "sluice"))

        def ask(presented):
            return gateway.post("/v1/completions", {**ANSWER, "max_tokens": 2}, presented)

        def refused(status, says, presented):
            got, reply = ask(presented)
            assert got == status and says in reply["error"]["message"], (got, reply)
            assert reply["error"]["type"] == {401: "authentication_error", 403: "permission_error"}[status], reply

        for presented in (signer.token(), signer.token(tenant="beta"), "sk-beta"):
            status, reply = ask(presented)
            assert status == 200, reply
        assert [job.tenant for job in cluster.list()] == ["beta", "beta", "acme"], cluster.list()

        refused(401, "has expired", signer.token(exp=int(time.time()) - 60))
        refused(401, "not good yet", signer.token(nbf=int(time.time()) + 600))
        refused(401, "issuer", signer.token(iss="https://whom"))
        refused(401, "audience", signer.token(aud="others"))
        refused(401, "signed", other.token())
        refused(401, "signed", signer.token()[:-3] + "AAA")
        refused(401, "signed", signer.token({"alg": "none"}))
        refused(401, "not a JSON web token", "a.b.")
        refused(401, "this API key is unknown", "sk-alpha")
        refused(401, "is needed", None)
        refused(403, "no tenant \"gamma\"", signer.token(tenant="gamma"))
        refused(403, "names no tenant", signer.token(tenant=None))
        assert gateway.get("/v1/models")[0] == 401
        # HMAC under the public key, which any client can read.
        body = ".".join(base64url(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"exp": time.time() + 600, "tenant": "acme"}))
        mac = openssl("dgst", "-sha256", "-mac", "HMAC", "-macopt", "hexkey:" + signer.public.encode().hex(), "-binary", input=body.encode())
        refused(401, "signed", f"{body}.{base64url(mac)}")

        # The issuer's keys change: for a while there are two, then the new one.
        write(jwt_keys, signer.public + other.public)
        eventually(lambda: ask(other.token())[0] == 200, 10, "the new key is good")
        assert ask(signer.token())[0] == 200
        write(jwt_keys, other.public)
        eventually(lambda: ask(signer.token())[0] == 401, 10, "the old one is not any more")


def test_tokens_without_certificates_let_in():
    with tempfile.TemporaryDirectory(prefix="sluice-jwt-") as folder, Cluster(kvstore=0) as cluster:
        signer, keys = Signer(folder, "one", "ES256"), os.path.join(folder, "keys.pem")
        with open(keys, "w") as file:
            file.write(signer.public)
        with Gateway(cluster, "--jwt-keys", keys, "--jwt-tenant", "org") as gateway:
            assert gateway.post("/v1/completions", {**ANSWER, "max_tokens": 1}, signer.token(org="anybody"))[0] == 200
            assert gateway.post("/v1/completions", ANSWER, signer.token())[0] == 403
            status, reply = gateway.post("/v1/completions", ANSWER)
            assert status == 401 and "JSON web token" in reply["error"]["message"], reply
            assert "made for other services" in gateway.errors()


# ---- limits -------------------------------------------------------------------------------------------------------------

def headers_of(gateway, key, **fields):
    """(status, headers in small letters, the reply) of a completion."""
    with contextlib.closing(gateway.connect()) as connection:
        connection.request("POST", "/v1/completions", json.dumps({**ANSWER, "max_tokens": 1, **fields}), {"Authorization": f"Bearer {key}"})
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read().decode()


def limited(gateway, limit):
    return gateway.metric(f'sluice_gateway_limited_total{{limit="{limit}"}}')


def until_refused(gateway, key, **fields):
    """The first 429 of a key whose minute holds one request: on a machine that is very slow it may be the second or third."""
    for _ in range(5):
        status, headers, reply = headers_of(gateway, key, **fields)
        if status == 429:
            return headers, json.loads(reply)["error"]
        assert status == 200, reply
    raise AssertionError("five requests in a minute that has one")


def test_limits_of_a_minute():
    with tempfile.TemporaryDirectory(prefix="sluice-limits-") as folder, Cluster(kvstore=0) as cluster:
        signer, keys, jwt_keys = Signer(folder, "one", "ES256"), os.path.join(folder, "keys"), os.path.join(folder, "jwt-keys.pem")
        with open(keys, "w") as file:
            file.write(key_line("sk-one", "a", "requests=1") + key_line("sk-tokens", "b", "tokens=1") + key_line("sk-free", "c")
                       + "jwt * requests=1\njwt rich requests=1000 tokens=1000000\n")
        with open(jwt_keys, "w") as file:
            file.write(signer.public)
        with Gateway(cluster, "--keys", keys, "--jwt-keys", jwt_keys) as gateway:
            status, headers, _ = headers_of(gateway, "sk-one")
            assert status == 200 and headers["x-ratelimit-limit-requests"] == "1" and headers["x-ratelimit-remaining-requests"] == "0", headers
            assert "x-ratelimit-limit-tokens" not in headers, headers
            headers, error = until_refused(gateway, "sk-one", stream=True)
            assert 1 <= int(headers["retry-after"]) <= 60 and headers["x-ratelimit-reset-requests"].endswith("s"), headers
            assert error["type"] == "rate_limit_error" and "1 requests a minute" in error["message"], error
            assert limited(gateway, "requests") == 1 and limited(gateway, "tokens") == 0

            # The first prompt takes hundreds of minutes' tokens; the second waits for them, and is told how long.
            status, headers, _ = headers_of(gateway, "sk-tokens", stream=True)
            assert status == 200 and headers["x-ratelimit-limit-tokens"] == "1", headers
            status, headers, reply = headers_of(gateway, "sk-tokens")
            assert status == 429 and int(headers["retry-after"]) > 6000 and headers["x-ratelimit-remaining-tokens"] == "0", (headers, reply)
            assert "tokens of prompts a minute" in reply and limited(gateway, "tokens") == 1, reply

            # A tenant's tokens of JSON are one caller, whichever they are; others have their own minute.
            assert headers_of(gateway, signer.token(tenant="poor"))[0] == 200
            until_refused(gateway, signer.token(tenant="poor", sub="another"))
            assert headers_of(gateway, signer.token(tenant="other"))[0] == 200
            for i in range(3):
                status, headers, _ = headers_of(gateway, signer.token(tenant="rich"))
                assert status == 200 and headers["x-ratelimit-limit-requests"] == "1000", headers
            status, headers, _ = headers_of(gateway, "sk-free")
            assert status == 200 and not any(name.startswith("x-ratelimit") for name in headers), headers


def test_prompts_are_charged_as_counted():
    """Not as their bytes were guessed; and what never became a job costs nothing."""
    with tempfile.TemporaryDirectory(prefix="sluice-limits-") as folder, Cluster(kvstore=0) as cluster:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write(key_line("sk", "a", "tokens=1"))
        with Gateway(cluster, "--keys", keys) as gateway:
            for _ in range(2):
                status, _, reply = headers_of(gateway, "sk", prompt=[10**9])
                assert status == 400, reply
            began = time.monotonic()
            status, _, reply = headers_of(gateway, "sk")
            assert status == 200, reply
            n = json.loads(reply)["usage"]["prompt_tokens"]
            assert abs(n - len(ANSWER["prompt"]) / 4) > 50, "a guess that is right shows nothing"
            status, headers, reply = headers_of(gateway, "sk")  # a minute a token
            assert status == 429 and 60 * n - (time.monotonic() - began) <= int(headers["retry-after"]) <= 60 * n, (headers, reply)


def test_prompts_of_a_list_are_owed_as_they_are_read():
    """A client that leaves before the last one pays for those before it, with the document that a guess does not know."""
    with tempfile.TemporaryDirectory(prefix="sluice-limits-") as folder, certificates("client/a") as made, \
            Cluster(certificates=made) as cluster, cluster.channel_of("client/a") as a:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write(key_line("sk", "a", "tokens=6000"))
        assert 1500 < add(a, "gpl")[0].n_tokens < 6000
        with Gateway(cluster, "--keys", keys, "--tenants", made.folder) as gateway:
            body = {"prompt": ["why?"] * 8, "document": "gpl", "max_tokens": 400, "ignore_eos": True, "stream": True}
            with contextlib.closing(gateway.connect()) as connection:
                connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": "Bearer sk"})
                reply = connection.getresponse()
                while b'"index":5' not in reply.readline():
                    pass
            eventually(lambda: gateway.metric("sluice_gateway_answers") == 0, 20, "it is noticed")
            status, _, reply = headers_of(gateway, "sk", prompt="x")
            assert status == 429 and "tokens of prompts a minute" in reply, (status, reply)


# ---- two of them --------------------------------------------------------------------------------------------------------

def test_two_keys_neither_see_nor_hold_up_each_other():
    """One user fills all job slots and the line for them; the next free slot goes to the other user, who sees none of the first one's jobs."""
    unknown = [grpc.StatusCode.NOT_FOUND]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-two-"))
        made = stack.enter_context(certificates("client/loud", "client/quiet"))
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write(key_line("sk-loud", "loud") + key_line("sk-quiet", "quiet"))
        cluster = stack.enter_context(Cluster(kvstore=0, certificates=made, args=["--arena", "128M"],
                                              coordinator_args=["--max-jobs", "2", "--queue", "16"]))
        gateway = stack.enter_context(Gateway(cluster, "--keys", keys, "--tenants", made.folder))
        quiet = stack.enter_context(cluster.channel_of("client/quiet"))

        def flood(n, n_tokens):
            """n more of the loud one's, in this order: connections whose end is their job's."""
            connections = []
            for _ in range(n):
                before = {job.job_id for job in cluster.list()}
                connection = stack.enter_context(contextlib.closing(gateway.connect()))
                body = {**ANSWER, "max_tokens": n_tokens, "ignore_eos": True, "stop": None, "stream": True}
                connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": "Bearer sk-loud"})
                eventually(lambda: {job.job_id for job in cluster.list()} - before, 20, "it is in line")
                connections.append(((({job.job_id for job in cluster.list()}) - before).pop(), connection))
            return connections

        running = flood(2, 8000)
        eventually(lambda: all(cluster.get(job_id).state == inference.DECODING for job_id, _ in running), 30, "they run")
        waiting = flood(4, 20)
        replies = []
        asking = threading.Thread(target=lambda: replies.append(gateway.post("/v1/completions", ANSWER, "sk-quiet")))
        asking.start()
        eventually(lambda: [job.tenant for job in cluster.list()].count("quiet") == 1, 20, "the quiet one is in line, the last")
        assert all(cluster.get(job_id).state == inference.QUEUED for job_id, _ in waiting)
        running[0][1].close()
        asking.join()
        assert replies[0][0] == 200, replies
        mine = call(quiet, "sluice.v1.Inference.List", inference.ListRequest()).jobs
        assert [job.tenant for job in mine] == ["quiet"], mine
        begun = [cluster.get(job_id) for job_id, _ in waiting]
        assert all(job.state == inference.QUEUED or job.statistics.queue_ms > mine[0].statistics.queue_ms for job in begun), (mine, begun)
        for job_id, _ in running + waiting:
            job = inference.JobRequest(job_id=job_id)
            for method in ("Get", "Cancel"):
                refused(unknown, call, quiet, f"sluice.v1.Inference.{method}", job)
            refused(unknown, lambda: list(stub(quiet.unary_stream, "sluice.v1.Inference.Watch")(inference.WatchRequest(job_id=job_id), timeout=20)))
        for _, connection in running + waiting:
            connection.close()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
