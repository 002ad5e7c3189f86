# SPDX-License-Identifier: Apache-2.0
"""Purpose: the prompt forms of `sluice_eval` and the older ones of the demo model, as facts, question and
answer.

Design: an item is a few facts in the order of the text, one question about them and its answer, all as strings.
`strict` gives the evaluation's exact shape; in training lengths and counts vary, so that the model relies on none of
them. What the forms must agree with is lab/sluice_eval/sluice_eval/writers.py.
"""

import random

NOISE = [" The river runs on.", " The mill wheel turns.", " A cart goes by.", " The road is dry."]
ITEMS = {  # shares in training
    "needle": 3.0,
    "uuid": 0.7,
    "multivalue": 3.5,
    "multiquery": 2.0,
    "variables": 3.5,
    "passkey": 0.5,
    "number": 0.7,
    "code": 0.6,
    "inline": 0.4,
}


class Forms:
    def __init__(self, words, seed, strict=False):
        self.words, self.strict = words, strict
        self.rng = random.Random(seed)

    # --- values and names ---------------------------------------------------------------------------------------------

    def digits(self, count):
        return str(self.rng.randint(1, 9)) + "".join(str(self.rng.randint(0, 9)) for _ in range(count - 1))

    def value(self):
        return self.digits(7 if self.strict or self.rng.random() < 0.5 else self.rng.randint(4, 10))

    def word(self):
        """A word of the documentation; in training at times a made-up one, so that copying relies on no vocabulary."""
        if self.strict or self.rng.random() < 0.8:
            return self.rng.choice(self.words)
        return "".join(
            self.rng.choice("bcdfghklmnprstvwz")
            + self.rng.choice("aeiou")
            + self.rng.choice(["", "", "n", "r", "l", "st", "ck"])
            for _ in range(self.rng.randint(2, 3))
        )

    def key(self):
        return self.word() if not self.strict and self.rng.random() < 0.2 else self.word() + "-" + self.word()

    def keys(self, count):
        found = set()
        while len(found) < count:
            found.add(self.key())
        found = sorted(found)
        self.rng.shuffle(found)
        return found

    def uuid(self):
        text = "%032x" % self.rng.getrandbits(128)
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def name(self):
        return "".join(self.rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(5))

    def few(self, usual, low, high):
        """The evaluation's count, or in training half of the time another one."""
        return usual if self.strict or self.rng.random() < 0.5 else self.rng.randint(low, high)

    # --- items: (facts in the order of the text, question, answer) ----------------------------------------------------

    @staticmethod
    def fact(kind, key, value):
        return f" One of the special magic {kind}s for {key} is: {value}."

    @staticmethod
    def ask_one(kind, key):
        return (
            f"\nWhat is the special magic {kind} for {key} mentioned in the provided text? "
            f"The special magic {kind} for {key} mentioned in the provided text is"
        )

    def needle(self, kind="number"):
        key, value = self.key(), self.uuid() if kind == "uuid" else self.value()
        return [self.fact(kind, key, value)], self.ask_one(kind, key), f" {value}."

    def uuid_item(self):
        return self.needle("uuid")

    def multivalue(self):
        key = self.key()
        values = [self.value() for _ in range(self.few(4, 2, 5))]
        return (
            [self.fact("number", key, v) for v in values],
            f"\nWhat are all the special magic numbers for {key} mentioned in the provided text? "
            f"The special magic numbers for {key} mentioned in the provided text are",
            " " + ", ".join(values) + ".",
        )

    def multiquery(self):
        pairs = [(key, self.value()) for key in self.keys(self.few(4, 2, 5))]
        facts = [self.fact("number", k, v) for k, v in pairs]
        self.rng.shuffle(facts)
        return (
            facts,
            f"\nWhat are all the special magic numbers for {', '.join(k for k, _ in pairs)} mentioned in the provided "
            "text? The special magic numbers mentioned in the provided text are",
            " " + ", ".join(f"{k}: {v}" for k, v in pairs) + ".",
        )

    def variables(self):
        names, number = [self.name() for _ in range(self.few(5, 2, 6))], self.digits(5)
        facts = [f" VAR {names[0]} = {number}."] + [f" VAR {b} = VAR {a}." for a, b in zip(names, names[1:])]
        return (
            facts,
            f"\nWhich variables hold the value {number}, directly or through another variable? "
            f"The variables that hold the value {number} are",
            " " + ", ".join(names) + ".",
        )

    def passkey(self):
        value = self.digits(5)
        return (
            [f" The pass key is {value}. Remember it. {value} is the pass key."],
            "\nWhat is the pass key? The pass key is",
            f" {value}.",
        )

    def number(self):
        value = ""
        while len(value) < 10:
            value += self.rng.choice("123456789" if not value else "0123456789") * self.rng.randint(1, 3)
        value = value[:10]
        return (
            [f" The sequence of digits is {value}. Remember it. {value} is the sequence of digits."],
            "\nWhat is the sequence of digits? The sequence of digits is",
            f" {value}.",
        )

    def other_value(self):
        draw = self.rng.random()
        return self.value() if draw < 0.7 else self.word() if draw < 0.85 else "%012x" % self.rng.getrandbits(48)

    def code(self):
        key, value = self.key(), self.other_value()
        return (
            [f" The code of {key} is {value}."],
            f"\nQuestion: What is the code of {key}?\nAnswer: The code of {key} is",
            f" {value}.",
        )

    def inline(self):
        key, value = self.key(), self.other_value()
        return [f"\n{key}: {value}"], f"\n{key}:", f" {value}."

    def item(self, task):
        return {"uuid": self.uuid_item}.get(task, getattr(self, task, None))()
