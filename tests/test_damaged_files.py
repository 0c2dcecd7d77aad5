"""A file that is damaged in any way is named in one line, by every function that reads such files."""

import io
import json
import lzma
import re
import shutil
import struct
import tokenize
import zipfile
import zlib

import numpy as np
import pytest
import torch
import yaml

from equipoise import _reading, load_exported
from equipoise._reading import (
    InputError,
    map_array,
    parse_yaml,
    read_checkpoint,
    read_json,
    reading,
)
from equipoise.calibration import LabelTemperatures, Temperature, Thresholds, load, save
from equipoise.calibration.storage import to_json
from equipoise.comparison.damage import check_run, damage_of, set_aside
from equipoise.data import DataError, open_data
from equipoise.predictions import open_predictions
from equipoise.train.export import export_run
from equipoise.train.folder import RunFolder
from equipoise.train.spec import SpecError, read_spec
from tests.predictions.saved import arrays_of
from tests.report.comparisons import write_comparison
from tests.train.run_folders import make_run

CAUSES = [
    zipfile.BadZipFile("a"),
    tokenize.TokenError("a"),
    lzma.LZMAError("a"),
    zlib.error("a"),
    struct.error("a"),
    RuntimeError("encrypted"),
    OverflowError("a"),
    RecursionError("a"),
    KeyError("a"),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "a"),
    AttributeError("a"),
    MemoryError(),
    IsADirectoryError("a"),
    SyntaxError("a"),
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
@pytest.mark.parametrize("kind", [InputError, DataError])
def test_whatever_a_file_causes_is_one_line(cause, kind):
    with pytest.raises(kind, match=r"^some\.file: .*; write it again$") as caught, reading("some.file", error=kind):
        raise cause
    assert caught.value.__cause__ is cause
    assert type(cause).__name__ in str(caught.value) or isinstance(cause, MemoryError)


def test_what_names_the_file_itself_passes():
    with pytest.raises(InputError, match=r"^mine$"), reading("other"):
        raise InputError("mine")
    with pytest.raises(FileNotFoundError), reading("other"):
        raise FileNotFoundError
    with pytest.raises(KeyboardInterrupt), reading("other"):
        raise KeyboardInterrupt


# Arrays ---------------------------------------------------------------------------------------------------------------


def npy(array):
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def archive(path, kind=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", kind) as packed:
        for name, content in members.items():
            packed.writestr(f"{name}.npy", content if isinstance(content, bytes) else npy(content))


LOGITS = np.zeros((6, 3), np.float32)
MEMBERS = {
    "without magic": npy(LOGITS)[6:],
    "half": npy(LOGITS)[:-20],
    "empty": b"",
    "text": b"these are no numbers",
    "objects": npy(LOGITS.astype(object)),
    "a petabyte": npy(LOGITS).replace(b"(6, 3)", b"(10000000000000, 3)").replace(b"  " * 7, b"", 1),
    "negative": npy(LOGITS).replace(b"(6, 3)", b"(-6, -3)").replace(b"    ", b"", 1),
    "no header": npy(LOGITS).replace(b"{", b"(" * 9)[:128],
    "another type": npy(LOGITS).replace(b"<f4", b"|V0"),
    "another version": npy(LOGITS).replace(b"NUMPY\x01", b"NUMPY\x09"),
}


@pytest.mark.parametrize("what", MEMBERS)
@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_LZMA])
def test_members_of_archives(tmp_path, what, kind):
    path = tmp_path / "p.npz"
    archive(path, kind, logits=MEMBERS[what], targets=np.zeros(6, np.int64))
    with pytest.raises(InputError, match=r"p\.npz: logits "):
        open_predictions(path)
    archive(path, kind, features=MEMBERS[what], labels=np.arange(6) % 2)
    with pytest.raises(DataError, match=r"p\.npz: features "):
        open_data(path)


@pytest.mark.parametrize("what", MEMBERS)
def test_arrays_of_folders(tmp_path, what):
    (tmp_path / "logits.npy").write_bytes(MEMBERS[what])
    np.save(tmp_path / "targets.npy", np.zeros(6, np.int64))
    with pytest.raises(InputError, match=r"logits\.npy"):
        open_predictions(tmp_path)


def test_encrypted_archives(tmp_path):
    path = tmp_path / "p.npz"
    archive(path, logits=LOGITS, targets=np.zeros(6, np.int64))
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for match in re.finditer(re.escape(mark), bytes(content)):
            content[match.start() + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"p\.npz: logits must be readable without a password, found it encrypted"):
        open_predictions(path)


