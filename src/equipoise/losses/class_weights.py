"""Checks of the parts of a loss; class weights, split into fixed ones and those that follow the batch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from numbers import Real
from typing import TypeAlias

from torch import Tensor

from equipoise.losses.base import Scalar
from equipoise.schedules import Schedule
from equipoise.weights.deferred import ClassWeights, Deferred
from equipoise.weights.recall import PrecisionWeights, RecallWeights

__all__ = ["Weight", "check_part", "split_weights"]

BatchWeights: TypeAlias = RecallWeights | PrecisionWeights
FixedWeights: TypeAlias = ClassWeights | Deferred | Scalar
Weight: TypeAlias = Tensor | Sequence[float] | FixedWeights | BatchWeights
"""Class weights: numbers, a part that holds them, or a module that derives them from the batch."""


def check_part(name: str, part: object, kind: type, made_by: str) -> None:
    """Raise unless a part of a loss is None or an instance of ``kind``."""
    if part is not None and not isinstance(part, kind):
        raise TypeError(f"{name} must be {made_by}, got {_came(part)}; omit it for none")


def _came(part: object) -> str:
    """Description of the wrong argument, for the message."""
    if isinstance(part, type) or inspect.isroutine(part):
        return f"{part.__name__} itself instead of {part.__name__}(...)"
    return repr(part) if isinstance(part, (bool, int, float, str)) else f"an object of type {type(part).__name__}"


def split_weights(weight: Weight | Sequence[Weight] | None) -> tuple[list[FixedWeights], list[BatchWeights]]:
    """Split weights into fixed ones and those derived from the batch."""
    if weight is None:
        return [], []
    several = isinstance(weight, (list, tuple)) and any(not isinstance(item, Real) for item in weight)
    fixed: list[FixedWeights] = []
    batch: list[BatchWeights] = []
    for item in weight if several else [weight]:  # type: ignore[union-attr]
        if isinstance(item, type) or inspect.isroutine(item):
            raise TypeError(f"weight must be numbers or an instance of a weight, got {_came(item)}; call it")
        if isinstance(item, Schedule):
            raise TypeError(
                "weight must be one number per class, Deferred(...) or RecallWeights(...), got the schedule "
                f"{item!r}; weights take no schedule, use Deferred(weight, start=0.8) to start weighting later"
            )
        if isinstance(item, (RecallWeights, PrecisionWeights)):
            batch.append(item)
        else:
            fixed.append(item if isinstance(item, (ClassWeights, Deferred, Scalar)) else ClassWeights(item))  # type: ignore[arg-type]
    return fixed, batch
