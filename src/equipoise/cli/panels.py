"""A figure as data: what ``figures`` computes and ``draw`` draws."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Curve", "Figure", "Mark", "Panel"]


@dataclass(frozen=True)
class Curve:
    """One line; NaN in ``y`` breaks it.

    A ``reference`` is what the others are compared with, a ``broad`` curve runs along others.
    """

    label: str
    x: Tensor
    y: Tensor
    reference: bool = False
    broad: bool = False


@dataclass(frozen=True)
class Mark:
    """A point that the paper speaks of, on the curve of that label."""

    curve: str
    x: float
    y: float


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()
    top: float | None = None  # upper end of y where curves run away
    log: bool = False


@dataclass(frozen=True)
class Figure:
    """All panels of a loss; ``ordered``: the curves are steps of one quantity."""

    title: str
    subtitle: str
    panels: tuple[Panel, ...]
    ordered: bool = False
