"""What README and documentation take from recorded results: ``python -m docs.recorded`` writes it.

The figure, the badges and two tables are files or marked parts of pages; :func:`claims` are the phrases with numbers in
the sentences of the README. ``tests/test_readme.py`` checks all of them against the records.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.coverage import format_coverage
from docs.charts import PHONE, SCHEMES, WIDTH, Forest, forest_plot
from docs.loss_pages import write_parts
from equipoise.catalogue import CATALOGUE
from equipoise.comparison.sentences import interval_text, signed
from equipoise.comparison.verdict import MetricDifference, Verdict, as_verdict
from equipoise.plotting.theme import LIGHT

__all__ = [
    "BADGES",
    "REPORT",
    "STATISTICS",
    "badge",
    "claims",
    "coverage",
    "figures",
    "main",
    "measured",
    "report_parts",
    "verdict_of",
]

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
REPORT = ROOT / "docs" / "report.md"
STATISTICS = ROOT / "docs" / "statistics.md"
IMAGES = ROOT / "docs" / "images"

PIXELS = [8, 19, 769, 769]
"""Shape of the logits for which the README quotes times on a GPU."""
TORCH, TORCH_BINARY = "torch cross_entropy", "torch binary_cross_entropy_with_logits"

MAIN = "mean class accuracy"

Row = dict[str, Any]


@cache
def recorded(file: str) -> dict[str, Any]:
    """A recorded result, by its path in the repository."""
    content: dict[str, Any] = json.loads((ROOT / file).read_text(encoding="utf-8"))
    return content


def verdict_of(name: str) -> Verdict:
    """The verdict of a recorded comparison."""
    return as_verdict(recorded(f"experiments/results/{name}.json")["verdict"])


# ------------------------------------------------------------------------------------------------------------- figure


def _differences(name: str, metric: str) -> list[MetricDifference]:
    return sorted(verdict_of(name).differences_in(metric), key=lambda one: -one.mean)


def figures() -> dict[str, str]:
    """The figure by file name: light and dark, for screens and for phones."""
    groups = [
        Forest("CIFAR-10-LT: classes with 20 to 100 images, 3 seeds", _differences("cifar10_lt100", "medium")),
        Forest("Handwritten digits: classes with under 20, 5 seeds", _differences("digits_lt", "few")),
    ]
    title = "Rare classes: accuracy minus that of cross-entropy"
    return {
        f"rare-classes{kind}-{scheme}.svg": forest_plot(title, groups, scheme, width)
        for scheme in SCHEMES
        for kind, width in {"": WIDTH, "-phone": PHONE}.items()
    }


# ------------------------------------------------------------------------------------------------------------- badges


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _badges() -> dict[str, tuple[str, str]]:
    project = _project()
    torch = next(text for text in project["dependencies"] if text.startswith("torch>"))
    return {
        "python": ("python", project["requires-python"].replace(">=", "≥ ")),
        "torch": ("pytorch", torch.removeprefix("torch>=").join(("≥ ", ""))),
        "losses": ("losses", str(len(CATALOGUE))),
        "licence": ("licence", project["license"]),
    }


BADGES = _badges()
"""Label and value of each badge, from ``pyproject.toml`` and the catalogue."""


def badge(label: str, value: str) -> str:
    """A badge as SVG; it needs no network and cannot be out of date without a test that fails."""
    widths = [10 + round(6.6 * len(text)) for text in (label, value)]
    total = sum(widths)
    text = '<text x="{:.0f}" y="14" fill="#fff" text-anchor="middle">{}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="20" role="img" aria-label="{label}: {value}">'
        "<style>text{font:11px Verdana,'DejaVu Sans',sans-serif}</style>"
        f'<rect width="{total}" height="20" rx="3" fill="#444c54"/>'
        f'<path d="M{widths[0]} 0h{widths[1] - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{widths[1] - 3}z" '
        f'fill="{LIGHT["series-1"]}"/>'
        f"{text.format(widths[0] / 2, label)}{text.format(widths[0] + widths[1] / 2, value)}</svg>\n"
    )


# ------------------------------------------------------------------------------------------------------- measurements


def _rows(device: str, shape: list[int] | None = None) -> dict[str, Row]:
    rows = recorded(f"benchmarks/results/losses-{device}.json")["rows"]
    return {row["name"]: row for row in rows if row["shape"] == shape and row["dtype"] == "float32"}


def _cpu_ratios(name: str, of: str) -> list[float]:
    """Ratios of a loss to another on the CPU, over the shapes."""
    rows = recorded("benchmarks/results/losses-cpu.json")["rows"]
    return [row["ratios"][of]["median"] for row in rows if row["name"] == name and of in row["ratios"]]


def _span(numbers: list[float]) -> str:
    low, high = f"{min(numbers):.1f}", f"{max(numbers):.1f}"
    return f"{low}x" if low == high else f"{low}x to {high}x"


def _step(title: str) -> str:
    """The ratio of a training step to a bare PyTorch loop."""
    (case,) = (one for one in recorded("benchmarks/results/train-cuda.json")["cases"] if one["title"] == title)
    return f"{case['rows'][1]['ratio']['median']:.2f}x"


def _device_ratio(name: str, of: str = TORCH) -> str:
    rows = _rows("cuda", PIXELS)
    ours, other = (rows[one]["device_milliseconds"]["median"] for one in (name, of))
    return f"{ours / other:.2f}x"


def _memory_ratio(name: str, of: str = TORCH) -> str:
    rows = _rows("cuda", PIXELS)
    return f"{rows[name]['peak_memory'] / rows[of]['peak_memory']:.2f}x"


def _measurements() -> Iterator[tuple[str, str, str]]:
    """What was measured, the result, and where."""
    gpu, cpu = "H200, [benchmark](docs/performance.md)", "2 CPU cores, [record](benchmarks/results/losses-cpu.json)"
    yield (
        "A training step of `equipoise train`, relative to a bare PyTorch loop: CIFAR-10-LT; CamVid",
        f"{_step('cifar10_lt100, resnet32')}; {_step('camvid, unet')}",
        "H200, [two rounds](docs/training.md#overhead)",
    )
    yield (
        "Focal and recall loss at (8, 19, 769, 769), relative to `F.cross_entropy`: time; memory",
        f"{_device_ratio('FocalLoss(2)')}, {_device_ratio('RecallLoss')}; "
        f"{_memory_ratio('FocalLoss(2)')}, {_memory_ratio('RecallLoss')}",
        gpu,
    )
    yield (
        "Dice loss at the same shape, relative to MONAI's: time; memory",
        f"{_device_ratio('DiceLoss', 'MONAI DiceLoss')}; {_memory_ratio('DiceLoss', 'MONAI DiceLoss')}",
        gpu,
    )
    flat = _rows("cpu", [8192, 1000])
    ratios = {name: flat[name]["ratios"][TORCH]["median"] for name in ("FocalLoss(2)", "RecallLoss")}
    yield (
        "Focal and recall loss at (8192, 1000), relative to `F.cross_entropy`",
        ", ".join(f"{ratio:.1f}x" for ratio in ratios.values()),
        cpu,
    )
    yield (
        "**Slower on a CPU**, relative to torch's binary cross-entropy: binary focal; asymmetric; adaptive asymmetric",
        "; ".join(
            _span(_cpu_ratios(name, TORCH_BINARY))
            for name in ("BinaryFocalLoss(2)", "AsymmetricLoss", "AsymmetricLoss, adaptive")
        ),
        cpu,
    )
    dice = _ratio(_rows("cpu", [8, 19, 256, 256]), "DiceLoss", "MONAI DiceLoss")
    yield (
        "**Slower on a CPU**: Dice loss, relative to MONAI's; cross-entropy with dense targets, relative to torch's",
        f"{dice:.1f}x; {_span(_cpu_ratios('CrossEntropyLoss, dense targets', f'{TORCH}, dense targets'))}",
        cpu,
    )


def _ratio(rows: dict[str, Row], name: str, of: str) -> float:
    """The ratio of two medians of one shape."""
    ours, other = (rows[one]["milliseconds"]["median"] for one in (name, of))
    return float(ours / other)


def measured() -> str:
    """The table of measurements."""
    rows = [f"| {what} | {result} | {where} |" for what, result, where in _measurements()]
    return "\n".join(["| forward and backward | result | device |", "|---|---|---|", *rows])


# ------------------------------------------------------------------------------------------------------------- claims


def _difference(name: str, metric: str, loss: str) -> str:
    (one,) = (one for one in verdict_of(name).differences_in(metric) if one.loss == loss)
    assert one.interval is not None
    return f"{signed(metric, one.mean)} points (95 % CI {interval_text(metric, one.interval)})"


def _coverage() -> str:
    """The coverage of intervals with 3 to 10 seeds, the worse of the two settings, over the metrics."""
    rows = recorded("benchmarks/results/coverage.json")["rows"]
    kinds = {(row["metric"], row["seeds"]) for row in rows if row["seeds"] >= 3}
    worse = [min(row["coverage"] for row in rows if (row["metric"], row["seeds"]) == kind) for kind in kinds]
    return f"{100 * min(worse):.0f} to {100 * max(worse):.0f} %"


def claims() -> list[str]:
    """Phrases with numbers that the README must contain."""
    networks = recorded("experiments/results/calibration.json")["networks"]
    runs = recorded("experiments/results/cifar10_lt100.json")["runs"]
    ece = [mean(run[key]["ece"] for run in runs if run["loss"] == "ce") for key in ("test", "test_calibrated")]
    return [
        f"balanced softmax {_difference('digits_lt', 'few', 'balanced-softmax')}",
        f"focal loss {_difference('digits_lt', 'few', 'focal')}",
        f"contain the true difference in {_coverage()} of simulated comparisons",
        f"{len(CATALOGUE)} drop-in replacements for `nn.CrossEntropyLoss`",
        f"{_device_ratio('FocalLoss(2)')} and {_device_ratio('RecallLoss')} the time of `F.cross_entropy`",
        f"ECE of cross-entropy on CIFAR-10-LT from {100 * ece[0]:.1f} to {100 * ece[1]:.1f} %",
        f"NLL of {'all ten' if len(networks) == 10 else len(networks)} published networks",
    ]


def coverage() -> str:
    """The table of simulated coverage."""
    return format_coverage(recorded("benchmarks/results/coverage.json")["rows"])


def report_parts() -> dict[str, str]:
    """Sentences and numbers of the comparison of digits for the page on reports."""
    verdict = verdict_of("digits_lt")
    better, rest = (
        next(text for text in verdict.sentences if text.startswith(start))
        for start in (f"Significantly better than ce in {MAIN}", "No significant difference")
    )
    ce, balanced = (next(row for row in verdict.rows if row.loss == name) for name in ("ce", "balanced-softmax"))
    ends = {name: tuple(f"{100 * (row.mean(name) or 0.0):.1f}" for row in (ce, balanced)) for name in ("few", "medium")}
    raised, lowered = (f"*{name}* from {before} to {after} %" for name, (before, after) in ends.items())
    return {
        "verdict": f"> {better}",
        "rest": f"> {rest}",
        "groups": f"On the digits, balanced softmax raises {raised} and lowers {lowered}.",
    }


def main() -> None:
    """Write the figures, the badges and the tables."""
    for name, svg in figures().items():
        (IMAGES / name).write_text(svg, encoding="utf-8")
    (IMAGES / "badges").mkdir(exist_ok=True)
    for name, (label, value) in BADGES.items():
        (IMAGES / "badges" / f"{name}.svg").write_text(badge(label, value), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    README.write_text(write_parts(text, {"measured": measured()}), encoding="utf-8")
    for file, parts in ((STATISTICS, {"coverage": coverage()}), (REPORT, report_parts())):
        file.write_text(write_parts(file.read_text(encoding="utf-8"), parts), encoding="utf-8")
    missing = [claim for claim in claims() if claim not in re.sub(r"\s+", " ", text)]
    if missing:
        raise SystemExit("README.md must contain these phrases:\n" + "\n".join(missing))


if __name__ == "__main__":
    main()
