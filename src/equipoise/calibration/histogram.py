"""One-vs-rest histogram binning (Zadrozny & Elkan 2001)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise._checks import check_choice, check_whole
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce
from equipoise.calibration.inputs import task_of
from equipoise.calibration.isotonic import Curve, checked_curves
from equipoise.calibration.one_vs_rest import ClassScores, one_vs_rest, per_class, to_logits

__all__ = ["HistogramBinning", "fit_histogram"]


@dataclass(frozen=True, repr=False)
class HistogramBinning(Fitted):
    """One probability per bin of the log-odds of a class; single-label probabilities are then normalised.

    Predictions may change, and scores in one bin become equal.

    Args:
        curves: inner edges (right-closed) and probabilities of the bins of each class.
    """

    kind: ClassVar[str] = "histogram"

    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        curves = checked_curves(self.curves)
        for edges, probs in curves:
            if len(edges) + 1 != len(probs):
                raise ValueError(
                    f"curves must have an edge less than bins, got {len(edges)} and {len(probs)}; fit again"
                )
        self._set(curves=curves, num_classes=len(curves))

    def _apply(self, logits: Tensor) -> Tensor:
        probs = []
        for c, scores in per_class(logits, self.task):
            edges, values = (torch.tensor(v, dtype=scores.dtype, device=scores.device) for v in self.curves[c])
            probs.append(values[torch.bucketize(scores.contiguous(), edges)])
        return to_logits(torch.stack(probs, 1), self.task).to(logits.dtype)

    def describe(self) -> str:
        """One-line description."""
        bins = sum(len(probs) for _, probs in self.curves) / len(self.curves)
        return f"histogram binning, {bins:.0f} bins a class{self._origin()}"


@checks_keywords
def fit_histogram(
    logits: Tensor,
    targets: Tensor,
    *,
    bins: int = 15,
    binning: Literal["width", "mass"] = "width",
    task: str | None = None,
    ignore_index: int = -100,
    ignore_value: float = -1,
) -> HistogramBinning:
    r"""Fraction of positives in bins of the score, per class or label. May change predictions.

    The value of a bin is :math:`(k + \bar p) / (m + 1)` for k positives of m samples with mean score p: one more sample
    that agrees with the model, so no probability is 0 or 1 (or closer than 1 / (C (N + 1)), C = 2 for a label).

    Args:
        logits: (N, C, d1, ..., dk).
        targets: class indices (N, d1, ..., dk), or 0/1 in the shape of the logits for multi-label.
        bins: number of bins; fewer if scores are tied.
        binning: ``"width"``: bins of equal width in probability; ``"mass"``: the same number of samples in each bin.
        task: ``"multiclass"`` or ``"multilabel"``; None: inferred from the shape of the targets.
        ignore_index: single-label targets to ignore.
        ignore_value: multi-label targets to ignore.

    >>> logits = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> fitted = fit_histogram(logits, torch.tensor([[0], [1], [0], [1]]), bins=2)
    >>> fitted(logits).sigmoid().squeeze()
    tensor([0.3980, 0.3980, 0.6020, 0.6020])
    """
    check_choice("binning", binning, ("mass", "width"))
    bins = check_whole("bins", bins, low=1)
    kind = task_of(logits, targets, task)
    problem = one_vs_rest(logits, targets, kind, ignore_index, ignore_value)
    curves = tuple(_fit_curve(scores, problem.floor, bins, binning) for scores in problem.classes)
    return announce(HistogramBinning(curves, task=kind, samples=problem.samples, note=problem.note))


def _fit_curve(known: ClassScores, floor: float, bins: int, binning: str) -> Curve:
    scores, positive = known
    if not len(scores):
        return (), (0.5,)
    edges = _equal_mass_edges(scores, bins) if binning == "mass" else _equal_width_edges(bins)
    at = torch.bucketize(scores.contiguous(), edges.to(scores.device))
    zeros = torch.zeros(len(edges) + 1, dtype=torch.float64, device=scores.device)
    count = zeros.index_add(0, at, torch.ones_like(scores))
    hits = zeros.index_add(0, at, positive.double())
    believed = zeros.index_add(0, at, scores.sigmoid())
    middle = (torch.arange(len(zeros), dtype=torch.float64, device=scores.device) + 0.5) / len(zeros)
    believed = torch.where(count > 0, believed / count.clamp(min=1), middle)
    values = ((hits + believed) / (count + 1)).clamp(floor, 1.0 - floor)
    return tuple(edges.tolist()), tuple(values.tolist())


def _equal_mass_edges(scores: Tensor, bins: int) -> Tensor:
    """Inner edges halfway between two scores; a cut through tied scores is moved above them."""
    ordered = scores.sort().values
    cuts = torch.arange(1, bins, device=scores.device) * len(ordered) // bins
    below = ordered[cuts[cuts > 0] - 1]
    after = torch.searchsorted(ordered, below, right=True)
    below, above = below[after < len(ordered)], ordered[after[after < len(ordered)]]
    middle = 0.5 * (below + above)
    edges = torch.where(middle < above, middle, below)
    return torch.cat([edges[:1], edges[1:][edges[1:] > edges[:-1]]])


def _equal_width_edges(bins: int) -> Tensor:
    return torch.logit(torch.arange(1, bins, dtype=torch.float64) / bins)
