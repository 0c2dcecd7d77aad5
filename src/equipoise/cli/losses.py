"""``equipoise losses``: the catalogue as a table, one loss in detail, or its curves as a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from equipoise._reading import InputError
from equipoise.cli.console import echo
from equipoise.cli.inputs import bad_input

__all__ = ["losses"]


def losses(
    name: Annotated[str | None, typer.Argument(help="One loss, by its name or short name: focal, cfl, asl ...")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw weight and gradient of NAME against probability: .png, .svg or .pdf."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """List the losses with formula, paper and when to use them; with NAME show one of them."""
    from equipoise.catalogue import CATALOGUE, find  # torch takes seconds to import: not for --help
    from equipoise.cli.describe import record
    from equipoise.cli.listing import details, overview

    with bad_input():
        if plot is not None and (name is None or as_json):
            problem = "it draws one loss and needs a NAME" if name is None else "it cannot be combined with --json"
            raise InputError(f"--plot: {problem}; for example: equipoise losses focal --plot focal.png")
        entry = None if name is None else find(name)
        if plot is not None and entry is not None:
            from equipoise.plotting.loss_figures import figure_of
            from equipoise.plotting.panels import draw  # matplotlib is slow to import and only needed here
            from equipoise.plotting.rendering import save

            save(draw(figure_of(entry), heading=True), plot)
            echo(f"{entry.name}: wrote {plot}")
            return
    if as_json:
        typer.echo(json.dumps([record(known) for known in CATALOGUE] if entry is None else record(entry), indent=2))
    elif entry is None:
        overview()
    else:
        details(entry)
