"""The ``equipoise losses`` command."""

import inspect
import json
import re
import sys
import xml.etree.ElementTree as ET

import matplotlib.image
import pytest
from typer.testing import CliRunner

import equipoise
from equipoise.catalogue import CATALOGUE, find
from equipoise.cli import main
from equipoise.cli.app import app
from equipoise.cli.describe import signature_of


def run(*arguments: str, columns: int = 80):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns), "TERM": "dumb"})


def flat(text: str) -> str:
    """Text without the line breaks of a terminal."""
    return " ".join(text.split())


def test_version():
    ran = run("--version")
    assert ran.exit_code == 0
    assert ran.stdout.strip() == f"equipoise {equipoise.__version__}"


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_shows_every_loss_within_the_width(columns):
    ran = run("losses", columns=columns)
    assert ran.exit_code == 0
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in ran.stdout  # nothing cut
    starts = [index for index, line in enumerate(lines) if line.startswith(("Softmax link", "Sigmoid link", "Regions"))]
    assert len(starts) == 3
    for entry in CATALOGUE:
        (row,) = (index for index, line in enumerate(lines) if line.startswith(f" {entry.name} "))
        group = sum(row > start for start in starts)
        assert ("softmax", "sigmoid", "region")[group - 1] == entry.link
        assert entry.formula.split(",  ")[0][:20] in lines[row]


def test_wide_tables_put_formula_paper_and_advice_side_by_side():
    ran = run("losses", columns=120)
    (row,) = (line for line in ran.stdout.splitlines() if line.startswith(" FocalLoss"))
    assert re.search(r"−\(1−p_y\)\^γ log p_y +Lin et al\. 2017, +Use it when", row)


def test_json_holds_every_loss():
    ran = run("losses", "--json")
    records = json.loads(ran.stdout)
    assert [record["name"] for record in records] == [entry.name for entry in CATALOGUE]
    for record, entry in zip(records, CATALOGUE, strict=True):
        assert record["formula"] == entry.formula
        assert record["source"] == entry.source
        assert record["use"] == entry.use
        assert record["link"] == entry.link
        assert record["summary"]
        assert record["signature"].startswith(f"{entry.name}(")


def test_json_of_one_loss():
    record = json.loads(run("losses", "cfl", "--json").stdout)
    assert record["name"] == "CyclicalFocalLoss"
    assert "cfl" in record["short_names"]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_one_loss_in_full(entry, columns):
    ran = run("losses", entry.name, columns=columns)
    assert ran.exit_code == 0
    assert max(map(len, ran.stdout.splitlines())) <= columns
    shown = flat(ran.stdout)
    for text in (entry.formula, entry.source, entry.use, f"{entry.name}{signature_of(entry)}"):
        assert flat(text) in shown
    assert not re.search(r"\\|:math:|``", ran.stdout)


def test_one_loss_lists_all_its_names():
    assert "names in commands RecallLoss, recall, recall-ce" in flat(run("losses", "recall").stdout)


ELSEWHERE = "see the top of the module"


def test_one_loss_explains_its_arguments_and_the_common_ones():
    shown = flat(run("losses", "asl", columns=120).stdout)
    assert "margin negatives with a probability below this value are ignored; the initial value" in shown
    assert "ignore_value targets with this value are unknown" in shown
    assert inspect.getdoc(equipoise.AsymmetricLoss).count(ELSEWHERE) == 1
    assert ELSEWHERE not in shown


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_the_signature_shows_what_the_loss_does_by_default(entry):
    parameters = signature_of(entry).parameters
    needed = {"epochs": 10, "num_classes": 3, "counts": [3, 2, 1], "num_samples": 100}
    given = {name: needed[name] for name, parameter in parameters.items() if parameter.default is parameter.empty}
    written_out = {name: given.get(name, parameter.default) for name, parameter in parameters.items()}
    loss_class = getattr(equipoise, entry.name)
    assert repr(loss_class(**written_out)) == repr(loss_class(**given))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_plot_writes_the_format_that_the_suffix_says(tmp_path, suffix):
    path = tmp_path / f"focal{suffix}"
    ran = run("losses", "focal", "--plot", str(path))
    assert ran.exit_code == 0
    assert "FocalLoss" in ran.stdout
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()]
    assert path.read_bytes().startswith(start)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_loss_can_be_drawn(tmp_path, entry):
    path = tmp_path / "figure.png"
    assert run("losses", entry.name, "--plot", str(path)).exit_code == 0
    pixels = matplotlib.image.imread(path)
    height, width, _ = pixels.shape
    assert height >= 600
    assert width >= 1200
    ink = (pixels[..., :3] < 0.9).any(-1)
    for third in range(3):  # curves in every part of the picture
        assert ink[:, third * width // 3 : (third + 1) * width // 3].mean() > 0.005


def test_svg_is_valid_and_reproducible(tmp_path):
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in (first, second):
        run("losses", "asl", "--plot", str(path))
    assert first.read_bytes() == second.read_bytes()
    assert len(list(ET.parse(first).iter("{http://www.w3.org/2000/svg}path"))) > 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["losses", "focall"], "got 'focall'; did you mean 'focal'?"),
        (["losses", "--plot", "x.png"], "needs a NAME"),
        (["losses", "focal", "--plot", "x.gif"], "must end in .png, .svg or .pdf, got 'x.gif'"),
        (["losses", "focal", "--plot", "x"], "must end in .png, .svg or .pdf, got 'x'"),
        (["losses", "focal", "--plot", "no/such/folder/x.png"], "the folder 'no/such/folder' must exist"),
        (["losses", "focal", "--plot", "x.png", "--json"], "cannot be combined with --json"),
        (["losses", "focal", "asl"], "unexpected extra argument"),
        (["losses", "--no-such-option"], "no such option"),
        (["no-such-command"], "no such command"),
    ],
)
def test_usage_errors_say_what_is_wrong_and_exit_with_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments, columns=200)
    assert ran.exit_code == 2
    assert message in flat(ran.stderr)
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path):
    folder = tmp_path / "folder.png"
    folder.mkdir()
    ran = run("losses", "focal", "--plot", str(folder), columns=200)
    assert ran.exit_code == 2
    assert "there is a folder of that name" in ran.stderr


@pytest.mark.parametrize(
    ("package", "module"), [("typer", "cli.app"), ("rich", "cli.listing"), ("matplotlib", "plotting.panels")]
)
def test_missing_package_gives_installation_advice(package, module, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["equipoise", "losses", "focal", "--plot", str(tmp_path / "x.png")])
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("cli.app", "cli.losses", module):
        monkeypatch.delitem(sys.modules, f"equipoise.{name}", raising=False)
    with pytest.raises(SystemExit, match=rf"needs {package}.*pip install '\.\[cli\]' in a clone.*'equipoise\[cli\]'"):
        main()


def test_main_runs_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["equipoise", "losses", "brier"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None)
    assert find("brier").formula in capsys.readouterr().out
