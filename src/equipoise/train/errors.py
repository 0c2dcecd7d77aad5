"""What can go wrong in a training that is not the fault of a setting or of the data."""

from __future__ import annotations

__all__ = ["TrainingError"]


class TrainingError(RuntimeError):
    """A training that cannot go on; the message says why and what to do."""
