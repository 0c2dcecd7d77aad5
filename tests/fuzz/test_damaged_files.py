"""Damaged files of every kind through every command that reads them: one line that names the file, or a result.

``FUZZ_SEED`` and ``FUZZ_FILES`` choose other damage and more of it.
"""

import contextlib
import io
import os
import random
import shutil
import signal
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml
from matplotlib.figure import Figure
from PIL import Image

from equipoise import load_exported
from equipoise._visible import visible
from equipoise.calibration import DirichletCalibration, Temperature, Thresholds, save
from equipoise.cli.calibrate import calibrate
from equipoise.cli.doctor import doctor
from equipoise.cli.evaluate import evaluate
from equipoise.cli.report import report
from equipoise.cli.settings import settled
from equipoise.comparison.spec import CompareSpec
from equipoise.data import open_data
from equipoise.train.export import export_run
from equipoise.train.spec import RunSpec
from tests.fuzz.mutations import WAYS, damaged
from tests.predictions.saved import arrays_of
from tests.predictions.saved import save as save_predictions
from tests.report.comparisons import write_comparison
from tests.train.run_folders import make_run

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("FUZZ_SEED", "0"))
FILES = int(os.environ.get("FUZZ_FILES", "1200"))
SECONDS = 20
"""For one file; the largest that is accepted takes well below one."""


class HangError(BaseException):
    """What no ``except Exception`` catches."""


def fit_for(folder, task):
    return save_predictions(folder, "npz", arrays_of(task, samples=40, classes=4), name="valid")


def make_predictions(folder, form, task="multiclass", **options):
    return save_predictions(folder, form, arrays_of(task, samples=40, classes=4, **options))


def make_npz_data(folder):
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = draw.normal(size=(60, 4)).astype(np.float32)
    np.savez_compressed(folder / "data.npz", features=features, labels=labels, class_names=np.array(["a", "b", "c"]))
    return folder / "data.npz"


def make_table_data(folder, suffix="csv"):
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    rows = 60
    table = pyarrow.table(
        {"x": np.arange(rows) / 7, "y1": np.arange(rows) ** 0.5, "label": [f"kind {k % 3}" for k in range(rows)]}
    )
    path = folder / f"data.{suffix}"
    pyarrow.csv.write_csv(table, path) if suffix == "csv" else pyarrow.parquet.write_table(table, path)
    return path


def make_texts(folder):
    lines = ["text,label", *(f"some words number {k},kind {k % 3}" for k in range(60))]
    (folder / "texts.csv").write_text("\n".join(lines))
    return folder / "texts.csv"


def make_images(folder, count=30):
    (folder / "pictures").mkdir()
    for k in range(count):
        Image.fromarray(np.full((4, 4, 3), 8 * k, np.uint8)).save(folder / "pictures" / f"{k}.png")


def make_list(folder):
    make_images(folder)
    (folder / "list.txt").write_text("\n".join(f"pictures/{k}.png {k % 3}" for k in range(30)))
    return folder / "list.txt"


def make_coco(folder):
    import json

    make_images(folder)
    content = {
        "images": [{"id": k, "file_name": f"pictures/{k}.png"} for k in range(30)],
        "annotations": [{"image_id": k, "category_id": 1 + k % 3} for k in range(30)],
        "categories": [{"id": 1 + k, "name": f"kind {k}"} for k in range(3)],
    }
    (folder / "coco.json").write_text(json.dumps(content))
    return folder / "coco.json"


def make_fit(folder, fitted):
    save(fitted, folder / "fit.json")
    return folder / "fit.json"


def make_spec(folder):
    settings = {"data": "digits-lt", "epochs": 3, "lr": 0.1, "class_names": list("abcdefghij"), "image_size": [8, 8]}
    (folder / "spec.yaml").write_text(yaml.safe_dump(settings | {"model_options": {"width": 8}, "out": "x"}))
    return folder / "spec.yaml"


