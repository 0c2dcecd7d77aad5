"""The page of a comparison: what is in it, and how it looks and behaves in a browser."""

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.judge import judge
from equipoise.comparison.kinds import MADE_AFTERWARDS
from equipoise.comparison.verdict import Summary
from equipoise.plotting.classes import class_profile
from equipoise.plotting.differences import Point, difference_plot, limits_of, pareto_plot
from equipoise.plotting.theme import LIGHT, short, strokes
from equipoise.report.comparison import comparison_page
from equipoise.train.methods import METHODS
from tests.comparison.verdicts import difference_of
from tests.report.browser import measure, visit
from tests.report.comparisons import read_verdict, write_comparison
from tests.report.reading import Reader, brightness, labels

ODD_NAMES = ["<b>x</b>", "<script>alert(1)</script>", "\"&'", "$a_b$", 'id="x" 1.23456', "]]> </svg> -->"]
SECTIONS = {
    "multiclass": ["Results", "Differences from ce", "Accuracy and calibration", "Reliability", "Classes", "Training",
               "Candidates", "Correct and wrong predictions", "Recall weights", "Reproduce"],
    "multilabel": ["Results", "Differences from bce", "Accuracy and calibration", "Reliability", "Labels", "Training",
              "Positives and negatives", "Reproduce"],
    "segmentation": ["Results", "Differences from ce", "Accuracy and calibration", "Reliability", "Classes", "Examples",
                     "Training", "Correct and wrong predictions", "Recall weights", "Reproduce"],
}  # fmt: skip
FIGURES = {
    "multiclass": [
        "accuracy, points: differences", "few, points: differences", "NLL after: differences",
        "before temperature: mean class accuracy, % against ECE, %", "after temperature: mean class accuracy",
        "Reliability diagram: ce", "Reliability diagram: recall", "focal:gamma=1,3: a bar for each of 6 classes",
        "training loss / first epoch, over the epochs, a line for each of ce, focal:gamma=1,3, recall",
        "training loss, over the epochs, a line for each of focal:gamma=1, focal:gamma=3",
        "NLL, validation, over the epochs, a line for each of focal:gamma=1, focal:gamma=3",
        "mean class accuracy, validation", "norm of the gradient", "NLL of wrong predictions",
        "entropy of correct predictions", "recall: over time", "recall: by class", "ce: over time", "focal weights",
        "recall weights", "recall / focal",
    ],
    "multilabel": [
        "mAP, points: differences", "before temperature: mAP", "Reliability diagram: asl:target_gap=0.1",
        "a bar for each of 6 labels", "mAP, validation", "probability of positives", "1 − probability of negatives",
        "probability gap, training", "probability gap, validation",
        "exponent γ₋ of the negatives, over the epochs, a line for each of asl:target_gap=0.1",
    ],
    "segmentation": [
        "mean IoU, points: differences", "after temperature: mean IoU", "Reliability diagram: recall",
        "recall: a bar for each of 6 classes", "mean IoU, validation", "entropy of wrong predictions",
        "recall: over time", "focal weights",
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=SECTIONS)
def page(request, tmp_path_factory):
    """A task and the page of a comparison in it."""
    folder = write_comparison(tmp_path_factory.mktemp(request.param) / "compared", request.param, names=ODD_NAMES)
    folder.report.write_text(comparison_page(folder, read_verdict(folder)), encoding="utf-8")
    return request.param, folder.report


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A comparison to be changed: copy it first."""
    return write_comparison(tmp_path_factory.mktemp("compared") / "multiclass")


@pytest.fixture
def copied(single, tmp_path):
    """One that may be changed."""
    shutil.copytree(single.path, tmp_path / "copy")
    return ComparisonFolder(tmp_path / "copy")


def cells_of(text):
    """Rows of the first table as texts of their cells."""
    body = re.search(r"<tbody>(.*?)</tbody>", text, re.DOTALL)[1]
    return [
        [" ".join(filter(None, Reader(cell).words)) for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]


# Without a browser ----------------------------------------------------------------------------------------------------


def test_sections_stand_in_order_and_are_linked(page):
    task, path = page
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert re.findall(r'<h2 id="[^"]*">(.*?)</h2>', text) == SECTIONS[task]
    links = re.findall(r'<a href="#([^"]*)">(.*?)</a>', text)
    assert [name for _, name in links] == SECTIONS[task]
    for place, _ in links:
        assert text.count(f'id="{place}"') == 1


def test_every_figure_is_there_and_described(page):
    task, path = page
    content = labels(Reader(path.read_text(encoding="utf-8")))
    for words in FIGURES[task]:
        assert any(words in label for label in content), words


def test_nothing_is_loaded_and_only_the_own_script_runs(page):
    task, path = page
    text = path.read_text(encoding="utf-8")
    reader = Reader(text)
    assert not {"iframe", "object", "embed", "image", "b"} & {tag for tag, _ in reader.tags}
    assert [attributes for tag, attributes in reader.tags if tag == "script"] == [{}]
    assert sum(tag == "img" for tag, _ in reader.tags) == (12 if task == "segmentation" else 0)
    for tag, attributes in reader.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                assert value.startswith("data:image/png;base64," if tag == "img" else ("#", "data:,"))
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/)", text)


def test_names_are_text_in_table_and_figure(page):
    words = Reader(page[1].read_text(encoding="utf-8")).words
    for name in ODD_NAMES:
        assert words.count(name) >= 1, name
        assert words.count(name) + words.count(short(name, 14)) >= 2, name


def test_colours_of_figures_are_variables(page):
    text = page[1].read_text(encoding="utf-8")
    figures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert not re.search("|".join(LIGHT.values()), "".join(figures))
    assert {"var(--series-1)", "var(--ink)", "var(--soft)"} <= set(re.findall(r"var\(--[a-z0-9-]*\)", text))


def test_numbers_of_the_table_are_those_of_the_verdict(single):
    verdict = read_verdict(single)
    rows = cells_of(comparison_page(single, verdict))
    assert [row[0].split()[0] for row in rows] == ["ce", "focal:gamma=1,3", "recall"]
    for cells, row in zip(rows, verdict.rows, strict=True):
        value = row.metrics["accuracy"]
        assert cells[1].startswith(f"{100 * value.mean:.2f}")
        assert cells[1].endswith(f"± {100 * value.std:.2f}")
    assert "baseline" in rows[0][0]
    assert "chosen: focal:gamma=3" in rows[1][0]


def test_only_real_differences_are_marked(single):
    verdict = read_verdict(single)
    marked = (("recall", "accuracy"), ("recall", "nll"))
    differences = [
        replace(one, significant=True, mean=0.1)  # more accurate, less likely
        if (one.loss, one.metric) in marked
        else replace(one, significant=False)
        for one in verdict.differences
    ]
    text = comparison_page(single, replace(verdict, differences=tuple(differences)))
    assert text.count('<span class="sign">▲</span>') == 1
    assert text.count('<span class="sign">▼</span>') == 1
    rows = cells_of(text)
    assert "▲" in rows[2][1]
    assert sum("▼" in cell for cell in rows[2]) == 1
    figures = re.findall(r"<svg role.*?</svg>", text, re.DOTALL)
    assert sum("var(--better)" in figure for figure in figures) == 1
    assert sum("var(--worse)" in figure for figure in figures) == 1


def test_one_seed_has_no_interval_and_a_note(tmp_path):
    folder = write_comparison(tmp_path / "one", seeds=1, losses=("ce", "recall"))
    text = comparison_page(folder, read_verdict(folder))
    assert "One seed: no interval and no significance test" in text
    assert "Differences of one seed: no interval" in text
    assert 'class="sign"' not in text
    assert "±" not in "".join(map("".join, cells_of(text)))


def test_a_single_loss_has_nothing_to_compare_with(tmp_path):
    folder = write_comparison(tmp_path / "alone", losses=("ce",))
    text = comparison_page(folder, read_verdict(folder))
    assert "<h1>1 loss compared on digits-lt</h1>" in text
    titles = re.findall(r'<h2 id="[^"]*">(.*?)</h2>', text)
    parts = ["Results", "Reliability", "Classes", "Training", "Correct and wrong predictions", "Recall weights"]
    assert titles == [*parts, "Reproduce"]


@pytest.mark.parametrize(
    ("losses", "title"),
    [
        (("ce", "recall", "sdn:feature=ce", "crt", "tau-norm"), "2 losses and 3 methods compared on digits-lt"),
        (("sdn", "crt"), "2 methods compared on digits-lt"),
        (("ce", "mine.py:Tail"), "2 losses compared on digits-lt"),
    ],
)
def test_methods_are_called_methods(tmp_path, losses, title):
    verdict = read_verdict(write_comparison(tmp_path / "methods", seeds=1, losses=("ce", "recall")))
    rows = tuple(replace(verdict.rows[0], loss=name) for name in losses)
    folder = ComparisonFolder(tmp_path / "methods")
    text = comparison_page(folder, replace(verdict, rows=rows, baseline=losses[0]))
    assert f"<h1>{title}</h1>" in text


@pytest.fixture(scope="module")
def methods(tmp_path_factory):
    """The page of a comparison of losses and methods, with candidates and a run that failed."""
    losses = ("ce", "recall", "sdn", "crt:epochs=5,10", "ncm")
    folder = write_comparison(tmp_path_factory.mktemp("compared") / "methods", seeds=2, losses=losses)
    failed = next(run for run in folder.runs if run.loss == "sdn")
    shutil.rmtree(failed.folder.path)
    folder.write_failure(failed, "no memory", "a log")
    return comparison_page(folder, read_verdict(folder))


def test_where_any_row_is_a_method_rows_are_not_called_losses(methods, single):
    text = " ".join(re.findall(r'<p class="soft">(.*?)</p>', methods, re.DOTALL))
    assert text.count("losses") == text.count("Values of different losses are not comparable") == 1  # of losses indeed
    assert text.count("the number of methods") == 2
    assert "connects the Pareto-optimal methods" in text
    assert "on validation data, not on test data" in text
    heads = [name for head in re.findall(r"<thead>.*?</thead>", methods, re.DOTALL) for name in Reader(head).words]
    assert heads.count("method") == 4  # results, further metrics, hyper-parameters, failed runs
    assert "loss" not in heads
    assert "the number of losses" in comparison_page(single, read_verdict(single))


AFTERWARDS = "their classifiers were fitted after the training of another run"


def test_methods_without_epochs_are_not_in_legends(methods, single):
    for title in ("Training", "Correct and wrong predictions"):
        section = re.search(rf"<h2[^>]*>{title}</h2>.*?</section>", methods, re.DOTALL)[0]
        legends = re.findall(r'<ul class="keys">(.*?)</ul>', section, re.DOTALL)
        assert legends
        for legend in legends:
            assert list(filter(None, Reader(legend).words)) == ["ce", "recall", "sdn"]
        assert section.count(f"No line for crt:epochs=5,10 and ncm: {AFTERWARDS}.") == 1
    assert AFTERWARDS not in comparison_page(single, read_verdict(single))


def test_methods_without_epochs_are_those_that_do_not_learn_in_steps():
    assert {name for name, method in METHODS.items() if not method.learns_in_steps} == set(MADE_AFTERWARDS)


def test_distance_scores_have_a_warning(methods, single):
    text = (
        "are distances to class means, not probabilities: ECE, AdaECE and NLL before temperature scaling are not "
        "meaningful for them"
    )
    assert methods.count(f"The scores of ncm {text}") == methods.count(text) == 1
    assert text not in comparison_page(single, read_verdict(single))


def test_labels_are_called_labels(tmp_path):
    folder = write_comparison(tmp_path / "labels", "multilabel", seeds=1)
    text = comparison_page(folder, read_verdict(folder))
    assert "6 labels with" in text
    assert "test; 6 labels" in text
    assert not re.search(r"\d classes", text)


def test_names_above_examples_break_where_their_parts_meet(tmp_path):
    folder = write_comparison(tmp_path / "maps", "segmentation", seeds=1)
    verdict = read_verdict(folder)
    rows = [replace(row, loss="recall:momentum=0.1") if row.loss == "recall" else row for row in verdict.rows]
    text = comparison_page(folder, replace(verdict, rows=tuple(rows)))
    assert '<div class="head">recall:<wbr>momentum=<wbr>0.1</div>' in text


def test_it_says_which_run_to_use_and_how(single):
    verdict = read_verdict(single)
    differences = tuple(replace(one, significant=False) for one in verdict.differences)
    text = comparison_page(single, replace(verdict, differences=differences))
    assert "No loss is significantly better than ce in mean class accuracy" in text
    assert "<code>equipoise export runs/ce-2</code>" in text
    assert "Best mean class accuracy on validation data: recall-2." in text


def test_a_heading_says_why_its_numbers_are_not_judged(single):
    verdict = replace(read_verdict(single), not_compared={"few": "1 class, 2 test samples, too few to judge"})
    assert "training samples; 1 class, 2 test samples, too few to judge" in comparison_page(single, verdict)


def test_constant_exponents_have_no_figure(tmp_path):
    folder = write_comparison(tmp_path / "labels", "multilabel", losses=("bce", "asl"), seeds=2)
    text = comparison_page(folder, read_verdict(folder))
    assert any("exponent" in label for label in labels(Reader(text)))
    for run in folder.runs:
        file = run.folder.path / "history.jsonl"
        file.write_text(re.sub(r'"gamma_neg": [\d.]+', '"gamma_neg": 4.0', file.read_text()), encoding="utf-8")
    text = comparison_page(folder, read_verdict(folder))
    assert "probability gap" in text
    assert not any("exponent" in label for label in labels(Reader(text)))


def test_wide_intervals_leave_room_for_the_others():
    def row(mean, around):
        return difference_of("x", "accuracy", mean, low=mean - around, high=mean + around)

    def limits(*rows):
        return limits_of([row.mean for row in rows], [row.interval for row in rows], 1.0)

    narrow, wild = [row(0.01, 0.02), row(-0.01, 0.03), row(0.02, 0.01)], row(0.05, 0.8)
    low, high = limits(*narrow, wild)
    assert -0.06 < low < -0.04
    assert 0.05 < high < 0.07  # every mean is seen
    assert limits(row(0.01, 0.5), row(0.0, 0.6)) == pytest.approx((-0.6 - 0.072, 0.6 + 0.072))
    low, high = limits_of([0.3], [], 1.0)
    assert low < 0 < 0.3 < high
    options = {"scale": 1.0, "less": False}
    drawn = [difference_plot("x", [*narrow, one], **options) for one in (wild, row(0.05, 0.0))]
    assert drawn[0].count("<use") == drawn[1].count("<use") + 2  # an arrow at either end


def test_failed_runs_are_listed_and_the_others_remain(copied):
    gone = [run for run in copied.runs if run.loss == "recall"]
    for run in gone:
        shutil.rmtree(run.folder.path)
        copied.write_failure(run, "the loss became nan in <epoch> 3", "a log")
    text = comparison_page(copied, judge(copied, draws=50))
    words = Reader(text).words
    assert "Failed runs" in words
    assert words.count("the loss became nan in <epoch> 3") == 3
    assert "failures/recall-0.log" in words
    rows = cells_of(text)
    assert rows[2][1:] == ["–"] * (len(rows[2]) - 1)
    assert "0 of 3 seeds" in rows[2][0]


def test_no_run_at_all(copied):
    verdict = read_verdict(copied)
    shutil.rmtree(copied.path / "runs")
    with pytest.raises(ValueError, match="at least one run must be finished, found none; run equipoise compare again"):
        comparison_page(copied, verdict)


def test_candidates_that_were_not_chosen_are_listed(single):
    words = Reader(comparison_page(single, read_verdict(single))).words
    text = list(filter(None, words[words.index("Hyper-parameters") :]))[2:]
    assert text[:4] == ["loss", "candidate", "mean class accuracy, validation", "runs"]
    assert text[4:8] == ["focal:gamma=1,3", "focal:gamma=1", "54.00", "3"]
    assert text[8:13] == ["focal:gamma=1,3", "focal:gamma=3", "57.00", "3", "chosen"]


def test_histories_without_what_is_new_are_drawn_without_it(copied):
    """Runs of earlier versions have neither focal weights nor both probabilities."""
    before = labels(Reader(comparison_page(copied, read_verdict(copied))))
    for run in copied.runs:
        file = run.folder.path / "history.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row["train"].pop("focal_weights")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    descriptions = labels(Reader(comparison_page(copied, read_verdict(copied))))
    assert any("recall: over time" in label for label in descriptions)
    drawn, left = ([label for label in each if "focal weights" in label] for each in (before, descriptions))
    assert drawn
    assert left == []


def test_the_last_epoch_is_not_described_as_selected(copied):
    chosen = "Mean class accuracy on validation data selected the evaluated epoch."
    assert chosen in comparison_page(copied, read_verdict(copied))
    for run in copied.runs:
        file = run.folder.path / "run.json"
        file.write_text(json.dumps(replace(run.folder.record, spec={"checkpoint": "last"}).to_json()), encoding="utf-8")
    text = comparison_page(copied, read_verdict(copied))
    assert "Evaluated after the last epoch." in text
    assert chosen not in text


def test_a_group_of_all_classes_has_no_separate_diagrams(copied):
    assert "Classes with more than 100 training samples" in comparison_page(copied, read_verdict(copied))
    for run in copied.runs:
        file = run.folder.path / "results.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        for group in ("medium", "few"):
            content["test"]["reliability"].pop(group, None)
        file.write_text(json.dumps(content), encoding="utf-8")
    assert "Classes with more than 100 training samples" not in comparison_page(copied, read_verdict(copied))


def test_size_of_a_report_with_ten_losses_and_a_hundred_classes(tmp_path):
    losses = ("ce", *(f"focal:gamma={k}" for k in range(6)), "recall", "recall:momentum=0.5", "recall:momentum=0.9")
    folder = write_comparison(tmp_path / "big", losses=losses, classes=100, epochs=30, seeds=2, samples=300)
    text = comparison_page(folder, read_verdict(folder))
    assert len(text.encode()) < 3_000_000
    assert "all 100 classes as a table" in text
    assert text.count("var(--series-8)") > 8  # nine losses and the baseline: the ninth has other dashes
    assert re.search(r'class="stroke".*?stroke="var\(--series-1\)" stroke-dasharray="4.0 1.6"', text)
    assert text.count("<pattern") == 1  # its bars are hatched


def test_repeated_colours_differ_in_dashes_markers_and_hatching():
    looks = strokes(32)
    for kind in ("dash", "marker", "hatch"):
        assert len({(look.colour, getattr(look, kind)) for look in looks}) == len(looks)


@pytest.mark.parametrize("classes", [6, 30])
def test_bars_and_points_of_one_colour_differ(classes):
    first, again = (strokes(9)[place] for place in (0, 8))
    values, names = np.linspace(0.1, 1, classes), [str(number) for number in range(classes)]
    plain, hatched = (class_profile("x", values, 0 * values, names, look, compared="ce") for look in (first, again))
    assert "<pattern" not in plain
    pattern = re.search(r'<pattern id="([^"]*)".*?</pattern>', hatched, re.DOTALL)
    assert f"url(#{pattern[1]})" in hatched
    assert "var(--series-1)" in pattern[0]
    assert "var(--paper)" in pattern[0]
    limits = ((0.0, 3.0), (0.0, 3.0))
    drawn = [pareto_plot("x", [Point("x", look, 1.0, 2.0)], ("x", "y"), limits) for look in (first, again)]
    markers = [re.search(r'<path id="f\d+-m[^"]*" d="([^"]*)" style="stroke: var\(--series-1', one)[1] for one in drawn]
    assert markers[0] != markers[1]


def test_more_classes_than_can_be_seen_share_bars_and_the_table_has_the_rare_ones(tmp_path):
    folder = write_comparison(tmp_path / "huge", losses=("ce", "recall"), classes=400, seeds=1, samples=100, epochs=2)
    text = comparison_page(folder, read_verdict(folder))
    assert "the 300 rarest as a table" in text
    assert "400 classes, from common to rare" in text
    assert ">kind 399<" in text
    assert ">kind 99<" not in text


def test_neither_torch_nor_lightning_is_needed(single):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from equipoise.comparison.folder import ComparisonFolder\n"
        "from equipoise.comparison.verdict import read_verdict\n"
        "from equipoise.report.comparison import comparison_page\n"
        "from equipoise.report.tables import as_csv, as_latex, as_markdown\n"
        "folder = ComparisonFolder(Path(sys.argv[1]))\n"
        "verdict = read_verdict(folder.verdict)\n"
        "print(len(comparison_page(folder, verdict)) > 100_000)\n"
        "print([len(make(verdict)) > 100 for make in (as_csv, as_latex, as_markdown)])\n"
        "print({'torch', 'pytorch_lightning', 'torchmetrics', 'sklearn'} & set(sys.modules))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, single.path], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["True", "[True, True, True]", "set()"]


# In a browser ---------------------------------------------------------------------------------------------------------


def test_in_a_browser_no_error_no_request_all_figures(page, tmp_path):
    _, path = page
    seen = visit(path, tmp_path)
    assert seen.console == []
    assert seen.requests == []
    reader = Reader(seen.dom)
    assert labels(reader) == labels(Reader(path.read_text(encoding="utf-8")))
    assert not {"b"} & {tag for tag, _ in reader.tags}
    assert sum(tag == "script" for tag, _ in reader.tags) == 1
    for name in ODD_NAMES:
        assert name in reader.words, name


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1200, True)])
def test_in_a_browser_it_fits_the_width_and_the_colours(page, tmp_path, width, dark):
    _, path = page
    opened = tmp_path / "opened.html"
    opened.write_text(path.read_text(encoding="utf-8").replace("<details>", "<details open>"), encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    seen = measure(opened, tmp_path, width, f"--window-size={width + 100},900", scheme)
    assert seen["width"] == width
    assert seen["needed"] <= width
    for label, wide, high in seen["figures"]:
        assert 250 <= wide <= width, label
        assert high >= 90, label
    assert min(seen["firstCells"]) > 30
    assert len(set(seen["ids"])) == len(seen["ids"])
    assert seen["lost"] == 0
    page_colour, drawn_colour = seen["colours"]
    assert page_colour == drawn_colour
    ink, paper = brightness(page_colour), brightness(seen["paper"])
    assert (ink > 200 and paper < 60) if dark else (ink < 60 and paper == 255)


def test_in_a_browser_a_scrollable_table_has_a_shadow(single, tmp_path):
    """One that stands still, and over it paper that moves with the table and covers it at the end."""
    script = (
        "<script>document.title = getComputedStyle(document.querySelector('.scroll')).backgroundAttachment</script>"
    )
    page = tmp_path / "shadow.html"
    text = comparison_page(single, read_verdict(single))
    page.write_text(text.replace("</body>", f"{script}</body>"), encoding="utf-8")
    assert "<title>local, scroll</title>" in visit(page, tmp_path).dom


CLICKS = """<script>
const heads = document.querySelectorAll("table.sortable")[0].querySelectorAll("th[data-first]");
document.title = JSON.stringify(%s.map(column => {
  heads[column].querySelector("button").click();
  const rows = [...document.querySelectorAll("table.sortable")[0].tBodies[0].rows];
  return [rows.map(row => row.cells[0].firstChild.textContent.trim()), heads[column].getAttribute("aria-sort"),
    [...heads].filter(head => head.hasAttribute("aria-sort")).length];
}));
</script>"""


def clicked(text, folder, columns):
    """For each of these clicks on a heading of the first table: the losses in their order, and which way they go."""
    page = folder / "clicked.html"
    page.write_text(text.replace("</body>", CLICKS % json.dumps(columns) + "</body>"), encoding="utf-8")
    seen = visit(page, folder)
    assert seen.console == []
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", seen.dom, re.DOTALL)[1]))


def test_in_a_browser_a_click_sorts_good_numbers_first(single, tmp_path):
    verdict = read_verdict(single)
    text = comparison_page(single, verdict)
    ece = re.findall(r'<th scope="col" data-first="(\w+)"', text).index("ascending", 1)
    actual = clicked(text, tmp_path, [1, 1, ece, ece])
    for metric, descending, (first, second) in (("accuracy", True, actual[:2]), ("ece", False, actual[2:])):
        means = {row.loss: row.mean(metric) for row in verdict.rows}
        order = sorted(means, key=means.get, reverse=descending)
        ways = ["descending", "ascending"] if descending else ["ascending", "descending"]
        assert [first, second] == [[order, ways[0], 1], [order[::-1], ways[1], 1]]


def test_in_a_browser_names_sort_and_what_is_missing_stays_last(single, tmp_path):
    verdict = read_verdict(single)
    first, *others = verdict.rows
    without = replace(first, metrics=first.metrics | {"accuracy": Summary(None, None, ())})
    page = comparison_page(single, replace(verdict, rows=(without, *others)))
    up, down, by_name, backwards = clicked(page, tmp_path, [1, 1, 0, 0])
    assert up[0][-1] == down[0][-1] == "ce"
    assert up[0][:2] == down[0][1::-1]
    assert by_name[0] == ["ce", "focal:gamma=1,3", "recall"]
    assert backwards[0] == ["recall", "focal:gamma=1,3", "ce"]
