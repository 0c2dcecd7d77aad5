"""Linear classifiers rebalanced after training (Kang et al. 2020, "Decoupling representation and classifier")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from equipoise._checks import check_number, check_softmax_targets
from equipoise.models.classifier import Classifier, check_sized

__all__ = [
    "LearnableWeightScaling",
    "LinearLayer",
    "TauChoice",
    "choose_tau",
    "copy_linear",
    "empty_linear",
    "linear_weight",
    "scaled_classifier",
    "tau_normalize",
    "tau_normalized",
]

LinearLayer: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""Layers that are supported as classifiers; a convolution must have size 1."""

TAUS = tuple(step / 10 for step in range(21))


def tau_normalize(weight: Tensor, tau: float) -> Tensor:
    r"""Tau-normalisation :math:`W_c / \|W_c\|^\tau` of each row of a classifier (Kang et al. 2020, eq. 3).

    Rows of rare classes have small norms; tau = 1 makes all norms equal, tau = 0 changes nothing. Drop the bias as the
    paper does, or keep it: ``features @ tau_normalize(weight, tau).T (+ bias)``. A row of zeros stays zero.

    Shape: ``weight`` (C, D); result the same.

    >>> tau_normalize(torch.tensor([[3.0, 4.0], [0.6, 0.8]]), tau=1.0)
    tensor([[0.6000, 0.8000],
            [0.6000, 0.8000]])
    """
    check_number("tau", tau, low=0.0)
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(
            f"weight must be a floating point matrix (C, D), got {weight.dtype} of shape {tuple(weight.shape)}; "
            "pass the weight of the linear classifier"
        )
    norm = weight.norm(dim=1, keepdim=True)
    return weight / torch.where(norm > 0, norm, 1.0).pow(tau)


@dataclass(frozen=True)
class TauChoice:
    """Result of :func:`choose_tau`: ``tau``, and the mean class accuracy of every candidate."""

    tau: float
    taus: tuple[float, ...]
    accuracies: tuple[float, ...]


@torch.no_grad()
def choose_tau(
    features: Tensor,
    targets: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    taus: Sequence[float] = TAUS,
    ignore_index: int = -100,
) -> TauChoice:
    """The tau with the best mean class accuracy on validation data (never the test set); the smallest in a tie.

    Args:
        features: inputs of the classifier, (N, D).
        targets: class indices (N,).
        weight: of the classifier, (C, D), or (C, D, 1, 1) of a 1x1 convolution.
        bias: (C,) to keep it, None to drop it as the paper does.
        taus: values to try.
        ignore_index: targets to ignore.

    >>> weight = torch.tensor([[4.0, 0.0], [0.0, 0.5]])  # a frequent and a rare class
    >>> features = torch.tensor([[1.0, 0.2], [0.3, 1.0]])
    >>> choose_tau(features, torch.tensor([0, 1]), weight, taus=(0.0, 0.5, 1.0)).tau
    0.5
    """
    tried = tuple(check_number("taus", tau, low=0.0) for tau in taus)
    if not tried:
        raise ValueError("taus must hold at least one value, got none; omit it for 0, 0.1, ..., 2")
    rows = weight.flatten(1) if weight.ndim > 1 and math.prod(weight.shape[2:]) == 1 else weight
    if features.ndim != 2 or rows.ndim != 2 or features.shape[1] != rows.shape[1]:
        raise ValueError(
            f"features must have shape (N, D) for a weight of shape (C, D), got {tuple(features.shape)} and "
            f"{tuple(weight.shape)}; pass the inputs of the linear classifier"
        )
    wide, rows = features.double(), rows.double()
    check_softmax_targets(wide @ rows.T, targets, ignore_index, validate=True)
    valid = targets != ignore_index
    labels = targets[valid].long()
    if not len(labels):
        raise ValueError("targets must hold at least one label, got none; pass validation data with labels")
    accuracies = []
    for tau in tried:
        logits = wide[valid] @ tau_normalize(rows, tau).T + (0.0 if bias is None else bias.double())
        accuracies.append(_mean_class_accuracy(logits.argmax(1), labels, len(weight)))
    best = max(range(len(tried)), key=lambda at: (accuracies[at], -tried[at]))
    return TauChoice(tried[best], tried, tuple(accuracies))


def tau_normalized(classifier: nn.Module, tau: float, *, keep_bias: bool = False) -> LinearLayer:
    r"""A copy of a classifier whose rows are :math:`W_c / \|W_c\|^\tau` (Kang et al. 2020, eq. 3).

    Choose tau by :func:`choose_tau` on validation data, never on the test set.

    Args:
        classifier: a linear layer or a 1x1 convolution; it is not modified.
        tau: 0 changes nothing, 1 makes the norms of all rows equal.
        keep_bias: keep the bias; False drops it as the paper does.

    >>> from equipoise.heads import choose_tau, keep_features
    >>> from equipoise.models import MLP, find_classifier, replace_classifier
    >>> model = MLP(4, 3)  # trained
    >>> classifier = find_classifier(model).module
    >>> kept = keep_features(model, [(torch.randn(30, 4), torch.arange(30) % 3)])  # of validation data
    >>> tau = choose_tau(kept.features, kept.labels, classifier.weight).tau
    >>> old = replace_classifier(model, tau_normalized(classifier, tau))
    """
    changed = copy_linear(classifier)
    with torch.no_grad():
        changed.weight.copy_(tau_normalize(changed.weight.flatten(1), tau).view_as(changed.weight))
    if not keep_bias:
        changed.bias = None
    return changed


