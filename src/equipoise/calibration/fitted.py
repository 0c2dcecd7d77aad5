"""Base class of fitted calibrators, which map logits to logits."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from equipoise._checks import check_logits
from equipoise.tasks import Task, check_binary

__all__ = ["CalibrationWarning", "Fitted", "Task"]


class CalibrationWarning(UserWarning):
    """A fit that should be checked; the message says why."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted(ABC):
    """A fitted calibrator: ``fitted(logits)`` returns logits of the same shape, dtype and device.

    A class that is masked with -inf stays masked, and a label with a logit of -inf or inf keeps it.

    A frozen dataclass of plain numbers that can be compared and printed, and saved and loaded with
    :func:`~equipoise.calibration.save` and :func:`~equipoise.calibration.load`.

    Args:
        task: ``"multiclass"``: one class per row, softmax over dimension 1; ``"multilabel"``: one sigmoid per label.
        num_classes: number of classes or labels it was fitted for; None: any.
        samples: number of rows of the fit.
        converged: False if no optimum was reached or exists.
        note: remarks about the fit; may be empty.
        class_names: names of the classes or labels, if known.

    Shape: logits (N, C, d1, ..., dk), result the same. Half precision is computed in float32.
    """

    kind: ClassVar[str]

    task: Task = Task.MULTICLASS
    num_classes: int | None = None
    samples: int | None = None
    converged: bool = True
    note: str = ""
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_classes is not None:
            check_binary(self.task, self.num_classes)
        self._set(task=Task(self.task).fitted)
        for name in ("num_classes", "samples"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an integer above 0 or None, got {value!r}; omit it for None")
        if not isinstance(self.converged, bool) or not isinstance(self.note, str):
            raise TypeError(
                f"converged must be a bool and note a str, got {self.converged!r} and {self.note!r}; omit them"
            )

        if not isinstance(self.class_names, tuple) or not all(isinstance(name, str) for name in self.class_names):
            raise TypeError(f"class_names must be a tuple of strings, got {self.class_names!r}; omit them")

    def _set(self, **values: object) -> None:
        """Set fields during initialisation: checked numbers, and the number of classes they imply."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits (N, C, d1, ..., dk) after the correction, in the same shape, dtype and device."""
        check_shape(logits, self.task, self.num_classes)
        wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        certain = logits == -torch.inf if not self.task.multilabel else logits.isinf()
        return torch.where(certain, logits, _fit_in(self._apply(wide), logits.dtype, self.task))

    @abstractmethod
    def _apply(self, logits: Tensor) -> Tensor:
        """The correction for float32 or float64 logits with the classes in dimension 1."""

    @abstractmethod
    def describe(self) -> str:
        """One-line description."""

    def _origin(self) -> str:
        """Suffix of every description."""
        things = self.task.one if self.num_classes == 1 else self.task.many
        parts = [f"{self.num_classes} {things}"] if self.num_classes else []
        parts += [f"fitted on {self.samples} rows"] if self.samples else []
        origin = f" ({', '.join(parts)})" if parts else ""
        return f"{origin}; {self.note}" if self.note else origin

    def __repr__(self) -> str:
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        shown = self._shown({name: value for name, value, default in values if value != default})
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in shown.items())})"

    def _shown(self, values: dict[str, object]) -> dict[str, object]:
        """Fields shown by ``repr``: those that differ from the default."""
        return values


F = TypeVar("F", bound=Fitted)


def announce(fitted: F) -> F:
    """Issue the note of a fit as a warning, if any, and return the fit."""
    if fitted.note:
        warnings.warn(f"{fitted.kind}: {fitted.note}", CalibrationWarning, stacklevel=4)  # past checks_keywords
    return fitted


def check_shape(logits: Tensor, task: Task, num_classes: int | None = None) -> None:
    """Raise unless logits are floating-point (N, C, d1, ..., dk) with the expected number of classes."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a tensor, got {type(logits).__name__}; use torch.as_tensor(logits)")
    check_logits(logits)
    least = 1 if task.multilabel else 2
    things = task.many
    if logits.ndim < 2 or logits.shape[1] < least:
        raise ValueError(
            f"logits must have shape (N, C, d1, ..., dk) with at least {least} {things} in dimension 1, got "
            f"{tuple(logits.shape)}; for a single row use logits[None]"
        )
    if num_classes is not None and logits.shape[1] != num_classes:
        raise ValueError(
            f"logits must have the {num_classes} {things} of the fit in dimension 1, got shape {tuple(logits.shape)}; "
            "use the outputs of the model that it was fitted for"
        )


def as_floats(name: str, values: Sequence[float], *, positive: bool = False) -> tuple[float, ...]:
    """Return numbers as a tuple of floats; raise unless they are finite, and optionally above 0."""
    numbers = tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else None
    if not numbers or any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in numbers):
        raise TypeError(f"{name} must be a sequence of numbers, got {_short(values)}; pass a tuple of floats")
    finite = torch.tensor(numbers, dtype=torch.float64)
    if not bool(finite.isfinite().all()) or (positive and bool((finite <= 0).any())):
        wanted = "finite and above 0" if positive else "finite"
        raise ValueError(f"{name} must be {wanted}, got {_short(numbers)}; fit again on finite logits")
    return tuple(float(value) for value in numbers)


def column(values: Sequence[float], logits: Tensor) -> Tensor:
    """One number per class, shaped to broadcast along dimension 1 of the logits."""
    vector = torch.tensor(values, dtype=logits.dtype, device=logits.device)
    return vector.view(-1, *(1 for _ in logits.shape[2:]))


def _fit_in(logits: Tensor, dtype: torch.dtype, task: Task) -> Tensor:
    """Cast to a dtype with a possibly smaller range; rows that would overflow are shifted or clipped."""
    if logits.dtype == dtype:
        return logits
    limit = torch.finfo(dtype).max
    if not task.multilabel:  # a constant per row does not change its softmax
        top = logits.amax(1, keepdim=True)
        logits = torch.where(top.abs() > limit, logits - top, logits)
    return logits.clamp(-limit, limit).to(dtype)


def _short(value: object) -> str:
    """``repr``, with long sequences abbreviated and floats at six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (tuple, list)):
        inside = (
            [_short(item) for item in value] if len(value) <= 6 else [*map(_short, value[:3]), "...", _short(value[-1])]
        )
        size = f" [{len(value)}]" if len(value) > 6 else ""
        return f"({', '.join(inside)}{',' if len(value) == 1 else ''}){size}"
    return repr(value)
