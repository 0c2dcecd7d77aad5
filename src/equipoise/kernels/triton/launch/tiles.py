"""Tile sizes of the softmax and overlap kernels in rows and classes, measured on an H200.

Contiguous classes: the threads of a warp read along a row, and a tile has several rows if they are short. Strided or
few classes: adjacent threads process adjacent rows, as many per thread as one load and the registers allow. Each thread
has all classes of a tile of its rows, so that sums over classes need no communication.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from equipoise.kernels.triton.launch.geometry import power_of_2

__all__ = ["Blocks", "Work", "blocks_of", "gradient_blocks", "is_aligned", "summing_blocks"]

Work = Literal["forward", "backward", "at once", "much at once"]

SUMMED = 96  # bytes per thread for sums over the rows, for each of three kinds


class Blocks(NamedTuple):
    """Tile of one program."""

    rows: int
    classes: int
    warps: int
    vector: int = 0
    """If a thread has all classes of a tile of its rows: the number of adjacent rows per load, -1 for one row with
    contiguous classes. Otherwise 0."""

    def hold_rows(self, classes: int) -> bool:
        """Whether a thread has all classes of its rows in one tile."""
        return self.vector != 0 and classes <= self.classes

    @property
    def tile(self) -> tuple[int, int, int]:
        """The arguments of a kernel."""
        return self.rows, self.classes, self.vector


def is_aligned(tensor: Tensor) -> bool:
    """Whether the tensor is aligned to 16 bytes, the largest load."""
    return tensor.data_ptr() % 16 == 0


def blocks_of(
    shape: tuple[int, ...], strides: tuple[int, ...], element_size: int, aligned: bool, work: Work, spread: bool
) -> Blocks:
    """Tile for a loss of rows; ``"backward"`` sums over no classes, ``"at once"`` is a fused forward and backward."""
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
    if not _loads_adjacent_rows(shape, strides, aligned):
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
    """Tile for three sums per class over the rows, which stay in registers if a tile holds all classes."""
    width = power_of_2(shape[1])
    few = shape[1] * max(4, element_size) <= SUMMED
    if strides[1] == 1:
        if few:
            return Blocks(64, width, 2, -1)
        return Blocks(max(1, 512 // width), width, max(1, width // 512)) if width <= 2048 else Blocks(64, 64, 8)
    if few:
        return Blocks(256, width, 4, 2) if width <= 8 else Blocks(128, width, 2, 2)
    return _warp_of_rows(element_size, _loads_adjacent_rows(shape, strides, aligned))


def gradient_blocks(shape: tuple[int, ...], strides: tuple[int, ...], element_size: int, aligned: bool) -> Blocks:
    """Tile for the gradient of such sums; rows that do not fit into a thread are read twice, the second time cached."""
    width = power_of_2(shape[1])
    if strides[1] == 1:
        return blocks_of(shape, strides, element_size, aligned, "backward", spread=False)
    at_once = _loads_adjacent_rows(shape, strides, aligned)
    if width <= 32:
        return Blocks(256, width, 4, 2) if at_once else Blocks(256, width, 8, 1)
    return _warp_of_rows(element_size, at_once)


def _warp_of_rows(element_size: int, at_once: bool) -> Blocks:
    """Tile for rows with more classes than a thread holds, which are read twice in blocks."""
    vector = 16 // max(4, element_size) if at_once else 2
    return Blocks(32 * vector, 8, 1, vector)


def _loads_adjacent_rows(shape: tuple[int, ...], strides: tuple[int, ...], aligned: bool) -> bool:
    """Whether Triton can prove that one load may cover adjacent rows."""
    steps = [stride for size, stride in zip(shape, strides, strict=True) if size > 1 and stride != 1]
    return aligned and not any(stride % 16 for stride in steps)
