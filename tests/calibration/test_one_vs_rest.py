"""Isotonic regression and histogram binning."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from torch.testing import assert_close

from equipoise.calibration import (
    CalibrationWarning,
    HistogramBinning,
    IsotonicCalibration,
    fit_histogram,
    fit_isotonic,
)
from equipoise.calibration.one_vs_rest import softmax_log_odds
from tests.calibration.data import multi, nll, single

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)


@quick
@given(seed=seeds, rows=st.integers(2, 200), digits=st.integers(0, 6))
def test_a_label_agrees_with_scikit_learn(seed, rows, digits):
    """Also between and beyond the scores of the fit, and with ties (few digits)."""
    logits, targets = multi(rows, 1, seed=seed)
    logits = logits.round(decimals=digits)
    floor = 0.5 / (rows + 1)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(logits[:, 0].numpy(), targets[:, 0].numpy())
    elsewhere = torch.linspace(-12, 12, 301, dtype=torch.float64)[:, None]
    assume(targets.any())
    ours = fit_isotonic(logits, targets, task="multilabel")
    for scores in (logits, elsewhere):
        at_knots = theirs.predict(scores[:, 0].numpy())
        np.testing.assert_allclose(
            ours(scores).sigmoid()[:, 0].numpy(), np.clip(at_knots, floor, 1 - floor), atol=1e-9 + floor, rtol=0
        )
    seen = np.clip(theirs.predict(logits[:, 0].numpy()), floor, 1 - floor)
    np.testing.assert_allclose(ours(logits).sigmoid()[:, 0].numpy(), seen, atol=1e-12, rtol=0)


def test_two_classes_are_one_against_the_other():
    logits, targets = single(500, 2)
    odds = (logits[:, 1] - logits[:, 0]).numpy()
    theirs = IsotonicRegression(out_of_bounds="clip").fit(odds, targets.numpy()).predict(odds)
    floor = 0.5 / 501
    ours = fit_isotonic(logits, targets)(logits).softmax(1)[:, 1].numpy()
    np.testing.assert_allclose(ours, np.clip(theirs, floor, 1 - floor), atol=1e-9)


@pytest.mark.parametrize("binning", ["mass", "width"])
def test_histogram_values_by_hand(binning):
    logits, targets = multi(300, 2)
    fitted = fit_histogram(logits, targets, bins=7, binning=binning)
    probs = fitted(logits).sigmoid()
    for label in range(2):
        p, y = logits[:, label].sigmoid(), targets[:, label].double()
        if binning == "width":
            at = (p * 7).ceil().clamp(min=1) - 1
        else:
            at = torch.empty_like(p)
            at[p.argsort()] = torch.tensor([sum(i >= b * 300 // 7 for b in range(1, 7)) for i in range(300)]).double()
        for b in at.unique():
            inside = at == b
            expected = (y[inside].sum() + p[inside].mean()) / (inside.sum() + 1)
            assert_close(probs[inside, label], expected.expand(int(inside.sum())))


def test_equal_scores_stay_in_one_bin():
    logits = torch.tensor([[0.0]] * 10 + [[1.0]] * 10)
    targets = torch.tensor([[0, 1] * 5 + [1] * 10]).T
    fitted = fit_histogram(logits, targets, bins=5, binning="mass")
    assert len(fitted.curves[0][1]) == 2
    assert len(fitted(logits).unique()) == 2


@pytest.mark.parametrize("fit", [fit_isotonic, fit_histogram])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_probabilities_are_never_zero_or_one(fit, task):
    """Separated data would give both; the cut is one sample of N + 1, shared by the classes."""
    if task == "multiclass":
        targets = torch.arange(60) % 3
        logits = 100.0 * torch.nn.functional.one_hot(targets, 3).double()
    else:
        targets = torch.tensor([[0], [1]]).repeat(30, 1)
        logits = 200.0 * targets.double() - 100.0
    after = fit(logits, targets)(logits)
    assert bool(after.isfinite().all())
    p = after.softmax(1) if task == "multiclass" else after.sigmoid()
    assert float(p.min()) > 0
    outcomes = 3 if task == "multiclass" else 2
    assert float(p.min()) == pytest.approx(1 / (outcomes * 61), rel=0.05)


@pytest.mark.parametrize("fit", [fit_isotonic, fit_histogram])
def test_it_calibrates(fit):
    logits, targets = single(8000, 4)
    new, labels = single(8000, 4, seed=1)
    assert nll(fit(logits, targets)(new), labels) < nll(new, labels) - 0.1
    logits, targets = multi(8000, 4)
    new, labels = multi(8000, 4, seed=1)
    assert nll(fit(logits, targets)(new), labels) < nll(new, labels) - 0.03


def test_isotonic_keeps_the_ranking_of_a_label():
    logits, targets = multi(500, 3)
    after = fit_isotonic(logits, targets)(logits)
    for before, now in zip(logits.unbind(1), after.unbind(1), strict=True):
        assert bool((now[before.argsort()].diff() >= 0).all())


def test_unknown_labels_are_ignored():
    logits, targets = multi(300, 3)
    holes = targets.clone()
    holes[:100, 1] = -1
    for fit in (fit_isotonic, fit_histogram):
        alone = fit(logits[100:, 1:2], targets[100:, 1:2])
        values, other = fit(logits, holes).curves[1], alone.curves[0]
        assert values[0] == other[0]
        np.testing.assert_allclose(values[1], other[1], atol=0.5 / 201)
    holes[:, 2] = -1
    with pytest.warns(CalibrationWarning, match="label 2 has no positive sample"):
        assert bool((fit_isotonic(logits, holes)(logits)[:, 2] == 0).all())


def test_places():
    logits, targets = single(6, 3, size=(5, 4))
    rows = logits.movedim(1, -1).reshape(-1, 3)
    for fit in (fit_isotonic, fit_histogram):
        fitted = fit(logits, targets)
        assert fitted == fit(rows, targets.reshape(-1))
        assert_close(fitted(logits).movedim(1, -1).reshape(-1, 3), fitted(rows))


@quick
@given(seed=seeds, scale=st.sampled_from([0.01, 1.0, 30.0, 1e4]), classes=st.integers(2, 6))
def test_log_odds(seed, scale, classes):
    logits, _ = single(50, classes, scale, seed)
    odds = softmax_log_odds(logits)
    assert bool(odds.isfinite().all())
    for c in range(classes):
        others = torch.cat([logits[:, :c], logits[:, c + 1 :]], 1).logsumexp(1)
        assert_close(odds[:, c], logits[:, c] - others, rtol=1e-9, atol=1e-9)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.isotonic", None)
    with pytest.raises(ImportError, match=r"fit_isotonic needs scikit-learn.*pip install"):
        fit_isotonic(*multi(20))


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        (((((0.0, 1.0), (0.2,))),), "as many odds as probs"),
        (((((1.0, 0.0), (0.2, 0.3))),), "increasing"),
        (((((0.0, 1.0), (0.2, 1.0))),), "below 1"),
        (((((0.0, 1.0), (0.0, 0.5))),), "above 0"),
        (((((0.0, math.nan), (0.1, 0.5))),), "finite"),
    ],
)
def test_bad_curves(curves, message):
    with pytest.raises(ValueError, match=message):
        IsotonicCalibration(curves)


def test_bad_histograms():
    with pytest.raises(ValueError, match="an edge less than bins"):
        HistogramBinning((((0.0,), (0.5,)),))
    with pytest.raises(ValueError, match="binning must be one of"):
        fit_histogram(*multi(20), binning="equal")
    with pytest.raises(ValueError, match="bins"):
        fit_histogram(*multi(20), bins=0)
