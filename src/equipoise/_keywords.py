"""Keyword arguments that nobody knows: an error that names the ones that come near."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from equipoise._nearest import nearest

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
"""Arguments under the names that published code, other libraries and their trainers give them."""
EXPLAINED = {
    "alpha": "pass one number for each class as weight; one number for the positives is alpha of BinaryFocalLoss",
    "pos_weight": "BinaryCrossEntropyLoss has it; weight of this one is for positives and negatives of a class alike",
}
"""Arguments of other losses that come near ``weight``, and what to do about them."""


@functools.cache
def arguments_of(made: Callable[..., Any]) -> Mapping[str, Any] | None:
    """Arguments of a class or a function, and their annotations; None where these say nothing.

    Those behind ``**options`` are among them.
    """
    make, bound = (made.__init__, 1) if isinstance(made, type) else (made, 0)  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(make)
    except NameError:  # annotations of a class of the user's that only type checkers can read
        return None
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(make).parameters.items())[bound:]:
        if hints.get(name) is typing.Never:  # what is refused by name
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
"""First arguments of losses that are a number, or an exponent."""


def check_first(made: type, first: object) -> None:
    """Raise where the first argument of a loss, by position, is a vector, which is meant as class weights elsewhere."""
    vector = isinstance(first, (list, tuple)) or bool(getattr(first, "ndim", False))
    known = arguments_of(made) if vector and made.__init__.__module__.startswith("equipoise.") else None  # type: ignore[misc]
    name = next(iter(known or ()), "")
    if known is None or name not in NUMBERS:
        return
    advice = "pass one number, class weights as weight=..." if "weight" in known else "pass one number"
    if name.startswith("gamma"):
        advice += f", an exponent for each class by keyword, {name}=..."
    raise TypeError(f"the first argument of {made.__name__} is {name}, got {type(first).__name__} {first!r}; {advice}")


def check_keywords(made: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Raise where a class or a function does not take an argument."""
    known = arguments_of(made) if given else None
    unknown = [key for key in given if known is not None and key not in known]
    if known is not None and unknown:
        _refuse(made.__name__, unknown[0], known)


def refuse_call(loss: nn.Module, unknown: Mapping[str, object]) -> NoReturn:
    """Raise because a loss was called with keywords that its ``forward`` does not take."""
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
