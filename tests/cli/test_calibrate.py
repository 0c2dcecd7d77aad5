"""The ``equipoise calibrate`` command."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import equipoise.calibration
from equipoise.calibration import METHODS, Method, Temperature, Thresholds, load
from equipoise.evaluation.split import FitSplit
from equipoise.metrics import MultilabelScores, NegativeLogLikelihood, shot_groups
from equipoise.predictions import open_predictions, source
from tests.cli.test_evaluate import command, refused, run
from tests.predictions.saved import CASES, all_of, arrays_of, save, table_of

EVERY = [(name, task) for name, method in METHODS.items() for task in sorted(method.tasks)]
SUFFIX = {"npz": ".npz", "folder": "", "csv": ".csv", "parquet": ".parquet"}


def tensors(arrays):
    return torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["targets"])


def nll_of(logits, targets, task):
    metric = NegativeLogLikelihood(kind="multilabel" if task == "multilabel" else "multiclass")
    metric.update(logits, targets)
    return float(metric.compute())


def fitted_directly(name, logits, targets, arrays):
    counts = arrays["train_counts"].tolist()
    groups = [("many", "medium", "few")[group] for group in shot_groups(counts)]
    given = {"groups": groups, "train_counts": counts}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = METHODS[name].fit(logits, targets, **{key: given[key] for key in METHODS[name].needs})
    return replace(fitted, class_names=tuple(arrays["class_names"].tolist()) if "class_names" in arrays else ())


# Fitting --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "task"), EVERY)
def test_methods_are_fitted_on_one_part_and_reported_on_the_other(tmp_path, name, task):
    arrays = arrays_of(task, samples=300)
    path, out = save(tmp_path, "npz", arrays), tmp_path / "fit.json"
    ran = run("calibrate", path, "--method", name, "--out", out, "--json", "--split", 0.6, "--seed", 3)
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout, parse_constant=pytest.fail)
    logits, targets = tensors(arrays)
    first = torch.cat([part.first for part in FitSplit(open_predictions(path), 3, 0.6).parts()])
    expected = fitted_directly(name, logits[first], targets[first], arrays)
    kept = fitted_directly(name, logits, targets, arrays)
    assert load(out) == kept  # judged on samples it has not seen, then all of them are used
    assert (report["judged"], report["fitted"]) == (expected.describe(), kept.describe())
    assert (report["judged_fitted_on"], report["fitted_on"]) == (expected.samples, kept.samples)
    assert report["reported_on"] == int((~first).sum())
    assert 0.45 * 300 < int(first.sum()) < 0.75 * 300
    assert report["before"]["nll"] == pytest.approx(nll_of(logits[~first], targets[~first], task))
    assert report["after"]["nll"] == pytest.approx(nll_of(expected(logits[~first]), targets[~first], task))
    if METHODS[name].keeps_accuracy:
        key = "OF1" if task == "multilabel" else "accuracy"
        assert report["after"][key] == report["before"][key]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fit.json", "saved.npz"]


@pytest.mark.parametrize("task", ["multiclass", "segmentation"])
def test_on_another_file(tmp_path, task):
    arrays, others = arrays_of(task, samples=200), arrays_of(task, samples=100, seed=8)
    path, other = save(tmp_path, "npz", arrays, "a"), save(tmp_path, "folder", others, "b")
    ran = run("calibrate", path, "--method", "temperature", "--out", tmp_path / "fit.json", "--on", other, "--json")
    report = json.loads(ran.stdout)
    logits, targets = tensors(arrays)
    expected = fitted_directly("temperature", logits, targets, arrays)
    assert load(tmp_path / "fit.json") == expected  # on all of the file
    assert report["fitted"] == report["judged"] == expected.describe()
    held, labels = tensors(others)
    assert report["reported_on"] == 100
    assert report["after"]["nll"] == pytest.approx(nll_of(expected(held), labels, task))
    assert report["after"]["nll"] < report["before"]["nll"]


def test_memorising_fit_gains_nothing(tmp_path, monkeypatch):
    class Memory(Temperature):
        def _apply(self, logits):
            return torch.where(torch.isin(logits, seen[0]), -100 * logits, logits)

    seen = []
    memory = Method("memory", lambda z, t, **_: seen.append(z) or Memory(1.0, samples=len(z)), {"multiclass"}, True, "")
    monkeypatch.setattr(equipoise.calibration, "METHODS", {"memory": memory})
    monkeypatch.setattr(equipoise.calibration, "save", lambda fitted, path: None)
    path = save(tmp_path, "npz", arrays_of("multiclass"))
    report = json.loads(run("calibrate", path, "--method", "memory", "--out", tmp_path / "x.json", "--json").stdout)
    assert report["after"] == report["before"]
    assert 80 < len(seen[0]) < 160


def test_probabilities_are_calibrated_as_log_probabilities(tmp_path):
    reports = []
    for probs in (False, True):
        path = save(tmp_path, "npz", arrays_of("multiclass", probs=probs), f"p{probs}")
        ran = run("calibrate", path, "--method", "temperature", "--out", tmp_path / "fit.json", "--json")
        reports.append(json.loads(ran.stdout))
    assert reports[0]["after"]["nll"] == pytest.approx(reports[1]["after"]["nll"], rel=1e-6)


FIT_ON_ALL = "saved fit, on all samples"


def test_the_table(tmp_path):
    path, out = save(tmp_path, "npz", arrays_of("multiclass")), tmp_path / "fit.json"
    report = json.loads(run("calibrate", path, "--method", "vector", "--out", out, "--json").stdout)
    ran = run("calibrate", path, "--method", "vector", "--out", out)
    assert ran.exit_code == 0
    assert re.search(rf"^NLL +{report['before']['nll']:.4f} +{report['after']['nll']:.4f}$", ran.stdout, re.MULTILINE)
    assert f"reported on {report['reported_on']} other samples" in ran.stdout
    assert f"{FIT_ON_ALL}: {report['fitted']}" in " ".join(ran.stdout.split())
    assert f"wrote {out}" in ran.stdout.replace("\n", " ")


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_groups_before_and_after(tmp_path, task):
    """Groups on the other file, as ``evaluate`` reports them before and after."""
    path = save(tmp_path, "npz", arrays_of(task, seed=1), "a")
    other = save(tmp_path, "npz", {k: v for k, v in arrays_of(task, seed=2).items() if k != "train_counts"}, "b")
    fit, out = tmp_path / "fit.json", tmp_path / "out.npz"
    method = () if task == "multilabel" else ("--method", "vector")
    report = json.loads(run("calibrate", path, "--on", other, *method, "--out", fit, "--json").stdout)
    run("calibrate", "--apply", fit, other, "--out", out)
    counts = ",".join(str(int(count)) for count in arrays_of(task)["train_counts"])
    for when, file in (("before", other), ("after", out)):
        groups = json.loads(run("evaluate", file, "--train-counts", counts, "--json").stdout)["groups"]
        assert [row["name"] for row in report["groups"][when]] == ["many", "medium", "few"]
        for row, expected in zip(report["groups"][when], groups, strict=True):
            assert row == pytest.approx(expected, abs=1e-9)
    shown = run("calibrate", path, "--on", other, *method, "--out", fit).stdout
    before, after = (report["groups"][when][2]["ece"] for when in ("before", "after"))
    assert re.search(rf"^few +\d.* {100 * before:.2f} +{100 * after:.2f}$", shown, re.MULTILINE)
    assert FIT_ON_ALL not in " ".join(shown.split())


def test_no_groups_without_counts(tmp_path):
    path = save(tmp_path, "npz", arrays_of("multiclass", counts=False))
    out = tmp_path / "fit.json"
    assert json.loads(run("calibrate", path, "--out", out, "--json").stdout)["groups"] == {"before": [], "after": []}
    printed = run("calibrate", path, "--out", out).stdout
    assert re.findall("^(?:many|medium|few) ", printed, re.MULTILINE) == []


@pytest.mark.parametrize(("task", "kind"), [("multiclass", "temperature"), ("multilabel", "label-temperatures")])
def test_the_default_method(tmp_path, task, kind):
    path, out = save(tmp_path, "npz", arrays_of(task)), tmp_path / "fit.json"
    assert run("calibrate", path, "--out", out).exit_code == 0
    assert load(out).kind == kind


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
@pytest.mark.parametrize("suffix", [".npz", "", ".csv", ".parquet"])
@pytest.mark.parametrize("scores", ["logits", "probs"])
def test_apply_to_scores_without_targets(tmp_path, task, suffix, scores):
    if task == "segmentation" and suffix in (".csv", ".parquet"):
        pytest.skip("a table holds no label maps")
    arrays = arrays_of(task, samples=40)
    fit = tmp_path / "fit.json"
    assert run("calibrate", save(tmp_path, "npz", arrays, "a"), "--out", fit).exit_code == 0
    logits = torch.from_numpy(arrays["logits"])
    given = logits if scores == "logits" else logits.sigmoid() if task == "multilabel" else logits.softmax(1)
    new, out = tmp_path / "new.npz", tmp_path / f"out{suffix}"
    np.savez(new, **{scores: given.numpy(), "class_names": arrays["class_names"]})
    ran = run("calibrate", "--apply", fit, new, "--out", out)
    assert ran.exit_code == 0, ran.output
    again = open_predictions(out, unlabelled=load(fit).task)
    assert not again.labelled
    assert again.from_logits == (scores == "logits")
    actual = torch.from_numpy(np.concatenate([chunk.scores for chunk in again.chunks()]))
    expected = load(fit)(logits)
    if scores == "probs":
        expected = expected.sigmoid() if task == "multilabel" else expected.softmax(1)
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-4, atol=1e-5)
    refused = run("evaluate", out)
    assert refused.exit_code == 2
    assert "target" in refused.stderr


def test_a_fit_of_classes_in_another_order_is_refused(tmp_path):
    arrays = arrays_of("multiclass")
    fit = tmp_path / "fit.json"
    assert run("calibrate", save(tmp_path, "npz", arrays, "a"), "--method", "vector", "--out", fit).exit_code == 0
    turned = arrays | {"logits": arrays["logits"][:, ::-1], "class_names": arrays["class_names"][::-1]}
    ran = run("calibrate", "--apply", fit, save(tmp_path, "npz", turned, "b"), "--out", tmp_path / "o.npz")
    assert ran.exit_code == 2
    assert "order them alike" in ran.stderr
    assert not (tmp_path / "o.npz").exists()


def test_gamma_of_training(tmp_path):
    path, out = save(tmp_path, "npz", arrays_of("multiclass")), tmp_path / "fit.json"
    assert run("calibrate", path, "--method", "focal", "--gamma", 2.0, "--out", out).exit_code == 0
    assert load(out).gamma == 2.0


def test_biases_of_labels(tmp_path):
    arrays = arrays_of("multilabel")
    arrays["logits"] += 2.0  # as a loss leaves them that cares for positives first
    path, out = save(tmp_path, "npz", arrays), tmp_path / "fit.json"
    reports = [json.loads(run("calibrate", path, "--out", out, "--json", *more).stdout) for more in ((), ("--bias",))]
    assert all(bias < -0.5 for bias in load(out).biases)
    assert reports[1]["after"]["nll"] < reports[0]["after"]["nll"] - 0.03


def test_help_names_every_method():
    text = " ".join(run("calibrate", "--help", columns=300).stdout.split())
    for name in METHODS:
        assert name in text


# Applying -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "form", "to"), [(*case, to) for case in CASES for task, to in CASES if task == case[0]]
)
def test_a_fit_is_applied_to_every_format(tmp_path, monkeypatch, task, form, to):
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 300)  # several chunks
    arrays = arrays_of(task, samples=120)
    path, fit = save(tmp_path, form, arrays), tmp_path / "fit.json"
    method = "label-temperatures" if task == "multilabel" else "temperature"
    assert run("calibrate", path, "--method", method, "--out", fit).exit_code == 0
    out = tmp_path / f"corrected{SUFFIX[to]}"
    ran = run("calibrate", "--apply", fit, path, "--out", out)
    assert ran.exit_code == 0, ran.output
    assert f"wrote {out}" in ran.stdout
    predictions = open_predictions(out)
    logits, targets = tensors(arrays)
    scores, labels = all_of(predictions)
    np.testing.assert_allclose(scores, load(fit)(logits).numpy(), rtol=1e-12)
    np.testing.assert_array_equal(labels, targets)
    assert (predictions.task, predictions.class_names) == (task, tuple(arrays["class_names"]))


@pytest.mark.parametrize(("name", "task"), EVERY)
def test_applied_fit_has_the_reported_metrics(tmp_path, name, task):
    """Fit on one file, report on another, apply to it: ``evaluate`` gives the same numbers."""
    fit_on, other = (save(tmp_path, "npz", arrays_of(task, seed=seed), f"s{seed}") for seed in (1, 2))
    fit, out = tmp_path / "fit.json", tmp_path / "corrected.npz"
    ran = run("calibrate", fit_on, "--on", other, "--method", name, "--out", fit, "--json")
    report = json.loads(ran.stdout)
    assert run("calibrate", "--apply", fit, other, "--out", out).exit_code == 0
    evaluation = json.loads(run("evaluate", out, "--json").stdout)
    for key, value in report["after"].items():
        assert evaluation["overall"][key] == pytest.approx(value, abs=1e-9), key


def test_thresholds_decide_at_one_half(tmp_path):
    arrays = arrays_of("multilabel", samples=600)
    path, fit, out = save(tmp_path, "npz", arrays), tmp_path / "fit.json", tmp_path / "out.npz"
    run("calibrate", path, "--method", "thresholds", "--out", fit)
    run("calibrate", "--apply", fit, path, "--out", out)
    logits, targets = tensors(arrays)
    expected = MultilabelScores(6, threshold=load(fit).probabilities)
    expected.update(logits, targets)
    evaluation = json.loads(run("evaluate", out, "--json").stdout)["overall"]
    assert evaluation["OF1"] == pytest.approx(float(expected.compute()["OF1"]))


def test_thresholds_are_listed_by_label(tmp_path):
    path, fit = save(tmp_path, "npz", arrays_of("multilabel", samples=600)), tmp_path / "fit.json"
    ran = run("calibrate", path, "--method", "thresholds", "--out", fit)
    kept = load(fit)
    for name, threshold, f1 in zip(kept.class_names, kept.probabilities, kept.f1, strict=True):
        row = f"{name} {threshold:.3f} {100 * f1:.2f}"
        assert row in [" ".join(line.split()) for line in ran.stdout.splitlines()]
    thresholds = json.loads(run("calibrate", path, "--method", "thresholds", "--out", fit, "--json").stdout)[
        "thresholds"
    ]
    assert [row["threshold"] for row in thresholds] == pytest.approx(kept.probabilities)


def test_thresholds_of_many_labels_are_abbreviated(tmp_path):
    draw = np.random.default_rng(0)
    targets = (draw.random((60, 25)) < 0.4).astype(int)
    np.savez(tmp_path / "many.npz", logits=draw.normal(size=(60, 25)) + targets, targets=targets)
    ran = run("calibrate", tmp_path / "many.npz", "--method", "thresholds", "--out", tmp_path / "fit.json")
    assert "and 5 more: --json has all" in ran.stdout


@pytest.mark.parametrize(
    ("task", "method", "words"),
    [
        ("multiclass", "temperature", "logits; their softmax gives the probabilities"),
        ("multilabel", "label-temperatures", "logits; their sigmoid gives the probabilities"),
    ],
)
def test_advice_on_probabilities_from_written_logits(tmp_path, task, method, words):
    path, fit = save(tmp_path, "npz", arrays_of(task)), tmp_path / "fit.json"
    run("calibrate", path, "--method", method, "--out", fit)
    assert words in run("calibrate", "--apply", fit, path, "--out", tmp_path / "out.npz").stdout


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_predictions_are_not_overwritten(tmp_path, form):
    path, fit = save(tmp_path, form, arrays_of("multiclass")), tmp_path / "fit.json"
    run("calibrate", path, "--method", "temperature", "--out", fit)
    before = path.read_bytes()
    link = tmp_path / f"link{path.suffix}"
    link.symlink_to(path)
    for out in (path, link, tmp_path / "." / path.name):
        refused(run("calibrate", "--apply", fit, path, "--out", out), "--out must be another file", "choose a new name")
    assert path.read_bytes() == before
    assert link.is_symlink()


# Bad input ------------------------------------------------------------------------------------------------------------


BAD_OPTIONS = {
    "unknown method": (("--method", "temprature"), "got 'temprature'; did you mean 'temperature'?"),
    "method of several labels": (("--method", "thresholds"), "does not support single-label data", "for this file:"),
    "gamma of another": (("--method", "vector", "--gamma", "2"), "--gamma belongs to --method focal"),
    "nothing to fit on": (("--method", "vector", "--split", "0"), "--split must be between 0 and 1", "--on FILE2"),
    "nothing to report on": (("--method", "vector", "--split", "1"), "--split must be between 0 and 1"),
    "hardly anything to fit on": (("--method", "vector", "--split", "1e-9"), "saved.npz: --method vector cannot be"),
    "hardly anything to report on": (("--method", "vector", "--split", "0.999999999"), "no sample is left to report"),
    "unknown task": (("--method", "vector", "--task", "x"), "--task must be one of", "got 'x'"),
    "wrong counts": (("--method", "prior", "--train-counts", "1,2"), "each of the 6 classes, got 2"),
    "missing other": (("--method", "vector", "--on", "gone.npz"), "gone.npz: there is no such file"),
    "other classes": (
        ("--method", "vector", "--on", "three.npz"),
        "three.npz",
        "multiclass with 6, found multiclass with 3",
    ),
    "other task": (
        ("--method", "vector", "--on", "multilabel.npz"),
        "multilabel.npz",
        "--task multiclass needs targets",
    ),
    "bad other": (("--method", "vector", "--on", "nan.npz"), "nan.npz: logits must be finite"),
    "missing folder": (("--method", "vector", "--out", "gone/fit.json"), "'gone' must exist", "create it first"),
    "no json": (("--method", "vector", "--out", "fit.npz"), "a fit is written as .json, got 'fit.npz'"),
    "a folder": (("--method", "vector", "--out", "taken.json"), "there is a folder of that name"),
    "missing fit": (("--apply", "gone.json"), "gone.json"),
    "method and fit": (("--apply", "fit6.json", "--method", "vector"), "omit --method, --on and --bias"),
    "bias and fit": (("--apply", "fit6.json", "--bias"), "omit --method, --on and --bias"),
    "gamma and fit": (("--apply", "fit6.json", "--gamma", "2"), "omit --method, --on and --bias, and --gamma"),
    "bias of another": (("--bias",), "--bias belongs to --method label-temperatures, got --method temperature"),
    "fit of other classes": (("--apply", "fit3.json", "--out", "o.npz"), "fit3.json", "for 3 classes", "has 6"),
    "fit of other task": (("--apply", "labels.json", "--out", "o.npz"), "labels.json", "for task multilabel"),
    "fit is no JSON": (("--apply", "text.json", "--out", "o.npz"), "text.json", "not valid JSON", "save the fit again"),
    "fit is half": (("--apply", "half.json", "--out", "o.npz"), "half.json", "save the fit again"),
    "fit is other JSON": (("--apply", "other.json", "--out", "o.npz"), "other.json", "without format"),
    "fit has bad numbers": (("--apply", "bad.json", "--out", "o.npz"), "bad.json", "damaged numbers"),
    "fit is a picture": (("--apply", "bytes.json", "--out", "o.npz"), "bytes.json", "not valid JSON"),
    "unknown suffix": (("--apply", "fit6.json", "--out", "o.txt"), "o.txt", ".npz, .csv, .parquet or a folder"),
    "missing folder of predictions": (("--apply", "fit6.json", "--out", "gone/o.npz"), "'gone' must exist"),
    "a folder of predictions": (("--apply", "fit6.json", "--out", "taken"), "there is a folder of that name"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with good and bad files."""
    monkeypatch.chdir(tmp_path)
    arrays = arrays_of("multiclass", samples=40)
    save(tmp_path, "npz", arrays)
    save(tmp_path, "npz", arrays_of("multiclass", samples=40, classes=3), "three")
    save(tmp_path, "npz", arrays_of("multilabel", samples=40), "multilabel")
    broken = {name: value.copy() for name, value in arrays.items()}
    broken["logits"][-1, -1] = np.nan
    save(tmp_path, "npz", broken, "nan")
    for name, classes in (("fit6", 6), ("fit3", 3)):
        equipoise.calibration.save(Temperature(2.0, num_classes=classes), tmp_path / f"{name}.json")
    equipoise.calibration.save(Thresholds((0.0,) * 6), tmp_path / "labels.json")
    good = (tmp_path / "fit6.json").read_text()
    for name, text in {
        "text.json": "temperature = 2",
        "half.json": good[: len(good) // 2],
        "other.json": '{"temperature": 2}',
        "bad.json": good.replace("2.0", "-2.0"),
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bytes.json").write_bytes(bytes(range(256)))
    for name in ("taken", "taken.json"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(place, case):
    options, *words = BAD_OPTIONS[case]
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    out = () if "--out" in options else ("--out", "new.json" if "--apply" not in options else "o.npz")
    refused(run("calibrate", "saved.npz", *options, *out), *words)
    assert {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()} == before
    assert not any((place / "taken").iterdir())


@pytest.mark.parametrize("method", ["prior", "group-temperatures"])
def test_methods_that_need_counts(tmp_path, method):
    path = save(tmp_path, "npz", arrays_of("multiclass", counts=False))
    out = tmp_path / "fit.json"
    refused(run("calibrate", path, "--method", method, "--out", out), "saved.npz", "--train-counts")
    assert not out.exists()
    given = run("calibrate", path, "--method", method, "--out", out, "--train-counts", "500,200,70,30,9,4")
    assert given.exit_code == 0


@pytest.mark.parametrize("method", sorted(name for name, each in METHODS.items() if "multilabel" not in each.tasks))
def test_single_label_methods_refuse_multi_label_data(tmp_path, method):
    path = save(tmp_path, "npz", arrays_of("multilabel", samples=20))
    ran = run("calibrate", path, "--method", method, "--out", tmp_path / "fit.json")
    refused(ran, "does not support multi-label data", "label-temperatures")


@pytest.mark.parametrize("out", ["o.npz", "o", "o.csv", "o.parquet"])
def test_invalid_scores_late_in_the_file_leave_no_output(place, monkeypatch, out):
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 60)
    before = sorted(path.name for path in place.iterdir())
    refused(run("calibrate", "--apply", "fit6.json", "nan.npz", "--out", out), "nan.npz", "at sample 39")
    refused(run("calibrate", "nan.npz", "--method", "vector", "--out", "new.json"), "nan.npz", "at sample 39")
    assert sorted(path.name for path in place.iterdir()) == before


def test_only_ignored_targets(tmp_path):
    arrays = arrays_of("multiclass", samples=20)
    arrays["targets"][:] = -100
    path = save(tmp_path, "npz", arrays)
    ran = run("calibrate", path, "--method", "temperature", "--out", tmp_path / "fit.json")
    refused(ran, "saved.npz: --method temperature cannot be fitted", "ignore_index")
    assert list(tmp_path.iterdir()) == [path]


def test_from_the_command(place):
    ran = command("calibrate", "saved.npz", "--method", "temperature", "--out", "new.json", cwd=place)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    ran = command("calibrate", "--apply", "new.json", "three.npz", "--out", "o.npz", cwd=place)
    assert ran.returncode == 2
    assert re.fullmatch(r"error: new\.json: [^\n]+\n", ran.stderr)
    assert not (place / "o.npz").exists()


# Applying to files of others ------------------------------------------------------------------------------------------


def fit_of(tmp_path, arrays, *options):
    fit = tmp_path / "fit.json"
    ran = run("calibrate", save(tmp_path, "npz", arrays, "fitted_on"), *options, "--out", fit)
    assert ran.exit_code == 0, ran.output
    return fit


def test_file_without_class_names_has_the_order_of_the_fit(tmp_path):
    arrays = arrays_of("multiclass", samples=60)
    fit = fit_of(tmp_path, arrays)
    new = save(tmp_path, "npz", {"logits": arrays["logits"]}, "new")
    ran = run("calibrate", "--apply", fit, new, "--out", tmp_path / "out.npz")
    assert ran.exit_code == 0, ran.output
    assert "new.npz names no classes: they are taken to be in the order of the fit, kind 0, kind 1" in ran.stdout
    with np.load(tmp_path / "out.npz") as out:
        expected = load(fit)(torch.from_numpy(arrays["logits"])).numpy()
        np.testing.assert_array_equal(out["logits"], expected)


@pytest.mark.parametrize("scores", ["logits", "probs"])
@pytest.mark.parametrize("suffix", [".npz", "", ".csv", ".parquet"])
def test_thresholds_write_decisions_that_no_command_reads_as_scores(tmp_path, scores, suffix):
    arrays = arrays_of("multilabel", samples=80, probs=scores == "probs")
    fit = tmp_path / "fit.json"
    path = save(tmp_path, "npz", arrays, "fitted_on")
    ran = run("calibrate", path, "--method", "thresholds", "--out", fit)
    assert "a label is chosen above probability 0.5, whatever its threshold" in " ".join(ran.stdout.split())
    out, again = tmp_path / f"out{suffix}", tmp_path / f"again{suffix}"
    ran = run("calibrate", "--apply", fit, path, "--out", out)
    assert f"a label is chosen above {'0.5' if scores == 'probs' else '0'}," in ran.stdout
    logits = torch.from_numpy(np.log(arrays["probs"]) - np.log1p(-arrays["probs"])) if scores == "probs" else None
    expected = load(fit).decide(torch.from_numpy(arrays["logits"]) if logits is None else logits).numpy()
    np.testing.assert_array_equal(decisions(out, arrays["class_names"]), expected)
    assert 0 < expected.sum() < expected.size
    assert run("evaluate", out).exit_code == 0
    assert run("calibrate", "--apply", fit, out, "--out", again).exit_code == 0
    assert (decisions(again, arrays["class_names"]) != expected).any()  # of the new scores, not those of the file


def decisions(path, names):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return arrays["decisions"]
    if path.suffix == "":
        return np.load(path / "decisions.npy")
    table = (pyarrow.csv.read_csv if path.suffix == ".csv" else pyarrow.parquet.read_table)(path)
    return np.stack([table.column(f"decision_{name}").to_numpy() for name in names], 1) == 1


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_other_columns_of_a_table_are_unchanged(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 60)  # several chunks
    arrays = arrays_of("multiclass", samples=40)
    fit = fit_of(tmp_path, arrays)
    table = table_of(arrays)
    ids = [f"{k:03}" if k < 39 else 'last, "quoted"' for k in range(40)]  # the last rows are of another kind
    table = table.add_column(0, "id", [ids]).append_column("note", [["", "x"] * 20])
    new = tmp_path / f"new{ending}"
    (pyarrow.csv.write_csv if ending == ".csv" else pyarrow.parquet.write_table)(table, new)
    for out in (tmp_path / "out.csv", tmp_path / "out.parquet"):
        assert run("calibrate", "--apply", fit, new, "--out", out).exit_code == 0
        text = pyarrow.csv.ConvertOptions(column_types={"id": "string", "note": "string"})
        read = (
            pyarrow.csv.read_csv(out, convert_options=text) if out.suffix == ".csv" else pyarrow.parquet.read_table(out)
        )
        assert read.column("id").to_pylist() == ids
        assert read.column("note").to_pylist() == ["", "x"] * 20
        assert read.column("target").to_pylist() == table.column("target").to_pylist()
        np.testing.assert_array_equal(all_of(open_predictions(out))[1], arrays["targets"])


def test_fit_applies_to_rounded_probabilities(tmp_path):
    arrays = arrays_of("multiclass", samples=60, probs=True)
    rounded = arrays | {"probs": arrays["probs"].round(3), "targets": arrays["probs"].argmin(1)}
    fit = fit_of(tmp_path, arrays)
    ran = run("calibrate", "--apply", fit, save(tmp_path, "csv", rounded, "new"), "--out", tmp_path / "out.csv")
    assert ran.exit_code == 0, ran.output
    assert "did not sum to 1 to five digits, as rounding leaves" in " ".join(ran.stdout.split())
    assert "NLL" not in ran.stdout  # there is none here
    scores, _ = all_of(open_predictions(tmp_path / "out.csv"))
    np.testing.assert_allclose(scores.sum(1), 1.0, atol=1e-9)


def test_groups_and_classes_have_their_names(tmp_path):
    path = save(tmp_path, "npz", arrays_of("multiclass", samples=300))
    ran = run("calibrate", path, "--method", "group-temperatures", "--out", tmp_path / "fit.json", columns=300)
    assert re.search(r"predicted class: many [\d.]+, medium [\d.]+, few [\d.]+;", ran.stdout)
    ran = run("calibrate", path, "--method", "prior", "--out", tmp_path / "fit.json", columns=300)
    assert re.search(r"^prior correction: kind \d is [\d.]+ times, kind \d [\d.]+ times", ran.stdout)


@pytest.mark.parametrize("option", ["--counts", "--train-counts"])
@pytest.mark.parametrize("command", ["evaluate", "doctor", "calibrate"])
def test_counts_by_either_name(tmp_path, command, option):
    path = save(tmp_path, "npz", arrays_of("multiclass", counts=False))
    rest = ("--out", tmp_path / "fit.json") if command == "calibrate" else ()
    ran = run(command, path, option, "500,200,70,30,9,4", *rest)
    assert ran.exit_code == 0, ran.output
    assert "many" in ran.stdout or "long tail" in ran.stdout


def test_probabilities_saved_as_logits_give_a_hint(tmp_path):
    arrays = arrays_of("multiclass", probs=True)
    probs = arrays.pop("probs")
    for scores, has_hint in ((probs, True), (np.log(probs), False)):
        path = save(tmp_path, "npz", arrays | {"logits": scores})
        ran = run("calibrate", path, "--out", tmp_path / "fit.json")
        assert ran.stderr == ""
        assert ("if that is what they are, save them as probs" in " ".join(ran.stdout.split())) == has_hint
