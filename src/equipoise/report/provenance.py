"""Provenance of a comparison: the command that reproduces it, its settings, and the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.comparison.command import command_of, flat
from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.spec import CompareSpec
from equipoise.report.page import Section, Table
from equipoise.report.runs import ComparedLoss
from equipoise.train.record import DataRecord

__all__ = ["provenance_section"]


def provenance_section(folder: ComparisonFolder, losses: Sequence[ComparedLoss]) -> Section:
    """Command, data, model, machine and settings."""
    record = losses[0].record
    records = [run.record for loss in losses for run in loss.runs]
    machines = [one.environment.to_json() | {"equipoise": one.equipoise} for one in records]
    rows = {
        "data": _data(record.data),
        "model": f"{record.model.name}, {record.model.parameters:,} weights",
        **_distinct(machines),
    }
    defaults = {name: field.default for name, field in CompareSpec.model_fields.items()}
    settings = [
        [name.replace("_", " "), flat(value) or "–", "" if flat(value) == flat(defaults.get(name)) else "given"]
        for name, value in folder.spec.items()
    ]
    return Section(
        "Reproduce",
        "Beside this folder the command reuses the finished runs; elsewhere it trains all of them again.",
        code=command_of(folder.spec, folder.path.resolve().name),
        notes=record.data.notes,
        parts=[
            Section("Data, model and machine", tables=[Table(["", ""], [*rows.items()], words=True)]),
            Section("All settings", tables=[Table(["setting", "value", ""], settings, words=True)], folded=True),
        ],
    )


def _data(data: DataRecord) -> str:
    counts = [f"{count:,} {split}" for split, count in data.samples.items()]
    return f"{data.name}: samples {', '.join(counts)}; {len(data.class_names)} {data.task.many}"


def _distinct(machines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Distinct values of each key."""
    keys = dict.fromkeys(key for one in machines for key in one)
    values = {key: dict.fromkeys(flat(one[key]) for one in machines if key in one) for key in keys}
    return {key.replace("_", " "): ", ".join(distinct) for key, distinct in values.items()}
