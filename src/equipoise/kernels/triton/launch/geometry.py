"""Where the rows of a batch lie in memory, so that kernels can walk any strides without a copy.

A row is one sample, pixel or token: all C logits of one (n, d1, ..., dk). Dimensions that lie behind each other in
every tensor are merged; what is left is counted by at most three indices. Answers are remembered, because the same
shapes come again with every batch.
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
        """For each tensor the largest unit of up to 16 elements that divides its strides, and the strides in it."""
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
        """Whether one index is enough."""
        return self.sizes[-1] == self.rows

    def programs(self, block: int) -> tuple[int, int]:
        """How the rows are shared out in blocks, and how many programs that makes.

        0: one block after the other over all sizes; 1: each block within the innermost size, where that is long;
        2: there is no other size.
        """
        inner = self.sizes[-1]
        if self.single:
            return 2, -(-inner // block)
        if inner >= 4 * block:
            return 1, self.rows // inner * -(-inner // block)
        return 0, -(-self.rows // block)

    def even(self, block: int, tiles: int) -> bool:
        """Whether so many blocks are full of rows."""
        return tiles * block == self.rows


@lru_cache(maxsize=1024)
def merged(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], per_class: int) -> Geometry | None:
    """Geometry of tensors that share their rows; None where more than three dimensions cannot be merged.

    Args:
        shape: (N, C, d1, ..., dk).
        strides: of each tensor; the first ``per_class`` have a class dimension, the others (N, d1, ..., dk) have none.
        per_class: how many have one.
    """
    without = [[*stride[:1], *stride[2:]] if place < per_class else stride for place, stride in enumerate(strides)]
    sizes: list[int] = []
    kept: list[list[int]] = []  # strides of all tensors for each dimension that is left
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
    while len(sizes) < DIMENSIONS:  # in the middle, where dividing by 1 costs nothing
        place = max(0, len(sizes) - 1)
        sizes.insert(place, 1)
        kept.insert(place, [0] * len(strides))
    return Geometry(tuple(sizes), tuple(zip(*kept, strict=True)))


def images(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], per_class: int) -> Geometry | None:
    """The same with the images apart, as the first of three sizes; None where an image has more than two."""
    inside = merged((1, *shape[1:]), strides, per_class)
    if inside is None or inside.sizes[1] > 1:
        return None
    steps = [(stride[0], step[0], step[2]) for stride, step in zip(strides, inside.strides, strict=True)]
    return Geometry((shape[0], inside.sizes[0], inside.sizes[2]), tuple(steps))


def is_long(rows: int, *tensors: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    """Whether the offset of a row or of an element, of tensors given by shape and strides, may need 64 bits."""
    return rows >= SMALL or any(_reaches_far(*tensor) for tensor in tensors)


@lru_cache(maxsize=1024)
def _reaches_far(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the offset of an element may need 64 bits."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) >= SMALL


def power_of_2(number: int) -> int:
    """The next power of two, at least 2."""
    return 1 << max(1, (number - 1).bit_length())
