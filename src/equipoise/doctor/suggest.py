"""Recommended losses of the catalogue, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.catalogue import Entry, find
from equipoise.doctor.counts import LONG_TAIL
from equipoise.doctor.predictions import GAP, mean_gap, rarely_predicted
from equipoise.evaluation.results import Evaluation
from equipoise.tasks import Task

__all__ = ["Suggestion", "suggest"]

FOR_MAPS = {"RecallLoss": "recall(momentum=0.1)", "LovaszSoftmaxLoss": "ce + lovasz-softmax"}
"""For segmentation: batches are small, and a loss of the pixel order needs a pixelwise loss beside it."""


@dataclass(frozen=True)
class Suggestion:
    """A recommended loss and the reason in the data; ``text`` is its name for ``equipoise compare``."""

    entry: Entry
    why: str
    text: str


def suggest(task: str, counts: Sequence[float] | None, evaluation: Evaluation | None = None) -> list[Suggestion]:
    """Losses to compare, the most promising first, with the baseline last.

    Args:
        task: ``"multiclass"``, ``"multilabel"`` or ``"segmentation"``.
        counts: training samples (positives, pixels) of each class, if known.
        evaluation: of saved predictions, if available.
    """
    present = [count for count in counts or () if count > 0]
    ratio = max(present) / min(present) if present else None
    kind = Task(task)
    rules = {Task.MULTICLASS: _multiclass, Task.MULTILABEL: _multilabel, Task.SEGMENTATION: _segmentation}
    chosen = rules[kind](ratio, present, evaluation)
    as_compared = FOR_MAPS if kind.pixels else {}
    entries = [(find(name), why) for name, why in chosen]
    return [Suggestion(entry, why, as_compared.get(entry.name, entry.text)) for entry, why in entries]


def _sure(evaluation: Evaluation | None) -> bool:
    """Whether an evaluation shows confidence above accuracy."""
    return evaluation is not None and mean_gap(evaluation.curve) > GAP


def _multiclass(ratio: float | None, counts: Sequence[float], evaluation: Evaluation | None) -> list[tuple[str, str]]:
    chosen = []
    if ratio is not None and ratio >= LONG_TAIL:
        chosen.append(
            ("LogitAdjustedLoss", f"ratio {ratio:,.0f}: optimises the mean over classes, without weights to tune")
        )
        chosen.append(("RecallLoss", "weights by missed recall, which preserves the precision of common classes"))
        chosen.append(("ClassBalancedLoss", "weights by effective number, milder than 1/n"))
    elif evaluation is not None and rarely_predicted(evaluation):
        chosen.append(("RecallLoss", "some classes are rarely predicted: weights by missed recall"))
    if _sure(evaluation):
        chosen.append(("SampleDependentFocalLoss", "overconfident: trains for calibration, without tuning"))
    elif ratio is None or ratio < LONG_TAIL:
        chosen.append(("SampleDependentFocalLoss", "calibrated probabilities without tuning"))
        chosen.append(
            ("CyclicalFocalLoss", "focuses on easy samples at the start and the end, for accuracy on any data")
        )
    return [*chosen, ("CrossEntropyLoss", "the baseline to beat")]


def _multilabel(ratio: float | None, counts: Sequence[float], evaluation: Evaluation | None) -> list[tuple[str, str]]:
    chosen = [("AsymmetricLoss", "few labels of a sample are positive: easy negatives are down-weighted")]
    if ratio is not None and ratio >= LONG_TAIL:
        chosen.append(("DistributionBalancedLoss", f"labels differ by {ratio:,.0f} in frequency and occur together"))
    chosen.append(("BinaryFocalLoss", "treats positives and negatives alike; check its calibration"))
    return [*chosen, ("BinaryCrossEntropyLoss", "the baseline to beat")]


def _segmentation(ratio: float | None, counts: Sequence[float], evaluation: Evaluation | None) -> list[tuple[str, str]]:
    chosen = [("RecallLoss", "weights each class by its missed recall, averaged over batches")]
    if counts and max(counts) / sum(counts) > 0.5:
        chosen.append(
            ("OHEMLoss", f"one class has {100 * max(counts) / sum(counts):.0f} % of the pixels, most of them easy")
        )
    chosen.append(("LovaszSoftmaxLoss", "optimises the IoU, together with cross-entropy"))
    if _sure(evaluation):
        chosen.append(("SampleDependentFocalLoss", "overconfident"))
    return [*chosen, ("CrossEntropyLoss", "the baseline to beat")]
