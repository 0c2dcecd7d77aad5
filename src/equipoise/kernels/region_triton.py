r"""The sums behind the overlap losses as fused Triton kernels: one pass forward, one backward.

Forward turns a tile of (pixels, classes) into probabilities and adds it to sums that stay in registers while a program
walks over its pixels; it writes nothing of the size of the logits. With a the gradient of the loss with respect to p,
backward is :math:`dz_k = p_k (a_k - \sum_j p_j a_j)`, from a softmax that it computes again. Every program writes its
sums to a place of its own, so results do not depend on the order in which programs run.

A tile holds all classes of its pixels (WHOLE). Where they are too many for that, another pass finds the softmax first.

The rows are those of ``geometry``, in groups of ``rows``: the batch, or its images. Each group has ``lanes`` programs,
each of these one for every block of classes. Strides are three along the rows and one between classes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.triton_walk import offsets, places

__all__ = ["gradient_kernel", "softmax_kernel", "sums_kernel"]


@triton.jit
def sums_kernel(
    logits,
    targets,
    softmaxes,
    out,
    rows,
    lanes,
    sizes,
    z_strides,
    t_strides,
    ignore_index,
    C: tl.constexpr,
    DENSE: tl.constexpr,
    WHOLE: tl.constexpr,
    LONG: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Sums of p t, p (1 - t) and (1 - p) t over the rows of a lane, (3, groups * lanes, C)."""
    kind: tl.constexpr = out.dtype.element_ty
    program = _program(LONG)
    group, lane = program // lanes, program % lanes
    k = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    both = tl.zeros([BLOCK_R, BLOCK_C], kind)
    only_p = tl.zeros([BLOCK_R, BLOCK_C], kind)
    only_t = tl.zeros([BLOCK_R, BLOCK_C], kind)
    inside = (k < C)[None, :]
    for start in range(lane * BLOCK_R, rows, lanes * BLOCK_R):
        place = start + tl.arange(0, BLOCK_R)
        row, live = group * rows + place, place < rows
        z, t, valid = _read(
            logits, targets, row, live, k, sizes, z_strides, t_strides, ignore_index, kind, C, DENSE, LONG
        )
        if WHOLE:
            p, valid = _softmax(z, t, valid, k, C, DENSE)
        else:
            p, valid = _known_softmax(z, softmaxes, row, live)
        hit = p * t
        # Where a thread has all classes of a row, the padding is known beforehand and this leaves nothing of it.
        both = tl.where(inside, both + hit, 0.0)
        only_p = tl.where(inside, only_p + (p - hit), 0.0)
        only_t = tl.where(inside, only_t + (t - hit), 0.0)
    at = out + program * C + k
    step = tl.num_programs(0).to(program.dtype) * C
    tl.store(at, tl.sum(both, 0), mask=k < C)
    tl.store(at + step, tl.sum(only_p, 0), mask=k < C)
    tl.store(at + 2 * step, tl.sum(only_t, 0), mask=k < C)


