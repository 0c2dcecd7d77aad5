"""Training steps a second of ``equipoise compare`` against bare PyTorch loops.

On a GPU, a case is a model on data that are on the device. Our runs train as the command trains them: their steps are
captured as CUDA graphs, and each run has its stream in one process. A bare loop has the same model, data, precision,
augmentation and batch, and torch's own loss and optimiser; it runs eagerly, one run after the other. Both sides take
turns, an epoch each, and the speed-up is that of all our runs together over the loop, the median of the rounds. Peers
are measured in the same process: the loop with its model compiled by ``torch.compile(mode="reduce-overhead")``,
Lightning's ``Trainer``, and several processes that run the loop. Last, the command itself is timed, from its start to
its report.

On a CPU, the comparison of the README is timed as a command, over the sum of bare loops with the same steps, in one
thread and one after the other.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Quartiles, drain, paired_ratio
from benchmarks.train import BareLoop, Trained, camvid, cifar
from equipoise.comparison.folder import ComparisonFolder
from equipoise.data import DataSet
from equipoise.data.augment import augmentations_from
from equipoise.train.builders import loss_of, model_of, opened, optimizer_of, rate_of
from equipoise.train.fabric import fabric_for, launch
from equipoise.train.preparation import Preparation
from equipoise.train.run_loaders import RunLoaders
from equipoise.train.spec import RunSpec
from equipoise.train.task import TrainingTask

__all__ = ["CASES", "Case", "Settings", "run"]

README = [
    *("--data", "digits-lt", "--model", "mlp", "--seeds", "5"),
    *("--losses", "ce focal flsd-53 cyclical-focal recall class-balanced balanced-softmax"),
]
CPU_LIMIT = 0.8
"""Time of the README's comparison allowed, over that of the bare loops."""
END_TO_END = 650.0
"""Steps a second wanted from the command, from its start to its report."""
PROCESSES = 5
"""Processes of the peer that runs several."""


@dataclass(frozen=True)
class Case:
    """A model on data.

    Args:
        title: in tables.
        make: the data.
        settings: of ``equipoise train``.
        at_least: speed-up wanted, by the number of runs at a time.
    """

    title: str
    make: Callable[[], DataSet]
    settings: Mapping[str, Any]
    at_least: Mapping[int, float] = field(default_factory=dict)


_CIFAR = {"batch_size": 128, "optimizer": "sgd", "lr": 0.05, "augment": "crop:4,flip"}
CASES = (
    Case("ResNet-32, CIFAR-10-LT", cifar, _CIFAR | {"model": "resnet32"}, {1: 3.5, 8: 8.0}),
    Case("ResNet-18, CIFAR-10-LT", cifar, _CIFAR | {"model": "resnet18"}, {1: 3.5}),
    Case("MLP, CIFAR-10-LT", cifar, _CIFAR | {"model": "mlp", "augment": ""}, {16: 50.0}),
    Case("small U-Net, CamVid", camvid, {"model": "unet", "batch_size": 8, "ignore_index": 11}, {1: 1.5}),
)


@dataclass(frozen=True)
class Settings:
    """What the command line can choose.

    Args:
        device: what is trained on.
        rounds: measured rounds of each case.
        filter: only cases that contain this text.
        compile: also measure our runs with ``--compile default``.
        peers: whether to measure the peers.
        epochs: of the comparison that is timed as a command on a GPU; 0 for none.
        cases: for tests, others.
    """

    device: torch.device
    rounds: int = 9
    filter: str = ""
    compile: bool = False
    peers: bool = True
    epochs: int = 80
    cases: Sequence[Case] = CASES


