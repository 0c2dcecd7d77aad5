"""Wrong usage of a command gives one plain line with a hint, and exit status 2."""

import re

import pytest
from typer.testing import CliRunner

from equipoise.cli.app import COMMANDS, app

WRONG = {
    "compare": [
        "compare --jobs 0 --data digits-lt",
        "compare --seeds",
        "compare",
        "compare --data digits-lt --lr fast",
    ],
    "report": ["report", "report nowhere", "report nowhere --metrics ece --out", "report a b"],
    "train": [
        "train --data digits-lt --image-size abc",
        "train --data digits-lt --epochs x",
        "train --data nowhere",
        "train --epochz 3",
    ],
    "evaluate": ["evaluate", "evaluate x.npz --bins 0", "evaluate x.npz --seed abc", "evaluate nowhere.npz"],
    "calibrate": ["calibrate x.npz", "calibrate x.npz --out y.json --split 7", "calibrate nowhere.npz --out y.json"],
    "export": ["export", "export nowhere", "export a b", "export --no"],
    "doctor": [
        "doctor",
        "doctor --counts",
        "doctor --counts 5",
        "doctor --counts many",
        "doctor --task all --counts 5,2",
    ],
    "losses": ["losses focl", "losses focal asl", "losses --plot x.png", "losses focal --plot x.gif", "losses --jsn"],
}


@pytest.mark.parametrize("line", [*(line for lines in WRONG.values() for line in lines), "evalute", "--nothing"])
def test_wrong_usage_is_one_line_with_a_hint(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, line.split(), env={"COLUMNS": "60", "FORCE_COLOR": "1"})
    assert ran.exit_code == 2
    assert re.fullmatch(r"error: [^\n│╭╮╰╯─\x1b]+\n", ran.stderr), ran.stderr
    assert ran.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_every_command_has_a_case():
    assert WRONG.keys() == COMMANDS.keys()


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("evaluate x.npz --bins 0", "see equipoise evaluate --help"),
        ("evaluate", "missing argument 'FILE'; see equipoise evaluate --help"),
        ("losses focl", "did you mean 'focal'?"),
        ("evalute", "Did you mean 'evaluate'?"),
        (
            "doctor --task all --counts 5,2",
            "--task must be one of 'multiclass', 'multilabel', 'segmentation', got 'all'",
        ),
    ],
)
def test_hints(line, hint):
    assert hint in CliRunner().invoke(app, line.split()).stderr


def test_several_setting_errors_have_one_line_each():
    ran = CliRunner().invoke(app, ["train", "--data", "digits-lt", "--epochs", "x", "--lr", "y"])
    first, *others = ran.stderr.splitlines()
    assert first == "error: train: 2 mistakes in the settings:"
    assert [line.split(":")[0].strip() for line in others] == ["epochs", "lr"]


def test_without_a_command_there_is_help():
    ran = CliRunner().invoke(app, [])
    assert ran.exit_code == 2
    assert "error" not in ran.stderr
    assert "Usage: equipoise" in ran.output


def test_errors_are_raised_without_standalone_mode():
    ran = CliRunner().invoke(app, ["evalute"], standalone_mode=False)
    assert "No such command" in str(ran.exception)
