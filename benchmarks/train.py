"""A training step of ``equipoise train`` against a bare PyTorch loop, and with each loss against cross-entropy.

Each loss has a training as the command makes it, with its learning-rate schedule and statistics; on a GPU its steps are
captured as CUDA graphs. The trainings take turns, an epoch each, in a new order every round. After the epoch with the
reference loss the bare loop trains a copy of the model for an epoch: the same data on the device, the same preparation,
optimiser and batch size, torch's own loss, and nothing else. It is what people write: its optimiser computes as torch
does when it is not told how, while ours is fused. So both sides of a ratio were measured side by side in one process.
The first round only warms up. Our time is that of an epoch, from its start to the end of its last step, as a run
records it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import long_tail
from benchmarks.measure import Quartiles, drain, paired_ratio
from benchmarks.targets import Check, add_checks
from equipoise.catalogue import CATALOGUE, find
from equipoise.data import Arrays, DataSet
from equipoise.data.arrays import Task
from equipoise.train.builders import loss_of, model_of, opened, optimizer_of, ready, sampler_of, training_of
from equipoise.train.fabric import fabric_for, launch
from equipoise.train.loaders import DeviceLoader
from equipoise.train.preparation import Preparation
from equipoise.train.run_loaders import RunLoaders
from equipoise.train.spec import RunSpec
from equipoise.train.steps import TrainingSteps
from equipoise.train.task import TrainingTask
from equipoise.train.training import Training

__all__ = ["BARE", "CASES", "BareLoop", "Case", "Settings", "Trained", "camvid", "cifar", "run"]

TARGET = 1.10
BARE = "bare PyTorch loop"
HELD_OUT = 64  # validation samples of made data; what follows the steps of an epoch is not measured
ROUNDS = {"cpu": 15, "cuda": 5}


def cifar(samples: int = 12_406, side: int = 32) -> DataSet:
    """Noise in the shape of CIFAR-10 with a long tail of ratio 100."""
    draw = np.random.default_rng(0)
    shares = np.array(long_tail(10), dtype=np.float64)

    def split(count: int) -> Arrays:
        labels = np.concatenate([np.arange(10), draw.choice(10, count - 10, p=shares / shares.sum())])
        return Arrays(draw.integers(256, size=(count, 3, side, side), dtype=np.uint8), labels)

    return DataSet("cifar10_lt100", "multiclass", _names(10), split(samples), split(HELD_OUT), split(HELD_OUT))


def camvid(samples: int = 367, size: tuple[int, int] = (180, 240)) -> DataSet:
    """Noise in the shape of CamVid: 11 classes, one pixel in twenty without a label."""
    draw = np.random.default_rng(0)

    def split(count: int) -> Arrays:
        labels = draw.integers(11, size=(count, *size), dtype=np.uint8)
        labels[draw.random(labels.shape) < 0.05] = 11
        return Arrays(draw.integers(256, size=(count, 3, *size), dtype=np.uint8), labels)

    return DataSet("camvid", "segmentation", _names(11), split(samples), split(8), split(8), ignore_index=11)


def _names(classes: int) -> tuple[str, ...]:
    return tuple(f"class {c}" for c in range(classes))


@dataclass(frozen=True)
class Case:
    """One training.

    Args:
        data: embedded data set, or the name of a folder of real data.
        model: its name.
        make: data of the same shape, where there is no such folder.
        settings: others than the defaults of ``equipoise train``.
    """

    data: str
    model: str
    make: Callable[[], DataSet] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """How tables call it."""
        return f"{self.data}, {self.model}"


CASES: Mapping[str, Sequence[Case]] = {
    "cpu": (Case("digits-lt", "resnet32"), Case("digits-lt", "mlp")),
    "cuda": (
        Case("cifar10_lt100", "resnet32", cifar, {"batch_size": 128, "optimizer": "sgd", "lr": 0.01}),
        Case("camvid", "unet", camvid, {"batch_size": 8, "ignore_index": 11}),
        Case("digit-scenes", "resnet32"),
    ),
}


@dataclass(frozen=True)
class Settings:
    """What the command line can choose.

    Args:
        device: what is trained on.
        cases: None for those of the device.
        rounds: epochs with each loss that count; None for those of the device.
        filter: only cases or losses that contain this text, plus what they are compared with.
        data: folder with real data under the names of the cases.
    """

    device: torch.device
    cases: Sequence[Case] | None = None
    rounds: int | None = None
    filter: str = ""
    data: Path | None = None


def run(settings: Settings, progress: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """What was measured of each case that the filter leaves."""
    cases = settings.cases or CASES[settings.device.type]
    results = (_measure(case, settings, progress) for case in cases)
    return [result for result in results if result is not None]


class BareLoop:
    """What one would write by hand for a resident split.

    Args:
        model: a copy, on the device.
        optimizer: of its weights.
        loss: torch's own.
        data: stored inputs, and labels in the form that the loss accepts.
        preparation: what lies between the inputs and the model.
        batch_size: samples of a step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Tensor, Tensor], Tensor],
        data: tuple[Tensor, Tensor],
        preparation: Preparation,
        batch_size: int,
    ) -> None:
        self.model, self.optimizer, self.loss, self.batch_size = model, optimizer, loss, batch_size
        self.inputs, self.labels = data
        self.mean, self.std = (
            torch.tensor(values, device=self.inputs.device).view(-1, 1, 1)
            for values in (preparation.mean, preparation.std)
        )

    def step(self, rows: Tensor) -> None:
        """Learn from these samples."""
        self.optimizer.zero_grad()
        images = (self.inputs[rows] / 255.0 - self.mean) / self.std
        loss = self.loss(self.model(images), self.labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def epoch(self) -> float:
        """Seconds of a step, over an epoch of whole batches."""
        device, samples = self.inputs.device, len(self.inputs)
        steps = max(1, samples // self.batch_size)
        drain(device)
        start = time.perf_counter()
        for rows in torch.randperm(samples, device=device)[: steps * self.batch_size].split(self.batch_size):
            self.step(rows)
        drain(device)
        return (time.perf_counter() - start) / steps


class Trained:
    """A training, as ``equipoise train`` makes it, an epoch at a time.

    Args:
        spec: its settings.
        data: what is trained on.
        loss: on the device.
        batch_size: samples of a step.
        epochs: of the whole training.
    """

    def __init__(self, spec: RunSpec, data: DataSet, loss: nn.Module, batch_size: int, epochs: int) -> None:
        task, preparation, fabric = TrainingTask(data), Preparation.fit(data.train), fabric_for(spec)
        launch(fabric, deterministic=False)
        split = ready(spec, preparation, data.train)
        steps = max(1, len(sampler_of(spec, data, split, rank=0, world_size=1)) // batch_size)
        spec = spec.model_copy(update={"epochs": epochs})
        self.stream = torch.cuda.Stream() if fabric.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            model = model_of(spec, task, preparation)[0]
            self.training: Training = training_of(fabric, spec, task, model, loss, preparation, steps=steps)
            if spec.compile != "none":
                model.compile(mode=spec.compile)
            self.loader = RunLoaders(fabric, spec, data, {"train": split}, batch_size).training()
            self.steps = TrainingSteps(self.training, self.loader)
        self.epochs = 0

    def begin(self) -> None:
        """Begin the next epoch."""
        with torch.cuda.stream(self.stream):
            self.training.begin(self.epochs)
            self.loader.set_epoch(self.epochs)
        self.epochs += 1

    def parts(self) -> Iterator[bool]:
        """Take the steps of the epoch, part by part."""
        parts = self.steps.parts()
        while True:
            with torch.cuda.stream(self.stream):
                if next(parts, True):
                    return
            yield True

    def epoch(self) -> float:
        """Seconds of a step, over an epoch."""
        device = self.training.device
        self.begin()
        drain(device)
        start = time.perf_counter()
        for _ in self.parts():
            pass
        drain(device)
        return (time.perf_counter() - start) / self.training.steps


def _measure(case: Case, settings: Settings, progress: Callable[[str], None]) -> dict[str, Any] | None:
    real = settings.data is not None and (settings.data / case.data).exists()
    if case.make is not None and not real:
        data = case.make()
        spec = RunSpec(data=case.data, model=case.model, **case.settings)
    else:
        spec = RunSpec(data=str(settings.data / case.data) if real else case.data, model=case.model, **case.settings)
        data, _ = opened(spec)
    wanted = _wanted(case, data, settings.filter)
    if not wanted:
        return None
    device = settings.device
    rounds = settings.rounds or ROUNDS[device.type]
    batch_size = spec.batch_size or TrainingTask(data).default_batch_size(len(data.train))
    spec = spec.model_copy(
        update={"accelerator": "gpu" if device.type == "cuda" else "cpu", "devices": "1", "epochs": rounds + 1}
    )
    losses, failed = _losses(spec, data, wanted, batch_size, device)
    progress(f"{case.title}: {len(losses)} losses, {rounds} rounds")
    trained = {name: Trained(spec, data, loss, batch_size, rounds + 1) for name, loss in losses.items()}
    training = next(iter(trained.values())).training
    bare = _bare_loop(spec, data, next(iter(trained.values())))
    times: dict[str, list[float]] = {BARE: [], **{name: [] for name in losses}}
    draw = random.Random(0)
    for _ in range(rounds + 1):
        for name in draw.sample(list(losses), len(losses)):
            times[name].append(trained[name].epoch())
            if name == next(iter(losses)):
                times[BARE].append(bare.epoch())
    return {
        "title": case.title,
        "data": "as they are" if real or case.make is None else "noise of that shape",
        "task": data.task,
        "samples": len(data.train),
        "input_shape": list(training.preparation.input_shape or ()),
        "batch_size": batch_size,
        "steps": training.steps,
        "weights": sum(weight.numel() for weight in training.model.parameters()),
        "optimizer": spec.optimizer,
        "precision": spec.precision,
        "rounds": rounds,
        "rows": [*_rows({name: every[1:] for name, every in times.items()}), *failed],
    }


def _wanted(case: Case, data: DataSet, text: str) -> list[str]:
    """The reference loss and those of the task that the filter leaves; nothing where it leaves none."""
    reference = find(data.task.default_loss).name
    fitting = [entry.name for entry in CATALOGUE if entry.link in data.task.losses]
    left = [name for name in fitting if text.lower() in f"{case.title} {name}".lower()]
    return list(dict.fromkeys([reference, *left])) if left else []


def _losses(
    spec: RunSpec, data: DataSet, names: Sequence[str], batch_size: int, device: torch.device
) -> tuple[dict[str, nn.Module], list[dict[str, Any]]]:
    """Losses by name, and rows of those that cannot take a batch of this size; such a one would end the training."""
    losses, failed = {}, []
    targets = _as_taken(torch.from_numpy(data.train.labels[:batch_size]), data.task).to(device)
    for name in names:
        try:
            loss = loss_of(spec.model_copy(update={"loss": name}), data, sync=False).to(device)
            loss.set_epoch(0)  # type: ignore[operator]
            shape = (len(targets), len(data.class_names), *(targets.shape[1:] if data.task == "segmentation" else ()))
            loss(torch.zeros(shape, device=device, requires_grad=True), targets).backward()
        except (RuntimeError, ValueError) as error:
            failed.append({"name": name, "kind": "ours", "status": f"failed: {str(error).splitlines()[0]}"})
        else:
            losses[name] = loss
    return losses, failed


def _bare_loop(spec: RunSpec, data: DataSet, trained: Trained) -> BareLoop:
    """The loop on the data that the loader holds on the device."""
    loader, training = trained.loader, trained.training
    if not isinstance(loader, DeviceLoader):
        raise TypeError(
            f"the data must fit on the device to be compared, got a {type(loader).__name__}; take a larger one"
        )
    model = deepcopy(training.model)
    inputs, labels = loader.data
    return BareLoop(
        model,
        optimizer_of(spec, model, fused=False),
        F.binary_cross_entropy_with_logits
        if data.task == "multilabel"
        else partial(F.cross_entropy, ignore_index=data.ignore_index),
        (inputs, _as_taken(labels, data.task)),
        training.preparation,
        loader.order.batch_size,
    )


def _as_taken(labels: Tensor, task: Task) -> Tensor:
    """Labels as losses take them."""
    return labels.float() if task == "multilabel" else labels.long()


def _rows(times: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    """The bare loop, the reference loss in units of it, and every other loss in units of the reference."""
    bare, reference, *_ = times
    rows = []
    for name, seconds in times.items():
        of = bare if name in (bare, reference) else reference
        ratio = paired_ratio(seconds, times[of])
        row: dict[str, Any] = {
            "name": name,
            "kind": "torch" if name == bare else "ours",
            "status": "ok",
            "milliseconds": asdict(Quartiles.of([1e3 * each for each in seconds])),
            "of": of,
            "ratio": asdict(ratio),
        }
        add_checks(row, [Check("step", ratio.median, TARGET, f"times the {BARE}")] if name == reference else [])
        rows.append(row)
    return rows
