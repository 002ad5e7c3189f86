#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Certificates everywhere: answers are those of one process, the store's rows included; each role may do what it should and no more;
strangers, on the control plane or on the data plane, get nothing, while the others go on."""
import os
import shutil
import subprocess
import tempfile
import time

from harness import (BIN, MODEL, SLOW, Cluster, call, certificates, cluster_pb, connect, document, eventually, health, in_one_process, inference,
                     question, refused, request, run_tests, stub, tokens, worker_pb)
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


def test_each_role_may_do_its_part_alone():
    denied = [grpc.StatusCode.PERMISSION_DENIED]
    info = cluster_pb.WorkerInfo(name="prefill-0", role=cluster_pb.PREFILL, rpc_address="127.0.0.1:1", fabric_address="127.0.0.1:2",
                                 version="0.1.0")
    everything = {  # method -> (a request, who may)
        "sluice.v1.Inference.Submit": (request(300), "client operator"),
        "sluice.v1.Inference.Get": (inference.JobRequest(job_id="none"), "client operator"),
        "sluice.v1.Inference.Cancel": (inference.JobRequest(job_id="none"), "client operator"),
        "sluice.v1.Inference.List": (inference.ListRequest(), "client operator"),
        "sluice.v1.Cluster.Workers": (cluster_pb.WorkersRequest(), "operator"),
        "sluice.v1.Cluster.Drain": (cluster_pb.DrainRequest(name="decode-0", undo=True), "operator"),
        "sluice.v1.Cluster.RegisterWorker": (cluster_pb.RegisterRequest(worker=info), ""),
        "sluice.v1.Cluster.Heartbeat": (cluster_pb.HeartbeatRequest(name="prefill-0"), ""),
    }
    with certificates("client/acme", "worker/impostor") as made, Cluster(certificates=made) as cluster:
        for role, who in (("client", "client/acme"), ("operator", "operator/me"), ("worker", "worker/impostor"),
                          ("coordinator", "coordinator/coordinator")):
            with cluster.channel_of(who) as channel:
                for method, (message, allowed) in everything.items():
                    if role in allowed.split():
                        try:
                            call(channel, method, message)
                        except grpc.RpcError as error:
                            assert error.code() == grpc.StatusCode.NOT_FOUND, (role, method, error)
                    else:  # a worker, because it speaks for another
                        refused(denied, call, channel, method, message)
        # Workers obey the coordinator alone.
        for name, method, message in (("prefill-0", "sluice.v1.Prefill.Run", worker_pb.PrefillRequest()),
                                      ("decode-0", "sluice.v1.Decode.Reserve", worker_pb.ReserveRequest()),
                                      ("kvstore-0", "sluice.v1.Store.Read", worker_pb.StoreKey()),
                                      ("kvstore-0", "sluice.v1.Store.Write", worker_pb.CapsulePiece()),
                                      ("kvstore-0", "sluice.v1.Store.Forget", worker_pb.ForgetRequest())):
            for who in ("client/acme", "operator/me", "worker/impostor"):
                with made.channel(cluster.processes[name].address, who) as channel:
                    if method.endswith(".Write"):
                        refused(denied, lambda: list(stub(channel.stream_stream, method)(iter([message]), timeout=10)))
                    elif method.endswith((".Run", ".Read")):
                        refused(denied, lambda: list(stub(channel.unary_stream, method)(message, timeout=10)))
                    else:
                        refused(denied, lambda: stub(channel.unary_unary, method)(message, timeout=10))
                    checked = channel.unary_unary("/grpc.health.v1.Health/Check",
                                                  request_serializer=health.HealthCheckRequest.SerializeToString,
                                                  response_deserializer=health.HealthCheckResponse.FromString)
                    assert checked(health.HealthCheckRequest(), timeout=10).status == health.HealthCheckResponse.SERVING


def test_strangers_get_nothing():
    nothing = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED]
    with certificates("client/acme") as made, certificates("client/acme", "operator/me", "worker/prefill-9") as theirs, \
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


def test_a_worker_of_another_name_is_not_registered():
    with certificates("worker/prefill-7") as made, Cluster(kvstore=0, certificates=made) as cluster:
        with cluster.channel_of("worker/prefill-7") as channel:
            info = cluster_pb.WorkerInfo(name="prefill-0", role=cluster_pb.PREFILL, rpc_address="127.0.0.1:1",
                                         fabric_address="127.0.0.1:2", version="0.1.0", epoch=7)
            said = refused([grpc.StatusCode.PERMISSION_DENIED], call, channel, "sluice.v1.Cluster.RegisterWorker",
                           cluster_pb.RegisterRequest(worker=info))
            assert "prefill-7" in said and "prefill-0" in said, said
            refused([grpc.StatusCode.PERMISSION_DENIED], call, channel, "sluice.v1.Cluster.Drain",
                    cluster_pb.DrainRequest(name="prefill-0"))
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
        made.make("coordinator/coordinator", "operator/me", "worker/prefill-0", "worker/decode-0")
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
                made.make("-client/acme", "-worker/decode-0")

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
            assert refused_one.returncode == 1 and "expected operator" in refused_one.stderr, refused_one
            without = run(None, "jobs")
            assert without.returncode == 3 and "--tls-ca" in without.stderr, without
        finally:
            up.terminate()
            assert up.wait(30) == 0, up.stdout.read()


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
