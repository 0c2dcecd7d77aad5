"""Verdicts made by hand: only what a test looks at has to be said."""

from equipoise.comparison.verdict import LossResult, MetricDifference, Summary, Verdict
from equipoise.train.record import DataRecord, RunRecord

DATA = DataRecord("made", "multiclass", ["a", "b"], [10, 10], {"train": 20, "val": 10, "test": 40})
NOON = "2026-11-16T12:00:00+00:00"


def record_of(monitor="accuracy", monitor_value=0.5, **known):
    """The record of a run."""
    usual = {"data": DATA, "started": NOON, "finished": NOON, "seconds_per_step": 0.01}
    return RunRecord(monitor=monitor, monitor_value=monitor_value, **(usual | known))


def summary(mean, std=0.01, seeds=2):
    return Summary(mean, std, (mean,) * seeds)


def result_of(loss, metrics=None, *, chosen=None, seeds=(0, 1), candidates=(), monitor="accuracy"):
    """A row whose loss is its only candidate."""
    return LossResult(loss, chosen or loss, monitor, candidates, tuple(seeds), (), metrics or {}, {})


def unfinished(loss):
    """A row without a finished run."""
    return LossResult(loss, None, None, (), (), (0, 1), {}, {})


def difference_of(loss, metric, mean, significant=False, **known):
    """A difference without an interval, unless more is known."""
    absent = dict.fromkeys(("low", "high", "p", "p_adjusted", "seeds_needed", "limit"))
    given = {"loss": loss, "metric": metric, "mean": mean, "significant": significant, "seeds": 2}
    return MetricDifference(**(absent | given | known))


def verdict_of(rows, differences=(), *, metrics=("accuracy",), seeds=(0, 1), main="accuracy", **known):
    """A verdict on two classes whose baseline is the first row, unless another is named."""
    known = {"baseline": rows[0].loss, "failures": (), "rarest_class": None, "missing_classes": ()} | known
    return Verdict(
        data=DATA,
        seeds=tuple(seeds),
        main_metric=main,
        metrics=tuple(metrics),
        rows=tuple(rows),
        differences=tuple(differences),
        test_samples=40,
        **known,
    )
