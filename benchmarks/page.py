"""The page of documentation on performance, written from the results of a run; no number in it comes from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from benchmarks.cases import TORCH
from benchmarks.table import blocks, missed, targets_met, versions
from benchmarks.targets import CALLS, FLOORS, LARGE, OTHER_CALLS, PEAK, SMALL
from benchmarks.training import TARGET
from docs.charts import PHONE, SCHEMES, WIDTH, Bar, Bars, bar_chart

__all__ = ["draw_charts", "format_page"]

Row: TypeAlias = dict[str, Any]

MAIN = (
    "CrossEntropyLoss",
    "CrossEntropyLoss, smoothing 0.1",
    "CrossEntropyLoss, dense targets",
    "FocalLoss(2)",
    "CyclicalFocalLoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "ClassBalancedLoss",
    "BrierLoss",
    "AsymmetricSoftmaxLoss",
    "RecallLoss",
    "BinaryCrossEntropyLoss",
    "BinaryFocalLoss(2)",
    "AsymmetricLoss",
    "AsymmetricLoss, adaptive",
    "DiceLoss",
    "LovaszSoftmaxLoss",
)
"""Ours that the page shows, if they were measured; besides them, all that is not ours."""

CHART: dict[str, dict[str, str]] = {
    "Cross-entropy": {
        "equipoise": "CrossEntropyLoss",
        "torch": TORCH["softmax"],
        "torch, compiled": "torch cross_entropy, compiled",
    },
    "Focal loss": {
        "equipoise": "FocalLoss(2)",
        "plain operations": "focal, eager formula",
        "the same, compiled": "focal, compiled",
        "kornia": "kornia focal_loss(2)",
        "MONAI": "MONAI FocalLoss(2), softmax",
    },
    "Recall loss": {
        "equipoise": "RecallLoss",
        "plain operations": "recall, eager formula",
        "the same, compiled": "recall, compiled",
    },
    "Dice loss": {"equipoise": "DiceLoss", "MONAI": "MONAI DiceLoss"},
}
"""Groups of bars: names on the chart, and rows of the run."""
CHART_TITLE = "Time relative to F.cross_entropy"
CHARTED = [8, 19, 769, 769]
"""Shape of the logits of the chart."""
LONGEST = 5.0
"""End of the axis of the chart."""

CPU_COMMANDS = """\
    python -m benchmarks losses --device cpu --json losses.json
    python -m benchmarks table losses.json --out docs/performance.md"""
CUDA_COMMANDS = """\
    python -m benchmarks losses --device cuda --json losses.json
    python -m benchmarks training --device cuda --json training.json
    python -m benchmarks train --json train.json
    python -m benchmarks table losses.json training.json train.json --out docs/performance.md"""

CUDA_READING = """\
* **ms** is the time of the device for forward plus backward, with the quartiles: a CUDA graph of the step, replayed.
* **× floor** is that time in units of the floor, the time in which the device could copy what has to be moved at
  least (logits and targets read twice, the gradient written once, two float32 for each row of a softmax written and
  read), at the bandwidth of a large copy in the same run.
* **× torch** is that time in units of torch's loss, the first row; **× compiled** in units of the same loss in plain
  operations under `torch.compile`.
* **call** is the wall clock of an eager call, forward plus backward, with what it costs to launch it. Ratios of calls,
  as the targets have them, are medians over the rounds of the ratio within a round, and no quotients of this column.
* **peak** is the memory allocated at once beyond the inputs, gradient included, in units of the logits.

