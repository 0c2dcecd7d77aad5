"""Metrics of an open set on resampled samples: those of the evaluation, also where samples repeat."""

import json
from pathlib import Path

import numpy as np
import pytest

from equipoise.comparison.judge import judge
from equipoise.comparison.open_set import OPEN_METRICS, OpenSetStatistics
from equipoise.comparison.resampling import resample, statistics_of, values_of
from equipoise.comparison.statistics import paired_difference
from equipoise.evaluation import evaluate_open_set
from equipoise.evaluation.sample_statistics import METRICS
from equipoise.predictions import Chunk, Predictions, open_predictions
from tests.comparison.made import make_comparison, make_run
from tests.predictions.saved import arrays_of

CLOSED = ("f_measure", "known_rejected", "open_accuracy")


def unknown_logits(seed=0, samples=70, classes=6):
    return 1.5 * np.random.default_rng([seed, 3]).normal(size=(samples, classes))


def run_of(path, *, ties=False, ignored=(), unknown=None, samples=240):
    arrays, val = arrays_of("multiclass", samples=samples), arrays_of("multiclass", seed=5)
    unknown = unknown_logits() if unknown is None else unknown
    arrays["targets"][list(ignored)] = -100
    if ties:
        arrays["logits"], val["logits"], unknown = (x.round() for x in (arrays["logits"], val["logits"], unknown))
    return make_run(path, "multiclass", val, arrays, unknown=unknown), arrays


def repeated(arrays, times):
    return arrays | {name: np.repeat(arrays[name], times, 0) for name in ("logits", "targets") if name in arrays}


@pytest.mark.parametrize("ties", [False, True], ids=["all different", "ties"])
def test_numbers_on_all_samples_are_those_of_the_evaluation(tmp_path, ties):
    folder, _ = run_of(tmp_path / "run", ties=ties, ignored=(3, 50))
    run, values = statistics_of(folder), values_of(folder)
    assert (run.test.samples, *run.open_sizes) == (240, 70, 240)
    metrics = run.weigh(*(np.ones((samples, 1)) for samples in (240, 70, 240)))
    assert set(metrics) == {*METRICS["multiclass"], *OPEN_METRICS} < set(values)
    for name in OPEN_METRICS:
        assert 0 < values[name] < 1
        assert metrics[name][0] == pytest.approx(values[name], abs=1e-9), name


def test_weights_are_repetitions(tmp_path):
    folder, arrays = run_of(tmp_path / "run", samples=150)
    draw = np.random.default_rng(0)
    drawn = [draw.multinomial(count, np.full(count, 1 / count), 3).T for count in (150, 70, 240)]
    metrics = statistics_of(folder).weigh(*(weights.astype(np.float32) for weights in drawn))
    kinds = {"test": arrays, "open": {"logits": unknown_logits()}, "val": arrays_of("multiclass", seed=5)}
    for k in range(3):
        again = {}
        for (name, own), weights in zip(kinds.items(), drawn, strict=True):
            file = tmp_path / f"{name}-{k}.npz"
            np.savez(file, **repeated(own | {"logits": own["logits"].astype(np.float32)}, weights[:, k]))
            again[name] = open_predictions(file, targets=name != "open")
        again = evaluate_open_set(again["test"], again["open"], val=again["val"])
        for name in OPEN_METRICS:
            assert metrics[name][k] == pytest.approx(again.overall[name], abs=1e-6), name


def test_samples_of_every_kind_are_drawn_and_the_others_stay_as_they_were(tmp_path):
    folder, arrays = run_of(tmp_path / "run")
    closed = make_run(tmp_path / "closed", "multiclass", arrays_of("multiclass", seed=5), arrays)
    (metrics,), (alone,) = (resample([statistics_of(one)], draws=400, seed=1) for one in (folder, closed))
    for name in METRICS["multiclass"]:
        np.testing.assert_array_equal(metrics[name], alone[name])
    run = statistics_of(folder)
    draw = np.random.default_rng(0)
    weights = [draw.multinomial(count, np.full(count, 1 / count), 2000).T for count in (240, 70, 240)]
    ones = [np.ones_like(one) for one in weights]
    for metric, kinds in {
        "unknown_rejected": (1, 2),
        "known_rejected": (0, 2),
        "open_accuracy": (0, 2),
        "f_measure": (0, 1, 2),
        "auroc": (0, 1),
    }.items():
        parts = [np.var(run.weigh(*ones[:k], weights[k], *ones[k + 1 :])[metric]) for k in range(3)]
        assert [k for k in range(3) if parts[k] > 1e-9] == list(kinds), metric
        assert np.var(metrics[metric]) == pytest.approx(sum(parts), rel=0.3), metric


def test_the_least_variance_is_that_of_two_samples(tmp_path):
    """One sample the other way, of those that count, moves a metric by the root of half of it."""
    run = statistics_of(run_of(tmp_path / "run")[0])
    one = run.open
    accepted = one.confidence >= one.threshold
    hit, rejected = (one.counted[np.flatnonzero(kind)[0]] for kind in (accepted & one.correct, ~accepted))
    weights, others, val = np.ones((240, 2)), np.ones((70, 2)), np.ones((240, 2))
    weights[hit, 1], weights[rejected, 1] = 2, 0
    others[one.unknown_order[[0, -1]], 1] = 2, 0  # the least and the most sure
    for metric, unknown in (("unknown_rejected", others), *((name, np.ones((70, 2))) for name in CLOSED)):
        before, after = run.weigh(weights, unknown, val)[metric]
        assert run.least[metric] == pytest.approx(2 * (after - before) ** 2, rel=0.1), metric
    assert [run.drawn(name) for name in ("f_measure", "unknown_rejected", "accuracy")] == [70, 70, 240]


