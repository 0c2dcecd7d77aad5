r"""Per-sample statistics of predictions, and metrics for any weights of the samples.

A metric is a function of sums over samples. With weights :math:`w_i` of the samples the sums are
:math:`\sum_i w_i x_i`, one sparse product for many bootstrap draws. ``METRICS`` lists the statistics that each metric
needs and its formula; ``evaluate(bootstrap=...)`` and ``equipoise compare`` both resample with it. A sample is the unit
that was sampled when the data were collected: an image with all its pixels or labels, never a single pixel. Ignored
samples are drawn too and add 0. Does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from equipoise.metric_registry import TVERSKY
from equipoise.predictions import Predictions
from equipoise.tasks import GROUPS, Task

__all__ = [
    "AFTER",
    "COLLECTORS",
    "GROUPS",
    "METRICS",
    "WITH_INTERVALS",
    "Collector",
    "ResampledMetric",
    "SampleStatistics",
]

AFTER = "_after"
"""Suffix of metrics and statistics after calibration."""
CELLS = 16
"""Number of cells per bin of equal mass; events are summed per cell, and bins are composed of cells."""
FINE = 2**14
"""Number of cells of confidence in which pixels are counted, of equal width in logits from -16 to 16."""

Array = NDArray[Any]
Statistic = Callable[[Array], Array]
"""Maps weights (samples, draws) to sums (k, draws)."""


class ResampledMetric(NamedTuple):
    """A metric as a function of statistics.

    Args:
        statistics: names of the arguments of ``value``, each (k, draws).
        value: returns the metric (draws,), or values (classes, draws) whose mean is the metric.
        classes: the classes of that mean, ``"all"`` or a group; classes without a value are excluded.
        lowest: the lowest value it can have, at which intervals are clipped.
    """

    statistics: tuple[str, ...]
    value: Callable[..., Array]
    classes: str | None = None
    lowest: float = 0.0


@dataclass(frozen=True)
class SampleStatistics:
    """Statistics of the samples of one set of predictions.

    Args:
        samples: number of samples.
        statistics: statistics by name.
        metrics: metrics by name.
        groups: boolean mask (classes,) of each group of classes.
        least: by metric, the minimum variance that test samples add to a difference of two models: the variance if one
            sample is correct only for the first model and one only for the second.
    """

    samples: int
    statistics: Mapping[str, Statistic]
    metrics: Mapping[str, ResampledMetric]
    groups: Mapping[str, Array]
    least: Mapping[str, float]

    def weigh(self, weights: Array) -> dict[str, Array]:
        """The metrics for samples with ``weights`` (samples, draws); (draws,) each.

        NaN if a metric is undefined, such as that of a group of classes of which no sample was drawn. Sums have the
        precision of the weights.

        In the ECE every bin keeps the sign of its gap on all samples. Resampling adds noise to the gap of each bin, and
        absolute values would turn this noise into bias: the draws would be larger than the estimate, intervals could
        exclude it and would have too low coverage. In comparisons absolute values would also hide the variation of the
        test samples that all seeds share.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            sums = {name: statistic(weights).astype(np.float64) for name, statistic in self.statistics.items()}
            return {name: self._value(metric, sums) for name, metric in self.metrics.items()}

    def _value(self, metric: ResampledMetric, sums: Mapping[str, Array]) -> Array:
        value = metric.value(*(sums[name] for name in metric.statistics))
        if metric.classes is None:
            return value
        return _mean(value if metric.classes == "all" else value[self.groups[metric.classes]])


# ---------------------------------------------------------------------------------------------------------- metrics


def _class_f1(hits: Array, support: Array, predicted: Array) -> Array:
    """F1 of the mean precision and the mean recall of labels with positives."""
    precision = _mean(np.where(support > 0, hits / np.maximum(predicted, 1.0), np.nan))
    recall = _mean(hits / support)
    return np.where(precision + recall == 0, 0.0, 2 * precision * recall / (precision + recall))


def _equal_mass_error(mass: Array, gap: Array) -> Array:
    """Calibration error of bins of equal mass, from sums (cells, draws) in order of confidence.

    The sample of rank i of n is in bin floor(i B / n); a cell on the border of two bins is split proportionally.
    """
    bins = len(mass) // (2 * CELLS)
    total = mass.sum(0)
    ends, heights = (np.vstack([np.zeros_like(total), np.cumsum(part, 0)]).T for part in (mass, gap))
    cuts = np.ceil(np.arange(bins + 1) * total[:, None] / bins)
    apart = (np.arange(len(total)) * (total.max() + 1.0))[
        :, None
    ]  # shift each draw, so that one interpolation serves all
    up_to = np.interp((cuts + apart).ravel(), (ends + apart).ravel(), heights.ravel()).reshape(cuts.shape)
    error: Array = np.abs(np.diff(up_to, axis=1)).sum(1) / total
    return error


