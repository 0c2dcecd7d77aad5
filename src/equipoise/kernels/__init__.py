"""Backends that compute the losses: a reference in plain PyTorch and fused Triton kernels.

``use`` chooses between them, ``explain`` says what will run and why, ``build`` makes calls on small batches cheaper.
"""

from __future__ import annotations

from equipoise.kernels.choice import use
from equipoise.kernels.explain import Explanation, explain
from equipoise.kernels.native import build

__all__ = ["Explanation", "build", "explain", "use"]
