r"""Softmax link as fused Triton kernels: the closed forms of ``softmax_reference`` with per-row arithmetic inside.

A program takes a tile of rows and walks over the classes in blocks. Forward reads the logits once, by an online
softmax, and keeps two numbers a row: the largest adjusted logit, and the sum of the exponentials of all classes but
the true one relative to it, so that q = 1 - p keeps its precision at p = 1. Backward reads the logits once more and
writes the gradient. Where every class has a term (smoothing, dense targets, Brier) a third number is kept. Mostly these
terms are powers of p times log p, and their sums come out of the same pass; where they are not (exponents that are no
whole numbers, confidence) a row that is longer than a tile is read again while it is in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.rows_triton import finish_last
from equipoise.kernels.triton_forms import (
    confidence_gamma,
    exp,
    exp_relative,
    log,
    log1p,
    log_relative,
    other_form,
    power,
    quick_log1p,
    reciprocal,
    relative,
    row_max,
    true_form,
)
from equipoise.kernels.triton_walk import load_tile, offsets, places, present, rows_of_program

__all__ = ["backward_kernel", "forward_kernel"]

LOWEST = tl.constexpr(-1e30)  # below every logit: the peak before the first tile
NOTHING = tl.constexpr(-0.0)  # added to anything it changes nothing, not even a sign: the compiler leaves it out


@triton.jit
def _adjusted(z, t, k, hyper, C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr):
    """``scale * (z + offset - t * margin)``; for index targets without the margin, which is the label's alone."""
    inside = k < C
    if PLAN.offset >= 0:
        z += tl.load(hyper + PLAN.offset + k * PLAN.offset_step, mask=inside, other=0.0)[None, :]
    if DENSE and PLAN.true_margin >= 0:
        z -= t * tl.load(hyper + PLAN.true_margin + k * PLAN.true_margin_step, mask=inside, other=0.0)[None, :]
    if PLAN.scale >= 0:
        z *= tl.load(hyper + PLAN.scale)
    return z


@triton.jit
def _with_margin(z, k, label, z_true, PLAN: tl.constexpr, DENSE: tl.constexpr, SPREAD: tl.constexpr):
    """Adjusted logits of index targets with the margin of the label; without the label where its exponential is apart.

    The peak has to be that of the softmax with the margin.
    """
    if not DENSE and PLAN.true_margin >= 0:
        own = k[None, :] == label[:, None]
        if SPREAD:
            z = tl.where(own, z_true[:, None], z)
        else:
            z = tl.where(own, float("-inf"), z)
    return z


@triton.jit
def _targets(targets, at, k, stride_c, label, live, C: tl.constexpr, hyper, DENSE: tl.constexpr, LONG: tl.constexpr):
    """Target distribution of a tile."""
    if DENSE:
        t = load_tile(targets, at, k, stride_c, live, C, 0.0, hyper, LONG)
    else:
        t = (k[None, :] == label[:, None]).to(hyper.dtype.element_ty)
    return t