def _mean(values: Array) -> Array:
    """Mean over the rows, ignoring undefined values; NaN if all are undefined."""
    exists = np.isfinite(values)
    mean: Array = np.where(exists, values, 0.0).sum(0) / exists.sum(0)
    return mean


COUNTS = ("hits", "support", "predicted")
ACCURACY = ResampledMetric(("hits", "events"), lambda hits, events: hits.sum(0) / events[0])
RECALL = ResampledMetric(("hits", "support"), lambda hits, support: hits / support, "all")
AVERAGE_PRECISION = ResampledMetric(("average_precision",), lambda precision: precision, "all")
F1 = ResampledMetric(COUNTS, lambda hits, support, predicted: 2.0 * hits / (support + predicted), "all")
IOU = ResampledMetric(COUNTS, lambda hits, support, predicted: hits / (support + predicted - hits), "all")
PRECISION = ResampledMetric(("hits", "predicted"), lambda hits, predicted: hits / predicted, "all")
ALPHA, BETA = TVERSKY
TVERSKY_INDEX = ResampledMetric(
    COUNTS,
    lambda hits, support, predicted: hits / (hits + ALPHA * (predicted - hits) + BETA * (support - hits)),
    "all",
)
OVERALL_F1 = ResampledMetric(
    COUNTS,
    lambda hits, support, predicted: np.where(
        (support > 0).any(0), 2 * hits.sum(0) / (predicted.sum(0) + support.sum(0)), np.nan
    ),
)
ECE = ResampledMetric(("ece", "events"), lambda gaps, events: gaps.sum(0) / events[0])
ADA_ECE = ResampledMetric(("mass", "gap"), _equal_mass_error)
NLL = ResampledMetric(("nll", "events"), lambda nll, events: np.where(nll[1] > 0, np.inf, nll[0] / events[0]))


def _by_group(metric: ResampledMetric) -> dict[str, ResampledMetric]:
    return {group: metric._replace(classes=group) for group in GROUPS}


def _after(metric: ResampledMetric) -> ResampledMetric:
    statistics = tuple(name if name == "events" else name + AFTER for name in metric.statistics)
    return metric._replace(statistics=statistics)


CALIBRATION = {"ece": ECE, "ada_ece": ADA_ECE, "nll": NLL}
METRICS: Mapping[Task, Mapping[str, ResampledMetric]] = {
    task: {**metrics, **CALIBRATION, **{name + AFTER: _after(metric) for name, metric in CALIBRATION.items()}}
    for task, metrics in {
        Task.MULTICLASS: {"accuracy": ACCURACY, "mean_class_accuracy": RECALL, **_by_group(RECALL), "macro_f1": F1},
        Task.MULTILABEL: {
            "mean_average_precision": AVERAGE_PRECISION,
            **_by_group(AVERAGE_PRECISION),
            "CF1": ResampledMetric(COUNTS, _class_f1),
            "OF1": OVERALL_F1,
        },
        Task.SEGMENTATION: {
            "mean_iou": IOU,
            **_by_group(IOU),
            "mean_accuracy": RECALL,
            "mean_precision": PRECISION,
            "mean_dice": F1,
            "mean_tversky": TVERSKY_INDEX,
            "pixel_accuracy": ACCURACY,
        },
    }.items()
}
"""Metrics that can be resampled, by task."""
WITH_INTERVALS: Mapping[Task, tuple[str, ...]] = {
    task: tuple(
        name
        for name, metric in metrics.items()
        if metric.classes not in GROUPS and not name.endswith(AFTER) and metric is not ADA_ECE
    )
    for task, metrics in METRICS.items()
}
"""Metrics of all classes that ``evaluate(bootstrap=...)`` gives intervals for; the AdaECE would rank all events."""


# ------------------------------------------------------------------------------------------------------- statistics


