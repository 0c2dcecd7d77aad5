"""What a comparison says: a table, the differences to the baseline, and what follows from them in words.

Everything is read from the folders of the runs. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise._reading import InputError, Shape, check_shape, read_record
from equipoise.comparison.damage import check_run
from equipoise.comparison.folder import ComparisonFolder, Entry
from equipoise.comparison.open_outcome import OPEN_METRICS
from equipoise.comparison.outcomes import GROUPS, METRICS, Array, Outcome, outcome_of, resample, values_of
from equipoise.comparison.sentences import sentences_of
from equipoise.comparison.statistics import ALPHA, RULE, Difference, holm, moderated, paired_difference
from equipoise.report.words import LESS_IS_BETTER, NATURAL, things
from equipoise.train.folder import RunFolder

__all__ = ["FORMAT", "known_verdict", "verdict"]

FORMAT = 3
"""Version of ``verdict.json``; from 3 on it names the ``rule`` of its intervals."""
MAIN: Mapping[str, str] = {
    "single": "mean_class_accuracy",
    "multi": "mean_average_precision",
    "segmentation": "mean_iou",
}
"""Main metric of each task, which is also the default that checkpoints are chosen by."""
SPEED = "seconds_per_step"
VERDICT: Shape = {
    "rows?": [{"loss": str, "chosen?": (str, None), "seeds?": [int], "candidates?": [{"text": str, "runs": int}]}],
    "differences?": [{"loss": str, "metric": str, "mean": (float, None)}],
    "metrics?": [str],
    "sentences?": [str],
    "seeds?": [int],
}
"""What every verdict has; one of another shape is made again."""
DRAWS = 1000
"""Draws of the test samples; the standard deviation that they tell is right to 2 %."""

LEAST = 10
"""Test samples of a group of classes below which its number says nothing: each of them would move it by 10 points."""
STEADY = 0.05
"""Standard deviation over seeds, as a share, up to which times of a step are compared."""

Runs = Mapping[tuple[str, int], RunFolder]
"""Finished runs by loss and seed."""
Row = dict[str, Any]


def verdict(folder: ComparisonFolder, *, draws: int = DRAWS, seed: int = 0) -> dict[str, Any]:
    """All that can be said of the runs that are finished, ready for JSON.

    Args:
        folder: of the comparison.
        draws: how often the test samples are drawn again.
        seed: of the draws.

    Returns:
        A dict of ``rule`` (of the intervals), ``data``, ``baseline``, ``seeds``, ``main`` (metric), ``metrics`` (in the
        order of the table), ``same`` (metrics that equal one of them), ``rows`` (one for each loss: what was chosen and
        how, its seeds, ``values`` by metric, ``groups`` of classes), ``equal`` (losses without a row, since they are
        that of another), ``differences`` (from the baseline, by loss and metric: mean, 95 % confidence interval,
        whether that is narrow enough to be of use, p, Holm-adjusted p, whether it is significant (``real``), needed
        seeds and what limits them), ``failures``, ``tested`` (number of samples), ``rarest`` (class of the test and its
        samples), ``missing`` (classes without test samples), ``unjudged`` (why metrics of the table are not compared,
        by metric) and ``sentences``. None stands for what does not exist, such as an interval of one seed.

    Raises:
        ValueError: no run is finished, or runs were tested on different samples.
    """
    runs = {(run.loss, run.seed): run.folder for run in folder.finished}
    if not runs:
        raise ValueError(f"{folder.path}: at least one run must be finished, found none; let equipoise compare go on")
    for run in runs.values():
        check_run(run)
    about = {key: run.about for key, run in runs.items()}
    _check_samples(runs, about)
    values = {key: values_of(run) | {SPEED: _seconds_per_step(run)} for key, run in runs.items()}
    seeds = sorted({run.seed for run in folder.runs})
    data = next(iter(about.values()))["data"]
    rows, equal = _distinct([_row(entry, seeds, about, values, runs) for entry in folder.entries], folder.baseline)
    same = _same_metrics(next(iter(runs.values())))
    metrics = [name for name in _metrics(data["task"], rows) if name not in same]
    unjudged = _unjudged(data["task"], rows, list(about.values()))
    judged = [name for name in metrics if name not in unjudged]
    found: dict[str, Any] = {
        "format": FORMAT,
        "rule": RULE,
        "data": {key: data[key] for key in ("name", "task", "class_names", "train_counts", "samples")},
        "baseline": folder.baseline,
        "seeds": seeds,
        "main": MAIN[data["task"]],
        "metrics": metrics,
        "same": same,
        "unjudged": {name: why for name, why in unjudged.items() if name in metrics},
        "rows": rows,
        "equal": equal,
        "differences": _differences(rows, folder.baseline, judged, values, runs, draws, seed),
        "failures": [{"loss": one.loss, "seed": one.seed, "error": one.error} for one in folder.failures],
        **_tested(next(iter(runs.values()))),
    }
    found |= {"sentences": sentences_of(found)}
    return found | {"inputs": _inputs(folder)}


def _check_samples(runs: Runs, about: Mapping[Any, Mapping[str, Any]]) -> None:
    """Raise where runs had other samples; earlier versions did not note which they had."""
    known = {key: one["data"]["fingerprint"] for key, one in about.items() if "fingerprint" in one["data"]}
    first = next(iter(known), None)
    for key, fingerprint in known.items():
        if first is not None and fingerprint != known[first]:
            raise ValueError(_other_samples(runs[key], runs[first]))


def _other_samples(run: RunFolder, first: RunFolder) -> str:
    return (
        f"{run.path}: all runs must be trained and tested on the same samples, found others than in {first.path}; the "
        "data changed between the runs, compare anew in another folder"
    )


def known_verdict(folder: ComparisonFolder) -> dict[str, Any] | None:
    """The verdict that is there; None where it is damaged, other runs are finished, or an earlier version judged."""
    if not folder.verdict.is_file():
        return None
    try:
        found = read_record(folder.verdict, advice="equipoise report makes it again")
        check_shape(folder.verdict, found, VERDICT, advice="equipoise report makes it again")
    except InputError:
        return None
    if "inputs" in found:
        same = found["inputs"] == _inputs(folder)
    else:  # of a version that did not note them: were as many runs judged?
        counts = Counter(run.loss for run in folder.finished)
        judged = [one for row in found.get("rows", ()) for one in row.get("candidates", ())]
        same = all(counts[one["text"]] == one["runs"] for one in judged)
    return found if same and found.get("format") == FORMAT else None


def _inputs(folder: ComparisonFolder) -> str:
    """A digest of what a verdict is made of: the plan, and what the finished runs say of themselves."""
    files = [folder.plan, *(run.folder.path / name for run in folder.finished for name in ("run.json", "results.json"))]
    digests = (hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b"" for file in files)
    return hashlib.sha256(b"".join(digests)).hexdigest()


# ------------------------------------------------------------------------------------------------------------- table


def _row(
    entry: Entry, seeds: Sequence[int], about: Mapping[tuple[str, int], Row], values: Mapping[Any, Row], runs: Runs
) -> Row:
    """One loss: the candidate that validation data choose, and what it reached on the test."""
    candidates = [_candidate(text, seeds, about) for text in entry.candidates]
    chosen = _chosen(candidates)
    own = [] if chosen is None else [(chosen, seed) for seed in seeds if (chosen, seed) in runs]
    return {
        "loss": entry.text,
        "chosen": chosen,
        "monitor": about[own[0]]["monitor"] if own else None,
        "candidates": [{key: one[key] for key in ("text", "monitor_mean", "runs")} for one in candidates],
        "seeds": [seed for _, seed in own],
        "failed": [seed for seed in seeds if (chosen, seed) not in own],
        "values": {name: _summary([values[key][name] for key in own]) for name in (values[own[0]] if own else ())},
        "groups": _groups([runs[key] for key in own]),
        SPEED: _summary([values[key][SPEED] for key in own]),
    }


def _candidate(text: str, seeds: Sequence[int], about: Mapping[tuple[str, int], Row]) -> Row:
    own = [about[text, seed] for seed in seeds if (text, seed) in about]
    found = [run["monitor_value"] for run in own if run["monitor_value"] is not None]
    mean = math.fsum(found) / len(found) if found else None
    better = 0.0 if mean is None else -mean if own[0]["monitor"] in LESS_IS_BETTER else mean
    return {"text": text, "monitor_mean": mean, "runs": len(own), "rank": (len(own), mean is not None, better)}


def _chosen(candidates: Sequence[Row]) -> str | None:
    """The best on validation data of those with the most finished runs: one that fails for some seeds is no choice."""
    best = max(candidates, key=lambda one: one["rank"])
    return best["text"] if best["runs"] else None


def _summary(values: Sequence[float | None]) -> Row:
    """Mean and standard deviation over the seeds that have a value."""
    known = [value for value in values if value is not None]
    return {
        "mean": math.fsum(known) / len(known) if known else None,
        "std": float(np.std(known, ddof=1)) if len(known) > 1 else None,
        "per_seed": list(values),
    }


def _groups(runs: Sequence[RunFolder]) -> Row:
    """Classes by how often they were seen in training."""
    tests = [run.results["test"] for run in runs]
    found: Row = {}
    for place, first in enumerate(tests[0]["groups"] if tests else []):
        rows = [test["groups"][place] for test in tests]
        about = {key: first[key] for key in ("classes", "support")}
        found[first["name"]] = about | {
            "value": _summary([row[tests[0]["main"]] for row in rows]),
            "ece": _summary([row["ece"] for row in rows]),
        }
    return found


def _distinct(rows: Sequence[Row], baseline: str) -> tuple[list[Row], dict[str, str]]:
    """The rows without those that are the runs of another one, and which one that is; the baseline keeps its own."""
    kept: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row["loss"] != baseline):
        if row["chosen"] is not None:
            kept.setdefault(row["chosen"], row["loss"])
    equal = {row["loss"]: kept[row["chosen"]] for row in rows if kept.get(row["chosen"], row["loss"]) != row["loss"]}
    return [row for row in rows if row["loss"] not in equal], equal


def _same_metrics(run: RunFolder) -> dict[str, str]:
    """Metrics that are the same number as another on this test set: accuracy where all classes have equal support."""
    test = run.results["test"]
    support = {row["support"] for row in test["per_class"]} - {0}
    return {"accuracy": "mean_class_accuracy"} if test["task"] == "single" and len(support) == 1 else {}


def _metrics(task: str, rows: Sequence[Row]) -> list[str]:
    """Columns of the table: what at least one loss has; groups where there is more than one."""
    names = (*METRICS[task], *OPEN_METRICS, SPEED)
    found = [name for name in names if any(row["values"].get(name, {}).get("mean") is not None for row in rows)]
    several = sum(name in found for name in GROUPS) > 1
    return [name for name in found if several or name not in GROUPS]


def _seconds_per_step(run: RunFolder) -> float | None:
    """Time of a step; None of what took none of its own, which notes that of stage one."""
    seconds: float = run.about[SPEED]
    return seconds if any(True for _ in run.history()) else None


def _unjudged(task: str, rows: Sequence[Row], about: Sequence[Row]) -> dict[str, str]:
    """Metrics that are not compared, and why: groups with hardly any test samples, timings on a shared machine."""
    units = {"single": "test sample", "multi": "positive test sample", "segmentation": "test pixel"}
    found = {}
    for name, group in next((row["groups"] for row in rows if row["groups"]), {}).items():
        if group["support"] < LEAST:
            kind = {"labels": "label", "classes": "class"}[things(task)] if group["classes"] == 1 else things(task)
            unit = units[task] + ("" if group["support"] == 1 else "s")
            found[name] = f"{group['classes']:,} {kind}, {group['support']:,} {unit}, too few to judge"
    spreads = {
        row["loss"]: time["std"] / time["mean"]
        for row in rows
        if (time := row["values"].get(SPEED, {})).get("mean") and time["std"] is not None
    }
    loss = max(spreads, key=spreads.__getitem__, default="")
    if _side_by_side(about):
        found[SPEED] = "timings are not comparable: runs shared the machine"
    elif loss and spreads[loss] > STEADY:
        found[SPEED] = f"timings are not comparable: they vary by {100 * spreads[loss]:.0f} % between seeds of {loss}"
    return found


def _side_by_side(about: Sequence[Row]) -> bool:
    """Whether a run began before another was over."""
    spans = sorted((one["started"], one["finished"]) for one in about)
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))


def _tested(run: RunFolder) -> Row:
    """Samples that were tested on, of large label maps a part of the test only, the rarest class and missing ones."""
    test = run.results["test"]
    rarest = min((row for row in test["per_class"] if row["support"]), key=lambda row: row["support"], default=None)
    return {
        "tested": test["samples"],
        "rarest": None if rarest is None else {key: rarest[key] for key in ("name", "support")},
        "missing": [row["name"] for row in test["per_class"] if row["support"] == 0],
    }


# ------------------------------------------------------------------------------------------------------- differences


def _differences(
    rows: Sequence[Row],
    baseline: str,
    metrics: Sequence[str],
    values: Mapping[Any, Row],
    runs: Runs,
    draws: int,
    seed: int,
) -> list[Row]:
    """What each loss differs by from the baseline in each metric, on the seeds that both have."""
    base = next(row for row in rows if row["loss"] == baseline)
    pairs = {}
    for row in rows:
        common = [one for one in row["seeds"] if one in base["seeds"]]
        if row is not base and common:
            pairs[row["loss"]] = [((row["chosen"], one), (base["chosen"], one)) for one in common]
    outcomes, drawn = _resampled({key for pair in pairs.values() for key in pair}, runs, draws, seed)
    found: list[Row] = []
    for metric in metrics:
        of_metric = {}
        for loss, pair in pairs.items():
            known = [(own, other) for own, other in pair if None not in (values[own][metric], values[other][metric])]
            if known:
                of_metric[loss] = _difference(metric, known, values, outcomes, drawn)
        found += _judged(metric, of_metric, base["values"].get(metric, {}).get("mean"))
    return found


def _resampled(
    pairs: set[tuple[tuple[str, int], tuple[str, int]]], runs: Runs, draws: int, seed: int
) -> tuple[dict[Any, Outcome], dict[Any, dict[str, Array]]]:
    """What the runs of several seeds predicted, and their metrics on other draws of the test samples."""
    if len({own[1] for own, _ in pairs}) < 2:
        return {}, {}
    keys = sorted({key for pair in pairs for key in pair})
    outcomes = {key: outcome_of(runs[key]) for key in keys}
    first = outcomes[keys[0]]
    for key, outcome in outcomes.items():
        if outcome.targets != first.targets:
            raise ValueError(_other_samples(runs[key], runs[keys[0]]))
    return outcomes, dict(zip(keys, resample(list(outcomes.values()), draws=draws, seed=seed), strict=True))


def _difference(
    metric: str,
    pairs: Sequence[tuple[Any, Any]],
    values: Mapping[Any, Row],
    outcomes: Mapping[Any, Outcome],
    drawn: Mapping[Any, Mapping[str, Array]],
) -> Difference:
    seen = [values[own][metric] - values[other][metric] for own, other in pairs]
    if len(pairs) < 2:
        return paired_difference(seen, None, samples=1)
    unpaired = sum(float(np.var([values[key][metric] for key in keys], ddof=1)) for keys in zip(*pairs, strict=True))
    if metric == SPEED:
        return paired_difference(seen, None, samples=1, unpaired=unpaired)
    resampled = np.stack([drawn[own][metric] - drawn[other][metric] for own, other in pairs])
    first = outcomes[pairs[0][0]]
    least = first.least.get(metric, 0.0)
    return paired_difference(seen, resampled, samples=first.drawn(metric), least=least, unpaired=unpaired)


def _judged(metric: str, compared: Mapping[str, Difference], base: float | None) -> list[Row]:
    """Differences of all losses in one metric, Holm-adjusted."""
    differences = dict(zip(compared, moderated(list(compared.values())), strict=True))
    p_values = {loss: one.p for loss, one in differences.items() if one.p is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    untold = sum(p >= ALPHA for p in corrected.values())
    found = []
    for loss, one in differences.items():
        low, high = one.interval or (None, None)
        usable = low is not None and high is not None and high - low < 2 * _widest(metric, base)
        if low is not None and high is not None and metric not in (*NATURAL, SPEED):  # shares differ by 1 at most
            low, high = max(low, -1.0), min(high, 1.0)
        real = loss in corrected and corrected[loss] < ALPHA
        need = None if real else one.need(untold)
        found.append(
            {
                "loss": loss,
                "metric": metric,
                "mean": one.mean,
                "low": low,
                "high": high,
                "usable": usable,
                "p": p_values.get(loss),
                "p_corrected": corrected.get(loss),
                "real": real,
                "seeds": one.seeds,
                "seeds_needed": need.seeds if need is not None else None,
                "limit": need.limit if need is not None else None,
            }
        )
    return found


def _widest(metric: str, base: float | None) -> float:
    """The margin from which on an interval is of no use: 50 points of a fraction, else all of the baseline's value."""
    return abs(base or math.inf) if metric in (*NATURAL, SPEED) else 0.5
