"""Calibrators as a scikit-learn estimator: fit, transform, predict_proba, and model selection by cross-validation.

``Calibrator`` is an estimator whose features are the scores of another one, here the ``decision_function`` of a support
vector machine with few training samples of the rare digits. It is fitted on scores of samples that the classifier was
not trained on, works in ``cross_val_predict`` and ``GridSearchCV``, and can be cloned and pickled. Copy it into your
code; on tensors, a calibrator is just ``fit_temperature(scores, labels)``.

    python examples/scikit_learn.py
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC
from sklearn.utils.validation import check_is_fitted

from equipoise import calibration
from equipoise.metrics import CalibrationError

METHODS = {
    "temperature": calibration.fit_temperature,
    "vector": calibration.fit_vector,
    "dirichlet": calibration.fit_dirichlet,
    "isotonic": calibration.fit_isotonic,
}


class Calibrator(TransformerMixin, ClassifierMixin, BaseEstimator):
    """Maps scores (N, C) of a classifier to logits with a calibrated softmax.

    Args:
        method: a key of ``METHODS``.
    """

    def __init__(self, method: str = "temperature") -> None:
        self.method = method

    def fit(self, scores: NDArray, labels: NDArray) -> Calibrator:
        """Fit on scores of samples that the classifier was not trained on; columns are the sorted labels."""
        self.classes_, indices = np.unique(labels, return_inverse=True)
        self.fitted_ = METHODS[self.method](torch.as_tensor(scores), torch.as_tensor(indices))
        return self

    def transform(self, scores: NDArray) -> NDArray:
        """Calibrated logits (N, C)."""
        check_is_fitted(self)
        return self.fitted_(torch.as_tensor(scores)).numpy()

    def predict_proba(self, scores: NDArray) -> NDArray:
        """Calibrated probabilities (N, C)."""
        return torch.as_tensor(self.transform(scores)).softmax(1).numpy()

    def predict(self, scores: NDArray) -> NDArray:
        """The most probable class of each row."""
        return self.classes_[self.transform(scores).argmax(1)]


def long_tailed_digits(seed: int = 0) -> tuple[tuple[NDArray, NDArray], ...]:
    """Training digits, 60 of the digit 0 down to 4 of the digit 9, and two halves of the others."""
    images, labels = load_digits(return_X_y=True)
    draw = np.random.default_rng(seed)
    counts = np.geomspace(60, 4, 10).astype(int)
    train = np.concatenate([draw.choice(np.flatnonzero(labels == c), n, replace=False) for c, n in enumerate(counts)])
    rest = draw.permutation(np.setdiff1d(np.arange(len(labels)), train))
    return tuple((images[rows], labels[rows]) for rows in (train, rest[: len(rest) // 2], rest[len(rest) // 2 :]))


def line(name: str, probs: NDArray, labels: NDArray) -> str:
    """Accuracy, NLL and calibration error of probabilities."""
    ece = CalibrationError(from_logits=False)(torch.from_numpy(probs), torch.from_numpy(labels))
    return f"{name:32} {accuracy_score(labels, probs.argmax(1)):9.2%} {log_loss(labels, probs):7.4f} {ece:8.2%}"


def main() -> None:
    """Calibrate a support vector machine and compare."""
    train, held_out, test = long_tailed_digits()
    machine = SVC(gamma=0.001).fit(*train)
    scores, test_scores = machine.decision_function(held_out[0]), machine.decision_function(test[0])

    search = GridSearchCV(Calibrator(), {"method": list(METHODS)}, scoring="neg_log_loss", cv=5)
    search.fit(scores, held_out[1])
    print("likelihood loss of held-out scores, cross-validated:")
    for method, score in zip(METHODS, search.cv_results_["mean_test_score"], strict=True):
        print(f"  {method:12} {-score:.4f}")
    print(f"chosen: {search.best_params_['method']}")

    print(f"{'on test samples':32} {'accuracy':>9} {'NLL':>7} {'ECE':>8}")
    print(line("softmax of the scores", torch.from_numpy(test_scores).softmax(1).numpy(), test[1]))
    for method in METHODS:
        name = f"Calibrator({method!r})"
        print(line(name, Calibrator(method).fit(scores, held_out[1]).predict_proba(test_scores), test[1]))
    platt = CalibratedClassifierCV(FrozenEstimator(machine), method="sigmoid").fit(*held_out)
    print(line("CalibratedClassifierCV('sigmoid')", platt.predict_proba(test[0]), test[1]))


if __name__ == "__main__":
    main()
