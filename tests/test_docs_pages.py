"""Pages of the documentation that quote records, the catalogue or the code say what these say."""

from __future__ import annotations

import re
import subprocess
import sys
from statistics import fmean, stdev

import pytest

from docs import recorded
from docs.loss_groups import GROUPS, role_of
from docs.loss_pages import CHEAT_SHEET, cheat_sheet
from equipoise.catalogue import CATALOGUE, find
from equipoise.cli.describe import signature_of
from equipoise.comparison.statistics import PRIOR_DF
from tests.pages import ROOT, blocks, text_of

DOCS = ROOT / "docs"


def plain(name):
    """A page on one line."""
    return re.sub(r"\s+", " ", text_of(DOCS / f"{name}.md"))


def difference(name, metric, loss):
    (one,) = (one for one in recorded.verdict_of(name).differences_in(metric) if one.loss == loss)
    return one


# --------------------------------------------------------------------------------------------------------- cheat sheet


def test_the_cheat_sheet_is_that_of_the_catalogue():
    assert text_of(CHEAT_SHEET) == cheat_sheet(), "run python -m docs.loss_pages"


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_a_line_of_the_cheat_sheet_names_what_exists(entry):
    lines = [line for line in text_of(CHEAT_SHEET).splitlines() if f"(losses/{entry.name}.md)" in line]
    assert len(lines) == 1
    name, when, command, arguments = (cell.strip() for cell in lines[0].strip("|").split(" | "))
    assert name.startswith("*") == bool(role_of(entry.name))
    assert find(command.strip("`")) is entry
    assert when
    assert not when.endswith((",", ";", "."))
    for argument in re.findall(r"`([^`]+)`", arguments):
        key, _, default = argument.partition("=")
        known = signature_of(entry).parameters[key].default
        assert repr(known) == default or not default


def test_the_cheat_sheet_fits_a_page():
    assert len(text_of(CHEAT_SHEET).splitlines()) <= 70
    assert sum(len(group.losses) for group in GROUPS) == len(CATALOGUE)


# ------------------------------------------------------------------------------------------------------------- report


@pytest.mark.parametrize(("name", "text"), recorded.report_parts().items())
def test_the_page_on_reports_quotes_the_recorded_one(name, text):
    assert f"<!-- {name} -->\n{text}\n<!-- end -->" in text_of(recorded.REPORT), "run python -m docs.recorded"


def test_the_page_on_reports_explains_the_recorded_intervals():
    page = plain("report")
    recall, focal = (difference("digits_lt", "mean_class_accuracy", loss) for loss in ("recall", "focal"))
    assert f"recall loss may be up to {100 * recall.high:.1f} points better" in page
    assert f"may be {-100 * focal.low:.1f} points worse or {100 * focal.high:.1f} better" in page
    assert recall.low > 0
    assert not recall.significant
    assert f"about {recall.seeds_needed} seeds for recall loss" in page
    others = [
        one for one in recorded.verdict_of("digits_lt").differences_in("mean_class_accuracy") if one.p_adjusted > 0.05
    ]
    assert {one.limit for one in others if one.loss != "recall"} == {"samples"}


def test_the_gallery_has_every_report():
    linked = set(re.findall(r"experiments/reports/(\w+)\.html", text_of(DOCS / "gallery.md")))
    assert linked == {path.stem for path in (ROOT / "experiments" / "reports").glob("*.html")}


# ---------------------------------------------------------------------------------------------------------- statistics


def test_the_coverage_on_the_page_is_the_recorded_one():
    assert f"<!-- coverage -->\n{recorded.coverage()}\n<!-- end -->" in text_of(recorded.STATISTICS)
    settings = recorded.recorded("benchmarks/results/coverage.json")["settings"]
    assert f"{settings['comparisons']} comparisons of each kind and {settings['draws']} bootstrap samples" in plain(
        "statistics"
    )


def test_the_example_of_the_statistics_is_the_recorded_one():
    verdict, page = recorded.verdict_of("digits_lt"), plain("statistics")
    rows = {row.loss: row.metrics["mean_class_accuracy"].per_seed for row in verdict.rows}
    for name, loss in (("ce", "ce"), ("balanced_softmax", "balanced-softmax")):
        assert f"{name} = [{', '.join(f'{value:.4f}' for value in rows[loss])}]" in page
    differences = [a - b for a, b in zip(rows["balanced-softmax"], rows["ce"], strict=True)]
    margin = 2.776445 * stdev(differences) / 5**0.5  # Student's t with 4 degrees of freedom
    low, high = (f"{100 * (fmean(differences) + side * margin):.1f}" for side in (-1, 1))
    assert f"paired t-test, {low} to {high} points" in page
    whole = difference("digits_lt", "mean_class_accuracy", "balanced-softmax")
    low, high = (f"{100 * limit:.1f}" for limit in (whole.low, whole.high))
    noise = f"With the noise of the {verdict.test_samples} test samples and the other two estimates"
    assert f"{noise} it is {low} to {high}" in page
    p_values = sorted(one.p for one in verdict.differences_in("mean_class_accuracy"))
    assert f"holm([{', '.join(f'{p:.4f}' for p in p_values)}])" in page
    recall = difference("digits_lt", "mean_class_accuracy", "recall")
    assert f"its own interval, {100 * recall.low:.1f} to {100 * recall.high:.1f} points" in page


def test_the_degrees_of_freedom_of_the_prior_are_those_of_the_code():
    assert f"$({PRIOR_DF:.0f} s_0^2 + (S - 1) s^2) / (S + {PRIOR_DF - 1:.0f})$" in plain("statistics")


# ----------------------------------------------------------------------------------------------------------------- faq


@pytest.mark.parametrize(("name", "metric"), [("cifar10_lt100", "medium"), ("digits_lt", "few")])
def test_focal_loss_does_not_help_rare_classes_in_the_records(name, metric):
    one = difference(name, metric, "focal")
    assert one.mean < 0
    assert not one.significant
    assert "its difference on rare classes is negative and not significant" in plain("faq")


# ---------------------------------------------------------------------------------------------------------- Python API


@pytest.mark.slow
def test_the_comparison_in_python_runs(tmp_path):
    """As a program: its processes import it again."""
    (code,) = (block.code for block in blocks(DOCS / "python-api.md") if "CompareSpec" in block.code)
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "balanced-softmax mean_class_accuracy" in ran.stdout
    assert (tmp_path / "comparisons" / "digits" / "report.html").exists()
