"""Cosine classifiers, whose logits do not depend on the norms of features and weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise._checks import check_number, check_whole
from equipoise.heads.rebalanced import linear_weight
from equipoise.models.classifier import find_classifier, replace_classifier

__all__ = ["CosineClassifier", "normalize_classifier"]

TINY = 1e-12
"""Vectors with a smaller norm are treated as zero."""


class CosineClassifier(nn.Module):
    r"""Logits :math:`s \, x \cdot W_c / (\|x\| \|W_c\|)`: independent of weight norms.

    Small weight norms do not penalise rare classes (Cao et al. 2019). A zero vector has cosine 0 with everything. Half
    precision is computed in float32, also under autocast: the margins of LDAM are only a few units in the last place.

    Apply the scale only once. ``LDAMLoss`` has its own scale, 30, for logits and margins: keep s = 1 when training with
    it. Losses without a scale need one here, 16 to 30, because cosines alone are too close together for a softmax.
    After a training with LDAM, ``classifier.scale.fill_(30.0)`` makes the logits those of the loss without its margins,
    so that their softmax is meaningful.

    Args:
        in_features: D.
        num_classes: C.
        scale: s, a buffer.
        dim: dimension of the features: -1, or -3 for maps (N, D, h, w).
        device: of the weight.
        dtype: of the weight.

    Shape: (..., D, ...) to (..., C, ...), D and C at ``dim``.

    >>> head = CosineClassifier(8, 3)
    >>> features = torch.randn(4, 8)
    >>> torch.allclose(head(features), head(100 * features))
    True
    """

    scale: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        scale: float = 1.0,
        dim: int = -1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_whole("in_features", in_features, low=1)
        check_whole("num_classes", num_classes, low=1)
        check_number("scale", scale, low=0.0, open_low=True)
        self.in_features, self.out_features, self.dim = in_features, num_classes, dim
        self.weight = nn.Parameter(torch.empty(num_classes, in_features, device=device, dtype=dtype))
        self.register_buffer("scale", torch.tensor(float(scale), device=device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise rows to random unit vectors, as published."""
        self.weight.copy_(_directions(nn.init.uniform_(self.weight, -1.0, 1.0)))

    def forward(self, features: Tensor) -> Tensor:
        """Scaled cosines, in the dtype of the weight."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.autocast(features.device.type, enabled=False):
            directions = _directions(features.to(wide).movedim(self.dim, -1))
            cosines = F.linear(directions, _directions(self.weight.to(wide))).movedim(-1, self.dim)
        return (self.scale * cosines).to(self.weight.dtype)

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"{self.in_features}, {self.out_features}, dim={self.dim}"


def normalize_classifier(model: nn.Module, *, scale: float = 1.0, name: str | None = None) -> CosineClassifier:
    """Replace the classifier of ``model`` by a cosine classifier, and return it.

    It has the sizes, the device and the dtype of the old one, and starts with the directions of its rows; a bias is
    dropped. The model is modified in place: create the optimiser afterwards.

    Args:
        model: any module whose classifier is a linear layer or a 1x1 convolution.
        scale: see :class:`CosineClassifier`; 1 for ``LDAMLoss``, which has its own scale.
        name: qualified name of the classifier if it is not found.

    LDAM-DRW with any model:

    >>> from equipoise import LDAMLoss
    >>> from equipoise.models import MLP
    >>> from equipoise.weights import Deferred, effective_number
    >>> counts, model = [90, 9, 1], MLP(in_features=4, num_classes=3)
    >>> normalize_classifier(model)
    CosineClassifier(256, 3, dim=-1)
    >>> loss = LDAMLoss(counts, weight=Deferred(effective_number(counts), start=0.8), epochs=200)
    >>> loss.set_epoch(160)  # call it before each epoch; the weights start here
    >>> loss(model(torch.randn(8, 4)), torch.arange(8) % 3).backward()
    """
    classifier = find_classifier(model, name)
    weight = linear_weight(
        classifier, "select another with name=..., or install a CosineClassifier with replace_classifier"
    )
    cosine = CosineClassifier(
        classifier.in_features,
        classifier.num_classes,
        scale=scale,
        dim=1 - weight.ndim,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        rows = weight.flatten(1)
        cosine.weight.copy_(torch.where((rows != 0).any(1, keepdim=True), _directions(rows), cosine.weight))
    replace_classifier(model, cosine, classifier.name)
    return cosine


def _directions(vectors: Tensor) -> Tensor:
    """Vectors of length 1 along the last dimension; zero vectors are unchanged.

    ``F.normalize`` would multiply the gradient of a zero vector, such as features that are all cut by a ReLU, by 1e12.
    """
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norm > TINY, norm, 1.0)
