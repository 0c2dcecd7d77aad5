"""Softmax losses for single-label targets, pixels and tokens: adjust, softmax, modulate, weight, reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import (
    check_ignore_index,
    check_logit_values,
    check_logits,
    check_softmax_targets,
    check_target_of_one_row,
    check_tensors,
)
from equipoise.kernels.autograd import counts_come_along, softmax_rows, softmax_rows_and_hits
from equipoise.kernels.choice import Backend, backend
from equipoise.kernels.hyper import accumulation_dtype, check_layout, view_of
from equipoise.kernels.reference.softmax import has_target
from equipoise.kernels.spec import SoftmaxSpec
from equipoise.losses.adjust import Adjustment
from equipoise.losses.base import Loss, LossPart, Scalar
from equipoise.losses.class_weights import Weight, check_part, split_weights
from equipoise.losses.modulate import Modulation
from equipoise.losses.reduce import check_reduction, reduce_loss
from equipoise.schedules import Number
from equipoise.weights.recall import Recalls, count_hits

__all__ = ["RowLoss", "Rows", "SoftmaxLoss", "reduce_rows", "softmax_parts", "softmax_pipeline", "softmax_reduced"]


BatchWeight: TypeAlias = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""Class weights (C,) from logits, labels and the mask of valid rows of a batch, with ``sync`` over all processes."""


class SoftmaxInputs(NamedTuple):
    """A checked batch of a softmax loss."""

    logits: Tensor  # (N, C, d1, ..., dk)
    targets: Tensor  # indices (N, d1, ..., dk) or dense (N, C, d1, ..., dk)
    valid: Tensor  # (N, d1, ..., dk) bool
    dense: bool

    @property
    def labels(self) -> Tensor:
        """(N, d1, ..., dk) int64, 0 where ignored; the argmax of dense targets."""
        return self.targets.max(1).indices if self.dense else torch.where(self.valid, self.targets, 0)


class Rows(NamedTuple):
    """Unreduced losses with the values that the reduction needs."""

    loss: Tensor  # (N, d1, ..., dk), 0 where not valid
    inputs: SoftmaxInputs
    weight: Tensor | None  # (C,)

    def denominator(self, reduction: str) -> Tensor | float:
        """Denominator of the three means in this process."""
        if reduction == "batch_mean":
            return self.loss.shape[0]
        valid = self.inputs.valid
        if reduction == "mean" and self.weight is not None and not self.inputs.dense:
            return torch.where(valid, self.weight[self.inputs.labels], 0.0).sum()
        return valid.sum(dtype=self.loss.dtype)


def softmax_batch(logits: Tensor, targets: Tensor, spec: SoftmaxSpec, validate: bool) -> tuple[Tensor, Tensor, bool]:
    """Check a batch; return logits and targets with a batch dimension, and whether the targets are dense."""
    check_logits(logits)
    if logits.ndim == 1:  # one row without a batch dimension
        check_target_of_one_row(logits, targets)
        logits, targets = logits.unsqueeze(0), targets.unsqueeze(0)
    if logits.shape[1] == 0:
        raise ValueError(f"logits must have at least one class, got shape {tuple(logits.shape)}; check the model")
    dense = check_softmax_targets(logits, targets, spec.ignore_index, validate)
    if validate:
        check_logit_values(logits, one_label=True)
    check_layout(spec.layout, logits.shape[1])
    return logits, targets, dense


def softmax_inputs(logits: Tensor, targets: Tensor, dense: bool, ignore_index: int) -> SoftmaxInputs:
    """Mark the valid rows of a checked batch."""
    if dense:
        return SoftmaxInputs(logits, targets, has_target(targets).squeeze(1), dense=True)
    targets = targets.long()  # cast first: in uint8, an ignore_index of -100 would equal 156
    return SoftmaxInputs(logits, targets, targets != ignore_index, dense=False)


def softmax_pipeline(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    spec: SoftmaxSpec,
    *,
    batch_weights: Sequence[BatchWeight] = (),
    validate: bool = False,
    sync: bool = False,
) -> Rows:
    """The pipeline up to the reduction."""
    inputs = softmax_inputs(*softmax_batch(logits, targets, spec, validate), spec.ignore_index)
    return _rows(backend(logits), inputs, hyper, spec, batch_weights, sync)


