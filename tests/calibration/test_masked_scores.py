"""Infinite logits: -inf is a probability of 0, inf of a label one of 1, before and after every correction."""

import math

import pytest
import torch
from torch.testing import assert_close

from equipoise.calibration import (
    CalibrationWarning,
    DirichletCalibration,
    FocalPosterior,
    GroupTemperatures,
    PriorCorrection,
    Temperature,
    VectorScaling,
    correct_prior,
    estimate_prior,
    fit_label_temperatures,
    fit_thresholds,
)
from tests.calibration.data import EVERY, SINGLE, fit, of, single

INF, FAR = math.inf, 1e4  # a logit of -1e4 is a probability of exactly 0
LIKELIHOOD = ["temperature", "vector", "dirichlet", "group-temperatures", "focal"]
every = pytest.mark.parametrize(("name", "task"), EVERY)


def masked(task, rows=300, share=0.3, **options):
    """Data with some infinite logits that contradict no target, and their positions."""
    logits, targets = of(task, rows=rows, **options)
    chosen = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) < share
    if task == "multilabel":
        return torch.where(chosen, torch.where(targets == 1, INF, -INF), logits), targets, chosen
    chosen.scatter_(1, targets.unsqueeze(1), False)
    chosen[:4] = torch.arange(logits.shape[1]).view(-1, *(1 for _ in logits.shape[2:])) != targets[:4].unsqueeze(1)
    return logits.masked_fill(chosen, -INF), targets, chosen


def probabilities(logits, task):
    return logits.softmax(1) if task == "multiclass" else logits.sigmoid()


@every
@pytest.mark.parametrize("size", [(), (2, 2)], ids=str)
def test_fits_take_them_and_leave_them_as_they_are(name, task, size):
    logits, targets, chosen = masked(task, 100, size=size)
    before = logits.clone()
    fitted = fit(name, logits, targets)
    after = fitted(logits)
    assert torch.equal(logits, before)
    assert not after.isnan().any()
    assert torch.equal(after.isinf(), chosen)
    assert torch.equal(after[chosen], logits[chosen])
    assert probabilities(after, task).isfinite().all()
    assert fit(name, logits.float(), targets)(logits.half()).isinf().equal(chosen)


@every
def test_fits_are_those_of_very_small_probabilities(name, task):
    """Except where a curve or a standard deviation depends on masked values."""
    logits, targets, chosen = masked(task)
    large = torch.where(chosen, logits.sign() * FAR, logits)
    mine, theirs = fit(name, logits, targets), fit(name, large, targets)
    if name in ("temperature", "temperature-ece", "group-temperatures", "prior", "focal", "label-temperatures"):
        after, expected = probabilities(mine(logits), task), probabilities(theirs(large), task)
        assert_close(after, expected, rtol=1e-6, atol=1e-9)
    elif name == "thresholds":
        assert torch.equal(mine.decide(logits), theirs.decide(large))
    else:
        alone, truth = logits[~chosen.any(1)], targets[~chosen.any(1)]
        assert fit(name, alone, truth).samples < mine.samples <= len(logits)


@every
def test_without_them_nothing_changes(name, task):
    """Ignored rows and labels may hold any values."""
    logits, targets = of(task, rows=60)
    expected = fit(name, logits, targets)
    ignored = -100 if task == "multiclass" else -1
    for value in (math.nan, INF, -INF):
        damaged = torch.cat([logits, torch.full_like(logits[:3], value)])
        marks = torch.cat([targets, torch.full_like(targets[:3], ignored)])
        fitted = fit(name, damaged, marks)
        if name == "thresholds":  # the folds of the expected F1 are drawn for all rows
            assert fitted.thresholds == expected.thresholds
        elif task == "multiclass" or name in ("isotonic", "histogram"):
            assert fitted == expected
        else:
            assert_close(fitted(logits), expected(logits))


@pytest.mark.parametrize("name", SINGLE)
def test_a_row_of_masked_classes_is_refused(name):
    logits, targets = single(rows=20)
    logits[3] = -INF
    with pytest.raises(ValueError, match=r"(?s)\Alogits must have a class that is not masked.*4 that are all -inf; \w"):
        fit(name, logits, targets)
    with pytest.raises(ValueError, match="not masked in every row"):
        estimate_prior(logits, train_counts=[1] * 4)


@pytest.mark.parametrize("name", SINGLE)
def test_masked_true_class_is_ignored_by_likelihoods(name):
    logits, targets = single(rows=80)
    impossible = logits.clone()
    impossible[:5] = impossible[:5].scatter(1, targets[:5, None], -INF)
    fitted = fit(name, impossible, targets)
    assert not fitted(impossible).isnan().any()
    if name not in LIKELIHOOD:
        assert fitted.samples == 80
        return
    expected = fit(name, logits[5:], targets[5:])
    assert_close(fitted(logits), expected(logits))
    assert fitted.samples == 75
    assert fitted.note.endswith("5 of 80 rows, which are ignored")
    with pytest.warns(CalibrationWarning, match="the true class is masked"):
        fit(name, impossible, targets, quiet=False)
    with pytest.raises(ValueError, match=r"targets must name a class that is not masked.*got 5 rows"):
        fit(name, impossible[:5], targets[:5])


