"""The pipeline that every pointwise loss runs through: adjust, link, modulate, weight, reduce.

``SoftmaxLoss`` and ``SigmoidLoss`` take the parts; the named losses are choices of parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple, Never, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import (
    check_logit_values,
    check_logits,
    check_num_classes,
    check_sigmoid_targets,
    check_softmax_targets,
    check_tensor,
    check_tensors,
    checks_values,
)
from equipoise._keywords import refuse_call
from equipoise.kernels.choice import triton_serves
from equipoise.kernels.dispatch import sigmoid_elements, softmax_rows
from equipoise.kernels.hyper import Hyper, Layout, Piece, accumulation_dtype, check_layout
from equipoise.kernels.reference import hits_come_along, softmax_rows_and_hits
from equipoise.losses.adjust import Adjustment, NegativeTolerance
from equipoise.losses.asymmetry import AdaptiveAsymmetry
from equipoise.losses.base import Loss, Part, Scalar
from equipoise.losses.modulate import Modulation
from equipoise.losses.reduce import check_reduction, reduce_loss
from equipoise.schedules import Number, Schedule
from equipoise.weights.deferred import ClassWeights, Deferred
from equipoise.weights.rebalanced import Rebalanced, rebalanced_weight
from equipoise.weights.recall import BatchRecall, PrecisionWeights, RecallWeights, count_hits

__all__ = [
    "RowLoss",
    "SigmoidLoss",
    "SoftmaxLoss",
    "Weight",
    "reduce_rows",
    "sigmoid_reduced",
    "softmax_pipeline",
    "softmax_reduced",
]

BatchWeights: TypeAlias = RecallWeights | PrecisionWeights
FixedWeights: TypeAlias = ClassWeights | Deferred | Scalar
Weight: TypeAlias = Tensor | Sequence[float] | FixedWeights | BatchWeights
"""One number for each class, a part made of them, or a module that derives them from the batch."""


# ---------------------------------------------------------------------------------------------------------------------
# Softmax link
# ---------------------------------------------------------------------------------------------------------------------


class SoftmaxInputs(NamedTuple):
    """A batch as the softmax losses see it."""

    logits: Tensor  # (N, C, d1, ..., dk)
    targets: Tensor  # indices (N, d1, ..., dk) or dense (N, C, d1, ..., dk)
    labels: Tensor  # (N, d1, ..., dk) int64, 0 where ignored; the argmax of dense targets
    valid: Tensor  # (N, d1, ..., dk) bool
    dense: bool


class Rows(NamedTuple):
    """Unreduced losses and what their reduction needs."""

    loss: Tensor  # (N, d1, ..., dk), 0 where not valid
    inputs: SoftmaxInputs
    weight: Tensor | None  # (C,)

    def denominator(self, reduction: str) -> Tensor | float:
        """Local denominator of the three means."""
        if reduction == "batch_mean":
            return self.loss.shape[0]
        valid = self.inputs.valid
        if reduction == "mean" and self.weight is not None and not self.inputs.dense:
            return torch.where(valid, self.weight[self.inputs.labels], 0.0).sum()
        return valid.sum(dtype=self.loss.dtype)


def softmax_batch(logits: Tensor, targets: Tensor, ignore_index: int, validate: bool) -> tuple[Tensor, Tensor, bool]:
    """Check a batch; logits and targets with a batch dimension, and whether the targets are dense."""
    check_logits(logits)
    if logits.ndim == 1:  # one row without a batch dimension
        logits, targets = logits.unsqueeze(0), targets.unsqueeze(0)
    if logits.shape[1] == 0:
        raise ValueError(f"logits must have at least one class, got shape {tuple(logits.shape)}; check the model")
    dense = check_softmax_targets(logits, targets, ignore_index, validate)
    if validate:
        check_logit_values(logits, one_label=True)
    return logits, targets, dense


def softmax_inputs(logits: Tensor, targets: Tensor, ignore_index: int, validate: bool) -> SoftmaxInputs:
    """Check a batch and find out which rows count."""
    logits, targets, dense = softmax_batch(logits, targets, ignore_index, validate)
    if dense:
        return SoftmaxInputs(logits, targets, targets.max(1).indices, targets.sum(1) != 0, dense=True)
    targets = targets.long()  # first: a comparison in uint8 would take 156 for an ignore_index of -100
    valid = targets != ignore_index
    return SoftmaxInputs(logits, targets, torch.where(valid, targets, 0), valid, dense=False)


def softmax_pipeline(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    layout: Layout,
    *,
    batch_weights: Sequence[Callable[[Tensor, Tensor, Tensor, bool], Tensor]] = (),
    ignore_index: int = -100,
    validate: bool = False,
    sync: bool = False,
) -> Rows:
    """The pipeline up to the reduction."""
    inputs = softmax_inputs(logits, targets, ignore_index, validate)
    return _rows(inputs, hyper, layout, batch_weights, ignore_index, sync)


def _rows(
    inputs: SoftmaxInputs,
    hyper: Tensor,
    layout: Layout,
    batch_weights: Sequence[Callable[[Tensor, Tensor, Tensor, bool], Tensor]],
    ignore_index: int,
    sync: bool,
) -> Rows:
    """The pipeline between the checks and the reduction."""
    check_layout(layout, inputs.logits.shape[1])
    weight = Hyper(hyper, layout).get("weight")
    if len(batch_weights) == 1 and not triton_serves(inputs.logits) and hits_come_along(*inputs[:2], layout):
        weights = batch_weights[0]
        if isinstance(weights, (RecallWeights, BatchRecall)) and weights.looks():
            return _weighed_rows(inputs, weight, hyper, layout, weights, ignore_index, sync)
    for weights in batch_weights:
        dynamic = weights(inputs.logits, inputs.labels, inputs.valid, sync)
        weight = dynamic if weight is None else weight * dynamic
    rows = softmax_rows(inputs.logits, inputs.targets, weight, hyper, layout, ignore_index)
    return Rows(rows, inputs, weight)


def _weighed_rows(
    inputs: SoftmaxInputs,
    fixed: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    weights: RecallWeights | BatchRecall,
    ignore_index: int,
    sync: bool,
) -> Rows:
    """Rows with recall weights, whose counts come out of the softmax of the loss itself."""
    logits, targets, labels, valid, _ = inputs
    if isinstance(weights, RecallWeights):
        check_num_classes(weights.num_classes, logits.shape[1])
    rows, hit = softmax_rows_and_hits(logits, targets, fixed, hyper, layout, ignore_index)
    dynamic = weights.weigh(count_hits(hit, labels, valid, logits.shape[1]), logits, sync)
    return Rows(rows * dynamic[labels], inputs, dynamic if fixed is None else fixed * dynamic)


def softmax_reduced(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    layout: Layout,
    *,
    batch_weights: Sequence[Callable[[Tensor, Tensor, Tensor, bool], Tensor]] = (),
    ignore_index: int = -100,
    reduction: str,
    normalizer: Tensor | float | None = None,
    validate: bool = False,
    sync_counts: bool = False,
    sync: bool = False,
) -> Tensor:
    """The whole pipeline: fused where the kernels serve, elsewhere by its rows."""
    if reduction != "none" and triton_serves(logits):
        from equipoise.losses.fused import fused_softmax_loss  # Triton is optional

        batch, labels, _ = softmax_batch(logits, targets, ignore_index, validate)
        check_layout(layout, batch.shape[1])
        loss = fused_softmax_loss(
            batch,
            labels,
            hyper,
            layout,
            batch_weights,
            ignore_index,
            reduction=reduction,
            normalizer=normalizer,
            sync_counts=sync_counts,
            sync=sync,
        )
        if loss is not None:
            return loss
    inputs = softmax_inputs(logits, targets, ignore_index, validate)
    bare = not layout and not batch_weights and normalizer is None and not sync
    if bare and reduction != "none" and _all_count(inputs):
        return _cross_entropy(inputs, reduction)
    rows = _rows(inputs, hyper, layout, batch_weights, ignore_index, sync_counts)
    return reduce_rows(rows, logits, reduction, normalizer, sync=sync)


def _all_count(inputs: SoftmaxInputs) -> bool:
    """Whether every row has a class, as far as that is free to know; torch would hand on NaN from rows without one."""
    free = not inputs.dense and checks_values(inputs.targets, validate=False)
    return free and inputs.valid.numel() > 0 and bool(inputs.valid.all())


def _cross_entropy(inputs: SoftmaxInputs, reduction: str) -> Tensor:
    """Cross-entropy without any part, by torch's own operation: for few rows that takes a quarter of the time."""
    logits = inputs.logits.to(accumulation_dtype(inputs.logits))
    if reduction in ("mean", "valid_mean"):
        return F.cross_entropy(logits, inputs.labels)
    total = F.cross_entropy(logits, inputs.labels, reduction="sum")
    return total / len(logits) if reduction == "batch_mean" else total


