"""Public methods have docstrings, unless they override a method that has one to read."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import equipoise

SKIPPED = ("kernels.triton.device", "__main__", "ray_jobs")
"""Modules that Triton compiles, that run when they are imported, or that need a package of their own."""


def module_names() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(equipoise.__path__, "equipoise.")]
    return [name for name in names if not any(part in name for part in SKIPPED)]


def undocumented(kind: type) -> list[str]:
    """Public methods of a class that have no docstring and override nothing."""
    return [
        name
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and name not in vars(kind).get("__annotations__", {})  # the default of a field may be a function
        and isinstance(member, staticmethod | classmethod | property | type(undocumented))
        and not inspect.getdoc(member)
        and not any(hasattr(base, name) for base in kind.__bases__)
    ]


@pytest.mark.parametrize("name", module_names())
def test_methods_have_docstrings(name):
    module = importlib.import_module(name)
    classes = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == name]
    classes = [kind for kind in classes if not kind.__name__.startswith("_")]
    assert [f"{kind.__name__}.{method}" for kind in classes for method in undocumented(kind)] == []


def test_overrides_need_no_docstring():
    class Child(dict):
        def update(self): ...

        def added(self): ...

    assert undocumented(Child) == ["added"]
