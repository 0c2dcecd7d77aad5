"""Export the model of a run: raw inputs in, calibrated probabilities out."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import equipoise
from equipoise._extras import missing
from equipoise._reading import read_checkpoint, read_json, reading
from equipoise._suggestions import some
from equipoise._writing import appearing
from equipoise.calibration import Fitted, Thresholds
from equipoise.calibration.storage import from_json
from equipoise.models import build_model
from equipoise.predictions import InputError
from equipoise.train.export_record import ExportedModel, ExportedResults, ExportRecord, FitRecord, TrainingSummary
from equipoise.train.folder import UNFINISHED, RunFolder, write_json
from equipoise.train.methods import parse_method
from equipoise.train.model_card import model_card
from equipoise.train.preparation import Preparation
from equipoise.train.record import FORMAT as RUN_FORMAT

__all__ = ["Exported", "export_run", "load_exported"]

MANY = 100_000
"""Number of outputs or words that is accepted without comparing it to the size of the weights."""
AS_WRITTEN = "the file must be as equipoise export wrote it"
WEIGHTS, RECORD, CODE, CARD = "model.safetensors", "model.json", "model.py", "README.md"

PRETRAINED: Mapping[str, Mapping[str, bool]] = {
    "torchvision:googlenet": {"transform_input": True, "aux_logits": False},
    "torchvision:inception_v3": {"transform_input": True},
}
"""Options that pretrained weights change, by model."""


class Exported(nn.Module):
    """An exported model: raw inputs in, calibrated probabilities out.

    Inputs are those of :meth:`equipoise.train.preparation.Preparation.raw`: images as arrays, files or Pillow images,
    rows of features, or texts, as in training. One call is one batch, without gradients; use ``model`` itself for
    gradients.

    Args:
        model: prepared inputs to logits.
        record: the content of ``model.json``.

    Attributes:
        task: ``"multiclass"``, ``"multilabel"`` or ``"segmentation"``.
        class_names: in the order of the probabilities.
        preparation: from raw inputs to those of ``model``.
        calibration: fitted on validation data; None if the fit failed.
        thresholds: of multi-label decisions, for uncalibrated logits; None means probability 1/2.
    """

    def __init__(self, model: nn.Module, record: ExportRecord) -> None:
        super().__init__()
        self.model = model
        self.record = record
        self.task = record.task
        self.class_names: tuple[str, ...] = tuple(record.class_names)
        self.preparation = Preparation(**vars(record.preparation))
        self.calibration = _fit(record.calibration, "calibration")
        self.thresholds = _fit(record.thresholds, "thresholds")
        self._place: Tensor
        self.register_buffer("_place", torch.empty(0), persistent=False)  # follows .to(...) and .half()

    @property
    def about(self) -> dict[str, Any]:
        """Deprecated: read the attributes of ``record``."""
        warnings.warn("about is deprecated; read the attributes of record", DeprecationWarning, stacklevel=2)
        return self.record.to_json()

    def forward(self, inputs: Any) -> Tensor:  # noqa: ANN401  (what Preparation.raw takes)
        """Probabilities (N, C) or (N, C, H, W): a softmax over C, or a sigmoid for each label."""
        logits = self.logits(inputs)
        return logits.sigmoid() if self.task.multilabel else logits.softmax(1)

    @torch.no_grad()
    def logits(self, inputs: Any, *, calibrated: bool = True) -> Tensor:  # noqa: ANN401
        """Logits (N, C) or (N, C, H, W), float32 or float64; uncalibrated with ``calibrated=False``."""
        x = self.preparation.raw(inputs).to(self._place.device)
        x = self.preparation.prepare(x)
        logits = self.model(x.to(self._place.dtype) if x.is_floating_point() else x)
        wide: Tensor = logits if logits.dtype == torch.float64 else logits.float()
        return self.calibration(wide) if calibrated and self.calibration is not None else wide

    def predict(self, inputs: Any) -> list[str] | list[list[str]] | Tensor:  # noqa: ANN401
        """The class name of each sample, the names of its labels, or label maps (N, H, W) of class indices."""
        if self.task.multilabel:
            chosen = self._chosen(inputs).tolist()
            return [[self.class_names[k] for k, one in enumerate(row) if one] for row in chosen]
        best = self.logits(inputs).argmax(1)
        return best if self.task.pixels else [self.class_names[k] for k in best.tolist()]

    def _chosen(self, inputs: Any) -> Tensor:  # noqa: ANN401
        """Whether each label is predicted, (N, C)."""
        if self.thresholds is None:
            return self.logits(inputs) > 0
        return self.thresholds(self.logits(inputs, calibrated=False)) > 0

    def extra_repr(self) -> str:
        """Task and classes."""
        return f"task={self.task!r}, classes={len(self.class_names)}"


def export_run(run: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Write the model of a finished run as a folder for :func:`load_exported`, and return that folder.

    It holds ``model.safetensors`` (weights), ``model.json`` (an :class:`ExportRecord`), ``README.md`` (the model card)
    and, of a model from user code, that file as ``model.py``. The folder is written atomically, and only if the model
    can be loaded; user code is copied and not run.

    Args:
        run: a folder written by ``equipoise train``.
        out: the folder to write, which must not exist.
    """
    run, out = Path(run), Path(out)
    folder = _finished(run)
    if out.exists():
        raise InputError(f"{out}: the folder already exists; remove it or choose another --out")
    with reading(folder.path, "run.json and results.json must be as the run wrote them", "train again"):
        record = _record_of(folder)
    with reading(run, "the files of the run must fit", "train again"):
        _check_fits(run, record)
    weights = _weights(folder.checkpoint)
    with appearing(out) as draft:
        draft.mkdir()
        write_json(draft / RECORD, record.to_json())
        _safetensors().torch.save_file(weights, draft / WEIGHTS)
        (draft / WEIGHTS).chmod((draft / RECORD).stat().st_mode)  # safetensors makes the file private
        (draft / CARD).write_text(model_card(record), encoding="utf-8")
        if record.model.is_user_code:
            shutil.copyfile(folder.path / CODE, draft / CODE)
        else:
            load_exported(draft)
    return out


