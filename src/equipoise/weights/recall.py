r"""Weights from the recall of each class, :math:`w_c = 1 - R_c`, computed on the training batches.

Predictions are the argmax of the raw logits, lowest index on ties; no gradient flows through the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise._buffers import PreciseBuffers
from equipoise._checks import (
    check_choice,
    check_num_classes,
    check_number,
    check_whole,
    is_traced,
    on_host,
    transforms_active,
)
from equipoise.distributed import all_sum
from equipoise.kernels.choice import cpu_serves
from equipoise.kernels.hyper import accumulation_dtype

__all__ = ["PrecisionWeights", "RecallWeights"]

SPOILED = -(
    2**40
)  # rows per class of a batch with NaN: marks all classes as absent, also when summed over many processes


class RecallWeights(PreciseBuffers):
    r"""Recall weights :math:`w_c = 1 - R_c = FN_c / N_c` (Tian et al. 2021, eq. 5-8).

    Without ``momentum``, from the current batch: :math:`w_c = \max(FN_c, \text{min\_errors}) / N_c`, 1 for a class that
    is absent. With ``momentum`` alpha, a moving average over the batches that hold the class,
    :math:`R_c \leftarrow \alpha_c R_c(\text{batch}) + (1 - \alpha_c) R_c`, and the updated value is used.

    Args:
        num_classes: C.
        momentum: alpha in (0, 1], or None for the batch alone.
        min_errors: least number of errors counted in batch mode; 1 keeps a perfectly recalled class at 1/N_c.
        init: ``"first"``: alpha_c = max(alpha, 1 / number of batches that held c), so that the first batches of a class
            are a plain average; ``"published"``: the first batch sets the recall of its classes, all others start at 0.
        floor_average: apply ``min_errors`` in the moving average too, as the published code does.

    Buffers of the moving average, in ``state_dict``: ``recall`` (C,) float32 (float64 once float64 logits came) and
    ``batches`` (C,) int64. They are updated only in training mode with gradients enabled, and neither by a batch with
    NaN nor during tracing.

    Shape: called with ``logits`` (N, C, d1, ..., dk), ``labels`` and ``valid`` (N, d1, ..., dk); result (C,).
    """

    recall: Tensor
    batches: Tensor

    @on_host
    def __init__(
        self,
        num_classes: int,
        *,
        momentum: float | None = None,
        min_errors: float = 1.0,
        init: str = "first",
        floor_average: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes = check_whole("num_classes", num_classes, low=1)
        if momentum is not None:
            momentum = check_number("momentum", momentum, low=0.0, high=1.0, open_low=True)
        check_choice("init", init, ("first", "published"))
        self.momentum = momentum
        self.min_errors = check_number("min_errors", min_errors, low=0.0)
        self.init, self.floor_average = init, floor_average
        if momentum is not None:
            self.register_buffer("recall", torch.zeros(self.num_classes, device="cpu"))
            self.register_buffer("batches", torch.zeros(self.num_classes, dtype=torch.int64, device="cpu"))

    def forward(self, logits: Tensor, labels: Tensor, valid: Tensor, sync: bool = False) -> Tensor:
        """Weights of this batch; in training this updates the moving average, with ``sync`` over all processes."""
        check_num_classes(self.num_classes, logits.shape[1])
        counts = support_and_hits(logits, labels, valid) if self.looks() else None
        return self.weigh(counts, logits, sync)

    def looks(self) -> bool:
        """Whether the next weights depend on the batch."""
        return self.momentum is None or (self.training and torch.is_grad_enabled())

    @torch.no_grad()
    def weigh(self, counts: Tensor | None, logits: Tensor, sync: bool, *, fused: bool = False) -> Tensor:
        """Weights (C,) from rows and true positives per class in this process, (2, C), if they depend on the batch.

        ``fused``: the kernels have counted, and one more computes the weights.
        """
        if self.momentum is None:
            assert counts is not None
            return _batch_weights(counts, logits, self.min_errors, sync and self.training, fused)
        dtype = accumulation_dtype(logits)
        if is_traced(logits):  # the average is not updated
            return (1.0 - self._constant("recall", logits)).to(dtype)
        recall = self._widen("recall", dtype, logits.device)
        if counts is not None:
            counts = all_sum(counts) if sync else counts
            if self.init == "first" and recall.dtype is dtype and fused:
                from equipoise.kernels.triton.launch.statistics import recall_weights  # Triton is optional

                batches = self._widen("batches", torch.int64, logits.device)
                floor = self.min_errors if self.floor_average else None
                return recall_weights(counts, dtype, floor, self.momentum, recall, batches)
            support, true_positives = counts.to(dtype)
            self._update(recall, support, support - true_positives)
        return (1.0 - recall).to(dtype)

    def _update(self, recall: Tensor, support: Tensor, misses: Tensor) -> None:
        assert self.momentum is not None
        if transforms_active():
            raise RuntimeError(
                "a moving average of recalls cannot be updated inside a torch.func transform, got training mode with "
                f"momentum={self.momentum:g}; call loss.eval() first or use momentum=None"
            )
        if self.floor_average:
            misses = misses.clamp(min=self.min_errors)
        present = support > 0
        counted = self._widen("batches", torch.int64, support.device)
        batches = counted + present
        if self.init == "first":
            rate = batches.clamp(min=1).to(recall.dtype).reciprocal().clamp(min=self.momentum)
        else:
            rate = torch.where(counted.sum() == 0, 1.0, torch.full_like(recall, self.momentum))
        seen = 1.0 - misses / support.clamp(min=1)
        recall.copy_(torch.where(present, rate * seen + (1.0 - rate) * recall, recall))
        counted.copy_(batches)

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"{self.num_classes}, momentum={self.momentum}, min_errors={self.min_errors:g}, init={self.init!r}"


@dataclass(frozen=True)
class BatchRecall:
    r""":math:`\max(FN_c, \text{min\_errors}) / N_c` of a batch, 1 for a class that is absent."""

    min_errors: float = 1.0

    def __call__(self, logits: Tensor, labels: Tensor, valid: Tensor, sync: bool = False) -> Tensor:
        """Weights (C,) of a batch."""
        return self.weigh(support_and_hits(logits, labels, valid), logits, sync)

    def looks(self) -> bool:
        """Whether the next weights depend on the batch."""
        return True

    def weigh(self, counts: Tensor, logits: Tensor, sync: bool, *, fused: bool = False) -> Tensor:
        """Weights (C,) from rows and true positives per class in this process, (2, C)."""
        return _batch_weights(counts, logits, self.min_errors, sync, fused)


class Recalls(NamedTuple):
    """Class weights of a loss that follow from the rows and true positives of each class in its batch."""

    weights: Sequence[RecallWeights | BatchRecall]
    looking: Sequence[bool]  # stored here: gradients are disabled inside an autograd function

    @classmethod
    def among(cls, batch_weights: Sequence[object], num_classes: int) -> Recalls | None:
        """None where other weights of the batch need more than these counts."""
        recalls = [weights for weights in batch_weights if isinstance(weights, (RecallWeights, BatchRecall))]
        if len(recalls) < len(batch_weights):
            return None
        for weights in recalls:
            if isinstance(weights, RecallWeights):
                check_num_classes(weights.num_classes, num_classes)
        return cls(recalls, [weights.looks() for weights in recalls])

    def weigh(
        self, fixed: Tensor | None, counts: Tensor | None, logits: Tensor, sync: bool, *, fused: bool = False
    ) -> Tensor:
        """Product (C,) with fixed weights; ``counts`` (2, C) may be None where no weights look at the batch."""
        product = fixed
        for weights, looks in zip(self.weights, self.looking, strict=True):
            dynamic = weights.weigh(counts if looks else None, logits, sync, fused=fused)  # type: ignore[arg-type]
            product = dynamic if product is None else product * dynamic
        assert product is not None
        return product


def _batch_weights(counts: Tensor, logits: Tensor, min_errors: float, sync: bool, fused: bool) -> Tensor:
    counts, dtype = all_sum(counts) if sync else counts, accumulation_dtype(logits)
    if fused:
        from equipoise.kernels.triton.launch.statistics import recall_weights  # Triton is optional

        return recall_weights(counts, dtype, min_errors)
    support, true_positives = counts.to(dtype)
    return torch.where(support > 0, (support - true_positives).clamp(min=min_errors) / support.clamp(min=1), 1.0)


class PrecisionWeights(PreciseBuffers):
    r"""Precision weights :math:`w_c = 1 - P_c = FP_c / (FP_c + TP_c)` of the batch; 1 where c is never predicted.

    The counter-example of Tian et al. 2021: an over-predicted class gets even more weight.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = check_whole("num_classes", num_classes, low=1)

    def forward(self, logits: Tensor, labels: Tensor, valid: Tensor, sync: bool = False) -> Tensor:
        """Weights (C,) of this batch; ``sync``: counts of all processes."""
        check_num_classes(self.num_classes, logits.shape[1])
        return batch_precision_weights(logits, labels, valid, sync and self.training)

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"{self.num_classes}"


