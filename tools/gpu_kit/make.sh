#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Packs what a machine with an NVIDIA driver needs to check and measure Sluice: programs, the plugin, the checks of its kernels, the demo
# model, and the libraries that they need. OUT_FOLDER gets gpu-kit.tar.xz, and gpu-kit.sh, which unpacks it and runs run.sh of it.
#
#   make.sh BUILD_FOLDER OUT_FOLDER
#   make.sh --emulated BUILD_FOLDER OUT_FOLDER    without the plugin and its checks: for a test
#
# Both have two checks on the emulated device, so that DEVICE=emulated tries every step where there is no GPU.
set -e
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
[ $# -ge 2 ] || { echo "usage: ${0##*/} [--emulated] BUILD_FOLDER OUT_FOLDER; --help says more" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
emulated=
[ "$1" = --emulated ] && emulated=yes && shift
build=$1
out=$2
most_kib=30720 # of the file: what may travel to such a machine, less the tree

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kit=$work/gpu-kit
mkdir -p "$out" "$kit/bin" "$kit/checks" "$kit/lib" "$kit/glibc" "$kit/models"
for program in sluice sluice-coordinator sluice-prefill sluice-decode sluice-kvstore; do
    cp "$build/bin/$program" "$kit/bin/"
done
cp "$build/bin/libsluice_emulated.so" "$kit/bin/"
cp "$build"/tests/bin/kernels_emulated_model_sizes "$build"/tests/bin/kernels_emulated_select "$kit/checks/"
if [ -z "$emulated" ]; then
    cp "$build/bin/libsluice_cuda.so" "$kit/bin/"
    cp "$build"/gpu-checks/kernels_cuda_* "$kit/checks/"
fi
strip "$kit"/bin/* "$kit"/checks/*
cp -r "$root/models/demo" "$kit/models/"
cp "$root"/tools/gpu_kit/*.py "$root/tools/gpu_kit/run.sh" "$root/LICENSE" "$kit/"
python3 "$root/tools/gpu_counts/aims.py" --json >"$kit/aims.json"
git -C "$root" rev-parse HEAD >"$kit/commit" 2>/dev/null || echo unknown >"$kit/commit"

# stands_in LIBRARY: what the programs ask of it, and never call there, stops. Libraries for downloads and for TLS, and what they bring, are
# half of what the programs link.
stands_in() {
    real=$(ldd "$build"/bin/sluice | awk -v name="$1" '$1 == name { print $3 }')
    [ -n "$real" ] || return 0 # the tool was built without it
    nm -D --defined-only "$real" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u >"$work/theirs"
    nm -D --undefined-only "$build"/bin/sluice "$build"/bin/sluice-* 2>/dev/null | awk 'NF == 2 { print $2 }' | sort -u >"$work/asked"
    # NAME or NAME@VERSION of what is asked for and is this library's
    awk 'NR == FNR { theirs[$1] = 1; next } { split($1, part, "@"); if (part[1] in theirs) print $1 }' "$work/theirs" "$work/asked" >"$work/names"
    sed 's/@.*//; s/.*/void &(void); void &(void) { __builtin_trap(); }/' "$work/names" >"$work/stop.c"
    awk -F@ 'NF > 1 { of[$2] = of[$2] " " $1 ";" } END { for (v in of) print v " { global:" of[v] " };" }' "$work/names" >"$work/versions"
    script=
    [ -s "$work/versions" ] && script=-Wl,--version-script=$work/versions
    ${CC:-cc} -shared -fPIC -fno-builtin -w -Wl,-soname,"$1" $script -o "$kit/lib/$1" "$work/stop.c"
}
stands_in libcurl.so.4
stands_in libzip.so.4
stands_in libIPSec_MB.so.1

# The C library stands apart: it is used where the machine's own is too old, with its own loader.
for file in "$kit"/bin/* "$kit"/checks/*; do
    LD_LIBRARY_PATH=$kit/lib ldd "$file"
done | grep -v "$kit/" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\/.*ld-linux/ { print $1 }' | sort -u | while read -r library; do
    case $(basename "$library") in
    libc.so* | libm.so* | ld-linux*) cp -L "$library" "$kit/glibc/" ;;
    *) cp -L "$library" "$kit/lib/" ;;
    esac
done
# Parts of the same C library that the driver's own library needs.
for name in libpthread.so.0 libdl.so.2 librt.so.1; do
    cp -L "$(dirname "$(ldd "$kit/bin/sluice" | awk '$1 ~ /^libc.so/ { print $3 }')")/$name" "$kit/glibc/"
done

# Similar files side by side, and a dictionary that reaches from one to the next: the programs share most of their code.
(cd "$work" && find gpu-kit -type f -print | sed 's|\(.*/\)\(.*\)|\2 \1\2|' | sort | cut -d' ' -f2 |
    tar --owner=0 --group=0 -cf - -T -) | xz -T1 --lzma2="${KIT_XZ:-preset=9,dict=96MiB}" >"$out/gpu-kit.tar.xz"
sum=$(sha256sum "$out/gpu-kit.tar.xz" | cut -c1-16)
sed "s/@SUM@/$sum/" "$root/tools/gpu_kit/unpack.sh" >"$out/gpu-kit.sh"
chmod 755 "$out/gpu-kit.sh"

kib=$(du -k --apparent-size "$out/gpu-kit.tar.xz" | cut -f1)
echo "$out/gpu-kit.tar.xz: $((kib / 1024)).$((kib % 1024 * 10 / 1024)) MiB of at most $((most_kib / 1024))"
[ "$kib" -lt "$most_kib" ]
