"""The help of the command line, which must come at once."""

import subprocess
import sys
from importlib import import_module

import pytest
from typer.testing import CliRunner

from equipoise.cli.app import COMMANDS, app

HEAVY = {"torch", "numpy", "pydantic", "yaml", "pytorch_lightning", "matplotlib", "sklearn", "torchmetrics"}


def test_help_loads_nothing_heavy():
    program = (
        "import sys\n"
        "from equipoise.cli.app import app\n"
        "app(['--help'], standalone_mode=False)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "compare" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "[]"


def test_help_has_a_line_for_each_command():
    text = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    places = [text.index(f"{name} {line}") for name, line in COMMANDS.items()]
    assert places == sorted(places)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_is_that_of_the_command(name):
    assert getattr(import_module(f"equipoise.cli.{name}"), name).__doc__.splitlines()[0] == COMMANDS[name]
    ran = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert ran.exit_code == 0
    assert COMMANDS[name] in " ".join(ran.output.split())
    assert "--help" in ran.output


def test_a_slip_of_the_pen_is_answered_with_the_nearest_command():
    ran = CliRunner().invoke(app, ["evalute"])
    assert ran.exit_code == 2
    assert "Did you mean 'evaluate'?" in " ".join(ran.output.replace("│", " ").split())
