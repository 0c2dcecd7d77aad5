"""Base class of the losses: hyper-parameters, their schedules, and the position in training, which is saved."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from numbers import Real
from types import FunctionType
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from equipoise._buffers import PreciseBuffers
from equipoise._checks import (
    BEFORE_SOFTMAX,
    check_choice,
    check_number,
    check_whole,
    checks_values,
    has_saved_tensor_hooks,
    is_traced,
    on_host,
    warn_of_probabilities,
)
from equipoise._keywords import RealSignature, call_keywords, check_call, check_first, check_keywords
from equipoise.kernels.hyper import EXPONENTS, layout_of, pack
from equipoise.losses.recomputation import Passes
from equipoise.losses.sums import Summand
from equipoise.schedules import Moment, Number, Schedule
from equipoise.weights.deferred import Deferred

__all__ = ["Loss", "LossPart", "Scalar", "check_preset", "merge_values", "retire_preset"]


class LossPart(Protocol):
    """A stateless part of a loss: a frozen dataclass that computes its hyper-parameters at any moment."""

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """Hyper-parameters by name; the set of names must not depend on the moment."""


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A hyper-parameter without a part of its own; omitted if it is constant and equals ``absent``."""

    name: str
    number: Number
    low: float = 0.0
    high: float = math.inf
    absent: float | None = 0.0

    def __post_init__(self) -> None:
        self.values(Moment())

    def values(self, moment: Moment) -> dict[str, tuple[float, ...]]:
        """The value at this moment."""
        number = check_number(self.name, moment.value(self.number), low=self.low, high=self.high)
        return {} if number == self.absent and not isinstance(self.number, Schedule) else {self.name: (number,)}


SWITCHES = ("squared_error", "thin_margin")
"""Scalars that switch a branch of a kernel on; they are not arguments of any loss."""
NEUTRAL = {
    "gamma_neg": None,
    "xi": 0.0,
    "offset": (),
    "margin": (),
    "scale": 1.0,
    "neg_scale": 1.0,
    "start_epoch": None,
}
"""Values of fields that switch the field off."""
ONLY_WITH = {"gamma_hc": "xi", "tau": "offset", "max_margin": "margin"}
"""Fields that matter only if another field is switched on."""


def described(part: LossPart) -> dict[str, str]:
    """Settings of a part for ``repr``, under the names of the arguments."""
    if isinstance(part, Scalar):
        hidden = part.name in SWITCHES or (not isinstance(part.number, Schedule) and part.number == part.absent)
        return {} if hidden else {"balance" if part.name == "weight" else part.name: repr(part.number)}
    if not dataclasses.is_dataclass(part):
        return {"": repr(part)}
    held = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.name != "called"}
    name, called = held.pop("name", None), getattr(part, "called", None)
    settings: dict[str, str] = {}
    for field, value in held.items():
        depends = ONLY_WITH.get(field, field)
        if depends in NEUTRAL and held[depends] == NEUTRAL[depends]:
            continue
        known = called if called and field in EXPONENTS else name if name and field == "weight" else field
        settings[known] = _numbers_text(value)
    return settings


def _numbers_text(value: object) -> str:
    """A value as text; long tuples of numbers are abbreviated."""
    if not isinstance(value, tuple) or not all(isinstance(number, float) for number in value):
        return repr(value)
    shown = ", ".join(f"{number:.4g}" for number in value[:5])
    return f"[{shown}]" if len(value) <= 5 else f"[{shown}, ... {len(value)} in all]"


def merge_values(parts: Sequence[LossPart], moment: Moment) -> dict[str, tuple[float, ...]]:
    """Hyper-parameters of all parts; values of the same name are multiplied."""
    merged: dict[str, tuple[float, ...]] = {}
    for part in parts:
        for name, numbers in part.values(moment).items():
            known = merged.get(name, (1.0,))
            length = max(len(known), len(numbers))
            if {len(known), len(numbers)} <= {1, length}:
                merged[name] = tuple(known[i % len(known)] * numbers[i % len(numbers)] for i in range(length))
            else:
                raise ValueError(
                    f"{name} must have the same length everywhere, got {len(known)} and {len(numbers)} entries; "
                    "check the number of classes"
                )
    return merged


def fixed_exponents(parts: Sequence[LossPart]) -> list[str]:
    """Names of the exponents that are constant."""
    return [name for name in EXPONENTS if any(isinstance(getattr(part, name, None), Real) for part in parts)]


def argument_names(parts: Sequence[LossPart]) -> dict[str, str]:
    """Name of the argument behind each hyper-parameter, if the names differ."""
    names: dict[str, str] = {}
    for part in parts:
        called: str | None = getattr(part, "called", None)
        if called is not None:
            names.update(dict.fromkeys(part.values(Moment()), called))
    return names


