"""The application. A command is imported when it is called; the overview of commands only needs a line of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from equipoise import __version__

__all__ = ["COMMANDS", "app"]

COMMANDS = {
    "compare": "Compare losses on your data; run the same command again to resume.",
    "report": "Write the report of a comparison from its finished runs, and its table as CSV, LaTeX or Markdown.",
    "train": "Train on your data with any loss; run the same command again to resume.",
    "evaluate": "Evaluate saved predictions of any framework by class and group, before and after temperature scaling.",
    "calibrate": "Fit a calibrator and evaluate it on other samples, or apply a fit.",
    "export": "Write the model of a run with its preparation, calibration and thresholds, for equipoise.load_exported.",
    "doctor": "Report problems and suggest losses: from predictions (FILE), from --counts, or from both.",
    "losses": "List the losses with formula, paper and when to use them; with NAME show one of them.",
}
"""Summary of each command, the docstring of the function with its name in the module with its name."""


UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""The usage error of click, which some versions of typer include and others require."""


class Commands(TyperGroup):
    """Commands that are imported when they are called, with errors in one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run a command; without ``standalone_mode`` raise errors instead of printing them."""
        from equipoise.cli.console import echo

        try:
            status = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except (typer.Abort, UsageError) as error:
            if not standalone_mode:
                raise
            if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed already
                sys.exit(2)
            known = isinstance(error, UsageError)
            echo(f"error: {_one_line(error) if known else 'aborted'}", err=True)
            sys.exit(2 if known else 1)
        if not standalone_mode:
            return status
        sys.exit(status)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401
        """Import the command before it is looked up."""
        if args[0] in COMMANDS:
            command_app = typer.Typer(add_completion=False)
            command_app.command()(getattr(import_module(f"equipoise.cli.{args[0]}"), args[0]))
            self.commands[args[0]] = typer.main.get_command(command_app)
        return super().resolve_command(ctx, args)


def _one_line(error: Any) -> str:  # noqa: ANN401
    """The message of a usage error in one line, with a suggestion or a hint at the end."""
    message = " ".join(error.format_message().split())
    message = message[:1].lower() + message[1:].removesuffix(".")
    hint = "" if message.endswith("?") or error.ctx is None else f"; see {error.ctx.command_path} --help"
    return message + hint


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
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Learning from imbalanced data with probabilities that can be trusted."""


for name, line in COMMANDS.items():
    app.command(name, help=line)(lambda: None)
