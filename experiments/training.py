"""Trainings on real data: ``python -m experiments.training SPEC.yaml --data-root FOLDER``.

A spec holds the settings of ``equipoise train`` and two lists, ``losses`` and ``seeds``; every loss is trained with
every seed. The data lie in FOLDER under the name that the spec says. Runs that are finished are not repeated. What
they reached is written to ``experiments/results/training-NAME.json`` and printed as a table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.train.folder import RunFolder, write_json
from equipoise.train.run import run
from equipoise.train.spec import RunSpec, read_spec

SHOWN = {
    "single": ("accuracy", "mean_class_accuracy", "macro_f1", "nll", "ece"),
    "multi": ("mean_average_precision", "CF1", "OF1", "nll", "ece"),
    "segmentation": ("mean_iou", "mean_accuracy", "pixel_accuracy", "nll", "ece"),
}
"""Numbers of the table."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what the spec says and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.training", description=__doc__)
    parser.add_argument("spec", type=Path, help="YAML file in experiments/specs")
    parser.add_argument("--data-root", type=Path, required=True, metavar="FOLDER", help="where the data lie")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where run folders go")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", metavar="FOLDER")
    parser.add_argument("--losses", nargs="+", help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, help="only these")
    options = parser.parse_args(arguments)
    settings = read_spec(options.spec)
    losses, seeds = settings.pop("losses"), settings.pop("seeds")
    name = settings["data"]
    settings["data"] = str(options.data_root / name)
    rows = []
    for seed in options.seeds or seeds:
        for loss in options.losses or losses:
            spec = RunSpec.check(settings | {"loss": loss, "seed": seed}, where=str(options.spec))
            folder = run(spec, options.runs / f"{name}-{loss}-{seed}", say=lambda line: print(line, file=sys.stderr))
            rows.append(_row(folder))
    record = {"spec": read_spec(options.spec), "environment": rows[0].pop("environment"), "runs": rows}
    for row in rows[1:]:
        row.pop("environment")
    write_json(options.out / f"training-{name}.json", record)
    print(table(record))


def _row(folder: RunFolder) -> dict[str, Any]:
    """What is recorded of a run."""
    about, test = folder.about, folder.results["test"]
    history = list(folder.history())
    return {
        "loss": about["spec"]["loss"],
        "seed": about["spec"]["seed"],
        "task": about["data"]["task"],
        "samples": about["data"]["samples"],
        "weights": about["model"]["parameters"],
        "best_epoch": about["best_epoch"],
        "monitor": about["monitor"],
        "monitor_value": about["monitor_value"],
        "seconds": about["seconds"],
        "seconds_per_step": statistics.median(row["seconds_per_step"] for row in history),
        "test": test["overall"],
        "test_calibrated": test["calibration"]["after"],
        "temperature": test["calibration"]["fits"],
        "groups": test["groups"],
        "per_class": test["per_class"],
        "environment": about["environment"],
    }


def table(record: Mapping[str, Any]) -> str:
    """Means over the seeds in percent (NLL as it is), with the smallest and the largest."""
    rows = record["runs"]
    names = SHOWN[rows[0]["task"]]
    heads = ["loss", *names, "ECE after temperature", "ms a step"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for loss in dict.fromkeys(row["loss"] for row in rows):
        own = [row for row in rows if row["loss"] == loss]
        cells = [_cell(name, [row["test"][name] for row in own]) for name in names]
        after = [row["test_calibrated"]["ece"] for row in own if row["test_calibrated"]]
        step = statistics.median(row["seconds_per_step"] for row in own)
        lines.append(" | ".join([f"| {loss}", *cells, _cell("ece", after) if after else "–", f"{1e3 * step:.1f} |"]))
    return "\n".join(lines)


def _cell(name: str, values: Sequence[float]) -> str:
    scale, digits = (1, 3) if name == "nll" else (100, 1)
    shown = [f"{scale * value:.{digits}f}" for value in (statistics.mean(values), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"


if __name__ == "__main__":
    main()
