"""Walking over strided tensors in Triton: where the rows of a program lie, and loading a tile of them."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["load_tile", "offsets", "places", "rows_of_program"]


@triton.jit
def rows_of_program(program, rows, size_2, SPLIT: tl.constexpr, LONG: tl.constexpr, BLOCK_R: tl.constexpr):
    """Row numbers of a program, which of them there are, and their indices: of all outer sizes, and the innermost.

    SPLIT: 1, a program stays within the innermost size, so that its rows are known to lie next to each other; 2, there
    is no other size; 0, neither.
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
        live = i_2 < size_2
    else:
        row = program * BLOCK_R + tl.arange(0, BLOCK_R)
        outer = row // size_2
        i_2 = row % size_2
        live = row < rows
    return row, live, outer, i_2


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
    inside = live[:, None] & (k < C)[None, :]
    tile = tl.load(tensor + at[:, None] + offsets(k, stride_c, LONG)[None, :], mask=inside, other=other)
    return tile.to(hyper.dtype.element_ty)
