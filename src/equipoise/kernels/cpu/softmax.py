"""Softmax link on the CPU: the closed forms of ``reference.softmax``, in place where possible.

Elementwise chains spend most of their time on newly allocated memory. The values decide which form is computed: if no
logit is infinite or NaN, products replace ``torch.where``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels.cpu.blocks import in_blocks
from equipoise.kernels.cpu.modulation import is_moderate, other_form, product, select, true_form
from equipoise.kernels.hyper import Hyper, accumulation_dtype
from equipoise.kernels.reference.modulation import along_classes, gamma_of_classes, gamma_of_rows
from equipoise.kernels.reference.softmax import (
    brier_terms,
    distribution,
    has_target,
    labels_of,
    valid_rows,
    without_ignored,
)
from equipoise.kernels.spec import SoftmaxSpec

__all__ = ["index_terms", "softmax_terms"]


def softmax_terms(
    logits: Tensor, targets: Tensor, weight: Tensor | None, values: Tensor, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.softmax.softmax_terms``."""
    dtype, hyper = accumulation_dtype(logits), Hyper(values, spec.layout)

    def block(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        z = logits.to(dtype)
        if "squared_error" in hyper:
            return brier_terms(z, distribution(targets, z, spec), weight, hyper)
        if targets.is_floating_point():
            return _distribution_terms(z, targets.to(dtype), weight, hyper)
        return _smoothed_terms(z, targets, weight, hyper, spec)

    if targets.is_floating_point() or "label_smoothing" in hyper:
        rows, direction = in_blocks(block, logits, targets, dtype)
        return rows, direction, torch.ones((), dtype=dtype, device=logits.device)
    # few passes over the logits: blocks would be slower
    if "squared_error" in hyper:
        return _index_brier_terms(logits.to(dtype), targets, weight, hyper, spec)
    return index_terms(logits, targets, weight, values, spec)[:3]


def index_terms(
    logits: Tensor, targets: Tensor, weight: Tensor | None, values: Tensor, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``softmax_terms`` of index targets without smoothing, and the probability of the true class (N, 1, d1, ..., dk).

    The direction contains p for the other classes and p - 1 for the true class.
    """
    z, hyper = logits.to(accumulation_dtype(logits)), Hyper(values, spec.layout)
    labels, valid = labels_of(targets, spec)
    probs, p = _true_softmax(z, labels, valid, hyper)
    log_p, others, q = _true_class(p, _log_with_vanished(p, z, labels, hyper), probs, labels)
    m, h = true_form(log_p, p, q, hyper, gamma_of_rows(hyper, labels, p))
    mass = valid.to(z.dtype) if weight is None else weight[labels] * valid
    rows = valid_rows(-product(mass if m is None else mass * m, log_p), valid)
    slope = mass if h is None else mass * h
    return rows, others.scatter_(1, labels, -q), slope * hyper["scale"] if "scale" in hyper else slope, p


def _true_softmax(z: Tensor, labels: Tensor, valid: Tensor, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Softmax, and the probability of the true class."""
    adjusted = _adjusted(z, labels, hyper)
    probs = adjusted.softmax(1) if adjusted is z else torch.softmax(adjusted, 1, out=adjusted)
    p = probs.gather(1, labels)
    if p.sum().isnan():
        probs = _adjusted(without_ignored(z, valid, hyper), labels, hyper).softmax(1)
        p = probs.gather(1, labels)
    return probs, p


def _true_class(p: Tensor, log_p: Tensor, probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log p of the true class (from q if q < 1/2), softmax of the others in place of ``probs``, and its sum q."""
    others = probs.scatter_(1, labels, torch.zeros_like(p))
    q = others.sum(1, keepdim=True)
    return torch.where(q < 0.5, (-q.clamp(max=0.5)).log1p(), log_p), others, q


def _log_with_vanished(p: Tensor, z: Tensor, labels: Tensor, hyper: Hyper) -> Tensor:
    """Logarithm of the probability of the true class; computed from the logits where p < 1e-30."""
    log_p = p.log()
    vanished = (p < 1e-30).squeeze(1)
    if vanished.any():
        labels = labels.squeeze(1)[vanished].unsqueeze(1)
        few = z.movedim(1, -1)[vanished]
        few = _adjusted(without_ignored(few, torch.ones_like(labels, dtype=torch.bool), hyper), labels, hyper)
        log_p.squeeze(1)[vanished] = few.log_softmax(1).gather(1, labels).squeeze(1)
    return log_p


def _smoothed_terms(
    z: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor]:
    """Index targets with smoothing: every class has a term."""
    labels, valid = labels_of(targets, spec)
    moderate = is_moderate(z)
    z = z if moderate else without_ignored(z, valid, hyper)
    log_probs, probs = _both_softmax(_adjusted(z, labels, hyper))
    p = probs.gather(1, labels)
    log_p, others, q = _true_class(p, log_probs.gather(1, labels), probs, labels)
    m, h = true_form(log_p, p, q, hyper, gamma_of_rows(hyper, labels, p))
    uniform = hyper["label_smoothing"] / z.shape[1]
    mass = valid.to(z.dtype) if weight is None else weight[labels] * valid
    mass = mass * (1.0 - hyper["label_smoothing"] + uniform)
    other_cost, other_h = _other_terms(log_probs, others, labels, weight, hyper, moderate)

    uniform = uniform * valid
    rows = -product(mass if m is None else mass * m, log_p) - product(uniform, other_cost)
    slope = mass if h is None else mass * h
    if other_h is None:
        total = uniform * (z.shape[1] - 1)
        direction = others.mul_(slope + total).sub_(uniform)
    else:
        total = uniform * other_h.sum(1, keepdim=True)
        direction = others.mul_(slope + total).addcmul_(other_h, -uniform)
    direction.scatter_(1, labels, p * total - slope * q)
    return valid_rows(rows, valid), direction.mul_(hyper["scale"]) if "scale" in hyper else direction


def _both_softmax(z: Tensor) -> tuple[Tensor, Tensor]:
    """Log-softmax and softmax over dimension 1; the cheaper one is derived from the other."""
    if z.ndim > 2:
        log_probs = z.log_softmax(1)
        return log_probs, log_probs.exp()
    probs = z.softmax(1)
    return (z - z.amax(1, keepdim=True)).add_(probs.amax(1, keepdim=True).log()), probs


def _other_terms(
    log_p: Tensor, p: Tensor, labels: Tensor, weight: Tensor | None, hyper: Hyper, moderate: bool
) -> tuple[Tensor, Tensor | None]:
    r"""The smoothing term divided by :math:`-\epsilon/C`, :math:`\sum_{k \ne y} w_k m_{other} \log p_k`, and w h."""
    if "gamma_neg" in hyper or not hyper.keys() & {"gamma_pos", "confidence_bounds", "xi"}:
        m, h = other_form(log_p, p, hyper)
    else:  # focal losses use the form of the true class for every class (Mukhoti et al. 2020, appendix A)
        m, h = true_form(log_p, p, 1.0 - p, hyper, gamma_of_classes(hyper, "gamma_pos", p))
    if weight is not None:
        by_class = along_classes(weight, log_p)
        m = by_class.expand_as(log_p).clone() if m is None else m.mul_(by_class)
        h = by_class.expand_as(log_p).clone() if h is None else h.mul_(by_class)
    nothing = torch.zeros_like(labels, dtype=log_p.dtype)
    cost = m.mul_(log_p) if moderate and m is not None else product(m, log_p)
    cost = cost.scatter_(1, labels, nothing).sum(1, keepdim=True)
    return cost, None if h is None else h.scatter_(1, labels, nothing)


def _distribution_terms(z: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Dense targets: every class has a target term and, with smoothing, an off-target term."""
    valid = has_target(targets)
    moderate = is_moderate(z)
    z = _adjusted_by_targets(z if moderate else without_ignored(z, valid, hyper), targets, hyper)
    log_p, p = _both_softmax(z)
    # at most one class of a row has p > 1/2: its q is the sum of the others
    likely = (p > 0.5).to(p.dtype)
    q_likely = (p - p * likely).sum(1, keepdim=True)
    log_p = select(likely, (-q_likely.clamp(max=0.5)).log1p().expand_as(p), log_p, moderate=moderate)

    smoothing: Tensor | float = hyper.get("label_smoothing", 0.0)
    uniform = (smoothing / z.shape[1]) * valid.to(z.dtype)
    q = torch.lerp(1.0 - p, q_likely.expand_as(p), likely)
    m, h = true_form(log_p, p, q, hyper, gamma_of_classes(hyper, "gamma_pos", p))
    other_m, other_h = other_form(log_p, p, hyper)
    if other_m is not None and other_h is not None:
        true_mass, other_mass = targets * (1.0 - smoothing + uniform), (1.0 - targets) * uniform
        factor = true_mass * (1.0 if m is None else m) + other_mass * other_m
        slope = true_mass * (1.0 if h is None else h) + other_mass * other_h
    else:
        mass = targets * (1.0 - smoothing) + uniform if "label_smoothing" in hyper else targets
        factor, slope = mass if m is None else mass * m, mass if h is None else mass * h
    if weight is not None:
        by_class = along_classes(weight, z)
        factor, slope = factor * by_class, slope * by_class
    rows = valid_rows(-product(factor, log_p).sum(1, keepdim=True), valid)
    # p S - slope, written without cancellation at p = 1
    direction = p.mul_(slope.sum(1, keepdim=True) - slope).sub_(slope * q)
    return rows, direction.mul_(hyper["scale"]) if "scale" in hyper else direction


def _index_brier_terms(
    z: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Brier score :math:`w_y \sum_k (p_k - t_k)^2` of index targets without smoothing.

    Direction :math:`p_k (d_k - \sum_j p_j d_j)` with d = p - t, length :math:`2 w_y`.
    """
    labels, valid = labels_of(targets, spec)
    probs, p = _true_softmax(z, labels, valid, hyper)
    others = probs.scatter_(1, labels, torch.zeros_like(p))
    q = others.sum(1, keepdim=True)  # t - p of the true class
    squared = others * others
    squares = squared.sum(1, keepdim=True)
    pull = squares - p * q
    mass = valid.to(z.dtype) if weight is None else weight[labels] * valid
    rows = valid_rows(mass * (squares + q.square()), valid)
    direction = squared.addcmul_(others, -pull).scatter_(1, labels, -p * (q + pull))
    return rows, direction, 2.0 * mass * hyper["scale"] if "scale" in hyper else 2.0 * mass


def _adjusted(z: Tensor, labels: Tensor | None, hyper: Hyper) -> Tensor:
    """``scale * (z + offset - margin of the true class)``; without labels there is no margin."""
    fresh = "offset" in hyper or "scale" in hyper
    if "offset" in hyper:
        z = z + along_classes(hyper["offset"], z)
    if "scale" in hyper:
        z = z * hyper["scale"]
    if labels is None or "true_margin" not in hyper:
        return z
    margin = hyper["true_margin"][labels]
    z_true = z.gather(1, labels) - (margin * hyper["scale"] if "scale" in hyper else margin)
    return z.scatter_(1, labels, z_true) if fresh else z.scatter(1, labels, z_true)


def _adjusted_by_targets(z: Tensor, targets: Tensor, hyper: Hyper) -> Tensor:
    """The same for dense targets: the margin of each class is multiplied by its target."""
    if "true_margin" in hyper:
        z = z - targets * along_classes(hyper["true_margin"], z)
    return _adjusted(z, None, hyper)
