"""Bootstrap resampling of the metrics of finished runs over test samples. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from equipoise._reading import read_record, reading
from equipoise.comparison.open_set import OPEN_METRICS, OpenSetStatistics
from equipoise.evaluation.sample_statistics import AFTER, COLLECTORS, GROUPS, METRICS, Array
from equipoise.predictions import Predictions, open_predictions
from equipoise.train.folder import AGAIN, RunFolder

__all__ = ["RunStatistics", "resample", "statistics_of", "values_of"]

TOGETHER = 2**21
"""Maximum number of entries of a matrix of weights."""


class RunStatistics:
    """Statistics of the test samples of one run, and of its open set.

    Args:
        folder: folder of the finished run.
        source: its test predictions.

    Attributes:
        test: statistics of the test samples.
        open: statistics of the open set, or None.
        targets: digest of the test targets and sizes of the open set, equal for runs with the same test data.
        least: minimum variance that samples add to a difference, by metric.
    """

    def __init__(self, folder: RunFolder, source: Predictions) -> None:
        rows = folder.results.test.per_class
        members = {name: np.array([row.group == name for row in rows]) for name in GROUPS}
        groups = {name: classes for name, classes in members.items() if classes.any()}
        collector = COLLECTORS[source.task](source, groups=groups, calibration=_calibration_of(folder))
        digest = sha256()
        for chunk in source.chunks():
            collector.add(chunk.scores, chunk.targets)
            digest.update(chunk.targets.astype(np.int64).tobytes())
        self.test = collector.finish()
        self.open = OpenSetStatistics.of(folder, source)
        self.least = {**self.test.least, **({} if self.open is None else self.open.least)}
        self.targets = f"{digest.hexdigest()} {self.open_sizes}"

    @property
    def open_sizes(self) -> tuple[int, ...]:
        """Number of unknown and of validation samples to draw; empty without an open set."""
        return () if self.open is None else self.open.sizes

    def drawn(self, metric: str) -> int:
        """Number of samples that a metric is resampled from."""
        return self.test.samples if self.open is None else self.open.samples_of.get(metric, self.test.samples)

    def weigh(self, weights: Array, *others: Array) -> dict[str, Array]:
        """The metrics for test samples with ``weights`` (samples, draws); (draws,) each.

        With ``others``, the weights of unknown and validation samples, also the metrics of the open set.
        """
        metrics = self.test.weigh(weights)
        return metrics if self.open is None or not others else metrics | self.open.weigh(weights, *others)


def values_of(folder: RunFolder) -> dict[str, float | None]:
    """Every metric of a finished run on all test samples, those of ``METRICS`` first; None for undefined metrics."""
    results = folder.results
    test = results.test
    known = {**test.overall, **{row.name: row.metrics[test.main] for row in test.groups}}
    known |= {name + AFTER: value for name, value in (test.calibration.after or {}).items()}
    opened = {name: results.open.overall[name] for name in OPEN_METRICS} if results.open is not None else {}
    return dict.fromkeys(METRICS[test.task]) | known | opened


def statistics_of(folder: RunFolder) -> RunStatistics:
    """The statistics of a finished run."""
    return RunStatistics(folder, open_predictions(folder.predictions("test"), task=folder.record.data.task))


def resample(runs: Sequence[RunStatistics], *, draws: int, seed: int = 0) -> list[dict[str, Array]]:
    """Metrics of each run on bootstrap samples of the test data, which are the same for all runs; (draws,) each.

    With an open set, the unknown samples and the validation samples that choose thresholds are resampled separately.
    """
    samples, open_sizes = runs[0].test.samples, runs[0].open_sizes
    random = np.random.default_rng(seed)
    kinds = [(size, np.random.default_rng((seed, kind))) for kind, size in enumerate(open_sizes, 1)]
    blocks: list[list[dict[str, Array]]] = [[] for _ in runs]
    together = max(1, TOGETHER // (samples + sum(open_sizes)))
    for start in range(0, draws, together):
        count = min(together, draws - start)
        weights = _weights(random, samples, count)
        others = [_weights(generator, size, count) for size, generator in kinds]
        for block, run in zip(blocks, runs, strict=True):
            block.append(run.weigh(weights, *others))
    return [{name: np.concatenate([part[name] for part in block]) for name in block[0]} for block in blocks]


def _weights(random: np.random.Generator, samples: int, count: int) -> Array:
    """Number of times that each sample is drawn, (samples, count)."""
    picks = random.integers(0, samples, (samples, count)) * count + np.arange(count)
    return np.bincount(picks.ravel(), minlength=samples * count).reshape(samples, count).astype(np.float32)


def _calibration_of(folder: RunFolder) -> tuple[Array, Array] | None:
    """Slope and offset of each class, fitted on validation data; None without a fit."""
    file = folder.where / "calibration.json"
    if not file.is_file():
        return None
    fields = read_record(file, advice=AGAIN)
    with reading(file, "the file must be a fit", AGAIN):
        fields = fields["fields"]
        if "temperature" in fields:
            return 1.0 / np.array([fields["temperature"]], np.float64), np.zeros(1)
        return 1.0 / np.array(fields["temperatures"], np.float64), np.array(fields["biases"], np.float64)
