"""Comparisons are recorded, and what docs/experiments.md and docs/reproducing.md say of them is so in the records."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from statistics import mean

import pytest

from equipoise.comparison.verdict import FORMAT, as_verdict
from experiments.record import record, table
from tests.pages import ROOT
from tests.report.comparisons import read_verdict, write_comparison

RESULTS = ROOT / "experiments" / "results"
PAGE = ROOT / "docs" / "experiments.md"
COMPARED = {
    "CIFAR-10-LT": "cifar10_lt100",
    "CIFAR-10-LT: the papers' systems": "cifar10_lt100_methods",
    "CamVid": "camvid",
    "COCO with 18 labels": "coco18",
}
"""Sections of the page."""


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def recorded(name, loss, metric, *, of="test"):
    """The mean over the seeds."""
    return mean(run[of][metric] for run in read(name)["runs"] if run["loss"] == loss)


def test_a_comparison_is_recorded_with_its_page(tmp_path):
    folder = write_comparison(tmp_path / "compared", seeds=2)
    folder.report.write_text("the page", encoding="utf-8")
    content = record(folder, tmp_path / "kept")
    assert json.loads((tmp_path / "kept/results/compared.json").read_text(encoding="utf-8")) == content
    assert (tmp_path / "kept/reports/compared.html").read_text(encoding="utf-8") == "the page"
    assert content["spec"]["seeds"] == [0, 1]
    assert content["environment"]["device"] == "cpu"
    assert as_verdict(content["verdict"]) == read_verdict(folder)
    assert len(content["runs"]) == len(folder.runs)
    assert {(run["loss"], run["seed"]) for run in content["runs"]} == {(run.loss, run.seed) for run in folder.runs}
    rows = table(content).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| ce", "| focal:gamma=1,3", "| recall"]
    head = "| loss | accuracy | mean class accuracy | many | medium | few | ECE | NLL | ECE after | NLL after |"
    assert rows[0] == head


def test_a_run_without_epochs_is_recorded(tmp_path):
    """A classifier that was made of the features of another run."""
    folder = write_comparison(tmp_path / "compared", seeds=2)
    folder.report.write_text("the page", encoding="utf-8")
    (folder.runs[0].folder.path / "history.jsonl").unlink()
    first, *others = record(folder, tmp_path / "kept")["runs"]
    assert first["last_epoch"] is None
    assert all(run["last_epoch"]["val"] for run in others)


@pytest.mark.parametrize(("section", "name"), COMPARED.items())
def test_the_tables_of_the_page_are_the_recorded_ones(section, name):
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    assert table(read(name)) in text
    assert (ROOT / "experiments" / "reports" / f"{name}.html").is_file()


def test_the_methods_on_digits_are_the_recorded_ones():
    text = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    for row in as_verdict(read("digits_lt_methods")["verdict"]).rows:
        cells = [f"{100 * row.mean(name):.1f} ± {100 * row.std(name):.1f}" for name in ("mean_class_accuracy", "few")]
        assert f"| `{row.loss}` | {' | '.join(cells)} |\n" in text
    assert (ROOT / "experiments" / "reports" / "digits_lt_methods.html").is_file()


def signed(value, digits):
    """As the page writes it: a minus sign, and a plus."""
    return f"{value:+.{digits}f}".replace("-", "−")


@pytest.mark.parametrize(("section", "name"), COMPARED.items())
def test_intervals_of_the_page_are_recorded_ones(section, name):
    """Every ``+1.2 (... to ...)`` is a difference of the verdict; likelihoods have three digits."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    cited = re.findall(r"([+−][\d.]+)(?: points)?\s\(([+−][\d.]+)\sto\s([+−][\d.]+)\)", text)
    known = set()
    for one in as_verdict(read(name)["verdict"]).differences:
        scale, digits = (1, 3) if one.metric.startswith("nll") else (100, 1)
        known.add(tuple(signed(scale * value, digits) for value in (one.mean, *one.interval)))
    assert len(cited) >= 5
    assert set(cited) <= known


def test_recall_loss_on_camvid():
    gains = {
        metric: recorded("camvid", "recall", metric) - recorded("camvid", "ce", metric)
        for metric in ("mean_accuracy", "mean_iou", "pixel_accuracy")
    }
    assert gains["mean_accuracy"] > gains["mean_iou"] > 0 > gains["pixel_accuracy"]


def test_asymmetric_loss_on_coco():
    assert recorded("coco18", "asl", "mean_average_precision") == pytest.approx(
        recorded("coco18", "bce", "mean_average_precision"), abs=0.02
    )
    assert recorded("coco18", "asl", "CF1") > recorded("coco18", "bce", "CF1") + 0.02
    assert recorded("coco18", "asl", "ece") > 0.1 > recorded("coco18", "bce", "ece")
    assert recorded("coco18", "asl", "ece", of="test_calibrated") < recorded("coco18", "asl", "ece") / 2


def test_balanced_softmax_on_a_long_tail():
    assert recorded("cifar10_lt100", "balanced-softmax", "accuracy") > recorded("cifar10_lt100", "ce", "accuracy")
    assert recorded("cifar10_lt100", "balanced-softmax", "ece") < recorded("cifar10_lt100", "ce", "ece")


def test_temperature_helps_all_ten_networks():
    networks = json.loads((RESULTS / "calibration.json").read_text(encoding="utf-8"))["networks"]
    assert len(networks) == 10
    for name, actual in networks.items():
        for before, after in zip(actual["before"], actual["after"]["temperature"], strict=True):
            assert after["nll"] < before["nll"], name


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_costs_of_training_are_the_recorded_ones(device):
    run = json.loads((ROOT / "benchmarks" / "results" / f"train-{device}.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert run["cases"]
    for case in run["cases"]:
        bare, ours, *_ = case["rows"]
        cells = f"| {bare['milliseconds']['median']:.3g} ms | {ours['ratio']['median']:.2f} times |"
        model = case["title"].rpartition(", ")[2]
        assert [line for line in text.splitlines() if f"`{model}`" in line and line.endswith(cells)], cells
        others = [row["ratio"]["median"] for row in case["rows"][2:]]
        message = text.partition("The other losses")[2].partition("\n##")[0]
        assert f"{min(others):.2f}" in message
        assert f"{max(others):.2f}" in message


@pytest.mark.parametrize("name", [*COMPARED.values(), "digits_lt_methods"])
def test_recorded_verdicts_of_earlier_formats_are_read(name):
    recorded = read(name)["verdict"]
    verdict = as_verdict(recorded)
    assert verdict.format == recorded["format"] < FORMAT
    assert verdict.rule == "Student's t"
    assert verdict.main_metric == recorded["main"]
    assert verdict.test_samples == recorded["tested"]
    assert [(row.loss, row.mean(verdict.main_metric)) for row in verdict.rows] == [
        (row["loss"], row["values"][recorded["main"]]["mean"]) for row in recorded["rows"]
    ]
    assert [(one.p_adjusted, one.significant) for one in verdict.differences] == [
        (one["p_corrected"], one["real"]) for one in recorded["differences"]
    ]
    assert as_verdict(replace(verdict, format=FORMAT).to_json()) == replace(verdict, format=FORMAT)


@pytest.mark.parametrize("name", [*COMPARED.values(), "digits_lt", "digits_lt_methods"])
def test_a_record_names_the_system_and_not_its_kernel(name):
    assert read(name)["environment"]["platform"] == "Linux x86_64"
