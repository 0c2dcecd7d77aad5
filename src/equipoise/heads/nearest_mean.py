"""The nearest class mean (Kang et al. 2020): a classifier that is not trained."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import check_choice
from equipoise.heads.features import KeptFeatures, as_rows, check_kept, from_rows

__all__ = ["NearestClassMean"]


class NearestClassMean(nn.Module):
    r"""Classifies by the nearest class mean (Kang et al. 2020, section 4.1); created by :meth:`fit`.

    Scores are :math:`-\|t(x) - m_c\|^2` or :math:`\cos(t(x), m_c)`, with :math:`m_c` the mean of :math:`t(x)` over the
    class. They rank the classes, but their softmax is not a calibrated probability. A class without samples gets the
    minimum score of the row minus 1, so that it is never predicted and every score is finite.

    Args:
        means: :math:`m_c`, (C, D); NaN in the row of a class without samples.
        centre: (D,), subtracted by t before the division by the length; None for no centring.
        distance: ``"euclidean"`` or ``"cosine"``.
        unit: whether t divides by the length.
        dim: dimension of the features: -1, or -3 for maps (N, D, h, w).

    Shape: (..., D, ...) to (..., C, ...).

    >>> head = NearestClassMean(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), unit=False)
    >>> head(torch.tensor([[0.0, 2.0], [2.0, 1.0]]))
    tensor([[ 0., -8.],
            [-5., -1.]])
    """

    means: Tensor
    centre: Tensor
    present: Tensor

    def __init__(
        self,
        means: Tensor,
        *,
        centre: Tensor | None = None,
        distance: str = "euclidean",
        unit: bool = True,
        dim: int = -1,
    ) -> None:
        super().__init__()
        check_choice("distance", distance, ("euclidean", "cosine"))
        if means.ndim != 2 or not means.is_floating_point():
            raise ValueError(
                f"means must be a floating point matrix (C, D), got {means.dtype} of shape {tuple(means.shape)}; "
                "use NearestClassMean.fit(kept)"
            )
        self.distance, self.unit, self.dim = distance, unit, dim
        self.out_features, self.in_features = means.shape
        self.register_buffer("means", means.nan_to_num(0.0))
        self.register_buffer("present", ~means.isnan().any(1))
        self.register_buffer("centre", torch.zeros_like(means[0]) if centre is None else centre)

    @classmethod
    def fit(cls, kept: KeptFeatures, *, distance: str = "euclidean", transform: str = "centred") -> Self:
        """Compute the class means.

        Args:
            kept: features of the training data, from :func:`keep_features`.
            distance: ``"euclidean"`` or ``"cosine"``.
            transform: ``"centred"`` (subtract the mean over all samples, then normalise to length 1; the published
                default), ``"unit"`` (normalise to length 1) or ``"none"``.

        >>> from equipoise.heads import keep_features
        >>> from equipoise.models import MLP, replace_classifier
        >>> model = MLP(4, 3)  # trained
        >>> kept = keep_features(model, [(torch.randn(64, 4), torch.arange(64) % 3)])
        >>> old = replace_classifier(model, NearestClassMean.fit(kept))
        """
        check_kept(kept)
        check_choice("transform", transform, ("centred", "unit", "none"))
        centre = kept.features.mean(0) if transform == "centred" else torch.zeros_like(kept.features[0])
        unit = transform != "none"
        changed = KeptFeatures(_transformed(kept.features, centre, unit), kept.labels, kept.num_classes)
        return cls(changed.class_means(), centre=centre, distance=distance, unit=unit, dim=kept.dim)

    def forward(self, features: Tensor) -> Tensor:
        """Scores; the nearest class has the largest."""
        with torch.autocast(features.device.type, enabled=False):  # differences of squares cancel in half precision
            rows = _transformed(as_rows(features.to(self.means.dtype), self.dim), self.centre, self.unit)
            if self.distance == "cosine":
                scores = F.normalize(rows, dim=1) @ F.normalize(self.means, dim=1).T
            else:
                scores = 2.0 * (rows @ self.means.T) - (rows**2).sum(1, keepdim=True) - (self.means**2).sum(1)
            least = scores.amin(1, keepdim=True) - 1.0
        return from_rows(torch.where(self.present, scores, least), features, self.dim)

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"{self.in_features}, {self.out_features}, distance={self.distance!r}, unit={self.unit}, dim={self.dim}"


def _transformed(rows: Tensor, centre: Tensor, unit: bool) -> Tensor:
    return F.normalize(rows - centre, dim=1) if unit else rows
