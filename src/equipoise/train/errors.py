"""Training errors that settings or data do not cause."""

from __future__ import annotations

__all__ = ["TrainingError"]


class TrainingError(RuntimeError):
    """Training cannot continue; the message says why and what to do."""
