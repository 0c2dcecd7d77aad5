"""Reductions of the unreduced losses; they differ in the denominator.

============== ================================================================================================
``mean``       as in PyTorch: softmax with index targets, sum / sum of the class weights of the valid targets;
               softmax with dense targets, sum / valid rows; sigmoid, sum / valid elements
``valid_mean`` sum / valid rows (pixels, tokens)
``batch_mean`` sum / N
``sum``        the sum
``none``       unreduced, 0 for ignored entries
============== ================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import torch
from torch import Tensor

from equipoise._checks import check_choice
from equipoise.distributed import all_sum, world_size

__all__ = ["REDUCTIONS", "check_reduction", "reduce_loss"]

REDUCTIONS = ("mean", "valid_mean", "batch_mean", "sum", "none")


def check_reduction(reduction: str) -> None:
    """Raise on an unknown reduction."""
    check_choice("reduction", reduction, REDUCTIONS)


def reduce_loss(
    loss: Tensor,
    reduction: str,
    denominator: Callable[[str], Tensor | float],
    *,
    sync: bool = False,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Reduce losses, which are 0 for ignored entries.

    Args:
        loss: unreduced values of any shape, or their sum.
        reduction: one of the reductions above.
        denominator: function from the reduction to the denominator in this process; called for the three means only.
        sync: return ``world size * local sum / global denominator``, so that the gradients averaged by DDP equal those
            of one process on the joined batch.
        normalizer: replaces the denominator, without the world size; a number or a tensor of one element.

    Without valid entries the result is 0, attached to the graph. A normalizer of 0 gives infinity or NaN.
    """
    if reduction == "none":
        if normalizer is not None:
            raise ValueError("normalizer must be None for reduction='none', got one; divide the losses yourself")
        return loss
    total = loss.sum() if loss.ndim else loss
    if normalizer is not None:
        return total / _divisor(normalizer, total.dtype)
    factor = world_size() if sync else 1
    if reduction == "sum":
        return total * factor if factor != 1 else total
    local = denominator(reduction)
    if factor == 1 and not isinstance(local, Tensor):
        return total / max(local, 1)
    # a fill, not a copy from the host, which would wait for the device
    divisor = local if isinstance(local, Tensor) else torch.full((), local, dtype=total.dtype, device=total.device)
    if factor != 1:
        divisor, total = all_sum(divisor.to(total.dtype)), total * factor
    return total / torch.where(divisor > 0, divisor, 1.0).to(total.dtype)


def _divisor(normalizer: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    """Check that a normalizer is one real number; return it in a form that keeps shape and dtype of the dividend."""
    if isinstance(normalizer, Tensor) and normalizer.numel() == 1 and not normalizer.is_complex():
        return normalizer.reshape(()).to(dtype)
    if isinstance(normalizer, Real) and not isinstance(normalizer, bool):
        if normalizer < 0:
            raise ValueError(f"normalizer must not be negative, got {normalizer!r}; pass the divisor of the sum")
        return normalizer
    came = f"{normalizer.dtype} {tuple(normalizer.shape)}" if isinstance(normalizer, Tensor) else repr(normalizer)
    raise TypeError(f"normalizer must be a number or a tensor of one, got {came}; pass one number per batch")