class Collector(ABC):
    """Computes the statistics of samples, chunk by chunk.

    Args:
        source: the predictions.
        metrics: names of some of ``METRICS``; None for all. Only their statistics are kept.
        groups: boolean mask (classes,) of each group of classes.
        bins: number of bins of the calibration errors.
        calibration: slope and offset of each class, for the metrics after calibration.
    """

    dtype: ClassVar[type[np.floating[Any]]] = np.float32

    def __init__(
        self,
        source: Predictions,
        *,
        metrics: Sequence[str] | None = None,
        groups: Mapping[str, Array] | None = None,
        bins: int = 15,
        calibration: tuple[Array, Array] | None = None,
    ) -> None:
        self.classes, self.ignore_index = source.num_classes, source.ignore_index
        self.groups, self.bins, self.calibration = groups or {}, bins, calibration
        self.endings = ("",) if calibration is None else ("", AFTER)
        known = METRICS[source.task]
        self.metrics = {
            name: known[name]
            for name in (known if metrics is None else metrics)
            if known[name].classes in (None, "all", *self.groups)
            if calibration is not None or not name.endswith(AFTER)
        }
        self.needed = {name for metric in self.metrics.values() for name in metric.statistics}
        self.edges = (np.arange(1, bins) / bins).astype(np.float32)
        self.samples = 0
        self.parts: dict[str, list[Any]] = defaultdict(list)
        self.ranked: dict[str, list[tuple[Array, ...]]] = defaultdict(list)

    def add(self, logits: Array, targets: Array) -> None:
        """Add a chunk: logits (n, C, d1, ..., dk) and targets (n, d1, ..., dk), or (n, C) for multi-label data."""
        logits = logits.astype(np.promote_types(logits.dtype, np.float32), copy=False)
        with np.errstate(divide="ignore", invalid="ignore"):  # logits of -inf
            for name, table in self._tables(logits, targets).items():
                if name in self.needed:
                    self.parts[name].append(table)
        self.samples += len(targets)

    def finish(self) -> SampleStatistics:
        """The statistics of all samples."""
        tables = {name: sparse.hstack(parts, format="csr") for name, parts in self.parts.items()}
        for ending in self.endings:
            if (name := f"ece{ending}") in tables:  # each bin has the sign of its gap on all samples
                signs = np.sign(tables[name].sum(1))
                tables[name].data *= np.repeat(signs, np.diff(tables[name].indptr))
            if ending in self.ranked:
                tables |= self._equal_mass(ending)
        statistics = {name: table.dot for name, table in tables.items()} | self._rankings()
        return SampleStatistics(self.samples, statistics, self.metrics, self.groups, self._least(tables))

    @abstractmethod
    def _tables(self, logits: Array, targets: Array) -> dict[str, Any]:
        """Sparse tables (k, n) with the terms of each sample of a chunk in each sum."""

    def _rankings(self) -> dict[str, Statistic]:
        """Statistics that are not sums over samples."""
        return {}

    def _least(self, tables: Mapping[str, Any]) -> dict[str, float]:
        """The minimum variance that samples add to a difference, for metrics where it is known."""
        return {}

    def _joined(self, name: str) -> Iterator[Array]:
        """Concatenated columns for a ranking over all samples."""
        return (np.concatenate(parts) for parts in zip(*self.ranked[name], strict=True))

    def _each_way(self, logits: Array) -> Iterator[tuple[str, Array]]:
        """Logits (classes, n) before and after calibration, with the suffix of the names."""
        yield "", logits
        if self.calibration is not None:
            slope, offset = (values.astype(logits.dtype)[:, None] for values in self.calibration)
            yield AFTER, logits * slope + offset

    def _events(
        self, sample: Array, confidence: Array, correct: Array, nll: Array, samples: int, ending: str
    ) -> dict[str, Any]:
        """Tables of events with their confidence, correctness and NLL."""
        gap = correct - confidence.astype(np.float64)
        if f"mass{ending}" in self.needed:
            self.ranked[ending].append((sample + self.samples, confidence, np.ones_like(gap), gap))
        infinite = np.isinf(nll)
        return {
            f"ece{ending}": _table(np.searchsorted(self.edges, confidence), sample, gap, (self.bins, samples)),
            f"nll{ending}": _table(infinite.astype(np.int64), sample, np.where(infinite, 1.0, nll), (2, samples)),
        }

    def _equal_mass(self, ending: str) -> dict[str, Any]:
        """Tables of the events in cells of equal mass: their number, and the sum of their gaps.

        Events are ranked by level: the confidence, or the index of a fine cell of confidence.
        """
        sample, level, count, gap = self._joined(ending)
        if level.dtype.kind == "f":
            _, level = np.unique(level, return_inverse=True)
        cells = CELLS * self.bins
        cell = _cells(np.bincount(level, count), cells)[level]
        values = {"mass": count, "gap": gap}
        return {
            name + ending: _table(cell, sample, value, (2 * cells, self.samples)).astype(self.dtype)
            for name, value in values.items()
        }


