"""Weight initialisation."""

from __future__ import annotations

from torch import nn

__all__ = ["he_initialize"]


def he_initialize(module: nn.Module) -> None:
    r"""He normal weights :math:`\mathcal N(0, 2 / \text{fan\_out})` and no bias for every convolution in ``module``.

    He et al. 2015 (Delving deep into rectifiers), eq. 14, for the backward pass, as in published residual networks.
    All other layers keep the initialisation of PyTorch: identity for batch norms, uniform for linear layers.
    """
    for part in module.modules():
        if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
