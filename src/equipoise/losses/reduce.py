"""Reductions: the word says the denominator.

============== ================================================================================================
``mean``       torch's meaning: softmax with index targets, sum / sum of the class weights of the valid targets;
               softmax with dense targets, sum / valid rows; sigmoid, sum / valid elements
``valid_mean`` sum / valid rows (pixels, tokens)
``batch_mean`` sum / N
``sum``        the sum
``none``       unreduced, 0 at ignored places
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
    """Raise on an unknown word."""
    check_choice("reduction", reduction, REDUCTIONS)


def reduce_loss(
    loss: Tensor,
    reduction: str,
    denominator: Callable[[str], Tensor | float],
    *,
    sync: bool = False,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Reduce unreduced values, 0 at ignored places, to what ``reduction`` says.

    Args:
        loss: unreduced values of any shape, or their sum.
        reduction: one of the words above.
        denominator: word to local denominator, asked only for the three means.
        sync: ``world size * local sum / global denominator``, so that DDP's averaging of gradients gives the result of
            one process on the joined batch.
        normalizer: replaces the denominator, without the factor; a number or a tensor of one; 0 gives infinity or NaN.

    Nothing valid gives 0 that is attached to the graph: the sum is 0 and so is not divided.
    """
    if reduction == "none":
        if normalizer is not None:
            raise ValueError("normalizer must be None for reduction='none', got one; divide the result yourself")
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
    """A normalizer that keeps the shape and the dtype of what it divides; raise unless it is one real number."""
    if isinstance(normalizer, Tensor) and normalizer.numel() == 1 and not normalizer.is_complex():
        return normalizer.reshape(()).to(dtype)
    if isinstance(normalizer, Real) and not isinstance(normalizer, bool):
        if normalizer < 0:
            raise ValueError(f"normalizer must not be negative, got {normalizer!r}; pass what the sum is divided by")
        return normalizer
    came = f"{normalizer.dtype} {tuple(normalizer.shape)}" if isinstance(normalizer, Tensor) else repr(normalizer)
    raise TypeError(f"normalizer must be a number or a tensor of one, got {came}; pass one number for the whole batch")
