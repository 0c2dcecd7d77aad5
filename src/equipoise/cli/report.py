"""``equipoise report``: the report and the tables of a comparison, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise._reading import reading
from equipoise._writing import check_place, write_text
from equipoise.cli.console import echo
from equipoise.cli.inputs import bad_input
from equipoise.comparison.folder import ComparisonFolder
from equipoise.predictions import InputError
from equipoise.train.folder import write_json

__all__ = ["report"]


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that equipoise compare left.")],
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every number and difference as CSV.")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table for LaTeX.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as Markdown.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Metrics of these tables, e.g. accuracy,few,ece,mce_after.",
            show_default="all compared",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The report.", show_default="DIR/report.html")
    ] = None,
) -> None:
    """Write the report of a comparison from its finished runs, and its table as CSV, LaTeX or Markdown."""
    with bad_input():
        from equipoise.comparison.judge import judge, known_verdict
        from equipoise.report.comparison import comparison_page
        from equipoise.report.tables import as_csv, as_latex, as_markdown, with_metrics

        comparison = ComparisonFolder(folder)
        if not comparison.exists:
            raise InputError(
                f"{folder}: it must be the folder of a comparison, with compare.json in it, got none; "
                "see equipoise compare"
            )
        page = comparison.report if out is None else out
        wanted = {csv: as_csv, latex: as_latex, markdown: as_markdown}
        if metrics is not None and not any(wanted):
            raise InputError("--metrics requires a table; add --csv, --latex or --markdown FILE")
        for place in (page, *filter(None, wanted)):
            check_place(place)
        problem = "the files of the comparison do not fit together"
        with reading(folder, problem, "run equipoise compare again, which trains damaged runs again"):
            verdict = known_verdict(comparison)
            if verdict is None:
                verdict = judge(comparison)
                write_json(comparison.verdict, verdict.to_json())
            html = comparison_page(comparison, verdict)
        listed = [name.strip() for name in (metrics or "").split(",") if name.strip()]
        table = verdict if metrics is None else with_metrics(verdict, listed)
        texts = {place: make(table) for place, make in wanted.items() if place is not None}
        for place, text in (texts | {page: html}).items():
            write_text(place, text)
            echo(f"wrote {place}")
