#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Information for operators: probes through a process' life, metrics and their names, and logs in JSON."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

from harness import ARENA, BIN, MODEL, SLOW, Cluster, Process, cluster_pb, endless, eventually, free_port, inference, request, run_tests, tokens
import grpc
from test_gateway import Gateway
from test_stalls import ENVIRONMENT, NEVER, STALL, STALL_S, all_threads, end_frozen, freeze, signal_thread, start

NAMES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "metrics.txt")
ROLES = ("coordinator", "prefill", "decode", "kvstore", "gateway")


def ask(address, path="/metrics", method="GET", body=None):
    """(status, text, headers)"""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=10 * SLOW)) as connection:
        connection.request(method, path, body)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(), dict(reply.getheaders())


def probe(process, path):
    return ask(process.admin, path)[:2]


def becomes(process, path, status, word, timeout=15):
    """The probe answers so before long."""
    heard = []

    def is_so():
        try:
            heard[:] = probe(process, path)
        except (OSError, http.client.HTTPException) as error:  # where strangers have taken its places, or it has ended
            heard[:] = None, repr(error)
        return heard[0] == status and word in heard[1]
    try:
        eventually(is_so, timeout, f"{path} of {process.admin} is {status} and says {word!r}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it was {heard}") from None


def samples(page):
    """{(name, labels): value} of a page, and its names as lines: name type {labels} help."""
    values, types, helps, labels = {}, {}, {}, {}
    for line in page.splitlines():
        if line.startswith("# HELP "):
            _, _, name, text = line.split(" ", 3)
            helps[name] = text
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} comes twice"
            types[name] = kind
        else:
            name, _, inner, value = re.fullmatch(r'([a-zA-Z_:][\w:]*)(\{(.*)\})? (\S+)', line).groups()
            pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inner or "")
            values[name, tuple(pairs)] = float(value)
            family = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
            labels.setdefault(family, set()).update(label for label, _ in pairs)
    assert set(types) == set(helps), set(types) ^ set(helps)
    lines = [f"{name} {kind} {{{','.join(sorted(labels.get(name, ())))}}} {helps[name]}" for name, kind in types.items()]
    return values, lines


def value(process, name, **labels):
    return samples(ask(process.admin)[1])[0][name, tuple(labels.items())]


class Everybody:
    """A cluster and its gateway: .processes by role."""

    def __init__(self, *options, **kept):
        self.cluster = Cluster(coordinator_args=["--metrics-alias", "vllm"], **kept)

    def __enter__(self):
        cluster = self.cluster.__enter__()
        self.gateway = Gateway(cluster)
        self.gateway.__enter__()
        self.processes = {role: self.gateway if role == "gateway" else
                          cluster.processes["coordinator" if role == "coordinator" else f"{role}-0"] for role in ROLES}
        return self

    def __exit__(self, *what):
        self.gateway.__exit__(*what)
        self.cluster.__exit__(*what)


def names_of(everybody):
    return [f"{role} {line}" for role, process in everybody.processes.items() for line in samples(ask(process.admin)[1])[1]]


def test_names_are_an_interface():
    """Dashboards and alerts use these names. This test fails when they change: then write the file anew, with `record`."""
    with Everybody() as everybody:
        everybody.cluster.answer(request(3000, recipe="h2o,budget=0.3,format=int4"))
        found = names_of(everybody)
        with open(NAMES) as file:
            known = file.read().splitlines()
        assert found == known, "\n".join(["metrics.txt differs:", *(f"- {line}" for line in known if line not in found),
                                          *(f"+ {line}" for line in found if line not in known)])
        with open(os.path.join(os.path.dirname(NAMES), "..", "..", "docs", "METRICS.md")) as file:
            documented = set(re.findall(r"`([\w:]+)(?:\{[\w,]*\})?`", file.read()))
        missing = {line.split()[1] for line in found} - documented
        assert not missing, f"docs/METRICS.md lacks {missing}"
        for role, process in everybody.processes.items():
            status, page, headers = ask(process.admin)
            assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), headers
            if not shutil.which("promtool"):
                print("promtool is not installed: metrics were not linted", flush=True)
                break
            page = "".join(line + "\n" for line in page.splitlines() if "vllm:" not in line)  # names that are not ours
            checked = subprocess.run(["promtool", "check", "metrics"], input=page, text=True, capture_output=True)
            assert checked.returncode == 0, f"{role}: {checked.stdout}{checked.stderr}"


