"""Access to strided tensors in Triton: offsets of the rows of a program, and loading of tiles."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["load_tile", "mass_of", "offsets", "places", "present", "raw_tile", "rows_of_program"]


@triton.jit
def rows_of_program(
    program, rows, size_2, SPLIT: tl.constexpr, EVEN: tl.constexpr, LONG: tl.constexpr, BLOCK_R: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Row numbers of a program, the mask of existing rows, and their outer and innermost indices.

    SPLIT: 1 if a program stays within the innermost size, so that its rows are known to be adjacent; 2 if there is no
    other size; 0 otherwise. EVEN: all rows exist. VECTOR: see ``tiles.Blocks``.
    """
    if LONG:
        program = program.to(tl.int64)
    if SPLIT == 2:
        row = program * BLOCK_R + tl.arange(0, BLOCK_R)
        outer = program * 0
        i_2 = row
        live = row < rows
    elif SPLIT == 1:
        blocks = tl.cdiv(size_2, BLOCK_R)
        outer = program // blocks
        i_2 = (program % blocks) * BLOCK_R + tl.arange(0, BLOCK_R)
        row = outer * size_2 + i_2
        live = (i_2 < size_2) & (row < rows)
    else:
        row = program * BLOCK_R + tl.arange(0, BLOCK_R)
        outer = row // size_2
        i_2 = row % size_2
        live = row < rows
    if EVEN:
        live = tl.full([BLOCK_R], True, tl.int1)
    if VECTOR > 1:
        i_2 += (tl.num_programs(1) - 1) * VECTOR  # adds 0, but the compiler only knows that it is a multiple of VECTOR
    return row, live, outer, i_2


@triton.jit
def present(at, live, VECTOR: tl.constexpr):
    """Offsets of rows, with offset 0 instead of rows that do not exist, so that loads need no mask.

    If one load covers several adjacent rows (VECTOR > 1), they must stay adjacent, and loads are masked. If a thread
    has all classes of one row, adjacent threads should process adjacent rows, contiguous or not.
    """
    if VECTOR <= 1:
        at = tl.where(live, at, 0)
        live = tl.full(live.shape, True, tl.int1)
    if VECTOR == 1 or VECTOR == -1:
        # With the hint that rows are contiguous, the compiler assigns them to adjacent threads. It must not vectorise
        # the loads: adding this 0 hides the alignment from it.
        at += tl.num_programs(1) - 1
        at = tl.max_contiguous(at, at.shape[0])
    return at, live


@triton.jit
def places(outer, i_2, size_1, stride_0, stride_1, stride_2, UNIT: tl.constexpr, LONG: tl.constexpr):
    """Offsets of rows; strides are in UNITs, from which the compiler derives how far it may vectorise."""
    kind: tl.constexpr = tl.int64 if LONG else tl.int32
    i_0 = outer // size_1
    i_1 = outer % size_1
    return (i_0.to(kind) * stride_0 + i_1.to(kind) * stride_1 + i_2.to(kind) * stride_2) * UNIT


@triton.jit
def offsets(k, stride_c, LONG: tl.constexpr):
    return k.to(tl.int64 if LONG else tl.int32) * stride_c


@triton.jit
def load_tile(tensor, at, k, stride_c, live, C, other, hyper, LONG: tl.constexpr):
    """Tile (rows, classes) in the accumulation type, which is that of the hyper-parameters."""
    return raw_tile(tensor, at, k, stride_c, live, C, other, LONG).to(hyper.dtype.element_ty)


@triton.jit
def mass_of(t):
    """Sums of absolute values over the rows of a loaded tile of dense targets, 0 for rows without a target.

    This must not be a plain sum of loaded values: Triton rewrites a loop over such sums and mixes up the rows of
    threads that have several (observed with 3.6).
    """
    return tl.sum(tl.abs(t), 1)


@triton.jit
def raw_tile(tensor, at, k, stride_c, live, C, other, LONG: tl.constexpr):
    """Tile (rows, classes) in the type of the tensor."""
    inside = live[:, None] & (k < C)[None, :]
    return tl.load((tensor + offsets(k, stride_c, LONG))[None, :] + at[:, None], mask=inside, other=other)
