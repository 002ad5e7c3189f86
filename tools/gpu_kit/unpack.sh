#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Unpacks gpu-kit.tar.xz, which lies beside it, where that was not done before, and runs run.sh of it with these arguments.
# OUT=FOLDER: where the report goes [results, here]. KIT=FOLDER: where it is unpacked [/tmp/sluice-gpu-kit-@SUM@].
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
here=$(cd "$(dirname "$0")" && pwd)
kit=${KIT:-${TMPDIR:-/tmp}/sluice-gpu-kit-@SUM@}
if [ ! -e "$kit/unpacked" ]; then
    [ -r "$here/gpu-kit.tar.xz" ] || { echo "unpack: gpu-kit.tar.xz is not beside this file: \`make gpu-kit\` writes both" >&2; exit 2; }
    mkdir -p "$kit" && (tar -C "$kit" --strip-components=1 -xJf "$here/gpu-kit.tar.xz" 2>/dev/null ||
        (python3 -m tarfile -e "$here/gpu-kit.tar.xz" "$kit.new" && mv "$kit.new"/gpu-kit/* "$kit/")) && # no xz: Python has its own
        touch "$kit/unpacked" || exit 1
fi
OUT=${OUT:-$here/results} exec "$kit/run.sh" "$@"
