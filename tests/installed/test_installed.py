#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The installed files work in their folder, and can be removed: the programs of docs/EMBEDDING.md and of the README against a cluster of
the installed programs, completions, man pages, units.

    test_installed.py BUILD [TEST]
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import script  # noqa: E402
script.needs_arguments(1, "BUILD [TEST]")
script.needs("grpc", "google.protobuf")
script.needs_programs(os.path.join(sys.argv[1], "bin"))

BUILD = os.path.abspath(sys.argv.pop(1))
PREFIX = "/opt/sluice"
ROOT = tempfile.mkdtemp(prefix="sluice-installed-")  # DESTDIR
HERE = ROOT + PREFIX
os.environ["SLUICE_BIN"] = HERE + "/bin"
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "cluster"))
import harness  # noqa: E402
from test_gateway import Gateway  # noqa: E402

PROGRAMS = ["sluice", "sluice-coordinator", "sluice-gateway", "sluice-prefill", "sluice-decode", "sluice-kvstore"]
# A component has a list of its own: that of what the user has installed from this folder stays as it is.
COMPONENT = ["--component", "Unspecified"]
LIST = os.path.join(BUILD, "install_manifest_Unspecified.txt")
UNINSTALL = os.path.join(SOURCE, "cmake", "uninstall.py")