def test_a_stranger_learns_and_changes_nothing():
    with Everybody() as everybody:
        everybody.cluster.answer(request(3000))
        for process in everybody.processes.values():
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                status, _, headers = ask(process.admin, "/livez", method, b"x" * 1000 if method != "OPTIONS" else None)
                assert status == 405 and headers["Allow"] == "GET, HEAD", (method, status, headers)
            assert ask(process.admin, "/livez", "HEAD")[:2] == (200, "")
            assert ask(process.admin, "/nothing")[0] == 404
            text = "".join(ask(process.admin, path)[1] for path in ("/livez?verbose", "/readyz?verbose", "/startupz", "/metrics"))
            secrets = ["lantern", "48213", *(job.job_id for job in everybody.cluster.list())]
            assert not any(secret in text for secret in secrets), text
        # Connections that say nothing: those of one host are few, and others get in again when they are gone.
        host, port = everybody.processes["decode"].admin.rsplit(":", 1)
        silent = [socket.create_connection((host, int(port)), timeout=5) for _ in range(40)]
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(f"{host}:{port}", "/livez")
        for connection in silent:
            connection.close()
        becomes(everybody.processes["decode"], "/livez", 200, "ok")


def test_the_port_can_be_left_out_and_is_checked():
    with Cluster(kvstore=0, args=["--admin-listen", "none"]) as cluster:
        assert cluster.processes["decode-0"].admin is None and cluster.coordinator.admin
    for words in (["--admin-listen", "nonsense"], ["--admin-listen", "127.0.0.1:99999"]):
        refused = subprocess.run([os.path.join(BIN, "sluice-kvstore"), *words], capture_output=True, text=True, timeout=30 * SLOW)
        assert refused.returncode == 2 and "--admin-listen" in refused.stderr, refused


