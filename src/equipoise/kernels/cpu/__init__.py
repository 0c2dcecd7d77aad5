"""The pointwise losses optimised for eager PyTorch on a CPU: in-place temporaries, and batches in blocks."""

from __future__ import annotations

from equipoise.kernels.cpu.sigmoid import sigmoid_losses, sigmoid_slopes
from equipoise.kernels.cpu.softmax import index_terms, softmax_terms

__all__ = ["index_terms", "sigmoid_losses", "sigmoid_slopes", "softmax_terms"]
