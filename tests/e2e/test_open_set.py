"""Samples of unknown classes in ``equipoise train`` and ``equipoise compare``."""

import numpy as np
import pytest

from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.open_set import OPEN_METRICS
from equipoise.comparison.verdict import read_verdict
from equipoise.data import Arrays, digits_lt, hold_out
from equipoise.data.opening import resized
from equipoise.evaluation import OpenSetEvaluation, evaluate_open_set
from equipoise.predictions import open_predictions
from equipoise.train.folder import RunFolder, plain
from tests.data.making import class_folders, picture
from tests.e2e.commands import assert_same_run, contents, killed, predictions, rows_there
from tests.marks import slow

DIGITS = {"data": "digits-lt", "model": "mlp", "epochs": 3}


@pytest.fixture(scope="module")
def held_out(equipoise, tmp_path_factory):
    """A run with classes 8 and 9 held out, and its output."""
    folder = tmp_path_factory.mktemp("held out")
    finished = equipoise(folder, "train", out="run", open_classes="8,9", **DIGITS)
    assert finished.status == 0, finished.err
    return RunFolder(folder / "run"), finished.out


def recomputed(run):
    """The open-set evaluation of the predictions of a run."""
    val, test = (open_predictions(run.predictions(split)) for split in ("val", "test"))
    unknown = open_predictions(run.predictions("open"), targets=False)
    return OpenSetEvaluation.from_json(plain(evaluate_open_set(test, unknown, val=val).to_json()))


def test_held_out_classes_are_evaluated_only(held_out):
    run, _ = held_out
    known, unknown = hold_out(digits_lt(), "8,9")
    data = run.record.data
    assert data.class_names == list("01234567")
    assert data.train_counts == known.train_counts.tolist()
    assert data.samples == {"train": len(known.train), "val": 160, "test": 320, "open": len(unknown)}
    assert "Held out as unknown: 8, 9, with 80 test samples" in data.notes[-1]
    arrays = predictions(run, "open")
    assert arrays["logits"].shape == (80, 8)
    assert (arrays["targets"] == -100).all()
    assert run.results.open == recomputed(run)
    assert run.results.open.main == "accept"
    assert run.results.test.samples == 320


def test_output_of_an_open_set(held_out):
    run, output = held_out
    assert "Held out as unknown: 8, 9" in output
    assert "95 % accepted" in output
    assert f"of the {run.results.open.unknown} unknown samples are rejected" in output
    area = run.results.open.overall["auroc"]
    assert f"in {100 * area:.2f} % of the pairs (AUROC)" in output


def test_open_set_from_a_file_is_prepared_like_test_data(equipoise, tmp_path):
    """The test images as an open set, in their size and four times as large."""
    images = digits_lt().test.inputs
    large = images.repeat(4, 2).repeat(4, 3)
    small = resized(Arrays(large, np.zeros(len(large))), (8, 8), "stretch").inputs
    np.savez(tmp_path / "same.npz", images=np.concatenate([images, small]), layout="nchw")
    np.savez(tmp_path / "large.npz", images=large, layout="nchw")
    run = equipoise.train(tmp_path, open_set="same.npz", **DIGITS)
    as_they_are, made_small = np.split(predictions(run, "open")["logits"], 2)
    np.testing.assert_allclose(as_they_are, predictions(run, "test")["logits"], atol=1e-5)
    assert run.record.data.notes[-1] == "Open set: 800 samples of unknown classes in same.npz."
    assert run.record.data.class_names == list("0123456789")
    assert run.results.open == recomputed(run)
    of_large = equipoise.train(tmp_path, open_set="large.npz", out="large", **DIGITS)
    np.testing.assert_allclose(predictions(of_large, "open")["logits"], made_small, atol=1e-5)


@pytest.mark.parametrize("options", [{"workers": 0}, *slow({"cache": True}, {"image_size": 8})], ids=str)
def test_images_of_another_size_in_a_folder(equipoise, tmp_path, options):
    for split, count in (("train", 6), ("val", 2), ("test", 2)):
        class_folders(tmp_path / "photos" / split, count)
    for i, size in enumerate([(12, 10), (30, 20), (5, 7)]):
        picture(tmp_path / "others" / str(i) / "x.png", 40 * i, size)
    run = equipoise.train(tmp_path, data="photos", open_set="others", model="linear", epochs=2, batch_size=2, **options)
    assert predictions(run, "open")["logits"].shape == (3, 3)
    assert run.results.open.unknown == 3


def test_texts(equipoise, tmp_path):
    lines = [f"{word} {word} again,{word}" for word in ("cat", "dog", "emu") for _ in range(20)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]))
    run = equipoise.train(tmp_path, data="texts.csv", open_classes="emu", epochs=1)
    assert run.record.data.class_names == ["cat", "dog"]
    assert run.results.open.unknown == run.record.data.samples["open"] == 3


def test_a_class_without_training_samples_may_be_held_out(equipoise, tmp_path):
    labels = np.arange(90) % 3
    split = np.where(labels == 2, 2, np.arange(90) // 30)
    features = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)
    (tmp_path / "data").mkdir()
    for number, name in enumerate(("train", "val", "test")):
        own = split == number
        np.savez(tmp_path / "data" / f"{name}.npz", features=features[own], labels=labels[own])
    run = equipoise.train(
        tmp_path, data="data", class_names="a,b,c", open_classes="c", model="linear", epochs=1, batch_size=8
    )
    assert run.record.data.samples["open"] == 30


