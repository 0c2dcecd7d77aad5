"""The page of an evaluation: what is in it, and how it looks in a browser."""

import json
import re

import numpy as np
import pytest

from equipoise.evaluation import evaluate
from equipoise.plotting.theme import LIGHT
from equipoise.predictions import open_predictions
from equipoise.report.evaluation import evaluation_page
from tests.predictions.saved import arrays_of, save
from tests.report.browser import find_browser, measure, visit
from tests.report.reading import Reader, brightness, labels

ODD_NAMES = ["<b>x</b>", "<script>alert(1)</script>", "\"&'", "$a_b$", "[red]", "]]> </svg> -->"]
FIGURES = {
    "multiclass": ["all samples", "many", "medium", "few", "Histogram of the confidence", "accuracy"],
    "multilabel": [
        "all samples",
        "many",
        "medium",
        "few",
        "Histogram of the predicted probability",
        "average precision",
    ],
    "segmentation": ["all samples", "many", "medium", "few", "Histogram of the confidence", "IoU"],
}


def evaluated(folder, task="multiclass", *, bootstrap=10, **options):
    arrays = arrays_of(task, samples=80, **options)
    if options.get("classes", 6) == 6:
        arrays["class_names"] = np.array(ODD_NAMES)
    return evaluate(open_predictions(save(folder, "npz", arrays)), bootstrap=bootstrap)


@pytest.fixture(scope="module", params=FIGURES)
def page(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / "page.html"
    path.write_text(evaluation_page(evaluated(folder, request.param)), encoding="utf-8")
    return request.param, path


# Without a browser ----------------------------------------------------------------------------------------------------


def test_every_figure_is_there_and_described(page):
    task, path = page
    content = labels(Reader(path.read_text(encoding="utf-8")))
    assert len(content) == len(FIGURES[task])
    for words, label in zip(FIGURES[task], content, strict=True):
        assert words in label


def test_nothing_is_loaded_and_nothing_runs(page):
    text = page[1].read_text(encoding="utf-8")
    reader = Reader(text)
    assert not {"script", "iframe", "img", "object", "embed", "image", "b"} & {tag for tag, _ in reader.tags}
    for _, attributes in reader.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("#", "data:,"))
    assert not re.search(r"url\((?!#)|@import", text)


def test_names_are_text_in_table_and_figure(page):
    words = Reader(page[1].read_text(encoding="utf-8")).words
    for name in ODD_NAMES:
        assert words.count(name) >= 2, name  # a cell and a bar


def test_colours_of_figures_are_variables(page):
    text = page[1].read_text(encoding="utf-8")
    figures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert not re.search("|".join(LIGHT.values()), "".join(figures))
    assert "var(--series-1)" in text
    assert "var(--ink)" in text


def test_the_page_of_json_is_the_page_of_the_evaluation(tmp_path):
    evaluation = evaluated(tmp_path)
    twice = [evaluation_page(each) for each in (evaluation, json.loads(json.dumps(evaluation.to_json())))]
    first, second = (re.sub(r"f\d+-", "", text) for text in twice)  # names inside figures count on
    assert first == second


def test_numbers_of_the_page(tmp_path):
    evaluation = evaluated(tmp_path)
    words = Reader(evaluation_page(evaluation, command="equipoise evaluate <x>")).words
    low, high = evaluation.intervals["accuracy"]
    assert f"{100 * low:.2f} to {100 * high:.2f}" in words
    for value in (evaluation.calibration.before["nll"], evaluation.calibration.after["nll"]):
        assert f"{value:.4f}" in words
    for row in evaluation.groups:
        assert f"{100 * row.metrics['accuracy']:.2f}" in words
    assert "Made by: equipoise evaluate <x>" in words


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_calibration_errors_are_defined(tmp_path, task):
    page = evaluation_page(evaluate(open_predictions(save(tmp_path, "npz", arrays_of(task, samples=60)))))
    assert ("samples whose true class is in it" in page) == (task != "multilabel")
    assert ("judge classes by their classwise ECE" in page) == (task == "multiclass")
    assert ("Classwise ECE: gap between the probability of a class" in page) == (task == "multiclass")
    assert ("of all labels, pooled" in page) == (task == "multilabel")


def test_many_classes_are_folded_and_the_bars_are_those_at_either_end(tmp_path):
    evaluation = evaluated(tmp_path, classes=100)
    reader = Reader(evaluation_page(evaluation))
    assert "details" in [tag for tag, _ in reader.tags]
    assert "all 100 as a table" in reader.words
    shown = [row for row in evaluation.per_class if row.metrics["accuracy"] is not None]
    assert f"the 20 lowest and the 20 highest of {len(shown)}" in labels(reader)[-1]
    best = max(shown, key=lambda row: row.metrics["accuracy"])
    assert reader.words.count(best.name) == 2


def test_names_in_other_scripts_raise_no_warnings(tmp_path, recwarn):
    arrays = arrays_of("multiclass") | {"class_names": np.array(["日本", "العربية", "a\nb", "x" * 300, "", "😀"])}
    evaluation_page(evaluate(open_predictions(save(tmp_path, "npz", arrays))))
    assert not recwarn.list


@pytest.mark.parametrize("task", FIGURES)
def test_pages_of_little(tmp_path, task):
    """One sample, no temperature, no groups, classes without samples."""
    arrays = arrays_of(task, samples=1, counts=False)
    evaluation = evaluate(open_predictions(save(tmp_path, "npz", arrays)))
    text = evaluation_page(evaluation)
    assert "No temperature could be fitted" in text
    assert len(labels(Reader(text))) == 3


# In a browser ---------------------------------------------------------------------------------------------------------


def test_the_browser_tells_errors_and_requests(tmp_path):
    """What the next test asks for would be seen."""
    path = tmp_path / "bad.html"
    path.write_text('<script>nothing.there</script><img src="http://example.com/x.png">')
    seen = visit(path, tmp_path)
    assert any("nothing is not defined" in line for line in seen.console)
    assert seen.requests == ["http://example.com/x.png"]


def test_in_a_browser_no_error_no_request_all_figures(page, tmp_path):
    task, path = page
    seen = visit(path, tmp_path)
    assert seen.console == []
    assert seen.requests == []
    reader = Reader(seen.dom)
    assert len(labels(reader)) == len(FIGURES[task])
    assert not {"script", "b"} & {tag for tag, _ in reader.tags}
    for name in ODD_NAMES:
        assert reader.words.count(name) >= 2, name


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1200, True)])
def test_in_a_browser_it_fits_the_width_and_the_colours(page, tmp_path, width, dark):
    task, path = page
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    seen = measure(path, tmp_path, width, f"--window-size={width + 100},900", scheme)
    assert seen["width"] == width
    assert seen["needed"] <= width
    assert len(seen["figures"]) == len(FIGURES[task])
    for label, wide, high in seen["figures"]:
        assert 250 <= wide <= width, label
        assert high >= 90, label
    assert min(seen["firstCells"]) > 60  # names are not broken letter by letter
    assert len(set(seen["ids"])) == len(seen["ids"])
    assert seen["lost"] == 0
    page_colour, drawn_colour = seen["colours"]
    assert page_colour == drawn_colour
    ink, paper = brightness(page_colour), brightness(seen["paper"])
    assert (ink > 200 and paper < 60) if dark else (ink < 60 and paper == 255)


def test_without_a_browser_it_skips_unless_one_is_required(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("EQUIPOISE_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser"):
        find_browser()
    monkeypatch.setenv("EQUIPOISE_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no browser"):
        find_browser()
