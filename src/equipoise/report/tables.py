"""The table of a comparison as CSV, LaTeX and Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from equipoise._formatting import shown
from equipoise.comparison.kinds import Kind, kind_of
from equipoise.comparison.verdict import LossResult, Verdict
from equipoise.metric_registry import metric_info
from equipoise.tasks import GROUPS

__all__ = [
    "Result",
    "as_csv",
    "as_latex",
    "as_markdown",
    "further_metrics",
    "kind_of_rows",
    "label",
    "results_of",
    "spread",
    "with_metrics",
]

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"±": r"$\pm$", "▲": r"$\uparrow$", "▼": r"$\downarrow$"},
}


@dataclass(frozen=True)
class Result:
    """One metric of one loss.

    Args:
        mean: over the seeds; None if missing.
        std: over the seeds; None for one seed.
        mark: ``"better"`` or ``"worse"`` if significantly different from the baseline, otherwise empty.
        best: whether no other loss has a better mean, and some have a worse one.
    """

    mean: float | None
    std: float | None
    mark: str
    best: bool


def spread(name: str, result: Result) -> str:
    """The standard deviation with as many decimals as the mean; empty if missing.

    >>> spread("seconds_per_step", Result(0.0123, 0.00068, "", False)), spread("nll", Result(0.5, None, "", False))
    ('0.7', '')
    """
    if result.std is None or result.mean is None:
        return ""
    if metric_info(name).unit != "milliseconds":
        return shown(name, result.std)
    digits = len(shown(name, result.mean).partition(".")[2])
    return f"{1000 * result.std:,.{digits}f}"


def label(name: str) -> str:
    """Label of a metric."""
    return metric_info(name).label


def kind_of_rows(verdict: Verdict) -> Kind:
    """Kind of the rows of a verdict: losses or methods."""
    return kind_of(row.loss for row in verdict.rows)


def results_of(verdict: Verdict) -> list[dict[str, Result]]:
    """Results of each row of the verdict by metric."""
    changes = {(one.loss, one.metric): one.is_gain for one in verdict.differences if one.significant and one.mean}
    known = {
        metric: {mean for row in verdict.rows if (mean := row.mean(metric)) is not None} for metric in verdict.metrics
    }
    best = {
        metric: (max if metric_info(metric).higher_is_better else min)(means)
        for metric, means in known.items()
        if metric not in verdict.not_compared and len(means) > 1
    }

    def result(row: LossResult, metric: str) -> Result:
        mean, gain = row.mean(metric), changes.get((row.loss, metric))
        mark = "" if gain is None else "better" if gain else "worse"
        return Result(mean, row.std(metric), mark, mean is not None and mean == best.get(metric))

    return [{metric: result(row, metric) for metric in verdict.metrics} for row in verdict.rows]


def further_metrics(verdict: Verdict) -> list[str]:
    """Metrics of the evaluations that are not compared, such as the MCE."""
    measured = dict.fromkeys(name for row in verdict.rows for name in row.metrics if row.mean(name) is not None)
    return [name for name in measured if name not in {*verdict.metrics, *verdict.equal_metrics, *GROUPS}]


def with_metrics(verdict: Verdict, names: Sequence[str]) -> Verdict:
    """The verdict restricted to these metrics of the evaluations, in this order; not all of them are compared.

    Raises:
        ValueError: a metric is unknown.
    """
    names = [verdict.equal_metrics.get(name, name) for name in names]
    known = [*verdict.metrics, *further_metrics(verdict)]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(
            f"--metrics must be some of {','.join(known)}, got {','.join(unknown) or 'none'}; use these names"
        )
    return replace(verdict, metrics=tuple(dict.fromkeys(names)))


def as_csv(verdict: Verdict) -> str:
    """One row per loss and metric, with unrounded values."""
    differences = {(one.loss, one.metric): one for one in verdict.differences}
    head = ["loss", "chosen", "seeds", "metric", "mean", "std"]
    compared = ["low", "high", "p", "p_adjusted", "significant", "seeds_needed"]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*head, "difference", *compared])
    for row, results in zip(verdict.rows, results_of(verdict), strict=True):
        for metric, result in results.items():
            difference = differences.get((row.loss, metric))
            cells = [row.loss, row.chosen, len(row.seeds), metric, result.mean, result.std]
            writer.writerow([*cells, *(getattr(difference, key, None) for key in ("mean", *compared))])
    return written.getvalue()


def as_markdown(verdict: Verdict) -> str:
    """A table with the best means in bold and arrows for significant differences from the baseline."""
    head = [kind_of_rows(verdict).one, *map(label, verdict.metrics)]
    lines = [_line(head), _line(["---", *("---:" for _ in verdict.metrics)])]
    for row, results in zip(verdict.rows, results_of(verdict), strict=True):
        cells = []
        for metric, result in results.items():
            text = " ± ".join(filter(None, [shown(metric, result.mean), spread(metric, result)]))
            text = f"**{text}**" if result.best else text
            cells.append(text + {"better": " ▲", "worse": " ▼", "": ""}[result.mark])
        name = re.sub(r"([\\`*_{}\[\]<>|~])", r"\\\1", _one_line(row.loss))
        lines.append(_line([name, *cells]))
    return "\n".join([*lines, "", _explained(verdict), ""])


def as_latex(verdict: Verdict) -> str:
    """The same table for LaTeX with the package booktabs."""
    marks = {"better": r"^{\uparrow}", "worse": r"^{\downarrow}", "": ""}
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * len(verdict.metrics)}}}",
        "\\toprule",
        " & ".join([kind_of_rows(verdict).one, *(_latex(label(metric)) for metric in verdict.metrics)]) + r" \\",
        "\\midrule",
    ]
    for row, results in zip(verdict.rows, results_of(verdict), strict=True):
        cells = []
        for metric, result in results.items():
            if result.mean is None:
                cells.append("--")
                continue
            number = shown(metric, result.mean).replace(",", "{,}")
            deviation = rf" \pm {spread(metric, result)}" if result.std is not None else ""
            number = rf"\mathbf{{{number}}}" if result.best else number
            cells.append(f"${number}{deviation}{marks[result.mark]}$")
        lines.append(" & ".join([_latex(_one_line(row.loss)), *cells]) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", f"% {_latex(_explained(verdict))}", ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _explained(verdict: Verdict) -> str:
    """Explanation of the symbols."""
    seeds = len(verdict.seeds)
    if seeds < 2:
        return "One seed: no standard deviation, no interval and no significance test."
    return (
        f"Mean ± standard deviation over {seeds} seeds, fractions in percent; bold: the best mean; ▲ significantly "
        f"better and ▼ significantly worse than {_one_line(verdict.baseline)} (Holm-adjusted)."
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _latex(text: str) -> str:
    return "".join(SPECIAL.get(sign, sign) for sign in text)
