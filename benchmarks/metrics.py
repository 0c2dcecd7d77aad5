"""Time of metrics against torchmetrics on the same scores, and their memory over many pixels.

A comparison is update plus compute of a new metric on all scores, alternating between the two sides. The row has the
values of both: the calibration error of torchmetrics has a separate bin for confidence 1.0, and its average precision
is float32 on sigmoids, which makes neighbouring logits equal.

Memory is the peak resident set of a separate process, minus that after an update with a single pixel of the batch; the
batch is repeated.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassCalibrationError
from torchmetrics.classification import MultilabelAveragePrecision as TheirAveragePrecision

from benchmarks.measure import Quartiles, paired_ratio
from benchmarks.table import missed, targets_met, versions
from benchmarks.targets import Check, add_checks
from equipoise.metrics import CalibrationError, MultilabelAveragePrecision, SegmentationScores

__all__ = ["Settings", "format_metrics", "run"]

FASTER = 3.0
MEGABYTES = 200.0
CLASSES = 19  # of the pixels, as in street scenes


@dataclass(frozen=True)
class Settings:
    """Options of the command line.

    Args:
        shapes: (N, C) of the scores.
        pixels: total number of pixels.
        batch: height and width of the batch of pixels.
        rounds: number of rounds; None for that of the contest.
        filter: only names or shapes that contain this text.
    """

    shapes: tuple[tuple[int, int], ...] = ((1_000_000, 100), (100_000, 1000))
    pixels: int = 100_000_000
    batch: tuple[int, int] = (1024, 2048)
    rounds: int | None = None
    filter: str = ""


@dataclass(frozen=True)
class Contest:
    """A metric of ours and of torchmetrics, as functions of (N, C), and their batch."""

    name: str
    ours: Callable[[int], Metric]
    theirs: Callable[[int], Metric]
    batch: Callable[[int, int], tuple[Tensor, Tensor]]
    rounds: int
    tolerance: float = 1e-5


def single_label(n: int, c: int) -> tuple[Tensor, Tensor]:
    """Logits with an accuracy of about 0.9 and labels."""
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(n, c, generator=draw).mul_(2.0), torch.randint(c, (n,), generator=draw)
    logits[torch.arange(n), targets] += 6.0
    return logits, targets


def multi_label(n: int, c: int) -> tuple[Tensor, Tensor]:
    """Logits with an average precision of about 0.5 and labels, 3 % positive."""
    draw = torch.Generator().manual_seed(0)
    targets = (torch.rand(n, c, generator=draw) < 0.03).long()
    return torch.randn(n, c, generator=draw).add_(targets, alpha=3.0), targets


CONTESTS = (
    Contest(
        "calibration error",
        lambda c: CalibrationError(15),
        lambda c: MulticlassCalibrationError(c, n_bins=15),
        single_label,
        rounds=9,
    ),
    Contest("multilabel average precision", MultilabelAveragePrecision, TheirAveragePrecision, multi_label, rounds=3),
)
STREAMS: dict[str, Callable[[], Metric]] = {
    "calibration error": lambda: CalibrationError(15, ignore_index=255),
    "IoU of each class": lambda: SegmentationScores(CLASSES, ignore_index=255),
}


def run(settings: Settings, progress: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """One row per contest and shape, then one per metric over many pixels."""
    rows = []
    for contest in CONTESTS:
        for shape in settings.shapes:
            if settings.filter in f"{contest.name} {shape[0]}x{shape[1]}":
                rounds = settings.rounds or contest.rounds
                progress(f"{contest.name} {shape}: {rounds} rounds")
                rows.append(_compare(contest, shape, rounds))
    for name in STREAMS:
        if settings.filter in f"{name} pixels":
            progress(f"{name}: {settings.pixels:,} pixels")
            rows.append(_stream(name, settings))
    return rows


# ------------------------------------------------------------------------------------------------------------ contests


def _compare(contest: Contest, shape: tuple[int, int], rounds: int) -> dict[str, Any]:
    scores, targets = contest.batch(*shape)
    sides = {"ours": contest.ours, "torchmetrics": contest.theirs}
    times: dict[str, list[float]] = {side: [] for side in sides}
    values = {}
    for part in (slice(2000), *(slice(None) for _ in range(rounds))):  # the first is for warm-up
        for side, build in sides.items():
            metric, start = build(shape[1]), time.perf_counter()
            metric.update(scores[part], targets[part])
            values[side] = float(metric.compute())
            times[side].append(time.perf_counter() - start)
            del metric
    times = {side: seconds[1:] for side, seconds in times.items()}
    ratio = paired_ratio(times["torchmetrics"], times["ours"])
    row: dict[str, Any] = {
        "kind": "ours",
        "status": "ok",
        "name": contest.name,
        "shape": list(shape),
        "rounds": rounds,
        "dtype": "float32",
        "milliseconds": asdict(Quartiles.of([1e3 * each for each in times["ours"]])),
        "torchmetrics_milliseconds": asdict(Quartiles.of([1e3 * each for each in times["torchmetrics"]])),
        "times_faster": asdict(ratio),
        "value": values["ours"],
        "torchmetrics_value": values["torchmetrics"],
    }
    difference = abs(values["ours"] - values["torchmetrics"])
    slower = Check("time", 1.0 / ratio.median, 1.0 / FASTER, "times torchmetrics")
    add_checks(row, [slower, Check("value", difference, contest.tolerance, "from the value of torchmetrics")])
    return row


# --------------------------------------------------------------------------------------------------------------- pixels


def _stream(name: str, settings: Settings) -> dict[str, Any]:
    """Measure in a separate process, for a clean memory baseline."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    threads = torch.get_num_threads()
    process = context.Process(target=_measure_stream, args=(name, settings.pixels, settings.batch, threads, sender))
    process.start()
    sender.close()
    try:
        measured: dict[str, Any] = receiver.recv()
    except EOFError:
        measured = {"status": f"failed: the process ended with {process.exitcode}"}
    process.join()
    row: dict[str, Any] = {"kind": "ours", "status": "ok", "name": name, "pixels": settings.pixels, "classes": CLASSES}
    row |= {"batch": [1, CLASSES, *settings.batch]} | measured
    if row["status"] == "ok":
        add_checks(row, [Check("memory", row["megabytes"], MEGABYTES, "MB over the input")])
    return row


