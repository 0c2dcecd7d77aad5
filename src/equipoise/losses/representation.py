"""Losses of embeddings, based on the distances between samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise._checks import INDICES, check_ignore_index, check_number, check_tensors, check_whole

__all__ = ["LiftedStructureLoss", "RangeLoss"]


class LiftedStructureLoss(nn.Module):
    r"""Lifted structured embedding (Oh Song et al. 2016, eq. 4): each positive pair against all negatives of both ends.

    .. math::
        L = \frac{1}{2 |P|} \sum_{(i, j) \in P} \max(0, J_{ij})^2, \quad
        J_{ij} = d_{ij} + \log\Big(\sum_{k: y_k \ne y_i} e^{\alpha - d_{ik}} + \sum_{k: y_k \ne y_j} e^{\alpha - d_{jk}}
        \Big)

    with Euclidean distances d and P the pairs of samples of the same class. Without pairs or without negatives the loss
    is 0, attached to the graph.

    Args:
        margin: alpha.
        ignore_index: label of samples that do not count.

    Shape: embeddings (N, D), labels (N,); result a scalar.

    >>> points = torch.tensor([[0.0], [1.0], [3.0]])
    >>> LiftedStructureLoss()(points, torch.tensor([0, 0, 1]))
    tensor(0.0491)
    """

    def __init__(self, margin: float = 1.0, *, ignore_index: int = -100) -> None:
        super().__init__()
        self.margin, self.ignore_index = check_number("margin", margin), check_ignore_index(ignore_index)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Mean over the positive pairs."""
        wide, same, different = _pairs(embeddings, labels, self.ignore_index)
        distances = _distances(wide)
        reach = torch.where(different, self.margin - distances, -torch.inf).logsumexp(1)
        hopeless = torch.isinf(reach)  # no negative
        reach = torch.where(hopeless, 0.0, reach)
        pairs = same.triu(1) & ~hopeless.unsqueeze(1) & ~hopeless
        terms = distances + torch.logaddexp(reach.unsqueeze(1), reach)
        return torch.where(pairs, terms.clamp_min(0.0) ** 2, 0.0).sum() / (2 * pairs.sum().clamp_min(1))

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"margin={self.margin}"


class RangeLoss(nn.Module):
    r"""Range loss for long-tailed data (Zhang et al. 2017): small intra-class ranges, large distances between centres.

    .. math::
        L = \alpha \sum_c \frac{k}{\sum_{j=1}^k 1 / D_j^{(c)}} + \beta \max(0, m - \min_{c \ne c'} \|\bar x_c - \bar
        x_{c'}\|^2)

    :math:`D_j^{(c)}` are the k largest squared distances within class c in the batch (all, if it has fewer pairs).
    Their harmonic mean depends little on the number of samples. :math:`\bar x_c` is the mean of class c in the batch.
    Classes with one sample have no range, and a batch with one class has no distance between centres.

    Args:
        k: number of largest distances per class.
        margin: m, on the squared distance; it depends on the scale of the embeddings.
        intra: alpha.
        inter: beta.
        ignore_index: label of samples that do not count.

    Shape: embeddings (N, D), labels (N,); result a scalar.

    >>> points = torch.tensor([[0.0], [1.0], [3.0]])
    >>> RangeLoss(margin=10.0)(points, torch.tensor([0, 0, 1]))  # 1 + (10 - 2.5^2)
    tensor(4.7500)
    """

    def __init__(
        self,
        k: int = 2,
        *,
        margin: float = 5.0,
        intra: float = 1.0,
        inter: float = 1.0,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        self.k, self.ignore_index = check_whole("k", k, low=1), check_ignore_index(ignore_index)
        self.margin = check_number("margin", margin, low=0.0)
        self.intra, self.inter = check_number("intra", intra, low=0.0), check_number("inter", inter, low=0.0)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Sum of both terms."""
        wide, same, different = _pairs(embeddings, labels, self.ignore_index)
        leads = ~same.tril(-1).any(1) & same.diagonal()  # each class is represented by its first sample
        return self.intra * self._ranges(wide, same, leads) + self.inter * self._nearness(wide, same, leads, different)

    def _ranges(self, rows: Tensor, same: Tensor, leads: Tensor) -> Tensor:
        squares = _distances(rows) ** 2
        # the k largest of a class are among the k largest of each of its samples; pairs are counted at their first one
        mine = torch.where(same.triu(1), squares, -1.0).topk(min(self.k, len(rows)), dim=1).values
        theirs = torch.where(same.unsqueeze(2), mine, -1.0).flatten(1)  # (N, N k)
        largest = theirs.topk(min(self.k, theirs.shape[1]), dim=1).values
        real, positive = largest >= 0, largest > 0
        inverse = torch.where(positive, 1.0 / torch.where(positive, largest, 1.0), 0.0).sum(1)
        ranged = leads & real.any(1) & (positive == real).all(1)  # equal samples: a harmonic mean with a 0 is 0
        means = real.sum(1) / torch.where(ranged, inverse, 1.0)
        return torch.where(ranged, means, 0.0).sum()

    def _nearness(self, rows: Tensor, same: Tensor, leads: Tensor, different: Tensor) -> Tensor:
        with torch.autocast(rows.device.type, enabled=False):  # autocast would multiply in half precision
            centres = same.to(rows.dtype) @ rows / same.sum(1, keepdim=True).clamp_min(1)
        apart = torch.where(different & leads.unsqueeze(1) & leads, _distances(centres) ** 2, torch.inf)
        nearest = apart.flatten().min() if apart.numel() else apart.sum() + torch.inf
        gap = (self.margin - nearest).clamp_min(0.0)
        return torch.where(torch.isinf(nearest), 0.0, gap)

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        return f"k={self.k}, margin={self.margin}, intra={self.intra}, inter={self.inter}"


def _pairs(embeddings: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings in at least float32, and masks (N, N) of the pairs of one class and of different classes."""
    check_tensors(embeddings, labels, ("embeddings", "labels"))
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise ValueError(
            f"embeddings must be floating point of shape (N, D), got {embeddings.dtype} of shape "
            f"{tuple(embeddings.shape)}; pass the features before the classifier"
        )
    if labels.shape != embeddings.shape[:1] or labels.dtype not in INDICES:
        raise ValueError(
            f"labels must be integers of shape ({len(embeddings)},), one class per embedding, got {labels.dtype} "
            f"of shape {tuple(labels.shape)}; pass the class indices"
        )
    labels = labels.long()
    valid = labels != ignore_index
    both = valid.unsqueeze(1) & valid
    same = labels.unsqueeze(1) == labels
    wide = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    # without the replacement, NaN would propagate through the gradient of masked entries
    return torch.where(valid.unsqueeze(1), wide, 0.0), both & same, both & ~same


def _distances(rows: Tensor) -> Tensor:
    """Euclidean distances of all pairs, (N, N); exactly 0 with gradient 0 for equal rows."""
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
