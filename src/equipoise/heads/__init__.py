"""Classifier heads: rebalancing a linear classifier after training."""

from __future__ import annotations

from equipoise.heads.rebalanced import TauChoice, choose_tau, scaled_classifier, tau_normalize

__all__ = ["TauChoice", "choose_tau", "scaled_classifier", "tau_normalize"]
