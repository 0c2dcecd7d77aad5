"""Evaluation of predictions with samples of unknown classes, which should be rejected (Liu et al. 2019).

A sample is rejected if its largest probability is below a threshold, as in ``equipoise.heads.open_set_prediction``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from equipoise._checks import check_choice, check_number
from equipoise.evaluation.meters import GROUPS, plain
from equipoise.evaluation.results import (
    OPEN_FORMAT,
    ConfidenceHistogram,
    OpenSetEvaluation,
    Rejection,
    RejectionRates,
)
from equipoise.metrics import accepting_threshold, best_threshold, bin_edges, bin_index, rejection_curve, shot_groups
from equipoise.metrics._inputs import tally
from equipoise.metrics.accuracy import group_means
from equipoise.metrics.open_set import auroc
from equipoise.metrics.rejection import CONVENTIONS, f_measure
from equipoise.predictions import InputError, Predictions, open_predictions

__all__ = ["PUBLISHED_THRESHOLD", "evaluate_open_set"]

PUBLISHED_THRESHOLD = 0.1
"""The threshold of Liu et al. 2019."""
BINS = 25
"""Bins of the histograms of confidence."""
STEPS = 100
"""Steps of the curves."""
HALVES = (3, 4)
"""Random streams that split the known and the unknown samples in halves."""

Given: TypeAlias = Predictions | str | Path | Mapping[str, Any]


class Samples(NamedTuple):
    """Values of each sample, (N,): the largest probability, the prediction, the target, and two other scores.

    Targets of unknown samples are not used. ``max_logit`` and ``energy`` (the logsumexp of the logits: the negative
    free energy of W. Liu et al. 2020) are NaN if the scores are probabilities.
    """

    confidence: Tensor
    predicted: Tensor
    target: Tensor
    max_logit: Tensor
    energy: Tensor

    @property
    def right(self) -> Tensor:
        """Whether the prediction is the target, (N,)."""
        return self.predicted == self.target

    def take(self, own: Tensor) -> Samples:
        """A subset of the samples."""
        return Samples(*(column[own] for column in self))


Rule: TypeAlias = Callable[[Samples, Samples | None], float]
"""Chooses a threshold from known and unknown samples."""


@dataclass(frozen=True)
class OpenSetTest:
    """Known and unknown test samples, and how they are evaluated."""

    known: Samples
    unknown: Samples
    classes: int
    groups: Tensor | None
    convention: str
    seed: int

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """The half, 0 or 1, of each known and each unknown sample; they differ by at most one sample in size."""
        known, unknown = (
            torch.from_numpy(np.random.default_rng((self.seed, stream)).permutation(len(rows.confidence)) % 2)
            for rows, stream in zip((self.known, self.unknown), HALVES, strict=True)
        )
        return known, unknown

    def with_chosen_threshold(
        self, rule: str, choose: Rule, validation: tuple[Samples, Samples | None] | None
    ) -> Rejection | None:
        """Metrics at a threshold chosen on validation data, else cross-fitted on halves; None if a half is empty."""
        if validation is not None:
            return self.with_threshold(rule, "validation data", choose(*validation))
        known, unknown = self.halves
        parts = [(self.known.take(known == half), self.unknown.take(unknown == half)) for half in (0, 1)]
        if any(not len(rows.confidence) for part in parts for rows in part):
            return None
        first, second = (choose(*part) for part in parts)
        return self.with_threshold(rule, "the other half of the samples", second, first)

    def with_threshold(self, rule: str, chosen_on: str, *thresholds: float) -> Rejection:
        """Metrics at a threshold, or at two: one for the first half of the samples and one for the second."""
        of_half = torch.tensor(thresholds if len(thresholds) > 1 else thresholds * 2, dtype=torch.float64)
        known, unknown = self.halves
        accepted = self.known.confidence >= of_half[known]
        unknown_accepted = self.unknown.confidence >= of_half[unknown]
        right, wrong = (accepted & self.known.right).sum(), (accepted & ~self.known.right).sum()
        rejected, false_negatives = (~accepted).sum(), unknown_accepted.sum()
        false_positives = wrong + rejected if self.convention == "oltr" else wrong
        metrics = {
            "f_measure": plain(f_measure(right, wrong, rejected, false_negatives, self.convention)),
            "precision": plain(right / (right + false_positives).double()),
            "recall": plain(right / (right + false_negatives).double()),
            "unknown_rejected": float((~unknown_accepted).double().mean()),
            "known_rejected": float((~accepted).double().mean()),
            **self.accuracies(accepted),
        }
        return Rejection(rule, list(thresholds), chosen_on, metrics)

    def accuracies(self, accepted: Tensor) -> dict[str, float | None]:
        """Accuracies of the known samples, where rejection counts as an error, and by group if given."""
        right, targets = self.known.right & accepted, self.known.target
        per_class = tally(targets[right], self.classes) / tally(targets, self.classes).double()
        metrics = {"accuracy": plain(right.double().mean()), "mean_class_accuracy": plain(per_class.nanmean())}
        if self.groups is None:
            return metrics
        means = group_means(per_class, self.groups, len(GROUPS))
        return metrics | {name: plain(mean) for name, mean in zip(GROUPS, means, strict=True)}

    def auroc(self) -> dict[str, float | None]:
        """AUROC by score, for the scores that known and unknown samples have."""
        scores = {
            "max_probability": (self.known.confidence, self.unknown.confidence),
            "max_logit": (self.known.max_logit, self.unknown.max_logit),
            "energy": (self.known.energy, self.unknown.energy),
        }
        return {
            name: plain(auroc(known, unknown))
            for name, (known, unknown) in scores.items()
            if not bool(known.isnan().any()) and not bool(unknown.isnan().any())
        }

    def curve(self, thresholds: Tensor) -> RejectionRates:
        """Metrics at each threshold."""
        known, unknown = self.known, self.unknown.confidence
        curve = rejection_curve(known.confidence, known.right, unknown, thresholds, convention=self.convention)
        f_measure, accuracy = ([plain(value) for value in values] for values in (curve.f_measure, curve.accuracy))
        rejected = curve.known_rejected.tolist(), curve.unknown_rejected.tolist()
        return RejectionRates(curve.threshold.tolist(), f_measure, accuracy, *rejected)

    def histogram(self) -> ConfidenceHistogram:
        """Samples by confidence: known ones predicted right and wrong, and unknown ones."""
        kinds = {
            "known_right": self.known.confidence[self.known.right],
            "known_wrong": self.known.confidence[~self.known.right],
            "unknown": self.unknown.confidence,
        }
        counts = {name: tally(bin_index(values, BINS), BINS).tolist() for name, values in kinds.items()}
        return ConfidenceHistogram(bin_edges(BINS).tolist(), **counts)


def evaluate_open_set(
    known: Given,
    unknown: Given,
    *,
    threshold: float | None = None,
    convention: str = "oltr",
    val: Given | None = None,
    open_val: Given | None = None,
    accept: float = 0.95,
    seed: int = 0,
    progress: Callable[[int], None] = lambda samples: None,
) -> OpenSetEvaluation:
    """Evaluate predictions with unknown classes (open set).

    Three rules choose a threshold: ``"fixed"``, ``"accept"``, which accepts a fraction of the known samples, and
    ``"best"``, the highest F-measure. ``"accept"`` requires known validation samples, ``"best"`` also unknown ones.
    Without them the threshold is cross-fitted: each half of the test samples is evaluated at the threshold of the other
    half. This is a fair estimate only if future unknown samples have the same distribution.

    Args:
        known: predictions of samples of the known classes, from ``open_predictions``, or its argument: a path, or
            arrays such as ``{"logits": logits, "targets": targets}``; the same for the others.
        unknown: predictions of samples of unknown classes, possibly from ``split_open``; targets are optional
            and ignored.
        threshold: probability below which a sample is rejected. None: the one that accepts ``accept`` of ``val``;
            without ``val`` the published 0.1, which rejects undefined with ten classes or fewer.
        convention: convention of the F-measure: ``"oltr"`` or ``"kang"``, see ``equipoise.metrics.OpenSetScores``.
        val: predictions of validation data of the known classes.
        open_val: predictions of unknown samples that are not in ``unknown``.
        accept: fraction of the known samples that the rule ``"accept"`` accepts.
        seed: random seed of the halves.
        progress: called with the number of samples read since the last call; every sample is read once.

    Returns:
        The main metrics, AUROC of three scores, accuracies without rejection, metrics by rule, curves over thresholds,
        a histogram of the confidence. Groups are present if the training counts are known. ``to_json()`` returns
        plain data; None stands for an undefined value.
    """
    check_choice("convention", convention, CONVENTIONS)
    check_number("accept", accept, low=0.0, high=1.0, open_low=True)
    if threshold is not None:
        check_number("threshold", threshold, low=0.0, high=1.0)
    known, unknown = _opened("known", known), _opened("unknown", unknown, labelled=False)
    val = None if val is None else _opened("val", val)
    open_val = None if open_val is None else _opened("open_val", open_val, labelled=False)
    for source in (unknown, val, open_val):
        if source is not None:
            _check_alike(known, source)
    groups = None if known.train_counts is None else shot_groups(known.train_counts)
    samples = _read(known, progress, labelled=True), _read(unknown, progress, labelled=False)
    test = OpenSetTest(*samples, known.num_classes, groups, convention, seed)
    validation = None if val is None else _read(val, progress, labelled=True)
    open_validation = None if open_val is None else _read(open_val, progress, labelled=False)
    fixed = PUBLISHED_THRESHOLD if threshold is None else float(threshold)
    rows = _rejections(test, fixed, accept, validation, open_validation)
    main = "accept" if threshold is None and val is not None else "fixed"
    reported = "accept" if threshold is None and any(row.rule == "accept" for row in rows) else main
    files = {"file": known.path.name, "open_file": unknown.path.name}
    return _result(test, rows, notes=_notes(fixed, test.classes), accept=accept, main=main, told=reported, **files)


def _rejections(
    test: OpenSetTest, fixed: float, accept: float, known: Samples | None, unknown: Samples | None
) -> list[Rejection]:
    """Metrics by rule, with thresholds chosen on known and unknown validation samples if given."""

    def accepting(own: Samples, _: Samples | None) -> float:
        return accepting_threshold(own.confidence, share=accept)

    def best(own: Samples, others: Samples | None) -> float:
        assert others is not None
        return best_threshold(own.confidence, own.right, others.confidence, convention=test.convention)

    rows = [
        test.with_threshold("fixed", "", fixed),
        test.with_chosen_threshold("accept", accepting, None if known is None else (known, None)),
        test.with_chosen_threshold("best", best, None if known is None or unknown is None else (known, unknown)),
    ]
    return [row for row in rows if row is not None]


def _notes(fixed: float, classes: int) -> list[str]:
    if fixed > 1.0 / classes:
        return []
    return [
        f"Of {classes} classes the largest probability is at least 1/{classes}: the threshold {fixed:g} rejects "
        "nothing."
    ]


def _result(test: OpenSetTest, rows: list[Rejection], *, main: str, **facts: Any) -> OpenSetEvaluation:  # noqa: ANN401
    """The evaluation with the main metrics at the threshold of the rule ``main``."""
    top = next(row for row in rows if row.rule == main).metrics
    auroc = test.auroc()
    return OpenSetEvaluation(
        format=OPEN_FORMAT,
        known=len(test.known.confidence),
        unknown=len(test.unknown.confidence),
        classes=test.classes,
        convention=test.convention,
        main=main,
        overall={
            "f_measure": top["f_measure"],
            "auroc": auroc["max_probability"],
            "unknown_rejected": top["unknown_rejected"],
            "known_rejected": top["known_rejected"],
            "open_accuracy": top["accuracy"],
            **{f"open_{name}": top[name] for name in GROUPS if name in top},
        },
        auroc=auroc,
        closed=test.accuracies(torch.ones_like(test.known.right)),
        thresholds=rows,
        curve=test.curve(bin_edges(STEPS)),
        trade=test.curve(_even_thresholds(test.known.confidence)),
        histogram=test.histogram(),
        **facts,
    )


def _opened(name: str, given: Given, *, labelled: bool = True) -> Predictions:
    """Open predictions; arrays have the name of the argument in error messages."""
    if isinstance(given, Predictions):
        return given
    source = open_predictions(given, targets=labelled)
    return replace(source, path=Path(name)) if isinstance(given, Mapping) else source


def _check_alike(known: Predictions, other: Predictions) -> None:
    """Raise unless both are single-label predictions of the same classes."""
    for source in (known, other):
        if not source.task.multiclass:
            raise InputError(
                f"{source.path}: an open set requires single-label predictions, scores (N, C), got predictions for "
                f"{source.task!r}; omit the open set"
            )
    if other.num_classes != known.num_classes:
        raise InputError(
            f"{other.path}: there must be scores of the {known.num_classes} classes of {known.path.name}, found "
            f"{other.num_classes}; take the predictions of the same model"
        )
    numbers = tuple(map(str, range(known.num_classes)))
    if other.class_names != known.class_names and numbers not in (other.class_names, known.class_names):
        first = next(pair for pair in zip(known.class_names, other.class_names, strict=True) if len(set(pair)) > 1)
        raise InputError(
            f"{other.path}: the classes must be those of {known.path.name} in the same order, found {first[1]!r} in "
            f"the place of {first[0]!r}; take the predictions of the same model"
        )


def _read(source: Predictions, progress: Callable[[int], None], labelled: bool) -> Samples:
    parts = []
    for chunk in source.chunks():
        scores = torch.from_numpy(chunk.scores.astype(np.float64))
        targets = torch.from_numpy(chunk.targets.astype(np.int64))
        if labelled:
            counted = targets != source.ignore_index
            scores, targets = scores[counted], targets[counted]
        largest, predicted = scores.max(1)
        if source.from_logits:
            parts.append(Samples(scores.softmax(1).amax(1), predicted, targets, largest, scores.logsumexp(1)))
        else:
            undefined = torch.full_like(largest, torch.nan)
            parts.append(Samples(largest, predicted, targets, undefined, undefined))
        progress(len(chunk.scores))
    samples = Samples(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
    if not len(samples.confidence):
        raise InputError(
            f"{source.path}: there must be at least one target that counts, found only ignored ones; check the labels "
            "or --ignore-index"
        )
    return samples


def _even_thresholds(confidence: Tensor) -> Tensor:
    """Thresholds that reject 0, 1, ..., 100 % of samples, up to ties; (STEPS + 1,)."""
    ordered = confidence.sort().values
    places = torch.arange(STEPS + 1) * len(ordered) // STEPS
    above = torch.nextafter(ordered[-1], ordered.new_tensor(torch.inf))
    return torch.cat([ordered, above.view(1)])[places]
