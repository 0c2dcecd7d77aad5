"""What saved predictions are worth: all numbers of an evaluation as plain data, ready for JSON."""

from equipoise.evaluation.evaluate import FORMAT, evaluate
from equipoise.evaluation.open_set import OPEN_FORMAT, evaluate_open_set

__all__ = ["FORMAT", "OPEN_FORMAT", "evaluate", "evaluate_open_set"]