def load_exported(
    path: str | os.PathLike[str], *, device: torch.device | str = "cpu", trust_code: bool = False
) -> Exported:
    """Load a model written by ``equipoise export``. Nothing is downloaded.

    Args:
        path: the folder.
        device: of the model.
        trust_code: run the ``model.py`` of the folder, which builds a model from user code. It can do anything that a
            program can: read it first.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it is not an exported model, it is damaged, or it comes with code that is not trusted.
    """
    folder = Path(path)
    file = folder / RECORD
    if not file.is_file():
        reason = f"{RECORD} is missing" if folder.is_dir() else "there is no such folder"
        raise FileNotFoundError(f"{folder}: no exported model: {reason}; equipoise export makes one")
    record = ExportRecord.read(file)
    with reading(file, AS_WRITTEN, "export again"):
        with torch.random.fork_rng(devices=[]):  # the fresh weights are replaced: leave the random state of the caller
            model = _built(folder, record, trust_code)
        exported = Exported(model, record)
        _check_fits(file, record)
    with reading(folder / WEIGHTS, "the weights must be those of the model", "export again"):
        model.load_state_dict(_safetensors().torch.load_file(folder / WEIGHTS))
    return exported.eval().to(device)


def _check_fits(path: Path, record: ExportRecord) -> None:
    """Raise unless names, classes, calibration and thresholds are those of one model."""
    names, task = record.class_names, record.task
    mistakes: list[str] = []
    if len(names) != record.model.num_classes:
        mistakes.append(f"{len(names)} class names for {record.model.num_classes} outputs")
    if len(set(names)) < len(names):
        mistakes.append("a class name twice")
    for kind, stored in (("calibration", record.calibration), ("thresholds", record.thresholds)):
        fit = _fit(stored, kind)
        if fit is None:
            continue
        if fit.task != task.fitted or (kind == "thresholds") != isinstance(fit, Thresholds):
            mistakes.append(f"a {fit.kind} of task {fit.task} as {kind} of task {task}")
        if fit.num_classes not in (None, len(names)):
            mistakes.append(f"a {kind} for {fit.num_classes} classes where there are {len(names)}")
        if fit.class_names and list(fit.class_names) != names:
            mistakes.append(f"a {kind} for other class names")
    if mistakes:
        raise InputError(
            f"{path}: names, classes and calibration must fit each other, found {some(mistakes)}; export again"
        )


def _finished(run: Path) -> RunFolder:
    """The folder of a finished run."""
    folder, whole = RunFolder(run), run.with_name(run.name.removesuffix(UNFINISHED))
    if whole != run and RunFolder(whole).finished:
        raise InputError(f"{run}: the run is finished, in {whole}; use that")
    if (whole != run and run.is_dir()) or (not folder.finished and folder.draft.is_dir()):
        raise InputError(f"{run}: the run is unfinished; train with the same --out to resume it")
    if not folder.finished:
        reason = "run.json is missing" if run.is_dir() else "there is no such folder"
        raise InputError(f"{run}: no run: {reason}; equipoise train makes one")
    try:
        readable = folder.record.format == RUN_FORMAT
    except ValueError:  # broken JSON
        readable = False
    if not readable:
        raise InputError(f"{run / 'run.json'}: the file must be of a run in format {RUN_FORMAT}; train again")
    return folder


