"""The classifier of any model: find it, replace it, extract its features, set its bias."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equipoise._checks import check_length

__all__ = [
    "Classifier",
    "FeatureView",
    "FeaturesAndLogits",
    "check_module",
    "check_sized",
    "features_of",
    "find_classifier",
    "known_classifiers",
    "replace_classifier",
    "set_prior_bias",
]

_CHOSEN = "_equipoise_classifier"
"""Attribute of a model in which ``replace_classifier`` stores the name: the new module may not be linear."""


class Classifier(NamedTuple):
    """A classifier in its model: ``model.get_submodule(name) is module``."""

    name: str
    module: nn.Module

    @property
    def in_features(self) -> int:
        """Width D of the features."""
        check_sized(self)
        return _width(self, "in_features", "in_channels")

    @property
    def num_classes(self) -> int:
        """Number of outputs C."""
        return _width(self, "out_features", "out_channels")


def _width(classifier: Classifier, *attributes: str) -> int:
    for attribute in attributes:
        width = getattr(classifier.module, attribute, None)
        if isinstance(width, int):
            return width
    raise TypeError(
        f"the classifier {classifier.name!r} must have its width as attribute .{attributes[0]}, got "
        f"{type(classifier.module).__name__} without it; set the attribute on the module"
    )


def check_sized(classifier: Classifier) -> None:
    """Raise if a lazy layer is uninitialised and has no width yet."""
    if any(map(is_lazy, classifier.module.parameters())):
        raise ValueError(
            f"the classifier {classifier.name!r} must know its width, got {type(classifier.module).__name__} that is "
            "uninitialised; run the model on a batch first"
        )


def check_module(name: str, value: object, advice: str) -> None:
    """Raise unless ``value`` is a module; ``advice`` says what to pass."""
    if not isinstance(value, nn.Module):
        came = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be an nn.Module, got {came}; {advice}")


def find_classifier(model: nn.Module, name: str | None = None, *, num_classes: int | None = None) -> Classifier:
    """The layer that computes logits from features, with its qualified name.

    The search order is: ``name``; the module installed by :func:`replace_classifier`; the result of
    ``model.get_classifier()`` (the convention of timm and of the models of this package); the last layer in the order
    of definition that is an ``nn.Linear`` or a 1x1 convolution. The last rule is a heuristic. It raises if another
    layer is possible: one with the same number of outputs, such as an auxiliary head, or one beside it with the same
    number of features that leads to no other layer.

    Args:
        model: any module.
        name: qualified name as in ``model.named_modules()``, if the search does not find the right layer.
        num_classes: if given, the heuristic considers only layers with this many outputs.

    >>> net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> name, module = find_classifier(net)
    >>> name, module
    ('2', Linear(in_features=4, out_features=3, bias=True))
    """
    check_module("model", model, "pass the model itself, such as MLP(in_features=4, num_classes=3)")
    if name is not None:
        return Classifier(name, _submodule(model, name))
    declared = _declared(model)
    if declared is not None:
        return declared
    candidates = [candidate for candidate in _candidates(model) if num_classes in (None, candidate.num_classes)]
    if not candidates:
        outputs = "" if num_classes is None else f" with {num_classes} outputs"
        linear = [f"{candidate.name} ({candidate.num_classes})" for candidate in _candidates(model)]
        raise ValueError(
            f"model must have an nn.Linear or a 1x1 convolution{outputs} as its classifier, got {type(model).__name__} "
            f"with {', '.join(linear) or 'neither'}; name the module with name=..."
        )
    last = candidates[-1]
    rivals = [candidate for candidate in candidates if _is_rival(model, candidate, last)]
    if rivals:
        listed = ", ".join(f"{candidate.name!r} {_describe(candidate.module)}" for candidate in (*rivals, last))
        raise ValueError(
            f"model must have one classifier, got {len(rivals) + 1} layers of {type(model).__name__} that could be it: "
            f"{listed}; select one with name=..."
        )
    return last


def replace_classifier(model: nn.Module, module: nn.Module, name: str | None = None) -> nn.Module:
    """Replace the classifier of ``model`` by ``module`` and return the old one.

    The model is modified in place and stores the name of its classifier. The new module gets the mode of the old one
    (training or not) but is not moved: create it on the device and with the dtype of the model. A layer that occurs
    under several names is replaced under all of them.

    >>> net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> old = replace_classifier(net, nn.Linear(4, 10, bias=False))
    >>> net
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=10, bias=False)
    )
    """
    check_module("module", module, "pass e.g. nn.Linear(D, C)")
    old = find_classifier(model, name)
    if old.module is model:
        raise ValueError(
            f"model must contain its classifier as a submodule, got {type(model).__name__}, which is the classifier; "
            "use the new module instead"
        )
    for where, part in list(model.named_modules(remove_duplicate=False)):
        if part is old.module:
            parent, _, attribute = where.rpartition(".")
            setattr(model.get_submodule(parent), attribute, module)
    module.train(old.module.training)
    setattr(model, _CHOSEN, old.name)
    return old.module


class FeaturesAndLogits(NamedTuple):
    """Input of the classifier, (N, D) or (N, D, h, w), and output of the model."""

    features: Tensor
    logits: Any


class FeatureView(nn.Module):
    """A model that returns features and logits, created by :func:`features_of`."""

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        super().__init__()
        self.model = model
        self.name, classifier = find_classifier(model, name)
        self._looking = False
        self._seen: list[Tensor] = []
        self._hook = classifier.register_forward_pre_hook(self._see)

    def _see(self, classifier: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self._looking:
            self._seen.append(inputs[0])

    def forward(self, *inputs: Any, **named: Any) -> FeaturesAndLogits:  # noqa: ANN401
        """Features and logits of one call of the model."""
        self._seen.clear()
        self._looking = True
        try:
            logits = self.model(*inputs, **named)
        finally:
            self._looking = False
        calls = len(self._seen)
        if calls != 1:
            self._seen.clear()
            raise RuntimeError(
                f"the classifier {self.name!r} must be called once in a forward pass, got {calls} calls; select "
                "another with name=..., and create the view after replacing the classifier"
            )
        return FeaturesAndLogits(self._seen.pop(), logits)

    def get_classifier(self) -> nn.Module:
        """The classifier of the model, for ``find_classifier``."""
        return self.model.get_submodule(self.name)

    def close(self) -> None:
        """Remove the hook from the model."""
        self._hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def features_of(model: nn.Module, name: str | None = None) -> FeatureView:
    """A view of the model that returns ``(features, logits)``, where features are the input of the classifier.

    The view shares everything with the model, which works as before. Both are part of one graph: gradients
    flow through features and logits, and the view can be compiled. It uses a hook on the classifier, which
    ``close()`` or the end of a ``with`` block removes.

    Args:
        model: any module whose classifier is found by :func:`find_classifier`.
        name: qualified name of the classifier if it is not found.

    >>> net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> with features_of(net) as view:
    ...     features, logits = view(torch.zeros(2, 8))
    >>> features.shape, torch.equal(net[2](features), logits)
    (torch.Size([2, 4]), True)
    """
    return FeatureView(model, name)


@torch.no_grad()
def set_prior_bias(
    model: nn.Module, prior: float | Sequence[float] | Tensor | None = None, *, name: str | None = None
) -> None:
    r"""Initialise every sigmoid at its prior: the bias of the classifier becomes :math:`\log(\pi_c / (1 - \pi_c))`.

    Otherwise a sigmoid loss starts with about C - 1 wrong probabilities of 1/2 per sample, and the first steps only
    learn that labels are rare. Weights are unchanged: initially their part of the logits is small.

    Args:
        model: a model, or the classifier itself.
        prior: frequency of each label in training, (C,), or one for all: 0.01 as in RetinaNet (Lin et al. 2017,
            section 4.1). None for 1/C, that is :math:`b = -\log(C - 1)` (Cui et al. 2019).
        name: qualified name of the classifier if it is not found.

    >>> layer = nn.Linear(4, 3)
    >>> set_prior_bias(layer)
    >>> torch.sigmoid(layer.bias.detach())
    tensor([0.3333, 0.3333, 0.3333])
    """
    classifier = find_classifier(model, name)
    check_sized(classifier)
    bias = getattr(classifier.module, "bias", None)
    if not isinstance(bias, Tensor):
        raise ValueError(
            f"the classifier {classifier.name!r} must have a bias, got {type(classifier.module).__name__} without; "
            "make it with bias=True"
        )
    chance = torch.as_tensor(1 / len(bias) if prior is None else prior, dtype=torch.float64)
    if chance.ndim > 1:
        raise ValueError(
            f"prior must be one number or one per class, shape (C,), got shape {tuple(chance.shape)}; "
            "pass the mean of the training labels over the samples"
        )
    if chance.ndim == 1:
        check_length("prior", len(chance), len(bias))
    if not bool(((chance > 0) & (chance < 1)).all()):
        raise ValueError(
            f"prior must be inside (0, 1), got {chance.tolist()}; for labels in no sample or in every sample use "
            "(counts + 1) / (num_samples + 2)"
        )
    bias.copy_(torch.logit(chance).to(bias.device, bias.dtype))


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ValueError(
            f"name must be a module inside {type(model).__name__}, got {name!r}; {known_classifiers(model)}"
        ) from None


def known_classifiers(model: nn.Module) -> str:
    """Advice for a wrong name: the layers that could be the classifier."""
    return (
        f"layers that could be a classifier: {', '.join(candidate.name for candidate in _candidates(model)) or 'none'}"
    )


def _declared(model: nn.Module) -> Classifier | None:
    """The classifier that was installed by name, or that the model declares."""
    parts = dict(model.named_modules())
    chosen = getattr(model, _CHOSEN, None)
    if isinstance(chosen, str) and chosen in parts:
        return Classifier(chosen, parts[chosen])
    says = getattr(model, "get_classifier", None)
    module = says() if callable(says) else None
    if module is None or isinstance(module, nn.Identity):
        return None
    for name, part in parts.items():
        if part is module:
            return Classifier(name, part)
    return None


def _candidates(model: nn.Module) -> Iterator[Classifier]:
    """Linear layers and 1x1 convolutions, in the order of definition."""
    # Attention reads the weights of its parts without calling them.
    uncalled = {id(m.out_proj) for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    for name, module in model.named_modules():
        if id(module) not in uncalled and (isinstance(module, nn.Linear) or _is_pointwise(module)):
            yield Classifier(name, module)


def _is_pointwise(module: nn.Module) -> bool:
    return (
        isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        and set(module.kernel_size) == {1}
        and set(module.stride) == {1}
        and module.groups == 1
    )


def _is_rival(model: nn.Module, candidate: Classifier, last: Classifier) -> bool:
    """Whether ``found`` could be the classifier as well as the last candidate.

    It could not if it has another type, lacks the bias of the last one (it is then followed by a norm), or precedes the
    last one in a sequence. With other outputs it could only if it is parallel to the last one.
    """
    one, other = candidate.module, last.module
    if one is other or isinstance(one, nn.Linear) != isinstance(other, nn.Linear):
        return False
    if one.bias is None and other.bias is not None:
        return False
    if candidate.num_classes != last.num_classes and not _ends_beside(model, candidate, last):
        return False
    return not isinstance(_meeting(model, candidate.name, last.name), nn.Sequential)


def _ends_beside(model: nn.Module, candidate: Classifier, last: Classifier) -> bool:
    """Whether a layer has the same number of features as the last one, and no other layer has the width of its outputs.

    A single output is not a class but a weight, as in attention pooling. Only for layers parallel to the last one or
    its parents: deeper in a model outputs are split and concatenated, so the width is not informative.
    """
    if candidate.num_classes == 1:
        return False
    holder = candidate.name.rpartition(".")[0]
    others = [
        parameter for part in model.modules() if part is not candidate.module for parameter in part.parameters(False)
    ]
    if not f"{last.name}.".startswith(f"{holder}." if holder else "") or any(map(is_lazy, others)):
        return False
    widths = {size for parameter in others for size in parameter.shape}
    return candidate.in_features == last.in_features and candidate.num_classes not in widths


def _meeting(model: nn.Module, one: str, other: str) -> nn.Module:
    """The innermost module that contains both."""
    shared = []
    for left, right in zip(one.split("."), other.split("."), strict=False):
        if left != right:
            break
        shared.append(left)
    return model.get_submodule(".".join(shared))


def _describe(module: nn.Module) -> str:
    return f"({type(module).__name__}, {_width(Classifier('', module), 'out_features', 'out_channels')} outputs)"
