r"""Stratified random splits.

Single-label data: counts within one of the exact fractions. Multi-label data: iterative stratification (Sechidis et al.
2011, *On the stratification of multi-label data*).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["scarce_classes", "stratified_split"]

Indices = NDArray[np.int64]


def stratified_split(
    labels: Sequence[int] | NDArray[Any], shares: Sequence[float], *, seed: int = 0
) -> tuple[Indices, ...]:
    """Indices of disjoint splits that cover all samples, each in the order of the data.

    With single-label data, the number of samples of a class in a split is its exact fraction, rounded up or down. A
    class with fewer samples than splits is entirely in the first split (see ``scarce_classes``).

    Args:
        labels: (N,) integers, or (N, L) with 1 for positive labels.
        shares: fraction of each split, training first; they sum to 1.
        seed: random seed.

    >>> train, val = stratified_split([0, 0, 0, 0, 1, 1, 1, 1], [0.75, 0.25])
    >>> len(train), len(val)
    (6, 2)
    """
    array = np.asarray(labels)
    if array.ndim not in (1, 2):
        raise ValueError(
            f"labels must be (N,) class indices or (N, L) of 0 and 1, got shape {array.shape}; of label maps pass "
            "which classes occur in each"
        )
    parts = np.asarray(shares, dtype=np.float64)
    if parts.ndim != 1 or not len(parts) or not np.isfinite(parts).all() or (parts < 0).any():
        raise ValueError(f"shares must be numbers >= 0, one per split, got {list(shares)}; e.g. [0.7, 0.15, 0.15]")
    if parts[0] == 0 or abs(parts.sum() - 1.0) > 1e-6:
        raise ValueError(
            f"shares must sum to 1 and leave samples for training, got {list(shares)}; e.g. [0.7, 0.15, 0.15]"
        )
    draw = np.random.default_rng(seed)
    assigned = _by_class(array, parts, draw) if array.ndim == 1 else _iterative(array == 1, parts, draw)
    return tuple(np.flatnonzero(assigned == part) for part in range(len(parts)))


def scarce_classes(labels: Sequence[int] | NDArray[Any], splits: int) -> list[int]:
    """Classes with samples, but fewer than splits."""
    array = np.asarray(labels)
    if array.ndim == 2:
        counts = (array == 1).sum(0)
        return [int(c) for c in np.flatnonzero((counts > 0) & (counts < splits))]
    values, counts = np.unique(array, return_counts=True)
    return [int(c) for c in values[counts < splits]]


def _by_class(labels: NDArray[Any], shares: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.int64]:
    """The split of each sample."""
    assigned = np.zeros(len(labels), np.int64)
    owed = np.zeros(len(shares))  # accumulated rounding error of each split
    used = int((shares > 0).sum())
    _, inverse = np.unique(labels, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    for own in np.split(order, np.cumsum(np.bincount(inverse))[:-1]) if len(order) else []:
        if len(own) < used:
            continue
        quotas = shares * len(own)
        counts = np.floor(quotas + 1e-9).astype(np.int64)
        left = len(own) - int(counts.sum())
        # Round up `left` splits: training first if it would be empty, then splits that would have none, then
        # those with the largest accumulated error.
        fraction = quotas - counts
        first = np.where(counts == 0, np.where(np.arange(len(shares)) == 0, 2, fraction >= 0.5), 0)
        ranked = np.lexsort((np.arange(len(shares)), -(owed + fraction), -first, fraction <= 1e-9))
        counts[ranked[:left]] += 1
        owed += quotas - counts
        assigned[draw.permutation(own)] = np.repeat(np.arange(len(shares)), counts)
    return assigned


def _iterative(present: NDArray[np.bool_], shares: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.int64]:
    """The split of each sample: the rarest label first, assigned to the split with the largest demand.

    While one label is assigned, its demand and that for samples decrease by one with each sample, whichever it is. So
    the sequence of splits is computed first and the samples of the label are assigned in random order. The result is
    that of the published algorithm, with one vectorised pass per label.
    """
    samples, labels = present.shape
    assigned = np.full(samples, -1, np.int64)
    wanted = shares[:, None] * present.sum(0)  # (splits, labels)
    wanted_samples = shares * samples
    remaining = present.sum(0)

    def give(own: Indices, parts: NDArray[np.int64]) -> None:
        assigned[own] = parts
        for part in range(len(shares)):
            taken = present[own[parts == part]].sum(0)
            wanted[part] -= taken
            remaining[:] -= taken

    scarce = scarce_classes(present, int((shares > 0).sum()))
    fixed = np.flatnonzero(present[:, scarce].any(1))
    give(fixed, np.zeros(len(fixed), np.int64))
    wanted_samples[0] -= len(fixed)
    while labels and remaining.max() > 0:
        label = int(np.argmin(np.where(remaining > 0, remaining, np.iinfo(np.int64).max)))
        own = draw.permutation(np.flatnonzero(present[:, label] & (assigned < 0)))
        give(own, _deal(len(own), wanted[:, label].copy(), wanted_samples, shares, draw))
    rest = draw.permutation(np.flatnonzero(assigned < 0))
    assigned[rest] = _deal(len(rest), np.zeros(len(shares)), wanted_samples, shares, draw, by_label=False)
    return assigned


def _deal(
    count: int,
    wanted: NDArray[np.float64],
    wanted_samples: NDArray[np.float64],
    shares: NDArray[np.float64],
    draw: np.random.Generator,
    by_label: bool = True,
) -> NDArray[np.int64]:
    """Assign ``count`` samples one by one to the split with the largest demand.

    Ties are resolved by the demand for samples, then at random. Modifies ``wanted_samples``.
    """
    parts = [part for part in range(len(shares)) if shares[part] > 0]
    by_sample = wanted_samples.tolist()
    label = wanted.tolist()
    chance = draw.random((count, len(shares))).tolist()
    dealt = np.empty(count, np.int64)
    for i in range(count):
        best = max(parts, key=lambda part: (round(label[part], 9), round(by_sample[part], 9), chance[i][part]))
        dealt[i] = best
        if by_label:
            label[best] -= 1
        by_sample[best] -= 1
    wanted_samples[:] = by_sample
    return dealt
