"""The result as text, a block for each shape."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from benchmarks.cases import TORCH

__all__ = ["format_run"]

HEADER = ("loss", "ms", "quartiles", "times torch", "quartiles", "target", "peak", "held", "own", "verdict")
LEGEND = """\
times torch  median over the rounds of the ratio to the first row of the block, measured in the same round
target       the largest ratio allowed; to another baseline where one is named, with the ratio measured
peak         largest amount of memory allocated at once, gradient included, inputs not, in units of the logits
held         tensors of at least the size of the logits that are kept for backward, inputs included
own          the same without the inputs (logits, targets)"""


def format_run(run: dict[str, Any]) -> str:
    """The table of a whole run, with the machine it was measured on."""
    machine, settings = run["machine"], run["settings"]
    versions = ", ".join(
        f"{name} {machine[name] or 'not installed'}" for name in ("torch", "equipoise", "monai", "kornia")
    )
    lines = [
        f"{machine['device']}, {machine['threads']} threads of {machine['cores']} cores, {settings['dtype']}, "
        f"{settings['rounds']} rounds, freed memory {'kept' if settings['keep_memory'] else 'as the system has it'}",
        f"{versions}; load average {machine['load_average']} before, {machine['load_average_at_end']} after",
    ]
    for (link, shape), rows in groupby(run["rows"], key=lambda row: (row["link"], tuple(row["shape"]))):
        lines += ["", f"{link} {shape}, forward plus backward; 'torch' is {TORCH[link]}", *_block(list(rows))]
    return "\n".join([*lines, "", LEGEND, "", *_summary(run["rows"])])


def _block(rows: list[dict[str, Any]]) -> list[str]:
    cells = [HEADER, *(_cells(row) for row in rows if row["status"] == "ok")]
    widths = [max(len(line[k]) for line in cells) for k in range(len(HEADER))]
    lines = [
        "  ".join(text.ljust(width) if k in (0, 5, 9) else text.rjust(width) for k, (text, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in cells)
    ]
    absent = [f"{row['name']}: {row['status']}" for row in rows if row["status"] != "ok"]
    return [line.rstrip() for line in (lines[0], "-" * len(lines[0]), *lines[1:], *absent)]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    torch_name, time = TORCH[row["link"]], row["milliseconds"]
    ratio = row["ratios"].get(torch_name)
    digits = 2 if time["median"] < 10 else 1
    return (
        row["name"],
        f"{time['median']:.{digits}f}",
        f"{time['low']:.{digits}f}-{time['high']:.{digits}f}",
        f"{ratio['median']:.2f}" if ratio else "",
        f"{ratio['low']:.2f}-{ratio['high']:.2f}" if ratio else "",
        _target(row, torch_name),
        f"{row['peak_memory']:.2f}",
        str(row["held"]),
        str(row["held_without_inputs"]),
        {True: "met", False: "missed", None: ""}[row["met"]],
    )


def _target(row: dict[str, Any], torch_name: str) -> str:
    """The limit, and the ratios to baselines other than torch's plain loss."""
    limit = row["limit"]
    parts = [f"{limit['times']:g}x" + (f" of {limit['of']}" if limit["of"] != torch_name else "")] if limit else []
    if limit and limit["held"] is not None:
        parts.append(f"{limit['held']} held")
    measured = [
        f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
        + (f" of {name}" if not limit or name != limit["of"] else "")
        for name, ratio in row["ratios"].items()
        if name != torch_name
    ]
    return "; ".join([", ".join(parts), *measured] if parts else measured)


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    judged = [row for row in rows if row.get("met") is not None]
    missed = [f"  {row['name']} at {tuple(row['shape'])}: {_why(row)}" for row in judged if not row["met"]]
    return [f"{len(judged) - len(missed)} of {len(judged)} targets met", *(["missed:", *missed] if missed else [])]


def _why(row: dict[str, Any]) -> str:
    limit = row["limit"]
    ratio = row["ratios"][limit["of"]]["median"]
    reasons = [f"{ratio:.2f} times {limit['of']}, at most {limit['times']:g}"] if ratio > limit["times"] else []
    if limit["held"] is not None and row["held"] > limit["held"]:
        reasons.append(f"{row['held']} tensors held, at most {limit['held']}")
    return "; ".join(reasons)
