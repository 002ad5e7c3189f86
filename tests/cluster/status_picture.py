#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""docs/status.png: the status page of a cluster with jobs of several recipes, as chromium shows it.

    SLUICE_BIN=build/bin tests/cluster/status_picture.py docs/status.png          # wide and light
    SLUICE_BIN=build/bin tests/cluster/status_picture.py --all FOLDER             # both widths, both schemes: to be looked at
"""
import os
import random
import shutil
import subprocess
import sys
import threading
import time

from browser import PROGRAM, Browser
from harness import Cluster, document, inference, question, script
from test_gateway import Gateway

SECONDS = 100
RECIPES = ("full,format=int8", "full,format=int4", "h2o,budget=0.2,format=int4", "snapkv,budget=512", "locret,budget=512,scope=stabilizers:128+tail:64,chunk=256,format=int4")
LABELS = ("nightly summary", "contract review", "support chat", "")


def client(cluster, seed, end):
    draw = random.Random(seed)
    while time.monotonic() < end:
        prompt = document(draw.choice((4000, 9000, 16000, 24000)), seed=draw.randrange(4)) + question()
        list(cluster.generate(inference.GenerateRequest(text=prompt, recipe=draw.choice(RECIPES), label=draw.choice(LABELS), ignore_eos=True,
                                                        max_new_tokens=draw.choice((40, 150, 400)))))
        time.sleep(draw.random() * 3)


def main(words):
    script.needs_arguments(1, "FILE | --all FOLDER")
    if not PROGRAM:
        script.stop("needs Chromium: apt-get install chromium")
    views = {words[-1]: (1050, False)}
    if words[0] == "--all":
        views = {os.path.join(words[1], f"{width}-{'dark' if dark else 'light'}.png"): (width, dark) for width in (1050, 400) for dark in (False, True)}
    with Cluster(prefill=2, decode=2) as cluster, Gateway(cluster) as gateway, Browser(1050, 800) as browser:
        browser.open(f"http://{gateway.host}:{gateway.port}/status")
        end = time.monotonic() + SECONDS
        clients = [threading.Thread(target=client, args=(cluster, seed, end)) for seed in range(7)]
        for one in clients:
            one.start()
        time.sleep(SECONDS - 10)
        for path, (width, dark) in views.items():
            browser.look(width, 800, dark)
            time.sleep(2.5)  # it asks again
            browser.screenshot(path, height=2000 if width < 500 else 1280)
            if shutil.which("pngquant"):  # a third of its size
                subprocess.run(["pngquant", "--force", "--output", path, "128", path], check=True)
        for one in clients:
            one.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
