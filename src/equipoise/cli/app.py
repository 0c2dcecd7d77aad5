"""The application that the commands hang on."""

from __future__ import annotations

from typing import Annotated

import typer

from equipoise import __version__
from equipoise.cli.calibrate import calibrate
from equipoise.cli.compare import compare
from equipoise.cli.doctor import doctor
from equipoise.cli.evaluate import evaluate
from equipoise.cli.export import export
from equipoise.cli.losses import losses
from equipoise.cli.report import report
from equipoise.cli.train import train

app = typer.Typer(
    name="equipoise",
    help="Learning from imbalanced data with probabilities that can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"equipoise {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Learning from imbalanced data with probabilities that can be trusted."""


app.command()(compare)
app.command()(report)
app.command()(train)
app.command()(evaluate)
app.command()(calibrate)
app.command()(export)
app.command()(doctor)
app.command()(losses)
