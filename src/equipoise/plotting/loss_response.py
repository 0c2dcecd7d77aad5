"""Value and gradient of a loss over probabilities, computed by calling the loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.losses import CrossEntropyLoss, gamma_for

__all__ = [
    "Response",
    "confidence_for",
    "cross_entropy",
    "probabilities",
    "region_response",
    "sigmoid_response",
    "softmax_logits",
    "softmax_response",
]


class Response(NamedTuple):
    """A loss along a line of probabilities; all (P,) float64."""

    p: Tensor
    loss: Tensor
    gradient: Tensor  # -dL/dz of the class or positive label, dL/dz of a negative label

    def broken_at(self, jump: float) -> Response:
        """NaN where p is ``jump``, so that no line connects both sides of a discontinuity."""
        return Response(self.p, *(torch.where(self.p == jump, math.nan, y) for y in (self.loss, self.gradient)))


def probabilities(points: int = 360, *also: float) -> Tensor:
    """Evenly spaced probabilities with ``also``, symmetric about 0.5; without 0, 1, and for even ``points`` 0.5."""
    even = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    return torch.cat([even, even.new_tensor(also)]).sort().values


def softmax_logits(p: Tensor, *, label: int = 0, num_classes: int = 2) -> Tensor:
    """Logits (P, C) for which ``label`` has probability p and the other classes are equally likely."""
    logits = torch.zeros(len(p), num_classes, dtype=torch.float64)
    logits[:, label] = torch.logit(p) + math.log(num_classes - 1)
    return logits


def softmax_response(
    loss: nn.Module,
    p: Tensor,
    *,
    label: int = 0,
    num_classes: int = 2,
    company: tuple[Tensor, Tensor] | None = None,
) -> Response:
    """Response of rows of class ``label`` with probabilities p; ``company``: logits and labels of further rows."""
    logits = softmax_logits(p, label=label, num_classes=num_classes)
    labels = torch.full((len(p),), label)
    if company is not None:
        logits, labels = torch.cat([logits, company[0]]), torch.cat([labels, company[1]])
    rows, gradient = _losses_and_gradients(loss, logits, labels)
    return Response(p, rows[: len(p)], -gradient[: len(p), label])


def sigmoid_response(
    loss: nn.Module, p: Tensor, *, positive: bool, label: int = 0, num_labels: int = 1, companion: int | None = None
) -> Response:
    """Response of samples whose ``label`` has probability p; ``companion``: a label positive in all samples."""
    logits = torch.zeros(len(p), num_labels, dtype=torch.float64)
    logits[:, label] = torch.logit(p)
    targets = torch.zeros_like(logits)
    targets[:, label] = float(positive)
    if companion is not None:
        targets[:, companion] = 1.0
    elements, gradient = _losses_and_gradients(loss, logits, targets)
    return Response(p, elements[:, label], gradient[:, label] * (-1.0 if positive else 1.0))


def region_response(loss: nn.Module, p: Tensor, *, fraction: float, pixels: int = 200) -> Response:
    """Response of an image with class 1 in a ``fraction`` of its pixels; p: median probability of the correct class.

    The logits of the pixels are evenly spaced within 1 of its logit, so that losses that sort errors have no ties.
    The gradient is the mean over the pixels of class 1.
    """
    region = round(fraction * pixels)
    labels = (torch.arange(pixels) < region).long()
    ranks = [
        (torch.arange(size, dtype=torch.float64) + start) / size
        for size, start in ((region, 0.5), (pixels - region, 0.4))
    ]
    spread = 2 * torch.cat(ranks) - 1
    one_hot = torch.nn.functional.one_hot(labels, 2).T.double()
    losses, gradients = [], []
    for z in torch.logit(p):
        logits = (one_hot * (z + spread)).unsqueeze(0).requires_grad_()
        value = loss(logits, labels.unsqueeze(0))
        (gradient,) = torch.autograd.grad(value, logits)
        losses.append(value.detach())
        gradients.append(-gradient[0, 1, :region].mean())
    return Response(p, torch.stack(losses), torch.stack(gradients))


def _losses_and_gradients(loss: nn.Module, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Unreduced losses, and the gradient of their sum; computed with a copy of ``loss``."""
    unreduced: Callable[[Tensor, Tensor], Tensor] = copy.deepcopy(loss)
    unreduced.reduction = "none"  # type: ignore[attr-defined]
    logits = logits.requires_grad_()
    values = unreduced(logits, targets)
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    return values.detach(), gradient


def cross_entropy(p: Tensor, *, label: int = 0, num_classes: int = 2) -> Response:
    """The response of plain cross-entropy, the reference for other losses."""
    return softmax_response(CrossEntropyLoss(), p, label=label, num_classes=num_classes)


def confidence_for(gamma: float) -> float:
    """The confidence p0 where the focal gradient with ``gamma`` equals that of cross-entropy: the inverse of gamma_for.

    >>> round(confidence_for(gamma_for(0.25)), 6)
    0.25
    """
    low, high = 1e-6, 0.5 - 1e-6  # gamma_for decreases from about 4 million to 0 on this interval
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gamma_for(middle) > gamma else (low, middle)
    return (low + high) / 2
