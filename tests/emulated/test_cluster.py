# SPDX-License-Identifier: Apache-2.0
"""Workers on an emulated GPU, whose memory the host cannot touch: in every pair of devices a job's answer is that of one process
on the processors, and nothing is left behind."""
import contextlib
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from harness import BIN, MODEL, SLOW, Cluster, inference, local_tokens, request, run_local, run_tests, tokens  # noqa: E402
import grpc  # noqa: E402

QUESTION = "What is the special magic number for lantern mentioned in the provided text? The special magic number for lantern is"
SMALL = "budget=56,chunk=64"  # so that a short text is evicted from twice, the second time of more than a page
ON_DEVICE = ["--device", "emulated", "--arena", "24M", "--staging", "16M"]


def document():
    with open("/usr/share/common-licenses/GPL-3", encoding="ascii") as file:
        words = file.read().split()
    return " ".join(words[:4] + ["One of the special magic numbers for lantern is: 48213."] + words[4:10])


def job(recipe):
    return inference.GenerateRequest(text=document() + " " + QUESTION, recipe=recipe, max_new_tokens=6, stop=["."])


def expected(recipe):
    return local_tokens(run_local(recipe, job(recipe).text, "--stop", ".", n_tokens=6))


def answer_on(devices, recipes, straight=()):
    """Every recipe, twice: the second time the store has the capsule, or the state between two chunks. Capsules of the workers in
    `straight` leave from the device's memory, or arrive there, which the network sees at another address than the host."""
    room = 96 << 20  # going straight wants scratch left beside it
    with environment("SLUICE_EMULATED_NETWORK", int(len(straight) > 0)), environment("SLUICE_EMULATED_MEMORY", room):
        cluster = Cluster(kvstore=1, worker_args={role: ON_DEVICE for role in devices})
    with cluster:
        for recipe in recipes:
            for time in ("first", "second"):
                finished, events = cluster.answer(job(recipe), timeout=120)
                assert tokens(events) == expected(recipe), f"{recipe}, the {time} time: {tokens(events)}"
            assert "48213" in finished.text or not recipe.startswith("full"), (recipe, finished.text)
            cluster.assert_clean()
        for role in devices:
            log = cluster.processes[f"{role}-0"].errors()
            assert log.count('staged reason="') + log.count("straight room=") == 1, log
            assert (role in straight) == ("straight room=" in log), log
            way = {"prefill": " left=", "decode": " arrived="}[role]
            if role in straight:  # every capsule that was made here, or came here: at least the first of each recipe
                assert log.count(way + "straight") >= len(recipes) and way + "staged" not in log, log


def test_prefill_on_a_device():
    answer_on(["prefill"], ["full,format=int8", "h2o," + SMALL, "tailorkv-near,topk=32"], straight=["prefill"])


def test_decode_on_a_device():
    answer_on(["decode"], ["full", "snapkv,format=int4," + SMALL, "h2o,when=chunk+step," + SMALL], straight=["decode"])


def test_both_on_devices():
    answer_on(["prefill", "decode"], ["d2o," + SMALL, "tailorkv,topk=32"], straight=["prefill", "decode"])


def test_prompts_take_turns_in_staging_memory():
    """It has room for one prompt that offloads, not for two, of which stores have or have not the beginning: who waits in line holds none
    of it."""
    recipe = "tailorkv-near,topk=32"
    with Cluster(kvstore=1, worker_args={"prefill": ["--device", "emulated", "--arena", "24M", "--staging", "11M"]}) as cluster:
        for events in [cluster.generate(job(recipe), timeout=120) for _ in range(2)]:
            events = list(events)
            assert tokens(events) == expected(recipe), events[-1]
        cluster.assert_clean()


