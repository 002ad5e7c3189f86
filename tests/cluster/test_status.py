#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The gateway's status page: what it shows of a real cluster, to which users, and how a real browser renders it where there is one."""
import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from browser import PROGRAM, Browser
from harness import ROOT, Cluster, certificates, endless, eventually, request, run_tests, stub
from test_gateway import Gateway, key_line

EVIL = "<img src=x onerror=alert(1)>&amp;\"'</td></script>"
JOB = {"id", "tenant", "label", "recipe", "state", "submitted_ms", "prompt_tokens", "read_tokens", "reused_tokens", "output_tokens",
       "max_tokens", "capsule_bytes", "full_bytes", "queue_ms", "ttft_ms", "tpot_ms", "total_ms", "prefill_worker", "decode_worker", "error"}
TOTALS = {"queued", "prefilling", "shipping", "decoding", "done", "failed", "cancelled", "read_tokens", "output_tokens", "capsule_bytes",
          "full_bytes", "first_tokens", "first_tokens_ms"}
WORKER = {"name", "role", "state", "address", "fabric_address", "device", "jobs", "max_jobs", "arena_used_bytes", "arena_bytes",
          "tokens_per_s", "leases", "stored_bytes", "heartbeat_age_ms"}


def ask(gateway, key=None, path="/status.json", method="GET"):
    """(status, headers, what came)."""
    with contextlib.closing(gateway.connect()) as connection:
        connection.request(method, path, headers={"Authorization": f"Bearer {key}"} if key else {})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode()


def state(gateway, key=None):
    status, headers, text = ask(gateway, key)
    assert status == 200 and headers["Content-Type"] == "application/json" and headers["Cache-Control"] == "no-store", text
    found = json.loads(text)
    assert set(found) == {"time_ms", "coordinator", "everybody", "totals", "jobs", "workers"}, found
    assert all(set(job) == JOB for job in found["jobs"]) and all(set(worker) == WORKER for worker in found["workers"] or ()), found
    assert found["totals"] is None or set(found["totals"]) == TOTALS
    return found


def test_what_is_told():
    with Cluster(prefill=2) as cluster, Gateway(cluster) as gateway:
        empty = state(gateway)
        assert empty["jobs"] == [] and empty["everybody"] and not any(empty["totals"].values()), empty
        assert empty["coordinator"]["answers"] and empty["coordinator"]["ready"] and empty["coordinator"]["why"] == ""
        workers = {worker["name"]: worker for worker in empty["workers"]}
        assert {(name, worker["role"], worker["state"]) for name, worker in workers.items()} == {
            ("prefill-0", "prefill", "ready"), ("prefill-1", "prefill", "ready"), ("decode-0", "decode", "ready"), ("kvstore-0", "kvstore", "ready")}
        assert all(re.fullmatch(r"cpu/\w+", worker["device"]) and worker["arena_bytes"] > 0 for worker in workers.values()), workers

        finished = [cluster.answer(request(3000, recipe=recipe, label=EVIL))[0].statistics for recipe in ("full", "h2o,budget=0.2,format=int4")]
        told = state(gateway)
        assert told["totals"]["done"] == 2 and told["totals"]["first_tokens"] == 2
        assert told["totals"]["capsule_bytes"] == sum(s.capsule_bytes for s in finished)
        assert told["totals"]["full_bytes"] == sum(s.full_bytes for s in finished)
        assert told["totals"]["output_tokens"] == sum(s.n_output_tokens for s in finished)
        assert told["totals"]["read_tokens"] == sum(s.n_prompt_tokens - 1 - s.n_reused_tokens for s in finished), (told["totals"], finished)
        assert abs(told["totals"]["first_tokens_ms"] - sum(s.ttft_ms for s in finished)) < 1
        job = told["jobs"][0]
        assert job["label"] == EVIL and job["recipe"].startswith("h2o") and job["state"] == "done" and job["error"] == ""
        assert job["read_tokens"] == job["prompt_tokens"] - 1 and job["capsule_bytes"] < job["full_bytes"] / 5

        long = cluster.submit(endless(label="l\u00e4nger"))
        eventually(lambda: state(gateway)["totals"]["decoding"] == 1, 20, "it decodes")
        [job] = [job for job in state(gateway)["jobs"] if job["state"] == "decoding"]
        assert job["id"] == long and job["max_tokens"] == 8000 and job["label"] == "l\u00e4nger" and job["decode_worker"] == "decode-0"
        eventually(lambda: state(gateway)["totals"]["output_tokens"] > told["totals"]["output_tokens"] + 5, 20, "tokens are counted as they come")
        cluster.cancel(long)
        assert state(gateway)["totals"]["cancelled"] == 1

        cluster.kill("prefill-1")
        eventually(lambda: {w["name"]: w["state"] for w in state(gateway)["workers"]}["prefill-1"] == "lost", 20, "a lost worker is told of")
        cluster.coordinator.signal(signal.SIGSTOP)
        eventually(lambda: not state(gateway)["coordinator"]["answers"], 20, "a coordinator that is away is told of")
        away = state(gateway)
        assert away["totals"] is None and away["jobs"] == [] and away["workers"] is None and away["coordinator"]["why"], away
        cluster.coordinator.signal(signal.SIGCONT)
        eventually(lambda: state(gateway)["totals"] is not None, 20, "it is back")


