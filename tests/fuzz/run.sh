#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the fuzzers. From the repository's root:
#     tests/fuzz/run.sh build FOLDER LIBRARIES       with clang, in a build folder of their own; libraries are another build's
#     tests/fuzz/run.sh check FOLDER NAME SECONDS    what `make test` does
#     tests/fuzz/run.sh hunt  FOLDER NAME SECONDS    what `make fuzz` does
#     tests/fuzz/run.sh merge FOLDER NAME            to the committed corpus goes what hunts found beyond it
# Exits with 77 where the compiler or its runtime is missing: the tests are then skipped, with the reason.
#
# A check begins at the committed corpus with a fixed seed, so that a commit is judged by what it changed and not by the
# luck of the run that saw it. A hunt draws a new seed and begins where the last one ended (FOLDER/corpus).
set -eu
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
corpora=tests/fuzz/corpus
dictionaries=tests/fuzz/dictionaries

skip() {
    echo "skipped: $1; tools/install-deps.sh installs it"
    exit 77
}

build() {
    cc=$(command -v clang-14 || command -v clang) || skip "there is no clang"
    mkdir -p "$1"
    echo 'int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return !data && size; }' >"$1/probe.c"
    "$cc" -fsanitize=fuzzer,address,undefined "$1/probe.c" -o "$1/probe" 2>"$1/probe.log" ||
        skip "$cc has no libFuzzer: $(head -n 1 "$1/probe.log")"
    # This build does not use the flags and compilers of the surrounding build. Traces need lines, and no variables.
    env -u CFLAGS CC="$cc" cmake -S . -B "$1" -G Ninja -DSLUICE_FUZZ="$(realpath "$2")" \
        -DCMAKE_C_FLAGS_RELWITHDEBINFO='-O2 -g1 -DNDEBUG' --log-level=WARNING >/dev/null
    cmake --build "$1" -j "$(nproc)" --target fuzzers
}

# run FOLDER NAME OPTION...: the fuzzer, with its log and what it died of in the folder.
run() {
    folder=$1 name=$2
    shift 2
    program=$folder/tests/bin/fuzz_$name
    if [ ! -x "$program" ] && ls "$folder"/tests/bin/fuzz_* >/dev/null 2>&1; then
        echo "$program is not there, and other fuzzers are: tests/fuzz/CMakeLists.txt names it and does not build it"
        exit 1
    fi
    [ -x "$program" ] || skip "$program was not built (see the test fuzz_build)"
    mkdir -p "$folder/artifacts"
    # Model folders are made in memory, and removed here whatever the fuzzer died of.
    memory=/dev/shm
    [ -w "$memory" ] || memory=/tmp
    TMPDIR=$(mktemp -d "$memory/sluice-fuzz-run-XXXXXX")
    export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
    trap 'exit 143' INT TERM
    [ ! -f "$dictionaries/$name" ] || set -- -dict="$dictionaries/$name" "$@"
    status=0
    "$program" -timeout=20 -rss_limit_mb=2048 -artifact_prefix="$folder/artifacts/$name-" "$@" \
        >"$folder/$name.log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        tail -n 60 "$folder/$name.log"
        artifact=$(sed -n 's/.*Test unit written to //p' "$folder/$name.log" | tail -n 1)
        echo "fuzz_$name failed (status $status). To see it again, from the repository's root:"
        echo "    $program ${artifact:-$corpora/$name/*}"
        exit 1
    fi
}

usage() {
    sed -n '3,7s/^# //p' "$0" >&2
    exit 2
}

[ $# -ge 2 ] || usage
case $1 in
build)
    [ $# -ge 3 ] || usage
    build "$2" "$3"
    ;;
check)
    rm -rf "$2/checked/$3" # what an earlier run added
    mkdir -p "$2/checked/$3"
    run "$2" "$3" -max_total_time="$4" -seed=1 "$2/checked/$3" "$corpora/$3"
    grep -E 'INITED|DONE' "$2/$3.log"
    ;;
hunt)
    mkdir -p "$2/corpus/$3"
    run "$2" "$3" -max_total_time="$4" "$2/corpus/$3" "$corpora/$3"
    echo "$3: $(grep DONE "$2/$3.log"); $(ls "$2/corpus/$3" | wc -l) inputs in $2/corpus/$3"
    ;;
merge)
    # Only new edges count: one more input for every new count of a loop would be hundreds of files.
    run "$2" "$3" -merge=1 -use_counters=0 "$corpora/$3" "$2/corpus/$3"
    grep 'new files' "$2/$3.log"
    ;;
*) usage ;;
esac
