"""The bilateral-branch network, BBN (Zhou et al. 2020): two branches over a shared trunk.

One branch is trained on the original distribution, the other on classes drawn in reverse proportion to their counts;
their features are mixed with a weight that shifts from the first to the second::

    inputs ──────────► trunk ─► branch 1 ─► features ─► × 2 a ──────┐
                                                                    ├─► one classifier ─► logits
    reversed inputs ─► trunk ─► branch 2 ─► features ─► × 2 (1 - a) ┘

    loss = a L(logits, labels) + (1 - a) L(logits, reversed labels)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from equipoise._buffers import PreciseBuffers
from equipoise._checks import check_choice, check_number, check_whole
from equipoise.heads.decoupled import DoubledClassifier, sized_classifier
from equipoise.heads.rebalanced import empty_linear, linear_weight
from equipoise.models.classifier import Classifier, find_classifier, known_classifiers, replace_classifier
from equipoise.schedules import Parabolic, Schedule

__all__ = ["BilateralModel", "BranchMixing", "bilateral", "find_last_block"]


@dataclass(frozen=True)
class BranchMixing(Parabolic):
    r"""The weight a of the first branch, :math:`1 - (e / D)^2` at epoch e counted from 0 (Zhou et al. 2020, eq. 5).

    Args:
        start: weight in the first epoch.
        stop: weight at progress 1.
        end: the epoch with progress 1: ``"last_epoch"``, D = E - 1, so that the weight in the last epoch is ``stop``;
            ``"published"``, D = E except 100 for 90 epochs and 200 for 180, as in the published code.

    >>> [round(BranchMixing()(BranchMixing().progress_at(epoch, 201)), 2) for epoch in (0, 100, 200)]
    [1.0, 0.75, 0.0]
    """

    end: str = "last_epoch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("end", self.end, ("last_epoch", "published"))

    def progress_at(self, epoch: float, epochs: float) -> float:
        """``epoch / D``, or 0 for a single epoch."""
        if self.end == "published":
            return epoch / {90: 100, 180: 200}.get(int(epochs), epochs)
        return epoch / (epochs - 1) if epochs > 1 else 0.0


class BilateralModel(PreciseBuffers):
    """A model with two branches, created by :func:`bilateral`. It contains the original model with a duplicated block.

    Shape: in training, two batches of the same shape to logits of that batch size; in evaluation, one batch to logits.
    """

    share: Tensor

    def __init__(
        self, model: nn.Module, *, blocks: Sequence[str], name: str, epochs: int, mixing: Schedule, advice: str = ""
    ) -> None:
        super().__init__()
        self.model, self.name, self.epochs, self.mixing = model, name, epochs, mixing
        self.blocks = tuple(blocks)
        self.advice = advice  # layer names before a block was duplicated, for error messages
        self.register_buffer("share", torch.tensor(mixing(0.0), dtype=torch.float64))

    def set_epoch(self, epoch: float) -> None:
        """Set the mixing to ``epoch``, counted from 0."""
        check_number("epoch", epoch)
        if not 0 <= epoch < self.epochs:
            raise ValueError(
                f"epoch must be in [0, {self.epochs - 1}] for epochs={self.epochs}, got {epoch!r}; count from 0 and "
                "pass the number of epochs you train for"
            )
        self._set(self.mixing(min(self.mixing.progress_at(epoch, self.epochs), 1.0)))

    def set_progress(self, fraction: float) -> None:
        """Set the mixing to a fraction of the training in [0, 1]."""
        self._set(self.mixing(check_number("fraction", fraction, low=0.0, high=1.0)))

    def _set(self, weight: float) -> None:
        self.share.fill_(check_number("weight of the first branch", weight, low=0.0, high=1.0))

    def get_classifier(self) -> nn.Module:
        """The classifier of both branches, for ``find_classifier``."""
        return self.model.get_submodule(self.name)

    def forward(self, inputs: Tensor, reversed_inputs: Tensor | None = None, **named: Any) -> Tensor:  # noqa: ANN401
        """Logits of the mixed features, with the scheduled weight in training and equal weights in evaluation.

        Each branch has its own pass through the trunk, as published, so that batch norm uses each batch separately and
        any model is supported. In evaluation the trunk runs twice on the same batch.

        Args:
            inputs: a batch of the original distribution; the only one in evaluation.
            reversed_inputs: a batch of the reversed sampler, for training.
            named: further keyword arguments of the model, for both passes.
        """
        if self.training and reversed_inputs is None:
            raise ValueError(
                "reversed_inputs must be a batch of the reversed sampler in training, got None; pass both batches, or "
                "call model.eval()"
            )
        if not self.training and reversed_inputs is not None:
            raise ValueError("reversed_inputs must be None in evaluation, got a batch; pass one batch, or call train()")
        others = inputs if reversed_inputs is None else reversed_inputs
        if others.shape[0] != inputs.shape[0]:
            raise ValueError(
                f"reversed_inputs must have as many samples as inputs, got {others.shape[0]} for {inputs.shape[0]}; "
                "use the same batch size and drop_last=True"
            )
        classifier = self.get_classifier()
        if not isinstance(classifier, _MixingClassifier):
            raise RuntimeError(
                f"the classifier {self.name!r} must serve both branches, got {type(classifier).__name__}; do not "
                "replace it"
            )
        try:
            self._choose(0)
            self.model(inputs, **named)
            self._check_used(classifier.first is not None)
            self._choose(1)
            classifier.share = self.share if self.training else None
            logits: Tensor = self.model(others, **named)
            self._check_used(classifier.first is None)
        finally:
            classifier.first = classifier.share = None
        return logits

    def _check_used(self, used: bool) -> None:
        if not used:
            raise RuntimeError(
                f"the classifier {self.name!r} must be used in every forward pass, got a pass of "
                f"{type(self.model).__name__} without it; build the model again and name the right one with name=...; "
                f"{self.advice}"
            )

    def mix(self, loss: Tensor, reversed_loss: Tensor) -> Tensor:
        """``a * loss + (1 - a) * reversed_loss``, the losses of the logits with the labels of the two batches."""
        weight = self.share.to(loss.dtype)
        return weight * loss + (1.0 - weight) * reversed_loss

    def _choose(self, branch: int) -> None:
        for name in (*self.blocks, self.name):
            self.model.get_submodule(name).branch = branch  # type: ignore[assignment]


def bilateral(
    model: nn.Module,
    *,
    epochs: int,
    block: str | Sequence[str] | None = None,
    mixing: Schedule | None = None,
    preset: str | None = None,
    name: str | None = None,
) -> BilateralModel:
    """A bilateral-branch network of any model: its last block is duplicated, and its classifier uses both branches.

    The model is modified in place, without other copies: create the optimiser afterwards. The second branch
    starts as a copy of the first; the classifier, with 2 D input features, is reinitialised.

    Args:
        model: any module whose classifier is a linear layer or a 1x1 convolution, and which returns logits.
        epochs: E.
        block: qualified name of the block to duplicate, or several for parallel layers; None for
            :func:`find_last_block`.
        mixing: weight of the first branch over the training; None for :class:`BranchMixing`.
        preset: ``"published"`` for the divisor of the published code; see :class:`BranchMixing`.
        name: qualified name of the classifier if it is not found.

    >>> from equipoise.models import MLP
    >>> from equipoise import CrossEntropyLoss
    >>> model, loss = bilateral(MLP(in_features=4, num_classes=3), epochs=10), CrossEntropyLoss()
    >>> (inputs, labels), (more, their_labels) = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(2)]
    >>> model.set_epoch(0)  # before each epoch; the second batch comes from data.sampler_for("reversed", ...)
    >>> logits = model(inputs, more)
    >>> model.mix(loss(logits, labels), loss(logits, their_labels)).backward()
    >>> model.eval()(inputs).shape
    torch.Size([8, 3])
    """
    if isinstance(model, DistributedDataParallel):
        raise ValueError(
            "model must not be wrapped in DistributedDataParallel yet, got one that is; write "
            "DistributedDataParallel(bilateral(model, ...))"
        )
    epochs = check_whole("epochs", epochs, low=1)
    check_choice("preset", preset or "published", ("published",))
    if preset is not None and mixing is not None:
        raise ValueError(f"mixing must be omitted with preset={preset!r}, got {mixing}; give one of them")
    if mixing is not None and not isinstance(mixing, Schedule):
        raise TypeError(
            f"mixing must be one of equipoise.schedules, got {type(mixing).__name__} {mixing!r}; pass e.g. "
            "Constant(0.5), or omit it"
        )
    old, advice = sized_classifier(model, name), known_classifiers(model)
    linear_weight(old, "install such a layer with replace_classifier, or select another with name=...")
    classifier = _MixingClassifier(old.module)
    chosen = (block,) if isinstance(block, str) else tuple(block or find_last_block(model, old.name))
    parts = {each: _block(model, each, old.module) for each in chosen}
    for each, part in parts.items():
        _fork(model, each, part)
    replace_classifier(model, classifier, old.name)
    schedule = mixing or BranchMixing(end="published" if preset else "last_epoch")
    net = BilateralModel(model, blocks=chosen, name=old.name, epochs=epochs, mixing=schedule, advice=advice)
    net.share = net.share.to(classifier.linear.weight.device)
    return net.train(model.training)


def find_last_block(model: nn.Module, name: str | None = None) -> tuple[str, ...]:
    """Names of the last block before the classifier: the last residual block of a ResNet, as published.

    This is the last part with parameters that is defined before the classifier and is not a normalisation layer. If it
    holds more than half of the parameters before the classifier, it is a trunk and not a block: its children are
    searched, as are those of a sequence of blocks. From a list of parallel single layers all are returned. This follows
    the order of definition; if a model calls its parts in another order, name the block.

    Args:
        model: any module.
        name: qualified name of the classifier if it is not found.

    >>> from equipoise.models import CifarResNet, UNet
    >>> find_last_block(CifarResNet(num_classes=10)), find_last_block(UNet(num_classes=10))
    (('layer3.4',), ('up.2',))
    """
    classifier = find_classifier(model, name)
    before = {id(parameter) for parameter in classifier.module.parameters()}
    half = sum(p.numel() for p in model.parameters() if id(p) not in before) / 2
    path, part = "", model
    while True:
        inner = _last_part(part, path, classifier.name)
        if inner is None:
            break
        path, part = inner
        if isinstance(part, nn.ModuleList) and all(not list(layer.children()) for layer in part):
            return tuple(f"{path}.{at}" for at in range(len(part)))
        blocks = isinstance(part, (nn.Sequential, nn.ModuleList)) and any(list(each.children()) for each in part)
        if not blocks and _size(part) <= half:
            break
    if not path:
        raise ValueError(
            f"model must have a layer with parameters before its classifier {classifier.name!r}, got "
            f"{type(model).__name__} without; use a deeper model, or name the block with block=..."
        )
    return (path,)


def _last_part(module: nn.Module, path: str, classifier: str) -> tuple[str, nn.Module] | None:
    """The last part with parameters before the classifier that is not a normalisation layer."""
    parts = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
    holders = [at for at, (where, _) in enumerate(parts) if f"{classifier}.".startswith(f"{where}.")]
    for where, part in reversed(parts[: holders[0] + 1] if holders else parts):
        if f"{classifier}.".startswith(f"{where}."):
            inner = None if where == classifier else _last_part(part, where, classifier)
            if inner is not None:
                return inner
        elif _size(part) and not isinstance(part, (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
            return where, part
    return None


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class _Branches(nn.Module):
    """A block and its copy; ``branch`` selects one."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.branch = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:  # noqa: ANN401
        return (self.second if self.branch else self.first)(*inputs, **named)


