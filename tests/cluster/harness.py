# SPDX-License-Identifier: Apache-2.0
"""
A real cluster for tests: the real executables as processes, driven by a client that is not ours (grpcio), with message classes
that protoc makes from proto/ when the tests run. Every Cluster, when it is left, proves that it is clean: no lease, grant, ship,
admitted byte or live job is left, and every process that was not killed on purpose ends with exit code 0. What the processes
said is then removed; behind a failure it stays, and is named.
"""
import atexit
import contextlib
import faulthandler
import functools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

# grpcio's handlers of fork() wait for its threads, sometimes forever. Every child of a test runs another program at once.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tools"))
import script  # noqa: E402
script.needs("grpc", "google.protobuf")
import grpc  # noqa: E402

BIN = os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin"))
MODEL = os.path.join(ROOT, "models", "demo")
with open(os.path.join(MODEL, "config.json")) as file:
    LAYERS = json.load(file)["num_hidden_layers"]
# Sanitized builds are many times slower; they may be told to wait longer, never to check less.
SLOW = float(os.environ.get("SLUICE_TEST_SLOWNESS", "1"))
# For coordinators in tests that stop no worker: a machine that stands still for some seconds loses none.
PATIENCE = ["--heartbeat", "3s"]
# The arena of every worker: 10,000 tokens of the demo model. Over shared memory UCX writes all of it when a worker starts.
ARENA = "48M"
# For every process that a test starts: UCX's hooks of the memory calls do not work together with those of a sanitizer.
os.environ["UCX_MEM_EVENTS"] = "n"


def _messages(out):
    """The Python classes of our .proto files, compiled into the folder `out`, which is not needed any more afterwards."""
    protos = ["sluice/v1/inference.proto", "sluice/v1/cluster.proto", "sluice/v1/worker.proto", "sluice/v1/documents.proto", "grpc/health/v1/health.proto",
              "grpc/reflection/v1alpha/reflection.proto", "opentelemetry/collector/trace/v1/trace_service.proto"]
    # The generated modules of grpc/... would hide the grpc package: compile those under another root.
    ours = [p for p in protos if p.startswith("sluice/")]
    subprocess.run(["protoc", f"--proto_path={ROOT}/proto", f"--python_out={out}", *ours], check=True)
    for path in protos:
        if not path.startswith("sluice/"):
            folder = os.path.dirname(os.path.join(ROOT, "proto", path))
            subprocess.run(["protoc", f"--proto_path={folder}", f"--python_out={out}",
                            os.path.join(folder, os.path.basename(path))], check=True)
    sys.path.insert(0, out)
    try:
        import health_pb2
        import reflection_pb2
        import trace_service_pb2
        from sluice.v1 import cluster_pb2, documents_pb2, inference_pb2, worker_pb2
    finally:
        sys.path.remove(out)
    return inference_pb2, cluster_pb2, worker_pb2, documents_pb2, health_pb2, reflection_pb2, trace_service_pb2


with tempfile.TemporaryDirectory(prefix="sluice-proto-") as generated:
    inference, cluster_pb, worker_pb, documents_pb, health, reflection, otlp = _messages(generated)
State = inference.JobState


def stub(kind, method):
    """Returns a callable for a method of the contract, named in full; kind is channel.unary_unary or one like it. The .proto files
    give the path and the messages."""
    from google.protobuf import descriptor_pool, symbol_database
    found = descriptor_pool.Default().FindMethodByName(method)
    reply = symbol_database.Default().GetSymbol(found.output_type.full_name)
    return kind(f"/{found.containing_service.full_name}/{found.name}", response_deserializer=reply.FromString,
                request_serializer=lambda request: request.SerializeToString())


# By default, gRPC's channels to one address share a connection, and with it the back-off after a refusal: the first call to a process
# that has just started there may get the refusal of an earlier attempt, or waits. Each channel of a test has its own.
CHANNEL = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


def connect(address, *options):
    """Opens a channel, with a connection of its own, to a process that has no certificate."""
    return grpc.insecure_channel(address, options=[*CHANNEL, *options])