def reduce_rows(
    rows: Rows, logits: Tensor, reduction: str, normalizer: Tensor | float | None, *, sync: bool = False
) -> Tensor:
    """Reduce rows; those of a single row without a batch dimension lose it again."""
    loss = rows.loss.squeeze(0) if logits.ndim == 1 and reduction == "none" else rows.loss
    return reduce_loss(loss, reduction, rows.denominator, sync=sync, normalizer=normalizer)


class SoftmaxLoss(Loss):
    r"""A softmax loss made of parts, for single labels, pixels and tokens.

    .. math::
        L = \sum_k w_k \big[t_k (1 - \epsilon + \epsilon/C)\, m_{true}(p_k)
        + (1 - t_k)(\epsilon/C)\, m_{other}(p_k)\big](-\log p_k), \qquad
        p = \text{softmax}(\text{scale}\,(z + a))

    Args:
        modulation: how strongly a term counts given its probability; None is cross-entropy.
        weight: (C,) numbers, ``Deferred(...)``, ``RecallWeights(...)``, or a list of these, which are multiplied.
        adjustment: what is done to the logits before the softmax.
        label_smoothing: epsilon in [0, 1].
        ignore_index: rows with this target count for nothing.
        reduction: ``"mean"``, ``"valid_mean"``, ``"batch_mean"``, ``"sum"`` or ``"none"``, see ``losses.reduce``.
        sync: under ``torch.distributed``, share statistics and denominators among the processes (training mode only).
        validate: look at the values of the targets also where that synchronises or breaks a graph.
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
        more_parts: Sequence[Part] = (),
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
        self.ignore_index, self.reduction, self.sync, self.validate = ignore_index, reduction, sync, validate
        self.batch_weights = nn.ModuleList(batch_weights)

    def forward(
        self, logits: Tensor, targets: Tensor, *, normalizer: Tensor | float | None = None, **unknown: Never
    ) -> Tensor:
        """Loss of a batch; ``normalizer`` replaces the denominator (gradient accumulation)."""
        if unknown:
            refuse_call(self, unknown)
        check_tensors(logits, targets)
        if normalizer is None:
            replayed = self._replays(SoftmaxLoss.forward, self, logits, targets)
            if replayed is not None:
                return replayed
        return softmax_reduced(
            logits,
            targets,
            self.hyper(logits),
            self.layout,
            batch_weights=list(self.batch_weights),
            ignore_index=self.ignore_index,
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
    """A softmax loss that looks at its rows before they are reduced."""

    def forward(
        self, logits: Tensor, targets: Tensor, *, normalizer: Tensor | float | None = None, **unknown: Never
    ) -> Tensor:
        """Loss of a batch; ``normalizer`` replaces the denominator (gradient accumulation)."""
        if unknown:
            refuse_call(self, unknown)
        check_tensors(logits, targets)
        rows = self.rows(logits, targets)
        return reduce_rows(rows, logits, self.reduction, normalizer, sync=self.sync and self.training)

    def rows(self, logits: Tensor, targets: Tensor) -> Rows:
        """The pipeline up to the reduction."""
        return softmax_pipeline(
            logits,
            targets,
            self.hyper(logits),
            self.layout,
            batch_weights=list(self.batch_weights),
            ignore_index=self.ignore_index,
            validate=self.validate,
            sync=self.sync,
        )


def softmax_parts(
    modulation: Modulation | None,
    adjustment: Adjustment | None,
    fixed: Sequence[Part],
    label_smoothing: Number,
    more_parts: Sequence[Part] = (),
) -> list[Part]:
    """The stateless parts of a softmax loss in one list."""
    given: list[Part] = [part for part in (modulation, adjustment) if part is not None]
    return [*given, *fixed, Scalar("label_smoothing", label_smoothing, high=1.0), *more_parts]


def check_part(name: str, part: object, kind: type, made_by: str) -> None:
    """Raise unless a part of a loss is None or of its kind."""
    if part is not None and not isinstance(part, kind):
        raise TypeError(f"{name} must be {made_by}, got {_came(part)}; leave it out for none")


def _came(part: object) -> str:
    """What a user gave in place of a part."""
    if isinstance(part, type) or inspect.isroutine(part):
        return f"{part.__name__} itself, which has to be called: {part.__name__}(...)"
    return repr(part) if isinstance(part, (bool, int, float, str)) else f"an object of type {type(part).__name__}"


def split_weights(weight: Weight | Sequence[Weight] | None) -> tuple[list[FixedWeights], list[BatchWeights]]:
    """Sort the weights a user gave into fixed ones and those that derive from the batch."""
    if weight is None:
        return [], []
    several = isinstance(weight, (list, tuple)) and any(not isinstance(item, (int, float)) for item in weight)
    fixed: list[FixedWeights] = []
    batch: list[BatchWeights] = []
    for item in weight if several else [weight]:  # type: ignore[union-attr]
        if isinstance(item, type) or inspect.isroutine(item):
            raise TypeError(f"weight must be numbers or made weights, got {_came(item)}; call it")
        if isinstance(item, Schedule):
            raise TypeError(
                "weight must be one number for each class, Deferred(...) or RecallWeights(...), got the schedule "
                f"{item!r}; weights take no schedule: Deferred(weight, start=0.8) lets them begin later"
            )
        if isinstance(item, (RecallWeights, PrecisionWeights)):
            batch.append(item)
        else:
            fixed.append(item if isinstance(item, (ClassWeights, Deferred, Scalar)) else ClassWeights(item))  # type: ignore[arg-type]
    return fixed, batch


# ---------------------------------------------------------------------------------------------------------------------
# Sigmoid link
# ---------------------------------------------------------------------------------------------------------------------


class SigmoidInputs(NamedTuple):
    """A batch as the sigmoid losses see it."""

    logits: Tensor  # (N, C, d1, ..., dk)
    targets: Tensor  # the same
    element_weight: Tensor | None  # broadcasts to them
    ignore_value: float | None  # None: every target is known


class Elements(NamedTuple):
    """Unreduced losses and what their reduction needs."""

    loss: Tensor  # (N, C, d1, ..., dk), 0 where not valid
    targets: Tensor
    ignore_value: float | None  # None: every target is known

    def denominator(self, reduction: str) -> Tensor | float:
        """Local denominator of the three means."""
        if reduction == "batch_mean":
            return self.loss.shape[0]
        if self.ignore_value is None:
            return self.loss.numel() if reduction == "mean" else self.loss.numel() // max(self.loss.shape[1], 1)
        valid = self.targets != self.ignore_value
        return (valid if reduction == "mean" else valid.any(1)).sum(dtype=self.loss.dtype)


def sigmoid_reduced(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    layout: Layout,
    *,
    element_weight: Tensor | None = None,
    ignore_value: float = -1,
    detach_focus: bool = False,
    asymmetry: AdaptiveAsymmetry | None = None,
    reduction: str,
    normalizer: Tensor | float | None = None,
    validate: bool = False,
    sync: bool = False,
) -> Tensor:
    """The whole pipeline: fused where the kernels serve, elsewhere by its elements; moves ``asymmetry`` if given."""
    batch = sigmoid_batch(logits, targets, hyper, layout, element_weight, ignore_value, validate)
    if reduction != "none" and triton_serves(logits):
        from equipoise.losses.fused import fused_sigmoid_loss  # Triton is optional

        fused = fused_sigmoid_loss(
            batch.logits,
            batch.targets,
            batch.element_weight,
            hyper,
            layout,
            batch.ignore_value,
            detach_focus,
            asymmetry,
            reduction=reduction,
            normalizer=normalizer,
            sync=sync,
        )
        if fused is not None:
            return fused
    elements = Elements(
        sigmoid_elements(
            batch.logits, batch.targets, batch.element_weight, hyper, layout, batch.ignore_value, detach_focus
        ),
        batch.targets,
        batch.ignore_value,
    )
    if asymmetry is not None:
        asymmetry.update(batch.logits.detach(), batch.targets, batch.ignore_value, sync)
    loss = elements.loss.view_as(logits) if reduction == "none" else elements.loss
    return reduce_loss(loss, reduction, elements.denominator, sync=sync, normalizer=normalizer)


def sigmoid_batch(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    layout: Layout,
    element_weight: Tensor | None,
    ignore_value: float,
    validate: bool,
) -> SigmoidInputs:
    """Check a batch and gather the weights of its elements."""
    check_logits(logits)
    unknown = ignore_value if check_sigmoid_targets(logits, targets, ignore_value, validate) else None
    check_layout(layout, logits.shape[1] if logits.ndim > 1 else 1)
    if element_weight is not None:
        check_tensor("element_weight", element_weight)
        trailing = zip(reversed(element_weight.shape), reversed(logits.shape), strict=False)
        if element_weight.ndim > logits.ndim or any(size not in (1, full) for size, full in trailing):
            raise ValueError(
                f"element_weight must broadcast to {tuple(logits.shape)}, got {tuple(element_weight.shape)}; "
                "give one weight for each element"
            )
    if logits.ndim == 1:  # N samples of one label
        logits, targets = logits.unsqueeze(1), targets.unsqueeze(1)
        element_weight = None if element_weight is None else element_weight.unsqueeze(-1)
    if validate:
        check_logit_values(logits, one_label=False)
    if any(piece.name == "rebalance" for piece in layout):
        named = Hyper(hyper, layout)
        rebalanced = rebalanced_weight(targets, named["inverse_counts"], named["rebalance"], ignore_value)
        element_weight = rebalanced if element_weight is None else rebalanced * element_weight
    return SigmoidInputs(logits, targets, element_weight, unknown)


class SigmoidLoss(Loss):
    r"""A sigmoid loss made of parts, for several labels a sample and for detection.

    .. math::
        L = t\, m_+(p)(-\log p) + (1 - t)\, m_-(p_m)(-\log(1 - p_m)), \qquad p_m = \max(p - \text{margin}, 0)

    Args:
        modulation: how strongly a term counts given its probability; None is binary cross-entropy.
        weight: (C,) a weight for each label, ``Deferred(...)``, or a list of these, which are multiplied.
        pos_weight: (C,) factor on the positives.
        alpha: factor alpha on the positives and 1 - alpha on the negatives.
        margin: probability below which a negative counts for nothing.
        adjustment: what is done to the logits before the sigmoid.
        detach_focus: stop the gradient through the modulation.
        rebalanced: ``Rebalanced(...)``, weights of the elements that undo repeated sampling of common labels.
        asymmetry: ``AdaptiveAsymmetry(...)``, which steers gamma_neg during training.
        ignore_value: targets of this value are unknown and count for nothing.
        reduction: ``"mean"``, ``"valid_mean"``, ``"batch_mean"``, ``"sum"`` or ``"none"``, see ``losses.reduce``.
        sync: under ``torch.distributed``, share statistics and denominators among the processes (training mode only).
        validate: look at the values of the targets also where that synchronises or breaks a graph.
        epochs: number of epochs, for ``set_epoch``.

    Shape:
        ``logits`` and ``targets`` (N, C, d1, ..., dk) or (N,), targets in [0, 1]; ``element_weight`` broadcasts.
        The result is a scalar, or shaped like the logits for ``reduction="none"``.

    >>> import torch
    >>> from equipoise.losses import SigmoidLoss, asymmetric
    >>> loss = SigmoidLoss(asymmetric(0.0, 4.0), margin=0.05, reduction="sum")
    >>> loss(torch.tensor([[2.0, 0.5, -1.0]]), torch.tensor([[1.0, 0.0, -1.0]]))
    tensor(0.2182)
    """

    def __init__(
        self,
        modulation: Modulation | None = None,
        *,
        weight: Weight | Sequence[Weight] | None = None,
        pos_weight: Tensor | Sequence[float] | None = None,
        alpha: Number | None = None,
        margin: Number = 0.0,
        adjustment: NegativeTolerance | None = None,
        rebalanced: Rebalanced | None = None,
        detach_focus: bool = False,
        asymmetry: AdaptiveAsymmetry | None = None,
        ignore_value: float = -1,
        reduction: str = "mean",
        sync: bool = False,
        validate: bool = False,
        epochs: int | None = None,
    ) -> None:
        check_part(
            "modulation", modulation, Modulation, "focal(2.0), asymmetric(...), cyclical(...) or Modulation(...)"
        )
        check_part("adjustment", adjustment, NegativeTolerance, "NegativeTolerance(...)")
        check_part("rebalanced", rebalanced, Rebalanced, "Rebalanced(...)")
        check_part("asymmetry", asymmetry, AdaptiveAsymmetry, "AdaptiveAsymmetry(...)")
        fixed, batch_weights = split_weights(weight)
        if batch_weights:
            raise TypeError(
                f"weight must be numbers or Deferred(...) for a sigmoid loss, got {type(batch_weights[0]).__name__}; "
                "recall and precision weights belong to softmax losses"
            )
        if asymmetry is not None and modulation is not None and modulation.gamma_neg is not None:
            raise ValueError("gamma_neg must be None when asymmetry steers it, got both; give its start to asymmetry")
        parts = sigmoid_parts(modulation, fixed, pos_weight, alpha, margin)
        super().__init__([*parts, *(part for part in (adjustment, rebalanced) if part is not None)], epochs=epochs)
        check_reduction(reduction)
        self.detach_focus, self.ignore_value, self.asymmetry = detach_focus, ignore_value, asymmetry
        self.reduction, self.sync, self.validate = reduction, sync, validate

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        element_weight: Tensor | None = None,
        normalizer: Tensor | float | None = None,
        **unknown: Never,
    ) -> Tensor:
        """Loss of a batch; ``normalizer`` replaces the denominator (gradient accumulation)."""
        if unknown:
            refuse_call(self, unknown)
        check_tensors(logits, targets)
        if element_weight is None and normalizer is None:
            replayed = self._replays(SigmoidLoss.forward, self, logits, targets)
            if replayed is not None:
                return replayed
        hyper, layout = self.hyper(logits), self.layout
        rows = logits if logits.ndim > 1 else logits.unsqueeze(-1)
        if self.asymmetry is not None:
            gamma = self.asymmetry.exponent(rows)
            layout = (*layout, Piece("gamma_neg", hyper.numel(), hyper.numel() + gamma.numel()))
            hyper = _joined(hyper, gamma, logits)  # a copy: the exponent moves on before backward reads it
        return sigmoid_reduced(
            logits,
            targets,
            hyper,
            layout,
            element_weight=element_weight,
            ignore_value=self.ignore_value,
            detach_focus=self.detach_focus,
            asymmetry=self.asymmetry if self.training and torch.is_grad_enabled() else None,
            reduction=self.reduction,
            normalizer=normalizer,
            validate=self.validate,
            sync=self.sync and self.training,
        )

    def extra_repr(self) -> str:
        """Parts and options for ``repr``."""
        options = f"ignore_value={self.ignore_value:g}, reduction={self.reduction!r}, sync={self.sync}"
        return ",\n".join(text for text in (super().extra_repr(), options) if text)


def _joined(hyper: Tensor, gamma: Tensor, logits: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or not triton_serves(logits):
        return torch.cat([hyper, gamma.to(hyper.dtype)])
    from equipoise.kernels.statistics_launch import joined  # Triton is optional

    return joined(hyper, gamma)


def sigmoid_parts(
    modulation: Modulation | None,
    fixed: Sequence[Part],
    pos_weight: Tensor | Sequence[float] | None,
    alpha: Number | None,
    margin: Number,
) -> list[Part]:
    """The stateless parts of a sigmoid loss in one list."""
    parts: list[Part] = [*fixed, Scalar("margin", margin, high=1.0)]
    if isinstance(margin, Schedule) or 0.0 < margin < 0.01:
        parts.append(Scalar("thin_margin", 1.0))  # too thin for log(1 - p_m) to keep its precision by itself
    if modulation is not None:
        parts.append(modulation)
    if pos_weight is not None:
        parts.append(ClassWeights(pos_weight, name="pos_weight"))
    if alpha is not None:
        parts.append(Scalar("alpha", alpha, high=1.0, absent=None))
    return parts
