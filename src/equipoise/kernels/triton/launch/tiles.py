"""How large a tile of rows and classes one program of the softmax and overlap kernels takes, as measured on an H200.

Classes next to each other: warps walk along a row, several rows at once where they are not long. Strided or few
classes: neighbouring threads have neighbouring rows, as many to a thread as one load can hold and its registers allow,
and keep all classes of a tile to themselves, so that sums over classes need no exchange.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from equipoise.kernels.triton.launch.geometry import power_of_2

__all__ = ["Blocks", "Work", "blocks_of", "gradient_blocks", "is_aligned", "summing_blocks"]

Work = Literal["forward", "backward", "at once", "much at once"]

SUMMED = 96  # bytes of sums over the rows that a thread keeps, for each of three kinds


class Blocks(NamedTuple):
    """Tile of one program."""

    rows: int
    classes: int
    warps: int
    vector: int = 0
    """Where a thread has all classes of its rows: how many neighbouring rows it loads at once, -1 for one row whose
    classes lie next to each other. Else 0."""

    def hold_rows(self, classes: int) -> bool:
        """Whether a thread has all classes of its rows at once."""
        return self.vector != 0 and classes <= self.classes

    @property
    def tile(self) -> tuple[int, int, int]:
        """As the kernels take it."""
        return self.rows, self.classes, self.vector


def is_aligned(tensor: Tensor) -> bool:
    """Whether the largest loads may start where it starts."""
    return tensor.data_ptr() % 16 == 0


def blocks_of(
    shape: tuple[int, ...], strides: tuple[int, ...], element_size: int, aligned: bool, work: Work, spread: bool
) -> Blocks:
    """For a loss of rows; ``backward`` needs no sum over the classes, and ``at once`` no row is read twice."""
    width, once = power_of_2(shape[1]), work in ("at once", "much at once")
    if strides[1] == 1 and width <= 32:
        return Blocks(64, width, 2, -1) if once else Blocks(128, width, 4, -1)
    if strides[1] == 1:
        if once:
            width = min(width, 8192)
            return Blocks(max(1, 512 // width), width, max(1, width // 2048))
        if work == "backward":
            width = min(width, 8192)
            return Blocks(max(1, 1024 // width), width, max(1, width // 1024))
        width = min(width, 1024)
        return Blocks(1024 // width, width, 1)
    if not _neighbours_at_once(shape, strides, aligned):
        if work == "backward" and element_size == 2 and not spread:
            return Blocks(128, min(width, 32), 2, 2)
        warps = 4 if work == "much at once" else 8
        return Blocks(32 * warps, min(width, 32), warps, 1)
    if once and width > 8:
        return Blocks(64, width, 1, 2) if width <= 32 else Blocks(128, 8, 2, 2)
    if width == 32 and not spread:
        return Blocks(256, width, 4, 2)
    vector = max(8 // element_size, min(16 // width, 16 // element_size))
    return Blocks(128 * vector, min(width, 8), 4, vector)


def summing_blocks(shape: tuple[int, ...], strides: tuple[int, ...], element_size: int, aligned: bool) -> Blocks:
    """For sums over the rows, three for each class, which stay in the registers where a tile holds all classes."""
    width = power_of_2(shape[1])
    few = shape[1] * max(4, element_size) <= SUMMED
    if strides[1] == 1:
        if few:
            return Blocks(64, width, 2, -1)
        return Blocks(max(1, 512 // width), width, max(1, width // 512)) if width <= 2048 else Blocks(64, 64, 8)
    if few:
        return Blocks(256, width, 4, 2) if width <= 8 else Blocks(128, width, 2, 2)
    return _warp_of_rows(element_size, _neighbours_at_once(shape, strides, aligned))


def gradient_blocks(shape: tuple[int, ...], strides: tuple[int, ...], element_size: int, aligned: bool) -> Blocks:
    """For the gradient of such sums; rows that a thread cannot hold are read twice, while they are in the cache."""
    width = power_of_2(shape[1])
    if strides[1] == 1:
        return blocks_of(shape, strides, element_size, aligned, "backward", spread=False)
    at_once = _neighbours_at_once(shape, strides, aligned)
    if width <= 32:
        return Blocks(256, width, 4, 2) if at_once else Blocks(256, width, 8, 1)
    return _warp_of_rows(element_size, at_once)


def _warp_of_rows(element_size: int, at_once: bool) -> Blocks:
    """Rows of more classes than a thread holds, which pass by twice in blocks."""
    vector = 16 // max(4, element_size) if at_once else 2
    return Blocks(32 * vector, 8, 1, vector)


def _neighbours_at_once(shape: tuple[int, ...], strides: tuple[int, ...], aligned: bool) -> bool:
    """Whether Triton can tell that neighbouring rows may be loaded at once."""
    steps = [stride for size, stride in zip(shape, strides, strict=True) if size > 1 and stride != 1]
    return aligned and not any(stride % 16 for stride in steps)
