"""Probabilities, ground truth and overlaps for the region losses in plain PyTorch, on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.reference.softmax import has_target

__all__ = ["overlap_sums", "probabilities", "truth_of"]


def overlap_sums(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    r"""Overlap :math:`\sum p t,\; \sum p (1 - t),\; \sum (1 - p) t` of p = softmax(logits) and the ground truth t.

    Shape: ``logits`` (N, C, d1, ..., dk), ``targets`` (N, d1, ..., dk) indices or dense like the logits; result (3, C),
    or (3, N, C) with ``per_image``, in the accumulation type. Ignored pixels and all-zero dense targets add 0.
    """
    truth, valid = truth_of(logits, targets, ignore_index)
    truth = truth.to(accumulation_dtype(logits))
    probs = torch.where(valid, probabilities(logits, valid), 0.0)
    hit = probs * truth
    pixels = 2 if per_image else (0, 2)
    return torch.stack([hit.sum(pixels), (probs - hit).sum(pixels), (truth - hit).sum(pixels)])


def truth_of(logits: Tensor, targets: Tensor, ignore_index: int, *, hard: bool = False) -> tuple[Tensor, Tensor]:
    """Ground truth (N, C, P), and the mask of valid pixels (N, 1, P).

    Index targets become a boolean mask, False for every class at ignored pixels. Dense targets stay dense, or with
    ``hard`` become the mask of their largest class.
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
    """Softmax (N, C, P), uniform at pixels that are not ``valid`` (N, 1, P)."""
    # Masked before the softmax: its derivative would propagate NaN or inf of an ignored pixel.
    return torch.where(valid, _flat(logits), 0.0).to(accumulation_dtype(logits)).softmax(1)


def _flat(logits: Tensor) -> Tensor:
    """(N, C, P), with P = 1 for logits (N, C)."""
    return logits.flatten(2) if logits.ndim > 2 else logits.unsqueeze(2)
