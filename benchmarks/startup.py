"""Seconds until Python has imported equipoise, against torch alone, and until ``equipoise --help`` has answered.

Each is a process of its own, started in turn; the first ones only fill the cache of the disk. ``import equipoise``
loads torch with the first thing that needs it, so what is to be compared with torch is the import of the losses.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.measure import Quartiles, paired_ratio, take_turns
from benchmarks.table import missed, targets_met, versions
from benchmarks.targets import Check, add_checks

__all__ = ["COMMANDS", "format_startup", "run"]

TORCH = "import torch"
COMMANDS: dict[str, tuple[str, ...]] = {
    TORCH: ("-c", "import torch"),
    "import equipoise": ("-c", "import equipoise"),
    "import equipoise.losses": ("-c", "import equipoise.losses"),
    "equipoise --help": ("-c", "from equipoise.cli import main; main()", "--help"),
}
IMPORT = 1.2
HELP = 0.5


def run(rounds: int, progress: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """A row for each command."""
    progress(f"{len(COMMANDS)} commands: {rounds} rounds")
    steps = {name: lambda arguments=arguments: _start(*arguments) for name, arguments in COMMANDS.items()}
    times = take_turns(steps, torch.device("cpu"), rounds)
    rows = []
    for name, seconds in times.items():
        ratio, took = paired_ratio(seconds, times[TORCH]), Quartiles.of(seconds)
        row: dict[str, Any] = {
            "name": name,
            "kind": "torch" if name == TORCH else "ours",
            "status": "ok",
            "seconds": asdict(took),
            "of": TORCH,
            "ratio": asdict(ratio),
        }
        imports = [Check("import", ratio.median, IMPORT, f"times {TORCH}")]
        answers = [Check("help", took.median, HELP, "seconds")]
        add_checks(row, {TORCH: [], "equipoise --help": answers}.get(name, imports))
        rows.append(row)
    return rows


def _start(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)


def format_startup(run: dict[str, Any]) -> str:
    """The result as text."""
    machine = run["machine"]
    lines = [
        f"{machine['device']}, {machine['cores']} cores, Python {machine['python']}",
        f"{run['settings']['rounds']} starts of each, in turn",
        f"{versions(machine)}; load average {machine['load_average']} before, {machine['load_average_at_end']} after",
        "",
    ]
    for row in run["rows"]:
        took, ratio = row["seconds"], row["ratio"]
        lines.append(
            f"{row['name']:24} {took['median']:.2f} s ({took['low']:.2f}-{took['high']:.2f}), "
            f"{ratio['median']:.2f} times {row['of']} ({ratio['low']:.2f}-{ratio['high']:.2f})"
        )
    met, judged = targets_met(run["rows"])
    lines += ["", f"{met} of {judged} targets met"]
    return "\n".join([*lines, *(f"  missed: {row['name']}: {why}" for row, why in missed(run["rows"]))])