class MulticlassCollector(Collector):
    """Single-label predictions."""

    def _tables(self, logits: Array, targets: Array) -> dict[str, Any]:
        sample = np.flatnonzero(targets != self.ignore_index)
        labels, logits = targets[sample].astype(np.int64), logits[sample]
        predicted = logits.argmax(1)
        correct = predicted == labels
        shape = (self.classes, len(targets))
        tables = {
            "events": _table(np.zeros_like(sample), sample, 1.0, (1, len(targets))),
            "support": _table(labels, sample, 1.0, shape),
            "predicted": _table(predicted, sample, 1.0, shape),
            "hits": _table(labels[correct], sample[correct], 1.0, shape),
        }
        for ending, scores in self._each_way(logits.T):
            confidence, nll = _top(scores, labels)
            tables |= self._events(sample, confidence, correct, nll, len(targets), ending)
        return tables

    def _least(self, tables: Mapping[str, Any]) -> dict[str, float]:
        """A sample of class c moves a mean over K classes by 1 / (K n_c)."""
        if "support" not in tables:
            return {}
        support = tables["support"].sum(1, dtype=np.float64)
        least = {}
        for name, members in {"mean_class_accuracy": support > 0, **self.groups}.items():
            counts = support[members & (support > 0)]
            if len(counts):
                least[name] = 2.0 * float((1.0 / counts).sum()) / (float(counts.sum()) * len(counts) ** 2)
        least["macro_f1"] = least.get("mean_class_accuracy", 0.0)
        least["accuracy"] = 2.0 / max(1.0, float(support.sum())) ** 2
        return least


class SegmentationCollector(Collector):
    """Segmentation predictions."""

    dtype = np.float64  # many pixels: float32 counts only up to 2**24

    def _tables(self, logits: Array, targets: Array) -> dict[str, Any]:
        flat = logits.reshape(*logits.shape[:2], -1), targets.reshape(len(targets), -1).astype(np.int64)
        images = [self._image(number, *image) for number, image in enumerate(zip(*flat, strict=True), self.samples)]
        return {name: sparse.csr_array(np.stack([image[name] for image in images], 1)) for name in images[0]}

    def _image(self, number: int, logits: Array, labels: Array) -> dict[str, Array]:
        """Sums over the pixels of one image, logits (classes, pixels)."""
        valid = labels != self.ignore_index
        known = np.where(valid, labels, 0)
        predicted, labels = _predicted(logits)[valid], labels[valid]
        correct = predicted == labels
        sums = {
            "events": np.array([float(len(labels))]),
            "support": _tally(labels, self.classes),
            "predicted": _tally(predicted, self.classes),
            "hits": _tally(labels[correct], self.classes),
        }
        for ending, scores in self._each_way(logits):
            confidence, nll = (values[valid] for values in _top(scores, known))
            gap = correct - confidence.astype(np.float64)
            finite = np.isfinite(nll)
            sums[f"ece{ending}"] = _tally(np.searchsorted(self.edges, confidence), self.bins, gap)
            sums[f"nll{ending}"] = np.array([nll[finite].sum(), float((~finite).sum())])
            if f"mass{ending}" in self.needed:
                fine = _fine_cell(confidence)
                count, gaps = _tally(fine, FINE), _tally(fine, FINE, gap)
                level = np.flatnonzero(count)
                self.ranked[ending].append((np.full_like(level, number), level, count[level], gaps[level]))
        return sums


class MultilabelCollector(Collector):
    """Multi-label predictions."""

    def _tables(self, logits: Array, targets: Array) -> dict[str, Any]:
        known, positive = targets >= 0, targets == 1
        predicted = (logits > 0) & known
        if "average_precision" in self.needed:
            self.ranked["average_precision"].append((logits, positive, known))
        sample, label = np.nonzero(known)
        tables = {"events": _table(np.zeros_like(sample), sample, 1.0, (1, len(targets)))}
        for name, kind in (("support", positive), ("predicted", predicted), ("hits", positive & predicted)):
            row, column = np.nonzero(kind)
            tables[name] = _table(column, row, 1.0, (self.classes, len(targets)))
        for ending, scores in self._each_way(logits.T):
            logit, correct = scores[label, sample].astype(np.float64), positive[sample, label]
            nll = np.logaddexp(0.0, np.where(correct, -logit, logit))
            tables |= self._events(sample, expit(logit).astype(np.float32), correct, nll, len(targets), ending)
        return tables

    def _rankings(self) -> dict[str, Statistic]:
        """Average precision of each label, (labels, draws)."""
        if "average_precision" not in self.ranked:
            return {}
        logits, positive, known = self._joined("average_precision")
        rankings = [Ranking(logits[:, k], positive[:, k], known[:, k]) for k in range(self.classes)]
        return {
            "average_precision": lambda weights: np.stack([one.average_precision(weights) for one in rankings]),
        }


