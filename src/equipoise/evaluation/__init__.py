"""Evaluate saved predictions: ``evaluate`` and ``evaluate_open_set``, and the types of their results.

Results can be read and displayed without torch, because the functions that compute them are imported lazily.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise.evaluation.results import FORMAT, OPEN_FORMAT, Evaluation, OpenSetEvaluation

if TYPE_CHECKING:
    from equipoise.evaluation.closed_set import evaluate
    from equipoise.evaluation.open_set import evaluate_open_set

__all__ = ["FORMAT", "OPEN_FORMAT", "Evaluation", "OpenSetEvaluation", "evaluate", "evaluate_open_set"]

_MODULES = {"evaluate": "closed_set", "evaluate_open_set": "open_set"}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _MODULES:
        return getattr(importlib.import_module(f"equipoise.evaluation.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'equipoise.evaluation' has no attribute {name!r}")
