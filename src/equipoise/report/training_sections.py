"""Report sections on the training, over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise._formatting import capital, joined
from equipoise.comparison.kinds import MADE_AFTERWARDS
from equipoise.comparison.verdict import Verdict
from equipoise.expressions import method_name
from equipoise.metric_registry import metric_info
from equipoise.plotting.epochs import over_time
from equipoise.plotting.theme import css, shades
from equipoise.plotting.weights import LINES, normalised, weights_by_class, weights_over_time
from equipoise.report.page import Key, Picture, Section
from equipoise.report.runs import ComparedLoss
from equipoise.report.tables import label

__all__ = ["asymmetry_section", "learning_section", "right_and_wrong_section", "sweeps_section", "weights_section"]

Array = NDArray[np.float64]


class Lines(NamedTuple):
    """A figure over the epochs, and the names of its lines."""

    picture: Picture
    names: frozenset[str]


def learning_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section | None:
    """Training loss, validation scores and norms."""
    record = losses[0].record
    chosen = record.monitor
    judged = (
        "Evaluated after the last epoch."
        if record.spec["checkpoint"] == "last"
        else f"{capital(label(chosen))} on validation data selected the evaluated epoch."
    )
    scores = dict.fromkeys([chosen, *verdict.metrics])
    figures = [
        _lines(losses, "train", "loss", "training loss / first epoch", relative=True),
        *(
            _lines(losses, "val", name, f"{label(name)}, validation", percent=metric_info(name).unit == "percent")
            for name in scores
        ),
        _lines(losses, "train", "gradient_norm", "norm of the gradient"),
        _lines(losses, "train", "weight_norm", "norm of the weights"),
    ]
    return _over_time_section(
        "Training",
        f"{judged} Lines are means over the seeds, bands their range. Values of different losses are not comparable, "
        f"so each training loss is divided by that of its first epoch.{_without_lines(losses)}",
        losses,
        figures,
    )


def sweeps_section(sweeps: Mapping[str, Sequence[ComparedLoss]], verdict: Verdict) -> Section | None:
    """A line for each candidate of a row, also of those that were not chosen (Tian et al. 2021, figure 5)."""
    scores = dict.fromkeys((verdict.main_metric, "nll", "ece"))

    def part(name: str, candidates: Sequence[ComparedLoss]) -> Section | None:
        figures = [
            _lines(candidates, "train", "loss", "training loss"),
            *(
                _lines(candidates, "val", key, f"{label(key)}, validation", percent=metric_info(key).unit == "percent")
                for key in scores
            ),
        ]
        return _over_time_section(name, "", candidates, figures, folded=len(sweeps) > 3)

    parts = [section for name, own in sweeps.items() if (section := part(name, own)) is not None]
    if not parts:
        return None
    return Section(
        "Candidates",
        "The candidates of each row, one line each: means over the seeds, bands their range. Training losses of "
        "different settings may have different scales.",
        parts=parts,
    )


def right_and_wrong_section(losses: Sequence[ComparedLoss]) -> Section | None:
    """NLL, entropy and confidence of correct and wrong predictions (Mukhoti et al. 2020, fig. 2 and 3), if recorded."""
    titles = {
        "nll_wrong": "NLL of wrong predictions",
        "nll_right": "NLL of correct predictions",
        "entropy_wrong": "entropy of wrong predictions",
        "entropy_right": "entropy of correct predictions",
        "confidence_wrong": "confidence of wrong predictions",
        "confidence_right": "confidence of correct predictions",
    }

    def figures(split: str) -> list[Lines | None]:
        return [
            _lines(losses, split, name, title, percent=name.startswith("confidence")) for name, title in titles.items()
        ]

    section = _over_time_section(
        "Correct and wrong predictions",
        "On validation data. Growing confidence in wrong predictions indicates miscalibration: the NLL "
        "of wrong predictions rises and their entropy falls (Mukhoti et al. 2020, figures 2 and 3)."
        f"{_without_lines(losses)}",
        losses,
        figures("val"),
    )
    training = _over_time_section("The same on training data", "", losses, figures("train"), folded=True)
    return section and _with_part(section, training)


def weights_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section | None:
    """Recall weights, and the weights of focal losses for comparison."""
    counts = verdict.data.train_counts
    order = np.argsort([-count for count in counts], kind="stable")
    names = [verdict.data.class_names[k] for k in order]
    members = _members(counts, order, names)

    def lines(weights: Array) -> dict[str, Array]:
        return {name: weights[:, places].mean(1) for name, places in members.items()}

    recalled = {loss.name: loss.by_class("train", "recall_weights") for loss in losses}
    recall_losses = [loss for loss in losses if "Recall" in loss.loss or "RecallWeights" in loss.record.loss]
    shown_losses = [*recall_losses, *(loss for loss in losses if loss.baseline and loss not in recall_losses)]
    figures = []
    for loss in shown_losses:
        weights = recalled[loss.name]
        if weights is not None:
            weights = normalised(weights[:, order])
            figures.append(Picture(weights_over_time(f"{loss.name}: over time", lines(weights))))
            figures.append(Picture(weights_by_class(f"{loss.name}: by class", weights, names)))
    if not figures:
        return None
    colours = [Key(name, css(colour)) for name, colour in zip(members, shades(len(members)), strict=True)]
    section = Section(
        "Recall weights",
        "The weight 1 − recall of each class on training batches, normalised to a sum of one, for "
        "rows with recall loss and for the baseline (Tian et al. 2021, figures 1a and 2c). Colours go from "
        f"the {'most common to the rarest class' if len(names) <= LINES else 'common to the rare classes'}.",
        keys=colours,
        figures=figures,
    )
    return _with_part(section, _focal_against_recall(losses, recall_losses, order, lines, colours))


def _focal_against_recall(
    losses: Sequence[ComparedLoss],
    recall_losses: Sequence[ComparedLoss],
    order: NDArray[np.int64],
    lines: Callable[[Array], dict[str, Array]],
    colours: Sequence[Key],
) -> Section | None:
    """Focal and recall weights with their ratio (Tian et al. 2021, appendix A.1, figure 4)."""
    focal_losses = [loss for loss in losses if "Focal" in loss.loss]
    baselines = [loss for loss in losses if loss.baseline] or list(losses)
    focal_loss, recall_loss = (focal_losses or baselines)[0], (list(recall_losses) or baselines)[0]
    focal, recall = focal_loss.by_class("train", "focal_weights"), recall_loss.by_class("train", "recall_weights")
    if focal is None or recall is None or len(focal) != len(recall):
        return None
    focal, recall = normalised(focal[:, order]), normalised(recall[:, order])
    ratio = {
        name: np.divide(top, low, out=np.full_like(top, np.nan), where=low > 0)
        for (name, top), low in zip(lines(recall).items(), lines(focal).values(), strict=True)
    }
    return Section(
        "Focal against recall weights",
        f"The mean of 1 − p over the samples of a class with {focal_loss.name}, the weight 1 − recall with "
        f"{recall_loss.name}, and their ratio. A focal loss can be lowered by more confidence in correct "
        "predictions, a recall loss only by more correct predictions (Tian et al. 2021, appendix A.1, figure 4).",
        keys=colours,
        figures=[
            Picture(weights_over_time("focal weights", lines(focal))),
            Picture(weights_over_time("recall weights", lines(recall))),
            Picture(weights_over_time("recall / focal", ratio, ratio=True)),
        ],
    )


def _members(counts: Sequence[float], order: NDArray[np.int64], names: Sequence[str]) -> dict[str, list[int]]:
    """Indices of the classes of each line: one class, or groups if there are many classes."""
    if len(names) <= LINES:
        return (
            {name: [place] for place, name in enumerate(names)}
            if len(set(names)) == len(names)
            else {f"{place + 1}: {name}": [place] for place, name in enumerate(names)}
        )
    parts = np.array_split(np.arange(len(names)), 5)
    words = ("most common fifth", "second fifth", "third fifth", "fourth fifth", "rarest fifth")
    return {word: part.tolist() for word, part in zip(words, parts, strict=True)}


def asymmetry_section(losses: Sequence[ComparedLoss]) -> Section | None:
    """Probabilities of positives and negatives, and the adaptive exponent; None if not recorded."""
    adaptive = [loss for loss in losses if _moves(loss, "gamma_neg")]
    figures = [
        _lines(losses, "train", "probability_positive", "probability of positives", percent=True),
        _lines(losses, "train", "probability_negative", "1 − probability of negatives", percent=True),
        _lines(losses, "train", "probability_gap", "probability gap, training", zero=True),
        _lines(losses, "val", "probability_gap", "probability gap, validation", zero=True),
        _lines(adaptive, "train", "gamma_neg", "exponent γ₋ of the negatives"),
    ]
    if figures[2] is None:
        return None
    return _over_time_section(
        "Positives and negatives",
        "The gap is the mean predicted probability of positives minus the mean of 1 − probability of negatives. Below "
        "zero the negatives, which are more frequent, dominate (Ridnik et al. 2021, figures 4 and 9)."
        f"{_without_lines(losses)}",
        losses,
        figures,
    )


def _moves(loss: ComparedLoss, name: str) -> bool:
    """Whether a setting changed during training; constant settings are not drawn."""
    series = loss.series("train", name)
    return series is not None and bool(np.nanmin(series.low) < np.nanmax(series.high))


def _without_lines(losses: Sequence[ComparedLoss]) -> str:
    """A sentence on the rows without epochs, with a leading space; empty if all have epochs."""
    names = [loss.name for loss in losses if method_name(loss.chosen) in MADE_AFTERWARDS and not any(loss.histories)]
    if not names:
        return ""
    made = "its classifier was" if len(names) == 1 else "their classifiers were"
    return f" No line for {joined(names)}: {made} fitted after the training of another run."


def _lines(losses: Iterable[ComparedLoss], split: str, name: str, title: str, **options: bool) -> Lines | None:
    series = {loss.name: (curve, loss.stroke) for loss in losses if (curve := loss.series(split, name)) is not None}
    return Lines(Picture(over_time(title, series, **options)), frozenset(series)) if series else None


def _over_time_section(
    title: str, text: str, losses: Sequence[ComparedLoss], figures: Sequence[Lines | None], *, folded: bool = False
) -> Section | None:
    drawn = [figure for figure in figures if figure is not None]
    names = frozenset().union(*(figure.names for figure in drawn))
    keys = [loss.key for loss in losses if loss.name in names]
    pictures = [figure.picture for figure in drawn]
    return Section(title, text, keys=keys, figures=pictures, folded=folded) if drawn else None


def _with_part(section: Section, part: Section | None) -> Section:
    return section if part is None else replace(section, parts=[*section.parts, part])
