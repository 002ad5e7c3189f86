#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Certificates everywhere: answers are those of one process, the store's rows included; each role may do what it should and no more;
strangers, on the control plane or on the data plane, get nothing, while the others go on."""
import os
import shutil
import subprocess
import tempfile
import time

from harness import (BIN, MODEL, SLOW, Cluster, call, certificates, cluster_pb, connect, document, documents_pb, eventually, health, in_one_process,
                     inference, question, refused, request, run_tests, tokens, worker_pb)
import grpc


def test_answers_over_tls_are_those_of_one_process():
    text = document(4000) + question()
    with certificates() as made, Cluster(transport="tcp", certificates=made) as cluster:
        for recipe in ("full", "tailorkv-near"):
            asked = inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=12, ignore_eos=True)
            for _ in range(2):  # and once from what the store kept
                finished, events = cluster.answer(asked)
                assert tokens(events) == in_one_process(recipe, text), recipe
            assert finished.statistics.n_reused_tokens > 0 or recipe != "full", finished.statistics


def test_an_aggregated_worker_has_the_certificate_of_a_decode_worker():
    """With it, the worker stores what it reads, offloads layers, and serves Prefill to coordinators alone."""
    text = document(2000) + question()
    with certificates("worker/prefill/p") as made, Cluster(prefill=0, transport="tcp", certificates=made,
                                                           worker_args={"decode": ["--aggregated"]}) as cluster:
        for recipe in ("full,format=k4v2", "tailorkv-near"):
            asked = inference.GenerateRequest(text=text, recipe=recipe, max_new_tokens=12, ignore_eos=True)
            finished, events = cluster.answer(asked)
            assert tokens(events) == in_one_process(recipe, text) and finished.statistics.transport == "nothing: one worker", finished
            eventually(lambda: cluster.answer(asked)[0].statistics.n_reused_tokens > 0, 20, f"{recipe}: a store has the prompt")
        with made.channel(cluster.processes["decode-0"].address, "worker/prefill/p") as channel:
            assert "expected coordinator" in denial(channel, "Prefill", "Run", 20)


# Every method, and the roles that may call it.
COMPUTE = "prefill decode"
METHODS = {
    "Inference": dict.fromkeys("Generate Submit SubmitInParts Watch Cancel Get List Model EndConversation".split(), "client operator"),
    "Documents": dict.fromkeys("Add Get List Pin Delete Export Import".split(), "client operator"),
    "Cluster": {"RegisterWorker": "prefill decode kvstore", "Heartbeat": "prefill decode kvstore", "Drain": "operator prefill decode kvstore",
                "Workers": "operator"},
    "Prefill": {"Run": "coordinator"},
    "Decode": dict.fromkeys("Reserve Renew Run Release Archive".split(), "coordinator"),
    "Store": {**dict.fromkeys("Reserve Renew Release Lookup Fetch".split(), f"coordinator {COMPUTE}"), "Stats": "coordinator operator",
              **dict.fromkeys("Forget Protect Read Write".split(), "coordinator"),
              **dict.fromkeys("OpenAnnex GrantStretch AwaitAnnex".split(), COMPUTE)},
}
ROLES = {"client": "client/acme", "operator": "operator/me", "coordinator": "coordinator/coordinator", "prefill": "worker/prefill/p",
         "decode": "worker/decode/d", "kvstore": "worker/kvstore/k", "": "worker/unstated"}


def denial(channel, service, method, seconds):
    """An empty request: who may call at all is checked before it is read. Returns the refusal, or None."""
    called = channel.stream_stream(f"/sluice.v1.{service}/{method}", request_serializer=bytes, response_deserializer=bytes)
    try:
        for _ in called(iter([b""]), timeout=seconds):
            break
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.PERMISSION_DENIED and " expected " in error.details():
            return error.details()
    return None


def test_each_method_is_for_its_roles_alone():
    known = {service: sorted(methods) for service, methods in METHODS.items()}
    defined = {name: sorted(m.name for m in service.methods) for file in (inference, cluster_pb, worker_pb, documents_pb)
               for name, service in file.DESCRIPTOR.services_by_name.items()}
    assert known == defined, (known, defined)
    with certificates(*ROLES.values()) as made, Cluster(certificates=made) as cluster:
        servers = dict.fromkeys(METHODS, "coordinator") | {"Prefill": "prefill-0", "Decode": "decode-0", "Store": "kvstore-0"}
        for role, who in ROLES.items():
            for service, methods in METHODS.items():
                process = cluster.processes.get(servers[service], cluster.coordinator)
                with made.channel(process.address, who) as channel:
                    for method, allowed in methods.items():
                        said = denial(channel, service, method, (1 if role in allowed.split() else 20) * SLOW)
                        assert (said is None) == (role in allowed.split()), (who, service, method, said)
                        assert said is None or f"spiffe://sluice/{who}: " in said, said
                    checked = channel.unary_unary("/grpc.health.v1.Health/Check",
                                                  request_serializer=health.HealthCheckRequest.SerializeToString,
                                                  response_deserializer=health.HealthCheckResponse.FromString)
                    assert checked(health.HealthCheckRequest(), timeout=10).status == health.HealthCheckResponse.SERVING


def info_of(name, role, address="127.0.0.1:1"):
    return cluster_pb.WorkerInfo(name=name, role=role, rpc_address=address, fabric_address="127.0.0.1:2", version="0.1.0", epoch=7,
                                 arena_bytes=1 << 30, max_jobs=1)


def test_a_worker_registers_as_its_certificate_says():
    """With its own role and name, and at no address of another worker: who calls there expects the name."""
    denied = [grpc.StatusCode.PERMISSION_DENIED]
    rows = (("worker/kvstore/k", info_of("k", cluster_pb.PREFILL), ("worker/kvstore/k", "worker/prefill")),
            ("worker/prefill/p", info_of("p", cluster_pb.DECODE), ("worker/prefill/p", "worker/decode")),
            ("worker/decode/d", info_of("d", cluster_pb.KVSTORE), ("worker/decode/d", "worker/kvstore")),
            ("worker/prefill/p", info_of("prefill-0", cluster_pb.PREFILL), ('"prefill-0"', '"p"')),
            ("client/acme", info_of("acme", cluster_pb.PREFILL), ("client/acme", "worker")),
            ("worker/unstated", info_of("unstated", cluster_pb.KVSTORE), ("worker/unstated", "states the role")))
    with certificates(*ROLES.values()) as made, Cluster(certificates=made) as cluster:
        for who, info, words in rows:
            with cluster.channel_of(who) as channel:
                said = refused(denied, call, channel, "sluice.v1.Cluster.RegisterWorker", cluster_pb.RegisterRequest(worker=info))
                assert all(word in said for word in words), (said, words)
        with cluster.channel_of("worker/prefill/p") as channel:
            refused(denied, call, channel, "sluice.v1.Cluster.Drain", cluster_pb.DrainRequest(name="prefill-0"))
        # A worker of our own that says it is where another is. Jobs are not sent there.
        with cluster.channel_of("worker/decode/d") as channel:
            real = {w.info.name: w.info for w in cluster.workers().workers}["decode-0"]
            lie = cluster_pb.WorkerInfo()
            lie.CopyFrom(real)
            lie.name, lie.epoch, lie.arena_bytes = "d", 9, 1 << 40
            lie.rpc_address = f"decode-0@{real.rpc_address}"
            said = refused([grpc.StatusCode.INVALID_ARGUMENT], call, channel, "sluice.v1.Cluster.RegisterWorker",
                           cluster_pb.RegisterRequest(worker=lie))
            assert "contains a name" in said, said
            lie.rpc_address = real.rpc_address
            call(channel, "sluice.v1.Cluster.RegisterWorker", cluster_pb.RegisterRequest(worker=lie))
            finished, _ = cluster.answer(request(1000))
            assert finished.status_code == 0, finished
            assert 'of "decode-0", not of "d"' in cluster.coordinator.errors(), cluster.coordinator.errors()
        # A program whose certificate is of another role does not start.
        said = subprocess.run([os.path.join(BIN, "sluice-decode"), "--name", "p", "--coordinator", cluster.coordinator.address,
                               "--model", MODEL, "--arena", "16M", "--threads", "1", *made.options("worker/prefill/p")],
                              capture_output=True, text=True, timeout=60)
        assert said.returncode == 2 and "worker/prefill/p: expected worker/decode" in said.stderr, said


def test_certificates_without_roles_until_they_are_replaced():
    """An upgrade: with --tls-unstated-roles everywhere, workers with today's and with new certificates serve together."""
    with certificates() as made, Cluster(prefill=1, decode=0, kvstore=0, transport="tcp", certificates=made, args=["--tls-unstated-roles"],
                                         coordinator_args=["--tls-unstated-roles"]) as cluster:
        made.make("worker/decode-0")
        cluster._start("decode-0", ["sluice-decode", "--name", "decode-0", "--coordinator", cluster.addresses_of_all(), "--transport",
                                    "tcp", "--arena", "64M", "--model", MODEL, "--threads", "1", "--tls-unstated-roles",
                                    *made.options("worker/decode-0")])
        cluster.wait_ready()
        finished, _ = cluster.answer(request(1000))
        assert finished.status_code == 0, finished
        assert "tls-unstated-roles" in cluster.coordinator.errors()


