"""Deferred class weights: any weights, applied late in training (from .8 of it in LDAM-DRW)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from equipoise._checks import check_class_vector, check_number, check_whole
from equipoise.schedules import Moment

__all__ = ["ClassWeights", "Deferred"]


@dataclass(frozen=True)
class ClassWeights:
    """One fixed weight per class; ``name`` identifies the weights for the kernels, ``called`` for messages."""

    weight: tuple[float, ...]
    name: str = "weight"
    called: str | None = None

    def __init__(self, weight: Sequence[float] | Tensor, *, name: str = "weight", called: str | None = None) -> None:
        object.__setattr__(self, "weight", check_class_vector(name, weight))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "called", called)

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """Current hyper-parameters by name."""
        return {self.name: self.weight}


@dataclass(frozen=True)
class Deferred:
    """Weight 1 for all classes until ``start``, then ``weight``.

    Args:
        weight: (C,) weights, for example from ``effective_number``.
        start: fraction of the training at which they take effect.
        start_epoch: the epoch at which they take effect, instead of ``start``; epochs count from 0.
    """

    weight: tuple[float, ...]
    start: float = 0.8
    start_epoch: int | None = None

    def __init__(self, weight: Sequence[float] | Tensor, *, start: float = 0.8, start_epoch: int | None = None) -> None:
        object.__setattr__(self, "weight", check_class_vector("weight", weight))
        object.__setattr__(self, "start", check_number("start", start, low=0.0, high=1.0))
        late = None if start_epoch is None else check_whole("start_epoch", start_epoch, low=0)
        object.__setattr__(self, "start_epoch", late)

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """Current hyper-parameters by name."""
        return {"weight": self.weight if self.started(moment) else (1.0,) * len(self.weight)}

    def started(self, moment: Moment) -> bool:
        """Whether the weights are active."""
        start = self.start
        if self.start_epoch is not None:
            if moment.epochs is None:
                raise ValueError(
                    f"start_epoch={self.start_epoch} needs the number of epochs, got None; give the loss epochs=E"
                )
            start = min(self.start_epoch / moment.epochs, 1.0)
        return moment.progress >= start
