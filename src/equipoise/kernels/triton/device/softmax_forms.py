r"""What the softmax kernels do with a tile of logits: the closed forms of ``reference.softmax``, rows by classes.

Two numbers represent a row: its peak, the largest adjusted logit, and ``others``, the sum of the exponentials of all
classes but the true one relative to the peak, so that q = 1 - p keeps its precision at p = 1. Dense targets have no
true class, so ``others`` includes all classes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.triton.device.forms import (
    LOWEST,
    at_least,
    confidence_gamma,
    exp,
    exp_relative,
    log,
    log1p,
    log_relative,
    of_class,
    other_form,
    power,
    quick_log1p,
    reciprocal,
    relative,
    row_max,
    true_form,
)
from equipoise.kernels.triton.device.walk import load_tile

__all__ = [
    "NOTHING",
    "adjusted",
    "adjusted_tile",
    "dense_terms",
    "differences",
    "exponentials",
    "faded",
    "is_label",
    "other_forms",
    "other_gradient",
    "product",
    "row_forms",
    "smoothing_share",
    "target_tile",
    "target_weight",
    "true_logit",
    "unpadded",
    "whole_rows",
    "with_margin",
]

NOTHING = tl.constexpr(-0.0)  # the exact neutral element of addition, even for the sign of 0: the compiler removes it


@triton.jit
def adjusted(z, t, k, hyper, C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr):
    """``scale * (z + offset - t * margin)``; for index targets without the margin, which applies only to the label."""
    inside = k < C
    if PLAN.offset >= 0:
        z += tl.load(hyper + PLAN.offset + k * PLAN.offset_step, mask=inside, other=0.0)[None, :]
    if DENSE and PLAN.true_margin >= 0:
        z -= t * tl.load(hyper + PLAN.true_margin + k * PLAN.true_margin_step, mask=inside, other=0.0)[None, :]
    if PLAN.scale >= 0:
        z *= tl.load(hyper + PLAN.scale)
    return z


@triton.jit
def true_logit(z, label, hyper, PLAN: tl.constexpr):
    """The adjusted logit of the true class of each row."""
    if PLAN.offset >= 0:
        z += tl.load(hyper + PLAN.offset + label * PLAN.offset_step)
    if PLAN.true_margin >= 0:
        z -= tl.load(hyper + PLAN.true_margin + label * PLAN.true_margin_step)
    if PLAN.scale >= 0:
        z *= tl.load(hyper + PLAN.scale)
    return z


@triton.jit
def target_tile(targets, at, k, stride_c, label, live, C: tl.constexpr, hyper, DENSE: tl.constexpr, LONG: tl.constexpr):
    """Target distribution of a tile."""
    if DENSE:
        t = load_tile(targets, at, k, stride_c, live, C, 0.0, hyper, LONG)
    else:
        t = (k[None, :] == label[:, None]).to(hyper.dtype.element_ty)
    return t


@triton.jit
def adjusted_tile(
    logits, targets, at, t_at, k, z_c, t_c, label, live, hyper,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Adjusted logits and targets of a tile."""
    z = load_tile(logits, at, k, z_c, live, C, float("-inf"), hyper, LONG)
    t = target_tile(targets, t_at, k, t_c, label, live, C, hyper, DENSE, LONG)
    return adjusted(z, t, k, hyper, C, PLAN, DENSE), t


@triton.jit
def is_label(k, start, label, VECTOR: tl.constexpr):
    """Which of the classes k of a tile, those from ``start`` on, are the labels, (rows, classes).

    If a thread has all classes of a tile of its rows, the classes are compile-time constants except for ``start``. The
    compiler computes ``start`` in 64 bits and compares in two steps; subtracting it from the label halves that.
    """
    if VECTOR > 0:
        own = tl.arange(0, k.shape[0])[None, :] == (label - start)[:, None]
    else:
        own = k[None, :] == label[:, None]
    return own


@triton.jit
def with_margin(z, own, z_true, PLAN: tl.constexpr, DENSE: tl.constexpr, SPREAD: tl.constexpr):
    """Adjusted logits of index targets with the margin at the label, ``own``; without SPREAD, -inf at the label.

    The peak must be that of the logits with the margin.
    """
    if not DENSE and PLAN.true_margin >= 0:
        if SPREAD:
            z = tl.where(own, z_true[:, None], z)
        else:
            z = tl.where(own, float("-inf"), z)
    return z


@triton.jit
def exponentials(x, own, k, C: tl.constexpr, WITHOUT: tl.constexpr, PADDED: tl.constexpr):
    """Exponentials of a tile; WITHOUT: 0 at the label, ``own``."""
    e = exp_relative(x)
    if WITHOUT:
        e = tl.where(own, NOTHING, e)
    return unpadded(e, k, C, PADDED)


