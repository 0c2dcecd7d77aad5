"""The README is short, its figure, badges, table and numbers are those of the records, and its output is real."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from docs import recorded as readme
from docs.charts import SCHEMES, Forest, forest_plot
from equipoise.cli.comparison_table import print_comparison
from equipoise.comparison.verdict import MetricDifference
from experiments.record import table
from tests.golden.test_golden import COMPARED
from tests.pages import ROOT, blocks, links, text_of

README = ROOT / "README.md"
TEXT = text_of(README)
PLAIN = re.sub(r"\s+", " ", TEXT)
SVG = "{http://www.w3.org/2000/svg}"


def shown_after(sentence):
    """Lines of the indented block below a sentence, without the marks of omissions."""
    block = TEXT.partition(sentence)[2].partition("\n\n")[2].partition("\n\n")[0]
    lines = [line.strip() for line in block.splitlines()]
    assert len(lines) > 3, sentence
    return [line for line in lines if line != "..."]


def lines_in_order(lines, text):
    """Whether each line, up to the width of its gaps, follows the one before it in the text."""
    place = 0
    for line in lines:
        match = re.compile(r"\s+".join(map(re.escape, line.split()))).search(text, place)
        assert match, line
        place = match.end()


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120


def test_measurements_are_the_recorded_ones():
    assert f"<!-- measured -->\n{readme.measured()}\n<!-- end -->" in TEXT, "run python -m docs.recorded"


@pytest.mark.parametrize("claim", readme.claims())
def test_numbers_in_sentences_are_the_recorded_ones(claim):
    assert claim in PLAIN


def test_figures_are_up_to_date():
    for name, svg in readme.figures().items():
        assert (readme.IMAGES / name).read_text(encoding="utf-8") == svg, "run python -m docs.recorded"
        assert f'"docs/images/{name}"' in TEXT


def test_the_figure_has_every_difference_and_its_interval():
    drawn = readme.figures()["rare-classes-light.svg"]
    for name, metric in (("cifar10_lt100", "medium"), ("digits_lt", "few")):
        for one in readme.recorded(f"experiments/results/{name}.json")["verdict"]["differences"]:
            if one["metric"] == metric:
                mean, low, high = (f"{100 * one[key]:.1f}".replace("-", "−") for key in ("mean", "low", "high"))
                assert f"{mean} ({low} to {high})</text>" in drawn


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_difference_is_drawn_where_it_is(scheme):
    rows = [
        MetricDifference("a", "accuracy", mean, low, high, 0.01, 0.01, mean > 0, 3, None, None)
        for mean, low, high in ((0.10, 0.05, 0.15), (-0.05, -0.10, 0.0))
    ]
    drawn = ET.fromstring(forest_plot("title", [Forest("group", rows)], scheme))
    first, second = (float(circle.get("cx")) for circle in drawn.iter(f"{SVG}circle"))
    paths = [path.get("d") for path in drawn.iter(f"{SVG}path") if path.get("stroke-width") == "2"]
    lines = [re.findall(r"[\d.]+", path) for path in paths]
    (a, _, b, _), (c, _, d, _) = ([float(end) for end in line] for line in lines)
    unit = (first - second) / 15  # points
    assert (b - a, d - c) == (pytest.approx(10 * unit, abs=0.2), pytest.approx(10 * unit, abs=0.2))
    assert a - c == pytest.approx(15 * unit, abs=0.2)
    assert first == pytest.approx((a + b) / 2, abs=0.1)
    filled = [circle.get("fill") for circle in drawn.iter(f"{SVG}circle")]
    assert filled == [SCHEMES[scheme]["better"], SCHEMES[scheme]["paper"]]


def test_badges_say_what_the_project_says():
    for name, (label, value) in readme.BADGES.items():
        path = readme.IMAGES / "badges" / f"{name}.svg"
        assert path.read_text(encoding="utf-8") == readme.badge(label, value), "run python -m docs.recorded"
        assert path.relative_to(ROOT).as_posix() in links(README)
        assert value.removeprefix("≥ ") in TEXT.partition("<picture>")[0]


def test_the_comparison_is_the_recorded_one():
    printed = io.StringIO()
    print_comparison(readme.verdict_of("digits_lt"), Console(file=printed, width=80, highlight=False, emoji=False))
    lines_in_order(shown_after("ends with a table"), printed.getvalue())


def test_the_command_is_the_recorded_one():
    spec = readme.recorded("experiments/results/digits_lt.json")["spec"]
    command = re.sub(r"\\\n\s*", "", TEXT.partition("## Compare losses")[2]).split("\n\n")[1].strip()
    losses = " ".join(spec["losses"])
    expected = f"equipoise compare --data digits-lt --model mlp --seeds {len(spec['seeds'])} --losses '{losses}'"
    assert command == expected
    assert (spec["data"], spec["model"]) == ("digits-lt", "mlp")
    makefile = re.sub(r"\\\n\s*", "", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert f"$(BIN)/{expected}\n" in makefile


def test_the_table_of_the_comparison_can_be_printed_from_the_record():
    assert "| balanced-softmax | **89.15 ± 1.42** ▲ |" in table(readme.recorded("experiments/results/digits_lt.json"))


@pytest.mark.slow
def test_saved_predictions_give_the_output_shown(tmp_path):
    (code,) = (block.code for block in blocks(README) if "preds.npz" in block.code)
    command = [sys.executable, "-m", "equipoise"]

    def run(*arguments):
        ran = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=True)
        return ran.stdout

    run(sys.executable, "-c", code)
    lines_in_order(shown_after("`equipoise evaluate"), run(*command, "evaluate", "preds.npz", "--bootstrap", "1000"))
    advice = re.sub(r"\s+", " ", run(*command, "doctor", "preds.npz"))
    assert re.search(r"falls from 0\.7630 to 0\.3371 with --method vector", advice)
    assert "lowers the NLL to 0.3371 on held-out samples" in PLAIN


def test_the_page_on_other_libraries_counts_the_golden_cases():
    page = text_of(ROOT / "docs" / "other-libraries.md")
    assert f"[{sum(COMPARED.values())} cases](../tests/golden/INDEX.md)" in page
