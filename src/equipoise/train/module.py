"""The LightningModule: a model, a loss that may be scheduled, and metrics.

The module runs the steps itself (manual optimisation), so that one batch of Lightning holds several steps: the overhead
of its loop per batch takes as long as a step of a small model.
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
    """Trains a model on one task with one loss.

    Args:
        task: single-label, multi-label or segmentation.
        model: maps inputs to logits; in training it may return a tuple that ends with them.
        loss: maps outputs of the model and targets to a number; its ``set_epoch``, if any, is called before each epoch.
        preparation: maps raw inputs to those of the model.
        make_optimizer: builds the optimiser of a model.
        factor: maps progress in [0, 1] to a factor of the learning rate.
        augment: augmentation of training images, after scaling and before normalisation.
        steps: steps per epoch.
        epochs: number of epochs.
        clip: maximum norm of the gradient; None for no limit.
        ema: decay of an average of the weights, which is then validated and kept; None for no average.
        seed: seed of dropout and augmentation, combined with the epoch and the process.
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
            self.averaged.requires_grad_(False)  # DDP must not wait for its gradients
        self.statistics = Statistics(task.observers(), steps)
        self.metrics = nn.ModuleDict(task.metrics())
        self.loss_sum = torch.zeros((), dtype=torch.float64)  # not a buffer: DDP would broadcast it
        self.step = 0  # within the epoch
        self.collected: list[Batch] = []

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Set an attribute; ``nn.Module`` first checks whether it is a parameter, a submodule or a buffer.

        Lightning sets the name of the current hook about fifty times per step, and this check was a quarter of the time
        that Lightning adds to a step.
        """
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def inference_model(self) -> nn.Module:
        """The model that is validated and kept: the average of the weights, if any."""
        return self.model if self.averaged is None else self.averaged.module

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser; ``training_step`` sets its learning rate, so there is no scheduler."""
        optimizer = self.make_optimizer(self.model)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]  # the name that schedulers of torch use
        return optimizer

    # ------------------------------------------------------------------------------------------------------ training

    def on_train_epoch_start(self) -> None:
        """Set the epoch of the loss, and seed the generators from it, so that a resumed training is the same."""
        drawn = np.random.SeedSequence([self.seed, self.current_epoch, self.global_rank]).generate_state(2)
        # on the CPU no other generator is used, and seeding all devices takes as long as a step
        (torch.default_generator if self.device.type == "cpu" else torch).manual_seed(int(drawn[0]))
        self.generator = torch.Generator(self.device).manual_seed(int(drawn[1]))
        self.loss_sum, self.step = torch.zeros((), dtype=torch.float64, device=self.device), 0
        self.statistics.reset()
        if callable(move := getattr(self.loss, "set_epoch", None)):
            move(self.current_epoch)

    def training_step(self, batches: Iterable[Batch], index: int) -> None:
        """Take one step per batch, in order."""
        direct = self._bypasses_hooks()
        optimizer: Any = self.optimizers(use_pl_optimizer=not direct)
        for batch in batches:
            progress = self.steps_taken / (self.epochs * self.steps)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * self.factor(min(progress, 1.0))
            optimizer.zero_grad()
            loss = self.training_loss(*batch)
            if direct:
                loss.backward()  # type: ignore[no-untyped-call]
                self.on_before_optimizer_step(optimizer)
            else:
                self.manual_backward(loss)
            optimizer.step()
            if self.averaged is not None:
                self.averaged.update_parameters(self.model)
            self.step += 1

    def _bypasses_hooks(self) -> bool:
        """Whether steps can bypass the hooks of Lightning: one device and no gradient scaler.

        The hooks would do the same, but take a tenth of the step of a small model.
        """
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return type(self.trainer.strategy) is SingleDeviceStrategy and scaler is None

    @property
    def steps_taken(self) -> int:
        """Steps since the beginning of the training."""
        return self.current_epoch * self.steps + self.step

    def training_loss(self, *batch: Tensor) -> Tensor:
        """The loss of a batch: inputs and targets, and those of a second sampler, if any."""
        inputs, targets = zip(*map(self._augmented, batch[::2], batch[1::2]), strict=True)
        outputs = self.model(*inputs)
        loss: Tensor = self.loss(outputs, *targets)
        self.loss_sum.add_(loss.detach())
        if self.statistics.wanted(self.step):
            self.statistics.observe(_logits(outputs), targets[0])
        return loss

    def _augmented(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if not self.augment.steps:
            return self.preparation.prepare(inputs), targets
        inputs, targets = self.augment(self.preparation.scale(inputs), targets, self.generator)
        return self.preparation.normalise(inputs), targets

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Observe some gradients and clip all of them; those of mixed precision are already unscaled."""
        if self.statistics.wants_gradient(self.step):
            self.statistics.observe_gradient(optimizer)
        if self.clip is not None:
            self.trainer.precision_plugin.clip_grad_by_norm(optimizer, self.clip)

    def mean_loss(self) -> float:
        """Mean loss of the epoch over all processes, which took the same number of steps."""
        total = all_sum(self.loss_sum).item()
        return total / (world_size() * self.step) if self.step else float("nan")

    # ---------------------------------------------------------------------------------------- validation, prediction

    def serve(self, model: nn.Module) -> None:
        """Use this model for prediction from now on."""
        self.model, self.averaged = model, None

    def on_validation_epoch_start(self) -> None:
        """Reset the metrics."""
        for metric in self.metrics.values():
            metric.reset()  # type: ignore[operator]

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits of raw inputs, without compilation: batches differ in size, and each size would be compiled."""
        with torch.compiler.set_stance("force_eager"):
            return _logits(self.inference_model(self.preparation.prepare(inputs)))

    def validation_step(self, batch: Batch, index: int) -> None:
        """Update the metrics with a batch."""
        inputs, targets = batch
        logits = self.logits(inputs).float()
        for metric in self.metrics.values():
            metric.update(logits, targets)  # type: ignore[operator]

    def validation_scores(self) -> dict[str, float]:
        """Metrics of the validation pass, over all processes."""
        metrics: Mapping[str, Any] = dict(self.metrics.items())
        return self.task.scores(metrics)

    def predict_step(self, batch: Batch, index: int) -> None:
        """Collect the logits of a batch; those of label maps in half precision, to save memory."""
        inputs, targets = batch
        logits = self.logits(inputs)
        kept = logits.clamp(-HALF, HALF).half() if logits.ndim > 2 else logits.float()
        self.collected.append((kept.cpu(), targets.cpu()))


def _logits(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Logits that predict: models with several heads, or that return features, return them last."""
    return outputs[-1] if isinstance(outputs, tuple) else outputs
