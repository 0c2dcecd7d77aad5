"""Training methods of papers: how they change model and loss, and which model predicts.

A method is written as text like a loss: ``sdn``, ``sdn(feature=ce)``, ``oltr(loss=focal(gamma=2), memory=0)``. Every
method is a class whose fields are its arguments; ``METHODS`` has them by name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NewType, get_type_hints

import torch
from torch import Tensor, nn

from equipoise._checks import check_choice, check_number
from equipoise._suggestions import nearest
from equipoise.expressions import Call, Choices, Sum, Value, check_method_name, parse
from equipoise.heads import (
    BilateralModel,
    CentroidMemory,
    DecoupledLoss,
    KeptFeatures,
    LearnableWeightScaling,
    MetaEmbedding,
    NearestClassMean,
    bilateral,
    choose_tau,
    decouple,
    normalize_classifier,
    retrain_classifier,
    tau_normalized,
)
from equipoise.heads.attention import insert_attention, module_named
from equipoise.heads.features import features_dim, labels_at
from equipoise.losses import LiftedStructureLoss, RangeLoss
from equipoise.models import features_of, find_classifier, replace_classifier
from equipoise.tasks import Task
from equipoise.train.loss_text import parse_loss
from equipoise.train.record import MethodSettings

__all__ = [
    "METHODS",
    "AttentiveOpenLongTail",
    "RunContext",
    "TrainingMethod",
    "TwoStages",
    "is_same_loss",
    "option_names",
    "parse_method",
]

BATCH = 512
"""Batch size of re-trained classifiers, as published."""

LossText = NewType("LossText", str)
"""An option that is a loss; ``"auto"`` is the default loss of the task."""


@dataclass
class RunContext:
    """The run, as a method sees it.

    Args:
        loss: builds the loss of a text for the data and the epochs of the run, or other epochs as a second argument.
        features: inputs of the classifier of a model on ``"train"`` or ``"val"``, without augmentation.
        epochs: number of training epochs.
        seed: random seed of the run.
        ignore_index: label to ignore.
        say: called with messages for the user.
        settled: settings that the method chose; the method sets them.
    """

    loss: Callable[..., nn.Module]
    features: Callable[[nn.Module, str], KeptFeatures]
    epochs: int
    seed: int
    ignore_index: int
    say: Callable[[str], None]
    settled: MethodSettings = field(default_factory=MethodSettings)


@dataclass(frozen=True)
class TrainingMethod:
    """A training with one loss; other methods override parts of it."""

    tasks: ClassVar[tuple[Task, ...]] = tuple(Task)
    learns_in_steps: ClassVar[bool] = True
    """Whether the model is trained in steps; otherwise ``trained`` does all of the training."""
    second_sampler: ClassVar[str | None] = None
    """Sampler of a second batch in each step."""
    rate: float = field(default=1.0, init=False, repr=False)
    """Learning rate of the layers before the classifier, relative to that of the run."""

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model to train, built from the given one, which may be modified in place."""
        return model

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The loss of the outputs of that model and the targets."""
        return context.loss("auto")

    def served(self, model: nn.Module) -> nn.Module:
        """The part of the trained model that predicts: inputs to logits, with the same weights."""
        return model

    def shaped(self, model: nn.Module) -> nn.Module:
        """A fresh model in the structure of ``served``, to load its weights into."""
        return model

    @property
    def losses(self) -> list[str]:
        """Its losses, as texts."""
        hints = get_type_hints(type(self))
        return [getattr(self, option.name) for option in fields(self) if hints[option.name] is LossText]

    def check_task(self, task: Task) -> None:
        """Raise unless the method supports the task."""
        if task not in self.tasks:
            raise ValueError(
                f"--method {name_of(self)} is for task {' or '.join(self.tasks)}, got {task!r}; use one of "
                f"{', '.join(name for name, kind in METHODS.items() if task in kind.tasks)}"
            )


@dataclass(frozen=True)
class Plain(TrainingMethod):
    """A single loss.

    Args:
        loss: a loss.
    """

    loss: LossText = LossText("auto")

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The given loss."""
        return context.loss(self.loss)


