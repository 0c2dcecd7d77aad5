"""Models by name."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from torch import nn

from equipoise._checks import check_whole, check_wholes
from equipoise._suggestions import nearest
from equipoise.models.deeplab import DeepLabV3
from equipoise.models.densenet import DenseNet
from equipoise.models.external import from_file, from_timm, from_torchvision
from equipoise.models.mlp import MLP, LinearClassifier
from equipoise.models.resnet import CifarResNet, ResNet
from equipoise.models.text import TextBow, TextCNN, TextPoolingCNN
from equipoise.models.unet import UNet

__all__ = ["MODELS", "ModelEntry", "build_model", "check_name"]

SMALL = 64
"""Images up to this size use the stem for small images by default."""


@dataclass(frozen=True)
class ModelEntry:
    """A named model.

    Args:
        name: name for :func:`build_model`.
        make: class of the model.
        takes: ``"values"`` (arrays of any shape, flattened), ``"images"`` or ``"tokens"``.
        gives: ``"labels"`` (N, C) or ``"maps"`` (N, C, H, W).
        summary: one-line description.
        source: the paper.
    """

    name: str
    make: Callable[..., nn.Module]
    takes: Literal["values", "images", "tokens"]
    gives: Literal["labels", "maps"]
    summary: str
    source: str

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that :func:`build_model` accepts for it."""
        given = {"num_classes", "in_features", "in_channels", "vocabulary"}
        if isinstance(self.make, partial):
            given |= set(self.make.keywords)
        return tuple(key for key in inspect.signature(self.make).parameters if key not in given)


_HE = "He et al. 2016 (Deep residual learning for image recognition)"
_CHEN = "Chen et al. 2017 (Rethinking atrous convolution for semantic image segmentation)"

MODELS: Mapping[str, ModelEntry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            ModelEntry("linear", LinearClassifier, "values", "labels", "Logistic regression", ""),
            ModelEntry("mlp", MLP, "values", "labels", "Multi-layer perceptron, 2 hidden layers of 256", ""),
            ModelEntry(
                "resnet32",
                partial(CifarResNet, depth=32),
                "images",
                "labels",
                "ResNet-32 for CIFAR, 0.46 M weights",
                _HE,
            ),
            ModelEntry(
                "resnet110",
                partial(CifarResNet, depth=110),
                "images",
                "labels",
                "ResNet-110 for CIFAR, 1.7 M weights",
                _HE,
            ),
            ModelEntry(
                "wideresnet26-10",
                partial(CifarResNet, depth=26, widen=10, shortcut="B"),
                "images",
                "labels",
                "Wide ResNet for CIFAR, 36.5 M weights",
                "Zagoruyko and Komodakis 2016 (Wide residual networks)",
            ),
            ModelEntry(
                "densenet121",
                partial(DenseNet, blocks=(6, 12, 24, 16)),
                "images",
                "labels",
                "DenseNet-121, 8.0 M weights",
                "Huang et al. 2017 (Densely connected convolutional networks)",
            ),
            ModelEntry("resnet18", partial(ResNet, depth=18), "images", "labels", "ResNet-18, 11.7 M weights", _HE),
            ModelEntry("resnet50", partial(ResNet, depth=50), "images", "labels", "ResNet-50, 25.6 M weights", _HE),
            ModelEntry("resnet101", partial(ResNet, depth=101), "images", "labels", "ResNet-101, 44.5 M weights", _HE),
            ModelEntry("resnet152", partial(ResNet, depth=152), "images", "labels", "ResNet-152, 60.2 M weights", _HE),
            ModelEntry(
                "unet",
                UNet,
                "images",
                "maps",
                "Small U-Net behind a stem of stride 2",
                "Ronneberger et al. 2015 (U-Net: Convolutional networks for biomedical image segmentation)",
            ),
            ModelEntry(
                "deeplabv3",
                DeepLabV3,
                "images",
                "maps",
                "DeepLabv3 on a ResNet-18 (backbone=... for others)",
                _CHEN,
            ),
            *(
                ModelEntry(
                    f"deeplabv3-resnet{depth}",
                    partial(DeepLabV3, backbone=f"resnet{depth}"),
                    "images",
                    "maps",
                    f"DeepLabv3 on a ResNet-{depth}",
                    _CHEN,
                )
                for depth in (50, 101, 152)
            ),
            ModelEntry(
                "text-bow",
                TextBow,
                "tokens",
                "labels",
                "Mean of word vectors, then a hidden layer",
                "Iyyer et al. 2015 (Deep unordered composition rivals syntactic methods for text classification)",
            ),
            ModelEntry(
                "text-cnn",
                TextCNN,
                "tokens",
                "labels",
                "Convolutions over 3, 4 and 5 words",
                "Kim 2014 (Convolutional neural networks for sentence classification)",
            ),
            ModelEntry(
                "text-pooling-cnn",
                TextPoolingCNN,
                "tokens",
                "labels",
                "Three convolutions over 5 words, then their maximum over the text",
                "Lin et al. 2014 (Network in network), as in Mukhoti et al. 2020",
            ),
        )
    }
)
"""Models of this package by name."""