def make_exported(folder, name, task="multiclass"):
    make_run(folder / "run", task)
    export_run(folder / "run", folder / "exported")
    shutil.rmtree(folder / "run")
    return folder / "exported" / name


def make_compared(folder, name):
    seeds = 2 if "predictions" in name or "calibration" in name else 1  # one seed is not resampled
    write_comparison(folder / "compared", losses=("ce", "recall"), seeds=seeds, samples=30, classes=4, epochs=2)
    return folder / "compared" / name


def checked_settings(spec, path):
    settled(spec, path, None, {}, "equipoise train")


def counted(path):
    doctor(file=None, counts=str(path))


def applied(path):
    valid = fit_for(path.parent, "multilabel" if "Thresholds" in path.parent.name else "multiclass")
    calibrate(valid, path.parent / "out.npz", apply=path)


SUBJECTS = {
    # name: (make the file, read it, share of the cases)
    **{
        f"evaluate {form} {task}": (lambda f, form=form, task=task: make_predictions(f, form, task), evaluate, 2)
        for form, task in [
            ("npz", "multiclass"),
            ("npz", "multilabel"),
            ("csv", "multiclass"),
            ("csv", "multilabel"),
            ("parquet", "multiclass"),
        ]
    },
    "evaluate segmentation": (lambda f: make_predictions(f, "npz", "segmentation"), evaluate, 1),
    "evaluate probabilities": (lambda f: make_predictions(f, "csv", probs=True), evaluate, 1),
    "evaluate array": (lambda f: make_predictions(f, "folder") / "logits.npy", lambda p: evaluate(p.parent), 2),
    "evaluate names": (lambda f: make_predictions(f, "folder") / "class_names.npy", lambda p: evaluate(p.parent), 1),
    "evaluate page": (
        lambda f: make_predictions(f, "npz"),
        lambda p: evaluate(p, html=p.parent / "out.html"),
        0.2,
    ),
    "calibrate": (
        lambda f: make_predictions(f, "npz"),
        lambda p: calibrate(p, p.parent / "out.json"),
        1,
    ),
    "doctor": (lambda f: make_predictions(f, "csv"), doctor, 1),
    "doctor counts": (lambda f: [np.save(f / "n.npy", np.array([9, 5, 1])), f / "n.npy"][1], counted, 1),
    "apply temperature": (lambda f: make_fit(f, Temperature(2.0, num_classes=4)), applied, 2),
    "apply dirichlet": (
        lambda f: make_fit(f, DirichletCalibration(tuple(map(tuple, np.eye(4).tolist())), (0.0,) * 4)),
        applied,
        2,
    ),
    "apply Thresholds": (lambda f: make_fit(f, Thresholds((0.1,) * 4)), applied, 2),
    "data npz": (make_npz_data, open_data, 2),
    "data csv": (make_table_data, open_data, 2),
    "data parquet": (lambda f: make_table_data(f, "parquet"), open_data, 2),
    "data texts": (make_texts, open_data, 1),
    "data list": (make_list, open_data, 2),
    "data coco": (make_coco, open_data, 2),
    "spec train": (make_spec, lambda p: checked_settings(RunSpec, p), 3),
    "spec compare": (make_spec, lambda p: checked_settings(CompareSpec, p), 3),
    "exported about": (lambda f: make_exported(f, "model.json"), lambda p: load_exported(p.parent), 3),
    "exported labels": (lambda f: make_exported(f, "model.json", "multilabel"), lambda p: load_exported(p.parent), 3),
    "exported weights": (lambda f: make_exported(f, "model.safetensors"), lambda p: load_exported(p.parent), 2),
    **{
        f"report {name}": (
            lambda f, name=name: make_compared(f, name),
            lambda p: report(next(one for one in p.parents if one.name == "compared")),
            share,
        )
        for name, share in {
            "compare.json": 0.6,
            "verdict.json": 0.3,
            "runs/ce-0/run.json": 0.6,
            "runs/ce-0/results.json": 0.8,
            "runs/ce-0/history.jsonl": 0.3,
            "runs/ce-0/calibration.json": 0.1,
            "runs/ce-0/predictions/test.npz": 0.1,
        }.items()
    },
}
TOTAL = sum(share for _, _, share in SUBJECTS.values())
MADE = ("out.html", "out.json", "out.npz", "valid.npz", "report.html", "verdict.json")
"""What the commands may leave beside the file."""


