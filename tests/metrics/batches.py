"""What the metric tests share: every metric with a batch that it understands."""

import torch

from equipoise.metrics import (
    Accuracy,
    BrierScore,
    CalibrationError,
    ConfidenceProfile,
    ConfidentShare,
    MultilabelAveragePrecision,
    MultilabelScores,
    NegativeLogLikelihood,
    OpenSetScores,
    SegmentationScores,
    ShotAccuracy,
)

C = 4
IGNORED, UNKNOWN = -100, -1
GROUPS = [0, 1, 1, 2]


def classes(n=24, size=(), seed=0, dtype=torch.float64, unknown=False):
    """Logits with ties and confident rows, labels of which some are ignored."""
    draw = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(n, C, *size, generator=draw, dtype=torch.float64)).round(decimals=1)
    targets = torch.randint(0, C, (n, *size), generator=draw)
    targets[torch.rand(targets.shape, generator=draw) < 0.1] = IGNORED
    if unknown:
        targets[torch.rand(targets.shape, generator=draw) < 0.3] = UNKNOWN
    return logits.to(dtype), targets


def labels(n=24, size=(), seed=0, dtype=torch.float64):
    """Logits with ties, 0 and 1 of which some are unknown, and a label without positives."""
    draw = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(n, C, *size, generator=draw, dtype=torch.float64)).round(decimals=1)
    targets = torch.randint(0, 2, logits.shape, generator=draw)
    targets[:, 2] = 0
    targets[torch.rand(targets.shape, generator=draw) < 0.1] = UNKNOWN
    return logits.to(dtype), targets


SINGLE = {
    **{
        f"calibration {norm} {binning} {kind} {'groups' if groups else 'all'}": (
            lambda norm=norm, binning=binning, kind=kind, groups=groups, **o: CalibrationError(
                5, norm=norm, binning=binning, kind=kind, groups=groups, **o
            )
        )
        for norm, binning in (("l1", "width"), ("l2", "mass"), ("max", "width"), ("l1", "mass"))
        for kind in ("top", "classwise")
        for groups in (None, GROUPS)
    },
    "calibration mass histogram": lambda **o: CalibrationError(5, binning="mass", exact=False, resolution=64, **o),
    "calibration mass histogram classwise": lambda **o: CalibrationError(
        5, binning="mass", kind="classwise", exact=False, resolution=64, **o
    ),
    "nll": NegativeLogLikelihood,
    "brier": BrierScore,
    "confident share": lambda **o: ConfidentShare(0.8, **o),
    "confidence profile": ConfidenceProfile,
    "accuracy": lambda **o: Accuracy(C, top_k=(1, 2, 5), **o),
    "shots": lambda **o: ShotAccuracy([500, 100, 30, 5], **o),
    "segmentation": lambda **o: SegmentationScores(C, **o),
}
OPEN = {
    "open set": lambda **o: OpenSetScores(0.5, **o),
    "open set groups": lambda **o: OpenSetScores(0.5, groups=GROUPS, **o),
    "open set histogram": lambda **o: OpenSetScores(0.5, convention="kang", exact=False, resolution=64, **o),
}
MULTI = {
    **{
        f"calibration multilabel {binning} {'groups' if groups else 'all'}": (
            lambda binning=binning, groups=groups, **o: CalibrationError(
                5, binning=binning, kind="multilabel", groups=groups, **o
            )
        )
        for binning in ("width", "mass")
        for groups in (None, GROUPS)
    },
    "calibration multilabel histogram": lambda **o: CalibrationError(
        5, binning="mass", kind="multilabel", exact=False, resolution=64, **o
    ),
    "nll multilabel": lambda **o: NegativeLogLikelihood(kind="multilabel", **o),
    "brier multilabel": lambda **o: BrierScore(kind="multilabel", **o),
    **{
        f"average precision {average}": lambda average=average, **o: MultilabelAveragePrecision(C, average=average, **o)
        for average in ("macro", "micro", "none")
    },
    "average precision histogram": lambda **o: MultilabelAveragePrecision(C, exact=False, resolution=64, **o),
    "multilabel scores": lambda **o: MultilabelScores(C, **o),
    "multilabel scores top": lambda **o: MultilabelScores(C, top_k=3, **o),
}
EVERY = {
    **{name: (build, classes) for name, build in SINGLE.items()},
    **{name: (build, lambda *a, **o: classes(*a, unknown=True, **o)) for name, build in OPEN.items()},
    **{name: (build, labels) for name, build in MULTI.items()},
}


def link(name):
    """The probabilities that belong to the logits of a metric."""
    return torch.sigmoid if name in MULTI else (lambda logits: logits.softmax(1))


def values(result):
    """A result as a dict of tensors."""
    return result if isinstance(result, dict) else {"value": result}
