"""The verdict as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from equipoise._formatting import joined, shown
from equipoise.comparison.statistics import MOST_SEEDS
from equipoise.comparison.verdict import MetricDifference, Verdict
from equipoise.expressions import Call, Choices, Sum, Value, parse
from equipoise.metric_registry import metric_info

__all__ = ["JUDGED", "interval_text", "sentences_of", "signed"]

JUDGED = ("few", "f_measure", "auroc", "ece", "ece_after")
"""Metrics with their own sentences, besides the main one."""
NAMED = 5
"""Maximum number of classes and runs to name."""
MORE_SAMPLES = "use more test data, or a larger --test-share if the data have no test split"


def sentences_of(verdict: Verdict) -> list[str]:
    """Significant differences, the best loss in each metric, seeds needed for the rest, hyper-parameters, warnings."""
    return [
        *_differences(verdict),
        *_other_differences(verdict),
        *_best(verdict),
        *_too_few(verdict),
        *_need(verdict),
        *_equal(verdict),
        *_choices(verdict),
        *_warnings(verdict),
    ]


# ------------------------------------------------------------------------------------------------------- differences


def _differences(verdict: Verdict) -> Iterator[str]:
    main, baseline = verdict.main_metric, verdict.baseline
    differences = [one for one in verdict.differences if one.metric == main and one.low is not None]
    if not differences:
        return
    yield from _significant(differences, verdict)
    rest = _sorted([one for one in differences if not one.significant])
    if rest:
        adjusted = f" (Holm-adjusted, {len(differences)} comparisons)" if len(differences) > 1 else ""
        yield f"No significant difference from {baseline} in {_in(main, verdict)}{adjusted}: {_listed(rest)}."
    yield (
        "The intervals cover the noise of seeds and test samples, for these training data, this split and one learning "
        "rate for all."
    )
    if min(one.seeds for one in differences) == 2:
        yield "Two seeds: all intervals are provisional; use --seeds 3 or more."


def _other_differences(verdict: Verdict) -> Iterator[str]:
    """Significant differences in other metrics."""
    for metric in JUDGED:
        yield from _significant([one for one in verdict.differences if one.metric == metric], verdict)


def _significant(differences: Sequence[MetricDifference], verdict: Verdict) -> Iterator[str]:
    """The significant ones of a metric, better and worse."""
    for word, gain in (("better", True), ("worse", False)):
        some = _sorted([one for one in differences if one.significant and one.is_gain is gain])
        if some:
            metric = _in(some[0].metric, verdict)
            yield f"Significantly {word} than {verdict.baseline} in {metric}: {_listed(some)}."


def _sorted(differences: Sequence[MetricDifference]) -> list[MetricDifference]:
    """Differences from best to worst."""
    return sorted(differences, key=lambda one: one.mean * (-1 if metric_info(one.metric).higher_is_better else 1))


def _listed(differences: Sequence[MetricDifference]) -> str:
    """Differences with their intervals; the first one shows unit and level."""
    parts = []
    for place, one in enumerate(differences):
        unit, level = ("", "") if place else (_unit(one.metric), "95 % CI ")
        interval = "no usable interval"
        if one.usable and one.interval is not None:
            interval = f"{level}{interval_text(one.metric, one.interval)}"
        parts.append(f"{one.loss} {signed(one.metric, one.mean)}{unit} ({interval})")
    return ", ".join(parts)


# --------------------------------------------------------------------------------------------------------- best for


def _best(verdict: Verdict) -> Iterator[str]:
    """The loss with the best mean in each of the important metrics."""
    if sum(bool(row.seeds) for row in verdict.rows) < 2:
        return
    for metric in dict.fromkeys((verdict.main_metric, *JUDGED)):
        if metric in verdict.metrics and metric not in verdict.not_compared:
            yield _best_of(verdict, metric)
    yield from _speed(verdict)


def _best_of(verdict: Verdict, metric: str) -> str:
    means = _means(verdict, metric)
    less = not metric_info(metric).higher_is_better
    best = (min if less else max)(means, key=means.__getitem__)
    baseline, value = verdict.baseline, _value(metric, means[best])
    equal = [loss for loss in means if _value(metric, means[loss]) == value]
    if len(equal) == len(means) > 1:
        return f"No difference in {_in(metric, verdict)}: {value} with all."
    named = joined(equal) if baseline in equal or baseline not in means else best
    text = f"{'Lowest' if less else 'Highest'} {_in(metric, verdict)}: {named}, {value}"
    if best == baseline or named != best or baseline not in means:
        return f"{text}."
    text += f" vs {_value(metric, means[baseline])} with {baseline}"
    one = next(one for one in verdict.differences if (one.loss, one.metric) == (best, metric))
    judged = "" if one.p is None else " (significant)" if one.significant else " (not significant)"
    return f"{text}{judged}."


def _speed(verdict: Verdict) -> Iterator[str]:
    means = _means(verdict, "seconds_per_step")
    baseline = verdict.baseline
    if baseline not in means or len(means) < 2:
        return
    others = {loss: mean for loss, mean in means.items() if loss != baseline}
    fast, slow = min(others, key=others.__getitem__), max(others, key=others.__getitem__)
    text = f"A step takes {_value('seconds_per_step', means[baseline])} with {baseline}"
    if fast == slow:
        text += f" and {_value('seconds_per_step', others[fast])} with {fast}"
    else:
        low, high = (shown("seconds_per_step", others[loss]) for loss in (fast, slow))
        text += f", {low} ({fast}) to {high} ms ({slow}) with the others"
    why = verdict.not_compared.get("seconds_per_step")
    yield f"{text}{f'; {why}' if why else ''}."


def _too_few(verdict: Verdict) -> Iterator[str]:
    """Groups of classes with too few test samples."""
    for metric, why in verdict.not_compared.items():
        if metric != "seconds_per_step":
            yield f"{metric_info(metric).label.capitalize()}: {why}; {MORE_SAMPLES}."


def _means(verdict: Verdict, metric: str) -> dict[str, float]:
    known = {row.loss: row.mean(metric) for row in verdict.rows}
    return {loss: mean for loss, mean in known.items() if mean is not None}


# ----------------------------------------------------------------------------------------------------- seeds needed


def _need(verdict: Verdict) -> Iterator[str]:
    """Seeds needed to detect the differences that are not significant."""
    open_differences = [
        one for one in verdict.differences if one.metric == verdict.main_metric and one.limit is not None
    ]
    metric, baseline = _in(verdict.main_metric, verdict), verdict.baseline
    some = sorted(
        (one for one in open_differences if one.limit == "seeds"), key=lambda one: one.seeds_needed or MOST_SEEDS + 1
    )
    if some:
        numbers = [f"about {one.seeds_needed}" if one.seeds_needed else f"more than {MOST_SEEDS:,}" for one in some]
        others = "".join(f", {number} {one.loss}" for number, one in zip(numbers[1:], some[1:], strict=True))
        yield (
            f"If the differences in {metric} are as large as observed, {numbers[0]} seeds would detect "
            f"{some[0].loss} vs {baseline} with 80 % power{others}."
        )
    never = [one.loss for one in open_differences if one.limit == "samples"]
    if never:
        yield (
            f"No number of seeds would detect {', '.join(never)} vs {baseline} in {metric}: {_bottleneck(verdict)} for "
            f"differences this small; {MORE_SAMPLES}."
        )


def _bottleneck(verdict: Verdict) -> str:
    """The number of test samples, and that of the rarest class if it is far below the average."""
    text, rarest = f"{_count(verdict.test_samples, 'test sample')} are too few", verdict.rarest_class
    even = verdict.test_samples / len(verdict.data.class_names)
    if rarest is None or verdict.data.task.pixels or 2 * rarest.support > even:
        return text
    return f"{_count(rarest.support, 'test sample')} of {rarest.name} among {verdict.test_samples:,} are too few"


# --------------------------------------------------------------------------------------------------------- remarks


def _equal(verdict: Verdict) -> Iterator[str]:
    """Losses and metrics that equal others."""
    for loss, other in verdict.equal_losses.items():
        yield f"{loss} is the same as {other} here: trained once, one row."
    for metric, other in verdict.equal_metrics.items():
        yield (
            f"All classes have the same number of test samples: {metric_info(metric).label} equals "
            f"{metric_info(other).label}."
        )


def _choices(verdict: Verdict) -> Iterator[str]:
    for row in verdict.rows:
        if len(row.candidates) > 1 and row.chosen is not None and row.monitor is not None:
            monitor = metric_info(row.monitor).label
            edge = _at_the_edge(row.loss, row.chosen)
            yield f"{row.loss}: {row.chosen} has the best {monitor} on validation data{edge}."


def _at_the_edge(loss: str, chosen: str) -> str:
    """A hint if a chosen number is the smallest or largest of its candidates.

    >>> _at_the_edge("focal(gamma=[1, 2, 3])", "focal(gamma=3)")
    '; gamma=3 is the largest of its list, try larger'
    """
    hints = []
    try:
        chosen_numbers = [*_chosen_numbers(parse(loss), parse(chosen))]
    except ValueError:  # not an expression
        return ""
    for called, values, value in chosen_numbers:
        if value and len(values) > 1 and value in (min(values), max(values)):
            edge = "largest" if value == max(values) else "smallest"
            hints.append(f"; {called} is the {edge} of its list, try {edge[:-2]}r")
    return "".join(hints)


def _chosen_numbers(given: Value, chosen: Value, called: str = "{}") -> Iterator[tuple[str, list[float], float]]:
    """Numbers chosen from a list in an expression: name, list and chosen number."""
    if isinstance(given, Choices):
        values = [value for value in given.values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(values) == len(given.values) and isinstance(chosen, (int, float)):
            yield called.format(chosen), values, chosen
    elif isinstance(given, Sum) and isinstance(chosen, Sum) and len(given.terms) == len(chosen.terms):
        for (factor, loss), (one, single) in zip(given.terms, chosen.terms, strict=True):
            yield from _chosen_numbers(factor, one, f"{{}} * {loss.name}")
            yield from _chosen_numbers(loss, single)
    elif isinstance(given, Call) and isinstance(chosen, Call) and given.name == chosen.name:
        for (key, value), (other, one) in zip(given.options, chosen.options, strict=False):
            if key == other:
                yield from _chosen_numbers(value, one, f"{key}={{}}")


def _warnings(verdict: Verdict) -> Iterator[str]:
    """Too few seeds, failed runs, missing classes."""
    baseline = next(row for row in verdict.rows if row.loss == verdict.baseline)
    if len(verdict.seeds) == 1:
        yield "One seed: no interval and no significance test; use --seeds 3 or more."
    if not baseline.seeds:
        yield f"{verdict.baseline} has no finished run: there is nothing to compare with."
    elif len(verdict.seeds) > 1:
        alone = [one for one in verdict.differences if one.metric == verdict.main_metric and one.low is None]
        for one in alone:
            yield f"{one.loss} has one seed in common with {verdict.baseline}: no interval."
    for failure in verdict.failures[:NAMED]:
        error = failure.error.rstrip(".")
        yield f"{failure.loss}, seed {failure.seed} failed: {error}. Run the same command again to retry."
    if len(verdict.failures) > NAMED:
        yield f"{len(verdict.failures) - NAMED} more runs failed."
    yield from _unfinished(verdict)
    missing = verdict.missing_classes
    if missing:
        names = ", ".join(missing[:NAMED]) + (" ..." if len(missing) > NAMED else "")
        data, task = verdict.data, verdict.data.task
        yield (
            f"{len(missing)} of {len(data.class_names)} {task.many} have no {task.support}s in the test set and "
            f"are excluded from means over them: {names}."
        )


def _unfinished(verdict: Verdict) -> Iterator[str]:
    failed = {(one.loss, one.seed) for one in verdict.failures}
    open_runs = sum(
        len(verdict.seeds) - one.runs - sum((one.text, seed) in failed for seed in verdict.seeds)
        for one in {one.text: one for row in verdict.rows for one in row.candidates}.values()
    )
    if open_runs:
        yield f"{_count(open_runs, 'run')} not finished: these results are preliminary."


# ------------------------------------------------------------------------------------------------------------- words


def _in(metric: str, verdict: Verdict) -> str:
    """Name of a metric in a sentence."""
    task = verdict.data.task
    names = {
        "few": f"{task.group_metric} of {task.many} with few training {task.unit}s",
        "f_measure": "F-measure with unknown classes",
        "auroc": "AUROC of known vs unknown samples",
        "ece": "ECE before calibration",
        "ece_after": "ECE after temperature scaling",
    }
    return names.get(metric, metric_info(metric).label)


def _unit(metric: str) -> str:
    return {"percent": " points", "natural": "", "milliseconds": " ms"}[metric_info(metric).unit]


def _value(metric: str, value: float) -> str:
    return shown(metric, value) + {" points": " %"}.get(_unit(metric), _unit(metric))


def signed(metric: str, value: float, plus: str = "+") -> str:
    """A difference with its sign, in points for fractions and in milliseconds for times.

    >>> signed("accuracy", 0.0123), signed("nll", -0.25), signed("ece", -0.00001)
    ('+1.2', '−0.250', '0.0')
    """
    info = metric_info(metric)
    scaled = info.scale * value
    text = f"{abs(scaled):.3f}" if info.unit == "natural" else f"{abs(scaled):.1f}"
    return text if float(text) == 0 else f"{'−' if value < 0 else plus}{text}"


def interval_text(metric: str, interval: tuple[float, float]) -> str:
    """The limits of an interval as text.

    >>> interval_text("accuracy", (-0.02, 0.0123))
    '−2.0 to 1.2'
    """
    return " to ".join(signed(metric, limit, plus="") for limit in interval)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")
