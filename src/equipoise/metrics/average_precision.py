"""Average precision for multi-label data."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from equipoise._checks import check_choice, check_whole, checks_values
from equipoise.metrics._inputs import LabelBlock, check_classes, label_blocks, tally_into
from equipoise.metrics._metric import MetricOptions, StreamingMetric
from equipoise.metrics.binning import bin_index, fine_edges

__all__ = ["MultilabelAveragePrecision", "average_precision", "histogram_average_precision", "label_average_precision"]

AVERAGES = ("macro", "micro", "none")
TOGETHER = 2**23
"""Number of scores that are sorted together."""


def average_precision(scores: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
    r"""Average precision of each row, (L,) float64; NaN without positives.

    .. math:: \text{AP} = \frac{1}{P} \sum_{i : y_i = 1} \frac{|\{j : y_j = 1, s_j \ge s_i\}|}{|\{j : s_j \ge s_i\}|}

    Tied scores have the same threshold, so their order does not matter. Only values are sorted, without indices: the
    counts are found by bisection for the positives, which are few for imbalanced data.

    Args:
        scores: (L, n), one row per label; -inf and inf are the lowest and the highest score.
        positive: (L, n) bool.
        known: (L, n) bool; False excludes an entry.

    >>> average_precision(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[True, False, True]]))
    tensor([0.8333], dtype=torch.float64)
    """
    low = -torch.inf  # ignored entries and padding, below all scores
    counted = torch.full_like(positive[:, :1], scores.shape[1], dtype=torch.int64)
    if known is not None:
        scores, positive, counted = scores.where(known, low), positive & known, known.sum(1, keepdim=True)
    if checks_values(scores, False) and bool(scores.isnan().any()):
        raise ValueError("scores must not be NaN, got NaN; look for a division by zero or an overflow")
    positives = positive.sum(1, keepdim=True)
    most = int(positives.max()) if len(positives) else 0
    if not most:
        return torch.full((len(scores),), torch.nan, dtype=torch.float64, device=scores.device)
    positive_scores = scores.new_full((len(scores), most), low)  # the positive scores of each row
    row, place = positive.nonzero(as_tuple=True)
    slots = torch.arange(most, device=scores.device)
    before = (positives.cumsum(0) - positives).squeeze(1)
    positive_scores[row, torch.arange(len(row), device=row.device) - before[row]] = scores[row, place]
    positive_scores = _sorted(positive_scores)
    # at a score of -inf these counts include padding and are limited to the valid entries
    not_below = (scores.shape[1] - torch.searchsorted(_sorted(scores), positive_scores)).minimum(counted)
    positive_not_below = (most - torch.searchsorted(positive_scores, positive_scores)).minimum(positives)
    precision = positive_not_below.double() / not_below.clamp(min=1)
    return precision.where(slots >= most - positives, 0.0).sum(1) / positives.squeeze(1)


def _sorted(values: Tensor) -> Tensor:
    """Values of each row in ascending order; numpy's sort keeps no indices and is several times as fast."""
    if values.device.type != "cpu":
        return values.sort(1).values
    array = values.numpy().copy()
    threads = min(torch.get_num_threads(), len(array))
    if threads < 2:
        array.sort(axis=1)
    else:
        with ThreadPoolExecutor(threads) as pool:  # numpy releases the GIL while sorting
            list(pool.map(lambda rows: rows.sort(axis=1), np.array_split(array, threads)))
    return torch.from_numpy(array)


