"""Files of runs and exported models, exactly as version 0.1 wrote them, are read as typed values."""

import json

import pytest

from equipoise.evaluation.results import Evaluation
from equipoise.predictions import InputError
from equipoise.train.export_record import ExportRecord
from equipoise.train.folder import RunFolder
from equipoise.train.preparation import Preparation
from equipoise.train.record import Environment, EpochRecord, MethodSettings, PreparationRecord

PREPARATION = """{"kind": "images", "input_shape": [1, 8, 8], "mean": [0.3], "std": [0.38], "words": [],
"resize": "stretch", "upright": true}"""

RUN = f"""{{
"format": 1, "equipoise": "0.1.0",
"started": "2026-11-16T12:00:00.000+00:00", "finished": "2026-11-16T12:00:09.500+00:00", "seconds": 9.5,
"device": "cpu",
"environment": {{"python": "3.11.7", "platform": "Linux x86_64", "torch": "2.13.0", "pytorch_lightning": "2.6.5",
  "numpy": "2.3.5", "device": "cpu", "processes": 1, "cores": 2, "threads": 1}},
"spec": {{"data": "digits-lt", "loss": "focal:gamma=3", "method": "none", "epochs": 2, "checkpoint": "best"}},
"data": {{"name": "digits-lt", "task": "single", "class_names": ["0", "1"], "train_counts": [90, 10],
  "samples": {{"train": 100, "val": 20, "test": 20}}, "fingerprint": "9f", "ignore_index": -100, "notes": ["a note"]}},
"model": {{"name": "mlp", "options": {{"hidden": [8]}}, "parameters": 538, "num_classes": 2, "input_shape": [1, 8, 8],
  "vocabulary": null}},
"loss": "FocalLoss(gamma=3)", "loss_in_python": "equipoise.FocalLoss(3)", "preparation": {PREPARATION}, "epochs": 2,
"settled": {{"classifier_batch_size": 8, "classifier_lr": 0.003125}},
"best_epoch": 1, "monitor": "mean_class_accuracy", "monitor_value": null, "seconds_per_step": 0.01
}}"""

HISTORY = """{"epoch": 0, "step": 4, "lr": 0.001, "train": {"loss": 0.7, "recall_weights": [0.5, null]}, \
"val": {"accuracy": 0.5, "nll": null}, "seconds": 0.2, "seconds_per_step": 0.01}
{"epoch": 1, "step": 8, "lr": 0.0, "train": {"loss": null}, "val": {}, "seconds": 0.2, "seconds_per_step": null}
"""

EVALUATION = """{"format": "equipoise evaluation 1", "file": "test.npz", "task": "single", "samples": 20, "classes": 2,
"scores": "logits", "bins": 15, "main": "accuracy", "suspicions": [], "overall": {"accuracy": 0.75, "nll": null},
"intervals": {}, "groups": [], "per_class": [], "reliability": {},
"calibration": {"before": {"nll": 0.5}, "after": {"nll": 0.4}, "fits": ["T = 1.2"], "fitted_on": "val", "note": ""}}"""

FIT = """{"format": "equipoise.calibration", "version": 1, "kind": "temperature",
"fields": {"temperature": 1.5, "num_classes": 2, "ignore_index": -100, "class_names": []}}"""

