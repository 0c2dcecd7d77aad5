"""The losses as stateless functions. Arguments have the meaning and defaults of the corresponding classes.

Common keyword arguments of the softmax losses: ``weight`` (C,), ``label_smoothing``, ``ignore_index``, ``reduction``,
``normalizer``, ``validate``; to the sigmoid losses: ``weight`` (C,), ``ignore_value``, ``unknown_weight``,
``reduction``, ``element_weight``, ``normalizer``, ``validate``. Everything that changes during training (schedules,
moving averages, adaptive exponents, statistics synchronised between processes) is only available in the classes.

Shape: ``logits`` (N, C, d1, ..., dk), ``targets`` indices (N, d1, ..., dk) or dense like the logits; for the sigmoid
losses both (N, C, d1, ..., dk). The result is a scalar, or unreduced for ``reduction="none"``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from equipoise._checks import check_choice, check_number, check_tensors, check_whole
from equipoise._keywords import takes_options_of
from equipoise.kernels.hyper import Layout, Values, accumulation_dtype, layout_of, pack
from equipoise.kernels.spec import SigmoidSpec, SoftmaxSpec
from equipoise.losses.adjust import Adjustment, NegativeTolerance, logit_adjustment, margin_adjustment
from equipoise.losses.base import LossPart, Scalar, argument_names, fixed_exponents, merge_values
from equipoise.losses.modulate import ByConfidence, Gamma, Modulation, asymmetric, cyclical, focal
from equipoise.losses.named import distribution_bias
from equipoise.losses.objectives import calibration_term, keep_hardest
from equipoise.losses.off_target import Negatives, negative_rows, off_target_smoothing
from equipoise.losses.reduce import check_reduction
from equipoise.losses.region import dice_loss, lovasz_softmax_loss, soft_iou_loss, tversky_loss
from equipoise.losses.settings import scheduled_values
from equipoise.losses.sigmoid import sigmoid_parts, sigmoid_reduced, unknown_as_negatives
from equipoise.losses.softmax import Rows, reduce_rows, softmax_parts, softmax_pipeline, softmax_reduced
from equipoise.schedules import Moment
from equipoise.weights.deferred import ClassWeights
from equipoise.weights.rebalanced import Rebalanced
from equipoise.weights.recall import BatchRecall, batch_precision_weights
from equipoise.weights.static import effective_number, inverse_frequency

__all__ = [
    "asymmetric_loss",
    "asymmetric_softmax_loss",
    "balanced_softmax_loss",
    "binary_cross_entropy_loss",
    "binary_focal_loss",
    "brier_loss",
    "class_balanced_loss",
    "cross_entropy_loss",
    "cyclical_asymmetric_loss",
    "cyclical_focal_loss",
    "dice_loss",
    "distribution_balanced_loss",
    "focal_loss",
    "inverse_frequency_loss",
    "ldam_loss",
    "logit_adjusted_loss",
    "lovasz_softmax_loss",
    "mmce_loss",
    "ohem_loss",
    "precision_loss",
    "recall_loss",
    "sample_dependent_focal_loss",
    "sigmoid_loss",
    "soft_iou_loss",
    "softmax_loss",
    "tversky_loss",
]


class SoftmaxArguments(TypedDict, total=False):
    """Keyword arguments of every softmax function."""

    weight: Tensor | Sequence[float] | None
    label_smoothing: float
    ignore_index: int
    reduction: str
    normalizer: Tensor | float | None
    validate: bool


class SigmoidArguments(TypedDict, total=False):
    """Keyword arguments of every sigmoid function."""

    weight: Tensor | Sequence[float] | None
    ignore_value: float
    unknown_weight: float
    reduction: str
    element_weight: Tensor | None
    normalizer: Tensor | float | None
    validate: bool


def _resolve(parts: Sequence[LossPart]) -> dict[str, tuple[float, ...]]:
    """Hyper-parameters of all components; raise if one is a schedule, because functions have no progress."""
    for part in parts:
        for name in scheduled_values(part, Moment()):
            raise TypeError(
                f"{name} must be a number, because a function has no training progress, got a schedule; pass its "
                "value, schedule(progress), or use the loss as a module and call set_epoch"
            )
    return merge_values(parts, Moment())


def _layout(parts: Sequence[LossPart], values: Values) -> Layout:
    """Layout of the hyper-parameters; one compiled graph serves all exponents, which may change at every call."""
    return layout_of(values, () if torch.compiler.is_compiling() else fixed_exponents(parts), argument_names(parts))


def _softmax(
    logits: Tensor,
    targets: Tensor,
    modulation: Modulation | None = None,
    adjustment: Adjustment | None = None,
    *,
    class_weight: Tensor | None = None,
    batch_weights: Sequence[Callable[[Tensor, Tensor, Tensor, bool], Tensor]] = (),
    more_parts: Sequence[LossPart] = (),
    finish: Callable[[Rows, Tensor, Layout], Rows] | None = None,
    weight: Tensor | Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    normalizer: Tensor | float | None = None,
    validate: bool = False,
) -> Tensor:
    check_tensors(logits, targets)
    check_reduction(reduction)
    fixed = [ClassWeights(weight)] if weight is not None else []
    if class_weight is not None:
        fixed.append(ClassWeights(class_weight, called="counts"))
    parts = softmax_parts(modulation, adjustment, fixed, label_smoothing, more_parts)
    values = _resolve(parts)
    hyper = pack(values, accumulation_dtype(logits), logits.device)
    spec = SoftmaxSpec(_layout(parts, values), ignore_index)
    if finish is None:
        return softmax_reduced(
            logits,
            targets,
            hyper,
            spec,
            batch_weights=batch_weights,
            reduction=reduction,
            normalizer=normalizer,
            validate=validate,
        )
    rows = softmax_pipeline(
        logits,
        targets,
        hyper,
        spec,
        batch_weights=batch_weights,
        validate=validate,
    )
    return reduce_rows(finish(rows, hyper, spec.layout), logits, reduction, normalizer)


def _off_target(
    logits: Tensor, targets: Tensor, modulation: Modulation, negatives: Negatives, options: SoftmaxArguments
) -> Tensor:
    """A softmax loss with a term for every other class, in one of the forms of ``losses.off_target``."""
    smoothing = off_target_smoothing(negatives, options.get("label_smoothing"))
    options["label_smoothing"] = smoothing  # type: ignore[typeddict-item]  # a number where the argument is one
    if negatives == "smoothing":
        return _softmax(logits, targets, modulation, **options)

    def finish(rows: Rows, hyper: Tensor, layout: Layout) -> Rows:
        return rows._replace(loss=rows.loss + negative_rows(rows, hyper, layout))

    return _softmax(logits, targets, modulation, finish=finish, **options)


@takes_options_of(_softmax)
def softmax_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    modulation: Modulation | None = None,
    adjustment: Adjustment | None = None,
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """A softmax loss made of components, see ``SoftmaxLoss``."""
    return _softmax(logits, targets, modulation, adjustment, **options)


@takes_options_of(_softmax)
def cross_entropy_loss(logits: Tensor, targets: Tensor, **options: Unpack[SoftmaxArguments]) -> Tensor:
    """Cross-entropy, see ``CrossEntropyLoss``."""
    return _softmax(logits, targets, **options)


@takes_options_of(_softmax)
def focal_loss(logits: Tensor, targets: Tensor, *, gamma: Gamma = 2.0, **options: Unpack[SoftmaxArguments]) -> Tensor:
    """Focal loss, see ``FocalLoss``.

    >>> focal_loss(torch.zeros(1, 4), torch.tensor([0]), gamma=2.0)
    tensor(0.7798)
    """
    return _softmax(logits, targets, focal(gamma), **options)


@takes_options_of(_softmax)
def sample_dependent_focal_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    table: Sequence[tuple[float, float]] = ((0.2, 5.0), (1.0, 3.0)),
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """Focal loss with the exponent chosen by confidence, see ``SampleDependentFocalLoss``."""
    return _softmax(logits, targets, focal(ByConfidence(table)), **options)


@takes_options_of(_softmax)
def cyclical_focal_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    xi: float,
    gamma_hc: float = 3.0,
    gamma_lc: Gamma = 2.0,
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """Cyclical focal loss at a given ``xi`` in [0, 1], see ``CyclicalFocalLoss`` and ``schedules.Cyclical``."""
    modulation = Modulation(gamma_lc, gamma_lc, xi, gamma_hc, called="gamma_lc")  # type: ignore[arg-type]
    return _softmax(logits, targets, modulation, **options)


@takes_options_of(_softmax, shown={"label_smoothing": 0.1})
def asymmetric_softmax_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma_pos: Gamma = 0.0,
    gamma_neg: Gamma = 4.0,
    negatives: Negatives = "smoothing",
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """Asymmetric softmax loss, see ``AsymmetricSoftmaxLoss``.

    ``label_smoothing`` is 0.1 by default, and 0 with ``negatives="one-vs-rest"``.
    """
    return _off_target(logits, targets, asymmetric(gamma_pos, gamma_neg), negatives, options)


@takes_options_of(_softmax, shown={"label_smoothing": 0.1})
def cyclical_asymmetric_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    xi: float,
    gamma_hc: float = 2.0,
    gamma_pos: Gamma = 0.0,
    gamma_neg: Gamma = 4.0,
    negatives: Negatives = "smoothing",
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """Cyclical asymmetric loss at a given ``xi``, see ``CyclicalAsymmetricLoss``.

    ``label_smoothing`` is 0.1 by default, and 0 with ``negatives="one-vs-rest"``.
    """
    return _off_target(logits, targets, cyclical(xi, gamma_hc, gamma_pos, gamma_neg), negatives, options)


@takes_options_of(_softmax, reduction="valid_mean")
def recall_loss(
    logits: Tensor, targets: Tensor, *, min_errors: float = 1.0, **options: Unpack[SoftmaxArguments]
) -> Tensor:
    """Recall loss of the batch, see ``RecallLoss``; ``reduction`` is ``"valid_mean"`` by default."""
    floor = check_number("min_errors", min_errors, low=0.0)
    return _softmax(logits, targets, batch_weights=[BatchRecall(floor)], **options)


@takes_options_of(_softmax, reduction="valid_mean")
def precision_loss(logits: Tensor, targets: Tensor, **options: Unpack[SoftmaxArguments]) -> Tensor:
    """Precision loss of the batch, a counter-example, see ``PrecisionLoss``; ``"valid_mean"`` by default."""
    return _softmax(logits, targets, batch_weights=[batch_precision_weights], **options)


@takes_options_of(_softmax)
def inverse_frequency_loss(
    logits: Tensor, targets: Tensor, counts: Sequence[float] | Tensor, **options: Unpack[SoftmaxArguments]
) -> Tensor:
    """Cross-entropy weighted by inverse frequency, see ``InverseFrequencyLoss``."""
    return _softmax(logits, targets, class_weight=inverse_frequency(counts), **options)


@takes_options_of(_softmax)
def class_balanced_loss(
    logits: Tensor,
    targets: Tensor,
    counts: Sequence[float] | Tensor,
    *,
    beta: float = 0.9999,
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """Cross-entropy weighted by effective numbers, see ``ClassBalancedLoss``."""
    return _softmax(logits, targets, class_weight=effective_number(counts, beta), **options)


@takes_options_of(_softmax)
def ldam_loss(
    logits: Tensor,
    targets: Tensor,
    counts: Sequence[float] | Tensor,
    *,
    max_margin: float = 0.5,
    scale: float = 30.0,
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """Label-distribution-aware margin loss, see ``LDAMLoss``."""
    return _softmax(logits, targets, None, margin_adjustment(counts, max_margin, scale), **options)


@takes_options_of(_softmax)
def logit_adjusted_loss(
    logits: Tensor,
    targets: Tensor,
    counts: Sequence[float] | Tensor,
    *,
    tau: float = 1.0,
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """Logit-adjusted cross-entropy, see ``LogitAdjustedLoss``."""
    return _softmax(logits, targets, None, logit_adjustment(counts, tau), **options)


@takes_options_of(_softmax)
def balanced_softmax_loss(
    logits: Tensor, targets: Tensor, counts: Sequence[float] | Tensor, **options: Unpack[SoftmaxArguments]
) -> Tensor:
    """Balanced softmax, see ``BalancedSoftmaxLoss``."""
    return logit_adjusted_loss(logits, targets, counts, **options)


@takes_options_of(_softmax)
def brier_loss(logits: Tensor, targets: Tensor, **options: Unpack[SoftmaxArguments]) -> Tensor:
    """Brier score, see ``BrierLoss``."""
    return _softmax(logits, targets, more_parts=[Scalar("squared_error", 1.0)], **options)


@takes_options_of(_softmax)
def ohem_loss(
    logits: Tensor, targets: Tensor, *, keep: float = 0.7, min_kept: int = 0, **options: Unpack[SoftmaxArguments]
) -> Tensor:
    """Cross-entropy of the hardest rows, see ``OHEMLoss``."""
    check_tensors(logits, targets)
    check_number("keep", keep, low=0.0, high=1.0)
    least = check_whole("min_kept", min_kept, low=0)
    fraction = torch.tensor(keep, dtype=torch.float64, device="cpu" if logits.device.type == "mps" else logits.device)
    return _softmax(logits, targets, finish=lambda rows, *_: keep_hardest(rows, fraction, least), **options)


@takes_options_of(_softmax)
def mmce_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    strength: float = 2.0,
    normalization: str = "published",
    **options: Unpack[SoftmaxArguments],
) -> Tensor:
    """Cross-entropy plus the maximum mean calibration error, see ``MMCELoss``."""
    check_choice("normalization", normalization, ("published", "definition"))
    check_number("strength", strength, low=0.0)

    def finish(rows: Rows, *_: object) -> Rows:
        return rows._replace(loss=rows.loss + calibration_term(rows, strength, normalization))

    return _softmax(logits, targets, finish=finish, **options)


def _sigmoid(
    logits: Tensor,
    targets: Tensor,
    modulation: Modulation | None = None,
    *,
    more_parts: Sequence[LossPart] = (),
    pos_weight: Tensor | Sequence[float] | None = None,
    alpha: float | None = None,
    margin: float = 0.0,
    detach_focus: bool = False,
    weight: Tensor | Sequence[float] | None = None,
    ignore_value: float = -1,
    unknown_weight: float = 0.0,
    reduction: str = "mean",
    element_weight: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    validate: bool = False,
) -> Tensor:
    check_tensors(logits, targets)
    check_reduction(reduction)
    if check_number("unknown_weight", unknown_weight, low=0.0):
        targets, element_weight = unknown_as_negatives(logits, targets, element_weight, ignore_value, unknown_weight)
    fixed: list[LossPart] = [] if weight is None else [ClassWeights(weight)]
    parts = [*sigmoid_parts(modulation, fixed, pos_weight, alpha, margin), *more_parts]
    values = _resolve(parts)
    return sigmoid_reduced(
        logits,
        targets,
        pack(values, accumulation_dtype(logits), logits.device),
        SigmoidSpec(_layout(parts, values), ignore_value, detach_focus),
        element_weight=element_weight,
        reduction=reduction,
        normalizer=normalizer,
        validate=validate,
    )


@takes_options_of(_sigmoid)
def sigmoid_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    modulation: Modulation | None = None,
    adjustment: NegativeTolerance | None = None,
    pos_weight: Tensor | Sequence[float] | None = None,
    alpha: float | None = None,
    margin: float = 0.0,
    detach_focus: bool = False,
    **options: Unpack[SigmoidArguments],
) -> Tensor:
    """A sigmoid loss made of components, see ``SigmoidLoss``."""
    return _sigmoid(
        logits,
        targets,
        modulation,
        more_parts=[] if adjustment is None else [adjustment],
        pos_weight=pos_weight,
        alpha=alpha,
        margin=margin,
        detach_focus=detach_focus,
        **options,
    )


@takes_options_of(_sigmoid)
def binary_cross_entropy_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    pos_weight: Tensor | Sequence[float] | None = None,
    **options: Unpack[SigmoidArguments],
) -> Tensor:
    """Binary cross-entropy, see ``BinaryCrossEntropyLoss``."""
    return _sigmoid(logits, targets, pos_weight=pos_weight, **options)


@takes_options_of(_sigmoid)
def binary_focal_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma: Gamma = 2.0,
    alpha: float | None = None,
    **options: Unpack[SigmoidArguments],
) -> Tensor:
    """Sigmoid focal loss, see ``BinaryFocalLoss``."""
    return _sigmoid(logits, targets, focal(gamma), alpha=alpha, **options)


@takes_options_of(_sigmoid, reduction="batch_mean")
def asymmetric_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma_pos: Gamma = 0.0,
    gamma_neg: Gamma = 4.0,
    margin: float = 0.05,
    detach_focus: bool = False,
    **options: Unpack[SigmoidArguments],
) -> Tensor:
    """Asymmetric loss, see ``AsymmetricLoss``; ``reduction`` is ``"batch_mean"`` by default."""
    modulation = asymmetric(gamma_pos, gamma_neg)
    return _sigmoid(logits, targets, modulation, margin=margin, detach_focus=detach_focus, **options)


@takes_options_of(_sigmoid)
def distribution_balanced_loss(
    logits: Tensor,
    targets: Tensor,
    counts: Sequence[float] | Tensor,
    num_samples: float,
    *,
    alpha: float = 0.1,
    beta: float = 10.0,
    mu: float = 0.2,
    neg_scale: float = 2.0,
    init_bias: float = 0.05,
    gamma: Gamma = 2.0,
    balance: float = 2.0,
    **options: Unpack[SigmoidArguments],
) -> Tensor:
    """Distribution-balanced loss, see ``DistributionBalancedLoss``."""
    known, bias = distribution_bias(counts, num_samples, init_bias, neg_scale)
    parts: list[LossPart] = [
        NegativeTolerance(offset=bias, neg_scale=neg_scale, called="counts"),
        Rebalanced(known, alpha, beta, mu),
        Scalar("weight", balance, absent=1.0),
    ]
    return _sigmoid(logits, targets, focal(gamma), more_parts=parts, **options)
