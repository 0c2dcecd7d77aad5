"""The result as text, a block for each shape and type."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

from benchmarks.cases import TORCH
from benchmarks.machine import PEERS

__all__ = [
    "blocks",
    "format_compare",
    "format_methods",
    "format_run",
    "format_train",
    "format_training",
    "missed",
    "targets_met",
    "versions",
]

Row: TypeAlias = dict[str, Any]

CPU_HEADER = ("loss", "ms", "quartiles", "times torch", "quartiles", "target", "peak", "held", "own", "verdict")
CPU_LEGEND = """\
times torch  median over the rounds of the ratio to the first row of the block, measured in the same round
target       the largest ratio allowed; to another baseline where one is named, with the ratio measured
peak         largest amount of memory allocated at once, gradient included, inputs not, in units of the logits
held         tensors of at least the size of the logits that are kept for backward, inputs included
own          the same without the inputs (logits, targets)"""

CUDA_HEADER = ("loss", "device ms", "quartiles", "x floor", "x torch", "x compiled", "call us", "peak", "verdict")
CUDA_LEGEND = """\
device ms   time of the device for forward plus backward, from replays of a CUDA graph
x floor     in units of the time in which the device could copy what has to be read and written at least
x torch     in units of the first row of the block
x compiled  in units of the same loss in plain operations under torch.compile
call us     wall clock of one eager call, forward plus backward, launches included
peak        largest amount of memory allocated at once, gradient included, inputs not, in units of the logits"""

TRAIN_HEADER = ("loss", "step ms", "quartiles", "times", "quartiles", "of", "verdict")
METHODS_HEADER = ("method", "step ms", "quartiles", "times plain", "quartiles", "verdict")
TRAINING_HEADER = ("loss", "step ms", "quartiles", "times torch", "quartiles", "verdict")


def format_run(run: dict[str, Any]) -> str:
    """The table of a whole run, with the machine it was measured on."""
    machine, settings = run["machine"], run["settings"]
    on_cuda = run["bandwidth"] is not None
    lines = [
        f"{machine['device']}, {machine['threads']} threads of {machine['cores']} cores, "
        f"{' and '.join(settings['dtypes'])}, {settings['rounds']} rounds, "
        f"freed memory {'kept' if settings['keep_memory'] else 'as the system has it'}",
        f"{versions(machine)}; load average {machine['load_average']} before, {machine['load_average_at_end']} after",
    ]
    if on_cuda:
        bandwidth = {key: f"{value / 1e9:.0f}" for key, value in run["bandwidth"].items()}
        lines.append(f"a copy moves {bandwidth['median']} GB/s ({bandwidth['low']}-{bandwidth['high']})")
    for (link, shape, dtype), rows in blocks(run["rows"]):
        title = f"{link} {shape} {dtype}, forward plus backward; 'torch' is {TORCH[link]}"
        lines += ["", title, *(_cuda_block(rows, machine["l2_bytes"]) if on_cuda else _cpu_block(rows))]
    return "\n".join([*lines, "", CUDA_LEGEND if on_cuda else CPU_LEGEND, "", *_summary(run["rows"])])


def format_training(run: dict[str, Any]) -> str:
    """The table of training steps."""
    machine, settings = run["machine"], run["settings"]
    lines = [
        f"{machine['device']}, logits {tuple(settings['shape'])}, "
        f"{'bfloat16 autocast' if settings['autocast'] else 'float32'}, {settings['rounds']} rounds",
        versions(machine),
        "",
        *_aligned(TRAINING_HEADER, [_training_cells(row) for row in run["rows"]], left=(0, 5)),
        "",
        *_summary(run["rows"]),
    ]
    return "\n".join(lines)


def format_methods(run: dict[str, Any]) -> str:
    """The table of training steps with systems around the model."""
    machine, settings = run["machine"], run["settings"]
    lines = [
        f"{machine['device']}, {machine['threads']} threads of {machine['cores']} cores, ResNet-32 on images "
        f"{tuple(settings['shape'])}, {'bfloat16 autocast' if settings['autocast'] else 'float32'}, "
        f"{settings['rounds']} rounds",
        f"{versions(machine)}; load average {machine['load_average']} before, {machine['load_average_at_end']} after",
        "",
        *_aligned(METHODS_HEADER, [_training_cells(row) for row in run["rows"]], left=(0, 5)),
        "",
        *_summary(run["rows"]),
    ]
    return "\n".join(lines)


def _training_cells(row: Row) -> tuple[str, ...]:
    return (
        row["name"],
        *_time(row["milliseconds"]),
        f"{row['ratio']['median']:.3f}",
        f"{row['ratio']['low']:.3f}-{row['ratio']['high']:.3f}",
        _verdict(row),
    )


def format_compare(run: dict[str, Any]) -> str:
    """The table of comparisons against bare loops."""
    machine, rows = run["machine"], run["rows"]
    lines = [
        f"{machine['device']}, {machine['threads']} threads of {machine['cores']} cores",
        f"pytorch-lightning {machine['pytorch_lightning']}, {versions(machine)}; "
        f"load average {machine['load_average']} before, {machine['load_average_at_end']} after",
        "",
    ]
    if "ratio" in rows[0]:
        header: tuple[str, ...] = ("case", "seconds", "bare loops, seconds", "ratio", "at most", "met")
        cells = [
            (
                row["name"],
                f"{row['seconds']['median']:.1f}",
                f"{row['bare_seconds']['median']:.1f}",
                f"{row['ratio']['median']:.2f} ({row['ratio']['low']:.2f}-{row['ratio']['high']:.2f})",
                f"{row['limit']:g}",
                _met(row),
            )
            for row in rows
        ]
    else:
        header = ("case", "", "steps per second", "speed-up", "at least", "met")
        cells = [
            (
                row["case"],
                row["name"],
                f"{row['steps_per_second']['median']:,.0f}",
                "" if row["speed_up"] is None else f"{row['speed_up']['median']:.2f}",
                "" if row["at_least"] is None else f"{row['at_least']:g}",
                _met(row),
            )
            for row in rows
        ]
    return "\n".join([*lines, *_aligned(header, cells, left=(0, 1))])


def _met(row: Row) -> str:
    return "" if row["met"] is None else "yes" if row["met"] else "no"


def format_train(run: dict[str, Any]) -> str:
    """The tables of whole trainings."""
    machine = run["machine"]
    lines = [
        f"{machine['device']}, {machine['threads']} threads of {machine['cores']} cores",
        f"pytorch-lightning {machine['pytorch_lightning']}, {versions(machine)}; "
        f"load average {machine['load_average']} before, {machine['load_average_at_end']} after",
    ]
    for case in run["cases"]:
        bare, reference = (row["milliseconds"]["median"] for row in case["rows"][:2])
        lines += [
            "",
            f"{case['title']}: {case['samples']:,} samples of {'x'.join(map(str, case['input_shape']))} "
            f"({case['data']}), {case['weights']:,} weights, {case['optimizer']}, batches of {case['batch_size']}, "
            f"{case['rounds']} epochs of {case['steps']} steps with each loss",
            f"a step of ours takes {reference - bare:+.2f} ms over the bare loop",
            *_aligned(
                TRAIN_HEADER, [_train_cells(row) for row in case["rows"] if row["status"] == "ok"], left=(0, 5, 6)
            ),
            *_absent(case["rows"]),
        ]
    return "\n".join(
        [*lines, "", *_summary([row | {"case": case["title"]} for case in run["cases"] for row in case["rows"]])]
    )


def _train_cells(row: Row) -> tuple[str, ...]:
    ratio = {key: f"{value:.3f}" for key, value in row["ratio"].items()}
    return (
        row["name"],
        *_time(row["milliseconds"]),
        ratio["median"],
        f"{ratio['low']}-{ratio['high']}",
        row["of"],
        _verdict(row),
    )


def _batch_of(row: Row) -> tuple[str, tuple[int, ...], str]:
    """Link, shape and dtype of what a row was measured on."""
    return row["link"], tuple(row["shape"]), row["dtype"]


def blocks(rows: list[Row]) -> list[tuple[tuple[str, tuple[int, ...], str], list[Row]]]:
    """Rows of one batch together."""
    grouped = groupby(rows, key=_batch_of)
    return [(key, list(group)) for key, group in grouped]


def versions(machine: dict[str, Any]) -> str:
    """Of torch, of ours, and of the peers."""
    names = [name for name in ("torch", "cuda", "triton", "equipoise", *PEERS) if name in machine]
    absent = [name for name in names if machine[name] is None]
    installed = ", ".join(f"{name} {machine[name]}" for name in names if name not in absent)
    return f"{installed}; not installed: {', '.join(absent)}" if absent else installed


def targets_met(rows: list[Row]) -> tuple[int, int]:
    """Number of checks met and of all; a loss of ours that fails counts as one that is missed."""
    verdicts = [check["met"] for row in rows for check in row.get("checks", [])]
    return sum(verdicts), len(verdicts) + sum(_failed(row) for row in rows)


def missed(rows: list[Row]) -> list[tuple[Row, str]]:
    """Each target that is not met, with the reason."""
    checks = [(row, _why(row, check)) for row in rows for check in row.get("checks", []) if not check["met"]]
    return [*checks, *((row, row["status"]) for row in rows if _failed(row))]


def _failed(row: Row) -> bool:
    return row["kind"] == "ours" and row["status"] != "ok"


def _why(row: Row, check: dict[str, Any]) -> str:
    if check["measured"] is None:
        return f"{check['name']} not measured, capture {row['capture']}"
    return f"{check['measured']:.4g} {check['what']}, at most {check['limit']:.4g}"


def _summary(rows: list[Row]) -> list[str]:
    met, judged = targets_met(rows)
    lines = [f"  {row['name']}{_place(row)}: {why}" for row, why in missed(rows)]
    return [f"{met} of {judged} targets met", *(["missed:", *lines] if lines else [])]


def _place(row: Row) -> str:
    if "case" in row:
        return f" in {row['case']}"
    return f" at {tuple(row['shape'])} {row['dtype']}" if "shape" in row else ""


def _aligned(header: Sequence[str], cells: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    widths = [max(len(line[k]) for line in (header, *cells)) for k in range(len(header))]
    lines = [
        "  ".join(text.ljust(width) if k in left else text.rjust(width) for k, (text, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in (header, *cells))
    ]
    return [line.rstrip() for line in (lines[0], "-" * len(lines[0]), *lines[1:])]


def _absent(rows: list[Row]) -> list[str]:
    return [f"{row['name']}: {row['status']}" for row in rows if row["status"] != "ok"]


def _time(quartiles: dict[str, float]) -> tuple[str, str]:
    """Median and quartiles with three digits or so."""
    median = quartiles["median"]
    digits = 1 if median >= 10 else 2 if median >= 1 else 3
    return f"{median:.{digits}f}", f"{quartiles['low']:.{digits}f}-{quartiles['high']:.{digits}f}"


def _verdict(row: Row) -> str:
    """In one word, with the names of the checks that are missed."""
    names = [check["name"] for check in row["checks"] if not check["met"]]
    return f"missed: {', '.join(names)}" if names else "met" if row["checks"] else ""


def _optional(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


# ---------------------------------------------------------------------------------------------------------------- CPU


def _cpu_block(rows: list[Row]) -> list[str]:
    cells = [_cpu_cells(row) for row in rows if row["status"] == "ok"]
    return [*_aligned(CPU_HEADER, cells, left=(0, 5, 9)), *_absent(rows)]


def _cpu_cells(row: Row) -> tuple[str, ...]:
    torch_name = TORCH[row["link"]]
    ratio = row["ratios"].get(torch_name)
    return (
        row["name"],
        *_time(row["milliseconds"]),
        f"{ratio['median']:.2f}" if ratio else "",
        f"{ratio['low']:.2f}-{ratio['high']:.2f}" if ratio else "",
        _target(row, torch_name),
        f"{row['peak_memory']:.2f}",
        str(row["held"]),
        str(row["held_without_inputs"]),
        {True: "met", False: "missed", None: ""}[row["met"]],
    )


def _target(row: Row, torch_name: str) -> str:
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


# --------------------------------------------------------------------------------------------------------------- CUDA


def _cuda_block(rows: list[Row], l2_bytes: int) -> list[str]:
    measured = [row for row in rows if row["status"] == "ok"]
    notes = [f"{row['name']}: no device time, capture {row['capture']}" for row in measured if row["capture"] != "ok"]
    cells = [_cuda_cells(row) for row in measured]
    return [*_about(measured, l2_bytes), *_aligned(CUDA_HEADER, cells, left=(0, 8)), *notes, *_absent(rows)]


def _about(rows: list[Row], l2_bytes: int) -> list[str]:
    """Size and floor of the block."""
    if not rows:
        return []
    size = rows[0]["logits_bytes"]
    text = f"logits of {size / 1e6:.1f} MB, floor {rows[0]['floor_milliseconds']:.4f} ms"
    cache = f"; they fit in the L2 cache of {l2_bytes / 1e6:.0f} MB, so times may be below the floor"
    return [text + cache if size <= l2_bytes else text]


def _cuda_cells(row: Row) -> tuple[str, ...]:
    ratios = row["device_ratios"]
    return (
        row["name"],
        *(_time(row["device_milliseconds"]) if row["device_milliseconds"] else ("", "")),
        _optional(row["times_floor"]),
        _optional(ratios.get(TORCH[row["link"]])),
        _optional(ratios.get(row["compiled"])),
        f"{1e3 * row['milliseconds']['median']:.1f}",
        f"{row['peak_memory']:.2f}",
        _verdict(row),
    )
