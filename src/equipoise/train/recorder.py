"""The record of a training: history, selection of an epoch, the state to resume from, progress."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from equipoise._formatting import duration
from equipoise._writing import open_unlinked, write_text
from equipoise.metric_registry import metric_info
from equipoise.train.checkpoints import ResumePoint, SelectedWeights
from equipoise.train.errors import TrainingError
from equipoise.train.folder import RunFolder, plain
from equipoise.train.record import EpochRecord, Statistic
from equipoise.train.training import Training

__all__ = ["ProgressBar", "Recorder", "SelectedEpoch"]

SYNC_EVERY = 10.0
"""Seconds between checkpoints that are synced to disk at once."""
LOGGED = 100
"""Classes up to which loggers get a value for each; the history has all."""


@dataclass(frozen=True)
class SelectedEpoch:
    """The epoch whose weights are kept.

    Args:
        epoch: from 0.
        value: monitored metric on validation data; None if undefined.
        seconds_per_step: mean over the last epoch.
    """

    epoch: int
    value: float | None
    seconds_per_step: float | None


class Recorder:
    """Writes a row of the history after each epoch, keeps the selected checkpoint, and a checkpoint to resume from.

    Args:
        folder: of the run.
        monitor: validation metric that selects the epoch.
        keep: ``"best"`` or ``"last"``.
        say: called with a message after each epoch.
        logger: of Lightning; None for none.
        console: of a progress bar; None for none.
        leader: whether this process writes.
    """

    def __init__(
        self,
        folder: RunFolder,
        monitor: str,
        keep: str,
        say: Callable[[str], None],
        *,
        logger: Any = None,  # noqa: ANN401
        console: Console | None = None,
        leader: bool = True,
    ) -> None:
        self.folder, self.monitor, self.keep, self.say = folder, monitor, keep, say
        self.logger, self.leader = logger, leader
        self.bar = None if console is None else ProgressBar(console)
        self.best_value, self.best_epoch, self.step_seconds = math.nan, -1, math.nan
        self.epoch_seconds: list[float] = []
        self.synced = time.monotonic()

    @property
    def selected(self) -> SelectedEpoch:
        """The epoch whose weights are kept."""
        return SelectedEpoch(self.best_epoch, self.best_value, self.step_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the progress bar and the logger."""
        if self.bar is not None:
            self.bar.stop()
        if self.logger is not None:
            self.logger.finalize("success" if kind is None else "failed")

    def resume(self, training: Training) -> int:
        """Restore the state of an interrupted training, if any; returns the first epoch to train."""
        first = 0
        if self.folder.resume_point.is_file():
            point = ResumePoint.read(self.folder.resume_point)
            first = point.epochs
            training.load_state_dict(point.training)
            self.best_value, self.best_epoch, self.step_seconds = point.best_value, point.best_epoch, point.step_seconds
        if self.leader:
            self._drop_rows(first)
        if self.bar is not None:
            self.bar.start(training.steps * training.epochs, training.steps * first)
        return first

    def _drop_rows(self, first: int) -> None:
        """Drop rows of epochs that are trained again."""
        file = self.folder.draft / "history.jsonl"
        if not file.is_file():
            return
        known = [row for row in self.folder.history() if row.epoch < first]
        write_text(file, "".join(json.dumps(row.to_json()) + "\n" for row in known))
        if type(self.logger).__name__ == "CSVLogger":  # it starts a new file, other loggers append
            for row in known:
                self.logger.log_metrics({**_flat(row.to_json())}, row.step)

    def begin_epoch(self) -> None:
        """Start the clock."""
        self.started = time.perf_counter()

    def tick(self, steps: int) -> None:
        """Show the number of steps taken."""
        if self.bar is not None:
            self.bar.update(steps)

    def end_steps(self, training: Training) -> None:
        """Time the steps after the device has finished them: its queue would otherwise be timed as validation."""
        self.loss = training.mean_loss()
        self.step_seconds = (time.perf_counter() - self.started) / training.steps
        if not math.isfinite(self.loss):
            raise TrainingError(
                f"the loss became {self.loss} in epoch {training.epoch + 1}; lower --lr, give --clip 1 or a "
                "longer --warmup, or take --precision 32-true"
            )

    def end_epoch(self, training: Training) -> None:
        """Write the row of the epoch, the weights if they are selected, and the state to resume from."""
        scores = training.scores()
        statistics = training.statistics.row(training.model, training.loss)  # synchronises: in every process
        epoch, value = training.epoch, scores[self.monitor]
        higher = metric_info(self.monitor).higher_is_better
        gain = value - self.best_value if higher else self.best_value - value
        selected = self.best_epoch < 0 or gain > 0 or math.isnan(self.best_value) or self.keep == "last"
        if selected:
            self.best_value, self.best_epoch = value, epoch
        if not self.leader:
            return
        # epochs may be short; whatever a crash of the machine damages is trained again
        sync = time.monotonic() - self.synced > SYNC_EVERY
        if selected:
            weights = SelectedWeights(epoch, training.inference_model.state_dict())
            weights.save(self.folder.draft / "checkpoint.ckpt", sync=sync)
        self._write(training, scores, statistics)
        ResumePoint(  # last: an epoch that has one has a row
            epochs=epoch + 1,
            best_value=self.best_value,
            best_epoch=self.best_epoch,
            step_seconds=self.step_seconds,
            training=training.state_dict(),
        ).save(self.folder.resume_point, sync=sync)
        if sync:
            self.synced = time.monotonic()

    def _write(self, training: Training, scores: Mapping[str, float], statistics: Mapping[str, Statistic]) -> None:
        """The row of this epoch."""
        self.epoch_seconds.append(time.perf_counter() - self.started)
        row = EpochRecord(
            epoch=training.epoch,
            step=training.steps_taken,
            lr=float(training.optimizer.param_groups[0]["lr"]),
            train={"loss": self.loss, **statistics},
            val={**scores},
            seconds=self.epoch_seconds[-1],
            seconds_per_step=self.step_seconds,
        ).to_json()
        with open_unlinked(self.folder.draft / "history.jsonl") as file:
            file.write(json.dumps(plain(row)) + "\n")
        if self.logger is not None:
            self.logger.log_metrics(_flat(row), training.steps_taken)
            self.logger.save()
        self.say(self._line(training.epoch, training.epochs, scores))

    def _line(self, epoch: int, epochs: int, scores: Mapping[str, float]) -> str:
        recent = self.epoch_seconds[-5:]
        left = (epochs - epoch - 1) * sum(recent) / len(recent)
        names = dict.fromkeys([self.monitor, *list(scores)[:2], "nll"])
        metrics = "  ".join(f"{name.replace('_', ' ')} {_short(name, scores[name])}" for name in names)
        mark = "*" if self.best_epoch == epoch else " "
        count = f"{epoch + 1:>{len(str(epochs))}}/{epochs}"
        return f"epoch {count}{mark} loss {self.loss:.4f}  val {metrics}  {duration(left)} left"


class ProgressBar:
    """A progress bar over all steps of the training; on a terminal only."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True)

    def start(self, total: int, completed: int) -> None:
        """Show the bar."""
        self.bar.start()
        self.task = self.bar.add_task("training", total=total, completed=completed)

    def update(self, completed: int) -> None:
        """Show the number of steps taken."""
        self.bar.update(self.task, completed=completed)

    def stop(self) -> None:
        """Remove the bar."""
        self.bar.stop()


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Values by names with slashes, for loggers; short lists by index."""
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            if len(value) <= LOGGED:
                flat |= {f"{prefix}{name}/{k}": item for k, item in enumerate(value) if item is not None}
        elif value is not None:
            flat[prefix + name] = value
    return flat


def _short(name: str, value: float) -> str:
    return f"{value:.3f}" if metric_info(name).unit == "natural" else f"{100 * value:.1f} %"