def _rows(
    chosen: Backend,
    inputs: SoftmaxInputs,
    hyper: Tensor,
    spec: SoftmaxSpec,
    batch_weights: Sequence[BatchWeight],
    sync: bool,
) -> Rows:
    """Unreduced losses of a checked batch."""
    logits, targets, valid, _ = inputs
    weight = view_of(hyper, spec.layout, "weight")
    if len(batch_weights) == 1 and counts_come_along(chosen, targets, spec):
        recalls = Recalls.among(batch_weights, logits.shape[1])
        if recalls is not None and all(recalls.looking):
            rows, counts = _rows_and_counts(chosen, inputs, weight, hyper, spec)
            dynamic = recalls.weigh(None, counts, logits, sync)
            return Rows(rows * dynamic[inputs.labels], inputs, dynamic if weight is None else weight * dynamic)
    for weights in batch_weights:
        dynamic = weights(logits, inputs.labels, valid, sync)
        weight = dynamic if weight is None else weight * dynamic
    return Rows(softmax_rows(chosen, logits, targets, weight, hyper, spec), inputs, weight)


def _rows_and_counts(
    chosen: Backend, inputs: SoftmaxInputs, weight: Tensor | None, hyper: Tensor, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor]:
    """Rows, and rows and true positives of each class (2, C), in one pass over the logits."""
    logits, targets, valid, _ = inputs
    if chosen == "triton":
        from equipoise.kernels.triton.autograd import softmax_rows_and_counts  # Triton is optional

        return softmax_rows_and_counts(logits, targets, weight, hyper, spec)
    rows, hit = softmax_rows_and_hits(logits, targets, weight, hyper, spec)
    return rows, count_hits(hit, inputs.labels, valid, rows, logits.shape[1])


def softmax_reduced(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    spec: SoftmaxSpec,
    *,
    batch_weights: Sequence[BatchWeight] = (),
    reduction: str,
    normalizer: Tensor | float | None = None,
    validate: bool = False,
    sync_counts: bool = False,
    sync: bool = False,
) -> Tensor:
    """The reduced loss, with fused kernels if they are available."""
    batch, batch_targets, dense = softmax_batch(logits, targets, spec, validate)
    chosen = backend(logits)
    if reduction != "none" and chosen == "triton":
        from equipoise.losses.fused import fused_softmax_loss  # Triton is optional

        loss = fused_softmax_loss(
            batch,
            batch_targets,
            hyper,
            spec,
            batch_weights,
            reduction=reduction,
            normalizer=normalizer,
            sync_counts=sync_counts,
            sync=sync,
        )
        if loss is not None:
            return loss
    inputs = softmax_inputs(batch, batch_targets, dense, spec.ignore_index)
    bare = not spec.layout and not batch_weights and normalizer is None and not sync
    if bare and reduction != "none" and chosen == "cpu" and _all_count(inputs):
        return _cross_entropy(inputs, reduction)
    rows = _rows(chosen, inputs, hyper, spec, batch_weights, sync_counts)
    return reduce_rows(rows, logits, reduction, normalizer, sync=sync)


def _all_count(inputs: SoftmaxInputs) -> bool:
    """Whether all rows are valid, False if the targets are dense or the batch is empty."""
    return not inputs.dense and inputs.valid.numel() > 0 and bool(inputs.valid.all())


def _cross_entropy(inputs: SoftmaxInputs, reduction: str) -> Tensor:
    """Plain cross-entropy by PyTorch's operation, which takes a quarter of the time for small batches."""
    logits = inputs.logits.to(accumulation_dtype(inputs.logits))
    if reduction in ("mean", "valid_mean"):
        return F.cross_entropy(logits, inputs.targets)
    total = F.cross_entropy(logits, inputs.targets, reduction="sum")
    return total / len(logits) if reduction == "batch_mean" else total


def reduce_rows(
    rows: Rows, logits: Tensor, reduction: str, normalizer: Tensor | float | None, *, sync: bool = False
) -> Tensor:
    """Reduce rows; a single row passed without a batch dimension is returned without one."""
    loss = rows.loss.squeeze(0) if logits.ndim == 1 and reduction == "none" else rows.loss
    return reduce_loss(loss, reduction, rows.denominator, sync=sync, normalizer=normalizer)


