"""The Triton backend of the overlap losses: an autograd function, and the launch of its kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from equipoise.kernels import region_reference
from equipoise.kernels.geometry import is_long, rows_of
from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.region_triton import gradient_kernel, softmax_kernel, sums_kernel

__all__ = ["overlap_sums"]

WIDEST = 512  # classes of a tile that holds all of them; beyond, it would be too narrow in the pixels
PROGRAMS = 1024  # that share the rows, about: several for each multiprocessor


def overlap_sums(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    """``region_reference.overlap_sums``, fused."""
    # To the compiler the kernels are operations that it need not look into.
    function = compiled_sums if torch.compiler.is_compiling() else OverlapSums.apply
    sums: Tensor = function(logits, targets, ignore_index, per_image)  # type: ignore[no-untyped-call]
    return sums


class OverlapSums(torch.autograd.Function):
    """The sums; only the inputs are kept for their gradient."""

    @staticmethod
    def forward(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
        """(3, C) or (3, N, C)."""
        return launch_sums(logits, targets, ignore_index, per_image)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        """Keep the inputs."""
        logits, targets, ctx.ignore_index, ctx.per_image = inputs
        ctx.save_for_backward(logits, targets)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits, by plain operations where a second derivative may be wanted."""
        logits, targets = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return launch_gradient(grad, logits, targets, ctx.ignore_index), None, None, None
        sums = region_reference.overlap_sums(logits, targets, ctx.ignore_index, ctx.per_image)
        return *torch.autograd.grad(sums, logits, grad, create_graph=True), None, None, None


class Tile(NamedTuple):
    """What one program works on at a time."""

    rows: int
    classes: int
    warps: int


class Batch(NamedTuple):
    """Logits and targets as the kernels walk over them."""

    logits: Tensor
    targets: Tensor
    ignore_index: int
    groups: int
    rows: int  # of a group
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # of the logits, the targets, and what is to be filled

    @property
    def whole(self) -> bool:
        """Whether a tile holds all classes."""
        return self.logits.shape[1] <= WIDEST

    @property
    def tile(self) -> Tile:
        """A tile that leaves 16 elements to each thread.

        Twice as many where that lets threads keep all classes of their pixels to themselves: the sums of 24 classes
        just fit into the registers, and those that pad them to 32 are known to the compiler and cost nothing.
        """
        classes = self.logits.shape[1]
        width: int = triton.next_power_of_2(classes) if self.whole else 128
        warps = 4 if width < 64 else 8
        alone = 16 < classes <= 24 and self.logits.stride(1) != 1 and accumulation_dtype(self.logits) is torch.float32
        return Tile(128 if alone else 512 * warps // width, width, warps)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of a group along its rows, and along the classes."""
        return triton.cdiv(self.rows, self.tile.rows), triton.cdiv(self.logits.shape[1], self.tile.classes)

    def run(self, kernel: Any, tensors: tuple[Tensor, ...], lanes: int, blocks: int, **flags: bool) -> None:  # noqa: ANN401
        """Run a kernel on the inputs and ``tensors``, with so many lanes a group and blocks of classes."""
        tile, tensors = self.tile, (self.logits, self.targets, *tensors)
        with torch.cuda.device_of(self.logits):  # type: ignore[no-untyped-call]
            kernel[(self.groups * lanes, blocks)](
                *tensors,
                self.rows,
                lanes,
                self.sizes,
                *self.strides,
                self.ignore_index,
                C=self.logits.shape[1],
                DENSE=self.targets.is_floating_point(),
                LONG=is_long(3 * self.groups * self.rows, *tensors),  # 3: numbers a row of ``softmaxes``
                BLOCK_R=tile.rows,
                BLOCK_C=tile.classes,
                num_warps=tile.warps,
                maxnreg=None if self.logits.dtype is torch.float64 else 128,  # left alone, it halves the occupancy
                **flags,
            )

    def softmaxes(self, slopes: Tensor | None = None) -> Tensor:
        """What ``softmax_kernel`` finds about the rows, (groups * rows, 3)."""
        dtype = accumulation_dtype(self.logits)
        found = torch.empty((self.groups * self.rows, 3), dtype=dtype, device=self.logits.device)
        given = found if slopes is None else slopes
        inputs = self._replace(strides=self.strides[:2])
        inputs.run(softmax_kernel, (given, found), self.tiles[0], 1, SLOPES=slopes is not None)
        return found


def _batch(logits: Tensor, targets: Tensor, out: Tensor, ignore_index: int, per_image: bool) -> Batch | None:
    """The batch in place; None where the rows of these tensors cannot be walked over together.

    ``out`` is like the logits.
    """
    dense = targets.is_floating_point()
    geometry = rows_of(logits, out, targets, per_class=2 + dense)
    if geometry is None:
        return None
    z, g, t = geometry.strides
    strides = ((*z, logits.stride(1)), (*t, targets.stride(1) if dense else 0), (*g, out.stride(1)))
    groups = logits.shape[0] if per_image else 1
    return Batch(logits, targets, ignore_index, groups, geometry.rows // groups, geometry.sizes, strides)


def launch_sums(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    """The sums, (3, C) or (3, N, C)."""
    classes, dtype, device = logits.shape[1], accumulation_dtype(logits), logits.device
    shape = (3, *logits.shape[:2]) if per_image else (3, classes)
    if logits.numel() == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    batch = _batch(logits, targets, logits, ignore_index, per_image)
    if batch is None:
        return launch_sums(logits.contiguous(), targets.contiguous(), ignore_index, per_image)
    batch = batch._replace(strides=batch.strides[:2])
    tiles, blocks = batch.tiles
    lanes = min(tiles, triton.cdiv(PROGRAMS, batch.groups * blocks))
    sums = torch.empty((3, batch.groups, lanes, classes), dtype=dtype, device=device)
    softmaxes = sums if batch.whole else batch.softmaxes()
    batch.run(sums_kernel, (softmaxes, sums), lanes, blocks, WHOLE=batch.whole)
    return sums.sum(2).view(shape)


def launch_gradient(grad: Tensor, logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """Gradient of the logits for that of the sums, (3, C) or (3, N, C)."""
    out = torch.empty_like(logits)
    if logits.numel() == 0:
        return out
    batch = _batch(logits, targets, out, ignore_index, grad.ndim == 3)
    if batch is None:
        return out.copy_(launch_gradient(grad, logits.contiguous(), targets.contiguous(), ignore_index))
    both, only_p, only_t = grad.unbind()
    slopes = torch.stack([only_p, both - only_t], dim=-2)
    tiles, blocks = batch.tiles
    softmaxes = slopes if batch.whole else batch.softmaxes(slopes)
    batch.run(gradient_kernel, (slopes, softmaxes, out), tiles, blocks, WHOLE=batch.whole)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# The same as operations for ``torch.compile``
# ---------------------------------------------------------------------------------------------------------------------

compiled_sums = torch.library.custom_op("equipoise::overlap_sums", launch_sums, mutates_args=())
compiled_gradient = torch.library.custom_op("equipoise::overlap_gradient", launch_gradient, mutates_args=())


@compiled_sums.register_fake
def _(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    shape = (3, *logits.shape[:2]) if per_image else (3, logits.shape[1])
    return logits.new_empty(shape, dtype=accumulation_dtype(logits))


@compiled_gradient.register_fake
def _(grad: Tensor, logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    return torch.empty_like(logits)


def _compiled_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    return compiled_gradient(grad, *ctx.saved_tensors, ctx.ignore_index), None, None, None


compiled_sums.register_autograd(_compiled_backward, setup_context=OverlapSums.setup_context)
