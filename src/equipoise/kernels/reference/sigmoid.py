r"""Sigmoid link in plain PyTorch: elements and their slope in closed form.

With :math:`p = \sigma(z)`, :math:`p_m = \max(p - \text{margin}, 0)`:
:math:`L = t\, m_+(p)(-\log p) + (1 - t)\, m_-(p_m)(-\log(1 - p_m))`.

At an infinite logit both are what they tend to: nothing for the label that it says, infinite for the other, with finite
slopes. A term without weight, t = 0 or t = 1, adds nothing even there: minus infinity masks a negative.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipoise._checks import is_batched
from equipoise.kernels.cpu.blocks import in_blocks
from equipoise.kernels.cpu.inplace import (
    at_least,
    between,
    inverse,
    log1p,
    may_overwrite,
    minus,
    negative,
    plus,
    plus_product,
    sigmoid,
    times,
)
from equipoise.kernels.hyper import Hyper, accumulation_dtype
from equipoise.kernels.reference.modulation import (
    HUGE,
    above_zero,
    along_classes,
    gamma_of_classes,
    is_plain,
    mix,
    power,
    select,
    true_form,
)

__all__ = ["sigmoid_losses", "sigmoid_slopes"]

LINEAR = 50.0  # from here on log(1 + exp(z)) is z in every precision


def sigmoid_losses(
    logits: Tensor, targets: Tensor, element_weight: Tensor | None, hyper: Hyper, ignore_value: float | None
) -> Tensor:
    """Unreduced losses (N, C, d1, ..., dk) in accumulation type."""
    dtype = accumulation_dtype(logits)

    def block(logits: Tensor, targets: Tensor, *element_weight: Tensor) -> Tensor:
        z, z_neg = _adjusted(logits.to(dtype), hyper)
        plain = is_plain(z)
        positive = softplus(-z, threshold=LINEAR)
        m, _ = _positive_forms(z, positive, hyper)
        positive = positive if m is None else times(positive, m)
        negatives = _negative_loss(z_neg, hyper, plain)
        if "neg_scale" in hyper:
            negatives = negatives / hyper["neg_scale"]
        return _joined(positive, negatives, targets, element_weight, hyper, ignore_value, plain)

    more = () if element_weight is None else (element_weight,)
    return in_blocks(block, logits, targets, dtype, *more)


def sigmoid_slopes(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Hyper,
    ignore_value: float | None,
    detach_focus: bool,
    factor: Tensor,
) -> Tensor:
    """Derivative of every element with respect to its logit, times ``factor``.

    For negatives equation 8 of Ridnik et al. 2021.
    """
    dtype = accumulation_dtype(logits)
    if is_batched(factor):  # several gradients do not fit into the memory of one
        one = torch.ones((), dtype=dtype, device=logits.device)
        return factor * sigmoid_slopes(logits, targets, element_weight, hyper, ignore_value, detach_focus, one)

    def block(logits: Tensor, targets: Tensor, factor: Tensor, *element_weight: Tensor) -> Tensor:
        z, z_neg = _adjusted(logits.to(dtype).clamp(-HUGE, HUGE), hyper)  # beyond which slopes do not change
        q = sigmoid(-z)
        negatives = _negative_slope(z_neg, q if z is z_neg else sigmoid(-z_neg), hyper, detach_focus)
        m, h = _positive_forms(z, None, hyper)
        focus = m if detach_focus else h
        positive = negative(q) if focus is None else times(negative(q), focus)
        return times(_joined(positive, negatives, targets, element_weight, hyper, ignore_value, True), factor)

    more = () if element_weight is None else (element_weight,)
    return in_blocks(block, logits, targets, dtype, factor, *more)


def _adjusted(z: Tensor, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Logits of the positive and of the negative term."""
    if "offset" in hyper:
        z = z + along_classes(hyper["offset"], z)
    return z, z * hyper["neg_scale"] if "neg_scale" in hyper else z


def _positive_forms(z: Tensor, cost: Tensor | None, hyper: Hyper) -> tuple[Tensor | None, Tensor | None]:
    """Factors of the loss and of its slope, given -log p where it is known already."""
    if not hyper.keys() & {"gamma_pos", "confidence_bounds", "xi"}:
        return None, None
    p, q = z.sigmoid(), sigmoid(-z)
    log_p = -(softplus(-z, threshold=LINEAR) if cost is None else cost)
    return true_form(log_p, p, q, hyper, gamma_of_classes(hyper, "gamma_pos", p))


def _negative_loss(z: Tensor, hyper: Hyper, plain: bool) -> Tensor:
    r""":math:`m_-(p_m)(-\log(1 - p_m))` with :math:`m_- = \xi + (1 - \xi) p_m^{g_{neg}}`."""
    p_m = _shifted(z.sigmoid(), hyper)
    cost = _negative_cost(z, p_m, hyper, plain)
    _, focus = _focus(p_m, hyper)
    if focus is not None:
        cost = times(cost, mix(hyper["xi"], None, focus) if "xi" in hyper else focus)
    return cost


