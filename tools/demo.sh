#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job on this machine: a cluster of four processes reads a licence text with a fact planted in it and answers a
# question about the fact: with the full KV cache, with a quantized one, and with two that keep 576 slots a head, chosen by
# accumulated attention (which loses the fact) and by trained heads (which keep it). SLUICE_DEMO_RECIPES picks others.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
sluice=${SLUICE_BIN:-$root/build/bin}/sluice
recipes=${SLUICE_DEMO_RECIPES:-"full full,format=int2 h2o,budget=576,chunk=256 \
locret,budget=512,scope=stabilizers:128+tail:64,chunk=256,format=int4"}
work=$(mktemp -d)
coordinator=127.0.0.1:${SLUICE_DEMO_PORT:-7611}
up=

stop() {
    if [ -n "$up" ]; then
        # It may have ended by itself: wait tells how.
        if kill -0 "$up" 2>"$work/kill"; then
            kill "$up"
        fi
        wait "$up" || echo "demo: the cluster ended with exit code $?" >&2
    fi
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

text=/usr/share/common-licenses/GPL-3
[ -r "$text" ] || { echo "demo: $text is missing (package base-files)" >&2; exit 1; }
# About 20 kB of it as one line, with the fact in the middle.
tr -s ' \n\t' '   ' <"$text" | cut -c1-10000 >"$work/first"
tr -s ' \n\t' '   ' <"$text" | cut -c10001-20000 >"$work/second"
fact="One of the special magic numbers for lantern is: 48213."
printf '%s %s%s' "$(cat "$work/first")" "$fact" "$(cat "$work/second")" >"$work/document"
question="What is the special magic number for lantern mentioned in the provided text? The special magic number for lantern \
mentioned in the provided text is"

echo "Document: $(wc -c <"$work/document") bytes of $text, with this planted in the middle: $fact"
echo "Question: ${question%%\?*}?"
echo
echo "Starting a coordinator, a prefill worker, a decode worker and a kvstore ..."
"$sluice" up --no-gateway --model "$root/models/demo" --port "${coordinator##*:}" --workers-log warn \
    --state "$work/state" >"$work/up.out" 2>"$work/up.err" &
up=$!
tries=0
until [ -s "$work/state" ]; do
    tries=$((tries + 1))
    if [ $tries -gt 300 ] || ! kill -0 "$up" 2>"$work/kill"; then
        cat "$work/up.out" "$work/up.err" >&2
        echo "demo: the cluster did not come up" >&2
        exit 1
    fi
    sleep 0.1
done
cat "$work/up.out"

jobs=
for recipe in $recipes; do
    echo
    echo "--- recipe $recipe"
    job=$("$sluice" submit --coordinator "$coordinator" --recipe "$recipe" --prompt-file "$work/document" \
        --question "$question" --stop . --max-new 16)
    jobs="$jobs $job"
    "$sluice" watch --coordinator "$coordinator" "$job"
done

echo
echo "--- side by side"
# shellcheck disable=SC2086 # the ids are words
"$sluice" compare --coordinator "$coordinator" $jobs
