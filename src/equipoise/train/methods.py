"""Methods of a training, the systems of the papers: how they change model and loss, and which model predicts.

A method is written as text like a loss: ``sdn``, ``sdn(feature=ce)``, ``oltr(loss=focal(gamma=2), memory=0)``. Every
class here is a method, its fields are its arguments, and ``METHODS`` knows them by name.
"""

from __future__ import annotations

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
from equipoise.heads.features import features_dim, labels_at
from equipoise.models import features_of, find_classifier, replace_classifier
from equipoise.tasks import Task
from equipoise.train.loss_text import parse_loss
from equipoise.train.record import MethodSettings

__all__ = [
    "METHODS",
    "Method",
    "RunContext",
    "TwoStages",
    "is_same_loss",
    "option_names",
    "parse_method",
]

BATCH = 512
"""Batch size of re-trained classifiers, as published."""

LossText = NewType("LossText", str)
"""An option that is a loss; ``"auto"`` for the plain one of the task."""


@dataclass
class RunContext:
    """What a method knows of its run.

    Args:
        loss: builds the loss of a text for the data and the epochs of the run, or other epochs as a second argument.
        features: inputs of the classifier of a model on ``"train"`` or ``"val"``, without augmentation.
        epochs: of the training.
        seed: of the run.
        ignore_index: label to ignore.
        say: takes a message for the user.
        settled: settings that the method chooses itself; it sets them.
    """

    loss: Callable[..., nn.Module]
    features: Callable[[nn.Module, str], KeptFeatures]
    epochs: int
    seed: int
    ignore_index: int
    say: Callable[[str], None]
    settled: MethodSettings = field(default_factory=MethodSettings)


@dataclass(frozen=True)
class Method:
    """A training with one loss; other methods override parts of it."""

    tasks: ClassVar[tuple[Task, ...]] = tuple(Task)
    learns_in_steps: ClassVar[bool] = True
    """Whether the model is trained in steps; otherwise ``trained`` does everything."""
    second_sampler: ClassVar[str | None] = None
    """Sampler of a second batch in each step."""
    rate: float = field(default=1.0, init=False, repr=False)
    """Learning rate of the layers before the classifier, relative to that of the run."""

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The model to train, made from the given one, which may be modified in place."""
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
        """Texts of its losses."""
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
class Plain(Method):
    """A single loss.

    Args:
        loss: a loss.
    """

    loss: LossText = LossText("auto")

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The loss."""
        return context.loss(self.loss)


@dataclass(frozen=True)
class SimpleDecoupledNetwork(Method):
    """SDN (Tian et al. 2021, section 3.5): a second head on detached features.

    Args:
        feature: loss that trains the features.
        classifier: loss of the head that predicts.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)

    feature: LossText = LossText("recall(momentum=0.1)")
    classifier: LossText = LossText("class-balanced")

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """Both heads."""
        return decouple(model)

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """A loss for each."""
        return DecoupledLoss(context.loss(self.feature), context.loss(self.classifier))

    def served(self, model: nn.Module) -> nn.Module:
        """The second head alone."""
        merged: nn.Module = model.merge()  # type: ignore[operator]
        return merged


@dataclass(frozen=True)
class LdamDrw(Method):
    """LDAM-DRW (Cao et al. 2019): a cosine classifier, margins by class, and weights late in the training.

    The scale is in the classifier and not in the loss, so that its logits have their scale at any time. The margins of
    the loss are multiplied by it, which is equivalent.

    Args:
        margin: of the rarest class, on cosines.
        scale: of the cosines.
        start: fraction of the training after which weights are used.
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
        """With the cosine classifier."""
        normalize_classifier(model, scale=self.scale)
        return model

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """Margins and deferred weights."""
        return context.loss(f"ldam(max_margin={self.scale * self.margin!r}, scale=1, weight=drw({self.start!r}))")

    def shaped(self, model: nn.Module) -> nn.Module:
        """With a cosine classifier."""
        normalize_classifier(model, scale=self.scale)
        return model