def run(*words, input=None, **environment):
    done = subprocess.run(words, capture_output=True, text=True, input=input, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def block(path, language, n=0):
    """The n-th example in a language of a page."""
    with open(os.path.join(SOURCE, path)) as file:
        return re.findall(f"^```{language}\n(.*?)^```$", file.read(), re.M | re.S)[n]


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def install():
    run("cmake", "--install", BUILD, "--prefix", PREFIX, *COMPONENT, DESTDIR=ROOT)


def built_for(target):
    """Returns two sets of paths below BUILD: all outputs of the build, and those among them that a target needs."""
    edges = {}
    with open(f"{BUILD}/build.ninja") as file:
        for line in file:
            if edge := re.match(r"build (.*?): \S+(.*)", line):
                edges.update(dict.fromkeys(edge[1].split(), edge))
    needed, left = set(), [target]
    while left:
        path = left.pop()
        if path in edges and path not in needed:
            needed.update(edges[path][1].split())
            left += edges[path][2].split()
    return set(edges), needed


def test_the_target_programs_builds_what_is_installed_and_no_test():
    """`make install` builds this target alone: a file that it left out would be missing from a fresh checkout's installation."""
    with open(f"{BUILD}/cmake_install.cmake") as file:
        rules = re.findall(r"file\(INSTALL [^)]*\)", file.read())
    installed = {path for rule in rules for path in re.findall(rf'"{re.escape(BUILD)}/([^"]+)"', rule)}
    outputs, needed = built_for("programs")
    wanted = {"reference/made"}  # one output for its folders
    for path in installed:
        wanted |= {name for name in outputs if name == path or name.startswith(path + "/")}
    assert {"bin/sluice", "bin/libsluice_emulated.so", "lib/libsluice.so", "include/sluice/sluice.h", "proto/generated/proto/sluice/v1/cluster.pb-c.h"} <= wanted, wanted
    assert wanted <= needed, wanted - needed
    emulator = "tests/emulator/"  # of libsluice_emulated.so, which `--device emulated` loads
    assert not [name for name in needed if name.startswith("tests/") and not name.startswith(emulator)]
    assert [name for name in outputs if name.startswith("tests/bin/")]


def test_programs_run_and_say_their_version():
    for program in PROGRAMS:
        assert run(f"{HERE}/bin/{program}", "--version").startswith(f"{program} 0."), program


def test_examples_speak_with_a_cluster_of_what_is_installed():
    with tempfile.TemporaryDirectory(prefix="sluice-embedding-") as folder, harness.Cluster(model=f"{HERE}/share/sluice/models/demo") as cluster:
        write(f"{folder}/ask.c", block("docs/EMBEDDING.md", "c"))
        write(f"{folder}/CMakeLists.txt", block("docs/EMBEDDING.md", "cmake"))
        flags = run("pkg-config", "--cflags", "--libs", "sluice", PKG_CONFIG_PATH=f"{HERE}/lib/pkgconfig").split()
        run("cc", "-std=c17", "-Wall", "-Wextra", "-Werror", f"{folder}/ask.c", "-o", f"{folder}/by_pkg_config", *flags)
        run("cmake", "-S", folder, "-B", f"{folder}/build", f"-DCMAKE_PREFIX_PATH={HERE}")
        run("cmake", "--build", f"{folder}/build")
        prompt = harness.document(2000) + harness.question()
        for program in ("by_pkg_config", "build/ask"):
            answer = run(f"{folder}/{program}", cluster.coordinator.address, prompt, LD_LIBRARY_PATH=f"{HERE}/lib")
            assert "48213" in answer, answer
        with Gateway(cluster) as gateway:
            client = block("README.md", "python").replace("127.0.0.1:8000", f"{gateway.host}:{gateway.port}")
            answer = run("/usr/bin/python3", "-c", client, input=prompt)
            assert "48213" in answer, answer
            line = json.loads(run(f"{HERE}/bin/sluice", "bench", "serve", "--url", f"http://{gateway.host}:{gateway.port}", "--count", "2", "--input",
                                  "100", "--output", "2", "--rates", "20", "--max-lag", "1m", "--json", PYTHONPATH=""))
            assert line["completed"] == 2, line
        for address, status, says in [("nonsense", 2, "nonsense"), ("127.0.0.1:1", 1, "127.0.0.1:1")]:
            lost = subprocess.run([f"{folder}/by_pkg_config", address, "x"], capture_output=True, text=True, timeout=60, env={**os.environ, "LD_LIBRARY_PATH": f"{HERE}/lib"})
            assert lost.returncode == status and says in lost.stderr, lost


def test_the_program_of_the_page_is_short():
    assert len(block("docs/EMBEDDING.md", "c").splitlines()) <= 30


def test_the_library_shows_its_interface_and_nothing_else():
    names = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", f"{HERE}/lib/libsluice.so").splitlines()}
    with open(f"{HERE}/include/sluice/sluice.h") as file:
        declared = set(re.findall(r"\b(sl_client_[a-z]+)\(", file.read()))
    assert declared and declared <= names, declared - names
    others = {name for name in names if not re.match(r"sl_(client|deadline|status|utc|now|wall|sleep|fail|error)|sluice__v1__|SLUICE_0$", name)}
    assert not others, others
    assert "[libsluice.so.0.1]" in run("readelf", "-d", f"{HERE}/lib/libsluice.so"), "0.x: programs of another minor version must not be given it"


def completed(line, folder=None):
    """Returns the completions that bash offers at the end of a line."""
    script = ('source "$1"; COMP_WORDS=($2); [[ $2 == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n'
              '_${COMP_WORDS[0]//-/_}; printf "%s\\n" "${COMPREPLY[@]}"')
    path = f"{HERE}/share/bash-completion/completions/{line.split()[0]}"
    done = subprocess.run(["bash", "-c", script, "bash", path, line], capture_output=True, text=True, cwd=folder, check=True,
                          env={**os.environ, "PATH": f"{HERE}/bin:{os.environ['PATH']}"})
    return done.stdout.split()


def test_bash_completes_commands_options_and_files():
    assert completed("sluice ru") == ["run"]
    assert {"--recipe", "--question", "--json", "--help"} <= set(completed("sluice run --"))
    assert completed("sluice run --conf") == ["--config"]
    assert completed("sluice run --ship") == ["--ship-at-most"]
    assert "fidelity" in completed("sluice eval ") and "run" not in completed("sluice eval ")
    assert "--text" in completed("sluice eval fidelity --")
    assert completed("sluice run --max-new-tokens ") == [], "a number is nobody's to guess"
    assert "README.md" in completed("sluice run --prompt-file ", SOURCE)
    assert {"demo", "smollm2"} <= set(completed("sluice run --model ")) and "demo" in completed("sluice-decode -m de")
    assert "smollm2" in completed("sluice pull smo")
    assert "--max-scan-load" in completed("sluice-kvstore --ma")


def test_every_command_and_server_has_a_page_and_completion():
    said = json.loads(run(f"{HERE}/bin/sluice", "--describe"))
    for name in ["sluice"] + [f"sluice-{command['name']}" for command in said["commands"]]:
        assert os.path.exists(f"{HERE}/share/man/man1/{name}.1"), name
    for program in PROGRAMS[1:]:
        with open(f"{HERE}/share/man/man8/{program}.8") as file:
            assert "\\-\\-listen" in file.read(), program
        assert os.path.exists(f"{HERE}/share/fish/vendor_completions.d/{program}.fish"), program
    with open(f"{HERE}/share/man/man1/sluice-eval-perplexity.1") as file:
        assert "\\fBsluice\\-eval\\fR(1)" in file.read()
    for page, there, absent in [("1/sluice-run.1", "SLUICE_MODEL", "SLUICE_PROMPT"), ("8/sluice-decode.8", "SLUICE_ARENA", "SLUICE_HELP")]:
        with open(f"{HERE}/share/man/man{page}") as file:
            text = file.read()
        assert there in text and "SLUICE_CONFIG" in text and absent not in text and "\\-\\-config" in text, page
    for shell, path in [("zsh", "zsh/site-functions/_sluice"), ("fish", "fish/vendor_completions.d/sluice.fish")]:
        if shutil.which(shell):
            run(shell, "-n", f"{HERE}/share/{path}")
        else:
            assert os.path.exists(f"{HERE}/share/{path}"), path


def test_units_start_what_is_installed():
    units = sorted(os.path.basename(path) for path in glob.glob(f"{HERE}/lib/systemd/system/*"))
    assert len(units) == 8 and "sluice-decode@.service" in units and "sluice-gateway@.service" not in units, units
    for unit in units:
        with open(f"{HERE}/lib/systemd/system/{unit}") as file:
            text = file.read()
        program = re.search(rf"^ExecStart={PREFIX}/bin/(\S+)", text, re.M)[1]
        assert program in PROGRAMS and unit.startswith(program), unit
        assert ("-%i" in text) == ("@" in unit), unit
        if "kvstore@" in unit:
            assert "StateDirectory=sluice-kvstore-%i\n" in text and "--name=kvstore-%H-%i" in text, text


def test_units_are_found_by_paths_with_spaces():
    with tempfile.TemporaryDirectory(prefix="sluice space ") as folder:
        os.makedirs(f"{folder}/build/reference/zsh")
        write(f"{folder}/build/reference/zsh/_sluice", "")
        os.symlink(f"{SOURCE}/deploy", f"{folder}/deploy")
        with open(f"{BUILD}/cmake_install.cmake") as file:
            settings = re.search(r"set\(bin_folder .*?set\(build_folder [^\n]*", file.read(), re.S)[0]
        settings = settings.replace(BUILD, f"{folder}/build").replace(SOURCE, folder)
        write(f"{folder}/install.cmake", f'set(CMAKE_INSTALL_PREFIX "{folder}/there")\n{settings}\n'
              f'include("{SOURCE}/cmake/installed/by_prefix.cmake")\n')
        run("cmake", "-P", f"{folder}/install.cmake")
        assert len(os.listdir(f"{folder}/there/lib/systemd/system")) == 8


def test_a_package_leaves_the_list_of_what_was_installed():
    with open(f"{BUILD}/CPackConfig.cmake") as file:
        assert re.search(r'^set\(CPACK_INSTALL_CMAKE_PROJECTS ".*;Unspecified;/"\)', file.read(), re.M)


def test_uninstall_takes_no_path_for_a_pattern_and_tells_what_is_left():
    with tempfile.TemporaryDirectory(prefix="sluice-[1]-") as folder:
        os.makedirs(f"{folder}/share/sluice/[x]")
        for name in ("ours", "mine"):
            write(f"{folder}/share/sluice/[x]/{name}", "")
        os.makedirs(f"{folder}/bin/sluice")  # which no unlink() removes, like a file of another owner
        write(f"{folder}/list.txt", "/share/sluice/[x]/ours\n/bin/sluice\n/share/sluice/gone")
        words = ["/usr/bin/python3", UNINSTALL, f"{folder}/list.txt"]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "DESTDIR": folder})
        assert done.returncode == 1 and "removed 1 files" in done.stdout and "1 files are left" in done.stderr, done
        assert os.listdir(f"{folder}/share/sluice/[x]") == ["mine"] and os.path.exists(f"{folder}/list.txt")


def test_uninstall_leaves_nothing_and_takes_nothing_else():
    write(f"{HERE}/bin/others", "")
    write(f"{HERE}/share/man/man1/others.1", "")
    run("/usr/bin/python3", UNINSTALL, LIST, DESTDIR=ROOT)
    assert not os.path.exists(LIST)
    left = [os.path.relpath(path, HERE) for path in glob.glob(HERE + "/**", recursive=True) if not os.path.isdir(path)]
    assert sorted(left) == ["bin/others", "share/man/man1/others.1"], left
    assert not os.path.exists(f"{HERE}/include/sluice") and not os.path.exists(f"{HERE}/share/sluice"), os.listdir(HERE)


if __name__ == "__main__":
    try:
        install()
        sys.exit(harness.run_tests(globals()))
    finally:
        shutil.rmtree(ROOT)
