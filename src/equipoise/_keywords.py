"""Errors for unknown keyword arguments, with suggestions."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from equipoise._suggestions import nearest

if TYPE_CHECKING:
    from torch import nn

__all__: list[str] = []

Function = TypeVar("Function", bound=Callable[..., Any])

ELSEWHERE = {
    "clip": "margin",
    "cls_num_list": "counts",
    "disable_torch_grad_focal_loss": "detach_focus",
    "num_items_in_batch": "normalizer",
    "s": "scale",
    "samples_per_class": "counts",
    "samples_per_cls": "counts",
}
"""Names of arguments in published code and other libraries."""
EXPLAINED = {
    "alpha": "pass one number per class as weight; one number for the positives is alpha of BinaryFocalLoss",
    "pos_weight": "BinaryCrossEntropyLoss has it; weight of this one applies to positives and negatives of a class",
}
"""Arguments of other losses similar to ``weight``, with advice."""


def written_out(
    function: Callable[..., Any], shared: Sequence[Callable[..., Any]] = (), changed: Mapping[str, Any] | None = None
) -> inspect.Signature:
    """The signature with types, in which ``**options: Unpack[SomeDict]`` is expanded to keyword arguments.

    Args:
        function: a function, or the ``__init__`` of a class.
        shared: functions or classes that receive the options, in this order; they define the defaults.
        changed: defaults that differ.

    Signatures without such an annotation are unchanged.
    """
    signature = inspect.signature(function)
    try:
        hints = typing.get_type_hints(function)
    except NameError:
        return signature
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        known = typing.get_args(hints.get(name)) if parameter.kind is parameter.VAR_KEYWORD else ()
        if known:
            options, defaults = typing.get_type_hints(known[0]), dict[str, Any]()
            for one in (one for other in shared for one in inspect.signature(other).parameters.values()):
                defaults.setdefault(one.name, one.default)
            defaults |= changed or {}
            parameters += [_keyword(name, defaults[name], options[name]) for name in defaults if name in options]
        else:
            parameters.append(parameter.replace(annotation=hints.get(name, parameter.annotation)))
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", signature.return_annotation))


def _keyword(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class RealSignature:
    """The ``__signature__`` of a class: that of ``__init__``, with ``written_out`` options of its base classes.

    It applies to classes only: the signature of an instance is that of its ``__call__``. ``option_defaults`` of the
    class holds the defaults that differ from those of the base class.
    """

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return _constructor_signature(owner)


@functools.cache
def _constructor_signature(made: type) -> inspect.Signature:
    first, *others = [vars(base)["__init__"] for base in made.__mro__ if "__init__" in vars(base)]
    signature = written_out(first, others, getattr(made, "option_defaults", None))
    return signature.replace(parameters=list(signature.parameters.values())[1:], return_annotation=signature.empty)


def checks_keywords(function: Function) -> Function:
    """Decorator: unknown keyword arguments raise an error with suggestions."""
    known = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:  # noqa: ANN401
        for key in options:
            if key not in known:
                _refuse(function.__name__, key, known)
        return function(*args, **options)

    return called  # type: ignore[return-value]


def takes_options_of(
    shared: Callable[..., Any],
    *,
    shown: Mapping[str, Any] | None = None,
    **changed: Any,  # noqa: ANN401
) -> Callable[[Function], Function]:
    """Decorator: expand the ``**options`` passed to ``shared`` in the signature, some with ``changed`` defaults.

    Defaults that are ``shown`` are set by the function itself.
    """

    def decorate(function: Function) -> Function:
        function.__signature__ = written_out(function, [shared], {**(shown or {}), **changed})  # type: ignore[attr-defined]
        if not changed:
            return checks_keywords(function)

        @functools.wraps(function)
        def called(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            return function(*args, **(changed | options))

        return checks_keywords(called)  # type: ignore[return-value]

    return decorate


@functools.cache
def arguments_of(made: Callable[..., Any]) -> Mapping[str, Any] | None:
    """Arguments of a class or a function, and their types; None if ``**`` accepts anything."""
    parameters = inspect.signature(made).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {one.name: Any if one.annotation is one.empty else one.annotation for one in parameters}


NUMBERS = ("alpha", "gamma", "gamma_pos", "keep", "strength")
"""First arguments of losses that are a number or an exponent."""


def check_first(made: type, first: object) -> None:
    """Raise if the first positional argument of a loss is a vector, meant as class weights."""
    vector = isinstance(first, (list, tuple)) or bool(getattr(first, "ndim", False))
    known = arguments_of(made) if vector and made.__init__.__module__.startswith("equipoise.") else None  # type: ignore[misc]
    name = next(iter(known or ()), "")
    if known is None or name not in NUMBERS:
        return
    advice = "pass one number, class weights as weight=..." if "weight" in known else "pass one number"
    if name.startswith("gamma"):
        advice += f", one exponent per class as a keyword argument, {name}=..."
    raise TypeError(f"the first argument of {made.__name__} is {name}, got {type(first).__name__} {first!r}; {advice}")


def check_keywords(made: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Raise if a class or a function does not accept an argument."""
    known = arguments_of(made) if given else None
    unknown = [key for key in given if known is not None and key not in known]
    if known is not None and unknown:
        _refuse(made.__name__, unknown[0], known)


def call_keywords(made: type[nn.Module]) -> tuple[str, ...] | None:
    """Names of the arguments of ``forward``; None if ``**`` accepts anything."""
    _, *parameters = inspect.signature(made.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)


def check_call(made: type[nn.Module], given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise if a module is called with a keyword argument not in ``known``, those of its ``forward``."""
    for key in given:
        if key not in known:
            earlier = key in inspect.signature(made).parameters
            _refuse(
                f"a call of {made.__name__}", key, known, f"set it in {made.__name__}({key}=...)" if earlier else None
            )


def _refuse(name: str, key: str, known: Collection[str], hint: str | None = None) -> NoReturn:
    same = ELSEWHERE.get(key)
    if same in known:
        hint = f"pass {same}={key}"
    elif key in EXPLAINED and "weight" in known:
        hint = EXPLAINED[key]
    elif hint is None:
        hint = nearest(key, known, otherwise=f"it takes {', '.join(known)}")
    raise TypeError(f"{name} got an unexpected keyword argument {key!r}; {hint}")
