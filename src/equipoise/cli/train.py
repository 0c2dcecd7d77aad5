"""``equipoise train``: one run on the user's data, from flags or a YAML file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise._extras import check_installed
from equipoise.cli.console import echo
from equipoise.cli.inputs import bad_input
from equipoise.cli.settings import settled, with_settings
from equipoise.expressions import compact
from equipoise.train.spec import GROUPS, RunSpec

__all__ = ["train"]


@with_settings(RunSpec, GROUPS)
def train(
    *,
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC.yaml", help="Settings as YAML; flags win over them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/DATA-LOSS-SEED).")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an unfinished attempt.")] = False,
    **settings: Any,  # noqa: ANN401
) -> None:
    """Train on your data with any loss; run the same command again to resume."""
    checked, place = settled(RunSpec, spec, out, settings, "equipoise train")
    with bad_input():
        check_installed("training", "pytorch_lightning")
        from equipoise.cli.console import Console
        from equipoise.train.run import run

        console = Console(file=sys.stderr)
        finished = run(
            checked,
            place or Path("runs") / _name(checked),
            restart=restart,
            say=echo,
            console=console if console.is_terminal else None,
        )
    if finished.finished:
        from equipoise.cli.summary import print_run

        print_run(finished)


def _name(spec: RunSpec) -> str:
    """A name for the folder, from data, loss and seed."""
    data = Path(spec.data).name if spec.data not in (".", "") else "run"
    what = spec.loss if spec.method == "none" else spec.method
    return re.sub(r"[^\w.=+-]+", "-", f"{data.partition('.')[0]}-{compact(what)}-{spec.seed}")