def run(settings: Settings, progress: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """The rows of all cases, and that of the command."""
    if settings.device.type == "cpu":
        return [_readme(settings, progress)]
    cases = [case for case in settings.cases if settings.filter.lower() in case.title.lower()]
    rows = []
    for row in (row for case in cases for row in _case_rows(case, settings, progress)):
        progress(f"  {row['name']}: {row['steps_per_second']['median']:,.0f} steps/s, {row['speed_up']['median']:.2f}")
        rows.append(row)
    if settings.epochs:
        progress(f"the command, {settings.epochs} epochs")
        rows.append(_end_to_end(settings.epochs))
    return rows


# ------------------------------------------------------------------------------------------------------------- a GPU


def _case_rows(case: Case, settings: Settings, progress: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    data = case.make()
    spec = RunSpec(data="made", accelerator="gpu", **case.settings)
    bare = _bare(spec, data)
    bare.epoch()
    for modes in [{}, {"compile": "default"}] if settings.compile else [{}]:
        for runs in case.at_least:
            progress(f"{case.title}, {runs} at a time{', compiled' if modes else ''}")
            ours = _Together(spec.model_copy(update=modes), data, runs, settings.rounds)
            name = f"ours, {runs} at a time" + (", --compile default" if modes else "")
            limit = None if modes else case.at_least[runs]
            yield _row(case, name, *_rounds(ours.epoch, bare.epoch, settings.rounds), limit)
    if settings.peers:
        progress(f"{case.title}, peers")
        compiled = _bare(spec, data, compile_mode="reduce-overhead")
        yield _row(case, "bare loop, reduce-overhead", *_rounds(compiled.epoch, bare.epoch, settings.rounds))
        yield _row(case, "Lightning's Trainer", _lightning(spec, data, settings.rounds), bare.seconds)
        yield _row(case, f"bare loop, {PROCESSES} processes", _processes(case, spec, settings.rounds), bare.seconds)
    yield _row(case, "bare loop", bare.seconds, bare.seconds)


def _rounds(one: Callable[[], float], other: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a step of two sides that take turns; the first two rounds warm up."""
    pairs = [(one(), other()) for _ in range(rounds + 2)][2:]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _row(
    case: Case, name: str, seconds: list[float], bare: list[float], at_least: float | None = None
) -> dict[str, Any]:
    ratio = paired_ratio(bare, seconds)
    return {
        "case": case.title,
        "name": name,
        "steps_per_second": asdict(Quartiles.of([1.0 / each for each in seconds])),
        "speed_up": asdict(ratio),
        "at_least": at_least,
        "met": None if at_least is None else ratio.median >= at_least,
    }


class _Together:
    """Runs that share the process; the seconds of a step are over all steps of all of them."""

    def __init__(self, spec: RunSpec, data: DataSet, runs: int, rounds: int) -> None:
        epochs, device = rounds + 2, torch.device("cuda")
        losses = [loss_of(spec, data, sync=False).to(device) for _ in range(runs)]
        self.runs = [Trained(spec, data, loss, spec.batch_size or 1, epochs) for loss in losses]

    def epoch(self) -> float:
        """Seconds of a step of an epoch."""
        device = torch.device("cuda")
        for run in self.runs:
            run.begin()
        drain(device)
        start = time.perf_counter()
        waiting = deque(run.parts() for run in self.runs)
        while waiting:  # in turn, so that none fills the queue of the driver
            parts = waiting.popleft()
            if next(parts, False):
                waiting.append(parts)
        drain(device)
        return (time.perf_counter() - start) / sum(run.training.steps for run in self.runs)


class _AugmentedLoop(BareLoop):
    """The bare loop with the augmentation of the run."""

    def __init__(self, spec: RunSpec, data: DataSet, *args: Any) -> None:  # noqa: ANN401
        super().__init__(*args)
        self.augment = augmentations_from(
            spec.augment, num_classes=len(data.class_names), ignore_index=data.ignore_index
        )
        self.generator = torch.Generator(self.inputs.device)
        self.seconds: list[float] = []

    def step(self, rows: Tensor) -> None:
        """Learn from these samples."""
        self.optimizer.zero_grad()
        images, labels = self.augment(self.inputs[rows] / 255.0, self.labels[rows], self.generator)
        loss = self.loss(self.model((images - self.mean) / self.std), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def epoch(self) -> float:
        """Seconds of a step, over an epoch of whole batches."""
        self.seconds.append(super().epoch())
        return self.seconds[-1]


def _bare(spec: RunSpec, data: DataSet, compile_mode: str | None = None) -> _AugmentedLoop:
    task, preparation = TrainingTask(data), Preparation.fit(data.train)
    model = model_of(spec, task, preparation)[0].cuda()
    optimizer = optimizer_of(spec, model, fused=False)
    called: nn.Module = torch.compile(model, mode=compile_mode) if compile_mode else model  # type: ignore[assignment]
    labels = torch.from_numpy(data.train.labels).long().cuda()
    loss = partial(F.cross_entropy, ignore_index=data.ignore_index)
    inputs = torch.from_numpy(data.train.inputs).cuda()  # type: ignore[union-attr]
    return _AugmentedLoop(
        spec, data, called, optimizer, loss, (inputs, labels), preparation, spec.batch_size or len(inputs)
    )


def _lightning(spec: RunSpec, data: DataSet, rounds: int) -> list[float]:
    """Seconds of a step of epochs of Lightning's trainer, on the same batches."""
    import pytorch_lightning as pl

    bare = _bare(spec, data)
    seconds: list[float] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = bare.model

        def training_step(self, rows: Tensor, index: int) -> Tensor:
            images, labels = bare.augment(bare.inputs[rows] / 255.0, bare.labels[rows], bare.generator)
            return bare.loss(self.model((images - bare.mean) / bare.std), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return bare.optimizer

        def on_train_epoch_start(self) -> None:
            drain(self.device)
            self.start = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            drain(self.device)
            seconds.append((time.perf_counter() - self.start) / len(batches))

    samples = len(bare.inputs)
    steps = max(1, samples // bare.batch_size)
    batches = list(torch.randperm(samples, device="cuda")[: steps * bare.batch_size].split(bare.batch_size))
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(max_epochs=rounds + 1, accelerator="gpu", devices=1, **off)  # type: ignore[arg-type]
    trainer.fit(Module(), batches)
    return seconds[1:]


def _processes(case: Case, spec: RunSpec, rounds: int) -> list[float]:
    """Seconds of a step of all processes together, in each round."""
    context = multiprocessing.get_context("spawn")
    barrier, times = context.Barrier(PROCESSES), context.Queue()
    started = [
        context.Process(target=_one_process, args=(case.make, spec, rounds, barrier, times)) for _ in range(PROCESSES)
    ]
    for process in started:
        process.start()
    measured = [times.get() for _ in started]
    for process in started:
        process.join()
    return [1.0 / sum(1.0 / of_process[k] for of_process in measured) for k in range(rounds)]


def _one_process(make: Callable[[], DataSet], spec: RunSpec, rounds: int, barrier: Any, times: Any) -> None:  # noqa: ANN401
    bare = _bare(spec, make())
    bare.epoch()
    barrier.wait()
    times.put([bare.epoch() for _ in range(rounds)])


def _end_to_end(epochs: int) -> dict[str, Any]:
    """The command on noise in the shape of CIFAR-10-LT: 7 losses, 5 seeds, ResNet-32."""
    data = cifar()
    losses = "ce focal recall class-balanced balanced-softmax ldam logit-adjusted(tau=0.5)"
    with TemporaryDirectory() as place:
        folder, out = Path(place) / "cifar", Path(place) / "out"
        folder.mkdir()
        np.savez(folder / "train.npz", images=data.train.inputs, labels=data.train.labels, layout="nchw")  # type: ignore[union-attr]
        draw = np.random.default_rng(1)
        for split in ("val", "test"):
            images = draw.integers(256, size=(2000, 3, 32, 32), dtype=np.uint8)
            np.savez(folder / f"{split}.npz", images=images, labels=np.arange(2000) % 10, layout="nchw")
        options = ["--data", str(folder), "--model", "resnet32", "--batch-size", "128", "--optimizer", "sgd"]
        options += ["--augment", "crop:4,flip", "--epochs", str(epochs), "--seeds", "5", "--losses", losses]
        seconds = _command([*options, "--out", str(out)])
        steps = _steps_of(out)
    speed = steps / seconds
    return {
        "case": "equipoise compare, ResNet-32, 7 losses, 5 seeds",
        "name": f"from start to report, {epochs} epochs, {steps:,} steps",
        "seconds": seconds,
        "steps_per_second": asdict(Quartiles(speed, speed, speed)),
        "speed_up": None,
        "at_least": END_TO_END,
        "met": speed >= END_TO_END,
    }


def _command(options: Sequence[str]) -> float:
    """Seconds of a comparison as a command."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "equipoise", "compare", *options], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _steps_of(out: Path) -> int:
    return sum(max(row.step for row in planned.folder.history()) for planned in ComparisonFolder(out).runs)


# ------------------------------------------------------------------------------------------------------------- a CPU


def _readme(settings: Settings, progress: Callable[[str], None]) -> dict[str, Any]:
    """The comparison of the README as a command, over bare loops with its steps; both sides take turns."""
    commands, loops = [], []
    for number in range(settings.rounds):
        progress(f"round {number + 1} of {settings.rounds}")
        with TemporaryDirectory() as place:
            out = Path(place) / "out"
            commands.append(_command([*README, "--out", str(out)]))
            specs = [planned.folder.record.spec for planned in ComparisonFolder(out).runs]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            loops.append(sum(_bare_run(RunSpec(**spec)) for spec in specs))
        finally:
            torch.set_num_threads(threads)
    ratio = paired_ratio(commands, loops)
    return {
        "case": "the README's comparison",
        "name": f"command, {len(specs)} runs",
        "seconds": asdict(Quartiles.of(commands)),
        "bare_seconds": asdict(Quartiles.of(loops)),
        "ratio": asdict(ratio),
        "limit": CPU_LIMIT,
        "met": ratio.median <= CPU_LIMIT,
    }


def _bare_run(spec: RunSpec) -> float:
    """Seconds of the steps of a run in a bare loop, with its loss, optimiser and learning rates."""
    data, _ = opened(spec)
    task, preparation, fabric = TrainingTask(data), Preparation.fit(data.train), fabric_for(spec)
    launch(fabric, deterministic=False)
    model = model_of(spec, task, preparation)[0]
    batch_size = spec.batch_size or task.default_batch_size(len(data.train))
    steps = max(1, len(data.train) // batch_size)
    loss = loss_of(spec, data, sync=False)
    loader = RunLoaders(fabric, spec, data, {"train": data.train}, batch_size).training()
    optimizer, schedule = optimizer_of(spec, model), rate_of(spec)
    initial = [group["lr"] for group in optimizer.param_groups]
    start = time.perf_counter()
    for epoch in range(spec.epochs):
        loss.set_epoch(epoch)  # type: ignore[operator]
        loader.set_epoch(epoch)
        for index, (inputs, targets) in enumerate(loader):
            factor = schedule((epoch * steps + index) / (spec.epochs * steps))
            for group, rate in zip(optimizer.param_groups, initial, strict=True):
                group["lr"] = rate * factor
            optimizer.zero_grad()
            loss(model(preparation.prepare(inputs)), targets).backward()
            optimizer.step()
    return time.perf_counter() - start
