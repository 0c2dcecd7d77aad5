"""From the losses of a comparison to its runs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from equipoise.comparison.folder import Entry, PlannedRun
from equipoise.comparison.spec import CompareSpec
from equipoise.train.folder import RunFolder
from equipoise.train.spec import RunSpec, SharedSpec

__all__ = ["baseline_of", "entries_of", "planned_runs", "run_name", "run_spec", "surveyed_entries"]

LONGEST = 80
"""Letters of a loss in the name of a folder."""


def entries_of(losses: Sequence[str]) -> list[Entry]:
    """The losses with the candidates that each stands for; the same loss has the same text in all of them.

    >>> [entry.candidates for entry in entries_of(["focal:gamma=1,2", "FocalLoss:gamma=2,3"])]
    [('focal:gamma=1', 'focal:gamma=2'), ('focal:gamma=2', 'FocalLoss:gamma=3')]
    """
    from equipoise.train.loss_text import Term, expand_loss, parse_loss

    known: dict[str, tuple[Term, ...]] = {}
    entries = []
    for text in losses:
        candidates = []
        for single in expand_loss(text):
            terms = parse_loss(single)
            twin = next((other for other, parsed in known.items() if parsed == terms), single)
            known[twin] = terms
            candidates.append(twin)
        entries.append(Entry(text, tuple(candidates)))
    return entries


def baseline_of(spec: CompareSpec, entries: Sequence[Entry]) -> str:
    """The entry that others are compared with: the one asked for, else plain cross-entropy, else the first."""
    from equipoise.train.loss_text import Term, default_loss, parse_loss

    texts = [entry.text for entry in entries]
    if spec.baseline is not None:
        if spec.baseline not in texts:
            raise ValueError(f"--baseline must be one of {', '.join(texts)}, got {spec.baseline}; write it as there")
        return spec.baseline
    simple = [(Term(default_loss(task)),) for task in ("single", "multi")]
    plain = [entry.text for entry in entries if all(parse_loss(one) in simple for one in entry.candidates)]
    return (plain or texts)[0]


def planned_runs(folder: Path, entries: Sequence[Entry], seeds: Sequence[int]) -> list[PlannedRun]:
    """Every candidate with every seed, once: all losses with the first seed, then all with the second."""
    losses = dict.fromkeys(candidate for entry in entries for candidate in entry.candidates)
    return [
        PlannedRun(loss, seed, RunFolder(folder / "runs" / run_name(loss, seed))) for seed in seeds for loss in losses
    ]


def run_name(loss: str, seed: int) -> str:
    """A name for the folder of a run; other losses have other names.

    >>> run_name("focal:gamma=1", 0), run_name("ce+0.5*dice", 12)
    ('focal-gamma=1-0', 'ce+0.5-dice-d0181fd0-12')
    """
    slug = loss.replace(":", "-")
    safe = re.sub(r"[^\w.=+-]", "-", slug)[:LONGEST]
    return f"{safe}-{seed}" if safe == slug else f"{safe}-{zlib.crc32(loss.encode()):08x}-{seed}"


def run_spec(spec: CompareSpec, run: PlannedRun) -> RunSpec:
    """All settings of one of the runs."""
    return RunSpec(**spec.model_dump(include=set(SharedSpec.model_fields)), loss=run.loss, seed=run.seed)


def surveyed_entries(spec: CompareSpec) -> tuple[list[Entry], list[str]]:
    """What is compared, once the data have been looked at, and what to tell people about it.

    Where no losses are given, the data suggest some, the plain one first.

    Raises:
        DataError: the data cannot be used.
        ValueError: some loss does not fit them; all of these are named.
    """
    from equipoise.doctor.suggest import suggest
    from equipoise.train.parts import loss_of, opened

    first = RunSpec(**spec.model_dump(include=set(SharedSpec.model_fields)))
    data = opened(first)
    notes = list(data.notes)

    def problem(loss: str) -> str | None:
        try:
            loss_of(first.model_copy(update={"loss": loss}), data, sync=False)
        except ValueError as error:
            return f"{loss}: {error}"
        return None

    if spec.losses is None:
        *others, plain = suggest(data.task, data.train_counts.tolist())
        chosen = [one for one in (plain, *others) if problem(one.entry.name) is None]
        notes += [f"{one.entry.name}: {one.why}" for one in chosen]
        return entries_of([one.entry.name for one in chosen]), notes
    entries = entries_of(spec.losses)
    problems = [problem(candidate) for entry in entries for candidate in entry.candidates]
    mistakes = dict.fromkeys(one for one in problems if one is not None)
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return entries, notes
