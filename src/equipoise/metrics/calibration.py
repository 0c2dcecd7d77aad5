"""Calibration error: of the top label, by class, for multi-label data, by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, Unpack

import torch
from torch import Tensor

from equipoise._checks import check_choice, check_whole
from equipoise.metrics._inputs import (
    ClassBlock,
    LabelBlock,
    check_classes,
    check_groups,
    class_blocks,
    label_blocks,
    tally,
    top_match,
)
from equipoise.metrics._metric import MetricOptions, StreamingMetric
from equipoise.metrics.binning import (
    NORMS,
    BinSums,
    Cells,
    ReliabilityCurve,
    bin_edges,
    bin_sums,
    binned_error,
    cells_of_histogram,
    cells_of_samples,
    equal_mass,
    fine_edges,
)

__all__ = ["CalibrationError", "binary_events", "class_events", "top_events"]

# An event is a prediction with a confidence and an outcome: (confidence, correct, row, valid), all of one shape. The
# row is the error it belongs to: the group of a class, or a class.
Events: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
TOGETHER = 2**18
"""Minimum number of events that are binned together."""


def top_events(block: ClassBlock, *, from_logits: bool, groups: Tensor | None = None, by: str = "true") -> Events:
    """The largest probability, and whether its class is the true one; row: group of the true or predicted class."""
    scores, labels, valid = block
    row = torch.zeros_like(labels) if groups is None else groups[labels if by == "true" else scores.argmax(1)]
    return *top_match(scores, labels, from_logits), row, valid


def class_events(block: ClassBlock, *, from_logits: bool) -> Events:
    """The probability of each class, and whether it is the true one; row: the class."""
    scores, labels, valid = block
    probs = scores.softmax(1) if from_logits else scores
    row = _numbers(scores)
    return probs, row == labels.unsqueeze(1), row, valid.unsqueeze(1).expand_as(probs)


def binary_events(block: LabelBlock, *, from_logits: bool) -> Events:
    """The probability of each label, and whether it is positive; row: the label."""
    scores, positive, known = block
    return scores.sigmoid() if from_logits else scores, positive, _numbers(scores), known


def _numbers(scores: Tensor) -> Tensor:
    """Number of the class of each score."""
    numbers = torch.arange(scores.shape[1], device=scores.device)
    return numbers.view(-1, *(1 for _ in scores.shape[2:])).expand_as(scores)


class CalibrationError(StreamingMetric):
    r"""Calibration error: the difference between confidence and accuracy in bins of confidence.

    See Naeini et al. 2015 and Mukhoti et al. 2020, sec. 2.

    .. math:: \text{ECE} = \sum_b \frac{n_b}{n} \, |\,\text{accuracy}_b - \text{confidence}_b|

    Bins are right-closed; confidence 0 is in the first and 1 in the last, so every sample is included. Ties are
    resolved in favour of the lowest class.

    Args:
        bins: number of bins.
        norm: ``"l1"`` (ECE), ``"l2"`` (root of the mean square) or ``"max"`` (MCE).
        binning: ``"width"``, or ``"mass"`` for bins that hold equally many samples (AdaECE); equal confidences are
            split evenly between their bins, so the order of the samples does not matter.
        kind: ``"top"``: the predicted class. ``"classwise"``: every class against the rest, the mean of C errors.
            ``"multilabel"``: sigmoid scores, the events of all labels pooled.
        groups: (C,) number of the group of each class from 0, e.g. ``shot_groups(train_counts)``; the result is one
            value for each group. ``"top"``: samples by the group of their class, see ``by``; ``"classwise"``: mean over
            the classes of the group; ``"multilabel"``: labels of the group pooled. ``torch.arange(C)`` gives one group
            per class.
        by: with ``groups`` and ``kind="top"``: ``"true"`` or ``"predicted"`` class. By true class, even a perfectly
            calibrated model has an error: given the true class, confidence and accuracy need not agree.
        exact: with ``binning="mass"``: True keeps all confidences; False keeps a histogram of ``resolution`` cells.
            It is exact except for the cells that contain an edge of a bin: with ``norm="l1"`` the error is at most the
            fraction of samples in those cells, of which there are fewer than ``bins``.
        resolution: cells of that histogram; they are narrow near 0 and 1.
        from_logits: False if scores are probabilities.
        ignore_index: target to ignore (``"top"`` and ``"classwise"``).
        ignore_value: target to ignore (``"multilabel"``).
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, C, d1, ..., dk); targets (N, d1, ..., dk), for ``"multilabel"`` 0 or 1 and shaped as the scores.

    >>> metric = CalibrationError(bins=2, from_logits=False)
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2]]), torch.tensor([0, 0, 0]))
    >>> metric.compute()
    tensor(0.1333, dtype=torch.float64)
    >>> metric.curve().accuracy
    tensor([   nan, 0.6667], dtype=torch.float64)
    """

    higher_is_better = False
    count: Tensor
    confidence: Tensor
    correct: Tensor

    def __init__(
        self,
        bins: int = 15,
        *,
        norm: str = "l1",
        binning: str = "width",
        kind: str = "top",
        groups: Sequence[int] | Tensor | None = None,
        by: str = "true",
        exact: bool = True,
        resolution: int = 8192,
        from_logits: bool = True,
        ignore_index: int = -100,
        ignore_value: int = -1,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        bins = check_whole("bins", bins, low=1)
        resolution = check_whole("resolution", resolution, low=bins)
        check_choice("norm", norm, NORMS)
        check_choice("binning", binning, ("width", "mass"))
        check_choice("kind", kind, ("top", "classwise", "multilabel"))
        check_choice("by", by, ("true", "predicted"))
        self.by = by
        self.bins, self.norm, self.binning, self.kind = bins, norm, binning, kind
        self.exact, self.resolution = exact, resolution
        self.ignore_index, self.ignore_value = ignore_index, ignore_value
        self.num_groups = 0
        self._classes: int | None = None  # of the batches so far
        self.register_buffer("groups", None if groups is None else check_groups(groups), persistent=False)
        if self.groups is not None:
            self.num_groups = int(self.groups.max()) + 1
        if self._keeps:
            self.add_kept("confidences")
            self.add_kept("labels", dtype=torch.int64)
        else:
            # by class the number of rows is known with the groups or with the first batch
            known = self.num_groups if kind == "top" else len(self.groups) if self.groups is not None else 0
            shape, by_class = (max(known, 1), self._width), kind != "top" and not known
            self.add_sum("count", *shape, by_class=by_class)
            self.add_sum("confidence", *shape, dtype=torch.float64, by_class=by_class)
            self.add_sum("correct", *shape, by_class=by_class)

    groups: Tensor | None

    @property
    def _keeps(self) -> bool:
        return self.binning == "mass" and self.exact

    @property
    def _width(self) -> int:
        return self.bins if self.binning == "width" else self.resolution

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        if self.groups is not None:
            check_classes(scores, len(self.groups), "groups")
        elif self.kind != "top" and self._classes is not None:
            check_classes(scores, self._classes, "the first batch")
        rows = (self.num_groups or 1) if self.kind == "top" else scores.shape[1] if scores.ndim > 1 else 1
        edges = self.bins if self.binning == "width" else fine_edges(self.resolution, scores.device)
        size = max(TOGETHER, rows * self._width // 4)  # unless there are far fewer events than slots
        for confidence, correct, row, valid in _together(self._events(scores, targets), size):
            if self._keeps:
                self._keep(confidence[valid], correct[valid], row[valid])
            else:
                sums = bin_sums(confidence, correct, edges, groups=row, num_groups=rows, valid=valid)
                self.add_to(**sums._asdict())
        self._classes = scores.shape[1]

    def reset(self) -> None:
        """Discard all batches."""
        super().reset()
        self._classes = None

    def _events(self, scores: Tensor, targets: Tensor) -> Iterator[Events]:
        common = {"from_logits": self.from_logits, "validate": self.validate}
        if self.kind == "multilabel":
            blocks = label_blocks(scores, targets, ignore_value=self.ignore_value, **common)
            return (binary_events(block, from_logits=self.from_logits) for block in blocks)
        walk = class_blocks(scores, targets, ignore_index=self.ignore_index, **common)
        if self.kind == "classwise":
            return (class_events(block, from_logits=self.from_logits) for block in walk)
        return (top_events(block, from_logits=self.from_logits, groups=self.groups, by=self.by) for block in walk)

    def _keep(self, confidence: Tensor, correct: Tensor, row: Tensor) -> None:
        self.confidences.append(confidence)
        self.labels.append(2 * row + correct)  # row and outcome as one index

    confidences: list[Tensor]
    labels: list[Tensor]

    def compute(self) -> Tensor:
        """The error: a scalar, or (groups,) if groups are given; float64, NaN without data."""
        if self.kind != "classwise":
            sums, _ = self._sums(self._pooling())
            errors = binned_error(sums, self.norm)
            return errors if self.groups is not None else errors[0]
        errors = binned_error(self._sums(None)[0], self.norm)
        if self.groups is None:
            return errors.mean() if len(errors) else errors.new_tensor(torch.nan)
        if not len(errors):
            return errors.new_full((self.num_groups,), torch.nan)
        return tally(self.groups, self.num_groups, errors) / tally(self.groups, self.num_groups)

    def per_class(self) -> Tensor:
        """The error of each class or label, (C,); for ``kind="classwise"`` and ``"multilabel"``."""
        if self.kind == "top":
            raise ValueError(
                "kind must be 'classwise' or 'multilabel' for errors by class, got 'top'; use groups=torch.arange(C) "
                "for the samples of each class"
            )
        with self.synced():
            return binned_error(self._sums(None)[0], self.norm)

    def curve(self) -> ReliabilityCurve:
        """The reliability diagram of the error; one per group with ``groups``.

        Classes and labels are pooled: ``kind="classwise"`` shows all classes in one diagram, or those of a group.
        """
        with self.synced():
            sums, edges = self._sums(self._pooling())
        if self.groups is None:
            sums, edges = BinSums(*(part[0] for part in sums)), edges[0]
        elif self.binning == "width":
            edges = edges[0]
        count = sums.count.double()
        return ReliabilityCurve(edges, sums.count, sums.confidence / count, sums.correct / count)

    def _pooling(self) -> Tensor | None:
        """For each row of the state the row of the result that it is pooled in; None keeps them apart."""
        if self.kind == "top":
            return None
        if self.groups is not None:
            return self.groups
        return torch.zeros(self._rows(), dtype=torch.int64, device=self.device)

    def _rows(self) -> int:
        if self.kind == "top":
            return self.num_groups or 1
        if self.groups is not None:
            return len(self.groups)
        if not self._keeps:
            return len(self.count)
        labels = self.joined("labels")
        return int(labels.max()) // 2 + 1 if len(labels) else 0

    def _sums(self, pooling: Tensor | None) -> tuple[BinSums, Tensor]:
        """Sums (rows, bins) and edges (rows, bins + 1) after pooling."""
        rows = self._rows() if pooling is None else (self.num_groups or 1)
        if self._keeps:
            labels = self.joined("labels")
            row = labels.div(2, rounding_mode="floor")
            row = row if pooling is None else pooling[row]
            return equal_mass(cells_of_samples(self.joined("confidences"), labels % 2 == 1, row), rows, self.bins)
        state = BinSums(self.count, self.confidence, self.correct)
        if pooling is not None:
            state = BinSums(*(part.new_zeros(rows, part.shape[1]).index_add(0, pooling, part) for part in state))
        if self.binning == "width":
            edges = bin_edges(self.bins, device=self.device)
            return state, edges.expand(rows, -1)
        cells: Cells = cells_of_histogram(state, fine_edges(self.resolution, self.device))
        return equal_mass(cells, rows, self.bins)


def _together(events: Iterator[Events], size: int) -> Iterator[Events]:
    """The same events, flattened into larger pieces: a block of many classes has few rows."""
    pieces: list[Events] = []
    held = 0
    for piece in events:
        pieces.append(piece)
        held += piece[0].numel()
        if held >= size:
            yield _join(pieces)
            pieces, held = [], 0
    if pieces:
        yield _join(pieces)


def _join(pieces: list[Events]) -> Events:
    confidence, correct, row, valid = (
        torch.cat([part.flatten() for part in parts]) if len(parts) > 1 else parts[0].flatten()
        for parts in zip(*pieces, strict=True)
    )
    return confidence, correct, row, valid
