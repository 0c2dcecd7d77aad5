r"""Sigmoid link as fused Triton kernels: the closed forms of ``reference.sigmoid``, one tile of elements per program.

With :math:`p = \sigma(z)`, q = 1 - p, :math:`p_m = \max(p - \text{margin}, 0)`, so that :math:`1 - p_m = q +
\text{margin}` above the margin:
:math:`L = t\, m_+(p)(-\log p) + (1 - t)\, m_-(p_m)(-\log(1 - p_m))`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.triton.device.forms import (
    LOWEST,
    TINY,
    confidence_gamma,
    exp,
    log1p,
    of_class,
    power,
    quick_log1p,
    reciprocal,
    true_form,
)
from equipoise.kernels.triton.device.rows import finish_last
from equipoise.kernels.triton.device.walk import load_tile, offsets, places, rows_of_program

__all__ = ["elements_backward_kernel", "elements_forward_kernel"]


@triton.jit
def _logistic(z):
    """P, q = 1 - p, -log p, each precise at both ends, and log(1 + exp(-abs(z)))."""
    e = exp(-tl.abs(z))
    likely = reciprocal(1.0 + e)
    unlikely = e * likely
    up = z >= 0.0
    log_u = quick_log1p(e)
    return tl.where(up, likely, unlikely), tl.where(up, unlikely, likely), tl.maximum(-z, 0.0) + log_u, log_u


@triton.jit
def _positive(p, q, cost, k, hyper, C, PLAN: tl.constexpr):
    """Loss of a positive, and its slope in z with and without the derivative of the modulation."""
    m = tl.full(p.shape, 1.0, p.dtype)
    h = m
    if PLAN.modulated:
        gamma = p
        if PLAN.confidence_bounds >= 0:
            gamma = confidence_gamma(p, hyper, PLAN)
        elif PLAN.gamma_pos >= 0:
            gamma = of_class(PLAN.gamma_pos, PLAN.gamma_pos_step, k, hyper, C)
        m, h = true_form(-cost, p, q, gamma, hyper, PLAN)
    return m * cost, -q * h, -q * m


@triton.jit
def _negative(z, p, q, log_u, k, hyper, C, PLAN: tl.constexpr):
    """Loss of a negative, and its slope in z with and without that of the modulation (Ridnik et al. 2021, eq. 8)."""
    if PLAN.margin >= 0:
        margin = tl.load(hyper + PLAN.margin)
        above = p > margin
        p_m = tl.where(above, p - margin, 0.0)
        rest = q + margin
        if PLAN.thin_margin >= 0:
            gone = rest <= 0.0  # with a margin of 0, log q is linear in z where q underflows
            safe = tl.where(gone, 1.0, rest)
            near = log1p(-tl.minimum(p_m, 0.5))
            cost = tl.where(p_m <= 0.5, -near, tl.where(gone, z, -tl.log(safe)))
            reach = tl.where(gone, 1.0, q / safe)
        else:
            cost = -quick_log1p(-p_m)
            reach = q * reciprocal(rest)
        reach = tl.where(above, p * reach, 0.0)  # dp_m / dz over 1 - p_m
        slide = tl.where(above, p * q, 0.0)  # dp_m / dz
    else:
        p_m = p
        cost = tl.maximum(z, 0.0) + log_u
        reach = p
        slide = p * q
    if PLAN.gamma_neg >= 0:
        gamma = of_class(PLAN.gamma_neg, PLAN.gamma_neg_step, k, hyper, C)
        whole: tl.constexpr = PLAN.gamma_neg_whole
    elif PLAN.confidence_bounds >= 0:
        gamma = confidence_gamma(1.0 - p_m, hyper, PLAN)
        whole: tl.constexpr = 0
    elif PLAN.gamma_pos >= 0:  # a focal loss uses the exponent of the positives
        gamma = of_class(PLAN.gamma_pos, PLAN.gamma_pos_step, k, hyper, C)
        whole: tl.constexpr = PLAN.gamma_pos_whole
    else:
        gamma = tl.zeros_like(p)
        whole: tl.constexpr = -1
    if whole == -1:
        loss = cost
        slope = reach
        direct = reach
    else:
        if whole == 1:
            focus = p_m
            through = gamma * (cost * slide)
        elif whole == 0:
            focus = power(p_m, gamma, 0)
            if PLAN.margin >= 0:
                through = gamma * (cost * (focus / tl.maximum(p_m, TINY)) * slide)
            else:
                through = gamma * (cost * focus * q)  # slide / p is q
        else:
            lowered = power(p_m, gamma, whole - 1)
            focus = lowered * p_m
            through = gamma * (cost * lowered * slide)
        m = focus
        if PLAN.xi >= 0:
            xi = tl.load(hyper + PLAN.xi)
            m = xi + (1.0 - xi) * focus
            through *= 1.0 - xi
        loss = m * cost
        direct = m * reach
        slope = direct + through
    return loss, slope, direct


@triton.jit
def _weighted(positive, negative, t, k, hyper, C, PLAN: tl.constexpr, FINITE: tl.constexpr):
    """``t positive + (1 - t) negative`` with the weights of both terms and of the labels.

    Without FINITE a negative may be masked: the loss of its positive term is infinite and must not be multiplied by 0.
    """
    if PLAN.pos_weight >= 0:
        positive *= of_class(PLAN.pos_weight, PLAN.pos_weight_step, k, hyper, C)
    if PLAN.alpha >= 0:
        alpha = tl.load(hyper + PLAN.alpha)
        positive *= alpha
        negative *= 1.0 - alpha
    joined = t * positive + (1.0 - t) * negative
    if not FINITE:
        joined = tl.where(t == 0.0, negative, joined)
    if PLAN.weight >= 0:
        joined *= of_class(PLAN.weight, PLAN.weight_step, k, hyper, C)
    return joined


@triton.jit
def _terms(z, t, k, hyper, C, PLAN: tl.constexpr, DETACH: tl.constexpr):
    """Loss and slope of every element of a tile, without element weights; the compiler removes unused results."""
    if PLAN.offset >= 0:
        z += of_class(PLAN.offset, PLAN.offset_step, k, hyper, C)
    p, q, cost, log_u = _logistic(z)
    loss, slope, direct = _positive(p, q, cost, k, hyper, C, PLAN)
    scale = 1.0
    if PLAN.neg_scale >= 0:
        scale = tl.load(hyper + PLAN.neg_scale)
        z = tl.minimum(z * scale, -LOWEST)  # finite, for products with a q of 0
        p, q, cost, log_u = _logistic(z)
    negative_loss, negative_slope, negative_direct = _negative(z, p, q, log_u, k, hyper, C, PLAN)
    if DETACH:
        slope = direct
        negative_slope = negative_direct
    loss = _weighted(loss, negative_loss / scale, t, k, hyper, C, PLAN, False)
    return loss, _weighted(slope, negative_slope, t, k, hyper, C, PLAN, True)


@triton.jit
def elements_forward_kernel(
    logits, targets, weight, hyper, out, sums_out, seen_out, ticket, reduced, inverse,
    rows, size_1, size_2, C, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, w_0, w_1, w_2, w_c, o_0, o_1, o_2, o_c, samples,
    PLAN: tl.constexpr, IGNORE: tl.constexpr, WEIGHTED: tl.constexpr, DETACH: tl.constexpr, ELEMENTS: tl.constexpr,
    ONCE: tl.constexpr, SEEN: tl.constexpr, REDUCTION: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr,
    W_UNIT: tl.constexpr, O_UNIT: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Losses of a tile of elements.

    Writes the sums of loss and known elements of this program, (2, programs), with ELEMENTS the losses to ``out``, and
    with REDUCTION >= 0 the reduced loss, see ``finish_last``. SEEN: 1 for sums of p, t, p t and known elements of this
    program, (4, programs); 2 for the same per label, (4, row blocks, C). ONCE >= 0: writes the gradient of that
    reduction to ``out``; a mean is divided by the number of all elements, known or not.
    """
    blocks = tl.cdiv(C, BLOCK_C)
    program = tl.program_id(0)
    block = program // blocks
    _, live, outer, i_2 = rows_of_program(block, rows, size_2, SPLIT, False, LONG, BLOCK_R, 0)
    k = (program % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    at = places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG)
    t_at = places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG)
    raw = load_tile(logits, at, k, z_c, live, C, 0.0, hyper, LONG)
    t = load_tile(targets, t_at, k, t_c, live, C, 0.0, hyper, LONG)
    known = live[:, None] & (k < C)[None, :]
    if IGNORE is not None:
        known = known & (t != IGNORE)
    loss, slope = _terms(raw, t, k, hyper, C, PLAN, DETACH)
    if WEIGHTED:
        w_at = places(outer, i_2, size_1, w_0, w_1, w_2, W_UNIT, LONG)
        own = load_tile(weight, w_at, k, w_c, live, C, 0.0, hyper, LONG)
        loss *= own
        slope *= own
    loss = tl.where(known, loss, 0.0)
    one = tl.full([], 1.0, loss.dtype)  # Triton may specialise factors to the constant 1
    if ONCE == 1:
        slope *= one / (one * rows * C)
    elif ONCE == 3:
        slope *= one / (one * samples)
    if ELEMENTS or ONCE >= 0:
        written = tl.where(known, slope, 0.0) if ONCE >= 0 else loss
        place = out + places(outer, i_2, size_1, o_0, o_1, o_2, O_UNIT, LONG)[:, None] + offsets(k, o_c, LONG)[None, :]
        tl.store(place, written.to(out.dtype.element_ty), mask=live[:, None] & (k < C)[None, :])
    programs = tl.num_programs(0)
    count = known.to(loss.dtype)
    tl.store(sums_out + program, tl.sum(loss))
    tl.store(sums_out + programs + program, tl.sum(count))
    if SEEN != 0:
        p = tl.where(known, reciprocal(1.0 + exp(-raw)), 0.0)
        t = tl.where(known, t, 0.0)
        if SEEN == 1:
            tl.store(seen_out + program, tl.sum(p))
            tl.store(seen_out + programs + program, tl.sum(t))
            tl.store(seen_out + 2 * programs + program, tl.sum(p * t))
            tl.store(seen_out + 3 * programs + program, tl.sum(count))
        else:
            step = programs // blocks * C
            at = seen_out + block * C + k
            tl.store(at, tl.sum(p, 0), mask=k < C)
            tl.store(at + step, tl.sum(t, 0), mask=k < C)
            tl.store(at + 2 * step, tl.sum(p * t, 0), mask=k < C)
            tl.store(at + 3 * step, tl.sum(count, 0), mask=k < C)
    finish_last(ticket, sums_out, reduced, inverse, samples, REDUCTION, 1024)