def test_an_npy_called_npz_and_an_npz_called_npy(tmp_path):
    (tmp_path / "p.npz").write_bytes(npy(LOGITS))
    for read in (open_predictions, open_data):
        with pytest.raises(ValueError, match=r"p\.npz: the file must be an \.npz archive, found an \.npy array"):
            read(tmp_path / "p.npz")
    archive(tmp_path / "logits.npy", logits=LOGITS)
    with pytest.raises(InputError, match=r"logits\.npy cannot be read"):
        map_array(tmp_path / "logits.npy")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(_reading, "LARGE", 2**20)
    zeros = np.zeros((2**20, 4), np.float32)
    np.savez_compressed(tmp_path / "bomb.npz", logits=zeros, targets=np.zeros(2**20, np.int64))
    with pytest.raises(InputError, match=r"bomb\.npz: logits must grow at most 100 times .* does not compress"):
        open_predictions(tmp_path / "bomb.npz")
    np.savez(tmp_path / "fine.npz", logits=zeros, targets=np.zeros(2**20, np.int64))
    assert open_predictions(tmp_path / "fine.npz").samples == 2**20


def test_more_than_the_machine_has(tmp_path, monkeypatch):
    monkeypatch.setattr(_reading, "_memory", lambda: 100.0)
    np.savez(tmp_path / "p.npz", logits=LOGITS, targets=np.zeros(6, np.int64))
    with pytest.raises(InputError, match=r"p\.npz: logits does not fit into memory.* a folder of \.npy files"):
        open_predictions(tmp_path / "p.npz")


@pytest.mark.parametrize("kind", [">f4", ">f8", "g", "<f2"])
def test_other_floats_are_read(tmp_path, kind):
    arrays = arrays_of("multiclass", samples=9, classes=3)
    np.savez(tmp_path / "p.npz", logits=arrays["logits"].astype(kind), targets=arrays["targets"].astype(">i4"))
    (chunk,) = open_predictions(tmp_path / "p.npz").chunks()
    torch.from_numpy(chunk.scores), torch.from_numpy(chunk.targets)
    np.testing.assert_allclose(chunk.scores, arrays["logits"], rtol=1e-2)


def test_names_must_be_text(tmp_path):
    arrays = {"logits": LOGITS, "targets": np.zeros(6, np.int64)}
    np.savez(tmp_path / "p.npz", **arrays, class_names=np.array([b"\xff", b"a", b"b"]))
    with pytest.raises(InputError, match=r"p\.npz: .*UnicodeDecodeError"):
        open_predictions(tmp_path / "p.npz")


@pytest.mark.parametrize("target", ["9" * 30, "9" * 5000, "-" + "9" * 30])
def test_targets_beyond_all_numbers(tmp_path, target):
    (tmp_path / "t.csv").write_text(f"logit_a,logit_b,target\n1,2,{target}\n")
    with pytest.raises(InputError, match=r"t\.csv"):
        list(open_predictions(tmp_path / "t.csv").chunks())


# Text -----------------------------------------------------------------------------------------------------------------

TEXTS = {
    "empty": b"",
    "half": b'{"a": ',
    "bytes": bytes(range(256)),
    "deep": b"[" * 200_000,
    "not a number": b'{"a": NaN}',
    "infinite": b'{"a": 1e999}',
    "huge integer": b'{"a": 1' + b"0" * 400 + b"}",
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("what", TEXTS)
def test_json(tmp_path, what):
    path = tmp_path / "some.json"
    path.write_bytes(TEXTS[what])
    for read, kind in ((read_json, InputError), (load, ValueError), (open_data, DataError)):
        with pytest.raises(kind, match=r"some\.json.* not valid JSON"):
            read(path)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGED = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{b}: &{b}\n  <<: [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        MERGED,
        "a: &a [*a]\n",
        "data: [" * 3000,
        "data: !!int abc",
        "data: !!python/object/apply:os.getcwd []",
        "epochs: 2026-11-99",
        "a: " + "9" * 5000,
        "\x00",
    ],
    ids=lambda text: text[:20],
)
def test_yaml(tmp_path, text):
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"spec\.yaml: a mistake in the settings: the file is not YAML: \S"):
        read_spec(path)


def test_large_files_are_rejected_as_settings(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("a: b\n" * 2**19)
    with pytest.raises(SpecError, match="bytes, where settings have"):
        read_spec(path)


def test_ordinary_anchors_are_accepted():
    assert parse_yaml("a: &a [1, 2]\nb: *a\nc: {<<: &m {x: 1}, y: 2}\n") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"x": 1, "y": 2},
    }
    assert parse_yaml("") is None
    assert parse_yaml(yaml.safe_dump({"losses": ["ce"] * 500})) == {"losses": ["ce"] * 500}


# Checkpoints and exported models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"PK no", b"\x80\x02.", bytes(99), b'{"a": 1}'])
def test_checkpoints(tmp_path, content):
    (tmp_path / "c.ckpt").write_bytes(content)
    with pytest.raises(InputError, match=r"c\.ckpt: .*; train again"):
        read_checkpoint(tmp_path / "c.ckpt", advice="train again")
    torch.save([1], tmp_path / "c.ckpt")
    with pytest.raises(InputError, match="found list"):
        read_checkpoint(tmp_path / "c.ckpt", advice="train again")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for task in ("multiclass", "multilabel"):
        make_run(folder / f"run-{task}", task)
        export_run(folder / f"run-{task}", folder / task)
    return folder


