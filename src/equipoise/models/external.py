"""External models: timm, torchvision, and functions in user code."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from equipoise._suggestions import nearest
from equipoise.models.classifier import find_classifier, replace_classifier
from equipoise.user_code import made_by

__all__ = ["from_file", "from_timm", "from_torchvision"]


def from_timm(
    name: str, *, num_classes: int, input_shape: tuple[int, ...] | None = None, options: Mapping[str, Any]
) -> nn.Module:
    """``timm.create_model(name)`` with the number of classes and channels; options such as ``pretrained=True``."""
    timm = _package("timm", name)
    if ":" not in name and not timm.is_model(name):  # hf-hub:... and local-dir:... are found by timm itself
        raise ValueError(f"name must be a model of timm, got {name!r}; {nearest(name, timm.list_models())}")
    channels = {} if input_shape is None else {"in_chans": input_shape[0]}
    model = timm.create_model(name, num_classes=num_classes, **{**channels, **options})
    assert isinstance(model, nn.Module)
    return model


def from_torchvision(
    name: str, *, num_classes: int, input_shape: tuple[int, ...] | None = None, options: Mapping[str, Any]
) -> nn.Module:
    """``torchvision.models.get_model(name)`` with the number of classes; pretrained with ``weights="DEFAULT"``.

    Pretrained models get a new last layer. Segmentation models, which return a dict, are wrapped to return the logits
    in ``"out"``.
    """
    models = _package("torchvision", name).models
    if name not in models.list_models():
        raise ValueError(f"name must be a model of torchvision, got {name!r}; {nearest(name, models.list_models())}")
    if input_shape is not None and input_shape[0] != 3:
        raise ValueError(
            f"input_shape must have 3 channels for torchvision:{name}, got {input_shape}; repeat the channel or "
            "use timm:NAME, which adapts the first layer"
        )
    if options.get("weights") is None:
        model = models.get_model(name, num_classes=num_classes, **options)
    else:  # torchvision requires the original number of classes with pretrained weights
        model = models.get_model(name, **options)
        if getattr(model, "aux_classifier", None) is not None:
            model.aux_classifier = None  # the auxiliary logits would be discarded
        replace_classifier(model, _with_outputs(find_classifier(model).module, num_classes))
    if name in models.list_models(module=models.segmentation):
        return LogitsOnly(model)
    assert isinstance(model, nn.Module)
    return model


class LogitsOnly(nn.Module):
    """A segmentation model of torchvision that returns its logits (N, C, H, W) instead of a dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C, H, W)."""
        logits: Tensor = self.model(x)["out"]
        return logits


def from_file(
    name: str,
    *,
    num_classes: int,
    input_shape: tuple[int, ...] | None = None,
    vocabulary: int | None = None,
    options: Mapping[str, Any],
) -> nn.Module:
    """The model returned by ``function`` of ``FILE.py:function``.

    It is called with the keywords ``num_classes``, ``input_shape`` and ``vocabulary`` if these are known and accepted,
    and with the options, which it must accept. A class can be used instead of a function.
    """
    known = {"input_shape": input_shape, "vocabulary": vocabulary}
    return made_by(
        name,
        "model",
        needed={"num_classes": num_classes},
        offered={key: value for key, value in known.items() if value is not None},
        options=options,
        offer_all=True,
    )


def _package(package: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{package}:{name} needs {package}, which is not installed; pip install {package}, in the build for the "
            "installed torch",
            name=package,
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(
            f"{package}:{name} needs {package}, which is installed but fails to import ({error}); install "
            "the build for the installed torch",
            name=package,
        ) from error


def _with_outputs(old: nn.Module, num_classes: int) -> nn.Module:
    """A new layer like ``old`` for this number of classes."""
    if isinstance(old, nn.Conv2d):
        return nn.Conv2d(old.in_channels, num_classes, 1, bias=old.bias is not None)
    assert isinstance(old, nn.Linear)
    return nn.Linear(old.in_features, num_classes, bias=old.bias is not None)