@dataclass(frozen=True)
class SimpleDecoupledNetwork(TrainingMethod):
    """SDN (Tian et al. 2021, section 3.5): a second head on detached features.

    Args:
        feature: loss that trains the features.
        classifier: loss of the head that predicts.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)

    feature: LossText = LossText("recall(momentum=0.1)")
    classifier: LossText = LossText("class-balanced")

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model with two heads."""
        return decouple(model)

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """A loss for each head."""
        return DecoupledLoss(context.loss(self.feature), context.loss(self.classifier))

    def served(self, model: nn.Module) -> nn.Module:
        """The second head alone."""
        merged: nn.Module = model.merge()  # type: ignore[operator]
        return merged


@dataclass(frozen=True)
class LdamDrw(TrainingMethod):
    """LDAM-DRW (Cao et al. 2019): a cosine classifier, margins per class, and deferred weights.

    The classifier multiplies cosines by the scale, and the loss multiplies its margins by it; this is equivalent to a
    scale in the loss, and logits are scaled in inference too.

    Args:
        margin: of the rarest class, on cosines.
        scale: of the cosines.
        start: fraction of the training after which class weights are used.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)

    margin: float = 0.5
    scale: float = 30.0
    start: float = 0.8

    def __post_init__(self) -> None:
        check_number("margin", self.margin, low=0.0)
        check_number("scale", self.scale, low=0.0, open_low=True)
        check_number("start", self.start, low=0.0, high=1.0)

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model with a cosine classifier."""
        normalize_classifier(model, scale=self.scale)
        return model

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """LDAM with deferred weights."""
        return context.loss(f"ldam(max_margin={self.scale * self.margin!r}, scale=1, weight=drw({self.start!r}))")

    def shaped(self, model: nn.Module) -> nn.Module:
        """A model with a cosine classifier."""
        normalize_classifier(model, scale=self.scale)
        return model


@dataclass(frozen=True)
class BilateralBranches(TrainingMethod):
    """BBN (Zhou et al. 2020): two branches, the second on reversed frequencies, with an increasing share.

    Args:
        loss: of both branches.
        mixing: ``default`` ends with the second branch alone, ``published`` is that of the published code.
    """

    tasks = (Task.MULTICLASS,)
    second_sampler = "reversed"

    loss: LossText = LossText("auto")
    mixing: str = "default"

    def __post_init__(self) -> None:
        check_choice("mixing", self.mixing, ("default", "published"))

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model with two branches."""
        return bilateral(model, epochs=context.epochs, preset=None if self.mixing == "default" else self.mixing)

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The mixed loss."""
        assert isinstance(model, BilateralModel)
        return MixedLoss(model, context.loss(self.loss))

    def shaped(self, model: nn.Module) -> nn.Module:
        """A model with two branches; inference does not depend on how training mixes them."""
        return bilateral(model, epochs=1)


@dataclass(frozen=True)
class TwoStages(TrainingMethod):
    """A method that starts from a trained model; several methods may share that run.

    Args:
        backbone: loss of stage one.
    """

    backbone: LossText = LossText("auto")


