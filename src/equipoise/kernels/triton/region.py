"""The Triton backend of the region losses: autograd functions, and custom operations for ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equipoise._checks import is_batched
from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.reference import lovasz as lovasz_reference
from equipoise.kernels.reference import region as region_reference
from equipoise.kernels.triton.launch.lovasz import launch_lovasz
from equipoise.kernels.triton.launch.region import (
    MOST_ENTRIES,
    TverskyOptions,
    launch_gradient,
    launch_loss,
    launch_sums,
)

__all__ = ["TverskyOptions", "lovasz_losses", "overlap_loss", "overlap_sums"]

MOST_OPTIONS = 64  # options that kernels are compiled for, at most
NO_CLASS = -1

_known: set[TverskyOptions] = set()


def overlap_sums(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    """``reference.region.overlap_sums``, fused."""
    # torch.compile treats the kernels as opaque operations.
    function = compiled_sums if torch.compiler.is_compiling() else OverlapSums.apply
    sums: Tensor = function(logits, targets, ignore_index, per_image)  # type: ignore[no-untyped-call]
    return sums


def lovasz_losses(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> tuple[Tensor, Tensor]:
    """``reference.lovasz.lovasz_losses``, fused; not supported while compiling."""
    if targets.is_floating_point():
        mass = targets.sum(1, dtype=accumulation_dtype(targets))
        targets, ignore_index = torch.where(mass != 0, targets.argmax(1), NO_CLASS), NO_CLASS
    losses: tuple[Tensor, Tensor] = LovaszLosses.apply(logits, targets, ignore_index, per_image)  # type: ignore[no-untyped-call]
    return losses


def overlap_loss(sums: Tensor, plain: Callable[[Tensor], Tensor], options: TverskyOptions) -> Tensor:
    """The scalar ``plain(sums)`` in one kernel instead of a dozen operations on a few numbers.

    Args:
        sums: (3, C) or (3, N, C), as ``overlap_sums`` returns them.
        plain: the Tversky loss in plain operations, for many sums, second derivatives and ``torch.compile``.
        options: the options of that loss, for which the kernel is compiled.
    """
    if torch.compiler.is_compiling() or not 0 < sums.numel() <= MOST_ENTRIES or not _is_worth_it(options):
        return plain(sums)
    loss: Tensor = OverlapLoss.apply(sums, plain, options)  # type: ignore[no-untyped-call]
    return loss


def _is_worth_it(options: TverskyOptions) -> bool:
    """Whether to compile a kernel for these options: not if there are too many, as when they change with every step."""
    if options not in _known and len(_known) < MOST_OPTIONS:
        _known.add(options)
    return options in _known


class OverlapSums(torch.autograd.Function):
    """The sums; only the inputs are saved for backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:  # noqa: ANN401
        """Sums, (3, C) or (3, N, C)."""
        _keep(ctx, (logits, targets, ignore_index, per_image), None)
        return launch_sums(logits, targets, ignore_index, per_image)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits, by plain operations for second derivatives and batches of gradients."""
        logits, targets = ctx.saved_tensors
        gradient = _by_plain_operations(
            lambda: region_reference.overlap_sums(logits, targets, ctx.ignore_index, ctx.per_image), logits, grad
        )
        if gradient is None:
            gradient = launch_gradient(grad, logits, targets, ctx.ignore_index)
        return gradient, None, None, None


class LovaszLosses(torch.autograd.Function):
    """Losses of the classes, and which are present; saves the derivative with respect to each error."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        logits: Tensor,
        labels: Tensor,
        ignore_index: int,
        per_image: bool,
    ) -> tuple[Tensor, Tensor]:
        """Losses and presence, both (C,) or (N, C)."""
        losses, present, slopes = launch_lovasz(logits, labels, ignore_index, per_image)
        ctx.ignore_index, ctx.per_image = ignore_index, per_image
        ctx.save_for_backward(logits, labels, slopes)
        ctx.mark_non_differentiable(present)
        return losses, present

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits, by plain operations for second derivatives and batches of gradients."""
        logits, labels, slopes = ctx.saved_tensors
        gradient = _by_plain_operations(
            lambda: lovasz_reference.lovasz_losses(logits, labels, ctx.ignore_index, ctx.per_image)[0], logits, grad
        )
        if gradient is None:
            gradient = launch_gradient(grad, logits, labels, ctx.ignore_index, slopes)
        return gradient, None, None, None


def _by_plain_operations(function: Callable[[], Tensor], logits: Tensor, grad: Tensor) -> Tensor | None:
    """Gradient of the logits through ``function`` for second derivatives and batches of gradients; else None."""
    create_graph = torch.is_grad_enabled()  # for a second derivative
    if not (create_graph or is_batched(grad)):
        return None
    with torch.enable_grad():
        result = function()
    return torch.autograd.grad(result, logits, grad, create_graph=create_graph)[0]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None) -> None:  # noqa: ANN401
    logits, targets, ctx.ignore_index, ctx.per_image = inputs
    ctx.save_for_backward(logits, targets)


class OverlapLoss(torch.autograd.Function):
    """The loss of the sums; forward computes its gradient too."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, plain: Callable[[Tensor], Tensor], options: TverskyOptions) -> Tensor:  # noqa: ANN401
        """The loss, a scalar."""
        loss, slopes = launch_loss(sums, options)
        ctx.plain = plain
        ctx.save_for_backward(sums, slopes)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the sums, by plain operations for second derivatives."""
        sums, slopes = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return slopes * grad, None, None
        return *torch.autograd.grad(ctx.plain(sums), sums, grad, create_graph=True), None, None


# ---------------------------------------------------------------------------------------------------------------------
# Custom operations for ``torch.compile``
# ---------------------------------------------------------------------------------------------------------------------

compiled_sums = torch.library.custom_op("equipoise::overlap_sums", launch_sums, mutates_args=())
compiled_gradient = torch.library.custom_op("equipoise::overlap_gradient", launch_gradient, mutates_args=())


@compiled_sums.register_fake
def _(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    shape = (3, *logits.shape[:2]) if per_image else (3, logits.shape[1])
    return logits.new_empty(shape, dtype=accumulation_dtype(logits))


@compiled_gradient.register_fake
def _(slopes: Tensor, logits: Tensor, targets: Tensor, ignore_index: int, each: Tensor | None = None) -> Tensor:
    return torch.empty_like(logits)


def _compiled_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    return compiled_gradient(grad, *ctx.saved_tensors, ctx.ignore_index), None, None, None


compiled_sums.register_autograd(_compiled_backward, setup_context=_keep)
