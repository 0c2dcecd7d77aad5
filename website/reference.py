"""The pages of the API reference: one a public module, with every name of its ``__all__``."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["PACKAGE", "module_page", "overview_page", "public_modules", "public_path", "uri_of"]

PACKAGE = Path(__file__).parent.parent / "src" / "equipoise"

# Its names are commands, which have a page of their own.
_ELSEWHERE = {"equipoise.cli"}
# In the search, pages that explain come first.
_RARELY = "---\nsearch:\n  boost: 0.5\n---\n\n"


def _names_of(source: Path) -> list[str]:
    """What a file lists in ``__all__``; read, not run."""
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == ["__all__"]:
            return [str(name) for name in ast.literal_eval(statement.value)]
    return []


def _source(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _summary(module: str) -> str:
    text = ast.get_docstring(ast.parse(_source(module).read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def public_modules() -> dict[str, list[str]]:
    """The modules that promise something, and what they promise.

    They stand directly inside the package; an integration is a file of its own, to be imported where its library is.
    """
    sources = [*PACKAGE.glob("[a-z]*.py"), *PACKAGE.glob("[a-z]*/__init__.py"), *PACKAGE.glob("integrations/[a-z]*.py")]
    places = [source.relative_to(PACKAGE).with_suffix("").as_posix() for source in sources]
    modules = sorted(f"equipoise.{place.removesuffix('/__init__').replace('/', '.')}" for place in places)
    found = {module: _names_of(_source(module)) for module in modules if module not in _ELSEWHERE}
    return {module: names for module, names in found.items() if names}


def uri_of(module: str) -> str:
    """The page of a module among the sources of the site."""
    return f"reference/{module.removeprefix('equipoise.')}.md"


def public_path(name: str) -> str | None:
    """Where the reference shows a name, ``FocalLoss`` or ``equipoise.losses.named.FocalLoss``; None if nowhere."""
    short = name.rpartition(".")[2]
    for module, names in public_modules().items():
        if short in names and (name == short or name.startswith(f"{module}.")):
            return _shown_as(module, short)
    return None


def _shown_as(module: str, name: str) -> str:
    """A function that is called as the file it is in would be taken for the file."""
    return f"{module}.{name}.{name}" if (_source(module).parent / f"{name}.py").exists() else f"{module}.{name}"


def module_page(module: str, names: list[str]) -> str:
    """The page of one module: its own docstring, then what it promises."""
    parts = [f"{_RARELY}# {module}", _words_of(module)]
    if module == "equipoise.losses":
        parts += ["## Common options", _words_of("equipoise.losses.named")]
    return "\n\n".join([*parts, *(_entry(module, name) for name in names)])


def _words_of(module: str) -> str:
    hidden = "".join(f"      {option}: false\n" for option in ("members", "show_root_heading", "show_root_toc_entry"))
    return f"::: {module}\n    options:\n{hidden}"


def _entry(module: str, name: str) -> str:
    """What shows one name, under the address that its users know."""
    place = _shown_as(module, name)
    return f"::: {place}" if place == f"{module}.{name}" else f"[](){{ #{module}.{name} }}\n\n::: {place}"


def overview_page() -> str:
    """The page that leads to the others."""
    modules = public_modules()
    rows = [f"| [`{module}`](../{uri_of(module)}) | {_summary(module)} |" for module in modules]
    names = [name for name in _names_of(PACKAGE / "__init__.py") if name in modules["equipoise.losses"]]
    return f"""# API reference

Every name that the package promises, from its docstrings, and the [command line](commands.md).

| module | |
|---|---|
{chr(10).join(rows)}

In the package itself, `equipoise.FocalLoss` beside `equipoise.losses.FocalLoss`, stand
{", ".join(f"[`{name}`][equipoise.losses.{name}]" for name in names)}, and one more:

::: equipoise.load_exported
"""
