"""The catalogue in the terminal: a table of all losses, or one loss in detail."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.catalogue import CATALOGUE, Entry, Link
from equipoise.cli.console import Console
from equipoise.cli.describe import arguments_of, call_of, signature_of, summary_of

__all__ = ["details", "overview"]

GROUPS: dict[Link, str] = {
    "softmax": "Softmax link: single-label data, pixels or tokens",
    "sigmoid": "Sigmoid link: multi-label data, detection",
    "region": "Regions: segmentation, the overlap of whole classes",
}
LETTERS = (
    "z logits · p probability, p_y that of the target class · t target · n_c training samples of class c · C classes · "
    "w weight · ε label smoothing · ξ(e) weight of the high-confidence term in epoch e"
)
WIDE = 100  # minimum terminal width for formula, paper and advice in columns of their own


def overview(console: Console | None = None) -> None:
    """Print every loss, grouped by link."""
    console = console or Console(highlight=True)
    for link, heading in GROUPS.items():
        entries = [entry for entry in CATALOGUE if entry.link == link]
        console.print(_wide(heading, entries) if console.width >= WIDE else _narrow(heading, entries))
        console.print()
    console.print(Text(LETTERS, style="dim"))
    console.print(Text("Below each name: what --loss and --losses take.", style="dim"))
    console.print(Text("equipoise losses NAME shows one loss, --plot FILE draws it.", style="dim"))


def _wide(heading: str, entries: list[Entry]) -> Table:
    table = _table(heading)
    table.add_column("loss", style="bold", no_wrap=True)
    table.add_column("formula", ratio=5, style="cyan")
    table.add_column("paper", ratio=3)
    table.add_column("when to use", ratio=7)
    for entry in entries:
        name = Text.assemble(entry.name, "\n", (entry.text, "not bold dim"))
        table.add_row(name, *map(Text, (_lines(entry.formula), entry.paper, entry.use)))
    return table


def _narrow(heading: str, entries: list[Entry]) -> Table:
    table = _table(heading)
    table.add_column("loss, paper", width=max(len(entry.name) for entry in CATALOGUE))
    table.add_column("formula, when to use", ratio=1)
    for entry in entries:
        table.add_row(
            Text.assemble((entry.name, "bold"), "\n", (entry.text, "dim"), "\n", entry.paper),
            Text.assemble((_lines(entry.formula), "cyan"), "\n", entry.use),
        )
    return table


def _lines(formula: str) -> str:
    """The formula, with the definitions of its symbols on separate lines."""
    return formula.replace(",  ", ",\n")


def _table(heading: str) -> Table:
    return Table(
        title=heading,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        leading=1,
        pad_edge=False,
        expand=True,
    )


def details(entry: Entry, console: Console | None = None) -> None:
    """Print one loss in detail."""
    console = console or Console(highlight=True)
    arguments = Table.grid(padding=(0, 2))
    arguments.add_column(style="bold", no_wrap=True)
    arguments.add_column()
    documented = arguments_of(entry)
    for name in signature_of(entry).parameters:
        if name in documented:
            arguments.add_row(name, Text(documented[name]))
    console.print(Text(entry.name, style="bold"))
    console.print(Text(summary_of(entry)))
    parts: dict[str, RenderableType | None] = {
        "formula": Text(_lines(entry.formula), style="cyan"),
        "call": Text(call_of(entry)),
        "source": Text(entry.source),
        "when to use": Text(entry.use),
        "names in commands": Text(", ".join(entry.names)),
        "arguments": arguments if arguments.row_count else None,
    }
    for name, part in parts.items():
        if part is not None:
            console.print(Group(Text(""), Text(name, style="bold dim"), Padding(part, (0, 0, 0, 2))))
