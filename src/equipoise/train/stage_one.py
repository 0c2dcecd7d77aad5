"""Stage one of a method: checks of its run, and its weights."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from equipoise._suggestions import some
from equipoise.data import DataSet
from equipoise.train.checkpoints import SelectedWeights
from equipoise.train.folder import RunFolder
from equipoise.train.methods import is_same_loss
from equipoise.train.spec import FREE, RunSpec

__all__ = ["begin_from", "named_stage_one"]


def named_stage_one(path: str, wanted: RunSpec, data: DataSet) -> RunFolder:
    """The finished run in a folder; raises unless it has these settings and data.

    Args:
        path: the folder.
        wanted: required settings of stage one.
        data: data of stage two.
    """
    folder = RunFolder(Path(path))
    if not folder.finished:
        what = "an unfinished one" if folder.draft.exists() else "none"
        raise ValueError(
            f"--stage-one must be the folder of a finished run, found {what} at {folder.path}; train it first, with "
            f"--loss {wanted.loss}"
        )
    record = folder.record
    changed = wanted.differing(record.spec, FREE)
    if "loss" in changed and is_same_loss(wanted.loss, changed["loss"][0], data.task):
        del changed["loss"]
    if changed:
        differs = some(f"{key} {known} in place of {value}" for key, (known, value) in changed.items())
        raise ValueError(
            f"--stage-one must be a run with the same settings, found {folder.path} with {differs}; train one with "
            "these, or omit it"
        )
    own = {
        "class names": list(data.class_names),
        "training samples of the classes": data.train_counts.tolist(),
        "samples, or their order": data.fingerprint,
    }
    then = [record.data.class_names, record.data.train_counts, record.data.fingerprint]
    other = next((what for (what, now), was in zip(own.items(), then, strict=True) if was not in (None, now)), None)
    if other is not None:
        raise ValueError(
            f"--stage-one must be a run on these data, found {folder.path} with other {other}; the data have changed "
            "since, train it again"
        )
    return folder


def begin_from(stage_one: RunFolder, model: nn.Module, name: str) -> None:
    """Load the weights of stage one into a model."""
    try:
        model.load_state_dict(SelectedWeights.read(stage_one).model)
    except Exception as error:  # noqa: BLE001  (a broken file may raise anything)
        raise ValueError(
            f"--stage-one must hold weights of --model {name}, found {stage_one.checkpoint} without: "
            f"{' '.join(str(error).split())[:300]}; train it again"
        ) from None