@dataclass(frozen=True)
class BilateralBranches(Method):
    """BBN (Zhou et al. 2020): two branches, the second on reversed frequencies, with an increasing share.

    Args:
        loss: of both branches.
        mixing: ``default`` ends with the second branch alone, ``published`` follows the published code.
    """

    tasks = (Task.MULTICLASS,)
    second_sampler = "reversed"

    loss: LossText = LossText("auto")
    mixing: str = "default"

    def __post_init__(self) -> None:
        check_choice("mixing", self.mixing, ("default", "published"))

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """Two branches."""
        return bilateral(model, epochs=context.epochs, preset=None if self.mixing == "default" else self.mixing)

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The mixed loss."""
        assert isinstance(model, BilateralModel)
        return MixedLoss(model, context.loss(self.loss))

    def shaped(self, model: nn.Module) -> nn.Module:
        """Two branches; inference does not depend on the mixing of the training."""
        return bilateral(model, epochs=1)


@dataclass(frozen=True)
class TwoStages(Method):
    """A method that starts from a trained model; several may share its run.

    Args:
        backbone: loss of stage one.
    """

    backbone: LossText = LossText("auto")


@dataclass(frozen=True)
class RetrainedClassifier(TwoStages):
    """cRT (Kang et al. 2020): a new classifier, trained on balanced classes.

    Batches of 512 as published; smaller ones, with a proportional learning rate, where an epoch would have fewer than
    16 of them.

    Args:
        loss: of the classifier.
        epochs: of the classifier.
        lr: of the classifier, in batches of 512.
    """

    learns_in_steps = False

    loss: LossText = LossText("auto")
    epochs: int = 10
    lr: float = 0.2

    def __post_init__(self) -> None:
        check_number("lr", self.lr, low=0.0, open_low=True)

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """With the new classifier."""
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
    """LWS (Kang et al. 2020): a factor for each class of the classifier, trained on balanced classes.

    Args:
        loss: of the factors.
        epochs: of the factors.
        lr: of the factors, in batches of 512.
    """

    def begun(self, model: nn.Module) -> nn.Module | None:
        """Factors of 1."""
        return LearnableWeightScaling(find_classifier(model).module)


@dataclass(frozen=True)
class TauNorm(TwoStages):
    """Tau-normalisation (Kang et al. 2020): rows of the classifier divided by a power of their norm.

    Args:
        tau: the power; None for the best of 0, 0.1, ..., 2 on validation data.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)
    learns_in_steps = False

    tau: float | None = None

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """With normalised rows, and without a bias as in the paper."""
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
        """Without a bias."""
        replace_classifier(model, tau_normalized(find_classifier(model).module, 0.0))
        return model


