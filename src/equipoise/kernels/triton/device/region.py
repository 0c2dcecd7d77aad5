r"""The region losses as fused Triton kernels: the sums of the overlap losses, and the errors that a Lovász loss sorts.

Forward of an overlap loss converts a tile of (pixels, classes) into probabilities and sums them over its pixels; no
output has the size of the logits. With a the gradient of the loss with respect to p, backward is
:math:`dz_k = p_k (a_k - \sum_j p_j a_j)` with a recomputed softmax. Every program writes its sums to a separate
position, so results do not depend on the order in which programs run. The errors of a Lovász loss are written to
memory, see ``device.lovasz`` for the next steps; its backward is the same with one a per pixel.

If a tile holds all classes of its pixels, sums stay in registers while a program iterates over several tiles; the next
tile is loaded before the current one is processed. Otherwise the classes are read twice in blocks: for an online
softmax, and again, while they are in the cache, for the results.

The rows are those of ``geometry``, in groups: the batch, or its images. The softmax is that of ``softmax_forms``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.triton.device.forms import exp, exp_relative, lowest, reciprocal, relative, row_max
from equipoise.kernels.triton.device.softmax_forms import exponentials, faded, unpadded, whole_rows
from equipoise.kernels.triton.device.walk import load_tile, mass_of, offsets, places, present, raw_tile, rows_of_program

__all__ = ["errors_kernel", "gradient_kernel", "overlap_kernel", "sums_kernel"]


@triton.jit
def sums_kernel(
    logits, targets, out, tiles, lanes,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, ignore_index,
    C: tl.constexpr, DENSE: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, LONG: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Sums of p t, p (1 - t) and (1 - p) t over the rows of a lane, (3, groups * lanes, C).

    The ``tiles`` tiles of a group are distributed over its lanes; if a tile does not hold all classes, each is a lane.
    """
    program = tl.program_id(0)
    group = program // lanes
    padded: tl.constexpr = C < BLOCK_C and VECTOR != 0
    if C <= BLOCK_C:
        k = tl.arange(0, BLOCK_C)
        both = tl.zeros([BLOCK_R, BLOCK_C], out.dtype.element_ty)
        only_p = both
        only_t = both
        first = program % lanes
        live, at, t_at, target, raw = _fetched(
            first, tiles, group, logits, targets, rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, k,
            C, DENSE, Z_UNIT, T_UNIT, LONG, SPLIT, EVEN, BLOCK_R, VECTOR,
        )  # fmt: skip
        for turn in range(first, tiles, lanes):
            later = _fetched(
                turn + lanes, tiles, group, logits, targets, rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, k,
                C, DENSE, Z_UNIT, T_UNIT, LONG, SPLIT, EVEN, BLOCK_R, VECTOR,
            )  # fmt: skip
            label, z_label, valid = _labels(logits, target, at, z_c, live, ignore_index, out, C, DENSE, LONG)
            z = raw.to(out.dtype.element_ty)
            own = k[None, :] == label[:, None]
            peak, _, e, others = whole_rows(z, lowest(out, BLOCK_R), own, k, C, not DENSE, padded)
            t = z
            if DENSE:
                t = load_tile(targets, t_at, k, t_c, live, C, 0.0, out, LONG)
                valid = live & (mass_of(t) != 0.0)
            inverse, p_label, q_label = _shares(peak, others, label, z_label, valid, DENSE)
            both, only_p, only_t = _added(
                both, only_p, only_t, e, t, own, inverse, p_label, q_label, valid, DENSE
            )  # fmt: skip
            both = unpadded(both, k, C, padded)
            only_p = unpadded(only_p, k, C, padded)
            only_t = unpadded(only_t, k, C, padded)
            live, at, t_at, target, raw = later
        _store_sums(out, program, k, both, only_p, only_t, C, LONG)
    else:
        _, _, live, at, t_at, there = _rows(
            program, rows, size_1, size_2, z_0, z_1, z_2, t_0, t_1, t_2, Z_UNIT, T_UNIT, LONG, SPLIT, EVEN, BLOCK_R,
            VECTOR,
        )  # fmt: skip
        target = _indices(targets, t_at, live, DENSE)
        label, z_label, valid = _labels(logits, target, at, z_c, live, ignore_index, out, C, DENSE, LONG)
        peak = lowest(out, BLOCK_R)
        others = tl.zeros([BLOCK_R], out.dtype.element_ty)
        mass = tl.zeros([BLOCK_R], out.dtype.element_ty)
        for start in range(0, C, BLOCK_C):
            k = start + tl.arange(0, BLOCK_C)
            z = load_tile(logits, at, k, z_c, there, C, float("-inf"), out, LONG)
            peak, e, fade = _scanned(z, peak, k[None, :] == label[:, None], k, C, DENSE)
            others = others * fade + tl.sum(e, 1)
            if DENSE:
                mass += mass_of(load_tile(targets, t_at, k, t_c, there, C, 0.0, out, LONG))
        if DENSE:
            valid = live & (mass != 0.0)
        inverse, p_label, q_label = _shares(peak, others, label, z_label, valid, DENSE)
        for start in range(0, C, BLOCK_C):
            k = start + tl.arange(0, BLOCK_C)
            z = load_tile(logits, at, k, z_c, there, C, float("-inf"), out, LONG)
            own = k[None, :] == label[:, None]
            e = exponentials(relative(z, peak[:, None]), own, k, C, not DENSE, False)
            t = z
            if DENSE:
                t = load_tile(targets, t_at, k, t_c, there, C, 0.0, out, LONG)
            none = tl.zeros([BLOCK_R, BLOCK_C], out.dtype.element_ty)
            both, only_p, only_t = _added(
                none, none, none, e, t, own, inverse, p_label, q_label, valid, DENSE
            )  # fmt: skip
            _store_sums(out, program, k, both, only_p, only_t, C, LONG)


