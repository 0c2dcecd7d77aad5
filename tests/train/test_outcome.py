"""Evaluation of a trained model by its settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.calibration import fit_temperature, load
from equipoise.train.run import run
from equipoise.train.spec import RunSpec


def spec(**settings):
    return RunSpec(**{"data": "digits-lt", "model": "linear", "epochs": 2, "logger": "none"} | settings)


def test_temperature_by_ece_and_unit_scaling(tmp_path):
    """The saved temperature is the one that the ECE chooses on validation data; pixels stay in [0, 1]."""
    folder = run(spec(temperature_by="ece", scaling="unit"), tmp_path / "run")
    with np.load(folder.predictions("val")) as saved:
        logits, targets = torch.from_numpy(saved["logits"]), torch.from_numpy(saved["targets"]).long()
    chosen = load(folder.path / "calibration.json")
    assert chosen.temperature == pytest.approx(fit_temperature(logits, targets, by="ece").temperature)
    assert folder.results.test.calibration.by == "ece"
    assert (folder.record.preparation.mean, folder.record.preparation.std) == ((0.0,), (1.0,))


def test_temperature_by_ece_is_for_one_label(tmp_path):
    with pytest.raises(ValueError, match="temperature_by must be 'nll' for multi-label data"):
        run(spec(data="digit-scenes", temperature_by="ece"), tmp_path / "run")