def test_it_answers_before_the_model_is_loaded():
    """A model whose first file does not come."""
    with tempfile.TemporaryDirectory(prefix="sluice-model-") as folder:
        os.mkfifo(os.path.join(folder, "config.json"))
        for role in ("prefill", "coordinator"):
            address = f"127.0.0.1:{free_port()}"
            loading = subprocess.Popen([os.path.join(BIN, f"sluice-{role}"), "--model", folder, "--admin-listen", address,
                                        "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)

            def is_there():
                with contextlib.suppress(OSError):
                    return ask(address, "/livez")[:2] == (200, "ok\n")
            eventually(is_there, 20, "the admin port of a process that loads its model")
            assert ask(address, "/startupz")[:2] == (503, "starting\n")
            assert ask(address, "/readyz")[:2] == (503, "starting\n")
            assert "process_open_fds" in ask(address)[1]
            with open(os.path.join(folder, "config.json"), "w"):
                pass
            assert "config.json" in loading.communicate(timeout=30 * SLOW)[1] and loading.returncode == 1


def test_probes_follow_a_worker_through_its_life():
    with Cluster(kvstore=0, worker_args={"decode": ["--grace", f"{120 * SLOW:g}s", "--arena", "96M"]}) as cluster:  # for two jobs
        worker = cluster.processes["decode-0"]
        for process in cluster.processes.values():
            assert probe(process, "/startupz")[0] == probe(process, "/livez")[0] == 200
            becomes(process, "/readyz", 200, "ok")
        # An operator takes it out, and back.
        drain = cluster_pb.DrainRequest(name="decode-0")
        cluster._call("sluice.v1.Cluster.Drain", drain)
        becomes(worker, "/readyz", 503, "draining")
        assert probe(worker, "/livez") == (200, "ok\n")
        assert "registered: draining" in probe(worker, "/readyz?verbose")[1] and "threads: ok" in probe(worker, "/readyz?verbose")[1]
        cluster._call("sluice.v1.Cluster.Drain", cluster_pb.DrainRequest(name="decode-0", undo=True))
        becomes(worker, "/readyz", 200, "ok")
        # It is asked to stop while it writes. One job lasts until that was seen, the other one ends by itself.
        lasts = cluster.submit(endless())
        events = cluster.generate(endless(n_tokens=1000))
        found = []
        for event in events:
            found.append(event)
            if event.HasField("token") and len(tokens(found)) == 3:
                worker.signal(signal.SIGTERM)
                becomes(worker, "/readyz?verbose", 503, "running jobs finish")  # beside what the coordinator says of it soon
                assert probe(worker, "/livez") == (200, "ok\n")
                cluster.cancel(lasts)
        assert len(tokens(found)) == 1000 and found[-1].finished.status_code == 0 and found[-1].finished.statistics.retries == 0
        assert worker.popen.wait(20 * SLOW) == 0
        del cluster.processes["decode-0"]
        assert value(cluster.coordinator, "sluice_workers", role="prefill", state="ready") == 1


def test_without_a_coordinator_workers_live_and_are_not_ready():
    with Cluster(kvstore=0) as cluster:
        worker = cluster.processes["prefill-0"]
        becomes(worker, "/readyz", 200, "ok")
        with Gateway(cluster) as gateway:
            becomes(gateway, "/readyz", 200, "ok")
            cluster.coordinator.signal(signal.SIGSTOP)
            for process in (worker, gateway):
                becomes(process, "/readyz", 503, "")
                assert probe(process, "/livez") == (200, "ok\n")
            cluster.coordinator.signal(signal.SIGCONT)
            for process in (worker, gateway):
                becomes(process, "/readyz", 200, "ok")
            cluster.kill("decode-0")
            del cluster.processes["decode-0"]
            becomes(gateway, "/readyz", 503, "no workers are ready")
    alone = Process("kvstore-0", ["sluice-kvstore", "--coordinator", f"127.0.0.1:{free_port()}", "--arena", ARENA])
    becomes(alone, "/readyz", 503, "the coordinator cannot be reached")
    assert probe(alone, "/livez") == (200, "ok\n") and probe(alone, "/startupz") == (200, "ok\n")
    assert alone.stop() == 0
    os.remove(alone.log_path)


class Frozen(Gateway):
    """A gateway whose threads can be made to stand still."""

    def __init__(self, cluster):
        before = dict(os.environ)
        os.environ.update(ENVIRONMENT)
        try:
            super().__init__(cluster)
        finally:
            os.environ.clear()
            os.environ.update(before)


def test_coordinators_and_gateways_stand_still_too():
    with Cluster(kvstore=0) as cluster:
        coordinator = Process("coordinator", ["sluice-coordinator", "--listen", "127.0.0.1:0", "--model", MODEL, *STALL], ENVIRONMENT)
        gateway = Frozen(cluster)
        for process, threads in ((coordinator, ["sweeper"]), (gateway, ["served", "status"])):
            assert probe(process, "/livez") == (200, "ok\n")
            for thread in threads:
                freeze(process, thread)
        looks = gateway.connect()
        looks.request("GET", "/status.json")
        becomes(coordinator, "/livez", 503, "the sweeper stands still")
        becomes(gateway, "/livez", 503, "the coordinator has not been asked", timeout=30)
        becomes(gateway, "/livez?verbose", 503, "no request for the cluster's state has been answered", timeout=30)
        looks.close()
        for process in (coordinator, gateway):
            process.popen.kill()
            process.popen.wait()
            os.remove(process.log_path)
        os.close(gateway.log)


def test_a_worker_whose_engine_stands_still_does_not_live():
    with Cluster(decode=0, kvstore=0, coordinator_args=NEVER) as cluster:
        victim = start(cluster, "decode-0", ["--stall-after", f"{3 * SLOW:g}s"])
        cluster.wait_ready()
        freeze(victim, "engine")
        asked = cluster.submit(request(2000, recipe="full"))
        becomes(victim, "/livez", 503, "the engine stands still")  # and ends, later
        assert probe(victim, "/readyz?verbose")[1].endswith("threads: the engine stands still\n")
        end_frozen(cluster, "decode-0")
        cluster.cancel(asked)


def test_a_process_whose_grpc_port_is_deaf_does_not_live():
    """The threads that poll for gRPC stand still: the port connects, since the kernel does that, and says nothing."""
    with Cluster(decode=0, kvstore=0, coordinator_args=NEVER) as cluster:
        victim = start(cluster, "decode-0", NEVER)
        cluster.wait_ready()
        assert probe(victim, "/livez?verbose")[1].count(": ok\n") == 5, probe(victim, "/livez?verbose")
        for tid in all_threads(victim, "rpc-poll"):
            signal_thread(victim.popen.pid, tid)
        becomes(victim, "/livez", 503, f"the gRPC port {victim.address} has not answered for", timeout=30)
        end_frozen(cluster, "decode-0")


def test_a_store_lives_whose_disk_stands_still():
    """To be started again would not mend the disk, and would cost what memory has: it is told, and jobs go on."""
    with tempfile.TemporaryDirectory(prefix="sluice-disk-") as folder, Cluster(kvstore=0, coordinator_args=NEVER) as cluster:
        store = start(cluster, "kvstore-0", [*STALL, "--disk", folder, "--disk-bytes", "64M"])
        cluster.wait_ready()
        assert value(store, "sluice_disk_state", state="used") == 1
        freeze(store, "disk")
        first = tokens(cluster.answer(request(3000))[1])
        becomes(store, "/livez", 200, "the disk stands still, and the others go on without it")
        assert probe(store, "/readyz") == (200, "ok\n")
        time.sleep(2 * STALL_S)  # after which a process ends whose thread is needed
        assert value(store, "sluice_disk_state", state="silent") == 1 and value(store, "sluice_disk_state", state="used") == 0
        finished, events = cluster.answer(request(3000))
        assert tokens(events) == first and finished.statistics.n_reused_tokens > 0, "memory serves"
        assert all(w.state == cluster_pb.READY for w in cluster.workers().workers)
        assert "the disk stands still" in store.errors()
        end_frozen(cluster, "kvstore-0")


def test_figures_are_those_of_the_jobs():
    with Everybody() as everybody:
        cluster, coordinator = everybody.cluster, everybody.processes["coordinator"]
        finished = [cluster.answer(request(3000, recipe=recipe, seed=seed))[0].statistics
                    for seed, recipe in enumerate(("full", "full", "h2o,budget=0.3,format=int4"))]
        with contextlib.suppress(grpc.RpcError):
            cluster.answer(inference.GenerateRequest(text="x", recipe="nonsense"))
        cancelled = cluster.submit(endless(20000, 2000))
        cluster.cancel(cancelled)
        eventually(lambda: value(coordinator, "sluice_jobs_total", outcome="cancelled") == 1, 20, "the job is cancelled")
        figures = samples(ask(coordinator.admin)[1])[0]
        assert figures["sluice_jobs_total", (("outcome", "done"),)] == 3
        assert figures["sluice_jobs_total", (("outcome", "refused"),)] == 1
        for name, field in (("queue", "queue_ms"), ("prefill", "prefill_ms"), ("ship", "ship_ms"), ("job", "total_ms"),
                            ("time_to_first_token", "ttft_ms"), ("time_per_output_token", "tpot_ms")):
            assert figures[f"sluice_{name}_seconds_count", ()] == 3
            assert figures[f"sluice_{name}_seconds_bucket", (("le", "+Inf"),)] == 3
            total = sum(getattr(s, field) for s in finished) / 1000
            assert abs(figures[f"sluice_{name}_seconds_sum", ()] - total) < 1e-3, (name, total)
        assert figures["sluice_prompt_tokens_total", (("source", "read"),)] == sum(s.n_prompt_tokens - s.n_reused_tokens for s in finished)
        assert figures["sluice_prompt_tokens_total", (("source", "reused"),)] == sum(s.n_reused_tokens for s in finished)
        assert figures["sluice_output_tokens_total", ()] >= sum(s.n_output_tokens for s in finished)
        for recipe in {s.recipe for s in finished}:
            of = [s for s in finished if s.recipe == recipe]
            for name, field in (("capsule", "capsule_bytes"), ("full", "full_bytes")):
                counted = sum(count for (sample, labels), count in figures.items()
                              if sample == f"sluice_{name}_bytes_total" and ("recipe", recipe) in labels)
                wanted = sum(getattr(s, field) for s in of)
                assert counted >= wanted, (recipe, name, counted, wanted)
        cluster.assert_clean()
        decode = everybody.processes["decode"]
        eventually(lambda: value(decode, "sluice_arena_bytes", state="free") == 48 << 20 and value(decode, "sluice_leases") == 0,
                   15, "decode holds nothing any more")
        assert value(decode, "sluice_progress_steps_total") > 0
        figures = samples(ask(everybody.processes["kvstore"].admin)[1])[0]
        assert figures["sluice_store_bytes", (("tier", "memory"),)] > 0
        assert sum(count for (name, _), count in figures.items() if name == "sluice_store_lookups_total") >= 3
        figures = samples(ask(everybody.processes["coordinator"].admin)[1])[0]
        assert figures["vllm:num_requests_waiting", ()] == figures["vllm:num_requests_running", ()] == 0
        assert 0 <= figures["vllm:kv_cache_usage_perc", ()] <= 1


def test_a_prometheus_sees_everybody():
    if not shutil.which("prometheus"):
        print("prometheus is not installed: nobody scraped", flush=True)
        return
    with Everybody() as everybody, tempfile.TemporaryDirectory(prefix="sluice-prometheus-") as folder:
        everybody.cluster.answer(request(3000))
        address, config = f"127.0.0.1:{free_port()}", os.path.join(folder, "prometheus.yml")
        jobs = [{"job_name": role, "static_configs": [{"targets": [process.admin]}]} for role, process in everybody.processes.items()]
        with open(config, "w") as file:  # JSON is YAML
            json.dump({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}, file)
        with open(os.path.join(folder, "log"), "w+") as log:
            scraper = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                        f"--web.listen-address={address}"], stdout=log, stderr=log)
            try:
                def all_up():
                    with contextlib.suppress(OSError, KeyError, ValueError, http.client.HTTPException):  # it starts in plain text
                        targets = json.loads(ask(address, "/api/v1/targets")[1])["data"]["activeTargets"]
                        return len(targets) == len(ROLES) and all(target["health"] == "up" for target in targets)
                try:
                    eventually(all_up, 40, "all targets up")
                except AssertionError as error:
                    log.seek(0)
                    raise AssertionError(f"{error}\n{log.read()[-3000:]}\n{ask(address, '/api/v1/targets')[1]}") from error
                for query, wanted in (("sum(up)", len(ROLES)), ("sum(sluice_jobs_total)", 1), ("count(sluice_build_info)", len(ROLES)),
                                      ("sum(sluice_job_seconds_count)", 1), ('sluice_workers{state="ready",role="decode"}', 1)):
                    found = json.loads(ask(address, "/api/v1/query?query=" + urllib.parse.quote(query))[1])["data"]["result"]
                    assert [float(row["value"][1]) for row in found] == [wanted], (query, found)
            finally:
                scraper.terminate()
                scraper.wait(30)


