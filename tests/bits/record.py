#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Holds capsules, tokens and log-probabilities to a record, bit by bit: that a change of the structure has changed no result.

Without --record it checks: against tests/bits/recorded.json, for every tier that is recorded and that this processor can run;
and that all ways to one result agree with each other (chunk sizes where nothing is evicted behind chunks, one process and a
cluster, shared memory and TCP, alone and among others, read anew and resumed). A recipe that is meant to give other bits now is
recorded again, with --record, and the change of the record is part of the commit.

SLUICE_BIN names another folder of executables. Exit codes: 0 equal, 1 something differs, 2 wrong usage.
"""
import argparse
import concurrent.futures
import os
import platform
import sys
import time

import cases
import one_process
from observations import Observations, read_record, write_record

RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded.json")


def this_platform():
    """Digests are those of one C library and one compiler: a distribution's."""
    release = platform.freedesktop_os_release()
    return f"{release.get('ID', 'unknown')} {release.get('VERSION_ID', '')} {platform.machine()}"


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the record of what is observed now")
    parser.add_argument("--quick", action="store_true", help="a part of the grid: what `make test` checks")
    parser.add_argument("--tier", action="append", choices=cases.TIERS, help="only this one; may be given several times")
    parser.add_argument("--only", action="append", metavar="RECIPE", help="only cases of this one, by its name in the record; likewise")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes at once [one per processor]")
    parser.add_argument("--file", default=RECORD, help="the record [tests/bits/recorded.json]")
    parser.add_argument("--print-prompt", choices=cases.TIERS, metavar="TIER", help="print the prompt of a tier's cases and end")
    return parser.parse_args(argv)


def observe(options, chosen):
    observations = Observations()
    usable = cases.tiers()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for tier in options.tier or cases.TIERS:
            if tier not in usable:
                print(f"tier {tier}: this processor cannot run it: its cases are not checked", flush=True)
                continue
            began = time.monotonic()
            one_process.observe(observations, pool, tier, chosen, options.quick)
            print(f"tier {tier}: one process ({time.monotonic() - began:.1f} s)", flush=True)
    return observations


def tier_of(case):
    return case.split("/")[0]


def record(options, observations):
    """What was not observed because of --tier, --only or --quick stays as it was recorded."""
    before = read_record(options.file)["cases"] if os.path.exists(options.file) else {}
    observed = {case: observations.merged(case) for case in observations.cases}
    if options.quick or options.only:
        kept = before | {case: before.get(case, {}) | fields for case, fields in observed.items()}
    else:
        tiers = {tier_of(case) for case in observed}
        kept = {case: fields for case, fields in before.items() if tier_of(case) not in tiers} | observed
    write_record(options.file, this_platform(), kept)
    print(f"recorded {len(observed)} cases in {options.file}")


def check(options, observations, agreed):
    recorded = read_record(options.file)
    if recorded["platform"] != this_platform():
        print(f"recorded on {recorded['platform']}, this is {this_platform()}: only what must agree here is compared")
        if not agreed:
            observations.failures.append("nothing was observed twice, so nothing was compared")
        return
    compared = observations.check_record(recorded["cases"])
    new = sorted(set(observations.cases) - set(recorded["cases"]))
    if new:
        print(f"not recorded yet, so only compared with themselves: {', '.join(new)}")
    print(f"{compared} digests compared with the record")
    if compared == 0:
        observations.failures.append(f"{options.file} has no case in common with what was observed")
    if not options.quick and not options.only:
        tiers = {tier_of(case) for case in observations.cases}
        for case in sorted(set(recorded["cases"]) - set(observations.cases)):
            if tier_of(case) in tiers:
                observations.failures.append(f"{case} is recorded and was not observed")


def main(argv=None):
    options = arguments(argv)
    if options.print_prompt:
        sys.stdout.write(cases.prompt(options.print_prompt))
        return 0
    try:
        chosen = cases.recipes(options.quick, options.only)
        if not options.record and not os.path.exists(options.file):
            raise FileNotFoundError(f"{options.file} is missing: --record writes it")
    except (cases.NoSuchRecipe, OSError) as error:
        print(f"record.py: {error}", file=sys.stderr)
        return 2
    observations = observe(options, chosen)
    agreed = observations.check_agreement()
    print(f"{len(observations.cases)} cases, {agreed} digests compared with one another")
    if options.record and not observations.failures:
        record(options, observations)
    elif not options.record:
        check(options, observations, agreed)
    else:
        print("not recorded: what disagrees here has no record")
    for failure in observations.failures:
        print(failure)
    print(f"{len(observations.failures)} failures" if observations.failures else "equal")
    return 1 if observations.failures else 0


if __name__ == "__main__":
    sys.exit(main())
