"""The page of the command line: every command with its flags, as ``equipoise COMMAND --help`` has them."""

from __future__ import annotations

import html
from typing import Any

import typer

from equipoise.cli.app import COMMANDS, app

__all__ = ["commands_page"]


def commands_page() -> str:
    """All commands on one page."""
    group = typer.main.get_command(app)
    context = typer.Context(group)
    parts = ["# Command line", "`equipoise COMMAND --help` says the same."]
    for name, summary in COMMANDS.items():
        command = group.resolve_command(context, [name])[1]
        parts += [f"## equipoise {name}", summary]
        headings = dict.fromkeys(_heading(one) for one in command.params)
        for heading in headings:
            own = [one for one in command.params if _heading(one) == heading]
            parts += [f"**{heading}**"] if len(headings) > 1 else []
            parts.append("\n".join(["| flag | |", "|---|---|", *map(_row, own)]))
    return "\n\n".join(parts) + "\n"


def _heading(parameter: Any) -> str:  # noqa: ANN401
    return getattr(parameter, "rich_help_panel", None) or "Of the command"


def _row(parameter: Any) -> str:  # noqa: ANN401
    is_flag = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_flag else [parameter.metavar or parameter.name.upper()]
    said = html.escape(parameter.help or "", quote=False).replace("|", "\\|")
    return f"| {', '.join(f'`{name}`{{ .flag }}' for name in names)} | {said} |"
