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

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import script  # noqa: E402
import cases  # noqa: E402
import forward_pass  # noqa: E402
import one_process  # noqa: E402
import streams  # noqa: E402
from observations import Observations, read_record, write_record  # noqa: E402

RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded.json")


def this_platform():
    """Digests are those of one C library and one compiler: a distribution's."""
    release = platform.freedesktop_os_release()
    return f"{release.get('ID', 'unknown')} {release.get('VERSION_ID', '')} {platform.machine()}"


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the record of what is observed now")
    parser.add_argument("--quick", action="store_true", help="a part of the grid: what `make test` checks")
    parser.add_argument("--local", action="store_true", help="without clusters")
    parser.add_argument("--tier", action="append", choices=cases.TIERS, help="only this one; may be given several times")
    parser.add_argument("--only", action="append", metavar="RECIPE", help="only cases of this one, by its name in the record; likewise")
    parser.add_argument("--forward", default=forward_pass.PROGRAM, metavar="PROGRAM",
                        help="bits_forward, if it is not in tests/bin beside the folder of executables")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes at once [one per processor]")
    parser.add_argument("--file", default=RECORD, help="the record [tests/bits/recorded.json]")
    parser.add_argument("--print-prompt", choices=cases.TIERS, metavar="TIER", help="print the prompt of a tier's cases and end")
    return parser.parse_args(argv)


def series_of(tier, options):
    """Returns the requests to clusters: (transport, order, chunk sizes, recipes that are asked eight at once, rounds at most)."""
    alone, together = "alone first", "together first"
    small, large = cases.chunks(tier)
    if options.quick and tier in cases.MAIN_TIERS:
        return [("shm", alone, (small,), cases.QUICK_EIGHT, 1)]
    if tier not in cases.MAIN_TIERS:
        return []
    if tier == "reference":
        return [("shm", alone, (small,), (), None)]
    every = [recipe.name for recipe in cases.recipes()]
    return [("shm", alone, (small, large), every, None), ("tcp", together, (small, large), every, None),
            ("tcp", alone, (large, small), cases.QUICK, None), ("shm", together, (large, small), cases.QUICK, None)]


def ranks_of(tier, options):
    """The numbers of ranks, beside one, that must give the same bits. The demo has 2 KV heads of 2 query heads each."""
    if options.quick:
        return (2,) if tier == cases.MAIN_TIERS[-1] else ()
    return (2, 3, 4)


def observe_tier(observations, pool, tier, chosen, options, with_clusters):
    began = time.monotonic()
    chunks = cases.chunks(tier)
    if options.quick and tier != cases.MAIN_TIERS[-1]:
        chunks = chunks[:1]
    if options.quick and tier not in cases.MAIN_TIERS:
        chosen = [recipe for recipe in chosen if recipe.name in cases.QUICK_EIGHT]
    if not options.only:
        forward_pass.observe(observations, pool, tier, options.forward, options.quick, ranks_of(tier, options))
    one_process.observe(observations, pool, tier, chosen, chunks, ranks_of(tier, options))
    if tier == cases.MAIN_TIERS[-1] or not options.quick:
        streams.observe(observations, pool, tier, chosen, options.quick)
    print(f"tier {tier}: one process ({time.monotonic() - began:.1f} s)", flush=True)
    series = series_of(tier, options) if with_clusters else []
    if not series:
        return
    import in_cluster  # needs grpc and protoc, which everything else here does without
    began = time.monotonic()
    batches = []
    running = {one[:2]: pool.submit(in_cluster.run_series, observations, tier, chosen, *one) for one in series}
    for way, done in running.items():
        try:
            batches += done.result()
        except Exception as error:  # a cluster that does not start, or does not end clean; harness.py has shown its logs
            observations.failures.append(f"tier {tier}, cluster over {', '.join(way)}: {error}")
    print(f"tier {tier}: clusters ({time.monotonic() - began:.1f} s); of batches of eight, written at one time: "
          f"{sorted(batches) or 'none'}", flush=True)
    if batches and max(batches) < len(in_cluster.EIGHT) // 2:
        observations.failures.append(f"tier {tier}: no four of eight were ever written at one time: batches of one prove nothing")


def observe(options, chosen):
    observations = Observations()
    usable = cases.tiers()
    wanted = options.tier or list(cases.TIERS)
    for tier in wanted:
        if tier not in usable:
            print(f"tier {tier}: this processor cannot run it: its cases are not checked", flush=True)
    wanted = [tier for tier in wanted if tier in usable]
    main_tier = [tier for tier in cases.MAIN_TIERS if tier in wanted][-1:]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for tier in wanted:
            observe_tier(observations, pool, tier, chosen, options, not options.local and (tier in main_tier or not options.quick))
    return observations


def tier_of(case):
    return case.split("/")[0]


def is_partial(options):
    return options.quick or options.local or bool(options.only)


def record(options, observations):
    """Writes the record. Cases that an option has left out stay as they were recorded."""
    before = read_record(options.file)["cases"] if os.path.exists(options.file) else {}
    observed = {case: observations.merged(case) for case in observations.cases}
    if is_partial(options):
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
        print(f"{len(new)} cases are not recorded yet, so only compared with themselves: {', '.join(new[:5])}{', ...' * (len(new) > 5)}")
    print(f"{compared} digests compared with the record")
    if compared == 0:
        observations.failures.append(f"{options.file} has no case in common with what was observed")
    if not is_partial(options):
        tiers = {tier_of(case) for case in observations.cases}
        for case in sorted(set(recorded["cases"]) - set(observations.cases)):
            if tier_of(case) in tiers:
                observations.failures.append(f"{case} is recorded and was not observed")


def main(argv=None):
    options = arguments(argv)
    if options.print_prompt:
        sys.stdout.write(cases.prompt(options.print_prompt))
        return 0
    script.needs_programs(cases.BIN)
    if not options.local:
        script.needs("grpc", "google.protobuf")
    try:
        chosen = cases.recipes(options.quick, options.only)
        if not options.record and not os.path.isfile(options.file):
            raise FileNotFoundError(f"{options.file} is not a file: --record writes it")
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
