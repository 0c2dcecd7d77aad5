"""The pages of the API reference: one a public module, with every name of its ``__all__``."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["PACKAGE", "module_page", "overview_page", "public_modules", "public_path"]

PACKAGE = Path(__file__).parent.parent / "src" / "equipoise"

# Its names are commands, which `equipoise --help` explains.
_ELSEWHERE = {"cli"}


def _names_of(source: Path) -> list[str]:
    """What a file lists in ``__all__``; read, not run."""
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == ["__all__"]:
            return [str(name) for name in ast.literal_eval(statement.value)]
    return []


def public_modules() -> dict[str, list[str]]:
    """The modules directly inside the package that promise something, and what they promise."""
    sources = {
        path.stem if path.is_file() else path.name: path if path.is_file() else path / "__init__.py"
        for path in sorted(PACKAGE.iterdir())
        if not path.name.startswith(("_", ".")) and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    found = {f"equipoise.{name}": _names_of(source) for name, source in sources.items() if name not in _ELSEWHERE}
    return {module: names for module, names in found.items() if names}


def public_path(name: str) -> str | None:
    """Where the reference shows a name, ``FocalLoss`` or ``equipoise.losses.named.FocalLoss``; None if nowhere."""
    modules, short = public_modules(), name.rpartition(".")[2]
    for module, names in modules.items():
        if short in names and (name == short or name.startswith(f"{module}.")):
            return f"{module}.{short}"
    return None


def _summary(source: Path) -> str:
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def overview_page() -> str:
    """The page that leads to the others."""
    rows = [
        f"| [`{module}`]({module.partition('.')[2]}.md) | {_summary(_source(module))} |" for module in public_modules()
    ]
    losses = set(public_modules()["equipoise.losses"])
    names = [name for name in _names_of(PACKAGE / "__init__.py") if name in losses]
    links = ", ".join(f"[`{name}`][equipoise.losses.{name}]" for name in names)
    return "\n".join(
        [
            "# API reference",
            "",
            "Every name that the package promises, from its docstrings.",
            "",
            "| module | |",
            "|---|---|",
            *rows,
            "",
            "The losses stand in the package itself too, `equipoise.FocalLoss` is `equipoise.losses.FocalLoss`:",
            f"{links}.",
            "",
            "::: equipoise.train.export.load_exported",
            "    options:",
            "      heading_level: 2",
            "      show_root_full_path: false",
            "",
        ]
    )


def _source(module: str) -> Path:
    folder = PACKAGE / module.partition(".")[2]
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def module_page(module: str, names: list[str]) -> str:
    """The page of one module: its own docstring, then what it promises."""
    head = [
        f"# {module}",
        "",
        f"::: {module}",
        "    options:",
        "      members: false",
        "      show_root_heading: false",
        "",
    ]
    return "\n".join([*head, *(f"::: {module}.{name}\n" for name in names)])
