"""What saved predictions are worth: all numbers of an evaluation as plain data, ready for JSON."""

from equipoise.evaluation.evaluate import FORMAT, evaluate

__all__ = ["FORMAT", "evaluate"]
