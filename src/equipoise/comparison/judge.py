"""Computes the verdict on the finished runs of a comparison from their folders. Does not import torch."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise._reading import InputError
from equipoise.comparison.damage import check_run
from equipoise.comparison.folder import ComparisonFolder, PlanEntry
from equipoise.comparison.open_set import OPEN_METRICS
from equipoise.comparison.resampling import RunStatistics, resample, statistics_of, values_of
from equipoise.comparison.sentences import sentences_of
from equipoise.comparison.statistics import ALPHA, RULE, Difference, holm, moderated, paired_difference
from equipoise.comparison.verdict import (
    FORMAT,
    Candidate,
    GroupSummary,
    LossResult,
    MetricDifference,
    RareClass,
    Summary,
    Verdict,
    read_verdict,
)
from equipoise.evaluation.results import Evaluation
from equipoise.evaluation.sample_statistics import GROUPS, METRICS, Array
from equipoise.metric_registry import metric_info
from equipoise.tasks import Task
from equipoise.train.folder import RunFolder
from equipoise.train.record import RunRecord

__all__ = ["judge", "known_verdict"]

SPEED = "seconds_per_step"
DRAWS = 1000
"""Number of bootstrap draws; the standard deviation from them has a relative error of 2 %."""

LEAST = 10
"""Minimum test samples of a group of classes to compare it: below, one sample changes the value by 10 points."""
STEADY = 0.05
"""Maximum relative standard deviation over seeds to compare times per step."""

Key = tuple[str, int]
"""Loss and seed of a run."""
Pair = tuple[Key, Key]
"""A run and that of the baseline with the same seed."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run with the content of its folder, read once.

    Args:
        folder: of the run.
        record: of the run.
        test: its evaluation on test data.
        metrics: on test data, and the time of a step.
    """

    folder: RunFolder
    record: RunRecord
    test: Evaluation
    metrics: Mapping[str, float | None]

    @classmethod
    def read(cls, folder: RunFolder) -> FinishedRun:
        """Read and check the folder."""
        check_run(folder)
        record = folder.record
        seconds = record.seconds_per_step if any(folder.history()) else None  # otherwise it is the speed of stage one
        return cls(folder, record, folder.results.test, values_of(folder) | {SPEED: seconds})


Runs = Mapping[Key, FinishedRun]


def judge(folder: ComparisonFolder, *, draws: int = DRAWS, seed: int = 0) -> Verdict:
    """Compute the verdict on the finished runs.

    Args:
        folder: of the comparison.
        draws: number of bootstrap draws of the test samples.
        seed: random seed of the draws.

    Raises:
        ValueError: no run is finished, or runs were tested on different samples.
    """
    runs = {(run.loss, run.seed): FinishedRun.read(run.folder) for run in folder.finished}
    if not runs:
        raise ValueError(
            f"{folder.path}: at least one run must be finished, found none; run equipoise compare again to resume"
        )
    _check_samples(runs)
    first = next(iter(runs.values()))
    data, test = first.record.data, first.test
    task = data.task
    seeds = sorted({run.seed for run in folder.runs})
    rows, equal_losses = _distinct([_row(entry, seeds, runs) for entry in folder.entries], folder.baseline)
    equal_metrics = _equal_metrics(test)
    metrics = [name for name in _metrics(task, rows) if name not in equal_metrics]
    not_compared = {name: why for name, why in _not_compared(task, rows, runs).items() if name in metrics}
    rarest = min((row for row in test.per_class if row.support), key=lambda row: row.support, default=None)
    compared = [name for name in metrics if name not in not_compared]
    verdict = Verdict(
        data=data,
        baseline=folder.baseline,
        seeds=tuple(seeds),
        main_metric=task.monitor,
        metrics=tuple(metrics),
        rows=tuple(rows),
        differences=tuple(_differences(rows, folder.baseline, compared, runs, draws, seed)),
        failures=tuple(folder.failures),
        test_samples=test.samples,
        rarest_class=None if rarest is None else RareClass(rarest.name, rarest.support),
        missing_classes=tuple(row.name for row in test.per_class if row.support == 0),
        equal_losses=equal_losses,
        equal_metrics=equal_metrics,
        not_compared=not_compared,
        rule=RULE,
        inputs=_inputs(folder),
    )
    return replace(verdict, sentences=tuple(sentences_of(verdict)))


def _check_samples(runs: Runs) -> None:
    """Raise if runs had different samples; earlier versions did not record them."""
    known = [run for run in runs.values() if run.record.data.fingerprint is not None]
    for run in known:
        if run.record.data.fingerprint != known[0].record.data.fingerprint:
            raise _other_samples(run, known[0])


def _other_samples(run: FinishedRun, first: FinishedRun) -> ValueError:
    return ValueError(
        f"{run.folder.path}: all runs must be trained and tested on the same samples, found others than in "
        f"{first.folder.path}; the data changed between the runs; compare again with another --out"
    )


def known_verdict(folder: ComparisonFolder) -> Verdict | None:
    """The stored verdict; None if it is missing, damaged, of other runs, or of an earlier version."""
    try:
        verdict = read_verdict(folder.verdict)
    except (InputError, FileNotFoundError):
        return None
    return verdict if verdict.format == FORMAT and verdict.inputs == _inputs(folder) else None


def _inputs(folder: ComparisonFolder) -> str:
    """A digest of the inputs of a verdict: the plan and the records of the finished runs."""
    files = [folder.plan, *(run.folder.path / name for run in folder.finished for name in ("run.json", "results.json"))]
    digests = (hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b"" for file in files)
    return hashlib.sha256(b"".join(digests)).hexdigest()


# ------------------------------------------------------------------------------------------------------------- table


def _row(entry: PlanEntry, seeds: Sequence[int], runs: Runs) -> LossResult:
    """One row: the candidate selected on validation data, and its test metrics."""
    candidates = [
        _candidate(text, [runs[text, seed] for seed in seeds if (text, seed) in runs]) for text in entry.candidates
    ]
    chosen = _chosen(candidates)
    finished = {seed: runs[chosen, seed] for seed in seeds if chosen is not None and (chosen, seed) in runs}
    first = next(iter(finished.values()), None)
    return LossResult(
        loss=entry.text,
        chosen=chosen,
        monitor=None if first is None else first.record.monitor,
        candidates=tuple(candidate for candidate, _ in candidates),
        seeds=tuple(finished),
        failed_seeds=tuple(seed for seed in seeds if seed not in finished),
        metrics={
            name: _summary([run.metrics.get(name) for run in finished.values()])
            for name in (() if first is None else first.metrics)
        },
        groups=_groups(list(finished.values())),
    )


def _candidate(text: str, runs: Sequence[FinishedRun]) -> tuple[Candidate, float]:
    """A candidate and its score: the mean on validation data, negated if lower is better."""
    values = [value for run in runs if (value := run.record.monitor_value) is not None]
    mean = math.fsum(values) / len(values) if values else None
    goodness = -math.inf if mean is None else mean if metric_info(runs[0].record.monitor).higher_is_better else -mean
    return Candidate(text, mean, len(runs)), goodness


def _chosen(candidates: Sequence[tuple[Candidate, float]]) -> str | None:
    """The best candidate on validation data among those with the most finished runs, which excludes failing ones."""
    best, _ = max(candidates, key=lambda one: (one[0].runs, one[1]))
    return best.text if best.runs else None


def _summary(values: Sequence[float | None]) -> Summary:
    """Mean and standard deviation over the seeds that have a value."""
    known = [value for value in values if value is not None]
    mean = math.fsum(known) / len(known) if known else None
    return Summary(mean, float(np.std(known, ddof=1)) if len(known) > 1 else None, tuple(values))


def _groups(runs: Sequence[FinishedRun]) -> dict[str, GroupSummary]:
    """Summaries of the classes with many, medium and few training samples."""
    groups = {}
    for place, first in enumerate(runs[0].test.groups if runs else []):
        rows = [run.test.groups[place] for run in runs]
        value, ece = (_summary([row.metrics[key] for row in rows]) for key in (runs[0].test.main, "ece"))
        groups[first.name] = GroupSummary(first.classes, int(first.support), value, ece)
    return groups


def _distinct(rows: Sequence[LossResult], baseline: str) -> tuple[list[LossResult], dict[str, str]]:
    """The rows without duplicates, and the row that each duplicate equals; the baseline is always kept."""
    kept: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row.loss != baseline):
        if row.chosen is not None:
            kept.setdefault(row.chosen, row.loss)
    equal = {row.loss: kept[row.chosen] for row in rows if row.chosen is not None and kept[row.chosen] != row.loss}
    return [row for row in rows if row.loss not in equal], equal


def _equal_metrics(test: Evaluation) -> dict[str, str]:
    """Metrics that equal another one on this test set: accuracies if all classes have the same support."""
    support = {row.support for row in test.per_class} - {0}
    single = test.task.multiclass
    return {"accuracy": "mean_class_accuracy"} if single and len(support) == 1 else {}


def _metrics(task: Task, rows: Sequence[LossResult]) -> list[str]:
    """Columns of the table: metrics that at least one loss has; groups if there is more than one."""
    names = (*METRICS[task], *OPEN_METRICS, SPEED)
    known = [name for name in names if any(row.mean(name) is not None for row in rows)]
    several = sum(name in known for name in GROUPS) > 1
    return [name for name in known if several or name not in GROUPS]


def _not_compared(task: Task, rows: Sequence[LossResult], runs: Runs) -> dict[str, str]:
    """Metrics that are not compared, and why: groups with too few test samples, timings on a shared machine."""
    unit = ("positive " if task.multilabel else "") + f"test {task.unit}"
    reasons = {}
    for name, group in next((row.groups for row in rows if row.groups), {}).items():
        if group.support < LEAST:
            kind = task.one if group.classes == 1 else task.many
            units = unit + ("" if group.support == 1 else "s")
            reasons[name] = f"{group.classes:,} {kind}, {group.support:,} {units}, too few to judge"
    spreads = {
        row.loss: std / mean for row in rows if (mean := row.mean(SPEED)) and (std := row.std(SPEED)) is not None
    }
    loss = max(spreads, key=spreads.__getitem__, default="")
    if _side_by_side(runs):
        reasons[SPEED] = "timings are not comparable: runs shared the machine"
    elif loss and spreads[loss] > STEADY:
        reasons[SPEED] = f"timings are not comparable: they vary by {100 * spreads[loss]:.0f} % between seeds of {loss}"
    return reasons


def _side_by_side(runs: Runs) -> bool:
    """Whether two runs overlapped in time."""
    spans = sorted((run.record.started, run.record.finished) for run in runs.values())
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))


# ------------------------------------------------------------------------------------------------------- differences


def _differences(
    rows: Sequence[LossResult], baseline: str, metrics: Sequence[str], runs: Runs, draws: int, seed: int
) -> list[MetricDifference]:
    """Differences of each loss from the baseline in each metric, on their common seeds."""
    base = next(row for row in rows if row.loss == baseline)
    pairs: dict[str, list[Pair]] = {}
    for row in rows:
        common = [one for one in row.seeds if one in base.seeds]
        if row is not base and row.chosen is not None and base.chosen is not None and common:
            pairs[row.loss] = [((row.chosen, one), (base.chosen, one)) for one in common]
    statistics, drawn = _resampled({key for pair in pairs.values() for key in pair}, runs, draws, seed)
    differences: list[MetricDifference] = []
    for metric in metrics:
        of_metric = {}
        for loss, pair in pairs.items():
            known = [
                (first, other)
                for first, other in pair
                if None not in (runs[first].metrics[metric], runs[other].metrics[metric])
            ]
            if known:
                of_metric[loss] = _difference(metric, known, runs, statistics, drawn)
        differences += _adjusted(metric, of_metric, base.mean(metric))
    return differences


def _resampled(
    pairs: set[Pair], runs: Runs, draws: int, seed: int
) -> tuple[dict[Key, RunStatistics], dict[Key, dict[str, Array]]]:
    """Statistics of the runs of several seeds, and their metrics on bootstrap draws of the test samples."""
    if len({run[1] for run, _ in pairs}) < 2:
        return {}, {}
    keys = sorted({key for pair in pairs for key in pair})
    statistics = {key: statistics_of(runs[key].folder) for key in keys}
    for key in keys:
        if statistics[key].targets != statistics[keys[0]].targets:
            raise _other_samples(runs[key], runs[keys[0]])
    return statistics, dict(zip(keys, resample(list(statistics.values()), draws=draws, seed=seed), strict=True))


def _difference(
    metric: str,
    pairs: Sequence[Pair],
    runs: Runs,
    statistics: Mapping[Key, RunStatistics],
    drawn: Mapping[Key, Mapping[str, Array]],
) -> Difference:
    """The difference in a metric that all these runs have."""
    values_of_loss, base = (
        np.array([runs[key].metrics[metric] for key in keys], np.float64) for keys in zip(*pairs, strict=True)
    )
    if len(pairs) < 2:
        return paired_difference(values_of_loss - base, None, samples=1)
    unpaired = sum(float(values.var(ddof=1)) for values in (values_of_loss, base))
    if metric == SPEED:
        return paired_difference(values_of_loss - base, None, samples=1, unpaired=unpaired)
    resampled = np.stack([drawn[one][metric] - drawn[other][metric] for one, other in pairs])
    first = statistics[pairs[0][0]]
    least = first.least.get(metric, 0.0)
    return paired_difference(
        values_of_loss - base, resampled, samples=first.drawn(metric), least=least, unpaired=unpaired
    )


def _adjusted(metric: str, compared: Mapping[str, Difference], base: float | None) -> list[MetricDifference]:
    """Differences of all losses in one metric, Holm-adjusted."""
    differences = dict(zip(compared, moderated(list(compared.values())), strict=True))
    p_values = {loss: one.p for loss, one in differences.items() if one.p is not None}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    open_tests = sum(p >= ALPHA for p in adjusted.values())
    rows = []
    for loss, one in differences.items():
        low, high = one.interval or (None, None)
        usable = low is not None and high is not None and high - low < 2 * _widest(metric, base)
        if (
            low is not None and high is not None and metric_info(metric).unit == "percent"
        ):  # differences of fractions are at most 1
            low, high = max(low, -1.0), min(high, 1.0)
        significant = loss in adjusted and adjusted[loss] < ALPHA
        need = None if significant else one.need(open_tests)
        rows.append(
            MetricDifference(
                loss=loss,
                metric=metric,
                mean=one.mean,
                low=low,
                high=high,
                p=p_values.get(loss),
                p_adjusted=adjusted.get(loss),
                significant=significant,
                seeds=one.seeds,
                seeds_needed=None if need is None else need.seeds,
                limit=None if need is None else need.limit,
                usable=usable,
            )
        )
    return rows


def _widest(metric: str, base: float | None) -> float:
    """Maximum margin of a useful interval: 50 points for a fraction, otherwise the value of the baseline."""
    return 0.5 if metric_info(metric).unit == "percent" else abs(base or math.inf)
