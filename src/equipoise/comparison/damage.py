"""Whether the files of a finished run are as the run wrote them, as far as a comparison needs them. Without torch."""

from __future__ import annotations

import zipfile
from types import NoneType

from equipoise._reading import Shape, check_shape, reading
from equipoise._writing import move
from equipoise.predictions import InputError, open_predictions
from equipoise.train.folder import AGAIN, RunFolder

__all__ = ["check_run", "damage_of", "set_aside"]

NUMBER: Shape = (float, None)
SCORES: Shape = {...: NUMBER}
RESULTS: Shape = {
    "val?": {"overall": SCORES},
    "test": {
        "task": frozenset({"single", "multi", "segmentation"}),
        "samples": int,
        "main": str,
        "overall": SCORES,
        "per_class": [{"name": str, "support": float, "group?": (str, None), ...: NUMBER}],
        "groups": [{"name": str, "classes": int, "support": float, "ece": NUMBER}],
        "calibration": {"after": (SCORES, None)},
        "reliability": {...: {...: ({...: [NUMBER]}, None)}},
    },
    "open?": {"overall": SCORES},
}
"""What a comparison reads of ``results.json``."""


def check_run(run: RunFolder) -> None:
    """Raise where a file of a finished run is damaged; the message names it and says what to do."""
    data, results = run.record.data, run.results
    check_shape(run.path / "results.json", results, RESULTS, advice=AGAIN)
    classes, test = len(data.class_names), results["test"]
    with reading(run.path / "results.json", "the numbers do not fit together", AGAIN):
        lengths = {classes, len(data.train_counts), len(test["per_class"])}
        if len(lengths) > 1 or test["task"] != data.task:
            raise ValueError(f"task {test['task']}, {len(test['per_class'])} of {classes} classes")
        for row in [*test["per_class"], *test["groups"]]:
            if not isinstance(row[test["main"]], (float, int, NoneType)):
                raise TypeError(f"{row['name']} has {row[test['main']]!r}")
        for curves in test["reliability"].values():
            for curve in filter(None, curves.values()):
                if len({len(curve[name]) for name in ("count", "confidence", "accuracy")}) > 1:
                    raise ValueError("a reliability curve with bins missing")
    for _ in run.history():
        pass  # a damaged row raises


def damage_of(run: RunFolder) -> str | None:
    """What is damaged in a finished run, None where nothing is; predictions that are there are read as a whole."""
    try:
        check_run(run)
        for split in ("val", "test", "open"):
            file = run.predictions(split)
            if not file.is_file():  # taken away for room, or never there
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