class Ranking:
    r"""Scores of one label, sorted once.

    Average precision evaluates the precision only at scores of positives. So the samples are summed between one such
    score and the next higher one, and average precision is :math:`\sum_j p_j P_j / T_j / \sum_j p_j` with the weight
    :math:`p_j` of the positives at score j, and :math:`P_j, T_j` those of the positives and of all samples
    at or above it.
    """

    def __init__(self, scores: Array, positive: Array, known: Array) -> None:
        levels = np.unique(scores[positive])
        at = np.searchsorted(levels, scores, side="right") - 1  # below the lowest: -1
        shape = (len(levels), len(scores))
        counted, positives = np.flatnonzero(known & (at >= 0)), np.flatnonzero(positive)
        self.counted = _table(at[counted], counted, 1.0, shape)
        self.positive = _table(at[positives], positives, 1.0, shape)

    def average_precision(self, weights: Array) -> Array:
        """Average precision for each column of the weights; NaN if no positive is drawn."""
        positive = self.positive @ weights
        above, all_above = (np.cumsum(part[::-1], 0)[::-1] for part in (positive, self.counted @ weights))
        precision: Array = (positive * above / np.maximum(all_above, 1.0)).sum(0, dtype=np.float64) / positive.sum(0)
        return precision


COLLECTORS: Mapping[Task, type[Collector]] = {
    Task.MULTICLASS: MulticlassCollector,
    Task.MULTILABEL: MultilabelCollector,
    Task.SEGMENTATION: SegmentationCollector,
}


def _top(logits: Array, labels: Array) -> tuple[Array, Array]:
    """For logits (classes, n): the largest probability in float32, and the negative log-likelihood of the label."""
    top = logits.max(0)
    total = np.exp(logits - top).sum(0)
    nll = np.log(total) + (top - logits[labels, np.arange(len(labels))])
    return (1.0 / total).astype(np.float32), nll


def _predicted(logits: Array) -> Array:
    """Class of the largest of logits (classes, n), the first of equal ones; faster than ``argmax`` along classes."""
    top, predicted = logits.max(0), np.zeros(logits.shape[1], np.int64)
    for k in reversed(range(len(logits))):
        np.copyto(predicted, k, where=logits[k] == top)
    return predicted


def _cells(count: Array, cells: int) -> Array:
    """Cell of each distinct confidence, in ascending order; ``count`` is the number of events with it.

    Even cells have equal mass. A confidence that is too frequent for one of them has its own odd cell between two even
    ones. So borders of bins are between cells, or in a cell of equal confidences.
    """
    ends = np.cumsum(count)
    total = max(1, int(ends[-1])) if len(ends) else 1
    first = (ends - count).astype(np.int64) * cells // total
    last = np.maximum(ends.astype(np.int64) - 1, 0) * cells // total
    cell: Array = np.minimum(2 * first + (last > first), 2 * cells - 1)
    return cell


def _fine_cell(confidence: Array) -> Array:
    """Cell of each confidence, in equal steps of its logit."""
    with np.errstate(divide="ignore"):
        logit = np.log(confidence) - np.log1p(-confidence)
    cell: Array = ((np.clip(logit, -16.0, 15.99) + 16.0) * (FINE / 32.0)).astype(np.int64)
    return cell


def _tally(slots: Array, size: int, weights: Array | None = None) -> Array:
    return np.bincount(slots, weights, size).astype(np.float64)


def _table(row: Array, sample: Array, value: Array | float, shape: tuple[int, int]) -> Any:  # noqa: ANN401
    """A sparse table (sums, samples) of the terms of each sample in each sum."""
    values = np.broadcast_to(np.asarray(value, np.float32), row.shape)
    return sparse.coo_array((values, (row, sample)), shape=shape).tocsr()
