"""The losses of the papers and their baselines by name; each is a combination of parts.

Keyword arguments of all softmax losses: ``weight``, ``label_smoothing``, ``ignore_index``, ``reduction``, ``sync``,
``validate``, see ``SoftmaxLoss``; of all sigmoid losses: ``weight``, ``ignore_value``, ``unknown_weight``,
``reduction``, ``sync``, ``validate``, see ``SigmoidLoss``. ``preset="published"`` selects the defaults of the published
code where they differ from the paper; arguments that you pass take precedence. Shapes are those of ``SoftmaxLoss`` and
``SigmoidLoss``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Unpack

from torch import Tensor

from equipoise._checks import check_counts, check_number
from equipoise.losses.adjust import NegativeTolerance, logit_adjustment, margin_adjustment
from equipoise.losses.asymmetry import AdaptiveAsymmetry
from equipoise.losses.base import Scalar, check_preset, retire_preset
from equipoise.losses.class_weights import Weight, split_weights
from equipoise.losses.modulate import ByConfidence, Gamma, Modulation, asymmetric, cyclical, focal
from equipoise.losses.off_target import Negatives, OffTargetLoss
from equipoise.losses.sigmoid import SigmoidLoss
from equipoise.losses.softmax import SoftmaxLoss
from equipoise.losses.typed_kwargs import (
    BinaryCrossEntropyOptions,
    CrossEntropyOptions,
    CyclicalOptions,
    SigmoidOptions,
    SoftmaxOptions,
)
from equipoise.schedules import Cyclical, Number
from equipoise.weights.deferred import ClassWeights
from equipoise.weights.rebalanced import Rebalanced
from equipoise.weights.recall import PrecisionWeights, RecallWeights
from equipoise.weights.static import Normalize, effective_number, inverse_frequency

__all__ = [
    "AsymmetricLoss",
    "AsymmetricSoftmaxLoss",
    "BalancedSoftmaxLoss",
    "BinaryCrossEntropyLoss",
    "BinaryFocalLoss",
    "ClassBalancedLoss",
    "CrossEntropyLoss",
    "CyclicalAsymmetricLoss",
    "CyclicalFocalLoss",
    "DistributionBalancedLoss",
    "FocalLoss",
    "InverseFrequencyLoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "PrecisionLoss",
    "RecallLoss",
    "SampleDependentFocalLoss",
    "distribution_bias",
]


def _times(weight: Weight, given: Weight | Sequence[Weight] | None) -> list[Weight]:
    """Weights of the loss together with those that the user passed; they are multiplied."""
    fixed, batch = split_weights(given)
    return [weight, *fixed, *batch]


# ---------------------------------------------------------------------------------------------------------------------
# Softmax link
# ---------------------------------------------------------------------------------------------------------------------


class CrossEntropyLoss(SoftmaxLoss):
    r"""Cross-entropy :math:`-\log p_y`: ``torch.nn.CrossEntropyLoss`` with all its options.

    >>> import torch
    >>> CrossEntropyLoss()(torch.zeros(1, 4), torch.tensor([0]))
    tensor(1.3863)
    """

    def __init__(
        self,
        weight: Weight | Sequence[Weight] | None = None,
        *,
        preset: str | None = None,
        **options: Unpack[CrossEntropyOptions],
    ) -> None:
        retire_preset(preset)
        super().__init__(weight=weight, **options)


class FocalLoss(SoftmaxLoss):
    r"""Focal loss :math:`-(1 - p_y)^\gamma \log p_y` (Lin et al. 2017; for calibration Mukhoti et al. 2020).

    With ``gamma=0`` it is cross-entropy.

    Args:
        gamma: exponent >= 0: a number, one per class, or a schedule. FLSc-531 is
            ``FocalLoss(gamma=Steps((5, 3, 1), at=(100 / 350, 250 / 350)), epochs=350)``.
        preset: ``"published"`` sums instead of averaging.
        options: see the top of the module.

    >>> import torch
    >>> FocalLoss(gamma=2.0)(torch.zeros(1, 4), torch.tensor([0]))
    tensor(0.7798)
    """

    def __init__(self, gamma: Gamma = 2.0, *, preset: str | None = None, **options: Unpack[SoftmaxOptions]) -> None:
        if check_preset(preset):
            options.setdefault("reduction", "sum")
        super().__init__(focal(gamma), **options)


class SampleDependentFocalLoss(SoftmaxLoss):
    r"""FLSD, focal loss with exponent by sample: :math:`-(1 - p_y)^{\gamma(p_y)} \log p_y` (Mukhoti 2020).

    Args:
        table: ``(bound, gamma)`` pairs, gamma below each confidence bound. The default is FLSD-53; FLSD-532 is
            ``((0.2, 5.0), (0.5, 3.0), (1.0, 2.0))``. No gradient flows through the choice. With label smoothing
            or dense targets the exponent of each class depends on the probability of that class.
        preset: ``"published"`` sums instead of averaging.
        options: see the top of the module.

    >>> import torch
    >>> SampleDependentFocalLoss()(torch.tensor([[0.0, 3.0], [3.0, 0.0]]), torch.tensor([0, 0]), normalizer=1)
    tensor(2.3911)
    """

    def __init__(
        self,
        table: Sequence[tuple[float, Number]] = ((0.2, 5.0), (1.0, 3.0)),
        *,
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        if check_preset(preset):
            options.setdefault("reduction", "sum")
        super().__init__(focal(ByConfidence(table)), **options)


class CyclicalFocalLoss(SoftmaxLoss):
    r"""Cyclical focal loss :math:`-[\xi (1 + p_y)^{g_{hc}} + (1 - \xi)(1 - p_y)^{g_{lc}}] \log p_y` (Smith 2022).

    :math:`\xi` falls from 1 to 0 in the first ``1 / factor`` of the training and rises back to 1: training focuses on
    confident samples at the start and the end, and on hard samples in between. Call ``loss.set_epoch(e)`` before each
    epoch.

    Args:
        epochs: number of epochs E.
        gamma_hc: exponent of the high-confidence term, 2 or 3; above 3.59 its gradient changes sign near p = 0.3.
        gamma_lc: focal exponent; with label smoothing the other classes are weighted by :math:`p^{g_{lc}}`.
        factor: f of the schedule.
        end: epoch at which xi is 1 again: ``"last_epoch"``, E - 1 (published code), or ``"epochs"``, E (paper).
        preset: ``"published"`` smooths labels by 0.1.
        options: see the top of the module.

    >>> import torch
    >>> loss = CyclicalFocalLoss(epochs=9)
    >>> loss.set_epoch(2)
    >>> loss(torch.zeros(1, 4), torch.tensor([0]))  # xi is 0 here: focal loss
    tensor(0.7798)
    """

    def __init__(
        self,
        epochs: int,
        *,
        gamma_hc: Number = 3.0,
        gamma_lc: Gamma = 2.0,
        factor: float = 4.0,
        end: str = "last_epoch",
        preset: str | None = None,
        **options: Unpack[CyclicalOptions],
    ) -> None:
        if check_preset(preset):
            options.setdefault("label_smoothing", 0.1)
        modulation = Modulation(gamma_lc, gamma_lc, Cyclical(factor, end), gamma_hc, called="gamma_lc")  # type: ignore[arg-type]
        super().__init__(modulation, epochs=epochs, **options)


class AsymmetricSoftmaxLoss(OffTargetLoss):
    r"""Single-label asymmetric loss: :math:`(1 - p_y)^{g_{pos}}` on the target, :math:`p_k^{g_{neg}}` on the others.

    The other classes have :math:`p_k^{g_{neg}} (-\log p_k)` times the mass that smoothing gives to them, as in the
    published code, where ``gamma_neg`` has no effect without smoothing; or, as in the text,
    :math:`p_k^{g_{neg}} (-\log(1 - p_k))`.

    Args:
        gamma_pos: exponent of the true class.
        gamma_neg: exponent of the other classes.
        negatives: ``"smoothing"`` (published), or ``"one-vs-rest"`` (text).
        preset: deprecated; the published code has the same defaults.
        options: see the top of the module; ``label_smoothing`` is 0.1 by default, and 0 with ``"one-vs-rest"``.

    >>> import torch
    >>> AsymmetricSoftmaxLoss()(torch.zeros(1, 4), torch.tensor([0]))
    tensor(1.2827)
    >>> AsymmetricSoftmaxLoss(negatives="one-vs-rest")(torch.zeros(1, 4), torch.tensor([0]))
    tensor(1.3897)
    """

    def __init__(
        self,
        gamma_pos: Gamma = 0.0,
        *,
        gamma_neg: Gamma = 4.0,
        negatives: Negatives = "smoothing",
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        retire_preset(preset)
        super().__init__(asymmetric(gamma_pos, gamma_neg), negatives=negatives, **options)


class CyclicalAsymmetricLoss(OffTargetLoss):
    r"""Asymmetric softmax loss with the cyclical high-confidence term (Smith 2022; g_hc 2 as in its table 5).

    With ``negatives="one-vs-rest"`` it is equation 10 of the text, :math:`\xi L_{hc} + (1 - \xi)(L_+ + L_-)` with
    :math:`L_- = -\sum_{k \ne y} p_k^{g_{neg}} \log(1 - p_k)`.

    Args:
        epochs: number of epochs E.
        gamma_hc: exponent of the high-confidence term.
        gamma_pos: exponent of the true class.
        gamma_neg: exponent of the other classes.
        factor: f of the schedule.
        end: see ``CyclicalFocalLoss``.
        negatives: ``"smoothing"`` (published): the others have a term through the mass of the smoothing;
            ``"one-vs-rest"`` (text).
        preset: deprecated; the published code has the same defaults.
        options: see the top of the module; ``label_smoothing`` is 0.1 by default, and 0 with ``"one-vs-rest"``.

    >>> import torch
    >>> loss = CyclicalAsymmetricLoss(epochs=9)
    >>> loss.set_epoch(2)
    >>> loss(torch.zeros(1, 4), torch.tensor([0]))  # xi is 0 here: the asymmetric loss
    tensor(1.2827)
    """

    def __init__(
        self,
        epochs: int,
        *,
        gamma_hc: Number = 2.0,
        gamma_pos: Gamma = 0.0,
        gamma_neg: Gamma = 4.0,
        factor: float = 4.0,
        end: str = "last_epoch",
        negatives: Negatives = "smoothing",
        preset: str | None = None,
        **options: Unpack[CyclicalOptions],
    ) -> None:
        retire_preset(preset)
        modulation = cyclical(Cyclical(factor, end), gamma_hc, gamma_pos, gamma_neg)
        super().__init__(modulation, negatives=negatives, epochs=epochs, **options)


class RecallLoss(SoftmaxLoss):
    r"""Recall loss :math:`-(1 - R_y) \log p_y`: up-weights classes with low recall (Tian et al. 2021, eq. 5-8).

    A compromise between cross-entropy and inverse frequency: rare classes with high recall are not up-weighted.

    Args:
        num_classes: C.
        momentum: alpha of the moving average of eq. 8; None uses the recall of the batch.
        min_errors: minimum number of errors of a class in the batch; 1 in the published code, 0 in the paper.
        init: initial value of the moving average, ``"first"`` by default, see ``RecallWeights``.
        preset: ``"published"`` sets ``init="published"`` and applies ``min_errors`` to the moving average too.
        options: see the top of the module; by default ``sync=True``, which counts over all processes, and
            ``reduction="valid_mean"``, so that the loss decreases as recall rises.

    >>> import torch
    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> RecallLoss(num_classes=2, min_errors=0.0)(logits, torch.tensor([0, 0, 1]))  # class 0 is always right
    tensor(0.7090)
    """

    option_defaults: ClassVar[SoftmaxOptions] = {"sync": True, "reduction": "valid_mean"}

    def __init__(
        self,
        num_classes: int,
        *,
        momentum: float | None = None,
        min_errors: float = 1.0,
        init: str | None = None,
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        published = check_preset(preset)
        options = self.option_defaults | options
        weights = RecallWeights(
            num_classes,
            momentum=momentum,
            min_errors=min_errors,
            init=init if init is not None else "published" if published else "first",
            floor_average=published,
        )
        options["weight"] = _times(weights, options.get("weight"))
        super().__init__(**options)


class PrecisionLoss(SoftmaxLoss):
    r"""Precision loss :math:`-(1 - P_y) \log p_y` (Tian et al. 2021): a counterexample of the paper, not for training.

    Classes with many false positives get a large weight, which makes the model predict them even more.

    Args:
        num_classes: C.
        preset: deprecated; there is no published code.
        options: see the top of the module; by default ``sync=True`` and ``reduction="valid_mean"``.
    """

    option_defaults: ClassVar[SoftmaxOptions] = {"sync": True, "reduction": "valid_mean"}

    def __init__(
        self,
        num_classes: int,
        *,
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        retire_preset(preset)
        options = self.option_defaults | options
        options["weight"] = _times(PrecisionWeights(num_classes), options.get("weight"))
        super().__init__(**options)


class InverseFrequencyLoss(SoftmaxLoss):
    r"""Cross-entropy with :math:`w_c \propto 1 / n_c`.

    Args:
        counts: training samples of each class.
        normalize: see ``weights.inverse_frequency``.
        preset: deprecated; the published code has the same defaults.
        options: see the top of the module.
    """

    def __init__(
        self,
        counts: Sequence[float] | Tensor,
        *,
        normalize: Normalize = "sum_to_C",
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        retire_preset(preset)
        options["weight"] = _times(
            ClassWeights(inverse_frequency(counts, normalize), called="counts"), options.get("weight")
        )
        super().__init__(**options)


class ClassBalancedLoss(SoftmaxLoss):
    r"""Cross-entropy with effective-number weights, :math:`(1 - \beta) / (1 - \beta^{n_c})` (Cui et al. 2019).

    Args:
        counts: training samples of each class.
        beta: .9999, or .999 for thousands of classes.
        normalize: see ``weights.effective_number``.
        preset: deprecated; the published code has the same defaults.
        options: see the top of the module.
    """

    def __init__(
        self,
        counts: Sequence[float] | Tensor,
        *,
        beta: float = 0.9999,
        normalize: Normalize = "sum_to_C",
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        retire_preset(preset)
        options["weight"] = _times(
            ClassWeights(effective_number(counts, beta, normalize), called="counts"), options.get("weight")
        )
        super().__init__(**options)


class LDAMLoss(SoftmaxLoss):
    r"""LDAM, label-distribution-aware margins: cross-entropy of :math:`s (z - \Delta_y e_y)` (Cao et al. 2019).

    :math:`\Delta_c \propto n_c^{-1/4}`. Designed for cosine logits (a normalised classifier). LDAM-DRW adds
    ``weight=Deferred(effective_number(counts), start=0.8), epochs=E``.

    Args:
        counts: training samples of each class.
        max_margin: the margin of the rarest class.
        scale: s.
        preset: deprecated; the published code has the same defaults.
        options: see the top of the module.
    """

    def __init__(
        self,
        counts: Sequence[float] | Tensor,
        *,
        max_margin: Number = 0.5,
        scale: Number = 30.0,
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        retire_preset(preset)
        super().__init__(adjustment=margin_adjustment(counts, max_margin, scale), **options)


class LogitAdjustedLoss(SoftmaxLoss):
    r"""Cross-entropy of :math:`z + \tau \log \pi` with the class prior :math:`\pi` (Menon et al. 2021).

    The unadjusted logits then estimate the posterior under a uniform class prior.

    Args:
        counts: training samples of each class.
        tau: strength.
        preset: deprecated; the published code has the same defaults.
        options: see the top of the module.
    """

    def __init__(
        self,
        counts: Sequence[float] | Tensor,
        *,
        tau: Number = 1.0,
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        retire_preset(preset)
        super().__init__(adjustment=logit_adjustment(counts, tau), **options)


class BalancedSoftmaxLoss(LogitAdjustedLoss):
    r"""Balanced softmax: cross-entropy of :math:`z + \log n`, which is logit adjustment with tau 1 (Ren et al. 2020).

    Args:
        counts: training samples of each class.
        preset: deprecated; the published code has the same defaults.
        options: see the top of the module.
    """

    def __init__(
        self, counts: Sequence[float] | Tensor, *, preset: str | None = None, **options: Unpack[SoftmaxOptions]
    ) -> None:
        super().__init__(counts, tau=1.0, preset=preset, **options)


# ---------------------------------------------------------------------------------------------------------------------
# Sigmoid link
# ---------------------------------------------------------------------------------------------------------------------


class BinaryCrossEntropyLoss(SigmoidLoss):
    r"""Binary cross-entropy :math:`-t \log p - (1 - t) \log(1 - p)`: ``BCEWithLogitsLoss`` with unknown labels.

    Args:
        weight: (C,) one weight per label.
        pos_weight: (C,) factor on the positives.
        options: see the top of the module.

    >>> import torch
    >>> BinaryCrossEntropyLoss()(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, -1.0]]))  # the last label is unknown
    tensor(0.6931)
    """

    def __init__(
        self,
        weight: Weight | Sequence[Weight] | None = None,
        *,
        pos_weight: Tensor | Sequence[float] | None = None,
        **options: Unpack[BinaryCrossEntropyOptions],
    ) -> None:
        super().__init__(weight=weight, pos_weight=pos_weight, **options)


class BinaryFocalLoss(SigmoidLoss):
    r"""Sigmoid focal loss :math:`-t\,\alpha (1 - p)^\gamma \log p - (1 - t)(1 - \alpha) p^\gamma \log(1 - p)`.

    Args:
        gamma: exponent >= 0 (Lin et al. 2017).
        alpha: weight of the positives, 1 - alpha for negatives; None for no weighting; detection uses 0.25.
        options: see the top of the module.

    >>> import torch
    >>> BinaryFocalLoss(alpha=0.25)(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    tensor(0.0866)
    """

    def __init__(self, gamma: Gamma = 2.0, *, alpha: Number | None = None, **options: Unpack[SigmoidOptions]) -> None:
        super().__init__(focal(gamma), alpha=alpha, **options)


class AsymmetricLoss(SigmoidLoss):
    r"""Asymmetric loss for multi-label data (Ridnik et al. 2021): stronger focusing and a margin for negatives.

    .. math::
        L = -t (1 - p)^{g_{pos}} \log p - (1 - t)\, p_m^{g_{neg}} \log(1 - p_m), \qquad p_m = \max(p - \text{margin}, 0)

    Args:
        gamma_pos: exponent of the positives.
        gamma_neg: exponent of the negatives; the initial value if ``target_gap`` is set.
        margin: negatives with a probability below this value are ignored; the initial value if ``margin_step`` is set.
        detach_focus: stop the gradient through the focusing factors, False by default.
        target_gap: adapt gamma_neg towards this probability gap, see ``AdaptiveAsymmetry``; ``sync`` is then True by
            default.
        gap_step: step size of the adaptation; 0 keeps gamma_neg.
        gamma_max: upper bound of gamma_neg.
        per_class: one exponent per label.
        margin_step: with ``target_gap``, adapt the margin in the same way with this step size; None keeps it.
        margin_max: upper bound of the margin.
        preset: ``"published"`` sets ``detach_focus=True`` and ``reduction="sum"``.
        options: see the top of the module; ``reduction`` is ``"batch_mean"`` by default, the sum over labels averaged
            over the batch, and ``sync`` is True when gamma_neg is adaptive, so that all processes use the same value.

    >>> import torch
    >>> AsymmetricLoss()(torch.tensor([[2.0, 0.5, -4.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    tensor(0.2182)
    """

    option_defaults: ClassVar[SigmoidOptions] = {"reduction": "batch_mean", "sync": False}

    def __init__(
        self,
        gamma_pos: Gamma = 0.0,
        *,
        gamma_neg: Gamma = 4.0,
        margin: Number = 0.05,
        detach_focus: bool | None = None,
        target_gap: float | None = None,
        gap_step: float = 0.01,
        gamma_max: float = 10.0,
        per_class: bool = False,
        margin_step: float | None = None,
        margin_max: float = 0.5,
        preset: str | None = None,
        **options: Unpack[SigmoidOptions],
    ) -> None:
        published = check_preset(preset)
        if published:
            options.setdefault("reduction", "sum")
        if target_gap is not None:
            options.setdefault("sync", True)
        options = self.option_defaults | options
        if target_gap is None:
            if margin_step is not None:
                raise ValueError(f"margin_step must be None without target_gap, got {margin_step!r}; set target_gap")
            asymmetry, modulation = None, asymmetric(gamma_pos, gamma_neg)
        else:
            start = check_number("gamma_neg", gamma_neg, low=0.0)  # type: ignore[arg-type]
            modulation = Modulation(gamma_pos)  # type: ignore[arg-type]
            asymmetry = AdaptiveAsymmetry(
                target_gap,
                start=start,
                gap_step=gap_step,
                gamma_max=gamma_max,
                per_class=per_class,
                margin=0.0 if margin_step is None else check_number("margin", margin, low=0.0),  # type: ignore[arg-type]
                margin_step=margin_step,
                margin_max=margin_max,
            )
            margin = margin if margin_step is None else 0.0
        super().__init__(
            modulation,
            margin=margin,
            detach_focus=published if detach_focus is None else detach_focus,
            asymmetry=asymmetry,
            **options,
        )


class DistributionBalancedLoss(SigmoidLoss):
    r"""Distribution-balanced loss for long-tailed multi-label data (Wu et al. 2020).

    Binary focal loss with a factor ``balance``, elements weighted by :math:`\sigma(\beta (r - \mu)) + \alpha`
    (``weights.Rebalanced``), a bias :math:`-b \log(N / n_k - 1) / s` on the logits, and negatives whose logits are
    multiplied by s and whose loss is divided by it.

    Args:
        counts: positives of each label in the training data.
        num_samples: N, number of samples in the training data.
        alpha: lower bound of the weights.
        beta: steepness of the weights.
        mu: midpoint of the weights.
        neg_scale: s, factor on the logits of negatives.
        init_bias: b.
        gamma: focal exponent.
        balance: factor on the whole loss.
        options: see the top of the module.
    """

    def __init__(
        self,
        counts: Sequence[float] | Tensor,
        num_samples: float,
        *,
        alpha: Number = 0.1,
        beta: Number = 10.0,
        mu: Number = 0.2,
        neg_scale: float = 2.0,
        init_bias: float = 0.05,
        gamma: Gamma = 2.0,
        balance: Number = 2.0,
        **options: Unpack[SigmoidOptions],
    ) -> None:
        known, bias = distribution_bias(counts, num_samples, init_bias, neg_scale)
        options["weight"] = _times(Scalar("weight", balance, absent=1.0), options.get("weight"))
        super().__init__(
            focal(gamma),
            adjustment=NegativeTolerance(offset=bias, neg_scale=neg_scale, called="counts"),
            rebalanced=Rebalanced(known, alpha, beta, mu),
            **options,
        )


def distribution_bias(
    counts: Sequence[float] | Tensor, num_samples: float, init_bias: float, neg_scale: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    r"""Checked counts, and the bias :math:`-b \log(N / n_k - 1) / s` of each label."""
    known = check_counts("counts", counts)
    check_number("num_samples", num_samples, low=max(1.0, *known), open_low=True)
    check_number("init_bias", init_bias)
    check_number("neg_scale", neg_scale, low=0.0, open_low=True)
    return known, tuple(-init_bias / neg_scale * math.log(num_samples / max(count, 1.0) - 1.0) for count in known)
