"""Rejection of unknown samples below a confidence: its cost at each threshold, and the choice of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise._checks import check_choice, check_number

__all__ = ["RejectionCurve", "accepting_threshold", "best_threshold", "f_measure", "rejection_curve"]

CONVENTIONS = ("oltr", "kang")


class RejectionCurve(NamedTuple):
    """Results at each threshold; all (T,) in float64, NaN without data.

    Args:
        threshold: confidence below which a sample is rejected.
        f_measure: see :class:`OpenSetScores`.
        accuracy: accuracy on known samples; rejected ones are wrong.
        known_rejected: fraction of known samples that are rejected.
        unknown_rejected: fraction of unknown samples that are rejected.
    """

    threshold: Tensor
    f_measure: Tensor
    accuracy: Tensor
    known_rejected: Tensor
    unknown_rejected: Tensor


def f_measure(right: Tensor, wrong: Tensor, rejected: Tensor, unknown_accepted: Tensor, convention: str) -> Tensor:
    r"""F-measure of counts, :math:`2 TP / (2 TP + FP + FN)`; float64.

    Args:
        right: known samples that are accepted and predicted correctly, TP.
        wrong: known samples that are accepted and predicted incorrectly, FP.
        rejected: known samples that are rejected; in FP too by the convention ``"oltr"``, not by ``"kang"``.
        unknown_accepted: unknown samples that are accepted, FN.
        convention: ``"oltr"`` or ``"kang"``.
    """
    false = wrong + rejected if convention == "oltr" else wrong
    return 2 * right / (2 * right + false + unknown_accepted).double()


def rejection_curve(
    confidence: Tensor,
    right: Tensor,
    unknown: Tensor,
    thresholds: Sequence[float] | Tensor,
    *,
    convention: str = "oltr",
) -> RejectionCurve:
    """Results of rejection below each threshold.

    Args:
        confidence: (N,) of known samples, e.g. their largest probability.
        right: (N,) bool, whether each is predicted correctly.
        unknown: (M,) confidence of samples of unknown classes.
        thresholds: (T,); a sample is rejected if its confidence is below.
        convention: of the F-measure, see :class:`OpenSetScores`.

    >>> sure, right = torch.tensor([0.9, 0.6, 0.3]), torch.tensor([True, False, True])
    >>> curve = rejection_curve(sure, right, torch.tensor([0.5, 0.2]), [0.0, 0.4])
    >>> curve.f_measure, curve.accuracy, curve.unknown_rejected
    (tensor([0.5714, 0.4000], dtype=torch.float64), tensor([0.6667, 0.3333], dtype=torch.float64),
     tensor([0.0000, 0.5000], dtype=torch.float64))
    """
    check_choice("convention", convention, CONVENTIONS)
    _check_known(confidence, right)
    levels = torch.as_tensor(thresholds, dtype=torch.float64, device=confidence.device)

    def accepted(values: Tensor) -> Tensor:
        return len(values) - torch.searchsorted(values.double().sort().values, levels)

    good, bad, unknown_accepted = accepted(confidence[right]), accepted(confidence[~right]), accepted(unknown)
    rejected = len(confidence) - good - bad
    nothing = torch.full_like(levels, torch.nan)
    known, others = len(confidence), len(unknown)
    return RejectionCurve(
        levels,
        f_measure(good, bad, rejected, unknown_accepted, convention),
        good.double() / known if known else nothing,
        rejected.double() / known if known else nothing,
        (others - unknown_accepted).double() / others if others else nothing,
    )


def accepting_threshold(confidence: Tensor, *, share: float = 0.95) -> float:
    """The highest threshold that accepts at least a fraction ``share`` of known samples, without unknown ones.

    Args:
        confidence: (N,) of known samples, of validation data.
        share: fraction to accept.

    >>> accepting_threshold(torch.tensor([0.9, 0.8, 0.3, 0.5]), share=0.75)
    0.5
    """
    check_number("share", share, low=0.0, high=1.0, open_low=True)
    _check_some("confidence", confidence)
    place = int(torch.tensor(share * len(confidence), dtype=torch.float64).sub(1e-9).ceil().clamp(min=1))
    return float(confidence.double().sort(descending=True).values[place - 1])


def best_threshold(confidence: Tensor, right: Tensor, unknown: Tensor, *, convention: str = "oltr") -> float:
    """The threshold with the highest F-measure, the lowest in a tie; requires unknown samples.

    Arguments as those of :func:`rejection_curve`, on validation data: a threshold chosen on test data gives optimistic
    results. With the convention ``"kang"`` rejecting known samples is free, and the best threshold may accept hardly
    any.

    >>> best_threshold(torch.tensor([0.9, 0.5]), torch.tensor([True, True]), torch.tensor([0.4, 0.2]))
    0.5
    """
    _check_some("confidence", confidence)
    _check_some("unknown", unknown)
    start = torch.zeros(1, dtype=torch.float64, device=confidence.device)
    levels = torch.cat([start, confidence.double(), unknown.double()]).sort().values
    scores = rejection_curve(confidence, right, unknown, levels, convention=convention).f_measure
    return float(levels[scores.nan_to_num(-1.0).argmax()])


def _check_known(confidence: Tensor, right: Tensor) -> None:
    if right.dtype is not torch.bool or right.shape != confidence.shape or confidence.ndim != 1:
        raise ValueError(
            f"confidence and right must be (N,), right of bool, got {tuple(confidence.shape)} and {right.dtype} of "
            f"shape {tuple(right.shape)}; pass probs.amax(1) and probs.argmax(1) == targets"
        )


def _check_some(name: str, values: Tensor) -> None:
    if values.ndim != 1 or not len(values) or not bool(values.isfinite().all()):
        raise ValueError(
            f"{name} must be finite numbers (N,) of at least one sample, got shape {tuple(values.shape)}; without "
            "unknown samples use accepting_threshold"
        )
