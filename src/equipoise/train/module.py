"""The LightningModule: a model, a loss that may be scheduled, and metrics.

The loop over the steps is written out, in Lightning's words for it (manual optimisation), so that several steps can be
one batch of Lightning's: what its loop does around a batch takes as long as the step of a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from equipoise.data.augment import Compose
from equipoise.distributed import all_sum, world_size
from equipoise.train.preparation import Preparation
from equipoise.train.statistics import Statistics
from equipoise.train.task import TrainingTask

__all__ = ["Learner"]

Batch = tuple[Tensor, ...]
HALF = float(torch.finfo(torch.float16).max)


class Learner(pl.LightningModule):
    """Learns one task with one loss.

    Args:
        task: single label, several labels or segmentation.
        model: inputs to logits; in training perhaps to a tuple whose last part they are.
        loss: what the model returns and targets to a number; ``set_epoch``, if it has one, is called before each epoch.
        preparation: raw inputs to what the model sees.
        make_optimizer: model to optimiser.
        factor: progress in [0, 1] to the factor of the learning rate.
        augment: of prepared images in training, before they are normalised.
        steps: steps of an epoch.
        epochs: of the training.
        clip: largest norm of a gradient; None for any.
        ema: decay of an average of the weights, which is then what is validated and kept; None for none.
        seed: of dropout and augmentation, which are drawn anew from it in every epoch.
    """

    def __init__(
        self,
        task: TrainingTask,
        model: nn.Module,
        loss: nn.Module,
        preparation: Preparation,
        *,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        factor: Callable[[float], float],
        augment: Compose = Compose(),  # noqa: B008  (frozen)
        steps: int,
        epochs: int,
        clip: float | None = None,
        ema: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.task, self.model, self.loss, self.preparation = task, model, loss, preparation
        self.make_optimizer, self.factor, self.augment = make_optimizer, factor, augment
        self.steps, self.epochs, self.clip, self.seed = steps, epochs, clip, seed
        self.averaged: AveragedModel | None = None
        if ema is not None:
            average = get_ema_multi_avg_fn(ema)  # type: ignore[no-untyped-call]
            self.averaged = AveragedModel(model, multi_avg_fn=average, use_buffers=True)
            self.averaged.requires_grad_(False)  # it is no part of what DDP waits for
        self.statistics = Statistics(task.observers(), steps)
        self.metrics = nn.ModuleDict(task.metrics())
        self.loss_sum = torch.zeros((), dtype=torch.float64)  # no buffer, DDP would broadcast it
        self.step = 0  # of the epoch
        self.collected: list[Batch] = []

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Set an attribute; a module asks first whether it is a weight, a part or a buffer.

        Lightning writes the name of the hook it is in some fifty times a step, and the asking was a quarter of the time
        that it adds to a step.
        """
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def inference_model(self) -> nn.Module:
        """The model that is validated and kept: the average of the weights where there is one."""
        return self.model if self.averaged is None else self.averaged.module

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser; its learning rate follows from the step, so it has no schedule with a state of its own."""
        optimizer = self.make_optimizer(self.model)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]  # as torch's own schedules call it
        return optimizer

    # ------------------------------------------------------------------------------------------------------ training

    def on_train_epoch_start(self) -> None:
        """Set the epoch of the loss, and seed by seed and epoch, so that a resumed training is the same."""
        drawn = np.random.SeedSequence([self.seed, self.current_epoch, self.global_rank]).generate_state(2)
        # on the CPU nothing is drawn elsewhere, and to seed all devices takes as long as a step
        (torch.default_generator if self.device.type == "cpu" else torch).manual_seed(int(drawn[0]))
        self.generator = torch.Generator(self.device).manual_seed(int(drawn[1]))
        self.loss_sum, self.step = torch.zeros((), dtype=torch.float64, device=self.device), 0
        self.statistics.reset()
        if callable(move := getattr(self.loss, "set_epoch", None)):
            move(self.current_epoch)

    def training_step(self, batches: Iterable[Batch], index: int) -> None:
        """Learn from some batches, one after the other."""
        alone = self._alone()
        optimizer: Any = self.optimizers(use_pl_optimizer=not alone)
        for batch in batches:
            progress = self.steps_taken / (self.epochs * self.steps)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * self.factor(min(progress, 1.0))
            optimizer.zero_grad()
            loss = self.training_loss(*batch)
            if alone:
                loss.backward()  # type: ignore[no-untyped-call]
                self.on_before_optimizer_step(optimizer)
            else:
                self.manual_backward(loss)
            optimizer.step()
            if self.averaged is not None:
                self.averaged.update_parameters(self.model)
            self.step += 1

    def _alone(self) -> bool:
        """Whether a step is nothing but a step: one device, gradients at their own scale.

        Lightning would call its hooks to do the same, which takes a tenth of the step of a small model.
        """
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return type(self.trainer.strategy) is SingleDeviceStrategy and scaler is None

    @property
    def steps_taken(self) -> int:
        """Steps since the beginning of the training."""
        return self.current_epoch * self.steps + self.step

    def training_loss(self, *batch: Tensor) -> Tensor:
        """The loss of a batch: inputs and targets, and those of a second sampler where the method has one."""
        inputs, targets = zip(*map(self._augmented, batch[::2], batch[1::2]), strict=True)
        found = self.model(*inputs)
        loss: Tensor = self.loss(found, *targets)
        self.loss_sum.add_(loss.detach())
        if self.statistics.wanted(self.step):
            self.statistics.observe(_logits(found), targets[0])
        return loss

    def _augmented(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if not self.augment.steps:
            return self.preparation.prepare(inputs), targets
        inputs, targets = self.augment(self.preparation.scale(inputs), targets, self.generator)
        return self.preparation.normalise(inputs), targets

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at some gradients, and clip all of them; those of mixed precision have their own scale again here."""
        if self.statistics.wants_gradient(self.step):
            self.statistics.observe_gradient(optimizer)
        if self.clip is not None:
            self.trainer.precision_plugin.clip_grad_by_norm(optimizer, self.clip)

    def mean_loss(self) -> float:
        """Mean loss of the epoch over all processes, which have taken as many steps."""
        total = all_sum(self.loss_sum).item()
        return total / (world_size() * self.step) if self.step else float("nan")

    # ---------------------------------------------------------------------------------------- validation, prediction

    def serve(self, model: nn.Module) -> None:
        """From now on this model predicts, and nothing is trained."""
        self.model, self.averaged = model, None

    def on_validation_epoch_start(self) -> None:
        """Begin to measure."""
        for metric in self.metrics.values():
            metric.reset()  # type: ignore[operator]

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits of raw inputs, never compiled: the batches differ in size, and each size would be compiled anew."""
        with torch.compiler.set_stance("force_eager"):
            return _logits(self.inference_model(self.preparation.prepare(inputs)))

    def validation_step(self, batch: Batch, index: int) -> None:
        """Measure a batch."""
        inputs, targets = batch
        logits = self.logits(inputs).float()
        for metric in self.metrics.values():
            metric.update(logits, targets)  # type: ignore[operator]

    def validation_scores(self) -> dict[str, float]:
        """Numbers of the validation pass, over all processes."""
        metrics: Mapping[str, Any] = dict(self.metrics.items())
        return self.task.scores(metrics)

    def predict_step(self, batch: Batch, index: int) -> None:
        """Collect the logits of a batch; label maps have so many that half precision has to do."""
        inputs, targets = batch
        logits = self.logits(inputs)
        kept = logits.clamp(-HALF, HALF).half() if logits.ndim > 2 else logits.float()
        self.collected.append((kept.cpu(), targets.cpu()))


def _logits(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Those that predict: models with several heads, or that show their features, return them last."""
    return found[-1] if isinstance(found, tuple) else found
