"""Forward plus backward of every loss: time, peak memory, and what is held for backward, in one run.

Candidates take turns, one block each in a round, in a new order every round, so that drift of the machine hits all
alike; ratios are taken inside a round. On CUDA the time of the device alone is measured as well.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch

from benchmarks.cases import CALL, SHAPES, TORCH, Batch, Case, Link, Shapes, make_batch
from benchmarks.catalogue import all_cases
from benchmarks.gpu import device_seconds
from benchmarks.machine import installed_version
from benchmarks.measure import (
    Quartiles,
    Step,
    held_for_backward,
    no_collection,
    paired_ratio,
    peak_bytes,
    take_turns,
)
from benchmarks.targets import PEAK, SMALL, add_checks, cpu_checks, cuda_checks, floor_bytes, row_bytes

__all__ = ["Settings", "run"]

Row: TypeAlias = dict[str, Any]

SMALL_ROUNDS = 5  # rounds of calls on small batches for each round of others, on a CUDA device


@dataclass(frozen=True)
class Settings:
    """What the command line can choose, and the bandwidth of a CUDA device in bytes a second.

    The bandwidth, once measured, makes floors; without one there are neither floors nor device times.
    """

    device: torch.device
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    rounds: int = 25
    filter: str = ""
    bandwidth: float | None = None

    def rounds_of_calls(self, logits_bytes: int) -> int:
        """On a CUDA device calls on small batches are all host, whose noise takes more rounds to average out."""
        return self.rounds * SMALL_ROUNDS if self.bandwidth is not None and logits_bytes <= SMALL else self.rounds


def run(settings: Settings, shapes: Shapes = SHAPES, progress: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Measure every case at every shape that the filter leaves; a row for each, also for what could not run."""
    rows: list[Row] = []
    for link, candidates in shapes.items():
        for shape in candidates:
            cases = _chosen(link, shape, settings)
            for dtype in settings.dtypes if cases else ():
                progress(f"{link} {shape} {_name(dtype)}: {len(cases)} candidates, {settings.rounds} rounds")
                start = time.perf_counter()
                rows.extend(_run_batch(cases, make_batch(link, shape, dtype, settings.device), settings))
                _free(settings.device)
                progress(f"  {time.perf_counter() - start:.0f} s")
    return rows


def _chosen(link: Link, shape: tuple[int, ...], settings: Settings) -> list[Case]:
    """The cases that the filter names, with those that they are compared with."""
    text = settings.filter.lower()
    cases = [
        case
        for case in all_cases(link)
        if (len(shape) > 2 or not case.spatial) and (settings.device.type == "cuda" or not case.cuda_only)
    ]
    if text in f"{link} {shape}":
        return cases
    named = [case for case in cases if text in case.name.lower()]
    wanted = {name for case in named for name in (case.name, *_baselines(case, link))}
    return [case for case in cases if case.name in wanted]


def _baselines(case: Case, link: Link) -> list[str]:
    """Torch's own loss first, then what the case names, and the one that calls are compared with."""
    limit = case.limit.of if case.limit else None
    names = [TORCH[link], limit, *case.against, case.compiled, case.rival, CALL[link] if case.pointwise else None]
    return list(dict.fromkeys(name for name in names if name is not None))


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _run_batch(cases: list[Case], batch: Batch, settings: Settings) -> list[Row]:
    if settings.device.type == "cuda":
        torch.compiler.reset()  # a function is compiled anew only so many times
    with no_collection():
        rows = {case.name: _prepare(case, batch) for case in cases}
        steps: dict[str, Step] = {name: row.pop("step") for name, row in rows.items() if row["status"] == "ok"}
        if settings.bandwidth is not None:
            for case in cases:
                if case.name in steps:
                    rows[case.name] |= _floor(case, batch, settings.bandwidth)
                    rows[case.name] |= _device_time(steps[case.name], settings.rounds)
    times = take_turns(steps, settings.device, settings.rounds_of_calls(batch.logits.nbytes))
    for case in cases:
        if case.name in times:
            row = rows[case.name]
            row |= _compared(case, batch.link, times)
            if settings.bandwidth is None:
                add_checks(row, cpu_checks(row, case.limit))
            else:
                row |= _device_compared(case, rows)
                add_checks(row, cuda_checks(row, case))
    return list(rows.values())