def test_method_with_two_stages(equipoise, tmp_path):
    run = equipoise.train(tmp_path, method="oltr", open_classes="3,8", **DIGITS)
    assert run.results.open == recomputed(run)
    first = RunFolder(run.path / "stage-one")
    assert first.record.data.class_names == run.record.data.class_names == list("01245679")
    again = equipoise.train(tmp_path, method="crt", open_classes="3,8", stage_one=first.path, out="crt", **DIGITS)
    assert again.results.open is not None
    other = equipoise(tmp_path, "train", method="crt", open_classes="8", stage_one=first.path, out="other", **DIGITS)
    assert other.status == 2
    assert "with open_classes ['3', '8'] in place of ['8']" in other.err


def test_interrupted_run_resumes(equipoise, held_out, tmp_path):
    run = killed(equipoise, tmp_path, rows_there(1), open_classes="8,9", **DIGITS)
    finished = equipoise(tmp_path, "train", out="run", open_classes="8,9", **DIGITS)
    assert finished.status == 0, finished.err
    assert_same_run(run, held_out[0])
    np.testing.assert_array_equal(predictions(run, "open")["logits"], predictions(held_out[0], "open")["logits"])


def test_another_open_set_is_another_run(equipoise, held_out):
    run, _ = held_out
    before = contents(run.path)
    for options in ({}, {"open_classes": "9,8"}, {"open_classes": "9"}):
        result = equipoise(run.path.parent, "train", out="run", **DIGITS, **options)
        assert result.status == 2
        assert "already holds a run with open_classes=8,9 (this one has" in result.err
    assert contents(run.path) == before


MISTAKES = {
    "both": ({"open_classes": "8", "open_set": "x.npz"}, "open_classes: open_classes and open_set exclude each other"),
    "no such class": (
        {"open_classes": "8,ten"},
        "must be a name or an index from 0 to 9, found 'ten'",
    ),
    "a name that is near": ({"open_classes": "88"}, "did you mean '8'?"),
    "twice": ({"open_classes": "8,8"}, "every class can be held out only once, found '8' twice"),
    "all but one": ({"open_classes": "0,1,2,3,4,5,6,7,8"}, "at least two classes must remain"),
    "nothing": ({"open_classes": ""}, "there must be a class to hold out"),
    "several labels": ({"open_classes": "8", "data": "digit-scenes"}, "single-label data, found task 'multilabel'"),
    "segmentation": ({"open_classes": "8", "data": "digit-maps"}, "single-label data, found task 'segmentation'"),
    "file, several labels": (
        {"open_set": "x.npz", "data": "digit-scenes"},
        "single-label data, found task 'multilabel'",
    ),
    "no such file": ({"open_set": "gone"}, "gone: there must be an .npz or a folder of images, found nothing"),
    "other samples": ({"open_set": "x.npz"}, "must be of the kind of digits-lt, images of 1 channel, 8 x 8"),
}


COMPARED = ("both", "no such class", "several labels")


@pytest.mark.parametrize(
    ("command", "mistake"), [*(("train", one) for one in MISTAKES), *(("compare", one) for one in COMPARED)]
)
def test_mistakes(equipoise, tmp_path, command, mistake):
    options, words = MISTAKES[mistake]
    np.savez(tmp_path / "x.npz", features=np.zeros((4, 3), np.float32))
    result = equipoise(tmp_path, command, out="new", **{**DIGITS, **options})
    assert result.status == 2, result
    assert words in result.err
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err + result.out
    assert {path.name for path in tmp_path.iterdir()} == {"x.npz", "stdout.txt", "stderr.txt"}


@pytest.mark.slow
def test_a_comparison(equipoise, tmp_path):
    (tmp_path / "spec.yaml").write_text(
        "data: digits-lt\nmodel: mlp\nepochs: 2\nopen_classes: [8, 9]\nmethods: [ce, tau-norm]\nseeds: 2\n"
    )
    finished = equipoise(tmp_path, "compare", "spec.yaml", out="compared", jobs=1)
    assert finished.status == 0, finished.err
    folder = ComparisonFolder(tmp_path / "compared")
    assert all(run.folder.record.data.class_names == list("01234567") for run in folder.finished)
    verdict = read_verdict(folder.verdict)
    assert set(OPEN_METRICS) <= set(verdict.metrics)
    for row in verdict.rows:
        runs = [run.folder.results.open.overall for run in folder.finished if run.loss == row.chosen]
        for name in OPEN_METRICS:
            assert row.metrics[name].per_seed == tuple(overall[name] for overall in runs)
            assert row.metrics[name].std == pytest.approx(np.std([overall[name] for overall in runs], ddof=1))
    compared = {one.metric for one in verdict.differences if one.interval is not None}
    assert set(OPEN_METRICS) <= compared
    for words in ("F-measure", "AUROC", "unknown rejected", "accuracy with rejection"):
        assert words in finished.out
    page = folder.report.read_text()
    assert 'id="open-set"' in page
    assert "80 samples of unknown classes and 320 test samples" in page
    assert "--open-classes 8,9" in page
    result = equipoise(tmp_path, "report", "compared", csv="a.csv", markdown="a.md", latex="a.tex")
    assert result.status == 0, result.err
    assert "tau-norm,tau-norm,2,open_accuracy," in (tmp_path / "a.csv").read_text()
    assert "| known rejected |" in (tmp_path / "a.md").read_text()
    assert "& known rejected &" in (tmp_path / "a.tex").read_text()