@dataclass(frozen=True)
class RetrainedClassifier(TwoStages):
    """cRT (Kang et al. 2020): a new classifier, trained on balanced classes.

    Batches of 512 as published, or smaller ones with a proportional learning rate if an epoch would have fewer than 16
    of them.

    Args:
        loss: loss of the classifier.
        epochs: epochs of the classifier.
        lr: learning rate of the classifier for batches of 512.
    """

    learns_in_steps = False

    loss: LossText = LossText("auto")
    epochs: int = 10
    lr: float = 0.2

    def __post_init__(self) -> None:
        check_number("lr", self.lr, low=0.0, open_low=True)

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model with a new classifier, trained."""
        kept, head = context.features(model, "train"), self.begun(model)
        loss = context.loss(self.loss, self.epochs).to(kept.features.device)
        batch = min(BATCH, max(8, len(kept.features) // 16))
        lr = self.lr * batch / BATCH
        context.settled = MethodSettings(classifier_batch_size=batch, classifier_lr=lr)
        context.say(f"the classifier is trained for {self.epochs} epochs in batches of {batch}, lr {lr:.3g}")
        made = retrain_classifier(
            model,
            kept,
            head=head,
            loss=loss,
            epochs=self.epochs,
            batch_size=batch,
            lr=lr,
            seed=context.seed,
        )
        replace_classifier(model, made.merge() if isinstance(made, LearnableWeightScaling) else made)
        return model

    def begun(self, model: nn.Module) -> nn.Module | None:
        """The head to train; None for a new classifier."""
        return None


@dataclass(frozen=True)
class WeightScaling(RetrainedClassifier):
    """LWS (Kang et al. 2020): one factor per class of the classifier, trained on balanced classes.

    Args:
        loss: loss of the factors.
        epochs: epochs of the factors.
        lr: learning rate of the factors for batches of 512.
    """

    def begun(self, model: nn.Module) -> nn.Module | None:
        """Factors of 1."""
        return LearnableWeightScaling(find_classifier(model).module)


@dataclass(frozen=True)
class TauNorm(TwoStages):
    """Tau-normalisation (Kang et al. 2020): rows of the classifier divided by a power of their norm.

    Args:
        tau: the power; None selects the best of 0, 0.1, ..., 2 on validation data.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)
    learns_in_steps = False

    tau: float | None = None

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model with normalised rows, and without a bias as in the paper."""
        classifier = find_classifier(model).module
        tau = self.tau
        if tau is None:
            kept = context.features(model, "val")
            weight = classifier.weight
            assert isinstance(weight, Tensor)
            choice = choose_tau(kept.features, kept.labels, weight.flatten(1).to(kept.features.device))
            tau = choice.tau
            context.say(
                f"tau {tau:g} has the best mean class accuracy on validation data, {max(choice.accuracies):.2%}; "
                f"{choice.accuracies[0]:.2%} with tau {choice.taus[0]:g}"
            )
        context.settled = MethodSettings(tau=tau)
        replace_classifier(model, tau_normalized(classifier, tau))
        return model

    def shaped(self, model: nn.Module) -> nn.Module:
        """A model without a bias in the classifier."""
        replace_classifier(model, tau_normalized(find_classifier(model).module, 0.0))
        return model


@dataclass(frozen=True)
class NearestMean(TwoStages):
    """The nearest class mean (Kang et al. 2020): no classifier is trained. Its scores are not probabilities.

    Args:
        distance: ``euclidean`` or ``cosine``.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)
    learns_in_steps = False

    distance: str = "euclidean"

    def __post_init__(self) -> None:
        check_choice("distance", self.distance, ("euclidean", "cosine"))

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model with the class means of the training data."""
        head = NearestClassMean.fit(context.features(model, "train"), distance=self.distance)
        replace_classifier(model, head.to(next(model.parameters()).device))
        return model

    def shaped(self, model: nn.Module) -> nn.Module:
        """A model with class means of 0."""
        classifier = find_classifier(model)
        means = torch.zeros(classifier.num_classes, classifier.in_features)
        replace_classifier(model, NearestClassMean(means, distance=self.distance, dim=features_dim(classifier)))
        return model


@dataclass(frozen=True)
class OpenLongTail(TwoStages):
    """OLTR (Liu et al. 2019): features enriched by a memory of class centroids, and a cosine classifier.

    Args:
        loss: loss of the logits in stage two.
        memory: weight of the loss of the memory.
        rate: learning rate of the layers before the classifier in stage two, relative to that of the run.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)

    loss: LossText = LossText("auto")
    memory: float = 0.01
    rate: float = 0.1

    def __post_init__(self) -> None:
        check_number("memory", self.memory, low=0.0)
        check_number("rate", self.rate, low=0.0, open_low=True)

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model with a memory in place of the classifier; it returns features too, from which the memory learns."""
        kept = context.features(model, "train")
        replace_classifier(model, MetaEmbedding.after(model, kept, ignore_index=context.ignore_index))
        return features_of(model)

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The sum of the loss of the logits and that of the memory."""
        head = find_classifier(model.model).module  # type: ignore[arg-type]
        assert isinstance(head, MetaEmbedding)
        return MemoryLoss(head.memory, context.loss(self.loss), self.memory)

    def served(self, model: nn.Module) -> nn.Module:
        """The model, returning logits alone."""
        model.close()  # type: ignore[operator]
        inner: nn.Module = model.model  # type: ignore[assignment]
        return inner

    def shaped(self, model: nn.Module) -> nn.Module:
        """A model with an empty memory."""
        classifier = find_classifier(model)
        head = MetaEmbedding(classifier.in_features, classifier.num_classes, dim=features_dim(classifier))
        replace_classifier(model, head)
        return model