@dataclass(frozen=True)
class NearestMean(TwoStages):
    """The nearest class mean (Kang et al. 2020): no classifier is trained. Its scores are no probabilities.

    Args:
        distance: ``euclidean`` or ``cosine``.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)
    learns_in_steps = False

    distance: str = "euclidean"

    def __post_init__(self) -> None:
        check_choice("distance", self.distance, ("euclidean", "cosine"))

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """With the means of the training data."""
        head = NearestClassMean.fit(context.features(model, "train"), distance=self.distance)
        replace_classifier(model, head.to(next(model.parameters()).device))
        return model

    def shaped(self, model: nn.Module) -> nn.Module:
        """With means of nothing."""
        found = find_classifier(model)
        means = torch.zeros(found.num_classes, found.in_features)
        replace_classifier(model, NearestClassMean(means, distance=self.distance, dim=features_dim(found)))
        return model


@dataclass(frozen=True)
class OpenLongTail(TwoStages):
    """OLTR (Liu et al. 2019): features enriched by a memory of class centroids, and a cosine classifier.

    Args:
        loss: of the logits in stage two.
        memory: factor of the loss of the memory.
        rate: learning rate of all before the classifier in stage two, as a share of that of the run.
    """

    tasks = (Task.MULTICLASS, Task.SEGMENTATION)

    loss: LossText = LossText("auto")
    memory: float = 0.01
    rate: float = 0.1

    def __post_init__(self) -> None:
        check_number("memory", self.memory, low=0.0)
        check_number("rate", self.rate, low=0.0, open_low=True)

    def trained(self, model: nn.Module, context: RunContext) -> nn.Module:
        """With the memory in the place of the classifier; it shows its features, which the memory learns from."""
        kept = context.features(model, "train")
        replace_classifier(model, MetaEmbedding.after(model, kept, ignore_index=context.ignore_index))
        return features_of(model)

    def objective(self, model: nn.Module, context: RunContext) -> nn.Module:
        """The loss of the logits and that of the memory."""
        head = find_classifier(model.model).module  # type: ignore[arg-type]
        assert isinstance(head, MetaEmbedding)
        return MemoryLoss(head.memory, context.loss(self.loss), self.memory)

    def served(self, model: nn.Module) -> nn.Module:
        """The model without its view."""
        model.close()  # type: ignore[operator]
        inner: nn.Module = model.model  # type: ignore[assignment]
        return inner

    def shaped(self, model: nn.Module) -> nn.Module:
        """With an empty memory."""
        found = find_classifier(model)
        head = MetaEmbedding(found.in_features, found.num_classes, dim=features_dim(found))
        replace_classifier(model, head)
        return model


METHODS: Mapping[str, type[Method]] = {
    "none": Plain,
    "sdn": SimpleDecoupledNetwork,
    "ldam-drw": LdamDrw,
    "bbn": BilateralBranches,
    "crt": RetrainedClassifier,
    "lws": WeightScaling,
    "tau-norm": TauNorm,
    "ncm": NearestMean,
    "oltr": OpenLongTail,
}
"""Methods by name."""


class MixedLoss(nn.Module):
    """The loss of two branches: what the model mixes of the losses with the labels of the one and of the other batch.

    Args:
        model: whose mixing it is; it is no part of this.
        loss: of logits and labels.
    """

    def __init__(self, model: BilateralModel, loss: nn.Module) -> None:
        super().__init__()
        self._model = (model,)  # not registered: its weights are no weights of a loss
        self.loss = loss

    def forward(self, logits: Tensor, targets: Tensor, reversed_targets: Tensor) -> Tensor:
        """``a * loss + (1 - a) * reversed_loss``."""
        return self._model[0].mix(self.loss(logits, targets), self.loss(logits, reversed_targets))

    def set_epoch(self, epoch: float) -> None:
        """Move the mixing and the schedules of the loss."""
        self._model[0].set_epoch(epoch)
        self.loss.set_epoch(epoch)  # type: ignore[operator]


class MemoryLoss(nn.Module):
    """The loss of logits and, times a factor, that of a memory of features.

    Args:
        memory: of the model; it is no part of this.
        loss: of logits and labels.
        factor: of the loss of the memory.
    """

    def __init__(self, memory: CentroidMemory, loss: nn.Module, factor: float) -> None:
        super().__init__()
        self._memory = (memory,)  # not registered: its weights are no weights of a loss
        self.loss, self.factor = loss, factor

    def forward(self, seen: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        """Of features and logits."""
        features, logits = seen
        own = labels_at(features, targets, self._memory[0].dim)
        total: Tensor = self.loss(logits, targets) + self.factor * self._memory[0](features, own)
        return total

    def set_epoch(self, epoch: float) -> None:
        """Move the schedules of the loss."""
        self.loss.set_epoch(epoch)  # type: ignore[operator]


# ------------------------------------------------------------------------------------------------------------ texts


def name_of(method: Method) -> str:
    """Its name in a text."""
    return next(name for name, kind in METHODS.items() if kind is type(method))


def parse_method(text: str) -> Method:
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


def option_names(kind: type[Method]) -> set[str]:
    """Names of the options that a text can give a method."""
    return {option.name for option in fields(kind) if option.init}


def is_same_loss(one: str, other: str, task: Task) -> bool:
    """Whether two texts mean the same loss in a task, the plain one of which is ``"auto"``."""
    first, second = (parse(task.default_loss if text == "auto" else text) for text in (one, other))
    return first == second


def _value(what: str, value: Value, kind: Any) -> Any:  # noqa: ANN401
    """A value as its field wants it."""
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
