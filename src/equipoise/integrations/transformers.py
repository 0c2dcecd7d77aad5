"""Losses in the Hugging Face ``Trainer``: a callback that updates their schedules and saves their state.

Pass the loss to the trainer as ``compute_loss_func``. ``num_items_in_batch`` is the number of labels other than
-100 in all batches of a step of the optimiser and in all processes: the denominator of ``reduction="valid_mean"``, and
of ``"mean"`` if the loss has no class weights::

    def compute_loss(outputs, labels, num_items_in_batch=None):
        return loss(outputs.logits, labels, normalizer=num_items_in_batch)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from equipoise._checks import check_choice
from equipoise._reading import read_checkpoint
from equipoise._writing import appearing
from equipoise.integrations._epochs import check_epochs
from equipoise.losses import Loss

__all__ = ["LossSchedule"]

FILE = "loss.pt"
"""File name in each checkpoint."""


class LossSchedule(TrainerCallback):
    """Update the schedules of a loss, and save its state (running recalls, adaptive exponents) in the checkpoints.

    Args:
        loss: the loss called by ``compute_loss_func``, or a module that contains several.
        every: ``"epoch"`` calls ``set_epoch`` before each epoch, which requires ``epochs=``; ``"step"`` calls
            ``set_progress`` before each step of the optimiser, for trainings of few epochs or a fixed number of steps.

    Example::

        trainer = Trainer(model, args, compute_loss_func=compute_loss, callbacks=[LossSchedule(loss)], ...)
    """

    def __init__(self, loss: nn.Module, every: Literal["epoch", "step"] = "epoch") -> None:
        check_choice("every", every, ("epoch", "step"))
        self.loss, self.every = loss, every

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Compare epochs, and load the state of the loss if a training is resumed."""
        if self.every == "epoch" and args.max_steps <= 0:
            check_epochs(self._losses(), math.ceil(args.num_train_epochs))
        if state.global_step > 0:
            file = _checkpoint(args, state) / FILE
            if file.is_file():
                self.loss.load_state_dict(read_checkpoint(file, advice="resume from another checkpoint"))
            elif any(not name.endswith("position") for name in self.loss.state_dict()):  # reported anyway
                raise FileNotFoundError(
                    f"the state of the loss must be in {file} to resume at step {state.global_step}, got no such file; "
                    "put it there from the checkpoint you resume from, with the same output_dir"
                )

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Set the epoch of the loss."""
        if self.every == "epoch":
            for loss in self._losses():
                loss.set_epoch(int(state.epoch or 0))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Set the progress of the loss."""
        if self.every == "step":
            for loss in self._losses():
                loss.set_progress(state.global_step / state.max_steps)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Save the state of the loss in the checkpoint."""
        if state.is_world_process_zero and self.loss.state_dict():
            with appearing(_checkpoint(args, state) / FILE) as draft:
                torch.save(self.loss.state_dict(), draft)

    def _losses(self) -> list[Loss]:
        return [part for part in self.loss.modules() if isinstance(part, Loss)]


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
