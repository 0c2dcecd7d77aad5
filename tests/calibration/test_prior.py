"""Prior correction and the estimate of the target prior."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from equipoise.calibration import CalibrationWarning, correct_prior, estimate_prior, fit_prior
from tests.calibration.data import nll, single

quick = settings(max_examples=25, deadline=None)
shares = st.lists(st.floats(0.02, 1.0), min_size=3, max_size=3)


def gaussians(prior, rows=20_000, seed=0):
    """Points of three classes; the logits are exact for equal class frequencies."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor(prior, dtype=torch.float64), rows, replacement=True, generator=draw)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    points = centres[labels] + torch.randn(rows, 2, generator=draw, dtype=torch.float64)
    return -0.5 * (points[:, None] - centres).square().sum(2), labels


@quick
@given(prior=shares)
def test_equal_priors_are_the_identity(prior):
    logits, _ = single(20, 3)
    assert torch.equal(correct_prior(logits, train_prior=prior, target_prior=prior), logits)


@quick
@given(train=shares, target=shares)
def test_bayes(train, target):
    logits, _ = single(20, 3)
    pi, new = (torch.tensor(p, dtype=torch.float64) / sum(p) for p in (train, target))
    weighted = logits.softmax(1) * new / pi
    expected = weighted / weighted.sum(1, keepdim=True)
    corrected = correct_prior(logits, train_prior=train, target_prior=target)
    assert_close(corrected.softmax(1), expected)
    back = correct_prior(corrected, train_prior=target, target_prior=train)
    assert_close(back, logits)


@pytest.mark.parametrize("prior", [(0.8, 0.15, 0.05), (1 / 3, 1 / 3, 1 / 3), (0.02, 0.9, 0.08)])
def test_em_finds_a_shifted_prior(prior):
    logits, labels = gaussians(prior)
    estimate = estimate_prior(logits, train_prior=[1, 1, 1])
    assert estimate == pytest.approx(prior, abs=0.02)
    assert math.fsum(estimate) == pytest.approx(1.0)
    fitted = fit_prior(logits, train_prior=[1, 1, 1])
    assert fitted.converged
    assert fitted.target_prior == estimate
    if max(prior) > 0.5:
        right = nll(correct_prior(logits, train_prior=[1, 1, 1], target_prior=prior), labels)
        assert nll(fitted(logits), labels) == pytest.approx(right, abs=0.005)
        assert nll(fitted(logits), labels) < nll(logits, labels) - 0.1


@quick
@given(seed=st.integers(0, 2**31), train=shares, shrinkage=st.sampled_from([0.0, 3.0]))
def test_em_stops_where_the_likelihood_is_stationary(seed, train, shrinkage):
    """No step towards a corner increases an independent implementation of the penalised likelihood."""
    logits, _ = single(150, 3, seed=seed)
    estimate = torch.tensor(
        estimate_prior(logits, train_prior=train, shrinkage=shrinkage, tolerance=1e-13, max_iter=100_000)
    ).double()
    pi = torch.tensor(train, dtype=torch.float64) / sum(train)
    ratio = logits.softmax(1) / pi

    def likelihood(prior):
        return float((ratio @ prior).log().sum() + 3 * shrinkage * (pi * prior.log()).sum())

    for corner in torch.eye(3, dtype=torch.float64):
        for step in (1e-3, 0.05, 0.5):
            assert likelihood((1 - step) * estimate + step * corner) <= likelihood(estimate) + 1e-6


def test_a_class_that_is_not_there_keeps_finite_logits():
    logits, _ = gaussians((0.7, 0.3, 0.0), rows=3000)
    estimate = estimate_prior(logits, train_prior=[1, 1, 1])
    assert 0.0009 < estimate[2] < 0.02, "three of 3000"
    assert estimate_prior(logits, train_prior=[1, 1, 1], shrinkage=0.0)[2] < estimate[2]
    assert bool(fit_prior(logits, train_prior=[1, 1, 1])(logits).isfinite().all())
    far = torch.tensor([[1000.0, 0.0, -1000.0]] * 50)
    assert 1e-13 < min(estimate_prior(far, train_prior=[1, 1, 1], shrinkage=0.0)) < 1e-11
    assert bool(correct_prior(far, train_prior=[1, 1, 1], shrinkage=0.0).isfinite().all())


