"""Intervals of the main numbers, by drawing samples again with replacement.

A sample is what was drawn when the data were made: an image with all its pixels or labels, never a single pixel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.metrics import average_precision, bin_sums, binned_error, bootstrap
from equipoise.metrics.segmentation import confusion
from equipoise.predictions import Predictions
from equipoise.tasks import Task

__all__ = ["Resampling"]


class Resampling:
    """Keeps a few numbers of each sample, and resamples them."""

    def __init__(self, source: Predictions, bins: int) -> None:
        self.source, self.bins = source, bins
        self.kept: list[tuple[Tensor, ...]] = []

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Add a chunk."""
        if self.source.task.multilabel:
            self.kept.append((logits.double(), targets))
            return
        valid = targets != self.source.ignore_index
        labels = targets.where(valid, 0)
        log_probs = logits.double().log_softmax(1)
        confidence, predicted = log_probs.max(1)
        confidence, right = confidence.exp(), predicted == labels
        nll = -log_probs.gather(1, labels.unsqueeze(1)).squeeze(1)
        if self.source.task.multiclass:
            kept = (confidence, right, nll, labels)
            self.kept.append(tuple(values[valid] for values in kept))
            return
        classes = self.source.num_classes
        rows = []
        for sample in range(len(logits)):
            own = valid[sample]
            sums = bin_sums(confidence[sample][own], right[sample][own], self.bins)
            matrix = confusion(predicted[sample], labels[sample], own, classes)
            rows.append(
                torch.cat(
                    [matrix.flatten().double(), *(part.double() for part in sums), nll[sample][own].sum().view(1)]
                )
            )
        self.kept.append((torch.stack(rows),))

    def intervals(self, draws: int, seed: int) -> dict[str, list[float]]:
        """Name of a number to its lower and upper limit, 95 %."""
        arrays = [torch.cat(parts) for parts in zip(*self.kept, strict=True)]
        task = self.source.task
        functions: dict[Task, Callable[..., Tensor]] = {
            Task.MULTICLASS: self._single,
            Task.MULTILABEL: self._multi,
            Task.SEGMENTATION: self._segmentation,
        }
        found = bootstrap(functions[task], *arrays, draws=draws, seed=seed, weighted=not task.multilabel)
        limits = zip(task.resampled, found.low.tolist(), found.high.tolist(), strict=True)
        return {name: [low, high] for name, low, high in limits}

    def _single(self, confidence: Tensor, right: Tensor, nll: Tensor, labels: Tensor, *, weight: Tensor) -> Tensor:
        total = weight.sum(1)
        by_class = weight.new_zeros(len(weight), self.source.num_classes)
        support = by_class.index_add(1, labels, weight)
        hits = by_class.index_add(1, labels, weight * right)
        ece = binned_error(bin_sums(confidence, right, self.bins, weight=weight))
        values = ((weight @ right.double()) / total, (hits / support).nanmean(1), _weighted(weight, nll) / total, ece)
        return torch.stack(values, 1)

    def _segmentation(self, rows: Tensor, *, weight: Tensor) -> Tensor:
        classes = self.source.num_classes
        sums = _weighted(weight, rows)
        matrix, count, confidence, correct, nll = torch.split(sums, [classes**2, self.bins, self.bins, self.bins, 1], 1)
        matrix = matrix.reshape(-1, classes, classes)
        hits, support, predicted = matrix.diagonal(dim1=1, dim2=2), matrix.sum(2), matrix.sum(1)
        total = support.sum(1)
        ece = (confidence - correct).abs().sum(1) / count.sum(1)
        values = (
            (hits / (support + predicted - hits)).nanmean(1),
            (hits / support).nanmean(1),
            hits.sum(1) / total,
            nll.squeeze(1) / total,
            ece,
        )
        return torch.stack(values, 1)

    def _multi(self, logits: Tensor, targets: Tensor) -> Tensor:
        known, positive = targets >= 0, targets == 1
        precision = average_precision(logits.T, positive.T, known.T)  # a row for each label
        chosen = (logits > 0) & known
        probabilities = logits.sigmoid()
        nll = torch.nn.functional.softplus(torch.where(positive, -logits, logits))[known].mean()
        ece = binned_error(bin_sums(probabilities[known], positive[known], self.bins))
        overall_f1 = 2 * (chosen & positive).sum() / (chosen.sum() + positive.sum()).double()
        return torch.stack([precision.nanmean(), overall_f1, nll, ece])


def _weighted(weight: Tensor, values: Tensor) -> Tensor:
    """``weight @ values`` where an infinite value that was not drawn adds nothing."""
    infinite = values.isinf()
    if not bool(infinite.any()):
        return weight @ values
    sums = weight @ values.masked_fill(infinite, 0.0)
    return sums.masked_fill(weight @ infinite.to(weight.dtype) > 0, torch.inf)
