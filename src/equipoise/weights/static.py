"""Class weights from the training counts. A class without samples has weight 0, never inf or NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from equipoise._checks import check_choice, check_counts, check_number, on_host

__all__ = ["effective_number", "inverse_frequency", "median_frequency", "normalized", "square_root"]

Normalize = Literal["sum_to_C", "mean_one_over_samples"] | None


@on_host
def inverse_frequency(counts: Sequence[float] | Tensor, normalize: Normalize = "sum_to_C") -> Tensor:
    r""":math:`w_c = 1 / n_c`.

    Shape: ``counts`` (C,); result (C,) float64.

    >>> inverse_frequency([30, 10])
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    n = _counts(counts, shares=True)
    return _normalize(1.0 / n, n, normalize)


@on_host
def square_root(counts: Sequence[float] | Tensor, normalize: Normalize = "sum_to_C") -> Tensor:
    r""":math:`w_c = 1 / \sqrt{n_c}`, between no weights and inverse frequency.

    Shape: ``counts`` (C,); result (C,) float64.

    >>> square_root([90, 10])
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    n = _counts(counts, shares=True)
    return _normalize(n.rsqrt(), n, normalize)


@on_host
def effective_number(
    counts: Sequence[float] | Tensor, beta: float = 0.9999, normalize: Normalize = "sum_to_C"
) -> Tensor:
    r""":math:`w_c = (1 - \beta) / (1 - \beta^{n_c})`, the inverse effective number of samples (Cui et al. 2019).

    beta 0 gives no weights, beta towards 1 inverse frequency, and beta = 1 is that limit exactly. Use .9999, or .999
    for thousands of classes.

    Shape: ``counts`` (C,); result (C,) float64.

    >>> effective_number([1000, 10], beta=0.99)
    tensor([0.1746, 1.8254], dtype=torch.float64)
    """
    check_number("beta", beta, low=0.0, high=1.0)
    n = _counts(counts)
    log_beta = torch.tensor(beta, dtype=torch.float64).log()
    weights = 1.0 / n if beta == 1.0 else (1.0 - beta) / -torch.expm1(n * log_beta)
    return _normalize(weights, n, normalize)


@on_host
def median_frequency(counts: Sequence[float] | Tensor, normalize: Normalize = None) -> Tensor:
    r""":math:`w_c = \text{median}(n) / n_c`, the median over the classes that occur; not normalised further by default.

    Shape: ``counts`` (C,); result (C,) float64.

    >>> median_frequency([40, 20, 10])
    tensor([0.5000, 1.0000, 2.0000], dtype=torch.float64)
    """
    n = _counts(counts, shares=True)
    return _normalize(n[n > 0].quantile(0.5) / n, n, normalize)


def normalized(weights: Tensor) -> Tensor:
    """``w / sum w``: weights that sum to 1, for plots.

    >>> normalized(torch.tensor([1.0, 3.0]))
    tensor([0.2500, 0.7500])
    """
    total = weights.sum()
    return weights / torch.where(total > 0, total, 1.0)


def _counts(counts: Sequence[float] | Tensor, *, shares: bool = False) -> Tensor:
    return torch.tensor(check_counts("counts", counts, shares=shares), dtype=torch.float64)


def _normalize(weights: Tensor, counts: Tensor, normalize: Normalize) -> Tensor:
    """``"sum_to_C"``: the weights sum to C; ``"mean_one_over_samples"``: a training sample has weight 1 on average."""
    weights = torch.where(counts > 0, weights, 0.0)
    if normalize is None:
        return weights
    check_choice("normalize", normalize, ("sum_to_C", "mean_one_over_samples"))
    if normalize == "sum_to_C":
        return weights * (len(weights) / weights.sum())
    return weights * (counts.sum() / (weights * counts).sum())
