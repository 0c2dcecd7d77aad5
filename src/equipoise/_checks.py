"""Argument checks. Every message names the argument, the expectation, the actual value and the remedy."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from equipoise._suggestions import nearest

__all__: list[str] = []

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

TRACERS = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INDICES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BEFORE_SOFTMAX = "pass the output of the model before its softmax, which the loss applies itself"
"""Advice for probabilities instead of logits."""
SEVERAL_LABELS = "multi-label targets need a sigmoid loss, such as AsymmetricLoss, or a multi-label metric or fit"
"""Advice for multi-label targets of a softmax loss."""


def is_traced(tensor: Tensor) -> bool:
    """Whether values cannot be read: tracing (``make_fx``), fake tensors or the meta device.

    False under ``torch.compile``, which can read buffers.
    """
    if torch.compiler.is_compiling():
        return False
    if tensor.device.type == "meta":
        return True
    if torch._C._len_torch_dispatch_stack() and any(torch._C._get_dispatch_mode(mode) is not None for mode in TRACERS):
        return True
    return type(tensor) is not Tensor and torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def on_host(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function compute real values on the CPU, even inside ``torch.device("meta")`` and ``FakeTensorMode``."""

    @functools.wraps(function)
    def computed(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling() or not (
            torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
        ):
            return function(*args, **options)
        with torch.device("cpu"), _disable_current_modes():
            return function(*args, **options)

    return computed


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        known, advice = ", ".join(repr(choice) for choice in choices), "pick one of these words"
        advice = nearest(value, choices, otherwise=advice) if isinstance(value, str) else advice
        raise ValueError(f"{name} must be one of {known}, got {value!r}; {advice}")


def check_number(
    name: str,
    value: float,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` as a float; raise unless it is a finite number between ``low`` and ``high``."""
    brackets = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    if isinstance(value, bool) or not isinstance(value, Real):  # including NumPy numbers
        advice = _number_advice(name, value, "pass a float")
        raise TypeError(f"{name} must be a number in {brackets}, got {type(value).__name__} {value!r}; {advice}")
    inside = (low < value if open_low else low <= value) and (value < high if open_high else value <= high)
    if not (
        -math.inf < value < math.inf and inside
    ):  # not math.isfinite, which the compiler supports only for constants
        raise ValueError(
            f"{name} must be a finite number in {brackets}, got {value!r}; choose a value inside that range"
        )
    return float(value)


def check_whole(
    name: str, value: int, *, low: int | None = None, high: int | None = None, advice: str = "pass an int"
) -> int:
    """Return ``value`` as an int; raise unless it is a Python or NumPy integer from ``low`` to ``high``."""
    expected = "an integer" if low is None else f"an integer of at least {low}"
    if not is_whole(value):
        raise TypeError(f"{name} must be {expected}, got {value!r}; {_number_advice(name, value, advice)}")
    if low is not None and value < low:
        raise ValueError(f"{name} must be {expected}, got {value!r}; pass {low} or more")
    if high is not None and value > high:
        raise ValueError(f"{name} must be at most {high:,}, got {value!r}; pass {high} or less")
    return int(value)


def check_wholes(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """Return ``values`` as ints; raise unless they are a sequence of integers of at least 1."""
    if not isinstance(values, Sequence) or not all(is_whole(value) and value >= 1 for value in values):
        raise ValueError(
            f"{name} must be a sequence of integers of at least 1, got {values!r}; pass e.g. {name}=(8, 8)"
        )
    return tuple(int(value) for value in values)


def is_whole(value: object) -> bool:
    """Whether it is a Python or NumPy integer and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number_advice(name: str, value: object, otherwise: str) -> str:
    """Advice for a value that is not a number."""
    if hasattr(value, "progress_at"):  # a schedule, whose module has its numbers checked here
        return f"{name} takes no schedule, {otherwise}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "pass one number"
    if callable(value):
        return "pass a float, or a schedule of equipoise.schedules, such as Linear(2.0, 1.0)"
    return otherwise


def check_ignore_index(ignore_index: int) -> int:
    """Return ``ignore_index`` as an int; raise unless it is an integer."""
    return check_whole("ignore_index", ignore_index, advice="keep -100 if no target should be ignored")


def check_ignore_value(ignore_value: float) -> float:
    """Return ``ignore_value`` as a Python number; raise unless it is a number other than NaN."""
    if not isinstance(ignore_value, Real):
        raise TypeError(f"ignore_value must be a number, got {ignore_value!r}; keep -1 if no label is unknown")
    if math.isnan(ignore_value):
        raise ValueError(
            "ignore_value must be a number, got nan, which equals nothing; mark unknown labels: targets.nan_to_num(-1)"
        )
    return int(ignore_value) if isinstance(ignore_value, Integral) else float(ignore_value)


@on_host
def check_counts(name: str, counts: Sequence[float] | Tensor, *, shares: bool = False) -> tuple[float, ...]:
    """Return class counts as floats; raise unless they are a non-empty vector of numbers >= 0 with a positive sum.

    ``shares``: whether fractions are accepted too, because only the ratios matter.
    """
    values = _vector(name, counts, "number of training samples", "pass e.g. torch.bincount(labels, minlength=C)")
    if not all(0.0 <= value < math.inf for value in values):
        raise ValueError(
            f"{name} must be finite and not negative, got {list(values)}; count the training labels of each class"
        )
    total = sum(values)
    if total == 0.0:
        raise ValueError(f"{name} must hold at least one sample, got only zeros; count the training labels")
    if not shares and abs(total - 1.0) < 0.05 and any(value % 1.0 for value in values):
        raise ValueError(
            f"{name} must be numbers of training samples, got {list(values)}, which look like fractions of the "
            "classes; multiply them by the number of training samples"
        )
    return values


@on_host
def check_class_vector(name: str, vector: Sequence[float] | Tensor, *, signed: bool = False) -> tuple[float, ...]:
    """Return one number per class as floats; raise unless they are finite and, except with ``signed``, >= 0."""
    values = _vector(name, vector, "number", "pass a vector")
    if signed and not all(-math.inf < value < math.inf for value in values):
        raise ValueError(f"{name} must be finite, got {list(values)}; use 0 for classes without one")
    if not signed and not all(0.0 <= value < math.inf for value in values):
        raise ValueError(f"{name} must be finite and not negative, got {list(values)}; use 0 to ignore a class")
    return values


def _vector(name: str, given: object, what: str, advice: str) -> tuple[float, ...]:
    """One number per class as floats; raise for anything else."""
    if isinstance(given, (list, tuple)) and given and all(isinstance(value, Real) for value in given):
        return tuple(float(value) for value in given)  # without tensors, which the compiler cannot read
    expected = f"{name} must be one {what} per class, shape (C,)"
    try:
        values = torch.as_tensor(given, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{expected}, got {_came(given)}; {_vector_advice(name, given) or advice}") from error
    if values.ndim != 1 or values.numel() == 0:
        raise ValueError(f"{expected}, got shape {tuple(values.shape)}; {advice}")
    return tuple(values.tolist())


def _came(given: object) -> str:
    return f"the word {given!r}" if isinstance(given, str) else f"an object of type {type(given).__name__}"


def _vector_advice(name: str, given: object) -> str:
    """Advice for a value that is not a vector of numbers."""
    kind = type(given).__name__
    if isinstance(given, Tensor) and is_traced(given):
        return "it has a shape but no values: create it outside of torch.device('meta') and FakeTensorMode"
    if isinstance(given, Mapping):
        if any(isinstance(key, str) for key in given):
            return f"list its numbers in the order of the classes: [{name}[c] for c in names_of_the_classes]"
        return f"list its numbers in the order of the classes: [{name}[c] for c in range(C)]"
    if isinstance(given, str) and "weight" in name:
        return "compute it: inverse_frequency(counts) and effective_number(counts) of equipoise.weights give weights"
    if kind in ("RecallLoss", "PrecisionLoss"):
        return f"pass {kind.replace('Loss', 'Weights')}(num_classes) of equipoise.weights to a softmax loss"
    if kind in ("Deferred", "ClassWeights", "RecallWeights", "PrecisionWeights"):
        return "use the loss as a module, which accepts it"
    if isinstance(given, Iterable) and not isinstance(given, Sequence):
        return "pass list(...) of it, in the order of the classes"
    return ""


def check_length(name: str, length: int, num_classes: int, more_advice: str = "") -> None:
    """Raise unless a per-class argument has as many entries as the logits have classes."""
    if length != num_classes:
        raise ValueError(
            f"{name} must have one entry for each of the {num_classes} classes in dimension 1 of the logits, "
            f"got {length} entries; check the number of outputs of the model{more_advice}"
        )


def check_num_classes(num_classes: int, classes_of_logits: int) -> None:
    """Raise unless the logits have the number of classes of the loss."""
    if num_classes != classes_of_logits:
        raise ValueError(
            f"num_classes must be the number of classes in dimension 1 of the logits, got num_classes={num_classes}, "
            f"and logits of {classes_of_logits}; change num_classes or the number of outputs of the model"
        )


def check_tensors(first: object, second: object, names: tuple[str, str] = ("logits", "targets")) -> None:
    """Raise unless both are tensors on the same device: a kernel would read invalid memory."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        for name, value in zip(names, (first, second), strict=True):
            check_tensor(name, value)
    elif first.device != second.device:
        raise ValueError(
            f"{names[1]} must be on the device of the {names[0]}, {first.device}, got {second.device}; "
            f"call {names[1]}.to({names[0]}.device)"
        )


def check_tensor(name: str, value: object) -> None:
    """Raise unless ``value`` is a tensor; the message says how to get one."""
    if isinstance(value, Tensor):
        return
    if value is None:
        advice = "check whether the model or the data set returns it" if name != "element_weight" else "omit it"
    elif isinstance(value, Mapping):
        key = next((word for word in ("logits", "out") if word in value), next(iter(value), "logits"))
        advice = f"take output[{key!r}]"
    elif isinstance(value, (list, tuple)):
        held = next((k for k, item in enumerate(value) if isinstance(item, Tensor)), None)
        advice = f"take output[{held}], or torch.stack them" if held is not None else f"pass torch.tensor({name})"
    else:
        advice = f"pass torch.as_tensor({name})"
    raise TypeError(f"{name} must be a tensor, got {type(value).__name__}; {advice}")


def check_logits(logits: Tensor) -> None:
    """Raise unless logits are floating-point with a class dimension."""
    if logits.dtype not in FLOATS:
        raise TypeError(
            f"logits must be float16, bfloat16, float32 or float64, got {logits.dtype}; "
            "pass the raw scores of the model (no softmax, no sigmoid, no argmax)"
        )
    if logits.ndim == 0:
        raise ValueError("logits must have shape (N, C, d1, ..., dk) or (C,), got a scalar; keep the class dimension")


def checks_values(tensor: Tensor, validate: bool) -> bool:
    """Whether to check values: always on request, otherwise on the CPU in eager mode, where it is free."""
    if is_traced(tensor):  # no values
        return False
    if validate:
        return True
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not transforms_active()


def warn_of_probabilities(name: str, scores: Tensor, *, one_label: bool, advice: str) -> None:
    """Warn if logits (N, C, d1, ..., dk) look like probabilities, without converting them. Reads from the device."""
    rows = scores.numel() // max(scores.shape[1], 1)
    few = rows < 2 if one_label else scores.numel() < 32  # so few values are in [0, 1], or sum to 1, by accident
    if few or not bool(((scores >= 0) & (scores <= 1)).all()):
        return
    if one_label and not bool(((scores.sum(1, dtype=torch.float64) - 1.0).abs() < 0.01).all()):
        return
    sums = " and sum to 1 over the classes" if one_label else ""
    warnings.warn(
        f"{name} must be raw scores of the model, got values that are all in [0, 1]{sums}; if these are "
        f"probabilities, {advice}",
        stacklevel=3,
    )


def check_logit_values(logits: Tensor, *, one_label: bool) -> None:
    """Raise if logits (N, C, d1, ..., dk) are NaN or infinite, warn if they look like probabilities."""
    if not logits.numel() or is_traced(logits):
        return
    wrong = logits.isnan() | (logits == torch.inf)  # minus infinity masks a class
    if bool(wrong.any()):
        samples = wrong.reshape(logits.shape[0], -1).any(1)
        raise ValueError(
            f"logits must be numbers, got {float(logits[wrong][0])} in {int(samples.sum())} of {samples.numel()} "
            "samples; look at the inputs, the learning rate and divisions in the model"
        )
    advice = BEFORE_SOFTMAX if one_label else BEFORE_SOFTMAX.replace("softmax", "sigmoid")
    warn_of_probabilities("logits", logits, one_label=one_label, advice=advice)


def transforms_active() -> bool:
    """Whether a ``torch.func`` transform is running."""
    return bool(torch._C._are_functorch_transforms_active())


def has_saved_tensor_hooks() -> bool:
    """Whether saved-tensor hooks are active: checkpointing, offloading, or the user's own."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def is_batched(tensor: Tensor) -> bool:
    """Whether ``tensor`` is batched, as gradients in a vectorised jacobian are."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.is_legacy_batchedtensor(tensor) or torch._C._functorch.is_batchedtensor(tensor)


def check_softmax_targets(logits: Tensor, targets: Tensor, ignore_index: int, validate: bool) -> bool:
    """Check targets against logits ``(N, C, d1, ..., dk)``; return whether they are dense (distributions)."""
    shape, num_classes = logits.shape, logits.shape[1]
    index_shape = (shape[0], *shape[2:])
    if not hasattr(ignore_index, "__index__"):  # not isinstance: NumPy arrays are tensors to the compiler
        check_ignore_index(ignore_index)
    if num_classes == 1 and not torch.compiler.is_compiling():
        warnings.warn(  # Python shows the same warning from the same place once
            "a softmax over one class is always 1, so the loss is 0 and every prediction is correct, got one channel "
            "in dimension 1; give the model two outputs, or use a sigmoid loss: BinaryFocalLoss, AsymmetricLoss",
            stacklevel=3,
        )
    if targets.is_floating_point():
        if targets.shape != shape:
            raise ValueError(
                f"targets of {targets.dtype} are distributions over the classes and must have the shape of the logits "
                f"{tuple(shape)}, got {tuple(targets.shape)}; {_dense_advice(tuple(shape), tuple(targets.shape))}"
            )
        if targets.requires_grad:
            raise ValueError("targets must not require a gradient, got dense targets that do; pass targets.detach()")
        if validate and targets.numel() and not is_traced(targets):
            _check_distributions(targets)
        elif checks_values(targets, validate):
            _warn_of_several_labels(targets)
        return True
    if targets.dtype not in INDICES:
        raise TypeError(
            f"targets must be integer class indices of shape {index_shape} or floating point distributions of shape "
            f"{tuple(shape)}, got {targets.dtype}; call targets.long() or targets.to(logits.dtype)"
            + (f", but {SEVERAL_LABELS}" if targets.shape == shape else "")
        )
    if targets.shape != index_shape:
        raise ValueError(
            f"targets must be class indices of shape {index_shape} for logits of shape {tuple(shape)}, "
            f"got {tuple(targets.shape)}; {_shape_advice(tuple(shape), tuple(targets.shape))}"
        )
    if checks_values(targets, validate) and targets.numel():
        least, most = targets.aminmax()
        if int(least) < 0 or int(most) >= num_classes:
            wrong = ((targets < 0) | (targets >= num_classes)) & (targets.long() != ignore_index)
            if bool(wrong.any()):
                raise ValueError(
                    f"targets must be class indices in [0, {num_classes - 1}] or ignore_index={ignore_index}, got "
                    f"{int(targets[wrong][0])}; check the labels, the number of classes or ignore_index"
                )
    return False


def check_target_of_one_row(logits: Tensor, targets: Tensor) -> None:
    """Raise unless the target of logits (C,) is one class or a distribution over the classes."""
    if targets.shape != (logits.shape if targets.is_floating_point() else ()):
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} are one row of {len(logits)} classes, whose targets must be one "
            f"index of shape () or a distribution of shape {tuple(logits.shape)}, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}; keep the batch dimension of the logits, (N, C), or use a sigmoid loss for one "
            "output per sample: BinaryFocalLoss, AsymmetricLoss"
        )


def _dense_advice(logits: tuple[int, ...], targets: tuple[int, ...]) -> str:
    """Advice for floating-point targets of the wrong shape."""
    if targets == (logits[0], 1, *logits[2:]):
        return "for class indices call targets.squeeze(1).long() first"
    if len(targets) == len(logits) and targets[1] != logits[1]:
        return f"the targets have {targets[1]} classes and the model {logits[1]}: check which number is correct"
    return "for class indices call targets.long() first"


def _shape_advice(logits: tuple[int, ...], targets: tuple[int, ...]) -> str:
    """Advice for class indices of the wrong shape."""
    wanted = (logits[0], *logits[2:])
    if targets == logits:
        return f"call targets.float() for one-hot targets, but {SEVERAL_LABELS}"
    if targets == logits[:-1]:
        return "move the classes of the logits to dimension 1: logits.movedim(-1, 1)"
    if targets == (logits[0], 1, *logits[2:]):
        return "drop the dimension of size 1: targets.squeeze(1)"
    if len(logits) == 2 and targets == logits[1:]:
        return "pass targets of the same samples, or logits as (N, C), one row per sample: pass logits.T"
    if len(logits) == 2 and len(targets) == 1:
        return "pass logits and targets of the same samples"
    if len(targets) == len(wanted):
        return "sizes differ: crop or resize logits and targets to the same size, for the same samples"
    return "drop or add dimensions"


def _check_distributions(targets: Tensor) -> None:
    """Raise unless every row (N, C, d1, ..., dk) is a distribution, within half precision, or all zeros."""
    mass = targets.sum(1, dtype=torch.promote_types(targets.dtype, torch.float32))
    fits = (targets.amin(1) >= 0) & (((mass - 1.0).abs() <= 0.01) | (mass == 0))
    if not bool(fits.all()):
        row = targets.movedim(1, -1)[~fits][0]
        raise ValueError(
            "targets must be distributions, each row not negative with sum 1, or all zeros to ignore it, got a row "
            f"of sum {float(row.sum()):g} with minimum {float(row.min()):g}; "
            + (SEVERAL_LABELS if _is_binary(row) else "pass probabilities, not scores")
        )


def _warn_of_several_labels(targets: Tensor) -> None:
    """Warn if rows (N, C, d1, ..., dk) are 0 and 1 with several ones; other sums may be sample weights."""
    if bool((targets.sum(1) > 1.5).any()) and _is_binary(targets):
        warnings.warn(
            "targets of a floating point type must be distributions over the classes, got rows of 0 and 1 with more "
            f"than one 1; {SEVERAL_LABELS}",
            stacklevel=3,
        )


def _is_binary(values: Tensor) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _label_advice(logits: tuple[int, ...], targets: tuple[int, ...]) -> str:
    """Advice for multi-label targets of the wrong shape."""
    if logits[1:2] == (1,) and targets == (logits[0], *logits[2:]):
        return "add the dimension of the single label to the targets: targets[:, None]"
    if targets[1:2] == (1,) and logits == (targets[0], *targets[2:]):
        return "drop the dimension of the single label: targets.squeeze(1)"
    if len(logits) == 1:
        return "pass one target per logit"
    return f"class indices are for a softmax loss, metric or fit, or convert them by one_hot(targets, {logits[1]})"


def check_sigmoid_targets(logits: Tensor, targets: Tensor, ignore_value: float, validate: bool) -> bool:
    """Check multi-label targets: shape, values in [0, 1] or ``ignore_value``; return whether any may be unknown."""
    check_ignore_value(ignore_value)
    if targets.shape != logits.shape:
        raise ValueError(
            f"targets must have the shape of the logits {tuple(logits.shape)}, one value per label, got "
            f"{tuple(targets.shape)}; {_label_advice(tuple(logits.shape), tuple(targets.shape))}"
        )
    if targets.is_complex():
        raise TypeError(f"targets must be real numbers in [0, 1], got {targets.dtype}; pass 0, 1 or soft labels")
    if targets.requires_grad:
        raise ValueError("targets must not require a gradient, got targets that do; pass targets.detach()")
    may_be_unknown = _holds(targets.dtype, ignore_value)
    if targets.dtype is torch.bool or not checks_values(targets, validate) or not targets.numel():
        return may_be_unknown
    low, high = (float(bound) for bound in targets.aminmax())
    if low >= 0 and high <= 1:
        return may_be_unknown and 0 <= ignore_value <= 1
    wrong = ~((targets >= 0) & (targets <= 1))
    if may_be_unknown:
        wrong = wrong & (targets != ignore_value)
    if bool(wrong.any()):
        raise ValueError(
            f"targets must be in [0, 1] or ignore_value={ignore_value:g}, got {float(targets[wrong][0]):g}; "
            "check the labels or ignore_value"
        )
    return may_be_unknown


def _holds(dtype: torch.dtype, value: float) -> bool:
    """Whether this dtype can represent ``value``; a comparison in uint8 would equate 255 and -1."""
    if dtype.is_floating_point:
        return True
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return low <= value <= high and value == int(value)
