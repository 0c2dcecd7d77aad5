"""Vector scaling and Dirichlet calibration."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from equipoise.calibration import (
    CalibrationWarning,
    DirichletCalibration,
    VectorScaling,
    fit_dirichlet,
    fit_temperature,
    fit_vector,
)
from equipoise.calibration.inputs import SingleRows
from equipoise.calibration.linear import standardise
from tests.calibration.data import nll, single

quick = settings(max_examples=10, deadline=None)


def shifted(rows=20_000, seed=0):
    """Logits distorted by a factor and a bias per class."""
    weight, bias = torch.tensor([1.0, 0.5, 0.8]).double(), torch.tensor([0.0, 1.0, -1.0]).double()
    draw = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(rows, 3, generator=draw, dtype=torch.float64)
    targets = torch.multinomial((weight * logits.log_softmax(1) + bias).softmax(1), 1, generator=draw).squeeze(1)
    return logits, targets, weight, bias


def test_known_factors_and_biases_are_found():
    logits, targets, weight, bias = shifted()
    fitted = fit_vector(logits, targets)
    assert_close(torch.tensor(fitted.weight).double(), weight, atol=0.06, rtol=0.0)
    estimated = torch.tensor(fitted.bias).double()
    assert_close(estimated - estimated[0], bias - bias[0], atol=0.1, rtol=0.0)
    assert nll(fitted(logits), targets) < nll(fit_temperature(logits, targets)(logits), targets) - 0.05


def test_a_known_matrix_is_found():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(40_000, 3, generator=draw, dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.6, 0.0], [0.0, 0.7, 0.0], [-0.4, 0.0, 1.2]]).double()
    bias = torch.tensor([0.0, 0.5, -0.5]).double()
    truth = (logits.log_softmax(1) @ weight.T + bias).softmax(1)
    targets = torch.multinomial(truth, 1, generator=draw).squeeze(1)
    fitted = fit_dirichlet(logits, targets, shrinkage=1.0)
    assert float((fitted(logits).softmax(1) - truth).abs().max()) < 0.05
    assert float((fit_vector(logits, targets)(logits).softmax(1) - truth).abs().max()) > 0.15


@quick
@given(seed=st.integers(0, 2**31), classes=st.integers(2, 6))
def test_the_penalised_gradient_vanishes(seed, classes):
    """Autograd on an independent implementation of the documented objective, at the result."""
    logits, targets = single(200, classes, seed=seed)
    slope = 1.0 / fit_temperature(logits, targets).temperature
    fitted = fit_vector(logits, targets, shrinkage=3.0)
    x = logits.log_softmax(1) * slope
    mean, deviation = x.mean(0), x.std(0, correction=0)
    change = (torch.tensor(fitted.weight).double() / slope - 1.0) * deviation
    shift = torch.tensor(fitted.bias).double() + change * mean / deviation
    change.requires_grad_(), shift.requires_grad_()
    scaled = x + change * (x - mean) / deviation + shift
    loss = torch.nn.functional.cross_entropy(scaled, targets, reduction="sum")
    loss = loss + 1.5 * (change.square().sum() + shift.square().sum())
    for grad in torch.autograd.grad(loss, (change, shift)):
        assert float(grad.abs().max()) < 1e-3


@quick
@given(seed=st.integers(0, 2**31), size=st.floats(0.1, 100.0))
@pytest.mark.parametrize("fit", [fit_vector, lambda *a: fit_dirichlet(*a, shrinkage=10.0)], ids=["vector", "dirichlet"])
def test_a_constant_in_a_row_of_logits_does_not_matter(fit, seed, size):
    """As in the softmax; each row has its own."""
    logits, targets = single(200, 3, seed=seed)
    moved = logits + size * torch.randn(200, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fitted = fit(logits, targets)
    assert_close(fitted(moved), fitted(logits))
    assert_close(fit(moved, targets)(logits).softmax(1), fitted(logits).softmax(1), atol=1e-4, rtol=0.0)


def test_vector_scaling_of_logits_as_they_are():
    logits = torch.tensor([[3.0, 1.0]])
    assert_close(VectorScaling((2.0, 1.0), (0.0, 5.0), log_probs=False)(logits), torch.tensor([[6.0, 6.0]]))
    with pytest.raises(TypeError, match="log_probs must be a bool"):
        VectorScaling((2.0, 1.0), (0.0, 5.0), log_probs=1)


@pytest.mark.parametrize("fit", [fit_vector, fit_dirichlet])
def test_never_worse_than_the_temperature_where_fitted(fit):
    logits, targets = single(500, 5)
    assert nll(fit(logits, targets)(logits), targets) <= nll(fit_temperature(logits, targets)(logits), targets)


@pytest.mark.parametrize("fit", [fit_vector, lambda *a, **o: fit_dirichlet(*a, **o)], ids=["vector", "dirichlet"])
def test_strong_shrinkage_of_the_mixing_is_the_simpler_method(fit):
    logits, targets = single(500, 4)
    if fit is fit_vector:
        strong, simple = fit(logits, targets, shrinkage=1e9), fit_temperature(logits, targets)
    else:
        normalised = logits.log_softmax(1)
        strong, simple = fit(normalised, targets, shrinkage=1e9), fit_vector(normalised, targets, shrinkage=1.0)
        logits = normalised
    assert_close(strong(logits).softmax(1), simple(logits).softmax(1), atol=1e-5, rtol=0.0)


def test_cross_validation_takes_the_weak_shrinkage_where_classes_mix():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(6000, 3, generator=draw, dtype=torch.float64)
    mixed = logits.log_softmax(1) @ torch.tensor([[1.0, 1.5, 0.0], [0.0, 1.0, 0.0], [0.0, -1.5, 1.0]]).double()
    targets = torch.multinomial(mixed.softmax(1), 1, generator=draw).squeeze(1)
    chosen, weak, strong = (fit_dirichlet(logits, targets, shrinkage=s) for s in (None, 10.0, 10_000.0))
    assert chosen == weak
    assert chosen != strong
    plain, labels = single(600, 3)
    assert fit_dirichlet(plain, labels) in [fit_dirichlet(plain, labels, shrinkage=s) for s in (10_000.0, 1_000.0)]


@pytest.mark.parametrize("fit", [fit_vector, fit_dirichlet])
def test_a_class_without_samples_is_noted_and_stays_finite(fit):
    logits, targets = single(300, 4)
    with pytest.warns(CalibrationWarning, match="class 3 has no sample"):
        fitted = fit(logits, targets.clamp(max=2))
    assert fitted.converged
    assert bool(fitted(logits).isfinite().all())


@pytest.mark.parametrize("fit", [fit_vector, fit_dirichlet])
def test_more_parameters_than_rows_is_noted(fit):
    logits, targets = single(7, 4)
    with pytest.warns(CalibrationWarning, match=r"7 rows for (8|20) parameters"):
        fit(logits, targets)


def test_places():
    logits, targets = single(5, 3, size=(4, 6))
    rows = logits.movedim(1, -1).reshape(-1, 3)
    for fitted in (fit_vector(logits, targets), fit_dirichlet(logits, targets, shrinkage=1.0)):
        assert_close(fitted(logits).movedim(1, -1).reshape(-1, 3), fitted(rows))


def test_bad_numbers():
    with pytest.raises(ValueError, match="bias must have one number for each of the 2 classes"):
        VectorScaling((1.0, 1.0), (0.0,))
    with pytest.raises(ValueError, match="weight must be finite"):
        VectorScaling((1.0, float("nan")), (0.0, 0.0))
    with pytest.raises(ValueError, match="weight must be 2 rows of 2 numbers"):
        DirichletCalibration(((1.0, 0.0),), (0.0, 0.0))
    for fit in (fit_vector, fit_dirichlet):
        with pytest.raises(ValueError, match="shrinkage"):
            fit(*single(20), shrinkage=0.0)


def test_masked_classes_are_a_probability_of_1e_12_in_standard_units():
    """The common temperature scales it as it scales all others; columns have mean 0 and deviation 1."""
    logits, labels = single(60, 3)
    logits[::4, 2] = -math.inf
    labels[::4] %= 2
    standard = standardise(SingleRows(logits, labels))
    assert_close(standard.scaled, logits * standard.slope)
    columns = logits.clamp(min=math.log(1e-12)) * standard.slope
    deviation = (columns - columns.mean(0)).square().mean(0).sqrt()
    assert_close(standard.mean, columns.mean(0))
    assert_close(standard.deviation, deviation)
    assert_close(standard.units, (columns - columns.mean(0)) / deviation)
    assert standard.slope == pytest.approx(1.0 / fit_temperature(logits, labels).temperature)
    constant = standardise(SingleRows(torch.cat([logits[:, :2], torch.ones(60, 1).double()], 1), labels % 2))
    assert constant.deviation[2] == 1.0
    assert constant.units[:, 2].abs().max() < 1e-15