EXPORT = f"""{{
"format": "equipoise.model", "version": 1, "equipoise": "0.1.0", "task": "single", "class_names": ["0", "1"],
"ignore_index": -100,
"model": {{"name": "mlp", "options": {{}}, "parameters": 538, "num_classes": 2, "input_shape": [1, 8, 8],
  "vocabulary": null}},
"preparation": {PREPARATION}, "calibration": {FIT}, "thresholds": null,
"results": {{"overall": {{"accuracy": 0.75}}, "calibrated": {{"accuracy": 0.75, "nll": null}}}},
"training": {{"data": "digits-lt", "train_counts": [90, 10], "samples": {{"train": 100, "val": 20, "test": 20}},
  "notes": [], "loss": "ce", "epochs": 2, "checkpoint": "best", "chosen_epoch": 2}}
}}"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.json").write_text(RUN)
    (tmp_path / "history.jsonl").write_text(HISTORY)
    (tmp_path / "results.json").write_text(f'{{"val": {EVALUATION}, "test": {EVALUATION}}}')
    return RunFolder(tmp_path)


def test_a_run_of_version_0_1(folder):
    record = folder.record
    assert record.data.train_counts == [90, 10]
    assert record.model.options == {"hidden": [8]}
    assert record.settled == MethodSettings(classifier_batch_size=8, classifier_lr=0.003125)
    assert record.preparation == PreparationRecord("images", (1, 8, 8), (0.3,), (0.38,))
    assert Preparation(**vars(record.preparation)).mean == (0.3,)
    assert record.environment.pytorch_lightning == "2.6.5"
    assert record.monitor_value is None
    written = record.to_json()
    assert {name: written[name] for name in ("preparation", "environment", "settled")} == {
        name: json.loads(RUN)[name] for name in ("preparation", "environment", "settled")
    }


def test_a_run_without_what_later_versions_record(folder):
    content = json.loads(RUN)
    for name in ("preparation", "environment", "settled", "seconds"):
        del content[name]
    (folder.path / "run.json").write_text(json.dumps(content | {"added_later": 1}))
    record = folder.record
    assert (record.preparation, record.environment, record.settled) == (None, Environment(), MethodSettings())


def test_results_of_version_0_1(folder):
    results = folder.results
    assert isinstance(results.val, Evaluation)
    assert results.test.overall == {"accuracy": 0.75, "nll": None}
    assert results.open is None
    (folder.path / "results.json").write_text(f'{{"test": {EVALUATION}, "added_later": 3}}')
    assert folder.results.val is None


def test_a_history_of_version_0_1(folder):
    first, last = folder.history()
    assert first == EpochRecord(
        epoch=0,
        step=4,
        lr=0.001,
        train={"loss": 0.7, "recall_weights": [0.5, None]},
        val={"accuracy": 0.5, "nll": None},
        seconds=0.2,
        seconds_per_step=0.01,
    )
    assert last.split("train") == {"loss": None}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"step": 3}', "epoch is missing"),
        ('{"epoch": 0, "train": {"loss": "low"}}', "train.loss must be a number or a list, found 'low'"),
        ('{"epoch": 0, "val": {"accuracy": [1]}}', r"val.accuracy must be a number, found \[1\]"),
    ],
)
def test_a_damaged_row_is_named(folder, row, words):
    (folder.path / "history.jsonl").write_text(row + "\n")
    with pytest.raises(InputError, match=f"history.jsonl: {words}"):
        list(folder.history())


def test_an_export_of_version_0_1(tmp_path):
    file = tmp_path / "model.json"
    file.write_text(EXPORT)
    record = ExportRecord.read(file)
    assert record.model.method == "none"
    assert record.calibration is not None
    assert record.calibration.fields["temperature"] == 1.5
    assert record.results.calibrated == {"accuracy": 0.75, "nll": None}
    assert record.training.chosen_epoch == 2
    expected = json.loads(EXPORT) | {"task": "multiclass"}
    expected["model"]["method"] = "none"
    assert record.to_json() == expected
    assert list(record.to_json()) == list(expected)


def test_an_export_of_a_newer_version_asks_for_an_upgrade(tmp_path):
    file = tmp_path / "model.json"
    file.write_text(json.dumps(json.loads(EXPORT) | {"added_later": 1}))
    assert ExportRecord.read(file).to_json() == {
        **json.loads(EXPORT),
        "task": "multiclass",
        "model": json.loads(EXPORT)["model"] | {"method": "none"},
    }
    file.write_text(json.dumps(json.loads(EXPORT) | {"version": 2}))
    with pytest.raises(InputError, match="version must be at most 1, found 2; upgrade equipoise"):
        ExportRecord.read(file)
