#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The NEON tier on a machine that has none: cross-compile the kernels and their checks for AArch64, and run them under
# emulation. Exits with 77, skipped, where the cross compiler or the emulator is missing
# (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static).
#
# usage: neon_compiles.sh SOURCE_FOLDER
set -eu
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
[ $# -ge 1 ] || { echo "usage: ${0##*/} SOURCE_FOLDER; --help says more" >&2; exit 2; }
cd "$1"

cc=${AARCH64_CC:-aarch64-linux-gnu-gcc}
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
command -v "$cc" >/dev/null || { echo "skipped: no $cc"; exit 77; }
[ -n "$emulator" ] || { echo "skipped: no qemu-aarch64"; exit 77; }

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

sources="$(find engine/tensor -name '*.c' ! -path 'engine/tensor/cuda/*' ! -name 'avx*' ! -name 'amx*')
    engine/kvcache/format.c engine/kvcache/page.c base/clock.c base/hash.c base/locals.c base/log.c base/processors.c
    base/spin_budget.c base/status.c base/team.c base/thread.c"
compile() { # SOURCE OBJECT
    # xxhash.h is this machine's, and its functions are inline: there need not be a library of the other processor.
    "$cc" -std=gnu17 -O2 -pthread -Wall -Wextra -Werror -Wshadow -Wundef -Wno-format-truncation -ffp-contract=off \
        -fno-math-errno -D_GNU_SOURCE -DXXH_INLINE_ALL -I. -Itests/kernels/plain -idirafter /usr/include -c "$1" -o "$2"
}
for source in $sources; do # once for both checks
    compile "$source" "$out/$(echo "$source" | tr / _).o"
done
compile tests/kernels/tested_processors.c "$out/tested_processors.o"
for check in dense matmul; do
    compile "tests/kernels/check_$check.c" "$out/$check.main"
    "$cc" -static -pthread "$out/$check.main" "$out"/*.o -lm -o "$out/$check"
    "$emulator" "$out/$check" --quick
done
