"""The command line, ``equipoise COMMAND``. One module per command."""

from __future__ import annotations

import sys

from equipoise._extras import EXTRAS, MissingPackageError, missing

__all__ = ["main"]


def main() -> None:
    """Run the command line; report a missing package with how to install it."""
    try:
        from equipoise.cli.app import app

        app(prog_name="equipoise")
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        sys.exit(f"error: {error if isinstance(error, MissingPackageError) else missing('this command', module)}")
