"""What the rows of a comparison are: losses, or methods, some of which make no probabilities or take no epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from equipoise.expressions import is_method

__all__ = ["DISTANCES", "MADE_AFTERWARDS", "Kind", "kind_of"]

MADE_AFTERWARDS = ("crt", "lws", "tau-norm", "ncm")
"""Methods that give a trained model another classifier: they have no epochs of their own."""
DISTANCES = ("ncm",)
"""Methods whose scores are distances and no probabilities."""


class Kind(NamedTuple):
    """What the rows of a comparison are called: one of them, and many."""

    one: str
    many: str


def kind_of(names: Iterable[str]) -> Kind:
    """Losses, or methods where any row is one.

    >>> kind_of(["ce", "recall"]).many, kind_of(["ce", "sdn(feature=ce)"]).many
    ('losses', 'methods')
    """
    return Kind("method", "methods") if any(map(is_method, names)) else Kind("loss", "losses")
