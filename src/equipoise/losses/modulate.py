r"""Modulations: factors on the terms of a loss, as a function of their predicted probability.

.. math::
    m_{true}(p) = \xi (1 + p)^{g_{hc}} + (1 - \xi)(1 - p)^{g_{pos}} \qquad
    m_{other}(p) = \xi + (1 - \xi) p^{g_{neg}}

``Modulation`` describes the whole family; ``focal``, ``asymmetric`` and ``cyclical`` are its usual members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from torch import Tensor

from equipoise._checks import check_number
from equipoise.schedules import Moment, Number, Schedule

__all__ = ["ByConfidence", "Gamma", "Modulation", "asymmetric", "cyclical", "focal"]


def _listed(numbers: Any) -> Any:  # noqa: ANN401
    """Tensors and arrays as lists of Python numbers, or one number without dimensions; anything else unchanged."""
    if type(numbers) is float:  # first: torch.compile cannot trace the lookups below for a float that changes
        return numbers
    if isinstance(numbers, Tensor):
        return numbers.detach().double().cpu().tolist()
    return numbers.tolist() if hasattr(numbers, "tolist") else numbers


@dataclass(frozen=True)
class ByConfidence:
    """Piecewise constant exponent: ``(bound, gamma)`` pairs, where gamma applies to probabilities below the bound.

    FLSD-53 (Mukhoti et al. 2020) is ``ByConfidence(((0.2, 5.0), (1.0, 3.0)))``: gamma is 5 for p < 0.2
    and 3 otherwise. No gradient flows through the choice of the range.
    """

    table: Sequence[tuple[float, Number]]

    def __post_init__(self) -> None:
        try:
            pairs = [(bound, gamma) for bound, gamma in _listed(self.table)]
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"table must hold (bound, gamma) pairs, got {self.table!r}; FLSD-53 is ((0.2, 5.0), (1.0, 3.0))"
            ) from error
        table = tuple((check_number("table bound", bound, low=0.0, high=1.0), gamma) for bound, gamma in pairs)
        bounds = [bound for bound, _ in table]
        if not bounds or bounds[-1] != 1.0 or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(
                f"table must hold (bound, gamma) pairs with increasing bounds that end at 1.0, got bounds {bounds}; "
                "FLSD-53 is ((0.2, 5.0), (1.0, 3.0))"
            )
        object.__setattr__(self, "table", table)


Gamma: TypeAlias = Number | ByConfidence | Sequence[float] | Tensor
"""A focusing exponent: a number, a schedule, one number per class, or one per probability range."""


@dataclass(frozen=True)
class Modulation:
    """The family above, as a frozen dataclass that can be printed and compared.

    Args:
        gamma_pos: exponent of ``1 - p`` for the true class.
        gamma_neg: exponent of ``p`` for the other classes (softmax: terms of label smoothing; sigmoid: negatives).
            None uses ``gamma_pos`` for all classes, as the focal loss does.
        xi: weight of the high-confidence term.
        gamma_hc: exponent of ``1 + p`` in that term.
        called: name of the argument of both exponents in a named loss, for error messages.
    """

    gamma_pos: Number | ByConfidence | tuple[float, ...] = 0.0
    gamma_neg: Number | tuple[float, ...] | None = None
    xi: Number = 0.0
    gamma_hc: Number = 0.0
    called: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("gamma_pos", "gamma_neg"):
            gamma = _listed(getattr(self, name))
            if isinstance(gamma, Sequence) and not isinstance(gamma, str):  # anything else is rejected below
                gamma = tuple(float(value) if hasattr(value, "__float__") else value for value in gamma)
            object.__setattr__(self, name, gamma)
        self.values(Moment())

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """Hyper-parameters by name at this moment; components that are switched off are omitted."""
        values: dict[str, tuple[float, ...]] = {}
        xi = check_number("xi", moment.value(self.xi), low=0.0, high=1.0)
        if isinstance(self.xi, Schedule) or xi != 0.0:
            values["xi"] = (xi,)
            values["gamma_hc"] = (check_number("gamma_hc", moment.value(self.gamma_hc), low=0.0),)
        if isinstance(self.gamma_pos, ByConfidence):
            bounds, gammas = zip(*self.gamma_pos.table, strict=True)
            values["confidence_bounds"] = tuple(bounds)
            values["confidence_gammas"] = tuple(check_number("gamma", moment.value(gamma), low=0.0) for gamma in gammas)
        elif isinstance(self.gamma_pos, Schedule) or self.gamma_pos != 0.0:
            values["gamma_pos"] = _numbers(self.called or "gamma_pos", self.gamma_pos, moment)
        if self.gamma_neg is not None:
            values["gamma_neg"] = _numbers(self.called or "gamma_neg", self.gamma_neg, moment)
        return values


def _numbers(name: str, gamma: Number | tuple[float, ...], moment: Moment) -> tuple[float, ...]:
    numbers = gamma if isinstance(gamma, tuple) else (moment.value(gamma),)
    return tuple(check_number(name, number, low=0.0) for number in numbers)


def focal(gamma: Gamma = 2.0) -> Modulation:
    r""":math:`m = (1 - p)^\gamma` for every term."""
    return Modulation(gamma_pos=gamma, called="gamma")  # type: ignore[arg-type]  # sequences become tuples


def asymmetric(gamma_pos: Gamma = 0.0, gamma_neg: Gamma = 4.0) -> Modulation:
    r""":math:`(1 - p)^{g_{pos}}` for the true class, :math:`p^{g_{neg}}` for the others."""
    return Modulation(gamma_pos=gamma_pos, gamma_neg=gamma_neg)  # type: ignore[arg-type]


def cyclical(xi: Number, gamma_hc: Number = 3.0, gamma_pos: Gamma = 2.0, gamma_neg: Gamma = 2.0) -> Modulation:
    r""":math:`\xi (1 + p)^{g_{hc}} + (1 - \xi)(1 - p)^{g_{pos}}` for the true class."""
    return Modulation(gamma_pos=gamma_pos, gamma_neg=gamma_neg, xi=xi, gamma_hc=gamma_hc)  # type: ignore[arg-type]
