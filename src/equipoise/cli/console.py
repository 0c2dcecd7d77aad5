"""Where all output of the commands goes: what comes from data, files and errors is shown and never obeyed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import rich.console
import typer
from rich.segment import Segment
from rich.text import Text

from equipoise._visible import visible

__all__ = ["Console", "echo"]


def echo(text: str, err: bool = False) -> None:
    """Print a line, also where the encoding of the terminal has not all of its characters."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    typer.echo(visible(text).encode(encoding, "backslashreplace").decode(encoding), err=err)


class Console(rich.console.Console):
    """A console that takes text as it is: no markup, no emoji codes, and no control characters.

    Strings are made visible before they are laid out; whatever else holds text is when it is drawn.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**({"highlight": False, "emoji": False, "markup": False} | options))

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
        """A string as text."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: Any, options: rich.console.ConsoleOptions | None = None) -> Iterable[Segment]:  # noqa: ANN401
        """The parts of anything that can be printed."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=visible(part.text))
