"""Training errors that settings or data do not cause."""

from __future__ import annotations

__all__ = ["LostDeviceError", "OutOfMemoryError", "TrainingError"]


class TrainingError(RuntimeError):
    """Training cannot continue; the message says why and what to do."""


class OutOfMemoryError(TrainingError):
    """Memory is not sufficient; it may be if no other run uses it."""


class LostDeviceError(TrainingError):
    """A device cannot be used by this process any more, e.g. after a failed assertion in a kernel."""