def build_model(
    name: str,
    *,
    num_classes: int,
    input_shape: Sequence[int] | None = None,
    vocabulary: int | None = None,
    **options: Any,  # noqa: ANN401
) -> nn.Module:
    """A model by its name, with fresh weights.

    Args:
        name: a key of :data:`MODELS` (case, dashes and underscores do not matter); ``timm:NAME`` or
            ``torchvision:NAME`` if these are installed; ``FILE.py:function`` for your own function, called with
            ``num_classes`` and those of the other arguments that it accepts.
        num_classes: C, the number of outputs.
        input_shape: shape of one sample, without the batch: (channels, height, width) or (D,). It sets the number of
            channels of image models (default 3), and ``stem="small"`` if both sides are at most 64 pixels and ``stem``
            is not given.
        vocabulary: number of tokens, for text models.
        options: further arguments of the model, ``MODELS[name].options``.

    >>> build_model("mlp", num_classes=10, input_shape=(1, 8, 8), hidden=[32]).classifier
    Linear(in_features=32, out_features=10, bias=True)
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be the name of a model, got {name!r}; pass e.g. 'resnet18'")
    num_classes = check_whole("num_classes", num_classes, low=1)
    if vocabulary is not None:
        vocabulary = check_whole("vocabulary", vocabulary, low=1)
    if input_shape is not None:
        input_shape = check_wholes("input_shape", input_shape)
        if not input_shape:
            raise ValueError("input_shape must hold at least one size, got none; pass e.g. (3, 32, 32)")
    package, _, inner = name.partition(":")
    if package in ("timm", "torchvision"):
        _refuse_vocabulary(name, vocabulary)
        maker = from_timm if package == "timm" else from_torchvision
        return maker(inner, num_classes=num_classes, input_shape=input_shape, options=options)
    if ".py" in name:
        return from_file(name, num_classes=num_classes, input_shape=input_shape, vocabulary=vocabulary, options=options)
    entry = _entry(name)
    for option in options:
        if option not in entry.options:
            raise TypeError(
                f"{entry.name} must get known options only, got {option!r}; {nearest(option, entry.options)}"
            )
    return entry.make(**_inputs(entry, input_shape, vocabulary, options), num_classes=num_classes, **options)


def check_name(name: str) -> None:
    """Raise if no model of this package has the name; external models are checked when they are built."""
    if ":" not in name:
        _entry(name)


def _entry(name: str) -> ModelEntry:
    known = {_key(entry.name): entry for entry in MODELS.values()}
    if _key(name) not in known:
        raise ValueError(
            f"name must be a model, timm:NAME, torchvision:NAME or FILE.py:function, got {name!r}; "
            f"{nearest(name, MODELS)}"
        )
    return known[_key(name)]


def _key(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _inputs(
    entry: ModelEntry, input_shape: Sequence[int] | None, vocabulary: int | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of the model that depend on its inputs."""
    if entry.takes == "tokens":
        if vocabulary is None:
            raise TypeError(
                f"vocabulary must be the number of tokens for {entry.name!r}, got None; pass vocabulary=len(tokens)"
            )
        return {"vocabulary": vocabulary}
    _refuse_vocabulary(entry.name, vocabulary)
    if entry.takes == "values":
        if input_shape is None:
            raise TypeError(
                f"input_shape must be the shape of one sample for {entry.name!r}, got None; pass e.g. (3, 32, 32)"
            )
        return {"in_features": math.prod(input_shape)}
    if input_shape is None:
        return {}
    if len(input_shape) != 3:
        raise ValueError(
            f"input_shape must be (channels, height, width) for {entry.name!r}, got {tuple(input_shape)}; "
            "add the channel dimension, or use 'mlp' for features"
        )
    small = "stem" in entry.options and "stem" not in options and max(input_shape[1:]) <= SMALL
    return {"in_channels": input_shape[0], **({"stem": "small"} if small else {})}


def _refuse_vocabulary(name: str, vocabulary: int | None) -> None:
    if vocabulary is not None:
        raise TypeError(f"vocabulary must be None for {name!r}, got {vocabulary}; use 'text-bow' or 'text-cnn'")
