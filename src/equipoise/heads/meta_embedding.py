"""Open long-tailed recognition, OLTR (Liu et al. 2019): features enriched by a memory of class centroids.

Stage one trains a model as usual. Stage two replaces its classifier by a :class:`MetaEmbedding`::

    v (direct feature) ──┬─► query ─► softmax ─► × centroids = v_memory ─┐
                         ├─► selector ─► tanh = e ───────────────────────┤
                         └───────────────────────────────────────────────┴─► (10 / d) (v + e v_memory) ─► cosines

with d the distance of v to the nearest centroid: samples far from every class get low confidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import check_number, check_softmax_targets, check_whole
from equipoise.heads.features import KeptFeatures, as_rows, check_kept, features_dim, from_rows
from equipoise.models.classifier import find_classifier

__all__ = ["CentroidMemory", "MetaEmbedding", "open_set_prediction"]


class CentroidMemory(nn.Module):
    r"""The memory: one centroid per class, trained with its own loss (Liu et al. 2019, section 3.2).

    .. math::
        L = \frac{1}{2 N} \sum_i \|v_i - c_{y_i}\|^2
            + \lambda \max\Big(0, m - \frac{1}{N C} \sum_i \sum_{j \ne y_i} \|v_i - c_j\|^2\Big)

    It pulls features to their centroids and pushes other centroids away. As in the published code the gradient
    of the first term to the centroid of class j is divided by :math:`1 + n_j`, the samples of j in the batch, so that
    frequent classes do not change faster. In the paper this loss is multiplied by .01 and added to that of the logits.

    Args:
        in_features: D.
        num_classes: C.
        margin: m, on the mean squared distance.
        repel: lambda.
        dim: dimension of the features: -1, or -3 for maps (N, D, h, w).
        ignore_index: label to ignore.

    Shape: features (N, D, ...) and labels (N, ...) to a scalar.

    >>> memory = CentroidMemory(2, 2)
    >>> memory.fill(torch.tensor([[0.0, 0.0], [10.0, 0.0]]))
    >>> memory(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor(0.5000, grad_fn=<AddBackward0>)
    """

    filled: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        margin: float = 10.0,
        repel: float = 0.01,
        dim: int = -1,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        check_whole("in_features", in_features, low=1)
        check_whole("num_classes", num_classes, low=1)
        self.margin = check_number("margin", margin, low=0.0)
        self.repel = check_number("repel", repel, low=0.0)
        self.dim, self.ignore_index = dim, ignore_index
        self.centroids = nn.Parameter(torch.zeros(num_classes, in_features))
        self.register_buffer("filled", torch.tensor(False))
        self._is_filled = False  # a copy on the host, so that reading it does not wait for a device

    @torch.no_grad()
    def fill(self, centroids: Tensor) -> None:
        """Initialise the centroids, (C, D), with the mean features of the classes after stage one.

        A class without samples (a row of NaN) starts at the mean of the others.
        """
        if centroids.shape != self.centroids.shape:
            raise ValueError(
                f"centroids must have shape (C, D) = {tuple(self.centroids.shape)}, got {tuple(centroids.shape)}; "
                "create the memory with the in_features and num_classes of the data"
            )
        known = ~centroids.isnan().any(1, keepdim=True)
        if not bool(known.any()) or not bool(torch.isfinite(centroids[known.squeeze(1)]).all()):
            raise ValueError("centroids must be finite for at least one class, got none; check the features")
        self.centroids.copy_(torch.where(known, centroids, centroids.nanmean(0)))
        self.filled.fill_(True)
        self._is_filled = True

    def stored(self) -> Tensor:
        """The centroids, (C, D)."""
        if not self._is_filled:
            raise RuntimeError(
                "the memory must be filled with the class means of stage one before stage two, got an empty one; "
                "create the head with MetaEmbedding.after(model, kept), or load the state of stage two"
            )
        return self.centroids

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The loss of the memory."""
        centroids, rows, classes = self.stored(), as_rows(features, self.dim), labels.flatten()
        if len(rows) != len(classes) or rows.shape[1] != centroids.shape[1]:
            raise ValueError(
                f"features must be (N, {centroids.shape[1]}, ...) for labels (N, ...), got {tuple(features.shape)} and "
                f"{tuple(labels.shape)}; pass the inputs of the classifier, and label maps of that size"
            )
        with torch.autocast(rows.device.type, enabled=False):
            wide = torch.promote_types(torch.promote_types(rows.dtype, centroids.dtype), torch.float32)
            rows, centroids = rows.to(wide), centroids.to(wide)
            squares = (rows**2).sum(1, keepdim=True) + (centroids**2).sum(1) - 2.0 * rows @ centroids.T  # (N, C)
            check_softmax_targets(squares, classes, self.ignore_index, validate=False)
            classes = classes.long()
            valid = classes != self.ignore_index
            mine = classes.unsqueeze(1) == torch.arange(len(centroids), device=rows.device)  # (N, C)
            slow = 1.0 / (1.0 + mine.sum(0).unsqueeze(1))
            near = centroids * slow + (centroids * (1.0 - slow)).detach()  # the centroids, with a scaled gradient
            pull = ((rows - near[torch.where(valid, classes, 0)]) ** 2).sum(1)
            count = valid.sum().clamp_min(1)
            attract = torch.where(valid, pull, 0.0).sum() / (2 * count)
            apart = torch.where(mine | ~valid.unsqueeze(1), 0.0, squares).sum() / (count * len(centroids))
            return attract + self.repel * (self.margin - apart).clamp_min(0.0) * valid.any()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._is_filled = bool(self.filled)

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"{self.centroids.shape[1]}, {self.centroids.shape[0]}, margin={self.margin}, repel={self.repel}"


class MetaEmbedding(nn.Module):
    r"""The classifier of stage two (Liu et al. 2019, sections 3.1 and 3.2), which replaces that of stage one.

    .. math::
        v^{meta} = \frac{10}{d} (v + e \otimes v^{memory}), \quad
        v^{memory} = \mathrm{softmax}(Q v)^\top M, \quad
        e = \tanh(S v), \quad d = \min_c \|v - c\|

    and logits :math:`16 \cos(v^{meta}, W_c) \|v^{meta}\| / (1 + \|v^{meta}\|)`. The centroids M are trained by
    :class:`CentroidMemory` only: no gradient of the logits reaches them, as published. The attention inside the
    backbone is :class:`equipoise.heads.ModulatedAttention`.

    Args:
        in_features: D.
        num_classes: C.
        scale: of the cosines.
        reach: distance to the nearest centroid at which the length of features is unchanged, 10.
        dim: dimension of the features: -1, or -3 for maps (N, D, h, w).
        ignore_index: of the memory's loss.

    Shape: (N, D, ...) to (N, C, ...).

    Two stages with any model, and any loss of logits (cross-entropy, focal, asymmetric, cyclical):

    >>> from equipoise import CyclicalFocalLoss
    >>> from equipoise.heads import keep_features
    >>> from equipoise.models import MLP, features_of, replace_classifier
    >>> inputs, labels = torch.randn(32, 4), torch.arange(32) % 3
    >>> model = MLP(4, 3)  # stage one: trained
    >>> head = MetaEmbedding.after(model, keep_features(model, [(inputs, labels)]))
    >>> old = replace_classifier(model, head)
    >>> view, loss = features_of(model), CyclicalFocalLoss(epochs=30)
    >>> loss.set_epoch(0)
    >>> features, logits = view(inputs)  # stage two
    >>> (loss(logits, labels) + 0.01 * head.memory(features, labels)).backward()
    >>> open_set_prediction(logits, threshold=0.1).shape
    torch.Size([32])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        scale: float = 16.0,
        reach: float = 10.0,
        dim: int = -1,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        self.scale = check_number("scale", scale, low=0.0, open_low=True)
        self.reach = check_number("reach", reach, low=0.0, open_low=True)
        self.in_features, self.out_features, self.dim = in_features, num_classes, dim
        self.memory = CentroidMemory(in_features, num_classes, dim=dim, ignore_index=ignore_index)
        self.query = nn.Linear(in_features, num_classes)
        self.selector = nn.Linear(in_features, in_features)
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise like a linear layer; the memory is not modified."""
        self.query.reset_parameters()
        self.selector.reset_parameters()
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    @classmethod
    def after(cls, model: nn.Module, kept: KeptFeatures, *, name: str | None = None, **options: Any) -> Self:  # noqa: ANN401
        """The head of stage two after stage one: centroids are class means, the query is its classifier.

        Args:
            model: trained in stage one; it is not modified.
            kept: features of its training data, from :func:`keep_features`.
            name: qualified name of the classifier if it is not found.
            options: see the class.
        """
        check_kept(kept)
        classifier = find_classifier(model, name)
        if isinstance(classifier.module, MetaEmbedding):
            raise ValueError(
                f"model must be from stage one, got one whose classifier {classifier.name!r} is a MetaEmbedding; "
                "continue training it without this call"
            )
        kept.check_classifier(classifier)
        head = cls(classifier.in_features, classifier.num_classes, dim=features_dim(classifier), **options)
        weight, bias = getattr(classifier.module, "weight", None), getattr(classifier.module, "bias", None)
        if not isinstance(weight, Tensor) or weight.flatten(1).shape != head.query.weight.shape:
            raise TypeError(
                f"the classifier {classifier.name!r} of stage one must have a weight (C, D), got "
                f"{type(classifier.module).__name__}; use a linear classifier in stage one"
            )
        head.to(weight.device, weight.dtype)
        with torch.no_grad():
            head.query.weight.copy_(weight.flatten(1))
            head.query.bias.copy_(torch.zeros_like(head.query.bias) if bias is None else bias)
        head.memory.fill(kept.class_means().to(weight.device, weight.dtype))
        return head.train(model.training)

    def forward(self, features: Tensor) -> Tensor:
        """Logits."""
        direct, centroids = as_rows(features, self.dim), self.memory.stored().detach()
        recalled = self.query(direct).softmax(1).to(centroids.dtype) @ centroids
        meta = direct + self.selector(direct).tanh() * recalled
        wide = torch.promote_types(meta.dtype, torch.float32)
        with torch.autocast(features.device.type, enabled=False):
            nearest = torch.cdist(direct.to(wide), centroids.to(wide)).amin(1, keepdim=True)
            meta = meta.to(wide)
            # |r m| / (1 + |r m|) times the direction of m, for r = reach / nearest: no division by a distance
            length = torch.linalg.vector_norm(meta, dim=1, keepdim=True) + nearest / self.reach
            squashed = meta / torch.where(length > 0, length, 1.0)
            logits = self.scale * F.linear(squashed, F.normalize(self.weight.to(wide), dim=1))
        return from_rows(logits.to(centroids.dtype), features, self.dim)

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"{self.in_features}, {self.out_features}, scale={self.scale}, reach={self.reach}, dim={self.dim}"


def open_set_prediction(logits: Tensor, *, threshold: float = 0.1, unknown: int = -1) -> Tensor:
    """The most probable class, or ``unknown`` if its probability is below the threshold (Liu et al. 2019).

    ``equipoise.metrics.OpenSetScores`` scores this decision.

    Shape: logits (N, C, ...); result (N, ...) of int64.

    >>> open_set_prediction(torch.tensor([[4.0, 0.0], [0.1, 0.0]]), threshold=0.6)
    tensor([ 0, -1])
    """
    check_number("threshold", threshold, low=0.0, high=1.0)
    if logits.ndim < 2 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floating point of shape (N, C, ...), got {logits.dtype} of shape {tuple(logits.shape)}; "
            "pass the logits of the model"
        )
    confidence, best = logits.softmax(1).max(1)
    return torch.where(confidence >= threshold, best, unknown)
