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


def test_an_arrow_runs_from_the_right_side_of_a_box_to_the_left_side_of_the_next():
    boxes = {"a": Box("a", (), 0, 0), "b": Box("b", ("b.py",), 1, 0)}
    path = re.search(r'<path d="M(\d+) \d+C.* (\d+) \d+" marker-end', svg(boxes, [("a", "b")], "two boxes"))
    rights = [int(x) + int(w) for x, w in re.findall(r'<rect x="(\d+)" y="\d+" width="(\d+)"', svg(boxes, [], ""))]
    lefts = [int(x) for x in re.findall(r'<rect x="(\d+)"', svg(boxes, [], ""))]
    assert path is not None
    assert int(path[1]) == pytest.approx(rights[0], abs=1)
    assert int(path[2]) == pytest.approx(lefts[1], abs=1)


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
