r"""Temperature scaling: :math:`z' = z / T` (Guo et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise._checks import check_choice, check_number
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce
from equipoise.calibration.inputs import SingleRows, blocks, join_notes, single_rows

__all__ = ["Temperature", "fit_temperature"]

BOUNDS = (0.01, 100.0)
BINS = 15
GRID = tuple(step / 10 for step in range(1, 101))


@dataclass(frozen=True, repr=False)
class Temperature(Fitted):
    r""":math:`z' = z / T`. Keeps the order of the classes in a row, and so the predicted class and the accuracy.

    (Two logits that differ by less than the resolution of their dtype may become equal.)

    >>> Temperature(2.0)(torch.tensor([[2.0, -1.0]]))
    tensor([[ 1.0000, -0.5000]])
    """

    kind: ClassVar[str] = "temperature"

    temperature: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(temperature=check_number("temperature", self.temperature, low=0.0, open_low=True))

    def _apply(self, logits: Tensor) -> Tensor:
        return logits / self.temperature

    def describe(self) -> str:
        """One-line description."""
        word = "less" if self.temperature > 1 else "more"
        return f"temperature {self.temperature:.4g}: {word} confident, same predictions{self._origin()}"


@checks_keywords
def fit_temperature(
    logits: Tensor,
    targets: Tensor,
    *,
    by: Literal["nll", "ece"] = "nll",
    bounds: tuple[float, float] = BOUNDS,
    ignore_index: int = -100,
) -> Temperature:
    r"""Fit a temperature on held-out data. Keeps the predicted class.

    ``by="nll"`` minimises the mean negative log-likelihood, which is convex in 1/T: the root of its derivative is
    searched on log T inside ``bounds``. If the optimum is at a bound (all predictions correct, or worse than chance),
    the bound is returned with ``converged=False`` and a note. ``by="ece"`` returns the first of T = 0.1, 0.2, ..., 10
    with the lowest ECE, 15 bins of equal width, right-closed (Mukhoti et al. 2020).

    Shape: ``logits`` (N, C, d1, ..., dk), ``targets`` (N, d1, ..., dk) class indices.

    >>> logits = torch.tensor([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    >>> fitted = fit_temperature(logits, torch.tensor([0, 0, 1, 1]))
    >>> round(fitted.temperature, 4)  # right in three of four rows: 3 / T = log 3
    2.7307
    >>> fitted(logits).softmax(1)[0]
    tensor([0.7500, 0.2500])
    """
    check_choice("by", by, ("nll", "ece"))
    low, high = check_bounds(bounds)
    rows = single_rows(logits, targets, ignore_index, likelihood=by == "nll")
    fitted = slope_by_nll(rows, low, high) if by == "nll" else _best_on_grid(rows)
    few = "" if len(rows.labels) >= 10 else f"{len(rows.labels)} rows are few"
    return announce(
        Temperature(
            fitted.temperature,
            num_classes=rows.logits.shape[1],
            samples=len(rows.labels),
            converged=fitted.inside,
            note=join_notes(fitted.note, few, rows.note),
        )
    )


class Found(NamedTuple):
    """A temperature, and whether the optimum is inside the search range."""

    temperature: float
    inside: bool
    note: str


def slope_by_nll(rows: SingleRows, low: float, high: float, *, anchor: float = 1.0, shrinkage: float = 0.0) -> Found:
    r"""T that minimises :math:`\sum_i \text{NLL}_i(1/T) + \frac{\lambda}{2} (T_0 / T - 1)^2`, T_0 the anchor."""
    margins = rows.logits - rows.logits.gather(1, rows.labels[:, None])
    if not bool((margins.isfinite() & (margins != 0)).any()) and shrinkage == 0.0:
        return Found(1.0, False, "all logits of a row are equal, so the temperature has no effect")
    margins.clamp_(min=torch.finfo(margins.dtype).min)  # for a masked class, where 0 times -inf would be NaN

    def pull(slope: float) -> float:
        """Derivative of the objective with respect to 1/T, which grows with 1/T."""
        total = sum(float(((margins[part] * slope).softmax(1) * margins[part]).sum()) for part in blocks(margins))
        return total + shrinkage * anchor * (anchor * slope - 1.0)

    return bounded_root(pull, low, high)


def bounded_root(pull: Callable[[float], float], low: float, high: float) -> Found:
    """T in [low, high] where ``pull(1/T)``, an increasing function, is 0; a bound if it has no zero inside."""
    from scipy.optimize import brentq  # here, to keep importing equipoise fast

    if pull(1.0 / high) >= 0.0:
        why = "the predictions are no better than chance, or the logits are very large"
        return Found(high, False, f"the optimum is at or above the bound {high:g}: {why}")
    if pull(1.0 / low) <= 0.0:
        return Found(low, False, f"the optimum is at or below the bound {low:g}: the data are perfectly separated")
    log_t = brentq(lambda s: pull(math.exp(-s)), math.log(low), math.log(high), xtol=1e-13, maxiter=200)
    return Found(math.exp(log_t), True, "")


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds of a temperature; raise unless 0 < low < high."""
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise TypeError(f"bounds must be a pair (low, high), got {bounds!r}; pass e.g. (0.01, 100.0)")
    low = check_number("bounds[0]", bounds[0], low=0.0, open_low=True)
    return low, check_number("bounds[1]", bounds[1], low=low, open_low=True)


def _best_on_grid(rows: SingleRows) -> Found:
    from equipoise.metrics.binning import bin_sums, binned_error  # here, because metrics load torchmetrics

    top, chosen = rows.logits.max(1, keepdim=True)
    gaps, right = rows.logits - top, chosen.squeeze(1) == rows.labels
    errors = []
    for temperature in GRID:
        confidence = torch.cat([1.0 / (gaps[part] / temperature).exp().sum(1) for part in blocks(gaps)])
        errors.append(float(binned_error(bin_sums(confidence, right, BINS))))
    best = errors.index(min(errors))
    if max(errors) == min(errors):
        return Found(GRID[best], False, "the calibration error is the same for every temperature")
    at_end = best in (0, len(GRID) - 1)
    return Found(GRID[best], not at_end, "the optimum is at the end of the grid 0.1 ... 10" if at_end else "")
