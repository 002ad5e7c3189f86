# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of steps.py within a time, and keeps the report complete meanwhile: see run.sh.

A step has an estimate, and a limit of its own: half as much again, or what is left. A step for which less than two fifths of its estimate is
left is skipped. After every command report.md and results.tgz are written anew, each by renaming, so a visit that ends at any moment has both.
What commands print, and the state from which `from STEP` goes on, lie in work/ and in results.tgz.
"""
import argparse
import concurrent.futures
import glob
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

KIT = os.path.dirname(os.path.abspath(__file__))
WORK = os.path.join(KIT, "work")
MOST_TEXT = 1 << 20  # of one command's output in results.tgz


def find_torch():
    """A Python that has PyTorch, and the folder of its packages; this one and None where there is none."""
    says = "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(os.path.dirname(s.origin)) if s else '')"
    pythons = [os.environ.get("KIT_TORCH"), sys.executable, shutil.which("python3"), shutil.which("python")]
    pythons += sorted(glob.glob("/opt/*/bin/python3") + glob.glob("/usr/local/bin/python3*") + glob.glob("/venv/bin/python3"))
    for python in dict.fromkeys(filter(None, pythons)):
        try:
            found = subprocess.run([python, "-c", says], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if found.returncode == 0 and found.stdout.strip():
            return python, found.stdout.strip()
    return sys.executable, None


def cublaslt_folder(packages):
    """Returns the folder of libcublasLt.so.13 in /usr/local/cuda or beside PyTorch, where the loader would not look; None: neither has it."""
    patterns = ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/*/lib"] + ([os.path.join(packages, "nvidia", "*", "lib")] if packages else [])
    folders = [folder for pattern in patterns for folder in sorted(glob.glob(pattern))]
    return next((folder for folder in folders if os.path.exists(os.path.join(folder, "libcublasLt.so.13"))), None)


class Visit:
    def __init__(self, seconds, out):
        self.begin = time.monotonic()
        self.end = self.begin + seconds
        self.seconds = seconds
        self.out = out
        self.device = os.environ.get("DEVICE", "cuda")
        self.small = self.device == "emulated"
        self.rows = []  # {"step", "name", "verdict", "figure", "peer", "ratio"}
        self.steps = {}  # by name: {"verdict", "seconds", "row"}
        self.facts = {}  # figures from which aims are computed
        self.step, self.step_end = None, self.end
        self.lock = threading.RLock()
        self.children = set()
        self.table = ()  # of steps.py
        self.write = lambda visit: ""  # the report's text
        os.makedirs(out, exist_ok=True)
        self.torch, packages = find_torch()
        self.cublaslt = cublaslt_folder(packages)
        libraries = [os.environ["KIT_LIBRARIES"], os.environ.get("LD_LIBRARY_PATH"), self.cublaslt]
        self.libraries = ":".join(library for library in libraries if library)
        self.loader = os.environ.get("KIT_LOADER")

    # --- commands ------------------------------------------------------------------------------------------------------

    def ours(self, program, *arguments, variables=()):
        """The command line of a program of the kit, whose libraries are its own alone."""
        path = os.path.join(KIT, program)
        command = [self.loader, "--library-path", self.libraries, path] if self.loader else [path]
        library = [] if self.loader else [f"LD_LIBRARY_PATH={self.libraries}"]
        return ["/usr/bin/env", *library, *variables, *command, *map(str, arguments)]

    def sluice(self, *arguments, variables=()):
        return self.ours("bin/sluice", *arguments, variables=variables)

    def left(self):
        return min(self.step_end, self.end) - time.monotonic()

    def run(self, name, command, most=None):
        """Runs a command within what is left of the step. Returns its exit code, 124 for one that was ended, and what it printed."""
        limit = min(self.left(), most or self.seconds)
        path = os.path.join(WORK, f"{self.step}-{name}.txt".replace("/", "-").replace(" ", "-"))
        begin = time.monotonic()
        with open(path, "wb") as output:
            if limit <= 0:
                output.write(b"no time was left\n")
                return 124, ""
            try:
                child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                         start_new_session=True, cwd=KIT)
            except OSError as error:
                output.write(f"{command[0]}: {error}\n".encode())
                return 127, str(error)
            with self.lock:
                self.children.add(child.pid)
            try:
                code = child.wait(limit)
            except subprocess.TimeoutExpired:
                code = 124
            self.kill(child)
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"\n# {' '.join(command)}\n# exit code {code}, {time.monotonic() - begin:.1f} s of at most {limit:.0f}\n")
        return code, text

    def kill(self, child):
        """Ends what a command has left: its whole session."""
        for end in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, end)
            except ProcessLookupError:
                break
            try:
                child.wait(2)
            except subprocess.TimeoutExpired:
                continue
        with self.lock:
            self.children.discard(child.pid)

    def together(self, work, items, threads):
        """Yields (item, work(item)) as they come, several at a time."""
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            futures = {pool.submit(work, item): item for item in items}
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()

    # --- results -------------------------------------------------------------------------------------------------------

    def row(self, name, verdict, figure="", peer="", ratio=""):
        with self.lock:
            self.rows.append({"step": self.step, "name": name, "verdict": verdict, "figure": figure, "peer": peer, "ratio": ratio})
            print(f"  {name}: {verdict} {figure} {peer} {ratio}".rstrip(), flush=True)
            self.save()

    def replace(self, name, write):
        path = os.path.join(self.out, name)
        write(path + ".new")
        os.replace(path + ".new", path)

    def save(self):
        with self.lock:
            with open(os.path.join(WORK, "state.json.new"), "w", encoding="utf-8") as file:
                json.dump({"rows": self.rows, "steps": self.steps, "facts": self.facts}, file)
            os.replace(os.path.join(WORK, "state.json.new"), os.path.join(WORK, "state.json"))
            self.replace("report.md", self.write_report)
            self.replace("results.tgz", self.pack)

    def write_report(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.write(self))

    def pack(self, path):
        with tarfile.open(path, "w:gz", compresslevel=1) as tar:
            for name in sorted(os.listdir(WORK)):
                if name.endswith((".txt", ".json")):
                    with open(os.path.join(WORK, name), "rb") as file:
                        data = file.read()[-MOST_TEXT:]  # the end says how it ended
                    member = tarfile.TarInfo(f"results/{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))

    def load(self):
        """The state of an earlier call, of this kit or from results.tgz in the folder of results."""
        path, packed = os.path.join(WORK, "state.json"), os.path.join(self.out, "results.tgz")
        if not os.path.exists(path) and os.path.exists(packed):
            with tarfile.open(packed) as tar:
                for member in tar.getmembers():
                    if member.isfile() and "/" in member.name:
                        with open(os.path.join(WORK, os.path.basename(member.name)), "wb") as file:
                            shutil.copyfileobj(tar.extractfile(member), file)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                state = json.load(file)
            self.rows, self.steps, self.facts = state["rows"], state["steps"], state["facts"]

    # --- steps ---------------------------------------------------------------------------------------------------------

    def do(self, step):
        left = self.end - time.monotonic()
        self.step = step.name
        self.rows = [row for row in self.rows if row["step"] != step.name]
        if left < max(4, 0.4 * step.seconds):
            self.steps[step.name] = {"verdict": "skipped", "seconds": 0, "row": {"figure": f"{left:.0f} s were left"}}
            print(f"== {step.name}: skipped, {left:.0f} s were left", flush=True)
            self.save()
            return
        limit = min(left, (6 if self.small else 1.5) * step.seconds)
        print(f"== {step.name}: about {step.seconds} s, at most {limit:.0f}", flush=True)
        begin = time.monotonic()
        self.step_end = begin + limit
        self.steps[step.name] = {"verdict": "broken off", "seconds": 0, "row": {}}  # until it is done
        self.save()
        try:
            verdict, row = step.run(self)
        except Exception as error:  # the next step shall have its turn
            verdict, row = "failed", {"figure": f"{type(error).__name__}: {error}"}
        self.steps[step.name] = {"verdict": verdict, "seconds": time.monotonic() - begin, "row": row}
        self.step_end = self.end
        print(f"== {step.name}: {verdict} {row.get('figure', '')}", flush=True)
        self.save()


def arguments(names):
    parser = argparse.ArgumentParser(prog="run.sh", description="See run.sh.")
    parser.add_argument("what", choices=["all", "from", "only"])
    parser.add_argument("step", nargs="?", choices=names)
    parser.add_argument("--seconds", type=float, default=480)
    asked = parser.parse_args()
    if (asked.step is None) != (asked.what == "all"):
        parser.error(f"{asked.what}: {'no step is named' if asked.step is None else 'takes no step'}")
    return asked


def main():
    import report
    import steps
    names = [step.name for step in steps.STEPS]
    asked = arguments(names)
    if asked.what == "all":
        shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK, exist_ok=True)
    visit = Visit(asked.seconds, os.environ["OUT"])
    visit.table, visit.write = steps.STEPS, report.text
    if asked.what != "all":
        visit.load()

    def ended(number, _):
        for child in list(visit.children):
            os.killpg(child, signal.SIGKILL)
        visit.save()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    first = 0 if asked.what == "all" else names.index(asked.step)
    chosen = steps.STEPS[first:first + 1] if asked.what == "only" else steps.STEPS[first:]
    why = steps.why_not(visit)
    if why:
        print(f"the device cannot be opened: {why}", flush=True)
        return 3
    for step in chosen:
        visit.do(step)
    failed = [name for name, step in visit.steps.items() if step["verdict"] == "failed"]
    print(f"{', '.join(failed)} failed" if failed else "nothing failed", f"in {time.monotonic() - visit.begin:.0f} s; {visit.out}/report.md")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
