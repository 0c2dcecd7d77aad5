"""Types of the keyword arguments that the losses have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from equipoise.losses.class_weights import Weight
from equipoise.schedules import Number

__all__ = [
    "BinaryCrossEntropyOptions",
    "CrossEntropyOptions",
    "CyclicalOptions",
    "SigmoidOptions",
    "SoftmaxOptions",
]


class _Weighted(TypedDict, total=False):
    weight: Weight | Sequence[Weight] | None


class _Timed(TypedDict, total=False):
    epochs: int | None


class _Common(TypedDict, total=False):
    reduction: str
    sync: bool
    validate: bool


class _Rows(_Common, total=False):
    label_smoothing: Number
    ignore_index: int


class SoftmaxOptions(_Rows, _Weighted, _Timed, total=False):
    """Keyword arguments that every softmax loss takes."""


class SigmoidOptions(_Common, _Weighted, _Timed, total=False):
    """Keyword arguments that every sigmoid loss takes."""

    ignore_value: float
    unknown_weight: float


class CrossEntropyOptions(_Rows, _Timed, total=False):
    """Keyword arguments of ``CrossEntropyLoss``, whose ``weight`` is positional."""


class CyclicalOptions(_Rows, _Weighted, total=False):
    """Keyword arguments of the cyclical losses, whose ``epochs`` is positional."""


class BinaryCrossEntropyOptions(_Common, _Timed, total=False):
    """Keyword arguments of ``BinaryCrossEntropyLoss``, whose ``weight`` is positional."""

    ignore_value: float
    unknown_weight: float
