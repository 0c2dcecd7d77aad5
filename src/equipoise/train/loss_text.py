"""Build losses from text: ``focal(gamma=3)``, ``ldam(weight=drw)``, ``ce + 0.5 * dice``.

``equipoise.expressions`` reads the text; here its arguments are checked and the loss is built. An argument
is a keyword argument of the loss. Data and run provide the number of classes, counts and epochs. Values of arguments::

    3, 0.5, True, None, (1, 2, 5)             as in Python
    linear(5, 1), cosine(5, 1), parabolic(5, 1), steps((5, 3, 1), (0.3, 0.7))
                                              a schedule over the training
    inverse, square-root, effective(0.999), median, drw, drw(0.9)
                                              for weight only: a rule on the training counts
    others(0.05)                              for label_smoothing only: 0.05, shared by the other classes

The FUNCTION of ``FILE.py:FUNCTION`` is a class or function that returns an ``nn.Module`` of logits and targets. Of the
arguments that data and run provide, it receives those in its signature.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, Union

import torch
from torch import Tensor, nn

from equipoise import losses
from equipoise._checks import check_number
from equipoise._keywords import arguments_of
from equipoise._suggestions import nearest
from equipoise.catalogue import CATALOGUE, Entry, Link, find
from equipoise.expressions import Call, Choices, Sum, Value, is_own, parse
from equipoise.expressions import check_loss_names as check_names
from equipoise.kernels.hyper import check_layout
from equipoise.losses import Loss, SumOfLosses
from equipoise.losses.base import merge_values
from equipoise.losses.theory import smoothing_for
from equipoise.schedules import Cosine, Linear, Moment, Parabolic, Schedule, Steps
from equipoise.tasks import Task
from equipoise.user_code import made_by
from equipoise.weights import Deferred, effective_number, inverse_frequency, median_frequency, square_root

__all__ = [
    "OwnLoss",
    "Term",
    "build_loss",
    "is_argument",
    "loss_trace",
    "parse_loss",
    "python_call",
]

_Made = TypeVar("_Made")
Given: TypeAlias = "Value | Schedule | tuple[Given, ...]"
"""The value of an argument, with schedules built."""

MEANT_FOR: Mapping[Link, str] = {
    "softmax": "single-label data or segmentation",
    "sigmoid": "multi-label data",
    "region": "segmentation",
}

FROM_THE_RUN = ("num_classes", "counts", "num_samples", "epochs")
"""Arguments that a text cannot give."""

SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "linear": Linear,
    "cosine": Cosine,
    "parabolic": Parabolic,
    "steps": Steps,
}


class Pairs:
    """The kind of an argument that takes pairs of numbers."""


KINDS: Mapping[type, str] = {
    float: "a number",
    int: "an integer",
    bool: "true or false",
    str: "a word",
    tuple: "numbers in brackets such as (1, 2, 5)",
    Pairs: "pairs in brackets such as ((0.2, 5), (1, 3))",
    Schedule: "a schedule such as linear(5, 1)",
    types.NoneType: "none",
}
"""Names of the kinds of values in a text, for messages."""


def _deferred(counts: Sequence[float], start: float = 0.8, beta: float = 0.9999) -> Deferred:
    """Deferred reweighting (Cao et al. 2019): effective-number weights after a fraction ``start`` of the training."""
    return Deferred(effective_number(counts, beta), start=start)


WEIGHTS: Mapping[str, Callable[..., Tensor | Deferred]] = {
    "inverse": inverse_frequency,
    "square-root": square_root,
    "effective": effective_number,
    "median": median_frequency,
    "drw": _deferred,
}
"""Rules for ``weight=RULE``, called with the training counts and the arguments in brackets."""


@dataclass(frozen=True)
class Term:
    """One loss of a text.

    Args:
        name: its name in the catalogue, or ``FILE.py:FUNCTION``.
        factor: multiplier of its value.
        options: arguments that the text gives.
    """

    name: str
    factor: float = 1.0
    options: Mapping[str, Given] = field(default_factory=dict)


class OwnLoss(nn.Module):
    """A user-defined loss, with or without ``set_epoch``.

    Args:
        name: ``FILE.py:FUNCTION``.
        loss: the module that it returns.
    """

    def __init__(self, name: str, loss: nn.Module) -> None:
        super().__init__()
        self.name, self.loss = name, loss

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss, a scalar."""
        value: Tensor = self.loss(logits, targets)
        return value

    def set_epoch(self, epoch: float) -> None:
        """Call its ``set_epoch``, if any, with the epoch from 0."""
        if callable(move := getattr(self.loss, "set_epoch", None)):
            move(epoch)

    def set_progress(self, fraction: float) -> None:
        """Call its ``set_progress``, if any, with the fraction of the training in [0, 1]."""
        if callable(move := getattr(self.loss, "set_progress", None)):
            move(fraction)

    def extra_repr(self) -> str:
        """Its name, for ``repr``."""
        return self.name


