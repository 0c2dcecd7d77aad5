r"""Sigmoid link: elements and their slope in closed form.

With :math:`p = \sigma(z)`, :math:`p_m = \max(p - \text{margin}, 0)`:
:math:`L = t\, m_+(p)(-\log p) + (1 - t)\, m_-(p_m)(-\log(1 - p_m))`.

At an infinite logit the loss takes its limit: 0 if the target agrees with the sign of the logit, infinite otherwise.
Slopes are finite. A term of weight 0 adds nothing even there, so a logit of minus infinity masks a negative.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipoise.kernels.hyper import Hyper, accumulation_dtype
from equipoise.kernels.reference.modulation import along_classes, gamma_of_classes, mix, power, true_form
from equipoise.kernels.spec import SigmoidSpec

__all__ = ["HUGE", "LINEAR", "adjusted", "focus_of_negatives", "sigmoid_losses", "sigmoid_slopes", "vanished"]

HUGE = 1e30  # beyond it slopes are constant, and products may overflow
LINEAR = 50.0  # log(1 + exp(z)) rounds to z beyond, in every precision


def sigmoid_losses(
    logits: Tensor, targets: Tensor, element_weight: Tensor | None, values: Tensor, spec: SigmoidSpec
) -> Tensor:
    """Unreduced losses (N, C, d1, ..., dk) in accumulation type."""
    hyper = Hyper(values, spec.layout)
    z, z_neg = adjusted(logits.to(accumulation_dtype(logits)), hyper)
    positive = softplus(-z, threshold=LINEAR) * _positive_forms(z, hyper)[0]
    p_m = _above_margin(z_neg.sigmoid(), hyper)
    negative = _negative_cost(z_neg, p_m, hyper) * _negative_factor(p_m, hyper) / hyper.get("neg_scale", 1.0)
    positive, negative = _weighted(positive, negative, hyper)
    t = targets.to(positive.dtype)
    both = torch.where(t == 1, positive, torch.where(t == 0, negative, t * positive + (1.0 - t) * negative))
    return _counted(both, targets, element_weight, hyper, spec.ignore_value)


def sigmoid_slopes(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    values: Tensor,
    spec: SigmoidSpec,
) -> Tensor:
    """Derivative of every element with respect to its logit; for negatives equation 8 of Ridnik et al. 2021."""
    hyper = Hyper(values, spec.layout)
    z, z_neg = adjusted(logits.to(accumulation_dtype(logits)).clamp(-HUGE, HUGE), hyper)  # slopes are constant beyond
    m, h = _positive_forms(z, hyper)
    positive = -(-z).sigmoid() * (m if spec.detach_focus else h)
    positive, negative = _weighted(positive, _negative_slope(z_neg, hyper, spec.detach_focus), hyper)
    both = torch.lerp(negative, positive, targets.to(positive.dtype))
    return _counted(both, targets, element_weight, hyper, spec.ignore_value)


def adjusted(z: Tensor, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Logits of the positive and of the negative term."""
    if "offset" in hyper:
        z = z + along_classes(hyper["offset"], z)
    return z, z * hyper["neg_scale"] if "neg_scale" in hyper else z


def _positive_forms(z: Tensor, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Factors of the loss and of its slope."""
    p, q, log_p = z.sigmoid(), (-z).sigmoid(), -softplus(-z, threshold=LINEAR)
    return true_form(log_p, p, q, hyper, gamma_of_classes(hyper, "gamma_pos", p))


def _above_margin(p: Tensor, hyper: Hyper) -> Tensor:
    """Shifted probability p_m."""
    return (p - hyper["margin"]).clamp(min=0.0) if "margin" in hyper else p


def _negative_cost(z: Tensor, p_m: Tensor, hyper: Hyper) -> Tensor:
    """-log(1 - p_m)."""
    if "margin" not in hyper:
        return softplus(z, threshold=LINEAR)
    if "thin_margin" not in hyper:
        return -(-p_m).log1p()
    # precise at both ends; with a margin of 0, log(1 - p) is linear in z where 1 - p underflows
    rest = (-z).sigmoid() + hyper["margin"]
    underflows = rest <= vanished(rest)
    far = torch.where(underflows, -z, torch.where(underflows, 1.0, rest).log())
    return -torch.where(p_m <= 0.5, (-p_m.clamp(max=0.5)).log1p(), far)


def focus_of_negatives(p_m: Tensor, hyper: Hyper) -> tuple[Tensor | None, Tensor | None]:
    """Exponent gamma of the negatives and p_m ** gamma; a focal loss uses the exponent of the positives."""
    name = "gamma_neg" if "gamma_neg" in hyper else "gamma_pos"
    gamma = gamma_of_classes(hyper, name, 1.0 - p_m if "confidence_bounds" in hyper else p_m)
    return gamma, None if gamma is None else power(p_m, gamma, hyper.whole.get(name))


def _negative_factor(p_m: Tensor, hyper: Hyper) -> Tensor | float:
    r""":math:`m_- = \xi + (1 - \xi) p_m^{g_{neg}}`."""
    _, focus = focus_of_negatives(p_m, hyper)
    if focus is None:
        return 1.0
    return mix(hyper["xi"], 1.0, focus) if "xi" in hyper else focus


def _negative_slope(z: Tensor, hyper: Hyper, detach_focus: bool) -> Tensor:
    r""":math:`(m_- / (1 - p_m) - m_-' \log(1 - p_m))\, dp_m/dz`, with dp_m/dz = p q above the margin, q = 1 - p."""
    p, q = z.sigmoid(), (-z).sigmoid()
    p_m = _above_margin(p, hyper)
    if "margin" not in hyper:
        direct, reach = p, q  # reach: p q / p_m with p_m = p
    else:
        above = p_m.sign()
        if "thin_margin" in hyper:  # (1 - p) / (1 - p_m) is 1 where both underflow
            rest = q + hyper["margin"]
            underflows = (rest <= vanished(rest)).to(q.dtype)
            direct = (q + underflows) / (rest + underflows) * p * above
        else:
            direct = p * q * above / (1.0 - p_m)
        reach = p * q * above / p_m.clamp(min=vanished(p_m))
    direct = direct * _negative_factor(p_m, hyper)
    gamma, focus = focus_of_negatives(p_m, hyper)
    if gamma is None or focus is None or detach_focus:
        return direct
    through = _negative_cost(z, p_m, hyper) * focus * gamma * reach  # m_-' = (1 - xi) gamma p_m^gamma / p_m
    return direct + (through * (1.0 - hyper["xi"]) if "xi" in hyper else through)


def vanished(rest: Tensor) -> float:
    """Threshold below which the derivative of a quotient by 1 - p_m, or by p_m, would overflow."""
    return math.sqrt(torch.finfo(rest.dtype).tiny)


def _weighted(positive: Tensor, negative: Tensor, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Both terms with ``pos_weight`` and ``alpha``."""
    if "pos_weight" in hyper:
        positive = positive * along_classes(hyper["pos_weight"], positive)
    if "alpha" in hyper:
        positive, negative = positive * hyper["alpha"], negative * (1.0 - hyper["alpha"])
    return positive, negative


def _counted(
    elements: Tensor, targets: Tensor, element_weight: Tensor | None, hyper: Hyper, ignore_value: float | None
) -> Tensor:
    """Elements times the weights of labels and elements, 0 where the target is ``ignore_value``."""
    if "weight" in hyper:
        elements = elements * along_classes(hyper["weight"], elements)
    if element_weight is not None:
        elements = elements * element_weight.to(elements.dtype)
    return elements if ignore_value is None else elements.masked_fill(targets == ignore_value, 0.0)
