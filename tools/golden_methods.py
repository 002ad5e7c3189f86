#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden traces for engine/compress/: every method as its paper describes it, in NumPy, sharing no code with the C.

    tools/golden_methods.py [--out tests/golden/compress] [NAME ...]    write the traces (of these files only)
    tools/golden_methods.py --check [--out tests/golden/compress]       compare what is there with what would be written

One file a method, one or more cases a file. Inputs are not written: they are a function of (seed, stream, index) that
tests/unit/compress/evict/test_golden_methods.c computes as well, and queries of head h in layer l are scaled by
(1 + (h + 2 l) mod 4) / 2, so that heads and layers differ. A case reads its prompt chunk by chunk, then single tokens:

    case NAME SEED LAYERS HEADS GROUP HEAD_DIM N_PROMPT N_STEPS SCALE RECIPE
    pass M chunk|last|step|repeat   M tokens through all layers; last: the prompt's last chunk; repeat: rows of KVzip's
                                    repetition, whose slots are dropped again
    gone LAYER HEAD POSITION...     what the pass evicted; no line: nothing
    state PLANE LAYER HEAD X...     score state of the slots that are kept
    rows LAYER HEAD X...            of every kept slot the digest of its K and of its V: sum_c (7 c mod 11 - 5) / 8 x_c
    row LAYER HEAD SLOT X...        K and V of one slot
    threshold LAYER X               D2O's moving average
    merged N                        slots merged so far
    channels LAYER HEAD C...        TailorKV: critical channels, ascending
    fetched LAYER HEAD SLOT...      TailorKV: the slots chosen by them, ascending
    out LAYER QUERY_HEAD X...       TailorKV: the attention's output