@torch.no_grad()
def batch_precision_weights(logits: Tensor, labels: Tensor, valid: Tensor, sync: bool = False) -> Tensor:
    """``FP_c / (FP_c + TP_c)`` of a batch, 1 for a class that is never predicted; (C,)."""
    chosen = torch.cat([chosen for _, chosen, _ in _predictions(logits)])
    counts = _count(chosen, (valid, valid & (chosen == labels)), logits.shape[1])
    predicted, true_positives = (all_sum(counts) if sync else counts).to(accumulation_dtype(logits))
    return torch.where(predicted > 0, (predicted - true_positives) / predicted.clamp(min=1), 1.0)


@torch.no_grad()
def support_and_hits(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Rows of each class and how many of them are predicted, in this process; (2, C) int64."""
    labels = torch.where(valid, labels, 0)  # ignored labels may be out of range
    classes = logits.shape[1]
    parts = (
        count_hits(correct, labels[part], valid[part], (peak - peak).masked_fill(~valid[part], 0.0), classes)
        for part, correct, peak in _hits(logits, labels)
    )
    return torch.stack(list(parts)).sum(0)


@torch.no_grad()
def count_hits(correct: Tensor, labels: Tensor, valid: Tensor, losses: Tensor, num_classes: int) -> Tensor:
    """Rows and true positives per class, (2, C) int64; all arguments (N, d1, ..., dk).

    If any of the ``losses``, which are 0 in ignored rows, is NaN, the counts are ``SPOILED`` and the batch is not used.
    """
    # one pass: misses in the first C bins, true positives in the next, ignored rows in the last
    slots = torch.where(valid, labels + num_classes * correct, 2 * num_classes).flatten()
    bins = torch.zeros(2 * num_classes + 1, dtype=torch.int64, device=slots.device)
    misses, true_positives = bins.scatter_add(0, slots, torch.ones_like(slots))[:-1].view(2, num_classes)
    return torch.where(losses.sum().isnan(), SPOILED, torch.stack([misses + true_positives, true_positives]))


def _hits(logits: Tensor, labels: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Whether the label is predicted, and the largest logit, (n, d1, ..., dk), in chunks of samples."""
    if logits.ndim > 2 or logits.numel() == 0 or not cpu_serves(logits):
        yield from ((part, chosen == labels[part], peak) for part, chosen, peak in _predictions(logits))
        return
    # on the CPU it is faster to find the index only in rows where the label has the largest logit
    peak = logits.amax(1)
    correct = logits.gather(1, labels.unsqueeze(1)).squeeze(1) == peak
    rows = correct.nonzero().squeeze(1)
    correct[rows] = logits[rows].max(1).indices == labels[rows]
    yield slice(None), correct, peak


def _predictions(logits: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Index of the largest logit (the first in a tie) and that logit, in chunks of samples."""
    if logits.ndim == 2 or logits.numel() == 0 or not cpu_serves(logits):
        peak, chosen = logits.max(1)
        yield slice(None), chosen, peak
        return
    # the same, several times as fast if the classes are not contiguous in memory: mark the largest logits of each
    # location by their distance from the last class, in blocks that fit into the cache
    classes = logits.shape[1]
    distance = torch.arange(classes - 1, -1, -1, dtype=torch.float32).view(-1, *(1 for _ in logits.shape[2:]))
    size = max(1, 1_000_000 // logits[0].numel())
    buffer = torch.empty(logits[:size].shape, dtype=torch.float32)  # reused by all blocks: allocation is slow
    for start in range(0, len(logits), size):
        part = slice(start, start + size)
        block = logits[part]
        peak = block.amax(1, keepdim=True)
        marks = torch.eq(block, peak, out=buffer[: len(block)])
        yield part, (classes - 1) - marks.mul_(distance).amax(1).long(), peak.squeeze(1)


def _count(classes: Tensor, masks: Sequence[Tensor], num_classes: int) -> Tensor:
    """Occurrences of each class within each mask, (masks, C), without a host sync (unlike ``bincount``)."""
    counts = []
    for mask in masks:
        slots = torch.where(mask, classes, num_classes).flatten()  # one more bin, for ignored rows
        bins = torch.zeros(num_classes + 1, dtype=torch.int64, device=slots.device)
        counts.append(bins.scatter_add(0, slots, torch.ones_like(slots))[:num_classes])
    return torch.stack(counts)
