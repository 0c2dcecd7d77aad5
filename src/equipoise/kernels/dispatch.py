"""The place that picks a backend for the unreduced losses; ``choice`` says which one serves."""

from __future__ import annotations

from torch import Tensor

from equipoise.kernels import reference
from equipoise.kernels.choice import triton_serves
from equipoise.kernels.hyper import Layout

__all__ = ["sigmoid_elements", "softmax_rows"]


def softmax_rows(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, layout: Layout, ignore_index: int
) -> Tensor:
    """Unreduced softmax loss, see ``reference.softmax_rows``."""
    if triton_serves(logits):
        from equipoise.kernels import fused  # Triton is optional

        return fused.softmax_rows(logits, targets, weight, hyper, layout, ignore_index)
    return reference.softmax_rows(logits, targets, weight, hyper, layout, ignore_index)


def sigmoid_elements(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_value: float | None,
    detach_focus: bool,
) -> Tensor:
    """Unreduced sigmoid loss, see ``reference.sigmoid_elements``."""
    arguments = (logits, targets, element_weight, hyper, layout, ignore_value, detach_focus)
    if triton_serves(logits):
        from equipoise.kernels import fused  # Triton is optional

        return fused.sigmoid_elements(*arguments)
    return reference.sigmoid_elements(*arguments)