def _measure_stream(name: str, pixels: int, size: tuple[int, int], threads: int, sender: Any) -> None:  # noqa: ANN401
    torch.set_num_threads(threads)
    height, width = size
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(CLASSES, (1, height, width), generator=draw)
    scores = torch.randn(1, CLASSES, height, width, generator=draw)
    scores.scatter_add_(1, targets.unsqueeze(1), torch.full((1, 1, height, width), 4.0))
    targets[torch.rand(targets.shape, generator=draw) < 0.05] = 255
    metric = STREAMS[name]()
    metric.update(scores[..., :1, :1], targets[..., :1, :1])  # allocations of torch itself are done now
    metric.reset()
    scores.sum()
    before, start = _resident_bytes(), time.perf_counter()
    _reset_peak()
    left = pixels
    while left:
        rows = min(height, -(-left // width))
        metric.update(scores[:, :, :rows], targets[:, :rows])
        left -= min(left, rows * width)
    value = metric.compute()
    seconds = time.perf_counter() - start
    measured = {
        "status": "ok",
        "seconds": seconds,
        "megabytes": (_peak_bytes() - before) / 1e6,
        "input_megabytes": (scores.nbytes + targets.nbytes) / 1e6,
        "value": float(value["mean_iou"] if isinstance(value, dict) else value),
    }
    sender.send(measured)


def _status_bytes(field: str) -> int:
    with open("/proc/self/status") as file:  # noqa: PTH123
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))


def _resident_bytes() -> int:
    return _status_bytes("VmRSS:") if sys.platform == "linux" else _peak_bytes()


def _peak_bytes() -> int:
    if sys.platform == "linux":
        return _status_bytes("VmHWM:")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reset_peak() -> None:
    """Reset the peak of the process, which includes the creation of the batch."""
    if sys.platform == "linux":
        with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123
            file.write("5")


# ----------------------------------------------------------------------------------------------------------------- text


def format_metrics(run: dict[str, Any]) -> str:
    """The result as text."""
    machine = run["machine"]
    lines = [
        f"{machine['device']}, {machine['threads']} threads of {machine['cores']} cores, float32",
        f"torchmetrics {machine['torchmetrics']}, {versions(machine)}; "
        f"load average {machine['load_average']} before, {machine['load_average_at_end']} after",
        "",
    ]
    for row in run["rows"]:
        if row["status"] != "ok":
            lines.append(f"{row['name']}: {row['status']}")
        elif "pixels" in row:
            lines.append(
                f"{row['name']}, {row['pixels']:,} pixels of {row['classes']} classes: {row['seconds']:.1f} s, "
                f"{row['megabytes']:.0f} MB over a batch of {row['input_megabytes']:.0f} MB"
            )
        else:
            own, other, faster = row["milliseconds"], row["torchmetrics_milliseconds"], row["times_faster"]
            lines.append(
                f"{row['name']}, {row['shape'][0]:,} x {row['shape'][1]}: {own['median']:.0f} ms "
                f"({own['low']:.0f}-{own['high']:.0f}), torchmetrics {other['median']:.0f} ms "
                f"({other['low']:.0f}-{other['high']:.0f}), {faster['median']:.1f} times as fast "
                f"({faster['low']:.1f}-{faster['high']:.1f}, {row['rounds']} rounds); "
                f"{row['value']:.8f} and {row['torchmetrics_value']:.8f}"
            )
    met, judged = targets_met(run["rows"])
    lines += ["", f"{met} of {judged} targets met"]
    return "\n".join([*lines, *(f"  missed: {row['name']}: {why}" for row, why in missed(run["rows"]))])
