"""Where a comparison comes from: the command that repeats it, its settings, and the machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.spec import CompareSpec
from equipoise.report.page import Section, Table
from equipoise.report.runs import ComparedLoss
from equipoise.report.words import things

__all__ = ["command_of", "origin_section"]


def command_of(spec: Mapping[str, Any], out: str) -> str:
    """The command that gives these settings, those that are as usual left out.

    >>> command_of({"data": "digits-lt", "losses": ["ce", "focal(gamma=[1, 2])"], "seeds": [0, 1], "epochs": 30}, "out")
    "equipoise compare --data digits-lt --losses 'ce focal(gamma=[1, 2])' --seeds 2 --out out"
    """
    words = ["equipoise", "compare"]
    for name, field in CompareSpec.model_fields.items():
        value = spec.get(name)
        if name not in spec or value is None or _flat(value) == _flat(field.default):
            continue
        flag = f"--{name.replace('_', '-')}"
        if name in ("losses", "methods"):
            words += [flag, " ".join(value)]
        elif name == "seeds":
            first = list(value) == list(range(len(value)))
            words += [flag, str(len(value)) if first else _flat(value) + ("," if len(value) == 1 else "")]
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, Mapping):
            words += [word for option in _options(value) for word in (flag, option)]
        else:
            words += [flag, _flat(value)]
    return shlex.join([*words, "--out", out])


def origin_section(folder: ComparisonFolder, losses: Sequence[ComparedLoss]) -> Section:
    """Command, data, model, machine and settings."""
    about = losses[0].about
    machines = [
        run.about["environment"] | {"equipoise": run.about["equipoise"]} for loss in losses for run in loss.runs
    ]
    known = {
        "data": _data(about["data"]),
        "model": f"{about['model']['name']}, {about['model']['parameters']:,} weights",
        **_distinct(machines),
    }
    defaults = {name: field.default for name, field in CompareSpec.model_fields.items()}
    settings = [
        [name.replace("_", " "), _flat(value) or "–", "" if _flat(value) == _flat(defaults.get(name)) else "given"]
        for name, value in folder.spec.items()
    ]
    return Section(
        "How to repeat it",
        "Given again beside this folder, the command finds what is finished and repeats nothing; elsewhere it repeats "
        "everything.",
        code=command_of(folder.spec, folder.path.resolve().name),
        notes=about["data"]["notes"],
        parts=[
            Section("Data, model and machine", tables=[Table(["", ""], [*known.items()], words=True)]),
            Section("All settings", tables=[Table(["setting", "value", ""], settings, words=True)], folded=True),
        ],
    )


def _data(about: Mapping[str, Any]) -> str:
    counts = [f"{count:,} {word}" for word, count in about["samples"].items()]
    return f"{about['name']}: samples {', '.join(counts)}; {len(about['class_names'])} {things(about['task'])}"


def _distinct(machines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Every value of each key."""
    keys = dict.fromkeys(key for one in machines for key in one)
    values = {key: dict.fromkeys(_flat(one[key]) for one in machines if key in one) for key in keys}
    return {key.replace("_", " "): ", ".join(found) for key, found in values.items()}


def _flat(value: object) -> str:
    """A setting as a flag gives it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(_flat, value))
    if isinstance(value, Mapping):
        return " ".join(_options(value))
    return "" if value is None else str(value)


def _options(options: Mapping[str, Any]) -> list[str]:
    return [f"{key}={item if isinstance(item, str) else json.dumps(item)}" for key, item in options.items()]