def build_loss(
    text: str,
    *,
    task: Task,
    num_classes: int,
    counts: Sequence[float],
    num_samples: int,
    epochs: int,
    ignore_index: int,
    sync: bool,
) -> Loss | OwnLoss | SumOfLosses:
    """The loss of a text, ready for training; the text takes precedence over ``ignore_index`` and ``sync``.

    A class without training samples is allowed everywhere: weights by count give it weight 0, and priors and margins
    take it as if it had one sample.

    Args:
        text: see the top of the module.
        task: which losses fit.
        num_classes: C.
        counts: (C,) training samples per class: positives for multi-label data, pixels for segmentation.
        num_samples: training samples.
        epochs: of the training; call ``loss.set_epoch(epoch)`` before each.
        ignore_index: label to ignore.
        sync: share statistics and denominators among processes.

    Raises:
        ValueError: the text or a value cannot be used.

    >>> about = dict(num_classes=3, counts=[90, 9, 0], num_samples=99, epochs=10, ignore_index=-100, sync=False)
    >>> build_loss("ldam(weight=drw)", task=Task.MULTICLASS, **about).set_epoch(8)
    >>> build_loss("bce", task=Task.MULTICLASS, **about)
    Traceback (most recent call last):
    ValueError: loss must be for single-label data or segmentation in task 'multiclass', got bce, which ...
    """
    terms = parse_loss(text)
    for term in terms:
        if not is_own(term.name):
            _check_task(find(term.name), task)
    facts = _Facts(num_classes, tuple(counts), num_samples, epochs, ignore_index, sync)
    built = [_build_own(term, facts, task) if is_own(term.name) else _build(term, facts) for term in terms]
    return built[0] if len(built) == 1 and terms[0].factor == 1.0 else SumOfLosses(built, [t.factor for t in terms])


def loss_trace(loss: nn.Module, task: Task, num_classes: int, ignore_index: int) -> Tensor:
    """Values and gradients of a loss on fixed random batches; equal losses have equal traces.

    The batches have three scales of logits and some ignored rows, at four moments of a training, in the order in which
    a loss with running statistics sees them. So ``focal(gamma=0)`` equals ``ce``, and ``logit-adjusted`` equals
    ``balanced-softmax``, without a list of such pairs. The loss is unchanged.

    >>> same = losses.FocalLoss(0.0), losses.CrossEntropyLoss()
    >>> torch.allclose(*(loss_trace(loss, Task.MULTICLASS, 3, -100) for loss in same))
    True
    """
    draw = torch.Generator().manual_seed(0)
    shape = (24, num_classes, 2, 2) if task.pixels else (24, num_classes)
    own: Any = copy.deepcopy(loss).double().train()
    trace = []
    for moment, scale in itertools.product((0.0, 0.35, 0.7, 0.99), (0.5, 2.0, 8.0)):
        logits = (scale * torch.randn(shape, generator=draw, dtype=torch.float64)).requires_grad_()
        if task.multilabel:
            targets = torch.randint(-1, 2, shape, generator=draw).double()
        else:
            targets = torch.randint(num_classes, (shape[0], *shape[2:]), generator=draw)
            targets[:2] = ignore_index
        own.set_progress(moment)
        value = own(logits, targets)
        trace += [value.detach().reshape(1), torch.autograd.grad(value, logits)[0].reshape(-1)]
    return torch.cat(trace)


