"""Flags of a command from the settings of a spec: one per setting, with its help and validation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from equipoise._reading import SHOWN, parse_yaml
from equipoise.cli.console import fail
from equipoise.train.spec import SharedSpec, read_spec

__all__ = ["given_settings", "settled", "with_settings"]

Spec = TypeVar("Spec", bound=SharedSpec)


def with_settings(spec: type[BaseModel], groups: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a flag for each setting of the spec to a command, which receives the used ones as ``**settings``.

    Args:
        spec: the settings.
        groups: headings of the help, in their order.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        fields = sorted(spec.model_fields.items(), key=lambda item: groups.index(_group(item[1])))
        flags = [_parameter(name, field) for name, field in fields]
        parameters = sorted([*kept, *flags], key=lambda one: one.default is not inspect.Parameter.empty)

        def decorated(**values: Any) -> None:  # noqa: ANN401
            command(**values)

        decorated.__name__, decorated.__doc__ = command.__name__, command.__doc__
        decorated.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        decorated.__annotations__ = {one.name: one.annotation for one in parameters}
        return decorated

    return decorate


def settled(
    spec: type[Spec], file: Path | None, out: Path | None, flags: Mapping[str, Any], command: str, *, here: bool = True
) -> tuple[Spec, Path | None]:
    """Settings from a YAML file and from flags, which take precedence, and the folder; errors exit with status 2.

    Checks that do not need torch run first, so that most mistakes are reported without its import time. With ``here``
    the data must be on this machine.
    """
    try:
        stored = {} if file is None else read_spec(file)
        place = stored.pop("out", None)
        if not isinstance(place, (str, NoneType)):
            raise ValueError(f"{file}: out must be the path of a folder, got {str(place)[:SHOWN]}; write it as text")
        place = place if out is None else out
        settings, where = stored | given_settings(flags), str(file or command.removeprefix("equipoise "))
        spec.check(settings, where, quick=True, here=here)
        checked = spec.check(settings, where)
    except ValueError as error:
        fail(error)
    return checked, None if place is None else Path(place)


def given_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose flags were used; ``--model-options key=value`` as a dict."""
    given = {name: value for name, value in values.items() if value is not None and value != []}
    if "model_options" in given:
        given["model_options"] = dict(_pair(text) for text in given["model_options"])
    return given


def _group(field: FieldInfo) -> str:
    """The heading of a setting in the help."""
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    return str(extra["group"])


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """A flag without a default: the spec has the default and validates the value."""
    text = field.description or ""
    if field.default not in (PydanticUndefined, None, "", False, {}, ()):
        text += f" [{_shown(field.default)}]"
    flag = f"--{name.replace('_', '-')}"
    options: dict[str, Any] = {"help": text, "rich_help_panel": _group(field), "show_default": False}
    kinds = {field.annotation, *get_args(field.annotation)} - {NoneType}
    annotation: Any
    if kinds == {bool}:
        annotation = Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", **options)]
    elif name == "model_options":
        annotation = Annotated[list[str] | None, typer.Option(flag, metavar="KEY=VALUE", **options)]
    else:
        annotation = Annotated[str | None, typer.Option(flag, metavar="", **options)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _shown(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    with suppress(Exception):  # parsing a text can raise any error
        if equals:
            return key, parse_yaml(value)
    raise ValueError(f"--model-options must be key=value, got {text!r}; for example width=16 or hidden=[64,64]")
