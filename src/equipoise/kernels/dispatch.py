"""The only place that picks a backend for the unreduced losses.

The reference runs everywhere, so for now it is the only answer. A backend that is asked for by name runs or raises;
the automatic choice may fall back.
"""

from __future__ import annotations

from equipoise.kernels.reference import sigmoid_elements, softmax_rows

__all__ = ["sigmoid_elements", "softmax_rows"]
