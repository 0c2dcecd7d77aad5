"""Numbers as arguments: both ends of their range are legal where they are included, and what is beyond is refused."""

import math

import pytest
import torch

import equipoise as eq
from equipoise import heads, metrics, schedules, weights
from equipoise.losses import AdaptiveAsymmetry, Adjustment, ByConfidence, Modulation, NegativeTolerance
from equipoise.losses.representation import LiftedStructureLoss, RangeLoss
from equipoise.schedules import Moment

TINY = 1e-9
NEVER = [math.nan, math.inf, -math.inf]
ABOVE_ZERO = ([TINY, 1e3], [0.0, -TINY, *NEVER])
FROM_ZERO = ([0.0, TINY, 1e3], [-TINY, *NEVER])
FRACTION = ([0.0, TINY, 1.0 - TINY, 1.0], [-TINY, 1.0 + TINY, *NEVER])
ANY = ([-1e3, 0.0, 1e3], NEVER)
FROM_ONE = ([1, 2, 1000], [0, -1])
COUNTS = [3, 2, 1]
LOGITS, LABELS = torch.tensor([[0.5, -1.0, 2.0]] * 4), torch.tensor([0, 1, 2, 0])
MARKS = torch.eye(3)[LABELS]
CONFIDENCE = torch.tensor([0.9, 0.4])


def used(loss):
    loss.set_progress(0.0)
    return loss(LOGITS, MARKS if "sigmoid" in type(loss).__mro__[1].__name__.lower() else LABELS)


