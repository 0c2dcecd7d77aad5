"""The static configuration of a pointwise loss, as one immutable value.

Named tuples are cheap hashable keys of cached launches, and constants for ``torch.compile`` and ``vmap``.
"""

from __future__ import annotations

from typing import NamedTuple

from equipoise.kernels.hyper import Layout

__all__ = ["SigmoidSpec", "SoftmaxSpec"]


class SoftmaxSpec(NamedTuple):
    """A loss of the softmax link."""

    layout: Layout = ()  # of the hyper-parameters
    ignore_index: int = -100


class SigmoidSpec(NamedTuple):
    """A loss of the sigmoid link."""

    layout: Layout = ()  # of the hyper-parameters
    ignore_value: float | None = None  # None: every target is known
    detach_focus: bool = False  # no gradient through the modulation