@triton.jit
def faded(peak, shift, top):
    """The rescaling of sums relative to ``peak`` for the new peak ``top``: its logarithm as ``relative``, the factor.

    ``shift`` is ``relative(peak, peak)``.
    """
    sunk = relative(peak, top) - shift
    return sunk, exp_relative(sunk)


@triton.jit
def unpadded(tile, k, C: tl.constexpr, PADDED: tl.constexpr):
    """PADDED: 0 beyond the last class; class indices are compile-time constants, so the compiler removes padding."""
    if PADDED:
        tile = tl.where((k < C)[None, :], tile, NOTHING)
    return tile


@triton.jit
def whole_rows(z, peak, own, k, C: tl.constexpr, WITHOUT: tl.constexpr, PADDED: tl.constexpr):
    """For rows within one tile: peak (at least ``peak``), logits relative to it, exponentials, and their sum.

    Arguments as in ``exponentials``.
    """
    peak = tl.maximum(row_max(z), peak)
    x = relative(z, peak[:, None])
    e = exponentials(x, own, k, C, WITHOUT, PADDED)
    return peak, x, e, tl.sum(e, 1)


@triton.jit
def product(factor, log_p):
    """``factor * log_p`` of rows, with 0 * log 0 = 0: a term of weight 0 adds nothing."""
    return tl.where((factor == 0.0) & (log_p == float("-inf")), 0.0, factor * log_p)


@triton.jit
def row_forms(z, peak, others, label, hyper, PLAN: tl.constexpr, PRECISE: tl.constexpr):
    """Log p, p, q, m and h of the true class of each row, and the sum of all exponentials.

    Near p = 1, q and log p are computed from ``others`` without a subtraction.
    """
    own = exp(z - peak)
    if PRECISE:
        total = 1.0 + others
        p = own / total
        q = tl.where(p > 0.5, others / total, 1.0 - p)
        log_p = z - peak - log1p(others)
    else:
        total = own + others
        inverse = reciprocal(total)
        p = own * inverse
        q = others * inverse
        near = q < 0.5  # and then the quotient is at most 1
        log_p = tl.where(near, -quick_log1p(others * reciprocal(tl.where(near, own, 1.0))), z - peak - log(total))
    gamma = p
    if PLAN.confidence_bounds >= 0:
        gamma = confidence_gamma(p, hyper, PLAN)
    elif PLAN.gamma_pos >= 0:
        gamma = tl.load(hyper + PLAN.gamma_pos + label * PLAN.gamma_pos_step)
    m, h = true_form(log_p, p, q, gamma, hyper, PLAN)
    return log_p, p, q, m, h, total


@triton.jit
def _true_forms(log_p, p, rest, k, hyper, C: tl.constexpr, PLAN: tl.constexpr):
    """M and h of every class of a tile, in the form of the true class.

    A fractional power needs full relative precision of q, so at the peak q is computed from ``rest``.
    """
    q = 1.0 - p
    if PLAN.fractional:
        q = tl.where(p > 0.5, (rest / (1.0 + rest))[:, None], q)
        log_p = tl.where(p > 0.5, -log1p(rest)[:, None], log_p)
    gamma = p
    if PLAN.confidence_bounds >= 0:
        gamma = confidence_gamma(p, hyper, PLAN)
    elif PLAN.gamma_pos >= 0:
        gamma = of_class(PLAN.gamma_pos, PLAN.gamma_pos_step, k, hyper, C)
    return true_form(log_p, p, q, gamma, hyper, PLAN)


@triton.jit
def smoothing_share(hyper, C: tl.constexpr, PLAN: tl.constexpr):
    """Label smoothing, and the fraction of it per class."""
    smoothing = 0.0
    if PLAN.label_smoothing >= 0:
        smoothing = tl.load(hyper + PLAN.label_smoothing)
    return smoothing, smoothing / C


