# SPDX-License-Identifier: Apache-2.0
"""
Digests of what was observed, and what they are held to.

A case is a line of the record: a tier, a recipe and, where it matters, a chunk size. The same case is observed several times:
in one process and in a cluster, over either transport, alone and among others, read anew and resumed. All observations of a
case must agree with each other in every field that they share, and with the record.
"""
import hashlib
import json
import os
import struct

FIELDS = ("capsule", "counts", "logits", "logprobs", "pages", "resident", "stored", "stream", "tokens", "top20", "turns")


def digest(data):
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def float_bits(value):
    """A float as it was, bit by bit; text of a double is exact. Not finite numbers are null in our JSON."""
    return "-" if value is None else struct.pack(">f", value).hex()


def digest_words(words):
    return digest(" ".join(str(word) for word in words).encode())


class Observations:
    def __init__(self):
        self.cases = {}     # case -> [(how, fields, command)]
        self.capsules = {}  # of one process, for what has to be taken apart: (case, chunk) -> Capsule
        self.failures = []  # text, each with the command that shows it

    def add(self, case, how, fields, command):
        assert fields and all(name.split()[0] in FIELDS and value for name, value in fields.items()), (case, fields)
        self.cases.setdefault(case, []).append((how, fields, command))

    def fail(self, case, how, what, command):
        self.failures.append(f"{case}, {how}: {what}\n    {command}")

    def merged(self, case):
        """The fields of a case, each from the first that observed it."""
        fields = {}
        for _, observed, _ in self.cases[case]:
            fields = observed | fields
        return fields

    def check_agreement(self):
        """Returns how many pairs of digests were compared."""
        compared = 0
        for case, seen in self.cases.items():
            first = {}
            for how, fields, command in seen:
                differing = []
                for name, value in fields.items():
                    if name not in first:
                        first[name] = (how, value)
                        continue
                    compared += 1
                    if first[name][1] != value:
                        differing.append(f"{name} ({first[name][0]} has {first[name][1]}, this {value})")
                if differing:
                    self.fail(case, how, "differs in " + ", ".join(differing), command)
        return compared

    def check_record(self, recorded):
        """Returns how many digests were compared. Cases without a record are not failures; see record.py."""
        compared = 0
        for case, seen in self.cases.items():
            if case not in recorded:
                continue
            for how, fields, command in seen:
                compared += sum(name in recorded[case] for name in fields)
                differing = [f"{name} (recorded {recorded[case][name]}, now {value})" for name, value in fields.items()
                             if name in recorded[case] and recorded[case][name] != value]
                if differing:
                    self.fail(case, how, "is not as recorded: " + ", ".join(differing), command)
        return compared


def read_record(path):
    with open(path) as file:
        return json.load(file)


def write_record(path, platform, cases):
    """One line a case, sorted, so that a change of the record can be read."""
    lines = ",\n".join(f" {json.dumps(case)}: {json.dumps(cases[case], sort_keys=True)}" for case in sorted(cases))
    with open(path + ".new", "w") as file:
        file.write(f'{{\n"platform": {json.dumps(platform)},\n"cases": {{\n{lines}\n}}\n}}\n')
    os.replace(path + ".new", path)
