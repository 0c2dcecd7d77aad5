"""Weighted sums of losses: ``RecallLoss(19) + 0.5 * DiceLoss()`` is one module."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor, nn

from equipoise._checks import check_number

__all__ = ["SumOfLosses"]


class Summand:
    """Operators of a loss: sums, and products with numbers."""

    __array_ufunc__ = None  # NumPy scalars leave the product to the loss

    def __add__(self, other: object) -> SumOfLosses:
        return _sum_of(self, other)

    def __radd__(self, other: object) -> Any:  # noqa: ANN401
        return self if _is_number(other) and other == 0 else _sum_of(other, self)  # sum() starts with 0

    def __mul__(self, factor: object) -> SumOfLosses:
        if not _is_number(factor):
            raise TypeError(
                f"{type(self).__name__} can be multiplied by a number, got {type(factor).__name__}; write e.g. "
                f"0.5 * {type(self).__name__}(...)"
            )
        return SumOfLosses([cast(nn.Module, self)], [cast(float, factor)])

    __rmul__ = __mul__


class SumOfLosses(Summand, nn.Module):
    r""":math:`\sum_i f_i L_i` of several losses of the same logits and targets.

    Nested sums are flattened. A loss that is passed twice is computed once, with the sum of its factors, so that its
    running statistics are updated once per batch.

    Args:
        losses: the losses, each with its own scalar reduction.
        factors: one per loss; None means 1 for each.

    >>> from equipoise import CrossEntropyLoss, DiceLoss
    >>> both = CrossEntropyLoss() + 0.5 * DiceLoss()
    >>> both(torch.zeros(1, 2), torch.tensor([0]))  # log 2 + 0.5 / 3
    tensor(0.8598)
    """

    losses: nn.ModuleList
    factors: tuple[float, ...]

    def __init__(self, losses: Sequence[nn.Module], factors: Sequence[float] | None = None) -> None:
        super().__init__()
        factors = [1.0] * len(losses) if factors is None else list(factors)
        if not losses or len(losses) != len(factors):
            raise ValueError(
                f"losses and factors must have the same length, at least 1, got {len(losses)} and {len(factors)}; "
                "pass one factor per loss"
            )
        terms: dict[nn.Module, float] = {}
        for loss, given in zip(losses, factors, strict=True):
            factor = check_number("factor", given, low=0.0, open_low=True)
            inner = zip(loss.losses, loss.factors, strict=True) if isinstance(loss, SumOfLosses) else [(loss, 1.0)]
            for part, inner_factor in inner:
                terms[part] = terms.get(part, 0.0) + factor * inner_factor
        self.losses, self.factors = nn.ModuleList(terms), tuple(terms.values())

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The weighted sum, a scalar."""
        values = [factor * loss(logits, targets) for factor, loss in zip(self.factors, self.losses, strict=True)]
        for value, loss in zip(values, self.losses, strict=True):
            if value.numel() != 1:
                raise ValueError(
                    f"losses in a sum must return a scalar, got shape {tuple(value.shape)} from "
                    f"{type(loss).__name__}; give it reduction='mean'"
                )
        return torch.stack(values).sum()

    def set_epoch(self, epoch: float) -> None:
        """Move the schedules of all losses to ``epoch``, counted from 0."""
        for loss in self.losses:
            cast(Any, loss).set_epoch(epoch)

    def set_progress(self, fraction: float) -> None:
        """Move the schedules of all losses to a fraction of the training in [0, 1]."""
        for loss in self.losses:
            cast(Any, loss).set_progress(fraction)

    def extra_repr(self) -> str:
        """Factors for ``repr``."""
        return f"factors={self.factors}"


def _sum_of(one: object, other: object) -> SumOfLosses:
    for term in (one, other):
        if not isinstance(term, Summand):
            raise TypeError(
                f"a loss can be added to a loss of equipoise, got {type(term).__name__}; for anything else add the "
                "values that the losses return"
            )
    return SumOfLosses([cast(nn.Module, one), cast(nn.Module, other)])


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
