"""Sigmoid link on the CPU: the closed forms of ``reference.sigmoid``, in blocks that fit into the cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipoise.kernels.cpu.blocks import in_blocks
from equipoise.kernels.cpu.modulation import is_moderate, mix, select, true_form
from equipoise.kernels.hyper import Hyper, accumulation_dtype
from equipoise.kernels.reference.modulation import above_zero, along_classes, gamma_of_classes, power
from equipoise.kernels.reference.sigmoid import HUGE, LINEAR, adjusted, focus_of_negatives, vanished
from equipoise.kernels.spec import SigmoidSpec

__all__ = ["sigmoid_losses", "sigmoid_slopes"]


def sigmoid_losses(
    logits: Tensor, targets: Tensor, element_weight: Tensor | None, values: Tensor, spec: SigmoidSpec
) -> Tensor:
    """See ``reference.sigmoid.sigmoid_losses``."""
    dtype, hyper = accumulation_dtype(logits), Hyper(values, spec.layout)

    def block(logits: Tensor, targets: Tensor, *element_weight: Tensor) -> Tensor:
        z, z_neg = adjusted(logits.to(dtype), hyper)
        moderate = is_moderate(z)
        positive = softplus(-z, threshold=LINEAR)
        m, _ = _positive_forms(z, positive, hyper)
        positive = positive if m is None else positive.mul_(m)
        negatives = _negative_loss(z_neg, hyper, moderate)
        if "neg_scale" in hyper:
            negatives = negatives / hyper["neg_scale"]
        return _joined(positive, negatives, targets, element_weight, hyper, spec.ignore_value, moderate)

    more = () if element_weight is None else (element_weight,)
    return in_blocks(block, logits, targets, dtype, *more)


def sigmoid_slopes(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    values: Tensor,
    spec: SigmoidSpec,
    factor: Tensor,
) -> Tensor:
    """``reference.sigmoid.sigmoid_slopes`` times ``factor``."""
    dtype, hyper = accumulation_dtype(logits), Hyper(values, spec.layout)

    def block(logits: Tensor, targets: Tensor, factor: Tensor, *element_weight: Tensor) -> Tensor:
        z, z_neg = adjusted(logits.to(dtype).clamp(-HUGE, HUGE), hyper)  # slopes are constant beyond
        q = (-z).sigmoid_()
        negatives = _negative_slope(z_neg, q if z is z_neg else (-z_neg).sigmoid_(), hyper, spec.detach_focus)
        m, h = _positive_forms(z, None, hyper)
        focus = m if spec.detach_focus else h
        positive = q.neg_() if focus is None else q.neg_().mul_(focus)
        return _joined(positive, negatives, targets, element_weight, hyper, spec.ignore_value, True).mul_(factor)

    more = () if element_weight is None else (element_weight,)
    return in_blocks(block, logits, targets, dtype, factor, *more)


def _positive_forms(z: Tensor, cost: Tensor | None, hyper: Hyper) -> tuple[Tensor | None, Tensor | None]:
    """Factors of the loss and of its slope; ``cost`` is -log p if it is already computed."""
    if not hyper.keys() & {"gamma_pos", "confidence_bounds", "xi"}:
        return None, None
    p, q = z.sigmoid(), (-z).sigmoid_()
    log_p = -(softplus(-z, threshold=LINEAR) if cost is None else cost)
    return true_form(log_p, p, q, hyper, gamma_of_classes(hyper, "gamma_pos", p))


def _negative_loss(z: Tensor, hyper: Hyper, moderate: bool) -> Tensor:
    r""":math:`m_-(p_m)(-\log(1 - p_m))` with :math:`m_- = \xi + (1 - \xi) p_m^{g_{neg}}`."""
    p_m = z.sigmoid()
    if "margin" in hyper:
        p_m.sub_(hyper["margin"]).clamp_(min=0.0)
    cost = _negative_cost(z, p_m, hyper, moderate)
    _, focus = focus_of_negatives(p_m, hyper)
    if focus is not None:
        cost.mul_(mix(hyper["xi"], None, focus) if "xi" in hyper else focus)
    return cost


def _negative_slope(z: Tensor, q: Tensor, hyper: Hyper, detach_focus: bool) -> Tensor:
    r""":math:`(m_- / (1 - p_m) - m_-' \log(1 - p_m))\, dp_m/dz`, with dp_m/dz = p q above the margin, q = 1 - p."""
    p = z.sigmoid()
    p_m = p if "margin" not in hyper else (p - hyper["margin"]).clamp_(min=0.0)
    whole = hyper.whole.get("gamma_neg")
    special = hyper.keys() & {"thin_margin", "xi"} or detach_focus
    if "margin" in hyper and whole is not None and whole > 1 and not special:  # without a division by p_m
        inner = (-p_m).log1p_().mul_(-hyper["gamma_neg"]).addcmul_((1.0 - p_m).reciprocal_(), p_m)
        return inner.mul_(power(p_m, hyper["gamma_neg"], whole - 1)).mul_(p.mul_(q))
    gamma, focus = focus_of_negatives(p_m, hyper)
    m = mix(hyper["xi"], None, focus.clone()) if "xi" in hyper and focus is not None else focus
    if "margin" not in hyper:
        direct = p if m is None else p * m
        reach = q  # p q / p_m with p_m = p
    else:
        ratio, reach = _direct_factor(q, p_m, hyper), (p * q).mul_(p_m.sign())  # sign: 1 above the margin, else 0
        direct = ratio.mul_(reach if "thin_margin" not in hyper else p * p_m.sign())
        direct = direct if m is None else direct.mul_(m)
        reach = reach / above_zero(p_m)
    if gamma is None or focus is None or detach_focus:
        return direct
    through = _negative_cost(z, p_m, hyper, True).mul_(focus).mul_(gamma).mul_(reach)
    return (through.mul_(1.0 - hyper["xi"]) if "xi" in hyper else through).add_(direct)


def _negative_cost(z: Tensor, p_m: Tensor, hyper: Hyper, moderate: bool) -> Tensor:
    """-log(1 - p_m); ``moderate`` as in ``is_moderate``."""
    if "margin" not in hyper:
        return softplus(z, threshold=LINEAR)
    if "thin_margin" not in hyper:
        return (-p_m).log1p_().neg_()
    # precise at both ends; with a margin of 0, log(1 - p) is linear in z where 1 - p underflows
    rest = (-z).sigmoid() + hyper["margin"]
    underflows = (rest <= vanished(rest)).to(z.dtype)
    far = select(underflows, -z, (rest + underflows).log(), moderate=moderate)
    return -select(p_m <= 0.5, (-p_m.clamp(max=0.5)).log1p(), far, moderate=moderate)


def _direct_factor(q: Tensor, p_m: Tensor, hyper: Hyper) -> Tensor:
    """1 / (1 - p_m); with a thin margin (1 - p) / (1 - p_m), which is 1 where both underflow."""
    if "thin_margin" not in hyper:
        return (1.0 - p_m).reciprocal_()
    rest = q + hyper["margin"]
    underflows = (rest <= vanished(rest)).to(q.dtype)
    return (q + underflows) / (rest + underflows)


def _joined(
    positive: Tensor,
    negatives: Tensor,
    targets: Tensor,
    element_weight: tuple[Tensor, ...],
    hyper: Hyper,
    ignore_value: float | None,
    moderate: bool,
) -> Tensor:
    """``t positive + (1 - t) negatives`` with all weights, 0 where the target is ``ignore_value``.

    If ``moderate``, both terms are finite, and an interpolation removes a term of weight 0 exactly.
    """
    if "pos_weight" in hyper:
        positive.mul_(along_classes(hyper["pos_weight"], positive))
    if "alpha" in hyper:
        positive.mul_(hyper["alpha"])
        negatives.mul_(1.0 - hyper["alpha"])
    t = targets.to(positive.dtype)
    if moderate:
        joined = negatives.lerp_(positive, t)
    else:
        joined = torch.where(t == 1, positive, torch.where(t == 0, negatives, t * positive + (1.0 - t) * negatives))
    if "weight" in hyper:
        joined.mul_(along_classes(hyper["weight"], joined))
    for weight in element_weight:
        joined.mul_(weight.to(joined.dtype))
    return joined if ignore_value is None else joined.masked_fill(targets == ignore_value, 0.0)