@triton.jit
def errors_kernel(
    logits, targets, out, tiles, groups,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, ignore_index,
    C: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, LONG: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Errors abs(t - p) of a tile of pixels with class indices, -1 for ignored ones, to (groups, C, pixels).

    The sort is stable, so mathematically equal errors must be equal bit by bit. Therefore p does not depend on the
    label, and the peak is subtracted exactly, so that classes at the peak add exactly 1 in any order.
    """
    tile = tl.program_id(0)
    outer, i_2, live, at, t_at, there = _rows(
        tile, rows, size_1, size_2, z_0, z_1, z_2, t_0, t_1, t_2, Z_UNIT, T_UNIT, LONG, SPLIT, EVEN, BLOCK_R, VECTOR
    )  # fmt: skip
    pixels = rows // groups
    place = _lines(tile // tiles, outer, i_2, size_2, pixels, C, LONG)
    target = _indices(targets, t_at, live, False)
    label, _, valid = _labels(logits, target, at, z_c, live, ignore_index, out, C, False, LONG)
    peak = lowest(out, BLOCK_R)
    padded: tl.constexpr = C < BLOCK_C and VECTOR != 0
    if C <= BLOCK_C:
        k = tl.arange(0, BLOCK_C)
        z = load_tile(logits, at, k, z_c, there, C, float("-inf"), out, LONG)
        peak = tl.maximum(row_max(z), peak)
        e = unpadded(exp(z - peak[:, None]), k, C, padded)
        total = tl.sum(e, 1)
        others = tl.sum(tl.where(k[None, :] == label[:, None], 0.0, e), 1)
    else:
        total = tl.zeros([BLOCK_R], out.dtype.element_ty)
        others = total
        for start in range(0, C, BLOCK_C):
            k = start + tl.arange(0, BLOCK_C)
            z = load_tile(logits, at, k, z_c, there, C, float("-inf"), out, LONG)
            top = tl.maximum(row_max(z), peak)
            e = exp(z - top[:, None])
            fade = exp(peak - top)
            total = total * fade + tl.sum(e, 1)
            others = others * fade + tl.sum(tl.where(k[None, :] == label[:, None], 0.0, e), 1)
            peak = top
    inverse = reciprocal(total)
    for start in range(0, C, BLOCK_C):
        k = start + tl.arange(0, BLOCK_C)
        if C > BLOCK_C:
            z = load_tile(logits, at, k, z_c, there, C, float("-inf"), out, LONG)
            e = exp(z - peak[:, None])
        error = tl.where(k[None, :] == label[:, None], others[:, None], e) * inverse[:, None]
        error = tl.where(valid[:, None], error, -1.0)
        where = (out + offsets(k, pixels, LONG))[None, :] + place[:, None]
        tl.store(where, error, mask=live[:, None] & (k < C)[None, :])


@triton.jit
def gradient_kernel(
    logits, targets, slopes, each, out, tiles, groups,
    rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, t_c, g_0, g_1, g_2, g_c, ignore_index,
    C: tl.constexpr, DENSE: tl.constexpr, EACH: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr,
    G_UNIT: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Gradient of the logits of a tile, given the gradient of the sums, ``slopes`` (3, groups, C).

    With EACH, ``slopes`` (groups, C) is the gradient of the losses, and ``each`` (groups, C, pixels) their derivative
    with respect to p.
    """
    tile = tl.program_id(0)
    outer, i_2, live, at, t_at, there = _rows(
        tile, rows, size_1, size_2, z_0, z_1, z_2, t_0, t_1, t_2, Z_UNIT, T_UNIT, LONG, SPLIT, EVEN, BLOCK_R, VECTOR
    )  # fmt: skip
    g_at = places(outer, i_2, size_1, g_0, g_1, g_2, G_UNIT, LONG)
    target = _indices(targets, t_at, live, DENSE)
    label, z_label, valid = _labels(logits, target, at, z_c, live, ignore_index, slopes, C, DENSE, LONG)
    group = tile // tiles
    step = groups * C  # from one kind of slopes to the next
    if LONG:
        group = group.to(tl.int64)
        step = (tl.zeros([], tl.int64) + groups) * C
    slopes += group * C
    pixels = rows // groups
    e_at = at
    if EACH:
        e_at, _ = present(_lines(group, outer, i_2, size_2, pixels, C, LONG), live, VECTOR)
    own = tl.zeros([BLOCK_R], slopes.dtype.element_ty)
    if not DENSE:  # the gradient with respect to p where t = 1
        at_label = slopes + tl.maximum(label, 0)
        own = tl.load(at_label)
        if EACH:
            own *= tl.load(each + e_at + offsets(tl.maximum(label, 0), pixels, LONG), mask=live, other=0.0)
        else:
            own -= tl.load(at_label + 2 * step)
    peak = lowest(slopes, BLOCK_R)
    padded: tl.constexpr = C < BLOCK_C and VECTOR != 0
    if C <= BLOCK_C:
        k = tl.arange(0, BLOCK_C)
        z = load_tile(logits, at, k, z_c, there, C, float("-inf"), slopes, LONG)
        peak, _, e, others = whole_rows(z, peak, k[None, :] == label[:, None], k, C, not DENSE, padded)
        a, t = _slopes(slopes, each, targets, e_at, t_at, pixels, t_c, there, k, step, C, DENSE, EACH, LONG)
        pull = tl.sum(unpadded(e * a, k, C, padded), 1)
        if DENSE:
            valid = live & (mass_of(t) != 0.0)
    else:
        others = tl.zeros([BLOCK_R], slopes.dtype.element_ty)
        pull = others
        mass = others
        for start in range(0, C, BLOCK_C):
            k = start + tl.arange(0, BLOCK_C)
            z = load_tile(logits, at, k, z_c, there, C, float("-inf"), slopes, LONG)
            peak, e, fade = _scanned(z, peak, k[None, :] == label[:, None], k, C, DENSE)
            a, t = _slopes(slopes, each, targets, e_at, t_at, pixels, t_c, there, k, step, C, DENSE, EACH, LONG)
            others = others * fade + tl.sum(e, 1)
            pull = pull * fade + tl.sum(e * a, 1)
            if DENSE:
                mass += mass_of(t)
        if DENSE:
            valid = live & (mass != 0.0)
    inverse, p_label, q_label = _shares(peak, others, label, z_label, valid, DENSE)
    pull *= inverse
    mean = pull + p_label * own
    back = tl.where(valid, p_label * (own * q_label - pull), 0.0)  # less cancellation at p = 1 than with the mean
    for start in range(0, C, BLOCK_C):
        k = start + tl.arange(0, BLOCK_C)
        if C > BLOCK_C:
            z = load_tile(logits, at, k, z_c, there, C, float("-inf"), slopes, LONG)
            e = exponentials(relative(z, peak[:, None]), k[None, :] == label[:, None], k, C, not DENSE, False)
            a, t = _slopes(slopes, each, targets, e_at, t_at, pixels, t_c, there, k, step, C, DENSE, EACH, LONG)
        gradient = tl.where(valid[:, None], e * inverse[:, None] * (a - mean[:, None]), 0.0)
        if not DENSE:
            gradient = tl.where(k[None, :] == label[:, None], back[:, None], gradient)
        place = (out + offsets(k, g_c, LONG))[None, :] + g_at[:, None]
        tl.store(place, gradient.to(out.dtype.element_ty), mask=live[:, None] & (k < C)[None, :])


@triton.jit
def overlap_kernel(
    sums, loss, slopes, groups,
    C: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, SMOOTH: tl.constexpr, EVERY: tl.constexpr,
    MEAN: tl.constexpr, NOTHING: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The reduced Tversky loss of sums (3, groups, C), and its gradient with respect to them.

    ALPHA to MEAN: see ``launch.region.TverskyOptions``; a denominator up to NOTHING is treated as 0.
    """
    g = tl.arange(0, BLOCK_G)
    k = tl.arange(0, BLOCK_C)
    inside = (g < groups)[:, None] & (k < C)[None, :]
    at = g[:, None] * C + k[None, :]
    step = groups * C
    tp = tl.load(sums + at, mask=inside, other=0.0)
    fp = tl.load(sums + step + at, mask=inside, other=0.0)
    fn = tl.load(sums + 2 * step + at, mask=inside, other=0.0)
    missed = ALPHA * fp + BETA * fn
    whole = tp + missed + SMOOTH
    counted = inside
    if not EVERY:
        counted = inside & ((tp + fn <= 0.0) == 0)  # NaN is counted, so the loss becomes NaN
    empty = whole <= NOTHING
    inverse = 1.0 / tl.where(empty, 1.0, whole)
    missed = tl.where(empty, 0.0, missed)
    factor = tl.full([BLOCK_G], 1.0, sums.dtype.element_ty)
    if MEAN:
        entries = tl.sum(counted.to(tl.int32), 1)
        means = tl.sum((entries > 0).to(tl.int32))
        factor /= (tl.maximum(entries, 1) * tl.maximum(means, 1)).to(factor.dtype)
    tl.store(loss, tl.sum(tl.sum(tl.where(counted, missed * inverse, 0.0), 1) * factor))
    by = tl.where(counted & (empty == 0), factor[:, None] * inverse, 0.0)
    kept = (tp + SMOOTH) * inverse
    tl.store(slopes + at, -missed * inverse * by, mask=inside)
    tl.store(slopes + step + at, ALPHA * kept * by, mask=inside)
    tl.store(slopes + 2 * step + at, BETA * kept * by, mask=inside)


@triton.jit
def _rows(
    tile, rows, size_1, size_2, z_0, z_1, z_2, t_0, t_1, t_2,
    Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, LONG: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_R: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Indices of the rows of a tile, the mask of existing rows, and the offsets of their logits and targets."""
    _, live, outer, i_2 = rows_of_program(tile, rows, size_2, SPLIT, EVEN, LONG, BLOCK_R, VECTOR)
    at, there = present(places(outer, i_2, size_1, z_0, z_1, z_2, Z_UNIT, LONG), live, VECTOR)
    t_at, _ = present(places(outer, i_2, size_1, t_0, t_1, t_2, T_UNIT, LONG), live, VECTOR)
    return outer, i_2, live, at, t_at, there


@triton.jit
def _lines(group, outer, i_2, size_2, pixels, C: tl.constexpr, LONG: tl.constexpr):
    """Offsets of rows in a tensor (groups, C, pixels), which has one line per class of a group."""
    kind: tl.constexpr = tl.int64 if LONG else tl.int32
    return outer.to(kind) * size_2 + i_2 + group.to(kind) * (C - 1) * pixels


@triton.jit
def _fetched(
    turn, tiles, group, logits, targets, rows, size_1, size_2, z_0, z_1, z_2, z_c, t_0, t_1, t_2, k,
    C: tl.constexpr, DENSE: tl.constexpr, Z_UNIT: tl.constexpr, T_UNIT: tl.constexpr, LONG: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr, BLOCK_R: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Rows of a tile with their class indices and raw logits; no rows beyond the last tile of the group."""
    _, _, live, at, t_at, _ = _rows(
        group * tiles + turn, rows, size_1, size_2, z_0, z_1, z_2, t_0, t_1, t_2, Z_UNIT, T_UNIT, LONG, SPLIT, EVEN,
        BLOCK_R, VECTOR,
    )  # fmt: skip
    live = live & (turn < tiles)
    at, there = present(at, live, VECTOR)
    t_at, _ = present(t_at, live, VECTOR)
    raw = raw_tile(logits, at, k, z_c, there, C, float("-inf"), LONG)
    return live, at, t_at, _indices(targets, t_at, live, DENSE), raw


@triton.jit
def _indices(targets, t_at, live, DENSE: tl.constexpr):
    """Class indices of rows; a placeholder for dense targets."""
    target = t_at
    if not DENSE:
        target = tl.load(targets + t_at, mask=live, other=0).to(tl.int64)
    return target


@triton.jit
def _labels(
    logits, target, at, z_c, live, ignore_index, like, C: tl.constexpr, DENSE: tl.constexpr, LONG: tl.constexpr
):  # fmt: skip
    """Label of each row (-1 if ignored or invalid), its logit, and whether the row is valid.

    Rows of dense targets have no label; the caller determines their validity from the targets.
    """
    label = tl.full(live.shape, -1, tl.int32)
    z_label = tl.zeros(live.shape, like.dtype.element_ty)
    valid = live
    if not DENSE:
        valid = live & (target != ignore_index)
        label = tl.where(valid & (target >= 0) & (target < C), target, -1).to(tl.int32)
        place = logits + at + offsets(tl.maximum(label, 0), z_c, LONG)
        z_label = tl.load(place, mask=live, other=0.0).to(like.dtype.element_ty)
    return label, z_label, valid


@triton.jit
def _scanned(z, peak, own, k, C: tl.constexpr, DENSE: tl.constexpr):
    """Peak of the rows including one more tile, its exponentials, and the factor that rescales previous sums."""
    top = tl.maximum(row_max(z), peak)
    _, fade = faded(peak, relative(peak, peak), top)
    return top, exponentials(relative(z, top[:, None]), own, k, C, not DENSE, False), fade


@triton.jit
def _shares(peak, others, label, z_label, valid, DENSE: tl.constexpr):
    """The inverse of the sum of exponentials, and p and 1 - p of the label; all 0 if the row is not valid."""
    inverse = tl.where(valid, reciprocal(others), 0.0)
    p_label = tl.zeros_like(peak)
    q_label = p_label
    if not DENSE:
        own = tl.where(label >= 0, exp(z_label - peak), 0.0) * exp_relative(relative(peak, peak))
        inverse = tl.where(valid, reciprocal(own + others), 0.0)
        p_label = tl.where(valid, own * inverse, 0.0)
        q_label = tl.where(valid, others * inverse, 0.0)
    return inverse, p_label, q_label


@triton.jit
def _added(both, only_p, only_t, e, t, own, inverse, p_label, q_label, valid, DENSE: tl.constexpr):
    """Add one more tile to the sums of p t, p (1 - t) and (1 - p) t; only valid rows are added."""
    counts = valid[:, None]
    p = e * inverse[:, None]
    if DENSE:
        hit = p * t
        both = tl.where(counts, both + hit, both)
        only_p = tl.where(counts, only_p + (p - hit), only_p)
        only_t = tl.where(counts, only_t + (t - hit), only_t)
    else:  # ``e`` is 0 at the label
        both = tl.where(own, both + p_label[:, None], both)
        only_p = tl.where(counts, only_p + p, only_p)
        only_t = tl.where(own, only_t + q_label[:, None], only_t)
    return both, only_p, only_t


@triton.jit
def _store_sums(out, program, k, both, only_p, only_t, C: tl.constexpr, LONG: tl.constexpr):
    """Sum a tile over its rows and store the result."""
    step = tl.num_programs(0) * C
    if LONG:
        program = program.to(tl.int64)
        step = tl.num_programs(0).to(tl.int64) * C
    at = out + program * C + k
    tl.store(at, tl.sum(both, 0), mask=k < C)
    tl.store(at + step, tl.sum(only_p, 0), mask=k < C)
    tl.store(at + 2 * step, tl.sum(only_t, 0), mask=k < C)


@triton.jit
def _slopes(
    slopes, each, targets, e_at, t_at, pixels, t_c, there, k, step,
    C: tl.constexpr, DENSE: tl.constexpr, EACH: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Gradient with respect to p of a tile, (1 or rows, classes), and dense targets; for indices that with t = 0."""
    if EACH:
        a = tl.load(slopes + k, mask=k < C, other=0.0)[None, :]
        a *= load_tile(each, e_at, k, pixels, there, C, 0.0, slopes, LONG)
    else:
        a = tl.load(slopes + step + k, mask=k < C, other=0.0)[None, :]
    t = a
    if DENSE:
        t = load_tile(targets, t_at, k, t_c, there, C, 0.0, slopes, LONG)
        own = tl.load(slopes + k, mask=k < C, other=0.0) - tl.load(slopes + 2 * step + k, mask=k < C, other=0.0)
        a += t * (own[None, :] - a)
    return a, t
