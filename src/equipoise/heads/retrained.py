"""Classifier re-training (Kang et al. 2020): a classifier made anew on the features of a trained model."""

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
    """Classifier re-training, cRT (Kang et al. 2020, section 4.1): a fresh linear head, on balanced classes.

    SGD with a cosine to 0 over ``epochs`` times N samples, in which every class comes equally often. Defaults are those
    of the paper for ImageNet-LT. The same seed gives the same head.

    Args:
        model: whose classifier says which kind of head to make; it is not modified.
        kept: features of its training data, from :func:`keep_features`.
        head: what to train instead of a fresh classifier, in place: a :class:`LearnableWeightScaling`, or a
            ``CosineClassifier``. It sees what the classifier of the model sees.
        loss: of logits and labels; None for cross-entropy (of sigmoids where samples have several labels).
        epochs: passes over as many samples as there are.
        batch_size: samples of a step; fewer where there are fewer.
        lr: learning rate at the start.
        momentum: of SGD.
        weight_decay: of SGD.
        power: classes are drawn in proportion to their counts to this power: 0 balanced, 1 as they are.
        seed: of the fresh head and of the draws.
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
    found = find_classifier(model, name)
    kept.check_classifier(found)
    if head is not None:
        check_module("head", head, "pass e.g. LearnableWeightScaling(find_classifier(model).module)")
    objective = loss or (CrossEntropyLoss() if kept.labels.ndim == 1 else BinaryCrossEntropyLoss())
    check_loss("loss", objective)
    trained = (_fresh(found, seed) if head is None else head).to(kept.features.device, kept.features.dtype)
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
    return trained.to(home.device, home.dtype).train(found.module.training)


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
    steps = max(len(kept.features) // batch_size, 1)  # of an epoch, whose rest is excluded
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
    """Indices of the samples of each epoch; every process the same."""
    labels = kept.labels if kept.labels.ndim == 1 else (kept.labels == 1).int()
    sampler = ClassSampler(labels.cpu().numpy(), power=power, seed=seed, rank=0, world_size=1)
    for epoch in range(epochs):
        yield torch.from_numpy(sampler.draw(np.random.default_rng([seed, epoch]))).to(kept.features.device)


def _fresh(found: Classifier, seed: int) -> nn.Module:
    """A classifier of the same kind with new weights; the global generators stay as they are."""
    head = copy_linear(found.module).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head.reset_parameters()
    return head


@torch.no_grad()
def _check_answers(head: nn.Module, kept: KeptFeatures) -> None:
    """Raise unless a head makes as many logits as there are classes of what the classifier sees."""
    width, classes = kept.features.shape[1], kept.num_classes
    wanted = f"head must make {classes} logits of {width} features, as the classifier of the model does"
    try:
        logits = _on_rows(head, kept.features[:1], kept.dim)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{wanted}, got {type(head).__name__} that fails on them ({reason}); make it of the sizes of "
            "find_classifier(model).module"
        ) from error
    if logits.shape != (1, classes):
        raise ValueError(
            f"{wanted}, got {type(head).__name__} with {logits.shape[1]}; make it of the sizes of "
            "find_classifier(model).module"
        )


def _on_rows(head: nn.Module, rows: Tensor, dim: int) -> Tensor:
    """Logits (M, C) of rows (M, D), for heads that see maps as well."""
    logits: Tensor = head(rows.view(*rows.shape, *(1,) * (-dim - 1)))
    return logits.flatten(1)