def _prepare(case: Case, batch: Batch) -> Row:
    """The row of a case with all but its times; ``status`` says why it cannot run where it cannot."""
    logits = batch.logits
    row: Row = {
        "name": case.name,
        "kind": case.kind,
        "link": batch.link,
        "shape": list(logits.shape),
        "dtype": _name(logits.dtype),
        "logits_bytes": logits.nbytes,
        "elements": logits.numel(),
        "status": "ok",
        "limit": asdict(case.limit) if case.limit else None,
        "compiled": case.compiled,
    }
    if case.package is not None and installed_version(case.package) is None:
        return row | {"status": f"{case.package} is not installed"}
    logits.grad = None
    try:
        step = Step(case.build(batch), logits)
        value = float(step.forward().detach())
        step()
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises belongs into its row
        return row | {"status": f"failed: {_reason(error)}"}
    row |= {"step": step, "value": value, "peak_memory": round(peak_bytes(step) / logits.nbytes, 4)}
    if case.kind != "compiled":  # hooks on saved tensors would compile it again
        held = held_for_backward(step.forward, [logits, batch.targets, batch.dense], logits.nbytes)
        row |= {"held": held.with_inputs, "held_without_inputs": held.without_inputs}
    return row


def _floor(case: Case, batch: Batch, bandwidth: float) -> Row:
    """The least time and the most memory that a loss of these inputs may take."""
    logits = batch.logits
    link: Link = "softmax" if case.reads == "labels" else batch.link
    rows = logits.numel() // batch.num_classes
    targets = {"targets": batch.targets.nbytes, "dense": batch.dense.nbytes, "labels": 8 * rows}[case.reads]
    return {
        "floor_milliseconds": 1e3 * floor_bytes(link, logits.nbytes, targets, rows) / bandwidth,
        "peak_allowed": round(PEAK + row_bytes(link, rows) / logits.nbytes, 4),
    }


def _device_time(step: Step, rounds: int) -> Row:
    """Milliseconds of device time, None with the reason where a step cannot be captured."""
    try:
        times = Quartiles.of([1e3 * seconds for seconds in device_seconds(step, rounds)])
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises belongs into its row
        step.logits.grad = None
        return {"device_milliseconds": None, "capture": f"failed: {_reason(error)}"}
    return {"device_milliseconds": asdict(times), "capture": "ok"}


def _compared(case: Case, link: Link, times: dict[str, list[float]]) -> Row:
    """Quartiles of the times and of the ratios to each baseline within a round."""
    own = times[case.name]
    ratios = {name: paired_ratio(own, times[name]) for name in _baselines(case, link) if name in times}
    return {
        "milliseconds": asdict(Quartiles.of([1e3 * seconds for seconds in own])),
        "rounds": len(own),
        "ratios": {name: asdict(ratio) for name, ratio in ratios.items()},
    }


def _device_compared(case: Case, rows: dict[str, Row]) -> Row:
    """Device time in units of the floor and of each baseline that has one; None where the case itself has none."""
    row = rows[case.name]
    medians = {name: other["device_milliseconds"]["median"] for name, other in rows.items() if _has_device_time(other)}
    own = medians.get(case.name)
    return {
        "times_floor": own and own / row["floor_milliseconds"],
        "device_ratios": {
            name: own and own / medians[name] for name in _baselines(case, row["link"]) if name in medians
        },
    }


def _has_device_time(row: Row) -> bool:
    return row.get("device_milliseconds") is not None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
