"""One run: from settings to its folder."""

from __future__ import annotations

import errno
import gc
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities import rank_zero_only
from rich.console import Console
from torch import nn

import equipoise
from equipoise._reading import read_checkpoint, read_record
from equipoise._visible import visible
from equipoise._writing import appearing, clear_drafts, no_empty_folders, open_unlinked
from equipoise.calibration import temperature_scaling
from equipoise.data import DataSet, Split
from equipoise.train.builders import (
    as_trained,
    check_method,
    check_model,
    loss_in_python,
    loss_of,
    method_of,
    model_of,
    monitor_of,
    opened,
    ready,
    sampler_of,
    training_of,
)
from equipoise.train.checkpoints import FROM_START, ResumePoint, SelectedWeights
from equipoise.train.company import company
from equipoise.train.errors import OutOfMemoryError, TrainingError
from equipoise.train.fabric import device_name, environment, fabric_for, launch, logger_for, on_one_device, quiet
from equipoise.train.folder import AGAIN, RunFolder, write_json
from equipoise.train.loop import fit
from equipoise.train.methods import Plain, RunContext, TrainingMethod, TwoStages
from equipoise.train.outcome import judge, keep_examples, predict
from equipoise.train.preparation import Preparation
from equipoise.train.record import DataRecord, ModelRecord, RunRecord
from equipoise.train.recorder import Recorder, SelectedEpoch
from equipoise.train.run_loaders import RunLoaders, classifier_features
from equipoise.train.spec import DATA_SETTINGS, FREE, RunSpec, describe_differences
from equipoise.train.stage_one import begin_from, named_stage_one
from equipoise.train.task import TrainingTask
from equipoise.train.training import Training

__all__ = ["run"]

WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes of ``torch.compile`` that capture CUDA graphs, and the same without, as whole steps are captured."""


def run(
    spec: RunSpec,
    out: Path,
    *,
    restart: bool = False,
    images_checked: bool = False,
    say: Callable[[str], None] = lambda line: None,
    console: Console | None = None,
) -> RunFolder:
    """Train, predict and evaluate; an interrupted run is resumed.

    Args:
        spec: all settings.
        out: folder of the finished run; until then its files are in ``out.unfinished``.
        restart: delete an unfinished run and start again.
        images_checked: image files were already checked, e.g. once by a comparison.
        say: called with messages for the user.
        console: for a progress bar; None for none.

    Raises:
        DataError: the data cannot be used.
        ValueError: a setting does not fit the data, or the folder holds another run.
        TrainingError: out of memory, a full disk, or a non-finite loss.
    """
    folder = RunFolder(out)
    leader = getattr(rank_zero_only, "rank", 0) in (None, 0)
    with no_empty_folders(folder.draft):
        if leader:
            _take_over(folder, spec, restart, _saying(folder, say))
            if folder.finished:
                say(f"{out} is finished already")
                return folder
        try:
            with _explained(folder), quiet():
                report = _saying(folder, say) if leader else lambda line: None
                _train(spec, folder, images_checked, report, console if leader else None)
        except BaseException:
            if leader and not any(
                folder.draft.rglob("*.ckpt")
            ):  # nothing to resume, and the folder may be needed for another run
                shutil.rmtree(folder.draft, ignore_errors=True)
            raise
    return folder


def _take_over(folder: RunFolder, spec: RunSpec, restart: bool, say: Callable[[str], None]) -> None:
    """Create the folder, or reuse that of an interrupted run; raise if it belongs to another run."""
    if restart and not folder.finished:
        shutil.rmtree(folder.draft, ignore_errors=True)
    linked = next((path for path in (folder.draft, *folder.draft.glob("*")) if path.is_symlink()), None)
    if linked is not None:  # files written through it would end up elsewhere
        raise ValueError(f"{linked}: an unfinished run must have no symbolic links, found one; remove it")
    if folder.finished or folder.draft.exists():
        file = folder.where / ("run.json" if folder.finished else "spec.json")
        try:
            stored = read_record(file, advice=AGAIN)
        except (OSError, ValueError):
            stored = {}
        known = stored.get("spec") if folder.finished else stored
        known = known if isinstance(known, dict) else {}
        changed = spec.differing(known, FREE)
        if known and not changed:
            clear_drafts(folder.where)
            _drop_damaged(folder, say)
            return
        if known or folder.finished or any(folder.draft.iterdir()):
            unknown = f"a damaged {file.name}" if file.exists() else "something else"
            differs = f"a run with {describe_differences(changed)}" if known else unknown
            advice = "choose another --out" + ("" if folder.finished else ", or --restart to start again")
            raise ValueError(f"{folder.where} already holds {differs}; {advice}")
    elif folder.path.exists():
        raise ValueError(f"{folder.path}: the folder exists and is not a run; choose another --out")
    try:
        folder.draft.mkdir(parents=True, exist_ok=True)
        write_json(folder.draft / "spec.json", spec.model_dump())
    except OSError as error:
        raise ValueError(f"{folder.draft}: the folder must be writable ({error}); choose another --out") from None


def _drop_damaged(folder: RunFolder, say: Callable[[str], None]) -> None:
    """Drop the epochs of an unfinished run with a damaged checkpoint or history: they are trained again."""
    files = [file for file in (folder.resume_point, folder.draft / "checkpoint.ckpt") if file.is_file()]
    try:
        for file in files:
            if file == folder.resume_point:
                ResumePoint.read(file)
            else:
                read_checkpoint(file, advice=FROM_START)
        if not folder.finished:
            for _ in folder.history():
                pass  # a damaged row raises
    except ValueError as error:
        say(str(error))
        for file in (*files, folder.draft / "history.jsonl"):
            file.unlink(missing_ok=True)


def _saying(folder: RunFolder, say: Callable[[str], None]) -> Callable[[str], None]:
    """Write messages to the log of the run, too."""

    def both(line: str) -> None:
        with open_unlinked(folder.draft / "train.log") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {visible(line)}\n")
        say(line)

    return both


@contextmanager
def _explained(folder: RunFolder) -> Iterator[None]:
    """Convert errors of the machine into errors that say what to do."""
    try:
        yield
    except MemoryError as error:
        raise OutOfMemoryError(f"the machine does not have enough memory: {error}") from None
    except torch.OutOfMemoryError as error:
        first = str(error).partition(". ")[0]
        raise OutOfMemoryError(
            f"the device does not have enough memory ({first}); lower --batch-size or --image-size, or use "
            "--precision bf16-mixed"
        ) from None
    except RuntimeError as error:
        if not _lost_a_process(error):
            raise
        raise TrainingError("another process of this run stopped; its own message says why") from None
    except (KeyboardInterrupt, SystemExit):
        raise TrainingError(f"interrupted; {_again(folder)}") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise TrainingError(f"the disk is full ({error}); make room: {_again(folder)}") from None
        raise


def _lost_a_process(error: RuntimeError) -> bool:
    """Whether another process of the run has stopped; gloo reports it in the message only."""
    words = ("Connection closed by peer", "Connection reset by peer")
    return type(error).__name__.startswith("Dist") or any(text in str(error) for text in words)


def _again(folder: RunFolder) -> str:
    """Advice on what running the same command again does."""
    if not any(folder.draft.rglob("*.ckpt")):
        return "no epoch was finished, the same command starts again"
    return f"finished epochs are in {folder.draft}, run the same command again to resume"


class _Prepared(NamedTuple):
    """TrainingMethod and data of a run, checked against each other."""

    method: TrainingMethod
    task: TrainingTask
    preparation: Preparation
    splits: dict[str, Split]
    stage_one: RunFolder | None


def _train(
    spec: RunSpec,
    folder: RunFolder,
    images_checked: bool,
    say: Callable[[str], None],
    console: Console | None,
) -> None:
    started, clock = datetime.now(UTC), time.perf_counter()
    prepared = _prepared(spec, folder, images_checked, say, console)
    method, task, preparation, splits, stage_one = prepared
    data = task.data
    sampled = sampler_of(spec, data, splits["train"], rank=0, world_size=1)
    batch_size = spec.batch_size or task.default_batch_size(len(sampled))
    steps = max(1, len(sampled) // batch_size)
    fabric = fabric_for(spec)
    model, model_name = _model(spec, method, task, preparation)
    if fabric.is_global_zero and ".py:" in model_name:  # the file may change before the model is exported
        with appearing(folder.draft / "model.py") as draft:
            shutil.copyfile(model_name.rpartition(":")[0], draft)
    launch(fabric, deterministic=spec.deterministic)
    with _own_stream(fabric.device):
        loaders = RunLoaders(fabric, spec, data, splits, batch_size, method.second_sampler)
        context = _context(spec, preparation, loaders, say)
        training = _training(fabric, spec, prepared, model, model_name, context, steps)
        if folder.resume_point.is_file():
            say("resuming an earlier attempt")
        say(_summary(spec, prepared, model, model_name, steps))
        leader = fabric.is_global_zero
        recorder = Recorder(
            folder,
            monitor_of(spec, task),
            spec.checkpoint,
            say,
            logger=logger_for(spec, folder),
            console=console,
            leader=leader,
        )
        if method.learns_in_steps:
            fit(training, loaders.training(), loaders.evaluation("val"), recorder, say=say)
        _serve(training, method, folder, leader)
        _predict(training, loaders, folder)
    if not leader:
        return
    judge(folder, say, spec.temperature_by)
    if data.task.pixels:
        keep_examples(loaders.splits["test"], folder)
    selected = recorder.selected
    if stage_one is not None and not method.learns_in_steps:
        selected = _selected_without_steps(recorder.monitor, stage_one, folder)
    record = RunRecord(
        data=_data_record(data, splits),
        model=_model_record(spec, training, model_name),
        spec=spec.model_dump(),
        loss=repr(training.loss),
        loss_in_python=loss_in_python(spec, data),
        preparation=preparation,
        monitor=recorder.monitor,
        monitor_value=selected.value,
        best_epoch=selected.epoch,
        epochs=spec.epochs,
        settled=context.settled,
        started=started.isoformat(timespec="milliseconds"),
        finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
        seconds=time.perf_counter() - clock,
        seconds_per_step=selected.seconds_per_step,
        device=device_name(fabric),
        environment=environment(fabric),
        equipoise=equipoise.__version__,
    )
    write_json(folder.draft / "run.json", record.to_json())
    folder.finish()


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    """A stream for this run on a GPU, unless it has one: the default stream cannot be captured."""
    if device.type != "cuda" or torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def _prepared(
    spec: RunSpec, folder: RunFolder, images_checked: bool, say: Callable[[str], None], console: Console | None
) -> _Prepared:
    """Open the data, check the method on them, and train stage one if the method has two stages."""
    method = method_of(spec)
    data, preparation, splits = company().share(
        "data", _data_settings(spec, images_checked), partial(_opened, spec, images_checked)
    )
    method.check_task(data.task)
    temperature_scaling(data.task, spec.temperature_by)  # raises unless the task has it
    task = TrainingTask(data)
    stage_one = None
    if isinstance(method, TwoStages):
        _model(spec, method, task, preparation)  # report errors before stage one is trained
        for text in method.losses:
            loss_of(spec, data, False, text)
        stage_one = _stage_one(spec, method, folder, data, say, console)
    for note in data.notes:
        say(note)
    return _Prepared(method, task, preparation, dict(splits), stage_one)


def _opened(spec: RunSpec, images_checked: bool) -> tuple[DataSet, Preparation, dict[str, Split]]:
    """The data, their preparation, and the splits as they are trained on."""
    data, unknown = opened(spec, check_images=not images_checked)
    preparation = Preparation.fit(data.train, scaling=spec.scaling)
    splits = {"train": data.train, "val": data.val, "test": data.test}
    if unknown is not None:
        splits["open"] = as_trained(preparation, unknown)
    return data, preparation, {name: ready(spec, preparation, split) for name, split in splits.items()}


def _data_settings(spec: RunSpec, images_checked: bool) -> str:
    """The settings that determine the data, as text."""
    return spec.model_dump_json(include={*DATA_SETTINGS, "batch_size"}) + str(images_checked)


def _training(
    fabric: Fabric, spec: RunSpec, prepared: _Prepared, model: nn.Module, name: str, context: RunContext, steps: int
) -> Training:
    """The training of the method: its model, from the weights of stage one if any, and its loss."""
    method, task, preparation, _, stage_one = prepared
    if stage_one is not None:
        begin_from(stage_one, model, name)
    trained = method.trained(model, context)
    if stage_one is not None and not all(bool(torch.isfinite(weight).all()) for weight in trained.parameters()):
        raise TrainingError(
            f"--method {spec.method} produced non-finite weights; choose smaller options, e.g. a lower lr, "
            f"with another --out and --stage-one {stage_one.path}"
        )
    objective = method.objective(trained, context)
    training = training_of(fabric, spec, task, trained, objective, preparation, steps=steps, body_rate=method.rate)
    if spec.compile != "none":
        if company().size == 1:  # otherwise graphs of other runs use the compiled code
            torch.compiler.reset()  # code compiled for an earlier run in this process keeps the weights of that run
        captured = fabric.device.type == "cuda" and on_one_device(fabric)
        trained.compile(mode=WITHOUT_GRAPHS.get(spec.compile, spec.compile) if captured else spec.compile)
    return training


def _context(spec: RunSpec, preparation: Preparation, loaders: RunLoaders, say: Callable[[str], None]) -> RunContext:
    """The run, as the method sees it."""
    return RunContext(
        loss=partial(loss_of, spec, loaders.data, loaders.fabric.world_size > 1),
        features=partial(classifier_features, loaders, preparation),
        epochs=spec.epochs,
        seed=spec.seed,
        ignore_index=loaders.data.ignore_index,
        say=say,
    )


def _predict(training: Training, loaders: RunLoaders, folder: RunFolder) -> None:
    """Save predictions of all splits except training data, and leave the process group."""
    for split in [name for name in loaders.splits if name != "train"]:
        predict(training, loaders, folder, split)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # metrics of the leader would wait for processes that have exited


def _summary(spec: RunSpec, prepared: _Prepared, model: nn.Module, name: str, steps: int) -> str:
    """Data, model, loss and steps in one line."""
    data, samples = prepared.task.data, len(prepared.splits["train"])
    size = sum(weight.numel() for weight in model.parameters())
    loss = data.task.loss_named(spec.loss)
    epochs = f"{spec.epochs} epoch{'s' * (spec.epochs > 1)} of {steps} steps"
    return (
        f"{data.name}: {samples} training samples, {prepared.task.num_classes} {data.task.many}; {name}, "
        f"{size:,} weights; {loss if spec.method == 'none' else spec.method}, "
        + (epochs if prepared.method.learns_in_steps else "no further epochs")
    )


def _model(
    spec: RunSpec, method: TrainingMethod, task: TrainingTask, preparation: Preparation
) -> tuple[nn.Module, str]:
    """The model with fresh weights, checked against data and method, and its name."""
    model, name = model_of(spec, task, preparation)
    check_model(model, name, task, preparation, task.data.train)
    check_method(method, model, name, task)
    return model, name


def _stage_one(
    spec: RunSpec,
    method: TwoStages,
    folder: RunFolder,
    data: DataSet,
    say: Callable[[str], None],
    console: Console | None,
) -> RunFolder:
    """The finished run that stage two starts from: the given one, or one trained inside this run."""
    wanted = spec.model_copy(update={"method": "none", "loss": method.backbone, "stage_one": None})
    if spec.stage_one is None:
        if (spec.devices, spec.nodes) != ("1", 1):
            raise ValueError(
                "--stage-one must be given if several devices train; train it first, with "
                f"--loss {method.backbone}, and give its folder"
            )
        inside = RunFolder(folder.draft / "stage-one")
        if folder.resume_point.is_file() and not inside.finished:
            raise ValueError(
                f"{inside.path}: stage one is missing, so stage two cannot resume; put it back, give another run of it "
                "with --stage-one, or --restart to start again"
            )
        run(wanted, inside.path, images_checked=True, say=lambda line: say(f"stage one: {line}"), console=console)
        gc.collect()  # frees its data and weights on the device
        return inside
    return named_stage_one(spec.stage_one, wanted, data)


def _serve(training: Training, method: TrainingMethod, folder: RunFolder, leader: bool) -> None:
    """Load the selected weights into the model that predicts, and save its weights.

    The checkpoint also keeps the weights of the trained model, for example with two heads, so that a run that is killed
    afterwards can be resumed.
    """
    epoch, trained = -1, None
    if method.learns_in_steps:
        selected = SelectedWeights.read(folder)
        epoch, trained = selected.epoch, selected.model if selected.trained is None else selected.trained
        training.inference_model.load_state_dict(trained)
        training.serve(method.served(training.inference_model))
        if isinstance(method, Plain):
            return
    if leader:
        SelectedWeights(epoch, training.model.state_dict(), trained).save(folder.checkpoint)


def _selected_without_steps(monitor: str, stage_one: RunFolder, folder: RunFolder) -> SelectedEpoch:
    """Epoch and time per step of stage one, and the validation metric of a model that took no steps."""
    first, val = stage_one.record, folder.results.val
    return SelectedEpoch(first.best_epoch, None if val is None else val.overall.get(monitor), first.seconds_per_step)


def _data_record(data: DataSet, splits: Mapping[str, Split]) -> DataRecord:
    return DataRecord(
        name=data.name,
        task=data.task,
        class_names=list(data.class_names),
        train_counts=data.train_counts.tolist(),
        samples={name: len(split) for name, split in splits.items()},
        fingerprint=data.fingerprint,
        ignore_index=data.ignore_index,
        notes=list(data.notes),
    )


def _model_record(spec: RunSpec, training: Training, model_name: str) -> ModelRecord:
    shape = None if training.preparation.kind == "tokens" else training.preparation.input_shape
    return ModelRecord(
        name=model_name,
        parameters=sum(weight.numel() for weight in training.model.parameters()),
        options=spec.model_options,
        num_classes=training.task.num_classes,
        input_shape=None if shape is None else list(shape),
        vocabulary=training.preparation.vocabulary,
    )