_guards = []


def free_port():
    """Returns a port of 127.0.0.1 that stays this test's until it ends, also while no process listens there. It is below the range from
    which the kernel chooses ports for connections and for port 0. A socket of a name that only one process can have guards it from the
    tests that run at the same time."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        end = int(file.read().split()[0])
    for port in random.sample(range(max(1024, end - 12000), end), 200):
        guard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            guard.bind(f"\0sluice-test-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            guard.close()
            continue
        _guards.append(guard)
        return port
    raise AssertionError(f"no free port below {end}")


class Certificates:
    """A folder of certificates, and who has which: "operator/me"."""

    def __init__(self, folder, *names):
        self.folder = folder
        self.make(*names)

    def make(self, *names):
        if names:
            subprocess.run([os.path.join(ROOT, "tools/test-ca.sh"), self.folder, *names], check=True)

    def file(self, who, end):
        return f"{self.folder}/{who.replace('/', '-')}.{end}"

    def options(self, who):
        return ["--tls-ca", f"{self.folder}/ca.pem", "--tls-cert", self.file(who, "pem"), "--tls-key", self.file(who, "key")]

    def channel(self, address, who, *options):
        content = [open(path, "rb").read() for path in (f"{self.folder}/ca.pem", self.file(who, "key"), self.file(who, "pem"))]
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(*content),
                                   options=[*CHANNEL, ("grpc.ssl_target_name_override", "localhost"), *options])


@contextlib.contextmanager
def certificates(*names):
    """Certificates in a folder that goes."""
    with tempfile.TemporaryDirectory(prefix="sluice-certificates-") as folder:
        yield Certificates(folder, *names)


def call(channel, method, message, timeout=20):
    """One request over a channel, one reply."""
    return stub(channel.unary_unary, method)(message, timeout=timeout * SLOW)


def refused(codes, what, *arguments):
    """Expects an error with one of the codes. Returns its text."""
    try:
        answer = what(*arguments)
    except grpc.RpcError as error:
        assert error.code() in codes, error
        return error.details()
    raise AssertionError(f"{arguments} was answered: {answer}")


def store_stats(address):
    """Returns the statistics of a kvstore."""
    with connect(address) as channel:
        return stub(channel.unary_unary, "sluice.v1.Store.Stats")(worker_pb.StoreStatsRequest(), timeout=5 * SLOW)


started = []


@atexit.register
def _kill_what_is_left():
    """A test that ends by an exception, wherever that was, leaves nothing running."""
    for process in started:
        if process.poll() is None:
            process.kill()


def _start_undertaker():
    """Starts a shell that outlives this process, however that ends, and then kills whatever descends from it. A test that was killed would
    leave workers that look for their coordinator for hours, and join the cluster of the next test that gets its port."""
    mark = f"OF_SLUICE_TEST={os.getpid()}-{os.urandom(8).hex()}"  # every process inherits it, `sluice up --detach` and etcd too
    command = ("trap '' INT TERM HUP; cat; for _ in 1 2 3 4 5 6 7 8 9; do found=$(grep -lsazxF -e \"$1\" /proc/[0-9]*/environ); [ \"$found\" ] || exit 0; "
               "for path in $found; do path=${path#/proc/}; kill -KILL ${path%/environ}; done; sleep 0.1; done")
    undertaker = subprocess.Popen(["sh", "-c", command, "sh", mark], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  start_new_session=True)
    os.environ.update([mark.split("=")])
    return undertaker


_undertaker = _start_undertaker()  # its input ends with this process


class Process:
    """One of our executables. Its standard error is kept; its first line of output says where it listens."""

    def __init__(self, name, args, env=None, wrap=lambda words: words):
        script.needs_programs(BIN, args[0])
        self.name, self.args = name, args
        log, self.log_path = tempfile.mkstemp(prefix=f"sluice-{name}-", suffix=".log")
        self.killed = False
        try:
            self.popen = subprocess.Popen(wrap([os.path.join(BIN, args[0]), *args[1:]]), stdout=subprocess.PIPE, stderr=log,
                                          env={**os.environ, **(env or {})})
        finally:
            os.close(log)
        started.append(self.popen)
        line = self._first_line(30 * SLOW)
        match = re.search(r"ready rpc=(\S+)", line)
        if not match:
            raise AssertionError(f"{name} did not start: {line!r}\n{self.errors()}")
        self.address = match.group(1)
        self.line = line
        admin = re.search(r"admin=(\S+)", line)
        self.admin = admin.group(1) if admin else None
        fabric = re.search(r"fabric=(\S+)", line)
        self.fabric = fabric.group(1) if fabric else None

    def _first_line(self, timeout):
        result = []
        reader = threading.Thread(target=lambda: result.append(self.popen.stdout.readline().decode()), daemon=True)
        reader.start()
        reader.join(timeout)
        return result[0] if result else ""

    def errors(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()

    def signal(self, number):
        self.killed = self.killed or number == signal.SIGKILL
        self.popen.send_signal(number)

    def stop(self, timeout=30):
        """Ask it to end; the exit code. A process that does not end is killed and reported."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
        try:
            return self.popen.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f"{self.name} did not end on SIGTERM within {timeout} s\n{self.errors()[-3000:]}")


