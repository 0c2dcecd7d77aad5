"""Signature and docstring of a loss as plain text."""

from __future__ import annotations

import inspect
import re

from torch import nn

import equipoise
from equipoise.catalogue import Entry

__all__ = ["arguments_of", "call_of", "record", "signature_of", "summary_of"]


def record(entry: Entry) -> dict[str, str | list[str]]:
    """One loss as JSON."""
    return {
        "name": entry.name,
        "link": entry.link,
        "summary": summary_of(entry),
        "formula": entry.formula,
        "signature": call_of(entry),
        "source": entry.source,
        "use": entry.use,
        "short_names": list(entry.short_names),
    }


def signature_of(entry: Entry) -> inspect.Signature:
    """The constructor with the default of every argument, without types."""
    parameters = inspect.signature(_class(entry)).parameters.values()
    return inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters])


def call_of(entry: Entry) -> str:
    """The signature as text: the constructor with every default."""
    return f"{entry.name}{signature_of(entry)}"


def _class(entry: Entry) -> type[nn.Module]:
    loss_class: type[nn.Module] = getattr(equipoise, entry.name)
    return loss_class


def summary_of(entry: Entry) -> str:
    """First paragraph of the docstring as plain text."""
    return _plain((inspect.getdoc(_class(entry)) or "").partition("\n\n")[0])


def arguments_of(entry: Entry) -> dict[str, str]:
    """The description of each argument in the docstrings of the class and its bases."""
    descriptions: dict[str, str] = {}
    for base in _class(entry).__mro__:
        section = re.search(r"^Args:\n((?: +.*\n?|\n)+)", inspect.cleandoc(base.__doc__ or ""), flags=re.MULTILINE)
        for name, text in re.findall(r"^ {4}(\w+): (.*\n?(?: {8}.*\n?)*)", section[1] if section else "", re.MULTILINE):
            descriptions.setdefault(name, _plain(text))
    return descriptions


SIGNS = {
    "gamma": "γ",
    "alpha": "α",
    "beta": "β",
    "Delta": "Δ",
    "tau": "τ",
    "pi": "π",
    "xi": "ξ",
    "sigma": "σ",
    "mu": "μ",
}
SIGNS |= {"log": "log", "propto": "∝", "sum": "Σ"}


def _plain(text: str) -> str:
    """Convert docstring markup to plain text."""
    text = re.sub(r":math:`([^`]*)`", r"\1", text).replace("``", "").replace("\\,", " ")
    text = re.sub(r"\\([a-zA-Z]+)", lambda sign: SIGNS.get(sign[1], ""), text)
    for _ in range(2):  # inner braces first
        text = re.sub(
            r"\{([^{}]*)\}", lambda inner: inner[1] if re.fullmatch(r"\w+", inner[1]) else f"({inner[1]})", text
        )
    return " ".join(text.split())
