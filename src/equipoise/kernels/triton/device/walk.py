"""Walking over strided tensors in Triton: where the rows of a program lie, and loading a tile of them."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["load_tile", "mass_of", "offsets", "places", "present", "raw_tile", "rows_of_program"]


@triton.jit
def rows_of_program(
    program, rows, size_2, SPLIT: tl.constexpr, EVEN: tl.constexpr, LONG: tl.constexpr, BLOCK_R: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Row numbers of a program, which of them there are, and their indices: of all outer sizes, and the innermost.

    SPLIT: 1, a program stays within the innermost size, so that its rows are known to lie next to each other; 2, there
    is no other size; 0, neither. EVEN: there are all of them. VECTOR: see ``tiles.Blocks``.
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
        i_2 += (tl.num_programs(1) - 1) * VECTOR  # nothing, but all that the compiler knows of it is the factor
    return row, live, outer, i_2


@triton.jit
def present(at, live, VECTOR: tl.constexpr):
    """Offset of rows of which all are there, the first in place of those that are not: loads need not ask each.

    Where neighbours are loaded at once, they have to stay neighbours, and loads ask. Else neighbouring threads are to
    have neighbouring rows whether these lie next to each other or not, where a thread has all classes of a row.
    """
    if VECTOR <= 1:
        at = tl.where(live, at, 0)
        live = tl.full(live.shape, True, tl.int1)
    if VECTOR == 1 or VECTOR == -1:
        # Told that rows were neighbours, the compiler gives them to neighbouring threads. It must not load several at
        # once: this is nothing, but now it knows of no alignment.
        at += tl.num_programs(1) - 1
        at = tl.max_contiguous(at, at.shape[0])
    return at, live


@triton.jit
def places(outer, i_2, size_1, stride_0, stride_1, stride_2, UNIT: tl.constexpr, LONG: tl.constexpr):
    """Offset of rows; strides are counted in UNITs, which tells the compiler how far it may vectorise."""
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
    """Sums of the rows of dense targets, a tile that has been loaded, 0 for those without a target.

    Not a sum of what was loaded and nothing else: a loop that adds up such sums is rewritten by Triton, which mixes up
    the rows of threads that have several (seen with 3.6).
    """
    return tl.sum(tl.abs(t), 1)


@triton.jit
def raw_tile(tensor, at, k, stride_c, live, C, other, LONG: tl.constexpr):
    """The same in the type of the tensor."""
    inside = live[:, None] & (k < C)[None, :]
    return tl.load((tensor + offsets(k, stride_c, LONG))[None, :] + at[:, None], mask=inside, other=other)
