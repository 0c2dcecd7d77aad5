r"""What a finished run predicted on the test, as numbers that can be computed again for other draws of the samples.

The numbers of a run on all test samples are those of its ``results.json``. To see how far they would move on other
samples, each metric is written as a function of sums over samples: where sample i is drawn :math:`w_i` times they are
:math:`\sum_i w_i x_i`, one sparse product for many draws. A sample is what was drawn when the data were made: an image
with all its pixels or labels, never a single pixel. Nothing here needs torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from equipoise._reading import read_record, reading
from equipoise.comparison.open_outcome import OPEN_METRICS, OpenOutcome
from equipoise.predictions import Predictions, open_predictions
from equipoise.tasks import Task
from equipoise.train.folder import AGAIN, RunFolder

__all__ = ["GROUPS", "Outcome", "outcome_of", "resample", "values_of"]

GROUPS = ("many", "medium", "few")
AFTER = "_after"

BINS = 15
EDGES = (np.arange(1, BINS) / BINS).astype(np.float32)
CELLS = 16 * BINS
"""Parts of equal mass in which events are summed, so that the cuts between bins of equal mass fall between them."""
FINE = 2**14
"""Cells of confidence in which pixels are counted, of equal width on the scale of logits from -16 to 16."""
TOGETHER = 2**21
"""Entries of the matrix of weights that is made at a time."""

Array = NDArray[Any]
Sums = dict[str, Array]
"""Weighted sums by name, (k, draws) each."""


class Outcome(ABC):
    """The test of one run.

    Args:
        folder: of the finished run.
        source: its predictions of the test.

    Attributes:
        samples: how many there are.
        open: what the run makes of an open set; None where there is none.
        targets: a digest of those of the test, to tell whether runs share it.
        least: variance of a difference that test samples add at least, by metric: that of one sample which only one
            loss gets right and one which only the other does.
    """

    def __init__(self, folder: RunFolder, source: Predictions) -> None:
        test = folder.results.test
        self.classes = source.num_classes
        self.groups = {
            name: np.array([row.group == name for row in test.per_class])
            for name in GROUPS
            if any(row.group == name for row in test.per_class)
        }
        self.least: dict[str, float] = {}
        self.calibrate = _calibration_of(folder)
        self.endings = ("",) if self.calibrate is None else ("", AFTER)
        self.samples, targets, tables = self._read(source)
        self.open = OpenOutcome.of(folder, source)
        self.least |= {} if self.open is None else self.open.least
        self.targets = sha256(targets.astype(np.int64).tobytes()).hexdigest() + f" {self.open_sizes}"
        self.names = tuple((name, table.shape[0]) for name, table in tables.items())
        self.table = sparse.vstack(list(tables.values()), format="csr")
        self.signs = {"ece" + ending: np.sign(tables["ece" + ending].sum(1))[:, None] for ending in self.endings}

    @property
    def open_sizes(self) -> tuple[int, ...]:
        """How many unknown and validation samples are drawn beside those of the test, where there is an open set."""
        return () if self.open is None else self.open.sizes

    def drawn(self, metric: str) -> int:
        """How many samples a metric is drawn from."""
        return self.samples if self.open is None else self.open.samples_of.get(metric, self.samples)

    def weigh(self, weights: Array, *others: Array) -> dict[str, Array]:
        """The metrics where each sample counts as often as ``weights`` (samples, draws) say; (draws,) each.

        Those of an open set too where ``others`` say how often unknown and validation samples count. NaN where a metric
        does not exist, such as that of a group of classes none of which was drawn. In the ECE every bin keeps the sign
        of its gap on all samples: absolute values of noise would hide what test samples add to all seeds alike, and
        intervals would be too narrow.
        """
        parts = np.split(self.table @ weights, np.cumsum([width for _, width in self.names])[:-1])
        sums = {name: part.astype(np.float64) for (name, _), part in zip(self.names, parts, strict=True)}
        with np.errstate(divide="ignore", invalid="ignore"):
            found = self._scores(sums, weights)
            events = sums["events"][0]
            for ending in self.endings:
                found["ece" + ending] = (self.signs["ece" + ending] * sums["ece" + ending]).sum(0) / events
                found["ada_ece" + ending] = _equal_mass_error(sums["mass" + ending], sums["gap" + ending])
                found["nll" + ending] = sums["nll" + ending][0] / events
        return found if self.open is None or not others else found | self.open.weigh(weights, *others)

    def _by_group(self, per_class: Array) -> dict[str, Array]:
        return {name: _mean(per_class[members]) for name, members in self.groups.items()}

    def _each_way(self, logits: Array) -> Iterator[tuple[str, Array]]:
        """Logits (classes, n) as they are and, where there is a fit, after it; with the ending of the names."""
        yield "", logits
        if self.calibrate is not None:
            slope, offset = (values.astype(logits.dtype)[:, None] for values in self.calibrate)
            yield AFTER, logits * slope + offset

    @abstractmethod
    def _read(self, source: Predictions) -> tuple[int, Array, dict[str, Any]]:
        """Samples, targets, and sparse tables (k, samples) by name, ``events`` and those of calibration among them."""

    @abstractmethod
    def _scores(self, sums: Sums, weights: Array) -> dict[str, Array]:
        """Metrics other than those of calibration."""


class SingleOutcome(Outcome):
    """One label a sample."""

    def _read(self, source: Predictions) -> tuple[int, Array, dict[str, Any]]:
        chunks = list(source.chunks())
        targets = np.concatenate([chunk.targets for chunk in chunks]).astype(np.int64)
        logits = np.concatenate([chunk.scores for chunk in chunks])
        samples = len(targets)
        own = np.flatnonzero(targets != source.ignore_index)
        labels, logits = targets[own], logits[own]
        predicted = logits.argmax(1)
        right = predicted == labels
        shape = (self.classes, samples)
        tables = {
            "events": _table(np.zeros_like(own), own, 1.0, (1, samples)),
            "support": _table(labels, own, 1.0, shape),
            "predicted": _table(predicted, own, 1.0, shape),
            "hits": _table(labels[right], own[right], 1.0, shape),
        }
        for ending, scores in self._each_way(logits.T):
            confidence, nll = _top(scores, labels)
            tables |= _events(own, confidence, right, nll, samples, ending)
        self._set_least(np.bincount(labels, minlength=self.classes))
        return samples, targets, tables

    def _set_least(self, support: Array) -> None:
        """A sample of class c moves a mean over K classes by 1 / (K n_c)."""
        for name, members in {"mean_class_accuracy": support > 0, **self.groups}.items():
            own = support[members & (support > 0)]
            if len(own):
                self.least[name] = 2.0 * float((1.0 / own).sum()) / (float(own.sum()) * len(own) ** 2)
        self.least["macro_f1"] = self.least.get("mean_class_accuracy", 0.0)
        self.least["accuracy"] = 2.0 / max(1.0, float(support.sum())) ** 2

    def _scores(self, sums: Sums, weights: Array) -> dict[str, Array]:
        support, predicted, hits = (sums[name] for name in ("support", "predicted", "hits"))
        per_class = hits / support
        return {
            "accuracy": hits.sum(0) / sums["events"][0],
            "mean_class_accuracy": _mean(per_class),
            "macro_f1": _mean(2.0 * hits / (support + predicted)),
            **self._by_group(per_class),
        }


class SegmentationOutcome(Outcome):
    """One label a pixel."""

    def _read(self, source: Predictions) -> tuple[int, Array, dict[str, Any]]:
        images: list[Sums] = []
        targets = []
        for scores, labels, *_ in source.chunks():
            flat = scores.reshape(*scores.shape[:2], -1), labels.reshape(len(labels), -1).astype(np.int64)
            images += [self._image(*image, source.ignore_index) for image in zip(*flat, strict=True)]
            targets.append(labels)
        whole = [name for name in images[0] if not name.startswith("fine")]
        tables = {name: sparse.csr_array(np.stack([image[name] for image in images], 1)) for name in whole}
        for ending in self.endings:
            number = np.repeat(np.arange(len(images)), [image["fine" + ending].shape[1] for image in images])
            fine, count, gap = np.concatenate([image["fine" + ending] for image in images], 1)
            fine = fine.astype(np.int64)
            cell, shape = _cells(_tally(fine, FINE, count))[fine], (2 * CELLS, len(images))
            tables["mass" + ending] = _table(cell, number, count, shape)
            tables["gap" + ending] = _table(cell, number, gap, shape)
        return len(images), np.concatenate(targets), tables

    def _image(self, logits: Array, labels: Array, ignore_index: int) -> Sums:
        """Sums over the pixels of one image, logits (classes, pixels); ``fine``: cells with pixels, and their sums."""
        valid = labels != ignore_index
        logits, known = logits.astype(np.float32), np.where(valid, labels, 0)
        predicted, labels = _predicted(logits)[valid], labels[valid]
        right = predicted == labels
        share = {
            "events": np.array([float(len(labels))]),
            "support": _tally(labels, self.classes),
            "predicted": _tally(predicted, self.classes),
            "hits": _tally(labels[right], self.classes),
        }
        for ending, scores in self._each_way(logits):
            confidence, nll = (values[valid] for values in _top(scores, known))
            gap = right - confidence.astype(np.float64)
            share["ece" + ending] = _tally(np.searchsorted(EDGES, confidence), BINS, gap)
            share["nll" + ending] = np.array([nll.sum()])
            fine = _fine_cell(confidence)
            count, gaps = _tally(fine, FINE), _tally(fine, FINE, gap)
            seen = np.flatnonzero(count)
            share["fine" + ending] = np.stack([seen, count[seen], gaps[seen]])
        return share

    def _scores(self, sums: Sums, weights: Array) -> dict[str, Array]:
        support, predicted, hits = (sums[name] for name in ("support", "predicted", "hits"))
        iou = hits / (support + predicted - hits)
        return {
            "mean_iou": _mean(iou),
            "mean_accuracy": _mean(hits / support),
            "pixel_accuracy": hits.sum(0) / sums["events"][0],
            **self._by_group(iou),
        }


class MultiOutcome(Outcome):
    """Several labels a sample."""

    def _read(self, source: Predictions) -> tuple[int, Array, dict[str, Any]]:
        chunks = list(source.chunks())
        targets = np.concatenate([chunk.targets for chunk in chunks])
        logits = np.concatenate([chunk.scores for chunk in chunks]).astype(np.float32)
        samples, known, positive = len(targets), targets >= 0, targets == 1
        chosen = (logits > 0) & known
        own, label = np.nonzero(known)
        tables = {"events": _table(np.zeros_like(own), own, 1.0, (1, samples))}
        for name, kind in (("positive", positive), ("predicted", chosen), ("hits", positive & chosen)):
            sample, which = np.nonzero(kind)
            tables[name] = _table(which, sample, 1.0, (self.classes, samples))
        for ending, scores in self._each_way(logits.T):
            given, right = scores[label, own].astype(np.float64), positive[own, label]
            nll = np.logaddexp(0.0, np.where(right, -given, given))
            tables |= _events(own, expit(given).astype(np.float32), right, nll, samples, ending)
        self.rankings = [Ranking(logits[:, k], positive[:, k], known[:, k]) for k in range(self.classes)]
        return samples, targets, tables

    def _scores(self, sums: Sums, weights: Array) -> dict[str, Array]:
        positive, predicted, hits = (sums[name] for name in ("positive", "predicted", "hits"))
        occurs = positive > 0
        precision = _mean(np.where(occurs, hits / np.maximum(predicted, 1.0), np.nan))
        recall = _mean(hits / positive)
        average_precision = np.stack([ranking.average_precision(weights) for ranking in self.rankings])
        return {
            "mean_average_precision": _mean(average_precision),
            "CF1": np.where(precision + recall == 0, 0.0, 2 * precision * recall / (precision + recall)),
            "OF1": np.where(occurs.any(0), 2 * hits.sum(0) / (predicted.sum(0) + positive.sum(0)), np.nan),
            **self._by_group(average_precision),
        }


class Ranking:
    r"""One label's scores, sorted once.

    Precision changes its meaning at the scores of positives only. So the samples are summed between one such score and
    the next higher, and average precision is :math:`\sum_j p_j P_j / T_j / \sum_j p_j` with the weight :math:`p_j` of
    the positives at score j, and :math:`P_j, T_j` that of the positives and of all samples at or above it.
    """

    def __init__(self, scores: Array, positive: Array, known: Array) -> None:
        levels = np.unique(scores[positive])
        at = np.searchsorted(levels, scores, side="right") - 1  # below the lowest: -1
        shape = (len(levels), len(scores))
        everything, own = np.flatnonzero(known & (at >= 0)), np.flatnonzero(positive)
        self.everything = _table(at[everything], everything, 1.0, shape)
        self.positive = _table(at[own], own, 1.0, shape)

    def average_precision(self, weights: Array) -> Array:
        """For each column of the weights; NaN where no positive is drawn."""
        own = self.positive @ weights
        above, all_above = (np.cumsum(part[::-1], 0)[::-1] for part in (own, self.everything @ weights))
        found: Array = (own * above / np.maximum(all_above, 1.0)).sum(0, dtype=np.float64) / own.sum(0)
        return found


OUTCOMES: Mapping[Task, type[Outcome]] = {
    Task.MULTICLASS: SingleOutcome,
    Task.MULTILABEL: MultiOutcome,
    Task.SEGMENTATION: SegmentationOutcome,
}


def values_of(folder: RunFolder) -> dict[str, float | None]:
    """The metrics of a finished run on all test samples, None where one does not exist."""
    results = folder.results
    test = results.test
    known = {**test.overall, **{row.name: row.metrics[test.main] for row in test.groups}}
    known |= {name + AFTER: value for name, value in (test.calibration.after or {}).items()}
    opened = {name: results.open.overall[name] for name in OPEN_METRICS} if results.open is not None else {}
    return {name: known.get(name) for name in test.task.compared} | opened


def outcome_of(folder: RunFolder) -> Outcome:
    """The test of a finished run."""
    source = open_predictions(folder.predictions("test"), task=folder.record.data.task)
    return OUTCOMES[source.task](folder, source)


def resample(outcomes: Sequence[Outcome], *, draws: int, seed: int = 0) -> list[dict[str, Array]]:
    """Metrics of each run when the test samples are drawn again with replacement, the same for all; (draws,) each.

    With an open set, unknown samples and the validation samples that choose thresholds are drawn too, each kind apart.
    """
    first, random = outcomes[0], np.random.default_rng(seed)
    kinds = [(size, np.random.default_rng((seed, kind))) for kind, size in enumerate(first.open_sizes, 1)]
    found: list[list[dict[str, Array]]] = [[] for _ in outcomes]
    size = max(1, TOGETHER // (first.samples + sum(first.open_sizes)))
    for start in range(0, draws, size):
        count = min(size, draws - start)
        weights = _weights(random, first.samples, count)
        others = [_weights(own, size, count) for size, own in kinds]
        for own, outcome in zip(found, outcomes, strict=True):
            own.append(outcome.weigh(weights, *others))
    return [{name: np.concatenate([part[name] for part in own]) for name in own[0]} for own in found]


def _weights(random: np.random.Generator, samples: int, count: int) -> Array:
    """How often each of the samples is drawn, (samples, count)."""
    picks = random.integers(0, samples, (samples, count)) * count + np.arange(count)
    return np.bincount(picks.ravel(), minlength=samples * count).reshape(samples, count).astype(np.float32)


# ---------------------------------------------------------------------------------------------------------- reading


def _calibration_of(folder: RunFolder) -> tuple[Array, Array] | None:
    """Slope and offset of each class that were fitted on validation data; None where there is no fit."""
    file = folder.where / "calibration.json"
    if not file.is_file():
        return None
    fields = read_record(file, advice=AGAIN)
    with reading(file, "the file must be a fit", AGAIN):
        fields = fields["fields"]
        if "temperature" in fields:
            return 1.0 / np.array([fields["temperature"]], np.float64), np.zeros(1)
        return 1.0 / np.array(fields["temperatures"], np.float64), np.array(fields["biases"], np.float64)


def _top(logits: Array, labels: Array) -> tuple[Array, Array]:
    """Of logits (classes, n): the largest probability in float32, and the negative log-likelihood of the label."""
    top = logits.max(0)
    total = np.exp(logits - top).sum(0)
    nll = np.log(total) + (top - logits[labels, np.arange(len(labels))])
    return (1.0 / total).astype(np.float32), nll


def _predicted(logits: Array) -> Array:
    """Class of the largest of logits (classes, n), the first of equal ones; faster than ``argmax`` along classes."""
    top, found = logits.max(0), np.zeros(logits.shape[1], np.int64)
    for k in reversed(range(len(logits))):
        np.copyto(found, k, where=logits[k] == top)
    return found


def _events(sample: Array, confidence: Array, correct: Array, nll: Array, samples: int, ending: str) -> dict[str, Any]:
    """Tables of what was announced with a confidence and came true or not."""
    gap = correct - confidence.astype(np.float64)
    _, place, count = np.unique(confidence, return_inverse=True, return_counts=True)
    cell, shape = _cells(count)[place], (2 * CELLS, samples)
    return {
        "ece" + ending: _table(np.searchsorted(EDGES, confidence), sample, gap, (BINS, samples)),
        "mass" + ending: _table(cell, sample, 1.0, shape),
        "gap" + ending: _table(cell, sample, gap, shape),
        "nll" + ending: _table(np.zeros_like(sample), sample, nll, (1, samples)),
    }


def _cells(count: Array) -> Array:
    """Cell of each distinct confidence, of which there are ``count``, in ascending order.

    Even numbers are parts of equal mass; what does not fit into one because it is so frequent has an odd number of its
    own between two of them. Cuts so fall between cells, or into one where all confidences are equal.
    """
    ends = np.cumsum(count)
    total = max(1, int(ends[-1])) if len(ends) else 1
    first = (ends - count).astype(np.int64) * CELLS // total
    last = np.maximum(ends.astype(np.int64) - 1, 0) * CELLS // total
    found: Array = np.minimum(2 * first + (last > first), 2 * CELLS - 1)
    return found


def _fine_cell(confidence: Array) -> Array:
    """Cell of each confidence on the scale of logits."""
    with np.errstate(divide="ignore"):
        logit = np.log(confidence) - np.log1p(-confidence)
    found: Array = ((np.clip(logit, -16.0, 15.99) + 16.0) * (FINE / 32.0)).astype(np.int64)
    return found


def _tally(slots: Array, size: int, weights: Array | None = None) -> Array:
    return np.bincount(slots, weights, size).astype(np.float64)


def _table(row: Array, sample: Array, value: Array | float, shape: tuple[int, int]) -> Any:  # noqa: ANN401
    """A sparse table of what each sample adds to each sum, (sums, samples)."""
    values = np.broadcast_to(np.asarray(value, np.float32), row.shape)
    return sparse.coo_array((values, (row, sample)), shape=shape).tocsr()


# ------------------------------------------------------------------------------------------------------- arithmetic


def _mean(values: Array) -> Array:
    """Mean over the rows of what exists, NaN where nothing does."""
    exists = np.isfinite(values)
    found: Array = np.where(exists, values, 0.0).sum(0) / exists.sum(0)
    return found


def _equal_mass_error(mass: Array, gap: Array) -> Array:
    """Calibration error of bins of equal mass, from sums (cells, draws) in order of confidence.

    The sample of rank i of n is in bin floor(i B / n); a cell that a cut falls in is shared out evenly.
    """
    total = mass.sum(0)
    ends, heights = (np.vstack([np.zeros_like(total), np.cumsum(part, 0)]).T for part in (mass, gap))
    cuts = np.ceil(np.arange(BINS + 1) * total[:, None] / BINS)
    apart = (np.arange(len(total)) * (total.max() + 1.0))[:, None]  # all draws on one axis, for one interpolation
    up_to = np.interp((cuts + apart).ravel(), (ends + apart).ravel(), heights.ravel()).reshape(cuts.shape)
    found: Array = np.abs(np.diff(up_to, axis=1)).sum(1) / total
    return found
