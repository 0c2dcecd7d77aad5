"""One task and its names: new ones everywhere, those of version 0.1 wherever a name or a file comes in."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from equipoise.calibration import (
    FocalPosterior,
    Temperature,
    fit_focal,
    fit_histogram,
    fit_isotonic,
    focal_posterior,
    load,
    logits_from_probs,
    save,
)
from equipoise.catalogue import CATALOGUE
from equipoise.cli.app import app
from equipoise.comparison.damage import damage_of
from equipoise.comparison.judge import judge
from equipoise.comparison.spec import CompareSpec
from equipoise.data import DataSet, open_data
from equipoise.data.errors import DataError
from equipoise.doctor import look_at_counts, suggest
from equipoise.evaluation import Evaluation, evaluate
from equipoise.evaluation.sample_statistics import METRICS as RESAMPLED
from equipoise.metric_registry import METRICS
from equipoise.metrics import BrierScore
from equipoise.predictions import InputError, open_predictions
from equipoise.tasks import Task
from equipoise.train.export import export_run, load_exported
from equipoise.train.spec import RunSpec, SpecError
from tests.predictions.saved import arrays_of
from tests.predictions.saved import save as save_predictions
from tests.report.comparisons import write_comparison
from tests.train.run_folders import images_of, make_run

OLD = {"multiclass": "single", "multilabel": "multi"}
pairs = pytest.mark.parametrize(("new", "old"), OLD.items())


def renamed(path, *, key="task"):
    """Give the tasks in a JSON file the names of version 0.1."""

    def changed(value):
        if isinstance(value, dict):
            return {k: OLD.get(v, v) if k == key and isinstance(v, str) else changed(v) for k, v in value.items()}
        return [changed(one) for one in value] if isinstance(value, list) else value

    before = path.read_text()
    path.write_text(json.dumps(changed(json.loads(before))))
    assert json.loads(path.read_text()) != json.loads(before)


# The task -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", Task)
def test_every_task_has_every_attribute(task):
    for name in Task.__annotations__:
        assert getattr(task, name), name
    assert {task.main, task.monitor, *(name.removesuffix("_after") for name in RESAMPLED[task])} <= METRICS.keys()
    assert {task.monitor} <= set(task.metrics) <= set(RESAMPLED[task])
    assert task.default_loss in {entry.text for entry in CATALOGUE if entry.link in task.losses}
    assert (task.link == "sigmoid") == task.multilabel
    assert (task.unit == "pixel") == task.pixels
    assert json.loads(json.dumps({"task": task})) == {"task": str(task)}
    assert repr(task) == repr(str(task))


def test_names():
    assert [str(task) for task in Task] == ["multiclass", "multilabel", "segmentation"]
    assert Task("single") is Task("binary") is Task.MULTICLASS
    assert Task("multi") is Task.MULTILABEL
    for wrong in ("triple", "Single", "", None, 3, ["single"]):
        with pytest.raises(ValueError, match=r"task must be one of 'multiclass', 'multilabel', 'segmentation', got"):
            Task(wrong)


# Data and predictions -------------------------------------------------------------------------------------------------


@pairs
def test_data(new, old):
    name = {"multiclass": "digits-lt", "multilabel": "digit-scenes"}[new]
    data = open_data(name, task=old)
    assert data.task == new
    assert isinstance(data.task, Task)
    assert np.array_equal(data.train_counts, open_data(name, task=new).train_counts)
    whole = DataSet(name, old, data.class_names, data.train, data.val, data.test)
    assert whole.task is data.task


def test_binary_data(tmp_path):
    inputs, labels = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    np.savez(tmp_path / "two.npz", features=inputs, labels=labels)
    data = open_data(tmp_path / "two.npz", task="binary")
    assert (data.task, len(data.class_names)) == ("multiclass", 2)
    with pytest.raises(DataError, match="digits-lt: task 'binary' must have two classes, got 10; use task 'multiclass"):
        open_data("digits-lt", task="binary")
    with pytest.raises(DataError, match="'multiclass' were requested"):
        open_data("digit-scenes", task="binary")


@pairs
def test_predictions(new, old):
    arrays = arrays_of(new, samples=50)
    source = open_predictions(arrays, task=old)
    assert source.task is Task(new)
    assert evaluate(source) == evaluate(open_predictions(arrays, task=new))
    unlabelled = {"logits": arrays["logits"]}
    assert open_predictions(unlabelled, unlabelled=old).task == new


def test_binary_predictions():
    assert open_predictions(arrays_of("multiclass", classes=2), task="binary").task is Task.MULTICLASS
    with pytest.raises(InputError, match="arrays: task 'binary' must have two classes, got 6; use task 'multiclass'"):
        open_predictions(arrays_of("multiclass"), task="binary")


# Calibration and metrics ----------------------------------------------------------------------------------------------


@pairs
def test_fits(new, old, tmp_path):
    arrays = arrays_of(new)
    logits, targets = torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["targets"])
    for fit in (fit_focal, fit_histogram, fit_isotonic):
        found = fit(logits, targets, task=old)
        assert found == fit(logits, targets, task=new)
        assert found.task is Task(new)
        save(found, tmp_path / "fit.json")
        renamed(tmp_path / "fit.json")
        assert load(tmp_path / "fit.json") == found
    probs = logits.softmax(1)
    assert torch.equal(logits_from_probs(probs, task=old), logits_from_probs(probs, task=new))
    assert torch.equal(focal_posterior(probs, 2.0, task=old), focal_posterior(probs, 2.0, task=new))
    assert FocalPosterior(2.0, task=old) == FocalPosterior(2.0, task=new)


def test_binary_fits():
    logits, targets = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    assert fit_isotonic(logits, targets, task="binary") == fit_isotonic(logits, targets, task="multiclass")
    wide = torch.cat([logits, logits[:, :1]], 1)
    for refused in (
        lambda: fit_focal(wide, targets, task="binary"),
        lambda: fit_histogram(wide, targets, task="binary"),
        lambda: logits_from_probs(wide.softmax(1), task="binary"),
        lambda: focal_posterior(wide.softmax(1), 1.0, task="binary"),
        lambda: Temperature(1.5, num_classes=3, task="binary"),
    ):
        with pytest.raises(ValueError, match="'binary' must have two classes, got 3"):
            refused()


def test_pixels_are_calibrated_as_samples_are():
    logits, targets = torch.randn(8, 3, 4, 4), torch.randint(3, (8, 4, 4))
    assert fit_focal(logits, targets, task="segmentation") == fit_focal(logits, targets, task="multiclass")


def test_the_kind_of_a_score():
    logits, targets = torch.randn(8, 3), torch.arange(8) % 3
    assert BrierScore(kind="single")(logits, targets) == BrierScore()(logits, targets)


# Settings and files of runs -------------------------------------------------------------------------------------------


@pairs
@pytest.mark.parametrize("spec", [RunSpec, CompareSpec])
def test_settings(spec, new, old):
    wanted = spec(data="x", task=old)
    assert wanted.task == new
    assert type(wanted.task) is str
    assert wanted == spec(data="x", task=new)
    assert wanted.differing({"data": "x", "task": old}) == wanted.differing({"data": "x", "task": new}) == {}
    assert wanted.differing({"data": "x", "task": "segmentation"}) == {"task": ("segmentation", new)}
    assert set(wanted.differing({"data": "x", "task": None})) == {"task"}


def test_binary_settings():
    spec = RunSpec(data="x", task="binary")
    assert spec.task == "binary"  # the data tell whether there are two classes
    assert spec.differing({"data": "x", "task": "multiclass"}) == {}
    with pytest.raises(SpecError, match=r": task: task must be one of 'multiclass', .*, got 'triple'; choose one"):
        RunSpec.check({"data": "x", "task": "triple"})


@pairs
def test_a_comparison_of_version_0_1_is_read(tmp_path, new, old):
    folder = write_comparison(tmp_path / "compared", new, seeds=2)
    expected = folder.verdict.read_text()
    known = replace(judge(folder, draws=50), inputs="")  # a digest of the files
    for run in folder.runs:
        renamed(run.folder.path / "run.json")
        renamed(run.folder.path / "results.json")
        renamed(run.folder.path / "calibration.json")
        assert damage_of(run.folder) is None
        assert run.folder.record.data.task is Task(new)
        assert run.folder.results.test.task is Task(new)
    assert replace(judge(folder, draws=50), inputs="") == known
    renamed(folder.verdict)
    read = type(known).from_json(json.loads(folder.verdict.read_text()))
    assert replace(read, inputs="") == known
    assert json.loads(json.dumps(read.to_json())) == json.loads(expected)


def test_an_evaluation_of_version_0_1_is_read():
    known = evaluate(arrays_of("multilabel", samples=40))
    content = known.to_json()
    assert content["task"] == "multilabel"
    assert Evaluation.from_json(content | {"task": "multi"}) == known
    with pytest.raises(InputError, match="task must be one of multiclass, multilabel, segmentation, found 'magic'"):
        Evaluation.from_json(content | {"task": "magic"})


@pairs
def test_an_exported_model_of_version_0_1_is_loaded(tmp_path, new, old):
    make_run(tmp_path / "run", new)
    export_run(tmp_path / "run", tmp_path / "model")
    known = load_exported(tmp_path / "model")
    assert known.task is Task(new)
    renamed(tmp_path / "model" / "model.json")
    again = load_exported(tmp_path / "model")
    assert again.task is known.task
    images = images_of(new)
    assert torch.equal(again(images), known(images))
    assert again.predict(images) == known.predict(images)


# Commands -------------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200", "TERM": "dumb"})


@pairs
def test_commands(tmp_path, new, old):
    path = save_predictions(tmp_path, "npz", arrays_of(new, samples=60))
    for command in ("evaluate", "doctor"):
        results = [run(command, path, "--task", name, "--json") for name in (new, old)]
        assert [each.exit_code for each in results] == [0, 0], results[1].output
        assert results[0].stdout == results[1].stdout
    counted = [run("doctor", "--counts", "500,20,3", "--task", name) for name in (new, old)]
    assert counted[0].stdout == counted[1].stdout != ""
    names = ["a", "b", "c"]
    assert look_at_counts([500, 20, 3], names, old) == look_at_counts([500, 20, 3], names, new)
    assert suggest(old, [500, 20, 3]) == suggest(new, [500, 20, 3])


def test_binary_commands(tmp_path):
    path = save_predictions(tmp_path, "npz", arrays_of("multiclass", samples=60))
    for arguments in (("evaluate", path), ("doctor", path), ("doctor", "--counts", "1,2,3")):
        ran = run(*arguments, "--task", "binary")
        assert ran.exit_code == 2, ran.output
        assert "task 'binary' must have two classes, got" in ran.stderr
    assert run("doctor", "--counts", "500,20", "--task", "binary").exit_code == 0
