"""Adjustments of the logits before the softmax or sigmoid, usually derived from the class frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from equipoise._checks import check_class_vector, check_counts, check_number
from equipoise.schedules import Moment, Number, Schedule

__all__ = ["Adjustment", "NegativeTolerance", "logit_adjustment", "margin_adjustment"]


@dataclass(frozen=True)
class Adjustment:
    r"""Softmax link: :math:`z' = \text{scale}\,(z + \tau\, a - t\, \Delta)`.

    Args:
        offset: a, one number per class, added to the logits of every row.
        tau: strength of the offset.
        margin: Delta divided by ``max_margin``, one number per class; subtracted from the logit of the true class.
        max_margin: the largest margin.
        scale: factor on the adjusted logits, above 0.
        called: name of the argument that offset and margin were derived from, for error messages.
    """

    offset: tuple[float, ...] = ()
    tau: Number = 1.0
    margin: tuple[float, ...] = ()
    max_margin: Number = 0.5
    scale: Number = 1.0
    called: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("offset", "margin"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        self.values(Moment())

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """Hyper-parameters by name at this moment; components that are switched off are omitted."""
        values: dict[str, tuple[float, ...]] = {}
        if self.offset:
            tau = check_number("tau", moment.value(self.tau))
            values["offset"] = tuple(tau * value for value in self.offset)
        if self.margin:
            max_margin = check_number("max_margin", moment.value(self.max_margin), low=0.0)
            values["true_margin"] = tuple(max_margin * value for value in self.margin)
        scale = check_number("scale", moment.value(self.scale), low=0.0, open_low=True)
        if isinstance(self.scale, Schedule) or scale != 1.0:
            values["scale"] = (scale,)
        return values


@dataclass(frozen=True)
class NegativeTolerance:
    """Sigmoid link: a bias for each label, and negatives with scaled logits and a loss divided by the scale.

    Negatives far below zero then saturate sooner, so that easy negatives stop pulling (distribution-balanced loss).
    """

    offset: tuple[float, ...] = ()
    neg_scale: Number = 1.0
    called: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", _numbers("offset", self.offset))
        self.values(Moment())

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """Hyper-parameters by name at this moment; components that are switched off are omitted."""
        values: dict[str, tuple[float, ...]] = {"offset": self.offset} if self.offset else {}
        neg_scale = check_number("neg_scale", moment.value(self.neg_scale), low=0.0, open_low=True)
        if isinstance(self.neg_scale, Schedule) or neg_scale != 1.0:
            values["neg_scale"] = (neg_scale,)
        return values


def _numbers(name: str, given: Sequence[float] | Tensor) -> tuple[float, ...]:
    """Numbers as a tuple, one per class; an empty tuple stays empty."""
    absent = isinstance(given, (tuple, list)) and not given
    return () if absent else check_class_vector(name, given, signed=True)


def logit_adjustment(counts: Sequence[float] | Tensor, tau: Number = 1.0) -> Adjustment:
    r""":math:`a_c = \tau \log \pi_c` with the prior :math:`\pi_c = \max(n_c, 1) / \sum_j \max(n_j, 1)`."""
    floored = [max(count, 1.0) for count in check_counts("counts", counts)]
    total = math.fsum(floored)
    return Adjustment(offset=tuple(math.log(count / total) for count in floored), tau=tau, called="counts")


def margin_adjustment(counts: Sequence[float] | Tensor, max_margin: Number = 0.5, scale: Number = 30.0) -> Adjustment:
    r"""LDAM: :math:`\Delta_c \propto \max(n_c, 1)^{-1/4}`, the largest being ``max_margin``."""
    margins = [max(count, 1.0) ** -0.25 for count in check_counts("counts", counts)]
    shape = tuple(value / max(margins) for value in margins)
    return Adjustment(margin=shape, max_margin=max_margin, scale=scale, called="counts")
