"""Temperatures and thresholds of labels."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from torch.testing import assert_close

from equipoise.calibration import CalibrationWarning, Thresholds, fit_label_temperatures, fit_thresholds
from tests.calibration.data import multi, nll

seeds = st.integers(0, 2**31)
quick = settings(max_examples=20, deadline=None)

# ---------------------------------------------------------------------------------------------------------------------
# Temperatures
# ---------------------------------------------------------------------------------------------------------------------


@quick
@given(seed=seeds, scale=st.floats(0.5, 5.0))
def test_platt_scaling_is_a_logistic_regression(seed, scale):
    logits, targets = multi(300, 3, scale, seed)
    fitted = fit_label_temperatures(logits, targets, bias=True, shrinkage=0.0, bounds=(1e-3, 1e3))
    for label in range(3):
        theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
        theirs.fit(logits[:, label : label + 1].numpy(), targets[:, label].numpy())
        if theirs.coef_[0, 0] > 2e-3:
            assert 1 / fitted.temperatures[label] == pytest.approx(theirs.coef_[0, 0], rel=1e-4, abs=1e-5)
            assert fitted.biases[label] == pytest.approx(theirs.intercept_[0], rel=1e-4, abs=1e-4)


@quick
@given(seed=seeds, bias=st.booleans(), shrinkage=st.floats(0.1, 50.0))
def test_the_penalised_gradient_vanishes(seed, bias, shrinkage):
    """Autograd on the documented objective, at the result."""
    logits, targets = multi(150, 4, seed=seed)
    common = fit_label_temperatures(logits.reshape(-1, 1), targets.reshape(-1, 1), bias=bias, shrinkage=0.0)
    fitted = fit_label_temperatures(logits, targets, bias=bias, shrinkage=shrinkage)
    slope = torch.tensor([1 / t for t in fitted.temperatures], dtype=torch.float64, requires_grad=True)
    shift = torch.tensor(fitted.biases, dtype=torch.float64, requires_grad=True)
    t = slope * logits + shift
    loss = (torch.nn.functional.softplus(t, threshold=100) - targets * t).sum()
    off = (slope * common.temperatures[0] - 1).square() + (shift - common.biases[0]).square()
    loss = loss + 0.5 * shrinkage * off.sum()
    grads = torch.autograd.grad(loss, (slope, shift))
    assert float(grads[0].abs().max()) < 1e-5
    if bias:
        assert float(grads[1].abs().max()) < 1e-5
    else:
        assert fitted.biases == (0.0,) * 4


@quick
@given(seed=seeds, factor=st.floats(0.2, 5.0))
def test_temperatures_scale_with_the_logits(seed, factor):
    logits, targets = multi(200, 3, seed=seed)
    plain, other = (fit_label_temperatures(z, targets) for z in (logits, factor * logits))
    assert other.temperatures == pytest.approx([factor * t for t in plain.temperatures], rel=1e-7)


def test_shrinkage_goes_from_own_to_common_and_rare_labels_first():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3000, 2, generator=draw, dtype=torch.float64) * 3
    targets = torch.bernoulli((logits * torch.tensor([0.5, 1.5])).sigmoid(), generator=draw)
    targets[60:, 1] = -1
    common = fit_label_temperatures(logits, targets, shrinkage=1e12).temperatures
    own = fit_label_temperatures(logits, targets, shrinkage=0.0).temperatures
    some = fit_label_temperatures(logits, targets, shrinkage=30.0).temperatures
    assert common[0] == pytest.approx(common[1])
    kept = [math.log(s / c) / math.log(o / c) for s, o, c in zip(some, own, common, strict=True)]
    assert 0 < kept[1] < kept[0] < 1


def test_labels_of_one_kind_take_the_common_values():
    logits, targets = multi(300, 4)
    targets[:, 1], targets[:, 3] = 0, 1
    with pytest.warns(CalibrationWarning, match="labels 1, 3 have only positives or only negatives"):
        fitted = fit_label_temperatures(logits, targets, bias=True)
    assert fitted.temperatures[1] == fitted.temperatures[3]
    assert fitted.biases[1] == fitted.biases[3]
    assert fitted.temperatures[0] != fitted.temperatures[1]


def test_labels_of_one_value_get_a_note():
    logits, targets = multi(50, 2)
    for value in (0, 1):
        with pytest.warns(CalibrationWarning, match="nothing was learned"):
            fitted = fit_label_temperatures(logits, torch.full_like(targets, value))
        assert not fitted.converged
        assert torch.equal(fitted(logits), logits)


def test_separated_labels_stop_at_the_bound():
    logits = torch.tensor([[-2.0, -1.0], [-1.0, 2.0], [1.0, -2.0], [2.0, 1.0]]).repeat(20, 1)
    targets = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 0]]).repeat(20, 1)
    with pytest.warns(CalibrationWarning, match="label 0 has its optimum at the bound"):
        fitted = fit_label_temperatures(logits, targets, shrinkage=0.0)
    assert fitted.temperatures[0] == pytest.approx(0.01)
    assert not fitted.converged
    shrunk = fit_label_temperatures(logits, targets)
    assert shrunk.converged
    assert 0.05 < shrunk.temperatures[0] < shrunk.temperatures[1]


def test_biases_are_optimal_where_temperatures_are_at_a_bound():
    """Of many samples, whose Newton steps are far from 1: the first label is calibrated, the second one is noise."""
    draw = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(20_000, 2, generator=draw, dtype=torch.float64)
    odds = torch.stack([logits[:, 0], torch.full((20_000,), -1.0, dtype=torch.float64)], 1)
    targets = torch.bernoulli(odds.sigmoid(), generator=draw).long()
    with pytest.warns(CalibrationWarning, match="label 1 has its optimum at the bound"):
        fitted = fit_label_temperatures(logits, targets, bias=True, shrinkage=0.0, bounds=(0.5, 2.0))
    assert fitted.temperatures == pytest.approx((1.0, 2.0), rel=0.1)
    assert fitted.temperatures[1] == pytest.approx(2.0, rel=1e-12)
    assert not fitted.converged
    left = (fitted(logits).sigmoid() - targets).mean(0)  # derivative of the mean objective in the biases
    assert_close(left, torch.zeros(2, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_biases_are_optimal_where_a_bound_hardly_matters(factor):
    """The optimum is just beyond the bound, where its gradient is small."""
    logits, targets = multi(60, 2)
    free = fit_label_temperatures(logits, targets, bias=True, shrinkage=0.0).temperatures
    bound = factor * (min(free) if factor < 1 else max(free))
    bounds = (0.01, bound) if factor < 1 else (bound, 100.0)
    with pytest.warns(CalibrationWarning, match="at the bound"):
        fitted = fit_label_temperatures(logits, targets, bias=True, shrinkage=0.0, bounds=bounds)
    assert fitted.temperatures == pytest.approx((bound, bound), rel=1e-12)
    left = (fitted(logits).sigmoid() - targets).mean(0)
    assert_close(left, torch.zeros(2, dtype=torch.float64), atol=1e-10, rtol=0)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_temperatures_leave_the_bound_that_they_start_at(factor):
    """The common temperature is at the bound because of the first label, which has far more samples."""
    logits, targets = multi(1000, 2)
    logits[:, 0] *= 0.1 if factor < 1 else 10.0
    targets[30:, 1] = -1
    free = fit_label_temperatures(logits, targets, bias=True, shrinkage=0.0)
    bound = factor * free.temperatures[1]
    bounds = (bound, 1000.0) if factor < 1 else (0.001, bound)
    with pytest.warns(CalibrationWarning, match="label 0 has its optimum at the bound"):
        fitted = fit_label_temperatures(logits, targets, bias=True, shrinkage=0.0, bounds=bounds)
    assert fitted.temperatures == pytest.approx((bound, free.temperatures[1]), rel=1e-9)
    assert fitted.biases[1] == pytest.approx(free.biases[1], rel=1e-7)


def test_unknown_labels_are_ignored():
    logits, targets = multi(200, 3)
    holes = targets.clone()
    holes[:80] = -1
    fitted = fit_label_temperatures(logits, holes, bias=True)
    without = fit_label_temperatures(logits[80:], targets[80:], bias=True)
    assert fitted.temperatures == pytest.approx(without.temperatures, rel=1e-9)
    assert fitted.biases == pytest.approx(without.biases, rel=1e-7, abs=1e-9)


def test_without_biases_no_decision_changes():
    logits, targets = multi(500, 3)
    fitted = fit_label_temperatures(logits, targets)
    assert torch.equal(fitted(logits) > 0, logits > 0)
    assert nll(fitted(logits), targets) < nll(logits, targets) - 0.02


def test_blocks_do_not_matter(monkeypatch):
    logits, targets = multi(100, 9)
    temperatures = fit_label_temperatures(logits, targets, bias=True).temperatures
    thresholds = fit_thresholds(logits, targets)
    monkeypatch.setattr("equipoise.calibration.inputs.BLOCK", 50)
    assert fit_label_temperatures(logits, targets, bias=True).temperatures == pytest.approx(temperatures, rel=1e-9)
    assert fit_thresholds(logits, targets) == thresholds


# ---------------------------------------------------------------------------------------------------------------------
# Thresholds
# ---------------------------------------------------------------------------------------------------------------------


def f1_of(chosen, positive):
    return 2 * (chosen & positive).sum().item() / (chosen.sum() + positive.sum()).item()


def best_by_trying(scores, positive):
    """The best F1 of all cuts between two scores and below all of them, by brute force."""
    cuts = sorted(set(scores.tolist()))
    middles = [cuts[0] - 1.0] + [(a + b) / 2 for a, b in pairwise(cuts)]
    return max(f1_of(scores > cut, positive) for cut in middles)


@quick
@given(seed=seeds, rows=st.integers(3, 60), digits=st.integers(0, 4))
def test_no_cut_has_a_better_f1(seed, rows, digits):
    logits, targets = multi(rows, 3, seed=seed)
    logits = logits.round(decimals=digits)
    assume(targets.any())
    fitted = quietly(logits, targets, folds=0, min_positives=1, shrinkage=0.0)
    chosen = fitted.decide(logits)
    assert torch.equal(chosen, fitted(logits) > 0)
    for label in range(3):
        if targets[:, label].any():
            positive = targets[:, label] == 1
            assert f1_of(chosen[:, label], positive) == best_by_trying(logits[:, label], positive)


def quietly(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return fit_thresholds(*args, **options)


def test_of_equal_cuts_the_highest_and_halfway():
    logits = torch.tensor([[3.0], [2.0], [1.0], [0.0]])
    # choosing the first: F1 = 2/3; the first three: 2 * 2 / (3 + 2); all four: 2 * 2 / 6 = 2/3
    fitted = quietly(logits, torch.tensor([[1], [0], [1], [0]]), folds=0, min_positives=1)
    assert fitted.thresholds == (0.5,)
    # first: 2/3, first two: 1/2, all: 2/3
    fitted = quietly(logits, torch.tensor([[1], [0], [0], [1]]), folds=0, min_positives=1)
    assert fitted.thresholds == (2.5,)


def test_choosing_all_is_possible():
    logits = torch.tensor([[-3.0], [-2.0], [-1.0]])
    fitted = quietly(logits, torch.ones(3, 1), folds=0, min_positives=1)
    for dtype in (torch.float32, torch.float64):
        assert bool(fitted.decide(logits.to(dtype)).all())
        assert bool((fitted(logits.to(dtype)) > 0).all())


def test_neighbours_that_differ_in_the_last_digit():
    upper = torch.tensor([1.0], dtype=torch.float64)
    lower = torch.nextafter(upper, torch.zeros(1, dtype=torch.float64))
    logits = torch.stack([upper, lower])
    fitted = quietly(logits, torch.tensor([[1], [0]]), folds=0, min_positives=1)
    assert fitted.decide(logits).tolist() == [[True], [False]]


def test_few_positives_take_the_median_and_others_are_shrunk():
    logits, targets = multi(400, 4)
    targets[:, 3] = 0
    targets[:3, 3] = 1
    own = quietly(logits, targets, shrinkage=0.0, min_positives=1).thresholds
    with pytest.warns(CalibrationWarning, match="label 3 has fewer than 5 positives and uses the common threshold"):
        fitted = fit_thresholds(logits, targets, shrinkage=4.0, min_positives=5)
    middle = sorted(own[:3])[1]
    assert fitted.thresholds[3] == middle
    for label in range(3):
        n = int(targets[:, label].sum())
        assert fitted.thresholds[label] == pytest.approx((n * own[label] + 4.0 * middle) / (n + 4.0))


@pytest.mark.parametrize(("least", "message"), [(1, "no positives"), (2, "fewer than 2 positives")])
def test_how_few_positives_are_too_few(least, message):
    logits, targets = multi(40, 2)
    targets[:, 1] = 0
    targets[: least - 1, 1] = 1
    with pytest.warns(CalibrationWarning, match=f"label 1 has {message} and uses the common threshold"):
        fit_thresholds(logits, targets, min_positives=least)
    targets[least - 1, 1] = 1  # as many as are asked for
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        fit_thresholds(logits, targets, min_positives=least)


def test_no_label_with_enough_positives():
    logits, targets = multi(40, 2)
    with pytest.warns(CalibrationWarning, match="nothing was learned"):
        fitted = fit_thresholds(logits, targets.clamp(max=0))
    assert fitted.thresholds == (0.0, 0.0)
    assert fitted.f1 == (None, None)
    assert math.isnan(fitted.macro_f1)
    assert not fitted.converged


def test_cross_fitted_f1_is_unbiased_unlike_resubstitution():
    """Averaged over draws of small samples, evaluated on much new data."""
    expected, reached, seen = [], [], []
    new, truth = multi(20_000, 5, seed=999)
    for seed in range(30):
        logits, targets = multi(60, 5, seed=seed)
        fitted = quietly(logits, targets)
        expected.append(fitted.macro_f1)
        reached.append(f1_score(truth.numpy(), fitted.decide(new).numpy(), average="macro"))
        seen.append(f1_score(targets.numpy(), fitted.decide(logits).numpy(), average="macro"))
    assert abs(np.mean(expected) - np.mean(reached)) < 0.02
    assert np.mean(seen) - np.mean(reached) > 0.02


@pytest.mark.parametrize("digits", [15, 0], ids=["any scores", "scores at thresholds"])
def test_cross_fitting_by_hand(digits):
    logits, targets = multi(50, 2, seed=3)
    logits = logits.round(decimals=digits)
    fold = torch.randperm(50, generator=torch.Generator().manual_seed(0)) % 3
    logits[fold == 1, 0] += 0.0 if digits else 0.5  # halfway between the others
    fitted = quietly(logits, targets, folds=3, shrinkage=0.0)
    chosen = torch.zeros_like(targets, dtype=torch.bool)
    at_threshold = 0
    for held in range(3):
        kept = quietly(logits[fold != held], targets[fold != held], folds=0, shrinkage=0.0)
        chosen[fold == held] = kept.decide(logits[fold == held])
        at_threshold += (logits[fold == held] == torch.tensor(kept.thresholds)).sum()
    assert (at_threshold > 0) == (digits == 0)
    scores = f1_score(targets.numpy(), chosen.numpy(), average=None)
    assert fitted.f1 == pytest.approx(tuple(scores))


def test_unknown_targets_are_ignored():
    logits, targets = multi(300, 2)
    holes = targets.clone()
    holes[:120, 0] = -1
    fitted = fit_thresholds(logits, holes, folds=0, shrinkage=0.0)
    alone = fit_thresholds(logits[120:, :1], targets[120:, :1], folds=0, shrinkage=0.0)
    assert fitted.thresholds[0] == alone.thresholds[0]
    with pytest.raises(ValueError, match="got 255; check the labels"):
        fit_thresholds(logits, holes.to(torch.int8).to(torch.uint8))  # where 255 equals -1


def test_shift_and_decision_agree_in_every_dtype():
    fitted = Thresholds((-1.25, 0.5))
    logits = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert torch.equal(fitted.decide(logits.to(dtype)), fitted(logits.to(dtype)) > 0)
    assert_close(torch.tensor(fitted.probabilities), torch.tensor([-1.25, 0.5]).sigmoid())


@pytest.mark.parametrize("options", [{"folds": 1}, {"folds": -1}, {"min_positives": 0}, {"shrinkage": -1.0}])
def test_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        fit_thresholds(*multi(20), **options)


def test_thresholds_are_shown_as_probabilities():
    assert repr(Thresholds((0.0, -2.0))) == "Thresholds(num_classes=2, probabilities=(0.5, 0.119203))"


# ------------------------------------------------------------------------------------------------- the minimum itself

HARD = {  # sharpness of the logits, how much of it the labels have, share of wrong labels, offset of the logits
    "calibrated": (2.0, 1.0, 0.0, 0.0),
    "rare": (2.0, 1.0, 0.0, -3.0),
    "overconfident by far": (40.0, 0.02, 0.0, 0.0),
    "noise that is sure of itself": (60.0, 0.0, 0.0, 0.0),
    "hardly confident": (0.05, 30.0, 0.0, 0.0),
    "right but for a few": (8.0, 50.0, 0.02, 0.0),
    "far from zero": (3.0, 0.5, 0.0, 30.0),
}


def hard(rows=150, seed=0):
    draw = np.random.default_rng(seed)
    columns = []
    for scale, kept, wrong, offset in HARD.values():
        clean = scale * draw.normal(size=rows)
        positive = draw.random(rows) < expit(kept * clean + min(offset, 0.0))
        columns.append((clean + offset, positive ^ (draw.random(rows) < wrong)))
    logits, targets = (torch.tensor(np.stack(part, 1)) for part in zip(*columns, strict=True))
    targets = targets.long()
    targets[torch.rand(targets.shape, generator=torch.Generator().manual_seed(seed)) < 0.1] = -1
    return logits.double(), targets


def label_objective(slope, bias, logits, targets, *, shrinkage=0.0, common=(1.0, 0.0)):
    x, y = logits[targets >= 0].numpy(), targets[targets >= 0].numpy()
    t = slope * x + bias
    nll = (np.logaddexp(0.0, t) - y * t).sum()
    return nll + 0.5 * shrinkage * ((slope / common[0] - 1) ** 2 + (bias - common[1]) ** 2)


def least(logits, targets, with_bias, **options):
    """The minimum of the objective by a grid search over slopes and then a simplex search."""
    best = min(
        (
            minimize(
                lambda at: label_objective(math.exp(at[0]), at[1] if with_bias else 0.0, logits, targets, **options),
                [math.log(slope), bias],
                method="Nelder-Mead",
                options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000},
                bounds=[(math.log(0.01), math.log(100.0)), (-50.0, 50.0)],
            )
            for slope in (0.02, 1.0, 10.0)
            for bias in ((0.0, -20.0) if with_bias else (0.0,))
        ),
        key=lambda result: result.fun,
    )
    return float(best.fun), (math.exp(best.x[0]), float(best.x[1]) if with_bias else 0.0)


@pytest.mark.filterwarnings("ignore::equipoise.calibration.CalibrationWarning")
@pytest.mark.parametrize("shrinkage", [0.0, 3.0])
@pytest.mark.parametrize("bias", [False, True], ids=["temperature", "temperature and bias"])
def test_label_temperatures_are_the_least_of_their_objective(bias, shrinkage):
    logits, targets = hard()
    fitted = fit_label_temperatures(logits, targets, bias=bias, shrinkage=shrinkage)
    _, common = least(logits.flatten(), targets.flatten(), bias)
    for k, name in enumerate(HARD):
        options = {"shrinkage": shrinkage, "common": common}
        reached = label_objective(1 / fitted.temperatures[k], fitted.biases[k], logits[:, k], targets[:, k], **options)
        expected, _ = least(logits[:, k], targets[:, k], bias, **options)
        assert reached <= expected + 1e-5 * (1 + expected), name
        assert bias or fitted.biases[k] == 0.0


def test_one_row_of_several_labels():
    logits, targets = torch.tensor([[1.0, -1.0, 0.5, 2.0]]).double(), torch.tensor([[1, 0, 0, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = fit_label_temperatures(logits, targets, shrinkage=1.0)
    common = least(logits.flatten(), targets.flatten(), False)[1]
    assert fitted.temperatures == pytest.approx([1 / common[0]] * 4, rel=1e-4)  # each label has one kind only
    assert fitted.samples == 1


@pytest.mark.parametrize("bias", [False, True])
def test_saturated_logits_have_a_temperature(bias):
    """A quarter is wrong at a logit of 1000 or -1000: the log-odds of three quarters are log 3."""
    logits = torch.tensor([1000.0, -1000.0]).double().repeat(40)[:, None]
    targets = (logits > 0).long()
    targets[:20] = 1 - targets[:20]
    fitted = fit_label_temperatures(logits, targets, bias=bias, shrinkage=0.0, bounds=(0.01, 1e4))
    assert fitted.temperatures[0] == pytest.approx(1000 / math.log(3), rel=1e-6)
    assert fitted.biases[0] == pytest.approx(0.0, abs=1e-6)
