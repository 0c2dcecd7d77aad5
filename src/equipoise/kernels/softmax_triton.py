r"""Softmax link as fused Triton kernels: the closed forms of ``softmax_reference`` with per-row arithmetic inside.

A program takes a tile of rows and walks over the classes in blocks. Forward reads the logits once, by an online
softmax, and keeps two numbers a row: the largest adjusted logit, and the sum of the exponentials of all classes but
the true one relative to it, so that q = 1 - p keeps its precision at p = 1. Backward reads the logits once more and
writes the gradient. Where every class has a term (smoothing, dense targets, Brier) a row that is longer than a tile is
read again while it is in the cache, and a third number is kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.triton_forms import (
    confidence_gamma,
    exp,
    exp_relative,
    log1p,
    log_relative,
    other_form,
    relative,
    true_form,
)
from equipoise.kernels.triton_walk import load_tile, offsets, places, rows_of_program

__all__ = ["backward_kernel", "forward_kernel"]


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
def _with_margin(z, k, label, z_true, PLAN: tl.constexpr, DENSE: tl.constexpr):
    """Adjusted logits of index targets with the margin of the label, so that the peak is that of the softmax."""
    if not DENSE and PLAN.true_margin >= 0:
        z = tl.where(k[None, :] == label[:, None], z_true[:, None], z)
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
def _exponentials(x, k, label, DENSE: tl.constexpr):
    """Sum of the exponentials of each row, for index targets without the label's."""
    e = exp_relative(x)
    if not DENSE:
        e = tl.where(k[None, :] == label[:, None], 0.0, e)
    return tl.sum(e, 1)


@triton.jit
def _scanned(z, k, label, peak, others, DENSE: tl.constexpr):
    """Peak of each row and the exponentials relative to it, with one more tile: an online softmax."""
    top = tl.max(z, 1)
    finite = tl.where(top == float("-inf"), 0.0, top)
    more = _exponentials(relative(z, finite[:, None]), k, label, DENSE) / exp_relative(relative(finite, finite))
    fade = exp(tl.where(top == peak, 0.0, -tl.abs(top - peak)))
    others = tl.where(top > peak, more + others * fade, others + more * fade)
    return tl.maximum(peak, top), others