class _MixingClassifier(DoubledClassifier):
    """Stores the features of the first branch until those of the second arrive; then one linear layer uses both."""

    state = "is that of two branches"
    undo = "use it unchanged or build the model again"

    def __init__(self, old: nn.Module) -> None:
        super().__init__()
        sizes = Classifier("classifier", old)
        self.in_features, self.out_features = 2 * sizes.in_features, sizes.num_classes
        self.linear = empty_linear(old, self.in_features)
        self.linear.reset_parameters()
        self.dim = 1 - self.linear.weight.ndim
        self.branch = 0
        self.first: Tensor | None = None
        self.share: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        if self.branch == 0:
            self.first = features
            shape = list(features.shape)
            shape[self.dim] = self.out_features
            return features.new_zeros(shape)  # the outputs of this pass are not used
        if self.first is None:
            raise RuntimeError(
                f"the classifier must be called once per branch in a forward pass, got {type(self).__name__} called "
                "otherwise; select another with name=..., and call the BilateralModel instead of the model inside"
            )
        logits: Tensor = self.linear(mixed_features(self.first, features, self.share, dim=self.dim))
        self.first = None
        return logits


def mixed_features(first: Tensor, second: Tensor, weight: Tensor | float | None, dim: int = -1) -> Tensor:
    """Concatenate ``2 a`` times the features of the first branch and ``2 (1 - a)`` times those of the second."""
    if weight is None:
        return torch.cat([first, second], dim)
    return torch.cat([2.0 * weight * first, 2.0 * (1.0 - weight) * second], dim)


def _block(model: nn.Module, name: str, classifier: nn.Module) -> nn.Module:
    """The block with that name; raises if it contains the classifier."""
    try:
        block = model.get_submodule(name)
    except AttributeError:
        known = ", ".join(where for where, _ in model.named_children())
        raise ValueError(
            f"block must be the name of a module inside {type(model).__name__}, got {name!r}; its modules are {known}"
        ) from None
    if any(part is classifier for part in block.modules()):
        raise ValueError(
            f"block must be a part of the model before its classifier, got {name!r}, which contains it; name "
            "a block before it"
        )
    return block


def _fork(model: nn.Module, name: str, block: nn.Module) -> None:
    """Replace a block by a pair of the block and its copy."""
    parent, _, attribute = name.rpartition(".")
    forked = _Branches(block, copy.deepcopy(block))
    forked.training = block.training
    setattr(model.get_submodule(parent), attribute, forked)
