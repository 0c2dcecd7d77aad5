"""One temperature, for all rows or for groups of predicted classes."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from equipoise.calibration import (
    CalibrationWarning,
    GroupTemperatures,
    Temperature,
    fit_group_temperatures,
    fit_temperature,
)
from tests.calibration.data import nll, single

seeds = st.integers(0, 2**31)
quick = settings(max_examples=25, deadline=None)


@quick
@given(seed=seeds, classes=st.integers(2, 12), scale=st.floats(0.3, 20.0))
def test_the_optimum_of_two_other_methods(seed, classes, scale):
    logits, targets = single(150, classes, scale, seed)

    def loss(log_t):
        return nll(logits * math.exp(-float(log_t)), targets)

    fitted = fit_temperature(logits, targets)
    assume(fitted.converged)
    brent = minimize_scalar(loss, bounds=(math.log(0.01), math.log(100.0)), method="bounded", options={"xatol": 1e-9})
    simplex = minimize(lambda s: loss(s[0]), [0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    reached = nll(fitted(logits), targets)
    assert reached <= min(brent.fun, simplex.fun) + 1e-12
    assert math.log(fitted.temperature) == pytest.approx(brent.x, abs=2e-4)


@quick
@given(seed=seeds, factor=st.floats(0.1, 10.0), shift=st.floats(-50, 50))
def test_temperature_scales_with_the_logits_and_ignores_shifts(seed, factor, shift):
    logits, targets = single(200, 5, seed=seed)
    plain, other = fit_temperature(logits, targets), fit_temperature(factor * logits + shift, targets)
    assert other.temperature == pytest.approx(factor * plain.temperature, rel=1e-8)


def test_the_gradient_at_the_optimum_vanishes():
    logits, targets = single()
    slope = torch.tensor(1.0 / fit_temperature(logits, targets).temperature, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(torch.nn.functional.cross_entropy(slope * logits, targets), slope)
    assert abs(float(grad)) < 1e-10


def test_a_known_temperature_is_found():
    logits, targets = single(20_000, 5)
    assert fit_temperature(logits, targets).temperature == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("by", ["nll", "ece"])
def test_predictions_stay(by):
    logits, targets = single(1000, 7)
    fitted = fit_temperature(logits, targets, by=by)
    assert fitted.temperature != 1.0
    assert torch.equal(fitted(logits).argmax(1), logits.argmax(1))


def test_by_ece_is_the_first_least_of_the_grid():
    logits, targets = single(300, 5)

    def ece(temperature):
        confidence, chosen = (logits / temperature).softmax(1).max(1)
        right, total = (chosen == targets).double(), 0.0
        for b in range(15):
            inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
            total += abs(float((right - confidence)[inside].sum())) / len(targets)
        return total

    errors = [ece(step / 10) for step in range(1, 101)]
    best = min(range(100), key=lambda at: (round(errors[at], 12), at))
    assert fit_temperature(logits, targets, by="ece").temperature == (best + 1) / 10


def test_blocks_do_not_matter(monkeypatch):
    logits, targets = single(500, 5)
    whole = [fit_temperature(logits, targets, by=by).temperature for by in ("nll", "ece")]
    monkeypatch.setattr("equipoise.calibration.inputs.BLOCK", 37)
    assert [fit_temperature(logits, targets, by=by).temperature for by in ("nll", "ece")] == pytest.approx(whole)


def test_places_and_ignored_targets():
    logits, targets = single(6, 4, size=(5, 7))
    flat = fit_temperature(logits.movedim(1, -1).reshape(-1, 4), targets.reshape(-1))
    assert fit_temperature(logits, targets).temperature == pytest.approx(flat.temperature)
    holes = targets.clone()
    holes[0], holes[1, 2] = 255, 255
    kept = holes.reshape(-1) != 255
    without = fit_temperature(logits.movedim(1, -1).reshape(-1, 4)[kept], targets.reshape(-1)[kept])
    with_holes = fit_temperature(logits, holes, ignore_index=255)
    assert with_holes.temperature == pytest.approx(without.temperature)
    assert with_holes.samples == int(kept.sum())


@pytest.mark.parametrize(
    ("logits", "targets", "bound", "reason"),
    [
        ([[3.0, 0.0]] * 20, [0] * 20, 0.01, "separated"),
        ([[3.0, 0.0]] * 20, [1] * 20, 100.0, "no better than chance"),
        ([[2.0, 2.0]] * 20, [0, 1] * 10, 1.0, "equal"),
        ([[0.0, 0.0]] * 20, [0] * 20, 1.0, "equal"),
    ],
    ids=["all right", "all wrong", "constant", "zero"],
)
def test_missing_optimum_gets_a_note(logits, targets, bound, reason):
    with pytest.warns(CalibrationWarning, match=reason):
        fitted = fit_temperature(torch.tensor(logits), torch.tensor(targets))
    assert fitted.temperature == bound
    assert not fitted.converged
    assert reason in fitted.note
    assert reason in fitted.describe()


def test_ends_of_the_grid_are_noted():
    right = torch.tensor([[0.01, 0.0]] * 20)
    with pytest.warns(CalibrationWarning, match="end of the grid"):
        assert fit_temperature(right, torch.zeros(20, dtype=torch.long), by="ece").temperature == 0.1
    with pytest.warns(CalibrationWarning, match="same for every temperature"):
        fit_temperature(torch.zeros(20, 2), torch.arange(20) % 2, by="ece")


def test_bounds_may_be_moved():
    logits, targets = single(200, 3)
    with pytest.warns(CalibrationWarning, match="bound 100: .* or the logits"):
        assert fit_temperature(1e4 * logits, targets).temperature == 100.0
    wide = fit_temperature(1e4 * logits, targets, bounds=(1.0, 1e6))
    assert wide.converged
    assert wide.temperature == pytest.approx(1e4 * fit_temperature(logits, targets).temperature)


def test_few_rows_are_noted():
    with pytest.warns(CalibrationWarning, match="3 rows are few"):
        fit_temperature(torch.tensor([[1.0, 0.0]] * 3), torch.tensor([0, 0, 1]))


# ---------------------------------------------------------------------------------------------------------------------
# Groups
# ---------------------------------------------------------------------------------------------------------------------


def two_groups(rows=4000):
    """Logits of predicted classes 2 and 3 are four times too large, those of 0 and 1 are calibrated."""
    draw = torch.Generator().manual_seed(1)
    true = 1.5 * torch.randn(rows, 4, generator=draw, dtype=torch.float64)
    targets = torch.multinomial(true.softmax(1), 1, generator=draw).squeeze(1)
    factor = torch.where(true.argmax(1) < 2, 1.0, 4.0)
    return factor[:, None] * true, targets


def test_each_group_finds_its_temperature():
    logits, targets = two_groups()
    fitted = fit_group_temperatures(logits, targets, groups=["head", "head", "tail", "tail"])
    assert fitted.names == ("head", "tail")
    assert fitted.temperatures == pytest.approx((1.0, 4.0), rel=0.1)
    assert torch.equal(fitted(logits).argmax(1), logits.argmax(1))
    assert nll(fitted(logits), targets) < nll(fit_temperature(logits, targets)(logits), targets) - 0.05


def test_the_group_of_the_predicted_class_decides():
    fitted = GroupTemperatures((1.0, 4.0), (0, 0, 1), ("head", "tail"))
    logits = torch.tensor([[8.0, 0.0, 4.0], [4.0, 0.0, 8.0]])
    assert torch.equal(fitted(logits), torch.tensor([[8.0, 0.0, 4.0], [1.0, 0.0, 2.0]]))
    places = logits.T[None].contiguous()  # (1, C, 2)
    assert torch.equal(fitted(places)[0].T, fitted(logits))


def test_shrinkage_goes_from_own_to_common():
    logits, targets = two_groups(600)
    groups = [0, 0, 1, 1]
    common = fit_temperature(logits, targets).temperature
    own = fit_group_temperatures(logits, targets, groups=groups, shrinkage=0.0).temperatures
    for group, expected in enumerate(own):
        rows = (logits.argmax(1) >= 2) == bool(group)
        assert fit_temperature(logits[rows], targets[rows]).temperature == pytest.approx(expected)
    last = [abs(math.log(t / common)) for t in own]
    for shrinkage in (1.0, 10.0, 100.0, 1e9):
        fitted = fit_group_temperatures(logits, targets, groups=groups, shrinkage=shrinkage)
        away = [abs(math.log(t / common)) for t in fitted.temperatures]
        assert all(now < before for now, before in zip(away, last, strict=True))
        last = away
    assert max(last) < 1e-5


def test_a_group_that_is_never_predicted_takes_the_common_temperature():
    logits, targets = single(300, 3)
    logits[:, 2] = -50.0
    with pytest.warns(CalibrationWarning, match="group rare is never predicted"):
        fitted = fit_group_temperatures(logits, targets.clamp(max=1), groups=["a", "a", "rare"])
    assert fitted.temperatures[1] == fit_temperature(logits, targets.clamp(max=1)).temperature


def test_groups_may_be_a_tensor_of_numbers():
    logits, targets = single(300, 3)
    fitted = fit_group_temperatures(logits, targets, groups=torch.tensor([2, 0, 2]))
    assert fitted.names == ("2", "0")
    assert fitted.groups == (0, 1, 0)


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        ([0, 1], ValueError, "groups must have one entry for each of the 3 classes"),
        ("abc", TypeError, "groups must name the group"),
        ([], TypeError, "groups must name the group"),
        ([0.5, 1.0, 2.0], TypeError, "groups must be names or integers"),
        (None, TypeError, "groups must name the group"),
    ],
)
def test_bad_groups(groups, error, message):
    logits, targets = single(30, 3)
    with pytest.raises(error, match=message):
        fit_group_temperatures(logits, targets, groups=groups)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_is_above_zero(bad):
    with pytest.raises(ValueError, match="temperature"):
        Temperature(bad)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf)])
def test_bad_bounds(bounds):
    with pytest.raises(ValueError, match="bounds"):
        fit_temperature(*single(20), bounds=bounds)
