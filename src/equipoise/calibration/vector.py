r"""A factor and a bias per class: :math:`z'_c = w_c \log p_c + b_c` (after Guo et al. 2017, vector scaling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise._checks import check_number
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce, as_floats, column
from equipoise.calibration.inputs import blocks, join_notes, missing, single_rows
from equipoise.calibration.linear import minimise, residual, standardise

__all__ = ["VectorScaling", "fit_vector"]


@dataclass(frozen=True, repr=False)
class VectorScaling(Fitted):
    r""":math:`z'_c = w_c \log p_c + b_c` with :math:`p = \text{softmax}(z)`. May change predictions.

    Like the softmax it is invariant to a constant that is added to all logits of a row. With ``log_probs=False`` it is
    :math:`w_c z_c + b_c` of the raw logits, which is not: the default for files without the field.

    >>> VectorScaling((1.0, 1.0), (0.0, -1.0))(torch.tensor([[0.0, 0.0]]))
    tensor([[-0.6931, -1.6931]])
    """

    kind: ClassVar[str] = "vector"

    weight: tuple[float, ...]
    bias: tuple[float, ...]
    log_probs: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        weight, bias = as_floats("weight", self.weight), as_floats("bias", self.bias)
        if len(weight) != len(bias):
            raise ValueError(
                f"bias must have one number for each of the {len(self.weight)} classes, got {len(self.bias)}; fit again"
            )
        if not isinstance(self.log_probs, bool):
            raise TypeError(f"log_probs must be a bool, got {self.log_probs!r}; omit it")
        self._set(weight=weight, bias=bias, num_classes=len(weight))

    def _apply(self, logits: Tensor) -> Tensor:
        logits = logits.log_softmax(1) if self.log_probs else logits
        return logits * column(self.weight, logits) + column(self.bias, logits)

    def describe(self) -> str:
        """One-line description."""
        spread = f"factors {min(self.weight):.3g} to {max(self.weight):.3g}"
        return f"vector scaling, {spread}, biases {min(self.bias):.3g} to {max(self.bias):.3g}{self._origin()}"


@checks_keywords
def fit_vector(logits: Tensor, targets: Tensor, *, shrinkage: float = 1.0, ignore_index: int = -100) -> VectorScaling:
    r"""Vector scaling by maximum likelihood, shrunk towards the common temperature. May change predictions.

    With :math:`x = \log p / T`, T of :func:`~equipoise.calibration.fit_temperature`, and m, s the mean and standard
    deviation of each class's x, it minimises :math:`\sum_i \text{NLL}_i + \frac{\lambda}{2} \sum_c (u_c^2 + d_c^2)` for
    the logits :math:`x_c + u_c (x_c - m_c) / s_c + d_c`: a class with few samples keeps the common temperature, and
    classes without samples are noted. The problem is convex and solved by L-BFGS in float64. The fit is invariant to a
    constant added to a row of logits.

    Args:
        logits: (N, C, d1, ..., dk).
        targets: class indices (N, d1, ..., dk).
        shrinkage: lambda, above 0.
        ignore_index: targets to ignore.

    >>> logits = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    >>> targets = (logits + torch.tensor([0.0, 0.0, 2.0])).argmax(1)  # the model underrates class 2
    >>> fit_vector(logits, targets).bias[2] > 1
    True
    """
    check_number("shrinkage", shrinkage, low=0.0, open_low=True)
    given = single_rows(logits, targets, ignore_index, likelihood=True)
    rows = given._replace(logits=given.logits.log_softmax(1))
    samples, classes = rows.logits.shape
    x = standardise(rows)

    def objective(parameters: Tensor) -> tuple[float, Tensor]:
        value, gradient = 0.5 * shrinkage * float(parameters.square().sum()), shrinkage * parameters
        for part in blocks(x.scaled):
            units = x.units[part]
            loss, pull = residual(x.scaled[part] + units * parameters[0] + parameters[1], rows.labels[part])
            value += loss
            gradient = gradient + torch.stack([(pull * units).sum(0), pull.sum(0)])
        return value / samples, gradient / samples

    minimum = minimise(objective, x.scaled.new_zeros(2, classes))
    change, shift = minimum.parameters
    weight = (1.0 + change / x.deviation) * x.slope
    bias = shift - change * x.mean / x.deviation
    few = f"{samples} rows for {2 * classes} parameters" if samples < 2 * classes else ""
    return announce(
        VectorScaling(
            tuple(weight.tolist()),
            tuple(bias.tolist()),
            samples=samples,
            converged=minimum.converged,
            note=join_notes(minimum.note, missing(rows.labels, classes), few, rows.note),
        )
    )
