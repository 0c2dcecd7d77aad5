"""docs/reproducing.md lists every equation, table and figure of the four papers, and what it names exists."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
import torch

import equipoise
from equipoise import losses
from equipoise.cli.app import COMMANDS
from equipoise.metric_registry import METRICS
from equipoise.models import MODELS
from equipoise.train.methods import METHODS
from equipoise.train.rows import expand_rows, read_row
from experiments import linear_model
from tests.pages import ROOT

PAGE = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Equations, tables and figures\n")[2].partition("\n## ")[0]
NUMBERED = {
    "Tian et al. 2021": {"equation": 9, "table": 6, "figure": 5},
    "Mukhoti et al. 2020": {"equation": 13, "table": 13, "figure": 10},
    "Smith 2022": {"equation": 10, "table": 5, "figure": 4},
    "Ridnik et al. 2021": {"equation": 11, "table": 13, "figure": 9},
}
"""How many of each the papers have, with their appendices."""
ARGUED = (losses.AsymmetricSoftmaxLoss, losses.AsymmetricLoss)
PLACES = ("losses", "metrics", "calibration", "heads", "data", "weights", "schedules")


def rows(paper):
    """Item, what makes it, and state."""
    table = SECTION.partition(f"\n{paper}:\n")[2].partition(":\n")[0]
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return found[2:]


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_item_is_listed_once(paper):
    listed = []
    for item, _, _ in rows(paper):
        kind, numbers = re.fullmatch(r"(equation|table|figure)s? ([\d, ]+)", item).groups()
        listed += [(kind, int(number)) for number in numbers.split(",")]
    expected = [(kind, number) for kind, most in NUMBERED[paper].items() for number in range(1, most + 1)]
    assert sorted(listed) == sorted(expected)


def row_exists(text):
    """Whether a text is a loss or a method with its candidates."""
    try:
        return all(map(read_row, expand_rows(text)))
    except ValueError:
        return False


def command_exists(words):
    """Whether the command has the options, and each name of --metrics is a metric."""
    command, *rest = words
    if command not in COMMANDS:
        return False
    parameters = inspect.signature(getattr(importlib.import_module(f"equipoise.cli.{command}"), command)).parameters
    known = {f"--{parameter.replace('_', '-')}" for parameter in parameters}
    metrics = rest[rest.index("--metrics") + 1].split(",") if "--metrics" in rest else []
    return {word for word in rest if word.startswith("--")} <= known and all(
        name.removesuffix("_after") in METRICS for name in metrics
    )


def exists(name):
    """A file, a model, a method, an argument of a loss, a command, a row of a comparison, or a public name."""
    if name.startswith("equipoise "):
        return command_exists(name.split()[1:])
    if "(" in name:
        return row_exists(name)
    if "/" in name:
        return (ROOT / name).is_file()
    argument = re.fullmatch(r'(\w+)=("?)([\w.-]+)\2', name)
    if argument:
        return any(argument[1] in inspect.signature(loss).parameters for loss in ARGUED)
    places = [equipoise, *(importlib.import_module(f"equipoise.{place}") for place in PLACES)]
    return name in MODELS or name in METHODS or any(name in place.__all__ for place in places)


@pytest.mark.parametrize("paper", NUMBERED)
def test_what_the_tables_name_exists(paper):
    for item, here, state in rows(paper):
        names = re.findall(r"`([^`]+)`", here)
        lost = [name for name in names if not exists(name)]
        assert not lost, item
        assert state in ("tested", "recorded", "not run", "missing"), item
        assert names or state in ("missing", "not run"), item
        assert state != "recorded" or any(name.startswith(("experiments/", "docs/images/")) for name in names), item


def test_a_name_that_does_not_exist_is_noticed():
    assert not exists("NoSuchLoss")
    assert not exists("experiments/specs/none.yaml")
    assert not exists("equipoise report --metrics mcee")
    assert not exists("equipoise report --metric mce")
    assert not exists("equipoise measure")
    assert not exists("recall(alpha=[0.1, 0.2])")
    assert exists("recall(momentum=[0.1, 0.2])")
    assert exists("wideresnet26-10")
    assert exists("sdn")


def test_the_linear_model_of_appendix_b(tmp_path, capsys):
    """Same direction, larger weights and more confident mistakes with cross-entropy; the numbers of the page."""
    linear_model.main([str(tmp_path)])
    shown = capsys.readouterr().out
    numbers = [float(number) for number in re.findall(r"\d\.\d+", shown)]
    (norm, confidence), (focal_norm, focal_confidence) = numbers[:2], numbers[2:]
    text = " ".join(PAGE.split())
    assert f"with cross-entropy ({norm:.2f} against {focal_norm:.2f})" in text
    assert f"test points ({confidence:.2f} against {focal_confidence:.2f})" in text
    assert norm > 1.5 * focal_norm
    data, test = linear_model.points(4_000, seed=1), linear_model.points(1_000, seed=2)
    assert 0.08 < (data.y != data.true).double().mean() < 0.12
    plain, focal = (linear_model.train(loss, data) for loss in linear_model.LOSSES.values())
    assert torch.cosine_similarity(plain.weight, focal.weight, dim=0) > 0.9999
    assert f"{100 * (plain.mistakes(test) > 0.9).double().mean():.0f} % of these exceed 0.9" in text
    assert (plain.logits[-1] > focal.logits[-1]).item()
    assert all((tmp_path / name).stat().st_size > 5_000 for name in ("norms.svg", "mistakes.svg"))


def test_points_lie_around_four_corners():
    data = linear_model.points(40_000, seed=3)
    for corner in range(4):
        expected = torch.tensor([[-2, -2], [-2, 2], [2, -2], [2, 2]], dtype=torch.float64)[corner]
        torch.testing.assert_close(data.x[corner::4].mean(0), expected, atol=0.05, rtol=0)
    assert data.true.mean() == 0.5
