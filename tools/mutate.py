#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Measures the tests: plants small bugs by rule, one at a time, builds, runs the tests that hold the file, and lists the bugs that live.

    tools/mutate.py --sample 20 coordinator/jobs net/fabric/link     # 20 bugs in these folders, drawn by --seed
    tools/mutate.py --since HEAD~5                                # in the lines that changed since then
    tools/mutate.py --sample 20 --resume kvstore                  # goes on where it was stopped
    tools/mutate.py --sample 20 --again kvstore                   # tries those once more that lived: after a test was written
    tools/mutate.py --sample 20 --summary kvstore                 # only counts what was found; --list: only what would be planted

Works on a copy of HEAD in build-mutate/, which is brought up to date. A bug dies if the build fails, if a unit test fails twice, or if
one takes far too long. The nearest tests run first, and only what a test needs is built. Leaks are detected. Cluster tests and bits do
not run. AddressSanitizer runs only with --asan, in a build of its own: use it with --again, as a bug that lives may be a read past an
array's end. A change that gives the same machine code is not a bug. A bug that lives shows that a test is missing, or it makes no difference:
then add it, with the reason, to tools/mutate.equivalent. Results are lines of JSON in build-mutate/results.jsonl; the last line of a bug
counts. The sample is drawn by hashes: a change elsewhere does not change it.
"""
import argparse
import collections
import functools
import hashlib
import json
import multiprocessing
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

import script

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EQUIVALENT = os.path.join(ROOT, "tools", "mutate.equivalent")

# Patterns in a line of code, and their replacements.
RULES = [
    ("off by one", r" < ", " <= "), ("off by one", r" <= ", " < "), ("off by one", r" > ", " >= "), ("off by one", r" >= ", " > "),
    ("negated", r" == ", " != "), ("negated", r" != ", " == "), ("and for or", r" && ", " || "), ("or for and", r" \|\| ", " && "),
    ("plus for minus", r" - ", " + "), ("minus for plus", r" \+ ", " - "), ("constant", r"\b1\b", "2"), ("constant", r"\b0\b", "1"),
    ("condition dropped", r"^(\s*)if \((.+)\) \{$", r"\1if (0 && (\2)) {"),
    ("condition forced", r"^(\s*)if \((.+)\) \{$", r"\1if (1 || (\2)) {"),
    ("call dropped", r"^(\s+)(\w*(?:free|release|unref|give|close|destroy|unlock|return_|cancel|take_out|forget)\w*\(.*\);)$", r"\1;"),
    ("check dropped", r"^(\s+)SL_FAIL_IF\(.+\);$", r"\1;"), ("failure ignored", r"^(\s+)SL_TRY\((.+)\);$", r"\1(void)(\2);"),
    ("success told", r"\breturn sl_fail\(err, \w+,", "return 0 ? SL_OK : sl_fail(err, SL_OK,"),
]
# Lines without bugs to plant: no code, only output, or checked by the compiler.
SKIPPED = re.compile(r"^\s*(//|\*|/\*|#)|static const|SL_OPTION|^\s*\{\"|^\s*case |^enum")
# Statements that only print or check, over all their lines.
SPEAKS = re.compile(r"^\s*(sl_log_\w+|assert|static_assert|_Static_assert|printf|fprintf|perror)\(")
# The smaller or the larger of two: where they are equal it does not matter which.
OF_TWO = re.compile(r"([\w.>\[\]()-]+) [<>]=? ([\w.>\[\]()-]+) \? (\1 : \2|\2 : \1)")

Bug = collections.namedtuple("Bug", "path number rule old new nth")  # nth: of the same in one file


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="folders or files; with --since, those that changed")
    parser.add_argument("--sample", type=int, default=20, metavar="N", help="bugs to plant (20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the sample (1)")
    parser.add_argument("--since", metavar="COMMIT", help="plant bugs only in lines that changed since then")
    parser.add_argument("--tests", metavar="REGEX", default="^unit_", help="unit tests that may be chosen from")
    parser.add_argument("--only", metavar="REGEX", default="", help="sample only files whose path contains this")
    parser.add_argument("--most", type=float, default=60, metavar="SECONDS", help="most seconds of unit tests for each bug, by their time without bugs (60)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="bugs at a time, each in a copy of its own (1)")
    parser.add_argument("--work", default=os.path.join(ROOT, "build-mutate"), metavar="DIR", help="where to build (build-mutate)")
    parser.add_argument("--resume", action="store_true", help="skip what has a result")
    parser.add_argument("--again", action="store_true", help="run only the bugs that survived")
    parser.add_argument("--asan", action="store_true", help="with AddressSanitizer, as make test-asan")
    parser.add_argument("--list", action="store_true", help="print the bugs and plant none")
    parser.add_argument("--summary", action="store_true", help="count the results and plant none")
    options = parser.parse_args()
    script.needs_tools("git", "cmake", "ninja", way="tools/install-deps.sh installs what the build needs, and apt-get install git")
    return options


# --- bugs ---


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout


def changed_lines(since):
    """{path: numbers of lines} of what HEAD has and `since` had not."""
    lines, path = {}, None
    for line in git("diff", "-U0", since, "HEAD", "--", "*.c").splitlines():
        if line.startswith("+++ b/"):
            path = line[6:]
        match = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if match and path:
            first, n = int(match[1]), int(match[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + n))
    return lines


def bugs_of_file(path, text, numbers):
    seen, speaks = collections.Counter(), False
    for number, line in enumerate(text.split("\n"), 1):
        speaks = speaks or bool(SPEAKS.match(line))
        if speaks or SKIPPED.search(line):
            speaks = speaks and not line.rstrip().endswith(";")
            continue
        code = line.split(" // ")[0]
        for rule, pattern, replacement in RULES:
            for match in re.finditer(pattern, code):
                new = code[:match.start()] + match.expand(replacement) + code[match.end():]
                same = (rule, line.strip(), new.strip())
                seen[same] += 1
                if rule == "off by one" and OF_TWO.search(code) and re.match(r" [<>]=?", match[0]) and OF_TWO.search(code).start() < match.start() < OF_TWO.search(code).end():
                    continue
                if code[:match.start()].count('"') % 2 == 0 and (numbers is None or number in numbers):
                    yield Bug(path, number, rule, line.strip(), new, seen[same])


def candidates(options):
    changed = changed_lines(options.since) if options.since else None
    for path in git("ls-files", "*.c").splitlines():
        if path.startswith(("tests/", "tools/", "lab/")) or (changed is not None and path not in changed):
            continue
        if options.folders and not any(path == f or path.startswith(f.rstrip("/") + "/") for f in options.folders):
            continue
        yield from bugs_of_file(path, git("show", "HEAD:" + path), changed[path] if changed is not None else None)


def key_of(bug):
    return "|".join([bug.path, bug.rule, bug.old, bug.new.strip(), str(bug.nth)])


def drawn(options):
    bugs = sorted(candidates(options), key=lambda bug: hashlib.sha1(f"{options.seed}|{key_of(bug)}".encode()).digest())
    if not bugs:
        sys.exit("mutate: nothing to plant a bug in")
    return bugs[:options.sample], len(bugs)


def shown_equivalent():
    """{(path, new line): reason}. A line is PATH | the line as it would be | why that makes no difference."""
    reasons = {}
    if os.path.exists(EQUIVALENT):
        with open(EQUIVALENT) as file:
            for line in file:
                words = line.rstrip("\n").split(" | ")
                if len(words) >= 3 and not line.startswith("#"):
                    reasons[words[0], " | ".join(words[1:-1])] = words[-1]
    return reasons


# --- the copy, and what it is built into ---


class Workshop:
    """A copy of HEAD, its build folder, and what is known about its tests."""

    def __init__(self, options, job):
        self.options = options
        kind = "-asan" * options.asan
        self.tree, self.build = (os.path.join(options.work, str(job) + kind, folder) for folder in ("tree", "build"))
        self.killers = collections.defaultdict(collections.Counter)  # {path: {test: bugs that it found}}
        self.hashes = {}   # of what a test runs, without a bug
        self.passed_path = os.path.join(options.work, f"passed{kind}.json")
        self.head = git("log", "-1", "--format=%H", "--", ".", ":!docs", ":!tools").strip()
        self.passed = {}  # {test: seconds that it takes without a bug}
        self.load_passed()
        self.copy_head()
        launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        # Leaks are found at the end of a test; that needs the same objects, and only another linker line.
        linker = ["-fuse-ld=mold"] * bool(shutil.which("mold")) + ["-fsanitize=leak"] * (not options.asan)
        launcher += ["-DSLUICE_ASAN=ON"] * options.asan
        # Assertions stay: they are tests, too.
        subprocess.run(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1",
                        "-DCMAKE_CXX_FLAGS_DEBUG=-O1", "--log-level=WARNING", *launcher, "-DCMAKE_EXE_LINKER_FLAGS=" + " ".join(linker)], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(self.build, "compile_commands.json")) as file:
            # Some files are compiled once more for a test; first what is the product's.
            made = sorted((re.search(r" -o (\S+)", c["command"])[1], c["file"]) for c in json.load(file))
            self.objects = {os.path.relpath(path, self.tree): o for o, path in sorted(made, key=lambda m: not m[0].startswith("tests/"))}
        listed = subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
        self.tests = {test["name"]: test for test in json.loads(listed)["tests"]}

    def load_passed(self):
        """Loads the times that other jobs have found for this commit."""
        if os.path.exists(self.passed_path):
            with open(self.passed_path) as file:
                head, passed = json.load(file)
                self.passed = dict(self.passed, **passed) if head == self.head else self.passed

    def copy_head(self):
        """Writes only what differs, so that only that is built again."""
        os.makedirs(self.tree, exist_ok=True)
        with tempfile.TemporaryFile() as archive:
            subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], stdout=archive, check=True)
            archive.seek(0)
            with tarfile.open(fileobj=archive) as tar:
                names = set()
                for member in tar:
                    names.add(member.name)
                    path = os.path.join(self.tree, member.name)
                    if not member.isfile() or not os.path.exists(path) or self.read(member.name) != tar.extractfile(member).read():
                        tar.extract(member, self.tree)
                        if member.isfile():
                            os.utime(path)
        for folder, _, files in os.walk(self.tree):
            for name in files:
                path = os.path.relpath(os.path.join(folder, name), self.tree)
                if path not in names and not path.endswith(".pyc"):
                    os.unlink(os.path.join(self.tree, path))

    def read(self, path):
        with open(os.path.join(self.tree, path), "rb") as file:
            return file.read()

    def write(self, path, data):
        with open(os.path.join(self.tree, path), "wb") as file:
            file.write(data)

    def make(self, *targets):
        return subprocess.run(["ninja", "-C", self.build, "-j1", *targets], capture_output=True).returncode == 0

    def hash(self, path):
        with open(os.path.join(self.build, path), "rb") as file:
            return hashlib.sha1(file.read()).hexdigest()

    @functools.lru_cache(maxsize=None)
    def inputs(self, test):
        return frozenset(subprocess.run(["ninja", "-C", self.build, "-t", "inputs", test], capture_output=True, text=True).stdout.split())

    def runs(self, test):
        """The programs that a test runs."""
        return ["tests/bin/" + test] + sorted(i for i in self.inputs(test) if i.startswith("bin/"))

    @functools.lru_cache(maxsize=None)
    def unit_tests(self):
        """Those that are a program; what Python runs is not asked."""
        names = [n for n in self.tests if re.search(self.options.tests, n) and n.startswith("unit_")]
        known = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], capture_output=True, text=True).stdout
        return [n for n in names if re.search(rf"^{n}: ", known, re.M)]

    @functools.lru_cache(maxsize=None)
    def tests_of(self, path):
        """Unit tests whose program holds the file: those of its folder, of its name first, and a few of others."""
        stem, top = os.path.basename(path)[:-2], "unit_" + path.split("/")[0]
        held = [n for n in self.unit_tests() if self.objects[path] in self.inputs(n)]
        folder, near = "unit_" + os.path.dirname(path).replace("/", "_"), []
        while not near and len(folder) >= len(top):  # tests of coordinator/jobs/ are named after coordinator/
            near = [n for n in held if n.startswith(folder)]
            folder = folder if near else folder[:folder.rfind("_")]
        far = [n for n in held if n not in near and not self.is_long(n)]
        return (sorted(near, key=lambda n: (not n.startswith(f"{folder}_{stem}"), self.passed.get(n, 1))),
                sorted(far, key=lambda n: (not n.startswith(top), self.passed.get(n, 1))))

    def is_long(self, test):
        """As CMake says: what costs much comes early. Asked only for its own folder."""
        return any(p["name"] == "COST" and p["value"] >= 40 for p in self.tests[test]["properties"])

    @functools.lru_cache(maxsize=None)
    def passes(self, test):
        """Without a bug. Remembers how long it takes."""
        if not self.make(test):
            sys.exit(f"mutate: {test} does not build without a bug")
        self.hashes[test] = [self.hash(p) for p in self.runs(test)]
        listed = subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
        self.tests = {t["name"]: t for t in json.loads(listed)["tests"]}
        self.load_passed()
        if test in self.passed:
            return True
        began = time.monotonic()
        failure = self.run(test, 600)
        if failure:
            print(f"mutate: {test} fails without a bug, and is not asked ({failure})", flush=True)
        else:
            self.load_passed()
            self.passed[test] = time.monotonic() - began
            with open(self.passed_path + str(os.getpid()), "w") as file:
                json.dump([self.head, self.passed], file)
            os.rename(file.name, self.passed_path)
        return not failure

    def run(self, test, limit):
        """"" if it passes."""
        properties = {p["name"]: p["value"] for p in self.tests[test]["properties"]}
        environment = dict(os.environ, **dict(line.split("=", 1) for line in properties.get("ENVIRONMENT", [])))
        process = subprocess.Popen(self.tests[test]["command"], cwd=properties["WORKING_DIRECTORY"], env=environment, start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        ends, tail = time.monotonic() + limit, b""
        try:
            while True:
                if not select.select([process.stdout], [], [], max(0, ends - time.monotonic()))[0]:
                    return "timeout"
                data = os.read(process.stdout.fileno(), 65536)
                tail = tail[-100:] + data
                if b"[  FAILED  ]" in tail:
                    return "failed"  # no need to wait for the rest of its tests
                if not data:
                    break
            code = process.wait(max(1, ends - time.monotonic()))
            return "" if code in (0, properties.get("SKIP_RETURN_CODE", 0)) else f"ended with {code}"
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            process.stdout.close()
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
            except ProcessLookupError:
                pass
            process.wait()

    def asked(self, bug, tests, text):
        """("died", by what), or ("lived", how many were asked), or ("unclear", why). text: of the file without the bug."""
        tests = [t for t in sorted(tests, key=lambda t: -self.killers[bug.path][t]) if self.passes(t)]
        lines = text.decode().split("\n")
        lines[bug.number - 1] = bug.new
        self.write(bug.path, "\n".join(lines).encode())
        n, seconds = 0, 0
        for test in tests:
            seconds += self.passed[test]
            if n > 0 and seconds > self.options.most:
                seconds -= self.passed[test]  # another one may be quicker
                continue
            if not self.make(test):
                return "died", "build"
            if [self.hash(p) for p in self.runs(test)] == self.hashes[test]:
                continue  # the linker left the file out
            n += 1
            # Twice: a machine that is busy fails tests, too.
            limit = 10 + 3 * self.passed[test]
            failure = self.run(test, limit)
            if failure and (failure == "timeout" or self.run(test, limit)):
                # And it must pass at once without the bug, if time matters to it.
                if failure == "timeout" or self.passed[test] > 0.5:
                    self.write(bug.path, text)
                    if not self.make(test) or self.run(test, limit):
                        return "unclear", f"{test} fails without the bug, too: the machine is busy"
                self.killers[bug.path][test] += 1
                return "died", test + (" (timeout)" if failure == "timeout" else "")
        return "lived", n

    def fate(self, bug):
        if bug.path not in self.objects:
            return "lived", "not built here"
        object_path, text = self.objects[bug.path], self.read(bug.path)
        if not self.make(object_path):
            sys.exit(f"mutate: {bug.path} does not build without a bug")
        before = self.hash(object_path)
        try:
            verdict, of = self.asked(bug, [], text)
            if not self.make(object_path):
                return "died", "build"
            if self.hash(object_path) == before:
                return "equivalent", "the same machine code"
            near, far = self.tests_of(bug.path)
            asked = 0
            for tests in near, far[:4]:
                self.write(bug.path, text)
                verdict, of = self.asked(bug, tests, text)
                if verdict != "lived":
                    return verdict, of
                asked += of
            return "lived", f"{asked} tests"
        finally:
            self.write(bug.path, text)


# --- results ---


def results_of(options):
    """{key of a bug: its last result}"""
    results = {}
    path = os.path.join(options.work, "results.jsonl")
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                result = json.loads(line)
                results[result["key"]] = result
    return results


def summary(options, sample):
    results, reasons = results_of(options), shown_equivalent()
    kinds = ["planted", "build", "test", "timeout", "equivalent", "lived"]
    folders = collections.defaultdict(collections.Counter)
    living = []
    for bug in sample:
        result = results.get(key_of(bug))
        if not result:
            continue
        kind = result["verdict"]
        if kind == "died":
            kind = "build" if result["of"] == "build" else "timeout" if "(timeout)" in result["of"] else "test"
        elif kind == "lived" and (bug.path, bug.new.strip()) in reasons:
            kind = "equivalent"
        living += [bug] if kind == "lived" else []
        for folder in (bug.path.split("/")[0], "all"):
            folders[folder].update(["planted", kind])
    print(f"\n{'folder':12}" + "".join(f"{k:>12}" for k in kinds) + f"{'died or equivalent':>20}")
    for folder in sorted(folders, key=lambda f: (f == "all", f)):
        count = folders[folder]
        share = 100 * (1 - count["lived"] / count["planted"])
        print(f"{folder:12}" + "".join(f"{count[k]:12d}" for k in kinds) + f"{share:18.1f} %")
    for bug in living:
        print(f"lives: {bug.path}:{bug.number}: {bug.rule}: {bug.new.strip()}")
    return 1 if living else 0


def plant(options, sample, job):
    """Every n-th bug of the sample."""
    workshop, reasons = Workshop(options, job), shown_equivalent()
    known = results_of(options) if options.resume or options.again else {}
    for result in known.values():
        if result["verdict"] == "died" and result["of"].startswith("unit_"):
            workshop.killers[result["key"].split("|")[0]][result["of"].split()[0]] += 1
    for i, bug in enumerate(sample, 1):
        past = known.get(key_of(bug))
        if past and options.resume or options.again and (not past or past["verdict"] != "lived" or (bug.path, bug.new.strip()) in reasons):
            continue
        if i % options.jobs != job or not re.search(options.only, bug.path):
            continue
        began = time.monotonic()
        verdict, of = ("lived", "as known") if (bug.path, bug.new.strip()) in reasons else workshop.fate(bug)
        seconds = round(time.monotonic() - began, 1)
        with open(os.path.join(options.work, "results.jsonl"), "a") as file:
            if verdict != "unclear":  # --resume tries it again
                file.write(json.dumps({"key": key_of(bug), "line": bug.number, "verdict": verdict, "of": of, "seconds": seconds}) + "\n")
        shown = f"{verdict.upper()}, {of}" if verdict in ("lived", "unclear") else of
        print(f"{i:4d}/{len(sample)} {shown} ({seconds:.0f} s)  {bug.path}:{bug.number}: {bug.rule}: {bug.new.strip()}", flush=True)


def main():
    options = arguments()
    sample, n_bugs = drawn(options)
    if options.summary:
        return summary(options, sample)
    print(f"mutate: {len(sample)} of {n_bugs} bugs, seed {options.seed}", flush=True)
    if options.list:
        for bug in sample:
            print(f"{bug.path}:{bug.number}: {bug.rule}: {bug.new.strip()}")
        return 0
    os.nice(5)
    jobs = [multiprocessing.Process(target=plant, args=(options, sample, job)) for job in range(options.jobs)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    return max(summary(options, sample), *(job.exitcode != 0 for job in jobs))


if __name__ == "__main__":
    sys.exit(main())
