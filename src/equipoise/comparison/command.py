"""The command line of a comparison."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from equipoise.comparison.spec import CompareSpec

__all__ = ["command_of", "flat"]


def command_of(spec: Mapping[str, Any], out: str) -> str:
    """The command line with these settings; defaults are omitted.

    >>> command_of({"data": "digits-lt", "losses": ["ce", "focal(gamma=[1, 2])"], "seeds": [0, 1], "epochs": 30}, "out")
    "equipoise compare --data digits-lt --losses 'ce focal(gamma=[1, 2])' --seeds 2 --out out"
    """
    words = ["equipoise", "compare"]
    for name, field in CompareSpec.model_fields.items():
        value = spec.get(name)
        if name not in spec or value is None or flat(value) == flat(field.default):
            continue
        flag = f"--{name.replace('_', '-')}"
        if name in ("losses", "methods"):
            words += [flag, " ".join(value)]
        elif name == "seeds":
            first = list(value) == list(range(len(value)))
            words += [flag, str(len(value)) if first else flat(value) + ("," if len(value) == 1 else "")]
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, Mapping):
            words += [word for option in _options(value) for word in (flag, option)]
        else:
            words += [flag, flat(value)]
    return shlex.join([*words, "--out", out])


def flat(value: object) -> str:
    """A setting as the value of a command-line option."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(flat, value))
    if isinstance(value, Mapping):
        return " ".join(_options(value))
    return "" if value is None else str(value)


def _options(options: Mapping[str, Any]) -> list[str]:
    return [f"{key}={item if isinstance(item, str) else json.dumps(item)}" for key, item in options.items()]
