"""Errors of a training that are not caused by settings or data."""

from __future__ import annotations

__all__ = ["TrainingError"]


class TrainingError(RuntimeError):
    """A training that cannot continue; the message says why and what to do."""