def python_call(text: str, *, num_classes: int, num_samples: int, epochs: int, ignore_index: int) -> str | None:
    """The loss of a text as a Python expression for a training loop; ``counts`` are the training counts.

    None if a loss is user-defined or has deferred weights.

    Args:
        text: see the top of the module.
        num_classes: C.
        num_samples: training samples.
        epochs: of the training; included if the loss needs them.
        ignore_index: label to ignore, included in the text unless it is -100.

    >>> about = dict(num_classes=3, num_samples=99, epochs=10, ignore_index=255)
    >>> python_call("balanced-softmax", **about)
    'equipoise.BalancedSoftmaxLoss(counts, ignore_index=255)'
    >>> python_call("focal(gamma=linear(5, 1), weight=inverse)", **about | dict(ignore_index=-100))
    'equipoise.FocalLoss(gamma=equipoise.schedules.Linear(start=5, stop=1),
     weight=equipoise.weights.inverse_frequency(counts), epochs=10)'
    """
    known = {"num_classes": repr(num_classes), "counts": "counts", "num_samples": repr(num_samples)}
    terms = parse_loss(text)
    calls = [_python_term(term, known, epochs, ignore_index) for term in terms]
    if None in calls:
        return None
    factors = ["" if term.factor == 1.0 else f"{term.factor!r} * " for term in terms]
    return " + ".join(f"{factor}{call}" for factor, call in zip(factors, calls, strict=True))


def _python_term(term: Term, known: Mapping[str, str], epochs: int, ignore_index: int) -> str | None:
    """One loss of a sum as a Python expression, or None if there is none."""
    if is_own(term.name):
        return None
    accepted, parameters = _arguments(term.name), inspect.signature(getattr(losses, term.name)).parameters
    required = [name for name, one in parameters.items() if one.default is one.empty]
    first = [known[name] for name in required if name in known]
    options = {name: _as_python(value, known) for name, value in term.options.items()}
    if None in options.values():
        return None
    moves = any("equipoise.schedules." in str(value) for value in options.values())
    if "epochs" in accepted and (moves or "epochs" in required):
        options["epochs"] = repr(epochs)
    if "ignore_index" in accepted and ignore_index != -100:
        options.setdefault("ignore_index", repr(ignore_index))
    return f"equipoise.{term.name}({', '.join([*first, *(f'{name}={value}' for name, value in options.items())])})"


def _as_python(value: Given, known: Mapping[str, str]) -> str | None:
    """A value as a Python expression; None for deferred weights, which need more than an expression."""
    if isinstance(value, Call) and value.name == "others":
        return f"equipoise.losses.smoothing_for({value.arguments[0]!r}, {known['num_classes']})"
    if isinstance(value, Call):
        rule = None if value.name == "drw" else WEIGHTS[value.name].__name__
        return rule and f"equipoise.weights.{rule}({', '.join(['counts', *map(repr, value.arguments)])})"
    if isinstance(value, tuple):
        return f"[{', '.join(filter(None, (_as_python(one, known) for one in value)))}]"
    return f"equipoise.schedules.{value!r}" if isinstance(value, Schedule) else repr(value)


def parse_loss(text: str) -> tuple[Term, ...]:
    """The terms of a text, checked as far as that is possible without data.

    >>> parse_loss("ce + 0.5 * dice(per_image=True)")
    (Term(name='CrossEntropyLoss', factor=1.0, options={}),
     Term(name='DiceLoss', factor=0.5, options={'per_image': True}))
    """
    check_names(text)
    expression = parse(text)
    if not isinstance(expression, Sum):
        raise ValueError(f"it must be a loss, got the method {text}; give it as --method {text}")
    return tuple(_term(factor, call) for factor, call in expression.terms)


# ---------------------------------------------------------------------------------------------------------------------
# Building
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Facts:
    """Arguments of losses that data and run provide."""

    num_classes: int
    counts: tuple[float, ...]
    num_samples: int
    epochs: int
    ignore_index: int
    sync: bool


def _check_task(entry: Entry, task: Task) -> None:
    if entry.link in task.losses:
        return
    fitting = ", ".join(other.text for other in CATALOGUE if other.link in task.losses)
    raise ValueError(
        f"loss must be for {MEANT_FOR[task.link]} in task {task!r}, got {entry.text}, which is for "
        f"{MEANT_FOR[entry.link]}; take one of {fitting}"
    )