@pytest.fixture
def exported(models, tmp_path):
    def copied(task):
        return shutil.copytree(models / task, tmp_path / task)

    return copied


def fit(**changes):
    return to_json(Temperature(2.0, num_classes=10)) | changes


@pytest.mark.parametrize(
    ("task", "changes", "words"),
    [
        ("multiclass", {"class_names": ["a", "b"]}, "2 class names for 10 outputs"),
        ("multiclass", {"class_names": ["a"] * 10}, "a class name twice"),
        ("multiclass", {"class_names": list(range(10))}, "class_names.0 must be a string"),
        ("multiclass", {"task": "several"}, "task must be one of"),
        ("multiclass", {"task": "multilabel"}, "temperature of task multiclass as calibration of task multilabel"),
        (
            "multiclass",
            {"calibration": to_json(Temperature(2.0, num_classes=9))},
            "calibration for 9 classes",
        ),
        (
            "multiclass",
            {"calibration": to_json(Temperature(2.0, num_classes=10, class_names=tuple("abcdefghij")))},
            "calibration for other class names",
        ),
        ("multiclass", {"calibration": to_json(Temperature(2.0)) | {"format": "x"}}, "calibration must be a fit"),
        ("multiclass", {"calibration": 3}, "calibration must be an object"),
        ("multiclass", {"thresholds": to_json(Temperature(2.0))}, "as thresholds of task multiclass"),
        (
            "multilabel",
            {"calibration": to_json(LabelTemperatures((1.0, 2.0), (0.0, 0.0)))},
            "calibration for 2 classes",
        ),
        (
            "multilabel",
            {"calibration": to_json(Thresholds((0.1,) * 10))},
            "thresholds of task multilabel as calibration",
        ),
        ("multilabel", {"thresholds": to_json(Thresholds((0.1,) * 3))}, "thresholds for 3 classes"),
        ("multiclass", {"preparation": {}}, "preparation.kind is missing"),
        ("multiclass", {"model": {}}, "model.name is missing"),
    ],
)
def test_models_whose_parts_do_not_fit(exported, task, changes, words):
    folder = exported(task)
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(about | changes))
    with pytest.raises(ValueError, match=r"model\.json: ") as caught:
        load_exported(folder)
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 10**15) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_weights(exported, content):
    folder = exported("multiclass")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors: the weights must be those of the model"):
        load_exported(folder)


@pytest.mark.parametrize("name", ["run.json", "results.json", "calibration.json", "checkpoint.ckpt"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff"])
def test_runs_to_export(models, tmp_path, name, content):
    run = shutil.copytree(models / "run-multiclass", tmp_path / "run")
    (run / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"tmp|run"):
        export_run(run, tmp_path / "out")
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


# Comparisons ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("c") / "c", losses=("ce", "recall"), seeds=2, samples=30, classes=4)


@pytest.fixture
def run_folder(comparison, tmp_path):
    run = comparison.finished[0].folder
    return RunFolder(shutil.copytree(run.path, tmp_path / run.path.name))


def changed(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


DAMAGE = {
    "run.json": lambda path: path.write_text("{"),
    "run.json is a list": lambda path: path.write_text("[]"),
    "run.json without data": lambda path: changed(path, lambda about: about.pop("data")),
    "run.json with words": lambda path: changed(path, lambda about: about["data"].update(train_counts=["many"])),
    "results.json": lambda path: path.write_bytes(b"\xff"),
    "results.json without test": lambda path: changed(path, lambda results: results.pop("test")),
    "results.json with words": lambda path: changed(path, lambda r: r["test"]["overall"].update(accuracy="good")),
    "results.json with fewer classes": lambda path: changed(path, lambda r: r["test"]["per_class"].pop()),
    "history.jsonl": lambda path: path.write_text("{\n"),
    "predictions/test.npz": lambda path: path.write_bytes(path.read_bytes()[:-99]),
    "predictions/test.npz with a byte changed": lambda path: path.write_bytes(
        path.read_bytes()[:300] + b"\xff" + path.read_bytes()[301:]
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_runs_are_found_and_set_aside(run_folder, what):
    assert damage_of(run_folder) is None
    name = what.split(" ")[0]
    DAMAGE[what](run_folder.path / name)
    damage = damage_of(run_folder)
    assert damage is not None
    assert name in damage
    assert "train again" in damage
    assert (run_folder.path.parent / set_aside(run_folder)).is_dir()
    assert not run_folder.finished


def test_runs_set_aside_have_unique_names(run_folder):
    first = set_aside(run_folder)
    shutil.copytree(run_folder.path.parent / first, run_folder.path)
    assert set_aside(run_folder) != first


def test_a_run_that_is_as_it_was(run_folder):
    check_run(run_folder)


def test_fits_survive_the_way_through_a_file(tmp_path):
    save(Temperature(2.0), tmp_path / "fit.json")
    assert load(tmp_path / "fit.json") == Temperature(2.0)
    assert fit()["kind"] == "temperature"
