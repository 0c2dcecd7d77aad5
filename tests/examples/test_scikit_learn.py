import importlib
import pickle

import numpy as np
import pytest
from sklearn.base import clone

from tests.examples.running import EXAMPLES, numbers, run


@pytest.fixture(scope="module")
def example():
    return run("scikit_learn.py")


def test_the_chosen_method_is_better_than_what_it_replaces(example):
    chosen = example.printed.split("chosen: ")[1].split()[0]
    accuracy, likelihood, error = numbers(example.printed, f"Calibrator({chosen!r})")
    before = numbers(example.printed, "softmax of the scores")
    assert accuracy > before[0]
    assert likelihood < before[1] / 2
    assert error < before[2] / 2
    assert numbers(example.printed, "Calibrator('temperature')")[0] == before[0]  # keeps every prediction


def test_it_is_an_estimator(example):
    draw = np.random.default_rng(0)
    labels = np.array(["cat", "dog", "emu"])[draw.integers(3, size=200)]
    scores = draw.normal(size=(200, 3)) + 2 * (labels[:, None] == np.array(["cat", "dog", "emu"]))
    calibrator = clone(example.Calibrator().set_params(method="vector"))
    assert calibrator.get_params() == {"method": "vector"}
    transformed = calibrator.fit_transform(scores, labels)
    probs = calibrator.predict_proba(scores)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_array_equal(probs.argmax(1), transformed.argmax(1))
    assert set(calibrator.predict(scores)) <= {"cat", "dog", "emu"}
    assert calibrator.score(scores, labels) > 0.7


def test_it_pickles(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)  # a class is pickled by the name of its module
    example = importlib.import_module("scikit_learn")
    labels = np.arange(60) % 3
    scores = np.random.default_rng(0).normal(size=(60, 3)) + np.eye(3)[labels]
    calibrator = example.Calibrator().fit(scores, labels)
    again = pickle.loads(pickle.dumps(calibrator))
    np.testing.assert_array_equal(again.predict_proba(scores), calibrator.predict_proba(scores))
