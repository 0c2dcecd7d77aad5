"""The runs of a comparison, from its losses and methods."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.comparison.folder import ComparisonFolder, PlanEntry, PlannedRun
from equipoise.comparison.spec import CompareSpec
from equipoise.expressions import canonical, compact, is_method, same
from equipoise.train.folder import RunFolder
from equipoise.train.spec import RunSpec, SharedSpec

if TYPE_CHECKING:
    from torch import nn

    from equipoise.data import DataSet, Task
    from equipoise.train.task import TrainingTask

__all__ = ["as_planned", "baseline_of", "entries_of", "planned_runs", "run_name", "run_spec", "surveyed_entries"]

LONGEST = 80
"""Maximum number of characters of a loss in the name of a folder."""
LOOKED_AT = 20_000
"""Maximum number of images per split whose size is checked before the training."""


def entries_of(losses: Sequence[str]) -> list[PlanEntry]:
    """Losses and methods with their candidates; equal candidates have the same text.

    >>> [entry.candidates for entry in entries_of(["focal(gamma=[1, 2])", "FocalLoss:gamma=2,3"])]
    [('focal(gamma=1)', 'focal(gamma=2)'), ('focal(gamma=2)', 'focal(gamma=3)')]
    """
    from equipoise.train.rows import expand_rows, read_row

    known: dict[str, object] = {}
    entries = []
    for text in losses:
        candidates = []
        for single in expand_rows(text):
            meant = read_row(single).meaning
            twin = next((other for other, parsed in known.items() if parsed == meant), single)
            known[twin] = meant
            candidates.append(twin)
        entries.append(PlanEntry(canonical(text), tuple(candidates)))
    return entries


def baseline_of(spec: CompareSpec, entries: Sequence[PlanEntry]) -> str:
    """The entry that others are compared with: the requested one, else plain cross-entropy, else the first."""
    from equipoise.train.rows import is_same_row

    texts = [entry.text for entry in entries]
    if spec.baseline is not None:
        wanted = next((text for text in texts if same(text, spec.baseline)), None)
        if wanted is None:
            raise ValueError(f"--baseline must be one of {', '.join(texts)}, got {spec.baseline}; write it as there")
        return wanted
    plain = [entry.text for entry in entries if all(is_same_row("auto", one) for one in entry.candidates)]
    named = [entry.text for entry in entries if entry.text in plain and entry.text in entry.candidates]
    return (named or plain or texts)[0]


def as_planned(entries: Sequence[PlanEntry], folder: ComparisonFolder) -> list[PlanEntry]:
    """The entries with the texts stored in the folder, which version 0.1 may have written: their runs are reused."""
    if not folder.exists:
        return list(entries)
    rows = {canonical(entry.text): entry.text for entry in folder.entries}
    losses = {canonical(run.loss): run.loss for run in folder.runs}
    return [
        PlanEntry(rows.get(entry.text, entry.text), tuple(losses.get(text, text) for text in entry.candidates))
        for entry in entries
    ]


def planned_runs(
    folder: Path, entries: Sequence[PlanEntry], seeds: Sequence[int], planned: Sequence[str] = ()
) -> list[PlannedRun]:
    """One run per candidate and seed: all losses with the first seed, then all with the second.

    Stage one of a method is a run, too, which all methods that start from it share; it has the name in ``planned`` if
    there is an equal loss.
    """
    losses = list(dict.fromkeys(candidate for entry in entries for candidate in entry.candidates))
    wanted = {loss: _backbone(loss) for loss in losses}
    backbones = {loss: _equal_text([*losses, *planned, *wanted.values()], text) for loss, text in wanted.items()}
    needed = [backbone for backbone in dict.fromkeys(backbones.values()) if backbone not in (None, *losses)]

    def place(loss: str | None, seed: int) -> RunFolder | None:
        return None if loss is None else RunFolder(folder / "runs" / run_name(loss, seed))

    return [
        PlannedRun(loss, seed, RunFolder(folder / "runs" / run_name(loss, seed)), place(backbones.get(loss), seed))
        for seed in seeds
        for loss in (*filter(None, needed), *losses)
    ]


def _backbone(text: str) -> str | None:
    """The loss of stage one of a method, with the settings of its row; None without stages."""
    from equipoise.train.methods import TwoStages, parse_method
    from equipoise.train.rows import read_row

    row = read_row(text)
    method = parse_method(str(row.expression)) if is_method(text) else None
    return str(row.with_expression(method.backbone)) if isinstance(method, TwoStages) else None


def _equal_text(losses: Sequence[str | None], backbone: str | None) -> str | None:
    """The text of the first equal loss, so that both share one run; otherwise that of the backbone."""
    from equipoise.train.rows import is_same_row

    same = (other for other in losses if other is not None and backbone is not None and is_same_row(backbone, other))
    return next(same, backbone)


def run_name(loss: str, seed: int) -> str:
    """The name of the folder of a run, unique per loss.

    >>> run_name("focal(gamma=1)", 0), run_name("ce + 0.5 * dice", 12), run_name("ce+0.5*dice", 12)
    ('focal-gamma=1-0', 'ce+0.5-dice-1743fd7d-12', 'ce+0.5-dice-d0181fd0-12')
    """
    slug = compact(loss).replace(":", "-")
    safe = re.sub(r"[^\w.=+-]", "-", slug)[:LONGEST]
    return f"{safe}-{seed}" if safe == slug else f"{safe}-{zlib.crc32(loss.encode()):08x}-{seed}"


def run_spec(spec: CompareSpec, run: PlannedRun) -> RunSpec:
    """All settings of one of the runs."""
    from equipoise.train.rows import read_row

    first = None if run.stage_one is None else str(run.stage_one.path)
    return RunSpec(**_shared(spec) | read_row(run.loss).run_settings(), seed=run.seed, stage_one=first)


def _shared(spec: CompareSpec) -> dict[str, Any]:
    """The settings that all runs share."""
    return spec.model_dump(include=set(SharedSpec.model_fields))


def surveyed_entries(spec: CompareSpec, fingerprint: str | None = None) -> tuple[list[PlanEntry], list[str]]:
    """The entries to compare on these data, and notes for the user.

    If no losses are given, they are suggested from the data, the plain loss first.

    Args:
        spec: all settings.
        fingerprint: fingerprint of the data of finished runs; None without finished runs.

    Raises:
        DataError: the data cannot be used.
        ValueError: losses do not fit the data (the message lists all), or the data differ from those of finished runs.
    """
    from equipoise.calibration import temperature_scaling
    from equipoise.doctor.suggest import suggest
    from equipoise.train.builders import check_model, check_sizes, model_of, monitor_of, opened
    from equipoise.train.fabric import check_machine
    from equipoise.train.preparation import Preparation
    from equipoise.train.task import TrainingTask

    first = RunSpec(**_shared(spec))
    data, _ = opened(first)
    if fingerprint is not None and fingerprint != data.fingerprint:
        raise ValueError(
            f"{spec.data}: the data must be those of the runs that are finished, found other samples or another order; "
            "choose another --out"
        )
    check_sizes(first, data, LOOKED_AT)
    task, preparation = TrainingTask(data), Preparation.fit(data.train, scaling=first.scaling)
    monitor_of(first, task)
    temperature_scaling(data.task, first.temperature_by)  # raises unless the task has it
    check_machine(first)
    model, name = model_of(first, task, preparation)
    check_model(model, name, task, preparation, data.train)
    named = f"; model {name}" if spec.model == "auto" else ""
    notes = [
        f"{data.name}: {len(data.class_names):,} {data.task.many}, {len(data.train):,} training, {len(data.val):,} "
        f"validation and {len(data.test):,} test samples{named}",
        *data.notes,
    ]
    problem = partial(_problem, spec, model, name, task)
    if spec.compared is None:
        *others, plain = suggest(data.task, data.train_counts.tolist())
        chosen = [one for one in (plain, *others) if problem(one.text) is None]
        notes += [f"{one.text}: {one.why}" for one in chosen]
        return entries_of([one.text for one in chosen]), notes
    entries = entries_of(spec.compared)
    problems = [problem(candidate) for entry in entries for candidate in entry.candidates]
    mistakes = dict.fromkeys(one for one in problems if one is not None)
    if mistakes:
        raise ValueError("; ".join(mistakes))
    entries, merged = _without_twins(spec, data, entries)
    return entries, notes + merged


def _problem(spec: CompareSpec, model: nn.Module, name: str, task: TrainingTask, text: str) -> str | None:
    """Why a candidate cannot be trained on the data of the task with this model; None if it can."""
    from equipoise.train.builders import check_method, loss_of
    from equipoise.train.methods import parse_method
    from equipoise.train.rows import read_row

    try:
        own = RunSpec(**_shared(spec) | read_row(text).run_settings())
        method = parse_method(own.method) if is_method(text) else None
        if method is not None:
            method.check_task(task.data.task)
            check_method(method, model, name, task)
        for loss in [own.loss] if method is None else method.losses:
            loss_of(own, task.data, False, loss)
    except ValueError as error:
        return f"{text}: {error}"
    return None


def _without_twins(spec: CompareSpec, data: DataSet, entries: Sequence[PlanEntry]) -> tuple[list[PlanEntry], list[str]]:
    """The entries, with equivalent candidates on these data merged into one, and notes on these."""
    from equipoise.train.builders import loss_of
    from equipoise.train.rows import read_row

    texts = dict.fromkeys(text for entry in entries for text in entry.candidates if not is_method(text))
    specs = {text: RunSpec(**_shared(spec) | read_row(text).run_settings()) for text in texts}
    built = {text: (own.model_dump(exclude={"loss"}), loss_of(own, data, False)) for text, own in specs.items()}
    twins = _twins(built, data.task, len(data.class_names), data.ignore_index)
    merged = [
        PlanEntry(entry.text, tuple(dict.fromkeys(twins.get(text, text) for text in entry.candidates)))
        for entry in entries
    ]
    return merged, [
        f"{text} is the same loss as {twin} on these data and is trained once" for text, twin in twins.items()
    ]


def _twins(
    built: Mapping[str, tuple[object, nn.Module]], task: Task, num_classes: int, ignore_index: int
) -> dict[str, str]:
    """Map candidates to an equivalent one (same settings, loss values and gradients); plain losses are kept."""
    import torch

    from equipoise.train.loss_text import OwnLoss, loss_trace
    from equipoise.train.rows import is_plain

    kept: dict[str, tuple[object, torch.Tensor]] = {}
    twins = {}
    for text in sorted(built, key=lambda text: not is_plain(text)):
        settings, loss = built[text]
        if any(isinstance(part, OwnLoss) for part in loss.modules()):
            continue  # user code, which may not accept such batches
        trace = loss_trace(loss, task, num_classes, ignore_index)
        for other, (known, values) in kept.items():
            if settings == known and torch.allclose(trace, values, rtol=1e-9, atol=1e-12):
                twins[text] = other
                break
        else:
            kept[text] = settings, trace
    return twins