def test_strangers_get_nothing():
    nothing = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED]
    with certificates("client/acme") as made, certificates("client/acme", "operator/me", "worker/prefill/prefill-9") as theirs, \
            Cluster(kvstore=0, certificates=made) as cluster:
        shutil.copy(f"{made.folder}/ca.pem", f"{theirs.folder}/ca.pem")  # they believe us; we do not believe them
        workers = cluster_pb.WorkersRequest()
        for address in (cluster.coordinator.address, cluster.processes["decode-0"].address):
            with theirs.channel(address, "operator/me") as channel:
                refused(nothing, call, channel, "sluice.v1.Cluster.Workers", workers, 5)
            with connect(address) as channel:
                refused(nothing, call, channel, "sluice.v1.Cluster.Workers", workers, 5)
        said = subprocess.run([os.path.join(BIN, "sluice-prefill"), "--name", "prefill-9", "--coordinator", cluster.coordinator.address,
                               "--model", MODEL, "--arena", "16M", "--threads", "1", *made.options("client/acme")],
                              capture_output=True, text=True, timeout=60)
        assert said.returncode == 2 and "the certificate" in said.stderr and "acme" in said.stderr, said
        finished, _ = cluster.answer(request(1000))
        assert finished.status_code == 0, finished


def test_certificates_are_replaced_under_way():
    """Files that are written anew are used for what connects from then on: also when the old ones have ended by then."""
    with certificates() as made, Cluster(kvstore=0, transport="tcp", certificates=made) as cluster:
        finished, _ = cluster.answer(request(1000))
        assert finished.status_code == 0, finished
        # A new authority, which the old certificates are not of.
        for name in ("ca.key", "ca.pem"):
            os.remove(f"{made.folder}/{name}")
        made.make("coordinator/coordinator", "operator/me", "worker/prefill/prefill-0", "worker/decode/decode-0")
        time.sleep(12)  # gRPC looks at the files every 10 s
        cluster.channel.close()
        cluster.channel = cluster.channel_of("operator/me")
        cluster.start_worker("decode-1")  # only knows the new one; prefill-0 was there before
        cluster.kill("decode-0")
        cluster.wait_ready()
        finished, _ = cluster.answer(request(1100))
        assert finished.status_code == 0, finished
        assert "was read again" in cluster.processes["prefill-0"].errors()


