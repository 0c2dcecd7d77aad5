"""What the region losses need of a batch, in plain PyTorch: probabilities, truth and overlaps, on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.reference.softmax import has_target

__all__ = ["overlap_sums", "probabilities", "truth_of"]


def overlap_sums(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    r"""Overlap of prediction and truth, :math:`\sum p t,\; \sum p (1 - t),\; \sum (1 - p) t` with p = softmax(logits).

    Shape: ``logits`` (N, C, d1, ..., dk), ``targets`` (N, d1, ..., dk) indices or dense like the logits; result (3, C),
    or (3, N, C) with ``per_image``, in the accumulation type. Ignored pixels (of dense targets: without mass) add 0.
    """
    truth, valid = truth_of(logits, targets, ignore_index)
    truth = truth.to(accumulation_dtype(logits))
    probs = torch.where(valid, probabilities(logits, valid), 0.0)
    hit = probs * truth
    pixels = 2 if per_image else (0, 2)
    return torch.stack([hit.sum(pixels), (probs - hit).sum(pixels), (truth - hit).sum(pixels)])


def truth_of(logits: Tensor, targets: Tensor, ignore_index: int, *, hard: bool = False) -> tuple[Tensor, Tensor]:
    """Truth (N, C, P), no class at ignored pixels, and the mask of valid pixels (N, 1, P).

    The truth is a mask, except that of dense targets unless ``hard`` asks for their largest class.
    """
    shape = _flat(logits).shape
    if targets.is_floating_point():
        truth = targets.to(accumulation_dtype(logits)).reshape(shape)
        valid = has_target(truth)
        if not hard:
            return truth, valid
        labels = truth.argmax(1, keepdim=True)
    else:
        labels = targets.long().reshape(shape[0], 1, shape[2])  # long: a uint8 156 equals -100 in torch
        valid = labels != ignore_index
    return valid & (labels == torch.arange(shape[1], device=logits.device)[:, None]), valid


def probabilities(logits: Tensor, valid: Tensor) -> Tensor:
    """Softmax (N, C, P), the same for all classes where the pixel is not ``valid`` (N, 1, P)."""
    # Masked before the softmax: NaN or inf in an ignored pixel would come back through its derivative.
    return torch.where(valid, _flat(logits), 0.0).to(accumulation_dtype(logits)).softmax(1)


def _flat(logits: Tensor) -> Tensor:
    """(N, C, P), P = 1 where there are no pixels."""
    return logits.flatten(2) if logits.ndim > 2 else logits.unsqueeze(2)