def predict(factor):
    """Runs of two losses, of which the second is more confident on samples of unknown classes, by a factor."""

    def make(loss, seed):
        draw = np.random.default_rng([seed, loss == "b"])
        test, val = arrays_of("multiclass", samples=400), arrays_of("multiclass", seed=5)
        for arrays in (val, test):
            right = arrays["targets"][:, None] == np.arange(6)
            arrays["logits"] = arrays["logits"] + 6 * right + 0.3 * draw.normal(size=right.shape)
        unknown = 0.5 * unknown_logits(samples=200) + 0.1 * draw.normal(size=(200, 6))
        return val, test, {"unknown": unknown * (factor if loss == "b" else 1.0)}

    return make


def test_a_comparison_has_columns_and_tests_them(tmp_path):
    verdict = judge(make_comparison(tmp_path / "c", {"a": ["a"], "b": ["b"]}, [0, 1, 2], predict(4.0)), draws=200)
    assert verdict.metrics == (*METRICS["multiclass"], *OPEN_METRICS, "seconds_per_step")
    difference = {one.metric: one for one in verdict.differences}
    for name in ("f_measure", "auroc", "unknown_rejected"):
        assert difference[name].high < 0
        assert difference[name].significant
    assert not difference["open_accuracy"].significant
    auroc = verdict.rows[1].metrics["auroc"]
    assert auroc.mean == pytest.approx(np.mean(auroc.per_seed))
    assert auroc.std == pytest.approx(np.std(auroc.per_seed, ddof=1))
    text = " ".join(verdict.sentences)
    assert "Significantly worse than a in F-measure with unknown classes: b −" in text
    assert "Highest AUROC of known vs unknown samples: a, " in text
    json.dumps(verdict.to_json(), allow_nan=False)


def test_without_an_open_set_there_are_no_open_set_metrics(tmp_path):
    def closed(loss, seed):
        return (*predict(1.0)(loss, seed)[:2], {})

    verdict = judge(make_comparison(tmp_path / "c", {"a": ["a"], "b": ["b"]}, [0, 1], closed), draws=20)
    assert not set(verdict.metrics) & set(OPEN_METRICS)
    assert not {one.metric for one in verdict.differences} & set(OPEN_METRICS)
    assert not any(set(row.metrics) & set(OPEN_METRICS) for row in verdict.rows)


def test_runs_with_other_unknown_samples_are_not_compared(tmp_path):
    def other(loss, seed):
        val, test, own = predict(1.0)(loss, seed)
        return val, test, {"unknown": own["unknown"][: 150 if (loss, seed) == ("b", 1) else 200]}

    with pytest.raises(ValueError, match="tested on the same samples"):
        judge(make_comparison(tmp_path / "c", {"a": ["a"], "b": ["b"]}, [0, 1], other), draws=20)


# What intervals promise -----------------------------------------------------------------------------------------------


def source_of(logits, targets, labelled=True):
    return Predictions(
        path=Path("made.npz"),
        task="multiclass",
        num_classes=logits.shape[1],
        samples=len(logits),
        class_names=tuple(map(str, range(logits.shape[1]))),
        from_logits=True,
        read=lambda size: iter([Chunk(logits, targets)]),
        ignore_index=-100,
        labelled=labelled,
    )


def trained_alike(draw, seeds, sizes):
    """Statistics of two losses that differ by chance alone: in each sample, the same in all seeds, and in each run."""
    kinds = []
    for kind, samples in enumerate(sizes):
        targets = draw.integers(0, 8, samples)
        sure = 0.0 if kind == 1 else 4.0
        logits = 1.5 * draw.normal(size=(samples, 8)) + sure * (targets[:, None] == np.arange(8))
        kinds.append((targets, [logits + draw.normal(size=logits.shape) for _ in "ab"]))
    return [
        [
            OpenSetStatistics(
                *(
                    source_of(logits[loss] + 0.3 * draw.normal(size=logits[loss].shape), targets, kind != 1)
                    for kind, (targets, logits) in enumerate(kinds)
                ),
                accept=0.95,
            )
            for _ in range(seeds)
        ]
        for loss in range(2)
    ]


def test_intervals_hold_what_they_promise():
    """Were thresholds taken as given, those of the unknown samples rejected would hold the truth in 84 %."""
    draw, sizes, seeds, trials = np.random.default_rng(1), (150, 150, 80), 5, 120
    held = dict.fromkeys(OPEN_METRICS, 0)
    for _ in range(trials):
        losses = trained_alike(draw, seeds, sizes)
        weights = [draw.multinomial(count, np.full(count, 1 / count), 200).T for count in sizes]
        values, drawn = (
            [[one.weigh(*own) for one in runs] for runs in losses]
            for own in ([np.ones((count, 1)) for count in sizes], weights)
        )
        for name in OPEN_METRICS:
            seen, again = (
                np.stack([a[name] - b[name] for a, b in zip(*both, strict=True)]) for both in (values, drawn)
            )
            one = losses[0][0]
            low, high = paired_difference(
                seen[:, 0], again, samples=one.samples_of[name], least=one.least.get(name, 0.0)
            ).interval
            held[name] += low <= 0.0 <= high
    for name, count in held.items():
        assert count >= 0.91 * trials, (name, held)
