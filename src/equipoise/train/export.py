"""From the folder of a run to a model that stands alone: raw inputs in, calibrated probabilities out."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import equipoise
from equipoise._extras import missing
from equipoise._reading import check_shape, read_checkpoint, read_json, reading
from equipoise._suggestions import some
from equipoise._writing import appearing
from equipoise.calibration import Fitted, Thresholds
from equipoise.calibration.storage import from_json
from equipoise.models import build_model
from equipoise.predictions import InputError
from equipoise.predictions.source import TASKS
from equipoise.train.folder import UNFINISHED, RunFolder, write_json
from equipoise.train.loss_text import default_loss
from equipoise.train.methods import parse_method
from equipoise.train.model_card import model_card
from equipoise.train.preparation import Preparation
from equipoise.train.record import FORMAT as RUN_FORMAT

__all__ = ["Exported", "export_run", "load_exported"]

FORMAT, VERSION = "equipoise.model", 1
MANY = 100_000
"""Outputs or words that a model may have whatever its weights say."""
AS_WRITTEN = "the file must be as equipoise export wrote it"
WEIGHTS, ABOUT, CODE, CARD = "model.safetensors", "model.json", "model.py", "README.md"

PRETRAINED: Mapping[str, Mapping[str, bool]] = {
    "torchvision:googlenet": {"transform_input": True, "aux_logits": False},
    "torchvision:inception_v3": {"transform_input": True},
}
"""Models that pretrained weights change in more than their weights, and the options that do the same."""


class Exported(nn.Module):
    """An exported model: raw inputs in, calibrated probabilities out.

    Inputs are what :meth:`equipoise.train.preparation.Preparation.raw` takes: images as arrays, files or pillow's
    images, rows of features, or texts, as the model was trained on. All of a call go through the model at once, without
    gradients; for these take ``model`` itself.

    Args:
        model: prepared inputs to logits.
        about: what ``model.json`` says.

    Attributes:
        task: ``"single"``, ``"multi"`` or ``"segmentation"``.
        class_names: in the order of the probabilities.
        preparation: from raw inputs to those of ``model``.
        calibration: fitted on validation data; None where none could be fitted.
        thresholds: for decisions about several labels, on logits that are not calibrated, as the run fitted them; None
            for probability 1/2.
    """

    def __init__(self, model: nn.Module, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.about = about
        self.task: str = about["task"]
        self.class_names: tuple[str, ...] = tuple(about["class_names"])
        self.preparation = Preparation.from_json(about["preparation"])
        self.calibration, self.thresholds = (_fit(about, name) for name in ("calibration", "thresholds"))
        self._place: Tensor
        self.register_buffer("_place", torch.empty(0), persistent=False)  # follows .to(...) and .half()

    def forward(self, inputs: Any) -> Tensor:  # noqa: ANN401  (what Preparation.raw takes)
        """Probabilities (N, C), of label maps (N, C, H, W): a softmax over C, for multi-label data a sigmoid."""
        logits = self.logits(inputs)
        return logits.sigmoid() if self.task == "multi" else logits.softmax(1)

    @torch.no_grad()
    def logits(self, inputs: Any, *, calibrated: bool = True) -> Tensor:  # noqa: ANN401
        """Logits (N, C) or (N, C, H, W), float32 or float64; those of the model itself with ``calibrated=False``."""
        x = self.preparation.raw(inputs).to(self._place.device)
        x = self.preparation.prepare(x)
        logits = self.model(x.to(self._place.dtype) if x.is_floating_point() else x)
        wide: Tensor = logits if logits.dtype == torch.float64 else logits.float()
        return self.calibration(wide) if calibrated and self.calibration is not None else wide

    def predict(self, inputs: Any) -> list[str] | list[list[str]] | Tensor:  # noqa: ANN401
        """Decisions: the class of each sample by name, the names of its labels, or label maps (N, H, W) of numbers."""
        if self.task == "multi":
            chosen = self._chosen(inputs).tolist()
            return [[self.class_names[k] for k, one in enumerate(row) if one] for row in chosen]
        best = self.logits(inputs).argmax(1)
        return best if self.task == "segmentation" else [self.class_names[k] for k in best.tolist()]

    def _chosen(self, inputs: Any) -> Tensor:  # noqa: ANN401
        """Which labels are announced, (N, C)."""
        if self.thresholds is None:
            return self.logits(inputs) > 0
        return self.thresholds(self.logits(inputs, calibrated=False)) > 0

    def extra_repr(self) -> str:
        """Task and classes."""
        return f"task={self.task!r}, classes={len(self.class_names)}"


def export_run(run: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Write the model of a finished run as a folder for :func:`load_exported`, and return that folder.

    It holds ``model.safetensors`` (weights), ``model.json`` (what the model is, preparation, calibration, thresholds,
    results), ``README.md`` (for people) and, of a model that the user's own file makes, that file as ``model.py``. It
    appears as a whole or not at all, and only if it can be loaded; the user's own file is copied and not run.

    Args:
        run: the folder that ``equipoise train`` left.
        out: the folder to write, which must not exist.
    """
    run, out = Path(run), Path(out)
    folder = _finished(run)
    if out.exists():
        raise InputError(f"{out}: the folder to write must not exist yet, found one; remove it or choose another --out")
    about, code = _about(folder)
    with reading(run, "the files of the run must fit", "train again"):
        _check_fits(run, about)
    weights = _weights(folder.checkpoint)
    with appearing(out) as draft:
        draft.mkdir()
        write_json(draft / ABOUT, about)
        _safetensors().torch.save_file(weights, draft / WEIGHTS)
        (draft / WEIGHTS).chmod((draft / ABOUT).stat().st_mode)  # safetensors lets nobody else read it
        (draft / CARD).write_text(model_card(about), encoding="utf-8")
        if code is None:
            load_exported(draft)
        else:
            shutil.copyfile(code, draft / CODE)
    return out


