"""What happens to rows once their losses are known: counting and weighing them by class, and the last division."""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.kernels.triton_walk import places

__all__ = ["count_kernel", "finish_kernel", "weigh_kernel"]


@triton.jit
def finish_kernel(
    sums, out, programs, samples, REDUCTION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The reduced loss of (3, programs) sums and the inverse of its denominator, 0 where nothing is valid.

    REDUCTION: 0 sum, 1 mean (mass), 2 valid_mean (rows), 3 batch_mean (samples).
    """
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    below = tl.zeros([BLOCK], sums.dtype.element_ty)
    for start in range(0, programs, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(sums + i, mask=i < programs, other=0.0)
        if REDUCTION == 1:
            below += tl.load(sums + programs + i, mask=i < programs, other=0.0)
        elif REDUCTION == 2:
            below += tl.load(sums + 2 * programs + i, mask=i < programs, other=0.0)
    if REDUCTION == 0:
        inverse = 1.0
    elif REDUCTION == 3:
        inverse = 1.0 / tl.maximum(samples, 1).to(sums.dtype.element_ty)
    else:
        divisor = tl.sum(below)
        inverse = tl.where(divisor > 0.0, 1.0 / tl.where(divisor > 0.0, divisor, 1.0), 1.0)
    tl.store(out, tl.sum(total) * inverse)
    tl.store(out + 1, inverse)


@triton.jit
def count_kernel(
    targets, hits, counts, rows, size_1, size_2, t_0, t_1, t_2, ignore_index,
    C: tl.constexpr, BINS: tl.constexpr, SINGLE: tl.constexpr, LONG: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Adds to ``counts`` (2, C) the rows of each class and its hits; integers, so in any order.

    BINS, at least 2 C: a histogram in each program; 0: too many classes for that, one row at a time.
    """
    program = tl.program_id(0)
    if LONG:
        program = program.to(tl.int64)
    if BINS > 0:
        table = tl.zeros([BINS], tl.int32)
    for start in range(program * BLOCK_R, rows, tl.num_programs(0) * BLOCK_R):
        label, valid, row = _labels(
            targets, start, rows, size_1, size_2, t_0, t_1, t_2, ignore_index, C, SINGLE, LONG, BLOCK_R
        )
        hit = tl.load(hits + row, mask=valid, other=0).to(tl.int32)
        if BINS > 0:
            table += tl.histogram(label + hit * C, BINS, mask=valid)
        else:
            tl.atomic_add(counts + label, 1, mask=valid)
            tl.atomic_add(counts + C + label, hit, mask=valid & (hit != 0))
    if BINS > 0:
        k = tl.arange(0, BINS)
        tl.atomic_add(counts + tl.where(k < C, k, k - C), table, mask=k < 2 * C)
        tl.atomic_add(counts + k, table, mask=(k >= C) & (k < 2 * C))


@triton.jit
def weigh_kernel(
    targets, losses, weight, sums, rows, size_1, size_2, t_0, t_1, t_2, ignore_index,
    C: tl.constexpr, SINGLE: tl.constexpr, LONG: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Sums of loss, mass and valid rows of this program, (3, programs), with the weights that ``losses`` lack."""
    program = tl.program_id(0)
    if LONG:
        program = program.to(tl.int64)
    loss = tl.zeros([BLOCK_R], losses.dtype.element_ty)
    mass = tl.zeros([BLOCK_R], losses.dtype.element_ty)
    count = tl.zeros([BLOCK_R], losses.dtype.element_ty)
    for start in range(program * BLOCK_R, rows, tl.num_programs(0) * BLOCK_R):
        label, valid, row = _labels(
            targets, start, rows, size_1, size_2, t_0, t_1, t_2, ignore_index, C, SINGLE, LONG, BLOCK_R
        )
        own = tl.load(weight + label, mask=valid, other=0.0)
        loss += own * tl.load(losses + row, mask=valid, other=0.0)
        mass += own
        count += valid.to(losses.dtype.element_ty)
    programs = tl.num_programs(0)
    tl.store(sums + program, tl.sum(loss))
    tl.store(sums + programs + program, tl.sum(mass))
    tl.store(sums + 2 * programs + program, tl.sum(count))


@triton.jit
def _labels(
    targets, start, rows, size_1, size_2, t_0, t_1, t_2, ignore_index,
    C: tl.constexpr, SINGLE: tl.constexpr, LONG: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Class of each row, 0 where it is out of range (its loss is not a number), whether it counts, and its number."""
    row = start + tl.arange(0, BLOCK_R)
    live = row < rows
    if SINGLE:
        at = row * t_2
    else:
        at = places(row // size_2, row % size_2, size_1, t_0, t_1, t_2, 1, LONG)
    target = tl.load(targets + at, mask=live, other=0).to(tl.int64)
    label = tl.where((target >= 0) & (target < C), target, 0).to(tl.int32)
    return label, live & (target != ignore_index), row
