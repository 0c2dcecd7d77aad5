"""Report sections on the results: table, differences from the baseline, accuracy against calibration."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from equipoise._formatting import joined, shown
from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.kinds import DISTANCES, Kind
from equipoise.comparison.open_set import OPEN_METRICS
from equipoise.comparison.recommendation import recommended
from equipoise.comparison.verdict import LossResult, Verdict
from equipoise.expressions import method_name
from equipoise.metric_registry import metric_info
from equipoise.plotting.differences import Point, difference_plot, pareto_plot
from equipoise.report.page import Cell, Head, Picture, Section, Table
from equipoise.report.runs import ComparedLoss
from equipoise.report.tables import Result, further_metrics, kind_of_rows, label, results_of, spread, with_metrics
from equipoise.tasks import GROUPS

__all__ = ["differences_section", "results_section", "tradeoff_section"]

ORDER = ("overall", "by frequency", "calibration", "after temperature", "cost", "open set")
"""Group headings of the columns."""


def results_section(folder: ComparisonFolder, verdict: Verdict) -> Section:
    """The table, the selection of hyper-parameters, and failures."""
    kind = kind_of_rows(verdict)
    several = len(verdict.seeds) > 1
    text = (
        f"Means over {len(verdict.seeds)} seeds with their standard deviation; fractions in percent. "
        f"▲ significantly better and ▼ significantly worse than {verdict.baseline}, Holm-adjusted for the number of "
        f"{kind.many} in each metric. Bold: the best mean. Click a heading to sort."
        if several
        else "Fractions in percent. One seed: no interval and no significance test. Bold: the best. Click a heading to "
        "sort."
    )
    sections = (_use(folder, verdict), _further(verdict), _choices(verdict), _failures(folder, kind))
    parts = [part for part in sections if part is not None]
    return Section("Results", text, tables=_tables(verdict), notes=_no_probabilities(verdict), parts=parts)


def _tables(verdict: Verdict) -> list[Table]:
    """The table, and a second one for an open set, because one table would be wider than the page."""
    everything = results_of(verdict)
    known = [name for name in verdict.metrics if any(results[name].mean is not None for results in everything)]
    metrics = sorted(known, key=lambda name: ORDER.index(_group(name)))
    parts = [[name for name in metrics if (name in OPEN_METRICS) == unknown] for unknown in (False, True)]
    return [_table(verdict, everything, part) for part in parts if part]


def _further(verdict: Verdict) -> Section | None:
    """Metrics that are measured and not compared, as a folded table."""
    names = sorted(further_metrics(verdict), key=lambda name: ORDER.index(_group(name)))
    if not names:
        return None
    shown_only = with_metrics(verdict, names)
    text = "Measured on test data, not compared with the baseline."
    return Section("Further metrics", text, tables=[_table(shown_only, results_of(shown_only), names)], folded=True)


def _table(verdict: Verdict, everything: Sequence[Mapping[str, Result]], metrics: Sequence[str]) -> Table:
    """A table with one row per loss and these columns."""
    not_compared = verdict.not_compared
    notes = {name: "; ".join(filter(None, (metric_info(name).hint, not_compared.get(name)))) for name in metrics}
    titles = [Head(_title(name), notes[name], not metric_info(name).higher_is_better) for name in metrics]
    rows = [
        [_name_cell(row, verdict), *(_cell(metric, results[metric]) for metric in metrics)]
        for row, results in zip(verdict.rows, everything, strict=True)
    ]
    groups = [("", 1), *((name, len(list(same))) for name, same in itertools.groupby(map(_group, metrics)))]
    marked = [k for k, row in enumerate(verdict.rows) if row.loss == verdict.baseline]
    return Table([kind_of_rows(verdict).one, *titles], rows, groups=groups, sortable=True, marked=marked)


def _no_probabilities(verdict: Verdict) -> list[str]:
    """Warning on rows whose calibration metrics are not meaningful."""
    names = [row.loss for row in verdict.rows if method_name(row.loss) in DISTANCES]
    numbers = [_title(name) for name in verdict.metrics if _group(name) == "calibration"]
    if not names or not numbers:
        return []
    return [
        f"The scores of {joined(names)} are distances to class means, not probabilities: {joined(numbers)} "
        "before temperature scaling are not meaningful for them."
    ]


def _use(folder: ComparisonFolder, verdict: Verdict) -> Section | None:
    """The recommended run and how to use it."""
    advice = recommended(folder, verdict)
    if advice is None:
        return None
    text = f"{advice.why}. {advice.note} In the folder of this report, this exports a self-contained model:"
    notes = list(filter(None, [advice.in_your_loop, advice.next_step(folder.path.resolve().name)]))
    return Section("The run to use", text, code=advice.command(), notes=notes)


def _title(name: str) -> str:
    return label(name.removesuffix("_after"))


def _group(name: str) -> str:
    """Group heading of a metric."""
    if name in GROUPS:
        return "by frequency"
    if name in OPEN_METRICS:
        return "open set"
    if name.endswith("_after"):
        return "after temperature"
    if name == "seconds_per_step":
        return "cost"
    return "overall" if metric_info(name).higher_is_better else "calibration"


def _name_cell(row: LossResult, verdict: Verdict) -> Cell:
    seeds, all_seeds = len(row.seeds), len(verdict.seeds)
    below = [
        *(["baseline"] if row.loss == verdict.baseline else []),
        *([f"chosen: {row.chosen}"] if row.chosen not in (row.loss, None) else []),
        *([f"{seeds} of {all_seeds} seeds"] if seeds < all_seeds else []),
    ]
    return Cell(row.loss, "; ".join(below))


def _cell(metric: str, result: Result) -> Cell:
    if result.mean is None:
        return Cell("–")
    below = "" if result.std is None else f"± {spread(metric, result)}"
    return Cell(shown(metric, result.mean), below, result.mean, result.mark, result.best)


def _choices(verdict: Verdict) -> Section | None:
    """Candidates with their validation metrics."""
    rows = [
        [
            row.loss,
            candidate.text,
            shown(row.monitor or "", candidate.monitor_mean),
            str(candidate.runs),
            "chosen" if candidate.text == row.chosen else "",
        ]
        for row in verdict.rows
        if len(row.candidates) > 1
        for candidate in row.candidates
    ]
    if not rows:
        return None
    kind = kind_of_rows(verdict)
    monitor = next(row.monitor for row in verdict.rows if row.monitor is not None)
    text = f"Chosen by {label(monitor)} on validation data, not on test data."
    head = [kind.one, "candidate", f"{label(monitor)}, validation", "runs", ""]
    return Section("Hyper-parameters", text, tables=[Table(head, rows, words=True)], folded=len(rows) > 12)


def _failures(folder: ComparisonFolder, kind: Kind) -> Section | None:
    rows = [[one.loss, str(one.seed), one.error, one.log] for one in folder.failures]
    if not rows:
        return None
    text = "They are not part of the results. Run the same command again to retry."
    return Section("Failed runs", text, tables=[Table([kind.one, "seed", "why", "log"], rows, words=True)])


def differences_section(verdict: Verdict) -> Section | None:
    """Differences with their intervals, one figure per metric; None without differences."""
    figures = []
    for metric in verdict.metrics:
        rows = verdict.differences_in(metric)
        if rows:
            less = not metric_info(metric).higher_is_better
            scale = metric_info(metric).scale
            title = f"{label(metric)}, points" if scale == 100 else label(metric)
            figures.append(Picture(difference_plot(title, rows, scale=scale, less=less)))
    if not figures:
        return None
    several = any(one.interval is not None for one in verdict.differences)
    return Section(
        f"Differences from {verdict.baseline}",
        "Mean differences over the same seeds and test samples, with 95 % confidence intervals that cover the noise of "
        "both, for these training data, this split and one learning rate for all. Filled: significant, Holm-adjusted "
        f"for the number of {kind_of_rows(verdict).many}; hollow: not significant. An arrow: the interval continues. "
        f"Rule: {verdict.rule}."
        if several
        else "Differences of one seed: no interval.",
        figures=[*figures],
    )


def tradeoff_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section | None:
    """Accuracy against calibration, before and after temperature scaling; None for a single loss."""
    main = verdict.main_metric
    rows = {row.loss: row for row in verdict.rows}
    by_moment: dict[str, list[Point]] = {}
    for key in ("ece", "ece_after"):
        for loss in losses:
            row = rows[loss.name]
            if row.mean(main) is not None and row.mean(key) is not None:
                numbers = [
                    100 * (value or 0.0) for value in (row.mean(main), row.mean(key), row.std(main), row.std(key))
                ]
                by_moment.setdefault(key, []).append(Point(loss.name, loss.stroke, *numbers))
    points = [point for some in by_moment.values() for point in some]
    if len(losses) < 2 or not points:
        return None
    across = _room([(p.x, p.x_std) for p in points])
    words = {"ece": "before temperature", "ece_after": "after temperature"}
    return Section(
        "Accuracy and calibration",
        "Right is more accurate, down is better calibrated. The dashed line connects the Pareto-optimal "
        f"{kind_of_rows(verdict).many}; thin bars are standard deviations over the "
        "seeds. The two vertical scales differ.",
        figures=[
            Picture(
                pareto_plot(
                    words[key],
                    some,
                    (f"{label(main)}, %", "ECE, %"),
                    (across, _room([(p.y, p.y_std) for p in some], above=0.0)),
                )
            )
            for key, some in by_moment.items()
        ],
    )


def _room(values: Sequence[tuple[float, float]], above: float | None = None) -> tuple[float, float]:
    """Limits of an axis with space for names."""
    low, high = min(v - s for v, s in values), max(v + s for v, s in values)
    margin = 0.16 * (high - low) or 1.0
    return (low - margin if above is None else max(low - margin, above), high + margin)
