r"""The modulations: factor m of a term :math:`-m \log p`, and factor h = m + m' p log p of its gradient."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.hyper import Hyper

__all__ = [
    "LOWEST",
    "above_zero",
    "along_classes",
    "exp_of",
    "gamma_of_classes",
    "gamma_of_rows",
    "mix",
    "other_form",
    "power",
    "product",
    "true_form",
]

LOWEST = -1e20  # replaces log 0 where it is multiplied by p = 0
NEAR = 1e-3  # a series replaces the division by q below this


def true_form(log_p: Tensor, p: Tensor, q: Tensor, hyper: Hyper, gamma: Tensor | None) -> tuple[Tensor, Tensor]:
    r""":math:`m = \xi (1 + p)^{g_{hc}} + (1 - \xi) q^{\gamma}` with q = 1 - p, and h, where p log p is 0 for p = 0."""
    m = h = torch.ones_like(p)
    log_p = log_p.clamp(min=LOWEST)
    if gamma is not None:
        whole = hyper.whole.get("gamma_pos")
        m = power(q, gamma, whole)
        h = m - gamma * _lowered(p * log_p, p, q, m, gamma, whole)
    if "xi" in hyper:
        gamma_hc = hyper["gamma_hc"]
        high = (gamma_hc * p.log1p()).exp()
        high_h = high * (1.0 + gamma_hc * p / (1.0 + p) * log_p)
        m, h = mix(hyper["xi"], high, m), mix(hyper["xi"], high_h, h)
    return m, h


def _lowered(p_log_p: Tensor, p: Tensor, q: Tensor, m: Tensor, gamma: Tensor, whole: int | None) -> Tensor:
    """``p log p q^(gamma - 1)``, which is 0 where q is 0."""
    if whole is not None:
        return p_log_p if whole == 1 else p_log_p * power(q, gamma, whole - 1)
    # p log p = -p (q + q^2/2 + q^3/3 + ...), divided by q if q is small: the derivative of the quotient overflows
    series = torch.zeros_like(q)
    for n in range(7, 0, -1):
        series = series * q + 1.0 / n
    return m * torch.where(q < NEAR, -p * series, p_log_p / q.clamp(min=NEAR))


def other_form(log_p: Tensor, p: Tensor, hyper: Hyper) -> tuple[Tensor, Tensor]:
    r""":math:`m = \xi + (1 - \xi) p^{g_{neg}}` and h, of every class."""
    gamma, whole = along_classes(hyper["gamma_neg"], p), hyper.whole.get("gamma_neg")
    log_p = log_p.clamp(min=LOWEST)
    # from log p: -log p is large where p underflows, so a lower bound of p would change the result
    m = exp_of(gamma * log_p) if whole is None else power(p, gamma, whole)
    h = m + gamma * m * log_p  # m' p log p = gamma m log p
    return (mix(hyper["xi"], 1.0, m), mix(hyper["xi"], 1.0, h)) if "xi" in hyper else (m, h)


def power(base: Tensor, gamma: Tensor, whole: int | None) -> Tensor:
    """``base ** gamma`` of a probability with full relative precision, as a new tensor.

    The lower bound keeps the logarithm finite at 0, where gamma = 0 must return 1 and other exponents about 0.
    """
    if whole is None:
        return exp_of(gamma * above_zero(base).log())
    result = base * base if whole > 1 else base.clone()
    return result if whole < 3 else result * (base if whole == 3 else result)


def exp_of(exponent: Tensor) -> Tensor:
    """``exp`` down to about the smallest normal number, 0 below it: denormal numbers are slow on a CPU."""
    return F.threshold(exponent, math.log(torch.finfo(exponent.dtype).tiny) + 1.0, -math.inf).exp()


def above_zero(probability: Tensor) -> Tensor:
    """The probability, but at least the smallest normal number; a new tensor."""
    return probability.clamp(min=torch.finfo(probability.dtype).tiny)


def mix(xi: Tensor, high: Tensor | float, low: Tensor) -> Tensor:
    r""":math:`\xi\,\text{high} + (1 - \xi)\,\text{low}`."""
    return xi * high + (1.0 - xi) * low


def product(factor: Tensor, log_p: Tensor) -> Tensor:
    """``factor * log_p`` with 0 * log 0 = 0: a term of weight 0 adds nothing."""
    return torch.where((factor == 0) & (log_p == -math.inf), 0.0, factor * log_p)


def gamma_of_rows(hyper: Hyper, labels: Tensor, p: Tensor) -> Tensor | None:
    """Exponent of the true class of each row: per confidence interval, per class, or one for all."""
    if "confidence_bounds" in hyper:
        return _by_confidence(hyper, p)
    gamma = hyper.get("gamma_pos")
    return gamma[labels] if gamma is not None and gamma.numel() > 1 else gamma


def gamma_of_classes(hyper: Hyper, name: str, p: Tensor) -> Tensor | None:
    """Exponent ``name`` of every class, broadcastable to (N, C, d1, ..., dk); p is the confidence."""
    if name == "gamma_pos" and "confidence_bounds" in hyper:
        return _by_confidence(hyper, p)
    gamma = hyper.get(name)
    return None if gamma is None else along_classes(gamma, p)


def _by_confidence(hyper: Hyper, p: Tensor) -> Tensor:
    """The exponent of the first bound above p; the last one at p = 1. No gradient flows through the choice."""
    return hyper["confidence_gammas"][torch.bucketize(p.detach(), hyper["confidence_bounds"][:-1], right=True)]


def along_classes(vector: Tensor, like: Tensor) -> Tensor:
    """View (C,) as (C, 1, ..., 1) so that it broadcasts along dimension 1 of (N, C, d1, ..., dk)."""
    return vector.view(-1, *(1 for _ in range(like.ndim - 2))) if vector.numel() > 1 else vector
