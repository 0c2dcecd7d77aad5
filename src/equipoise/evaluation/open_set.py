"""What predictions are worth where samples of no known class come along, which should be rejected (Liu et al. 2019).

A sample is rejected where its largest probability is below a threshold, as ``equipoise.heads.open_set_prediction`` has
it.
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
"""Of Liu et al. 2019."""
BINS = 25
"""Of the histograms of confidence."""
STEPS = 100
"""Of the curves."""
HALVES = (3, 4)
"""Streams of draws that halve the known and the unknown samples."""

Given: TypeAlias = Predictions | str | Path | Mapping[str, Any]
Rule: TypeAlias = "Callable[[Samples, Samples | None], float]"
"""Known and unknown samples to the threshold that they suggest."""


class Samples(NamedTuple):
    """What is kept of each sample, (N,): the largest probability, the prediction, the target, and two other scores.

    Targets of unknown samples count for nothing. ``max_logit`` and ``energy`` (the logsumexp of the logits: the
    negative free energy of W. Liu et al. 2020) are NaN of probabilities, which do not tell them.
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
        """These samples."""
        return Samples(*(column[own] for column in self))


@dataclass(frozen=True)
class Trial:
    """Known and unknown samples, and how they are judged."""

    known: Samples
    unknown: Samples
    classes: int
    groups: Tensor | None
    convention: str
    seed: int

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """Which half, 0 or 1, each known and each unknown sample is in; they differ by one sample at most."""
        known, unknown = (
            torch.from_numpy(np.random.default_rng((self.seed, stream)).permutation(len(rows.confidence)) % 2)
            for rows, stream in zip((self.known, self.unknown), HALVES, strict=True)
        )
        return known, unknown

    def chosen(self, rule: str, choose: Rule, data: tuple[Samples, Samples | None] | None) -> Rejection | None:
        """The row of a threshold that is chosen on validation data, or crosswise on the halves; None of too few."""
        if data is not None:
            return self.judged(rule, "validation data", choose(*data))
        known, unknown = self.halves
        parts = [(self.known.take(known == half), self.unknown.take(unknown == half)) for half in (0, 1)]
        if any(not len(rows.confidence) for part in parts for rows in part):
            return None
        first, second = (choose(*part) for part in parts)
        return self.judged(rule, "the other half of the samples", second, first)

    def judged(self, rule: str, chosen_on: str, *levels: float) -> Rejection:
        """A row of numbers at a threshold, or at two: that of the first half of the samples and that of the second."""
        of = torch.tensor(levels if len(levels) > 1 else levels * 2, dtype=torch.float64)
        known, unknown = self.halves
        accepted, let_in = self.known.confidence >= of[known], self.unknown.confidence >= of[unknown]
        right = self.known.right
        good, bad, lost, strange = (each.sum() for each in (accepted & right, accepted & ~right, ~accepted, let_in))
        false = bad + lost if self.convention == "oltr" else bad
        metrics = {
            "f_measure": plain(f_measure(good, bad, lost, strange, self.convention)),
            "precision": plain(good / (good + false).double()),
            "recall": plain(good / (good + strange).double()),
            "unknown_rejected": float((~let_in).double().mean()),
            "known_rejected": float((~accepted).double().mean()),
            **self.accuracies(accepted),
        }
        return Rejection(rule, list(levels), chosen_on, metrics)

    def accuracies(self, accepted: Tensor) -> dict[str, float | None]:
        """Accuracies of the known samples, of which a rejected one is wrong; by group where there are some."""
        hits, targets = self.known.right & accepted, self.known.target
        per_class = tally(targets[hits], self.classes) / tally(targets, self.classes).double()
        metrics = {"accuracy": plain(hits.double().mean()), "mean_class_accuracy": plain(per_class.nanmean())}
        if self.groups is None:
            return metrics
        means = group_means(per_class, self.groups, len(GROUPS))
        return metrics | {name: plain(mean) for name, mean in zip(GROUPS, means, strict=True)}


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

    What can be chosen depends on what there is. Validation data of the known classes give a threshold that accepts a
    share of them. The highest F-measure asks for unknown validation samples; without any it is chosen on halves: each
    sample is judged by the threshold of the half that it is not in. That is fair only if the unknown samples to come
    are like these.

    Args:
        known: predictions of samples of the known classes, from ``open_predictions``, or what it takes: a path, or
            arrays such as ``{"logits": logits, "targets": targets}``; likewise the others.
        unknown: those of samples of no known class, also a part of ``split_open``; their targets are not looked at and
            need not be there.
        threshold: probability below which a sample is rejected. None: the one that accepts ``accept`` of ``val``, or
            without ``val`` the published 0.1, which rejects nothing of ten classes or fewer.
        convention: of the F-measure: ``"oltr"`` or ``"kang"``, see ``equipoise.metrics.OpenSetScores``.
        val: predictions of validation data of the known classes.
        open_val: those of unknown samples that are not in ``unknown``.
        accept: share of the known samples that the threshold of the rule ``"accept"`` accepts.
        seed: of the halves.
        progress: called with the number of samples that were read since the last call; all are read once.

    Returns:
        The main metrics, AUROC of three scores, accuracies without rejection, metrics by way to choose the threshold,
        curves over thresholds, a histogram of the confidence. Groups are there where the training counts are known.
        ``to_json()`` gives plain data; None stands for a value that does not exist.
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
    test = Trial(
        _read(known, progress, labelled=True),
        _read(unknown, progress, labelled=False),
        known.num_classes,
        None if known.train_counts is None else shot_groups(known.train_counts),
        convention,
        seed,
    )
    checks = None if val is None else _read(val, progress, labelled=True)
    open_checks = None if open_val is None else _read(open_val, progress, labelled=False)

    def accepting(own: Samples, _: Samples | None) -> float:
        return accepting_threshold(own.confidence, share=accept)

    def best(own: Samples, others: Samples | None) -> float:
        assert others is not None
        return best_threshold(own.confidence, own.right, others.confidence, convention=convention)

    fixed = PUBLISHED_THRESHOLD if threshold is None else float(threshold)
    rows = [
        test.judged("fixed", "", fixed),
        test.chosen("accept", accepting, None if checks is None else (checks, None)),
        test.chosen("best", best, None if checks is None or open_checks is None else (checks, open_checks)),
    ]
    samples, strange, classes = test.known, test.unknown, test.classes
    notes = []
    if fixed <= 1.0 / classes:
        notes.append(
            f"Of {classes} classes the largest probability is at least 1/{classes}: the threshold {fixed:g} rejects "
            "nothing."
        )
    areas = {
        name: plain(auroc(own, other))
        for name, own, other in (
            ("max_probability", samples.confidence, strange.confidence),
            ("max_logit", samples.max_logit, strange.max_logit),
            ("energy", samples.energy, strange.energy),
        )
        if not bool(own.isnan().any()) and not bool(other.isnan().any())
    }
    main = "accept" if threshold is None and val is not None else "fixed"
    thresholds = [row for row in rows if row is not None]
    top = next(row for row in thresholds if row.rule == main).metrics
    told = "accept" if threshold is None and any(row.rule == "accept" for row in thresholds) else main
    return OpenSetEvaluation(
        format=OPEN_FORMAT,
        file=known.path.name,
        open_file=unknown.path.name,
        known=len(samples.confidence),
        unknown=len(strange.confidence),
        classes=classes,
        convention=convention,
        accept=accept,
        main=main,
        told=told,
        overall={
            "f_measure": top["f_measure"],
            "auroc": areas["max_probability"],
            "unknown_rejected": top["unknown_rejected"],
            "known_rejected": top["known_rejected"],
            "open_accuracy": top["accuracy"],
            **{f"open_{name}": top[name] for name in GROUPS if name in top},
        },
        auroc=areas,
        closed=test.accuracies(torch.ones_like(samples.right)),
        thresholds=thresholds,
        curve=_curve(samples, strange, bin_edges(STEPS), convention),
        trade=_curve(samples, strange, _share_levels(samples.confidence), convention),
        histogram=_histogram(samples, strange),
        notes=notes,
    )


