r"""The posterior of a model trained with focal loss.

Focal loss is not proper: at its minimum the softmax gives :math:`v`, not the posterior :math:`p`, but p is a known
function of it (Charoenphakdee et al. 2021),

.. math:: p_k \propto \frac{v_k}{\phi(v_k)}, \qquad \phi(v) = (1 - v)^\gamma - \gamma v (1 - v)^{\gamma - 1} \log v .
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise._checks import check_number
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce
from equipoise.calibration.inputs import (
    blocks,
    check_probs,
    join_notes,
    logits_from_probs,
    multi_rows,
    single_rows,
    softplus,
    task_of,
)
from equipoise.losses.off_target import softmax_log_odds
from equipoise.tasks import Task

__all__ = ["FocalPosterior", "fit_focal", "focal_posterior"]

LARGEST_GAMMA = 10.0


@dataclass(frozen=True, repr=False)
class FocalPosterior(Fitted):
    r""":math:`z'_k = z_k - \log \phi(v_k)`: inverts the effect of focal loss with ``gamma`` on probabilities.

    Keeps the order of the classes, and so the predicted class and the accuracy; for multi-label the decisions at 1/2.
    ``gamma=0`` is the identity.

    >>> FocalPosterior(2.0)(torch.tensor([[2.0, 0.0]])).softmax(1)
    tensor([[0.9955, 0.0045]])
    """

    kind: ClassVar[str] = "focal"

    gamma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(gamma=check_number("gamma", self.gamma, low=0.0))

    def _apply(self, logits: Tensor) -> Tensor:
        if self.gamma == 0.0:
            return logits
        return corrected(logits, self.gamma, self.task)

    def describe(self) -> str:
        """One-line description."""
        return f"posterior of a model trained with focal loss, gamma {self.gamma:.4g}; same predictions{self._origin()}"


def focal_posterior(probs: Tensor, gamma: float, *, task: str = Task.MULTICLASS) -> Tensor:
    r"""Class posterior from the outputs ``probs`` of a model trained with focal loss. Keeps the predicted class.

    :math:`p_k \propto v_k / ((1 - v_k)^\gamma - \gamma v_k (1 - v_k)^{\gamma - 1} \log v_k)`, in log space. For
    multi-label each probability v stands for the pair (v, 1 - v). ``gamma=0`` is the identity.

    Shape: ``probs`` (N, C, d1, ..., dk); result the same.

    >>> focal_posterior(torch.tensor([[0.7, 0.2, 0.1]]), gamma=2.0)
    tensor([[0.9197, 0.0546, 0.0257]])
    """
    check_number("gamma", gamma, low=0.0)
    kind = check_probs(probs, task)
    if gamma == 0.0:
        return probs
    logits = logits_from_probs(probs.double(), task=kind)
    after = corrected(logits, gamma, kind)
    return (after.sigmoid() if kind.multilabel else after.softmax(1)).to(probs.dtype)


@checks_keywords
def fit_focal(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma: float | None = None,
    task: str | None = None,
    ignore_index: int = -100,
    ignore_value: float = -1,
) -> FocalPosterior:
    """The focal link for a known ``gamma``, or for the gamma in [0, 10] with the best likelihood.

    Keeps the predicted class. Usually omit gamma: that of the training is right only for a network at the optimum of
    the focal loss, which most do not reach. Compare with ``fit_temperature``.

    Args:
        logits: (N, C, d1, ..., dk).
        targets: class indices (N, d1, ..., dk), or 0/1 in the shape of the logits for multi-label.
        gamma: a known exponent, 0 or above; None: by likelihood.
        task: ``"multiclass"`` or ``"multilabel"``; None: inferred from the shape of the targets.
        ignore_index: single-label targets to ignore.
        ignore_value: multi-label targets to ignore.

    >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    >>> round(fit_focal(logits, torch.tensor([0, 0, 1, 0, 1])).gamma, 2)
    0.53
    """
    if gamma is not None:
        check_number("gamma", gamma, low=0.0)
    kind = task_of(logits, targets, task)
    if not kind.multilabel:
        rows = single_rows(logits, targets, ignore_index, likelihood=True)
        odds, samples, left_out = _odds(rows.logits), len(rows.labels), rows.note

        def loss(gamma: float) -> float:
            total = 0.0
            for part in blocks(odds):
                log_p = (rows.logits[part] - log_phi(odds[part], gamma)).log_softmax(1)
                total -= float(log_p.gather(1, rows.labels[part, None]).sum())
            return total

    else:
        table = multi_rows(logits, targets, ignore_value, likelihood=True)
        samples, left_out = len(table.logits), table.note
        signed = torch.where(table.positive, table.logits, -table.logits)

        def loss(gamma: float) -> float:
            after = corrected(signed, gamma, kind)
            return float((softplus(-after) * table.known).sum())

    if gamma is None:
        gamma, note = _best_gamma(loss)
    else:
        note = ""
    return announce(
        FocalPosterior(
            gamma,
            task=kind,
            num_classes=logits.shape[1],
            samples=samples,
            converged=gamma < LARGEST_GAMMA or not note,
            note=join_notes(note, left_out),
        )
    )


def _best_gamma(loss: Callable[[float], float]) -> tuple[float, str]:
    """Minimum in [0, 10], and a note if it is at a bound."""
    from scipy.optimize import minimize_scalar  # here, to keep importing equipoise fast

    ends = {bound: loss(bound) for bound in (0.0, LARGEST_GAMMA)}
    minimum = minimize_scalar(loss, bounds=(0.0, LARGEST_GAMMA), method="bounded", options={"xatol": 1e-9})
    end = min(ends, key=ends.__getitem__)
    if ends[end] <= float(minimum.fun):
        return end, f"the best gamma is at the end {end:g} of the range 0 ... {LARGEST_GAMMA:g}"
    return float(minimum.x), ""


def corrected(logits: Tensor, gamma: float, task: Task) -> Tensor:
    """Logits of the posterior."""
    if task.multilabel:
        return logits - log_phi(logits, gamma) + log_phi(-logits, gamma)
    return logits - log_phi(_odds(logits), gamma)


def _odds(logits: Tensor) -> Tensor:
    """Log-odds of each class; 0 for the only unmasked class, whose probability is always 1."""
    odds = softmax_log_odds(logits)
    return odds.where(odds < torch.inf, 0.0)


def log_phi(odds: Tensor, gamma: float) -> Tensor:
    r""":math:`\log \phi(v) = \gamma \log(1 - v) + \log(1 + \gamma r)` at the log-odds of v.

    :math:`r = -v \log(v) / (1 - v)` goes from 0 at v = 0 to 1 at v = 1; it is computed from whichever of v / (1 - v)
    and its inverse is below 1.
    """
    small = (-odds.abs()).exp()
    at_least_half = torch.where(small > 0, small.log1p() / torch.where(small > 0, small, 1.0), 1.0)
    below_half = torch.where(small > 0, small * softplus(-odds), 0.0)
    ratio = torch.where(odds > 0, at_least_half, below_half)
    return torch.log1p(gamma * ratio) - gamma * softplus(odds)
