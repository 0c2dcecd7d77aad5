"""Open-set metrics: samples of unknown classes should be rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from equipoise._checks import check_choice, check_number, check_whole
from equipoise.metrics._inputs import check_classes, check_groups, check_values, class_blocks, cut, tally, top_match
from equipoise.metrics._metric import MetricOptions, StreamingMetric
from equipoise.metrics.accuracy import group_means
from equipoise.metrics.binning import bin_index, fine_edges
from equipoise.metrics.rejection import CONVENTIONS, f_measure

__all__ = ["OpenSetScores", "auroc", "histogram_auroc"]


def auroc(known: Tensor, unknown: Tensor) -> Tensor:
    """AUROC: probability that a known sample has higher confidence than an unknown one; ties count half; float64."""
    if not len(known) or not len(unknown):
        return torch.full((), torch.nan, dtype=torch.float64, device=known.device)
    ordered = unknown.double().sort().values
    below = torch.searchsorted(ordered, known.double())
    not_above = torch.searchsorted(ordered, known.double(), right=True)
    return (below + not_above).sum().double() / (2.0 * len(known) * len(unknown))


def histogram_auroc(known: Tensor, unknown: Tensor) -> Tensor:
    """AUROC from counts in cells of ascending confidence, (cells,); samples in a cell are ties."""
    known, unknown = known.double(), unknown.double()
    below = unknown.cumsum(0) - unknown
    return (known * (below + 0.5 * unknown)).sum() / (known.sum() * unknown.sum())


class OpenSetScores(StreamingMetric):
    r"""F-measure with rejection below a confidence (Liu et al. 2019), and AUROC of the largest probability.

    A sample is rejected if its largest probability is below the threshold. :math:`TP`: known samples predicted
    correctly; :math:`FN`: accepted unknown samples; :math:`FP`: known samples predicted incorrectly.
    :math:`F = 2PR / (P + R)` with :math:`P = TP / (TP + FP)` and :math:`R = TP / (TP + FN)`.

    Args:
        threshold: confidence below which a sample is rejected.
        convention: ``"oltr"``: a known sample that is rejected is a false positive (the code of Liu et al. since 2020);
            ``"kang"``: it is not (Kang et al. 2020).
        unknown: target of samples of unknown classes.
        groups: (C,) number of the group of each class from 0, e.g. ``shot_groups(train_counts)``; the result then has
            ``groups`` and ``closed_groups``, (groups,).
        exact: for AUROC: True keeps all confidences; False keeps a histogram of ``resolution`` cells. The error
            is at most half the fraction of (known, unknown) pairs that are in the same cell.
        resolution: cells of that histogram; they are narrow near 0 and 1.
        from_logits: False if scores are probabilities.
        ignore_index: target to ignore.
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, C, d1, ..., dk); targets (N, d1, ..., dk). Result: a dict of ``f_measure``, ``precision``,
    ``recall``, ``auroc`` (known against unknown), ``accuracy`` (of the known samples; rejected ones are wrong),
    ``closed_accuracy`` (the same without rejection), ``known_rejected`` and ``unknown_rejected`` (fractions). A group's
    value is the mean over its classes of their accuracies, with and without rejection.

    >>> metric = OpenSetScores(0.6, from_logits=False)
    >>> values = metric(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7]]), torch.tensor([0, -1, 0]))
    >>> {name: round(float(value), 3) for name, value in values.items()}
    {'f_measure': 0.667, 'precision': 0.5, 'recall': 1.0, 'auroc': 1.0, 'accuracy': 0.5, 'closed_accuracy': 0.5,
     'known_rejected': 0.0, 'unknown_rejected': 1.0}
    """

    higher_is_better = True
    counts: Tensor
    by_class: Tensor
    groups: Tensor | None
    confidences: list[Tensor]
    sides: list[Tensor]
    cells: Tensor

    def __init__(
        self,
        threshold: float = 0.1,
        *,
        convention: str = "oltr",
        unknown: int = -1,
        groups: Sequence[int] | Tensor | None = None,
        exact: bool = True,
        resolution: int = 8192,
        from_logits: bool = True,
        ignore_index: int = -100,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        self.threshold = check_number("threshold", threshold, low=0.0, high=1.0)
        check_choice("convention", convention, CONVENTIONS)
        if unknown == ignore_index:
            raise ValueError(f"unknown must differ from ignore_index, got {unknown} for both; choose another value")
        self.convention, self.unknown, self.exact = convention, unknown, exact
        self.resolution, self.ignore_index = check_whole("resolution", resolution, low=2), ignore_index
        self.register_buffer("groups", None if groups is None else check_groups(groups), persistent=False)
        # known: correct, wrong, rejected and correct, rejected and wrong; unknown: accepted, rejected
        self.add_sum("counts", 6)
        if self.groups is not None:
            self.add_sum("by_class", 3, len(self.groups))  # known, right, right and accepted
        if exact:
            self.add_kept("confidences")
            self.add_kept("sides", dtype=torch.int8)
        else:
            self.add_sum("cells", 2, resolution)  # known, unknown

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        if self.groups is not None:
            check_classes(scores, len(self.groups), "groups")
        is_unknown = targets == self.unknown
        blocks = class_blocks(
            scores,
            targets.masked_fill(is_unknown, self.ignore_index),
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            validate=self.validate,
        )
        for block, (_, unknown) in zip(blocks, cut(scores, is_unknown), strict=True):
            check_values(block.scores, unknown.unsqueeze(1), self.from_logits, True, self.validate)
            (confidence, right), known = top_match(block.scores, block.labels, self.from_logits), block.valid
            accepted = confidence >= self.threshold
            kinds = (
                *(known & there & match for there in (accepted, ~accepted) for match in (right, ~right)),
                *(unknown & there for there in (accepted, ~accepted)),
            )
            self.add_to(counts=torch.stack([kind.sum() for kind in kinds]))
            if self.groups is not None:
                masks = (known, known & right, known & right & accepted)
                size = len(self.groups)
                rows = [tally(block.labels.where(mask, size), size + 1)[:size] for mask in masks]
                self.add_to(by_class=torch.stack(rows))
            self._add_confidence(confidence, known, unknown)

    def _add_confidence(self, confidence: Tensor, known: Tensor, unknown: Tensor) -> None:
        if self.exact:
            seen = known | unknown
            self.confidences.append(confidence[seen])
            self.sides.append(unknown[seen].to(torch.int8))
        else:
            place = bin_index(confidence, fine_edges(self.resolution, confidence.device))
            slots = (place + self.resolution * unknown).where(known | unknown, 2 * self.resolution)
            self.add_to(cells=tally(slots, 2 * self.resolution + 1)[:-1].view(2, -1))

    def compute(self) -> dict[str, Tensor]:
        """All values in float64; NaN without data."""
        right, wrong, lost, spared, accepted, refused = self.counts.double()
        rejected, known = lost + spared, right + wrong + lost + spared
        false_positives = wrong + rejected if self.convention == "oltr" else wrong
        if self.exact:
            confidences, sides = self.joined("confidences"), self.joined("sides")
            area = auroc(confidences[sides == 0], confidences[sides == 1])
        else:
            area = histogram_auroc(*self.cells)
        return {
            "f_measure": f_measure(right, wrong, rejected, accepted, self.convention),
            "precision": right / (right + false_positives),
            "recall": right / (right + accepted),
            "auroc": area,
            "accuracy": right / known,
            "closed_accuracy": (right + lost) / known,
            "known_rejected": rejected / known,
            "unknown_rejected": refused / (accepted + refused),
            **self._by_group(),
        }

    def _by_group(self) -> dict[str, Tensor]:
        if self.groups is None:
            return {}
        support, correct, kept = self.by_class
        return {
            "groups": group_means(kept / support.double(), self.groups),
            "closed_groups": group_means(correct / support.double(), self.groups),
        }
