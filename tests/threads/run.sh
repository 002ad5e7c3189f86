#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs unit tests with ThreadSanitizer. From the repository's root: tests/threads/run.sh FOLDER TEST...
# Two threads that meet without a lock are rarely seen by what a test asserts; here they are, whether it went well or not.
# All of the tests: make test-tsan.
set -eu
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
[ $# -ge 2 ] || { echo "usage: ${0##*/} FOLDER TEST...; --help says more" >&2; exit 2; }
folder=$1
shift
# This build does not use the flags of the surrounding build. The tests link kernels and hardly run
# them: those are not optimized, which would take most of the time of the build.
launcher=$(command -v ccache || true)
env -u CFLAGS cmake -S . -B "$folder" -G Ninja -DSLUICE_TSAN=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG='-O1 -g1' \
    -DCMAKE_CXX_FLAGS_DEBUG='-O1 -g1' -DSLUICE_UNOPTIMIZED='^engine/tensor/(cpu|cuda)/' ${launcher:+-DCMAKE_C_COMPILER_LAUNCHER="$launcher"} \
    ${launcher:+-DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"} --log-level=WARNING >/dev/null
cmake --build "$folder" -j 1 --target "$@" >"$folder/build.log" || { tail -n 40 "$folder/build.log" && exit 1; }
names=$(printf '|%s' "$@")
ctest --test-dir "$folder" -j 2 -R "^(${names#|})\$" --output-on-failure --no-tests=error
