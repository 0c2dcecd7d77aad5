"""``equipoise compare``: which loss suits the user's data, with significance tests over seeds and test samples."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli.console import echo, fail
from equipoise.cli.inputs import bad_input
from equipoise.cli.settings import settled, with_settings
from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.spec import GROUPS, CompareSpec

__all__ = ["compare"]


@with_settings(CompareSpec, GROUPS)
def compare(
    *,
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC.yaml", help="Settings as YAML; flags win over them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison (default: comparisons/DATA).")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Runs at a time (default: one for each GPU, or each core up to 8)."),
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Train on a Ray cluster: auto or HOST:PORT.")
    ] = None,
    **settings: Any,  # noqa: ANN401
) -> None:
    """Compare losses on your data; run the same command again to resume."""
    checked, place = settled(CompareSpec, spec, out, settings, "equipoise compare", here=ray is None)
    with bad_input():
        from equipoise.cli.console import Console
        from equipoise.comparison.compare import compare as compare_losses
        from equipoise.report.comparison import comparison_page

        console = Console(file=sys.stderr)
        folder = place or Path("comparisons") / _name(checked)
        comparison = compare_losses(
            checked,
            folder,
            jobs=jobs,
            ray=ray,
            say=echo,
            console=console if console.is_terminal else None,
            page=comparison_page,
        )
    _print(comparison, folder)
    if comparison.failures:
        failed = f"{len(comparison.failures)} of {len(comparison.runs)} runs failed"
        fail(f"{failed}; run the same command again to retry", 1)


def _print(comparison: ComparisonFolder, folder: Path) -> None:
    """Print the verdict, the recommendation and the report, with the folder as it was given."""
    from equipoise.cli.comparison_table import print_comparison
    from equipoise.comparison.recommendation import recommended
    from equipoise.comparison.verdict import read_verdict

    verdict = read_verdict(comparison.verdict)
    print_comparison(verdict)
    advice = recommended(comparison, verdict)
    if advice is not None:
        echo(f"{advice.why}: {advice.command(folder)}")
        echo(advice.note)
        if advice.in_your_loop:
            echo(advice.in_your_loop)
    echo(f"The report: {folder / comparison.report.name}")
    if advice is not None and advice.settings is not None:
        echo(advice.next_step(str(folder)))


def _name(spec: CompareSpec) -> str:
    """A name for the folder, from the data."""
    place = Path(spec.data)
    data = place.resolve().name if place.name in ("", "..") else place.name
    return re.sub(r"[^\w.=+-]+", "-", data.partition(".")[0]) or "data"