def scaled_classifier(features: Tensor, weight: Tensor, scales: Tensor, *, bias: Tensor | None = None) -> Tensor:
    r"""Learnable weight scaling :math:`s_c (W_c x + b_c)` (Kang et al. 2020, eq. 5); only the scales are trained.

    The bias is scaled too, as in the published code.

    Shape: ``features`` (N, D), ``weight`` (C, D), ``scales`` and ``bias`` (C,); result (N, C).

    >>> scaled_classifier(torch.tensor([[1.0, 2.0]]), torch.eye(2), torch.tensor([1.0, 0.5]))
    tensor([[1., 1.]])
    """
    if scales.shape != weight.shape[:1]:
        raise ValueError(
            f"scales must have one number for each of the {len(weight)} classes, got shape {tuple(scales.shape)}; "
            "start with torch.ones(C)"
        )
    with torch.no_grad():
        logits = torch.nn.functional.linear(features, weight, bias)
    return logits * scales


class LearnableWeightScaling(nn.Module):
    r"""Learnable weight scaling, LWS: :math:`s_c (W_c x + b_c)` (Kang et al. 2020, eq. 5); only :math:`s` is trained.

    The bias is scaled too, as in the published code. All scales start at 1.

    Args:
        classifier: the linear layer or 1x1 convolution of a trained model; it is copied and frozen.

    Shape: that of the classifier.

    >>> from equipoise.heads import keep_features, retrain_classifier
    >>> from equipoise.models import MLP, find_classifier, replace_classifier
    >>> model = MLP(4, 3)  # trained
    >>> kept = keep_features(model, [(torch.randn(64, 4), torch.arange(64) % 3)])
    >>> head = LearnableWeightScaling(find_classifier(model).module)
    >>> _ = retrain_classifier(model, kept, head=head)
    >>> old = replace_classifier(model, head.merge())  # a linear layer again
    """

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = copy_linear(classifier).requires_grad_(False)
        weight = self.classifier.weight
        self.out_features, self.in_features, self.dim = weight.shape[0], weight.shape[1], 1 - weight.ndim
        self.scales = nn.Parameter(torch.ones(self.out_features, device=weight.device, dtype=weight.dtype))

    def forward(self, features: Tensor) -> Tensor:
        """Scaled logits."""
        logits: Tensor = self.classifier(features)
        return logits * self.scales.view(-1, *(1,) * (-self.dim - 1))

    @torch.no_grad()
    def merge(self) -> LinearLayer:
        """Return a plain classifier with the same logits."""
        plain = copy_linear(self.classifier)
        for parameter in plain.parameters():  # weight and bias
            parameter.mul_(self.scales.view(-1, *(1,) * (parameter.ndim - 1)))
        return plain


def copy_linear(classifier: nn.Module) -> LinearLayer:
    """A trainable copy of a linear layer or 1x1 convolution; raises for any other classifier.

    It is a new layer, so hooks and what they refer to, perhaps the whole model, are not copied.
    """
    new = empty_linear(classifier)
    with torch.no_grad():
        for name, parameter in new.named_parameters():  # weight and bias
            parameter.copy_(getattr(classifier, name))
    return new


def empty_linear(classifier: nn.Module, in_features: int | None = None) -> LinearLayer:
    """A layer of the same type, classes, device and dtype as another, for ``in_features`` features.

    Its parameters are uninitialised, so that the global random generators are not used.
    """
    problem = _no_linear_layer(Classifier("classifier", classifier))
    if problem:
        raise TypeError(
            f"classifier must be a linear layer or a 1x1 convolution, got {problem}; pass find_classifier(model).module"
        )
    kind: Any = next(kind for kind in get_args(LinearLayer) if isinstance(classifier, kind))
    weight: Tensor = classifier.weight  # type: ignore[assignment]
    sizes = (in_features or weight.shape[1], weight.shape[0], *((1,) if weight.ndim > 2 else ()))
    bias = getattr(classifier, "bias", None) is not None
    layer: LinearLayer = skip_init(kind, *sizes, bias=bias, device=weight.device, dtype=weight.dtype)  # type: ignore
    return layer


def linear_weight(classifier: Classifier, advice: str) -> Tensor:
    """The weight of a linear layer or 1x1 convolution, (C, D, 1, ...); raises for any other classifier."""
    problem = _no_linear_layer(classifier)
    if problem:
        raise ValueError(
            f"the classifier {classifier.name!r} must be a linear layer or a 1x1 convolution, got {problem}; {advice}"
        )
    weight: Tensor = classifier.module.weight  # type: ignore[assignment]
    return weight


def _no_linear_layer(classifier: Classifier) -> str:
    """Why a classifier is not supported; an empty string for a linear layer or a 1x1 convolution."""
    layer = classifier.module
    if not isinstance(layer, get_args(LinearLayer)):
        return type(layer).__name__
    check_sized(classifier)
    if layer.weight.numel() != classifier.num_classes * classifier.in_features:
        return f"{type(layer).__name__} with a weight of shape {tuple(layer.weight.shape)}"
    return ""


def _mean_class_accuracy(predicted: Tensor, labels: Tensor, num_classes: int) -> float:
    """Mean accuracy over the classes that occur."""
    support = torch.bincount(labels, minlength=num_classes)
    true_positives = torch.bincount(labels[predicted == labels], minlength=num_classes)
    present = support > 0
    recall = true_positives[present].double() / support[present]
    return math.fsum(recall.tolist()) / len(recall)