def _opened(name: str, given: Given, *, labelled: bool = True) -> Predictions:
    """Predictions as they are, or of a path, or of arrays, which errors call by the name of the argument."""
    if isinstance(given, Predictions):
        return given
    found = open_predictions(given, targets=labelled)
    return replace(found, path=Path(name)) if isinstance(given, Mapping) else found


def _check_alike(known: Predictions, other: Predictions) -> None:
    """Raise unless both are of one label a sample and of the same classes."""
    for source in (known, other):
        if not source.task.multiclass:
            raise InputError(
                f"{source.path}: an open set is defined for one label a sample, scores (N, C), found predictions for "
                f"{source.task!r}; leave the open set out"
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
            nothing = torch.full_like(largest, torch.nan)
            parts.append(Samples(largest, predicted, targets, nothing, nothing))
        progress(len(chunk.scores))
    found = Samples(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
    if not len(found.confidence):
        raise InputError(
            f"{source.path}: there must be at least one target that counts, found only ignored ones; check the labels "
            "or --ignore-index"
        )
    return found


def _curve(samples: Samples, strange: Samples, levels: Tensor, convention: str) -> RejectionRates:
    curve = rejection_curve(samples.confidence, samples.right, strange.confidence, levels, convention=convention)
    f_measure, accuracy = ([plain(value) for value in values] for values in (curve.f_measure, curve.accuracy))
    rejected = curve.known_rejected.tolist(), curve.unknown_rejected.tolist()
    return RejectionRates(curve.threshold.tolist(), f_measure, accuracy, *rejected)


def _share_levels(confidence: Tensor) -> Tensor:
    """Thresholds that reject 0, 1, ..., 100 % of samples, as far as equal confidences can be parted; (STEPS + 1,)."""
    ordered = confidence.sort().values
    places = torch.arange(STEPS + 1) * len(ordered) // STEPS
    above = torch.nextafter(ordered[-1], ordered.new_tensor(torch.inf))
    return torch.cat([ordered, above.view(1)])[places]


def _histogram(samples: Samples, strange: Samples) -> ConfidenceHistogram:
    """Samples in bins of confidence: known ones predicted right and wrong, and unknown ones."""
    kinds = {
        "known_right": samples.confidence[samples.right],
        "known_wrong": samples.confidence[~samples.right],
        "unknown": strange.confidence,
    }
    counts = {name: tally(bin_index(values, BINS), BINS).tolist() for name, values in kinds.items()}
    return ConfidenceHistogram(bin_edges(BINS).tolist(), **counts)