def load_exported(
    path: str | os.PathLike[str], *, device: torch.device | str = "cpu", trust_code: bool = False
) -> Exported:
    """A model that ``equipoise export`` wrote, ready for use. Nothing is downloaded.

    Args:
        path: the folder.
        device: where the model shall work.
        trust_code: run the ``model.py`` of the folder, which makes a model that is none of this package. Like any
            program it can do harm: look at it first.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it is no exported model, it was damaged, or it comes with a program that was not trusted.
    """
    folder = Path(path)
    about = _read_about(folder)
    with reading(folder / ABOUT, AS_WRITTEN, "export again"):
        with torch.random.fork_rng(devices=[]):  # the fresh weights are of no use, and nobody's seed shall feel them
            model = _built(folder, about, trust_code)
        exported = Exported(model, about)
    _fill(model, folder)
    _check_fits(folder / ABOUT, about)
    return exported.eval().to(device)


def _check_fits(path: Path, about: Mapping[str, Any]) -> None:
    """Raise unless names, classes, calibration and thresholds are those of one model."""
    check_shape(path, about, {"task": frozenset(TASKS), "class_names": [str]}, advice="export again")
    names, task = about["class_names"], "multi" if about["task"] == "multi" else "single"
    found: list[str] = []
    if len(names) != about["model"]["num_classes"]:
        found.append(f"{len(names)} class names for {about['model']['num_classes']} outputs")
    if len(set(names)) < len(names):
        found.append("a class name twice")
    for kind in ("calibration", "thresholds"):
        fit = _fit(about, kind)
        if fit is None:
            continue
        if fit.task != task or (kind == "thresholds") != isinstance(fit, Thresholds):
            found.append(f"a {fit.kind} of task {fit.task} as {kind} of task {about['task']}")
        if fit.num_classes not in (None, len(names)):
            found.append(f"a {kind} for {fit.num_classes} classes where there are {len(names)}")
        if fit.class_names and list(fit.class_names) != names:
            found.append(f"a {kind} for other class names")
    if found:
        raise InputError(
            f"{path}: names, classes and calibration must fit each other, found {some(found)}; export again"
        )


def _finished(run: Path) -> RunFolder:
    """The folder of a run that came to its end."""
    folder, whole = RunFolder(run), run.with_name(run.name.removesuffix(UNFINISHED))
    if whole != run and RunFolder(whole).finished:
        raise InputError(f"{run}: the run is finished and lies in {whole}; take that")
    if (whole != run and run.is_dir()) or (not folder.finished and folder.draft.is_dir()):
        raise InputError(
            f"{run}: the run must be finished, found an unfinished one; train with the same --out to go on"
        )
    if not folder.finished:
        found = "none in this folder" if run.is_dir() else "no such folder"
        raise InputError(f"{run}: there must be the run.json of a run, found {found}; equipoise train makes one")
    try:
        readable = folder.record.format == RUN_FORMAT
    except ValueError:  # broken JSON
        readable = False
    if not readable:
        raise InputError(f"{run / 'run.json'}: the file must be of a run in format {RUN_FORMAT}; train again")
    return folder


def _about(folder: RunFolder) -> tuple[dict[str, Any], Path | None]:
    """The content of ``model.json``, and the user's own file that makes the model."""
    with reading(folder.path, "run.json and results.json must be as the run wrote them", "train again"):
        return _described(folder)