def check_preset(preset: str | None) -> bool:
    """Check ``preset``; return whether to follow the published code where it differs from the paper."""
    if preset is not None:
        check_choice("preset", preset, ("published",))
    return preset == "published"


def retire_preset(preset: str | None) -> None:
    """Warn that ``preset`` has no effect for a loss whose published code has the same defaults."""
    if check_preset(preset):
        warnings.warn(
            "preset='published' is deprecated for this loss, whose defaults are those of the published code already; "
            "omit it",
            DeprecationWarning,
            stacklevel=3,
        )


class Loss(Summand, PreciseBuffers):
    """Base class of all losses: packs the hyper-parameters of its parts into one tensor, again at every ``set_epoch``.

    Args:
        parts: stateless parts of the loss.
        epochs: number of epochs E; required by ``set_epoch`` if a hyper-parameter is scheduled.
    """

    hyper_single: Tensor
    hyper_double: Tensor
    position: Tensor

    kernels: str = (
        "one fused kernel for the forward pass and one for the backward pass, or a single one where that is faster"
    )
    """Description of the CUDA kernels, for ``equipoise.kernels.explain``."""
    runs_on_cpu_backend: ClassVar[bool] = True

    __signature__ = RealSignature()
    option_defaults: ClassVar[Any] = {}
    """Defaults of ``**options`` that differ from those of the base."""
    _call_keywords: ClassVar[tuple[str, ...] | None] = None

    def __new__(cls, *args: object, **options: object) -> Self:
        """Check the arguments first, so that errors name this loss and not one of its parts."""
        check_keywords(cls, options)
        if args:
            check_first(cls, args[0])
        return super().__new__(cls)

    @on_host
    def __init__(self, parts: Sequence[LossPart], *, epochs: int | None = None) -> None:
        super().__init__()
        self.parts, self.epochs = tuple(parts), None if epochs is None else check_whole("epochs", epochs, low=1)
        self._passes = Passes()
        self.scheduled = any(_has_schedule(part) for part in self.parts)
        self._warned = self._looked = self._positioned = False
        values = merge_values(self.parts, self._moment(0.0))
        if self.scheduled:
            self._check_end()
        self.layout = layout_of(values, fixed_exponents(self.parts), argument_names(self.parts))
        self.register_buffer("hyper_double", pack(values), persistent=False)
        self.register_buffer("hyper_single", pack(values, torch.float32), persistent=False)
        if self.scheduled:
            # progress and epoch, NaN while unknown
            self.register_buffer("position", torch.full((2,), math.nan, dtype=torch.float64, device="cpu"))

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401
        """Copy ``__call__`` for each class: ``torch.compile`` limits how often one code object is compiled."""
        super().__init_subclass__(**options)
        cls._call_keywords = call_keywords(cls)
        if "__call__" not in vars(cls):
            call = Loss.__call__
            copied = FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)
            cls.__call__ = copied  # type: ignore[method-assign]

    def __call__(self, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401
        """Loss of a batch, see ``forward``; accepts PyTorch's names ``input`` and ``target`` for logits and targets."""
        for theirs, ours in (("input", "logits"), ("target", "targets")) if options else ():
            if theirs in options and ours not in options:
                options[ours] = options.pop(theirs)
        if options and self._call_keywords is not None:
            check_call(type(self), options, self._call_keywords)
        if not self.training or torch.compiler.is_compiling() or not has_saved_tensor_hooks():
            return super().__call__(*inputs, **options)
        tensors = [value for value in (*inputs, *options.values()) if isinstance(value, Tensor)]
        return self._passes(self, tensors, lambda: super(Loss, self).__call__(*inputs, **options))

    def _check_end(self) -> None:
        """Raise now if a schedule ends outside the range of its argument, not in the last epochs."""
        last = self._moment(1.0) if self.epochs is None else self._moment(1.0 - 1.0 / self.epochs, self.epochs - 1.0)
        try:
            merge_values(self.parts, last)
        except ValueError as error:
            raise ValueError(f"{error}: this is where its schedule ends") from error

    def set_epoch(self, epoch: float) -> None:
        """Set the schedules to ``epoch``, counted from 0; call it before each epoch. No effect without schedules."""
        if self.epochs is None:
            if self.scheduled:
                raise ValueError("set_epoch needs the number of epochs, got epochs=None; give the loss epochs=E")
            return
        if not isinstance(epoch, Real) or not 0 <= epoch < self.epochs:
            raise (ValueError if isinstance(epoch, Real) else TypeError)(
                f"epoch must be in [0, {self.epochs - 1}] for epochs={self.epochs}, got {epoch!r}; count from 0 and "
                "pass the number of epochs you train for"
            )
        self._set_position(epoch / self.epochs, float(epoch))

    def set_progress(self, fraction: float) -> None:
        """Set the schedules to a fraction of the training in [0, 1], for example once per iteration."""
        self._set_position(check_number("fraction", fraction, low=0.0, high=1.0), math.nan)

    @on_host
    def _set_position(self, progress: float, epoch: float) -> None:
        if not self.scheduled:
            return
        self._positioned = True
        self.position.copy_(torch.tensor([progress, epoch], dtype=torch.float64, device="cpu"), non_blocking=True)
        self._resolve(progress, epoch)

    def _resolve(self, progress: float, epoch: float) -> None:
        """Write the hyper-parameters of the current position in place, so that captured CUDA graphs see them."""
        flat = pack(merge_values(self.parts, self._moment(progress, epoch)))
        self.hyper_double.copy_(flat, non_blocking=True)
        self.hyper_single.copy_(flat, non_blocking=True)

    def moment(self) -> Moment:
        """Position in training, the start by default; reads from the device."""
        progress, epoch = self.position.tolist() if self.scheduled else (math.nan, math.nan)
        return self._moment(0.0 if math.isnan(progress) else progress, epoch)

    def _moment(self, progress: float, epoch: float = math.nan) -> Moment:
        return Moment(progress, None if math.isnan(epoch) else epoch, self.epochs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:  # noqa: ANN401
        super()._load_from_state_dict(state_dict, prefix, *args)
        saved = state_dict.get(prefix + "position")
        if self.scheduled and isinstance(saved, Tensor) and saved.shape == self.position.shape:
            progress, epoch = saved.tolist()
            if self.epochs is not None and epoch >= self.epochs:
                warnings.warn(
                    f"the saved state of {type(self).__name__} is at epoch {epoch:g}, but the loss has epochs="
                    f"{self.epochs}, so that its schedules are at their end; pass the number of epochs you train for",
                    stacklevel=2,
                )
            if self.epochs is not None and not math.isnan(epoch):  # saved in a longer or shorter training
                progress = min(epoch / self.epochs, 1.0)
                self.position[0] = progress
            self._positioned = not math.isnan(progress)
            self._resolve(0.0 if math.isnan(progress) else progress, epoch)

    def hyper(self, logits: Tensor) -> Tensor:
        """Hyper-parameters on the device of the logits: float64 for float64 logits, float32 otherwise."""
        if is_traced(logits):
            return self._constant("hyper_double" if logits.dtype is torch.float64 else "hyper_single", logits)
        if self.hyper_single.device != logits.device:  # works without .to(device), like PyTorch's losses
            with torch.inference_mode(False):
                self.to(logits.device)
        if self.scheduled and self.training and not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            if not self._positioned:  # not read from `position`, which may be on a GPU
                warnings.warn(
                    f"{type(self).__name__} has a schedule that was never advanced, so it stays at its start; "
                    "call loss.set_epoch(epoch) or loss.set_progress(fraction) in the training loop",
                    stacklevel=4,
                )
        return self.hyper_double if logits.dtype is torch.float64 else self.hyper_single

    def _look(self, logits: Tensor) -> None:
        """Warn if the first logits of a softmax look like probabilities, unless the check would cost a device sync."""
        if not self._looked and checks_values(logits, validate=False):
            self._looked = True
            if logits.is_floating_point() and logits.ndim > 1 and logits.shape[1] > 1:
                warn_of_probabilities("logits", logits.detach(), one_label=True, advice=BEFORE_SOFTMAX)

    def extra_repr(self) -> str:
        """Hyper-parameters for ``repr``."""
        texts: dict[str, str] = {}
        for name, text in (item for part in self.parts for item in described(part).items()):
            # two parts with the same hyper-parameter are multiplied
            texts[name] = f"{texts[name]} * {text}" if name in texts else text
        if self.epochs is not None:
            texts["epochs"] = str(self.epochs)
        return ", ".join(f"{name}={text}" if name else text for name, text in texts.items())

    def __repr__(self) -> str:
        """Text as of any module, without empty lists of modules."""
        if any(not isinstance(child, nn.ModuleList) or len(child) for child in self.children()):
            return super().__repr__()
        return f"{type(self).__name__}({self.extra_repr().replace(chr(10), ' ')})"


def _has_schedule(part: object) -> bool:
    if isinstance(part, (Schedule, Deferred)):
        return True
    if isinstance(part, tuple):
        return any(_has_schedule(item) for item in part)
    if dataclasses.is_dataclass(part):
        return any(_has_schedule(getattr(part, field.name)) for field in dataclasses.fields(part))
    return False
