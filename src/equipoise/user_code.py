"""Models and losses from user code, given as ``FILE.py:NAME``."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from equipoise._suggestions import nearest

__all__ = ["made_by"]


def made_by(
    name: str,
    what: str,
    *,
    needed: Mapping[str, Any],
    offered: Mapping[str, Any],
    options: Mapping[str, Any],
    offer_all: bool = False,
    called_with: int = 0,
) -> nn.Module:
    """Call the class or function ``NAME`` of ``FILE.py:NAME`` with keyword arguments.

    The folder of the file is on the path while the file is imported and the function runs.

    Args:
        name: ``FILE.py:NAME``.
        what: kind of result, for messages.
        needed: arguments that it must accept.
        offered: arguments that are passed if its signature has them.
        options: arguments given by the user, which it must accept.
        offer_all: pass everything to a function with ``**kwargs``.
        called_with: a function with exactly this number of further arguments is the result itself, not a builder.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file does not define the name.
        TypeError: it does not accept an argument, or does not return an ``nn.Module``.
        RuntimeError: it raises an error; the message names the line.
    """
    path, _, inside = name.rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(
            f"name must be FILE.py:function, got {name!r}; say which function of the file makes the {what}"
        )
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise FileNotFoundError(
            f"name must be FILE.py:function with a file that exists, got {name!r}; there is no {file}"
        )
    with _on_path(file.parent):
        module = _module_of(file)
        maker = getattr(module, inside, None)
        if not callable(maker):
            callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise ValueError(f"name must end in a function of {file}, got {inside!r}; {nearest(inside, callables)}")
        arguments, missing = _arguments(name, maker, needed, offered, options, offer_all)
        if inspect.isfunction(maker) and missing and len(missing) == called_with:
            return _Function(maker, arguments)
        if missing:
            raise TypeError(
                f"{name} must make the {what} of what a run knows ({', '.join((*needed, *offered))}) and of options, "
                f"got a function that needs {', '.join(missing)}; give these as options, or let it return an nn.Module"
            )
        with _blaming(name, file):
            made = maker(**arguments)
    if not isinstance(made, nn.Module):
        raise TypeError(f"{name} must return an nn.Module, got {type(made).__name__}; return the {what} itself")
    return made


class _Function(nn.Module):
    """A function as a module, with keyword arguments bound in advance."""

    def __init__(self, function: Callable[..., Any], known: Mapping[str, Any]) -> None:
        super().__init__()
        self.function, self.known = function, known

    def forward(self, *values: Any) -> Any:  # noqa: ANN401
        """Apply the function."""
        return self.function(*values, **self.known)


def _arguments(
    name: str,
    maker: Callable[..., Any],
    needed: Mapping[str, Any],
    offered: Mapping[str, Any],
    options: Mapping[str, Any],
    offer_all: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Its keyword arguments, and the names of missing ones."""
    parameters = inspect.signature(maker).parameters.values()
    named = {one.name: one for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for key in (*needed, *options):
        if key not in named and not takes_all:
            raise TypeError(
                f"{name} must accept {key!r} as a keyword, got a function of ({', '.join(named)}); add the argument"
                + ("" if key in needed else f" or omit the option; {nearest(key, named)}")
            )
    taken = {key: value for key, value in offered.items() if key in named or (takes_all and offer_all)}
    given = {**needed, **taken, **options}
    return given, [key for key, one in named.items() if one.default is one.empty and key not in given]


def _module_of(file: Path) -> ModuleType:
    """Import the file as a module of its own name, so that its definitions can be pickled and inspected."""
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
    """Report any error inside as an error of the user's file, with its line."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SyntaxError):
            where = f"{error.filename}, line {error.lineno}"
        else:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
            where = f"{file}, line {lines[-1]}" if lines else str(file)
        raise RuntimeError(f"{what} failed with {type(error).__name__}: {error} ({where}); fix it there") from error
