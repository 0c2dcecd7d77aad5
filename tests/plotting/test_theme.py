"""Colours and files of figures."""

import re
import xml.etree.ElementTree as ET

import matplotlib.image
import numpy as np
import pytest

from equipoise.plotting.rendering import adaptive_svg, inline_svg, save, svg_file
from equipoise.plotting.theme import DARK, INK, LIGHT, SERIES, SHADES, css, css_variables, mixed, panel, strokes, theme


def figure():
    with theme():
        drawn, axes = panel(3.0, 2.0)
        axes.plot([0, 1], color=SERIES[1])
        axes.plot([1, 0], color=SHADES[3])
        axes.set_title("a <b> & $c$")
    return drawn


def test_colours_are_distinct_and_have_a_dark_twin():
    assert len(set(LIGHT.values())) == len(LIGHT)
    assert DARK.keys() == LIGHT.keys()
    for name, colour in LIGHT.items():
        assert f"--{name}:{colour}" in css_variables()
        assert css(colour) == f"var(--{name})"


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [("#ff0000", "#0000ff", "#8c53a2"), ("#000000", "#ffffff", "#636363"), ("#123456", "#123456", "#123456")],
)
def test_colours_mix_as_in_css(start, end, expected):
    """Expected: ``color-mix(in oklab, START, END)`` in Chromium."""
    assert mixed(start, end, 0.5) == expected


def test_shades_go_from_the_first_to_the_fifth_colour():
    assert (SHADES[0], SHADES[6], SHADES[12]) == (SERIES[0], SERIES[2], SERIES[4])
    assert css(SHADES[3]) == "color-mix(in oklab, var(--series-1), var(--series-3) 50%)"


def test_strokes_are_distinct():
    assert len(set(strokes(32))) == 32


def test_svg_in_a_page_has_variables_and_ids_of_its_own():
    first, second = inline_svg(figure(), "one & <two>"), inline_svg(figure(), "three")
    assert not re.search(r"#[0-9a-f]{6}\b", first)
    assert {"var(--series-2)", "var(--ink)", css(SHADES[3])} <= set(re.findall(r"(?:var|color-mix)\([^;\"]*\)", first))
    ids = [set(re.findall(r'\bid="([^"]*)"', svg)) for svg in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    root = ET.fromstring(first)
    assert root.get("aria-label") == "one & <two>"
    assert "a <b> & $c$" in {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}


def test_an_svg_file_has_both_palettes(tmp_path):
    text = svg_file(figure(), "a figure")
    root = ET.fromstring(text)
    assert (root.get("width"), root.get("height")) == ("300", "200")
    assert css_variables() in text
    with theme():
        figure().savefig(tmp_path / "a.svg", metadata={"Date": None, "Creator": None})
    assert adaptive_svg((tmp_path / "a.svg").read_text("utf-8"), "a figure") == text


def test_files_have_the_colours_of_the_light_page(tmp_path):
    save(figure(), tmp_path / "a.png")
    pixels = {tuple(row) for row in np.round(255 * matplotlib.image.imread(tmp_path / "a.png")[..., :3]).reshape(-1, 3)}
    for colour in (SERIES[1], SHADES[3], "#ffffff"):
        assert tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5)) in pixels
    save(figure(), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert INK in text
    assert "var(" not in text


@pytest.mark.parametrize("name", ["a.gif", "a"])
def test_other_formats_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg or \.pdf, got 'a"):
        save(figure(), tmp_path / name)
