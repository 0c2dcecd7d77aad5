"""Control characters from data, files and errors are escaped in the terminal."""

import io
import json

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

from equipoise._visible import visible
from equipoise.cli.console import Console, echo
from tests.cli.test_evaluate import run
from tests.predictions.saved import arrays_of

EVIL = "\x1b]0;owned\x07\x1b[31m\r\x08\x7f\x9b2J\u202e\ud800[/b] :boom:"
"""Commands of a terminal, a lone surrogate, and markup of rich."""


def harmless(text):
    return not any(visible(letter) != letter for letter in text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 猫 ✓\n\tx", "plain é 猫 ✓\n\tx"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\rb\x00\x7f\x9b", "a\\rb\\x00\\x7f\\x9b"),
        ("\u202eabc\u2066\ufeff", "\\u202eabc\\u2066\\ufeff"),
        ("\ud800", "\\ud800"),
    ],
)
def test_visible(text, shown):
    assert visible(text) == shown
    assert visible(shown) == shown


def test_line_ends_can_be_escaped_too():
    assert visible("a\nb\tc", lines=False) == "a\\nb\\tc"


@pytest.mark.parametrize("hold", [str, Text, lambda text: Text.assemble((text, "bold"))])
def test_consoles_escape_control_characters(hold):
    written = io.StringIO()
    console = Console(file=written, width=200)
    table = Table(EVIL)
    table.add_row(hold(EVIL))
    console.print(hold(EVIL))
    console.print(table)
    assert harmless(written.getvalue())
    assert written.getvalue().count("owned") == 3
    assert ":boom:" in written.getvalue()


def test_own_styles_are_rendered():
    written = io.StringIO()
    Console(file=written, force_terminal=True, color_system="standard").print(Text("a\x1bb", style="bold"))
    assert written.getvalue() == "\x1b[1ma\\x1bb\x1b[0m\n"


def test_echo(capsys):
    echo(f"wrote {EVIL}")
    echo(EVIL, err=True)
    out, err = capsys.readouterr()
    assert harmless(out)
    assert harmless(err)
    assert "owned" in out
    assert "owned" in err


@pytest.fixture
def evil(tmp_path):
    """Predictions whose classes and file have such names."""
    arrays = arrays_of("multiclass", samples=60, classes=3)
    names = np.array([EVIL.replace("\ud800", "") + str(k) for k in range(3)])
    path = tmp_path / "p\x1b[31m.npz"
    np.savez(path, **(arrays | {"class_names": names}))
    return path


def test_commands_on_predictions(evil, tmp_path):
    for arguments in (
        ("evaluate", evil),
        ("evaluate", evil, "--html", tmp_path / "page.html"),
        ("doctor", evil),
        ("calibrate", evil, "--out", tmp_path / "fit.json"),
        ("calibrate", evil, "--apply", tmp_path / "fit.json", "--out", tmp_path / "o\x1b.npz"),
    ):
        ran = run(*arguments)
        assert ran.exit_code == 0, ran.output
        assert harmless(ran.output)
    assert harmless((tmp_path / "page.html").read_text())


def test_json_escapes_by_itself(evil):
    rows = json.loads(run("evaluate", evil, "--json").stdout)["per_class"]
    assert rows[0]["name"].startswith("\x1b]0;owned")


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "gone\x1b[31m.npz"),
        ("evaluate", "x.npz", "--task", "\x1b[31m"),
        ("evaluate", "x.npz", "--seed", "\x1b[31m"),
        ("evaluate", "a", "b\x1b[31m"),
        ("\x1b[31m",),
        ("train", "--data", "\x1b[31m"),
        ("train", "--data", "digits-lt", "--loss", "\x1b[31m"),
        ("losses", "\x1b[31m"),
        ("report", "\x1b[31m"),
    ],
)
def test_errors(arguments):
    ran = run(*arguments)
    assert ran.exit_code == 2
    assert harmless(ran.output)


def test_columns_of_tables(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("logit_\x1b[31mcat,logit_dog,target\n1,2,\x1b[2Jcow\n")
    ran = run("evaluate", path)
    assert ran.exit_code == 2
    assert harmless(ran.output)
    assert "\\x1b[2Jcow" in ran.output
