"""Which run of a comparison to use: a difference that is not real is no reason to leave the baseline."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.comparison.folder import ComparisonFolder, PlannedRun
from equipoise.comparison.sentences import JUDGED
from equipoise.report.words import LABELS, LESS_IS_BETTER

__all__ = ["Recommendation", "recommended"]


@dataclass(frozen=True)
class Recommendation:
    """A run to use.

    Args:
        run: which one.
        why: the reason, without a full stop.
        note: what it was chosen by, which run that would choose among all, and what speaks for others.
        loss: its loss in Python, for a loop of the user's own; None where it is more than an expression.
    """

    run: PlannedRun
    why: str
    note: str
    loss: str | None = None

    @property
    def in_your_loop(self) -> str:
        """How the loss is used without the rest of the run, a sentence, or nothing."""
        if self.loss is None:
            return ""
        counts = ", where counts are your training samples of each class" if "counts" in self.loss else ""
        return f"In a loop of your own: loss = {self.loss}{counts}."

    def command(self, folder: Path | None = None) -> str:
        """What makes a model of the run; for somebody in the folder of the comparison, or beside it."""
        runs = Path("runs") if folder is None else folder / "runs"
        return shlex.join(["equipoise", "export", str(runs / self.run.name)])


def recommended(folder: ComparisonFolder, verdict: Mapping[str, Any]) -> Recommendation | None:
    """The best on validation data of the losses that are really better than the baseline, or else of the baseline.

    Whether a loss is better is read from the test, in the main metric; which of its runs is taken never is.

    Args:
        folder: of the comparison.
        verdict: what ``equipoise.comparison.verdict.verdict`` gives, or its JSON read again.

    Returns:
        None where no run has a number on validation data.
    """
    best = folder.best
    if best is None:
        return None
    main, baseline = verdict["main"], verdict["baseline"]
    chosen: dict[str, str] = {row["loss"]: row["chosen"] for row in verdict["rows"] if row["seeds"]}
    gains = [
        one for one in verdict["differences"] if one["real"] and (one["mean"] < 0) == (one["metric"] in LESS_IS_BETTER)
    ]
    better = {chosen[one["loss"]] for one in gains if one["metric"] == main}
    monitor = _called(best.folder.about["monitor"])
    run, why = best, f"The best {monitor} on validation data is that of {best.loss}"
    if (among_better := folder.best_of(better)) is not None:
        run = among_better
        among = f", and the best of these on validation data is {run.loss}" if len(better) > 1 else ""
        why = f"{_listed(sorted(better))} really better than {baseline} in {_called(main)}{among}"
    elif not better and len(chosen) > 1 and (usual := folder.best_of({chosen.get(baseline, "")})) is not None:
        run = usual
        why = f"Nothing is really better than {baseline} in {_called(main)}; stay with it"
        if len(verdict["seeds"]) == 1:
            why = f"One seed cannot tell whether anything is really better than {baseline}; until more do, stay with it"
    note = f"The run was chosen by {monitor} on validation data; the table is of test data."
    if run != best:
        note += f" Best {monitor} on validation data: {best.name}."
    elsewhere = [f"{one['loss']} ({_called(one['metric'])})" for one in gains if one["metric"] in JUDGED]
    if elsewhere and not better:
        note += f" Really better in other numbers: {', '.join(elsewhere)}."
    return Recommendation(run, why, note, run.folder.about.get("loss_in_python"))


def _called(metric: str) -> str:
    return LABELS.get(metric, metric.replace("_", " "))


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"
