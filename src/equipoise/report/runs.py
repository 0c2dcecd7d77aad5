"""What the runs of a comparison left, loss by loss: means over the seeds of what was measured and seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.verdict import Verdict
from equipoise.evaluation.results import Evaluation, OpenSetEvaluation, Reliability, ReliabilityBins
from equipoise.plotting.epochs import Series
from equipoise.plotting.theme import INK, Stroke, strokes
from equipoise.train.folder import RunFolder
from equipoise.train.record import EpochRecord, RunRecord, RunResults, Statistic

__all__ = ["ComparedLoss", "compared_losses"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ComparedLoss:
    """One row of the table with its finished runs.

    Args:
        name: the loss as it was given.
        chosen: the candidate that validation data chose.
        runs: one for each seed.
        baseline: whether the others are compared with it.
        stroke: how its lines look on the whole page.
    """

    name: str
    chosen: str
    runs: tuple[RunFolder, ...]
    baseline: bool
    stroke: Stroke

    @cached_property
    def record(self) -> RunRecord:
        """The record of the first run."""
        return self.runs[0].record

    @cached_property
    def results(self) -> list[RunResults]:
        """The evaluations of each run."""
        return [run.results for run in self.runs]

    @property
    def tests(self) -> list[Evaluation]:
        """The evaluation of each run on test data."""
        return [results.test for results in self.results]

    @property
    def opens(self) -> list[OpenSetEvaluation]:
        """The evaluation of each run that has an open set."""
        return [results.open for results in self.results if results.open is not None]

    @cached_property
    def histories(self) -> list[list[EpochRecord]]:
        """The rows of each run, one for each epoch."""
        return [list(run.history()) for run in self.runs]

    @property
    def loss(self) -> str:
        """The class of the loss."""
        return self.record.loss.partition("(")[0]

    def series(self, split: str, name: str) -> Series | None:
        """A number of ``"train"`` or ``"val"`` over the epochs; None where it was not recorded."""
        values = self._recorded(lambda row: np.atleast_1d(_number(row.split(split).get(name))))
        if values is None:
            return None
        values = values[:, :, 0]
        return Series(
            np.arange(1, values.shape[1] + 1, dtype=np.float64),
            _over(np.nanmean, values),
            _over(np.nanmin, values),
            _over(np.nanmax, values),
        )

    def by_class(self, split: str, name: str) -> Array | None:
        """(E, C) numbers of each class over the epochs, means over the seeds; None where they were not recorded."""
        values = self._recorded(lambda row: _numbers(row.split(split).get(name)))
        return None if values is None or values.shape[2] < 2 else _over(np.nanmean, values)

    def class_values(self, key: str) -> Array:
        """(C,) a number of each class on test data, mean over the seeds; NaN where it has none."""
        rows = [[_number(row.metrics[key]) for row in test.per_class] for test in self.tests]
        return _over(np.nanmean, np.array(rows))

    def reliability(self, group: str) -> Reliability | None:
        """The reliability diagrams of a group, pooled over the seeds; None where a seed has none."""
        both = [test.reliability[group] for test in self.tests if group in test.reliability]
        after = [one.after for one in both if one.after is not None]
        if len(both) < len(self.runs):
            return None
        return Reliability(_pooled([one.before for one in both]), _pooled(after) if len(after) == len(both) else None)

    def _recorded(self, read: Callable[[EpochRecord], Array]) -> Array | None:
        """(S, E, K) what ``read`` finds in each row of each seed; None where it finds nothing."""
        rows = [[read(row) for row in history] for history in self.histories]
        epochs = max(map(len, rows), default=0)
        widths = {len(values) for history in rows for values in history if len(values)}
        if not epochs or len(widths) != 1:
            return None
        values = np.full((len(rows), epochs, widths.pop()), np.nan)
        for seed, history in enumerate(rows):
            for epoch, found in enumerate(history):
                if len(found):
                    values[seed, epoch] = found
        return None if np.isnan(values).all() else values


def compared_losses(folder: ComparisonFolder, verdict: Verdict) -> list[ComparedLoss]:
    """The rows of the verdict with the runs of what was chosen; those without a finished run are left out.

    The baseline is drawn in the colour of the text, the others in colours of their own.
    """
    finished = folder.finished
    others = [row.loss for row in verdict.rows if row.loss != verdict.baseline]
    looks = dict(zip(others, strokes(len(others)), strict=True)) | {verdict.baseline: Stroke(INK)}
    losses = []
    for row in verdict.rows:
        runs = tuple(run.folder for run in finished if run.loss == row.chosen and run.seed in row.seeds)
        if runs and row.chosen is not None:
            losses.append(ComparedLoss(row.loss, row.chosen, runs, row.loss == verdict.baseline, looks[row.loss]))
    return losses


def _number(value: Statistic) -> float:
    return np.nan if value is None or isinstance(value, Sequence) else float(value)


def _numbers(values: Statistic) -> Array:
    return np.array([_number(value) for value in values] if isinstance(values, Sequence) else [], dtype=np.float64)


def _over(what: Callable[..., Array], values: Array) -> Array:
    """A statistic over the seeds, NaN where none has a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # "Mean of empty slice"
        return np.asarray(what(values, axis=0), dtype=np.float64)


def _pooled(curves: Sequence[ReliabilityBins]) -> ReliabilityBins:
    """One reliability diagram of several with the same bins."""
    count = np.array([curve.count for curve in curves], dtype=np.float64)
    total = count.sum(0)

    def mean(values: Sequence[Sequence[float | None]]) -> list[float | None]:
        known = np.nan_to_num(np.array([_numbers(row) for row in values]))
        means: list[float | None] = (np.where(count > 0, known * count, 0.0).sum(0) / np.maximum(total, 1.0)).tolist()
        return means

    confidence, accuracy = mean([curve.confidence for curve in curves]), mean([curve.accuracy for curve in curves])
    return ReliabilityBins(curves[0].edges, total.tolist(), confidence, accuracy)