Large batches have their gradient written at once with the loss, and their logits read once, unless the weights of the
rows follow from the batch as in recall loss: so a loss can be faster than the floor, which counts two readings. Here
the gradient that comes in is 1; where it is not (a loss that is scaled or divided), what was written is multiplied in
backward, one pass more. Logits that fit in the cache of the device ({l2} MB here) can be faster than the floor as
well, which is that of its memory."""
CPU_READING = """\
* **ms** is the wall clock of forward plus backward, with the quartiles.
* **× torch** is the ratio to torch's loss, the first row, measured in the same round.
* **peak** is the memory allocated at once beyond the inputs, gradient included, in units of the logits."""


CUDA_TARGETS = (
    "Every loss of ours but those on whole regions is held to these: no more device time than torch's cross-entropy "
    "(for a softmax) and than the same loss under `torch.compile`, where it was compiled; for logits of at least "
    f"{LARGE / 1e6:.0f} MB at most {FLOORS[4]:g} times the floor in four bytes and {FLOORS[2]:g} in two, and at the "
    f"peak {PEAK:g} times the logits besides two float32 for each row of a softmax; for logits of at most "
    f"{SMALL / 1e6:.0f} MB a call of at most {OTHER_CALLS:g} times torch's cross-entropy with integer targets "
    f"({CALLS['RecallLoss']:g} times for recall loss).\n\n"
)
CUDA_REGIONS = """\
Losses on whole regions have no target. The gradient of a *Dice loss* follows from sums over all pixels, so that logits
are read for these, and again for the gradient; where the classes of a pixel are too many for the registers of a thread,
each of the two looks at them twice, the second time in the cache. A *Lovász loss* sorts the pixels of every class by
their errors, by PyTorch's own sort, which takes more than half of its time, and walks along that order; ours sorts here
those of the whole batch, kornia's those of each image by itself, which is another loss and less to sort."""
CUDA_UNEVEN = """\
*Recall losses* cannot have their gradient at once, as its weights are the recalls of the batch: they write codes and
unweighted losses of the rows, count them, and weigh them, before there is a loss. Planes whose size is odd, such as
769 x 769 pixels, start at odd addresses in two bytes, so that each pixel is loaded and stored by itself."""
CUDA_CALLS = """\
## Calls on small batches

On a small batch the Python of a loss takes longer than its kernels. An eager call, forward plus backward, takes about
1.5 to 2 times as long as one of torch's cross-entropy, that of recall loss and of an adaptive asymmetry up to 3 times:
some tenths of a millisecond, which other Python of the training step may hide or not. A training step that is
[captured as a CUDA graph](your-loop.md#cuda-graphs) costs none of it."""
REPLAYED_BYTES = 36_000_000  # of logits, up to which calls came from C++
REPLAYED = """\
This run was measured when losses on small batches could be called from C++, which they no longer can be. Numbers that
depend on it (calls of ours on logits of less than {megabytes} MB, training steps) are left out."""
CPU_TARGETS = "A loss is allowed a multiple of the time of another, torch's as a rule.\n\n"


