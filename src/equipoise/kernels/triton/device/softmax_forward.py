r"""Softmax link, forward, as a fused Triton kernel with per-row arithmetic inside.

A program processes a tile of rows and iterates over the classes in blocks. It reads the logits once, with an online
softmax, and saves two numbers per row, see ``softmax_forms``, or three if every class has a term (smoothing, dense
targets, Brier). Usually these terms are powers of p times log p, whose sums are computed in the same pass. Otherwise
(non-integer exponents, exponents by confidence) a row that is longer than a tile is read again while it is in the
cache. Nothing is saved if forward also writes the gradient, or if backward has whole rows in one tile and can recompute
the numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.triton.device.forms import (
    LOWEST,
    exp,
    exp_relative,
    log,
    log_relative,
    lowest,
    power,
    reciprocal,
    relative,
    row_max,
    unit_of,
)
from equipoise.kernels.triton.device.rows import finish_last
from equipoise.kernels.triton.device.softmax_backward import backward_tile
from equipoise.kernels.triton.device.softmax_forms import (
    NOTHING,
    adjusted,
    adjusted_tile,
    dense_terms,
    differences,
    exponentials,
    faded,
    is_label,
    other_forms,
    product,
    row_forms,
    smoothing_share,
    target_tile,
    target_weight,
    true_logit,
    unpadded,
    whole_rows,
    with_margin,
)
from equipoise.kernels.triton.device.walk import load_tile, mass_of, offsets, places, present, rows_of_program

__all__ = ["forward_kernel"]


@triton.jit
def _before(z, k, label, C: tl.constexpr):
    """Logits of the classes before the label; the bound C lets the compiler remove the padding."""
    return tl.where((k[None, :] < label[:, None]) & (k < C)[None, :], z, float("-inf"))


@triton.jit
def _scanned_rest(z, peak, rest):
    """Add one tile: the peak of each row, and the sum of exponentials relative to it without the peak itself.

    If several classes share the peak, the sum includes all but one of them.
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
def _row_sums(
    x, unit, t, rest, inverse, log_total, q_label, k, own, weight, hyper,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Contribution of a tile to the loss of its rows and to the sum that all gradients of a row need.

    The label of index targets is excluded, except for a squared error.
    """
    if PLAN.squared_error >= 0:
        difference, p = differences(x, t, inverse, q_label, k, hyper, C, PLAN, DENSE)
        loss = difference * difference
        pull = difference * p
    elif DENSE:
        loss, pull, p = dense_terms(x, unit, t, rest, inverse, log_total, k, weight, hyper, C, PLAN, WEIGHTED)
    else:
        counts = (k < C)[None, :] & (own == 0)
        loss, pull, p = other_forms(x, unit, rest, inverse, log_total, k, weight, hyper, C, PLAN, WEIGHTED)
        loss = tl.where(counts, loss, 0.0)
        pull = tl.where(counts, pull, 0.0)
    return tl.sum(loss, 1), tl.sum(pull, 1)


@triton.jit
def _powers(
    x, e, t, start, k, weight, hyper,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Sums over a tile of the powers of exponentials that the loss consists of, and of these powers times x.

    The powers are 0, which includes the label of index targets, and up to two more.
    """
    finite = tl.maximum(x, LOWEST)  # finite, so that 0 times it is 0
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
        if DENSE:
            smoothing, share = smoothing_share(hyper, C, PLAN)
            part *= t * (1.0 - smoothing) + share
        if DENSE or WEIGHTED:
            sum_0 = tl.sum(tl.where(inside, part, NOTHING), 1)
            x = tl.where(part == 0.0, 0.0, x)
        else:  # the classes of this tile
            sum_0 += tl.minimum(C - start, x.shape[1])
        tilt_0 = tl.sum(tl.where(inside, part * x, NOTHING), 1)
    if PLAN.power_a > 0:
        part = power(e, e, PLAN.power_a) * mass
        sum_a = tl.sum(unpadded(part, k, C, PADDED), 1)
        tilt_a = tl.sum(unpadded(part * finite, k, C, PADDED), 1)
    if PLAN.power_b > 0:
        part = power(e, e, PLAN.power_b) * mass
        sum_b = tl.sum(unpadded(part, k, C, PADDED), 1)
        tilt_b = tl.sum(unpadded(part * finite, k, C, PADDED), 1)
    return sum_0, tilt_0, sum_a, tilt_a, sum_b, tilt_b


@triton.jit
def _sunk(total, tilt, more, more_tilt, sunk, fade, unit, POWER: tl.constexpr):
    """Add the sums of one more tile to those of one power, rescaled to the new peak.

    The tilt of the power 0 is in natural units. That of others stays in those of the peak: where these change, the peak
    has risen so far that the factor is about 0.
    """
    if POWER > 0:
        faded = power(fade, fade, POWER)
        tilt = (tilt + sunk * total) * faded + more_tilt
        total = total * faded + more
    else:
        tilt += log_relative(sunk * total + more_tilt, unit)
        total += more
    return total, tilt


@triton.jit
def _from_powers(
    sum_0, tilt_0, sum_a, tilt_a, sum_b, tilt_b, unit, inverse, log_total, hyper, PLAN: tl.constexpr
):  # fmt: skip
    r"""Sums of m log p and of h, computed from sums of powers of p: :math:`m = \sum_j c_j p^j`.

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
        low = tilt_0 - log_total * sum_0
        loss += tl.where(c_0 + tl.zeros_like(low) == 0.0, 0.0, c_0 * low)  # low may be infinite
        pull += c_0 * sum_0
    if PLAN.power_a > 0:
        scale = power(inverse, inverse, PLAN.power_a)
        low = (log_relative(tilt_a, unit) - log_total * sum_a) * scale
        loss += c_a * low
        pull += c_a * (sum_a * scale + PLAN.power_a * low)
    if PLAN.power_b > 0:
        scale = power(inverse, inverse, PLAN.power_b)
        low = (log_relative(tilt_b, unit) - log_total * sum_b) * scale
        loss += c_b * low
        pull += c_b * (sum_b * scale + PLAN.power_b * low)
    return loss, pull


@triton.jit
def _forward_tile(
    tile, logits, targets, weight, hyper, state, rows_out, codes_out,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, ignore_index,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr, HITS: tl.constexpr,
    ROWS: tl.constexpr, KEEP: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, LONG: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Loss, mass, validity, and the numbers for backward of each row of a tile; see ``forward_kernel``."""
    row, live, outer, i_2 = rows_of_program(tile, rows, size_2, SPLIT, EVEN, LONG, BLOCK_R, VECTOR)
    at = places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG)
    t_at = places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG)
    at, there = present(at, live, VECTOR)
    t_at, _ = present(t_at, live, VECTOR)
    brier: tl.constexpr = PLAN.squared_error >= 0
    spread: tl.constexpr = DENSE or brier or PLAN.label_smoothing >= 0
    precise: tl.constexpr = spread and not brier and PLAN.fractional and (DENSE or PLAN.gamma_neg < 0)
    summed: tl.constexpr = spread and (PLAN.plain if DENSE else PLAN.in_powers)  # one pass is enough
    apart: tl.constexpr = not DENSE and not spread and PLAN.true_margin >= 0  # the label is excluded from ``others``
    whole: tl.constexpr = C <= BLOCK_C
    padded: tl.constexpr = C < BLOCK_C and VECTOR != 0

    valid = live
    known = live
    label = tl.zeros([BLOCK_R], tl.int32)
    if not DENSE:
        target = tl.load(targets + t_at, mask=live, other=0).to(tl.int64)
        valid = live & (target != ignore_index)
        known = (target >= 0) & (target < C)  # other labels result in NaN
        label = tl.where(valid & known, target, 0).to(tl.int32)
    z_label = tl.load(logits + at + offsets(label, z_c, LONG), mask=live, other=0.0).to(hyper.dtype.element_ty)
    z_true = true_logit(z_label, label, hyper, PLAN)

    nothing = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    peak = lowest(hyper, BLOCK_R)
    best = peak  # largest logit, and largest logit before the label in ``ahead``
    ahead = peak
    if not DENSE:  # ignored rows: x is -inf or NaN for any logits, see backward
        peak = tl.where(valid, peak, float("inf"))
    if apart:
        peak = tl.maximum(z_true, peak)
    others = nothing  # for dense targets: all classes
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
            ahead = row_max(_before(z, k, label, C))
        t = target_tile(targets, t_at, k, t_c, label, there, C, hyper, DENSE, LONG)
        if DENSE:
            given = mass_of(t)
        mine = is_label(k, 0, label, VECTOR)
        z = with_margin(adjusted(z, t, k, hyper, C, PLAN, DENSE), mine, z_true, PLAN, DENSE, spread)
        if precise:
            peak, others = _scanned_rest(z, peak, others)
            x = relative(z, peak[:, None])
        else:
            peak, x, e, others = whole_rows(z, peak, mine, k, C, not DENSE and not apart, padded)
            if summed:
                sum_0, tilt_0, sum_a, tilt_a, sum_b, tilt_b = _powers(
                    x, e, t, 0, k, weight, hyper, C, PLAN, DENSE, WEIGHTED and not brier, padded
                )
                tilt_0 = log_relative(tilt_0, unit_of(peak))
        shift = relative(peak, peak)
    else:
        shift = relative(peak, peak)
        if HITS and VECTOR > 0:
            near = tl.full([BLOCK_R, BLOCK_C], float("-inf"), hyper.dtype.element_ty)  # the block with the label
        for start in range(0, C, BLOCK_C):
            k = start + tl.arange(0, BLOCK_C)
            z = load_tile(logits, at, k, z_c, there, C, float("-inf"), hyper, LONG)
            if HITS:
                best = tl.maximum(best, row_max(z))
                if VECTOR > 0:
                    ahead = tl.where(start + BLOCK_C <= label, best, ahead)
                    near = tl.where((label // BLOCK_C * BLOCK_C == start)[:, None], z, near)
                else:
                    ahead = tl.maximum(ahead, row_max(_before(z, k, label, C)))
            t = z
            if DENSE:
                t = target_tile(targets, t_at, k, t_c, label, there, C, hyper, DENSE, LONG)
                given += mass_of(t)
            mine = is_label(k, start, label, VECTOR)
            z = with_margin(adjusted(z, t, k, hyper, C, PLAN, DENSE), mine, z_true, PLAN, DENSE, spread)
            if precise:
                peak, others = _scanned_rest(z, peak, others)
            else:
                top = tl.maximum(row_max(z), peak)
                sunk, fade = faded(peak, shift, top)
                peak = top
                shift = relative(peak, peak)
                x = relative(z, peak[:, None])
                e = exponentials(x, mine, k, C, not DENSE and not apart, padded)
                others = others * fade + tl.sum(e, 1)
                if summed:
                    sunk = tl.maximum(sunk, LOWEST)  # keeps empty sums at 0
                    unit = unit_of(peak)
                    more_0, more_tilt_0, more_a, more_tilt_a, more_b, more_tilt_b = _powers(
                        x, e, t, start, k, weight, hyper, C, PLAN, DENSE, WEIGHTED and not brier, padded
                    )
                    if PLAN.power_0:
                        sum_0, tilt_0 = _sunk(sum_0, tilt_0, more_0, more_tilt_0, sunk, fade, unit, 0)
                    if PLAN.power_a > 0:
                        sum_a, tilt_a = _sunk(sum_a, tilt_a, more_a, more_tilt_a, sunk, fade, unit, PLAN.power_a)
                    if PLAN.power_b > 0:
                        sum_b, tilt_b = _sunk(sum_b, tilt_b, more_b, more_tilt_b, sunk, fade, unit, PLAN.power_b)
        if HITS and VECTOR > 0:  # one comparison for the block with the label instead of one per block
            ahead = tl.maximum(ahead, row_max(_before(near, tl.arange(0, BLOCK_C), label % BLOCK_C, BLOCK_C)))

        if precise:
            shift = relative(peak, peak)

    unit = unit_of(peak)
    one = exp_relative(shift)
    if not precise:
        others *= reciprocal(one)
    mass = tl.full([BLOCK_R], 1.0, hyper.dtype.element_ty)
    if DENSE:
        valid = live & (given != 0.0)
        total = others + 1.0 if precise else others
        q = others
        log_p = others
    else:
        if WEIGHTED:
            mass = tl.load(weight + label)
        log_p, p_label, q, m, h, total = row_forms(z_true, peak, others, label, hyper, PLAN, precise)
    inverse = reciprocal(total * one)
    log_total = log(total) + log_relative(shift, unit)
    if summed:
        if brier:  # squares of the other classes, then the label
            squares = sum_a * inverse * inverse
            loss = squares + q * q
            pull = squares - q * p_label
        else:
            if PLAN.power_0 and not DENSE:
                sum_0 -= mass
                there_0 = log_relative(relative(z_true, peak), unit)
                tilt_0 -= tl.where(
                    z_true == float("-inf"), 0.0, mass * there_0
                )  # log p of the label, -inf here, is added later
            loss, pull = _from_powers(
                sum_0, tilt_0, sum_a, tilt_a, sum_b, tilt_b, unit, inverse, log_total, hyper, PLAN
            )  # fmt: skip
    elif spread:
        if whole:
            loss, pull = _row_sums(
                x, unit, t, others, inverse, log_total, q, k, mine, weight, hyper, C, PLAN, DENSE, WEIGHTED
            )  # fmt: skip
        else:
            loss = nothing
            pull = nothing
            for start in range(0, C, BLOCK_C):
                k = start + tl.arange(0, BLOCK_C)
                z, t = adjusted_tile(logits, targets, at, t_at, k, z_c, t_c, label, there, hyper, C, PLAN, DENSE, LONG)
                x = relative(z, peak[:, None])
                more_loss, more_pull = _row_sums(
                    x, unit, t, others, inverse, log_total, q, k, is_label(k, start, label, VECTOR), weight, hyper,
                    C, PLAN, DENSE, WEIGHTED,
                )  # fmt: skip
                loss += more_loss
                pull += more_pull
    if spread:
        if brier:
            if DENSE and WEIGHTED:
                loss *= target_weight(targets, t_at, t_c, there, weight, hyper, C, LONG, BLOCK_C)
            else:
                loss *= mass
        elif DENSE:
            loss = -loss
        else:
            smoothing, share = smoothing_share(hyper, C, PLAN)
            own = mass * (1.0 - smoothing + share)
            loss = -(product(own * m, log_p) + product(share + tl.zeros_like(loss), loss))
            pull = own * h + share * pull
    else:
        pull = nothing
        loss = -product(mass * m, log_p)
    loss = tl.where(valid, tl.where(known, loss, float("nan")), 0.0)

    others = tl.where(valid, others, -1.0)
    if KEEP:
        tl.store(state + row, peak, mask=live)
        tl.store(state + rows + row, others, mask=live)
        if spread:
            tl.store(state + 2 * rows + row, pull, mask=live)
    if ROWS:
        tl.store(rows_out + row, loss, mask=live)
    if HITS:
        hit = (z_label >= best) & (z_label > ahead)
        code = tl.where(valid, tl.where(loss == loss, label + tl.where(hit, C, 0), 2 * C + 1), 2 * C)
        tl.store(codes_out + row, code.to(codes_out.dtype.element_ty), mask=live)
    if DENSE or not WEIGHTED:
        mass = valid.to(loss.dtype)
    else:
        mass = tl.where(valid, mass, 0.0)
    return loss, mass, valid, peak, others, pull


@triton.jit
def forward_kernel(
    logits, targets, weight, hyper, state, rows_out, codes_out, sums_out, ticket, reduced, inverse,
    turns, rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, ignore_index, samples,
    C: tl.constexpr, PLAN: tl.constexpr, DENSE: tl.constexpr, WEIGHTED: tl.constexpr, HITS: tl.constexpr,
    ROWS: tl.constexpr, KEEP: tl.constexpr, ONCE: tl.constexpr, REDUCTION: tl.constexpr, Z_UNIT: tl.constexpr,
    T_UNIT: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Losses of the rows of ``turns`` tiles.

    KEEP: writes to ``state`` (2 or 3, rows) the peak, the sum ``others`` (-1 for ignored rows) and, if every class has
    a term, the sum that all gradients of the row need. ROWS: writes the losses. HITS: writes a code per row, which is
    the label, plus C if it is the first of the largest logits; 2 C if the row is ignored; 2 C + 1 if the loss is NaN,
    as for an invalid label. With HITS ``sums_out`` is the table of counts (2, C), which is set to 0; otherwise it
    receives the sums of loss, mass and valid rows of this program, (3, programs). With REDUCTION >= 0 the last program
    writes the reduced loss, see ``finish_last``.

    ONCE: ``state`` receives the gradient of the logits, with their strides, instead of the state; ``inverse`` already
    contains 1 / denominator.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    loss = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    mass = tl.zeros([BLOCK_R], hyper.dtype.element_ty)
    count = tl.zeros([BLOCK_R], tl.int32)
    for turn in range(turns):
        tile = program * turns + turn
        more_loss, more_mass, valid, peak, others, pull = _forward_tile(
            tile, logits, targets, weight, hyper, state, rows_out, codes_out,
            rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, ignore_index,
            C, PLAN, DENSE, WEIGHTED, HITS, ROWS, KEEP, Z_UNIT, T_UNIT, LONG, SPLIT, EVEN, BLOCK_R, BLOCK_C, VECTOR,
        )  # fmt: skip
        if ONCE:
            backward_tile(
                tile, peak, others, pull, tl.load(inverse), logits, targets, weight, hyper, state,
                rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, z_0, z_1, z_2, z_c, C, PLAN, DENSE,
                False, True, WEIGHTED, True, Z_UNIT, T_UNIT, Z_UNIT, LONG, SPLIT, EVEN, BLOCK_R, BLOCK_C, VECTOR,
            )  # fmt: skip
        loss += more_loss
        mass += more_mass
        count += valid.to(tl.int32)
    if HITS:
        for start in range(program * 1024, 2 * C, programs * 1024):
            k = start + tl.arange(0, 1024)
            tl.store(sums_out + k, tl.zeros([1024], tl.int64), mask=k < 2 * C)
    else:
        tl.store(sums_out + program, tl.sum(loss))
        valid_rows = tl.sum(count).to(loss.dtype)
        if WEIGHTED and not DENSE:
            tl.store(sums_out + programs + program, tl.sum(mass))
        else:
            tl.store(sums_out + programs + program, valid_rows)
        tl.store(sums_out + 2 * programs + program, valid_rows)
        finish_last(ticket, sums_out, reduced, inverse, samples, REDUCTION, 1024)
