"""Processing a large batch on the CPU in blocks, so that temporaries stay in the cache.

A chain of elementwise operations on tensors of 40 MB spends most of its time on page faults and main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["in_blocks"]

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])

ELEMENTS_PER_THREAD = 262144


def in_blocks(
    function: Callable[..., Result], logits: Tensor, targets: Tensor, dtype: torch.dtype, *more: Tensor
) -> Result:
    """``function(logits, targets, *more)``, in blocks if the batch is large.

    Args:
        function: pointwise in every dimension but 1; returns a tensor shaped like its logits, or a tuple of a tensor
            without dimension 1 and a tensor shaped like its logits.
        logits: (N, C, d1, ..., dk).
        targets: like the logits, or without dimension 1.
        dtype: type of the results.
        more: tensors that broadcast to the logits.
    """
    size = ELEMENTS_PER_THREAD * torch.get_num_threads()
    if logits.numel() <= 2 * size:
        return function(logits, targets, *more)
    samples, classes = logits.shape[:2]
    positions = logits[0, 0].numel()
    more = tuple(tensor.expand(logits.shape) for tensor in more)
    if logits.ndim > 2:  # flatten to one dimension; without any, the classes stay the last dimension: faster
        wide, narrow = (samples, classes, positions), (samples, positions)
        more = tuple(tensor.reshape(wide) for tensor in more)
        targets = targets.reshape(wide if targets.ndim == logits.ndim else narrow)
    flat = logits.reshape(wide) if logits.ndim > 2 else logits
    # allocated in the returned shape: results that are not views may be changed in place
    full = torch.empty(logits.shape, dtype=dtype)
    rows = torch.empty(logits.shape[:1] + logits.shape[2:], dtype=dtype)
    flat_full, flat_rows = (full.view(wide), rows.view(narrow)) if logits.ndim > 2 else (full, rows)
    paired = False
    for batch, position in _blocks(samples, classes, positions, size):
        result = function(*(_cut(tensor, flat.ndim, batch, position) for tensor in (flat, targets, *more)))
        paired = isinstance(result, tuple)
        if isinstance(result, tuple):
            _cut(flat_rows, flat.ndim, batch, position).copy_(result[0])
        _cut(flat_full, flat.ndim, batch, position).copy_(result[1] if isinstance(result, tuple) else result)
    return (rows, full) if paired else full  # type: ignore[return-value]


def _cut(tensor: Tensor, ndim: int, batch: slice, position: slice) -> Tensor:
    """A block of (N, C, P), (N, C), (N, P) or (N,); ``ndim`` of the logits distinguishes (N, C) from (N, P)."""
    if ndim == 2:
        return tensor[batch]
    return tensor[batch, :, position] if tensor.ndim == 3 else tensor[batch, position]


def _blocks(samples: int, classes: int, positions: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Pairs of slices of the samples and of the positions with about ``size`` elements each.

    A sample is split only if it is more than four times as large, because its positions are strided.
    """
    step = max(1, size // (classes * positions))
    width = positions if classes * positions <= 4 * size else max(1, size // classes)
    for start in range(0, samples, step):
        for position in range(0, positions, width):
            yield slice(start, start + step), slice(position, position + width)