def _build(term: Term, facts: _Facts) -> Loss:
    """A loss from the facts that it accepts and the options in the text."""
    given: dict[str, Any] = {key: value for key, value in vars(facts).items() if key in _arguments(term.name)}
    for key, value in term.options.items():
        given[key] = _from_facts(value, facts) if isinstance(value, Call) else value
    if term.name == "LovaszSoftmaxLoss" and not given.get("per_image") and "sync" not in term.options:
        given["sync"] = False  # its sort stays inside a process: each process has its own loss, and DDP averages them
    if "num_samples" in given and max(facts.counts) >= facts.num_samples:
        raise ValueError(
            f"{term.name}: every label must be absent from some training sample, got one that all {facts.num_samples} "
            "have; leave that label out or take asl"
        )
    try:
        loss: Loss = getattr(losses, term.name)(**given)
        check_layout(loss.layout, facts.num_classes)
        _check_schedules(loss, facts.epochs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{term.name}: {error}") from None
    return loss


def _build_own(term: Term, facts: _Facts, task: Task) -> OwnLoss:
    """A loss from user code, tried on two samples before the training."""
    options: dict[str, Any] = dict(term.options)
    for key, value in term.options.items():
        if isinstance(value, Call):
            weights = _from_facts(value, facts)
            options[key] = weights.float() if isinstance(weights, Tensor) else weights  # as losses of torch take them
    try:
        loss = made_by(term.name, "loss", needed={}, offered=vars(facts), options=options, called_with=2)
        _try(term.name, loss, facts.num_classes, task)
    except (OSError, RuntimeError, TypeError) as error:
        raise ValueError(str(error)) from error
    return OwnLoss(term.name, loss)


def _try(name: str, loss: nn.Module, num_classes: int, task: Task) -> None:
    """Raise unless a loss returns a number with a gradient and has no weights."""
    if any(weight.requires_grad for weight in loss.parameters()):
        raise ValueError(
            f"{name} must have no weights, got {sum(1 for _ in loss.parameters())}, which nothing would train; put "
            "them into the model, or register them as buffers"
        )
    places = (4, 4) if task.pixels else ()
    logits = torch.zeros(2, num_classes, *places, requires_grad=True)
    targets = torch.zeros(2, num_classes) if task.multilabel else torch.zeros(2, *places, dtype=torch.int64)
    given = f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
    own = OwnLoss(name, copy.deepcopy(loss))  # a copy: statistics of the loss stay untouched
    try:
        own.set_epoch(0)
        value = own(logits, targets)
    except Exception as error:
        raise ValueError(f"{name} fails on {given} with {type(error).__name__}: {error}; mend it there") from error
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        actual = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        gradient = " without a gradient" if isinstance(value, Tensor) and not value.requires_grad else ""
        raise ValueError(
            f"{name} must make one number with a gradient of {given}, got {actual}{gradient}; reduce it, e.g. by "
            "mean(), and detach nothing"
        )


def _check_schedules(loss: Loss, epochs: int) -> None:
    """Raise now if a schedule leaves its range in some epoch."""
    for epoch in range(epochs if loss.scheduled else 0):
        merge_values(loss.parts, Moment(epoch / epochs, epoch, epochs))


def _weights(rule: Call, counts: Sequence[float]) -> Tensor | Deferred:
    """Class weights by a rule on the counts."""
    return _called(rule, WEIGHTS[rule.name], counts)


def _from_facts(rule: Call, facts: _Facts) -> Tensor | Deferred | float:
    """Class weights, or label smoothing that depends on the number of classes."""
    if rule.name in WEIGHTS:
        return _weights(rule, facts.counts)
    return smoothing_for(rule.arguments[0], facts.num_classes)  # type: ignore[arg-type]  # a number, see _option


def _called(call: Call, make: Callable[..., _Made], *first: object) -> _Made:
    """Call ``make`` with the arguments of a text."""
    signature = inspect.signature(make)
    try:
        signature.bind(*first, *call.arguments)
        return make(*first, *call.arguments)
    except (TypeError, ValueError) as error:
        usage = f"{call.name}({','.join(list(signature.parameters)[len(first) :])})"
        raise ValueError(f"{usage} must get arguments that fit, got {call.arguments}: {error}") from None


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def _term(factor: Value, call: Call) -> Term:
    """A loss with its arguments checked."""
    name = call.name if is_own(call.name) else find(call.name).name
    read = {key: _option(name, key, value) for key, value in call.options}
    if not isinstance(factor, (int, float)):
        raise ValueError(f"the factor of {name} must be one number, got {factor}; write e.g. 0.5 * dice")
    return Term(name, float(check_number(f"the factor of {name}", factor, low=0.0, open_low=True)), read)


def _option(name: str, key: str, given: Value) -> Given:
    """The value of one option, of a kind that the argument accepts; user-defined losses are checked when built."""
    arguments, text = None if is_own(name) else _arguments(name), str(given)
    if key in FROM_THE_RUN:
        raise ValueError(f"{name} must get {key} from the data and the run, got {text!r}; leave it out")
    if arguments is not None and key not in arguments:
        free = [one for one in arguments if one not in FROM_THE_RUN]
        raise ValueError(f"{name} must get options that it knows, got {key!r}; {nearest(key, free)}")
    if isinstance(given, Choices):
        raise ValueError(f"{key} of {name} must be one value, got {text}; candidates are for equipoise compare")
    if key == "weight" and isinstance(given, (str, Call)):
        return _weight_rule(given)
    if key == "label_smoothing" and isinstance(given, Call) and given.name == "others":
        return _others(given)
    value = _scheduled(given)
    if arguments is not None and not _fits(value, arguments[key]):
        expected = " or ".join(dict.fromkeys(KINDS[kind] for kind in arguments[key] if kind in KINDS))
        known = f"known rules are {', '.join(WEIGHTS)}" if key == "weight" else f"see `equipoise losses {name}`"
        raise ValueError(f"{key} of {name} must be {expected}, got {text!r}; {known}")
    return value


def is_argument(name: str, key: str) -> bool:
    """Whether a loss of the catalogue has this argument, and a text can set it."""
    return key in _arguments(find(name).name) and key not in FROM_THE_RUN


def _arguments(name: str) -> dict[str, tuple[type, ...]]:
    """Arguments of a loss and the kinds of values that they accept."""
    return {key: _kinds(hint) for key, hint in (arguments_of(getattr(losses, name)) or {}).items()}


def _kinds(hint: Any) -> tuple[type, ...]:  # noqa: ANN401
    """The types of an annotation that a text can express."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in _kinds(part))
    origin = typing.get_origin(hint) or hint
    if origin is Sequence:
        return (Pairs,) if typing.get_origin(typing.get_args(hint)[0]) is tuple else (tuple,)
    return (str,) if origin is Literal else (origin,)


def _fits(value: Given, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, Schedule):
        return Schedule in kinds
    if isinstance(value, tuple):
        flat = bool(value) and all(_fits(item, (float,)) for item in value)
        return flat if tuple in kinds else Pairs in kinds and all(map(_is_pair, value))
    return type(value) in kinds or (type(value) is int and float in kinds)


def _is_pair(value: Given) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_fits(item, (float, Schedule)) for item in value)


def _weight_rule(value: str | Call) -> Call:
    rule = value if isinstance(value, Call) else Call(value)
    if rule.name not in WEIGHTS:
        raise ValueError(f"weight must be numbers or a rule, got {rule.name!r}; {nearest(rule.name, WEIGHTS)}")
    _weights(rule, [1.0])  # reports errors in the arguments without data
    return rule


def _others(rule: Call) -> Call:
    """Label smoothing by the mass of the other classes, checked without the number of classes."""
    if len(rule.arguments) != 1 or not _fits(rule.arguments[0], (float,)):
        raise ValueError(f"others(alpha) must get one number, got {rule}; write e.g. label_smoothing=others(0.05)")
    check_number("alpha of others", rule.arguments[0], low=0.0, high=1.0, open_high=True)  # type: ignore[arg-type]
    return rule


def _scheduled(value: Value) -> Given:
    """The value with calls turned into schedules."""
    if isinstance(value, tuple):
        return tuple(map(_scheduled, value))
    if not isinstance(value, Call):
        return value
    if value.name not in SCHEDULES:
        raise ValueError(f"a schedule must be one that is known, got {value.name!r}; {nearest(value.name, SCHEDULES)}")
    return _called(value, SCHEDULES[value.name])