def label_average_precision(scores: Sequence[Tensor], outcomes: Sequence[Tensor]) -> Tensor:
    """Average precision of each label, (L,), in blocks of labels.

    Args:
        scores: tensors (n, L) that are concatenated; fastest if each is stored as (L, n).
        outcomes: tensors of the same shapes with 1, 0 or -1 (unknown).
    """
    labels, samples = scores[0].shape[1], sum(map(len, scores))
    complete = not any(bool((part < 0).any()) for part in outcomes)
    step = max(1, TOGETHER // max(1, samples))

    def some(start: int) -> Tensor:
        values, given = (
            torch.cat([part[:, start : start + step].t() for part in parts], 1) for parts in (scores, outcomes)
        )
        return average_precision(values, given == 1, None if complete else given >= 0)

    return torch.cat([some(start) for start in range(0, labels, step)])


def histogram_average_precision(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    r"""Lower and upper bound of the average precision of each row, from counts in cells of ascending score, (L, cells).

    With a positives and b negatives above a cell, p and n inside, the minimum ranks all n first, then the p in turn:

    .. math:: \sum_{i=1}^{p} \frac{a + i}{a + b + n + i} = p - (b + n) (\psi(a + b + n + p + 1) - \psi(a + b + n + 1))

    The maximum ranks the p first, as ties: :math:`p \frac{a + p}{a + p + b}`.
    """
    p, n = positives.double(), negatives.double()
    a = p.flip(-1).cumsum(-1).flip(-1) - p
    b = n.flip(-1).cumsum(-1).flip(-1) - n
    below = a + b + n + 1.0
    least = p - (b + n) * ((below + p).digamma() - below.digamma())
    largest = p * (a + p) / (a + p + b).clamp(min=1.0)
    total = p.sum(-1)
    return least.sum(-1) / total, largest.sum(-1) / total


class MultilabelAveragePrecision(StreamingMetric):
    r"""Mean over the labels of average precision (mAP); labels without a positive are excluded.

    .. math:: \text{AP} = \frac{1}{P} \sum_{i : y_i = 1} \text{precision at the threshold } s_i

    Tied scores have the same threshold. Logits are compared directly, so none become equal by rounding to 1.

    Args:
        num_labels: L.
        average: ``"macro"``: mean over the labels that have a positive. ``"micro"``: one value for all pairs of sample
            and label. ``"none"``: (L,), NaN for a label without a positive.
        exact: True keeps all scores; False keeps a histogram of ``resolution`` cells for each label. The value then
            is the midpoint of ``bounds()``, which enclose the exact value, so its error is at most half their distance.
        resolution: cells of the histogram, of equal width on the scale of logits from -16 to 16.
        from_logits: False if scores are probabilities.
        ignore_value: target to ignore.
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, L, d1, ..., dk) and targets of the same shape, 0, 1 or ``ignore_value``.

    >>> metric = MultilabelAveragePrecision(2)
    >>> metric.update(torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 3.0]]), torch.tensor([[1, 0], [0, 0], [1, 0]]))
    >>> metric.compute(), metric.left_out()
    (tensor(0.8333, dtype=torch.float64), tensor(1))
    """

    higher_is_better = True
    by_order = True
    scores: list[Tensor]
    outcomes: list[Tensor]
    cells: Tensor

    def __init__(
        self,
        num_labels: int,
        *,
        average: str = "macro",
        exact: bool = True,
        resolution: int = 4096,
        from_logits: bool = True,
        ignore_value: int = -1,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        num_labels = check_whole("num_labels", num_labels, low=1)
        resolution = check_whole("resolution", resolution, low=2)
        check_choice("average", average, AVERAGES)
        self.num_labels, self.average, self.exact = num_labels, average, exact
        self.resolution, self.ignore_value = resolution, ignore_value
        if exact:
            self.add_kept("scores", num_labels)
            self.add_kept("outcomes", num_labels, dtype=torch.int8)
        else:
            self.add_sum("cells", 2, num_labels, resolution)  # negatives, positives

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        check_classes(scores, self.num_labels, "num_labels")
        blocks = label_blocks(
            scores, targets, from_logits=self.from_logits, ignore_value=self.ignore_value, validate=self.validate
        )
        if self.exact:
            for block in blocks:
                self.outcomes.append(_label_by_label(block.positive.to(torch.int8).where(block.known, -1)))
            kept = scores.detach().to(torch.promote_types(scores.dtype, torch.float32))
            self.scores.append(_label_by_label(kept))
        else:
            counts = torch.zeros(self.cells.numel() + 1, dtype=torch.int64, device=self.cells.device)
            for block in blocks:
                tally_into(counts, self._slots(block))
            self.add_to(cells=counts[:-1].view_as(self.cells))

    def _slots(self, block: LabelBlock) -> Tensor:
        cells = self.resolution
        if self.from_logits:  # the same cells, without rounding by the sigmoid
            place = ((block.scores.double() + 16.0) * (cells / 32.0)).ceil_().sub_(1).clamp_(0, cells - 1).long()
        else:
            place = bin_index(block.scores, fine_edges(cells, block.scores.device))
        numbers = torch.arange(self.num_labels, device=place.device).view(-1, *(1 for _ in place.shape[2:]))
        size = self.num_labels * cells
        return (place + cells * numbers + size * block.positive).where(block.known, 2 * size)

    def compute(self) -> Tensor:
        """The value in float64; NaN if no label has a positive."""
        low, high = self._bounds()
        return (low + high) / 2

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds of the exact value; both are the value itself if scores are kept."""
        with self.synced():
            return self._bounds()

    def _bounds(self) -> tuple[Tensor, Tensor]:
        micro = self.average == "micro"
        if self.exact:
            scores, outcomes = self.parts("scores"), self.parts("outcomes")
            if micro:
                scores, outcomes = ([part.reshape(-1, 1) for part in parts] for parts in (scores, outcomes))
            low = high = label_average_precision(scores, outcomes)
        else:
            negatives, positives = self.cells.sum(1, keepdim=True) if micro else self.cells
            low, high = histogram_average_precision(positives, negatives)
        return (low, high) if self.average == "none" else (low.nanmean(), high.nanmean())

    def left_out(self) -> Tensor:
        """Number of labels without a positive."""
        with self.synced():
            positive = self.cells[1].sum(1) > 0 if not self.exact else (self.joined("outcomes") == 1).any(0)
        return (~positive).sum()


def _label_by_label(values: Tensor) -> Tensor:
    """A copy of (n, L, d1, ..., dk) as (m, L) with the values of each label contiguous in memory."""
    copy = torch.empty(values.shape[1], values.numel() // values.shape[1], dtype=values.dtype, device=values.device)
    copy.view(values.shape[1], len(values), *values.shape[2:]).copy_(values.transpose(0, 1))
    return copy.t()
