r"""Modulations: how strongly a term counts, as a function of the probability it already has.

.. math::
    m_{true}(p) = \xi (1 + p)^{g_{hc}} + (1 - \xi)(1 - p)^{g_{pos}} \qquad
    m_{other}(p) = \xi + (1 - \xi) p^{g_{neg}}

One value class describes them all; ``focal``, ``asymmetric`` and ``cyclical`` are its usual forms.
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
    """Tensors and arrays as Python's numbers in lists, without dimensions as one number; all else as it is."""
    if type(numbers) is float:  # first: the compiler cannot be asked about a float that changes
        return numbers
    if isinstance(numbers, Tensor):
        return numbers.detach().double().cpu().tolist()
    return numbers.tolist() if hasattr(numbers, "tolist") else numbers


@dataclass(frozen=True)
class ByConfidence:
    """An exponent for each range of the probability of a term: ``(bound, gamma)`` pairs, gamma below each bound.

    FLSD-53 (Mukhoti et al. 2020) is ``ByConfidence(((0.2, 5.0), (1.0, 3.0)))``: 5 for p < 0.2, 3 from there
    on. No gradient flows through the choice.
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
"""A focusing exponent: a number, a schedule, one number per class, or one per range of confidence."""


@dataclass(frozen=True)
class Modulation:
    """The family above. Frozen: it prints, compares, and a kernel can recognise it.

    Args:
        gamma_pos: exponent of ``1 - p`` for the true class.
        gamma_neg: exponent of ``p`` for the other classes (softmax: those smoothing gives mass to; sigmoid: negatives).
            None: they are focused like the true class, which is what a focal loss does.
        xi: weight of the high-confidence term.
        gamma_hc: exponent of ``1 + p`` in that term.
        called: how a named loss calls both exponents, for messages.
    """

    gamma_pos: Number | ByConfidence | tuple[float, ...] = 0.0
    gamma_neg: Number | tuple[float, ...] | None = None
    xi: Number = 0.0
    gamma_hc: Number = 0.0
    called: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("gamma_pos", "gamma_neg"):
            gamma = _listed(getattr(self, name))
            if isinstance(gamma, Sequence) and not isinstance(gamma, str):  # what is no number is refused below
                gamma = tuple(float(value) if hasattr(value, "__float__") else value for value in gamma)
            object.__setattr__(self, name, gamma)
        self.values(Moment())

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """Hyper-parameters of this moment by name; a part that is plainly absent has no name."""
        found: dict[str, tuple[float, ...]] = {}
        xi = check_number("xi", moment.value(self.xi), low=0.0, high=1.0)
        if isinstance(self.xi, Schedule) or xi != 0.0:
            found["xi"] = (xi,)
            found["gamma_hc"] = (check_number("gamma_hc", moment.value(self.gamma_hc), low=0.0),)
        if isinstance(self.gamma_pos, ByConfidence):
            bounds, gammas = zip(*self.gamma_pos.table, strict=True)
            found["confidence_bounds"] = tuple(bounds)
            found["confidence_gammas"] = tuple(check_number("gamma", moment.value(gamma), low=0.0) for gamma in gammas)
        elif isinstance(self.gamma_pos, Schedule) or self.gamma_pos != 0.0:
            found["gamma_pos"] = _numbers(self.called or "gamma_pos", self.gamma_pos, moment)
        if self.gamma_neg is not None:
            found["gamma_neg"] = _numbers(self.called or "gamma_neg", self.gamma_neg, moment)
        return found


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
