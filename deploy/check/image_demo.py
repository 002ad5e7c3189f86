#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
The demo question, answered by a cluster whose processes all live in the image (jail.py): image_demo.py ROOT, the folder that
deploy/image/build.sh has made. Needs root.
"""
import os
import subprocess
import sys
import time
import urllib.request

import jail

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(PROJECT, "models", "demo")
QUESTION = ("What is the special magic number for lantern mentioned in the provided text? The special magic number for lantern "
            "mentioned in the provided text is")
FACT = "One of the special magic numbers for lantern is: 48213."


def document():
    """20 kB of a licence, with a fact in the middle: as tools/demo.sh makes it."""
    with open("/usr/share/common-licenses/GPL-3") as file:
        text = " ".join(file.read().split())[:20000]
    return f"{text[:10000]} {FACT} {text[10000:]}"


def ask(inside, coordinator, options=(), **more):
    """By the tool that is in the image."""
    job = inside.popen(["/bin/sluice", "run", "--coordinator", coordinator, "--prompt", document(), "--question", QUESTION, "--stop",
                        ".", "--max-new", "16", "--recipe", "full,format=int8", *options], stdout=subprocess.PIPE, **more)
    try:
        answer, _ = job.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()
        raise AssertionError("the job is not answered within 120 s")
    assert job.returncode == 0, f"sluice run ended with {job.returncode}"
    assert "48213" in answer.decode(), f"the answer is {answer.decode()!r}"


def over_http(url, key=None, context=None):
    body = f'{{"prompt": "{FACT} {QUESTION}", "max_tokens": 8, "stop": ".", "temperature": 0}}'.encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(urllib.request.Request(f"{url}/v1/completions", body, headers), timeout=60) as reply:
        text = reply.read().decode()
    assert "48213" in text, f"the gateway's answer is {text}"


def run(root):
    """Raises AssertionError or OSError with what is wrong."""
    with jail.Jail(root) as inside:
        model = {"mounts": {"/models/demo": MODEL}}
        try:
            coordinator = inside.serve("coordinator", ["/bin/sluice-coordinator", "--listen", "127.0.0.1:0", "--model", "/models/demo"],
                                       **model)["rpc"]
            for role in ("prefill", "decode"):
                inside.serve(role, [f"/bin/sluice-{role}", "--coordinator", coordinator, "--model", "/models/demo", "--arena", "64M"], **model)
            inside.serve("kvstore", ["/bin/sluice-kvstore", "--coordinator", coordinator, "--arena", "64M"])
            gateway = inside.serve("gateway", ["/bin/sluice-gateway", "--coordinator", coordinator, "--listen", "127.0.0.1:0"])["http"]
            time.sleep(1)  # a job that comes before the first beat of a store does without it
            ask(inside, coordinator)
            over_http(f"http://{gateway}")
        except BaseException:
            sys.stderr.write(inside.said()[-8000:])
            raise


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run(sys.argv[1])
    print("the demo question is answered from the image")
