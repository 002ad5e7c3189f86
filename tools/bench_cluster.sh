#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures goodput by rate of a small cluster on this machine, each recipe by turns with the full cache. The decode worker's memory holds
# the full caches of two prompts, so that what a recipe saves is served. Options are those of `sluice bench cluster`; they replace those below.
# First options: `--modes aggregated,disaggregated,conditional` starts a cluster of each mode and measures them by turns, too;
# `--up WORDS` are further options of `sluice up`, such as "--model smollm2 --arena 300M".
set -eu
case ${1:-} in -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac

root=$(cd "$(dirname "$0")/.." && pwd)
sluice=${SLUICE_BIN:-$root/build/bin}/sluice
[ -x "$sluice" ] || { echo "bench_cluster.sh: there is no $sluice: run \`make programs\`, or let SLUICE_BIN name the folder of the programs" >&2; exit 2; }
modes=disaggregated
up=
while case ${1:-} in --modes | --up) ;; *) false ;; esac; do
    case $1 in --modes) modes=$(printf %s "${2:?--modes needs names}" | tr , ' ') ;; --up) up=${2:?--up needs options} ;; esac
    shift 2
done
for mode in $modes; do
    case $mode in aggregated | disaggregated | conditional) ;; *) echo "bench_cluster.sh: --modes $mode: aggregated, disaggregated or conditional" >&2; exit 2 ;; esac
done

log=$(mktemp)
started=
trap 'for name in $started; do "$sluice" down "$name" >"$log" || cat "$log" >&2; done; rm -f "$log"' EXIT
trap 'exit 130' INT TERM
for mode in $modes; do
    case $mode in aggregated) roles=--aggregated ;; disaggregated) roles= ;; conditional) roles="--aggregated --prefill 1" ;; esac
    started="$started bench-$$-$mode"
    # shellcheck disable=SC2086 # words of options
    "$sluice" up --detach --name "bench-$$-$mode" --model "$root/models/demo" --port 0 --http-port 0 --arena 16M --workers-log warn $roles $up >"$log" ||
        { cat "$log" >&2; exit 1; }
    set -- --url "$mode=http://$(sed -n 's/^ready .* http=//p' "$log")" --metrics "$mode=$(awk '$1 == "coordinator" { print $2 }' "$log")" "$@"
done
"$sluice" bench cluster --recipes 'full;full,format=int8;full,format=int4;10%' --rates 1,2,3 --duration 10s --input 1000-1500 --output 300-600 \
    --repetitions 3 --slo ttft:1s,tpot:50ms --deadline 30s --pause 500ms "$@"
