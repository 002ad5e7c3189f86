#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernels as a GPU's compiler sees them: they compile for compute capability 8.0, arrays that are to be registers are, and the
# instructions that kernels are written around are there. In the PTX that nvcc left where it built the plugin for the tests
# (cmake/cuda.cmake); else by clang, which needs no CUDA for that; where neither can make PTX, the test is skipped.
#
#   cuda_compiles.sh SOURCE_FOLDER [FOLDER_OF_PTX | --read]      --read: clang looks for errors, and makes no PTX
set -e
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
[ $# -ge 1 ] || { echo "usage: ${0##*/} SOURCE_FOLDER [FOLDER_OF_PTX | --read]; --help says more" >&2; exit 2; }
root=$1
kept=$2 read=
[ "$kept" != --read ] || read=-fsyntax-only kept=
stub=$root/tests/kernels/cuda/stub
compiled=$(mktemp -d)
trap 'rm -rf "$compiled"' EXIT

clang=
for name in clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18 clang++-19; do
    if [ -z "$kept" ] && "$name" -print-targets 2>/dev/null | grep -q nvptx64; then
        clang=$name
        break
    fi
done
if [ -z "$clang$kept" ]; then
    echo "no nvcc, and no clang++ with a backend for NVPTX"
    exit 77
fi

# compile FILE: its PTX is $ptx, and compiled once
compile() {
    name=$(basename "$1" .cu)
    folder=$(basename "$(dirname "$1")")_$name
    if [ -n "$kept" ]; then
        ptx=$kept/$folder/$name.compute_80.ptx # of several architectures nvcc names each
        [ -f "$ptx" ] || ptx=$kept/$folder/$name.ptx
        return
    fi
    ptx=$compiled/$folder.ptx
    [ ! -f "$ptx" ] || return 0
    "$clang" -x cuda --cuda-gpu-arch=sm_80 --cuda-device-only -nocudainc -nocudalib ${read:--S} -O3 -std=c++17 -Wall -Werror \
        -Wno-unknown-cuda-version -Wno-unused-function -D__CUDACC__ -include "$stub/cuda_stub.h" -I"$stub" -I"$root" "$1" -o "$ptx"
}

# wants FILE PATTERN...: each is in the PTX of the file
wants() {
    file=$1
    shift
    compile "$root/engine/tensor/cuda/$file"
    for pattern in "$@"; do
        grep -q "$pattern" "$ptx" || { echo "$file: no $pattern in its PTX"; exit 1; }
    done
}

n=0
for source in "$root"/engine/tensor/cuda/*/*.cu; do
    compile "$source"
    n=$((n + 1))
    [ -z "$read" ] || continue
    # sin and cos of large angles have an array, in nvcc's library.
    if grep "\.local .*__local_depot" "$ptx" | grep -vq "\.align 8 \.b8 .*__local_depot[0-9]*\[40\]"; then
        echo "$source: arrays lie in local memory: a loop over them is not unrolled (GPU_UNROLL), or a function not inlined"
        exit 1
    fi
done
[ -z "$read" ] || { echo "$n files read by $clang"; exit; }
wants dense/few_rows.cu "mma.sync.aligned.m16n8k16.row.col.f32.bf16" "ld.*no_allocate.*v4.*32" "fma.rn.bf16x2"
wants dense/some_rows.cu "mma.sync.aligned.m16n8k16.row.col.f32.bf16" "ld.*no_allocate.*v4.*32" "cp.async.cg.shared.global" \
    "fma.rn.bf16x2"
wants dense/many_rows.cu "mma.sync.aligned.m16n8k16.row.col.f32.bf16" "ldmatrix.sync.aligned.m8n8.x4" "cp.async.cg.shared.global" \
    "fma.rn.bf16x2"
wants attention/attend.cu "ld.*v4.*32" "st.shared.*v4.*32"
wants attention/attend_tensor.cu "mma.sync.aligned.m16n8k16.row.col.f32.f16" "mma.sync.aligned.m16n8k16.row.col.f32.bf16" \
    "ldmatrix.sync.aligned.m8n8.x4.shared" "ldmatrix.sync.aligned.m8n8.x4.trans" "cp.async.cg.shared.global"
wants attention/attend_packed.cu "mma.sync.aligned.m16n8k16.row.col.f32.f16" "movmatrix.sync.aligned.m8n8.trans" \
    "lop3.b32 .*0xea" "ld.*v4.*32"
wants attention/stats.cu "ld.*v4.*32"
wants retrieve/scan.cu "ld.*v4.*32"
wants evict/nearest_tensor.cu "mma.sync.aligned.m16n8k16.row.col.f32.f16" "ldmatrix.sync.aligned.m8n8.x4.shared" "cp.async.cg.shared.global"
wants evict/gather.cu "ld.*v4.*32" "st.*v4.*32"
echo "$n files, by ${clang:-nvcc}"
