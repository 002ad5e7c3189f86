#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a machine with a GPU is asked, in this order (docs/GPU.md):
#
#   run.sh check   the driver and the plugin; every kernel against the reference tier, three times; 6 minutes
#   run.sh time    every operation at three sizes: time, floor, fraction, what was predicted; 9 minutes
#   run.sh whole   models/demo on processors and on the device: every preset's answer; chunks of any size to the bit; random
#                  weights of 8B's shape; 8 minutes
#
# DEVICE=emulated runs time and whole, small, where there is no GPU: to see that they work. Everything is printed and
# kept in results/. Exit codes: 0 all passed, 1 something failed, 2 usage, 3 the device cannot be opened.
here=$(cd "$(dirname "$0")" && pwd)
device=${DEVICE:-cuda}
out=${OUT:-$here/results}
mkdir -p "$out"

# The machine's C library where it is new enough, else the kit's.
loader=
LD_LIBRARY_PATH=$here/lib:$here/bin
export LD_LIBRARY_PATH
if ! "$here/bin/sluice" --version >/dev/null 2>&1; then
    loader="$here/glibc/ld-linux-x86-64.so.2 --library-path $here/glibc:$here/lib:$here/bin"
    unset LD_LIBRARY_PATH # of the machine's own programs
fi
sluice="$loader $here/bin/sluice"

failed=0
# step NAME COMMAND...: its output is shown and kept; a failure is remembered
step() {
    name=$1
    shift
    echo "== $name"
    "$@" >"$out/$name.txt" 2>&1
    code=$?
    cat "$out/$name.txt"
    if [ $code -ne 0 ]; then
        echo "== $name FAILED ($code)"
        failed=$((failed + 1))
    fi
}

# Without a device there is nothing to ask: says why, and ends with 3.
opens() {
    # shellcheck disable=SC2086
    step opens $sluice run --local --log info --model "$here/models/demo" --device "$device" --prompt "The " --max-new-tokens 4
    if [ $code -ne 0 ]; then
        echo "the device cannot be opened: nothing else is run"
        exit 3
    fi
}

check() {
    step driver nvidia-smi
    opens
    for program in "$here"/checks/*; do
        for round in 1 2 3; do
            # shellcheck disable=SC2086
            step "$(basename "$program")-$round" $loader "$program"
        done
    done
    if command -v compute-sanitizer >/dev/null 2>&1; then
        for program in "$here"/checks/*; do
            step "sanitizer-$(basename "$program")" compute-sanitizer --error-exitcode 1 "$program"
        done
    else
        echo "no compute-sanitizer here: skipped"
    fi
}

measure() {
    if [ "$device" = emulated ]; then
        # shellcheck disable=SC2086
        step time-tiny $sluice bench kernels --device "$device" --rows 16 --slots 128 --hidden-size 64 --ffn 96 --heads 4 --kv-heads 2 \
            --vocab 2000 --head-dim 32 --copy 1M --runs 1 --seconds 0.1
        return
    fi
    for size in "1024 16384" "2048 65536" "2048 131072"; do
        # shellcheck disable=SC2086
        step "time-$(echo "$size" | tr ' ' -)" $sluice bench kernels --device "$device" --rows "${size% *}" --slots "${size#* }" --seconds 3
    done
    # The same products by each: where there is no wgmma or no libcublasLt the log says so, and they are our own again.
    for gemm in own wgmma cublaslt; do
        # shellcheck disable=SC2086
        step time-$gemm env SLUICE_GEMM=$gemm SLUICE_LOG=info $sluice bench kernels --device "$device" --only matmul --seconds 3
    done
}

text() {
    n=0
    while [ $n -lt "$1" ]; do
        printf 'Line %d of a long text says that the sky over the harbour was grey and the boats stayed in. ' "$n"
        n=$((n + 1))
    done
    printf 'One of the special magic numbers for lantern is: 48213. That is all.'
}

# answer DEVICE RECIPE FILE
answer() {
    # shellcheck disable=SC2086
    $sluice run --local --quiet --model "$here/models/demo" --device "$1" --recipe "$2" --prompt-file "$3" --question \
        "What is the special magic number for lantern mentioned in the provided text? The special magic number for lantern is" \
        --max-new-tokens "$tokens" --ignore-eos
}

# Every preset on both; one that the device refuses by name is counted apart.
answers() {
    same=0 other=0 refused=0
    # shellcheck disable=SC2086
    presets=${PRESETS:-$($sluice recipes | awk 'NR > 1 { print $1 }')}
    for preset in $presets; do
        recipe=$preset
        case $preset in
        full | tailorkv*) ;;
        locret*) recipe="$preset,budget=80,chunk=64,scope=stabilizers:32+tail:16" ;;
        *) recipe="$preset,budget=80,chunk=64" ;;
        esac
        mine=$(answer cpu "$recipe" "$1" 2>"$out/stderr-cpu") || { echo "$preset: on processors: $(cat "$out/stderr-cpu")"; other=$((other + 1)); continue; }
        theirs=$(answer "$device" "$recipe" "$1" 2>"$out/stderr-device")
        code=$?
        if [ $code -ne 0 ] && grep -q "use --device cpu" "$out/stderr-device"; then
            refused=$((refused + 1))
        elif [ $code -eq 0 ] && [ "$mine" = "$theirs" ]; then
            same=$((same + 1))
        else
            other=$((other + 1))
            echo "$preset: processors wrote \"$mine\", the device \"$theirs\" ($code): $(cat "$out/stderr-device")"
        fi
    done
    echo "$same answers alike, $other not, $refused refused by name"
    [ $other -eq 0 ] && [ $same -gt 0 ]
}

# Logits are the same to the bit, however a prompt is cut into chunks.
chunks() {
    for chunk in 64 "$prompt"; do
        # shellcheck disable=SC2086
        $sluice bench cells --device "$device" --model "$here/models/demo" --cell "prefill:$prompt" --chunk "$chunk" --runs 1 \
            --logits "$out/logits-$chunk" || return 1
    done
    cmp "$out/logits-64" "$out/logits-$prompt"
}

# A model of 8B's shape, four layers of it.
cells() {
    for weights in stored int4; do
        # shellcheck disable=SC2086
        $sluice bench cells --device "$device" --geometry 8b --weights "$weights" --chunk 2048 --runs 3 --cell prefill:8192 \
            --cell prefill:32768 --cell decode:4096x1 --cell decode:4096x16 --cell decode:4096x64 || return 1
    done
}

whole() {
    lines=60 tokens=16 prompt=1024
    [ "$device" = emulated ] && lines=1 tokens=1 prompt=128
    text $lines >"$out/document.txt"
    step answers answers "$out/document.txt"
    for d in cpu "$device"; do
        # shellcheck disable=SC2086
        step "run-$d" $sluice run --local --model "$here/models/demo" --device "$d" --recipe full --prompt-file "$out/document.txt" \
            --question "What is said?" --max-new-tokens "$tokens" --ignore-eos
    done
    step chunks chunks
    [ "$device" = emulated ] && return
    for gemm in own cublaslt; do
        export SLUICE_GEMM=$gemm
        step chunks-$gemm chunks
        unset SLUICE_GEMM
    done
    step cells cells
}

case $1 in
check) check ;;
time)
    opens
    measure
    ;;
whole)
    opens
    whole
    ;;
*)
    sed -n '3,12p' "$0"
    exit 2
    ;;
esac
[ $failed -eq 0 ] && echo "all passed" || echo "$failed failed"
[ $failed -eq 0 ]
