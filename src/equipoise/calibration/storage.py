"""Saving and loading fits: JSON with a format name and a version, without code, with exact floats."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from equipoise._reading import read_json
from equipoise._writing import write_text
from equipoise.calibration.dirichlet import DirichletCalibration
from equipoise.calibration.fitted import Fitted
from equipoise.calibration.focal import FocalPosterior
from equipoise.calibration.groups import GroupTemperatures
from equipoise.calibration.histogram import HistogramBinning
from equipoise.calibration.isotonic import IsotonicCalibration
from equipoise.calibration.labels import LabelTemperatures
from equipoise.calibration.prior import PriorCorrection
from equipoise.calibration.temperature import Temperature
from equipoise.calibration.thresholds import Thresholds
from equipoise.calibration.vector import VectorScaling

__all__ = ["from_json", "load", "save", "to_json"]

FORMAT, VERSION = "equipoise.calibration", 1
KINDS: dict[str, type[Fitted]] = {
    cls.kind: cls
    for cls in (
        Temperature,
        VectorScaling,
        DirichletCalibration,
        IsotonicCalibration,
        HistogramBinning,
        LabelTemperatures,
        GroupTemperatures,
        PriorCorrection,
        FocalPosterior,
        Thresholds,
    )
}


def save(fitted: Fitted, path: str | os.PathLike[str]) -> None:
    """Save a fit to a JSON file; an existing file is replaced atomically.

    >>> import tempfile
    >>> from equipoise.calibration import Temperature
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Temperature(1.25, num_classes=10), f"{folder}/fitted.json")
    ...     load(f"{folder}/fitted.json")
    Temperature(num_classes=10, temperature=1.25)
    """
    text = json.dumps(to_json(fitted), indent=1, allow_nan=False) + "\n"
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} must exist, found none; create it first")
    write_text(path, text)


def load(path: str | os.PathLike[str]) -> Fitted:
    """Load a fit written by :func:`save`. Nothing in the file is executed.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not a fit, is damaged, or was written by a newer version; the message says which.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{_file(path)}, found no file there; check the path")
    return from_json(read_json(Path(path), where=_file(path), advice="save the fit again"), _file(path))


def to_json(fitted: Fitted) -> dict[str, Any]:
    """Content written by :func:`save` as plain data, to embed in other files."""
    if type(fitted) not in KINDS.values():
        raise TypeError(
            f"fitted must be one of {', '.join(cls.__name__ for cls in KINDS.values())}, got {type(fitted).__name__}; "
            "save what a fit function returned"
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": fitted.kind,
        "fields": {field.name: getattr(fitted, field.name) for field in fields(fitted)},
    }


def from_json(content: object, where: str) -> Fitted:
    """The fitted method of :func:`to_json`; ``where`` is the start of error messages."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{where}, got JSON without format {FORMAT!r}; check the path")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"{where}, got version {version!r}; save the fit again")
    if version > VERSION:
        raise ValueError(
            f"{where} up to version {VERSION}, got version {version}; upgrade equipoise or save the fit again"
        )
    kind, values = content.get("kind"), content.get("fields")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{where}, got the unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    names = {field.name for field in fields(KINDS[kind])}
    if isinstance(values, dict):
        older: dict[str, Any] = {"class_names": []}  # defaults of files written before the field existed
        if kind == VectorScaling.kind:
            older["log_probs"] = False
        values = older | values
    if not isinstance(values, dict) or set(values) != names:
        came = sorted(values) if isinstance(values, dict) else values
        raise ValueError(f"{where} with the fields {sorted(names)}, got {came}; save the fit again")
    try:
        return KINDS[kind](**{name: _tuples(value) for name, value in values.items()})
    except Exception as error:  # numbers of unexpected size or type
        raise ValueError(f"{where}, got damaged numbers: {error}") from error


def _file(path: str | os.PathLike[str]) -> str:
    return f"path must be a file that equipoise.calibration.save wrote ({os.fspath(path)})"


def _tuples(value: Any) -> Any:  # noqa: ANN401 (JSON)
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