@dataclass(frozen=True)
class AttentiveOpenLongTail(OpenLongTail):
    """OLTR with modulated attention on feature maps, as published (Liu et al. 2019, section 3.3).

    Args:
        after: qualified name of the module that returns the maps.
    """

    after: str = "layer4"

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model with attention and a memory; the features that fill the memory are unchanged at first."""
        shapes: list[tuple[int, ...]] = []
        inner = module_named(model, self.after)
        hook = inner.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
        view = super().trained(model, context)
        hook.remove()
        if len(shapes[0]) != 4:
            raise ValueError(f"after must name a module that returns maps (N, D, h, w), got {tuple(shapes[0])}")
        insert_attention(model, self.after, shapes[0][1], math.prod(shapes[0][2:]))
        return view

    def shaped(self, model: nn.Module) -> nn.Module:
        """A model with attention, whose size comes with its weights, and an empty memory."""
        insert_attention(model, self.after, channels=2, places=1)
        return super().shaped(model)


@dataclass(frozen=True)
class EmbeddingMethod(TrainingMethod, ABC):
    """A loss of the logits plus a loss of the features, in one stage.

    Args:
        loss: loss of the logits.
        weight: factor of the loss of the features.
    """

    tasks = (Task.MULTICLASS,)

    loss: LossText = LossText("auto")
    weight: float = 0.1

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model, returning features too."""
        return features_of(model)

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The sum of both losses."""
        return EmbeddingLoss(context.loss(self.loss), self.embedding(context.ignore_index), self.weight)

    @abstractmethod
    def embedding(self, ignore_index: int) -> nn.Module:
        """The loss of the features."""

    def served(self, model: nn.Module) -> nn.Module:
        """The model, returning logits alone."""
        model.close()  # type: ignore[operator]
        inner: nn.Module = model.model  # type: ignore[assignment]
        return inner


@dataclass(frozen=True)
class LiftedStructure(EmbeddingMethod):
    """Lifted structured embedding (Oh Song et al. 2016) beside a loss of the logits.

    Args:
        loss: loss of the logits.
        weight: factor of the loss of the features.
        margin: between samples of different classes, as a distance of features.
    """

    margin: float = 1.0

    def embedding(self, ignore_index: int) -> nn.Module:
        """The lifted-structure loss."""
        return LiftedStructureLoss(self.margin, ignore_index=ignore_index)


@dataclass(frozen=True)
class Range(EmbeddingMethod):
    """Range loss (Zhang et al. 2017) beside a loss of the logits.

    Args:
        loss: loss of the logits.
        weight: factor of the loss of the features.
        k: number of largest distances per class.
        margin: between the centres of classes, as a squared distance of features.
        intra: factor of the ranges.
        inter: factor of the distance between centres.
    """

    weight: float = 0.001
    k: int = 2
    margin: float = 5.0
    intra: float = 1.0
    inter: float = 1.0

    def embedding(self, ignore_index: int) -> nn.Module:
        """The range loss."""
        return RangeLoss(self.k, margin=self.margin, intra=self.intra, inter=self.inter, ignore_index=ignore_index)


METHODS: Mapping[str, type[TrainingMethod]] = {
    "none": Plain,
    "sdn": SimpleDecoupledNetwork,
    "ldam-drw": LdamDrw,
    "bbn": BilateralBranches,
    "crt": RetrainedClassifier,
    "lws": WeightScaling,
    "tau-norm": TauNorm,
    "ncm": NearestMean,
    "oltr": OpenLongTail,
    "oltr-attention": AttentiveOpenLongTail,
    "lifted": LiftedStructure,
    "range": Range,
}
"""Methods by name."""


class MixedLoss(nn.Module):
    """The loss of two branches: the losses with the labels of the two batches, mixed by the model.

    Args:
        model: determines the mixing; not a submodule.
        loss: loss of logits and labels.
    """

    def __init__(self, model: BilateralModel, loss: nn.Module) -> None:
        super().__init__()
        self._model = (model,)  # not registered: its weights do not belong to the loss
        self.loss = loss

    def forward(self, logits: Tensor, targets: Tensor, reversed_targets: Tensor) -> Tensor:
        """``a * loss + (1 - a) * reversed_loss``."""
        return self._model[0].mix(self.loss(logits, targets), self.loss(logits, reversed_targets))

    def set_epoch(self, epoch: float) -> None:
        """Update the mixing and the schedules of the loss."""
        self._model[0].set_epoch(epoch)
        self.loss.set_epoch(epoch)  # type: ignore[operator]


class EmbeddingLoss(nn.Module):
    """The loss of logits plus a factor times a loss of the features of the samples.

    Args:
        loss: loss of logits and labels.
        embedding: loss of features (N, D) and labels.
        factor: weight of the loss of the features.
    """

    def __init__(self, loss: nn.Module, embedding: nn.Module, factor: float) -> None:
        super().__init__()
        self.loss, self.embedding, self.factor = loss, embedding, factor

    def forward(self, seen: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        """The loss of features and logits."""
        features, logits = seen
        total: Tensor = self.loss(logits, targets) + self.factor * self.embedding(features.flatten(1), targets)
        return total

    def set_epoch(self, epoch: float) -> None:
        """Update the schedules of the loss."""
        self.loss.set_epoch(epoch)  # type: ignore[operator]


class MemoryLoss(nn.Module):
    """The loss of logits plus a factor times the loss of a memory of features.

    Args:
        memory: memory of the model; not a submodule.
        loss: loss of logits and labels.
        factor: weight of the loss of the memory.
    """

    def __init__(self, memory: CentroidMemory, loss: nn.Module, factor: float) -> None:
        super().__init__()
        self._memory = (memory,)  # not registered: its weights do not belong to the loss
        self.loss, self.factor = loss, factor

    def forward(self, seen: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        """The loss of features and logits."""
        features, logits = seen
        own = labels_at(features, targets, self._memory[0].dim)
        total: Tensor = self.loss(logits, targets) + self.factor * self._memory[0](features, own)
        return total

    def set_epoch(self, epoch: float) -> None:
        """Update the schedules of the loss."""
        self.loss.set_epoch(epoch)  # type: ignore[operator]


# ------------------------------------------------------------------------------------------------------------ texts


def name_of(method: TrainingMethod) -> str:
    """The name of a method in a text."""
    return next(name for name, kind in METHODS.items() if kind is type(method))


def parse_method(text: str) -> TrainingMethod:
    """The method of a text.

    >>> parse_method("sdn(feature=ce)")
    SimpleDecoupledNetwork(feature='ce', classifier='class-balanced')
    """
    check_method_name(text)
    call = parse(text)
    assert isinstance(call, Call)
    kind = METHODS[call.name]
    hints = get_type_hints(kind)
    known = {name: hint for name, hint in hints.items() if name in option_names(kind)}
    read: dict[str, Any] = {}
    for key, value in call.options:
        if key not in known:
            otherwise = (
                f"known are {', '.join(known)}; a loss with options stands in brackets, e.g. oltr(loss=focal(gamma=2))"
            )
            meant = nearest(key, known, otherwise=otherwise)
            raise ValueError(f"{call.name} must get options that it knows, got {key!r}; {meant}")
        read[key] = _value(f"{key} of {call.name}", value, known[key])
    try:
        return kind(**read)
    except ValueError as error:
        raise ValueError(f"{call.name}: {error}") from None


def option_names(kind: type[TrainingMethod]) -> set[str]:
    """Names of the options that a text can set."""
    return {option.name for option in fields(kind) if option.init}


def is_same_loss(one: str, other: str, task: Task) -> bool:
    """Whether two texts mean the same loss in a task, whose default loss is ``"auto"``."""
    first, second = (parse(task.loss_named(text)) for text in (one, other))
    return first == second


def _value(what: str, value: Value, kind: Any) -> Any:  # noqa: ANN401
    """A value of the type of its field."""
    if isinstance(value, Choices):
        raise ValueError(f"{what} must be one value, got {value}; candidates are for equipoise compare")
    if kind is LossText:
        if isinstance(value, Sum):
            try:
                parse_loss(str(value))
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from None
        return LossText(str(value))
    if kind is str:
        return str(value)
    if value is None and kind == float | None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        expected = "an integer" if kind is int else "a number"
        raise ValueError(f"{what} must be {expected}, got {str(value)!r}; write e.g. {1 if kind is int else 0.5}")
    check_number(what, value, low=1 if kind is int else 0.0)
    return value if kind is int else float(value)
