"""Diagnostics of the number of training samples per class."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.doctor.finding import Finding, listed
from equipoise.tasks import Task

__all__ = ["look_at_counts"]

LONG_TAIL = 10.0
"""Imbalance ratio from which data are called long-tailed: cross-entropy then neglects rare classes."""
FEW = 20


def look_at_counts(counts: Sequence[float], names: Sequence[str], task: str = "multiclass") -> list[Finding]:
    """Findings about the training samples of each class; for a multi-label task, about the positives of each label."""
    findings = []
    kind = Task(task)
    several, kinds = kind.multilabel, kind.many
    largest, smallest = ("most frequent label", "rarest") if several else ("largest class", "smallest")
    absent = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if absent:
        findings.append(
            Finding(
                "problem",
                f"{kinds} without training samples",
                f"{len(absent)} of {len(counts)} {kinds} have none: {listed(absent)}. No loss can learn them; "
                f"losses with counts replace 0 by 1, and weights exclude such {kinds}.",
                "Drop them, merge them with others, or collect samples.",
            )
        )
        smallest += " that has any"
    present = [count for count in counts if count > 0]
    if not present:
        return findings
    findings += _imbalance(present, largest, smallest, kind)
    if not several:  # labels of a sample are not exclusive
        findings += _dominant_class(counts, names)
    return findings + _few_samples(counts, names, kinds)


def _imbalance(present: Sequence[float], largest: str, smallest: str, task: Task) -> list[Finding]:
    findings = []
    ratio = max(present) / min(present)
    if ratio >= LONG_TAIL:
        findings.append(
            Finding(
                "warning",
                "long tail",
                f"The {largest} has {ratio:,.0f} times the samples of the {smallest} ({max(present):,.0f} to "
                f"{min(present):,.0f}). "
                + (
                    "Overall metrics (OP, OR, OF1) are then dominated by the frequent labels."
                    if task.multilabel
                    else "Accuracy is then dominated by the large classes."
                ),
                f"Report {'mAP and CF1' if task.multilabel else 'mean class accuracy'} and many/medium/few beside "
                f"{'them' if task.multilabel else 'accuracy'}, and compare a loss that rebalances.",
            )
        )
    else:
        findings.append(
            Finding(
                "note",
                "balance",
                f"The {largest} has {ratio:,.1f} times the samples of the {smallest}, which is mild: frequency "
                f"alone lowers the log-odds of the {smallest} by log {ratio:,.1f} = {math.log(ratio):.1f}, which is "
                f"little compared with the evidence of a sample. Data are called long-tailed from a ratio of "
                f"{LONG_TAIL:g} ({math.log(LONG_TAIL):.1f}).",
                f"Rebalancing has little to gain; check calibration and the hard {task.many} first. If one has low "
                "recall, or misses of it are costly, compare a loss that rebalances.",
            )
        )
    return findings


def _dominant_class(counts: Sequence[float], names: Sequence[str]) -> list[Finding]:
    findings = []
    present = [count for count in counts if count > 0]
    fraction = max(present) / sum(present)
    if fraction > 0.9 and len(present) > 1:
        biggest = names[list(counts).index(max(present))]
        findings.append(
            Finding(
                "warning",
                "one class dominates",
                f"{biggest} makes up {100 * fraction:.1f} % of the samples: always predicting it has that accuracy.",
                "Evaluate recall, IoU or F1 of the other classes; exclude a background class from means.",
            )
        )
    return findings


def _few_samples(counts: Sequence[float], names: Sequence[str], kinds: str) -> list[Finding]:
    findings = []
    few = [name for name, count in zip(names, counts, strict=True) if 0 < count < FEW]
    if few:
        findings.append(
            Finding(
                "warning",
                f"{kinds} with few training samples",
                f"{len(few)} of {len(counts)} {kinds} have fewer than {FEW}: {listed(few)}. Weights of 1/n make single "
                "samples of them dominate a batch.",
                "Prefer effective-number weights, logit adjustment or margins to 1/n, and train with several seeds.",
            )
        )
    return findings
