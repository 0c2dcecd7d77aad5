"""Working through a large batch on the CPU block by block, so that temporaries stay in the cache.

A chain of elementwise operations on tensors of 40 MB spends most of its time on fresh pages and main memory.
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
    """``function(logits, targets, *more)``, block by block where that pays.

    Args:
        function: pointwise in dimension 0 and from dimension 2 on; returns a tensor shaped like its logits, or such a
            tensor behind one without dimension 1.
        logits: (N, C, d1, ..., dk).
        targets: like the logits, or without dimension 1.
        dtype: of the results.
        more: tensors that broadcast to the logits.
    """
    size = ELEMENTS_PER_THREAD * torch.get_num_threads()
    if logits.numel() <= 2 * size:
        return function(logits, targets, *more)
    samples, classes = logits.shape[:2]
    places = logits[0, 0].numel()
    more = tuple(tensor.expand(logits.shape) for tensor in more)
    if logits.ndim > 2:  # one dimension of places; without any, the classes stay the last dimension, which is faster
        wide, narrow = (samples, classes, places), (samples, places)
        more = tuple(tensor.reshape(wide) for tensor in more)
        targets = targets.reshape(wide if targets.ndim == logits.ndim else narrow)
    flat = logits.reshape(wide) if logits.ndim > 2 else logits
    # in the shape in which they are returned, and no views of it, so that users may overwrite them
    full = torch.empty(logits.shape, dtype=dtype)
    rows = torch.empty(logits.shape[:1] + logits.shape[2:], dtype=dtype)
    flat_full, flat_rows = (full.view(wide), rows.view(narrow)) if logits.ndim > 2 else (full, rows)
    paired = False
    for batch, place in _blocks(samples, classes, places, size):
        result = function(*(_cut(tensor, flat.ndim, batch, place) for tensor in (flat, targets, *more)))
        paired = isinstance(result, tuple)
        if isinstance(result, tuple):
            _cut(flat_rows, flat.ndim, batch, place).copy_(result[0])
        _cut(flat_full, flat.ndim, batch, place).copy_(result[1] if isinstance(result, tuple) else result)
    return (rows, full) if paired else full  # type: ignore[return-value]


def _cut(tensor: Tensor, ndim: int, batch: slice, place: slice) -> Tensor:
    """A block of (N, C, P), (N, C), (N, P) or (N,); ``ndim`` is that of the logits and tells the middle two apart."""
    if ndim == 2:
        return tensor[batch]
    return tensor[batch, :, place] if tensor.ndim == 3 else tensor[batch, place]


def _blocks(samples: int, classes: int, places: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the samples and of the places that hold about ``size`` elements together.

    A sample is cut only where it is several times as large, because its places are strided.
    """
    step = max(1, size // (classes * places))
    width = places if classes * places <= 4 * size else max(1, size // classes)
    for start in range(0, samples, step):
        for place in range(0, places, width):
            yield slice(start, start + step), slice(place, place + width)
