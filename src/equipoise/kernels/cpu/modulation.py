r"""The modulations of ``reference.modulation``, in place.

``None`` stands for 1, so that an absent factor needs no computation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.kernels.hyper import Hyper
from equipoise.kernels.reference import modulation
from equipoise.kernels.reference.modulation import LOWEST, above_zero, exp_of, gamma_of_classes, power
from equipoise.kernels.reference.sigmoid import HUGE

__all__ = ["is_moderate", "mix", "other_form", "product", "select", "true_form"]


def true_form(
    log_p: Tensor, p: Tensor, q: Tensor, hyper: Hyper, gamma: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """See ``reference.modulation.true_form``."""
    m = h = None
    if gamma is None and "xi" not in hyper:
        return m, h
    log_p = log_p.clamp(min=LOWEST)
    if "xi" in hyper:
        gamma_hc = hyper["gamma_hc"]
        high = (gamma_hc * p.log1p()).exp()
        high_h = high * (1.0 + gamma_hc * p / (1.0 + p) * log_p)
    if gamma is not None:
        whole = hyper.whole.get("gamma_pos")
        m = power(q, gamma, whole)
        lowered = log_p.mul_(p)  # p log p q^(gamma - 1), which is 0 where q is 0
        if whole is None:
            lowered.mul_(m).mul_(above_zero(q).reciprocal_())
        elif whole > 1:
            lowered.mul_(q if whole == 2 else power(q, gamma, whole - 1))
        h = torch.addcmul(m, lowered, gamma, value=-1)
    return (mix(hyper["xi"], high, m), mix(hyper["xi"], high_h, h)) if "xi" in hyper else (m, h)


def other_form(log_p: Tensor, p: Tensor, hyper: Hyper) -> tuple[Tensor | None, Tensor | None]:
    """See ``reference.modulation.other_form``."""
    gamma = gamma_of_classes(hyper, "gamma_neg", p)
    if gamma is None:
        return None, None
    whole = hyper.whole.get("gamma_neg")
    log_p = log_p.clamp(min=LOWEST)
    m = exp_of(gamma * log_p) if whole is None else power(p, gamma, whole)
    h = log_p.mul_(m).mul_(gamma).add_(m)
    return (mix(hyper["xi"], None, m), mix(hyper["xi"], None, h)) if "xi" in hyper else (m, h)


def mix(xi: Tensor, high: Tensor | None, low: Tensor | None) -> Tensor:
    r""":math:`\xi\,\text{high} + (1 - \xi)\,\text{low}`, in place of ``low``."""
    if low is None:
        return (1.0 - xi) + (xi if high is None else xi * high)
    return low.mul_(1.0 - xi).add_(xi) if high is None else low.lerp_(high, xi)


def is_moderate(z: Tensor) -> bool:
    """Whether all logits are finite and below ``HUGE``, so that a product can replace the slower ``torch.where``."""
    if not z.numel():
        return True
    low, high = z.aminmax()
    return float(low) > -HUGE and float(high) < HUGE  # False for NaN


def select(condition: Tensor, yes: Tensor, no: Tensor, *, moderate: bool = True) -> Tensor:
    """``torch.where``, or an interpolation with weights 0 and 1 if all values are finite, which is exact too."""
    if not moderate:
        return torch.where(condition.bool(), yes, no)
    return torch.lerp(no, yes, condition.to(no.dtype).expand_as(no))


def product(factor: Tensor | None, log_p: Tensor) -> Tensor:
    """``factor * log_p`` with 0 * log 0 = 0: a term of weight 0 adds nothing."""
    if factor is None:
        return log_p
    cost = factor * log_p
    return modulation.product(factor, log_p) if math.isnan(cost.sum().item()) else cost
