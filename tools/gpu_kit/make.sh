#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A folder that runs on a machine with an NVIDIA driver and nothing else: the tool, the plugin, the checks of its kernels, the demo
# model, and the libraries that they need. run.sh in it says what to do there.
#
#   make.sh BUILD_FOLDER KIT_FOLDER
set -e
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$1
kit=$2
most_kib=65536

rm -rf "$kit"
mkdir -p "$kit/bin" "$kit/checks" "$kit/lib" "$kit/glibc" "$kit/models"
cp "$build/bin/sluice" "$build/bin/libsluice_cuda.so" "$kit/bin/"
cp "$build"/gpu-checks/kernels_cuda_* "$kit/checks/"
strip "$kit"/bin/* "$kit"/checks/*
cp -r "$root/models/demo" "$kit/models/"
cp "$root/tools/gpu_kit/run.sh" "$root/LICENSE" "$kit/"
git -C "$root" rev-parse HEAD >"$kit/commit" 2>/dev/null || echo unknown >"$kit/commit"

# stands_in LIBRARY: what the tool asks of it, and never calls here, stops. Libraries for downloads and for TLS, and what they bring, are
# half of what the tool links.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stands_in() {
    real=$(ldd "$build/bin/sluice" | awk -v name="$1" '$1 == name { print $3 }')
    [ -n "$real" ] || return 0 # the tool was built without it
    nm -D --defined-only "$real" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u >"$work/theirs"
    nm -D --undefined-only "$build/bin/sluice" | awk '{ print $2 }' | sort -u >"$work/asked"
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
# What the driver's own library asks of the same C library.
for name in libpthread.so.0 libdl.so.2 librt.so.1; do
    cp -L "$(dirname "$(ldd "$kit/bin/sluice" | awk '$1 ~ /^libc.so/ { print $3 }')")/$name" "$kit/glibc/"
done

kib=$(du -sk "$kit" | cut -f1)
echo "$kit: $((kib / 1024)) MiB of at most $((most_kib / 1024))"
[ "$kib" -lt "$most_kib" ]
