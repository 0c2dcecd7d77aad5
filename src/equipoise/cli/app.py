"""The application that the commands hang on. A command is imported when it is called: the help needs a line of it."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from equipoise import __version__
from equipoise._visible import visible

__all__ = ["COMMANDS", "app"]

COMMANDS = {
    "compare": "Compare losses on your data; interrupted it goes on when the same command is given again.",
    "report": "Make the page of a comparison again, from what is finished; also its table for other documents.",
    "train": "Train on your data with any loss; an interrupted run goes on when the same command is given again.",
    "evaluate": "Evaluate saved predictions of any framework: by class, by group, before and after temperature "
    "scaling.",
    "calibrate": "Fit a correction of the probabilities, say what it is worth on other samples, or apply a fit.",
    "export": "Write the model of a run with its preparation, calibration and thresholds, for equipoise.load_exported.",
    "doctor": "Say what to worry about, and which losses suit: from predictions (FILE), from --counts, or from both.",
    "losses": "List the losses with formula, paper and when to use them; with NAME show one of them.",
}
"""Each is the function of its name in the module of its name, with this line as its docstring."""


class Commands(TyperGroup):
    """Commands of which only the one that is called is there with its flags."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401
        """Import the command before it is looked for."""
        if args[0] in COMMANDS:
            alone = typer.Typer(add_completion=False)
            alone.command()(getattr(import_module(f"equipoise.cli.{args[0]}"), args[0]))
            self.commands[args[0]] = typer.main.get_command(alone)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run the command; what was wrong with its arguments is shown, whatever they hold."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            message = getattr(error, "message", None)
            if isinstance(message, str):  # of click, which typer brings in one version and needs in another
                error.message = visible(message)  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    name="equipoise",
    cls=Commands,
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


for name, line in COMMANDS.items():
    app.command(name, help=line)(lambda: None)
