"""Losses in a ``LightningModule``: a callback that updates their schedules and logs their settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from torch import nn

from equipoise._checks import check_choice
from equipoise._extras import check_installed
from equipoise.integrations._epochs import check_epochs
from equipoise.losses import Loss, current_settings

if TYPE_CHECKING or "lightning.pytorch" not in sys.modules:
    check_installed("equipoise.integrations.lightning", "pytorch_lightning")
    from pytorch_lightning import Callback, LightningModule, Trainer
else:  # the same library under its other name, whose trainer rejects these classes
    from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["LossSchedule"]

LOGGED = 100
"""Maximum number of classes that are logged individually."""


class LossSchedule(Callback):
    """Update the schedules of all losses in the module, and log their settings.

    Logged after each epoch as ``loss/gamma``, ``loss/xi``, ``loss/recall_weights/3`` ...: values of schedules, adaptive
    exponents and running recalls. A loss that is an attribute of the module is saved in its checkpoints, with its
    state.

    Args:
        every: ``"epoch"`` calls ``set_epoch`` before each epoch, which requires ``epochs=``; ``"step"`` calls
            ``set_progress`` before each batch, for trainings of few epochs or a fixed number of steps.
        log: whether to log settings.

    Example::

        trainer = pl.Trainer(max_epochs=20, callbacks=[LossSchedule()])
    """

    def __init__(self, every: Literal["epoch", "step"] = "epoch", *, log: bool = True) -> None:
        if isinstance(every, nn.Module):
            raise TypeError(
                f"every must be 'epoch' or 'step', got a {type(every).__name__}; use LossSchedule(), which finds the "
                "losses that are attributes of the module"
            )
        check_choice("every", every, ("epoch", "step"))
        self.every, self.logs = every, log

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the epochs of the losses with those of the training, if known."""
        if self.every == "epoch" and trainer.max_steps == -1 and (trainer.max_epochs or -1) > 0:
            check_epochs(_losses(pl_module), trainer.max_epochs or 0)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the epoch of the losses."""
        if self.every == "epoch":
            for loss in _losses(pl_module):
                loss.set_epoch(trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Set the progress of the losses."""
        if self.every == "step":
            for loss in _losses(pl_module):
                loss.set_progress(min(trainer.global_step / trainer.estimated_stepping_batches, 1.0))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the current settings."""
        if self.logs:
            for name, value in current_settings(pl_module).items():
                if isinstance(value, float):
                    pl_module.log(f"loss/{name}", value)
                elif len(value) <= LOGGED:
                    pl_module.log_dict({f"loss/{name}/{k}": item for k, item in enumerate(value)})


def _losses(module: LightningModule) -> list[Loss]:
    return [part for part in module.modules() if isinstance(part, Loss)]