def format_page(
    run: dict[str, Any], training: dict[str, Any] | None = None, trained: dict[str, Any] | None = None
) -> str:
    """Markdown of a run of ``losses`` and, if there are some, of ``training`` and of ``train``."""
    on_cuda = run["bandwidth"] is not None
    replayed = [each for each in (run, training) if each and _is_replayed(each)]
    run, training = _without_replayed(run), None if training and _is_replayed(training) else training
    sections = [
        "# Performance",
        _introduction(run, on_cuda),
        *_picture(run),
        *_steps(training, trained),
        *([CUDA_CALLS] if on_cuda else []),
        "## Targets",
        (CUDA_TARGETS if on_cuda else CPU_TARGETS) + _missed(run, training),
        *([CUDA_UNEVEN, CUDA_REGIONS] if on_cuda else []),
        "## All measurements",
        "How to read the tables:\n\n"
        + (CUDA_READING.format(l2=round(run["machine"]["l2_bytes"] / 1e6)) if on_cuda else CPU_READING),
        *([REPLAYED.format(megabytes=REPLAYED_BYTES // 10**6)] if replayed else []),
        *_shapes(run["rows"], on_cuda),
        "## Measure it yourself",
        "In a checkout of the project with `pip install -e '.[bench]'`:\n\n"
        + (CUDA_COMMANDS if on_cuda else CPU_COMMANDS),
    ]
    return "\n\n".join(sections) + "\n"


def draw_charts(run: dict[str, Any]) -> dict[str, str]:
    """The chart of the page as SVG by file name; empty if the run has too little for it."""
    groups = _bars(_charted(run))
    longest = min(LONGEST, max((bar.value for group in groups for bar in group.rows), default=0.0))
    return {
        f"performance{kind}-{scheme}.svg": bar_chart(CHART_TITLE, groups, scheme, width, longest=longest)
        for scheme in SCHEMES
        for kind, width in {"": WIDTH, "-phone": PHONE}.items()
        if groups
    }


def _charted(run: dict[str, Any]) -> list[Row]:
    """The rows of the chart: those of ``CHARTED``, or else of the first softmax in float32."""
    shown = [
        rows
        for (link, _, dtype), rows in blocks(run["rows"])
        if link == "softmax" and dtype == "float32" and any(row["name"] == TORCH[link] for row in rows)
    ]
    return next((rows for rows in shown if rows[0]["shape"] == CHARTED), shown[0] if shown else [])


def _bars(rows: list[Row]) -> list[Bars]:
    """The groups of which a loss of ours and one other were measured."""
    known = {row["name"]: _times_torch(row) for row in rows if row["status"] == "ok"}
    groups = []
    for title, names in CHART.items():
        bars = [
            Bar(name, value, f"{value:.2f}x", name == "equipoise")
            for name, row in names.items()
            if (value := known.get(row)) is not None
        ]
        if len(bars) > 1 and bars[0].ours:
            groups.append(Bars(title, bars))
    return groups


def _times_torch(row: Row) -> float | None:
    """Time relative to torch's cross-entropy: of the device if there is one, of the call otherwise."""
    if "device_ratios" in row:
        return row["device_ratios"].get(TORCH[row["link"]])
    ratio = row["ratios"].get(TORCH[row["link"]])
    return None if ratio is None else ratio["median"]


def _picture(run: dict[str, Any]) -> list[str]:
    """The chart, for light and dark pages, and what it shows."""
    rows = _charted(run)
    if not _bars(rows):
        return []
    pictures = [
        f"""<picture>
  <source media="(max-width: 600px)" srcset="images/performance-phone-{scheme}.svg">
  <img src="images/performance-{scheme}.svg#gh-{scheme}-mode-only" alt="{CHART_TITLE}, losses of several libraries">
</picture>"""
        for scheme in SCHEMES
    ]
    time = "device time" if run["bandwidth"] is not None else "time of a call"
    shape = tuple(rows[0]["shape"])
    return ["\n".join(pictures), f"Forward plus backward at {shape}, {rows[0]['dtype']}: {time}; the line is torch's."]


def _steps(training: dict[str, Any] | None, trained: dict[str, Any] | None) -> list[str]:
    """The section on training steps: of ``equipoise train``, and of a small network with each loss."""
    parts = [*(_trained(trained) if trained else []), *(_training(training) if training else [])]
    return ["## A whole training step", *parts] if parts else []


def _trained(run: dict[str, Any]) -> list[str]:
    rows = []
    for case in run["cases"]:
        bare, ours, *others = case["rows"]
        ratios = [row["ratio"]["median"] for row in others]
        rows.append(
            [
                case["title"],
                _time(bare["milliseconds"]),
                _ratio(ours["ratio"]["median"]),
                f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "–",
            ]
        )
    about = (
        f"A step of `equipoise train` on {run['machine']['device']}, {run['machine']['date']}, relative to a bare "
        f"PyTorch loop with the same model, data and cross-entropy, in {run['cases'][0]['rounds']} rounds; and the "
        "other losses of the task, relative to the step of `equipoise train` with cross-entropy. Values below 1 are "
        "noise."
    )
    return [about, _markdown(("training", "bare loop, ms", "× bare loop", "other losses"), rows)]


def _is_replayed(run: dict[str, Any]) -> bool:
    """Whether losses on small batches were called from C++, as they could be until that part was retired."""
    return run["machine"].get("calls_from") == "C++"


def _without_replayed(run: dict[str, Any]) -> dict[str, Any]:
    """A run of ``losses`` without the calls, and the targets of calls, that would come from Python now."""
    if not _is_replayed(run):
        return run
    rows = [
        row | {"milliseconds": None, "checks": [check for check in row["checks"] if check["name"] != "call"]}
        if row.get("checks") and row["logits_bytes"] <= REPLAYED_BYTES  # none: regions
        else row
        for row in run["rows"]
    ]
    return run | {"rows": rows}


def _introduction(run: dict[str, Any], on_cuda: bool) -> str:
    machine = run["machine"]
    bandwidth = run["bandwidth"]
    copy = f", where a copy moves {bandwidth['median'] / 1e9:.0f} GB/s" if on_cuda else ""
    return (
        "What the losses cost in a training step, next to torch's own, the same formulas in plain torch operations"
        f"{' (also under `torch.compile`)' if on_cuda else ''} and other libraries, all in one run. "
        "This page is generated from recorded results.\n\n"
        f"Measured on {machine['date']} on {machine['device']}{copy}. {_sentence(versions(machine))} "
        f"Medians over {run['settings']['rounds']} rounds, quartiles in brackets."
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _shapes(rows: list[Row], on_cuda: bool) -> list[str]:
    return [
        text
        for (link, shape, dtype), block in blocks(rows)
        for text in (
            f'<details markdown="1">\n<summary>{link.capitalize()} {shape}, {dtype}</summary>',
            _losses(_shown(block), on_cuda),
            "</details>",
        )
    ]


def _shown(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok" and (row["kind"] != "ours" or row["name"] in MAIN)]


def _losses(rows: list[Row], on_cuda: bool) -> str:
    if on_cuda:
        header = ("loss", "ms", "× floor", "× torch", "× compiled", "call, µs", "peak")
        return _markdown(header, [_cuda_cells(row) for row in rows])
    return _markdown(("loss", "ms", "× torch", "peak"), [_cpu_cells(row) for row in rows])


def _cuda_cells(row: Row) -> list[str]:
    ratios = row["device_ratios"]
    return [
        _name(row),
        _time(row["device_milliseconds"]),
        _ratio(row["times_floor"]),
        _ratio(ratios.get(TORCH[row["link"]])),
        _ratio(ratios.get(row["compiled"])),
        "–" if row["milliseconds"] is None else f"{1e3 * row['milliseconds']['median']:.0f}",
        f"{row['peak_memory']:.2f}",
    ]


def _cpu_cells(row: Row) -> list[str]:
    ratio = row["ratios"].get(TORCH[row["link"]])
    return [_name(row), _time(row["milliseconds"]), _ratio(ratio and ratio["median"]), f"{row['peak_memory']:.2f}"]


def _training(run: dict[str, Any]) -> list[str]:
    settings = run["settings"]
    rows = [
        [
            _name(row),
            _time(row["milliseconds"]),
            f"{row['ratio']['median']:.3f} ({row['ratio']['low']:.3f}–{row['ratio']['high']:.3f})",
        ]
        for row in run["rows"]
    ]
    about = (
        f"Forward, backward and update of a small U-Net with logits {tuple(settings['shape'])} on "
        f"{run['machine']['device']}, {'bfloat16 autocast' if settings['autocast'] else 'float32'}; every loss "
        f"takes turns with torch's on one network, in {settings['rounds']} rounds. The target is at most {TARGET:g} "
        "times torch's."
    )
    return [about, _markdown(("loss", "ms", "× torch"), rows)]


def _missed(run: dict[str, Any], training: dict[str, Any] | None) -> str:
    """How many targets are met, and each that is not."""
    rows = run["rows"] + (training["rows"] if training else [])
    met, judged = targets_met(rows)
    lines = [f"* `{row['name']}`, {_place(row)}: {why}" for row, why in missed(rows)]
    count = f"{met} of {judged} targets are met"
    return f"{count}; these are not:\n\n" + "\n".join(lines) if lines else f"{count}."


def _place(row: Row) -> str:
    return f"{tuple(row['shape'])} {row['dtype']}" if "shape" in row else "training step"


def _name(row: Row) -> str:
    return f"**{row['name']}**" if row["kind"] == "ours" else row["name"]


def _time(quartiles: dict[str, float] | None) -> str:
    if quartiles is None:
        return "–"
    digits = 1 if quartiles["median"] >= 10 else 2 if quartiles["median"] >= 1 else 3
    return f"{quartiles['median']:.{digits}f} ({quartiles['low']:.{digits}f}–{quartiles['high']:.{digits}f})"


def _ratio(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))