class SoftmaxLoss(Loss):
    r"""A softmax loss made of parts, for single-label data, segmentation and tokens.

    .. math::
        L = \sum_k w_k \big[t_k (1 - \epsilon + \epsilon/C)\, m_{true}(p_k)
        + (1 - t_k)(\epsilon/C)\, m_{other}(p_k)\big](-\log p_k), \qquad
        p = \text{softmax}(\text{scale}\,(z + a))

    Args:
        modulation: factor on each term as a function of its probability; None gives cross-entropy.
        weight: (C,) numbers, ``Deferred(...)``, ``RecallWeights(...)``, or a list of these, which are multiplied.
        adjustment: change of the logits before the softmax.
        label_smoothing: epsilon in [0, 1].
        ignore_index: rows with this target are ignored.
        reduction: ``"mean"``, ``"valid_mean"``, ``"batch_mean"``, ``"sum"`` or ``"none"``, see ``losses.reduce``.
        sync: under ``torch.distributed``, synchronise statistics and denominators (training mode only).
        validate: check the values of the targets even if this synchronises or breaks a graph.
        epochs: number of epochs, for ``set_epoch``.
        more_parts: hyper-parameters that a derived loss adds.

    Shape:
        ``logits`` (N, C, d1, ..., dk) or (C,); ``targets`` integer indices (N, d1, ..., dk) or distributions like the
        logits, where a row of zeros is ignored. The result is a scalar, or (N, d1, ..., dk) for ``reduction="none"``,
        in float32 (float64 for float64 logits).

    >>> import torch
    >>> from equipoise.losses import SoftmaxLoss, focal, logit_adjustment
    >>> loss = SoftmaxLoss(focal(2.0), weight=[1.0, 2.0, 4.0], adjustment=logit_adjustment([100, 10, 1]))
    >>> loss(torch.tensor([[2.0, 0.5, -1.0]]), torch.tensor([2]))
    tensor(7.6203)
    """

    def __init__(
        self,
        modulation: Modulation | None = None,
        *,
        weight: Weight | Sequence[Weight] | None = None,
        adjustment: Adjustment | None = None,
        label_smoothing: Number = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        sync: bool = False,
        validate: bool = False,
        epochs: int | None = None,
        more_parts: Sequence[LossPart] = (),
    ) -> None:
        check_part(
            "modulation", modulation, Modulation, "focal(2.0), asymmetric(...), cyclical(...) or Modulation(...)"
        )
        check_part(
            "adjustment",
            adjustment,
            Adjustment,
            "logit_adjustment(counts), margin_adjustment(counts) or Adjustment(...)",
        )
        fixed, batch_weights = split_weights(weight)
        super().__init__(softmax_parts(modulation, adjustment, fixed, label_smoothing, more_parts), epochs=epochs)
        check_reduction(reduction)
        self.ignore_index = check_ignore_index(ignore_index)
        self.reduction, self.sync, self.validate = reduction, sync, validate
        self.batch_weights = nn.ModuleList(batch_weights)

    def forward(self, logits: Tensor, targets: Tensor, *, normalizer: Tensor | float | None = None) -> Tensor:
        """Loss of a batch; ``normalizer`` replaces the denominator (gradient accumulation)."""
        check_tensors(logits, targets)
        if not self.validate:
            self._look(logits)
        return softmax_reduced(
            logits,
            targets,
            self.hyper(logits),
            SoftmaxSpec(self.layout, self.ignore_index),
            batch_weights=list(self.batch_weights),
            reduction=self.reduction,
            normalizer=normalizer,
            validate=self.validate,
            sync_counts=self.sync,
            sync=self.sync and self.training,
        )

    def extra_repr(self) -> str:
        """Parts and options for ``repr``."""
        options = f"ignore_index={self.ignore_index}, reduction={self.reduction!r}, sync={self.sync}"
        return ",\n".join(text for text in (super().extra_repr(), options) if text)


class RowLoss(SoftmaxLoss):
    """A softmax loss that changes its rows before they are reduced."""

    kernels = "fused kernels for the rows, PyTorch for the comparison of the rows"

    def forward(self, logits: Tensor, targets: Tensor, *, normalizer: Tensor | float | None = None) -> Tensor:
        """Loss of a batch; ``normalizer`` replaces the denominator (gradient accumulation)."""
        check_tensors(logits, targets)
        if not self.validate:
            self._look(logits)
        rows = self.rows(logits, targets)
        return reduce_rows(rows, logits, self.reduction, normalizer, sync=self.sync and self.training)

    def rows(self, logits: Tensor, targets: Tensor) -> Rows:
        """The losses of the rows before the reduction."""
        return softmax_pipeline(
            logits,
            targets,
            self.hyper(logits),
            SoftmaxSpec(self.layout, self.ignore_index),
            batch_weights=list(self.batch_weights),
            validate=self.validate,
            sync=self.sync,
        )


def softmax_parts(
    modulation: Modulation | None,
    adjustment: Adjustment | None,
    fixed: Sequence[LossPart],
    label_smoothing: Number,
    more_parts: Sequence[LossPart] = (),
) -> list[LossPart]:
    """The stateless parts of a softmax loss in one list."""
    given: list[LossPart] = [part for part in (modulation, adjustment) if part is not None]
    return [*given, *fixed, Scalar("label_smoothing", label_smoothing, high=1.0), *more_parts]