CASES = {
    "metrics": {
        "threshold": (lambda v: metrics.OpenSetScores(v), *FRACTION),
        "threshold (confident)": (lambda v: metrics.ConfidentShare(v), *FRACTION),
        "threshold (labels)": (
            lambda v: metrics.MultilabelScores(3, threshold=v),
            [0.0, 1.0],
            [-TINY, 1.0 + TINY, math.nan],
        ),
        "resolution": (lambda v: metrics.OpenSetScores(resolution=v), [2, 3], [1, 0, -1]),
        "resolution (precision)": (lambda v: metrics.MultilabelAveragePrecision(2, resolution=v), [2, 3], [1, 0, -1]),
        "resolution (calibration)": (lambda v: metrics.CalibrationError(5, resolution=v), [5, 6], [4, 1, 0]),
        "bins": (lambda v: metrics.CalibrationError(v), *FROM_ONE),
        "draws": (lambda v: metrics.bootstrap(torch.mean, CONFIDENCE, draws=v), *FROM_ONE),
        "level": (
            lambda v: metrics.bootstrap(torch.mean, CONFIDENCE, draws=2, level=v),
            [TINY, 1.0 - TINY],
            [0.0, 1.0, -TINY, 1.0 + TINY, math.nan],
        ),
        "num_classes": (lambda v: metrics.Accuracy(v), *FROM_ONE),
        "num_classes (segmentation)": (lambda v: metrics.SegmentationScores(v), [1, 2], [0, -1]),
        "num_labels": (lambda v: metrics.MultilabelScores(v), *FROM_ONE),
        "num_labels (precision)": (lambda v: metrics.MultilabelAveragePrecision(v), *FROM_ONE),
        "top_k": (lambda v: metrics.Accuracy(3, top_k=(v,)), *FROM_ONE),
        "top_k (labels)": (lambda v: metrics.MultilabelScores(3, top_k=v), *FROM_ONE),
        "cuts": (lambda v: metrics.shot_groups(COUNTS, cuts=(v, 2e3)), *ANY),
        "cuts (many)": (lambda v: metrics.shot_groups(COUNTS, cuts=(-2e3, v)), *ANY),
        "share": (
            lambda v: metrics.accepting_threshold(CONFIDENCE, share=v),
            [TINY, 1.0],
            [0.0, -TINY, 1.0 + TINY, math.nan],
        ),
    },
    "weights": {
        "start": (lambda v: weights.Deferred(COUNTS, start=v), *FRACTION),
        "start_epoch": (lambda v: weights.Deferred(COUNTS, start_epoch=v), [0, 1, 1000], [-1]),
        "num_classes": (lambda v: weights.RecallWeights(v), *FROM_ONE),
        "num_classes (precision)": (lambda v: weights.PrecisionWeights(v), *FROM_ONE),
        "momentum": (
            lambda v: weights.RecallWeights(3, momentum=v),
            [TINY, 1.0],
            [0.0, -TINY, 1.0 + TINY, *NEVER],
        ),
        "min_errors": (lambda v: weights.RecallWeights(3, min_errors=v), *FROM_ZERO),
        "beta": (lambda v: weights.effective_number(COUNTS, v), *FRACTION),
        "alpha": (lambda v: weights.Rebalanced(COUNTS, alpha=v), *FROM_ZERO),
        "beta (rebalanced)": (lambda v: weights.Rebalanced(COUNTS, beta=v), *ANY),
        "mu": (lambda v: weights.Rebalanced(COUNTS, mu=v), *ANY),
    },
    "schedules": {
        "value": (lambda v: schedules.Constant(v), *ANY),
        **{
            f"{name} ({kind.__name__})": (
                lambda v, name=name, kind=kind: kind(**({"start": 1.0, "stop": 1.0} | {name: v})),
                *ANY,
            )
            for kind in (schedules.Linear, schedules.Cosine, schedules.Parabolic)
            for name in ("start", "stop")
        },
        "values": (lambda v: schedules.Steps((1.0, v), at=(0.5,)), *ANY),
        "at": (lambda v: schedules.Steps((1.0, 2.0), at=(v,)), *FRACTION),
        "factor": (lambda v: schedules.Cyclical(v), [1.0, 1.0 + TINY, 1e3], [1.0 - TINY, 0.0, *NEVER]),
    },
    "losses": {
        "gamma": (lambda v: used(eq.FocalLoss(v)), *FROM_ZERO),
        "gamma_hc": (lambda v: Modulation(gamma_hc=v, xi=0.5), *FROM_ZERO),
        "gamma_pos": (lambda v: Modulation(gamma_pos=v), *FROM_ZERO),
        "gamma_neg": (lambda v: Modulation(gamma_neg=v), *FROM_ZERO),
        "xi": (lambda v: Modulation(xi=v, gamma_hc=1.0), *FRACTION),
        "gamma (by confidence)": (
            lambda v: Modulation(gamma_pos=ByConfidence(((0.5, v), (1.0, 1.0)))),
            *FROM_ZERO,
        ),
        "tau": (lambda v: Adjustment(offset=(1.0, 2.0), tau=v), *ANY),
        "max_margin": (lambda v: Adjustment(margin=(1.0, 2.0), max_margin=v), *FROM_ZERO),
        "scale": (lambda v: Adjustment(scale=v), *ABOVE_ZERO),
        "neg_scale": (lambda v: NegativeTolerance(neg_scale=v), *ABOVE_ZERO),
        "target_gap": (lambda v: AdaptiveAsymmetry(v), [-1.0, 0.0, 1.0], [-1.0 - TINY, 1.0 + TINY, *NEVER]),
        "gap_step": (lambda v: AdaptiveAsymmetry(0.1, gap_step=v), *FROM_ZERO),
        "gamma_max": (lambda v: AdaptiveAsymmetry(0.1, gamma_max=v, start=0.0), *FROM_ZERO),
        "gamma_neg (start)": (
            lambda v: AdaptiveAsymmetry(0.1, start=v, gamma_max=2.0),
            [0.0, 2.0],
            [-TINY, 2.0 + TINY, *NEVER],
        ),
        "gamma_neg (loss)": (
            lambda v: eq.AsymmetricLoss(gamma_neg=v, target_gap=0.1),
            [0.0, 10.0],
            [-TINY, 10.0 + TINY, *NEVER],
        ),
        "margin": (lambda v: used(eq.AsymmetricLoss(margin=v)), *FRACTION),
        "alpha": (lambda v: used(eq.BinaryFocalLoss(alpha=v)), *FRACTION),
        "label_smoothing": (lambda v: used(eq.CrossEntropyLoss(label_smoothing=v)), *FRACTION),
        "keep": (lambda v: used(eq.OHEMLoss(v)), *FRACTION),
        "min_kept": (lambda v: used(eq.OHEMLoss(min_kept=v)), [0, 1, 1000], [-1]),
        "strength": (lambda v: used(eq.MMCELoss(v)), *FROM_ZERO),
        "epochs": (lambda v: eq.FocalLoss(epochs=v), *FROM_ONE),
        "fraction": (lambda v: eq.CyclicalFocalLoss(5).set_progress(v), *FRACTION),
        "num_samples": (
            lambda v: eq.DistributionBalancedLoss(COUNTS, v),
            [3.0 + TINY, 100.0],
            [3.0, 2.0, 0.0, *NEVER],
        ),
        "num_samples (rare)": (
            lambda v: eq.DistributionBalancedLoss([0.5, 0.25], v),
            [1.0 + TINY, 100.0],
            [1.0, 0.75, *NEVER],
        ),
        "init_bias": (lambda v: eq.DistributionBalancedLoss(COUNTS, 9, init_bias=v), *ANY),
        "neg_scale (loss)": (lambda v: eq.DistributionBalancedLoss(COUNTS, 9, neg_scale=v), *ABOVE_ZERO),
        "smooth": (lambda v: eq.DiceLoss(smooth=v), *FROM_ZERO),
        "alpha (regions)": (lambda v: used(eq.TverskyLoss(alpha=v)), *FROM_ZERO),
        "beta (regions)": (lambda v: used(eq.TverskyLoss(beta=v)), *FROM_ZERO),
        "margin (lifted)": (lambda v: LiftedStructureLoss(margin=v), *ANY),
        "margin (range)": (lambda v: RangeLoss(margin=v), *FROM_ZERO),
        "k": (lambda v: RangeLoss(v), *FROM_ONE),
        "intra": (lambda v: RangeLoss(intra=v), *FROM_ZERO),
        "inter": (lambda v: RangeLoss(inter=v), *FROM_ZERO),
        "p0": (lambda v: eq.gamma_for(v), [TINY, 0.5 - 1e-6], [0.0, 0.5, -TINY, 1.0, *NEVER]),
        "gamma (mislabel)": (lambda v: eq.mislabel_point(v, 0.05), [0.0, TINY, 10.0], [-TINY, *NEVER]),
        "margin (mislabel)": (lambda v: eq.mislabel_point(4.0, v), [0.0, 1e-3, 0.9], [-TINY, 1.0, 1.5, *NEVER]),
    },
    "heads": {
        "margin": (lambda v: heads.CentroidMemory(3, 2, margin=v), *FROM_ZERO),
        "repel": (lambda v: heads.CentroidMemory(3, 2, repel=v), *FROM_ZERO),
        "threshold": (lambda v: heads.open_set_prediction(torch.zeros(1, 2), threshold=v), *FRACTION),
        "tau": (lambda v: heads.tau_normalize(torch.eye(2), v), *FROM_ZERO),
        "scale": (lambda v: heads.CosineClassifier(3, 2, scale=v), *ABOVE_ZERO),
        "reach": (lambda v: heads.MetaEmbedding(3, 2, reach=v), *ABOVE_ZERO),
        "scale (embedding)": (lambda v: heads.MetaEmbedding(3, 2, scale=v), *ABOVE_ZERO),
        "in_features": (lambda v: heads.CentroidMemory(v, 2), *FROM_ONE),
        "num_classes": (lambda v: heads.CentroidMemory(2, v), *FROM_ONE),
    },
}
LEGAL = [
    pytest.param(b, v, id=f"{p} {n}={v!r}")
    for p, cases in CASES.items()
    for n, (b, good, _) in cases.items()
    for v in good
]
WRONG = [
    pytest.param(b, v, n.split(" ")[0], id=f"{p} {n}={v!r}")
    for p, cases in CASES.items()
    for n, (b, _, bad) in cases.items()
    for v in bad
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("build", "value"), LEGAL)
def test_legal_values(build, value):
    made = build(value)
    if isinstance(made, (weights.Rebalanced, Modulation, Adjustment, NegativeTolerance)):
        made.values(Moment(0.0))


@pytest.mark.parametrize(("build", "value", "name"), WRONG)
def test_values_beyond(build, value, name):
    with pytest.raises(ValueError, match=rf"^{name} must "):
        build(value)