@contextlib.contextmanager
def limited(seconds):
    def stop(number, frame):
        raise HangError

    before = signal.signal(signal.SIGPROF, stop)  # seconds of work, however busy the machine is
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(read, path):
    """None where it was read, or what was said; raises whatever else came."""
    said, errors = io.StringIO(), io.StringIO()
    with limited(SECONDS), warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stderr(errors):
            try:
                read(path)
            except typer.Exit as end:
                return errors.getvalue() if end.exit_code == 2 else f"status {end.exit_code}: {errors.getvalue()}"
            except (ValueError, FileNotFoundError) as error:
                ours = type(error).__module__.startswith("equipoise") or isinstance(error, FileNotFoundError)
                return f"error: {visible(str(error))}\n" if ours else repr(error)
    assert visible(said.getvalue()) == said.getvalue()
    return None


def files_below(folder):
    return {str(one.relative_to(folder)) for one in folder.rglob("*")}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SUBJECTS)
def test_damage_is_named(tmp_path, monkeypatch, name):
    make, read, share = SUBJECTS[name]
    chance = random.Random(f"{SEED} {name}")
    own, scratch = tmp_path / name.replace("/", "-"), tmp_path / "scratch"
    own.mkdir()
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(scratch)
    empty = '<svg width="1pt" height="1pt"></svg>'
    monkeypatch.setattr(Figure, "savefig", lambda figure, buffer, **options: buffer.write(empty))  # it is slow
    path = make(own)
    content = path.read_bytes()
    assert outcome(read, path) is None  # the file itself is fine
    shutil.rmtree(own)
    own.mkdir()
    make(own)
    before = files_below(tmp_path)
    kept = {one: one.read_bytes() for one in own.rglob("*") if one.is_file()} if "report" in name else {}
    problems = []
    for number in range(max(5, round(FILES * share / TOTAL))):
        suffix = path.suffix if chance.random() < 0.95 else chance.choice(sorted(WAYS))
        bad = damaged(content, suffix, chance) if suffix == path.suffix else damaged(content, path.suffix, chance)
        path.write_bytes(bad)
        try:
            said = outcome(read, path)
        except (Exception, HangError, AssertionError) as error:  # noqa: BLE001
            problems.append((number, f"{type(error).__name__}: {error}", bad))
            continue
        if said is not None:
            lines = said.rstrip("\n").split("\n")
            if not said.startswith("error: ") or (len(lines) > 1 and "spec" not in name):
                problems.append((number, f"not one line: {said!r}", bad))
            if path.name not in said and str(own) not in said:
                problems.append((number, f"unnamed: {said!r}", bad))
            if visible(said) != said:
                problems.append((number, f"control characters: {said!r}", bad))
        new = {one for one in files_below(tmp_path) - before if Path(one).name not in MADE}
        if new:
            problems.append((number, f"left behind: {sorted(new)}", bad))
        for one, was in kept.items():
            if one != path and (not one.is_file() or one.read_bytes() != was):
                one.write_bytes(was)
    if problems and "FUZZ_KEEP" in os.environ:
        place = Path(os.environ["FUZZ_KEEP"]) / name.replace("/", "-")
        place.mkdir(parents=True, exist_ok=True)
        for number, what, bad in problems:
            (place / f"{number}{path.suffix}").write_bytes(bad)
            (place / f"{number}.why").write_text(what)
    assert not problems, f"{len(problems)} of the files, first: {problems[0][:2]}"
