"""Minimising the likelihood of scaled logits: the search shared by vector scaling and Dirichlet calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.inputs import LEAST, SingleRows
from equipoise.calibration.temperature import BOUNDS, slope_by_nll

__all__: list[str] = []


class Minimum(NamedTuple):
    """Result of a search."""

    parameters: Tensor
    converged: bool
    note: str


def minimise(
    objective: Callable[[Tensor], tuple[float, Tensor]], start: Tensor, *, tolerance: float = 1e-13
) -> Minimum:
    """Minimise a smooth convex function, which returns its value and gradient in float64, by L-BFGS."""
    from scipy.optimize import minimize  # here, to keep importing equipoise fast

    def value_and_gradient(flat: object) -> tuple[float, object]:
        value, gradient = objective(torch.as_tensor(flat).view(start.shape).to(start.device))
        return value, gradient.reshape(-1).cpu().numpy()

    options = {"maxiter": 2000, "maxfun": 4000, "maxcor": 20, "ftol": tolerance, "gtol": 1e-8}
    minimum = minimize(
        value_and_gradient, start.reshape(-1).cpu().numpy(), jac=True, method="L-BFGS-B", options=options
    )
    # the line search may stop at rounding level; check the gradient instead
    converged = bool(minimum.success) or float(abs(minimum.jac).max()) < 1e-5
    note = "" if converged else f"the search stopped before the optimum ({minimum.message})"
    return Minimum(torch.as_tensor(minimum.x).view(start.shape).to(start.device), converged, note)


class Standard(NamedTuple):
    r"""Rows at the common temperature, and the same in standard units: :math:`x` and :math:`(x - m) / s`.

    Fits search for a deviation from x that is linear in the standard units: its parameters have similar magnitudes for
    any scale of the logits, and 0 is the common temperature. A masked class is -inf in x, and in the units a
    probability of 1e-12.
    """

    scaled: Tensor  # (R, C)
    units: Tensor  # (R, C)
    mean: Tensor  # (C,)
    deviation: Tensor  # (C,)
    slope: float


def standardise(rows: SingleRows) -> Standard:
    """Scale by 1/T of the temperature fit (1 without an optimum) and take each class's column to mean 0, sd 1."""
    fitted = slope_by_nll(rows, *BOUNDS)
    slope = 1.0 / fitted.temperature if fitted.inside else 1.0
    scaled = rows.logits * slope
    units = scaled.masked_fill(scaled == -torch.inf, math.log(LEAST) * slope)
    mean, deviation = units.mean(0), units.std(0, correction=0)
    deviation = torch.where(deviation > 1e-12, deviation, 1.0)
    return Standard(scaled, (units - mean) / deviation, mean, deviation, slope)


def residual(scaled: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Summed negative log-likelihood and its gradient ``softmax - onehot`` with respect to the scaled logits."""
    log_p = scaled.log_softmax(1)
    at = labels[:, None]
    value = -float(log_p.gather(1, at).sum())
    gradient = log_p.exp_()
    gradient.scatter_add_(1, at, torch.full_like(at, -1.0, dtype=gradient.dtype))
    return value, gradient
