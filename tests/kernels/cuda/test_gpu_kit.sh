#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `make gpu-kit` packs for a machine with a GPU does here what it can, on the emulated one: times every operation and compares
# answers; and a failure of a step is a failure.
#
#   test_gpu_kit.sh SOURCE_FOLDER    with SLUICE_BIN
set -e
kit=$(mktemp -d)
trap 'rm -rf "$kit"' EXIT
mkdir "$kit/checks" "$kit/lib"
ln -s "$SLUICE_BIN" "$kit/bin"
ln -s "$1/models" "$kit/models"
cp "$1/tools/gpu_kit/run.sh" "$kit/"

DEVICE=emulated "$kit/run.sh" time >"$kit/out" || { cat "$kit/out"; exit 1; }
for line in "matmul up, bf16 " "attend, a step, int1 " "gather " "all passed"; do
    grep -q "^$line" "$kit/out" || { echo "time: no line \"$line\""; cat "$kit/out"; exit 1; }
done
DEVICE=emulated PRESETS="full snapkv" "$kit/run.sh" whole >"$kit/out" || { cat "$kit/out"; exit 1; }
grep -q "^2 answers alike, 0 not, 0 refused by name" "$kit/out" || { cat "$kit/out"; exit 1; }
for what in check time whole; do
    code=0
    DEVICE=abacus "$kit/run.sh" $what >"$kit/out" || code=$?
    if [ $code -ne 3 ]; then
        echo "$what on a device that is not there ended with $code"
        exit 1
    fi
    grep -q "expected auto, cpu, cuda" "$kit/out"
    grep -q "^the device cannot be opened: nothing else is run" "$kit/out"
done
