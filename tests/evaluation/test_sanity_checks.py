"""Suspicious files get a note, others do not."""

import numpy as np
import pytest
from scipy.special import softmax

from equipoise.doctor import look_at_predictions
from equipoise.doctor.corrections import try_corrections
from equipoise.evaluation import evaluate
from equipoise.predictions import open_predictions


def suspicions(path, **arrays):
    np.savez(path, **arrays)
    evaluation = evaluate(open_predictions(path))
    try_corrections(open_predictions(path))
    problems = [finding.text for finding in look_at_predictions(evaluation) if finding.about == "suspicious input"]
    assert problems == evaluation.suspicions
    return " ".join(problems)


@pytest.fixture
def single():
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 4, 300)
    return 3 * np.eye(5)[targets] + draw.normal(size=(300, 5)), targets


def test_no_note(tmp_path, single):
    logits, targets = single
    assert suspicions(tmp_path / "p.npz", logits=logits, targets=targets) == ""
    assert suspicions(tmp_path / "q.npz", probs=softmax(logits, 1), targets=targets) == ""
    many = (np.random.default_rng(1).random((300, 5)) < 0.4).astype(int)
    assert suspicions(tmp_path / "r.npz", logits=logits, targets=many) == ""


@pytest.mark.filterwarnings("error")  # only the evaluation warns
def test_probabilities_called_logits(tmp_path, single):
    logits, targets = single
    output = suspicions(tmp_path / "p.npz", logits=softmax(logits, 1), targets=targets)
    assert "save them as probs" in output
    many = (np.random.default_rng(1).random((300, 5)) < 0.4).astype(int)
    assert "save them as probs" in suspicions(tmp_path / "q.npz", logits=1 / (1 + np.exp(-logits)), targets=many)


def test_shifted_labels(tmp_path, single):
    logits, targets = single
    assert "far below chance (20.0 %)" in suspicions(tmp_path / "p.npz", logits=logits, targets=targets + 1)
    assert suspicions(tmp_path / "q.npz", logits=logits[:50], targets=targets[:50] + 1) == ""


def test_one_hot_targets(tmp_path, single):
    logits, targets = single
    assert "exactly one label" in suspicions(tmp_path / "p.npz", logits=logits, targets=np.eye(5, dtype=int)[targets])
