"""Backends that compute the losses: a reference in plain PyTorch and fused Triton kernels.

``use`` chooses between them; ``explain`` says which backend runs and why.
"""

from __future__ import annotations

import warnings

from equipoise.kernels.choice import use
from equipoise.kernels.explain import Explanation, explain

__all__ = ["Explanation", "build", "explain", "use"]


def build() -> None:
    """Do nothing; deprecated.

    Version 0.1 compiled a C++ extension here to reduce the overhead of calls on small batches. A CUDA graph of the
    whole training step reduces it further.
    """
    warnings.warn(
        "kernels.build() is deprecated and does nothing; to remove the cost of calls on small batches, capture the "
        "training step as a CUDA graph, as examples/cuda_graph.py does",
        DeprecationWarning,
        stacklevel=2,
    )
