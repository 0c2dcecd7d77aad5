"""The targets, as small named checks that a row of a result has to pass, and the floor that a GPU's times stand on.

The floor is the time in which the device could move what forward and backward have to touch at least, at the bandwidth
of a copy measured in the same run: logits and targets are read twice, the gradient is written once, and a softmax loss
also writes and reads two float32 for each row.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.cases import CALL, TORCH, Case, Limit, Link

__all__ = [
    "CALLS",
    "FLOORS",
    "LARGE",
    "OTHER_CALLS",
    "PEAK",
    "SMALL",
    "Check",
    "add_checks",
    "cpu_checks",
    "cuda_checks",
    "floor_bytes",
    "row_bytes",
]

LARGE = 100_000_000
"""Bytes of logits from which on memory traffic is what takes the time."""
SMALL = 10_000_000
"""Bytes of logits up to which the call is what takes the time."""
CALLS = {"RecallLoss": 3.0, "RecallLoss, momentum 0.1": 3.0}
"""Wall clock allowed for an eager call, in units of torch's: that of losses whose weights follow from the batch."""
OTHER_CALLS = 2.0
"""The same for every other loss."""
FLOORS = {2: 1.5, 4: 1.3}
"""Device time allowed in units of the floor, by the bytes of one logit."""
PEAK = 1.15
"""Peak memory allowed in units of the logits, besides the values of the rows."""


@dataclass(frozen=True)
class Check:
    """One thing that was measured and the most that is allowed.

    Args:
        name: one word, for the table.
        measured: None where it could not be measured, which is a miss.
        limit: the most that meets the target.
        what: the unit, read after the number.
    """

    name: str
    measured: float | None
    limit: float
    what: str

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.measured is not None and self.measured <= self.limit


def row_bytes(link: Link, rows: int) -> int:
    """What a loss may keep for its rows: two float32 each for a softmax, nothing for a sigmoid."""
    return 2 * 4 * rows if link == "softmax" else 0


def floor_bytes(link: Link, logits_bytes: int, targets_bytes: int, rows: int) -> int:
    """Bytes that forward and backward have to move at least."""
    return 3 * logits_bytes + 2 * targets_bytes + 2 * row_bytes(link, rows)


def cpu_checks(row: dict[str, Any], limit: Limit | None) -> list[Check]:
    """Time within the limit and, where it says so, no more tensors held for backward."""
    if limit is None or limit.of not in row["ratios"]:
        return []
    time = Check("time", row["ratios"][limit.of]["median"], limit.times, f"times {limit.of}")
    return [time] if limit.held is None else [time, Check("held", row["held"], limit.held, "tensors held")]


def cuda_checks(row: dict[str, Any], case: Case) -> list[Check]:
    """Near the floor and lean where logits are large, cheap to call where they are small, and always ahead of torch."""
    if not case.pointwise:
        return []
    checks = []
    itemsize = row["logits_bytes"] // row["elements"]
    if row["logits_bytes"] >= LARGE:
        if itemsize in FLOORS:
            checks.append(Check("floor", row["times_floor"], FLOORS[itemsize], "times the floor"))
        checks.append(Check("memory", row["peak_memory"], row["peak_allowed"], "times the logits at the peak"))
    rival = case.rival or (TORCH["softmax"] if row["link"] == "softmax" else None)
    for name, other in (("torch", rival), ("compiled", case.compiled)):
        if other in row["device_ratios"]:
            checks.append(Check(name, row["device_ratios"][other], 1.0, f"times {other}"))
    call = CALL[row["link"]]
    if row["logits_bytes"] <= SMALL and call in row["ratios"]:
        allowed = CALLS.get(case.name, OTHER_CALLS)
        checks.append(Check("call", row["ratios"][call]["median"], allowed, f"times the call of {call}"))
    return checks


def add_checks(row: dict[str, Any], checks: list[Check]) -> None:
    """Write the checks and the verdict into a row; no verdict where nothing was to be checked."""
    row["checks"] = [asdict(check) | {"met": check.met} for check in checks]
    row["met"] = all(check.met for check in checks) if checks else None