All arithmetic is f64. A seed for which a kept set hangs on a difference that f32 may see otherwise is passed over;
where scores are exact in f32 (counts, given numbers, sums of few products) ties stay in and the rule for ties decides.
"""
import argparse
import itertools
import sys
from pathlib import Path

import script
script.needs("numpy", code=77)  # CTest skips it
import numpy as np  # noqa: E402

Q, K, V, NEXT_Q, CIS_HIGH, CIS_LOW = 1, 2, 3, 4, 5, 6
RELATIVE_MARGIN = 2e-5


class TooCloseToCall(Exception):
    pass


# --- inputs ----------------------------------------------------------------------------------------------------------
def values(seed, stream, shape):
    """Multiples of 1/32 in [-4, 4): the upper 8 bits of splitmix64's finalizer."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        start = np.uint64((seed * 4 + stream) * 0x9E3779B97F4A7C15 % 2**64)
        z = start + np.arange(count, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (((z >> np.uint64(56)).astype(np.int64) - 128) / 32.0).reshape(shape)


def queries(seed, stream, layers, tokens, heads, d):
    scale = (1 + (np.arange(heads)[None, :] + 2 * np.arange(layers)[:, None]) % 4) / 2
    return values(seed, stream, (layers, tokens, heads, d)) * scale[:, None, :, None]


def rotate(x, positions):
    """RoPE: channel i and i + d/2 turn by position * 10000^(-2i/d)."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(q, k, scale):
    """q [m][d], k [n][d]; the m queries are those of the last m keys. Softmax rows [m][n]."""
    m, n = len(q), len(k)
    logits = scale * (q @ k.T)
    logits[np.arange(n)[None, :] > n - m + np.arange(m)[:, None]] = -np.inf
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# --- choosing --------------------------------------------------------------------------------------------------------
def best(scores, candidates, count, exact=False, newest_first=False, noise=None, plateaus=False):
    """`count` of `candidates` with the largest scores; equal ones: the lower index, or the newest."""
    index = -candidates if newest_first else candidates
    order = candidates[np.lexsort((index, -scores[candidates]))]
    if 0 < count < len(order) and not exact:
        low, high = order[count], order[count - 1]
        allowed = RELATIVE_MARGIN * np.abs(scores[high]) if noise is None else noise[[low, high]].max()
        if not scores[high] - scores[low] > allowed and not (plateaus and scores[high] == scores[low]):
            raise TooCloseToCall
    return order[:count]


class Head:
    """The cache of one (layer, KV head): what is kept of every token, and the statistics of its attention."""

    def __init__(self, d):
        self.positions = np.zeros(0, int)
        self.k, self.v = np.zeros((0, d)), np.zeros((0, d))
        self.sum, self.square, self.above, self.cis, self.most = (np.zeros(0) for _ in range(5))

    def append(self, positions, k, v, cis):
        m = len(positions)
        self.positions = np.concatenate([self.positions, positions])
        self.k, self.v = np.concatenate([self.k, k]), np.concatenate([self.v, v])
        self.sum, self.square, self.above, self.most = (np.concatenate([x, np.zeros(m)])
                                                        for x in (self.sum, self.square, self.above, self.most))
        self.cis = np.concatenate([self.cis, cis])

    def attend(self, q, scale, window, slot_positions):
        """q [m][G][d]: update the statistics."""
        m, n = len(q), len(self.k)
        k = rotate(self.k, np.arange(n)) if slot_positions else self.k
        rows = []
        for g in range(q.shape[1]):
            query = rotate(q[:, g], n - m + np.arange(m)) if slot_positions else q[:, g]
            rows.append(attention(query, k, scale))
        rows = np.stack(rows)  # [G][m][n]
        mean = rows.mean(axis=0)
        visible = n - m + 1 + np.arange(m)[:, None]
        self.near_mean = np.abs((mean * visible)[visible[:, 0] > 1] - 1).min() < 4e-6  # one slot: 1 is not above 1
        self.sum = self.sum + mean.sum(axis=0)
        self.square = self.square + (mean**2).sum(axis=0)
        self.above = self.above + (mean * visible > 1).sum(axis=0)
        self.last = rows[:, -1]
        self.window = rows[:, -window:].sum(axis=1)  # [G][n]

    def hear(self, q, k, scale):
        """Scores slots as KVzip does: rows after the prompt repeat it; q [m][G][d], k [m][d]. Keeps the slots of the prompt alone."""
        n = len(self.k)
        keys = np.concatenate([self.k, k])
        rows = np.stack([attention(q[:, g], keys, scale)[:, :n] for g in range(q.shape[1])])
        self.most = np.maximum(self.most, rows.max(axis=(0, 1)))
        self.sum = self.sum + rows.mean(axis=0).sum(axis=0)

    def keep(self, stay):
        for name in ("positions", "k", "v", "sum", "square", "above", "cis", "most"):
            setattr(self, name, getattr(self, name)[stay])


# --- scores ----------------------------------------------------------------------------------------------------------
def pooled(sums, kernel, kind):
    """Over neighbours: max leaves out what is beyond the ends, avg counts it as 0 and divides by the kernel."""
    if kind == "none":
        return sums
    half, n = kernel // 2, len(sums)
    near = [sums[max(0, j - half):j + half + 1] for j in range(n)]
    return np.array([x.max() for x in near] if kind == "max" else [x.sum() / kernel for x in near])


def weights_of(case, head, n_read):
    """The method's importance of every slot, one row per query head where it has them, else one row."""
    if case.score == "reconstruct":
        return head.most[None]
    if case.score in ("aas", "reconstruct_sum"):
        return head.sum[None]
    if case.score == "keydiff":
        unit = head.k / np.linalg.norm(head.k, axis=1, keepdims=True)
        anchor = unit.mean(axis=0)
        return -(unit @ anchor / np.linalg.norm(anchor))[None]
    if case.score == "mas":  # a slot has been attended to by its own row and every later one
        return (head.sum / (n_read - head.positions))[None]
    if case.score == "aqas":
        if head.near_mean:
            raise TooCloseToCall
        return head.above[None]
    if case.score == "ltas":
        return head.last
    if case.score == "cis":
        return head.cis[None]
    # SnapKV: the window observes what is before it; the window itself is kept anyway.
    before = head.window.shape[1] - case.window
    kernel, kind = case.pool
    return np.stack([np.concatenate([pooled(row[:before], kernel, kind), row[before:]]) for row in head.window])


def output_change(weights, v, center):
    """CAOTE, eq. 21; FastCAOTE: around the mean of the values."""
    a = weights / weights.sum()
    c = a @ v if center == "caote" else v.mean(axis=0)
    return a / (1 - a) * np.linalg.norm(c - v, axis=1)


def scores_of(case, head, n_read):
    weights = weights_of(case, head, n_read)
    if case.value is None:
        return weights.mean(axis=0)
    center, _, per_head = case.value.partition("-")
    if per_head:
        return np.sqrt((np.stack([output_change(w, head.v, center) for w in weights])**2).sum(axis=0))
    return output_change(weights.mean(axis=0), head.v, center)


def protected_of(case, head, n_read, last_eviction):
    """Slots that are kept whatever their score."""
    n = len(head.positions)
    fixed = np.zeros(n, bool)
    fixed[:case.sinks] = True
    newest = max(case.recent_slots, 0 if last_eviction else case.stabilizers)
    fixed[n - newest:] = True
    if case.std:  # RoCo: the largest deviations of attention; the newest slots come first among them, sinks are beside
        count = n_read - head.positions
        mean, square = head.sum / count, head.square / count
        std = np.sqrt(np.maximum(square - mean**2, 0))
        noise = 1e-5 * square / np.maximum(std, 1e-30)
        more = max(case.sinks + int(case.std * case.budget) - fixed.sum(), 0)
        fixed[best(std, np.flatnonzero(~fixed), more, noise=noise)] = True
    return fixed


def stay_of(case, heads, n_read, budget, last_eviction):
    """Indices that each head of a layer keeps, ascending."""
    fixed = [protected_of(case, head, n_read, last_eviction) for head in heads]
    scores = [scores_of(case, head, n_read) for head in heads]
    exact = case.score in ("aqas", "cis") and case.value is None
    plateaus = case.score == "snapkv" and case.pool[1] == "max" and case.value is None  # neighbours share a maximum
    if case.heads == "adaptive":
        return adaptive(scores, fixed, budget, plateaus)
    if case.heads == "layer":
        scores = [np.mean(scores, axis=0)] * len(heads)
    free = [best(s, np.flatnonzero(~f), budget - f.sum(), exact, case.score == "aqas", plateaus=plateaus)
            for s, f in zip(scores, fixed)]
    if case.score == "aqas":
        for head, s, f, chosen in zip(heads, scores, fixed, free):
            first = (head.positions == 0).astype(int)  # its own row may count or not
            if set(best(s + first, np.flatnonzero(~f), len(chosen), True, True)) != set(chosen):
                raise TooCloseToCall
    return [np.sort(np.concatenate([np.flatnonzero(f), chosen])) for f, chosen in zip(fixed, free)]


def compete(case, cache):
    """KVzip: the slots of all heads of all layers compete; protected ones come first. Returns what each head keeps."""
    rows = [(layer, h) for layer in range(case.layers) if layer not in case.exempt for h in range(case.n_heads)]
    fixed = [protected_of(case, cache[layer][h], case.n, True) for layer, h in rows]
    scores = np.concatenate([np.where(f, np.inf, scores_of(case, cache[layer][h], case.n))
                             for (layer, h), f in zip(rows, fixed)])
    count = case.budget * len(rows)
    chosen = np.zeros(len(scores), bool)
    chosen[scores == np.inf] = True
    free = np.flatnonzero(~chosen)
    chosen[best(scores, free, count - chosen.sum())] = True
    stays = list(map(np.flatnonzero, chosen.reshape(len(rows), case.n)))
    if case.heads == "pages":
        for i, (n, own) in enumerate(zip(whole_pages(case, [len(stay) for stay in stays]), scores.reshape(len(rows), case.n))):
            free = np.flatnonzero(own < np.inf)
            stays[i] = np.sort(np.concatenate([np.flatnonzero(own == np.inf), best(own, free, n - (case.n - len(free)))]))
    return dict(zip(rows, stays))


def whole_pages(case, counts):
    """Rounds counts to pages of 64 slots, at least one; the largest remainders are rounded up while the sum allows it."""
    pages = [max(n // 64, 1) for n in counts]
    lacking = [i for i in sorted(range(len(counts)), key=lambda i: -(counts[i] % 64)) if counts[i] >= 64 and pages[i] < case.n // 64]
    for i in lacking[:max(sum(counts) // 64 - sum(pages), 0)]:
        pages[i] += 1
    return [64 * n for n in pages]


def adaptive(scores, fixed, budget, plateaus):
    """AdaKV: the slots of all heads compete, but every head has its protected ones and a fifth of the budget."""
    stay, rest = [], []
    for h, (s, f) in enumerate(zip(scores, fixed)):
        least = max(int(0.2 * budget) - f.sum(), 0)
        stay.append(set(np.flatnonzero(f)) | set(best(s, np.flatnonzero(~f), least, plateaus=plateaus)))
        rest += [(-s[j], h, j) for j in range(len(s)) if j not in stay[h]]
    rest.sort()
    free = len(scores) * budget - sum(map(len, stay))
    low, high = -rest[free][0], -rest[free - 1][0]
    tie = plateaus and high == low and rest[free][1] == rest[free - 1][1]
    if not high - low > RELATIVE_MARGIN * abs(high) and not tie:
        raise TooCloseToCall
    for _, h, j in rest[:free]:
        stay[h].add(j)
    return [np.array(sorted(s)) for s in stay]


# --- budgets of layers -----------------------------------------------------------------------------------------------
def divide(total, weights):
    """Largest remainder; none of our cases needs a bound."""
    exact = total * weights / weights.sum()
    shares = np.floor(exact).astype(int)
    shares[best(exact - shares, np.arange(len(weights)), total - shares.sum(), noise=np.full(len(weights), 1e-3))] += 1
    return shares


def pyramid(budget, layers):
    """PyramidKV: linear, from 2b - b / 20 to b / 20."""
    return divide(budget * layers, np.linspace(2 * budget - budget / 20, budget / 20, layers))


def d2o_budgets(case, cache):
    """softmax of minus the density; three readings of it. Only layers that evict share."""
    chosen = [layer for layer in range(case.layers) if layer not in case.exempt]
    variance = np.array([[head.sum.var(ddof=1) for head in cache[layer]] for layer in chosen])
    if case.split == "d2o":
        low, high = variance.min(axis=1, keepdims=True), variance.max(axis=1, keepdims=True)
        x = ((variance - low) / (high - low + 1e-6)).mean(axis=1)
    elif case.split == "d2o-raw":
        x = variance.mean(axis=1)
    else:
        x = variance.mean(axis=1)
        x = (x - x.min()) / (x.max() - x.min() + 1e-6)
    shares = divide(case.budget * len(chosen), np.exp(x.min() - x))
    least = case.sinks + case.recent_slots + 8
    assert shares.min() > least and shares.max() < case.n, f"{case.name}: a share {shares} would have to be clipped"
    budgets = np.full(case.layers, case.n)
    budgets[chosen] = shares
    return budgets


# --- D2O's merge -----------------------------------------------------------------------------------------------------
def merge(case, layer, stays, thresholds):
    """Evicted slots go into the most similar kept ones, above a moving average that heads share. Returns how many."""
    found = []
    for head, stay in zip(layer, stays):
        evicted = np.setdiff1d(np.arange(len(head.k)), stay)
        unit = head.k / np.linalg.norm(head.k, axis=1, keepdims=True)
        cosine = unit[evicted] @ unit[stay].T
        top = np.sort(cosine, axis=1)
        if (top[:, -1] - top[:, -2]).min() < 3e-6:
            raise TooCloseToCall
        found.append((evicted, stay[cosine.argmax(axis=1)], cosine.max(axis=1)))
    mean = np.concatenate([u for _, _, u in found]).mean()
    thresholds.append(mean if not thresholds else (1 - case.beta) * thresholds[-1] + case.beta * mean)
    threshold, merged = thresholds[-1], 0
    for head, (evicted, into, u) in zip(layer, found):
        if np.abs(u - threshold).min() < 3e-6:
            raise TooCloseToCall
        for c in np.unique(into[u >= threshold]):
            mine = (into == c) & (u >= threshold)
            w = np.exp(u[mine])
            total = np.e + w.sum()
            head.k[c] = (np.e * head.k[c] + w @ head.k[evicted[mine]]) / total
            head.v[c] = (np.e * head.v[c] + w @ head.v[evicted[mine]]) / total
            merged += mine.sum()
    return merged


# --- traces ----------------------------------------------------------------------------------------------------------
def numbers(xs):
    return " ".join(f"{x:.6g}" for x in xs)


def integers(xs):
    return " ".join(map(str, xs))


class Case:
    def __init__(self, name, seed, score="aas", **options):
        self.name, self.seed, self.score = name, seed, score
        self.layers, self.n_heads, self.group, self.d, self.n, self.steps, self.scale = 2, 2, 2, 32, 400, 0, 0.1
        self.value, self.sinks, self.recent, self.std, self.stabilizers, self.tail = None, 0, None, None, 0, 0
        self.window, self.pool, self.split, self.heads, self.when = 32, (7, "max"), "uniform", "uniform", "chunk"
        self.exempt, self.beta, self.slot, self.chunk, self.budget = (), None, False, 64, 100
        self.topk, self.channels, self.repeats = 0, 0, ()
        for key, value in options.items():
            assert hasattr(self, key), key
            setattr(self, key, value)
        share = self.recent is not None and not isinstance(self.recent, int)
        self.recent_slots = int(self.recent * self.budget) if share else self.recent or 0

    def recipe(self):
        scope = [f"{word}:{getattr(self, word)}" for word in ("sinks", "recent", "std", "stabilizers", "tail")
                 if getattr(self, word)]
        words = [f"score={self.score}", f"scope={'+'.join(scope)}" if scope else "", f"budget={self.budget}"]
        if self.topk:
            words = ["full", words[1], f"place=offload/1-,retrieve=pull,topk={self.topk},channels={self.channels}"]
        else:
            words.append(f"when={self.when}")
        words.append(f"value={self.value}" if self.value else "")
        if self.score == "snapkv":
            words.append(f"window={self.window},pool={self.pool[1]}" + f":{self.pool[0]}" * (self.pool[1] != "none"))
        words.append(f"layers={self.split}" if self.split != "uniform" else "")
        words.append(f"exempt={'+'.join(map(str, self.exempt))}" if self.exempt else "")
        words.append(f"heads={self.heads}" if self.heads != "uniform" else "")
        words.append(f"evicted=merge:{self.beta}" if self.beta else "")
        words.append("positions=slot" if self.slot else "")
        return ",".join(w for w in words if w) + f",format=f32,chunk={self.chunk}"

    def passes(self):
        """(first token, tokens, kind): the tail begins a chunk of its own; a window of rows lies within one."""
        body = self.n - self.tail
        bounds = {*range(0, body, self.chunk), body, *range(body, self.n, self.chunk), self.n}
        cut = {bound for bound in bounds if self.score == "snapkv" and self.n - self.window < bound < self.n}
        bounds = sorted(bounds - cut | {self.n - self.window} if cut else bounds)
        for begin, end in itertools.pairwise(bounds):
            yield begin, end - begin, "last" if end == self.n else "chunk"
        for i, m in enumerate(self.repeats):
            yield self.n + sum(self.repeats[:i]), m, "repeat"
        for token in range(self.n, self.n + self.steps):
            yield token, 1, "step"

    def evicts(self, end, kind):
        if kind == "step":
            return "step" in self.when
        if kind == "repeat":
            return end == self.n + sum(self.repeats)
        if end > self.n - self.tail or self.repeats:
            return False
        return "chunk" in self.when or end == self.n - self.tail


def digest(x):
    return x @ ((7 * np.arange(x.shape[1]) % 11 - 5) / 8)


def details(case, cache, thresholds, merged, finished):
    planes = {"aas": ["sum"], "mas": ["sum", "square"], "aqas": ["above"], "cis": ["cis"],
              "reconstruct": ["most"], "reconstruct_sum": ["sum"]}.get(case.score, [])
    for layer, h in itertools.product(range(case.layers), range(case.n_heads)):
        head = cache[layer][h]
        if layer in case.exempt:
            continue
        for plane, name in enumerate(planes if finished else []):
            state = getattr(head, name).astype(float)
            yield f"state {plane} {layer} {h} {numbers(state)}"
        if case.beta:
            yield f"rows {layer} {h} {numbers(np.stack([digest(head.k), digest(head.v)], axis=1).ravel())}"
            slot = len(head.k) // 2
            yield f"row {layer} {h} {slot} {numbers(np.concatenate([head.k[slot], head.v[slot]]))}"
    if case.beta:
        for layer in range(case.layers):
            if thresholds[layer]:
                yield f"threshold {layer} {thresholds[layer][-1]:.7g}"
        yield f"merged {merged}"


def trace(case, seed):
    total, L, H = case.n + case.steps + sum(case.repeats), case.layers, case.n_heads
    q = queries(seed, Q, L, total, H * case.group, case.d).reshape(L, total, H, case.group, case.d)
    k, v = values(seed, K, (L, total, H, case.d)), values(seed, V, (L, total, H, case.d))
    cis = values(seed, CIS_HIGH, (L, total, H)) + values(seed, CIS_LOW, (L, total, H)) / 256
    cache = [[Head(case.d) for _ in range(H)] for _ in range(L)]
    budgets = pyramid(case.budget, L) if case.split == "pyramid" else np.full(L, case.budget)
    budgets = np.where(np.isin(np.arange(L), case.exempt), total, budgets)
    thresholds, merged = [[] for _ in range(L)], 0
    yield f"case {case.name} {seed} {L} {H} {case.group} {case.d} {case.n} {total - case.n} {case.scale} {case.recipe()}"
    for begin, m, kind in case.passes():
        end = begin + m
        yield f"pass {m} {kind}"
        for layer, h in itertools.product(range(L), range(H)):
            head = cache[layer][h]
            if kind == "repeat":
                head.hear(q[layer, begin:end, h], k[layer, begin:end, h], case.scale)
                continue
            head.append(np.arange(begin, end), k[layer, begin:end, h], v[layer, begin:end, h], cis[layer, begin:end, h])
            if case.score != "cis" and not case.repeats:
                head.attend(q[layer, begin:end, h], case.scale, case.window, case.slot)
        if kind == "last" and case.split.startswith("d2o"):
            budgets = d2o_budgets(case, cache)
        shared = compete(case, cache) if case.heads in ("global", "pages") and case.evicts(end, kind) else None
        for layer in range(L):
            heads = cache[layer]
            if not case.evicts(end, kind) or layer in case.exempt or len(heads[0].k) <= budgets[layer]:
                continue
            stays = [shared[layer, h] for h in range(H)] if shared else stay_of(case, heads, end, budgets[layer], kind != "chunk" or end == case.n - case.tail)
            if case.beta:
                merged += merge(case, heads, stays, thresholds[layer])
            for h, (head, stay) in enumerate(zip(heads, stays)):
                gone = np.setdiff1d(head.positions, head.positions[stay])
                if len(gone):
                    yield f"gone {layer} {h} {integers(gone)}"
                head.keep(stay)
        if kind == "last" and not case.repeats or end == total:
            yield from details(case, cache, thresholds, merged, end == total)


def retrieval_trace(case, seed):
    """TailorKV: nothing is evicted; in a step every offloaded layer attends to what few channels point at."""
    total, L, H, G = case.n + case.steps, case.layers, case.n_heads, case.group
    q = queries(seed, Q, L, total, H * G, case.d).reshape(L, total, H, G, case.d)
    ahead = queries(seed, NEXT_Q, L, total, H * G, case.d).reshape(L, total, H, G, case.d)
    k, v = values(seed, K, (L, total, H, case.d)), values(seed, V, (L, total, H, case.d))
    yield f"case {case.name} {seed} {L} {H} {G} {case.d} {case.n} {case.steps} {case.scale} {case.recipe()}"
    for begin, m, kind in case.passes():
        yield f"pass {m} {kind}"
        if kind != "step":
            continue
        for layer, h in itertools.product(range(L), range(H)):
            slots = np.arange(begin + 1)
            if layer > 0:
                absmax = np.abs(k[layer, :case.n, h]).max(axis=0)
                guess = np.abs(ahead[layer, begin, h].mean(axis=0))
                channels = np.sort(best(guess * absmax, np.arange(case.d), case.channels, exact=True))
                near = k[layer, :case.n, h][:, channels] @ q[layer, begin, h].mean(axis=0)[channels]
                fetched = np.sort(best(near, np.arange(case.sinks, case.n - case.recent_slots), case.topk, exact=True))
                newest = np.arange(case.n - case.recent_slots, begin + 1)
                slots = np.concatenate([np.arange(case.sinks), fetched, newest])
                yield f"channels {layer} {h} {integers(channels)}"
                yield f"fetched {layer} {h} {integers(fetched)}"
            for g in range(G):
                p = attention(q[layer, begin, h, g][None], k[layer, slots, h], case.scale)
                yield f"out {layer} {h * G + g} {numbers((p @ v[layer, slots, h])[0])}"


ROCO = dict(score="mas", sinks=4, recent=10)
SNAP = dict(score="snapkv", recent=32, when="end", n=430)
D2O = dict(sinks=4, recent=20, n_heads=4, layers=3, when="end+step", n=300, budget=90, steps=8)
ZIP = dict(sinks=4, recent=6, when="end", n=230, budget=70)
FILES = {
    "roco": [Case("prefill", 101, std=0.1, **ROCO), Case("prefill-decode", 102, std=0.3, when="chunk+step", steps=20,
                                                         **ROCO),
             Case("chunks-of-128", 103, std=0.3, chunk=128, budget=160, n=500, d=64, scale=0.05, **ROCO),
             Case("no-deviation", 104, score="mas", recent=0.5, budget=90)],
    "scissorhands": [Case("half-local", 111, score="aqas", recent=0.5, n=330),
                     Case("sinks", 112, score="aqas", sinks=4, recent=8, n=300, chunk=128, group=1)],
    "h2o_values": [Case("decode", 121, recent=0.5, when="chunk+step", steps=20),
                   Case("caote", 122, recent=0.25, sinks=2, value="caote"),
                   Case("fastcaote", 123, recent=0.25, sinks=2, value="fastcaote"),
                   Case("caote-decode", 124, recent=10, value="caote", when="chunk+step", steps=10, d=64, scale=0.05)],
    "tova": [Case("layer", 131, score="ltas", heads="layer", when="chunk+step", steps=20),
             Case("heads", 132, score="ltas", sinks=2, when="chunk+step", steps=10),
             Case("caote", 133, score="ltas", value="caote", when="chunk+step", steps=10),
             Case("caote-layer", 134, score="ltas", value="caote", heads="layer", when="chunk+step", steps=5),
             Case("caote-heads", 135, score="ltas", value="caote-heads", chunk=128),
             Case("fastcaote", 136, score="ltas", value="fastcaote", chunk=128),
             Case("fastcaote-heads", 137, score="ltas", value="fastcaote-heads")],
    "snapkv": [Case("max", 141, **SNAP), Case("avg", 142, pool=(5, "avg"), **SNAP),
               Case("none", 143, pool=(0, "none"), **SNAP), Case("caote", 144, value="caote", **SNAP),
               Case("fastcaote", 145, value="fastcaote", pool=(5, "avg"), **SNAP),
               Case("caote-heads", 146, value="caote-heads", pool=(0, "none"), **SNAP),
               Case("window-begins-a-chunk", 147, **{**SNAP, "n": 404})],
    "pyramidkv": [Case("even", 151, score="snapkv", window=8, recent=8, when="end", split="pyramid", layers=3, n=450,
                       budget=200, pool=(5, "max")),
                  Case("remainder", 152, recent=4, when="end", split="pyramid", layers=4, n=450, budget=193)],
    "adakv": [Case("snapkv", 161, heads="adaptive", n_heads=4, **SNAP),
              Case("floor", 163, score="snapkv", heads="adaptive", n_heads=4, group=1, sinks=2, recent=12, window=12,
                   when="end", budget=80, n=300),
              Case("h2o", 162, heads="adaptive", n_heads=3, sinks=4, recent=10, when="end", budget=80)],
    "d2o": [Case("heads", 171, split="d2o", beta=0.5, scale=0.03, **D2O),
            Case("raw", 172, split="d2o-raw", beta=0.7, scale=0.01, **D2O),
            Case("minmax", 173, split="d2o-minmax", beta=0.7, scale=0.05, **D2O),
            Case("uniform", 174, beta=0.7, **D2O), Case("exempt", 175, split="d2o", exempt=(0,), scale=0.03, **D2O)],
    "kvzip": [Case("global", 201, score="reconstruct", heads="global", repeats=(90, 90, 60), layers=3, **ZIP),
              Case("adaptive-sum", 202, score="reconstruct_sum", heads="adaptive", repeats=(90, 90, 60), **ZIP),
              Case("uniform", 203, score="reconstruct", repeats=(200,), exempt=(1,), layers=3, group=3, **ZIP),
              Case("h2o-global", 204, heads="global", layers=3, **ZIP),
              Case("caote", 205, score="reconstruct", value="caote", heads="global", repeats=(70, 70), group=1, **ZIP),
              Case("pages", 206, score="reconstruct_sum", heads="pages", repeats=(90, 90, 60), layers=3, n_heads=3, **{**ZIP, "budget": 110})],
    "keydiff": [Case("chunks", 211, score="keydiff", sinks=4, recent=8),
                Case("as-published", 212, score="keydiff", chunk=128, n=300, d=64),
                Case("global", 213, score="keydiff", heads="global", layers=3, **ZIP),
                Case("slots", 214, score="keydiff", heads="adaptive", when="end", sinks=2, budget=120, n=330)],
    "locret": [Case("stabilizers", 181, score="cis", stabilizers=24, tail=40, n=500, chunk=128),
               Case("no-tail", 182, score="cis", stabilizers=16, n=450),
               Case("slots", 183, score="cis", stabilizers=30, tail=100, n=500, slot=True, budget=80)],
    "tailorkv": [Case("eight-channels", 191, score="none", sinks=8, recent=24, topk=40, channels=8, layers=3, steps=5),
                 Case("no-group", 192, score="none", sinks=4, recent=16, topk=30, channels=12, d=64, group=1, steps=4,
                      scale=0.05)],
}


def write(name):
    lines = []
    for case in FILES[name]:
        for seed in itertools.count(case.seed, 1000):
            try:
                lines += list((retrieval_trace if case.topk else trace)(case, seed))
                break
            except TooCloseToCall:
                pass
    return "\n".join(lines) + "\n"


def same(old, new):
    """Equal but for the last digits of fractions."""
    a, b = old.split(), new.split()
    return len(a) == len(b) and all(
        x == y or ("." in x + y and np.isclose(float(x), float(y), rtol=1e-5, atol=1e-6)) for x, y in zip(a, b))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"files to write: {' '.join(FILES)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("tests/golden/compress"), help="folder (%(default)s)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file differs")
    args = parser.parse_args()
    unknown = set(args.names) - set(FILES)
    if unknown:
        parser.error(f"no such file: {' '.join(sorted(unknown))}; there are {' '.join(FILES)}")
    status = 0
    for name in args.names or FILES:
        text, path = write(name), args.out / f"{name}.txt"
        if not args.check:
            args.out.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            seeds = " ".join(line.split()[2] for line in text.splitlines() if line.startswith("case "))
            print(f"{path}: {len(FILES[name])} cases, {len(text)} bytes, seeds {seeds}")
        elif not path.exists() or not same(path.read_text(), text):
            print(f"{path}: not what tools/golden_methods.py writes")
            status = 1
        else:
            print(f"{path}: as written")
    return status


if __name__ == "__main__":
    sys.exit(main())
