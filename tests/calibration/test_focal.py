"""The posterior of a model trained with focal loss."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from equipoise.calibration import CalibrationWarning, FocalPosterior, fit_focal, focal_posterior
from equipoise.functional import binary_focal_loss, focal_loss
from tests.calibration.data import multi, single

gammas = st.floats(0.05, 8.0)
quick = settings(max_examples=30, deadline=None)


def by_formula(v, gamma):
    """The specification's formula in 60 digits."""
    with mpmath.workdps(60):
        v, g = [mpmath.mpf(x) for x in v], mpmath.mpf(gamma)
        raw = [x / ((1 - x) ** g - g * x * (1 - x) ** (g - 1) * mpmath.log(x)) for x in v]
        return [float(x / sum(raw)) for x in raw]


@quick
@given(raw=st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6), gamma=gammas)
def test_the_formula(raw, gamma):
    v = torch.tensor(raw, dtype=torch.float64)
    v = v / v.sum()
    expected = torch.tensor(by_formula(v.tolist(), gamma), dtype=torch.float64)
    assert_close(focal_posterior(v[None], gamma)[0], expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_it_inverts_what_training_with_focal_loss_does(gamma):
    """Minimise the expected focal loss for a known posterior; the correction gives it back."""
    posterior = torch.tensor([[0.55, 0.3, 0.15], [0.9, 0.07, 0.03]], dtype=torch.float64)
    z = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [z], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        losses = [focal_loss(z, torch.full((2,), c), gamma=gamma, reduction="none") for c in range(3)]
        loss = (posterior * torch.stack(losses, 1)).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    corrected = FocalPosterior(gamma)(z.detach()).softmax(1)
    assert_close(corrected, posterior, atol=1e-4, rtol=0.0)
    assert float((z.detach().softmax(1) - posterior).abs().max()) > 0.01


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_it_inverts_a_binary_focal_loss_too(gamma):
    posterior = torch.tensor([[0.1, 0.3, 0.5, 0.8]], dtype=torch.float64)
    z = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [z], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        on, off = (binary_focal_loss(z, torch.full_like(z, y), gamma=gamma, reduction="none") for y in (1.0, 0.0))
        loss = (posterior * on + (1 - posterior) * off).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    z = z.detach()
    assert_close(FocalPosterior(gamma, task="multilabel")(z).sigmoid(), posterior, atol=1e-4, rtol=0.0)
    assert_close(focal_posterior(z.sigmoid(), gamma, task="multilabel"), posterior, atol=1e-4, rtol=0.0)


@quick
@given(seed=st.integers(0, 2**31), gamma=gammas, scale=st.sampled_from([0.1, 2.0, 50.0]))
def test_the_order_of_the_classes_stays(seed, gamma, scale):
    logits, _ = single(50, 5, scale, seed)
    assert torch.equal(FocalPosterior(gamma)(logits).argsort(1), logits.argsort(1))
    assert torch.equal(FocalPosterior(gamma, task="multilabel")(logits) > 0, logits > 0)


def test_gamma_zero_is_the_identity():
    logits, _ = single()
    assert torch.equal(FocalPosterior(0.0)(logits), logits)
    probs = logits.softmax(1)
    assert torch.equal(focal_posterior(probs, 0.0), probs)
    assert_close(focal_posterior(probs, 1e-9), probs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.01, 0.5, 1.0, 3.0, 10.0])
def test_probabilities_next_to_zero_and_one(dtype, gamma):
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1 - 1e-7, 1e-7], [1e-30, 1.0], [0.5, 0.5]], dtype=dtype)
    for task in ("multiclass", "multilabel"):
        p = focal_posterior(v, gamma, task=task)
        assert bool(((p >= 0) & (p <= 1)).all())
        assert torch.equal(p.argmax(1)[:-1], v.argmax(1)[:-1])
        assert p[-1].tolist() == [0.5, 0.5]
    huge = torch.tensor([[1e4, -1e4, 0.0]], dtype=dtype)
    for task in ("multiclass", "multilabel"):
        assert bool(FocalPosterior(gamma, task=task)(huge).isfinite().all())


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_gamma_by_likelihood(task):
    """Labels are drawn from the posterior of gamma 3, and the fit recovers gamma."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(30_000, 3, generator=draw, dtype=torch.float64)
    truth = FocalPosterior(3.0, task=task)(logits)
    if task == "multiclass":
        targets = torch.multinomial(truth.softmax(1), 1, generator=draw).squeeze(1)
    else:
        targets = torch.bernoulli(truth.sigmoid(), generator=draw)
    assert fit_focal(logits, targets).gamma == pytest.approx(3.0, abs=0.15)


def test_a_known_gamma_is_taken_and_ends_are_noted():
    logits, targets = single()
    assert fit_focal(logits, targets, gamma=2.0) == FocalPosterior(2.0, num_classes=4, samples=400)
    with pytest.warns(CalibrationWarning, match="at the end 0"):  # the model is overconfident already
        assert fit_focal(logits, targets).gamma == 0.0
    with pytest.warns(CalibrationWarning, match="at the end 10"):
        fitted = fit_focal(0.01 * logits, logits.argmax(1))
    assert fitted.gamma == 10.0
    assert not fitted.converged
    assert fit_focal(*multi(), gamma=1.0).task == "multilabel"


@pytest.mark.parametrize("gamma", [-1.0, math.nan, math.inf])
def test_bad_gamma(gamma):
    with pytest.raises(ValueError, match="gamma"):
        focal_posterior(torch.tensor([[0.5, 0.5]]), gamma)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.6]], "sum to 1"),
        ([[1.5, -0.5]], r"in \[0, 1\]"),
        ([[math.nan, 1.0]], r"in \[0, 1\]"),
        ([0.5, 0.5], "shape"),
        ([[1.0]], "at least 2"),
    ],
)
def test_bad_probabilities(probs, message):
    with pytest.raises(ValueError, match=message):
        focal_posterior(torch.tensor(probs), 2.0)


def test_rows_count_alike_in_blocks_of_unequal_size(monkeypatch):
    logits, targets = single(401)
    logits = 0.25 * logits  # underconfident, so that gamma is inside its range
    gamma = fit_focal(logits, targets).gamma
    assert 0.1 < gamma < 9.0
    monkeypatch.setattr("equipoise.calibration.inputs.BLOCK", 40 * logits.shape[1])  # one row is left for the last
    assert fit_focal(logits, targets).gamma == pytest.approx(gamma, rel=1e-6)
