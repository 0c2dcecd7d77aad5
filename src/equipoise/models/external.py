"""Models from elsewhere: timm, torchvision, and functions in the user's own files."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from equipoise.models.classifier import find_classifier, replace_classifier

__all__ = ["from_file", "from_timm", "from_torchvision"]


def nearest(name: str, known: Iterable[str]) -> str:
    """Words to end an error about an unknown name with: the names like it, or else all that there are."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names[:20]) or 'none'}"


def from_timm(
    name: str, *, num_classes: int, input_shape: tuple[int, ...] | None = None, options: Mapping[str, Any]
) -> nn.Module:
    """``timm.create_model(name)`` with this many classes and channels; ``pretrained=True`` and the like as options."""
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
    """``torchvision.models.get_model(name)`` with this many classes; with ``weights="DEFAULT"`` pretrained.

    Pretrained models get a new last layer. Of a segmentation model, which returns a dict, the logits in ``"out"`` are
    returned.
    """
    models = _package("torchvision", name).models
    if name not in models.list_models():
        raise ValueError(f"name must be a model of torchvision, got {name!r}; {nearest(name, models.list_models())}")
    if input_shape is not None and input_shape[0] != 3:
        raise ValueError(
            f"input_shape must have 3 channels for torchvision:{name}, got {input_shape}; repeat the channel or "
            "take timm:NAME, which adapts the first layer"
        )
    if options.get("weights") is None:
        model = models.get_model(name, num_classes=num_classes, **options)
    else:  # with weights torchvision insists on the classes that they were trained for
        model = models.get_model(name, **options)
        if getattr(model, "aux_classifier", None) is not None:
            model.aux_classifier = None  # its logits would be thrown away
        replace_classifier(model, _with_outputs(find_classifier(model).module, num_classes))
    if name in models.list_models(module=models.segmentation):
        return LogitsOnly(model)
    assert isinstance(model, nn.Module)
    return model


class LogitsOnly(nn.Module):
    """A segmentation model of torchvision that returns its logits (N, C, H, W) and not a dict."""

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
    """What ``function`` of ``FILE.py:function`` returns.

    It is called by keyword with ``num_classes``, with ``input_shape`` and ``vocabulary`` where these are known and it
    accepts them, and with the options, which it has to accept. A class does as well as a function. The folder of the
    file is on the path while the file is read and the function runs.
    """
    path, _, function = name.rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(f"name must be FILE.py:function, got {name!r}; say which function of the file makes the model")
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise FileNotFoundError(
            f"name must be FILE.py:function with a file that exists, got {name!r}; there is no {file}"
        )
    with _on_path(file.parent):
        module = _module_of(file)
        maker = getattr(module, function, None)
        if not callable(maker):
            found = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise ValueError(f"name must end in a function of {file}, got {function!r}; {nearest(function, found)}")
        known = {"input_shape": input_shape, "vocabulary": vocabulary}
        arguments = _arguments(name, maker, num_classes, known, options)
        with _blaming(name, file):
            model = maker(**arguments)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} must return an nn.Module, got {type(model).__name__}; return the model itself")
    return model


def _package(package: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{package}:{name} needs {package}, which is not installed; pip install {package}, in the build that "
            "belongs to the installed torch",
            name=package,
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(
            f"{package}:{name} needs {package}, which is installed but fails when it is imported ({error}); install "
            "the build that belongs to the installed torch",
            name=package,
        ) from error


def _with_outputs(old: nn.Module, num_classes: int) -> nn.Module:
    """A fresh layer like ``old`` for this many classes."""
    if isinstance(old, nn.Conv2d):
        return nn.Conv2d(old.in_channels, num_classes, 1, bias=old.bias is not None)
    assert isinstance(old, nn.Linear)
    return nn.Linear(old.in_features, num_classes, bias=old.bias is not None)


def _arguments(
    name: str,
    maker: Callable[..., Any],
    num_classes: int,
    known: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    parameters = inspect.signature(maker).parameters
    named = [key for key, one in parameters.items() if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for key in ("num_classes", *options):
        if key not in named and not takes_all:
            raise TypeError(
                f"{name} must accept {key!r} as a keyword, got a function of ({', '.join(named)}); add the argument"
                + ("" if key == "num_classes" else f" or leave the option out; {nearest(key, named)}")
            )
    offered = {key: value for key, value in known.items() if value is not None and (key in named or takes_all)}
    return {"num_classes": num_classes, **offered, **options}


def _module_of(file: Path) -> ModuleType:
    """The file as a module of its own name, so that what it defines can be pickled and inspected."""
    name = f"_equipoise_{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _blaming(file.name, file):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))


@contextmanager
def _blaming(what: str, file: Path) -> Iterator[None]:
    """Whatever fails inside is reported as a failure of the user's file, with its line."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SyntaxError):
            where = f"{error.filename}, line {error.lineno}"
        else:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
            where = f"{file}, line {lines[-1]}" if lines else str(file)
        raise RuntimeError(f"{what} failed with {type(error).__name__}: {error} ({where}); mend it there") from error
