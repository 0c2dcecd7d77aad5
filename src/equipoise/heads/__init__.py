"""Classifier heads: two heads on shared features, cosine classifiers, classifiers rebalanced after training."""

from __future__ import annotations

from equipoise.heads.cosine import CosineClassifier, normalize_classifier
from equipoise.heads.decoupled import DecoupledHead, DecoupledLogits, DecoupledLoss, DecoupledModel, decouple
from equipoise.heads.rebalanced import TauChoice, choose_tau, scaled_classifier, tau_normalize

__all__ = [
    "CosineClassifier",
    "DecoupledHead",
    "DecoupledLogits",
    "DecoupledLoss",
    "DecoupledModel",
    "TauChoice",
    "choose_tau",
    "decouple",
    "normalize_classifier",
    "scaled_classifier",
    "tau_normalize",
]
