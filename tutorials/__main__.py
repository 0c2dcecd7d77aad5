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

# Colours of the figures, and what becomes of them for who likes it dark.
INK, LINE, PAPER = "#1c2025", "#b9c0c8", "#fffffe"
DARK = {INK: "#e8ebee", LINE: "#4a525a", PAPER: "#14171a"}
STYLE: dict[Any, Any] = {
    "axes.edgecolor": LINE,
    "axes.facecolor": PAPER,
    "axes.labelcolor": INK,
    "axes.prop_cycle": matplotlib.cycler(
        color=["#2b7cc4", "#e0701a", "#2a9d74", "#c9558f", "#8a8f98"]
    ),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": PAPER,
    "font.size": 9.0,
    "grid.color": LINE,
    "legend.frameon": False,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "equipoise",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
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
                figures[file.name] = _in_both_lights(file.read_text("utf-8"))
                parts.append(f"![{cell.title}](images/{file.name})")
                file.unlink()
        plt.close("all")
    place = f"tutorials/{script.name}"
    parts.append(f"The script of this page: [{place}](../../{place}).")
    return Made("\n\n".join(parts) + "\n", figures, variables)


def _in_both_lights(svg: str) -> str:
    """The picture with colours that follow the reader's light or dark."""
    svg = re.sub(
        r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*",
        "",
        svg[svg.index("<svg") :],
        flags=re.DOTALL,
    )
    svg = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", svg)
    light = dark = ""
    for number, colour in enumerate(DARK):
        svg = svg.replace(colour, f"var(--c{number})")
        light += f"--c{number}:{colour};"
        dark += f"--c{number}:{DARK[colour]};"
    colours = (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )
    first = svg.index(">") + 1
    style = f"{colours}text{{font-family:system-ui,sans-serif!important}}"
    return f"{svg[:first]}\n<style>{style}</style>{svg[first:]}"


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