def test_labels_that_contradict_certainty_are_ignored():
    logits, targets = of("multilabel", rows=200)
    logits[:6, 1], targets[:6, 1] = INF, 0
    logits[6:8, 0], targets[6:8, 0] = -INF, 1
    marks = targets.clone()
    marks[:6, 1] = marks[6:8, 0] = -1
    for name in ("label-temperatures", "focal"):
        fitted = fit(name, logits, targets)
        assert fitted.note.endswith("8 of 600 targets contradict a logit of -inf or inf and are ignored")
        assert_close(fitted(logits), fit(name, logits, marks)(logits))
    with pytest.raises(ValueError, match="logits must be finite for at least one label, got none; "):
        fit_label_temperatures(torch.full((4, 2), -INF), torch.zeros(4, 2))


# ------------------------------------------------------------------------------------------------- factors, one by one


ROW = torch.tensor([[1.0, -INF, 0.0]])


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0])
@pytest.mark.parametrize("log_probs", [True, False])
def test_vector_scaling_of_a_masked_class(factor, log_probs):
    fitted = VectorScaling((1.0, factor, 0.5), (0.0, 3.0, 1.0), log_probs)
    after = fitted(ROW)
    two = (ROW.log_softmax(1) if log_probs else ROW)[:, [0, 2]]
    assert after[0, 1] == -INF
    assert_close(after[:, [0, 2]], two * torch.tensor([1.0, 0.5]) + torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("factor", [0.0, -0.5, 0.5])
def test_dirichlet_calibration_of_a_masked_class(factor):
    """For the others it is a probability of 1e-12, as in ``logits_from_probs``."""
    weight = ((1.0, factor, 0.1), (factor, factor, 0.2), (0.0, -factor, 1.0))
    after = DirichletCalibration(weight, (0.0, 1.0, 2.0))(ROW)
    log_p = ROW.log_softmax(1).where(ROW > -INF, math.log(1e-12))
    expected = log_p @ torch.tensor(weight).T + torch.tensor([0.0, 1.0, 2.0])
    assert after[0, 1] == -INF
    assert_close(after[:, [0, 2]], expected[:, [0, 2]])


@pytest.mark.parametrize(
    "fitted",
    [
        Temperature(2.0),
        FocalPosterior(2.0),
        PriorCorrection((0.2, 0.3, 0.5), (0.4, 0.5, 0.1)),
        GroupTemperatures((2.0, 3.0), (0, 1, 1), ("a", "b")),
    ],
    ids=lambda fitted: fitted.kind,
)
def test_a_masked_class_is_as_good_as_absent(fitted):
    rest = torch.tensor([[1.0, -FAR, 0.0], [-FAR, -FAR, 1.0]])
    logits = rest.masked_fill(rest == -FAR, -INF)
    assert_close(fitted(logits).softmax(1), fitted(rest.double()).softmax(1).float())
    assert torch.equal(fitted(logits) == -INF, logits == -INF)


def test_priors_of_masked_classes():
    logits, _, _ = masked("multiclass")
    large = logits.clamp(min=-FAR)
    shares = estimate_prior(logits, train_counts=[1, 2, 3, 4])
    assert shares == pytest.approx(estimate_prior(large, train_counts=[1, 2, 3, 4]))
    assert_close(correct_prior(logits, train_counts=[1, 2, 3, 4])[logits == -INF], logits[logits == -INF])


def test_thresholds_between_certain_scores():
    """A score of inf is chosen at any threshold and one of -inf at none; the cut lies between the others."""
    logits = torch.tensor([[INF], [INF], [3.0], [1.0], [-2.0], [-INF]])
    cases = {
        (1, 1, 1, 0, 0, 0): 2.0,
        (1, 1, 0, 0, 0, 0): 4.5,  # above 3, halfway to the substitute for inf
        (1, 1, 1, 1, 0, 1): -0.5,
        (0, 0, 0, 0, 0, 1): 0.0,  # no threshold finds the positive
    }
    for targets, expected in cases.items():
        fitted = fit("thresholds", logits, torch.tensor(targets)[:, None], folds=0, shrinkage=0.0)
        assert fitted.thresholds == pytest.approx((expected,))
    with pytest.warns(CalibrationWarning, match="nothing was learned"):
        assert fit_thresholds(torch.full((3, 1), -INF), torch.ones(3, 1)).thresholds == (0.0,)
    certain = fit("thresholds", torch.tensor([[INF], [-INF]]), torch.tensor([[1], [0]]), folds=0, shrinkage=0.0)
    assert certain.decide(torch.tensor([[INF], [-INF]])).tolist() == [[True], [False]]