def _described(folder: RunFolder) -> tuple[dict[str, Any], Path | None]:
    record, test = folder.record, folder.evaluation("test")
    data, spec = record.data, record.spec
    model = {
        "name": record.model.name,
        "options": record.model.options,
        "parameters": record.model.parameters,
        "num_classes": record.model.num_classes,
        "input_shape": record.model.input_shape,
        "vocabulary": record.model.vocabulary,
        "method": spec.get("method", "none"),
    }
    code = None
    if ".py:" in model["name"]:
        code = folder.path / CODE  # as it was when the model was trained
        if not code.is_file():
            raise InputError(f"{code}: the program that makes the model must be there, found none; train again")
        model["name"] = f"{CODE}:{model['name'].rpartition(':')[2]}"
    calibration, thresholds = (_optional(folder.path / f"{name}.json") for name in ("calibration", "thresholds"))
    about = {
        "format": FORMAT,
        "version": VERSION,
        "equipoise": equipoise.__version__,
        "task": data.task,
        "class_names": data.class_names,
        "ignore_index": data.ignore_index,
        "model": model,
        "preparation": record.preparation,
        "calibration": calibration,
        "thresholds": thresholds,
        "results": {
            "overall": test.overall,
            "calibrated": test.calibration.after if calibration is not None else None,
        },
        "training": {
            "data": data.name,
            "train_counts": data.train_counts,
            "samples": data.samples,
            "notes": data.notes,
            "loss": default_loss(data.task) if spec["loss"] == "auto" else spec["loss"],
            "epochs": spec["epochs"],
            "checkpoint": spec["checkpoint"],
            "chosen_epoch": record.best_epoch + 1,
        },
    }
    return about, code


def _optional(path: Path) -> Any:  # noqa: ANN401  (JSON)
    return read_json(path, advice="train again") if path.is_file() else None


def _weights(path: Path) -> dict[str, Tensor]:
    """The weights to use, each in memory of its own, as safetensors wants them."""
    content = read_checkpoint(path, advice="train again")
    with reading(path, "the file must be the checkpoint of a run", "train again"):
        weights = content["model"].items()
        return {str(name): tensor.clone(memory_format=torch.contiguous_format) for name, tensor in weights}


def _read_about(folder: Path) -> dict[str, Any]:
    """What ``model.json`` says."""
    path = folder / ABOUT
    if not path.is_file():
        found = f"no {ABOUT} in it" if folder.is_dir() else "no such folder"
        raise FileNotFoundError(f"{folder}: there must be an exported model, found {found}; equipoise export makes one")
    about = read_json(path, problem=AS_WRITTEN, advice="export again")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError(f"{path}: the file must have format {FORMAT!r}, found none; check the path")
    if type(about.get("version")) is not int or about["version"] > VERSION:
        raise InputError(
            f"{path}: the version must be at most {VERSION}, found {about.get('version')!r}; upgrade equipoise"
        )
    return about


def _built(folder: Path, about: Mapping[str, Any], trust_code: bool) -> nn.Module:
    """The model with fresh weights; none are fetched."""
    name, options, task = about["model"]["name"], dict(about["model"]["options"]), about["task"]
    known = {key: about["model"][key] for key in ("num_classes", "input_shape", "vocabulary")}
    most = max(MANY, (folder / WEIGHTS).stat().st_size)  # each has a weight, before memory is taken for them
    if max(known["num_classes"], known["vocabulary"] or 0) > most:
        raise ValueError(f"{known['num_classes']} outputs and far fewer weights")
    package, _, inner = name.partition(":")
    if ".py" in name:
        if not re.fullmatch(re.escape(CODE) + r":\w+", name):
            raise InputError(f"{folder / ABOUT}: {AS_WRITTEN}, found a program at {name!r}; export again")
        if not trust_code:
            raise InputError(
                f"{folder}: the model is made by the program {CODE}, and loading runs it; look at it, and if you trust "
                "it, pass trust_code=True"
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
        if package == "torchvision" and task == "segmentation":
            options["weights_backbone"] = None  # which would be fetched by default
    return parse_method(about["model"].get("method", "none")).shaped(build_model(name, **known, **options))


def _fill(model: nn.Module, folder: Path) -> None:
    """Put the weights of the folder into the model."""
    with reading(folder / WEIGHTS, "the weights must be those of the model", "export again"):
        model.load_state_dict(_safetensors().torch.load_file(folder / WEIGHTS))


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise missing("an exported model", "safetensors") from None
    return safetensors


def _fit(about: Mapping[str, Any], name: str) -> Fitted | None:
    return None if about[name] is None else from_json(about[name], f"{name} must be a fit")
