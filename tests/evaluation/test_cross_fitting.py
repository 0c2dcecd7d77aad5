"""No sample is evaluated with a calibrator that was fitted on it."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from equipoise.calibration import fit_label_temperatures, fit_temperature
from equipoise.evaluation import evaluate
from equipoise.evaluation import split as splits
from equipoise.evaluation.split import FitSplit, cross_fit, try_fit
from equipoise.metrics import CalibrationError, ConfidentShare, NegativeLogLikelihood
from equipoise.predictions import open_predictions
from equipoise.predictions import source as sources
from tests.predictions.saved import arrays_of, save


class Memory:
    """A calibrator that reverses the logits of all samples of its fit, identified by the score of class 0."""

    note = ""

    def __init__(self, logits, targets, **options):
        self.seen = logits[:, 0].unique()

    def __call__(self, logits):
        return logits * torch.where(torch.isin(logits[:, :1], self.seen), -100.0, 1.0)

    def describe(self):
        return "memory"


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_memorising_fit_gains_nothing(tmp_path, monkeypatch, task):
    arrays = arrays_of(task, samples=50)
    # each image known by a number of its own: no pixel of it may have been in the fit
    own = np.random.default_rng(5).permutation(50).reshape(-1, *(1 for _ in arrays["logits"].shape[2:]))
    arrays["logits"][:, 0] = own / 100
    source = open_predictions(save(tmp_path, "npz", arrays))
    module = importlib.import_module("equipoise.evaluation.closed_set")
    monkeypatch.setattr(module, "temperature_scaling", lambda task, by: SimpleNamespace(fit=Memory))
    result = evaluate(source).calibration
    assert result.after["nll"] == pytest.approx(result.before["nll"], rel=1e-12)
    leaking = Memory(torch.from_numpy(arrays["logits"]), None)  # the test can fail: seen samples do change
    assert not torch.equal(leaking(torch.from_numpy(arrays["logits"])), torch.from_numpy(arrays["logits"]))


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_the_numbers_are_those_of_two_fits_on_halves(tmp_path, task):
    arrays = arrays_of(task, samples=400)
    source = open_predictions(save(tmp_path, "npz", arrays))
    logits, targets = torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["targets"])
    first = torch.cat([part.first for part in FitSplit(source, 4).parts()])
    assert 150 < int(first.sum()) < 250
    fit = fit_temperature if task == "multiclass" else fit_label_temperatures
    metric = NegativeLogLikelihood(kind="multilabel" if task == "multilabel" else "multiclass")
    for half in (first, ~first):
        metric.update(fit(logits[~half], targets[~half])(logits[half]), targets[half])
    result = evaluate(source, seed=4).calibration
    assert result.after["nll"] == pytest.approx(float(metric.compute()), rel=1e-9)
    assert result.after["nll"] < result.before["nll"]  # the scores are too sharp by half
    assert len(result.fits) == 2


@pytest.mark.parametrize("task", ["multiclass", "segmentation"])
def test_the_temperature_is_chosen_by_the_calibration_error_on_request(task):
    """Metrics after it are those of each half divided by the grid temperature of the other half."""
    arrays = arrays_of(task, samples=300)
    right = arrays["logits"].argmax(1)
    arrays["targets"] = np.where(arrays["logits"].max(1) > 2.5, right, arrays["targets"])  # some confident and right
    arrays["logits"] *= 3.0
    logits, targets = torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["targets"])
    first = torch.cat([part.first for part in FitSplit(open_predictions(arrays), 2).parts()])
    after = logits.clone()
    for half in (first, ~first):
        errors = []
        for step in range(1, 101):
            metric = CalibrationError()
            metric.update(logits[~half] * (10 / step), targets[~half])
            errors.append(float(metric.compute()))
        after[half] /= (np.argmin(errors) + 1) / 10
    result = evaluate(open_predictions(arrays), seed=2, temperature_by="ece").calibration
    assert result.by == "ece"
    for name, metric in {"nll": NegativeLogLikelihood(), "ece": CalibrationError()}.items():
        assert result.after[name] == pytest.approx(float(metric(after, targets)), rel=1e-9), name
    other = evaluate(open_predictions(arrays), seed=2).calibration
    assert other.by == "nll"
    assert other.after["nll"] < result.after["nll"]
    if task == "multiclass":
        confident = ConfidentShare()(after, targets)
        assert result.after["s99_share"] == pytest.approx(float(confident["share"]))
        assert result.after["s99_accuracy"] == pytest.approx(float(confident["accuracy"]))
        assert result.after["s99_share"] < result.before["s99_share"]


def test_labels_have_temperatures_by_likelihood():
    with pytest.raises(ValueError, match="temperature_by must be 'nll' for multi-label data, got 'ece'; omit it"):
        evaluate(arrays_of("multilabel"), temperature_by="ece")
    with pytest.raises(ValueError, match="temperature_by must be one of 'nll', 'ece', got 'mce'"):
        evaluate(arrays_of("multiclass"), temperature_by="mce")


def test_the_seed_decides_the_halves(tmp_path):
    source = open_predictions(save(tmp_path, "npz", arrays_of("multiclass")))
    values = [evaluate(source, seed=seed).calibration.after["nll"] for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_halves_do_not_follow_labels_that_were_drawn_with_the_same_seed(tmp_path, seed):
    draw = np.random.default_rng(seed)
    labels = draw.choice(2, 1000, p=[0.5, 0.5])  # by the first 1000 uniform numbers of this seed
    source = open_predictions(save(tmp_path, "npz", {"logits": draw.normal(size=(1000, 2)), "targets": labels}))
    first = torch.cat([part.first for part in FitSplit(source, seed).parts()]).numpy()
    assert abs(labels[first].mean() - labels[~first].mean()) < 0.15


@pytest.mark.parametrize("task", ["multiclass", "segmentation"])
def test_a_large_file_is_fitted_on_some_of_its_rows(tmp_path, monkeypatch, task):
    arrays = arrays_of(task, samples=400)
    source = open_predictions(save(tmp_path, "npz", arrays))
    whole = evaluate(source).calibration.after["nll"]
    monkeypatch.setattr(splits, "FIT_SCORES", 600)  # 100 rows of 6 classes
    halves = FitSplit(source, 0).rows(True, False)
    for logits, targets in halves:
        assert 60 < len(logits) == len(targets) < 140
    assert evaluate(source).calibration.after["nll"] == pytest.approx(whole, rel=0.1)
    monkeypatch.setattr(sources, "CHUNK_ELEMENTS", 999)
    (again,) = FitSplit(source, 0).rows(True)
    assert torch.equal(again[0], halves[0][0])  # whatever the chunks


def test_each_half_gets_the_fit_on_the_other():
    halves = [(torch.full((3, 2), float(half)), torch.zeros(3, dtype=torch.int64)) for half in (0, 1)]
    fits = [fit for fit, _ in cross_fit(Memory, halves)]
    assert [fit.seen.tolist() for fit in fits] == [[1.0], [0.0]]
    empty = [(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)), halves[0]]
    assert {(fit, note) for fit, note in cross_fit(Memory, empty)} == {
        (None, "it is fitted on one half of the samples for the other, and one half has none")
    }


@pytest.mark.filterwarnings("error")
def test_a_fit_that_fails_gives_the_reason_and_a_degenerate_one_its_note():
    logits, ignored = torch.tensor([[4.0, 0.0], [0.0, 4.0]]).repeat(5, 1), torch.full((10,), -100)
    fitted, reason = try_fit(fit_temperature, (logits, ignored))
    assert fitted is None
    assert "targets must hold at least one label" in reason
    fitted, note = try_fit(fit_temperature, (logits, torch.arange(10) % 2))  # all correct
    assert note == fitted.note != ""