@triton.jit
def _scanned_rest(z, peak, rest):
    """The same without the peak itself, which counts 1; where several classes share it, all but one are in the rest."""
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
    """Log p, q, m and h of the true class of each row, and the sum of all exponentials.

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
        inverse = 1.0 / total
        p = own * inverse
        q = others * inverse
        # the quotient is at most 1 where it is used
        log_p = tl.where(q < 0.5, -log1p(others / tl.where(q < 0.5, own, 1.0)), z - peak - tl.log(total))
    gamma = p
    if PLAN.confidence_bounds >= 0:
        gamma = confidence_gamma(p, hyper, PLAN)
    elif PLAN.gamma_pos >= 0:
        gamma = tl.load(hyper + PLAN.gamma_pos + label * PLAN.gamma_pos_step)
    m, h = true_form(log_p, p, q, gamma, hyper, PLAN)
    return log_p, q, m, h, total


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
def _other_terms(
    x, rest, inverse, log_total, k, label, weight, hyper,
    C: tl.constexpr, PLAN: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """What smoothing adds for the classes that are not the label's: m log p, h, and p. Of the others 0, 0 and p.

    A focal loss takes the form of the true class for every class (Mukhoti et al. 2020, appendix A).
    """
    counts = (k < C)[None, :] & (k[None, :] != label[:, None])
    p = exp_relative(x) * inverse[:, None]
    log_p = log_relative(x) - log_total[:, None]
    if PLAN.gamma_neg >= 0:
        m, h = other_form(log_p, p, _class_gamma(PLAN.gamma_neg, PLAN.gamma_neg_step, k, hyper, C), hyper, PLAN)
    else:
        m, h = _true_forms(log_p, p, rest, k, hyper, C, PLAN)
    if WEIGHTED:
        by_class = tl.load(weight + k, mask=k < C, other=0.0)[None, :]
        m *= by_class
        h *= by_class
    return tl.where(counts, m * log_p, 0.0), tl.where(counts, h, 0.0), p


@triton.jit
def _dense_terms(
    x, t, rest, inverse, log_total, k, weight, hyper, C: tl.constexpr, PLAN: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """Mass times m log p, mass times h, and p of every class of a tile."""
    inside = (k < C)[None, :]
    p = exp_relative(x) * inverse[:, None]
    log_p = tl.where(inside, log_relative(x) - log_total[:, None], 0.0)
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
    """What a tile adds to the loss of its rows and to the number that every gradient of the row needs."""
    if PLAN.squared_error >= 0:
        difference, p = _differences(x, t, inverse, q_label, k, hyper, C, PLAN, DENSE)
        loss = difference * difference
        pull = difference * p
    elif DENSE:
        loss, pull, p = _dense_terms(x, t, rest, inverse, log_total, k, weight, hyper, C, PLAN, WEIGHTED)
    else:
        loss, pull, p = _other_terms(x, rest, inverse, log_total, k, label, weight, hyper, C, PLAN, WEIGHTED)
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
def _leaned(
    height, weighed, before, peak, z, t, k, label, weight, hyper,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Mass of the classes times how far they stand below the peak, and mass, summed; of the label's class nothing.

    All that cross-entropy needs of them, so that one pass will do; ``before`` is the peak so far.
    """
    height -= tl.where(weighed == 0.0, 0.0, (peak - before) * weighed)
    low = z - peak[:, None]
    if DENSE:
        counts = (k < C)[None, :]
        smoothing, share = _share(hyper, C, PLAN)
        mass = t * (1.0 - smoothing) + share
        if WEIGHTED:
            mass *= tl.load(weight + k, mask=k < C, other=0.0)[None, :]
        low *= mass
        weighed += tl.sum(tl.where(counts, mass, 0.0), 1)
    else:
        counts = (k < C)[None, :] & (k[None, :] != label[:, None])
        if WEIGHTED:
            mass = tl.load(weight + k, mask=k < C, other=0.0)[None, :] + tl.zeros_like(z)
            low *= mass
            weighed += tl.sum(tl.where(counts, mass, 0.0), 1)
        else:  # so many classes, without asking each
            first = tl.min(k)
            last = tl.minimum(tl.max(k), C - 1)
            weighed += (last - first + 1 - ((label >= first) & (label <= last)).to(tl.int32)).to(z.dtype)
    return height + tl.sum(tl.where(counts, low, 0.0), 1), weighed


