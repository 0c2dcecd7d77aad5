"""``equipoise evaluate`` with samples of unknown classes, and its HTML report."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.evaluation import evaluate, evaluate_open_set
from equipoise.predictions import open_predictions, split_open
from equipoise.report.evaluation import evaluation_page
from tests.predictions.saved import arrays_of, save
from tests.report.browser import visit
from tests.report.reading import Reader, labels

UNKNOWN = 50


def run(*arguments, columns=80):
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": str(columns), "TERM": "dumb"})


def refused(ran, *words):
    assert ran.exit_code == 2, ran.output
    assert ran.stdout == ""
    assert re.fullmatch(r"error: [^\n]+\n", ran.stderr), ran.stderr
    for word in words:
        assert word in ran.stderr, ran.stderr


def unknown_logits(seed=5):
    return np.random.default_rng([seed, 11]).normal(size=(UNKNOWN, 6))


@pytest.fixture
def files(tmp_path):
    known = arrays_of("multiclass")
    save(tmp_path, "npz", known, "known")
    save(tmp_path, "npz", arrays_of("multiclass", seed=9, names=False), "val")
    np.savez(tmp_path / "open.npz", logits=unknown_logits())
    both = {
        "logits": np.concatenate([known["logits"], unknown_logits()]),
        "targets": np.concatenate([known["targets"], np.full(UNKNOWN, -1)]),
    }
    save(tmp_path, "npz", known | both, "both")
    return tmp_path


def expected(files, **options):
    known, unknown = open_predictions(files / "known.npz"), open_predictions(files / "open.npz", targets=False)
    return replace(evaluate(known, seed=2), open_set=evaluate_open_set(known, unknown, seed=2, **options))


# What it prints -------------------------------------------------------------------------------------------------------


def test_json_is_what_the_library_computes(files):
    ran = run("evaluate", files / "known.npz", "--open-set", files / "open.npz", "--json", "--seed", 2)
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout, parse_constant=pytest.fail) == expected(files).to_json()
    assert "open_set" not in json.loads(run("evaluate", files / "known.npz", "--json").stdout)


def test_threshold_and_validation_data(files):
    val = open_predictions(files / "val.npz")
    command = ["evaluate", files / "known.npz", "--open-set", files / "open.npz", "--json", "--seed", 2]
    assert json.loads(run(*command, "--val", files / "val.npz").stdout) == expected(files, val=val).to_json()
    ran = run(*command, "--val", files / "val.npz", "--open-threshold", 0.4)
    assert json.loads(ran.stdout) == expected(files, val=val, threshold=0.4).to_json()


def test_an_open_label_in_the_same_file(files):
    ran = run("evaluate", files / "both.npz", "--open-label", -1, "--json", "--seed", 2)
    assert ran.exit_code == 0, ran.output
    evaluation, other = json.loads(ran.stdout), expected(files).to_json()
    assert evaluation["open_set"] | {"file": "known.npz", "open_file": "open.npz"} == other["open_set"]
    assert evaluation["overall"] == other["overall"]  # unknown samples are in no closed number
    assert evaluation["samples"] == other["samples"]


def test_open_labels_in_validation_data_choose_the_best_f_measure(files):
    checks = arrays_of("multiclass", seed=9, names=False)
    mixed = checks | {
        "logits": np.concatenate([checks["logits"], unknown_logits(6)]),
        "targets": np.concatenate([checks["targets"], np.full(UNKNOWN, -1)]),
    }
    save(files, "npz", mixed, "mixed_val")
    command = ["evaluate", files / "both.npz", "--open-label", -1, "--json"]
    with_open = json.loads(run(*command, "--val", files / "mixed_val.npz").stdout)["open_set"]["thresholds"]
    without = json.loads(run(*command, "--val", files / "val.npz").stdout)["open_set"]["thresholds"]
    assert [row["chosen_on"] for row in with_open] == ["", "validation data", "validation data"]
    assert [row["chosen_on"] for row in without] == ["", "validation data", "the other half of the samples"]
    assert with_open[1] == without[1]
    sources = split_open(open_predictions(files / "both.npz", open_label=-1))
    val, open_val = split_open(open_predictions(files / "mixed_val.npz", open_label=-1))
    assert with_open == evaluate_open_set(*sources, val=val, open_val=open_val).to_json()["thresholds"]


def test_the_table_holds_the_numbers(files):
    open_set = expected(files).open_set
    ran = run("evaluate", files / "known.npz", "--open-set", files / "open.npz", "--seed", 2)
    assert ran.exit_code == 0
    assert ran.stderr == ""
    assert max(map(len, ran.stdout.splitlines())) <= 80
    table = ran.stdout[ran.stdout.index("open set ") :]
    for label, name in (("F-measure", "f_measure"), ("unknown rejected", "unknown_rejected"), ("few", "few")):
        (line,) = re.findall(rf"^{label} +([\d.].*)$", table, re.MULTILINE)
        rows = [row.metrics[name] for row in open_set.thresholds]
        values = [open_set.closed[name], *rows] if name in open_set.closed else rows
        assert line.split() == [f"{100 * value:.2f}" for value in values]
    words = " ".join(table.split())
    assert f"in {100 * open_set.auroc['max_probability']:.2f} % of the pairs (AUROC)" in words
    assert "the threshold 0.1 rejects nothing" in words  # six classes


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page(files, tmp_path):
    page = files / "page.html"
    ran = run("evaluate", files / "known.npz", "--open-set", files / "open.npz", "--seed", 2, "--html", page)
    assert ran.exit_code == 0, ran.output
    text, open_set = page.read_text(encoding="utf-8"), expected(files).open_set
    reader = Reader(text)
    assert "Open set" in reader.words
    assert [label for label in labels(reader) if "unknown" in label] == [
        "F-measure, accuracy of the known samples and rejection of the unknown ones over thresholds",
        "Percentage of unknown samples that are rejected over that of known ones",
        "Histograms of the confidence of known and of unknown samples",
    ]
    for row in open_set.thresholds:
        assert f"{100 * row.metrics['f_measure']:.2f}" in reader.words
        assert " / ".join(f"{level:.3g}" for level in row.threshold) in reader.words
    for area in open_set.auroc.values():
        assert f"{100 * area:.2f}" in reader.words
    again = evaluation_page(json.loads(json.dumps(expected(files).to_json())))
    assert re.sub(r"f\d+-", "", again).count("<svg") == text.count("<svg")
    seen = visit(page, tmp_path)
    assert (seen.console, seen.requests) == ([], [])


def test_report_with_few_samples(files):
    """One sample of each kind, probabilities, no groups: no threshold to choose, but still a report."""
    np.savez(files / "one.npz", probs=np.array([[0.7, 0.3]]), targets=np.array([0]))
    np.savez(files / "two.npz", probs=np.array([[0.5, 0.5]]))
    ran = run("evaluate", files / "one.npz", "--open-set", files / "two.npz", "--html", files / "page.html")
    assert ran.exit_code == 0, ran.output
    words = Reader((files / "page.html").read_text(encoding="utf-8")).words
    assert [word for word in words if word.startswith("largest ")] == ["largest probability"]


# Bad input ------------------------------------------------------------------------------------------------------------


def test_bad_input(files):
    np.savez(files / "seven.npz", logits=np.zeros((3, 7)))
    np.savez(files / "none.npz", logits=np.zeros((0, 6)))
    np.savez(files / "maps.npz", logits=np.zeros((3, 6, 2, 2)))
    save(files, "npz", arrays_of("multilabel", samples=20), "multilabel")
    save(files, "npz", arrays_of("segmentation", samples=20), "segmentation")
    before = sorted(files.iterdir())
    known, strange_file, page = files / "known.npz", files / "open.npz", files / "page.html"
    for words, *options in (
        (("seven.npz", "scores of the 6 classes of known.npz, found 7"), known, "--open-set", files / "seven.npz"),
        (("none.npz", "at least one sample"), known, "--open-set", files / "none.npz"),
        (("maps.npz", "requires single-label predictions", "'segmentation'"), known, "--open-set", files / "maps.npz"),
        (("missing.npz", "no such file"), known, "--open-set", files / "missing.npz"),
        (
            ("multilabel.npz", "single-label predictions", "'multilabel'"),
            files / "multilabel.npz",
            "--open-set",
            strange_file,
        ),
        (("'segmentation'", "omit"), files / "segmentation.npz", "--open-set", strange_file),
        (("'multilabel'", "omit it"), files / "multilabel.npz", "--open-label", -7),
        (("no class, got 3", "0 to 5"), known, "--open-label", 3),
        (("differ from the ignored", "-100"), known, "--open-label", -100),
        (("samples with the open label -7, found none",), known, "--open-label", -7),
        (("found -1 at sample 240",), files / "both.npz", "--open-set", strange_file),
        (("use one of them",), known, "--open-label", -1, "--open-set", strange_file),
        (("--open-threshold is for an open set",), known, "--open-threshold", 0.3),
        (("--val is for an open set",), known, "--val", files / "val.npz"),
        (("multilabel.npz", "--task multiclass"), known, "--open-set", strange_file, "--val", files / "multilabel.npz"),
    ):
        refused(run("evaluate", *options, "--html", page), *words)
    assert sorted(files.iterdir()) == before


def test_a_threshold_out_of_range(files):
    ran = run("evaluate", files / "known.npz", "--open-set", files / "open.npz", "--open-threshold", 1.5)
    assert ran.exit_code == 2
    assert "--open-threshold" in ran.stderr
