"""Keep what a comparison found: ``python -m experiments.record comparisons/NAME``.

Its page goes to ``experiments/reports/NAME.html``; settings, machine, verdict and the numbers of every run go to
``experiments/results/NAME.json``, and the table for ``docs/experiments.md`` is printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.comparison.folder import ComparisonFolder, PlannedRun
from equipoise.comparison.verdict import as_verdict
from equipoise.report.tables import as_markdown, with_metrics
from equipoise.train.folder import write_json

HERE = Path(__file__).parent
LEFT_OUT = ("macro_f1", "ada_ece", "ada_ece_after", "seconds_per_step")
"""Numbers that are recorded and not in the table: near others, or times of runs that shared a machine."""


def record(folder: ComparisonFolder, out: Path = HERE) -> dict[str, Any]:
    """Write page and numbers of a comparison under ``out``; also the numbers."""
    runs = folder.finished
    content = {
        "spec": folder.spec,
        "environment": runs[0].folder.record.environment.to_json(),
        "verdict": json.loads(folder.verdict.read_text(encoding="utf-8")),
        "runs": [_numbers(run) for run in runs],
    }
    name = folder.path.resolve().name
    for part in ("reports", "results"):
        (out / part).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder.report, out / "reports" / f"{name}.html")
    write_json(out / "results" / f"{name}.json", content)
    return content


def _numbers(run: PlannedRun) -> dict[str, Any]:
    about, test = run.folder.record, run.folder.results.test
    rows = list(run.folder.history())  # none where a classifier was made of another run's features
    return {
        "loss": run.loss,
        "seed": run.seed,
        "best_epoch": about.best_epoch,
        "monitor_value": about.monitor_value,
        "last_epoch": {split: rows[-1].split(split) for split in ("train", "val")} if rows else None,
        "test": test.overall,
        "test_calibrated": test.calibration.after,
        "temperature": test.calibration.fits,
        "groups": [group.to_json() for group in test.groups],
        "per_class": [row.to_json() for row in test.per_class],
    }


def table(content: Mapping[str, Any]) -> str:
    """The table of what was recorded, in Markdown."""
    verdict = as_verdict(content["verdict"])
    kept = [name for name in verdict.metrics if name not in LEFT_OUT]
    return as_markdown(with_metrics(verdict, kept)).partition("\n\n")[0]


def main() -> None:
    """Record and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments.record", description=__doc__)
    parser.add_argument("comparison", type=Path, help="folder that equipoise compare left")
    print(table(record(ComparisonFolder(parser.parse_args().comparison))))


if __name__ == "__main__":
    main()
