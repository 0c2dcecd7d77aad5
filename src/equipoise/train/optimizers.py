"""Optimisers by name, and the learning rate as a function of progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn, optim

from equipoise._checks import check_choice, check_number
from equipoise.models import find_classifier
from equipoise.schedules import Constant, Cosine, Linear, Schedule, Steps, join

__all__ = ["LEARNING_RATES", "OPTIMIZERS", "build_optimizer", "learning_rate_factor"]

OPTIMIZERS = {"sgd": (0.1, 5e-4), "momentum": (0.1, 5e-4), "adagrad": (1e-2, 0.0), "adamw": (1e-3, 1e-2)}
"""Optimisers by name, with the default learning rate and weight decay of a run."""
LEARNING_RATES = ("cosine", "step", "one-cycle", "constant")


def build_optimizer(
    name: str,
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
    fused: bool = True,
    body_rate: float = 1.0,
) -> optim.Optimizer:
    """The optimiser of all parameters that need a gradient.

    By default it is the fused implementation of torch if all parameters are on a CPU or a CUDA device: the same result
    up to rounding, in a fraction of the time.

    Args:
        name: ``"sgd"``, with Nesterov's momentum; ``"momentum"``, SGD without it; ``"adagrad"`` or ``"adamw"``.
        model: the model to train.
        lr: maximum learning rate.
        weight_decay: added to the gradient by SGD and AdaGrad, decoupled from it in AdamW.
        momentum: momentum of SGD, in [0, 1); AdaGrad has none, AdamW has betas of 0.9 and 0.999.
        fused: False for the default implementation of torch.
        body_rate: learning rate of the layers before the classifier, relative to ``lr``.

    >>> build_optimizer("sgd", nn.Linear(2, 3), lr=0.1, weight_decay=5e-4).defaults["nesterov"]
    True
    """
    check_choice("optimizer", name, tuple(OPTIMIZERS))
    check_number("lr", lr, low=0.0, open_low=True)
    check_number("weight_decay", weight_decay, low=0.0)
    check_number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError(
            f"model must have parameters that need a gradient, got {type(model).__name__} without; unfreeze some"
        )
    groups: list[dict[str, Any]] = [{"params": parameters}]
    if body_rate != 1.0:
        own = {id(parameter) for parameter in find_classifier(model).module.parameters()}
        body = [parameter for parameter in parameters if id(parameter) not in own]
        head = [parameter for parameter in parameters if id(parameter) in own]
        groups = [{"params": body, "lr": body_rate * lr}, {"params": head}]
    devices = ("cpu",) if name == "adagrad" else ("cpu", "cuda")  # those with a fused implementation
    common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
    common["fused"] = True if fused and all(one.device.type in devices for one in parameters) else None
    if name == "adamw":
        on_gpu = all(one.device.type == "cuda" for one in parameters)  # may be captured as a CUDA graph
        return optim.AdamW(groups, **common, capturable=on_gpu)
    if name == "adagrad":
        return optim.Adagrad(groups, **common)
    return optim.SGD(groups, momentum=momentum, nesterov=name == "sgd" and momentum > 0, **common)


def learning_rate_factor(
    schedule: str, *, warmup: float = 0.0, milestones: Sequence[float] = (), step_factor: float = 0.1
) -> Schedule:
    """Factor on the learning rate at a progress in [0, 1], ``step / steps``.

    Args:
        schedule: ``"cosine"``, half a cosine wave down to 0; ``"step"``, times ``step_factor`` at each milestone;
            ``"one-cycle"``, up from 1/25 in the first 30 % and down to 1/250,000, both by half a cosine wave (Smith &
            Topin 2018; the defaults of ``torch.optim.lr_scheduler.OneCycleLR``); or ``"constant"``.
        warmup: fraction of the training in which the factor first grows linearly from 0 to 1; the schedule follows.
            Ignored by one-cycle, which has its own.
        milestones: for ``"step"``: increasing fractions of the whole training, including the warm-up.
        step_factor: for ``"step"``, in (0, 1).

    >>> rate = learning_rate_factor("step", warmup=0.1, milestones=(0.8, 0.9))
    >>> [round(rate(progress), 3) for progress in (0.0, 0.05, 0.1, 0.79, 0.8, 0.9)]
    [0.0, 0.5, 1.0, 1.0, 0.1, 0.01]
    """
    check_choice("schedule", schedule, LEARNING_RATES)
    check_number("warmup", warmup, low=0.0, high=1.0, open_high=True)
    if schedule == "one-cycle":
        return join([Cosine(1 / 25, 1.0), Cosine(1.0, 1e-4 / 25)], at=[0.3])
    if schedule == "step":
        main: Schedule = _steps(warmup, milestones, step_factor)
    else:
        main = Cosine(1.0, 0.0) if schedule == "cosine" else Constant(1.0)
    return join([Linear(0.0, 1.0), main], at=[warmup]) if warmup else main


def _steps(warmup: float, milestones: Sequence[float], step_factor: float) -> Steps:
    """The steps, as fractions of the training after the warm-up."""
    check_number("step_factor", step_factor, low=0.0, high=1.0, open_low=True, open_high=True)
    if any(milestone <= warmup for milestone in milestones):
        raise ValueError(
            f"milestones must lie behind the warm-up of {warmup:g} of the training, got {tuple(milestones)}; "
            "shorten the warm-up or move them"
        )
    at = tuple((milestone - warmup) / (1.0 - warmup) for milestone in milestones)
    return Steps(tuple(step_factor**i for i in range(len(at) + 1)), at)
