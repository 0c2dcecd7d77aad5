"""The Simple Decoupled Network (Tian et al. 2021, section 3.5): two heads on shared features.

One head trains the features, the other is a classifier with a loss of its own::

                    ┌─► feature head ────► its loss, whose gradient reaches the features
    features ───────┤
                    └─► (detached) ──────► classifier ──► its loss, which trains the classifier alone; used at inference
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equipoise._checks import check_counts
from equipoise.losses import ClassBalancedLoss, RecallLoss
from equipoise.models.classifier import Classifier, find_classifier, known_classifiers, replace_classifier

__all__ = [
    "DecoupledHead",
    "DecoupledLogits",
    "DecoupledLoss",
    "DecoupledModel",
    "DoubledClassifier",
    "check_loss",
    "check_single",
    "decouple",
    "sized_classifier",
]


class DecoupledLogits(NamedTuple):
    """Logits of both heads, each of the shape that the model returns."""

    feature: Tensor
    classifier: Tensor


class DoubledClassifier(nn.Module):
    """A replacement of the classifier of a model with two outputs; a model can have only one."""

    state: ClassVar[str]
    """State of the classifier, for error messages."""
    undo: ClassVar[str]
    """Advice on removing it."""


def check_single(model: nn.Module) -> None:
    """Raise if a model already contains such a classifier, even an unused one."""
    for name, part in model.named_modules():
        if isinstance(part, DoubledClassifier):
            raise ValueError(
                f"model must have one head, got {type(model).__name__} whose layer {name!r} {part.state} already; "
                f"{part.undo}"
            )


class DecoupledHead(DoubledClassifier):
    """Two classifiers on the same features; the gradient of the second does not reach the features.

    In training the outputs are concatenated along the batch, so that later operations of the model (upsampling,
    pooling, reshaping) apply to both. In evaluation only the second is used, like a plain layer, including gradients
    with respect to the input.

    Args:
        feature: the classifier that trains the features, g in the paper.
        classifier: the one that is used at inference, h in the paper; None for a copy of ``feature``.

    Shape: (N, D, ...) to (2 N, C, ...) in training, the N of ``feature`` first; to (N, C, ...) in evaluation.

    >>> head = DecoupledHead(nn.Linear(8, 3))
    >>> head(torch.zeros(4, 8)).shape, head.eval()(torch.zeros(4, 8)).shape
    (torch.Size([8, 3]), torch.Size([4, 3]))
    """

    state = "is decoupled"
    undo = "use it unchanged, merge() it first or build the model again"

    def __init__(self, feature: nn.Module, classifier: nn.Module | None = None) -> None:
        super().__init__()
        self.feature = feature
        self.classifier = copy.deepcopy(feature) if classifier is None else classifier
        first, second = Classifier("feature", self.feature), Classifier("classifier", self.classifier)
        self.in_features, self.out_features = first.in_features, first.num_classes
        if (second.in_features, second.num_classes) != (self.in_features, self.out_features):
            raise ValueError(
                f"classifier must have {self.in_features} features and {self.out_features} classes like the first, "
                f"got {second.in_features} features and {second.num_classes} classes; use the same sizes"
            )

    def forward(self, features: Tensor) -> Tensor:
        """Logits of both heads in training, of the second one in evaluation."""
        if not self.training:
            alone: Tensor = self.classifier(features)
            return alone
        return torch.cat([self.feature(features), self.classifier(features.detach())])


class DecoupledModel(nn.Module):
    """A model with a :class:`DecoupledHead`, created by :func:`decouple`. It contains the model, not a copy."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    @property
    def head(self) -> DecoupledHead:
        """Both classifiers."""
        head = self.model.get_submodule(self.name)
        if not isinstance(head, DecoupledHead):
            raise RuntimeError(
                f"the classifier {self.name!r} must be a DecoupledHead, got {type(head).__name__}; after merge() use "
                "the model that it returned"
            )
        return head

    def get_classifier(self) -> nn.Module:
        """Both classifiers, for ``find_classifier`` and ``features_of``."""
        return self.head

    def forward(self, *inputs: Any, **named: Any) -> DecoupledLogits | Tensor:  # noqa: ANN401
        """Logits of both heads in training, those for inference in evaluation."""
        head = self.head
        logits: Tensor = self.model(*inputs, **named)
        return _split(logits, head, self.name) if head.training else logits

    def merge(self) -> nn.Module:
        """The plain model with the second head as its classifier, with bitwise identical outputs.

        Nothing is copied, so do not use this object afterwards; ``copy.deepcopy(decoupled).merge()`` preserves it.
        """
        replace_classifier(self.model, self.head.classifier, self.name)
        return self.model


def decouple(model: nn.Module, name: str | None = None, *, classifier: nn.Module | None = None) -> DecoupledModel:
    """A Simple Decoupled Network of any model: a second head beside its classifier, on detached features.

    The model is modified in place and only its classifier is copied. Create the optimiser afterwards, so that it
    includes the second head. In training the result returns the logits of both heads, for :class:`DecoupledLoss`; in
    evaluation it returns those of the second head. ``merge()`` returns a plain model.

    Args:
        model: any module whose classifier is found by :func:`equipoise.models.find_classifier`, a linear layer or a
            1x1 convolution, and which returns logits.
        name: qualified name of the classifier if it is not found.
        classifier: the second head, on the device of the model; None for a copy of the first, which keeps the outputs
            of the model.

    >>> from equipoise.models import MLP
    >>> inputs, targets = torch.randn(32, 4), torch.arange(32) % 3
    >>> model = decouple(MLP(in_features=4, num_classes=3))
    >>> loss = DecoupledLoss.from_counts([90, 9, 1])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss(model(inputs), targets).backward()
    >>> optimizer.step()
    >>> expected = model.eval()(inputs)
    >>> plain = model.merge()
    >>> torch.equal(plain(inputs), expected)
    True
    """
    if isinstance(model, DistributedDataParallel):
        raise ValueError(
            "model must not be wrapped in DistributedDataParallel yet, got one that is, which would ignore the "
            "second head; write DistributedDataParallel(decouple(model))"
        )
    first = sized_classifier(model, name)
    second = _copied(first.module, model) if classifier is None else classifier
    replace_classifier(model, DecoupledHead(first.module, second), first.name)
    return DecoupledModel(model, first.name)


