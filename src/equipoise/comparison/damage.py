"""Integrity checks of the files of a finished run that a comparison needs. Does not import torch."""

from __future__ import annotations

import zipfile

from equipoise._reading import reading
from equipoise._writing import move
from equipoise.predictions import InputError, open_predictions
from equipoise.train.folder import AGAIN, RunFolder

__all__ = ["check_run", "damage_of", "set_aside"]


def check_run(run: RunFolder) -> None:
    """Raise if a file of a finished run is damaged; the message names the file and the remedy."""
    data, test = run.record.data, run.results.test  # reading validates all of it
    with reading(run.path / "results.json", "the numbers are inconsistent", AGAIN):
        if len({len(data.class_names), len(data.train_counts), len(test.per_class)}) > 1:
            raise ValueError(f"{len(test.per_class)} of {len(data.class_names)} classes")
        if test.task is not data.task:
            raise ValueError(f"task {test.task}")
        if any(test.main not in row.metrics for row in test.per_class):
            raise ValueError(f"a class without {test.main}")
        if any(not {test.main, "ece"} <= row.metrics.keys() for row in test.groups):
            raise ValueError(f"a group without {test.main} or ece")
        for curves in test.reliability.values():
            for curve in filter(None, (curves.before, curves.after)):
                if len({len(curve.count), len(curve.confidence), len(curve.accuracy)}) > 1:
                    raise ValueError("a reliability curve with bins missing")
    for _ in run.history():
        pass  # raises for damaged rows


def damage_of(run: RunFolder) -> str | None:
    """Description of the damage of a finished run, None if it is intact; existing predictions are read completely."""
    try:
        check_run(run)
        for split in ("val", "test", "open"):
            file = run.predictions(split)
            if not file.is_file():  # deleted to save space, or never written
                continue
            with reading(file, "the file cannot be read as .npz", AGAIN), zipfile.ZipFile(file) as archive:
                broken = archive.testzip()
                if broken is not None:
                    raise InputError(f"{file}: {broken} is damaged; {AGAIN}")
            open_predictions(file, targets=split != "open")
    except (ValueError, OSError) as error:
        return " ".join(str(error).split())
    return None


def set_aside(run: RunFolder) -> str:
    """Rename the folder of a run so that it is trained again; returns its new name."""
    number = 1
    while (place := run.where.with_name(f"{run.where.name}.damaged-{number}")).exists():
        number += 1
    move(run.where, place)
    return place.name
