"""Rules of a verdict one at a time, on numbers made by hand."""

import inspect
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from equipoise.comparison import judge as rules
from equipoise.comparison.judge import FinishedRun, judge
from equipoise.comparison.statistics import ALPHA, Difference, holm, moderated
from equipoise.comparison.verdict import GroupSummary
from equipoise.evaluation.sample_statistics import METRICS
from equipoise.tasks import GROUPS, Task
from tests.comparison.verdicts import record_of, result_of, summary, unfinished

SPEED = "seconds_per_step"


def rows_with_times(**times):
    return [result_of(loss, {SPEED: summary(mean, std)}) for loss, (mean, std) in times.items()]


def runs_at(*spans):
    return {
        ("ce", seed): FinishedRun(None, record_of(started=begin, finished=end), None, {})
        for seed, (begin, end) in enumerate(spans)
    }


def group_of(classes, support):
    return GroupSummary(classes, support, summary(0.5), summary(0.1))


def not_compared(groups=None, task=Task.MULTICLASS, rows=(), runs=()):
    with_groups = [replace(result_of("ce"), groups=groups)] if groups else []
    return rules._not_compared(task, [*with_groups, *rows], dict(runs))


def test_the_test_samples_are_drawn_a_thousand_times():
    parameters = inspect.signature(judge).parameters
    assert (parameters["draws"].default, parameters["seed"].default) == (1000, 0)


@pytest.mark.parametrize(
    ("task", "classes", "support", "reason"),
    [
        (Task.MULTICLASS, 2, 10, None),
        (Task.MULTICLASS, 2, 9, "2 classes, 9 test samples, too few to judge"),
        (Task.MULTICLASS, 1, 1, "1 class, 1 test sample, too few to judge"),
        (Task.MULTICLASS, 3, 0, "3 classes, 0 test samples, too few to judge"),
        (Task.MULTILABEL, 2, 2, "2 labels, 2 positive test samples, too few to judge"),
        (Task.MULTILABEL, 1, 1, "1 label, 1 positive test sample, too few to judge"),
        (Task.SEGMENTATION, 2, 1, "2 classes, 1 test pixel, too few to judge"),
    ],
)
def test_groups_need_ten_test_samples(task, classes, support, reason):
    groups = {"many": group_of(3, 100), "few": group_of(classes, support)}
    assert not_compared(groups, task) == ({} if reason is None else {"few": reason})


def test_times_are_compared_where_they_vary_by_up_to_a_twentieth():
    assert not_compared(rows=rows_with_times(ce=(2.0, 0.1), focal=(1.0, 0.01))) == {}
    (reason,) = not_compared(rows=rows_with_times(ce=(2.0, 0.1), focal=(1.0, 0.06))).values()
    assert reason == "timings are not comparable: they vary by 6 % between seeds of focal"
    # the largest fraction of the mean, not the largest deviation
    (reason,) = not_compared(rows=rows_with_times(ce=(20.0, 1.9), focal=(0.1, 0.02))).values()
    assert reason == "timings are not comparable: they vary by 20 % between seeds of focal"
    assert not_compared(rows=rows_with_times(ce=(2.0, None))) == {}
    assert not_compared(rows=rows_with_times(ce=(None, None), focal=(1.0, 0.0))) == {}
    assert not_compared(rows=[result_of("ce"), unfinished("focal")]) == {}


@pytest.mark.parametrize(
    ("spans", "shared"),
    [
        ([("12:00", "12:01")], False),
        ([("12:00", "12:01"), ("12:01", "12:02")], False),
        ([("12:00", "12:02"), ("12:01", "12:03")], True),
        ([("12:01", "12:03"), ("12:00", "12:02")], True),
        ([("12:03", "12:04"), ("12:00", "12:01"), ("12:01", "12:02")], False),
        ([("12:00", "12:01"), ("12:02", "12:04"), ("12:03", "12:05")], True),
    ],
)
def test_runs_that_overlap_share_the_machine(spans, shared):
    assert (SPEED in not_compared(runs=runs_at(*spans))) is shared


def test_runs_on_other_samples_are_refused_where_it_is_known():
    def runs(*fingerprints):
        data = record_of().data
        return {
            ("ce", seed): FinishedRun(
                SimpleNamespace(path=f"run-{seed}"), record_of(data=replace(data, fingerprint=value)), None, {}
            )
            for seed, value in enumerate(fingerprints)
        }

    for known in (("a", "a"), ("a", None), (None, None), (None, "a", "a"), ()):
        rules._check_samples(runs(*known))
    for known in (("a", "b"), (None, "a", "b"), ("a", None, "b"), ("a", "a", "b")):
        with pytest.raises(ValueError, match="all runs must be trained and tested on the same samples"):
            rules._check_samples(runs(*known))
    with pytest.raises(ValueError, match=r"^run-2: .* found others than in run-1"):
        rules._check_samples(runs(None, "a", "b"))


