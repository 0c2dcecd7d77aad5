"""One-vs-rest isotonic regression (Zadrozny & Elkan 2002)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from equipoise._extras import missing
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce, as_floats
from equipoise.calibration.inputs import task_of
from equipoise.calibration.one_vs_rest import ClassScores, one_vs_rest, per_class, to_logits

__all__ = ["IsotonicCalibration", "fit_isotonic"]

Curve = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, repr=False)
class IsotonicCalibration(Fitted):
    """An increasing curve per class from its log-odds to a probability, linear between knots.

    Single-label probabilities are then normalised; predictions may change. The ranking of a label is kept up to ties.

    Args:
        curves: knots of each class (increasing log-odds, non-decreasing probabilities in (0, 1)).
    """

    kind: ClassVar[str] = "isotonic"

    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        curves = checked_curves(self.curves)
        for odds, probs in curves:
            if len(odds) != len(probs):
                raise ValueError(f"curves must have as many odds as probs, got {len(odds)} and {len(probs)}; fit again")
        self._set(curves=curves, num_classes=len(curves))

    def _apply(self, logits: Tensor) -> Tensor:
        probs = [_interpolate(scores, self.curves[c]) for c, scores in per_class(logits, self.task)]
        return to_logits(torch.stack(probs, 1), self.task).to(logits.dtype)

    def describe(self) -> str:
        """One-line description."""
        knots = sum(len(odds) for odds, _ in self.curves) / len(self.curves)
        return f"isotonic regression, {knots:.0f} knots a curve{self._origin()}"


@checks_keywords
def fit_isotonic(
    logits: Tensor,
    targets: Tensor,
    *,
    task: str | None = None,
    ignore_index: int = -100,
    ignore_value: float = -1,
) -> IsotonicCalibration:
    """Isotonic regression by scikit-learn, for each class (softmax) or label (multi-label). May change predictions.

    Probabilities stay inside (0, 1), so that their logarithms are finite: they are clipped at 1 / (C (N + 1)) from
    either end, one sample of N + 1 divided among C classes (C = 2 for a label). It needs many positives per class.

    Args:
        logits: (N, C, d1, ..., dk).
        targets: class indices (N, d1, ..., dk), or 0/1 in the shape of the logits for multi-label.
        task: ``"multiclass"`` or ``"multilabel"``; None: inferred from the shape of the targets.
        ignore_index: single-label targets to ignore.
        ignore_value: multi-label targets to ignore.

    >>> logits = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> fitted = fit_isotonic(logits, torch.tensor([[0], [1], [0], [1]]))
    >>> fitted(logits).sigmoid().squeeze()
    tensor([0.1000, 0.5000, 0.5000, 0.9000])
    """
    kind = task_of(logits, targets, task)
    problem = one_vs_rest(logits, targets, kind, ignore_index, ignore_value)
    curves = tuple(_fit_curve(scores, problem.floor) for scores in problem.classes)
    return announce(IsotonicCalibration(curves, task=kind, samples=problem.samples, note=problem.note))


def checked_curves(curves: tuple[Curve, ...]) -> tuple[Curve, ...]:
    """Return curves as tuples; raise unless they are pairs of increasing log-odds and probabilities inside (0, 1)."""
    checked = []
    for curve in curves:
        if isinstance(curve, str) or len(curve) != 2:
            raise ValueError("curves must be a pair (log-odds, probabilities) for each class, got others; fit again")
        odds = as_floats("log-odds of a curve", curve[0]) if len(curve[0]) else ()
        probs = as_floats("probabilities of a curve", curve[1], positive=True)
        if max(probs) >= 1 or any(right < left for left, right in pairwise(odds)):
            raise ValueError("curves must have increasing log-odds and probabilities below 1, got others; fit again")
        checked.append((odds, probs))
    if not checked:
        raise ValueError("curves must hold one curve per class, got none; fit again")
    return tuple(checked)


def _fit_curve(known: ClassScores, floor: float) -> Curve:
    if not len(known.scores):
        return (0.0,), (0.5,)
    try:
        from sklearn.isotonic import IsotonicRegression
    except ModuleNotFoundError:
        raise missing("fit_isotonic", "sklearn") from None
    regression = IsotonicRegression(y_min=floor, y_max=1.0 - floor, out_of_bounds="clip")
    regression.fit(known.scores.cpu().numpy(), known.positive.double().cpu().numpy())
    return tuple(regression.X_thresholds_.tolist()), tuple(regression.y_thresholds_.tolist())


def _interpolate(scores: Tensor, curve: Curve) -> Tensor:
    """Linear interpolation between knots, a step at knots of equal log-odds, constant beyond them."""
    odds, probs = (torch.tensor(values, dtype=scores.dtype, device=scores.device) for values in curve)
    if len(odds) == 1:
        return probs.expand_as(scores)
    right = torch.searchsorted(odds, scores.detach().contiguous()).clamp(1, len(odds) - 1)
    left = right - 1
    width = odds[right] - odds[left]
    beyond = scores - odds[left]
    share = beyond / torch.where(width > 0, width, 1.0)
    share = torch.where(width > 0, share, (beyond > 0).to(share.dtype)).clamp(0.0, 1.0)
    return torch.lerp(probs[left], probs[right], share)
