#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kit for a machine with a GPU, from its file and on the emulated device: its size, every step, a visit that is ended in the middle and goes on,
# a step that fails, and devices that cannot be opened. Tools that only such a machine has are played by scripts.
#
#   test_gpu_kit.sh SOURCE_FOLDER BUILD_FOLDER
set -e
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac
[ $# -ge 2 ] || { echo "usage: ${0##*/} SOURCE_FOLDER BUILD_FOLDER; --help says more" >&2; exit 2; }
here=$(mktemp -d)
trap '[ -z "$visit" ] || kill "$visit" 2>/dev/null; rm -rf "$here"' EXIT
mkdir "$here/user"
export XDG_CACHE_HOME="$here/user" XDG_RUNTIME_DIR="$here/user"
export TMPDIR="$here" OUT="$here/results" DEVICE=emulated PATH="$here/tools:$PATH" KIT_TORCH="$here/tools/torch"
die() {
    echo "$*"
    cat "$here/said" "$OUT/report.md" 2>/dev/null || true
    exit 1
}

mkdir "$here/tools"
cat >"$here/tools/compute-sanitizer" <<'END'
#!/bin/sh
while [ "$1" != /usr/bin/env ]; do shift; done
"$@" && echo "========= ERROR SUMMARY: 0 errors"
END
cat >"$here/tools/ncu" <<'END'
#!/bin/sh
echo '"0","1","sluice","GPU Speed Of Light Throughput","Memory Throughput","%","81.5"'
END
cat >"$here/tools/torch" <<'END'
#!/bin/sh
[ "$1" = -c ] && echo "$0/packages"
[ "$2" = peaks ] && echo '{"case": "copy", "value": 200.0}' && echo '{"case": "gemm peak", "value": 2.0}'
[ "$2" = floors ] && echo '{"case": "attend, a prompt, f16", "size": "16 128", "us": 1000.0}' || true
END
chmod +x "$here"/tools/*

KIT_XZ=preset=0 sh "$1/tools/gpu_kit/make.sh" --emulated "$2" "$here/packed" >"$here/said" 2>&1 || die "it was not packed"
grep -q "gpu-kit.tar.xz: .* MiB of at most 30" "$here/said" || die "its size is not said"
export KIT="$here/kit"

# A check that fails is named, and the steps after it are done all the same; then the visit is ended.
(mkdir -p "$KIT" && tar -C "$KIT" --strip-components=1 -xJf "$here/packed/gpu-kit.tar.xz" && touch "$KIT/unpacked")
printf '#!/bin/sh\necho "[  FAILED  ] test_of_a_device"; exit 1\n' >"$KIT/checks/kernels_that_fail"
chmod +x "$KIT/checks/kernels_that_fail"
"$here/packed/gpu-kit.sh" all --seconds 900 >"$here/said" 2>&1 &
visit=$!
waited=0
until grep -q "^| floors | .* broken off" "$OUT/report.md" 2>/dev/null; do
    kill -0 "$visit" 2>/dev/null && [ $waited -lt 400 ] || die "it did not come to the floors"
    sleep 1
    waited=$((waited + 1))
done
kill "$visit"
wait "$visit" || true
visit=
for row in "opens | .* passed" "answers | .* passed | 2 alike of 2" "kernels | .* failed | kernels_that_fail" "sanitizer | .* passed" \
    "floors | .* broken off" "model | .* not begun" "cluster | .* not begun" "profile | .* not begun"; do
    grep -q "^| $row" "$OUT/report.md" || die "ended in the middle: no row $row"
done
grep -q "kernels_that_fail | failed | test_of_a_device" "$OUT/report.md" || die "what failed is not named"

# It goes on, and keeps what was there.
rm "$KIT/checks/kernels_that_fail"
code=0
"$here/packed/gpu-kit.sh" from floors --seconds 900 >"$here/said" 2>&1 || code=$?
[ $code -eq 1 ] || die "with a step that had failed it ended with $code"
for row in "opens | .* passed" "kernels | .* failed" "floors | .* passed" "model | .* passed" "cluster | .* passed" "profile | .* passed" \
    "attend, a prompt, f16; 16 128 | .* torch 1000.0 us" "decode:128x2 full,format=int4 | measured" "prefill:128 locret.* | measured" \
    "decode at 1024 tailorkv-near | measured" "tokens | equal" "memcheck of bench | passed" "memory at 128k, locret, GB | at most 17 | 16.82"; do
    grep -q "^| $row" "$OUT/report.md" || die "gone on: no row $row"
done
"$here/packed/gpu-kit.sh" only kernels --seconds 300 >"$here/said" 2>&1 || die "kernels, again"
grep -q "^| kernels | .* passed | 2 programs" "$OUT/report.md" || die "the step that had failed keeps its row"
[ "$(find "$OUT" -type f | wc -l)" -lt 8 ] || die "too many files: $(ls "$OUT")"
[ -z "$(find "$OUT" -size +16M)" ] || die "a file is too large"
tar -tzf "$OUT/results.tgz" | grep -q "^results/model-decode.txt$" || die "results.tgz lacks what a command printed"

[ -z "$(ls -A "$here/user")" ] || die "the user's folders have: $(find "$here/user" -type f)"

for device in abacus cuda; do # this kit has no plugin for cuda
    code=0
    DEVICE=$device "$here/packed/gpu-kit.sh" all >"$here/said" 2>&1 || code=$?
    [ $code -eq 3 ] || die "$device: ended with $code"
    [ "$(wc -l <"$here/said")" -eq 1 ] || die "$device: more than a sentence"
    grep -q "^the device cannot be opened: " "$here/said" || die "$device: does not say why"
done
