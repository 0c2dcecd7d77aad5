"""Every loss has its page, and what the pages say of the code is what the code says."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

import equipoise
from docs.loss_groups import BASELINES, GROUPS, role_of
from docs.loss_pages import FOLDER, arguments, facts, index_tables, new_page, page_of, write_parts
from equipoise.catalogue import CATALOGUE, Entry
from equipoise.cli.describe import signature_of
from equipoise.doctor.counts import FEW, LONG_TAIL
from equipoise.doctor.suggest import suggest
from equipoise.evaluation import evaluate
from experiments.guide import TAIL, split, tables, write_tables
from experiments.guide_labels import table
from tests.pages import ROOT

each_loss = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
GUIDE = ROOT / "docs" / "which-loss.md"
MIGRATION = ROOT / "docs" / "migration.md"


def part(page: str, name: str) -> str:
    """What stands between ``<!-- name -->`` and ``<!-- end -->``."""
    match = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", page, flags=re.DOTALL)
    assert match, name
    return match[1]


def section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its kind."""
    return re.split(r"^## ", page.split(f"\n## {heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(table: str) -> list[list[str]]:
    """Cells of the rows of the tables in a text, without their headings."""
    lines = [line for line in table.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# ---------------------------------------------------------------------------------------------------------------------
# Pages of the losses
# ---------------------------------------------------------------------------------------------------------------------


def test_there_is_a_page_for_each_loss_and_none_besides():
    assert {page.stem for page in FOLDER.glob("*.md")} == {entry.name for entry in CATALOGUE} | {"index"}
    assert {page.stem for page in (FOLDER / "images").iterdir()} == {entry.name for entry in CATALOGUE}


@each_loss
def test_facts_are_those_of_the_catalogue(entry: Entry):
    """``python -m docs.loss_pages`` writes them."""
    page = page_of(entry).read_text("utf-8")
    assert part(page, "facts") == facts(entry)
    assert part(page, "arguments") == arguments(entry)


@each_loss
def test_defaults_on_the_page_are_those_of_the_code(entry: Entry):
    """Read from the page without the writer: the call, and the table where an argument stands in it."""
    text = part(page_of(entry).read_text("utf-8"), "arguments")
    call = re.search(r"```text\n(.*?)\n```", text, flags=re.DOTALL)[1]
    made: dict[str, object] = {}
    exec(f"def {' '.join(call.split())}: pass", {}, made)  # the call of the page as a function of Python
    parameters = inspect.signature(made[entry.name]).parameters
    assert {name: one.default for name, one in parameters.items()} == {
        name: one.default for name, one in signature_of(entry).parameters.items()
    }
    own = inspect.signature(getattr(equipoise, entry.name)).parameters
    for name, default, _ in rows(text)[1:]:
        known = own[name.strip("`")].default
        assert default == ("required" if known is inspect.Parameter.empty else f"`{known!r}`")


@each_loss
def test_a_page_has_all_its_parts(entry: Entry):
    page = page_of(entry).read_text("utf-8")
    headings = re.findall(r"^## (.*)$", page, flags=re.MULTILINE)
    parts = ["Formula", "Curves", "Defaults", "Example", "When to use it"]
    assert headings == [*parts, "Differences from the published code"]
    assert "$$" in section(page, "Formula")
    assert "\\_" not in page, "readers would see the backslash"
    assert f"(images/{entry.name}.svg)" in section(page, "Curves")
    assert re.search(r"^>>> .*\n[^>\n.]", section(page, "Example"), flags=re.MULTILINE), (
        "an example shows what it gives"
    )


@each_loss
def test_an_argument_has_a_meaning(entry: Entry):
    text = part(page_of(entry).read_text("utf-8"), "arguments")
    assert [name for name, _, meaning in rows(text)[1:] if not meaning] == []


def test_a_new_page_has_all_sections():
    entry = CATALOGUE[0]
    page = new_page(entry)
    headings = re.compile(r"^## .*$", flags=re.MULTILINE)
    assert headings.findall(page) == headings.findall(page_of(entry).read_text("utf-8"))
    assert part(write_parts(page, {"facts": "x", "arguments": "y"}), "arguments") == "y"
    assert f"(images/{entry.name}.svg)" in section(page, "Curves")


@each_loss
def test_a_page_is_finished(entry: Entry):
    assert "TODO" not in page_of(entry).read_text("utf-8")


def test_the_index_lists_what_there_is():
    index = (FOLDER / "index.md").read_text("utf-8")
    for name, text in index_tables().items():
        assert part(index, name) == text
    assert set(re.findall(r"^\| \[(\w+)\]", index, flags=re.MULTILINE)) == {entry.name for entry in CATALOGUE}


def test_every_loss_is_in_one_group_for_its_task():
    listed = [name for group in GROUPS for name in group.losses]
    assert sorted(listed) == sorted(entry.name for entry in CATALOGUE)
    links = {entry.name: entry.link for entry in CATALOGUE}
    kinds = {group.key: {links[name] for name in group.losses} for group in GROUPS}
    assert kinds["multi-label"] == {"sigmoid"}
    assert kinds["segmentation"] == {"region"}
    assert kinds["long-tail"] == kinds["calibration"] == kinds["counter-example"] == {"softmax"}


def test_baselines_are_marked_and_last():
    index = (FOLDER / "index.md").read_text("utf-8")
    assert set(re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \*baseline\*", index, flags=re.MULTILINE)) == set(BASELINES)
    assert re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \*counter-example\*", index, flags=re.MULTILINE) == ["PrecisionLoss"]
    for group in GROUPS:
        roles = [bool(role_of(name)) for name in group.losses]
        assert roles == sorted(roles), "baselines come last"
    assert "**Baseline.**" in (FOLDER / "CrossEntropyLoss.md").read_text("utf-8")


def test_a_part_that_is_not_marked_is_an_error():
    with pytest.raises(ValueError, match="one part <!-- facts -->, got 0"):
        write_parts("# A page", {"facts": "x"})


@each_loss
def test_pictures_are_whole_small_and_know_light_and_dark(entry: Entry):
    pytest.importorskip("matplotlib")
    from equipoise.plotting.loss_figures import figure_of

    path = FOLDER / "images" / f"{entry.name}.svg"
    text = path.read_text("utf-8")
    written = {"".join(one.itertext()) for one in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")}
    panels = figure_of(entry).panels
    labels = {curve.label for panel in panels for curve in panel.curves}
    assert labels | {panel.title for panel in panels} <= written, "draw anew: python -m docs.loss_pages"
    assert "prefers-color-scheme:dark" in text
    assert path.stat().st_size < 80_000


# ---------------------------------------------------------------------------------------------------------------------
# Which loss?
# ---------------------------------------------------------------------------------------------------------------------

SECTIONS = {
    "multiclass": "Single-label classification",
    "multilabel": "Multi-label classification",
    "segmentation": "Segmentation",
}
COUNTS = {"none": None, "even": [100, 100, 90], "long": [5000, 500, 50], "few": [5000, 500, 5], "one": [9000, 50, 40]}


@pytest.fixture(scope="module")
def overconfident():
    """An evaluation with a confidence of 0.98 and an accuracy of 0.5."""
    logits = torch.tensor([4.0, 0.0]).expand(200, 2).numpy()
    return replace(evaluate({"logits": logits, "targets": torch.arange(200).numpy() % 2}), per_class=[])


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("task", SECTIONS)
def test_the_guide_names_what_the_doctor_suggests(task, counts, overconfident):
    known = section(GUIDE.read_text("utf-8"), SECTIONS[task])
    for evaluation in (None, overconfident if task != "multilabel" else None):
        names = [one.entry.name for one in suggest(task, counts, evaluation)]
        assert [name for name in names if f"(losses/{name}.md)" not in known] == []


def test_the_guide_draws_the_lines_where_the_doctor_does():
    text = section(GUIDE.read_text("utf-8"), SECTIONS["multiclass"])
    assert f"at least {LONG_TAIL:g} times" in text
    assert f"fewer than {FEW} samples" in text


@pytest.mark.parametrize("task", SECTIONS)
def test_every_row_of_the_guide_says_what_it_rests_on(task):
    """By a link to what was recorded, or to the paper."""
    heading, *content = rows(section(GUIDE.read_text("utf-8"), SECTIONS[task]))
    assert heading[-1] == "evidence"
    assert [reason for *_, reason in content if "](" not in reason] == []


def test_the_measured_tables_are_the_recorded_ones():
    results, page = ROOT / "experiments" / "results", GUIDE.read_text("utf-8")
    digits, labels = (json.loads((results / f"{name}.json").read_text("utf-8")) for name in ("guide", "guide-labels"))
    assert write_tables(page, tables(digits) | table(labels)) == page


CITED = {
    ("cifar10_lt100", "mean_class_accuracy"): {"ce": 69.7, "focal": 68.7, "flsd-53": 67.4, "recall": 69.5},
    ("cifar10_lt100", "accuracy"): {"ce": 69.7, "balanced-softmax": 75.5},
    ("cifar10_lt100", "ece"): {"ce": 22.2, "flsd-53": 12.2, "balanced-softmax": 16.2},
    ("cifar10_lt100", "ece_after"): {"ce": 2.0, "focal": 3.7, "flsd-53": 5.4, "balanced-softmax": 2.5},
    ("camvid", "mean_iou"): {
        "ce": 47.9,
        "recall": 48.8,
        "recall:momentum=0.1": 48.4,
        "inverse-frequency": 46.7,
        "lovasz-softmax": 48.9,
    },
    ("camvid", "mean_accuracy"): {"ce": 57.8, "recall": 62.0, "recall:momentum=0.1": 61.7, "inverse-frequency": 68.2},
    ("camvid", "pixel_accuracy"): {"ce": 85.4, "recall": 83.1, "recall:momentum=0.1": 82.7, "inverse-frequency": 79.8},
    ("camvid", "ece"): {"ce": 4.8, "focal": 6.6, "recall": 2.0, "lovasz-softmax": 8.9},
    ("camvid", "ece_after"): {"ce": 4.1, "focal": 4.2, "recall": 4.9},
    ("digits_lt_methods", "few"): {"ce": 69.6, "balanced-softmax": 84.7, "ldam-drw": 74.3, "sdn": 75.1},
    ("coco18", "mean_average_precision"): {"bce": 41.2, "binary-focal": 41.0, "asl": 41.7},
    ("coco18", "CF1"): {"bce": 35.1, "asl": 41.5},
    ("coco18", "OF1"): {"bce": 65.5, "asl": 59.7},
    ("coco18", "ece"): {"bce": 0.4, "binary-focal": 12.3, "asl": 25.9},
    ("coco18", "ece_after"): {"asl": 8.3},
}
"""What the guide and the pages of the losses cite, in percent; a new recording must change them."""


@pytest.mark.parametrize(("name", "metric"), CITED)
def test_cited_trainings_are_the_recorded_ones(name, metric):
    record = json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text("utf-8"))
    actual = {row["loss"]: 100 * row["values"][metric]["mean"] for row in record["verdict"]["rows"]}
    for loss, cited in CITED[name, metric].items():
        assert round(actual[loss], 1) == cited, loss


def real_differences(name):
    record = json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text("utf-8"))
    return {(one["loss"], one["metric"]) for one in record["verdict"]["differences"] if one["real"]}


def test_what_the_guide_calls_real_is():
    assert real_differences("camvid") == {("recall:momentum=0.1", "mean_accuracy")}
    assert {loss for loss, metric in real_differences("digits_lt_methods") if metric == "few"} == {"balanced-softmax"}


# ---------------------------------------------------------------------------------------------------------------------
# Migration
# ---------------------------------------------------------------------------------------------------------------------


def translations(library: str) -> list[tuple[str, str]]:
    """Theirs and ours of each row."""
    content = rows(section(MIGRATION.read_text("utf-8"), library))[1:]
    codes = [[re.findall(r"`([^`]+)`", cell) for cell in cells[:2]] for cells in content]
    return [(theirs[0], ours[0]) for theirs, ours in codes]


def inputs() -> dict[str, object]:
    """What the tables speak of; the second image does not hold the last class."""
    draw = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(2, 4, 6, 5, generator=draw, dtype=torch.float64)
    y = torch.randint(4, (2, 6, 5), generator=draw)
    y[1] = y[1].clamp(max=2)
    one_hot = torch.nn.functional.one_hot(y, 4).movedim(-1, 1).double()
    w = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    return {"z": z, "y": y, "one_hot": one_hot, "w": w, "C": 4, "torch": torch, "equipoise": equipoise}


@pytest.mark.parametrize(
    ("library", "theirs", "ours"),
    [
        pytest.param(library, theirs, ours, id=f"{library}-{number}")
        for library in ("torch", "MONAI", "kornia")
        for number, (theirs, ours) in enumerate(translations(library))
    ],
)
def test_the_translation_gives_the_same_numbers(library, theirs, ours):
    known = inputs()
    known[library.lower()] = pytest.importorskip(library.lower())
    if library != "torch":
        pytest.importorskip(f"{library.lower()}.losses")
    torch.testing.assert_close(
        torch.as_tensor(eval(ours, known)).double(), eval(theirs, known).double(), rtol=2e-6, atol=2e-7
    )


@pytest.mark.parametrize("library", ["timm", "segmentation-models-pytorch", "mmdetection"])
def test_the_migration_guide_names_existing_losses(library):
    table_rows = translations(library)
    assert table_rows
    for _, ours in table_rows:
        assert isinstance(eval(ours, inputs()), equipoise.losses.Loss)


def test_sums_over_classes_are_means_of_rows():
    """smp's multiclass focal loss: the mean over the pixels, summed over the classes."""
    known = inputs()
    one_by_one = [equipoise.BinaryFocalLoss(2.0)(known["z"][:, k], known["one_hot"][:, k]) for k in range(known["C"])]
    whole = equipoise.BinaryFocalLoss(2.0, reduction="valid_mean")(known["z"], known["one_hot"])
    torch.testing.assert_close(whole, sum(one_by_one))


# ---------------------------------------------------------------------------------------------------------------------
# The experiment behind the guide
# ---------------------------------------------------------------------------------------------------------------------


def test_only_training_labels_are_wrong():
    clean, wrong = split("clean", 3), split("wrong", 3)
    for name in ("val", "test"):
        assert torch.equal(clean[name][1], wrong[name][1])
    assert torch.equal(clean["train"][0], wrong["train"][0])
    share = (clean["train"][1] != wrong["train"][1]).double().mean()
    assert 0.25 < share < 0.35


def test_the_tail_has_the_counts_that_the_guide_says():
    counts = split("tail", 0)["train"][1].bincount(minlength=10).tolist()
    assert counts[1:] == TAIL[1:]
    assert counts[0] <= TAIL[0] == 90  # a split may hold a few less
    assert TAIL[-1] == 2


def test_splits_do_not_overlap():
    images = torch.cat([inputs for inputs, _ in split("clean", 1).values()])
    assert len(images) == len(torch.unique(images, dim=0))
