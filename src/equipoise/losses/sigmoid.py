"""Sigmoid losses for multi-label targets: adjust, sigmoid, modulate, weight, reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise._checks import (
    check_ignore_value,
    check_logit_values,
    check_logits,
    check_number,
    check_sigmoid_targets,
    check_tensors,
)
from equipoise.kernels.autograd import sigmoid_elements
from equipoise.kernels.choice import backend
from equipoise.kernels.hyper import Hyper, Piece, accumulation_dtype, check_layout
from equipoise.kernels.spec import SigmoidSpec
from equipoise.losses.adjust import NegativeTolerance
from equipoise.losses.asymmetry import AdaptiveAsymmetry
from equipoise.losses.base import Loss, LossPart, Scalar
from equipoise.losses.class_weights import Weight, check_part, split_weights
from equipoise.losses.modulate import Modulation
from equipoise.losses.reduce import check_reduction, reduce_loss
from equipoise.schedules import Number, Schedule
from equipoise.weights.deferred import ClassWeights
from equipoise.weights.rebalanced import Rebalanced, rebalanced_weight

__all__ = ["SigmoidLoss", "sigmoid_parts", "sigmoid_reduced"]


class SigmoidInputs(NamedTuple):
    """A checked batch of a sigmoid loss."""

    logits: Tensor  # (N, C, d1, ..., dk)
    targets: Tensor  # (N, C, d1, ..., dk)
    element_weight: Tensor | None  # broadcasts to the logits


class Elements(NamedTuple):
    """Unreduced losses with the values that the reduction needs."""

    loss: Tensor  # (N, C, d1, ..., dk), 0 where not valid
    targets: Tensor
    ignore_value: float | None  # None: every target is known

    def denominator(self, reduction: str) -> Tensor | float:
        """Denominator of the three means in this process."""
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
    spec: SigmoidSpec,
    *,
    element_weight: Tensor | None = None,
    asymmetry: AdaptiveAsymmetry | None = None,
    reduction: str,
    normalizer: Tensor | float | None = None,
    validate: bool = False,
    sync: bool = False,
) -> Tensor:
    """The reduced loss, with fused kernels if they are available; updates ``asymmetry`` if given."""
    batch, spec = sigmoid_batch(logits, targets, hyper, spec, element_weight, validate)
    chosen = backend(logits)
    if reduction != "none" and chosen == "triton":
        from equipoise.losses.fused import fused_sigmoid_loss  # Triton is optional

        fused = fused_sigmoid_loss(
            *batch,
            hyper,
            spec,
            asymmetry,
            reduction=reduction,
            normalizer=normalizer,
            sync=sync,
        )
        if fused is not None:
            return fused
    elements = Elements(sigmoid_elements(chosen, *batch, hyper, spec), batch.targets, spec.ignore_value)
    if asymmetry is not None:
        asymmetry.update(batch.logits.detach(), batch.targets, spec.ignore_value, sync)
    loss = elements.loss.view_as(logits) if reduction == "none" else elements.loss
    return reduce_loss(loss, reduction, elements.denominator, sync=sync, normalizer=normalizer)


def unknown_as_negatives(
    logits: Tensor, targets: Tensor, element_weight: Tensor | None, ignore_value: float, unknown_weight: float
) -> tuple[Tensor, Tensor]:
    """Targets in which unknown labels are negatives, and element weights that give these ``unknown_weight``."""
    unknown = targets == ignore_value
    weight = torch.ones_like(targets, dtype=accumulation_dtype(logits)).masked_fill(unknown, unknown_weight)
    return targets.masked_fill(unknown, 0), weight if element_weight is None else weight * element_weight


def sigmoid_batch(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    spec: SigmoidSpec,
    element_weight: Tensor | None,
    validate: bool,
) -> tuple[SigmoidInputs, SigmoidSpec]:
    """Check a batch and gather the weights of its elements; the spec learns whether all of its targets are known."""
    check_logits(logits)
    if not check_sigmoid_targets(logits, targets, spec.ignore_value, validate):  # type: ignore[arg-type]  # refuses None
        spec = spec._replace(ignore_value=None)
    check_layout(spec.layout, logits.shape[1] if logits.ndim > 1 else 1)
    if element_weight is not None:
        _check_element_weight(element_weight, logits)
    if logits.ndim == 1:  # N samples of one label
        logits, targets = logits.unsqueeze(1), targets.unsqueeze(1)
        element_weight = None if element_weight is None else element_weight.unsqueeze(-1)
    if validate:
        check_logit_values(logits, one_label=False)
    if any(piece.name == "rebalance" for piece in spec.layout):
        named = Hyper(hyper, spec.layout)
        rebalanced = rebalanced_weight(targets, named["inverse_counts"], named["rebalance"], spec.ignore_value)
        element_weight = rebalanced if element_weight is None else rebalanced * element_weight
    return SigmoidInputs(logits, targets, element_weight), spec


def _check_element_weight(element_weight: Tensor, logits: Tensor) -> None:
    check_tensors(logits, element_weight, ("logits", "element_weight"))
    trailing = zip(reversed(element_weight.shape), reversed(logits.shape), strict=False)
    if element_weight.ndim > logits.ndim or any(size not in (1, full) for size, full in trailing):
        raise ValueError(
            f"element_weight must broadcast to {tuple(logits.shape)}, got {tuple(element_weight.shape)}; "
            "pass one weight per element"
        )
    if element_weight.is_complex():
        raise TypeError(f"element_weight must be real numbers, got {element_weight.dtype}; pass element_weight.abs()")
    if element_weight.requires_grad:
        raise ValueError("element_weight must not require a gradient, got one that does; pass element_weight.detach()")


class SigmoidLoss(Loss):
    r"""A sigmoid loss made of parts, for multi-label data and detection.

    .. math::
        L = t\, m_+(p)(-\log p) + (1 - t)\, m_-(p_m)(-\log(1 - p_m)), \qquad p_m = \max(p - \text{margin}, 0)

    Args:
        modulation: factor on each term as a function of its probability; None gives binary cross-entropy.
        weight: (C,) one weight per label, ``Deferred(...)``, or a list of these, which are multiplied.
        pos_weight: (C,) factor on the positives.
        alpha: factor alpha on the positives and 1 - alpha on the negatives.
        margin: negatives with a probability below this value are ignored.
        adjustment: change of the logits before the sigmoid.
        detach_focus: stop the gradient through the modulation.
        rebalanced: ``Rebalanced(...)``, element weights that correct for the repeated sampling of common labels.
        asymmetry: ``AdaptiveAsymmetry(...)``, which adapts gamma_neg and, if configured, the margin during training.
        ignore_value: targets with this value are unknown and ignored.
        unknown_weight: if above 0, unknown labels are negatives with this weight (Ridnik et al. 2021, appendix G).
        reduction: ``"mean"``, ``"valid_mean"``, ``"batch_mean"``, ``"sum"`` or ``"none"``, see ``losses.reduce``.
        sync: under ``torch.distributed``, synchronise statistics and denominators (training mode only).
        validate: check the values of the targets even if this synchronises or breaks a graph.
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
        unknown_weight: float = 0.0,
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
            raise ValueError("gamma_neg must be None if asymmetry adapts it, got both; pass the start to asymmetry")
        adapts_margin = asymmetry is not None and asymmetry.adapts_margin
        if adapts_margin and margin != 0.0:
            raise ValueError(f"margin must be 0 if asymmetry adapts it, got {margin!r}; pass the start to asymmetry")
        parts = sigmoid_parts(modulation, fixed, pos_weight, alpha, margin, thin=adapts_margin)
        super().__init__([*parts, *(part for part in (adjustment, rebalanced) if part is not None)], epochs=epochs)
        check_reduction(reduction)
        self.detach_focus, self.asymmetry = detach_focus, asymmetry
        self.ignore_value = check_ignore_value(ignore_value)
        self.unknown_weight = check_number("unknown_weight", unknown_weight, low=0.0)
        self.reduction, self.sync, self.validate = reduction, sync, validate

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        element_weight: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        """Loss of a batch; ``normalizer`` replaces the denominator (gradient accumulation)."""
        check_tensors(logits, targets)
        if self.unknown_weight:
            targets, element_weight = unknown_as_negatives(
                logits, targets, element_weight, self.ignore_value, self.unknown_weight
            )
        hyper, layout, asymmetry = self.hyper(logits), self.layout, self.asymmetry
        rows = logits if logits.ndim > 1 else logits.unsqueeze(-1)
        if asymmetry is not None:
            check_logits(logits)
            if asymmetry.awaits_labels:  # the first batch sets it, so the batch must be valid
                check_sigmoid_targets(logits, targets, self.ignore_value, self.validate)
            adapted = asymmetry.exponent(rows)
            start = hyper.numel()
            layout = (*layout, Piece("gamma_neg", start, start + adapted.numel()))
            margin = asymmetry.margin_of(rows)
            if margin is not None:
                end = start + adapted.numel()
                layout = (*layout, Piece("margin", end, end + 1))
                adapted = torch.cat([adapted, margin])
            # a copy, because the exponent is updated before backward reads it
            hyper = torch.cat([hyper, adapted.to(hyper.dtype)])
        return sigmoid_reduced(
            logits,
            targets,
            hyper,
            SigmoidSpec(layout, self.ignore_value, self.detach_focus),
            element_weight=element_weight,
            asymmetry=asymmetry if self.training and torch.is_grad_enabled() else None,
            reduction=self.reduction,
            normalizer=normalizer,
            validate=self.validate,
            sync=self.sync and self.training,
        )

    def extra_repr(self) -> str:
        """Parts and options for ``repr``."""
        options = f"ignore_value={self.ignore_value:g}, reduction={self.reduction!r}, sync={self.sync}"
        if self.unknown_weight:
            options += f", unknown_weight={self.unknown_weight:g}"
        return ",\n".join(text for text in (super().extra_repr(), options) if text)


def sigmoid_parts(
    modulation: Modulation | None,
    fixed: Sequence[LossPart],
    pos_weight: Tensor | Sequence[float] | None,
    alpha: Number | None,
    margin: Number,
    *,
    thin: bool = False,
) -> list[LossPart]:
    """The stateless parts of a sigmoid loss in one list; ``thin``: a margin of any width will come."""
    parts: list[LossPart] = [*fixed, Scalar("margin", margin, high=1.0)]
    if thin or isinstance(margin, Schedule) or 0.0 < margin < 0.01:
        parts.append(Scalar("thin_margin", 1.0))  # too small for log(1 - p_m) to be precise without special treatment
    if modulation is not None:
        parts.append(modulation)
    if pos_weight is not None:
        parts.append(ClassWeights(pos_weight, name="pos_weight"))
    if alpha is not None:
        parts.append(Scalar("alpha", alpha, high=1.0, absent=None))
    return parts
