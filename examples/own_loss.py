"""A loss of your own in ``equipoise train`` and ``equipoise compare``: any ``nn.Module`` of logits and targets.

``FILE.py:NAME`` names a class, or a function that returns such a module. Known arguments are passed if the signature
has them: ``num_classes``, ``counts`` (training samples per class), ``num_samples``, ``epochs``, ``ignore_index``,
``sync``. All others are options, ``NAME(epsilon=2)``; from candidates, ``[1, 2]``, validation data
select one. A method
``set_epoch(epoch)``, if defined, is called before each epoch.

    equipoise compare --data digits-lt --model mlp --losses 'ce focal examples/own_loss.py:PolyLoss(epsilon=[1, 2])'
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PolyLoss(nn.Module):
    """Poly-1 loss of Leng et al. 2022 (PolyLoss), -log p_y + epsilon (1 - p_y), for single-label data or pixels.

    Args:
        epsilon: by how much the first term of the series of the cross-entropy is raised; 0 is cross-entropy.
        ignore_index: label to ignore.
    """

    def __init__(self, epsilon: float = 1.0, ignore_index: int = -100) -> None:
        super().__init__()
        self.epsilon, self.ignore_index = epsilon, ignore_index

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over the labelled rows."""
        nll = F.cross_entropy(logits.float(), targets, ignore_index=self.ignore_index, reduction="none")
        valid = targets != self.ignore_index
        return (nll + self.epsilon * (1.0 - (-nll).exp()))[valid].mean()
