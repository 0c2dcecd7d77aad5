"""``equipoise export``: the model of a run as a self-contained folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise._reading import reading
from equipoise._suggestions import some
from equipoise.cli.console import echo
from equipoise.cli.inputs import bad_input
from equipoise.comparison.folder import ComparisonFolder
from equipoise.predictions import InputError

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that equipoise train left.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write.", show_default="RUN/exported")] = None,
) -> None:
    """Write the model of a run with its preparation, calibration and thresholds, for equipoise.load_exported."""
    with bad_input():
        with reading(run, "the files of the comparison do not fit together", "run equipoise compare again"):
            _refuse_comparison(run)
        try:
            from equipoise.train.export import export_run

            place = export_run(run, run / "exported" if out is None else out)
        except ImportError as error:  # safetensors, or what the model comes from
            raise InputError(str(error)) from None
    trust = ", trust_code=True" if (place / "model.py").exists() else ""
    echo(f"wrote {place}; use it: equipoise.load_exported({str(place)!r}{trust})")


def _refuse_comparison(path: Path) -> None:
    """Raise for a folder of many runs; the error suggests the recommended one."""
    comparison = ComparisonFolder(path)
    if not comparison.exists:
        return
    runs, best = comparison.finished, comparison.best
    if best is None:
        raise InputError(f"{path}: it must be one run, got a comparison without a finished one; resume it first")
    from equipoise.comparison.judge import known_verdict
    from equipoise.comparison.recommendation import Recommendation, recommended

    verdict = known_verdict(comparison)
    advice, which = None if verdict is None else recommended(comparison, verdict), "the recommended one"
    if advice is None:
        advice = Recommendation(best, "not evaluated yet: resume it, or see equipoise report", "")
        which = "the best so far on validation data"
    raise InputError(
        f"{path}: it must be one run, got a comparison of {len(runs)} ({some(run.name for run in runs)}); {which}: "
        f"{advice.command(path)} ({advice.why})"
    )
