"""A task on a data set: defaults, and metrics on validation data and training batches."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchmetrics import Metric

from equipoise.data import Arrays, DataSet, FileImages, Texts
from equipoise.evaluation.meters import KEPT, basic_metrics, decision_scores
from equipoise.metrics import Accuracy, ConfidenceProfile
from equipoise.metrics.truth import ProbabilityGap, TruthProbability
from equipoise.models.registry import SMALL

__all__ = ["TrainingTask"]


class TrainingTask:
    """One task on one data set.

    Args:
        data: the data set.
    """

    def __init__(self, data: DataSet) -> None:
        self.data, self.kind, self.num_classes = data, data.task, len(data.class_names)

    @property
    def monitor(self) -> str:
        """The validation metric that selects the checkpoint."""
        return self.kind.monitor

    def metrics(self) -> dict[str, Metric]:
        """Metrics of a validation pass: those of evaluations, and confidence of correct and wrong predictions."""
        exact = len(self.data.val) * self.num_classes <= KEPT
        ignore = self.data.ignore_index
        metrics = basic_metrics(self.kind, self.num_classes, exact=exact, ignore_index=ignore)
        if self.kind.multilabel:
            return {**metrics, "gap": ProbabilityGap()}
        return {**metrics, "profile": ConfidenceProfile(ignore_index=ignore)}

    def scores(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Values of the metrics by name, including ``monitor``."""
        decisions = decision_scores(self.kind, metrics)
        scores = {name: float(decisions[name]) for name in self.kind.metrics}
        scores |= {name: float(metrics[name].compute()) for name in ("nll", "ece")}
        if self.kind.multilabel:
            return {**scores, "probability_gap": float(metrics["gap"].compute()["gap"])}
        return {**scores, **{name: float(value) for name, value in metrics["profile"].compute().items()}}

    def observers(self) -> dict[str, Metric]:
        """Metrics for some training batches."""
        if self.kind.multilabel:
            return {"gap": ProbabilityGap()}
        ignore = self.data.ignore_index
        return {
            "recall": Accuracy(self.num_classes, top_k=(1,), ignore_index=ignore),
            "truth": TruthProbability(self.num_classes, ignore_index=ignore),
            "profile": ConfidenceProfile(ignore_index=ignore),
        }

    def default_model(self) -> str:
        """Name of a model for the kind of data."""
        if self.kind.pixels:
            return "unet"
        train = self.data.train
        if isinstance(train, Texts):
            return "text-bow"
        if isinstance(train, Arrays) and train.inputs.ndim == 2:
            return "mlp"
        size = train.size or train.load(0)[0].shape[1:] if isinstance(train, FileImages) else train.inputs.shape[2:]
        return "resnet32" if max(size) <= SMALL else "resnet18"

    def default_batch_size(self, samples: int) -> int:
        """The largest power of two with at least 16 steps per epoch, between 4 and the maximum of the task."""
        return min(self.kind.largest_batch, max(4, 1 << int(math.log2(max(samples / 16, 1)))))
