"""Data of the runs of a comparison by loss: means over the seeds of metrics, curves and histories."""

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
from equipoise.plotting.theme import INK, Stroke, css, strokes
from equipoise.report.page import Key
from equipoise.train.folder import RunFolder
from equipoise.train.record import EpochRecord, RunRecord, RunResults, Statistic

__all__ = ["ComparedLoss", "compared_candidates", "compared_losses"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ComparedLoss:
    """One row of the table with its finished runs.

    Args:
        name: text of the loss as passed.
        chosen: candidate selected on validation data.
        runs: folders of the runs, one per seed.
        baseline: whether it is the baseline.
        stroke: style of its lines in all figures.
    """

    name: str
    chosen: str
    runs: tuple[RunFolder, ...]
    baseline: bool
    stroke: Stroke

    @property
    def key(self) -> Key:
        """Its entry in the legend of lines."""
        return Key(self.name, css(self.stroke.colour), " ".join(map(str, self.stroke.dash)))

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
        """Test evaluation of each run."""
        return [results.test for results in self.results]

    @property
    def opens(self) -> list[OpenSetEvaluation]:
        """Open-set evaluation of each run; empty without an open set."""
        return [results.open for results in self.results if results.open is not None]

    @cached_property
    def histories(self) -> list[list[EpochRecord]]:
        """History of each run, one row per epoch."""
        return [list(run.history()) for run in self.runs]

    @property
    def loss(self) -> str:
        """The class of the loss."""
        return self.record.loss.partition("(")[0]

    def series(self, split: str, name: str) -> Series | None:
        """A metric of ``"train"`` or ``"val"`` over the epochs; None if it was not recorded."""
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
        """Metric of each class over the epochs, mean over the seeds, (E, C); None if it was not recorded."""
        values = self._recorded(lambda row: _numbers(row.split(split).get(name)))
        return None if values is None or values.shape[2] < 2 else _over(np.nanmean, values)

    def class_values(self, key: str) -> Array:
        """Metric of each class on test data, mean over the seeds, (C,); NaN without a value."""
        rows = [[_number(row.metrics[key]) for row in test.per_class] for test in self.tests]
        return _over(np.nanmean, np.array(rows))

    def reliability(self, group: str) -> Reliability | None:
        """Reliability diagrams of a group, pooled over the seeds; None if a seed has none."""
        both = [test.reliability[group] for test in self.tests if group in test.reliability]
        after = [one.after for one in both if one.after is not None]
        if len(both) < len(self.runs):
            return None
        return Reliability(_pooled([one.before for one in both]), _pooled(after) if len(after) == len(both) else None)

    def _recorded(self, read: Callable[[EpochRecord], Array]) -> Array | None:
        """Values that ``read`` returns for each row of each seed, (S, E, K); None without any."""
        rows = [[read(row) for row in history] for history in self.histories]
        epochs = max(map(len, rows), default=0)
        widths = {len(values) for history in rows for values in history if len(values)}
        if not epochs or len(widths) != 1:
            return None
        values = np.full((len(rows), epochs, widths.pop()), np.nan)
        for seed, history in enumerate(rows):
            for epoch, recorded in enumerate(history):
                if len(recorded):
                    values[seed, epoch] = recorded
        return None if np.isnan(values).all() else values


def compared_losses(folder: ComparisonFolder, verdict: Verdict) -> list[ComparedLoss]:
    """Rows of the verdict with the runs of the selected candidates; rows without finished runs are omitted.

    The baseline has the colour of the text, the others have distinct colours.
    """
    finished = folder.finished
    others = [row.loss for row in verdict.rows if row.loss != verdict.baseline]
    styles = dict(zip(others, strokes(len(others)), strict=True)) | {verdict.baseline: Stroke(INK)}
    losses = []
    for row in verdict.rows:
        runs = tuple(run.folder for run in finished if run.loss == row.chosen and run.seed in row.seeds)
        if runs and row.chosen is not None:
            losses.append(ComparedLoss(row.loss, row.chosen, runs, row.loss == verdict.baseline, styles[row.loss]))
    return losses


def compared_candidates(folder: ComparisonFolder, verdict: Verdict) -> dict[str, list[ComparedLoss]]:
    """Finished runs of each candidate, by the row that has several of them."""
    finished = folder.finished
    sweeps: dict[str, list[ComparedLoss]] = {}
    for row in verdict.rows:
        runs = {one.text: tuple(run.folder for run in finished if run.loss == one.text) for one in row.candidates}
        known = {text: own for text, own in runs.items() if own}
        if len(known) > 1:
            styles = strokes(len(known))
            sweeps[row.loss] = [
                ComparedLoss(text, text, own, False, stroke)
                for (text, own), stroke in zip(known.items(), styles, strict=True)
            ]
    return sweeps


def _number(value: Statistic) -> float:
    return np.nan if value is None or isinstance(value, Sequence) else float(value)


def _numbers(values: Statistic) -> Array:
    return np.array([_number(value) for value in values] if isinstance(values, Sequence) else [], dtype=np.float64)


def _over(statistic: Callable[..., Array], values: Array) -> Array:
    """A statistic over the seeds, NaN without values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # "Mean of empty slice"
        return np.asarray(statistic(values, axis=0), dtype=np.float64)


def _pooled(curves: Sequence[ReliabilityBins]) -> ReliabilityBins:
    """Pool reliability diagrams with the same bins."""
    count = np.array([curve.count for curve in curves], dtype=np.float64)
    total = count.sum(0)

    def mean(values: Sequence[Sequence[float | None]]) -> list[float | None]:
        known = np.nan_to_num(np.array([_numbers(row) for row in values]))
        means: list[float | None] = (np.where(count > 0, known * count, 0.0).sum(0) / np.maximum(total, 1.0)).tolist()
        return means

    confidence, accuracy = mean([curve.confidence for curve in curves]), mean([curve.accuracy for curve in curves])
    return ReliabilityBins(curves[0].edges, total.tolist(), confidence, accuracy)