def test_who_has_too_little_staging_memory_is_passed_over():
    """A capsule of more than a decode worker's staging memory: refused where there is no other, else the other's."""
    text = " ".join([document()] * 24) + " " + QUESTION
    long = inference.GenerateRequest(text=text, recipe="full", max_new_tokens=3, ignore_eos=True)
    want = local_tokens(run_local("full", text, n_tokens=3))
    with Cluster(kvstore=0, worker_args={"decode": ["--device", "emulated", "--staging", "1M"]}) as cluster:
        try:
            cluster.submit(long)
            raise AssertionError("a capsule that no worker could receive was taken")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION and "--staging" in error.details(), error
        cluster.start_worker("decode-1", ["--staging", "16M"])
        cluster.wait_ready()
        for events in [cluster.generate(long, timeout=120) for _ in range(3)]:
            events = list(events)
            assert tokens(events) == want, events[-1]
        cluster.assert_clean()
        assert "decode: job=" not in cluster.processes["decode-0"].errors(), cluster.processes["decode-0"].errors()


def fail_on(role, kernel, *options, says="", how="SLUICE_EMULATED_FAULT", fails="the emulated kernel "):
    """The device goes wrong at that kernel: its worker says where and ends, and the job goes on with another."""
    recipe = "h2o," + SMALL
    os.environ[how] = str(kernel)
    with Cluster(kvstore=1, worker_args={role: ON_DEVICE + list(options)}, coordinator_args=["--worker-wait", "30s"]) as cluster:
        del os.environ[how]
        events = cluster.generate(job(recipe), timeout=120)
        worker = cluster.processes[f"{role}-0"]
        assert worker.popen.wait(60 * SLOW) == 1, worker.errors()
        assert f"the device has failed: {fails}" in worker.errors() and says in worker.errors(), worker.errors()
        worker.killed = True  # by itself: that was looked at
        cluster.worker_args = {}
        cluster.start_worker(f"{role}-1")
        assert tokens(list(events)) == expected(recipe)


def test_a_device_that_hangs_ends_its_worker():
    """A kernel that never ends: after --stall-after its worker says so, and ends in order."""
    fail_on("decode", "200@0", "--stall-after", "3s", how="SLUICE_EMULATED_STALL", fails="device 0 (emulated) hangs: it has work and got nothing done for 3.0 s")


@contextlib.contextmanager
def environment(name, value):
    """Processes that start meanwhile have the variable."""
    os.environ[name] = str(value)
    try:
        yield
    finally:
        del os.environ[name]


def start_alone(role):
    """Starts a worker without a cluster. Returns its output, once it was ready or had exited, and its exit code."""
    command = [os.path.join(BIN, f"sluice-{role}"), "--model", MODEL, "--listen", "127.0.0.1:0", "--fabric-listen", "127.0.0.1:0",
               "--coordinator", "127.0.0.1:1", *ON_DEVICE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        process.terminate()
        return said, process.communicate(timeout=60 * SLOW)[1], process.returncode


def test_memory_that_cannot_be_pinned_is_said_with_the_remedy():
    for role in ("prefill", "decode"):
        with environment("SLUICE_EMULATED_PINNED", 64 << 10):  # the default of ulimit -l
            said, errors, code = start_alone(role)
        assert said == "" and code == 3, (said, errors, code)
        assert "16777216 bytes cannot be pinned for the emulated device; see ulimit -l" in errors, errors
        assert start_alone(role)[0].startswith("ready"), role


def test_no_room_in_mid_prompt_is_refused_and_the_worker_lives():
    """The device has the memory that a worker needs to start, and no more: none for a prompt."""
    least, most = 32 << 20, 128 << 20
    while most - least > 16 << 10:
        limit = (least + most) // 2
        with environment("SLUICE_EMULATED_MEMORY", limit):
            least, most = (least, limit) if start_alone("prefill")[0].startswith("ready") else (limit, most)
    with environment("SLUICE_EMULATED_MEMORY", most):
        cluster = Cluster(kvstore=0, worker_args={"prefill": ON_DEVICE})
    with cluster:
        for recipe in ("full", "h2o," + SMALL):
            try:
                events = list(cluster.generate(job(recipe), timeout=120))
                raise AssertionError(f"{recipe} was answered: {events[-1]}")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
                assert "prefill-0: the device has no room for " in error.details() and "--arena" in error.details(), error
        assert cluster.processes["prefill-0"].popen.poll() is None
        cluster.assert_clean()


def test_prefill_goes_on_elsewhere():
    fail_on("prefill", 100)


def test_decode_goes_on_elsewhere():
    fail_on("decode", 150)


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
