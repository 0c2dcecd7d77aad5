"""``docs/architecture.md``: its figures are those of the code, and the files that it names exist."""

from __future__ import annotations

import re

import pytest

from docs.architecture_figures import FIGURES, IMAGES, SOURCE, Box, layers, reduced, svg
from tests.pages import ROOT

PAGE = ROOT / "docs" / "architecture.md"


def test_reduction_keeps_only_edges_that_no_longer_path_implies():
    graph = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": {"a"}}
    assert reduced(graph) == {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"a"}}


def test_a_layer_is_the_length_of_the_longest_path():
    assert layers({"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": set()}) == {"a": 0, "b": 1, "c": 2, "d": 0}


def test_arrows_run_sideways_in_a_row_and_down_between_rows():
    boxes = {"a": Box("a", (), 0, 0), "b": Box("b", (), 1, 0), "c": Box("c", ("c.py",), 0, 1)}
    drawing = svg(boxes, [("a", "b"), ("a", "c")], "three boxes")
    (x, y, width, height), right, below = (
        [int(number) for number in numbers]
        for numbers in re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', drawing)
    )
    sideways = re.search(r'"M(\d+) (\d+)H(\d+)"', drawing)
    down = re.search(r'"M(\d+) (\d+)C.* (\d+) (\d+)"', drawing)
    assert sideways is not None
    assert down is not None
    assert [int(number) for number in sideways.groups()] == pytest.approx([x + width, y + height / 2, right[0]], abs=1)
    ends = [x + width / 2, y + height, below[0] + below[2] / 2, below[1]]
    assert [int(number) for number in down.groups()] == pytest.approx(ends, abs=1)


@pytest.mark.parametrize("name", FIGURES)
def test_a_committed_figure_is_up_to_date(name):
    committed = (IMAGES / name).read_text(encoding="utf-8")
    assert committed == FIGURES[name](), "run python -m docs.architecture_figures"


@pytest.mark.parametrize("name", FIGURES)
def test_files_in_figures_exist(name):
    for path in re.findall(r'class="file">([\w/.]+\.py|[\w/]+/)<', (IMAGES / name).read_text(encoding="utf-8")):
        assert (SOURCE / path).exists(), path


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_shows_every_figure(name):
    assert f"(images/{name})" in PAGE.read_text(encoding="utf-8")
