"""Files: exact, without pickle, and with clear errors."""

import json
import os
import pickle
from dataclasses import fields, replace

import pytest
import torch

from equipoise.calibration import (
    METHODS,
    DirichletCalibration,
    Fitted,
    Temperature,
    Thresholds,
    VectorScaling,
    load,
    save,
)
from equipoise.calibration.storage import KINDS
from tests.calibration.data import EVERY, fit, of


@pytest.mark.parametrize(("name", "task"), EVERY)
def test_every_method_comes_back_exactly(name, task, tmp_path):
    logits, targets = of(task)
    fitted = fit(name, logits, targets)
    path = tmp_path / "fitted.json"
    save(fitted, path)
    again = load(path)
    assert type(again) is type(fitted)
    assert again == fitted
    assert hash(again) == hash(fitted)
    assert repr(again) == repr(fitted)
    for field in fields(fitted):
        assert repr(getattr(again, field.name)) == repr(getattr(fitted, field.name)), field.name
    assert torch.equal(again(logits), fitted(logits))
    assert [entry.name for entry in tmp_path.iterdir()] == ["fitted.json"]


def test_every_kind_is_made_by_some_method():
    made = {type(fit(name, *of(task))) for name, task in EVERY}
    assert made == set(KINDS.values())
    assert {cls.kind for cls in made} <= set(METHODS)


def test_numbers_that_are_hard_to_print(tmp_path):
    for value in (0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 2.0**-1022, 1 + 2.0**-52):
        save(Temperature(value), tmp_path / "t")
        assert load(tmp_path / "t").temperature.hex() == value.hex()


def test_text_survives(tmp_path):
    fitted = Temperature(1.5, note='<b>"ü"</b>\n\u2028', converged=False, num_classes=3, samples=7)
    save(fitted, str(tmp_path / "t"))
    assert load(str(tmp_path / "t")) == fitted


def test_a_vector_that_does_not_say_what_it_was_fitted_on_was_fitted_on_logits(tmp_path):
    path = tmp_path / "fitted.json"
    save(VectorScaling((2.0, 1.0), (0.0, 5.0)), path)
    content = json.loads(path.read_text())
    assert content["fields"].pop("log_probs") is True
    path.write_text(json.dumps(content))
    assert load(path) == VectorScaling((2.0, 1.0), (0.0, 5.0), log_probs=False)


CONTENT = {
    "format": "equipoise.calibration",
    "version": 1,
    "kind": "temperature",
    "fields": {
        "task": "multiclass",
        "num_classes": 3,
        "samples": None,
        "converged": True,
        "note": "",
        "temperature": 2.0,
    },
}


def changed(**changes):
    return json.dumps(CONTENT | changes)


def with_fields(**changes):
    return changed(fields=CONTENT["fields"] | changes)


def test_the_content_of_a_file(tmp_path):
    save(Temperature(2.0, num_classes=3), tmp_path / "t")
    expected = CONTENT | {"fields": CONTENT["fields"] | {"class_names": []}}
    assert json.loads((tmp_path / "t").read_text()) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("\x00\x01", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "without format"),
        ("3", "without format"),
        ('{"a": 1}', "without format"),
        (changed(format="other"), "without format"),
        (changed(version=2), "version 2; upgrade equipoise"),
        (changed(version="1"), "version '1'"),
        (changed(version=0), "version 0"),
        (changed(version=True), "version True"),
        (changed(kind="magic"), "unknown kind 'magic'"),
        (changed(kind=["temperature"]), "unknown kind"),
        (changed(fields=[]), "with the fields"),
        (changed(fields={}), "with the fields"),
        (with_fields(extra=1), "extra"),
        (with_fields(temperature="2"), "damaged numbers: temperature must be a number"),
        (with_fields(temperature=-2.0), "damaged numbers: temperature must be a finite number"),
        (with_fields(temperature=None), "damaged numbers"),
        (with_fields(temperature=[2.0]), "damaged numbers"),
        (with_fields(task="both"), "task must be one of"),
        (with_fields(num_classes=-1), "num_classes"),
        (with_fields(num_classes=2.5), "num_classes"),
        (with_fields(converged="yes"), "converged"),
        (with_fields(note=3), "note"),
        (json.dumps(CONTENT).replace("2.0", "NaN"), "not valid JSON"),
        (json.dumps(CONTENT).replace("2.0", "Infinity"), "not valid JSON"),
        (json.dumps(CONTENT).replace("2.0", "1e999"), "not valid JSON"),
    ],
)
def test_foreign_damaged_and_newer_files(text, reason, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"path must be a file that equipoise.calibration.save wrote") as caught:
        load(path)
    assert reason in str(caught.value)
    assert "some.json" in str(caught.value)


def test_a_pickle_is_refused_and_not_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "boom"),)

    (tmp_path / "t").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="not valid JSON"):
        load(tmp_path / "t")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(("name", "task"), EVERY)
def test_a_file_with_a_number_missing_is_refused(name, task, tmp_path):
    """Drop the last entry of every list in turn: no method takes vectors of different lengths, or says so in use."""
    fitted = fit(name, *of(task))
    path = tmp_path / "t"
    save(fitted, path)
    content = json.loads(path.read_text())
    for key, value in content["fields"].items():
        if isinstance(value, list) and key not in ("thresholds", "curves", "f1", "groups", "class_names"):
            path.write_text(json.dumps(content | {"fields": content["fields"] | {key: value[:-1]}}))
            with pytest.raises(ValueError, match="damaged numbers"):
                load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must be a file .*none\), found no file there; check the path"):
        load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"none/fit\.json: the folder .*none must exist, found none; create it"):
        save(Temperature(1.0), tmp_path / "none" / "fit.json")


def test_only_our_own_methods_are_saved(tmp_path):
    class Mine(Temperature):
        pass

    for thing in (Mine(2.0), lambda z: z, None, {"temperature": 2.0}):
        with pytest.raises(TypeError, match="fitted must be one of Temperature"):
            save(thing, tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "t"
    save(Temperature(2.0), path)

    def broken(self, target):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", broken)
    with pytest.raises(OSError, match="disk full"):
        save(Temperature(3.0), path)
    monkeypatch.undo()
    assert load(path).temperature == 2.0
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


def test_lists_and_integers_give_the_same_value():
    assert VectorScaling([1, 2], [0, 0]) == VectorScaling((1.0, 2.0), (0.0, 0.0))
    assert hash(Thresholds([0], [1])) == hash(Thresholds((0.0,), (1.0,)))
    assert hash(DirichletCalibration([[1, 0], [0, 1]], [0, 0])) == hash(
        DirichletCalibration(((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0))
    )
    assert type(Temperature(2).temperature) is float


def test_fitted_objects_are_values():
    one = Temperature(2.0, num_classes=3)
    assert one == Temperature(2.0, num_classes=3)
    assert one != replace(one, temperature=2.5)
    assert len({one, Temperature(2.0, num_classes=3)}) == 1
    with pytest.raises(AttributeError):
        one.temperature = 3.0
    assert pickle.loads(pickle.dumps(one)) == one
    assert isinstance(one, Fitted)
