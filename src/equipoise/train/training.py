"""The training of a run: a model, a loss that may be scheduled, an optimiser, and one plain function for a step.

A step neither waits for the device nor decides anything by values on it, so that it can be captured as a CUDA graph
(``equipoise.train.steps``). The loop over the epochs is in ``equipoise.train.loop``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from equipoise.data.augment import Compose
from equipoise.distributed import all_sum, world_size
from equipoise.train.fabric import on_one_device
from equipoise.train.preparation import Preparation
from equipoise.train.statistics import NOTHING, Observed, Statistics, Wanted
from equipoise.train.task import TrainingTask

__all__ = ["Training", "WeightAverage"]

Batch = tuple[Tensor, ...]
HALF = float(torch.finfo(torch.float16).max)
UNCONVERTED = ("32-true", "bf16-mixed", "16-mixed")
"""Precisions in which inputs and outputs of the model keep their types."""
DEVICE_FLAGS = ("fused", "foreach", "capturable")
"""Options of optimisers that follow from the device, which may change when a training is resumed."""
TOGETHER = 2**20
"""Number of logits from which the metrics are updated."""


class Training:
    """Trains a model on one task with one loss.

    Args:
        fabric: devices, precision and strategy.
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
        channels_last: whether images and weights of convolutions have their channels last in memory, which is faster on
            GPUs; models that view their features in another shape may not support it.
    """

    def __init__(
        self,
        fabric: Fabric,
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
        channels_last: bool = False,
    ) -> None:
        if channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.channels_last = channels_last
        self.fabric, self.device = fabric, fabric.device
        self.task, self.preparation, self.factor, self.augment = task, preparation, factor, augment
        self.steps, self.epochs, self.clip, self.seed = steps, epochs, clip, seed
        self.average = None if ema is None else WeightAverage(model, ema)
        wrapped = fabric.setup_module(model)  # also moves the model to the device
        # the wrapper converts and synchronises; where neither is needed it would cost a tenth of a small step
        self.direct = on_one_device(fabric) and fabric.strategy.precision.precision in UNCONVERTED
        self.model, self.forward = model, model if self.direct else wrapped
        self.loss = loss.to(self.device)
        self.scaler: torch.amp.GradScaler | None = getattr(fabric.strategy.precision, "scaler", None)
        self.optimizer = make_optimizer(model)
        fabric.setup_optimizers(self.optimizer)
        for group in self.optimizer.param_groups:
            group["initial_lr"] = float(group["lr"])  # the name that schedulers of torch use
        self._put_rates_on_device()
        if self.average is not None:
            self.average.module.to(self.device)
        self.statistics = Statistics(task.observers(), steps).to(self.device)
        self.metrics = nn.ModuleDict(task.metrics()).to(self.device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.generator = torch.Generator(self.device)
        self.epoch = self.index = 0  # the index counts the steps of the epoch

    @property
    def inference_model(self) -> nn.Module:
        """The model that is validated and kept: the average of the weights, if any."""
        return self.model if self.average is None else self.average.module

    @property
    def steps_taken(self) -> int:
        """Steps since the beginning of the training."""
        return self.epoch * self.steps + self.index

    # ------------------------------------------------------------------------------------------------------ training

    def begin(self, epoch: int) -> None:
        """Set the epoch of the loss, and seed the generators from it, so that a resumed training is the same."""
        self.epoch, self.index = epoch, 0
        drawn = np.random.SeedSequence([self.seed, epoch, self.fabric.global_rank]).generate_state(2)
        # on the CPU no other generator is used, and seeding all devices takes as long as a step
        (torch.default_generator if self.device.type == "cpu" else torch).manual_seed(int(drawn[0]))
        self.generator.manual_seed(int(drawn[1]))
        self.loss_sum.zero_()
        self.statistics.reset()
        if callable(move := getattr(self.loss, "set_epoch", None)):
            move(epoch)

    def rate_factor(self, index: int) -> float:
        """Factor of the learning rate at a step of this epoch."""
        return self.factor(min((self.epoch * self.steps + index) / (self.epochs * self.steps), 1.0))

    def take(self, batch: Batch) -> None:
        """Take the next step of the epoch on a batch: inputs and targets, and those of a second sampler, if any."""
        factor = self.rate_factor(self.index)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["initial_lr"] * factor)
            else:
                group["lr"] = group["initial_lr"] * factor
        wanted = self.statistics.wanted(self.index)
        self.statistics.add(self.step(batch, wanted, first=self.steps_taken == 0))
        self.index += 1

    def step(self, batch: Batch, wanted: Wanted = NOTHING, *, first: bool = False) -> Observed:
        """One step with the learning rates of the optimiser; returns what is observed of it.

        Args:
            batch: inputs and targets, and those of a second sampler, if any.
            wanted: what to observe.
            first: whether it is the first step of the training, with which the average of the weights begins.
        """
        self.optimizer.zero_grad()
        rows, norm = None, None
        with self.fabric.autocast():
            inputs, targets = zip(*map(self._augmented, batch[::2], batch[1::2]), strict=True)
            outputs = self.forward(*map(self._laid_out, inputs))
            loss: Tensor = self.loss(outputs, *targets)
            self.loss_sum.add_(loss.detach())
            if wanted.logits:
                rows = self.statistics.rows(_logits(outputs), targets[0])
        self.fabric.backward(loss)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if wanted.gradient:
            norm = self.statistics.gradient_norm(self._weights())
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self._weights(), self.clip)
        self.fabric.strategy.optimizer_step(self.optimizer)
        if self.average is not None:
            self.average.update(self.model, first=first)
        return Observed(rows, norm)

    def _augmented(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if not self.augment.steps:
            return self.preparation.prepare(inputs), targets
        inputs, targets = self.augment(self.preparation.scale(inputs), targets, self.generator)
        return self.preparation.normalise(inputs), targets

    def _laid_out(self, inputs: Tensor) -> Tensor:
        if self.channels_last and inputs.ndim == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    def _weights(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.optimizer.param_groups)

    def _put_rates_on_device(self) -> None:
        """Keep learning rates in tensors of a GPU, where captured steps read them."""
        if self.device.type == "cuda" and self.optimizer.defaults.get("fused"):
            for group in self.optimizer.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)

    def mean_loss(self) -> float:
        """Mean loss of the epoch over all processes, which took the same number of steps."""
        total = all_sum(self.loss_sum).item()
        return total / (world_size() * self.index) if self.index else float("nan")

    # ---------------------------------------------------------------------------------------- validation, prediction

    def serve(self, model: nn.Module) -> None:
        """Use this model for prediction from now on."""
        self.model, self.average = model.to(self.device), None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Modules in evaluation mode and no gradients; their modes are restored afterwards."""
        modes = {module: module.training for module in self.inference_model.modules()}
        self.inference_model.eval()
        try:
            # batches differ in size, and each size would be compiled
            with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits of raw inputs."""
        with self.fabric.autocast():
            prepared = self.preparation.prepare(inputs)
            if not self.direct:
                prepared = self.fabric.strategy.precision.convert_input(prepared)
            return _logits(self.inference_model(self._laid_out(prepared)))

    def validate(self, loader: Iterable[Batch]) -> None:
        """Update the metrics with all batches."""
        self.update_metrics((self.logits(inputs).float(), targets) for inputs, targets in loader)

    def update_metrics(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Reset the metrics, and update them with logits and targets, many batches at a time if they are small."""
        for metric in self.metrics.values():
            metric.reset()  # type: ignore[operator]
        kept: list[tuple[Tensor, Tensor]] = []
        with self.evaluating():
            for batch in batches:
                kept.append(batch)
                if sum(logits.numel() for logits, _ in kept) >= TOGETHER:
                    self._update_metrics(kept)
            self._update_metrics(kept)

    def _update_metrics(self, kept: list[tuple[Tensor, Tensor]]) -> None:
        if not kept:
            return
        logits, targets = kept[0] if len(kept) == 1 else map(torch.cat, zip(*kept, strict=True))
        kept.clear()
        for metric in self.metrics.values():
            metric.update(logits, targets)  # type: ignore[operator]

    def scores(self) -> dict[str, float]:
        """Metrics of the validation pass, over all processes."""
        metrics: Mapping[str, Any] = dict(self.metrics.items())
        return self.task.scores(metrics)

    def predict(self, loader: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """Logits and targets of all batches, on the CPU; logits of label maps in half precision, to save memory."""
        collected: list[Batch] = []
        with self.evaluating():
            for inputs, targets in loader:
                logits = self.logits(inputs)
                kept = logits.clamp(-HALF, HALF).half() if logits.ndim > 2 else logits.float()
                collected.append((kept.cpu(), targets.cpu()))
        logits, targets = (torch.cat(parts) for parts in zip(*collected, strict=True))
        return logits, targets

    # ------------------------------------------------------------------------------------------------------ its state

    def state_dict(self) -> dict[str, Any]:
        """Everything that steps change; epochs and their random numbers follow from the seed."""
        return {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.module.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.model.load_state_dict(state["model"])
        self.loss.load_state_dict(state["loss"])
        groups = self.optimizer.param_groups
        device_flags = [{name: group[name] for name in DEVICE_FLAGS if name in group} for group in groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, flags in zip(self.optimizer.param_groups, device_flags, strict=True):
            group |= flags
        for weight, own in self.optimizer.state.items():
            for name, value in own.items():
                if isinstance(value, Tensor) and value.shape == weight.shape:  # fused steps need the same layout
                    own[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)
        self._put_rates_on_device()
        if self.average is not None:
            self.average.module.load_state_dict(state["average"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])


class WeightAverage:
    """An exponential moving average of weights and buffers: ``average = decay * average + (1 - decay) * weights``.

    Args:
        model: begins the average; it is copied.
        decay: in (0, 1).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(model).requires_grad_(False)
        self._blend = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def update(self, model: nn.Module, *, first: bool) -> None:
        """Move towards the weights of a model; the first time, copy them."""
        pairs = list(zip(_tensors(self.module), _tensors(model), strict=True))
        if first:
            for ours, theirs in pairs:
                ours.copy_(theirs)
            return
        for floating in (True, False):
            chosen = [pair for pair in pairs if pair[0].is_floating_point() == floating]
            if chosen:
                self._blend(*map(list, zip(*chosen, strict=True)), None)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return (tensor.detach() for tensor in chain(model.parameters(), model.buffers()))


def _logits(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Logits that predict: models with several heads, or that return features, return them last."""
    return outputs[-1] if isinstance(outputs, tuple) else outputs
