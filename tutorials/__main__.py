"""Pages of the tutorials: ``python -m tutorials [NAME ...]``.

Runs the scripts and writes ``docs/tutorials/NAME.md`` with their figures.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt

from equipoise.plotting import theme
from equipoise.plotting.rendering import adaptive_svg

__all__ = ["DOCS", "SCRIPTS", "Cell", "Made", "cells", "make"]

SCRIPTS = sorted(
    path
    for path in Path(__file__).parent.glob("*.py")
    if not path.name.startswith("__")
)
DOCS = Path(__file__).parent.parent / "docs" / "tutorials"
NOT_RUN = (
    "<!-- not run: a part of the script, "
    "which tests/test_tutorials.py runs as a whole -->"
)

# Scripts choose their grids, as they are run without this theme too.
STYLE: dict[Any, Any] = {
    **theme.STYLE,
    "axes.facecolor": theme.PAPER,
    "axes.grid": False,
    "axes.titlelocation": "center",
    "axes.titleweight": "normal",
    "figure.facecolor": theme.PAPER,
}


class Cell(NamedTuple):
    """A part of a script: text for the reader, or code with a title."""

    is_text: bool
    title: str
    source: str


class Made(NamedTuple):
    """What a script gave: its page, its figures by name, and its variables."""

    page: str
    figures: dict[str, str]
    variables: dict[str, Any]


def cells(script: str) -> list[Cell]:
    """The cells of a script in the percent format.

    ``# %% [markdown]`` stands before text, ``# %% TITLE`` before code.
    """
    found = []
    for part in re.split(r"^# %% *", script, flags=re.MULTILINE)[1:]:
        title, _, source = part.partition("\n")
        is_text = title == "[markdown]"
        text = (
            re.sub(r"^# ?", "", source, flags=re.MULTILINE)
            if is_text
            else source
        )
        found.append(Cell(is_text, title, text.strip("\n")))
    return found


def make(script: Path) -> Made:
    """Run a script cell by cell in an empty folder.

    Figures are the SVG files that a cell leaves there.
    """
    variables: dict[str, Any] = {"__name__": "__main__"}
    figures: dict[str, str] = {}
    parts = []
    with (
        TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        matplotlib.rc_context(STYLE),
    ):
        matplotlib.use("agg")
        for cell in cells(script.read_text(encoding="utf-8")):
            if cell.is_text:
                parts.append(cell.source)
                continue
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(cell.source, script.name, "exec"), variables)
            parts.append(f"{NOT_RUN}\n```python\n{cell.source}\n```")
            if said.getvalue():
                parts.append(f"```text\n{said.getvalue().rstrip()}\n```")
            for file in sorted(Path().glob("*.svg")):
                svg = adaptive_svg(file.read_text("utf-8"), cell.title)
                figures[file.name] = svg
                parts.append(f"![{cell.title}](images/{file.name})")
                file.unlink()
        plt.close("all")
    place = f"tutorials/{script.name}"
    parts.append(f"The script of this page: [{place}](../../{place}).")
    return Made("\n\n".join(parts) + "\n", figures, variables)


def main(names: list[str]) -> None:
    """Write the pages, all of them where none is named."""
    for script in SCRIPTS:
        if names and script.stem not in names:
            continue
        print(script.name, file=sys.stderr, flush=True)
        made = make(script)
        for name, svg in made.figures.items():
            (DOCS / "images" / name).write_text(svg, encoding="utf-8")
        (DOCS / f"{script.stem}.md").write_text(made.page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
