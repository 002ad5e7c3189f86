# SPDX-License-Identifier: Apache-2.0
"""Purpose: training sequences and test prompts made of the forms, as tokens.

Design: a training sequence strews the facts of several items over one haystack and asks all the questions at its end,
one after the other: it then holds five to ten answers instead of one, and every item is a distraction for the others. A
test sample holds one item, as in the evaluation. Prompt and answer are tokenized apart, because generation starts at
that border.

Positions: a sample may skip positions between sentences (PoSE, arXiv 2309.10400), so that a sequence of 512 tokens
shows distances of up to 32k; the cost of attention stays that of 512.
"""

import math

import numpy as np

from forms import ITEMS, NOISE, Forms

CONTEXTS = {
    "mixed": 0.78,
    "needles": 0.06,
    "kv": 0.05,
    "common": 0.04,
    "frequent": 0.04,
    "text": 0.03,
}  # shares in training
TASKS = list(ITEMS) + ["needles", "kv", "common", "frequent"]


class Sample:
    """tokens, positions; answers: (task, first, end) spans of tokens; text: flags of tokens that are natural text."""

    def __init__(self, tokens, positions, answers, text):
        self.tokens, self.positions, self.answers, self.text = tokens, positions, answers, text


class Samples(Forms):
    """Makes samples from a bank of sentences; `essays`, sentences as token lists, replace the bank's."""

    def __init__(
        self, bank, tokenizer, seed, held_out=False, strict=False, items=None, contexts=None, essays=None, words=None
    ):
        super().__init__(words or bank.words, seed, strict)
        self.bank, self.held_out, self.essays = bank, held_out, essays
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.end = tokenizer.token_to_id("<|endoftext|>")
        self.items, self.contexts = items or ITEMS, contexts or CONTEXTS
        self.noise = [self.encode(s) for s in NOISE]

    # --- haystacks ----------------------------------------------------------------------------------------------------

    def sentences(self, kind, budget):
        """Sentences as token lists, together at most `budget` tokens."""
        out, used, i = [], 0, 0
        if kind == "noise":
            i = self.rng.randrange(4) if not self.strict else 0
        elif self.essays:
            i = self.rng.randrange(len(self.essays))
        else:
            part = self.bank.parts[self.held_out]
            i = self.rng.randrange(len(part))
        while True:
            if kind == "noise":
                sentence = self.noise[i % 4]
            elif self.essays:
                sentence = self.essays[i % len(self.essays)]
            else:
                sentence = self.bank[part[i % len(part)]].tolist()
            if used + len(sentence) > budget:
                return out
            out.append(sentence)
            used += len(sentence)
            i += 1

    # --- whole samples ------------------------------------------------------------------------------------------------

    def strew(self, items, kind, budget):
        """Haystack with the facts of all items in it: a list of (tokens, is natural text)."""
        facts = []
        for item_facts, _, _ in items:
            places = sorted(self.rng.random() for _ in item_facts)
            facts += [(place, self.encode(fact)) for place, fact in zip(places, item_facts)]
        hay = self.sentences(kind, budget - sum(len(ids) for _, ids in facts))
        facts = sorted(facts, key=lambda f: f[0])
        out, at = [], 0
        for i in range(len(hay) + 1):
            while at < len(facts) and facts[at][0] * (len(hay) + 1) < i + 1:
                out.append((facts[at][1], False))
                at += 1
            if i < len(hay):
                out.append((hay[i], kind == "essay"))
        return out

    def facts_only(self, budget, questions):
        """multikey-needles: facts with different keys fill the length; some are asked."""
        items, used = [], 0
        while True:
            item = self.needle()
            ids = self.encode(item[0][0])
            if used + len(ids) > budget:
                break
            used += len(ids)
            items.append((ids, item))
        asked = self.rng.sample([item for _, item in items], min(questions, len(items)))
        return [(ids, False) for ids, _ in items], [(q, a, "needles") for _, q, a in asked]

    def key_values(self, budget, questions):
        pieces, pairs, used = [], [], 8
        while True:
            key, value = self.uuid(), self.uuid()
            ids = self.encode(("\n{" if not pairs else ",\n ") + f'"{key}": "{value}"')
            if used + len(ids) > budget:
                break
            used += len(ids)
            pieces.append((ids, False))
            pairs.append((key, value))
        pieces.append((self.encode("}"), False))
        asked = self.rng.sample(pairs, min(questions, len(pairs)))
        return pieces, [(f'\nThe value of the key "{k}" in the object above is "', f'{v}".', "kv") for k, v in asked]

    def common(self, budget):
        entries = int(budget / 7.2)
        often = 30 if self.strict else max(3, min(30, int(entries * self.rng.uniform(0.5, 0.75) / 10)))
        seldom = 3 if self.strict else max(1, often // 10)
        words = self.rng.sample(self.words[:3000], 10)
        column = words * often
        while len(column) < entries:
            column += [self.word()] * seldom
        column = column[: max(entries, 10 * often)]
        self.rng.shuffle(column)
        pieces, used = [], 0
        for i, word in enumerate(column):
            ids = self.encode(f" {i + 1}. {word}")
            if used + len(ids) > budget:
                break
            used += len(ids)
            pieces.append((ids, False))
        seen = dict.fromkeys(w for w in column[: len(pieces)] if w in set(words))
        return pieces, [
            (
                "\nWhat are the 10 most common words in the list above? The 10 most common words are",
                " " + ", ".join(seen) + ".",
                "common",
            )
        ]

    def frequent(self, budget):
        words = ["..."] + ["".join(self.rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(5)) for _ in range(400)]
        ids = [self.encode(" " + w) for w in words]
        weights = [1 / (rank + 1) ** 2 for rank in range(len(words))]
        pieces, counts, used = [], {}, 0
        draws = self.rng.choices(range(len(words)), weights, k=budget)
        for w in draws:
            if used + len(ids[w]) > budget:
                break
            used += len(ids[w])
            counts[w] = counts.get(w, 0) + 1
            pieces.append((ids[w], False))
        counts.pop(0, None)
        top = sorted(counts, key=lambda w: -counts[w])[:3]
        return pieces, [
            (
                "\nWhat are the three most frequent words in the text above? The three most frequent words are",
                " " + ", ".join(words[w] for w in top) + ".",
                "frequent",
            )
        ]

    def assemble(self, pieces, questions, length, span, fill):
        """One token sequence; `fill`: natural text pads it to exactly `length` tokens, plus one for the last target."""
        tokens, text, answers, borders = [self.end], [False], [], []
        for ids, natural in pieces:
            borders.append(len(tokens))
            tokens += ids
            text += [natural] * len(ids)
        for question, answer, task in questions:
            borders.append(len(tokens))
            tokens += self.encode(question)
            first = len(tokens)
            tokens += self.encode(answer)
            answers.append((task, first, len(tokens)))
            text += [False] * (len(tokens) - len(text))
        if fill:
            tokens.append(self.end)
            answers[-1:] = [(t, a, b + 1) for t, a, b in answers[-1:]]
            text.append(False)
            while len(tokens) < length + 1:
                borders.append(len(tokens))
                part = self.bank.parts[self.held_out]
                ids = self.bank[part[self.rng.randrange(len(part))]].tolist()
                tokens += ids
                text += [True] * len(ids)
            tokens, text = tokens[: length + 1], text[: length + 1]
        positions = np.arange(len(tokens))
        if span > len(tokens):
            for _ in range(self.rng.choice((1, 2, 4, 8))):
                at = self.rng.choice([b for b in borders if b < len(tokens)] or [1])
                positions[at:] += self.rng.randrange(1, span - len(tokens) + 1) // 4
            over = positions[-1] - (span - 1)
            if over > 0:  # keep the order and the inside of sentences, give back what is too much
                positions = np.arange(len(tokens)) + (positions - np.arange(len(tokens))) * (span - len(tokens)) // (
                    positions[-1] + 1 - len(tokens)
                )
        return Sample(tokens, positions, answers, text)

    def train_sample(self, length, span=0):
        """A sequence of length + 1 tokens with as many questions as fit, positions up to span."""
        draw = self.rng.choices(list(self.contexts), list(self.contexts.values()))[0]
        kind = "noise" if self.rng.random() < 0.35 else "essay"
        if draw == "text":
            return self.assemble([(s, True) for s in self.sentences("essay", length - 2)], [], length, span, True)
        if draw in ("needles", "kv"):
            cost, most = (84, 12) if draw == "needles" else (92, 8)
            questions = max(1, min(most, int(length * 0.4) // cost))
            make = self.facts_only if draw == "needles" else self.key_values
            pieces, questions = make(length - questions * cost - 8, questions)
            return self.assemble(pieces, questions, length, span, True)
        if draw in ("common", "frequent"):
            pieces, questions = getattr(self, draw)(length - (110 if draw == "common" else 60))
            return self.assemble(pieces, questions, length, span, True)
        room = length * (self.rng.uniform(0.6, 0.95) if length <= 1024 else self.rng.uniform(0.12, 0.5))
        items, used, single = [], 0, set()
        while True:
            task = self.rng.choices(list(self.items), list(self.items.values()))[0]
            if task in single:
                continue
            facts, question, answer = self.item(task)
            cost = sum(len(self.encode(f)) for f in facts) + len(self.encode(question + answer)) + 1
            if used + cost > room and (items or used + cost > length - 8):
                break
            used += cost
            items.append((facts, question, answer, task))
            if task in ("passkey", "number"):  # their questions name no key: one of each in a text
                single.add(task)
        asking = sum(len(self.encode(q)) + len(self.encode(a)) for _, q, a, _ in items) + 2
        pieces = self.strew([i[:3] for i in items], kind, length - asking)
        questions = [(q, a, t) for _, q, a, t in items]
        self.rng.shuffle(questions)
        return self.assemble(pieces, questions, length, span, True)

    def test_sample(self, task, length):
        """One prompt of `sluice_eval` of at most length tokens, and its answer (without the end token)."""
        name, _, count = task.partition("-")
        budget = length - 1
        if name in ("needles", "kv"):
            make = self.facts_only if name == "needles" else self.key_values
            pieces, questions = make(budget - 70, 1)
        elif name in ("common", "frequent"):
            pieces, questions = getattr(self, name)(budget - 30)
        else:
            kind = "noise" if name in ("noise", "variables", "passkey", "number") else "essay"
            plain = {"noise": "needle", "essay": "needle", "multikey": "needle"}.get(name, name)
            items = [self.item(plain) for _ in range(int(count or 1) if name == "multikey" else 1)]
            pieces = self.strew(items, kind, budget - len(self.encode(items[0][1])))
            questions = [(items[0][1], items[0][2], name)]
        return self.assemble(pieces, questions, length, 0, False)


def training_arrays(samples, rng, text_share=0.25, text_weight=0.3):
    """Inputs [B][L], positions [B][L], and of the positions that count: flat index, target, weight, task (-1: text)."""
    tokens = np.array([s.tokens for s in samples], np.int64)
    positions = np.array([s.positions[:-1] for s in samples], np.int64)
    count = tokens.shape[1] - 1
    task = np.full((len(samples), count), -2, np.int64)
    for row, s in enumerate(samples):
        text = np.array(s.text[1:]) & (rng.random(count) < text_share)
        task[row][text] = -1
        for name, first, end in s.answers:
            task[row, first - 1 : min(end - 1, count)] = TASKS.index(name)
    index = np.flatnonzero(task.reshape(-1) > -2)
    tags = task.reshape(-1)[index]
    return (
        tokens[:, :-1],
        positions,
        index,
        tokens[:, 1:].reshape(-1)[index],
        np.where(tags < 0, text_weight, 1.0).astype(np.float32),
        tags,
    )


def log_uniform(rng, low, high):
    return int(math.exp(rng.uniform(math.log(low), math.log(high))))
