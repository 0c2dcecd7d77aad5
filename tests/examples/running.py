"""Run an example like ``python examples/NAME.py OPTIONS``, in this process, which has imported torch already."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(name, *options):
    """Variables of an example, and its output as ``printed``."""
    output = io.StringIO()
    arguments = [str(EXAMPLES / name), *map(str, options)]
    with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(output):
        actual = runpy.run_path(arguments[0], run_name="__main__")
    return SimpleNamespace(**{key: value for key, value in actual.items() if key[0] != "_"}, printed=output.getvalue())


def numbers(actual, start):
    """The numbers of the line with this start, without those in the start."""
    (line,) = [line for line in actual.splitlines() if line.startswith(start)]
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", line.removeprefix(start))]
