"""The command line, ``equipoise COMMAND``. One thin file a command; what a command shows is computed elsewhere."""

from __future__ import annotations

import sys

__all__ = ["main"]

EXTRA = ("typer", "rich", "matplotlib")


def main() -> None:
    """Run the command line; without its packages say how to get them."""
    try:
        from equipoise.cli.app import app

        app(prog_name="equipoise")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        sys.exit(
            f"equipoise: the command line needs {error.name}; install it with: pip install '.[cli]' in a clone, "
            "otherwise pip install 'equipoise[cli]'"
        )
