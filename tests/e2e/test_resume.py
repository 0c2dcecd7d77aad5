"""A killed run resumes with the result of an uninterrupted one; the seed determines a run."""

import json
import os
import signal
import time

import numpy as np
import pytest

from equipoise.tasks import Task
from equipoise.train.folder import RunFolder
from tests.e2e.commands import assert_same_run, contents, killed, predictions, rows, rows_there

EPOCHS = 8
MOVING = {
    "data": "digits-lt",
    "model": "mlp",
    "model_options": ["hidden=[64]", "dropout=0.3"],
    "augment": "crop:1,erase:0.3",
    "sampler": "progressive",
    "loss": "recall:momentum=0.9+0.1*focal:gamma=linear(5,1)",
    "optimizer": "sgd",
    "lr": 0.05,
    "ema": 0.9,
    "epochs": EPOCHS,
    "batch_size": 8,
}
"""Everything that moves: momentum, dropout, augmentation, sampler, averages of weights and of recalls, schedules."""


@pytest.fixture(scope="module")
def whole(equipoise, tmp_path_factory):
    """A run that nothing disturbed."""
    return equipoise.train(tmp_path_factory.mktemp("whole"), **MOVING)


def test_killed_run_resumes(equipoise, tmp_path, whole):
    for after in (2, 4):  # twice
        run = killed(equipoise, tmp_path, rows_there(after), **MOVING)
        assert after <= len(list(run.history())) < EPOCHS
    finished = equipoise(tmp_path, "train", out="run", **MOVING)
    assert finished.status == 0, finished.err
    assert "resuming an earlier attempt" in finished.out
    assert f"epoch 2/{EPOCHS}" not in finished.out
    assert_same_run(run, whole)
    log = (run.path / "logs" / "metrics.csv").read_text()
    assert log.count("\n") == EPOCHS + 1
    assert not (run.path / "resume.ckpt").exists()


def test_killed_run_with_a_task_name_of_version_0_1_resumes(equipoise, tmp_path):
    settings = {"data": "digits-lt", "model": "linear", "epochs": 200}
    run = killed(equipoise, tmp_path, rows_there(2), task="single", **settings)
    file = run.draft / "spec.json"
    written = json.loads(file.read_text())
    assert written["task"] == "multiclass"
    file.write_text(json.dumps(written | {"task": "single"}))
    for name in ("multiclass", "single"):
        finished = equipoise(tmp_path, "train", out="run", task=name, **settings)
        assert finished.status == 0, finished.err
        assert ("resuming an earlier attempt" in finished.out) == (name == "multiclass")
    assert "run is finished already" in finished.out
    assert run.record.data.task is run.results.test.task is Task.MULTICLASS


@pytest.mark.slow
def test_killed_while_it_wrote_a_row(equipoise, tmp_path, whole):
    run = killed(equipoise, tmp_path, rows_there(3), **MOVING)
    with (run.draft / "history.jsonl").open("a") as history:
        history.write('{"epoch": 3, "ste')
    assert_same_run(equipoise.train(tmp_path, **MOVING), whole)


@pytest.mark.slow
def test_killed_before_the_first_checkpoint(equipoise, tmp_path, whole):
    run = killed(equipoise, tmp_path, rows_there(1), **MOVING)
    run.resume_point.unlink(missing_ok=True)
    assert_same_run(equipoise.train(tmp_path, **MOVING), whole)


@pytest.mark.slow
def test_killed_after_the_first_checkpoint(equipoise, tmp_path, whole):
    """An epoch that is not trained again must have its row by that time."""
    run = killed(equipoise, tmp_path, lambda run: run.resume_point.is_file(), **MOVING)
    assert list(run.history())
    assert_same_run(equipoise.train(tmp_path, **MOVING), whole)


def test_killed_while_it_predicted(equipoise, tmp_path, whole):
    """The training is finished, and no epoch is trained again."""
    run = killed(equipoise, tmp_path, lambda run: run.predictions("val").is_file(), **MOVING)
    assert len(rows(run)) == EPOCHS
    finished = equipoise(tmp_path, "train", out="run", **MOVING)
    assert finished.status == 0, finished.err
    assert f"epoch {EPOCHS}/{EPOCHS}" not in finished.out
    assert_same_run(run, whole)


def test_interrupted_run_gives_advice_on_resuming(equipoise, tmp_path):
    run = RunFolder(tmp_path / "run")
    process = equipoise.start(tmp_path, "train", out="run", **MOVING | {"epochs": 2000})
    while not rows_there(1)(run):
        time.sleep(0.01)
    os.kill(process, signal.SIGINT)
    finished = equipoise.wait()
    assert finished.status not in (0, -signal.SIGINT)
    assert "Traceback" not in finished.err
    assert "the same command" in finished.err
    assert not run.finished


def test_the_same_seed_gives_the_same_run(equipoise, tmp_path, whole):
    assert_same_run(equipoise.train(tmp_path, **MOVING), whole)


def test_another_seed_gives_another_run(equipoise, tmp_path, whole):
    other = equipoise.train(tmp_path, seed=1, **MOVING)
    assert rows(other)[0]["train"]["loss"] != rows(whole)[0]["train"]["loss"]
    assert not np.array_equal(predictions(other, "test")["logits"], predictions(whole, "test")["logits"])
    assert np.array_equal(predictions(other, "test")["targets"], predictions(whole, "test")["targets"])


def test_folder_of_another_run_is_refused(equipoise, tmp_path):
    run = killed(equipoise, tmp_path, rows_there(1), **MOVING | {"epochs": 50})
    finished = equipoise(tmp_path, "train", out="run", **MOVING | {"epochs": 50, "lr": 0.01, "ema": 0.5})
    assert finished.status == 2
    assert "a run with lr=0.05 (this one has 0.01), ema=0.9 (this one has 0.5)" in finished.err
    assert "--restart" in finished.err
    again = MOVING | {"epochs": 1, "lr": 0.01}
    assert len(list(equipoise.train(tmp_path, restart=True, **again).history())) == 1
    assert run.finished


def test_finished_run_is_not_changed(equipoise, tmp_path, whole):
    before = contents(whole.path)
    folder = whole.path.parent
    again = equipoise(folder, "train", out="run", **MOVING)
    assert (again.status, again.err) == (0, "")
    assert "finished already" in again.out
    for options in ({}, {"restart": True}):
        other = equipoise(folder, "train", out="run", **MOVING | {"lr": 0.01}, **options)
        assert other.status == 2
        assert "choose another --out" in other.err
        assert "--restart" not in other.err
    assert before == {
        file: (file.stat().st_mtime_ns, file.read_bytes()) for file in whole.path.rglob("*") if file.is_file()
    }
