"""How numbers and names of an evaluation are said to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from equipoise.expressions import is_method
from equipoise.metric_registry import METRICS, metric_info
from equipoise.tasks import TASKS, find_task

__all__ = [
    "DISTANCES",
    "LABELS",
    "LESS_IS_BETTER",
    "MADE_AFTERWARDS",
    "NATURAL",
    "TITLES",
    "Kind",
    "duration",
    "joined",
    "kind_of",
    "shown",
    "things",
]

LABELS: Mapping[str, str] = {key: info.label for key, info in METRICS.items()}
NATURAL = tuple(key for key, info in METRICS.items() if info.unit == "natural")
LESS_IS_BETTER = tuple(key for key, info in METRICS.items() if not info.higher_is_better)
HINTS: Mapping[str, str] = {key: info.hint for key, info in METRICS.items() if info.hint}
TITLES: Mapping[str, str] = {name: find_task(name).title for name in ("single", "multi", *TASKS)}
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


def joined(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> joined(["crt"]), joined(["crt", "lws", "ncm"])
    ('crt', 'crt, lws and ncm')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def things(task: str) -> str:
    """What there are several of: a sample with several labels has labels, any other one class.

    >>> things("multi"), things("segmentation")
    ('labels', 'classes')
    """
    return find_task(task).many


def shown(name: str, value: float | None) -> str:
    """A metric as it is printed."""
    return metric_info(name).text(value)


def duration(seconds: float) -> str:
    """Seconds in the unit people would choose.

    >>> duration(42.3), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def capital(text: str) -> str:
    """The text as a sentence begins.

    >>> capital("mean IoU"), capital("mAP")
    ('Mean IoU', 'mAP')
    """
    return text[:1].upper() + text[1:] if text.partition(" ")[0].islower() else text
