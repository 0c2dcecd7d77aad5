"""One curve per class from log-odds to a probability, shared by isotonic regression and histogram binning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.inputs import multi_rows, remark_on_classes, single_rows
from equipoise.losses.off_target import softmax_log_odds
from equipoise.tasks import Task

__all__: list[str] = []


class ClassScores(NamedTuple):
    """Finite scores and outcomes of one class."""

    scores: Tensor  # (R,) float64, log-odds of the class
    positive: Tensor  # (R,) bool


class Problem(NamedTuple):
    """One-vs-rest scores of every class."""

    classes: list[ClassScores]
    floor: float
    samples: int
    note: str


def one_vs_rest(logits: Tensor, targets: Tensor, task: Task, ignore_index: int, ignore_value: float) -> Problem:
    """Split logits and targets of either task into one binary problem per class or label."""
    if task.multilabel:
        table = multi_rows(logits, targets, ignore_value)
        classes = [
            ClassScores(table.logits[known, c], table.positive[known, c])
            for c, known in enumerate((table.known & table.logits.isfinite()).unbind(1))
        ]
    else:
        rows = single_rows(logits, targets, ignore_index)
        odds = softmax_log_odds(rows.logits)
        classes = [
            ClassScores(odds[known, c], rows.labels[known] == c) for c, known in enumerate(odds.isfinite().unbind(1))
        ]
    samples = max(len(scores) for scores, _ in classes)
    outcomes = 2 if task.multilabel else len(classes)
    lonely = [c for c, (_, positive) in enumerate(classes) if not bool(positive.any())]
    note = remark_on_classes(lonely, "has no positive sample", "have no positive sample", (task.one, task.many))
    return Problem(classes, 1.0 / (outcomes * (samples + 1)), samples, note)


def per_class(logits: Tensor, task: Task) -> Iterator[tuple[int, Tensor]]:
    """Log-odds of each class in float64, (N, d1, ..., dk)."""
    wide = logits.float() if logits.device.type == "mps" else logits.double()  # as in the fit: knots are exact scores
    return enumerate((wide if task.multilabel else softmax_log_odds(wide)).unbind(1))


def to_logits(probs: Tensor, task: Task) -> Tensor:
    """Logits of one probability per class, inside (0, 1); normalised for a softmax."""
    log_p = probs.log()
    return log_p - torch.log1p(-probs) if task.multilabel else log_p.log_softmax(1)
