"""Training callbacks: history, selection of an epoch, progress."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import CSVLogger
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from equipoise._formatting import duration
from equipoise._writing import open_unlinked, write_text
from equipoise.metric_registry import metric_info
from equipoise.train.checkpoints import SelectedWeights
from equipoise.train.errors import TrainingError
from equipoise.train.folder import RunFolder, plain
from equipoise.train.module import Learner
from equipoise.train.record import EpochRecord, Statistic

__all__ = ["ProgressBar", "Recorder", "SelectedEpoch"]

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


class Recorder(pl.Callback):
    """Writes a row of the history after each epoch, keeps the selected checkpoint, and a checkpoint to resume from.

    Args:
        folder: of the run.
        monitor: validation metric that selects the epoch.
        keep: ``"best"`` or ``"last"``.
        say: called with a message after each epoch.
    """

    def __init__(self, folder: RunFolder, monitor: str, keep: str, say: Callable[[str], None]) -> None:
        self.folder, self.monitor, self.keep, self.say = folder, monitor, keep, say
        self.best_value, self.best_epoch, self.step_seconds = math.nan, -1, math.nan
        self.epoch_seconds: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        """State to resume from."""
        return {"best_value": self.best_value, "best_epoch": self.best_epoch, "step_seconds": self.step_seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state."""
        self.best_value, self.best_epoch = state_dict["best_value"], state_dict["best_epoch"]
        self.step_seconds = state_dict["step_seconds"]

    @property
    def selected(self) -> SelectedEpoch:
        """The epoch whose weights are kept."""
        return SelectedEpoch(self.best_epoch, self.best_value, self.step_seconds)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drop rows of epochs that are trained again."""
        file = self.folder.draft / "history.jsonl"
        if trainer.is_global_zero and file.is_file():
            known = [row for row in self.folder.history() if row.epoch < trainer.current_epoch]
            write_text(file, "".join(json.dumps(row.to_json()) + "\n" for row in known))
            if isinstance(trainer.logger, CSVLogger):  # it starts a new file, other loggers append
                for row in known:
                    trainer.logger.log_metrics({**_flat(row.to_json())}, row.step)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Time the steps after the device has finished them: its queue would otherwise be timed as validation."""
        assert isinstance(pl_module, Learner)
        self.loss = pl_module.mean_loss()
        self.step_seconds = (time.perf_counter() - self.started) / pl_module.steps
        if not math.isfinite(self.loss):
            raise TrainingError(
                f"the loss became {self.loss} in epoch {trainer.current_epoch + 1}; lower --lr, give --clip 1 or a "
                "longer --warmup, or take --precision 32-true"
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        scores = pl_module.validation_scores()
        statistics = pl_module.statistics.row(pl_module.model, pl_module.loss)  # synchronises: in every process
        epoch, value = trainer.current_epoch, scores[self.monitor]
        higher = metric_info(self.monitor).higher_is_better
        gain = value - self.best_value if higher else self.best_value - value
        if self.best_epoch < 0 or gain > 0 or math.isnan(self.best_value) or self.keep == "last":
            self.best_value, self.best_epoch = value, epoch
            self._keep(trainer, pl_module)
        if trainer.is_global_zero:
            self._write(trainer, pl_module, scores, statistics)
        trainer.save_checkpoint(self.folder.resume_point)  # last: an epoch that has one has a row

    def _write(
        self, trainer: pl.Trainer, learner: Learner, scores: Mapping[str, float], statistics: Mapping[str, Statistic]
    ) -> None:
        """The row of this epoch."""
        self.epoch_seconds.append(time.perf_counter() - self.started)
        row = EpochRecord(
            epoch=trainer.current_epoch,
            step=learner.steps_taken,
            lr=trainer.optimizers[0].param_groups[0]["lr"],
            train={"loss": self.loss, **statistics},
            val={**scores},
            seconds=self.epoch_seconds[-1],
            seconds_per_step=self.step_seconds,
        ).to_json()
        with open_unlinked(self.folder.draft / "history.jsonl") as file:
            file.write(json.dumps(plain(row)) + "\n")
        if trainer.logger is not None:
            trainer.logger.log_metrics(_flat(row), learner.steps_taken)
            trainer.logger.save()
        self.say(self._line(trainer.current_epoch, learner.epochs, scores))

    def _keep(self, trainer: pl.Trainer, learner: Learner) -> None:
        """Save the weights of this epoch for inference."""
        if trainer.is_global_zero:
            weights = SelectedWeights(trainer.current_epoch, learner.inference_model.state_dict())
            weights.save(self.folder.draft / "checkpoint.ckpt")

    def _line(self, epoch: int, epochs: int, scores: Mapping[str, float]) -> str:
        recent = self.epoch_seconds[-5:]
        left = (epochs - epoch - 1) * sum(recent) / len(recent)
        names = dict.fromkeys([self.monitor, *list(scores)[:2], "nll"])
        metrics = "  ".join(f"{name.replace('_', ' ')} {_short(name, scores[name])}" for name in names)
        mark = "*" if self.best_epoch == epoch else " "
        count = f"{epoch + 1:>{len(str(epochs))}}/{epochs}"
        return f"epoch {count}{mark} loss {self.loss:.4f}  val {metrics}  {duration(left)} left"


class ProgressBar(pl.Callback):
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

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Learner)
        if trainer.is_global_zero:
            self.bar.start()
            total = pl_module.steps * pl_module.epochs
            self.task = self.bar.add_task("training", total=total, completed=pl_module.steps_taken)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Learner)
        if trainer.is_global_zero:
            self.bar.update(self.task, completed=pl_module.steps_taken)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
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