@triton.jit
def _tile(
    logits, targets, at, t_at, k, z_c, t_c, label, live, hyper,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Adjusted logits and targets of a tile."""
    z = load_tile(logits, at, k, z_c, live, C, float("-inf"), hyper, LONG)
    t = _targets(targets, t_at, k, t_c, label, live, C, hyper, DENSE, LONG)
    return _adjusted(z, t, k, hyper, C, PLAN, DENSE), t


@triton.jit
def _faded(peak, top):
    """By how much what was relative to the peak sinks when that rises to the top, in units of log 2, and its factor."""
    sunk = relative(peak, top) - relative(peak, peak)
    return sunk, exp_relative(sunk)


@triton.jit
def _exponentials(x, k, label, C: tl.constexpr, WITHOUT: tl.constexpr, PADDED: tl.constexpr):
    """Exponentials of a tile; WITHOUT: nothing at the label."""
    e = exp_relative(x)
    if WITHOUT:
        e = tl.where(k[None, :] == label[:, None], NOTHING, e)
    return _inside(e, k, C, PADDED)


@triton.jit
def _inside(tile, k, C: tl.constexpr, PADDED: tl.constexpr):
    """PADDED: nothing beyond the last class, where the compiler knows each class and can leave these out."""
    if PADDED:
        tile = tl.where((k < C)[None, :], tile, NOTHING)
    return tile


@triton.jit
def _scanned_rest(z, peak, rest):
    """Peak of each row and the exponentials relative to it with one more tile, but not the peak itself, which counts 1.

    Where several classes share it, all but one are in the rest.
    """
    top = tl.max(z, 1)
    finite = tl.where(top == float("-inf"), 0.0, top)
    largest = z == top[:, None]
    below = tl.sum(tl.where(largest, 0.0, exp_relative(relative(z, finite[:, None]))), 1)
    below = below / exp_relative(relative(finite, finite)) + tl.sum(largest.to(tl.int32), 1).to(z.dtype) - 1.0
    fade = exp(tl.where(top == peak, 0.0, -tl.abs(top - peak)))
    rest = tl.where(top > peak, below + (1.0 + rest) * fade, rest + (1.0 + below) * fade)
    return tl.maximum(peak, top), rest


@triton.jit
def _row_forms(z, peak, others, label, hyper, PLAN: tl.constexpr, PRECISE: tl.constexpr):
    """Log p, p, q, m and h of the true class of each row, and the sum of all exponentials.

    The others' sum, or the rest of the peak, gives q, and log p near p = 1, without a difference.
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
def _class_gamma(start: tl.constexpr, STEP: tl.constexpr, k, hyper, C: tl.constexpr):
    """One exponent for all classes, or those of a tile."""
    if STEP == 1:
        gamma = tl.load(hyper + start + k, mask=k < C, other=1.0)[None, :]
    else:
        gamma = tl.load(hyper + start)
    return gamma


@triton.jit
def _true_forms(log_p, p, rest, k, hyper, C: tl.constexpr, PLAN: tl.constexpr):
    """M and h of every class of a tile, in the form of the true class.

    A fractional power shows every digit of q, so that of the peak is taken from the rest.
    """
    q = 1.0 - p
    if PLAN.fractional:
        q = tl.where(p > 0.5, (rest / (1.0 + rest))[:, None], q)
        log_p = tl.where(p > 0.5, -log1p(rest)[:, None], log_p)
    gamma = p
    if PLAN.confidence_bounds >= 0:
        gamma = confidence_gamma(p, hyper, PLAN)
    elif PLAN.gamma_pos >= 0:
        gamma = _class_gamma(PLAN.gamma_pos, PLAN.gamma_pos_step, k, hyper, C)
    return true_form(log_p, p, q, gamma, hyper, PLAN)


@triton.jit
def _share(hyper, C: tl.constexpr, PLAN: tl.constexpr):
    """Smoothing, and what of it falls to each class."""
    smoothing = 0.0
    if PLAN.label_smoothing >= 0:
        smoothing = tl.load(hyper + PLAN.label_smoothing)
    return smoothing, smoothing / C


@triton.jit
def _other_forms(
    x, rest, inverse, log_total, k, weight, hyper, C: tl.constexpr, PLAN: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """M log p, h and p of every class of a tile in the form of the classes that are not the label's.

    A focal loss takes the form of the true class for every class (Mukhoti et al. 2020, appendix A).
    """
    p = exp_relative(x) * inverse[:, None]
    log_p = log_relative(x) - log_total[:, None]
    if PLAN.gamma_neg >= 0:
        log_p = tl.maximum(log_p, LOWEST)  # where p has vanished, so does its product
        m, h = other_form(log_p, p, _class_gamma(PLAN.gamma_neg, PLAN.gamma_neg_step, k, hyper, C), hyper, PLAN)
    else:
        m, h = _true_forms(log_p, p, rest, k, hyper, C, PLAN)
    if WEIGHTED:
        by_class = tl.load(weight + k, mask=k < C, other=0.0)[None, :]
        m *= by_class
        h *= by_class
    return m * log_p, h, p


@triton.jit
def _dense_terms(
    x, t, rest, inverse, log_total, k, weight, hyper, C: tl.constexpr, PLAN: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """Mass times m log p, mass times h, and p of every class of a tile."""
    inside = (k < C)[None, :]
    p = exp_relative(x) * inverse[:, None]
    log_p = tl.where(inside, tl.maximum(log_relative(x) - log_total[:, None], LOWEST), 0.0)
    smoothing, share = _share(hyper, C, PLAN)
    m, h = _true_forms(log_p, p, rest, k, hyper, C, PLAN)
    if PLAN.gamma_neg >= 0:
        gamma_neg = _class_gamma(PLAN.gamma_neg, PLAN.gamma_neg_step, k, hyper, C)
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
    return cost * log_p, tl.where(inside, slope, 0.0), p


@triton.jit
def _differences(
    x, t, inverse, q_label, k, hyper, C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr
):  # fmt: skip
    """P - t of every class, t smoothed, and p."""
    p = exp_relative(x) * inverse[:, None]
    smoothing, share = _share(hyper, C, PLAN)
    smooth = t * (1.0 - smoothing) + share
    difference = p - smooth
    if not DENSE:
        difference = tl.where(t != 0.0, (1.0 - smooth) - q_label[:, None], difference)
    return tl.where((k < C)[None, :], difference, 0.0), p


@triton.jit
def _row_sums(
    x, t, rest, inverse, log_total, q_label, k, label, weight, hyper,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """What a tile adds to the loss of its rows and to the number that every gradient of the row needs.

    Of the label of index targets nothing, but for a squared error.
    """
    if PLAN.squared_error >= 0:
        difference, p = _differences(x, t, inverse, q_label, k, hyper, C, PLAN, DENSE)
        loss = difference * difference
        pull = difference * p
    elif DENSE:
        loss, pull, p = _dense_terms(x, t, rest, inverse, log_total, k, weight, hyper, C, PLAN, WEIGHTED)
    else:
        counts = (k < C)[None, :] & (k[None, :] != label[:, None])
        loss, pull, p = _other_forms(x, rest, inverse, log_total, k, weight, hyper, C, PLAN, WEIGHTED)
        loss = tl.where(counts, loss, 0.0)
        pull = tl.where(counts, pull, 0.0)
    return tl.sum(loss, 1), tl.sum(pull, 1)


@triton.jit
def _target_weight(targets, t_at, t_c, live, weight, hyper, C: tl.constexpr, LONG: tl.constexpr, BLOCK_C: tl.constexpr):
    """Class weights of dense targets, summed over each row."""
    total = tl.zeros(t_at.shape, hyper.dtype.element_ty)
    for start in range(0, C, BLOCK_C):
        k = start + tl.arange(0, BLOCK_C)
        t = load_tile(targets, t_at, k, t_c, live, C, 0.0, hyper, LONG)
        total += tl.sum(t * tl.load(weight + k, mask=k < C, other=0.0)[None, :], 1)
    return total


@triton.jit
def _powers(
    x, e, t, k, weight, hyper,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Sums over a tile of the powers of the exponentials that the loss is made of, and of the same times x.

    Of the power 0, to which the label of index targets belongs as well, and of two more.
    """
    finite = tl.maximum(x, LOWEST)  # 0 times it is 0
    mass = tl.full(x.shape, 1.0, x.dtype)
    if WEIGHTED:
        mass *= tl.load(weight + k, mask=k < C, other=0.0)[None, :]
    none = tl.zeros([x.shape[0]], x.dtype)
    sum_0 = none
    tilt_0 = none
    sum_a = none
    tilt_a = none
    sum_b = none
    tilt_b = none
    if PLAN.power_0:
        inside = (k < C)[None, :]
        part = mass
        below = x
        if DENSE:
            smoothing, share = _share(hyper, C, PLAN)
            part *= t * (1.0 - smoothing) + share
        if DENSE or WEIGHTED:
            below = finite
        sum_0 = tl.sum(tl.where(inside, part, NOTHING), 1)
        tilt_0 = tl.sum(tl.where(inside, part * below, NOTHING), 1)
    if PLAN.power_a > 0:
        part = power(e, e, PLAN.power_a) * mass
        sum_a = tl.sum(_inside(part, k, C, PADDED), 1)
        tilt_a = tl.sum(_inside(part * finite, k, C, PADDED), 1)
    if PLAN.power_b > 0:
        part = power(e, e, PLAN.power_b) * mass
        sum_b = tl.sum(_inside(part, k, C, PADDED), 1)
        tilt_b = tl.sum(_inside(part * finite, k, C, PADDED), 1)
    return sum_0, tilt_0, sum_a, tilt_a, sum_b, tilt_b


@triton.jit
def _sunk(total, tilt, more, more_tilt, sunk, fade, POWER: tl.constexpr):
    """Sums of one power with those of one more tile, under a peak that has risen."""
    if POWER > 0:
        faded = power(fade, fade, POWER)
        tilt = (tilt + sunk * total) * faded + more_tilt
        total = total * faded + more
    else:
        tilt += sunk * total + more_tilt
        total += more
    return total, tilt


@triton.jit
def _from_powers(
    sum_0, tilt_0, sum_a, tilt_a, sum_b, tilt_b, inverse, log_total, hyper, PLAN: tl.constexpr
):  # fmt: skip
    r"""Sums of m log p and of h, from those of powers of p: :math:`m = \sum_j c_j p^j`.

    With :math:`l_j = \sum_k p_k^j \log p_k`, they are :math:`\sum_j c_j l_j` and
    :math:`\sum_j c_j (\sum_k p_k^j + j l_j)`.
    """
    loss = tl.zeros_like(inverse)
    pull = loss
    c_0 = 1.0
    c_a = 1.0
    c_b = 1.0
    if PLAN.gamma_neg >= 0:
        if PLAN.xi >= 0:
            c_0 = tl.load(hyper + PLAN.xi)
            c_a = 1.0 - c_0
    elif PLAN.power_b > 0:  # (1 - p) ** 2
        c_a = -2.0
    else:  # 1 - p
        c_a = -1.0
    if PLAN.power_0:
        loss += c_0 * (log_relative(tilt_0) - log_total * sum_0)
        pull += c_0 * sum_0
    if PLAN.power_a > 0:
        scale = power(inverse, inverse, PLAN.power_a)
        low = (log_relative(tilt_a) - log_total * sum_a) * scale
        loss += c_a * low
        pull += c_a * (sum_a * scale + PLAN.power_a * low)
    if PLAN.power_b > 0:
        scale = power(inverse, inverse, PLAN.power_b)
        low = (log_relative(tilt_b) - log_total * sum_b) * scale
        loss += c_b * low
        pull += c_b * (sum_b * scale + PLAN.power_b * low)
    return loss, pull


@triton.jit
def _forward_tile(
    tile, logits, targets, weight, hyper, state, rows_out, codes_out,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, ignore_index,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr, HITS: tl.constexpr,
    ROWS: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr,
    EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Loss, mass and whether it counts, of each row of a tile; see the kernel."""
    row, live, outer, i_2 = rows_of_program(tile, rows, size_2, SPLIT, EVEN, LONG, BLOCK_R, VECTOR)
    at = places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG)
    t_at = places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG)
    at, there = present(at, live, VECTOR)
    t_at, _ = present(t_at, live, VECTOR)
    brier: tl.constexpr = PLAN.squared_error >= 0
    spread: tl.constexpr = DENSE or brier or PLAN.label_smoothing >= 0
    precise: tl.constexpr = spread and not brier and PLAN.fractional and (DENSE or PLAN.gamma_neg < 0)
    summed: tl.constexpr = spread and (PLAN.plain if DENSE else PLAN.in_powers)  # one pass will do
    apart: tl.constexpr = not DENSE and not spread and PLAN.true_margin >= 0  # the label is not among the others
    whole: tl.constexpr = C <= BLOCK_C
    padded: tl.constexpr = C < BLOCK_C and VECTOR > 0

    valid = live
    known = live
    label = tl.zeros([BLOCK_R], tl.int32)
    if not DENSE:
        target = tl.load(targets + t_at, mask=live, other=0).to(tl.int64)
        valid = live & (target != ignore_index)
        known = (target >= 0) & (target < C)  # anything else shows up as NaN
        label = tl.where(valid & known, target, 0).to(tl.int32)
    z_label = tl.load(logits + at + offsets(label, z_c, LONG), mask=live, other=0.0).to(hyper.dtype.element_ty)
    z_true = _true_logit(z_label, label, hyper, PLAN)

    nothing = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    peak = tl.full([BLOCK_R], LOWEST, hyper.dtype.element_ty)
    best = peak  # largest logit, and that of the classes before the label
    ahead = peak
    if apart:
        peak = tl.maximum(z_true, LOWEST)
    others = nothing  # of dense targets: all
    given = nothing  # mass of dense targets
    sum_0 = nothing
    tilt_0 = nothing
    sum_a = nothing
    tilt_a = nothing
    sum_b = nothing
    tilt_b = nothing
    if whole:
        k = tl.arange(0, BLOCK_C)
        z = load_tile(logits, at, k, z_c, there, C, float("-inf"), hyper, LONG)
        if HITS:
            best = row_max(z)
            ahead = row_max(tl.where(k[None, :] < label[:, None], z, float("-inf")))
        t = _targets(targets, t_at, k, t_c, label, there, C, hyper, DENSE, LONG)
        if DENSE:
            given = tl.sum(t, 1)
        z = _with_margin(_adjusted(z, t, k, hyper, C, PLAN, DENSE), k, label, z_true, PLAN, DENSE, spread)
        if precise:
            peak, others = _scanned_rest(z, peak, others)
            x = relative(z, peak[:, None])
        else:
            peak = tl.maximum(row_max(z), peak)
            x = relative(z, peak[:, None])
            e = _exponentials(x, k, label, C, not DENSE and not apart, padded)
            others = tl.sum(e, 1)
            if summed:
                sum_0, tilt_0, sum_a, tilt_a, sum_b, tilt_b = _powers(
                    x, e, t, k, weight, hyper, C, PLAN, DENSE, WEIGHTED and not brier, padded
                )
    else:
        for start in range(0, C, BLOCK_C):
            k = start + tl.arange(0, BLOCK_C)
            z = load_tile(logits, at, k, z_c, there, C, float("-inf"), hyper, LONG)
            if HITS:
                best = tl.maximum(best, row_max(z))
                ahead = tl.maximum(ahead, row_max(tl.where(k[None, :] < label[:, None], z, float("-inf"))))
            t = z
            if DENSE:
                t = _targets(targets, t_at, k, t_c, label, there, C, hyper, DENSE, LONG)
                given += tl.sum(t, 1)
            z = _with_margin(_adjusted(z, t, k, hyper, C, PLAN, DENSE), k, label, z_true, PLAN, DENSE, spread)
            if precise:
                peak, others = _scanned_rest(z, peak, others)
            else:
                top = tl.maximum(row_max(z), peak)
                sunk, fade = _faded(peak, top)
                peak = top
                x = relative(z, peak[:, None])
                e = _exponentials(x, k, label, C, not DENSE and not apart, padded)
                others = others * fade + tl.sum(e, 1)
                if summed:
                    more_0, more_tilt_0, more_a, more_tilt_a, more_b, more_tilt_b = _powers(
                        x, e, t, k, weight, hyper, C, PLAN, DENSE, WEIGHTED and not brier, padded
                    )
                    if PLAN.power_0:
                        sum_0, tilt_0 = _sunk(sum_0, tilt_0, more_0, more_tilt_0, sunk, fade, 0)
                    if PLAN.power_a > 0:
                        sum_a, tilt_a = _sunk(sum_a, tilt_a, more_a, more_tilt_a, sunk, fade, PLAN.power_a)
                    if PLAN.power_b > 0:
                        sum_b, tilt_b = _sunk(sum_b, tilt_b, more_b, more_tilt_b, sunk, fade, PLAN.power_b)

    shift = relative(peak, peak)
    unit = exp_relative(shift)
    if not precise:
        others *= reciprocal(unit)
    mass = tl.full([BLOCK_R], 1.0, hyper.dtype.element_ty)
    if DENSE:
        valid = live & (given != 0.0)
        total = others + 1.0 if precise else others
        q = others
        log_p = others
    else:
        if WEIGHTED:
            mass = tl.load(weight + label)
        log_p, p_label, q, m, h, total = _row_forms(z_true, peak, others, label, hyper, PLAN, precise)
    inverse = reciprocal(total * unit)
    log_total = log(total) + log_relative(shift)
    if summed:
        if brier:  # the squares of the others' p, and their pull; the label's follow
            squares = sum_a * inverse * inverse
            loss = squares + q * q
            pull = squares - q * p_label
        else:
            if PLAN.power_0 and not DENSE:
                sum_0 -= mass
                tilt_0 -= mass * relative(z_true, peak)
            loss, pull = _from_powers(
                sum_0, tilt_0, sum_a, tilt_a, sum_b, tilt_b, inverse, log_total, hyper, PLAN
            )  # fmt: skip
    elif spread:
        if whole:
            loss, pull = _row_sums(
                x, t, others, inverse, log_total, q, k, label, weight, hyper, C, PLAN, DENSE, WEIGHTED
            )  # fmt: skip
        else:
            loss = nothing
            pull = nothing
            for start in range(0, C, BLOCK_C):
                k = start + tl.arange(0, BLOCK_C)
                z, t = _tile(logits, targets, at, t_at, k, z_c, t_c, label, there, hyper, C, PLAN, DENSE, LONG)
                x = relative(z, peak[:, None])
                more_loss, more_pull = _row_sums(
                    x, t, others, inverse, log_total, q, k, label, weight, hyper, C, PLAN, DENSE, WEIGHTED
                )  # fmt: skip
                loss += more_loss
                pull += more_pull
    if spread:
        if brier:
            if DENSE and WEIGHTED:
                loss *= _target_weight(targets, t_at, t_c, there, weight, hyper, C, LONG, BLOCK_C)
            else:
                loss *= mass
        elif DENSE:
            loss = -loss
        else:
            smoothing, share = _share(hyper, C, PLAN)
            own = mass * (1.0 - smoothing + share)
            loss = -(own * m * log_p + share * loss)
            pull = own * h + share * pull
        tl.store(state + 2 * rows + row, pull, mask=live)
    else:
        loss = -mass * m * log_p
    loss = tl.where(valid, tl.where(known, loss, float("nan")), 0.0)

    tl.store(state + row, peak, mask=live)
    tl.store(state + rows + row, tl.where(valid, others, -1.0), mask=live)
    if ROWS:
        tl.store(rows_out + row, loss, mask=live)
    if HITS:
        hit = (z_label >= best) & (z_label > ahead)
        code = tl.where(valid, label + tl.where(hit, C, 0), 2 * C)
        tl.store(codes_out + row, code.to(codes_out.dtype.element_ty), mask=live)
    if DENSE or not WEIGHTED:
        mass = valid.to(loss.dtype)
    else:
        mass = tl.where(valid, mass, 0.0)
    return loss, mass, valid


@triton.jit
def forward_kernel(
    logits, targets, weight, hyper, state, rows_out, codes_out, sums_out, ticket, reduced, inverse,
    turns, rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, ignore_index, samples,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr, HITS: tl.constexpr,
    ROWS: tl.constexpr, REDUCTION: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, LONG: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Losses of the rows of ``turns`` tiles.

    Writes to ``state`` (2 or 3, rows) the peak, the others' sum (-1 where the row is ignored) and, where every class
    has a term, the sum that all gradients of the row share; with ROWS the losses; with HITS a code of the label, by C
    more where that is the first of the largest logits, and 2 C where the row is ignored; and the sums of loss, mass and
    valid rows of this program, (3, programs). With a REDUCTION of 0 and more the last program writes the reduced loss,
    see ``finish_last``.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    loss = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    mass = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    count = tl.zeros([BLOCK_R], tl.int32)
    for turn in range(turns):
        more_loss, more_mass, valid = _forward_tile(
            program * turns + turn, logits, targets, weight, hyper, state, rows_out, codes_out,
            rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, ignore_index,
            C, PLAN, DENSE, WEIGHTED, HITS, ROWS, Z_UNIT, T_UNIT, LONG, SPLIT, EVEN, BLOCK_R, BLOCK_C, VECTOR,
        )  # fmt: skip
        loss += more_loss
        mass += more_mass
        count += valid.to(tl.int32)
    tl.store(sums_out + program, tl.sum(loss))
    valid_rows = tl.sum(count).to(loss.dtype)
    if WEIGHTED and not DENSE:
        tl.store(sums_out + programs + program, tl.sum(mass))
    else:
        tl.store(sums_out + programs + program, valid_rows)
    tl.store(sums_out + 2 * programs + program, valid_rows)
    finish_last(ticket, sums_out, reduced, inverse, samples, REDUCTION, 1024)


@triton.jit
def _true_logit(z, label, hyper, PLAN: tl.constexpr):
    """The adjusted logit of the true class of each row."""
    if PLAN.offset >= 0:
        z += tl.load(hyper + PLAN.offset + label * PLAN.offset_step)
    if PLAN.true_margin >= 0:
        z -= tl.load(hyper + PLAN.true_margin + label * PLAN.true_margin_step)
    if PLAN.scale >= 0:
        z *= tl.load(hyper + PLAN.scale)
    return z


@triton.jit
def backward_kernel(
    logits, targets, weight, hyper, state, grad, inverse, out,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, g_0, g_1, g_2, g_c,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr, GRAD: tl.constexpr,
    Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, G_UNIT: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr,
    EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of rows.

    GRAD says what comes in: 1 a scalar, 2 a row's own, 3 a scalar and the inverse of the denominator of the loss.
    """
    row, live, outer, i_2 = rows_of_program(tl.program_id(0), rows, size_2, SPLIT, EVEN, LONG, BLOCK_R, VECTOR)
    at = places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG)
    g_at = places(outer, i_2, size_1, g_0, g_1, g_2, G_UNIT, LONG)
    t_at = places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG)
    at, there = present(at, live, VECTOR)
    t_at, _ = present(t_at, live, VECTOR)
    brier: tl.constexpr = PLAN.squared_error >= 0
    spread: tl.constexpr = DENSE or brier or PLAN.label_smoothing >= 0
    precise: tl.constexpr = spread and not brier and PLAN.fractional and (DENSE or PLAN.gamma_neg < 0)

    peak = tl.load(state + row, mask=live, other=0.0)
    others = tl.load(state + rows + row, mask=live, other=-1.0)
    valid = live & (others != -1.0)
    others = tl.where(valid, others, 0.0)
    factor = tl.full([BLOCK_R], 1.0, hyper.dtype.element_ty)
    if GRAD == 2:
        factor = tl.load(grad + row, mask=live, other=0.0).to(hyper.dtype.element_ty)
    else:
        factor *= tl.load(grad).to(hyper.dtype.element_ty)
    if GRAD == 3:
        factor *= tl.load(inverse)
    if PLAN.scale >= 0:
        factor *= tl.load(hyper + PLAN.scale)
    label = tl.zeros([BLOCK_R], tl.int32)
    if not DENSE:
        target = tl.load(targets + t_at, mask=live, other=0).to(tl.int64)
        known = (target >= 0) & (target < C)
        label = tl.where(valid & known, target, 0).to(tl.int32)
        factor = tl.where(known, factor, float("nan"))
    if WEIGHTED and (brier or not spread):
        if DENSE:
            factor *= _target_weight(targets, t_at, t_c, there, weight, hyper, C, LONG, BLOCK_C)
        else:
            factor *= tl.load(weight + label)
    factor = tl.where(valid, factor, 0.0)
    if DENSE:
        total = others + 1.0 if precise else others
        q = others
    else:
        z_label = tl.load(logits + at + offsets(label, z_c, LONG), mask=live, other=0.0).to(hyper.dtype.element_ty)
        z_label = _true_logit(z_label, label, hyper, PLAN)
        _log_p, p_label, q, _m, h, total = _row_forms(z_label, peak, others, label, hyper, PLAN, precise)
        h = tl.where(valid, h, 0.0)
    total = tl.where(valid, total, 1.0)
    shift = relative(peak, peak)
    scale = reciprocal(total * exp_relative(shift))
    log_total = log(total) + log_relative(shift)
    if spread:
        pull = tl.load(state + 2 * rows + row, mask=valid, other=0.0)
        smoothing, share = _share(hyper, C, PLAN)
    if not DENSE:  # of the label
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
        z, t = _tile(logits, targets, at, t_at, k, z_c, t_c, label, there, hyper, C, PLAN, DENSE, LONG)
        x = relative(z, peak[:, None])
        if DENSE:
            if brier:
                difference, p = _differences(x, t, scale, q, k, hyper, C, PLAN, DENSE)
                gradient = 2.0 * factor[:, None] * p * (difference - pull[:, None])
            else:
                _cost, slope, p = _dense_terms(
                    x, t, others, scale, log_total, k, weight, hyper, C, PLAN, WEIGHTED
                )  # fmt: skip
                # p times the sum minus the slope, written so that less cancels at p = 1
                gradient = factor[:, None] * (p * (pull[:, None] - slope) - slope * (1.0 - p))
            gradient = tl.where(valid[:, None], gradient, 0.0)
        else:
            if brier:
                p = exp_relative(x) * scale[:, None]
                gradient = p * (factor[:, None] * p - (factor * pull)[:, None])
            elif spread:
                _cost, slope, p = _other_forms(
                    x, others, scale, log_total, k, weight, hyper, C, PLAN, WEIGHTED
                )  # fmt: skip
                gradient = p * (factor * pull)[:, None] - share[:, None] * slope
            else:
                gradient = (factor * h * scale)[:, None] * exp_relative(x)
            gradient = tl.where(k[None, :] == label[:, None], back[:, None], gradient)
        inside = live[:, None] & (k < C)[None, :]
        place = (out + offsets(k, g_c, LONG))[None, :] + g_at[:, None]
        tl.store(place, gradient.to(out.dtype.element_ty), mask=inside)
