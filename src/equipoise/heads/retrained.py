"""Classifier re-training (Kang et al. 2020): a new classifier on the features of a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from equipoise._checks import check_number, check_whole
from equipoise.data.samplers import ClassSampler
from equipoise.heads.decoupled import check_loss
from equipoise.heads.features import KeptFeatures, check_kept
from equipoise.heads.rebalanced import copy_linear
from equipoise.losses import BinaryCrossEntropyLoss, CrossEntropyLoss
from equipoise.models.classifier import Classifier, check_module, find_classifier

__all__ = ["retrain_classifier"]


def retrain_classifier(
    model: nn.Module,
    kept: KeptFeatures,
    *,
    head: nn.Module | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    epochs: int = 10,
    batch_size: int = 512,
    lr: float = 0.2,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    power: float = 0.0,
    seed: int = 0,
    name: str | None = None,
) -> nn.Module:
    """Classifier re-training, cRT (Kang et al. 2020, section 4.1): a new linear head, trained on balanced classes.

    SGD with a cosine schedule to 0 over ``epochs`` times N samples, which are drawn with equal probability for every
    class. Defaults are those of the paper for ImageNet-LT. The same seed gives the same head.

    Args:
        model: its classifier determines the type and sizes of the head; it is not modified.
        kept: features of its training data, from :func:`keep_features`.
        head: a head to train in place instead of a new classifier, such as a :class:`LearnableWeightScaling` or a
            ``CosineClassifier``. Its inputs are those of the classifier of the model.
        loss: of logits and labels; None for cross-entropy (binary cross-entropy for multi-label data).
        epochs: number of epochs of N samples.
        batch_size: samples per step, at most N.
        lr: initial learning rate.
        momentum: SGD momentum.
        weight_decay: SGD weight decay.
        power: classes are drawn in proportion to their counts to this power: 0 balanced, 1 the original distribution.
        seed: random seed of the new head and of the drawn samples.
        name: qualified name of the classifier if it is not found.

    Returns:
        The trained head, on the device and in the dtype of the model.

    >>> from equipoise.heads import keep_features
    >>> from equipoise.models import MLP, replace_classifier
    >>> inputs, labels = torch.randn(64, 4), torch.arange(64) % 3
    >>> model = MLP(4, 3)  # trained
    >>> kept = keep_features(model, [(inputs, labels)])
    >>> old = replace_classifier(model, retrain_classifier(model, kept))
    """
    check_whole("epochs", epochs, low=1)
    check_whole("batch_size", batch_size, low=1)
    check_number("lr", lr, low=0.0, open_low=True)
    check_kept(kept)
    classifier = find_classifier(model, name)
    kept.check_classifier(classifier)
    if head is not None:
        check_module("head", head, "pass e.g. LearnableWeightScaling(find_classifier(model).module)")
    objective = loss or (CrossEntropyLoss() if kept.labels.ndim == 1 else BinaryCrossEntropyLoss())
    check_loss("loss", objective)
    trained = (_fresh(classifier, seed) if head is None else head).to(kept.features.device, kept.features.dtype)
    parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError(
            f"head must have parameters that need a gradient, got {type(head).__name__} without; omit it for cRT"
        )
    _check_answers(trained.eval(), kept)
    trained.train()
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    _train(trained, kept, objective, optimizer, batch_size, epochs, _orders(kept, epochs, power, seed))
    home = next(model.parameters())
    return trained.to(home.device, home.dtype).train(classifier.module.training)


@torch.enable_grad()
def _train(
    head: nn.Module,
    kept: KeptFeatures,
    objective: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    epochs: int,
    orders: Iterator[Tensor],
) -> None:
    """Train a head in place, with a cosine of the learning rate to 0."""
    steps = max(len(kept.features) // batch_size, 1)  # the last, incomplete batch of an epoch is dropped
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    for epoch, order in enumerate(orders):
        if callable(move := getattr(objective, "set_epoch", None)):
            move(epoch)
        for at in torch.split(order, batch_size)[:steps]:
            optimizer.zero_grad()
            loss = objective(_on_rows(head, kept.features[at], kept.dim), kept.labels[at])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            cosine.step()
    optimizer.zero_grad()


def _orders(kept: KeptFeatures, epochs: int, power: float, seed: int) -> Iterator[Tensor]:
    """Indices of the samples of each epoch, the same in every process."""
    labels = kept.labels if kept.labels.ndim == 1 else (kept.labels == 1).int()
    sampler = ClassSampler(labels.cpu().numpy(), power=power, seed=seed, rank=0, world_size=1)
    for epoch in range(epochs):
        yield torch.from_numpy(sampler.draw(np.random.default_rng([seed, epoch]))).to(kept.features.device)


def _fresh(classifier: Classifier, seed: int) -> nn.Module:
    """A new classifier of the same type; the global random generators are unchanged."""
    head = copy_linear(classifier.module).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head.reset_parameters()
    return head


@torch.no_grad()
def _check_answers(head: nn.Module, kept: KeptFeatures) -> None:
    """Raise unless a head maps the inputs of the classifier to one logit per class."""
    width, classes = kept.features.shape[1], kept.num_classes
    wanted = f"head must map {width} features to {classes} logits, like the classifier of the model"
    try:
        logits = _on_rows(head, kept.features[:1], kept.dim)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{wanted}, got {type(head).__name__} that fails on them ({reason}); use the sizes of "
            "find_classifier(model).module"
        ) from error
    if logits.shape != (1, classes):
        raise ValueError(
            f"{wanted}, got {type(head).__name__} with {logits.shape[1]}; use the sizes of "
            "find_classifier(model).module"
        )


def _on_rows(head: nn.Module, rows: Tensor, dim: int) -> Tensor:
    """Logits (M, C) of rows (M, D); supports heads for maps too."""
    logits: Tensor = head(rows.view(*rows.shape, *(1,) * (-dim - 1)))
    return logits.flatten(1)
