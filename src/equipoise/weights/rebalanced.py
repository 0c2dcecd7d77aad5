r"""Rebalanced weights of the distribution-balanced loss (Wu et al. 2020): multi-label data cannot be sampled evenly.

A sample drawn for one of its labels also adds its other labels. With the probability that sample i was drawn for label
k, :math:`r_{ik} = (1/n_k) / \sum_{j \in i} 1/n_j`, its elements are weighted by
:math:`\sigma(\beta (r_{ik} - \mu)) + \alpha`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise._checks import check_counts, check_number
from equipoise.schedules import Moment, Number

__all__ = ["Rebalanced", "rebalanced_weight"]


@dataclass(frozen=True)
class Rebalanced:
    """Parameters of the weights: training counts of the labels, and offset, steepness and centre of the sigmoid."""

    counts: tuple[float, ...]
    alpha: Number = 0.1
    beta: Number = 10.0
    mu: Number = 0.2

    called: ClassVar[str] = "counts"  # argument that its values per class come from, for messages

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", check_counts("counts", self.counts))
        self.values(Moment())

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """Current hyper-parameters by name."""
        alpha = check_number("alpha", moment.value(self.alpha), low=0.0)
        beta, mu = check_number("beta", moment.value(self.beta)), check_number("mu", moment.value(self.mu))
        return {
            "rebalance": (alpha, beta, mu),
            "inverse_counts": tuple(1.0 / max(count, 1.0) for count in self.counts),
        }


def rebalanced_weight(targets: Tensor, inverse_counts: Tensor, rebalance: Tensor, ignore_value: float | None) -> Tensor:
    """Weights of the elements, shaped like ``targets`` (N, C, d1, ..., dk); ``ignore_value`` None: all are known.

    For a sample without positives r is treated as infinite: the weight is ``1 + alpha``.
    """
    alpha, beta, mu = rebalance
    inverse = inverse_counts.view(-1, *(1 for _ in range(targets.ndim - 2)))
    known = targets.to(inverse.dtype)
    if ignore_value is not None:
        known = known.masked_fill(targets == ignore_value, 0.0)
    drawn = (known * inverse).sum(1, keepdim=True).clamp(min=1e-30)
    weight: Tensor = (beta * (inverse / drawn - mu)).sigmoid() + alpha
    return weight