@triton.jit
def elements_backward_kernel(
    logits, targets, weight, hyper, grad, inverse, out,
    rows, size_1, size_2, C, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, w_0, w_1, w_2, w_c, o_0, o_1, o_2, o_c,
    g_0, g_1, g_2, g_c,
    PLAN: tl.constexpr, IGNORE: tl.constexpr, WEIGHTED: tl.constexpr, DETACH: tl.constexpr, GRAD: tl.constexpr,
    Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, W_UNIT: tl.constexpr, O_UNIT: tl.constexpr, G_UNIT: tl.constexpr,
    LONG: tl.constexpr, SPLIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of elements; GRAD: 1 incoming scalar, 2 one per element, 3 a scalar times ``inverse``."""
    blocks = tl.cdiv(C, BLOCK_C)
    program = tl.program_id(0)
    _, live, outer, i_2 = rows_of_program(program // blocks, rows, size_2, SPLIT, False, LONG, BLOCK_R, 0)
    k = (program % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    at = places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG)
    t_at = places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG)
    z = load_tile(logits, at, k, z_c, live, C, 0.0, hyper, LONG)
    t = load_tile(targets, t_at, k, t_c, live, C, 0.0, hyper, LONG)
    _, slope = _terms(z, t, k, hyper, C, PLAN, DETACH)
    if WEIGHTED:
        w_at = places(outer, i_2, size_1, w_0, w_1, w_2, W_UNIT, LONG)
        slope *= load_tile(weight, w_at, k, w_c, live, C, 0.0, hyper, LONG)
    if GRAD == 2:
        g_at = places(outer, i_2, size_1, g_0, g_1, g_2, G_UNIT, LONG)
        slope *= load_tile(grad, g_at, k, g_c, live, C, 0.0, hyper, LONG)
    else:
        factor = tl.load(grad).to(slope.dtype)
        if GRAD == 3:
            factor *= tl.load(inverse)
        slope *= factor
    if IGNORE is not None:
        slope = tl.where(t != IGNORE, slope, 0.0)
    place = out + places(outer, i_2, size_1, o_0, o_1, o_2, O_UNIT, LONG)[:, None] + offsets(k, o_c, LONG)[None, :]
    tl.store(place, slope.to(out.dtype.element_ty), mask=live[:, None] & (k < C)[None, :])
