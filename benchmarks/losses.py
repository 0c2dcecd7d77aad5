"""Forward plus backward of every loss: time, peak memory, and what is held for backward, in one run.

Candidates take turns, one block each in a round, in a new order every round, so that drift of the machine hits all
alike; ratios are taken inside a round.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch

from benchmarks.cases import SHAPES, TORCH, Batch, Case, Link, make_batch
from benchmarks.catalogue import all_cases
from benchmarks.machine import installed_version
from benchmarks.measure import Quartiles, Step, calls_for, held_for_backward, peak_bytes, time_calls

__all__ = ["Settings", "run"]

Row: TypeAlias = dict[str, Any]
Shapes: TypeAlias = Mapping[Link, Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class Settings:
    """What the command line can choose."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    rounds: int = 25
    filter: str = ""


def run(settings: Settings, shapes: Shapes = SHAPES, progress: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Measure every case at every shape that the filter leaves; a row for each, also for what could not run."""
    rows: list[Row] = []
    for link, candidates in shapes.items():
        for shape in candidates:
            cases = _chosen(link, shape, settings.filter)
            if cases:
                progress(f"{link} {shape}: {len(cases)} candidates, {settings.rounds} rounds")
                batch = make_batch(link, shape, settings.dtype, settings.device)
                rows.extend(_run_shape(cases, batch, settings.rounds))
    return rows


def _chosen(link: Link, shape: tuple[int, ...], text: str) -> list[Case]:
    """The cases that the filter names, with those that they are compared with."""
    cases = [case for case in all_cases(link) if not case.spatial or len(shape) > 2]
    if text.lower() in f"{link} {shape}":
        return cases
    named = [case for case in cases if text.lower() in case.name.lower()]
    wanted = {name for case in named for name in (case.name, *_baselines(case, link))}
    return [case for case in cases if case.name in wanted]


def _baselines(case: Case, link: Link) -> list[str]:
    """Torch's own loss first, then what the limit and the case name."""
    names = [TORCH[link], *([case.limit.of] if case.limit else []), *case.against]
    return list(dict.fromkeys(names))


def _run_shape(cases: list[Case], batch: Batch, rounds: int) -> list[Row]:
    rows = {case.name: _prepare(case, batch) for case in cases}
    steps: dict[str, Step] = {name: row.pop("step") for name, row in rows.items() if row["status"] == "ok"}
    times = _take_turns(steps, rounds)
    for case in cases:
        if case.name in times:
            rows[case.name] |= _compared(case, batch.link, times)
            _judge(rows[case.name], case)
    return list(rows.values())


def _prepare(case: Case, batch: Batch) -> Row:
    """The row of a case with all but its times; ``status`` says why it cannot run where it cannot."""
    logits = batch.logits
    row: Row = {
        "name": case.name,
        "kind": case.kind,
        "link": batch.link,
        "shape": list(logits.shape),
        "dtype": str(logits.dtype).removeprefix("torch."),
        "status": "ok",
        "limit": asdict(case.limit) if case.limit else None,
    }
    if case.package is not None and installed_version(case.package) is None:
        return row | {"status": f"{case.package} is not installed"}
    try:
        step = Step(case.build(batch), logits)
        value = float(step.forward().detach())
        step()
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        return row | {"status": f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"}
    held = held_for_backward(step.forward, [logits, batch.targets, batch.dense], logits.nbytes)
    return row | {
        "step": step,
        "value": value,
        "peak_memory": round(peak_bytes(step) / logits.nbytes, 4),
        "held": held.with_inputs,
        "held_without_inputs": held.without_inputs,
    }


def _take_turns(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of a step by case, one number for each round."""
    calls = {name: calls_for(step) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, draw = list(steps), random.Random(0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            draw.shuffle(order)
            for name in order:
                times[name].append(time_calls(steps[name], calls[name]))
    finally:
        gc.enable()
    return times


def _compared(case: Case, link: Link, times: dict[str, list[float]]) -> Row:
    """Quartiles of the times and of the ratios to each baseline within a round."""
    own = times[case.name]
    ratios = {
        name: Quartiles.of([mine / theirs for mine, theirs in zip(own, times[name], strict=True)])
        for name in _baselines(case, link)
        if name in times
    }
    return {
        "milliseconds": asdict(Quartiles.of([1e3 * seconds for seconds in own])),
        "ratios": {name: asdict(ratio) for name, ratio in ratios.items()},
    }


def _judge(row: Row, case: Case) -> None:
    """Say whether the limit was met, None where there is none or nothing to compare with."""
    limit = case.limit
    row["met"] = None
    if limit is not None and limit.of in row["ratios"]:
        fast = row["ratios"][limit.of]["median"] <= limit.times
        row["met"] = fast and (limit.held is None or row["held"] <= limit.held)
