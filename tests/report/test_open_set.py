"""The open set on the page of a comparison."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from equipoise._formatting import shown
from equipoise.comparison.folder import ComparisonFolder
from equipoise.report.comparison import comparison_page
from equipoise.report.open_set import compared_open_sets_section
from equipoise.report.runs import compared_losses
from tests.report.browser import measure, visit
from tests.report.comparisons import read_verdict, write_comparison
from tests.report.reading import Reader, labels

FIGURES = {
    "unknown rejected over known rejected, in percent of the samples": 1,
    "F-measure over known rejected, in percent of the samples": 1,
    "F-measure over the threshold below which a sample is rejected": 1,
    "Histograms of the confidence of known and of unknown samples": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("compared") / "open", unknown=40)


@pytest.fixture(scope="module")
def page(folder):
    place = folder.path / "report.html"
    place.write_text(comparison_page(folder, read_verdict(folder)), encoding="utf-8")
    return place


def section_of(folder):
    losses = compared_losses(folder, read_verdict(folder))
    return losses, compared_open_sets_section(losses)


def test_the_page_has_the_section_with_its_figures(page):
    text = page.read_text(encoding="utf-8")
    assert '<h2 id="open-set">Open set</h2>' in text
    assert "60 test samples and 40 of unknown classes" in text
    descriptions = labels(Reader(text))
    assert {words: descriptions.count(words) for words in FIGURES} == FIGURES
    for title in ("unknown rejected", "F-measure over known rejected", "F-measure over threshold"):
        assert title in Reader(text).words, title
    heads = re.findall(r"<thead>.*?</thead>", text, re.DOTALL)[1]
    for words in ("open set", "F-measure", "AUROC", "unknown rejected", "known rejected", "accuracy with rejection"):
        assert words in Reader(heads).words, words


def test_numbers_are_means_over_the_seeds(folder):
    losses, section = section_of(folder)
    table = section.tables[0]
    assert sum(count for _, count in table.groups) == len(table.head)
    names = [name for name, count in table.groups for _ in range(count)]
    for loss, row in zip(losses, table.rows, strict=True):
        opens = [run.results.open for run in loss.runs]
        assert row[0] == loss.name
        for way, (read, place) in {
            "closed": (lambda result: result.closed, names.index("few")),
            "open": (lambda result: result.thresholds[1].metrics, names.index("few") + 1),
        }.items():
            values = [read(result)["few"] for result in opens]
            assert table.head[place].text == way
            assert row[place].text == shown("", np.mean(values))
            assert row[place].below == f"± {shown('', np.std(values, ddof=1))}"
        areas = [result.auroc["max_logit"] for result in opens]
        assert row[names.index("AUROC") + 1].text == shown("", np.mean(areas))
        assert row[1].value == pytest.approx(np.mean([result.thresholds[1].threshold for result in opens]))


def test_without_an_open_set_there_is_no_section(tmp_path):
    _, section = section_of(write_comparison(tmp_path / "closed", seeds=1))
    assert section is None


def test_one_seed_has_no_deviation_and_probabilities_have_one_score(folder, tmp_path):
    shutil.copytree(folder.path, tmp_path / "copy")
    copy = ComparisonFolder(tmp_path / "copy")
    for run in copy.runs:
        file = run.folder.path / "results.json"
        results = json.loads(file.read_text())
        results["open"]["auroc"] = {"max_probability": results["open"]["auroc"]["max_probability"]}
        file.write_text(json.dumps(results))
        if run.seed:
            shutil.rmtree(run.folder.path)
    verdict = read_verdict(copy)
    rows = tuple(replace(row, seeds=(0,)) for row in verdict.rows)
    section = compared_open_sets_section(compared_losses(copy, replace(verdict, rows=rows)))
    assert section.tables[0].groups[-1] == ("AUROC", 1)
    assert {cell.below for row in section.tables[0].rows for cell in row[1:]} == {""}


def test_neither_torch_nor_lightning_is_needed(folder):
    program = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from equipoise.comparison.folder import ComparisonFolder\n"
        "from equipoise.comparison.judge import judge\n"
        "from equipoise.report.comparison import comparison_page\n"
        "folder = ComparisonFolder(Path(sys.argv[1]))\n"
        "print('Open set' in comparison_page(folder, judge(folder, draws=20)))\n"
        "print({'torch', 'pytorch_lightning', 'torchmetrics', 'sklearn'} & set(sys.modules))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, folder.path], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["True", "set()"]


def test_in_a_browser_no_error_no_request_all_figures(page, tmp_path):
    seen = visit(page, tmp_path)
    assert seen.console == []
    assert seen.requests == []
    assert labels(Reader(seen.dom)) == labels(Reader(page.read_text(encoding="utf-8")))


def test_in_a_browser_the_tables_need_no_scrolling(page, tmp_path):
    seen = measure(page, tmp_path, 1200, "--window-size=1300,900")
    assert len(seen["tables"]) >= 3
    for room, needed in seen["tables"][:3]:  # the results, those of the open set, and its section
        assert needed <= room
