"""Training statistics on some batches of every epoch: recall, confidence, gaps, norms, exponents.

They stay on the device until the end of the epoch, without synchronisation, and are then computed on all of these
batches at once: computing them batch by batch would take longer than the steps of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from equipoise.losses import current_settings
from equipoise.metrics import Accuracy, ConfidenceProfile
from equipoise.metrics.truth import ProbabilityGap, TruthProbability
from equipoise.train.record import Statistic

__all__ = ["NOTHING", "OBSERVATIONS", "Observed", "Statistics", "Wanted"]

OBSERVATIONS = 16
"""Approximate number of observed batches of an epoch."""
GRADIENTS = 4
"""Approximate number of observed gradients of an epoch: each norm reads all weights."""
KEPT = 250_000
"""Approximate maximum number of logits to keep of a batch."""


class Wanted(NamedTuple):
    """What to observe of a step."""

    logits: bool
    gradient: bool


NOTHING = Wanted(logits=False, gradient=False)


class Observed(NamedTuple):
    """What was observed of a step: rows of logits with their targets, and the norm of the gradient."""

    rows: tuple[Tensor, Tensor] | None
    norm: Tensor | None

    def copied(self) -> Observed:
        """Copies, for tensors that the next step overwrites."""
        rows = None if self.rows is None else (self.rows[0].clone(), self.rows[1].clone())
        return Observed(rows, None if self.norm is None else self.norm.clone())


class Statistics(nn.Module):
    """Statistics of one epoch at a time.

    Args:
        observers: metrics for training batches, from the task.
        steps: steps of an epoch.
    """

    def __init__(self, observers: Mapping[str, Metric], steps: int) -> None:
        super().__init__()
        self.every = max(1, steps // OBSERVATIONS)
        self.observers = nn.ModuleDict(dict(observers))
        self.reset()

    def reset(self) -> None:
        """Start an epoch."""
        for metric in self.observers.values():
            metric.reset()  # type: ignore[operator]
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.norms: list[Tensor] = []

    def wanted(self, index: int) -> Wanted:
        """What is observed of the step with this index."""
        return Wanted(index % self.every == 0, index % (self.every * OBSERVATIONS // GRADIENTS) == 0)

    def add(self, observed: Observed) -> None:
        """Keep what was observed of a step for the end of the epoch."""
        if observed.rows is not None:
            self.kept.append(observed.rows)
        if observed.norm is not None:
            self.norms.append(observed.norm)

    @torch.no_grad()
    def rows(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
        """A part of a batch; None for mixed labels, which have no true class."""
        dense = targets.is_floating_point() and "recall" in self.observers
        return None if dense else _some(logits.detach(), targets)

    @torch.no_grad()
    def gradient_norm(self, weights: Iterable[Tensor]) -> Tensor | None:
        """The norm of the gradient before a step; None without one."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        return torch.nn.utils.get_total_norm(gradients) if gradients else None

    @torch.no_grad()
    def row(self, model: nn.Module, loss: nn.Module) -> dict[str, Statistic]:
        """Statistics of the epoch for its row of the history."""
        if self.kept:
            logits, targets = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
            self.kept.clear()
            for metric in self.observers.values():
                metric.update(logits, targets)  # type: ignore[operator]
        mean = largest = math.nan
        if self.norms:
            norms = torch.stack(self.norms).double()
            mean, largest = torch.stack([norms.mean(), norms.max()]).tolist()
        row: dict[str, Statistic] = {
            "weight_norm": float(torch.nn.utils.get_total_norm([w.detach() for w in model.parameters()])),
            "gradient_norm": mean,
            "largest_gradient_norm": largest,
        }
        for metric in self.observers.values():
            if not metric.update_called:  # mixed labels in every batch
                continue
            if isinstance(metric, Accuracy):
                row["recall_weights"] = _rounded(1.0 - metric.compute()["per_class"])
            elif isinstance(metric, TruthProbability):
                row["focal_weights"] = _rounded(1.0 - metric.compute())
            elif isinstance(metric, ConfidenceProfile):
                row |= {key: float(value) for key, value in metric.compute().items()}
            elif isinstance(metric, ProbabilityGap):
                row |= {f"probability_{key}": float(value) for key, value in metric.compute().items()}
        return {**row, **current_settings(loss)}


def _some(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of the rows of a batch: all, or every k-th sample or pixel if there are too many.

    Shape: ``logits`` (N, C, d1, ..., dk), ``targets`` (N, d1, ..., dk) or (N, C); result (n, C), and (n,) or (n, C).
    """
    every = math.ceil(logits.numel() / KEPT) | 1  # odd: on maps of even width the columns take turns
    if logits.ndim == 2 and every == 1:
        return logits.clone(), targets.clone()
    if logits.ndim == 2:
        return logits[::every].clone(), targets[::every].clone()
    rows, labels = logits.flatten(2)[:, :, ::every].movedim(1, 2), targets.flatten(1)[:, ::every]
    return rows.clone().flatten(0, 1), labels.clone().flatten()


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]