def sized_classifier(model: nn.Module, name: str | None) -> Classifier:
    """The classifier of a model with one head; raises for other layers."""
    classifier = find_classifier(model, name)
    check_single(model)
    try:
        _ = classifier.in_features, classifier.num_classes
    except TypeError:
        raise TypeError(
            f"the classifier {classifier.name!r} must be a layer from features to logits, got "
            f"{type(classifier.module).__name__}; {known_classifiers(model)}"
        ) from None
    return classifier


class DecoupledLoss(nn.Module):
    r"""The losses of both heads, :math:`L_g + L_h`.

    The second loss only trains its own head, so a factor on it only scales the learning rate of that head. Logits of a
    single head, as returned in evaluation, use the loss of the second head.

    The paper uses :meth:`from_counts`; with ``feature=CrossEntropyLoss()`` this is its ablation SDN-CE.

    Args:
        feature: loss of the head that trains the features.
        classifier: loss of the head that is used at inference.

    >>> from equipoise import CrossEntropyLoss
    >>> loss = DecoupledLoss(CrossEntropyLoss(), ClassBalancedLoss([90, 9, 1]))
    >>> both = DecoupledLogits(torch.zeros(2, 3), torch.zeros(2, 3))
    >>> loss(both, torch.tensor([0, 2]))  # log 3 twice
    tensor(2.1972)
    """

    def __init__(self, feature: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        check_loss("feature", feature)
        check_loss("classifier", classifier)
        self.feature, self.classifier = feature, classifier

    @classmethod
    def from_counts(
        cls,
        counts: Sequence[float] | Tensor,
        *,
        momentum: float = 0.1,
        beta: float = 0.9999,
        ignore_index: int = -100,
        sync: bool = True,
    ) -> Self:
        """The losses of the paper: recall loss with a moving average, and class-balanced cross-entropy.

        Args:
            counts: training samples of each class; for label maps the pixels.
            momentum: alpha of the moving average. In batches of 128 the paper found little difference between .1 and
                .9 for 365 classes, and .001 best for 8142.
            beta: of the class-balanced weights; the paper does not specify it.
            ignore_index: label to ignore.
            sync: synchronise recalls and denominators between processes.
        """
        checked = check_counts("counts", counts)
        return cls(
            RecallLoss(len(checked), momentum=momentum, ignore_index=ignore_index, sync=sync),
            ClassBalancedLoss(checked, beta=beta, ignore_index=ignore_index, sync=sync),
        )

    def forward(self, logits: DecoupledLogits | tuple[Tensor, Tensor] | Tensor, targets: Tensor) -> Tensor:
        """The sum of both losses, or the loss of the second head for logits of a single head."""
        if isinstance(logits, Tensor):
            if self.training and logits.requires_grad:
                raise TypeError(
                    "logits must be those of both heads in training, got one tensor; train decouple(model) in train() "
                    "mode, or call loss.eval()"
                )
            alone: Tensor = self.classifier(logits, targets)
            return alone
        feature, classifier = logits
        total: Tensor = self.feature(feature, targets) + self.classifier(classifier, targets)
        return total

    def set_epoch(self, epoch: float) -> None:
        """Set the schedules of both losses to ``epoch``, counted from 0."""
        self._move("set_epoch", epoch)

    def set_progress(self, fraction: float) -> None:
        """Set the schedules of both losses to a fraction of the training in [0, 1]."""
        self._move("set_progress", fraction)

    def _move(self, how: str, where: float) -> None:
        for loss in (self.feature, self.classifier):
            move = getattr(loss, how, None)  # PyTorch's losses have no schedules
            if callable(move):
                move(where)


def check_loss(name: str, loss: object) -> None:
    """Raise unless ``loss`` can be called with logits and targets."""
    if not callable(loss) or isinstance(loss, type):
        came = f"the class {loss.__name__}" if isinstance(loss, type) else f"{type(loss).__name__} {loss!r}"
        raise TypeError(
            f"{name} must be a loss, called with logits and targets, got {came}; pass e.g. CrossEntropyLoss()"
        )


def _copied(layer: nn.Module, model: nn.Module) -> nn.Module:
    """A trainable copy of a layer; the state of its hooks is shared, not copied."""
    copied_parts = set(layer.modules())
    shared = {id(part): part for part in model.modules() if part not in copied_parts}
    return copy.deepcopy(layer, shared).requires_grad_(True)


def _split(logits: object, head: DecoupledHead, name: str) -> DecoupledLogits:
    """Split the output of the model for both heads."""
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"model must return logits, got {type(logits).__name__}; wrap it in a module whose forward returns the "
            "tensor"
        )
    if len(logits) % 2 or head.out_features not in logits.shape[1:]:
        raise ValueError(
            f"model must return the {head.out_features} logits of its classifier {name!r}, two rows per sample in "
            f"training, got shape {tuple(logits.shape)}; name the last layer with name=..., and do not fix the batch "
            "size after it"
        )
    return DecoupledLogits(*logits.chunk(2))
