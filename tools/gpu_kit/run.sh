#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks and measures Sluice on a machine with a GPU, in steps that visit.py lists (docs/GPU.md):
#
#   run.sh all [--seconds 480]         every step, in the order of what they are worth, within that time
#   run.sh from STEP [--seconds 480]   this step and those after it; the report keeps the rows of earlier ones
#   run.sh only STEP [--seconds 480]   this step alone, likewise
#
# OUT=FOLDER [results, here] gets report.md and results.tgz, both written anew after every command. DEVICE=emulated runs every step, small,
# where there is no GPU. Exit codes: 0 nothing failed, 1 something did, 2 usage, 3 the device cannot be opened.
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null 2>&1 || { echo "there is no python3 here, which visit.py needs" >&2; exit 3; }

# The machine's C library where it is new enough, else the kit's with its loader. The driver's folder, which LD_LIBRARY_PATH may name, stays.
KIT_LOADER=
KIT_LIBRARIES=$here/lib:$here/bin
if ! LD_LIBRARY_PATH=$KIT_LIBRARIES${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$here/bin/sluice" --version >/dev/null 2>&1; then
    KIT_LOADER=$here/glibc/ld-linux-x86-64.so.2
    KIT_LIBRARIES=$here/glibc:$KIT_LIBRARIES
fi
export KIT_LOADER KIT_LIBRARIES
OUT=${OUT:-$here/results} exec python3 -u "$here/visit.py" "$@"
