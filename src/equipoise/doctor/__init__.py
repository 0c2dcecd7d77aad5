"""Problems in imbalanced data and in predictions on it, and suitable losses."""

from equipoise.doctor.counts import look_at_counts
from equipoise.doctor.finding import Finding
from equipoise.doctor.predictions import look_at_predictions
from equipoise.doctor.setup import SAMPLERS, look_at_setup
from equipoise.doctor.suggest import Suggestion, suggest

__all__ = [
    "SAMPLERS",
    "Finding",
    "Suggestion",
    "look_at_counts",
    "look_at_predictions",
    "look_at_setup",
    "suggest",
]
