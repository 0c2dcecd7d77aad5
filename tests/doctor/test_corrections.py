"""What corrections are worth on samples they have not seen."""

import numpy as np
import pytest
import torch

from equipoise.calibration import METHODS
from equipoise.doctor import look_at_predictions
from equipoise.doctor.corrections import try_corrections
from equipoise.evaluation import evaluate
from equipoise.evaluation.split import FitSplit
from equipoise.predictions import open_predictions


def saved(path, **arrays):
    np.savez(path, **arrays)
    return open_predictions(path)


def drawn(samples=2000, bias=(0.0, 0.0, 0.0), scale=1.0):
    """Logits of a calibrated model, biased and scaled, and the labels."""
    draw = np.random.default_rng(3)
    logits = draw.normal(0, 2, (samples, 3))
    targets = (logits + draw.gumbel(size=logits.shape)).argmax(1)
    return {"logits": scale * logits + np.array(bias), "targets": targets}


def advised(source):
    findings = look_at_predictions(evaluate(source), corrections=try_corrections(source))
    return {finding.about: finding for finding in findings}


def test_nll_is_that_of_the_other_half(tmp_path):
    source = saved(tmp_path / "p.npz", **drawn(bias=(2.0, 0.0, 0.0)))
    parts = list(FitSplit(source, 0).parts())
    logits, targets, first = (torch.cat([getattr(p, name) for p in parts]) for name in ("logits", "targets", "first"))
    for tried, name in zip(try_corrections(source), ("temperature", "vector"), strict=True):
        total = 0.0
        for own in (first, ~first):
            fitted = METHODS[name].fit(logits[own], targets[own])
            total += float(torch.nn.functional.cross_entropy(fitted(logits[~own]), targets[~own], reduction="sum"))
        assert tried.options == f"--method {name}"
        assert tried.nll == pytest.approx(total / 2000, rel=1e-6)


def test_what_is_tried_depends_on_what_is_known(tmp_path):
    plain = try_corrections(saved(tmp_path / "p.npz", **drawn()))
    assert [(one.options, one.keeps_predictions) for one in plain] == [
        ("--method temperature", True),
        ("--method vector", False),
    ]
    counted = try_corrections(saved(tmp_path / "q.npz", **drawn(), train_counts=[500, 50, 5]))
    assert [one.options for one in counted[2:]] == ["--method group-temperatures", "--method prior"]
    labels = {"logits": np.random.default_rng(0).normal(size=(400, 3)), "targets": np.arange(1200).reshape(400, 3) % 2}
    several = try_corrections(saved(tmp_path / "r.npz", **labels))
    assert [one.options for one in several] == ["--method label-temperatures", "--method label-temperatures --bias"]
    assert [one.keeps_predictions for one in several] == [True, False]


def test_biased_classes_are_advised_more_than_a_temperature(tmp_path):
    findings = advised(saved(tmp_path / "p.npz", **drawn(bias=(3.0, 0.0, 0.0))))
    assert list(findings) == ["overconfident", "a correction improves on temperature scaling"]
    assert "--method vector" in findings["a correction improves on temperature scaling"].advice
    assert "this changes predictions" in findings["a correction improves on temperature scaling"].advice


def test_a_scale_alone_is_advised_a_temperature(tmp_path):
    findings = advised(saved(tmp_path / "p.npz", **drawn(scale=3.0)))
    assert list(findings) == ["overconfident", "a temperature helps"]


def test_nothing_is_advised_where_nothing_helps(tmp_path):
    assert list(advised(saved(tmp_path / "p.npz", **drawn()))) == ["too few samples per bin for this ECE"]


def test_shifted_labels_are_advised_biases(tmp_path):
    draw = np.random.default_rng(5)
    logits = draw.normal(0, 2, (1500, 3))
    targets = (draw.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(int)
    findings = advised(saved(tmp_path / "p.npz", logits=logits + 1.0, targets=targets))
    assert "--method label-temperatures --bias" in findings["a correction improves on temperature scaling"].advice


def test_a_half_that_cannot_be_fitted(tmp_path):
    source = saved(tmp_path / "p.npz", logits=np.eye(2), targets=np.array([0, -100]))
    assert try_corrections(source) == []
