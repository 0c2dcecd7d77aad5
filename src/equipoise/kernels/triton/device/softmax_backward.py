r"""Softmax link, backward, as a fused Triton kernel: reads the logits again and writes their gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.triton.device.forms import (
    LOWEST,
    at_least,
    exp_relative,
    log,
    log_relative,
    lowest,
    reciprocal,
    relative,
    unit_of,
)
from equipoise.kernels.triton.device.softmax_forms import (
    adjusted_tile,
    dense_terms,
    differences,
    is_label,
    other_gradient,
    row_forms,
    smoothing_share,
    target_weight,
    true_logit,
    whole_rows,
    with_margin,
)
from equipoise.kernels.triton.device.walk import offsets, places, present, rows_of_program

__all__ = ["backward_kernel", "backward_tile"]


@triton.jit
def backward_tile(
    tile, peak, others, pull, factor, logits, targets, weight, hyper, out,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, g_0, g_1, g_2, g_c,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, CODED: tl.constexpr, KEPT: tl.constexpr,
    WEIGHTED: tl.constexpr, ONCE: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, G_UNIT: tl.constexpr,
    LONG: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of rows, times ``factor``; with KEPT, forward has saved ``peak``, ``others`` and ``pull``.

    ONCE: the program has just computed the exponentials of a row that it holds, so that they must be the same here.
    """
    _, live, outer, i_2 = rows_of_program(tile, rows, size_2, SPLIT, EVEN, LONG, BLOCK_R, VECTOR)
    at = places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG)
    g_at = places(outer, i_2, size_1, g_0, g_1, g_2, G_UNIT, LONG)
    t_at = places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG)
    at, there = present(at, live, VECTOR)
    t_at, _ = present(t_at, live, VECTOR)
    brier: tl.constexpr = PLAN.squared_error >= 0
    spread: tl.constexpr = DENSE or brier or PLAN.label_smoothing >= 0
    # The gradient of ignored rows is 0 for any logits. x is -inf or NaN there: it suffices to raise NaN to a number. If
    # the exponentials are at hand, and one mask holds for all classes of a store, a second store is less work.
    zeroed: tl.constexpr = ONCE and VECTOR <= 0
    at_hand: tl.constexpr = ONCE and C <= BLOCK_C
    precise: tl.constexpr = spread and not brier and PLAN.fractional and (DENSE or PLAN.gamma_neg < 0)

    valid = live & (others != -1.0)
    factor += tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    if PLAN.scale >= 0:
        factor *= tl.load(hyper + PLAN.scale)
    label = tl.zeros([BLOCK_R], tl.int32)
    if not DENSE:
        target = tl.load(targets + t_at, mask=live, other=0).to(tl.int64)
        if CODED:
            valid = live & (target != 2 * C)
            target = tl.where(target >= C, target - C, target)
        known = (target >= 0) & (target < C)
        label = tl.where(valid & known, target, 0).to(tl.int32)
        factor = tl.where(known, factor, float("nan"))
    if WEIGHTED and (brier or not spread):
        if DENSE:
            factor *= target_weight(targets, t_at, t_c, there, weight, hyper, C, LONG, BLOCK_C)
        else:
            factor *= tl.load(weight + label)
    factor = tl.where(valid, factor, 0.0)
    others = tl.where(valid, others, 0.0)
    if DENSE:
        peak = tl.where(valid, peak, float("inf"))  # as in forward for index targets
        total = others + 1.0 if precise else others
        q = others
    else:
        z_label = tl.load(logits + at + offsets(label, z_c, LONG), mask=live, other=0.0).to(hyper.dtype.element_ty)
        z_label = true_logit(z_label, label, hyper, PLAN)
        if not KEPT:
            apart: tl.constexpr = PLAN.true_margin >= 0
            padded: tl.constexpr = C < BLOCK_C and VECTOR != 0
            k = tl.arange(0, BLOCK_C)
            z, _t = adjusted_tile(logits, targets, at, t_at, k, z_c, t_c, label, there, hyper, C, PLAN, DENSE, LONG)
            mine = is_label(k, 0, label, VECTOR)
            z = with_margin(z, mine, z_label, PLAN, DENSE, spread)
            peak = tl.where(valid, lowest(hyper, BLOCK_R), float("inf"))  # as in forward
            if apart:
                peak = tl.maximum(z_label, peak)
            peak, _x, e, others = whole_rows(z, peak, mine, k, C, not apart, padded)
            others *= reciprocal(exp_relative(relative(peak, peak)))
        _log_p, p_label, q, _m, h, total = row_forms(z_label, peak, others, label, hyper, PLAN, precise)
        h = tl.where(valid, h, 0.0)
    total = tl.where(valid, total, 1.0)
    unit = unit_of(peak)
    shift = tl.where(valid, relative(peak, peak), 0.0)
    scale = reciprocal(total * exp_relative(shift))
    log_total = log(total) + log_relative(shift, unit)
    if spread:
        pull = tl.where(valid, pull, 0.0)
        smoothing, share = smoothing_share(hyper, C, PLAN)
    if not DENSE:  # gradient of the label
        if brier:
            factor *= 2.0
            back = factor * p_label * (smoothing - share - q - pull)
            pull += share
        elif spread:
            own = h * (1.0 - smoothing + share)
            if WEIGHTED:
                own *= tl.load(weight + label)
            back = factor * (p_label * (pull - own) - own * q)
            share *= factor
        else:
            back = -factor * h * q
        back = tl.where(valid, back, 0.0)

    for start in range(0, C, BLOCK_C):
        k = start + tl.arange(0, BLOCK_C)
        if KEPT:
            z, t = adjusted_tile(logits, targets, at, t_at, k, z_c, t_c, label, there, hyper, C, PLAN, DENSE, LONG)
            x = relative(z, peak[:, None])
            if spread and not at_hand:
                x = at_least(x, LOWEST)
        if DENSE:
            if brier:
                difference, p = differences(x, t, scale, q, k, hyper, C, PLAN, DENSE)
                gradient = 2.0 * factor[:, None] * p * (difference - pull[:, None])
            else:
                _cost, slope, p = dense_terms(
                    x, unit, t, others, scale, log_total, k, weight, hyper, C, PLAN, WEIGHTED
                )  # fmt: skip
                # p times the sum minus the slope, written with less cancellation at p = 1
                gradient = factor[:, None] * (p * (pull[:, None] - slope) - slope * (1.0 - p))
        else:
            if brier:
                p = exp_relative(x) * scale[:, None]
                gradient = p * (factor[:, None] * p - (factor * pull)[:, None])
            elif spread:
                gradient = other_gradient(
                    x, unit, others, scale, log_total, factor * pull, share, k, weight, hyper, C, PLAN, WEIGHTED
                )  # fmt: skip
            else:
                if KEPT:
                    e = exp_relative(x)
                if not zeroed:
                    e = at_least(e, 0.0)
                gradient = (factor * h * scale)[:, None] * e
            gradient = tl.where(is_label(k, start, label, VECTOR), back[:, None], gradient)
        inside = live[:, None] & (k < C)[None, :]
        place = (out + offsets(k, g_c, LONG))[None, :] + g_at[:, None]
        if spread and at_hand and not zeroed:
            gradient = tl.where(valid[:, None], gradient, 0.0)
        if zeroed:
            tl.store(place, gradient.to(out.dtype.element_ty), mask=inside & valid[:, None])
            gradient = tl.zeros_like(gradient)
            inside &= (valid == 0)[:, None]
        tl.store(place, gradient.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    logits, targets, weight, hyper, state, grad, inverse, out,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, g_0, g_1, g_2, g_c,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, CODED: tl.constexpr, KEPT: tl.constexpr,
    WEIGHTED: tl.constexpr, GRAD: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, G_UNIT: tl.constexpr,
    LONG: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of rows; CODED: ``targets`` are the codes of forward, whose type is smaller.

    KEPT: there is a ``state``. Otherwise a tile holds whole rows and recomputes their sums, which is faster than
    writing and reading them. GRAD is the incoming gradient: 1 a scalar, 2 one value per row, 3 a scalar and the inverse
    of the denominator of the loss.
    """
    tile = tl.program_id(0)
    row, live, _, _ = rows_of_program(tile, rows, size_2, SPLIT, EVEN, LONG, BLOCK_R, VECTOR)
    peak = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    others = peak
    if KEPT:
        peak = tl.load(state + row, mask=live, other=0.0)
        others = tl.load(state + rows + row, mask=live, other=-1.0)
    pull = others
    if DENSE or PLAN.squared_error >= 0 or PLAN.label_smoothing >= 0:
        pull = tl.load(state + 2 * rows + row, mask=live, other=0.0)
    if GRAD == 2:
        factor = tl.load(grad + row, mask=live, other=0.0).to(hyper.dtype.element_ty)
    else:
        factor = tl.load(grad).to(hyper.dtype.element_ty)
    if GRAD == 3:
        factor *= tl.load(inverse)
    backward_tile(
        tile, peak, others, pull, factor, logits, targets, weight, hyper, out,
        rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, g_0, g_1, g_2, g_c,
        C, PLAN, DENSE, CODED, KEPT, WEIGHTED, False, Z_UNIT, T_UNIT, G_UNIT, LONG, SPLIT, EVEN, BLOCK_R, BLOCK_C,
        VECTOR,
    )  # fmt: skip
