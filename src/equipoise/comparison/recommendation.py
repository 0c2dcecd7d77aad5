"""The recommended run and the next step: without a significant difference the baseline is recommended."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise._formatting import joined
from equipoise.comparison.folder import ComparisonFolder, PlannedRun
from equipoise.comparison.kinds import kind_of
from equipoise.comparison.sentences import JUDGED, MORE_SAMPLES
from equipoise.comparison.statistics import MOST_SEEDS
from equipoise.comparison.verdict import Verdict
from equipoise.metric_registry import metric_info

__all__ = ["Recommendation", "recommended"]

FEW_SEEDS, MANY_SEEDS = 5, 30
"""Seeds to propose after one or two, which are too few for a power analysis; and the maximum to propose."""


@dataclass(frozen=True)
class Recommendation:
    """A recommended run.

    Args:
        run: the run.
        why: the reason, without a full stop.
        note: how it was selected, the best run on validation data if it differs, and gains in other metrics.
        loss: its loss as a Python expression, for custom training loops; None if it is more than an expression.
        settings: of the comparison with more seeds, if they could show that a loss is better.
    """

    run: PlannedRun
    why: str
    note: str
    loss: str | None = None
    settings: Mapping[str, Any] | None = None

    @property
    def in_your_loop(self) -> str:
        """A sentence on the use of the loss in a custom training loop, or an empty string."""
        if self.loss is None:
            return ""
        counts = ", where counts are your training samples of each class" if "counts" in self.loss else ""
        return f"In your own training loop: loss = {self.loss}{counts}."

    def command(self, folder: Path | None = None) -> str:
        """The command that exports the run, for a shell in the folder of the comparison or in that of ``folder``."""
        runs = Path("runs") if folder is None else folder / "runs"
        return shlex.join(["equipoise", "export", str(runs / self.run.name)])

    def next_step(self, out: str) -> str:
        """``Undecided; next: COMMAND``, the comparison with more seeds; empty if that is not the next step."""
        from equipoise.comparison.command import command_of

        return "" if self.settings is None else f"Undecided; next: {command_of(self.settings, out)}"


def recommended(folder: ComparisonFolder, verdict: Verdict) -> Recommendation | None:
    """The best on validation data of the losses that are significantly better than the baseline, else the baseline.

    Significance is determined on test data, in the main metric; the run is selected on validation data.

    Args:
        folder: of the comparison.
        verdict: on its runs.

    Returns:
        None if no run has a metric on validation data.
    """
    best = folder.best
    if best is None:
        return None
    main, baseline = verdict.main_metric, verdict.baseline
    chosen = {row.loss: row.chosen for row in verdict.rows if row.chosen is not None}
    gains = [one for one in verdict.differences if one.significant and one.is_gain]
    better = {chosen[one.loss] for one in gains if one.metric == main}
    monitor, seeds = _called(best.folder.record.monitor), None
    run, why = best, f"{best.loss} has the best {monitor} on validation data"
    note = f"The run was chosen by {monitor} on validation data."
    if (among_better := folder.best_of(better)) is not None:
        run = among_better
        among = f", and {run.loss} is the best of these on validation data" if len(better) > 1 else ""
        verb = "are" if len(better) > 1 else "is"
        why = f"{joined(sorted(better))} {verb} significantly better than {baseline} in {_called(main)}{among}"
    elif not better and len(chosen) > 1 and (usual := folder.best_of({chosen.get(baseline, "")})) is not None:
        run = usual
        why, seeds = _undecided(verdict)
    note = f"Significance was judged on test data. {note}"
    if run != best:
        note += f" Best {monitor} on validation data: {best.name}."
    elsewhere = [f"{one.loss} ({_called(one.metric)})" for one in gains if one.metric in JUDGED]
    if elsewhere and not better:
        note += f" Significantly better in other metrics: {', '.join(elsewhere)}."
    settings = None if seeds is None else folder.spec | {"seeds": _more(verdict.seeds, seeds)}
    return Recommendation(run, why, note, run.folder.record.loss_in_python, settings)


def _undecided(verdict: Verdict) -> tuple[str, int | None]:
    """Why nothing is better than the baseline, and the number of seeds that may show it, None if none would."""
    main, baseline = verdict.main_metric, verdict.baseline
    kind = kind_of(row.loss for row in verdict.rows).one
    why = f"No {kind} is significantly better than {baseline} in {_called(main)}"
    if len(verdict.seeds) == 1:
        return (
            f"One seed cannot show whether a {kind} is better than {baseline}; until then, keep {baseline}",
            FEW_SEEDS,
        )
    open_ = [one for one in verdict.differences_in(main) if not one.significant and one.is_gain]
    needs = [one.seeds_needed for one in open_ if one.limit == "seeds" and one.seeds_needed]
    if any(one.limit == "seeds" for one in open_) and len(verdict.seeds) < 3:
        return f"{why} yet; until then, keep {baseline}", FEW_SEEDS
    if needs and min(needs) <= MANY_SEEDS:
        return f"{why} yet; until then, keep {baseline}", min(needs)
    if not needs and any(one.limit == "seeds" for one in open_):
        return f"{why}, and {MOST_SEEDS:,} seeds would not show it; keep {baseline}", None
    if needs:
        return f"{why}, and fewer than {min(needs):,} seeds would not show it; keep {baseline}", None
    if open_:
        return f"{why}, and more seeds would not show it: {MORE_SAMPLES}; until then, keep {baseline}", None
    return f"{why}; keep {baseline}", None


def _more(seeds: Sequence[int], number: int) -> list[int]:
    """This number of seeds, including the present ones."""
    new = (seed for seed in itertools.count() if seed not in seeds)
    return sorted([*seeds, *itertools.islice(new, max(0, number - len(seeds)))])


def _called(metric: str) -> str:
    return metric_info(metric).label
