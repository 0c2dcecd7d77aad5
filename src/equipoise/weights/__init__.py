"""Class weights: rules from counts, deferred weights, and weights that follow recall. They combine with every loss."""

from __future__ import annotations

from equipoise.weights.deferred import ClassWeights, Deferred
from equipoise.weights.rebalanced import Rebalanced
from equipoise.weights.recall import PrecisionWeights, RecallWeights
from equipoise.weights.static import effective_number, inverse_frequency, median_frequency, normalized, square_root

__all__ = [
    "ClassWeights",
    "Deferred",
    "PrecisionWeights",
    "Rebalanced",
    "RecallWeights",
    "effective_number",
    "inverse_frequency",
    "median_frequency",
    "normalized",
    "square_root",
]