def test_a_certificate_that_is_taken_back():
    """A client's next call is refused though it is connected; a worker is not heard any more, and ends."""
    with certificates("client/acme", "client/other") as made:
        made.make("-")
        listed = ["--tls-revoked", f"{made.folder}/revoked.pem"]
        with Cluster(kvstore=0, transport="tcp", certificates=made, args=listed, coordinator_args=listed) as cluster:
            cluster.start_worker("decode-1")
            cluster.wait_ready()
            listing = "sluice.v1.Inference.List"
            with cluster.channel_of("client/acme") as acme, cluster.channel_of("client/other") as other:
                call(acme, listing, inference.ListRequest())
                call(other, listing, inference.ListRequest())
                made.make("-client/acme", "-worker/decode/decode-0")

                def refuses():
                    try:
                        call(acme, listing, inference.ListRequest())
                        return False
                    except grpc.RpcError as error:
                        assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "was revoked" in error.details(), error
                        return True
                eventually(refuses, 10, "a client whose certificate was revoked is refused")
                call(other, listing, inference.ListRequest())
            victim = cluster.processes.pop("decode-0")
            eventually(lambda: victim.popen.poll() == 1, 15, "a worker whose certificate was revoked ends")
            assert "was revoked" in victim.errors()
            eventually(lambda: {w.info.name: w.state for w in cluster.workers().workers}.get("decode-0") != cluster_pb.READY, 15,
                       "and gets no jobs")
            finished, _ = cluster.answer(request(1000))
            assert finished.status_code == 0, finished