def test_means_and_deviations_are_over_the_seeds_with_a_value():
    assert rules._summary([]) == rules.Summary(None, None, ())
    assert rules._summary([None]) == rules.Summary(None, None, (None,))
    assert rules._summary([0.5, None]) == rules.Summary(0.5, None, (0.5, None))
    found = rules._summary([0.2, None, 0.4])
    assert found.mean == pytest.approx(0.3)
    assert found.std == pytest.approx(0.02**0.5)
    assert found.per_seed == (0.2, None, 0.4)


def test_losses_that_are_one_another_have_one_row():
    rows = [result_of("a", chosen="x"), result_of("b", chosen="y"), result_of("ce", chosen="x"), unfinished("d")]
    kept, equal = rules._distinct(rows, "ce")
    assert [row.loss for row in kept] == ["b", "ce", "d"]  # the baseline keeps its row
    assert equal == {"a": "ce"}
    kept, equal = rules._distinct(rows, "b")
    assert [row.loss for row in kept] == ["a", "b", "d"]
    assert equal == {"ce": "a"}


def evaluation(task, *supports):
    return SimpleNamespace(task=task, per_class=[SimpleNamespace(support=support) for support in supports])


@pytest.mark.parametrize(
    ("test", "equal"),
    [
        (evaluation(Task.MULTICLASS, 5, 5), True),
        (evaluation(Task.MULTICLASS, 5, 0, 5), True),
        (evaluation(Task.MULTICLASS, 1, 1), True),
        (evaluation(Task.MULTICLASS, 5, 6), False),
        (evaluation(Task.MULTILABEL, 5, 5), False),
        (evaluation(Task.SEGMENTATION, 5, 5), False),
    ],
)
def test_accuracy_is_mean_class_accuracy_where_all_classes_have_equal_support(test, equal):
    assert rules._equal_metrics(test) == ({"accuracy": "mean_class_accuracy"} if equal else {})


def test_columns_are_what_a_loss_has_and_groups_where_there_are_several():
    task, (main, *_) = next(iter(METRICS.items()))
    assert rules._metrics(task, [result_of("ce")]) == []
    some = {main: summary(0.5), SPEED: summary(0.01), GROUPS[0]: summary(0.5), GROUPS[1]: summary(None)}
    assert rules._metrics(task, [result_of("ce", some)]) == [main, SPEED]
    other = {GROUPS[2]: summary(0.1)}
    assert rules._metrics(task, [result_of("ce", some), result_of("focal", other)]) == [
        main,
        GROUPS[0],
        GROUPS[2],
        SPEED,
    ]


# ------------------------------------------------------------------------------------------------------- differences


def adjusted(metric="accuracy", base=0.5, **differences):
    return {one.loss: one for one in rules._adjusted(metric, differences, base)}


def test_only_p_values_below_the_level_are_significant(monkeypatch):
    monkeypatch.setattr(rules, "holm", lambda p_values: [ALPHA, math.nextafter(ALPHA, 0.0)])
    found = adjusted(a=Difference(0.1, 3, 1e-4, 1e-5), b=Difference(0.1, 3, 1e-4, 1e-5))
    assert [found[loss].significant for loss in "ab"] == [False, True]


def test_p_values_are_adjusted_over_the_losses():
    differences = {
        "a": Difference(0.10, 3, 1e-4, 1e-5),
        "b": Difference(0.02, 3, 1e-4, 1e-5),
        "c": Difference(0.05, 1, math.nan, math.nan),
        "d": Difference(-0.03, 3, 4e-4, 1e-5),
    }
    found, expected = (
        adjusted(**differences),
        dict(zip(differences, moderated(list(differences.values())), strict=True)),
    )
    p_values = {loss: expected[loss].p for loss in "abd"}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    open_tests = sum(p >= ALPHA for p in corrected.values())
    assert open_tests == 2
    for loss in "abd":
        assert (found[loss].p, found[loss].p_adjusted) == (p_values[loss], corrected[loss])
        assert (found[loss].low, found[loss].high) == expected[loss].interval
        assert found[loss].significant is (corrected[loss] < ALPHA) is (loss == "a")
        assert found[loss].mean == differences[loss].mean
        assert (found[loss].seeds, found[loss].usable) == (3, True)
    need = expected["d"].need(open_tests)
    assert (found["d"].seeds_needed, found["d"].limit) == (need.seeds, need.limit)
    assert need.seeds != expected["d"].need(1).seeds
    assert (found["a"].seeds_needed, found["a"].limit) == (None, None)
    alone = found["c"]
    assert (alone.low, alone.high, alone.p, alone.p_adjusted, alone.seeds_needed, alone.limit) == (None,) * 6
    assert not alone.significant
    assert not alone.usable
    assert alone.seeds == 1