def read_json(path):
    """Every line as an object: strictly."""
    with open(path, "rb") as file:
        lines = [json.loads(line.decode()) for line in file.read().splitlines()]
    for line in lines:
        assert {"time", "level", "process", "component", "message"} <= set(line) <= {
            "time", "level", "process", "component", "message", "job", "trace"}, line
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line
    return lines


def test_logs_are_json_and_a_job_is_found_in_all_of_them():
    options = ["--log-format", "json", "--log", "debug"]
    with Cluster(decode=2, args=options, coordinator_args=options) as cluster, Gateway(cluster, *options) as gateway:
        assert gateway.post("/v1/completions", {"prompt": request(2000).text, "max_tokens": 4})[0] == 200
        first, second = (cluster.answer(request(3000, seed=seed))[1][0].job_id for seed in (1, 2))
        cluster.kill("decode-1", signal.SIGTERM)
        cluster.processes["decode-1"].popen.wait(30 * SLOW)
        logs = {name: read_json(process.log_path) for name, process in cluster.processes.items()}
        logs["gateway"] = read_json(gateway.log_path)
        for name, lines in logs.items():
            assert lines and {line["process"] for line in lines} == {name}, name
        for job, other in ((first, second), (second, first)):
            of = {name for name, lines in logs.items() for line in lines if line.get("job") == job}
            assert {"coordinator", "prefill-0"} <= of and of & {"decode-0", "decode-1"}, of
            for lines in logs.values():
                assert not any(line.get("job") == other and job in line["message"] for line in lines)
        jobs = {line["job"] for lines in logs.values() for line in lines if "job" in line}
        assert jobs == {job.job_id for job in cluster.list()}, jobs
    # A program that cannot start logs it in the same format.
    for words in (["sluice-prefill", "--model", "/nowhere"], ["sluice-coordinator"], ["sluice-gateway", "--listen", "nowhere"]):
        failed = subprocess.run([os.path.join(BIN, words[0]), *words[1:], "--log-format", "json"], stderr=subprocess.PIPE,
                                timeout=30 * SLOW)
        assert failed.returncode in (1, 2) and all(json.loads(line) for line in failed.stderr.splitlines()), failed
    assert subprocess.run([os.path.join(BIN, "sluice-gateway"), "--log-format", "xml"], stderr=subprocess.DEVNULL).returncode == 2


def record():
    with Everybody() as everybody:
        everybody.cluster.answer(request(3000, recipe="h2o,budget=0.3,format=int4"))
        with open(NAMES, "w") as file:
            file.write("".join(f"{line}\n" for line in names_of(everybody)))


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        raise SystemExit(record())
    raise SystemExit(run_tests(globals()))
