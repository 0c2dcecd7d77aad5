"""The definition of the losses in plain PyTorch: value and gradient, on every device and in every dtype."""

from __future__ import annotations

from equipoise.kernels.reference.sigmoid import sigmoid_losses, sigmoid_slopes
from equipoise.kernels.reference.softmax import softmax_terms

__all__ = ["sigmoid_losses", "sigmoid_slopes", "softmax_terms"]