def test_a_bench_of_a_cluster_that_runs():
    """`sluice bench mixed --coordinator` proves itself as `sluice run` does; without a certificate it is refused."""
    with certificates("client/acme") as made, Cluster(kvstore=0, certificates=made) as cluster:
        command = [os.path.join(BIN, "sluice"), "bench", "mixed", "--coordinator", cluster.coordinator.address, "--model", MODEL, "--json",
                   "--long-tokens", "256", "--short-tokens", "32", "--short-jobs", "2", "--rounds", "1"]
        done = subprocess.run([*command, *made.options("client/acme")], capture_output=True, text=True, timeout=60 * SLOW)
        assert done.returncode == 0 and done.stdout.startswith("{"), done
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * SLOW)
        assert done.returncode == 3 and done.stdout == "" and "--tls-cert" in done.stderr, done


def test_a_cluster_of_one_command():
    """`sluice up --tls` makes its certificates, and the tool uses them by its environment."""
    tool = os.path.join(BIN, "sluice")
    with tempfile.TemporaryDirectory(prefix="sluice-up-") as folder:
        state = f"{folder}/state"
        up = subprocess.Popen([tool, "up", "--model", MODEL, "--tls", f"{folder}/certs", "--port", "0", "--http-port", "0", "--arena", "32M", "--kvstore",
                               "0", "--state-file", state], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            lines = []
            for line in up.stdout:
                lines.append(line)
                if line.startswith("ready rpc="):
                    break
            address = lines[-1].split("rpc=")[1].split()[0]

            def run(who, *words):
                environment = {"SLUICE_TLS_CA": f"{folder}/certs/ca.pem", "SLUICE_TLS_CERT": f"{folder}/certs/{who}.pem",
                               "SLUICE_TLS_KEY": f"{folder}/certs/{who}.key"} if who else {}
                return subprocess.run([tool, *words, "--coordinator", address, "--timeout", "5s"], text=True, capture_output=True,
                                      timeout=60, env={**os.environ, **environment})
            done = run("client-local", "run", "--prompt", "one two three", "--max-new-tokens", "4")
            assert done.returncode == 0, (done, lines)
            assert run("operator-local", "workers").returncode == 0
            refused_one = run("client-local", "workers")
            assert refused_one.returncode == 1 and "expected operator of sluice; give another certificate by --tls-cert" in refused_one.stderr, refused_one
            without = run(None, "jobs")
            assert without.returncode == 3 and "--tls-ca" in without.stderr, without
        finally:
            up.terminate()
            assert up.wait(30) == 0, up.stdout.read()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