@triton.jit
def gradient_kernel(
    logits,
    targets,
    slopes,
    softmaxes,
    out,
    rows,
    lanes,
    sizes,
    z_strides,
    t_strides,
    g_strides,
    ignore_index,
    C: tl.constexpr,
    DENSE: tl.constexpr,
    WHOLE: tl.constexpr,
    LONG: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Gradient of the logits of a tile; ``slopes`` (groups, 2, C) as ``_slopes`` takes them."""
    kind: tl.constexpr = slopes.dtype.element_ty
    program = _program(LONG)
    group, lane = program // lanes, program % lanes
    k = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    place = lane * BLOCK_R + tl.arange(0, BLOCK_R)
    row, live = group * rows + place, place < rows
    z, t, valid = _read(logits, targets, row, live, k, sizes, z_strides, t_strides, ignore_index, kind, C, DENSE, LONG)
    a = _slopes(slopes, group, k, t, C)
    if WHOLE:
        p, valid = _softmax(z, t, valid, k, C, DENSE)
        mean = tl.sum(p * a, 1)
    else:
        p, valid = _known_softmax(z, softmaxes, row, live)
        mean = tl.load(softmaxes + row * 3 + 2, mask=live, other=0.0)
    gradient = tl.where(valid[:, None], p * (a - mean[:, None]), 0.0)
    at = out + _places(row, sizes, g_strides, LONG)[:, None] + offsets(k, g_strides[3], LONG)[None, :]
    tl.store(at, gradient.to(out.dtype.element_ty), mask=live[:, None] & (k < C)[None, :])


@triton.jit
def softmax_kernel(
    logits,
    targets,
    slopes,
    out,
    rows,
    lanes,
    sizes,
    z_strides,
    t_strides,
    ignore_index,
    C: tl.constexpr,
    DENSE: tl.constexpr,
    SLOPES: tl.constexpr,
    LONG: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """What the other kernels need of rows that no tile can hold, (groups * rows, 3).

    The largest logit, one over the sum of exponentials relative to it, 0 where the row is ignored, and with SLOPES the
    mean of the slopes under p. The classes pass by in blocks: an online softmax.
    """
    kind: tl.constexpr = out.dtype.element_ty
    program = _program(LONG)
    group, lane = program // lanes, program % lanes
    place = lane * BLOCK_R + tl.arange(0, BLOCK_R)
    row, live = group * rows + place, place < rows
    valid = live
    peak = tl.full([BLOCK_R], float("-inf"), kind)
    total = tl.zeros([BLOCK_R], kind)
    mean = tl.zeros([BLOCK_R], kind)
    mass = tl.zeros([BLOCK_R], kind)
    for start in range(0, C, BLOCK_C):
        k = start + tl.arange(0, BLOCK_C)
        z, t, valid = _read(
            logits, targets, row, live, k, sizes, z_strides, t_strides, ignore_index, kind, C, DENSE, LONG
        )
        top = tl.maximum(peak, tl.max(z, 1))
        finite = tl.where(top == float("-inf"), 0.0, top)
        fade = tl.exp(peak - finite)
        e = tl.exp(z - finite[:, None])
        total = total * fade + tl.sum(e, 1)
        if SLOPES:
            mean = mean * fade + tl.sum(e * _slopes(slopes, group, k, t, C), 1)
        if DENSE:
            mass += tl.sum(t, 1)
        peak = top
    if DENSE:
        valid = live & (mass != 0.0)
    inverse = 1.0 / tl.where(valid, total, 1.0)
    tl.store(out + row * 3, tl.where(valid, peak, 0.0), mask=live)
    tl.store(out + row * 3 + 1, tl.where(valid, inverse, 0.0), mask=live)
    if SLOPES:
        tl.store(out + row * 3 + 2, tl.where(valid, mean * inverse, 0.0), mask=live)


@triton.jit
def _program(LONG: tl.constexpr):
    program = tl.program_id(0)
    return program.to(tl.int64) if LONG else program


@triton.jit
def _places(row, sizes, strides, LONG: tl.constexpr):
    """Offset of each row."""
    return places(row // sizes[2], row % sizes[2], sizes[1], strides[0], strides[1], strides[2], 1, LONG)


@triton.jit
def _read(
    logits,
    targets,
    row,
    live,
    k,
    sizes,
    z_strides,
    t_strides,
    ignore_index,
    kind: tl.constexpr,
    C: tl.constexpr,
    DENSE: tl.constexpr,
    LONG: tl.constexpr,
):
    """Logits, -inf where there is nothing to see, and truth of a tile, with its valid rows as far as they are known.

    The logits of ignored rows are not read; those of dense targets show by their mass, once that is known.
    """
    inside = (k < C)[None, :]
    at = targets + _places(row, sizes, t_strides, LONG)
    if DENSE:
        valid = live
        at = at[:, None] + offsets(k, t_strides[3], LONG)[None, :]
        t = tl.load(at, mask=live[:, None] & inside, other=0.0).to(kind)
    else:
        target = tl.load(at, mask=live, other=0).to(tl.int64)
        valid = live & (target != ignore_index)
        label = tl.where(valid & (target >= 0) & (target < C), target, -1).to(tl.int32)
        t = (label[:, None] == k[None, :]).to(kind)
    at = logits + _places(row, sizes, z_strides, LONG)[:, None] + offsets(k, z_strides[3], LONG)[None, :]
    return tl.load(at, mask=valid[:, None] & inside, other=float("-inf")).to(kind), t, valid


@triton.jit
def _softmax(z, t, valid, k, C: tl.constexpr, DENSE: tl.constexpr):
    """Probabilities of whole rows, 0 where they are ignored, and the rows that are not."""
    if DENSE:
        valid = valid & (tl.sum(t, 1) != 0.0)
        z = tl.where(valid[:, None], z, float("-inf"))
    peak = tl.where(valid, tl.max(z, 1), 0.0)
    e = tl.where((k < C)[None, :], tl.exp(z - peak[:, None]), 0.0)
    inverse = 1.0 / tl.where(valid, tl.sum(e, 1), 1.0)
    return e * inverse[:, None], valid


@triton.jit
def _known_softmax(z, softmaxes, row, live):
    """The same from what ``softmax_kernel`` found."""
    peak = tl.load(softmaxes + row * 3, mask=live, other=0.0)
    inverse = tl.load(softmaxes + row * 3 + 1, mask=live, other=0.0)
    valid = inverse != 0.0
    z = tl.where(valid[:, None], z, float("-inf"))
    return tl.exp(z - peak[:, None]) * inverse[:, None], valid


@triton.jit
def _slopes(slopes, group, k, t, C: tl.constexpr):
    """Gradient with respect to p: the first slope of a class where t = 0, the second where t = 1."""
    at = slopes + group * 2 * C + k
    without = tl.load(at, mask=k < C, other=0.0)[None, :]
    own = tl.load(at + C, mask=k < C, other=0.0)[None, :]
    return without + t * (own - without)