class Cluster:
    def __init__(self, prefill=1, decode=1, kvstore=1, transport="auto", args=(), worker_args=None, coordinator_args=(),
                 model=MODEL, certificates=None, listen=None):
        self.transport, self.args, self.model = transport, list(args), model
        self.worker_args = worker_args or {}
        self.certificates = certificates  # of all processes; the test's own calls are those of operator/me
        self.processes = {}
        self.log_paths = []  # of all that were ever started
        self.counts = {"prefill": prefill, "decode": decode, "kvstore": kvstore}
        try:
            if certificates:
                certificates.make("coordinator/coordinator", "operator/me")
                coordinator_args = [*coordinator_args, *certificates.options("coordinator/coordinator")]
            listen = listen or f"127.0.0.1:{free_port()}"  # a test may start another one there
            self.coordinator = self._start("coordinator", ["sluice-coordinator", "--listen", listen, "--model", model,
                                                           *coordinator_args])
            self.channel = self.channel_of("operator/me")
            for role, count in self.counts.items():
                for index in range(count):
                    self.start_worker(f"{role}-{index}")
            self.wait_ready()
        except BaseException:
            self.kill_all()
            raise

    # -- processes --------------------------------------------------------------------------------------------------------

    def _start(self, name, args, env=None):
        self.processes[name] = self.new_process(name, args, env)
        self.log_paths.append(self.processes[name].log_path)
        return self.processes[name]

    def new_process(self, name, args, env):
        return Process(name, args, env)

    def start_worker(self, name, extra=(), env=None):
        role = name.split("-")[0]
        args = [f"sluice-{role}", "--name", name, "--coordinator", self.addresses_of_all(), "--transport", self.transport,
                "--arena", ARENA, "--lease", "3s", *self.args, *self.worker_args.get(role, ()), *extra]
        if self.certificates:
            self.certificates.make(f"worker/{role}/{name}")
            args += self.certificates.options(f"worker/{role}/{name}")
        if role != "kvstore":
            args += ["--model", self.model, "--threads", "1"]
        return self._start(name, args, env)

    def addresses_of_all(self):
        """Returns the addresses of all coordinators, as --coordinator takes them."""
        return self.coordinator.address

    def kill(self, name, number=signal.SIGKILL):
        self.processes[name].signal(number)

    def wait_ready(self, timeout=20):
        wanted = sum(1 for p in self.processes.values() if not p.name.startswith("coordinator") and not p.killed)
        eventually(lambda: sum(w.state == cluster_pb.READY for w in self.workers().workers) == wanted, timeout,
                   f"{wanted} workers ready")

    def kill_all(self):
        for process in self.processes.values():
            if process.popen.poll() is None:
                process.popen.kill()

    def logs(self, lines=40):
        return "\n".join(f"--- {p.name} ({p.log_path})\n" + "\n".join(p.errors().splitlines()[-lines:])
                         for p in self.processes.values())

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            print(self.logs(), file=sys.stderr)
            self.kill_all()
            return
        try:
            self.assert_clean()
            codes = {name: p.stop() for name, p in list(self.processes.items())[::-1] if not p.killed}
            assert all(code == 0 for code in codes.values()), f"exit codes {codes}\n{self.logs()}"
        except BaseException:
            print(self.logs(), file=sys.stderr)
            self.kill_all()
            raise
        self.close_channels()
        for path in self.log_paths:
            os.remove(path)

    def close_channels(self):
        self.channel.close()

    def channel_of(self, who, *options):
        """Connects to the coordinator as `who`, with a certificate if the cluster wants one."""
        if self.certificates:
            return self.certificates.channel(self.coordinator.address, who, *options)
        return connect(self.coordinator.address, *options)

    # -- calls ------------------------------------------------------------------------------------------------------------

    def _call(self, method, request):
        return stub(self.channel.unary_unary, method)(request, timeout=10 * SLOW)

    def _stream(self, method, request, timeout):
        return stub(self.channel.unary_stream, method)(request, timeout=timeout * SLOW)

    def generate(self, request, timeout=60):
        return self._stream("sluice.v1.Inference.Generate", request, timeout)

    def watch(self, job_id, from_sequence=0, timeout=60):
        request = inference.WatchRequest(job_id=job_id, from_sequence=from_sequence)
        return self._stream("sluice.v1.Inference.Watch", request, timeout)

    def submit(self, request):
        return self._call("sluice.v1.Inference.Submit", request).job_id

    def cancel(self, job_id):
        return self._call("sluice.v1.Inference.Cancel", inference.JobRequest(job_id=job_id))

    def get(self, job_id):
        return self._call("sluice.v1.Inference.Get", inference.JobRequest(job_id=job_id))

    def list(self):
        return self._call("sluice.v1.Inference.List", inference.ListRequest()).jobs

    def model_reply(self):
        return self._call("sluice.v1.Inference.Model", inference.ModelRequest())

    def workers(self):
        return self._call("sluice.v1.Cluster.Workers", cluster_pb.WorkersRequest())

    def answer(self, request, timeout=60):
        """Run a job to its end: (finished, events)."""
        events = list(self.generate(request, timeout))
        assert events[-1].HasField("finished"), f"the stream ended without Finished: {events[-1]}"
        return events[-1].finished, events

    def figures(self, name):
        """What the process says of itself: {"metric{labels}": value}."""
        with urllib.request.urlopen(f"http://{self.processes[name].admin}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and not line.startswith("#")}

    def wait_for_copies(self):
        """Waits until no copy to the store is on its way: a session stays in the arena until its copy has ended, and the store's lease until
        the copy can be found. This asks the processes themselves, because heartbeats come later."""
        eventually(lambda: self.figures("prefill-0")['sluice_arena_bytes{state="used"}'] == 0 and self.figures("kvstore-0")["sluice_leases"] == 0,
                   20, "no copy on its way")

    # -- being clean ------------------------------------------------------------------------------------------------------

    def gauges(self):
        """Everything that must be zero when no job runs, by name."""
        reply = self.workers()
        result = {"jobs_queued": reply.jobs_queued, "jobs_running": reply.jobs_running,
                  "admitted_bytes": reply.coordinator_leases}
        for worker in reply.workers:
            if worker.state == cluster_pb.LOST:
                continue
            name = worker.info.name
            result[f"{name}.jobs"] = worker.load.jobs
            result[f"{name}.leases"] = worker.load.leases
            result[f"{name}.grants"] = worker.load.fabric_grants
            result[f"{name}.ships"] = worker.load.fabric_ships
            if worker.info.role != cluster_pb.KVSTORE:  # a store's arena holds what it stores
                result[f"{name}.arena"] = worker.load.arena_used_bytes - worker.load.base_bytes  # which later answers may share
                result[f"{name}.staging"] = worker.load.staging_used_bytes
        return result

    def assert_clean(self, timeout=45):  # a grant whose writer fell silent is in quarantine for 30 s
        def clean():
            return not any(self.gauges().values())
        try:
            eventually(clean, timeout, "every gauge at zero")
        except AssertionError:
            raise AssertionError(f"not clean: { {k: v for k, v in self.gauges().items() if v} }")


def eventually(condition, timeout, what, every=0.05):
    deadline = time.monotonic() + timeout * SLOW
    while True:
        with contextlib.suppress(grpc.RpcError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout} s: {what}")
        time.sleep(every)


# -- prompts that the demo model can answer -------------------------------------------------------------------------------

def document(n_bytes, key="lantern", value="48213", seed=0):
    """n_bytes of a licence text that ships with Debian, with a fact in its middle."""
    with open("/usr/share/common-licenses/GPL-3") as file:
        text = " ".join(file.read().split())
    text = text[seed * 137:]
    half = text.find(" ", n_bytes // 2)
    return text[:half] + f" One of the special magic numbers for {key} is: {value}." + text[half:n_bytes]


def question(key="lantern"):
    return (f"\nWhat is the special magic number for {key} mentioned in the provided text? "
            f"The special magic number for {key} mentioned in the provided text is")


def request(n_bytes=6000, recipe="full", key="lantern", value="48213", max_new_tokens=12, seed=0, **fields):
    fields.setdefault("text", document(n_bytes, key, value, seed) + question(key))
    return inference.GenerateRequest(recipe=recipe, max_new_tokens=max_new_tokens, stop=["."], **fields)


def endless(n_bytes=3000, n_tokens=8000, **fields):
    """A job that decodes until the test cancels it, or kills its worker. It takes most of the arena of one worker, see ARENA."""
    return inference.GenerateRequest(text=document(n_bytes) + question(), recipe=fields.pop("recipe", "full"),
                                     max_new_tokens=n_tokens, ignore_eos=True, **fields)


def run_local(recipe, text, *options, n_tokens=12, model=MODEL):
    """The events of `sluice run --local`, on one thread: dictionaries."""
    run = subprocess.run([os.path.join(BIN, "sluice"), "run", "--local", "--model", model, "--recipe", recipe, "--json",
                          "--max-new-tokens", str(n_tokens), "--threads", "1", "--prompt-file", "-", *options],
                         input=text.encode(), capture_output=True, timeout=240 * SLOW)
    assert run.returncode == 0, f"{recipe}: {run.stderr.decode()}"
    return [json.loads(line) for line in run.stdout.decode().splitlines()]


def local_tokens(events):
    return [e["token"]["id"] for e in events if "token" in e]


@functools.lru_cache(maxsize=None)
def in_one_process(recipe, text, n_tokens=12, model=MODEL):
    """Token ids that a cluster should write, too, under ignore_eos."""
    return local_tokens(run_local(recipe, text, "--ignore-eos", n_tokens=n_tokens, model=model))


def tokens(events):
    return [e.token.id for e in events if e.HasField("token")]


def states(events):
    return [e.state.state for e in events if e.HasField("state")]


def run_tests(namespace):
    """Runs every test_* of a module in order and returns the exit code. Names on the command line pick some of them."""
    script.help_if_asked()
    script.needs_programs(BIN)
    chosen = sys.argv[1:]
    failed = ran = 0
    for name, test in list(namespace.items()):
        if name.startswith("test_") and (not chosen or name in chosen):
            began = time.monotonic()
            ran += 1
            faulthandler.dump_traceback_later(300 * SLOW)  # where a test hangs
            try:
                test()
                print(f"[  OK  ] {name} ({time.monotonic() - began:.1f} s)", flush=True)
            except Exception as error:  # report and go on with the next one
                import traceback
                traceback.print_exc()
                print(f"[FAILED] {name}: {error}", flush=True)
                failed += 1
    faulthandler.cancel_dump_traceback_later()
    print(f"{ran - failed} passed, {failed} failed", flush=True)
    return 1 if failed or not ran else 0