def _record_of(folder: RunFolder) -> ExportRecord:
    """The content of ``model.json``."""
    record, test = folder.record, folder.results.test
    data, spec, model = record.data, record.spec, record.model
    if record.preparation is None or model.num_classes is None:
        raise InputError(f"{folder.path / 'run.json'}: preparation and num_classes of the model are missing")
    name = model.name
    if ".py:" in name:
        code = folder.path / CODE  # as it was when the model was trained
        if not code.is_file():
            raise InputError(f"{code}: the code of the model is missing; train again")
        name = f"{CODE}:{name.rpartition(':')[2]}"
    calibration = _stored_fit(folder.path / "calibration.json")
    return ExportRecord(
        equipoise=equipoise.__version__,
        task=data.task,
        class_names=data.class_names,
        ignore_index=data.ignore_index,
        model=ExportedModel(
            name=name,
            options=model.options,
            parameters=model.parameters,
            num_classes=model.num_classes,
            input_shape=model.input_shape,
            vocabulary=model.vocabulary,
            method=spec.get("method", "none"),
        ),
        preparation=record.preparation,
        calibration=calibration,
        thresholds=_stored_fit(folder.path / "thresholds.json"),
        results=ExportedResults(test.overall, None if calibration is None else test.calibration.after),
        training=TrainingSummary(
            data=data.name,
            train_counts=data.train_counts,
            samples=data.samples,
            notes=data.notes,
            loss=data.task.loss_named(spec["loss"]),
            epochs=spec["epochs"],
            checkpoint=spec["checkpoint"],
            chosen_epoch=record.best_epoch + 1,
        ),
    )


def _stored_fit(path: Path) -> FitRecord | None:
    """The fit in a file, if there is one."""
    if not path.is_file():
        return None
    return FitRecord.from_json(read_json(path, advice="train again"), where=path, advice="train again")


def _weights(path: Path) -> dict[str, Tensor]:
    """The selected weights, in separate memory, as safetensors requires."""
    content = read_checkpoint(path, advice="train again")
    with reading(path, "the file must be the checkpoint of a run", "train again"):
        weights = content["model"].items()
        return {str(name): tensor.clone(memory_format=torch.contiguous_format) for name, tensor in weights}


def _built(folder: Path, record: ExportRecord, trust_code: bool) -> nn.Module:
    """The model with fresh weights, without a download."""
    model = record.model
    name, options = model.name, dict(model.options)
    known: dict[str, Any] = {key: getattr(model, key) for key in ("num_classes", "input_shape", "vocabulary")}
    most = max(MANY, (folder / WEIGHTS).stat().st_size)  # each has a weight, before memory is allocated for them
    if max(model.num_classes, model.vocabulary or 0) > most:
        raise ValueError(f"{model.num_classes} outputs and far fewer weights")
    package, _, inner = name.partition(":")
    if model.is_user_code:
        if not re.fullmatch(re.escape(CODE) + r":\w+", name):
            raise InputError(f"{folder / RECORD}: {AS_WRITTEN}, found code at {name!r}; export again")
        if not trust_code:
            raise InputError(
                f"{folder}: loading this model runs its code {CODE}; read it, and if you trust it, pass trust_code=True"
            )
        name = f"{folder.resolve() / name}"
    elif package in ("timm", "torchvision"):
        if ":" in inner:
            raise InputError(
                f"{folder}: a model must be built without a download, got {name!r}; train with a name of timm itself"
            )
        pretrained = any(options.get(key) for key in ("pretrained", "weights"))
        fetching = ("pretrained", "weights", "checkpoint_path")
        options = {key: value for key, value in options.items() if not key.startswith(fetching)}
        if pretrained:
            options = {**PRETRAINED.get(name, {}), **options}
        if package == "torchvision" and record.task.pixels:
            options["weights_backbone"] = None  # which would be fetched by default
    return parse_method(model.method).shaped(build_model(name, **known, **options))


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise missing("an exported model", "safetensors") from None
    return safetensors


def _fit(stored: FitRecord | None, name: str) -> Fitted | None:
    return None if stored is None else from_json(stored.to_json(), f"{name} must be a fit")
