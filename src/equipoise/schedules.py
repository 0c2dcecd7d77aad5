"""Schedules: pure functions of training progress in [0, 1], accepted instead of numbers.

A loss resolves its schedules when ``set_epoch`` or ``set_progress`` is called, so kernels only receive numbers and
any moment of a training can be reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from equipoise._checks import check_choice, check_number

__all__ = [
    "Constant",
    "Cosine",
    "Cyclical",
    "Join",
    "Linear",
    "Moment",
    "Number",
    "Parabolic",
    "Schedule",
    "Steps",
    "join",
]


class Schedule:
    """A value that depends on progress alone. Subclasses are frozen dataclasses with ``__call__(progress)``."""

    def __call__(self, progress: float) -> float:
        """Value at ``progress`` in [0, 1]."""
        raise TypeError(f"{type(self).__name__} must define __call__(progress); derive a dataclass from Schedule")

    def progress_at(self, epoch: float, epochs: float) -> float:
        """Progress of this schedule in ``epoch``, counted from 0: ``epoch / epochs``."""
        return epoch / epochs


Number: TypeAlias = float | Schedule
"""A number or a schedule."""


@dataclass(frozen=True)
class Constant(Schedule):
    """A constant value.

    >>> Constant(2.0)(0.7)
    2.0
    """

    value: float

    def __post_init__(self) -> None:
        check_number("value", self.value)

    def __call__(self, progress: float) -> float:
        """Value at ``progress``."""
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """A straight line from ``start`` to ``stop``.

    >>> Linear(0.0, 2.0)(0.25)
    0.5
    """

    start: float
    stop: float

    def __post_init__(self) -> None:
        check_number("start", self.start)
        check_number("stop", self.stop)

    def __call__(self, progress: float) -> float:
        """Value at ``progress``."""
        return self.start + (self.stop - self.start) * progress


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine wave from ``start`` to ``stop``: flat at both ends.

    >>> Cosine(1.0, 0.0)(0.5)
    0.5
    """

    start: float
    stop: float

    def __post_init__(self) -> None:
        check_number("start", self.start)
        check_number("stop", self.stop)

    def __call__(self, progress: float) -> float:
        """Value at ``progress``."""
        return self.stop + (self.start - self.stop) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Parabolic(Schedule):
    """``start + (stop - start) * progress^2``: the mixing factor of BBN, which ends at ``stop``.

    >>> Parabolic()(0.5)
    0.75
    """

    start: float = 1.0
    stop: float = 0.0

    def __post_init__(self) -> None:
        check_number("start", self.start)
        check_number("stop", self.stop)

    def __call__(self, progress: float) -> float:
        """Value at ``progress``."""
        return self.start + (self.stop - self.start) * progress**2


@dataclass(frozen=True)
class Steps(Schedule):
    """Piecewise constant: ``values[i]`` until progress reaches ``at[i]``. FLSc-531 has ``at=(100/350, 250/350)``.

    >>> [Steps((5.0, 3.0, 1.0), at=(100 / 350, 250 / 350))(epoch / 350) for epoch in (99, 100, 249, 250)]
    [5.0, 3.0, 3.0, 1.0]
    """

    values: tuple[float, ...]
    at: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(check_number("values", value) for value in self.values))
        object.__setattr__(self, "at", _check_cuts(self.at, pieces=len(self.values)))

    def __call__(self, progress: float) -> float:
        """Value at ``progress``."""
        return self.values[sum(progress >= cut for cut in self.at)]


@dataclass(frozen=True)
class Cyclical(Schedule):
    r"""The weight :math:`\xi` of the high-confidence term in cyclical losses (Smith 2022, eq. 8): 1 to 0 and back to 1.

    With :math:`x = f \cdot \text{progress}`: :math:`\xi = 1 - x` while :math:`x \le 1`, then
    :math:`(x - 1) / (f - 1)`, restricted to [0, 1]; ``factor=1`` only decreases.

    Args:
        factor: f >= 1; the minimum is at ``1 / f`` of the training.
        end: the epoch with progress 1: ``"last_epoch"`` is epoch E - 1, as published, so that :math:`\xi` ends at 1;
            ``"epochs"`` is epoch E, as in the text.

    >>> [round(Cyclical(factor=4.0)(progress), 3) for progress in (0.0, 0.125, 0.25, 0.625, 1.0)]
    [1.0, 0.5, 0.0, 0.5, 1.0]
    """

    factor: float = 4.0
    end: str = "last_epoch"

    def __post_init__(self) -> None:
        check_number("factor", self.factor, low=1.0)
        check_choice("end", self.end, ("last_epoch", "epochs"))

    def __call__(self, progress: float) -> float:
        """Value at ``progress``."""
        x = self.factor * progress
        xi = 1.0 - x if x <= 1.0 else (x - 1.0) / (self.factor - 1.0) if self.factor > 1.0 else 0.0
        return min(max(xi, 0.0), 1.0)

    def progress_at(self, epoch: float, epochs: float) -> float:
        """``epoch / (epochs - 1)``, or ``epoch / epochs`` for ``end="epochs"``; a single epoch is the start."""
        last = epochs - 1 if self.end == "last_epoch" else epochs
        return epoch / last if last > 0 else 0.0


@dataclass(frozen=True)
class Join(Schedule):
    """Schedules one after the other, each running from its own start to its own end between the cuts ``at``.

    >>> warm_up = Join((Linear(0.0, 2.0), Constant(2.0)), at=(0.1,))
    >>> warm_up(0.05), warm_up(0.5)
    (1.0, 2.0)
    """

    schedules: tuple[Schedule, ...]
    at: tuple[float, ...]

    def __post_init__(self) -> None:
        for schedule in self.schedules:
            if not isinstance(schedule, Schedule):
                raise TypeError(f"schedules must be Schedule objects, got {schedule!r}; wrap numbers in Constant(...)")
        object.__setattr__(self, "schedules", tuple(self.schedules))
        object.__setattr__(self, "at", _check_cuts(self.at, pieces=len(self.schedules)))

    def __call__(self, progress: float) -> float:
        """Value at ``progress``."""
        piece = sum(progress >= cut for cut in self.at)
        start, stop = (0.0, *self.at)[piece], (*self.at, 1.0)[piece]
        return self.schedules[piece]((progress - start) / (stop - start) if stop > start else 1.0)


def join(schedules: Sequence[Schedule], at: Sequence[float]) -> Join:
    """``Join(tuple(schedules), tuple(at))``."""
    return Join(tuple(schedules), tuple(at))


def _check_cuts(cuts: Sequence[float], *, pieces: int) -> tuple[float, ...]:
    checked = tuple(check_number("at", cut) for cut in cuts)
    increasing = all(a < b for a, b in pairwise(checked)) and all(0.0 <= cut <= 1.0 for cut in checked)
    if len(checked) != pieces - 1 or not increasing:
        raise ValueError(
            f"at must hold {pieces - 1} increasing fractions of the training in [0, 1] for {pieces} pieces, got "
            f"{checked}; divide epochs by the number of epochs"
        )
    return checked


@dataclass(frozen=True)
class Moment:
    """Position in a training: the fraction completed, and the epoch if known."""

    progress: float = 0.0
    epoch: float | None = None
    epochs: int | None = None

    def value(self, number: Number) -> float:
        """Resolve a number or schedule."""
        if not isinstance(number, Schedule):
            return number
        if self.epoch is not None and self.epochs is not None:
            return number(min(number.progress_at(self.epoch, self.epochs), 1.0))
        return number(self.progress)
