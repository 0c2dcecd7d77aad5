"""The ``equipoise doctor`` command."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def test_counts_alone():
    result = run("--counts", "5000,500,50,5,0", "--loss", "cb", "--sampler", "balanced")
    assert result.exit_code == 0
    assert result.output.index("problem: classes without training samples") < result.output.index("warning: long tail")
    assert "several corrections for rare classes" in result.output
    assert "--losses 'ce logit-adjusted recall class-balanced'" in result.output  # ready to be pasted


def test_json_of_a_file_with_counts(tmp_path):
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 3, 300)
    np.savez(tmp_path / "p.npz", logits=9 * draw.normal(size=(300, 3)), targets=targets, train_counts=[900, 90, 9])
    report = json.loads(run(tmp_path / "p.npz", "--json").output)
    topics = {finding["about"] for finding in report["findings"]}
    assert {"long tail", "overconfident", "classes with few training samples"} <= topics
    assert report["losses"][-1]["name"] == "CrossEntropyLoss"
    assert report["losses"][-1]["text"] == "ce"
    assert all(finding["advice"] for finding in report["findings"])


def test_multi_label_data_get_advice_on_thresholds(tmp_path):
    draw = np.random.default_rng(1)
    targets = (draw.random((300, 4)) < 0.2).astype(int)
    np.savez(tmp_path / "p.npz", logits=3.0 * targets - 4.0 + draw.normal(0, 0.5, targets.shape), targets=targets)
    result = run(tmp_path / "p.npz")
    assert result.exit_code == 0
    assert "warning: threshold 0.5" in result.output
    assert "  asl " in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "got neither"),
        (["--counts", "5,x"], "5000,500,50"),
        (["--counts", "5,-1"], "not negative"),
        (["--counts", "5000"], "a number for each class, got only '5000'"),
        (["--counts", "0,0", "--loss", "magic"], "magic"),
        (["--counts", "5,4", "--sampler", "magic"], "sampler must be one of"),
        (["--counts", "5,4", "--task", "magic"], "--task must be"),
        (["missing.npz"], "no such file"),
    ],
)
def test_bad_input(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_counts_of_a_file_with_a_byte_order_mark(tmp_path):
    (tmp_path / "counts.csv").write_text("5000,500,50", encoding="utf-8-sig")
    assert "5,000 to 50" in run("--counts", tmp_path / "counts.csv").output


def test_predictions_that_temperature_scaling_does_not_improve(tmp_path):
    draw = np.random.default_rng(3)
    logits = draw.normal(0, 2, (900, 3))
    targets = (logits + draw.gumbel(size=logits.shape)).argmax(1)
    np.savez(tmp_path / "p.npz", logits=logits + np.array([3.0, 0.0, 0.0]), targets=targets)
    result = run(tmp_path / "p.npz")
    assert result.exit_code == 0
    assert "note: a correction improves on temperature scaling" in result.output
    assert "equipoise calibrate FILE --method vector --out fit.json" in " ".join(result.output.split())
