"""A verdict in words: short sentences, each of them true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from equipoise.comparison.statistics import MOST_SEEDS
from equipoise.report.words import LABELS, LESS_IS_BETTER, NATURAL, shown, things

__all__ = ["JUDGED", "sentences_of", "signed"]

Row = Mapping[str, Any]
JUDGED = ("few", "f_measure", "auroc", "ece", "ece_after")
"""Numbers that people ask for besides the main one."""
NAMED = 5
"""Classes and runs that are named at most."""


def sentences_of(found: Mapping[str, Any]) -> list[str]:
    """Which differences are real, which loss is best for what, how many seeds would tell the rest, what is missing."""
    return [
        *_differences(found),
        *_other_differences(found),
        *_best(found),
        *_too_few(found),
        *_need(found),
        *_choices(found),
        *_warnings(found),
    ]


# ------------------------------------------------------------------------------------------------------- differences


def _differences(found: Mapping[str, Any]) -> Iterator[str]:
    main, baseline = found["main"], found["baseline"]
    own = [one for one in found["differences"] if one["metric"] == main and one["low"] is not None]
    if not own:
        return
    metric = _in(main, found)
    sign = -1 if main in LESS_IS_BETTER else 1
    own.sort(key=lambda one: -sign * one["mean"])
    better, worse = ([one for one in own if one["real"] and sign * w * one["mean"] > 0] for w in (1, -1))
    rest = [one for one in own if not one["real"]]
    if better:
        yield f"Really better than {baseline} in {metric}: {_listed(better)}."
    if worse:
        yield f"Really worse than {baseline} in {metric}: {_listed(worse)}."
    if rest and len(found["seeds"]) == 2:
        yield "Two seeds tell little of the noise between seeds: only very large differences can be called real."
    after = f" after correction for {len(own)} comparisons" if len(own) > 1 else ""
    if rest and (better or worse):
        yield f"Not told apart from {baseline} in {metric}{after}: {_listed(rest)}."
    elif rest:
        yield f"No difference to {baseline} in {metric} is certain yet{after}: {_listed(rest)}."
    corrected = f" Real is what remains{after} in a metric." if after and not rest else ""
    yield f"In brackets: 95 % interval of each difference alone, over seeds and test samples.{corrected}"


def _other_differences(found: Mapping[str, Any]) -> Iterator[str]:
    """What is real in other numbers."""
    for metric in JUDGED:
        real = [one for one in found["differences"] if one["metric"] == metric and one["real"]]
        if real:
            yield f"Real differences to {found['baseline']} in {_in(metric, found)}: {_listed(real)}."


def _listed(differences: Sequence[Row]) -> str:
    """Differences with their intervals, the unit at the first."""
    parts = []
    for place, one in enumerate(differences):
        unit = "" if place else _unit(one["metric"])
        low, high = (signed(one["metric"], one[end]) for end in ("low", "high"))
        parts.append(f"{one['loss']} {signed(one['metric'], one['mean'])}{unit} ({low} to {high})")
    return ", ".join(parts)


# --------------------------------------------------------------------------------------------------------- best for


def _best(found: Mapping[str, Any]) -> Iterator[str]:
    """The loss with the best mean, for what people ask about."""
    if sum(bool(row["seeds"]) for row in found["rows"]) < 2:
        return
    topics = {
        found["main"]: f"Best {_in(found['main'], found)}",
        "few": f"Best for {_rare(found)}",
        "f_measure": "Best with samples of no known class among the others",
        "auroc": "Best at telling known from unknown samples",
        "ece": "Best calibrated as trained",
        "ece_after": "Best calibrated after temperature",
    }
    for metric, title in topics.items():
        if metric in found["metrics"] and metric not in found["unjudged"]:
            yield from _best_of(found, metric, title)
    yield from _speed(found)


def _best_of(found: Mapping[str, Any], metric: str, title: str) -> Iterator[str]:
    means = _means(found, metric)
    sign = -1 if metric in LESS_IS_BETTER else 1
    best = max(means, key=lambda loss: sign * means[loss])
    what = "" if metric == found["main"] else f"{_short(metric, found)} "
    baseline = found["baseline"]
    alike = [loss for loss in means if _value(metric, means[loss]) == _value(metric, means[best])]
    if len(alike) == len(means) > 1:
        yield f"No difference in {_in(metric, found)}: {_value(metric, means[best])} with all."
        return
    if len(alike) > 1 and (baseline in alike or baseline not in means):
        yield f"{title}: {', '.join(alike[:-1])} and {alike[-1]} alike, {what}{_value(metric, means[best])}."
        return
    text = f"{title}: {best}, {what}{_value(metric, means[best])}"
    if best == baseline or baseline not in means:
        yield f"{text}."
        return
    text += f" against {_value(metric, means[baseline])} with {baseline}"
    one = next(one for one in found["differences"] if (one["loss"], one["metric"]) == (best, metric))
    judged = "" if one["p"] is None else ", a real difference" if one["real"] else ", which may be chance"
    yield f"{text}{judged}."


def _speed(found: Mapping[str, Any]) -> Iterator[str]:
    means = _means(found, "seconds_per_step")
    baseline = found["baseline"]
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
    why = found["unjudged"].get("seconds_per_step")
    yield f"{text}{f', but {why}' if why else ''}."


def _too_few(found: Mapping[str, Any]) -> Iterator[str]:
    """Groups of classes of which the test has next to nothing."""
    remedy = "more data would tell, or a larger --test-share where the data have no test of their own"
    for metric, why in found["unjudged"].items():
        if metric != "seconds_per_step":
            yield f"{LABELS[metric].capitalize()}: {why}; {remedy}."


def _means(found: Mapping[str, Any], metric: str) -> dict[str, float]:
    known = {row["loss"]: row["values"].get(metric, {}).get("mean") for row in found["rows"]}
    return {loss: mean for loss, mean in known.items() if mean is not None}


# ----------------------------------------------------------------------------------------------------- seeds needed


def _need(found: Mapping[str, Any]) -> Iterator[str]:
    """What it would take to tell the differences that are not told."""
    own = [one for one in found["differences"] if one["metric"] == found["main"] and one["limit"] is not None]
    metric, baseline = _in(found["main"], found), found["baseline"]
    some = [one for one in own if one["limit"] == "seeds"]
    if some:
        some.sort(key=lambda one: one["seeds_needed"] or MOST_SEEDS + 1)
        numbers = [
            f"about {one['seeds_needed']}" if one["seeds_needed"] else f"more than {MOST_SEEDS:,}" for one in some
        ]
        others = "".join(f", {number} {one['loss']}" for number, one in zip(numbers[1:], some[1:], strict=True))
        yield (
            f"If the differences in {metric} are as large as they look, {numbers[0]} seeds would most likely tell "
            f"{some[0]['loss']} from {baseline}{others}."
        )
    never = [one["loss"] for one in own if one["limit"] == "samples"]
    if never:
        yield (
            f"No number of seeds would tell {', '.join(never)} from {baseline} in {metric}: for differences this "
            f"small {_count(found['tested'], 'test sample')} are too few."
        )


# ---------------------------------------------------------------------------------------------------- what to know


def _choices(found: Mapping[str, Any]) -> Iterator[str]:
    for row in found["rows"]:
        if len(row["candidates"]) > 1 and row["chosen"] is not None:
            monitor = LABELS.get(row["monitor"], row["monitor"].replace("_", " "))
            yield f"Of {row['loss']}, {row['chosen']} was chosen by {monitor} on validation data."


def _warnings(found: Mapping[str, Any]) -> Iterator[str]:
    """Too few seeds, runs that failed, classes that are missing."""
    baseline = next(row for row in found["rows"] if row["loss"] == found["baseline"])
    if len(found["seeds"]) == 1:
        yield (
            "One seed: nothing is known of the noise between seeds, so there is no interval and no difference is "
            "called real; take --seeds 3 or more."
        )
    if not baseline["seeds"]:
        yield f"{found['baseline']} has no finished run, so nothing could be compared with it."
    elif len(found["seeds"]) > 1:
        alone = [one for one in found["differences"] if one["metric"] == found["main"] and one["low"] is None]
        for one in alone:
            yield f"{one['loss']} has one seed in common with {found['baseline']}: no interval."
    for one in found["failures"][:NAMED]:
        yield f"{one['loss']}, seed {one['seed']} failed: {one['error'].rstrip('.')}. The same command tries it again."
    if len(found["failures"]) > NAMED:
        yield f"{len(found['failures']) - NAMED} more runs failed."
    yield from _unfinished(found)
    missing = found["missing"]
    if missing:
        names = ", ".join(missing[:NAMED]) + (" ..." if len(missing) > NAMED else "")
        data = found["data"]
        what = "positive samples" if data["task"] == "multi" else "samples"
        yield (
            f"{len(missing)} of {len(data['class_names'])} {things(data['task'])} have no {what} in the test and "
            f"are in no mean over them: {names}."
        )


def _unfinished(found: Mapping[str, Any]) -> Iterator[str]:
    failed = {(one["loss"], one["seed"]) for one in found["failures"]}
    open_runs = sum(
        len(found["seeds"]) - one["runs"] - sum((one["text"], seed) in failed for seed in found["seeds"])
        for one in {one["text"]: one for row in found["rows"] for one in row["candidates"]}.values()
    )
    if open_runs:
        yield f"{_count(open_runs, 'run')} not finished: this is what can be said so far."


# ------------------------------------------------------------------------------------------------------------- words


def _in(metric: str, found: Mapping[str, Any]) -> str:
    """What a metric is called."""
    names = {
        "few": f"{_short(metric, found)} of {_rare(found)}",
        "ece": "ECE as trained",
        "ece_after": "ECE after temperature",
    }
    return names.get(metric, LABELS[metric])


def _short(metric: str, found: Mapping[str, Any]) -> str:
    """What a metric is called after its title said what it is about."""
    of_groups = {"single": "accuracy", "multi": "mAP", "segmentation": "mean IoU"}
    names = {"few": of_groups[found["data"]["task"]], "ece_after": "ECE"}
    return names.get(metric, LABELS[metric])


def _rare(found: Mapping[str, Any]) -> str:
    unit = "pixels" if found["data"]["task"] == "segmentation" else "samples"
    return f"{things(found['data']['task'])} with few training {unit}"


def _unit(metric: str) -> str:
    if metric == "seconds_per_step":
        return " ms"
    return "" if metric in NATURAL else " points"


def _value(metric: str, value: float) -> str:
    return shown(metric, value) + {" points": " %"}.get(_unit(metric), _unit(metric))


def signed(metric: str, value: float) -> str:
    """A difference with its sign: in points where it is one of shares, in milliseconds where it is one of times.

    >>> signed("accuracy", 0.0123), signed("nll", -0.25), signed("ece", -0.00001)
    ('+1.2', '−0.250', '0.0')
    """
    scaled = value if metric in NATURAL else 1000 * value if metric == "seconds_per_step" else 100 * value
    text = f"{abs(scaled):.3f}" if metric in NATURAL else f"{abs(scaled):.1f}"
    return text if float(text) == 0 else f"{'−' if value < 0 else '+'}{text}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")
