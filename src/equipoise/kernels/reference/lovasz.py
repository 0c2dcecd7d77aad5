"""The Lovász-softmax losses of a batch in plain PyTorch, on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels.reference.region import probabilities, truth_of

__all__ = ["lines_at_once", "lovasz_losses"]

SORTED_AT_ONCE = 2**22  # errors: a sort needs several times the memory of its input


def lovasz_losses(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> tuple[Tensor, Tensor]:
    """Lovász-softmax losses of the classes, (C,) or (N, C), and which of them are present.

    Arguments as ``reference.region.overlap_sums``; the formula stands in ``losses.region.lovasz_softmax_loss``.
    """
    foreground, valid = truth_of(logits, targets, ignore_index, hard=True)
    probs = probabilities(logits, valid)
    # For a given order the loss is linear in the errors, so the graph need not contain the sort.
    slopes = _slopes(probs.detach(), foreground, valid, per_image)
    signed_errors = torch.add(probs, foreground, alpha=-1)  # ``-`` does not support masks
    losses = (slopes * signed_errors).sum(2 if per_image else (0, 2))
    return losses, foreground.any(2) if per_image else foreground.any(2).any(0)


def lines_at_once(pixels: int) -> int:
    """Number of lines of ``pixels`` errors each, one per class of a batch or of an image, in one sort."""
    return max(1, SORTED_AT_ONCE // max(1, pixels))


def _slopes(probs: Tensor, foreground: Tensor, valid: Tensor, per_image: bool) -> Tensor:
    """Derivative of the losses with respect to probs (N, C, P), 0 at ignored pixels; computed in chunks."""
    along = 0 if per_image else 1
    count = max(1, probs.shape[along])
    size = count if torch.compiler.is_compiling() else lines_at_once(probs.numel() // count)
    parts = (torch.split(tensor, size, along) for tensor in (probs, foreground, valid.expand_as(probs)))
    slopes = [_sorted_slopes(p, f, v, per_image) for p, f, v in zip(*parts, strict=True)]
    return torch.cat(slopes, along) if len(slopes) > 1 else slopes[0]


def _sorted_slopes(probs: Tensor, foreground: Tensor, valid: Tensor, per_image: bool) -> Tensor:
    """The same for a chunk of the classes or images, by one sort."""
    # Key -1 sorts ignored pixels behind all others, where they change no J_k of a valid pixel.
    errors = torch.where(valid, torch.where(foreground, 1 - probs, probs), -1.0)
    if not per_image:
        errors, foreground = errors.transpose(0, 1).flatten(1), foreground.transpose(0, 1).flatten(1)
    ordered, order = errors.sort(dim=-1, descending=True, stable=True)
    foreground = foreground.gather(-1, order)
    steps = torch.where(ordered < 0, 0.0, _jaccard_steps(foreground, ordered.dtype))
    slopes = steps.scatter(-1, order, torch.where(foreground, -steps, steps))  # every position is written
    return slopes if per_image else slopes.reshape(probs.transpose(0, 1).shape).transpose(0, 1)


def _jaccard_steps(foreground: Tensor, dtype: torch.dtype) -> Tensor:
    """J_k - J_(k-1) along the last dimension, in closed form: the difference would lose precision on large images.

    With I and U the intersection and union after step k: 1/U where the pixel is foreground, I / (U (U - 1)) elsewhere,
    and 1 at the first pixel of a class without foreground (U = 1). Counts are integers, exact at any image size.
    """
    foreground_pixels = foreground.sum(-1, keepdim=True, dtype=torch.int32)
    intersection = foreground_pixels - foreground.cumsum(-1, dtype=torch.int32)
    union = intersection + torch.arange(1, foreground.shape[-1] + 1, dtype=torch.int32, device=foreground.device)
    intersection, union = intersection.to(dtype), union.to(dtype)
    return torch.where(foreground | (union == 1), 1.0, intersection / (union - 1)) / union
