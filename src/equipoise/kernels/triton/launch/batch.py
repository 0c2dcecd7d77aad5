"""Memory layout of a batch: the part of a launch's cache key that does not depend on the loss."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from equipoise.kernels.triton.launch.geometry import Geometry, images, is_long, merged
from equipoise.kernels.triton.launch.tiles import is_aligned

__all__ = ["Batch"]


class Batch(NamedTuple):
    """Shapes and strides of the logits, of outputs with their shape, and of the targets."""

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # of the logits first, of the targets last
    element_size: int
    aligned: bool
    dense: bool

    @classmethod
    def of(cls, *tensors: Tensor) -> Batch:
        """Layout of tensors: the logits first, the targets last."""
        logits, targets = tensors[0], tensors[-1]
        strides = tuple([tensor.stride() for tensor in tensors])
        return cls(logits.shape, strides, logits.element_size(), is_aligned(logits), targets.is_floating_point())

    def geometry(self, *, per_image: bool = False) -> Geometry | None:
        """Geometry of the rows; None if these tensors must be copied first."""
        return (images if per_image else merged)(self.shape, self.strides, len(self.strides) - 1 + self.dense)

    @property
    def long(self) -> bool:
        """Whether the offset of a row or an element may need 64 bits."""
        shape = self.shape
        like_logits = [(shape, strides) for strides in self.strides[:-1]]
        targets = (shape if self.dense else (*shape[:1], *shape[2:]), self.strides[-1])
        return is_long(math.prod(shape) // max(shape[1], 1), *like_logits, targets)

    @property
    def class_strides(self) -> list[int]:
        """Stride of each tensor along the classes, 0 for index targets."""
        return [*(strides[1] for strides in self.strides[:-1]), self.strides[-1][1] if self.dense else 0]
