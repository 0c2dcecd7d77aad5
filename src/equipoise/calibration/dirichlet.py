r"""Dirichlet calibration: a matrix and a bias on log-probabilities (Kull et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise._checks import check_number
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce, as_floats, column
from equipoise.calibration.inputs import LEAST, SingleRows, blocks, join_notes, missing, random_folds, single_rows
from equipoise.calibration.linear import Minimum, Standard, minimise, residual, standardise

__all__ = ["DirichletCalibration", "fit_dirichlet"]

# From "a temperature and one bias per class" to nearly unregularised; selected by cross-validation.
SHRINKAGES = (10_000.0, 1_000.0, 100.0, 10.0)
FOLDS = 3


@dataclass(frozen=True, repr=False)
class DirichletCalibration(Fitted):
    r""":math:`z' = W \log p + b` with :math:`p = \text{softmax}(z)`. Changes predictions, so accuracy may rise or fall.

    A class that is masked with -inf stays masked, and is treated as a probability of 1e-12 for the others.

    >>> DirichletCalibration(((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0))(torch.tensor([[0.0, 0.0]]))
    tensor([[-0.6931, -0.6931]])
    """

    kind: ClassVar[str] = "dirichlet"

    weight: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        bias = as_floats("bias", self.bias)
        weight = tuple(as_floats("weight", row) for row in self.weight)
        if {len(weight), *map(len, weight)} != {len(bias)}:
            raise ValueError(f"weight must be {len(bias)} rows of {len(bias)} numbers, got others; fit again")
        self._set(weight=weight, bias=bias, num_classes=len(bias))

    def _apply(self, logits: Tensor) -> Tensor:
        weight = torch.tensor(self.weight, dtype=logits.dtype, device=logits.device)
        log_p = logits.log_softmax(1)
        mixed = torch.einsum("kc,nc...->nk...", weight, log_p.masked_fill(log_p == -torch.inf, math.log(LEAST)))
        return mixed + column(self.bias, logits)

    def describe(self) -> str:
        """One-line description."""
        diagonal = [row[c] for c, row in enumerate(self.weight)]
        mixing = max(
            (abs(value) for c, row in enumerate(self.weight) for k, value in enumerate(row) if k != c), default=0.0
        )
        return (
            f"Dirichlet calibration, diagonal {min(diagonal):.3g} to {max(diagonal):.3g}, "
            f"largest mixing of classes {mixing:.3g}{self._origin()}"
        )


@checks_keywords
def fit_dirichlet(
    logits: Tensor, targets: Tensor, *, shrinkage: float | None = None, ignore_index: int = -100
) -> DirichletCalibration:
    r"""Dirichlet calibration with off-diagonal and intercept regularisation (ODIR). May change predictions.

    With :math:`x = \log p / T`, T of :func:`~equipoise.calibration.fit_temperature`, and m, s the mean and standard
    deviation of each class's x, it minimises

    .. math:: \sum_i \text{NLL}_i + \frac{\lambda}{2} \sum_{c \ne k} u_{ck}^2 + \frac{1}{2} \sum_c (u_{cc}^2 + d_c^2)

    for the logits :math:`x_c + \sum_k u_{ck} (x_k - m_k) / s_k + d_c`. C (C + 1) parameters: use it with many rows per
    class.

    Args:
        logits: (N, C, d1, ..., dk).
        targets: class indices (N, d1, ..., dk).
        shrinkage: lambda, above 0; None: selected from 10, 100, 1000, 10000 by likelihood in three-fold
            cross-validation.
        ignore_index: targets to ignore.

    >>> draw = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(600, 3, generator=draw)
    >>> seen = torch.multinomial(logits.softmax(1), 1, generator=draw).squeeze(1)
    >>> targets = torch.where((seen == 0) & (torch.rand(600, generator=draw) < 0.5), 1, seen)  # half of 0 are called 1
    >>> fitted = fit_dirichlet(logits, targets, shrinkage=1.0)
    >>> round(float(fitted(logits).softmax(1)[:, 1].mean()), 1), round(float((targets == 1).double().mean()), 1)
    (0.5, 0.5)
    """
    if shrinkage is not None:
        check_number("shrinkage", shrinkage, low=0.0, open_low=True)
    rows = single_rows(logits, targets, ignore_index, likelihood=True)
    samples, classes = rows.logits.shape
    x = standardise(SingleRows(rows.logits.log_softmax(1), rows.labels))
    start = x.scaled.new_zeros(classes + 1, classes)
    if shrinkage is None:
        shrinkage = _cross_validate(x, rows.labels, start) if samples >= 2 * FOLDS else SHRINKAGES[0]
    solution = _solve(x, rows.labels, shrinkage, start)
    change, shift = solution.parameters[:-1] / x.deviation[:, None], solution.parameters[-1]
    weight = (torch.eye(classes, dtype=torch.float64, device=change.device) + change.T) * x.slope
    bias = shift - x.mean @ change
    few = f"{samples} rows for {classes * (classes + 1)} parameters" if samples < classes * (classes + 1) else ""
    return announce(
        DirichletCalibration(
            tuple(map(tuple, weight.tolist())),
            tuple(bias.tolist()),
            samples=samples,
            converged=solution.converged,
            note=join_notes(solution.note, missing(rows.labels, classes), few, rows.note),
        )
    )


def _solve(x: Standard, labels: Tensor, shrinkage: float, start: Tensor, tolerance: float = 1e-13) -> Minimum:
    """Transposed u and, below it, d, (C + 1, C), that minimise the penalised NLL."""
    samples = len(labels)
    strength = torch.full_like(start, shrinkage)
    strength.fill_diagonal_(1.0)
    strength[-1] = 1.0
    # parameters are scaled by their range, so that strong and weak shrinkage are equally well conditioned
    size = (strength / samples + 0.25 / start.shape[1]).rsqrt()

    def objective(searched: Tensor) -> tuple[float, Tensor]:
        parameters = searched * size
        value, gradient = 0.5 * float((strength * parameters.square()).sum()), strength * parameters
        for part in blocks(x.scaled):
            units = x.units[part]
            loss, pull = residual(x.scaled[part] + units @ parameters[:-1] + parameters[-1], labels[part])
            value += loss
            gradient = gradient + torch.cat([units.T @ pull, pull.sum(0, keepdim=True)])
        return value / samples, gradient * size / samples

    minimum = minimise(objective, start / size, tolerance=tolerance)
    return minimum._replace(parameters=minimum.parameters * size)


def _cross_validate(x: Standard, labels: Tensor, start: Tensor) -> float:
    """The shrinkage with the best held-out likelihood, decreased from the strongest while it helps."""
    fold = random_folds(len(labels), FOLDS, labels.device)
    reached, best, best_score = [start] * FOLDS, SHRINKAGES[0], math.inf
    for shrinkage in SHRINKAGES:
        score = 0.0
        for held in range(FOLDS):
            kept, rest = _rows(x, fold != held), _rows(x, fold == held)
            at = _solve(kept, labels[fold != held], shrinkage, reached[held], tolerance=1e-9).parameters
            score += residual(rest.scaled + rest.units @ at[:-1] + at[-1], labels[fold == held])[0]
            reached[held] = at
        if score >= best_score:
            break
        best, best_score = shrinkage, score
    return best


def _rows(x: Standard, chosen: Tensor) -> Standard:
    return x._replace(scaled=x.scaled[chosen], units=x.units[chosen])