@triton.jit
def forward_kernel(
    logits, targets, weight, hyper, state, rows_out, hits_out, sums_out,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, ignore_index,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr, HITS: tl.constexpr,
    ROWS: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Losses of a tile of rows.

    Writes to ``state`` (2 or 3, rows) the peak, the others' sum (-1 where the row is ignored) and, where every class
    has a term, the sum that all gradients of the row share; with ROWS the losses; with HITS whether the label is the
    first of the largest logits; and the sums of loss, mass and valid rows of this program, (3, programs).
    """
    row, live, outer, i_2 = rows_of_program(tl.program_id(0), rows, size_2, SPLIT, LONG, BLOCK_R)
    at = places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG)
    t_at = places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG)
    brier: tl.constexpr = PLAN.squared_error >= 0
    spread: tl.constexpr = DENSE or brier or PLAN.label_smoothing >= 0
    precise: tl.constexpr = spread and not brier and PLAN.fractional and (DENSE or PLAN.gamma_neg < 0)
    plain: tl.constexpr = spread and not brier and not PLAN.modulated and PLAN.gamma_neg < 0
    whole: tl.constexpr = C <= BLOCK_C

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

    peak = tl.full([BLOCK_R], float("-inf"), hyper.dtype.element_ty)
    others = tl.zeros([BLOCK_R], hyper.dtype.element_ty)  # of dense targets: all
    given = tl.zeros([BLOCK_R], hyper.dtype.element_ty)  # mass of dense targets
    height = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    weighed = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    lead = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    z_below = _next_below(z_label)
    if whole:
        k = tl.arange(0, BLOCK_C)
        z = load_tile(logits, at, k, z_c, live, C, float("-inf"), hyper, LONG)
        if HITS:
            lead = _lead(z, k, z_label, z_below, label)
        t = _targets(targets, t_at, k, t_c, label, live, C, hyper, DENSE, LONG)
        if DENSE:
            given = tl.sum(t, 1)
        z = _with_margin(_adjusted(z, t, k, hyper, C, PLAN, DENSE), k, label, z_true, PLAN, DENSE)
        if precise:
            peak, others = _scanned_rest(z, peak, others)
            x = relative(z, peak[:, None])
        else:  # the exponentials are needed once
            top = tl.max(z, 1)
            peak = tl.where(top == float("-inf"), 0.0, top)
            x = relative(z, peak[:, None])
            others = _exponentials(x, k, label, DENSE) / exp_relative(relative(peak, peak))
            if plain:
                height, weighed = _leaned(
                    height, weighed, peak, peak, z, t, k, label, weight, hyper, C, PLAN, DENSE, WEIGHTED
                )
    else:
        for start in range(0, C, BLOCK_C):
            k = start + tl.arange(0, BLOCK_C)
            z = load_tile(logits, at, k, z_c, live, C, float("-inf"), hyper, LONG)
            if HITS:
                lead = tl.maximum(lead, _lead(z, k, z_label, z_below, label))
            t = z
            if DENSE:
                t = _targets(targets, t_at, k, t_c, label, live, C, hyper, DENSE, LONG)
            if DENSE:
                given += tl.sum(t, 1)
            z = _with_margin(_adjusted(z, t, k, hyper, C, PLAN, DENSE), k, label, z_true, PLAN, DENSE)
            if precise:
                peak, others = _scanned_rest(z, peak, others)
            else:
                before = peak
                peak, others = _scanned(z, k, label, peak, others, DENSE)
                if plain:
                    height, weighed = _leaned(
                        height, weighed, before, peak, z, t, k, label, weight, hyper, C, PLAN, DENSE, WEIGHTED
                    )

    mass = tl.full([BLOCK_R], 1.0, hyper.dtype.element_ty)
    if DENSE:
        valid = live & (given != 0.0)
        total = others + 1.0 if precise else others
        q = others
        log_p = others
    else:
        if WEIGHTED:
            mass = tl.load(weight + label)
        log_p, q, m, h, total = _row_forms(z_true, peak, others, label, hyper, PLAN, precise)
    unit = exp_relative(relative(peak, peak))
    inverse = 1.0 / (total * unit)
    log_total = tl.log(total * unit)
    if plain:
        loss = height - tl.log(total) * weighed
        pull = weighed
    elif spread:
        if whole:
            loss, pull = _row_sums(
                x, t, others, inverse, log_total, q, k, label, weight, hyper, C, PLAN, DENSE, WEIGHTED
            )  # fmt: skip
        else:
            loss = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
            pull = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
            for start in range(0, C, BLOCK_C):
                k = start + tl.arange(0, BLOCK_C)
                z, t = _tile(logits, targets, at, t_at, k, z_c, t_c, label, live, hyper, C, PLAN, DENSE, LONG)
                x = relative(z, peak[:, None])
                more_loss, more_pull = _row_sums(
                    x, t, others, inverse, log_total, q, k, label, weight, hyper, C, PLAN, DENSE, WEIGHTED
                )  # fmt: skip
                loss += more_loss
                pull += more_pull
    if spread:
        if brier:
            if DENSE and WEIGHTED:
                loss *= _target_weight(targets, t_at, t_c, live, weight, hyper, C, LONG, BLOCK_C)
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
        tl.store(hits_out + row, (valid & (lead <= 0.0)).to(tl.uint8), mask=live)
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    tl.store(sums_out + program, tl.sum(loss))
    count = tl.sum(valid.to(tl.int32)).to(loss.dtype)
    if WEIGHTED and not DENSE:
        tl.store(sums_out + programs + program, tl.sum(tl.where(valid, mass, 0.0)))
    else:
        tl.store(sums_out + programs + program, count)
    tl.store(sums_out + 2 * programs + program, count)


@triton.jit
def _lead(z, k, z_label, z_below, label):
    """By how much a logit of the tile beats that of the label; an earlier class does so when it is equal."""
    return tl.max(z - tl.where(k[None, :] < label[:, None], z_below[:, None], z_label[:, None]), 1)


@triton.jit
def _next_below(z):
    """The largest number below z."""
    if z.dtype == tl.float64:
        bits = z.to(tl.int64, bitcast=True)
        bits = tl.where(z == 0.0, -0x7FFFFFFFFFFFFFFF, tl.where(z > 0.0, bits - 1, bits + 1))
        below = bits.to(tl.float64, bitcast=True)
    else:
        bits = z.to(tl.int32, bitcast=True)
        bits = tl.where(z == 0.0, -0x7FFFFFFF, tl.where(z > 0.0, bits - 1, bits + 1))
        below = bits.to(tl.float32, bitcast=True)
    return below


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
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of rows.

    GRAD says what comes in: 1 a scalar, 2 a row's own, 3 a scalar and the inverse of the denominator of the loss.
    """
    row, live, outer, i_2 = rows_of_program(tl.program_id(0), rows, size_2, SPLIT, LONG, BLOCK_R)
    at = places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG)
    g_at = places(outer, i_2, size_1, g_0, g_1, g_2, G_UNIT, LONG)
    t_at = places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG)
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
            factor *= _target_weight(targets, t_at, t_c, live, weight, hyper, C, LONG, BLOCK_C)
        else:
            factor *= tl.load(weight + label)
    factor = tl.where(valid, factor, 0.0)
    if DENSE:
        total = others + 1.0 if precise else others
        q = others
    else:
        z_label = tl.load(logits + at + offsets(label, z_c, LONG), mask=live, other=0.0).to(hyper.dtype.element_ty)
        z_label = _true_logit(z_label, label, hyper, PLAN)
        _log_p, q, _m, h, total = _row_forms(z_label, peak, others, label, hyper, PLAN, precise)
    total = tl.where(valid, total, 1.0) * exp_relative(relative(peak, peak))
    inverse = 1.0 / total
    log_total = tl.log(total)
    if spread:
        pull = tl.load(state + 2 * rows + row, mask=live, other=0.0)
    if not brier and not DENSE:
        own = tl.where(valid, factor * h, 0.0)
        back = tl.where(valid, -own * q, 0.0)
        strength = own * inverse
        if spread:
            smoothing, share = _share(hyper, C, PLAN)
            own = h * (1.0 - smoothing + share)
            if WEIGHTED:
                own *= tl.load(weight + label)
            back = factor * ((1.0 - q) * (pull - own) - own * q)
            back = tl.where(valid, back, 0.0)
            strength = tl.where(valid, factor * pull, 0.0)
            share = tl.where(valid, factor * share, 0.0)

    for start in range(0, C, BLOCK_C):
        k = start + tl.arange(0, BLOCK_C)
        z, t = _tile(logits, targets, at, t_at, k, z_c, t_c, label, live, hyper, C, PLAN, DENSE, LONG)
        x = relative(z, peak[:, None])
        if brier:
            difference, p = _differences(x, t, inverse, q, k, hyper, C, PLAN, DENSE)
            gradient = 2.0 * factor[:, None] * p * (difference - pull[:, None])
            gradient = tl.where(valid[:, None], gradient, 0.0)
        elif DENSE:
            _cost, slope, p = _dense_terms(
                x, t, others, inverse, log_total, k, weight, hyper, C, PLAN, WEIGHTED
            )  # fmt: skip
            # p times the sum minus the slope, written so that less cancels at p = 1
            gradient = factor[:, None] * (p * (pull[:, None] - slope) - slope * (1.0 - p))
            gradient = tl.where(valid[:, None], gradient, 0.0)
        else:
            if spread:
                _cost, slope, p = _other_terms(
                    x, others, inverse, log_total, k, label, weight, hyper, C, PLAN, WEIGHTED
                )  # fmt: skip
                gradient = p * strength[:, None] - share[:, None] * slope
            else:
                gradient = strength[:, None] * exp_relative(x)
            gradient = tl.where(k[None, :] == label[:, None], back[:, None], gradient)
        inside = live[:, None] & (k < C)[None, :]
        place = out + g_at[:, None] + offsets(k, g_c, LONG)[None, :]
        tl.store(place, gradient.to(out.dtype.element_ty), mask=inside)
