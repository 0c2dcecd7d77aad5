"""Rejection of samples of unknown classes: against counting one by one, and cases worked out by hand."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.heads import open_set_prediction
from equipoise.metrics import (
    Accuracy,
    OpenSetScores,
    ShotAccuracy,
    accepting_threshold,
    best_threshold,
    rejection_curve,
    shot_groups,
)

few = settings(max_examples=40, deadline=None)
COUNTS = [500, 150, 60, 12, 3]


def ratio(upper, lower):
    return upper / lower if lower else math.nan


def slowly(predicted, targets, convention):
    """The published loop over samples (F_measure with openset=True), without its 1e-12."""
    true = false = missed = 0
    for guess, target in zip(predicted, targets, strict=True):
        if target == -1:
            missed += guess != -1
        elif guess == target:
            true += 1
        else:
            false += convention == "oltr" or guess != -1
    precision, recall = ratio(true, true + false), ratio(true, true + missed)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0 * (precision + recall)


def batch(seed, samples=60, classes=5, unknown=0.3):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, classes, generator=draw, dtype=torch.float64)
    targets = torch.randint(0, classes, (samples,), generator=draw)
    logits[torch.arange(samples), targets] += 1.5
    targets[torch.rand(samples, generator=draw) < unknown] = -1
    return logits, targets


def parts(logits, targets):
    """Confidence and correctness of the known, confidence of the unknown samples."""
    confidence, predicted = logits.softmax(1).max(1)
    known = targets >= 0
    return confidence[known], (predicted == targets)[known], confidence[~known]


@few
@given(st.integers(0, 10**6), st.sampled_from(["oltr", "kang"]), st.floats(0.0, 1.0))
def test_f_measure_is_that_of_the_published_loop(seed, convention, threshold):
    logits, targets = batch(seed)
    expected = slowly(open_set_prediction(logits, threshold=threshold).tolist(), targets.tolist(), convention)
    curve = rejection_curve(*parts(logits, targets), [threshold], convention=convention)
    scores = OpenSetScores(threshold, convention=convention)(logits, targets)
    if math.isnan(expected):
        # the loop divides by 0 where no known sample is accepted; that is an F of 0 as soon as something went wrong
        assert float(scores["f_measure"]) in (0.0, pytest.approx(math.nan, nan_ok=True))
    else:
        assert float(scores["f_measure"]) == pytest.approx(expected)
    assert float(curve.f_measure) == pytest.approx(float(scores["f_measure"]), nan_ok=True)


@few
@given(st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_shares_and_groups_are_counts(seed, threshold):
    logits, targets = batch(seed)
    predicted = open_set_prediction(logits, threshold=threshold)
    groups = shot_groups(COUNTS)
    scores = OpenSetScores(threshold, groups=groups)(logits, targets)
    known = targets >= 0
    assert float(scores["known_rejected"]) == pytest.approx(float((predicted[known] == -1).double().mean()))
    assert float(scores["unknown_rejected"]) == pytest.approx(
        ratio(int((predicted[~known] == -1).sum()), int((~known).sum())), nan_ok=True
    )
    assert float(scores["accuracy"]) == pytest.approx(float((predicted == targets)[known].double().mean()))
    for group in range(3):
        shares = []
        for c in (groups == group).nonzero().flatten():
            own = targets == c
            if own.any():
                shares.append(float((predicted[own] == c).double().mean()))
        assert float(scores["groups"][group]) == pytest.approx(ratio(sum(shares), len(shares)), nan_ok=True)


def test_without_rejection_the_closed_values_are_those_of_the_closed_metrics():
    logits, targets = batch(3)
    closed = targets.masked_fill(targets == -1, -100)
    scores = OpenSetScores(0.9, groups=shot_groups(COUNTS))(logits, targets)
    shots = ShotAccuracy(COUNTS)(logits, closed)
    assert scores["closed_groups"].tolist() == [float(shots[name]) for name in ShotAccuracy.NAMES]
    assert float(scores["closed_accuracy"]) == float(Accuracy(5)(logits, closed)["top1"])
    assert float(scores["accuracy"]) < float(scores["closed_accuracy"])
    nothing = OpenSetScores(0.0, groups=shot_groups(COUNTS))(logits, targets)
    assert nothing["groups"].tolist() == nothing["closed_groups"].tolist()
    assert float(nothing["unknown_rejected"]) == float(nothing["known_rejected"]) == 0.0


def test_a_case_by_hand():
    """Five known samples: three right (0.9, 0.7, 0.3), two wrong (0.8, 0.2); three unknown (0.75, 0.4, 0.1)."""
    confidence = torch.tensor([0.9, 0.7, 0.3, 0.8, 0.2])
    right = torch.tensor([True, True, True, False, False])
    unknown = torch.tensor([0.75, 0.4, 0.1])
    levels = [0.0, 0.25, 0.5, 0.95]
    curve = rejection_curve(confidence, right, unknown, levels)
    # accepted and right 3, 3, 2, 0 of 5 known; unknown accepted 3, 2, 1, 0
    assert curve.f_measure.tolist() == pytest.approx([6 / 11, 6 / 10, 4 / 8, 0.0])
    assert curve.accuracy.tolist() == pytest.approx([0.6, 0.6, 0.4, 0.0])
    assert curve.known_rejected.tolist() == pytest.approx([0.0, 0.2, 0.4, 1.0])
    assert curve.unknown_rejected.tolist() == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
    kang = rejection_curve(confidence, right, unknown, levels, convention="kang").f_measure
    # accepted and wrong 2, 1, 1, 0
    assert kang[:3].tolist() == pytest.approx([6 / 11, 6 / 9, 4 / 6])
    assert kang[3].isnan()
    assert best_threshold(confidence, right, unknown) == pytest.approx(0.2)  # 6/10, also at 0.3
    # the one surest sample alone: what is rejected costs nothing by this convention
    assert best_threshold(confidence, right, unknown, convention="kang") == pytest.approx(0.9)


def test_a_confidence_at_the_threshold_is_accepted():
    curve = rejection_curve(torch.tensor([0.5]), torch.tensor([True]), torch.tensor([0.5]), [0.5, 0.5000001])
    assert curve.known_rejected.tolist() == curve.unknown_rejected.tolist() == [0.0, 1.0]


@few
@given(st.integers(0, 10**6), st.sampled_from(["oltr", "kang"]))
def test_no_threshold_has_a_higher_f_measure(seed, convention):
    confidence, right, unknown = parts(*batch(seed))
    assume(len(unknown))
    chosen = best_threshold(confidence, right, unknown, convention=convention)
    tried = torch.linspace(0, 1, 997)
    curve = rejection_curve(confidence, right, unknown, tried, convention=convention)
    best = float(rejection_curve(confidence, right, unknown, [chosen], convention=convention).f_measure)
    assert best >= float(curve.f_measure.nan_to_num(0.0).max()) - 1e-12


@few
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_the_highest_threshold_that_accepts_a_share(values, share):
    confidence = torch.tensor(values, dtype=torch.float64)
    chosen = accepting_threshold(confidence, share=share)
    assert (confidence >= chosen).double().mean() >= share - 1e-9
    above = confidence[confidence > chosen]
    assert len(above) / len(confidence) < share


def test_fractions_are_nan_without_data():
    none = torch.zeros(0)
    curve = rejection_curve(none, none.bool(), torch.tensor([0.3]), [0.1])
    assert curve.accuracy.isnan().all()
    assert float(curve.f_measure) == 0.0
    scores = OpenSetScores(groups=[0, 1])(torch.zeros(1, 2), torch.tensor([0]))
    assert scores["unknown_rejected"].isnan()
    assert scores["groups"].tolist()[0] == 1.0
    assert scores["groups"][1].isnan()


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: best_threshold(torch.ones(2), torch.ones(2) > 0, torch.zeros(0)), ("unknown", "accepting_threshold")),
        (lambda: accepting_threshold(torch.zeros(0)), ("confidence", "at least one sample")),
        (lambda: accepting_threshold(torch.ones(2), share=0.0), ("share", "0")),
        (lambda: accepting_threshold(torch.tensor([math.nan])), ("confidence", "finite")),
        (lambda: rejection_curve(torch.ones(2), torch.ones(2), torch.ones(1), [0.1]), ("right", "bool", "float32")),
        (lambda: rejection_curve(torch.ones(2), torch.ones(3) > 0, torch.ones(1), [0.1]), ("right", "(3,)")),
        (
            lambda: rejection_curve(torch.ones(1), torch.ones(1) > 0, torch.ones(1), [0.1], convention="x"),
            ("convention", "oltr"),
        ),
        (lambda: OpenSetScores(groups=[0.5, 1.0]), ("groups", "shot_groups")),
        (lambda: OpenSetScores(groups=[0, 1])(torch.zeros(1, 3), torch.tensor([0])), ("scores", "groups", "(1, 3)")),
    ],
)
def test_bad_arguments(attempt, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        attempt()
    for word in words:
        assert word in str(caught.value)
