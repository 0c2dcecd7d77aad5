"""Numbers, times and names as text."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.metric_registry import metric_info

__all__ = ["capital", "duration", "joined", "shown"]


def joined(names: Sequence[str]) -> str:
    """Names as an enumeration.

    >>> joined(["crt"]), joined(["crt", "lws", "ncm"])
    ('crt', 'crt, lws and ncm')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def shown(name: str, value: float | None) -> str:
    """A metric as text."""
    return metric_info(name).text(value)


def duration(seconds: float) -> str:
    """Seconds as text in a suitable unit.

    >>> duration(42.3), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def capital(text: str) -> str:
    """The text with a capital letter, unless its first word has one.

    >>> capital("mean IoU"), capital("mAP")
    ('Mean IoU', 'mAP')
    """
    return text[:1].upper() + text[1:] if text.partition(" ")[0].islower() else text
