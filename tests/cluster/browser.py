# SPDX-License-Identifier: Apache-2.0
"""A real browser without a window, Debian's chromium, by its DevTools protocol over a pair of pipes."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from harness import SLOW

PROGRAM = shutil.which("chromium")


class Browser:
    """One page. What it complains of (scripts that fail, what the page's policy forbids) is in `complaints`."""

    def __init__(self, width=1200, height=900, dark=False):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-browser-")
        commands, self.commands = os.pipe()
        self.replies, replies = os.pipe()

        def take_pipes():  # 3 and 4 are what the option means
            kept = os.dup(commands), os.dup(replies)
            os.dup2(kept[0], 3)
            os.dup2(kept[1], 4)
        self.popen = subprocess.Popen(
            [PROGRAM, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-lcd-text", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--disable-extensions", "--hide-scrollbars",
             f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=take_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(replies)
        self.buffer, self.number, self.session, self.complaints = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.look(width, height, dark)

    def call(self, method, timeout=60, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout * SLOW
        while True:
            while b"\0" not in self.buffer:
                left = deadline - time.monotonic()
                assert left > 0 and select.select([self.replies], [], [], left)[0], f"the browser does not answer {method}"
                read = os.read(self.replies, 1 << 20)
                assert read, f"the browser has ended: {self.popen.poll()}"
                self.buffer += read
            line, self.buffer = self.buffer.split(b"\0", 1)
            reply = json.loads(line)
            if reply.get("id") == self.number:
                assert "error" not in reply, reply
                return reply["result"]
            if reply.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(reply["params"])

    def look(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def ask(self, expression):
        """The value of some JavaScript; None while there is no page for it."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"].get("value")

    def wait(self, expression, timeout=20):
        deadline = time.monotonic() + timeout * SLOW
        while not self.ask(f"!!({expression})"):
            assert time.monotonic() < deadline, f"not so within {timeout} s: {expression}\n{self.text()}\n{self.complaints}"
            time.sleep(0.1)

    def text(self):
        return self.ask("document.body ? document.body.innerText : ''") or ""

    def screenshot(self, path, height=None):
        height = height or self.ask("document.documentElement.scrollHeight")
        width = self.ask("window.innerWidth")
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        os.close(self.commands)  # which ends it
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        os.close(self.replies)
        self.folder.cleanup()
