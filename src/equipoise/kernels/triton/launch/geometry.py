"""Positions of the rows of a batch in memory, so that kernels support any strides without a copy.

A row is one sample, pixel or token: all C logits of one (n, d1, ..., dk). Dimensions that are adjacent in memory in
every tensor are merged; at most three indices remain. Results are cached, because every batch has the same shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

__all__ = ["Geometry", "images", "is_long", "merged", "power_of_2"]

DIMENSIONS = 3
SMALL = 2**31 - 2**16  # offsets below this fit into 32 bits, with room for the last block


@dataclass(frozen=True)
class Geometry:
    """Rows in row-major order over ``sizes``, and the strides of each tensor along them."""

    sizes: tuple[int, ...]  # three of them, the fastest last
    strides: tuple[tuple[int, ...], ...]  # (tensors, 3)

    @cached_property
    def walks(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each tensor the largest unit of up to 16 elements that divides its strides, and the strides in units."""
        units = [math.gcd(16, *strides) for strides in self.strides]
        return tuple(
            (unit, tuple(stride // unit for stride in strides))
            for unit, strides in zip(units, self.strides, strict=True)
        )

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        return math.prod(self.sizes)

    @property
    def single(self) -> bool:
        """Whether one index addresses all rows."""
        return self.sizes[-1] == self.rows

    def programs(self, block: int) -> tuple[int, int]:
        """How the rows are split into blocks, and the number of programs.

        0: blocks span all sizes; 1: each block is within the innermost size, which is long; 2: there is only one size.
        """
        inner = self.sizes[-1]
        if self.single:
            return 2, -(-inner // block)
        if inner >= 4 * block:
            return 1, self.rows // inner * -(-inner // block)
        return 0, -(-self.rows // block)

    def even(self, block: int, tiles: int) -> bool:
        """Whether ``tiles`` blocks are all full."""
        return tiles * block == self.rows


@lru_cache(maxsize=1024)
def merged(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], per_class: int) -> Geometry | None:
    """Geometry of tensors that share their rows; None if more than three dimensions remain.

    Args:
        shape: (N, C, d1, ..., dk).
        strides: strides of each tensor.
        per_class: number of tensors with a class dimension, which come first; the others are (N, d1, ..., dk).
    """
    without = [[*stride[:1], *stride[2:]] if place < per_class else stride for place, stride in enumerate(strides)]
    sizes: list[int] = []
    kept: list[list[int]] = []  # strides of all tensors for each remaining dimension
    for axis, size in enumerate((*shape[:1], *shape[2:])):
        if size == 1:
            continue
        steps = [stride[axis] for stride in without]
        if sizes and all(outer == size * inner for outer, inner in zip(kept[-1], steps, strict=True)):
            sizes[-1] *= size
            kept[-1] = steps
        else:
            sizes.append(size)
            kept.append(steps)
    if len(sizes) > DIMENSIONS:
        return None
    while len(sizes) < DIMENSIONS:  # insert in the middle, where a division by 1 is free
        place = max(0, len(sizes) - 1)
        sizes.insert(place, 1)
        kept.insert(place, [0] * len(strides))
    return Geometry(tuple(sizes), tuple(zip(*kept, strict=True)))


def images(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], per_class: int) -> Geometry | None:
    """The same with the images as the first of three sizes; None if an image needs more than two."""
    inside = merged((1, *shape[1:]), strides, per_class)
    if inside is None or inside.sizes[1] > 1:
        return None
    steps = [(stride[0], step[0], step[2]) for stride, step in zip(strides, inside.strides, strict=True)]
    return Geometry((shape[0], inside.sizes[0], inside.sizes[2]), tuple(steps))


def is_long(rows: int, *tensors: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    """Whether an offset into tensors of these shapes and strides, or a row number, may need 64 bits."""
    return rows >= SMALL or any(_reaches_far(*tensor) for tensor in tensors)


@lru_cache(maxsize=1024)
def _reaches_far(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the offset of an element may need 64 bits."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) >= SMALL


def power_of_2(number: int) -> int:
    """The next power of two, at least 2."""
    return 1 << max(1, (number - 1).bit_length())