def _negative_slope(z: Tensor, q: Tensor, hyper: Hyper, detach_focus: bool) -> Tensor:
    r""":math:`(m_- / (1 - p_m) - m_-' \log(1 - p_m))\, dp_m/dz`, with dp_m/dz = p q above the margin, q = 1 - p."""
    p = z.sigmoid()
    p_m = p if "margin" not in hyper else at_least(p - hyper["margin"], 0.0)
    whole = hyper.whole.get("gamma_neg")
    special = hyper.keys() & {"thin_margin", "xi"} or detach_focus
    if "margin" in hyper and whole is not None and whole > 1 and not special:  # without a quotient by p_m
        inner = plus_product(times(log1p(-p_m), -hyper["gamma_neg"]), inverse(1.0 - p_m), p_m)
        return times(times(inner, power(p_m, hyper["gamma_neg"], whole - 1)), times(p, q))
    gamma, focus = _focus(p_m, hyper)
    m = mix(hyper["xi"], None, focus.clone()) if "xi" in hyper and focus is not None else focus
    if "margin" not in hyper:
        direct = p if m is None else p * m
        reach = q  # what is left of p (1 - p) / p_m
    else:
        share, reach = _share(q, p_m, hyper), times(p * q, p_m.sign())  # the sign: whether p lies above the margin
        direct = times(share, reach if "thin_margin" not in hyper else p * p_m.sign())
        direct = direct if m is None else times(direct, m)
        reach = reach / (above_zero(p_m) if may_overwrite() else p_m.clamp(min=_gone(p_m)))
    if gamma is None or focus is None or detach_focus:
        return direct
    # m_-' = (1 - xi) gamma p_m^gamma / p_m
    through = times(times(times(_negative_cost(z, p_m, hyper, True), focus), gamma), reach)
    return plus(times(through, 1.0 - hyper["xi"]) if "xi" in hyper else through, direct)


def _shifted(p: Tensor, hyper: Hyper) -> Tensor:
    """p_m, in place of p."""
    return at_least(minus(p, hyper["margin"]), 0.0) if "margin" in hyper else p


def _negative_cost(z: Tensor, p_m: Tensor, hyper: Hyper, plain: bool) -> Tensor:
    """-log(1 - p_m); plain: of finite logits."""
    if "margin" not in hyper:
        return softplus(z, threshold=LINEAR)
    if "thin_margin" not in hyper:
        return negative(log1p(-p_m))
    # each end with its own precision; a margin of 0 leaves log(1 - p), which is linear where 1 - p vanishes
    rest = (-z).sigmoid() + hyper["margin"]
    gone = (rest <= _gone(rest)).to(z.dtype)
    far = select(gone, -z, (rest + gone).log(), plain=plain)
    return -select(p_m <= 0.5, (-p_m.clamp(max=0.5)).log1p(), far, plain=plain)


def _share(q: Tensor, p_m: Tensor, hyper: Hyper) -> Tensor:
    """1 / (1 - p_m); with a thin margin (1 - p) / (1 - p_m), which is 1 where both vanish."""
    if "thin_margin" not in hyper:
        return inverse(1.0 - p_m)
    rest = q + hyper["margin"]
    gone = (rest <= _gone(rest)).to(q.dtype)
    return (q + gone) / (rest + gone)


def _gone(rest: Tensor) -> float:
    """Up to here 1 - p_m has vanished: the derivative of a quotient by it would overflow."""
    return math.sqrt(torch.finfo(rest.dtype).tiny)


def _focus(p_m: Tensor, hyper: Hyper) -> tuple[Tensor | None, Tensor | None]:
    """Exponent of the negatives and p_m to its power; a focal loss has that of the positives."""
    name = "gamma_neg" if "gamma_neg" in hyper else "gamma_pos"
    gamma = gamma_of_classes(hyper, name, 1.0 - p_m if "confidence_bounds" in hyper else p_m)
    return gamma, None if gamma is None else power(p_m, gamma, hyper.whole.get(name))


def _joined(
    positive: Tensor,
    negatives: Tensor,
    targets: Tensor,
    element_weight: tuple[Tensor, ...],
    hyper: Hyper,
    ignore_value: float | None,
    plain: bool,
) -> Tensor:
    """``t positive + (1 - t) negatives`` with all weights, 0 where the target is ``ignore_value``, if any is.

    Plain: both are finite, so that one is nothing where the other has all of the weight.
    """
    if "pos_weight" in hyper:
        positive = times(positive, along_classes(hyper["pos_weight"], positive))
    if "alpha" in hyper:
        positive, negatives = times(positive, hyper["alpha"]), times(negatives, 1.0 - hyper["alpha"])
    t = targets.to(positive.dtype)
    if plain:
        joined = between(negatives, positive, t)
    else:
        joined = torch.where(t == 1, positive, torch.where(t == 0, negatives, t * positive + (1.0 - t) * negatives))
    if "weight" in hyper:
        joined = times(joined, along_classes(hyper["weight"], joined))
    for weight in element_weight:
        joined = times(joined, weight.to(joined.dtype))
    return joined if ignore_value is None else joined.masked_fill(targets == ignore_value, 0.0)