@pytest.mark.parametrize(
    ("metric", "base", "margin", "usable"),
    [
        ("accuracy", 0.9, 0.49, True),
        ("accuracy", 0.9, 0.51, False),
        ("accuracy", None, 0.49, True),
        ("nll", 0.4, 0.39, True),
        ("nll", 0.4, 0.41, False),
        ("nll", -0.4, 0.39, True),
        ("nll", None, 1e9, True),
        ("nll", 0.0, 1e9, True),
    ],
)
def test_intervals_are_of_use_up_to_50_points_or_the_value_of_the_baseline(metric, base, margin, usable):
    """Only the test samples matter here, so the margin is 1.96 times their standard deviation."""
    one = Difference(0.1, 3, 0.0, (margin / 1.959964) ** 2)
    (found,) = adjusted(metric, base, a=one).values()
    assert found.usable is usable


def test_intervals_of_fractions_end_at_one():
    far = Difference(0.5, 3, 0.0, 1.0)
    (fraction,) = adjusted(a=far).values()
    assert (fraction.low, fraction.high) == (-1.0, 1.0)
    (likelihood,) = adjusted("nll", a=far).values()
    assert (likelihood.low, likelihood.high) == pytest.approx((0.5 - 1.959964, 0.5 + 1.959964))
    (near,) = adjusted(a=Difference(0.5, 3, 0.0, 0.01)).values()
    assert (near.low, near.high) == pytest.approx((0.5 - 0.1959964, 0.5 + 0.1959964))


def test_times_are_compared_without_samples():
    runs = {
        (loss, seed): FinishedRun(None, None, None, {SPEED: value})
        for loss, values in {"a": [2.0, 2.5, 3.0], "ce": [1.0, 1.0, 2.0]}.items()
        for seed, value in enumerate(values)
    }
    pairs = [(("a", seed), ("ce", seed)) for seed in range(3)]
    found = rules._difference(SPEED, pairs, runs, {}, {})
    assert found.mean == pytest.approx(3.5 / 3)
    assert found.seed_variance == pytest.approx(1 / 12)
    assert found.unpaired_variance == pytest.approx(0.25 + 1 / 3)
    assert found.sample_variance == 0.0
    alone = rules._difference(SPEED, pairs[:1], runs, {}, {})
    assert (alone.mean, alone.seeds, alone.interval) == (1.0, 1, None)
    two = rules._difference(SPEED, pairs[:2], runs, {}, {})
    assert (two.seeds, two.mean) == (2, 1.25)
    assert two.unpaired_variance == pytest.approx(0.125)
    assert rules._resampled({(("a", 0), ("ce", 0)), (("b", 0), ("ce", 0))}, runs, 10, 0) == ({}, {})


def test_differences_know_how_little_samples_and_how_much_seeds_say():
    """The lower bound of the variance of the mean, and the sum of the variances of both losses over the seeds."""
    values = {("a", 0): 0.5, ("a", 1): 0.8, ("ce", 0): 0.4, ("ce", 1): 0.6}
    runs = {key: FinishedRun(None, None, None, {"accuracy": value}) for key, value in values.items()}
    drawn = {key: {"accuracy": np.full(9, value)} for key, value in values.items()}  # draws that say nothing
    statistics = dict.fromkeys(values, SimpleNamespace(least={"accuracy": 0.25}, drawn=lambda metric: 40))
    pairs = [(("a", seed), ("ce", seed)) for seed in range(2)]
    found = rules._difference("accuracy", pairs, runs, statistics, drawn)
    assert (found.mean, found.seeds) == (pytest.approx(0.15), 2)
    assert found.seed_variance == pytest.approx(0.005)
    assert found.unpaired_variance == pytest.approx(0.045 + 0.02)
    assert found.sample_variance == pytest.approx(0.25 - 0.005 / 2)
    for one in statistics.values():
        one.least.clear()
    assert rules._difference("accuracy", pairs, runs, statistics, drawn).sample_variance == 0.0
