"""Packages that only parts of the library need, and how to get them. Without torch."""

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
"""What is imported, to the package that has it and the extra that brings it."""


class MissingPackageError(ModuleNotFoundError):
    """A package of an extra is not installed; the message says how to get it."""


def missing(what: str, module: str) -> MissingPackageError:
    """The error where a module of an extra cannot be imported.

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
    """Raise now where a module of an extra will be missed later."""
    if importlib.util.find_spec(module) is None:
        raise missing(what, module)
