"""Results as frozen dataclasses with JSON as their serialisation, checked against their types. Without torch."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from equipoise._reading import InputError

__all__ = ["INLINED", "Record"]

WORDS: dict[Any, str] = {
    float: "a number",
    int: "an integer",
    str: "a string",
    bool: "a boolean",
    dict: "an object",
    **dict.fromkeys((list, tuple, Sequence), "a list"),
}
INLINED = "inlined"
"""Metadata of a field whose entries are inlined beside the other fields in JSON."""
HINT = "read attributes instead: items of results are deprecated"


class MisfitError(ValueError):
    """Content of a wrong type; the message names its location."""


class Record:
    """Base class of frozen dataclasses that are stored as JSON objects.

    Fields that are None by default are omitted from the JSON if they are None; unknown keys are ignored when it is
    read. Items, ``result["overall"]``, are deprecated in favour of attributes.
    """

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and values."""
        content: dict[str, Any] = {}
        for one in _declared(type(self)):
            value = getattr(self, one.name)
            if one.metadata.get(INLINED):
                content |= value
            elif value is not None or one.default is MISSING:
                content[one.name] = _plain(value)
        return content

    @classmethod
    def from_json(
        cls, content: object, *, where: str | Path = "the content", place: str = "", advice: str = "write it again"
    ) -> Self:
        """The record from the output of ``to_json``.

        Args:
            content: JSON.
            where: name for error messages, usually the file.
            place: location of the content in the file.
            advice: remedy for a damaged file.

        Raises:
            InputError: a value is missing or of another type.
        """
        try:
            record: Self = _parsed(cls, content, place)
        except MisfitError as misfit:
            raise InputError(f"{where}: {misfit}; {advice}") from None
        return record

    def keys(self) -> list[str]:
        """The keys of ``to_json``."""
        return list(self.to_json())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401
        warnings.warn(f"[{key!r}]: {HINT}", DeprecationWarning, stacklevel=2)
        for one in _declared(type(self)):
            value = getattr(self, one.name)
            if one.metadata.get(INLINED) and key in value:
                return value[key]
            if one.name == key and not (value is None and one.default is None):
                return value
        raise KeyError(key)


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _declared(kind: type) -> list[Field[Any]]:
    """The fields of a dataclass without those that it computes itself."""
    return [one for one in fields(kind) if one.init]


@lru_cache
def _fields(kind: type) -> list[tuple[str, Any, bool, bool]]:
    """Name and type of the fields of a dataclass, whether they may be missing, and whether they are inlined."""
    hints = get_type_hints(kind)
    return [
        (one.name, hints[one.name], (one.default, one.default_factory) != (MISSING, MISSING), INLINED in one.metadata)
        for one in _declared(kind)
    ]


def _parsed(kind: Any, content: Any, place: str) -> Any:  # noqa: ANN401
    """Content as a value of a type."""
    if kind is Any:
        return content
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if content is None and type(None) in inside:
            return None
        return _alternative([one for one in inside if one is not type(None)], content, place)
    if origin is Literal:
        return content if content in inside else _refuse(f"one of {', '.join(map(str, inside))}", content, place)
    if origin is dict:
        if not isinstance(content, dict):
            _refuse(WORDS[dict], content, place)
        return {key: _parsed(inside[1], value, f"{place}.{key}") for key, value in content.items()}
    if origin in (list, tuple, Sequence):
        if not isinstance(content, (list, tuple)):
            _refuse(WORDS[list], content, place)
        kinds = inside if origin is tuple and inside[-1] is not ... else inside[:1] * len(content)
        if len(kinds) != len(content):
            _refuse(f"a list of {len(kinds)}", content, place)
        return (list if origin is Sequence else origin)(
            _parsed(one, value, f"{place}.{k}") for k, (one, value) in enumerate(zip(kinds, content, strict=True))
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(kind, content, place)
    if is_dataclass(kind):
        return _record(kind, content, place)  # type: ignore[arg-type]
    if kind is float and content in ("inf", "-inf"):  # --json writes non-finite numbers as strings
        return float(content)
    fits = isinstance(content, (int, float) if kind is float else kind) and isinstance(content, bool) == (kind is bool)
    return content if fits else _refuse(WORDS[kind], content, place)


def _member(kind: type[Enum], content: Any, place: str) -> Enum:  # noqa: ANN401
    try:
        return kind(content)
    except ValueError:
        return _refuse(f"one of {', '.join(str(one.value) for one in kind)}", content, place)  # type: ignore[no-any-return]


def _alternative(kinds: Sequence[Any], content: Any, place: str) -> Any:  # noqa: ANN401
    """Content as a value of the first type that it fits."""
    if len(kinds) == 1:
        return _parsed(kinds[0], content, place)
    for kind in kinds:
        with suppress(MisfitError):
            return _parsed(kind, content, place)
    return _refuse(" or ".join(WORDS[get_origin(kind) or kind] for kind in kinds), content, place)


def _record(kind: type, content: Any, place: str) -> Any:  # noqa: ANN401
    if not isinstance(content, dict):
        _refuse(WORDS[dict], content, place)
    known = {name for name, *_ in _fields(kind)}
    values = {}
    for name, field_type, optional, inline in _fields(kind):
        if inline:
            others = {key: value for key, value in content.items() if key not in known}
            values[name] = _parsed(field_type, others, place)
        elif name in content:
            values[name] = _parsed(field_type, content[name], f"{place}.{name}")
        elif not optional:
            raise MisfitError(f"{place}.{name} is missing".lstrip("."))
    return kind(**values)


def _refuse(expected: str, content: object, place: str) -> Any:  # noqa: ANN401
    text = repr(content)
    shown = text if len(text) <= 40 else f"{text[:40]} ..."
    raise MisfitError(f"{place.lstrip('.') or 'the content'} must be {expected}, found {shown}")
