"""Output and errors of the commands; control characters in data, files and errors are escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import rich.console
import typer
from rich.segment import Segment
from rich.text import Text

from equipoise._visible import visible

__all__ = ["Console", "echo", "fail"]


def echo(text: str, err: bool = False) -> None:
    """Print a line; characters that the terminal cannot encode are escaped."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    typer.echo(visible(text).encode(encoding, "backslashreplace").decode(encoding), err=err)


def fail(error: Exception | str, status: int = 2) -> NoReturn:
    """Print ``error: ...`` to stderr and end the command."""
    echo(f"error: {error}", err=True)
    raise typer.Exit(status)


class Console(rich.console.Console):
    """A console that prints plain text: no markup, no emoji codes, and no control characters.

    Control characters are escaped in strings before layout, and in other renderables when they are drawn.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**({"highlight": False, "emoji": False, "markup": False} | options))

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
        """Convert a string to text."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: Any, options: rich.console.ConsoleOptions | None = None) -> Iterable[Segment]:  # noqa: ANN401
        """Render anything printable as segments."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=visible(part.text))
