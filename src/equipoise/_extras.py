"""Optional dependencies and how to install them. Does not import torch."""

from __future__ import annotations

import importlib.util

__all__: list[str] = []

EXTRAS = {
    "PIL": ("pillow", "train"),
    "jinja2": ("jinja2", "cli"),
    "matplotlib": ("matplotlib", "cli"),
    "pyarrow": ("pyarrow", "cli"),
    "pydantic": ("pydantic", "cli"),
    "pytorch_lightning": ("pytorch-lightning", "train"),
    "ray": ("ray", "ray"),
    "rich": ("rich", "cli"),
    "safetensors": ("safetensors", "train"),
    "sklearn": ("scikit-learn", "cli"),
    "typer": ("typer", "cli"),
    "yaml": ("pyyaml", "cli"),
}
"""Imported module, its package, and the extra that installs it."""


class MissingPackageError(ModuleNotFoundError):
    """A package of an extra is not installed; the message says how to install it."""


def missing(what: str, module: str) -> MissingPackageError:
    """The error for a missing module of an extra.

    >>> missing("reading tables", "pyarrow").msg
    "reading tables needs pyarrow, which is not installed; pip install '.[cli]' in a clone, otherwise pip install 'equipoise[cli]'"
    """  # noqa: E501
    package, extra = EXTRAS[module]
    return MissingPackageError(
        f"{what} needs {package}, which is not installed; pip install '.[{extra}]' in a clone, otherwise pip install "
        f"'equipoise[{extra}]'",
        name=module,
    )


def check_installed(what: str, module: str) -> None:
    """Raise early if a module of an extra is missing."""
    if importlib.util.find_spec(module) is None:
        raise missing(what, module)
