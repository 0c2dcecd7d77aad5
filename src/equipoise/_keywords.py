"""Errors for unknown keyword arguments, with suggestions."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from equipoise._suggestions import nearest

if TYPE_CHECKING:
    from torch import nn

__all__: list[str] = []

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


@functools.cache
def arguments_of(made: Callable[..., Any]) -> Mapping[str, Any] | None:
    """Arguments of a class or a function, including those in ``**options``, and their annotations, or None."""
    make, bound = (made.__init__, 1) if isinstance(made, type) else (made, 0)  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(make)
    except NameError:  # annotations of a user's class that only type checkers can evaluate
        return None
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(make).parameters.items())[bound:]:
        if hints.get(name) is typing.Never:  # arguments rejected by name
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            options = typing.get_args(hints.get(name))
            if not options:
                return None
            found |= typing.get_type_hints(options[0])
        else:
            found[name] = hints.get(name, Any)
    return found


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


def refuse_call(loss: nn.Module, unknown: Mapping[str, object]) -> NoReturn:
    """Raise for keyword arguments that the ``forward`` of a loss does not accept."""
    made: Callable[..., Any] = type(loss)
    key = next(iter(unknown))
    known = [one.name for one in inspect.signature(loss.forward).parameters.values() if one.kind is not one.VAR_KEYWORD]
    earlier = key in (arguments_of(made) or ())
    _refuse(f"a call of {made.__name__}", key, known, f"set it in {made.__name__}({key}=...)" if earlier else None)


def _refuse(name: str, key: str, known: Collection[str], hint: str | None = None) -> NoReturn:
    same = ELSEWHERE.get(key)
    if same in known:
        hint = f"pass {same}={key}"
    elif key in EXPLAINED and "weight" in known:
        hint = EXPLAINED[key]
    elif hint is None:
        hint = nearest(key, known, otherwise=f"it takes {', '.join(known)}")
    raise TypeError(f"{name} got an unexpected keyword argument {key!r}; {hint}")
