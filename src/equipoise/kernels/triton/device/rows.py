"""Kernels over rows before and after their losses are computed: counting, weighting and reduction."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_kernel", "count_kernel", "finish_kernel", "finish_last", "mass_kernel", "scale_kernel", "weigh_kernel"]

SPOILED = tl.constexpr(-(2**40))  # as in ``weights.recall``


@triton.jit
def finish_kernel(sums, reduced, inverse, programs, samples, REDUCTION: tl.constexpr, BLOCK: tl.constexpr):
    """The reduced loss of sums and the inverse of its denominator.

    The sums are (3, programs), or (2, programs) if the reduction is not valid_mean.
    """
    _finish(sums, reduced, inverse, programs, samples, REDUCTION, BLOCK)


@triton.jit
def finish_last(ticket, sums, reduced, inverse, samples, REDUCTION: tl.constexpr, BLOCK: tl.constexpr):
    """The same at the end of the kernel that wrote the sums, in the last program to finish.

    ``ticket`` is 0 before and after. The order of the summation does not depend on which program is last.
    """
    if REDUCTION >= 0:
        programs = tl.num_programs(0)
        if tl.atomic_add(ticket, 1, sem="acq_rel") == programs - 1:
            _finish(sums, reduced, inverse, programs, samples, REDUCTION, BLOCK)
            tl.store(ticket, 0)


@triton.jit
def _finish(sums, reduced, inverse, programs, samples, REDUCTION: tl.constexpr, BLOCK: tl.constexpr):
    """REDUCTION: 0 sum, 1 mean (mass), 2 valid_mean (rows), 3 batch_mean (samples)."""
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    below = tl.zeros([BLOCK], sums.dtype.element_ty)
    for start in range(0, programs, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(sums + i, mask=i < programs, other=0.0, cache_modifier=".cg")
        if REDUCTION == 1:
            below += tl.load(sums + programs + i, mask=i < programs, other=0.0, cache_modifier=".cg")
        elif REDUCTION == 2:
            below += tl.load(sums + 2 * programs + i, mask=i < programs, other=0.0, cache_modifier=".cg")
    if REDUCTION == 0:
        factor = 1.0
    elif REDUCTION == 3:
        factor = 1.0 / tl.maximum(samples, 1).to(sums.dtype.element_ty)
    else:
        divisor = tl.sum(below)
        factor = tl.where(divisor > 0.0, 1.0 / tl.where(divisor > 0.0, divisor, 1.0), 1.0)
    tl.store(reduced, tl.sum(total) * factor)
    tl.store(inverse, factor)


@triton.jit
def _codes(codes, row, rows, sixteens, C: tl.constexpr):
    """Codes that ``softmax_forward.forward_kernel`` has written, 2 C beyond the last row.

    The tensor is padded to ``sixteens`` times 16 elements, so that loads can be vectorised.
    """
    code = tl.load(codes + row, mask=row < sixteens * 16, other=2 * C).to(tl.int32)
    return tl.where(row < rows, code, 2 * C)


@triton.jit
def count_kernel(
    codes, counts, rows, sixteens, C: tl.constexpr, BINS: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Add support and hits of each class to ``counts`` (2, C); integers, so the order does not matter.

    A row whose loss is NaN invalidates the batch: the support of all classes becomes very negative, see
    ``weights.recall``. With BINS > 2 C each program uses a histogram; with 0, for many classes, one atomic per row.
    """
    if BINS > 0:
        table = tl.zeros([BINS], tl.int32)
    wrong = tl.zeros([BLOCK], tl.int32)
    for start in range(_first(LONG, BLOCK), rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        code = _codes(codes, row, rows, sixteens, C)
        if BINS > 0:
            table += tl.histogram(code, BINS)
        else:
            valid = code < 2 * C
            hit = valid & (code >= C)
            tl.atomic_add(counts + tl.where(hit, code - C, code), 1, mask=valid)
            tl.atomic_add(counts + code, 1, mask=hit)
            wrong += (code == 2 * C + 1).to(tl.int32)
    if BINS > 0:
        k = tl.arange(0, BINS)
        hit = (k >= C) & (k < 2 * C)
        tl.atomic_add(counts + tl.where(hit, k - C, k), table, mask=k < 2 * C)
        tl.atomic_add(counts + k, table, mask=hit)
        spoiled = tl.sum(tl.where(k == 2 * C + 1, table, 0))
        tl.atomic_add(counts + k, tl.full([BINS], SPOILED, tl.int64), mask=(k < C) & (spoiled > 0))
    elif tl.max(wrong) > 0:
        for start in range(0, C, BLOCK):
            k = start + tl.arange(0, BLOCK)
            tl.atomic_add(counts + k, tl.full([BLOCK], SPOILED, tl.int64), mask=k < C)


@triton.jit
def weigh_kernel(
    codes, losses, weight, sums, ticket, reduced, inverse, rows, sixteens, samples,
    C: tl.constexpr, LONG: tl.constexpr, REDUCTION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of loss, mass and valid rows of this program, (3, programs), with class weights applied to ``losses``.

    With a REDUCTION the last program also writes the reduced loss, see ``finish_last``.
    """
    loss = tl.zeros([BLOCK], losses.dtype.element_ty)
    mass = tl.zeros([BLOCK], losses.dtype.element_ty)
    count = tl.zeros([BLOCK], losses.dtype.element_ty)
    for start in range(_first(LONG, BLOCK), rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        code = _codes(codes, row, rows, sixteens, C)
        valid = code < 2 * C
        own = tl.load(weight + tl.where(code >= C, code - C, code), mask=valid, other=0.0)
        lost = tl.load(losses + row, mask=row < sixteens * 16, other=0.0)
        loss += tl.where(code != 2 * C, own * lost, 0.0)  # NaN for an invalid class
        mass += own
        count += valid.to(losses.dtype.element_ty)
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    tl.store(sums + program, tl.sum(loss))
    tl.store(sums + programs + program, tl.sum(mass))
    tl.store(sums + 2 * programs + program, tl.sum(count))
    finish_last(ticket, sums, reduced, inverse, samples, REDUCTION, 1024)


@triton.jit
def mass_kernel(
    targets, weight, sums, ticket, reduced, inverse, rows, ignore_index, samples,
    C: tl.constexpr, WEIGHTED: tl.constexpr, LONG: tl.constexpr, REDUCTION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The inverse of the denominator of a loss whose rows have the class indices ``targets`` (rows,).

    Also writes the sums of this program, (3, programs), as ``weigh_kernel`` does, with a loss of 0.
    """
    mass = tl.zeros([BLOCK], sums.dtype.element_ty)
    count = tl.zeros([BLOCK], sums.dtype.element_ty)
    for start in range(_first(LONG, BLOCK), rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        target = tl.load(targets + row, mask=row < rows, other=0).to(tl.int64)
        valid = (row < rows) & (target != ignore_index)
        if WEIGHTED:
            label = tl.where((target >= 0) & (target < C), target, 0)
            mass += tl.load(weight + label, mask=valid, other=0.0)
        count += valid.to(sums.dtype.element_ty)
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    tl.store(sums + program, 0.0)
    tl.store(sums + programs + program, tl.sum(mass if WEIGHTED else count))
    tl.store(sums + 2 * programs + program, tl.sum(count))
    finish_last(ticket, sums, reduced, inverse, samples, REDUCTION, 1024)


@triton.jit
def scale_kernel(tensor, factor, inverse, size, COUNTED: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply all elements by a scalar in place; skipped if it is 1.

    COUNTED: the elements were divided by their number and should have been multiplied by ``inverse``.
    """
    by = tl.load(factor).to(tl.float32)
    if COUNTED:
        number = tl.full([], 1.0, tl.float32) * size  # Triton may specialise size to the constant 1
        right = tl.load(inverse)
        by = tl.where(right == 1.0 / number, by, by * (right * number))
    if by != 1.0:
        for start in range(_first(LONG, BLOCK), size, tl.num_programs(0) * BLOCK):
            i = start + tl.arange(0, BLOCK)
            scaled = tl.load(tensor + i, mask=i < size).to(tl.float32) * by
            tl.store(tensor + i, scaled.to(tensor.dtype.element_ty), mask=i < size)


@triton.jit
def add_kernel(partial, sums, programs, columns, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr):
    """Sums (kinds, columns) over the programs of ``partial`` (kinds, programs, columns), by blocks of columns."""
    blocks = tl.cdiv(columns, BLOCK_K)
    kind = tl.program_id(0) // blocks
    k = tl.program_id(0) % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_P, BLOCK_K], sums.dtype.element_ty)
    for start in range(0, programs, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        there = (p < programs)[:, None] & (k < columns)[None, :]
        total += tl.load(partial + (kind * programs + p)[:, None] * columns + k[None, :], mask=there, other=0.0)
    tl.store(sums + kind * columns + k, tl.sum(total, 0), mask=k < columns)


@triton.jit
def _first(LONG: tl.constexpr, BLOCK: tl.constexpr):
    """The first row of a program."""
    program = tl.program_id(0)
    if LONG:
        program = program.to(tl.int64)
    return program * BLOCK
