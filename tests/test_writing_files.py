"""Files appear whole or not at all, on disk before they are renamed, and never through a symbolic link."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise import _writing
from equipoise._writing import appearing, clear_drafts, move, no_empty_folders, open_unlinked, write_text
from equipoise.calibration import Temperature, save
from equipoise.comparison.folder import ComparisonFolder, PlannedRun
from equipoise.comparison.lock import LOCKS, at_work, only_one
from equipoise.predictions import InputError, open_predictions, write_predictions
from equipoise.train.checkpoints import save as save_checkpoint
from equipoise.train.folder import RunFolder, write_json
from equipoise.train.run import run
from equipoise.train.spec import RunSpec
from tests.predictions.saved import arrays_of


@pytest.fixture
def outside(tmp_path):
    """A file elsewhere that nobody may change."""
    (tmp_path / "outside").mkdir()
    file = tmp_path / "outside" / "precious"
    file.write_text("as it was")
    yield file
    assert file.read_text() == "as it was"
    assert [one.name for one in file.parent.iterdir()] == ["precious"]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    return place


def written_predictions(path):
    source = open_predictions(arrays_of("multiclass") | {"train_counts": None, "class_names": None})
    write_predictions(path, source, source.chunks())


WRITERS = {
    "text.html": lambda path: write_text(path, "new"),
    "some.json": lambda path: write_json(path, {"a": 1}),
    "fit.json": lambda path: save(Temperature(2.0), path),
    "resume.ckpt": lambda path: save_checkpoint({"a": torch.ones(2)}, path),
    "out.npz": written_predictions,
    "out.csv": written_predictions,
    "out.parquet": written_predictions,
}


@pytest.mark.parametrize("name", WRITERS)
def test_links_are_not_followed(folder, outside, name):
    """Neither one at the place itself nor at the names that drafts once had."""
    for link in (name, f".{name}.draft{Path(name).suffix}", f".{name}.{os.getpid()}.partial"):
        (folder / link).symlink_to(outside)
    WRITERS[name](folder / name)
    assert not (folder / name).is_symlink()
    assert (folder / name).stat().st_size > 0


@pytest.mark.parametrize("name", WRITERS)
def test_order_of_writing(folder, monkeypatch, name):
    """The file is on disk before it has its name, the name after that."""
    events = []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        events.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(_writing.Path, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    WRITERS[name](folder / name)
    assert events == ["file", "rename", "folder"]
    assert [one.name for one in folder.iterdir()] == [name]


def test_drafts_have_random_names_in_a_private_folder(folder):
    with appearing(folder / "a") as first:
        pass_on = first.parent
        assert stat.S_IMODE(pass_on.stat().st_mode) == 0o700
        first.write_text("")
    with appearing(folder / "a") as second:
        second.write_text("")
        assert second.parent != pass_on
    assert not pass_on.exists()
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_failure_leaves_what_was_there(folder):
    (folder / "a").write_text("old")

    def write():
        with appearing(folder / "a") as draft:
            draft.write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert (folder / "a").read_text() == "old"
    assert [one.name for one in folder.iterdir()] == ["a"]


def test_leftovers_of_a_kill_are_removed_by_the_next_writer_and_live_drafts_are_not(folder):
    left = folder / ".a.draft-killed"
    left.mkdir()
    (left / "a").write_text("half")
    with appearing(folder / "a") as draft:
        assert not left.exists()
        clear_drafts(folder)
        draft.write_text("new")  # still there
    assert [one.name for one in folder.iterdir()] == ["a"]


def test_leftovers_below_a_folder(folder):
    (folder / "deep" / ".x.json.draft-killed").mkdir(parents=True)
    (folder / ".y.draft-link").symlink_to(folder / "deep")
    clear_drafts(folder)
    assert sorted(one.name for one in folder.iterdir()) == [".y.draft-link", "deep"]
    assert not any((folder / "deep").iterdir())


def test_a_folder_is_on_disk_before_it_is_finished(folder, monkeypatch):
    run = RunFolder(folder / "run")
    (run.draft / "predictions").mkdir(parents=True)
    for name in ("run.json", "predictions/test.npz"):
        (run.draft / name).write_text("{}")
    synced = []
    monkeypatch.setattr(_writing, "_sync", lambda path: synced.append((path.name, run.finished)))
    run.finish()
    assert run.finished
    before = {name for name, finished in synced if not finished}
    assert before == {"run.json", "predictions", "test.npz", "run.unfinished"}
    assert synced[-1] == ("folder", True)


@pytest.mark.parametrize("name", ["train.log", "history.jsonl", "compare.log"])
def test_logs_must_not_be_links(folder, outside, name):
    (folder / name).symlink_to(outside)
    with pytest.raises(OSError, match=rf"found a symbolic link; remove it: '.*{name}'"):
        open_unlinked(folder / name)


@pytest.mark.parametrize(("hold", "name"), [*((only_one, name) for name in LOCKS), (at_work, LOCKS[1])])
def test_locks_must_not_be_links(folder, outside, name, hold):
    (folder / name).symlink_to(outside)
    with pytest.raises(OSError, match="found a symbolic link"), hold(folder):
        pass


def test_logs_of_failures_must_not_be_links(folder, outside):
    comparison = ComparisonFolder(folder)
    (folder / "failures").mkdir()
    (folder / "failures" / "ce-0.log").symlink_to(outside)
    comparison.write_failure(PlannedRun("ce", 0, RunFolder(folder / "runs" / "ce-0")), "bad", "what it said")
    assert (folder / "failures" / "ce-0.log").read_text() == "what it said"


def test_text_that_utf8_has_no_bytes_for(folder):
    write_text(folder / "a", "caf\u00e9 \ud800")
    assert (folder / "a").read_bytes() == "café \\ud800".encode()


def test_folders_are_written_whole(folder):
    with appearing(folder / "array") as draft:
        draft.mkdir()
        np.save(draft / "logits.npy", np.zeros(3))
    assert (folder / "array" / "logits.npy").is_file()
    with pytest.raises(InputError, match="a folder of that name"):
        write_text(folder / "array", "")


def test_moving_replaces_a_file(folder):
    (folder / "a").write_text("new")
    (folder / "b").write_text("old")
    move(folder / "a", folder / "b")
    assert (folder / "b").read_text() == "new"


def test_empty_folders_go_where_nothing_came_of_them(folder):
    place = folder / "runs" / "first"

    def refuse(*kept):
        with no_empty_folders(place):
            place.mkdir(parents=True)
            for name in kept:
                (place.parent / name).write_text("")
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refuse()
    assert list(folder.iterdir()) == []
    with pytest.raises(ValueError, match="refused"):
        refuse("kept")
    assert [one.name for one in place.parent.iterdir()] == ["kept"]


def test_a_refused_run_leaves_no_folder(folder):
    with pytest.raises(ValueError, match="monitor"):
        run(RunSpec(data="digits-lt", monitor="beauty"), folder / "runs" / "first")
    assert list(folder.iterdir()) == []


def test_damaged_checkpoints_start_a_run_again(folder):
    lines = []
    spec = RunSpec(data="digits-lt", model="linear", epochs=2, logger="none")
    unfinished = RunFolder(folder / "run")
    unfinished.draft.mkdir()
    write_json(unfinished.draft / "spec.json", spec.model_dump())
    (unfinished.draft / ".checkpoint.ckpt.draft-killed").mkdir()
    unfinished.resume_point.write_bytes(b"PK half of a checkpoint")
    (unfinished.draft / "history.jsonl").write_text('{"epoch": 0}\n')
    run(spec, unfinished.path, say=lines.append)
    assert any("resume.ckpt: the file must be the checkpoint of a run" in line for line in lines)
    assert [row.epoch for row in unfinished.history()] == [0, 1]
    assert not any(unfinished.path.rglob(".*"))
