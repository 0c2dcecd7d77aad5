"""What the doctor says of a temperature is what the evaluation of the same predictions says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from equipoise.doctor import look_at_predictions
from equipoise.doctor.corrections import Correction, try_corrections
from equipoise.doctor.predictions import gap_noise, mean_gap
from equipoise.evaluation import evaluate
from equipoise.predictions import open_predictions


def softmax_scores(samples: int, classes: int, scale: float, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(samples, classes)) * 2
    odds = np.exp(logits)
    targets = (draw.random((samples, 1)) > np.cumsum(odds / odds.sum(1, keepdims=True), 1)).sum(1)
    return {"logits": scale * logits, "targets": targets.clip(max=classes - 1)}


def several(samples: int, labels: int, scale: float) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    logits = draw.normal(size=(samples, labels)) - 1
    return {"logits": scale * logits, "targets": (draw.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(int)}


def maps(scale: float) -> dict[str, Any]:
    flat = softmax_scores(6 * 64, 3, scale)
    return {
        "logits": flat["logits"].reshape(6, 8, 8, 3).transpose(0, 3, 1, 2),
        "targets": flat["targets"].reshape(6, 8, 8),
    }


CASES = {
    "binary": softmax_scores(400, 2, 1.0),
    "binary, overconfident": softmax_scores(400, 2, 4.0),
    "binary, underconfident": softmax_scores(400, 2, 0.3),
    "many classes": softmax_scores(600, 50, 1.0),
    "many classes, overconfident": softmax_scores(600, 50, 3.0),
    "tiny": softmax_scores(12, 3, 2.0),
    "tiny, calibrated": softmax_scores(20, 3, 1.0, seed=3),
    "perfect": {"logits": 4.0 * np.eye(3)[np.arange(90) % 3], "targets": np.arange(90) % 3},
    "nearly perfect": {"logits": 9.0 * np.eye(3)[np.arange(90) % 3], "targets": np.r_[1, np.arange(1, 90) % 3]},
    "moved biases": softmax_scores(400, 4, 1.0) | {"train_counts": np.array([900, 90, 30, 10])},
    "several labels": several(300, 4, 1.0),
    "several labels, overconfident": several(300, 4, 5.0),
    "maps": maps(1.0),
    "maps, overconfident": maps(4.0),
}
CASES["moved biases"]["logits"] = CASES["moved biases"]["logits"] + np.array([3.0, 0, 0, -3])
NUMBERS = re.compile(r"(falls|rises|lowers the NLL) from (\d+\.\d{4}) to (\d+\.\d{4})")


@pytest.mark.parametrize("name", CASES)
def test_words_and_numbers_agree(name: str) -> None:
    source = open_predictions(CASES[name])
    measured = evaluate(source)
    tried = try_corrections(source)
    findings = look_at_predictions(measured, corrections=tried)
    before, after = measured.calibration.before, measured.calibration.after
    for finding in findings:
        for word, first, last in NUMBERS.findall(f"{finding.text} {finding.advice}"):
            assert (float(last) > float(first)) == (word == "rises"), finding.text
            assert first == f"{before['nll']:.4f}"
            assert last in {f"{value:.4f}" for value in (after["nll"], *(one.nll for one in tried))}
    about = {finding.about: finding for finding in findings}
    if "a temperature helps" in about:
        assert after["nll"] < before["nll"]
    for kind in {"overconfident", "underconfident"} & about.keys():
        curve = measured.reliability["all"].before
        assert abs(mean_gap(curve)) >= 2 * gap_noise(curve)
        if "--method temperature)" in about[kind].advice:
            assert after["nll"] < before["nll"]
            assert after["ece"] < before["ece"]


def test_a_harmful_temperature_is_reported() -> None:
    measured = evaluate(CASES["many classes, overconfident"])
    measured.calibration.before["nll"] = 0.0375
    measured.calibration.after["nll"] = 0.0377
    tried = [Correction("--method temperature", 0.0377, True), Correction("--method vector", 0.0300, False)]
    (finding,) = [f for f in look_at_predictions(measured, corrections=tried) if "improves on" in f.about]
    assert NUMBERS.findall(finding.text) == [("falls", "0.0375", "0.0300"), ("rises", "0.0375", "0.0377")]
    (confident,) = [f for f in look_at_predictions(measured, corrections=tried[:1]) if f.about == "overconfident"]
    assert "--method temperature)" not in confident.advice


def test_a_gap_within_noise_is_not_overconfidence() -> None:
    """Few samples: 0.9 confident, 8 of 10 right."""
    logits = np.tile([np.log(9.0), 0.0], (10, 1))
    measured = evaluate({"logits": logits, "targets": np.r_[np.zeros(8, int), 1, 1]})
    assert mean_gap(measured.reliability["all"].before) == pytest.approx(0.1)
    assert "overconfident" not in {finding.about for finding in look_at_predictions(measured)}
