"""Bootstrap: percentile intervals of metrics by resampling (Efron 1979)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise._checks import check_number, check_whole

__all__ = ["Interval", "bootstrap"]

TOGETHER = 2**22
"""Maximum size of the matrix of counts."""


class Interval(NamedTuple):
    """Value on all samples and the limits of its interval; all shaped as what the function returns, float64."""

    value: Tensor
    low: Tensor
    high: Tensor


def bootstrap(
    function: Callable[..., Tensor | float],
    *arrays: Tensor,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    weighted: bool = False,
) -> Interval:
    """Percentile interval of ``function(*arrays)`` over samples drawn with replacement.

    Args:
        function: of the arrays, to a number or a tensor. With ``weighted`` it is called as
            ``function(*arrays, weight=counts)`` with counts (d, n), float64: how often each sample is in each of d
            draws; it returns one value for each, (d, ...). Then nothing is copied and all d draws are computed
            together.
        arrays: tensors with n samples in dimension 0.
        draws: number of resamplings.
        level: fraction of the resampled values between the limits.
        seed: random seed; the same seed gives the same interval.
        weighted: see ``function``.

    A value that is NaN in some draws, such as that of a group that was not drawn, is excluded from those draws.

    >>> from equipoise.metrics import bin_sums, binned_error
    >>> confidence = torch.linspace(0.5, 1.0, 200)
    >>> correct = torch.arange(200) % 4 != 0
    >>> def ece(confidence, correct, weight):
    ...     return binned_error(bin_sums(confidence, correct, 15, weight=weight))
    >>> interval = bootstrap(ece, confidence, correct, weighted=True)
    >>> bool(interval.low < interval.value < interval.high)
    True
    """
    draws = check_whole("draws", draws, low=1)
    check_number("level", level, low=0.0, high=1.0, open_low=True, open_high=True)
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(
            f"arrays must hold the same number of samples, at least one, got {[len(array) for array in arrays]}; "
            "pass tensors with samples in dimension 0"
        )
    n, device = lengths.pop(), arrays[0].device
    generator = torch.Generator().manual_seed(seed)
    if weighted:
        whole = function(*arrays, weight=torch.ones(1, n, dtype=torch.float64, device=device))
        value = _number(whole, device)[0]
        values = [
            _number(function(*arrays, weight=_counts(size, n, generator).to(device)), device)
            for size in _sizes(draws, max(1, TOGETHER // n))
        ]
        estimates = torch.cat(values)
    else:
        value = _number(function(*arrays), device)
        picks = (torch.randint(n, (n,), generator=generator).to(device) for _ in range(draws))
        estimates = torch.stack([_number(function(*(array[pick] for array in arrays)), device) for pick in picks])
    tail = (1.0 - level) / 2.0
    limits = torch.tensor([tail, 1.0 - tail], dtype=torch.float64, device=device)
    low, high = _quantiles(estimates, limits)
    return Interval(value, low, high)


def _quantiles(values: Tensor, limits: Tensor) -> Tensor:
    """Quantiles over dimension 0, ignoring NaN; infinite values are not interpolated."""
    between = values.nanquantile(limits, dim=0)
    if not bool(values.isinf().any()):
        return between
    lower, upper = (values.nanquantile(limits, dim=0, interpolation=side) for side in ("lower", "higher"))
    return torch.where(upper.isinf(), upper, torch.where(lower.isinf(), lower, between))


def _sizes(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]


def _counts(draws: int, n: int, generator: torch.Generator) -> Tensor:
    """Counts of each of n samples in n draws with replacement, (draws, n) float64."""
    picks = torch.randint(n, (draws, n), generator=generator)
    counts = torch.zeros(draws, n, dtype=torch.float64)
    return counts.scatter_add_(1, picks, torch.ones_like(counts))


def _number(value: Tensor | float, device: torch.device) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=device).detach()
