"""The probability that a model gives to what is true: of each class, and of positive and negative labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

__all__ = ["ProbabilityGap", "TruthProbability"]


class ProbabilityGap(Metric):
    r"""Mean probability of what is true: of positives minus that of negatives (Ridnik et al. 2021, eq. 9, fig. 4).

    :math:`\Delta p = \bar p_t^+ - \bar p_t^-` with :math:`p_t = p` for a positive and :math:`1 - p` for a negative.
    Below 0 the loss learns the negatives better. Unknown labels, -1, do not count.

    Shape: logits (N, C) and targets of the same shape.

    >>> gap = ProbabilityGap()
    >>> gap.update(torch.tensor([[0.0, -9e9]]), torch.tensor([[1.0, 0.0]]))
    >>> gap.compute()["gap"]
    tensor(-0.5000, dtype=torch.float64)
    """

    full_state_update = False
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(4, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        p = logits.detach().double().sigmoid()
        positive, negative = (targets == 1).double(), (targets == 0).double()
        parts = [(p * positive).sum(), positive.sum(), ((1 - p) * negative).sum(), negative.sum()]
        self.sums = self.sums + torch.stack(parts)

    def compute(self) -> dict[str, Tensor]:
        """``gap`` and its sides ``positive`` and ``negative``; NaN where one is missing."""
        of_positives, positives, of_negatives, negatives = self.sums
        positive, negative = of_positives / positives, of_negatives / negatives
        return {"gap": positive - negative, "positive": positive, "negative": negative}


class TruthProbability(Metric):
    r"""Mean probability that the samples of each class get for it, :math:`\frac{1}{n_c} \sum_{i: y_i = c} p_{i, c}`.

    One minus it is the mean weight of focal loss with :math:`\gamma = 1` (Tian et al. 2021, appendix A.1).

    Args:
        num_classes: C.
        ignore_index: target that does not count.

    Shape: logits (N, C) and targets (N,); result (C,), NaN for a class without samples.

    >>> metric = TruthProbability(3)
    >>> metric.update(torch.tensor([[0.0, 0.0, -9e9], [9e9, 0.0, 0.0]]), torch.tensor([1, 0]))
    >>> metric.compute()
    tensor([1.0000, 0.5000,    nan], dtype=torch.float64)
    """

    full_state_update = False
    sums: Tensor

    def __init__(self, num_classes: int, ignore_index: int = -100) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.add_state("sums", torch.zeros(2, num_classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        counted = targets != self.ignore_index
        labels = targets.where(counted, 0).long()
        p = logits.detach().double().softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
        self.sums = self.sums.index_add(1, labels, torch.stack([p * counted, counted.double()]))

    def compute(self) -> Tensor:
        """The means."""
        total, count = self.sums
        means: Tensor = total / count
        return means
