"""Settings: all errors are reported together with advice, identically for flags and YAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from equipoise.data import SAMPLERS
from equipoise.train.spec import GROUPS, RunSpec, Sampler, SpecError, read_spec


def test_flags_and_yaml_give_the_same_settings(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "data: digits-lt\nimage_size: [240, 320]\nmilestones: [0.5, 0.75]\nlr: 0.05\ncache: true\nclass_names: [a, b]\n"
        "precision: 32\nmodel_options: {width: 16}\n"
    )
    flags = {
        "data": "digits-lt",
        "image_size": "240x320",
        "milestones": "0.5,0.75",
        "lr": "0.05",
        "cache": "true",
        "class_names": "a,b",
        "precision": "32",
        "model_options": {"width": 16},
    }
    assert RunSpec.check(read_spec(file)) == RunSpec.check(flags)


@pytest.mark.parametrize(
    ("given", "size"), [(32, (32, 32)), ("32", (32, 32)), ("24x32", (24, 32)), ([24, 32], (24, 32))]
)
def test_one_number_is_height_and_width(given, size):
    assert RunSpec(data="x", image_size=given).image_size == size


@pytest.mark.parametrize(
    ("given", "classes"),
    [("8, nine", ("8", "nine")), ([8, "nine"], ("8", "nine")), (8, ("8",)), ((), ()), (None, None)],
)
def test_classes_of_an_open_set_are_names_or_numbers(given, classes):
    assert RunSpec(data="x", open_classes=given).open_classes == classes


def test_an_open_set_comes_from_one_place():
    with pytest.raises(SpecError, match=r"open_classes: .* exclude each other, got both \(open_set others\)"):
        RunSpec.check({"data": "x", "open_classes": [8], "open_set": "others"})


def test_all_mistakes_are_named_together():
    with pytest.raises(SpecError) as error:
        RunSpec.check(
            {"epoch": 3, "lr": -1, "optimizer": "adam", "loss": "focl", "model": "resnet31", "augment": "flop"},
            where="run.yaml",
        )
    text = str(error.value)
    assert text.startswith("run.yaml: 7 mistakes")
    assert "data: it must be given" in text
    assert "epoch: there is no such setting; did you mean 'epochs'?" in text
    assert "lr: input should be greater than 0, got -1" in text
    assert "optimizer: input should be 'sgd', 'momentum', 'adagrad' or 'adamw', got 'adam'" in text
    assert "did you mean 'focal'?" in text
    assert "did you mean 'resnet32'?" in text
    assert "augment must be a list of flip" in text
    assert len(error.value.mistakes) == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [("- a\n- b\n", "there must be lines such as"), ("data: [", "not YAML"), ("", "got NoneType")],
)
def test_files_without_settings(tmp_path, content, message):
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(SpecError, match=message):
        read_spec(file)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"nowhere\.yaml: a mistake.*no such file"):
        read_spec(tmp_path / "nowhere.yaml")


def test_data_in_place_of_settings(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "table.csv").write_text("x,label\n1,a\n")
    (tmp_path / "train.npz").write_bytes(bytes(range(256)))
    for name in ("photos", "table.csv", "train.npz", "digits-lt"):
        with pytest.raises(SpecError, match=rf"if these are the data, write --data .*{name}"):
            read_spec(tmp_path / name)


def test_samplers_are_those_of_the_data():
    assert get_args(Sampler) == SAMPLERS


def test_every_setting_has_a_description_and_a_group():
    for name, field in RunSpec.model_fields.items():
        assert field.description, name
        assert field.json_schema_extra["group"] in GROUPS, name


def test_the_page_lists_every_setting():
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    for name, field in RunSpec.model_fields.items():
        assert re.search(rf"\| `{name}` \| .*\| {re.escape(field.description)} \|", page), name


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("loss", "focal:gamma=1:label_smoothing=0.1", "focal(label_smoothing=0.1, gamma=1)"),
        ("method", "SDN:feature=ce", "sdn(feature=ce)"),
    ],
)
def test_runs_of_either_syntax_resume_in_both(name, old, new):
    specs = [RunSpec.check({"data": "digits-lt", name: text}) for text in (old, new)]
    assert specs[0] == specs[1]
    stored = specs[0].model_dump(mode="json") | {name: old}  # as version 0.1 wrote it
    assert specs[1].differing(stored) == {}
    assert specs[1].differing(stored | {name: "auto"}).keys() == {name}
