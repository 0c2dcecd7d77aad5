r"""One temperature per label of a multi-label model: :math:`z'_k = z_k / T_k + b_k` (Platt scaling, shrunk)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise._checks import check_number
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce, as_floats, column
from equipoise.calibration.inputs import (
    MultiRows,
    join_notes,
    label_blocks,
    multi_rows,
    remark_on_classes,
    softplus,
)
from equipoise.calibration.temperature import BOUNDS, check_bounds
from equipoise.tasks import Task

__all__ = ["LabelTemperatures", "fit_label_temperatures"]

LARGEST_BIAS = 50.0


@dataclass(frozen=True, repr=False)
class LabelTemperatures(Fitted):
    r""":math:`z'_k = z_k / T_k + b_k`. Keeps the ranking of a label, and without biases every decision at 1/2.

    >>> LabelTemperatures((2.0, 1.0), (0.0, 1.0))(torch.tensor([[2.0, 2.0]]))
    tensor([[1., 3.]])
    """

    kind: ClassVar[str] = "label-temperatures"

    temperatures: tuple[float, ...]
    biases: tuple[float, ...]
    task: Task = field(default=Task.MULTILABEL, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        temperatures = as_floats("temperatures", self.temperatures, positive=True)
        biases = as_floats("biases", self.biases)
        if len(temperatures) != len(biases):
            raise ValueError(
                f"biases must have one number for each of the {len(temperatures)} labels, got {len(self.biases)}; "
                "fit again"
            )
        self._set(temperatures=temperatures, biases=biases, num_classes=len(temperatures))

    def _apply(self, logits: Tensor) -> Tensor:
        return logits / column(self.temperatures, logits) + column(self.biases, logits)

    def describe(self) -> str:
        """One-line description."""
        spread = f"{min(self.temperatures):.3g} to {max(self.temperatures):.3g}"
        biases = (
            f", biases {min(self.biases):.3g} to {max(self.biases):.3g}" if any(self.biases) else ", same decisions"
        )
        return f"label temperatures {spread}{biases}{self._origin()}"


@checks_keywords
def fit_label_temperatures(
    logits: Tensor,
    targets: Tensor,
    *,
    bias: bool = False,
    shrinkage: float = 10.0,
    bounds: tuple[float, float] = BOUNDS,
    ignore_value: float = -1,
) -> LabelTemperatures:
    r"""One temperature per label, and optionally a bias, shrunk to those of all labels together.

    For label k the minimum over :math:`T_k, b_k` of

    .. math:: \sum_i \text{NLL}_{ik} + \frac{\lambda}{2} \left[(T_0 / T_k - 1)^2 + (b_k - b_0)^2\right]

    with :math:`T_0, b_0` the best common ones. A label with few positives, or few errors, stays near the common values;
    one without positives or without negatives uses them. Convex in 1/T and b; Newton's method for
    all labels at once. Keeps the ranking of a label; without ``bias`` also the decisions at 1/2.

    Args:
        logits: (N, K, d1, ..., dk).
        targets: 0, 1 or ``ignore_value``, in the shape of the logits.
        bias: fit a bias per label too (Platt scaling).
        shrinkage: lambda; 0 for independent labels, large for one temperature for all.
        bounds: minimum and maximum temperature.
        ignore_value: targets to ignore.

    >>> draw = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(5000, 2, generator=draw)
    >>> targets = torch.bernoulli((logits * torch.tensor([1.0, 0.5])).sigmoid(), generator=draw)
    >>> [round(t, 1) for t in fit_label_temperatures(logits, targets).temperatures]
    [1.0, 2.1]
    """
    check_number("shrinkage", shrinkage, low=0.0)
    low, high = check_bounds(bounds)
    rows = multi_rows(logits, targets, ignore_value, likelihood=True)
    known = rows.known
    pooled = MultiRows(rows.logits[known][:, None], rows.positive[known][:, None], known[known][:, None])
    if bool(pooled.positive.all()) or not bool(pooled.positive.any()):
        return announce(_nothing_to_learn(rows))
    common = _platt(pooled, 1.0, 0.0, 0.0, (1.0 / high, 1.0 / low), bias)
    slope, intercept = float(common.slopes), float(common.biases)
    fits = [_platt(part, slope, intercept, shrinkage, (1.0 / high, 1.0 / low), bias) for part in label_blocks(rows)]
    slopes, biases, inside = (torch.cat(parts) for parts in zip(*fits, strict=True))
    positives = rows.positive.sum(0)
    one_sided = (positives == 0) | (positives == rows.known.sum(0))
    slopes, biases = torch.where(one_sided, slope, slopes), torch.where(one_sided, intercept, biases)
    lonely = remark_on_classes(
        one_sided.nonzero().squeeze(1).tolist(),
        "has only positives or only negatives and uses the common values",
        "have only positives or only negatives and use the common values",
        ("label", "labels"),
    )
    at_bound = remark_on_classes(
        (~inside & ~one_sided).nonzero().squeeze(1).tolist(),
        "has its optimum at the bound of the temperature",
        "have their optimum at the bound of the temperature",
        ("label", "labels"),
    )
    return announce(
        LabelTemperatures(
            tuple((1.0 / slopes).clamp(low, high).tolist()),
            tuple(biases.tolist()),
            samples=len(rows.logits),
            converged=not at_bound,
            note=join_notes(lonely, at_bound, rows.note),
        )
    )


class Platt(NamedTuple):
    """Slopes and biases (K,), and whether the slope is inside its bounds."""

    slopes: Tensor
    biases: Tensor
    inside: Tensor


def _platt(
    rows: MultiRows, slope: float, intercept: float, shrinkage: float, bounds: tuple[float, float], with_bias: bool
) -> Platt:
    """Penalised logistic regression of every column on its own logit, by damped Newton steps."""
    x = rows.logits * slope * rows.known  # the common slope is 1, whatever the scale of the logits
    y, known = rows.positive.double(), rows.known.double()
    low, high = bounds[0] / slope, bounds[1] / slope
    a, b = torch.ones_like(x[0]), torch.full_like(x[0], intercept)

    def objective(a: Tensor, b: Tensor) -> Tensor:
        t = a * x + b
        nll = (softplus(t) - y * t) * known
        return nll.sum(0) + 0.5 * shrinkage * ((a - 1.0).square() + (b - intercept).square())

    value, done = objective(a, b), torch.zeros_like(a, dtype=torch.bool)
    for _ in range(100):
        p = (a * x + b).sigmoid()
        off, spread = (p - y) * known, p * (1.0 - p) * known
        grad_a = (off * x).sum(0) + shrinkage * (a - 1.0)
        aa = (spread * x * x).sum(0) + shrinkage
        if with_bias:
            grad_b = off.sum(0) + shrinkage * (b - intercept)
            ab, bb = (spread * x).sum(0), spread.sum(0) + shrinkage
            ridge = 1e-12 * (aa + bb) + 1e-150  # constant scores do not determine slope and bias separately
            determinant = (aa + ridge) * (bb + ridge) - ab * ab
            step_a = ((bb + ridge) * grad_a - ab * grad_b) / determinant
            step_b = ((aa + ridge) * grad_b - ab * grad_a) / determinant
            at_bound = ((a <= low) & (grad_a > 0)) | ((a >= high) & (grad_a < 0))  # the bias alone moves there
            step_a = torch.where(at_bound, 0.0, step_a)
            step_b = torch.where(at_bound, grad_b / (bb + ridge), step_b)
        else:
            step_a, step_b, grad_b = grad_a / (aa + 1e-300), torch.zeros_like(b), torch.zeros_like(b)
        # so close to the optimum rounding dominates the objective, and a full Newton step is accurate
        last = ~done & ((grad_a * step_a + grad_b * step_b).abs() <= 1e-10 * value)
        settled, before_a, before_b, size = done.clone(), a, b, 1.0
        while not bool(settled.all()) and size > 1e-6:  # halve the step of columns that do not improve
            new_a = (a - size * step_a).clamp(low, high)
            new_b = (b - size * step_b).clamp(-LARGEST_BIAS, LARGEST_BIAS)
            new_value = objective(new_a, new_b)
            better = ((new_value <= value) | last) & ~settled
            a, b = torch.where(better, new_a, a), torch.where(better, new_b, b)
            value, settled, size = torch.where(better, new_value, value), settled | better, 0.5 * size
        done = done | last | ((a == before_a) & (b == before_b))  # at the optimum or at a bound
        if bool(done.all()):
            break
    tolerance = 1e-6
    inside = (a > low * (1 + tolerance)) & (a < high * (1 - tolerance))
    return Platt(a * slope, b, inside)


def _nothing_to_learn(rows: MultiRows) -> LabelTemperatures:
    labels = rows.logits.shape[1]
    return LabelTemperatures(
        (1.0,) * labels,
        (0.0,) * labels,
        samples=len(rows.logits),
        converged=False,
        note="all targets are equal, so nothing was learned",
    )
