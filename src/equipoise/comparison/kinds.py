"""Kinds of rows of a comparison: losses and methods, and which methods lack probabilities or epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from equipoise.expressions import is_method

__all__ = ["DISTANCES", "MADE_AFTERWARDS", "Kind", "kind_of"]

MADE_AFTERWARDS = ("crt", "lws", "tau-norm", "ncm")
"""Methods that replace the classifier of a trained model; they have no training epochs."""
DISTANCES = ("ncm",)
"""Methods whose scores are distances, not probabilities."""


class Kind(NamedTuple):
    """Name of the rows of a comparison, singular and plural."""

    one: str
    many: str


def kind_of(names: Iterable[str]) -> Kind:
    """Methods if any row is one, otherwise losses.

    >>> kind_of(["ce", "recall"]).many, kind_of(["ce", "sdn(feature=ce)"]).many
    ('losses', 'methods')
    """
    return Kind("method", "methods") if any(map(is_method, names)) else Kind("loss", "losses")
