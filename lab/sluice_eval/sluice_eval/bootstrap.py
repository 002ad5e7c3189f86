# SPDX-License-Identifier: Apache-2.0
"""Confidence interval of a difference measured on the same questions twice: the paired bootstrap (Efron, 1979).

10,000 resamples. Each draws every cell anew from its own differences, as many as it
has, and has the mean over cells of their means. The interval is between the 2.5% and 97.5% quantiles, interpolated.
"""
from __future__ import annotations

import dataclasses
import math

import numpy as np

from .rng import Random, below_array

N_RESAMPLES = 10000
NAN = math.nan


@dataclasses.dataclass(frozen=True)
class Interval:
    mean: float = NAN
    low: float = NAN  # NaN: every cell has one sample, so there is no interval
    high: float = NAN


def _mean_of_means(cells: list[np.ndarray], indexes: list[np.ndarray]) -> np.ndarray:
    """Returns [n_resamples]. Adds in the order of the samples, as C does, because sums of floats depend on it."""
    total = np.zeros(indexes[0].shape[0])
    for cell, index in zip(cells, indexes):
        inner = np.zeros_like(total)
        for column in range(index.shape[1]):
            inner += cell[index[:, column]]
        total += inner / len(cell)
    return total / len(cells)


def _quantile(values: np.ndarray, share: float) -> float:
    at = share * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return float(values[below] + (at - below) * (values[above] - values[below]))


def bootstrap_mean(cells: list[list[float]], seed: int) -> Interval:
    """Returns the mean over cells of their means, with its interval. cells: the differences of each cell."""
    kept = [np.array(cell, dtype=np.float64) for cell in cells if cell]
    if not kept:
        return Interval()
    mean = float(_mean_of_means(kept, [np.arange(len(cell))[None, :] for cell in kept])[0])
    if max(map(len, kept)) == 1:
        return Interval(mean)
    sizes = [len(cell) for cell in kept]
    limits = np.repeat(np.array(sizes, dtype=np.uint64), sizes)
    drawn = Random("bootstrap", seed, 0).next_array(N_RESAMPLES * len(limits)).reshape(N_RESAMPLES, -1)
    indexes = np.split(below_array(drawn, limits).astype(np.int64), np.cumsum(sizes)[:-1], axis=1)
    means = np.sort(_mean_of_means(kept, indexes))
    return Interval(mean, _quantile(means, 0.025), _quantile(means, 0.975))