def test_much_shrinkage_keeps_the_training_prior():
    logits, _ = gaussians((0.8, 0.1, 0.1), rows=200)
    away = [abs(estimate_prior(logits, train_prior=[1, 2, 3], shrinkage=s)[0] - 1 / 6) for s in (0.0, 3.0, 100.0, 1e9)]
    assert away == sorted(away, reverse=True)
    assert away[-1] < 1e-6


def test_counts_are_shares_and_an_empty_class_counts_one():
    logits, _ = single(10, 3)
    by_counts = fit_prior(logits, train_counts=[60, 40, 0], target_prior=[1, 1, 1])
    assert by_counts.train_prior == pytest.approx((60 / 101, 40 / 101, 1 / 101))
    assert by_counts == fit_prior(logits, train_prior=[60, 40, 1], target_prior=[1, 1, 1])


def test_ignored_rows_are_excluded():
    logits, labels = gaussians((0.8, 0.1, 0.1), rows=2000)
    holes = labels.clone()
    holes[:700] = -100
    assert fit_prior(logits, holes, train_prior=[1, 1, 1]) == fit_prior(logits[700:], train_prior=[1, 1, 1])


def test_em_notes_missing_convergence(monkeypatch):
    import equipoise.calibration.prior as prior

    logits, _ = gaussians((0.8, 0.1, 0.1), rows=500)
    plain = prior._em
    monkeypatch.setattr(
        prior, "_em", lambda rows, train, shrinkage, _, tolerance: plain(rows, train, shrinkage, 2, tolerance)
    )
    with pytest.warns(CalibrationWarning, match="EM still changed by .* after 2 steps"):
        assert not fit_prior(logits, train_prior=[1, 1, 1]).converged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "train_prior or train_counts must be given, one of them, got neither"),
        ({"train_prior": [1, 1, 1], "train_counts": [1, 1, 1]}, "got both"),
        ({"train_prior": [1, 1]}, "train_prior must have one entry for each of the 3 classes"),
        ({"train_counts": [1, 1]}, "train_counts must have one entry for each of the 3 classes"),
        ({"train_prior": [1, 1, 0]}, "train_prior must be above 0"),
        ({"train_prior": [1, 1, math.nan]}, "train_prior must be finite"),
        ({"train_counts": [1, 1, 1], "target_prior": [1, 0, 1]}, "target_prior must be above 0"),
        ({"train_counts": [1, 1, 1], "target_prior": [1, 1]}, "target_prior must have one entry"),
        ({"train_counts": [0, 0, 0]}, "train_counts must hold at least one sample"),
    ],
)
def test_bad_priors(options, message):
    with pytest.raises(ValueError, match=message):
        correct_prior(single(10, 3)[0], **options)


@pytest.mark.parametrize(
    "use",
    [
        lambda z: correct_prior(z, train_counts=[5, 3, 2, 1]),
        lambda z: correct_prior(z, train_counts=[5, 3, 2, 1], target_prior=[1, 1, 1, 1]),
        lambda z: estimate_prior(z, train_counts=[5, 3, 2, 1]),
        lambda z: fit_prior(z, train_counts=[5, 3, 2, 1]),
    ],
    ids=["correct", "correct to", "estimate", "fit"],
)
def test_probabilities_as_logits_give_a_warning(use, recwarn):
    logits = 3 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    use(logits)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"logits must be raw scores .*\[0, 1\] and sum to 1 .* logits_from_probs"):
        use(logits.softmax(1))


def test_shares_in_place_of_counts():
    with pytest.raises(ValueError, match=r"train_counts must be numbers of training samples, got \[0.7, .* multiply"):
        correct_prior(torch.zeros(4, 3), train_counts=[0.7, 0.2, 0.1])
    correct_prior(torch.zeros(4, 3), train_prior=[0.7, 0.2, 0.1])