def test_the_page_allows_its_own_script_alone():
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        status, headers, page = ask(gateway, path="/status")
        assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8" and page.startswith("<!doctype html>")
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
        for name in ("style", "script"):
            content = re.search(rf"<{name}>(.*?)</{name}>", page, re.S).group(1)
            assert policy[f"{name}-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
        assert not re.search(r"""(src|href)=["']?(http|/)|innerHTML|insertAdjacentHTML|document\.write|style="|\son\w+=""", page)
        assert ask(gateway, path="/status", method="POST")[0] == 405 and ask(gateway, method="POST")[0] == 405
        assert ask(gateway, path="/status", method="HEAD")[2] == "" == ask(gateway, method="HEAD")[2]
        assert ask(gateway, path="/status/")[0] == 404


@contextlib.contextmanager
def several_tenants():
    with tempfile.TemporaryDirectory(prefix="sluice-keys-") as folder, certificates() as made, Cluster(certificates=made) as cluster:
        made.make("client/acme", "client/beta", "operator/ops")
        for end in ("pem", "key"):  # a tenant of the gateway's whose certificate is an operator's
            shutil.copy(made.file("operator/ops", end), made.file("client/ops", end))
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("".join(key_line(f"sk-{name}", name) for name in ("acme", "beta", "ops")))
        with Gateway(cluster, "--keys", keys, "--tenants", made.folder) as gateway:
            for name, n in (("acme", 1), ("beta", 2)):
                with contextlib.closing(made.channel(cluster.coordinator.address, f"client/{name}")) as channel:
                    for i in range(n):
                        list(stub(channel.unary_stream, "sluice.v1.Inference.Generate")(request(1500, seed=i, label=f"of {name}"), timeout=60))
            yield cluster, gateway


def test_a_tenant_sees_its_own():
    with several_tenants() as (cluster, gateway):
        for key in (None, "sk-nobody"):
            status, headers, text = ask(gateway, key)
            assert status == 401 and headers["WWW-Authenticate"] == "Bearer" and "acme" not in text, text
        assert ask(gateway, path="/status")[0] == 200  # it has nothing to tell
        seen = {name: state(gateway, f"sk-{name}") for name in ("acme", "beta", "ops")}
        for name, n in (("acme", 1), ("beta", 2)):
            assert {job["tenant"] for job in seen[name]["jobs"]} == {name} and len(seen[name]["jobs"]) == seen[name]["totals"]["done"] == n
            assert seen[name]["workers"] is None and not seen[name]["everybody"]
            text = json.dumps(seen[name])
            assert f"of {name}" in text and {"acme": "beta", "beta": "acme"}[name] not in text
        assert seen["ops"]["everybody"] and seen["ops"]["totals"]["done"] == 3 and len(seen["ops"]["workers"]) == 3
        for field in ("read_tokens", "output_tokens", "capsule_bytes", "full_bytes", "first_tokens"):
            assert seen["ops"]["totals"][field] == seen["acme"]["totals"][field] + seen["beta"]["totals"][field] > 0, field
        assert not re.search("Workers.*refused", cluster.logs(2000)), "nobody asks for what would be refused"


def test_without_certificates_keys_show_nothing():
    """The cluster does not know the owner of a job, so the page shows no jobs to any user."""
    with tempfile.TemporaryDirectory(prefix="sluice-keys-") as folder, Cluster(kvstore=0) as cluster:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write(key_line("sk-acme", "acme"))
        with Gateway(cluster, "--keys", keys) as gateway:
            status, _, text = ask(gateway, "sk-acme")
            assert status == 403 and "certificates" in text, text


def test_workers_are_not_for_whoever_connects():
    with Cluster(kvstore=0) as cluster, Gateway(cluster, "--insecure", listen="0.0.0.0:0") as gateway:
        told = state(gateway)
        assert told["workers"] is None and told["totals"] is not None


def test_many_may_look():
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway:
        found = []
        lookers = [threading.Thread(target=lambda: found.append(state(gateway)["coordinator"]["answers"])) for _ in range(40)]
        for looker in lookers:
            looker.start()
        for looker in lookers:
            looker.join()
        assert found == [True] * 40


def test_it_stops_while_somebody_waits():
    with Cluster(kvstore=0) as cluster:
        gateway = Gateway(cluster)
        cluster.coordinator.signal(signal.SIGSTOP)
        with contextlib.ExitStack() as stack:
            stack.callback(cluster.coordinator.signal, signal.SIGCONT)
            waiting = [stack.enter_context(contextlib.closing(gateway.connect())) for _ in range(20)]
            for connection in waiting:
                connection.request("GET", "/status.json")
            for connection in waiting[::2]:  # some leave, the others are there when it stops
                connection.close()
            assert gateway.get("/metrics")[0] == 200  # nobody else waits
            assert gateway.stop() == 0, gateway.errors()
        os.remove(gateway.log_path)
        eventually(lambda: cluster.workers().jobs_running == 0, 20, "the coordinator is back")


# -- a browser ------------------------------------------------------------------------------------------------------------

def needs_browser(test):
    def run():
        if not PROGRAM:
            print("chromium is not installed: no browser has looked", flush=True)
            return
        test()
    return run


@contextlib.contextmanager
def canned(gateway, told):
    """The gateway's page with something else to tell: told() is (status, object). Yields the address."""
    page = ask(gateway, path="/status")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = (200, page[2]) if self.path == "/status" else told(self)
            self.send_response(status)
            if self.path == "/status":
                for name in ("Content-Type", "Content-Security-Policy"):
                    self.send_header(name, page[1][name])
            body = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/status"
    finally:
        server.shutdown()
        server.server_close()


def job_of(number, job_state="queued", **fields):
    made = dict.fromkeys(JOB, 0) | {"id": f"job-{number}", "state": job_state, "recipe": "full,format=int8", "max_tokens": 100, "prompt_tokens": 1000,
                                    "submitted_ms": time.time() * 1000, "full_bytes": 1000, "queue_ms": 1}
    return made | dict.fromkeys(("tenant", "label", "prefill_worker", "decode_worker", "error"), "") | fields


def told_of(jobs, workers=None, **totals):
    return {"time_ms": time.time() * 1000, "everybody": True, "jobs": jobs, "workers": workers, "totals": dict.fromkeys(TOTALS, 0) | totals,
            "coordinator": {"answers": True, "ready": True, "why": "", "model": "demo", "default_recipe": "full"}}


def fits(browser):
    return browser.ask("document.documentElement.scrollWidth <= window.innerWidth")


def test_shares_of_short_prompts():
    """The functions of the page that write shares, by Node.js."""
    if not shutil.which("node"):
        print("  without node")
        return
    with open(os.path.join(ROOT, "gateway/status.html"), encoding="utf-8") as file:
        page = file.read()
    functions = "\n".join(re.search(rf"^const {name} = .*;$", page, re.M).group(0) for name in ("percent", "of_full", "times_smaller"))
    asked = "[of_full(207, 100), times_smaller(207, 100), of_full(100, 100), of_full(20, 100), times_smaller(20, 100)]"
    told = subprocess.run(["node", "-e", f"{functions}\nconsole.log(JSON.stringify({asked}))"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(told) == ["whole pages", "\u2013", "100%", "20%", "5.0\u00d7"], told


@needs_browser
def test_a_browser_shows_a_real_cluster():
    with Cluster() as cluster, Gateway(cluster) as gateway, Browser() as browser:
        browser.open(f"http://{gateway.host}:{gateway.port}/status")
        browser.wait("document.querySelector('#live').textContent === 'live'")
        assert "No job yet." in browser.text() and "decode-0" in browser.text() and browser.ask("document.querySelector('#times').textContent") == "\u2013"
        statistics = cluster.answer(request(3000, recipe="full,format=int4", label=EVIL))[0].statistics
        long = cluster.submit(endless())
        browser.wait("document.querySelectorAll('#jobs tbody tr').length === 2")
        browser.wait("document.querySelector('#jobs .state.write')")
        text = browser.text()
        assert EVIL in text and long in text and not browser.ask("document.querySelector('main img')"), text
        times = browser.ask("document.querySelector('#times').textContent")
        assert times.endswith("\u00d7") and 1 < float(times[:-1]) <= statistics.full_bytes / statistics.capsule_bytes + .1, times
        browser.wait("document.querySelectorAll('#rate polyline').length === 2 && document.querySelectorAll('#ttft circle').length >= 1")
        browser.wait("Number(document.querySelector('#rate-written').textContent) > 0")
        for width in (1200, 400):
            browser.look(width, 900)
            assert fits(browser), width
        cluster.cancel(long)
        cluster.coordinator.signal(signal.SIGSTOP)
        browser.wait("document.querySelector('#live').textContent === 'coordinator away'")
        assert EVIL in browser.text() and browser.ask("document.querySelector('#board').classList.contains('stale')")
        cluster.coordinator.signal(signal.SIGCONT)
        browser.wait("document.querySelector('#live').textContent === 'live' && document.querySelector('#notice').hidden")
        assert not browser.complaints, browser.complaints


@needs_browser
def test_a_browser_shows_whatever_it_is_told_as_text():
    answers = {}
    with Cluster(kvstore=0) as cluster, Gateway(cluster) as gateway, canned(gateway, lambda _: (answers.get("status", 200), answers["now"])) as url, Browser() as browser:
        fields = dict.fromkeys(("tenant", "label", "recipe", "error", "prefill_worker", "decode_worker"), EVIL)
        worker = dict.fromkeys(WORKER, 0) | dict.fromkeys(("name", "address", "fabric_address", "device", "role"), EVIL)
        answers["now"] = told_of([job_of(EVIL, "failed", **fields)], [worker | {"state": "ready"}, worker | {"name": "gone", "state": "lost", "heartbeat_age_ms": 9000}],
                                 failed=1)
        answers["now"]["coordinator"] |= {"model": EVIL, "default_recipe": EVIL}
        browser.open(url)
        browser.wait("document.querySelectorAll('#jobs tbody tr').length === 1")
        text = browser.text()
        assert text.count(EVIL) >= 10 and f"job-{EVIL}" in text, text
        assert "lost, silent for 9.0 s" in text
        assert not browser.ask("document.querySelector('main img, header img')")

        # A thousand jobs: the page shows as many rows as it gets, and the number of those left out.
        jobs = [job_of(i, "decoding", output_tokens=i % 100) for i in range(200)] + [job_of(200 + i) for i in range(100)] + [job_of(300 + i, "done") for i in range(50)]
        answers["now"] = told_of(jobs, [], decoding=200, queued=700, done=100)
        browser.wait("document.querySelectorAll('#jobs tbody tr').length === 350")
        assert browser.ask("document.querySelector('#more').textContent").startswith("650 more ")
        browser.look(400, 900)
        assert fits(browser)
        # Whole pages are larger than the few tokens in them: the page shows no share.
        answers["now"] = told_of([job_of(1, "done", capsule_bytes=2070)], [], done=1, capsule_bytes=2070, full_bytes=1000)
        browser.wait("document.querySelector('#percent').textContent === '(whole pages)'")
        assert browser.text().count("whole pages") == 2 and "207%" not in browser.text(), browser.text()
        answers["now"] = told_of([])
        browser.wait("!document.querySelector('#no-jobs').hidden && document.querySelectorAll('#jobs tbody tr').length === 0")
        assert not browser.complaints, browser.complaints
        # A user without permission is told why.
        answers |= {"status": 403, "now": {"error": {"message": EVIL}}}
        browser.wait("document.querySelector('#live').textContent === 'refused'")
        assert EVIL in browser.text() and browser.ask("!document.querySelector('#key-form').hidden")


@needs_browser
def test_a_browser_asks_for_a_key():
    with several_tenants() as (_, gateway), Browser() as browser:
        browser.open(f"http://{gateway.host}:{gateway.port}/status")
        enter = "document.querySelector('#key').value = '{}'; document.querySelector('#key-form button').click()"
        browser.wait("document.querySelector('#key-form') && !document.querySelector('#key-form').hidden")
        browser.ask(enter.format("sk-nobody"))
        browser.wait("document.querySelector('#notice-text').textContent.startsWith('This key does not fit')")
        browser.ask(enter.format("sk-beta"))
        browser.wait("document.querySelectorAll('#jobs tbody tr').length === 2")
        text = browser.text()
        assert "of beta" in text and "acme" not in text and browser.ask("document.querySelector('#workers').hidden && document.querySelector('#notice').hidden")
        browser.open(f"http://{gateway.host}:{gateway.port}/status")  # the tab keeps it
        browser.wait("document.querySelectorAll('#jobs tbody tr').length === 2")
        browser.ask("sessionStorage.setItem('key', 'sk-ops')")
        browser.open(f"http://{gateway.host}:{gateway.port}/status")
        browser.wait("document.querySelectorAll('#jobs tbody tr').length === 3 && !document.querySelector('#workers').hidden")
        # A refusal is a line of the console, and nothing else was said.
        assert all("401" in str(complaint) for complaint in browser.complaints), browser.complaints


if __name__ == "__main__":
    raise SystemExit(run_tests(globals()))