@triton.jit
def other_forms(
    x, unit, rest, inverse, log_total, k, weight, hyper, C: tl.constexpr, PLAN: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """M log p, h and p of every class of a tile in the off-target form.

    Focal losses use the form of the true class for every class (Mukhoti et al. 2020, appendix A).
    """
    p = exp_relative(x) * inverse[:, None]
    log_p = log_relative(x, unit[:, None]) - log_total[:, None]
    if PLAN.gamma_neg >= 0:
        m, h = other_form(log_p, p, of_class(PLAN.gamma_neg, PLAN.gamma_neg_step, k, hyper, C), hyper, PLAN)
    else:
        m, h = _true_forms(log_p, p, rest, k, hyper, C, PLAN)
    if WEIGHTED:
        by_class = tl.load(weight + k, mask=k < C, other=0.0)[None, :]
        m *= by_class
        h *= by_class
    return tl.where(m == 0.0, 0.0, m * log_p), h, p


@triton.jit
def other_gradient(
    x, unit, rest, inverse, log_total, pull, share, k, weight, hyper, C: tl.constexpr, PLAN: tl.constexpr,
    WEIGHTED: tl.constexpr,
):  # fmt: skip
    """``p pull - share h`` of every class of a tile, h that of ``other_forms``.

    If the exponent is one small integer, factors that are constant in a row are combined first: 1 + gamma log p, and
    gamma log p of a focal loss, are linear in x.
    """
    p = exp_relative(x) * inverse[:, None]
    x = at_least(x, LOWEST)  # where p is 0, its products are 0 too
    if PLAN.gamma_neg_whole > 0:
        gamma = tl.load(hyper + PLAN.gamma_neg)
        by = share
        if PLAN.xi >= 0:
            by *= 1.0 - tl.load(hyper + PLAN.xi)
        line = x * log_relative(gamma * by, unit)[:, None] + (by - gamma * by * log_total)[:, None]
        h = power(p, gamma, PLAN.gamma_neg_whole) * line
        if PLAN.xi >= 0:
            h += (share - by)[:, None]
    elif PLAN.gamma_neg < 0 and PLAN.gamma_pos_whole > 0 and PLAN.xi < 0:
        gamma = tl.load(hyper + PLAN.gamma_pos)
        line = x * log_relative(gamma, unit)[:, None] + (1.0 - gamma * log_total)[:, None]
        h = share[:, None]
        if PLAN.gamma_pos_whole == 2:
            h -= h * p
        elif PLAN.gamma_pos_whole > 2:
            h *= power(1.0 - p, gamma, PLAN.gamma_pos_whole - 1)
        h *= 1.0 - p * line
    else:
        _, h, _ = other_forms(x, unit, rest, inverse, log_total, k, weight, hyper, C, PLAN, False)
        h *= share[:, None]
    if WEIGHTED:
        h *= tl.load(weight + k, mask=k < C, other=0.0)[None, :]
    return p * pull[:, None] - h


@triton.jit
def dense_terms(
    x, unit, t, rest, inverse, log_total, k, weight, hyper, C: tl.constexpr, PLAN: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """Mass times m log p, mass times h, and p of every class of a tile."""
    inside = (k < C)[None, :]
    p = exp_relative(x) * inverse[:, None]
    log_p = log_relative(x, unit[:, None]) - log_total[:, None]
    smoothing, share = smoothing_share(hyper, C, PLAN)
    m, h = _true_forms(log_p, p, rest, k, hyper, C, PLAN)
    if PLAN.gamma_neg >= 0:
        gamma_neg = of_class(PLAN.gamma_neg, PLAN.gamma_neg_step, k, hyper, C)
        other_m, other_h = other_form(log_p, p, gamma_neg, hyper, PLAN)
        mass = t * (1.0 - smoothing + share)
        other_mass = (1.0 - t) * share
        cost = mass * m + other_mass * other_m
        slope = mass * h + other_mass * other_h
    else:
        mass = t * (1.0 - smoothing) + share
        cost = mass * m
        slope = mass * h
    if WEIGHTED:
        by_class = tl.load(weight + k, mask=k < C, other=0.0)[None, :]
        cost *= by_class
        slope *= by_class
    return tl.where(inside & (cost != 0.0), cost * log_p, 0.0), tl.where(inside, slope, 0.0), p


@triton.jit
def differences(
    x, t, inverse, q_label, k, hyper, C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr
):  # fmt: skip
    """P - t of every class, with smoothed t, and p."""
    p = exp_relative(x) * inverse[:, None]
    smoothing, share = smoothing_share(hyper, C, PLAN)
    smooth = t * (1.0 - smoothing) + share
    difference = p - smooth
    if not DENSE:
        difference = tl.where(t != 0.0, (1.0 - smooth) - q_label[:, None], difference)
    return tl.where((k < C)[None, :], difference, 0.0), p


@triton.jit
def target_weight(targets, t_at, t_c, live, weight, hyper, C: tl.constexpr, LONG: tl.constexpr, BLOCK_C: tl.constexpr):
    """Class weights of dense targets, summed over each row."""
    total = tl.zeros(t_at.shape, hyper.dtype.element_ty)
    for start in range(0, C, BLOCK_C):
        k = start + tl.arange(0, BLOCK_C)
        t = load_tile(targets, t_at, k, t_c, live, C, 0.0, hyper, LONG)
        total += tl.sum(t * tl.load(weight + k, mask=k < C, other=0.0)[None, :], 1)
    return total
