#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures goodput by rate of a small cluster on this machine, each recipe by turns with the full cache. The decode worker's memory holds
# the full caches of two prompts, so that what a recipe saves is served. Options are those of `sluice bench cluster`; they replace those below.
set -eu
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac

root=$(cd "$(dirname "$0")/.." && pwd)
sluice=${SLUICE_BIN:-$root/build/bin}/sluice
[ -x "$sluice" ] || { echo "bench_cluster.sh: there is no $sluice: run \`make programs\`, or let SLUICE_BIN name the folder of the programs" >&2; exit 2; }
name=bench-cluster-$$
log=$(mktemp)
trap '"$sluice" down "$name" >"$log" || cat "$log" >&2; rm -f "$log"' EXIT
trap 'exit 130' INT TERM
"$sluice" up --detach --name "$name" --model "$root/models/demo" --port 0 --http-port 0 --arena 16M --workers-log warn >"$log" || { cat "$log" >&2; exit 1; }
"$sluice" bench cluster --url "http://$(sed -n 's/^ready .* http=//p' "$log")" --metrics "$(awk '$1 == "coordinator" { print $2 }' "$log")" \
    --recipes 'full;full,format=int8;full,format=int4;10%' --rates 1,2,3 --duration 10s --input 1000-1500 --output 300-600 \
    --repetitions 3 --slo ttft:1s,tpot:50ms --deadline 30s --pause 500ms "$@"
