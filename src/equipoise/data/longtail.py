r"""Long-tailed subsampling: the number of samples per class, and their selection.

Class 0 keeps the most. Counts are integers, at least 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._checks import check_choice, check_number, check_whole

__all__ = ["exponential_counts", "first_4000", "first_4000_counts", "pareto_counts", "step_counts", "subsample"]


def exponential_counts(num_classes: int, largest: int, ratio: float) -> tuple[int, ...]:
    r""":math:`n_c = \lfloor n_0\, r^{-c/(C-1)} \rfloor` (Cui et al. 2019; Cao et al. 2019), r the imbalance ratio.

    >>> exponential_counts(10, 5000, 100)
    (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
    """
    _check(num_classes, largest, ratio)
    steps = max(num_classes - 1, 1)
    return tuple(_whole(largest * ratio ** (-c / steps)) for c in range(num_classes))


def step_counts(num_classes: int, largest: int, ratio: float, *, share: float = 0.5) -> tuple[int, ...]:
    r""":math:`n_0`, and :math:`n_0 / r` for the last fraction ``share`` of classes (Buda et al. 2018).

    >>> step_counts(4, 500, 10)
    (500, 500, 50, 50)
    """
    _check(num_classes, largest, ratio)
    check_number("share", share, low=0.0, high=1.0)
    rare = round(share * num_classes)
    return tuple(_whole(largest if c < num_classes - rare else largest / ratio) for c in range(num_classes))


def pareto_counts(num_classes: int, largest: int, ratio: float, *, power: float = 6.0) -> tuple[int, ...]:
    r"""A power law of the rank, :math:`n_c = n_0 \big(1 + \tfrac{c}{C-1}(r^{1/\alpha} - 1)\big)^{-\alpha}`.

    With ``power`` alpha = 6 it decreases like the Pareto tails of Liu et al. 2019; a large alpha gives the exponential
    tail.

    >>> pareto_counts(5, 1280, 256)
    (1280, 185, 43, 13, 5)
    """
    _check(num_classes, largest, ratio)
    check_number("power", power, low=0.0, open_low=True)
    steps, reach = max(num_classes - 1, 1), ratio ** (1.0 / power) - 1.0
    return tuple(_whole(largest * (1.0 + c / steps * reach) ** -power) for c in range(num_classes))


def first_4000_counts(num_classes: int, variant: str) -> tuple[int, ...]:
    r"""Counts of the 4,000-image variants ``"5/3"`` and ``"6/2"`` of CIFAR-10 and CIFAR-100 (Smith 2022).

    10 classes: :math:`490 - 20 c` and :math:`580 - 40 c`. 100 classes: :math:`50 - \mathrm{round}(c / 5)` and
    :math:`60 - \mathrm{round}(c / 2.5)`, which are 4,010 and 4,020. The paper adjusts them to 4,000 without further
    detail; here one sample is removed from each of the last classes.

    >>> first_4000_counts(10, "6/2")
    (580, 540, 500, 460, 420, 380, 340, 300, 260, 220)
    """
    check_choice("variant", variant, ("5/3", "6/2"))
    if num_classes not in (10, 100):
        raise ValueError(
            f"num_classes must be 10 or 100 for the variant {variant!r} of CIFAR, got {num_classes}; "
            "use another rule, such as exponential_counts"
        )
    if num_classes == 10:
        first, fall = (490, 20) if variant == "5/3" else (580, 40)
        return tuple(first - fall * c for c in range(num_classes))
    first, pace = (50, 5.0) if variant == "5/3" else (60, 2.5)
    counts = [first - round(c / pace) for c in range(num_classes)]
    kept = num_classes - (sum(counts) - 4000)
    return tuple(count - (c >= kept) for c, count in enumerate(counts))


def first_4000(labels: Sequence[int] | NDArray[Any], num_classes: int, variant: str) -> NDArray[np.int64]:
    """Indices of the 4,000 samples of a variant of Smith 2022, in the order of the data.

    ``"balanced"`` are the first 4,000 of any class; ``"5/3"`` and ``"6/2"`` are the first samples of each class, with
    the counts of ``first_4000_counts``. The published list of CIFAR-10 5/3 is shifted by one sample and therefore
    nearly balanced; this function follows the paper.
    """
    check_choice("variant", variant, ("balanced", "5/3", "6/2"))
    if variant != "balanced":
        return subsample(labels, first_4000_counts(num_classes, variant), seed=None)
    if len(labels) < 4000:
        raise ValueError(f"labels must be those of at least 4000 samples, got {len(labels)}; use another rule")
    return np.arange(4000)


def subsample(
    labels: Sequence[int] | NDArray[Any], counts: Sequence[int], *, seed: int | None = 0
) -> NDArray[np.int64]:
    """Indices of ``counts[c]`` samples of each class c, in the order of the data.

    They are drawn without replacement, or with ``seed=None`` the first samples of each class.

    >>> subsample([0, 1, 1, 0, 1], [1, 2], seed=None)
    array([0, 1, 2])
    >>> subsample([0, 0, 0, 1, 1, 2], [2, 1, 1]).shape
    (4,)
    """
    classes = np.asarray(labels)
    if classes.ndim != 1:
        raise ValueError(f"labels must be one class per sample, shape (N,), got {classes.shape}; pass a vector")
    draw = None if seed is None else np.random.default_rng(seed)
    kept = []
    for c, count in enumerate(counts):
        own = np.flatnonzero(classes == c)
        if count > len(own):
            raise ValueError(
                f"counts must not ask for more samples than there are, got {count} of class {c}, which has {len(own)}; "
                "lower the largest count"
            )
        kept.append(own[:count] if draw is None else draw.choice(own, count, replace=False))
    return np.sort(np.concatenate(kept)) if kept else np.empty(0, np.int64)


def _whole(count: float) -> int:
    """Rounded down, tolerating floating-point errors; at least 1."""
    return max(1, int(count + 1e-9))


def _check(num_classes: int, largest: int, ratio: float) -> None:
    check_whole("num_classes", num_classes, low=1)
    check_whole("largest", largest, low=1)
    check_number("ratio", ratio, low=1.0)
