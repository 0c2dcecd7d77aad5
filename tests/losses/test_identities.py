"""What must be true of the losses: limits, symmetries, denominators, and SPEC 1 written out slowly."""

import inspect
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import equipoise
from equipoise import (
    AsymmetricLoss,
    AsymmetricSoftmaxLoss,
    BalancedSoftmaxLoss,
    BinaryCrossEntropyLoss,
    BinaryFocalLoss,
    CrossEntropyLoss,
    CyclicalAsymmetricLoss,
    CyclicalFocalLoss,
    DistributionBalancedLoss,
    FocalLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    RecallLoss,
    SampleDependentFocalLoss,
    SigmoidLoss,
    SoftmaxLoss,
    functional,
)
from equipoise.catalogue import CATALOGUE, long_tail
from equipoise.kernels.cpu import blocks
from equipoise.losses import (
    Adjustment,
    ByConfidence,
    Modulation,
    NegativeTolerance,
    asymmetric,
    cyclical,
    focal,
    logit_adjustment,
)
from equipoise.schedules import Cyclical, Linear
from equipoise.weights import RecallWeights
from tests.losses.helpers import (
    IGNORED,
    REDUCTIONS,
    SIGMOID,
    SOFTMAX,
    UNKNOWN,
    balanced_bias,
    batch_of,
    dense_of,
    each,
    indices_of,
    logits_of,
    make,
    multilabel_of,
    one_hot,
    sigmoid_reduced,
    sigmoid_reference,
    softmax_reduced,
    softmax_reference,
    value_and_gradient,
)

C = 4
WEIGHT = [0.3, 1.0, 2.5, 0.7]
COUNTS = [1000, 200, 30, 4]
TIGHT = {"rtol": 1e-12, "atol": 1e-14}  # two float64 computations of the same number
WHOLE_BATCH = {"OHEMLoss", "MMCELoss"}  # rows are not independent of one another
POINTWISE = [entry for entry in SOFTMAX if entry.name not in WHOLE_BATCH]
ROW_BY_ROW = [entry for entry in POINTWISE if entry.name not in {"RecallLoss", "PrecisionLoss"}]
BOUNDS = ((0.2, 5.0), (0.5, 3.0), (1.0, 2.0))


def same(loss, other, logits, *args, tolerance=TIGHT, **options):
    actual, expected = value_and_gradient(loss, logits, *args, **options), value_and_gradient(other, logits, *args)
    assert_close(actual, expected, **tolerance)


def targets_of(kind, shape, seed=0):
    return dense_of(shape, ignored=0.2, seed=seed) if kind == "dense" else indices_of(shape, ignored=0.2, seed=seed)


kinds = pytest.mark.parametrize("kind", ["index", "dense"])
smoothings = pytest.mark.parametrize("smoothing", [0.0, 0.15])


# ---------------------------------------------------------------------------------------------------------------------
# Limits
# ---------------------------------------------------------------------------------------------------------------------


@kinds
@smoothings
def test_gamma_zero_is_cross_entropy(kind, smoothing):
    options = {"weight": WEIGHT, "label_smoothing": smoothing}
    logits, targets = logits_of(7, C, 2), targets_of(kind, (7, C, 2))
    plain = CrossEntropyLoss(**options)
    same(FocalLoss(gamma=0.0, **options), plain, logits, targets)
    same(FocalLoss(gamma=[0.0] * C, **options), plain, logits, targets)
    same(FocalLoss(gamma=Linear(0.0, 0.0), epochs=2, **options).eval(), plain, logits, targets)
    same(SampleDependentFocalLoss(((0.5, 0.0), (1.0, 0.0)), **options), plain, logits, targets)
    same(AsymmetricSoftmaxLoss(0.0, gamma_neg=0.0, **options), plain, logits, targets)
    same(SoftmaxLoss(cyclical(1.0, 0.0, 3.0, 3.0), **options), plain, logits, targets)


@kinds
def test_xi_0_is_focal_and_xi_1_is_the_high_confidence_form(kind):
    logits, targets = logits_of(7, C), targets_of(kind, (7, C))
    loss = CyclicalFocalLoss(epochs=9, gamma_hc=3.0, gamma_lc=2.0)
    loss.set_epoch(2)  # 4 * 2 / (9 - 1) = 1: the low point
    same(loss, FocalLoss(gamma=2.0), logits, targets)
    t = targets if kind == "dense" else one_hot(targets, C)

    def high(z, _):
        log_p = F.log_softmax(z, 1)
        return -(t * (1 + log_p.exp()) ** 3 * log_p).sum() / (t.sum(1) != 0).sum()

    for epoch in (0, 8):
        loss.set_epoch(epoch)
        same(loss, high, logits, targets)
    same(functional.cyclical_focal_loss, high, logits, targets, xi=1.0)


def test_the_asymmetric_cyclical_loss_is_asymmetric_at_the_low_point():
    logits, targets = logits_of(7, C), indices_of((7, C), ignored=0.2)
    loss = CyclicalAsymmetricLoss(epochs=9)
    loss.set_epoch(2)
    same(loss, AsymmetricSoftmaxLoss(), logits, targets)


@kinds
def test_without_smoothing_the_other_exponent_has_no_effect(kind):
    logits = logits_of(7, C)
    targets = indices_of((7, C), ignored=0.2)
    targets = one_hot(targets, C) if kind == "dense" else targets
    loss = AsymmetricSoftmaxLoss(1.5, gamma_neg=3.0, label_smoothing=0.0)
    same(loss, FocalLoss(gamma=1.5), logits, targets)


def test_margin_0_and_equal_gammas_are_binary_focal():
    logits, targets = logits_of(7, C, size=3.0), multilabel_of((7, C), ignored=0.2)
    for gamma in (0.0, 0.5, 1.0, 2.0, 3.5):
        loss = AsymmetricLoss(gamma, gamma_neg=gamma, margin=0.0, reduction="mean")
        same(loss, BinaryFocalLoss(gamma), logits, targets)


def test_binary_focal_with_gamma_0_is_binary_cross_entropy():
    logits, targets = logits_of(7, C, size=3.0), multilabel_of((7, C), ignored=0.2, soft=True)
    same(BinaryFocalLoss(0.0, weight=WEIGHT), BinaryCrossEntropyLoss(WEIGHT), logits, targets)
    half = BinaryFocalLoss(0.0, alpha=0.5, weight=[2 * w for w in WEIGHT])
    same(half, BinaryCrossEntropyLoss(WEIGHT), logits, targets)


def test_alpha_is_a_share_of_positives():
    logits, targets = logits_of(7, C), multilabel_of((7, C))
    plain = BinaryFocalLoss(2.0, reduction="none")(logits, targets)
    shared = BinaryFocalLoss(2.0, alpha=0.25, reduction="none")(logits, targets)
    assert_close(shared, plain * torch.where(targets == 1, 0.25, 0.75), **TIGHT)


def test_binary_cross_entropy_is_softmax_cross_entropy_of_two_classes():
    z, targets = logits_of(9, size=2.0), multilabel_of((9,))
    for gamma in (0.0, 2.0):
        same(
            BinaryFocalLoss(gamma),
            lambda z, t, gamma=gamma: FocalLoss(gamma)(torch.stack([torch.zeros_like(z), z], 1), t.long()),
            z,
            targets,
        )


def test_a_tiny_margin_changes_little_and_margin_1_removes_the_negatives():
    logits, targets = logits_of(7, C), multilabel_of((7, C))
    zero = value_and_gradient(AsymmetricLoss(margin=0.0), logits, targets)
    tiny = value_and_gradient(AsymmetricLoss(margin=1e-9), logits, targets)
    assert_close(tiny, zero, rtol=1e-7, atol=1e-9)
    gone, gradient = value_and_gradient(AsymmetricLoss(margin=1.0, reduction="none"), logits, targets)
    assert torch.equal(gone[targets == 0], torch.zeros_like(gone[targets == 0]))
    assert torch.equal(gradient[targets == 0], torch.zeros_like(gradient[targets == 0]))
    assert (gone[targets == 1] > 0).all()


# ---------------------------------------------------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------------------------------------------------


@each(ROW_BY_ROW)
@smoothings
def test_weight_2_is_a_row_doubled(entry, smoothing):
    logits, _ = batch_of(entry, (4, C))
    targets = torch.tensor([0, 1, 2, 3])
    rows, again = [0, 1, 2, 2, 3], torch.tensor([0, 1, 2, 2, 3])
    options = {"reduction": "sum", "label_smoothing": smoothing}
    plain, weighted = make(entry, C, **options), make(entry, C, weight=[1.0, 1.0, 2.0, 1.0], **options)
    if smoothing and entry.name != "BrierLoss":  # the weight stands inside the sum: every class, not every row
        doubled = make(entry, C, weight=[2.0] * C, **options)
        same(doubled, lambda z, t: 2 * plain(z, t), logits, targets)
    else:
        same(weighted, lambda z, _: plain(z[rows], again), logits, targets)


def test_weight_2_of_a_label_is_the_label_doubled():
    logits, targets = logits_of(5, C), multilabel_of((5, C), ignored=0.2)
    columns = [0, 1, 2, 2, 3]
    for entry in SIGMOID:
        if entry.name != "DistributionBalancedLoss":  # its weights depend on the other labels
            plain, weighted = make(entry, C, reduction="sum"), make(entry, C, weight=[1, 1, 2, 1], reduction="sum")
            same(weighted, lambda z, t, plain=plain: plain(z[:, columns], t[:, columns]), logits, targets)


@kinds
def test_weights_in_a_list_are_multiplied(kind):
    logits, targets = logits_of(6, C), targets_of(kind, (6, C))
    other = [2.0, 0.5, 1.0, 3.0]
    product = [a * b for a, b in zip(WEIGHT, other, strict=True)]
    same(FocalLoss(weight=[WEIGHT, torch.tensor(other)]), FocalLoss(weight=product), logits, targets)


@each(POINTWISE)
@smoothings
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["even", "weighted"])
@pytest.mark.parametrize("shape", [(8, C), (2, C, 3, 2)], ids=str)
def test_dense_one_hot_is_index(entry, smoothing, weight, shape):
    for reduction in ("none", "sum", "valid_mean"):  # torch's "mean" of dense targets has another denominator
        loss = make(entry, C, label_smoothing=smoothing, weight=weight, reduction=reduction)
        logits, targets = batch_of(entry, shape, ignored=0.3)
        same(loss, lambda z, _, t=targets, loss=loss: loss(z, t), logits, one_hot(targets, C))


@each([entry for entry in SOFTMAX if entry.name in WHOLE_BATCH])
def test_dense_one_hot_is_index_for_losses_of_the_whole_batch(entry):
    loss = make(entry, C)
    logits, targets = batch_of(entry, (9, C), ignored=0.3)
    same(loss, lambda z, _: loss(z, targets), logits, one_hot(targets, C))


# ---------------------------------------------------------------------------------------------------------------------
# Symmetries and layouts
# ---------------------------------------------------------------------------------------------------------------------


@each(CATALOGUE)
@pytest.mark.parametrize("axis", ["rows", "pixels"])
def test_order_of_rows_and_pixels_does_not_matter(entry, axis):
    logits, targets = batch_of(entry, (5, C, 6), ignored=0.2)
    order = torch.randperm(5 if axis == "rows" else 6, generator=torch.Generator().manual_seed(2))
    back = order.argsort()
    value, gradient = value_and_gradient(entry.build(C), logits, targets)
    if axis == "rows":
        moved, other = value_and_gradient(entry.build(C), logits[order], targets[order])
        other = other[back]
    else:
        moved, other = value_and_gradient(entry.build(C), logits[..., order], targets[..., order])
        other = other[..., back]
    assert_close((moved, other), (value, gradient), **TIGHT)


@each([entry for entry in CATALOGUE if "counts" not in make(entry, C).__init__.__code__.co_varnames])
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_names_of_the_classes_do_not_matter(entry, dense):
    logits, targets = batch_of(entry, (5, C, 3), ignored=0.2)
    order = torch.tensor([2, 0, 3, 1])
    if entry.link == "sigmoid":
        renamed = targets[:, order]
    elif dense:
        targets = dense_of((5, C, 3), ignored=0.2)
        renamed = targets[:, order]
    else:
        renamed = torch.where(targets == IGNORED, IGNORED, order.argsort()[targets.clamp(min=0)])
    value, gradient = value_and_gradient(entry.build(C), logits, targets)
    moved, other = value_and_gradient(entry.build(C), logits[:, order], renamed)
    assert_close((moved, other[:, order.argsort()]), (value, gradient), **TIGHT)


@each(SOFTMAX)
@kinds
def test_pixels_are_rows(entry, kind):
    logits, _ = batch_of(entry, (2, C, 3, 4))
    targets = targets_of(kind, (2, C, 3, 4))

    def flat(z, t):
        t = t.movedim(1, -1).reshape(-1, C) if kind == "dense" else t.reshape(-1)
        return entry.build(C)(z.movedim(1, -1).reshape(-1, C), t)

    same(entry.build(C), flat, logits, targets)


@each(SIGMOID)
def test_places_are_samples(entry):
    logits, targets = batch_of(entry, (2, C, 3, 4), ignored=0.2)

    def flat(z, t):
        return make(entry, C, reduction="sum")(*(x.movedim(1, -1).reshape(-1, C) for x in (z, t)))

    same(make(entry, C, reduction="sum"), flat, logits, targets)


@each(CATALOGUE)
@pytest.mark.parametrize("layout", ["channels last", "strided", "transposed", "expanded"])
def test_strides_do_not_matter(entry, layout):
    logits, targets = batch_of(entry, (3, C, 4, 4), ignored=0.2)
    logits = logits.detach()
    if layout == "expanded":
        logits = logits[:, :, :1].expand(3, C, 4, 4)
    placed, where = {
        "channels last": lambda: (logits.to(memory_format=torch.channels_last), targets),
        "strided": lambda: (torch.stack([logits, -logits], -1)[..., 0], torch.stack([targets, targets], -1)[..., 1]),
        "transposed": lambda: (logits.mT.contiguous().mT, targets.mT.contiguous().mT),
        "expanded": lambda: (logits, targets),
    }[layout]()
    assert not placed.is_contiguous()
    actual = value_and_gradient(entry.build(C), placed, where)
    assert_close(actual, value_and_gradient(entry.build(C), logits.contiguous(), targets.contiguous()), **TIGHT)


@each([entry for entry in CATALOGUE if entry.link != "sigmoid"])
def test_integer_targets_of_every_dtype(entry):
    logits, targets = batch_of(entry, (8, C), ignored=0.3)
    expected = value_and_gradient(make(entry, C), logits, targets)
    for dtype in (torch.int8, torch.int16, torch.int32):
        assert_close(value_and_gradient(make(entry, C), logits, targets.to(dtype)), expected, rtol=0, atol=0)
    loss = make(entry, C, ignore_index=255)
    marked = torch.where(targets == IGNORED, 255, targets).to(torch.uint8)
    assert_close(value_and_gradient(loss, logits, marked), expected, rtol=0, atol=0)


@each([entry for entry in CATALOGUE if entry.link != "sigmoid"])
def test_label_156_of_uint8_is_not_taken_for_minus_100(entry):
    logits, _ = batch_of(entry, (4, 160))
    labels = torch.tensor([156, 0, 156, 7])
    expected = value_and_gradient(entry.build(160), logits, labels)
    assert expected[1][[0, 2]].abs().sum() > 0
    assert_close(value_and_gradient(entry.build(160), logits, labels.to(torch.uint8)), expected, rtol=0, atol=0)


@each(SOFTMAX)
@pytest.mark.parametrize("target", ["index", "ignored", "dense"])
def test_one_row_without_a_batch(entry, target):
    logits, _ = batch_of(entry, (1, C))
    targets = {"index": torch.tensor([2]), "ignored": torch.tensor([IGNORED]), "dense": dense_of((1, C))}[target]
    for reduction in REDUCTIONS:
        loss = make(entry, C, reduction=reduction)
        value, gradient = value_and_gradient(loss, logits[0], targets[0])
        expected, row = value_and_gradient(loss, logits, targets)
        assert value.shape == ()
        assert_close((value, gradient), (expected.squeeze(), row[0] if reduction != "none" else 2 * row[0]), **TIGHT)


# ---------------------------------------------------------------------------------------------------------------------
# Adjustments
# ---------------------------------------------------------------------------------------------------------------------


@kinds
@smoothings
def test_adjustments_are_those_of_the_logits(kind, smoothing):
    logits, targets = logits_of(6, C, 2), targets_of(kind, (6, C, 2))
    options = {"label_smoothing": smoothing, "weight": WEIGHT}
    plain, offset = CrossEntropyLoss(**options), torch.tensor([0.3, -1.0, 0.0, 2.0], dtype=torch.float64)
    loss = SoftmaxLoss(adjustment=Adjustment(offset=tuple(offset.tolist()), tau=0.7, scale=2.5), **options)
    same(loss, lambda z, t: plain(2.5 * (z + 0.7 * offset.view(-1, 1)), t), logits, targets)


@kinds
@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_logit_adjustment_adds_the_log_prior(kind, tau):
    logits, targets = logits_of(6, C), targets_of(kind, (6, C))
    prior = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    same(LogitAdjustedLoss(COUNTS, tau=tau), lambda z, t: CrossEntropyLoss()(z + tau * prior.log(), t), logits, targets)


def test_balanced_softmax_needs_only_the_ratio_of_the_counts():
    logits, targets = logits_of(6, C), indices_of((6, C))
    loss = BalancedSoftmaxLoss(COUNTS)
    same(BalancedSoftmaxLoss([7 * count for count in COUNTS]), loss, logits, targets)
    same(loss, lambda z, t: F.cross_entropy(z + torch.tensor(COUNTS).double().log(), t), logits, targets)
    same(loss, LogitAdjustedLoss(COUNTS, tau=1.0), logits, targets)


def test_a_class_without_samples_has_a_finite_prior_and_margin():
    logits, targets = 0.1 * logits_of(6, C).detach(), indices_of((6, C))
    for kind in (BalancedSoftmaxLoss, LDAMLoss):
        same(kind([0, 10, 20, 30]), kind([1, 10, 20, 30]), logits, targets)


@smoothings
def test_ldam_is_cross_entropy_of_explicitly_changed_logits(smoothing):
    logits, targets = logits_of(8, C, size=0.1), indices_of((8, C), ignored=0.3)
    margins = torch.tensor(COUNTS, dtype=torch.float64) ** -0.25
    margins = margins * (0.4 / margins.max())
    plain = CrossEntropyLoss(label_smoothing=smoothing, weight=WEIGHT)
    loss = LDAMLoss(COUNTS, max_margin=0.4, scale=20.0, label_smoothing=smoothing, weight=WEIGHT)
    t = one_hot(targets, C)
    same(loss, lambda z, y: plain(20.0 * (z - t * margins), y), logits, targets)
    same(loss, lambda z, y: plain(20.0 * (z - y * margins), y), logits, dense_of((8, C), ignored=0.3))


# ---------------------------------------------------------------------------------------------------------------------
# Denominators
# ---------------------------------------------------------------------------------------------------------------------


def slow_recall(logits, targets, min_errors=1.0):
    weights = []
    for c in range(logits.shape[1]):
        rows = [z for z, y in zip(logits.detach(), targets, strict=True) if y == c]
        missed = sum(int(z.argmax() != c) for z in rows)
        weights.append(max(missed, min_errors) / len(rows) if rows else 1.0)
    return weights


def slow_precision(logits, targets):
    weights = []
    for c in range(logits.shape[1]):
        actual = [y for z, y in zip(logits.detach(), targets, strict=True) if z.argmax() == c and y != IGNORED]
        weights.append(sum(int(y != c) for y in actual) / len(actual) if actual else 1.0)
    return weights


def weight_of(entry, logits, targets):
    """The class weights a loss multiplies the user's with."""
    n = torch.tensor(long_tail(C), dtype=torch.float64)
    arguments = inspect.signature(getattr(equipoise, entry.name)).parameters
    if "normalize" in arguments:  # weights from counts: effective numbers, or inverse frequencies
        rule = (1 - 0.9999) / (1 - 0.9999**n) if "beta" in arguments else 1 / n
        return rule * C / rule.sum()
    counted = {"RecallLoss": slow_recall, "PrecisionLoss": slow_precision}
    if entry.name in counted:
        rows = logits.movedim(1, -1).reshape(-1, C)
        return torch.tensor(counted[entry.name](rows, targets.flatten()), dtype=torch.float64)
    return torch.ones(C, dtype=torch.float64)


@each(POINTWISE)
@kinds
def test_the_word_says_the_denominator_of_a_softmax_loss(entry, kind):
    logits, _ = batch_of(entry, (5, C, 4))
    targets = targets_of(kind, (5, C, 4), seed=3)
    rows = make(entry, C, weight=WEIGHT, reduction="none")(logits, targets)
    valid = targets.sum(1) != 0 if kind == "dense" else targets != IGNORED
    assert 0 < valid.sum() < valid.numel()
    assert torch.equal(rows[~valid], torch.zeros_like(rows[~valid]))
    assert (rows[valid] > 0).any()
    actual = {word: make(entry, C, weight=WEIGHT, reduction=word)(logits, targets) for word in REDUCTIONS}
    assert_close(actual["sum"], rows.sum(), **TIGHT)
    assert_close(actual["batch_mean"], rows.sum() / 5, **TIGHT)
    assert_close(actual["valid_mean"], rows.sum() / valid.sum(), **TIGHT)
    denominator = valid.sum()
    if kind == "index":
        weight = weight_of(entry, logits, targets) * torch.tensor(WEIGHT, dtype=torch.float64)
        denominator = weight[targets[valid]].sum()
    assert_close(actual["mean"], rows.sum() / denominator, **TIGHT)


@each(SIGMOID)
@pytest.mark.parametrize("shape", [(5, C), (3, C, 4)], ids=str)
@pytest.mark.parametrize("unknown", [True, False], ids=["some unknown", "all known"])
def test_the_word_says_the_denominator_of_a_sigmoid_loss(entry, shape, unknown):
    logits, targets = batch_of(entry, shape, ignored=0.3 if unknown else 0.0)
    if unknown:
        targets[1] = UNKNOWN
    elements = make(entry, C, weight=WEIGHT, reduction="none")(logits, targets)
    assert elements.shape == logits.shape
    known = targets != UNKNOWN
    assert torch.equal(elements[~known], torch.zeros_like(elements[~known]))
    actual = {word: make(entry, C, weight=WEIGHT, reduction=word)(logits, targets) for word in REDUCTIONS}
    assert_close(actual["sum"], elements.sum(), **TIGHT)
    assert_close(actual["batch_mean"], elements.sum() / shape[0], **TIGHT)
    assert_close(actual["mean"], elements.sum() / known.sum(), **TIGHT)
    assert_close(actual["valid_mean"], elements.sum() / known.any(1).sum(), **TIGHT)
    if len(shape) == 2:
        assert (known.any(1).sum() < shape[0]) == unknown


@each(SOFTMAX + SIGMOID)
@pytest.mark.parametrize("reduction", ["mean", "valid_mean", "batch_mean", "sum"])
def test_normalizer_replaces_the_denominator(entry, reduction):
    logits, targets = batch_of(entry, (6, C), ignored=0.3)
    loss = make(entry, C, reduction=reduction)
    total = make(entry, C, reduction="none")(logits, targets).sum()
    for normalizer in (7.0, torch.tensor(7.0)):
        assert_close(loss(logits, targets, normalizer=normalizer), total / 7, **TIGHT)


def test_normalizer_makes_accumulated_gradients_those_of_the_whole_batch():
    logits, targets = logits_of(9, C), indices_of((9, C), ignored=0.4)
    loss = FocalLoss(weight=WEIGHT)
    expected = value_and_gradient(loss, logits, targets)
    total = torch.tensor(WEIGHT, dtype=torch.float64)[targets[targets != IGNORED]].sum()
    pieces = [
        value_and_gradient(loss, z, t, normalizer=total) for z, t in zip(logits.split(4), targets.split(4), strict=True)
    ]
    assert_close(sum(value for value, _ in pieces), expected[0], **TIGHT)
    assert_close(torch.cat([gradient for _, gradient in pieces]), expected[1], **TIGHT)


@each(SOFTMAX + SIGMOID)
def test_normalizer_is_refused_where_nothing_is_divided(entry):
    logits, targets = batch_of(entry, (6, C))
    with pytest.raises(ValueError, match="normalizer must be None for reduction='none', got one; divide"):
        make(entry, C, reduction="none")(logits, targets, normalizer=2.0)


# ---------------------------------------------------------------------------------------------------------------------
# Partial labels, element weights, functions
# ---------------------------------------------------------------------------------------------------------------------


@each(SIGMOID)
def test_an_unknown_label_has_no_effect(entry):
    if entry.name == "DistributionBalancedLoss":
        counts = long_tail(C)
        logits, targets = batch_of(entry, (6, C))
        hidden = targets.clone()
        hidden[:, 2] = UNKNOWN
        keep = [0, 1, 3]
        partial = DistributionBalancedLoss(counts, 2 * max(counts), reduction="sum")
        fewer = DistributionBalancedLoss([counts[k] for k in keep], 2 * max(counts), reduction="sum")
    else:
        logits, targets = batch_of(entry, (6, C))
        hidden = targets.clone()
        hidden[:, 2] = UNKNOWN
        keep = [0, 1, 3]
        partial = fewer = make(entry, C, reduction="sum")
    same(partial, lambda z, t: fewer(z[:, keep], t[:, keep]), logits, hidden)


@pytest.mark.parametrize("ignore_value", [-1.0, 0.5, 9.0])
def test_any_value_can_stand_for_unknown(ignore_value):
    logits, targets = logits_of(6, C), multilabel_of((6, C), ignored=0.3)
    marked = torch.where(targets == UNKNOWN, ignore_value, targets)
    loss = AsymmetricLoss(ignore_value=ignore_value)
    same(loss, lambda z, _: AsymmetricLoss()(z, targets), logits, marked)


@each(SIGMOID)
@pytest.mark.parametrize("shape", [(6, C), (6, 1), (1, C), (C,), ()], ids=str)
def test_element_weights_multiply_elements_and_broadcast(entry, shape):
    logits, targets = batch_of(entry, (6, C), ignored=0.2)
    weight = 0.5 + torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = make(entry, C, reduction="none")
    same(lambda z, t: loss(z, t, element_weight=weight), lambda z, t: weight * loss(z, t), logits, targets)
    mean = make(entry, C, reduction="mean")  # the weights are no part of the denominator
    total = (weight * loss(logits, targets)).sum()
    assert_close(mean(logits, targets, element_weight=weight), total / (targets != UNKNOWN).sum(), **TIGHT)


def test_element_weights_of_single_labels():
    logits, targets, weight = logits_of(5), multilabel_of((5,)), torch.linspace(0, 1, 5, dtype=torch.float64)
    loss = BinaryFocalLoss(reduction="none")
    same(lambda z, t: loss(z, t, element_weight=weight), lambda z, t: weight * loss(z, t), logits, targets)


def snake(name):
    special = {
        "LDAMLoss": "ldam_loss",
        "OHEMLoss": "ohem_loss",
        "MMCELoss": "mmce_loss",
        "SoftIoULoss": "soft_iou_loss",
    }
    return special.get(name) or "".join("_" + c.lower() if c.isupper() else c for c in name)[1:]


FUNCTIONS = {snake(name): name for name in equipoise.__all__ if name.endswith("Loss")}


def test_every_loss_is_a_function_too():
    assert sorted(FUNCTIONS) == functional.__all__


@pytest.mark.parametrize(
    ("entry", "reduction"),
    [
        pytest.param(entry, reduction, id=f"{entry.name}-{reduction}")
        for entry in CATALOGUE
        for reduction in (None, *(("mean", "sum", "none") if entry.link == "region" else REDUCTIONS))
    ],
)
@kinds
def test_functions_are_the_classes(entry, kind, reduction):
    shape = (3, C, 2, 2)
    logits, targets = batch_of(entry, shape, ignored=0.2)
    options = {} if reduction is None else {"reduction": reduction}
    if entry.link != "region":
        options["weight"] = WEIGHT
    if entry.link == "softmax":
        options["label_smoothing"] = 0.2
    if entry.link != "sigmoid":
        targets = targets_of(kind, shape)
    loss, function = make(entry, C, **options), getattr(functional, snake(entry.name))
    parameters = inspect.signature(function).parameters.values()
    if "xi" in [one.name for one in parameters]:
        options["xi"] = Cyclical()(3 / 9)
    arguments = {"counts": long_tail(C), "num_samples": 2 * max(long_tail(C))}
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    options.update({name: value for name, value in arguments.items() if name in names})
    actual = value_and_gradient(lambda z, t: function(z, t, **options), logits, targets)
    assert_close(actual, value_and_gradient(loss, logits, targets), rtol=0, atol=0)


def test_functions_made_of_parts_are_the_classes():
    parts = {"modulation": cyclical(0.3, 2.0, 1.5, 2.5)}
    logits, targets = logits_of(6, C), indices_of((6, C), ignored=0.2)
    options = {**parts, "adjustment": logit_adjustment(COUNTS), "weight": WEIGHT, "label_smoothing": 0.1}
    same(lambda z, t: functional.softmax_loss(z, t, **options), SoftmaxLoss(**options), logits, targets)
    options = {**parts, "adjustment": NegativeTolerance((0.1,) * C, 2.0), "weight": WEIGHT, "pos_weight": WEIGHT}
    options.update(alpha=0.3, margin=0.1, detach_focus=True)
    labels = multilabel_of((6, C), ignored=0.2)
    same(lambda z, t: functional.sigmoid_loss(z, t, **options), SigmoidLoss(**options), logits, labels)


# ---------------------------------------------------------------------------------------------------------------------
# SPEC 1, written out slowly
# ---------------------------------------------------------------------------------------------------------------------


def test_an_unnamed_combination_of_parts():
    """Recall-weighted cyclical focal loss with logit adjustment and smoothing."""
    loss = SoftmaxLoss(
        cyclical(Cyclical(factor=4.0), gamma_hc=3.0, gamma_pos=2.0, gamma_neg=2.0),
        weight=RecallWeights(C),
        adjustment=logit_adjustment(COUNTS, tau=0.5),
        label_smoothing=0.1,
        epochs=9,
    )
    prior = [0.5 * math.log(count / sum(COUNTS)) for count in COUNTS]
    logits, targets = logits_of(40, C), indices_of((40, C), ignored=0.2)
    weight = slow_recall(logits, targets)
    assert len(set(weight)) > 2
    values = set()
    for epoch in range(9):
        loss.set_epoch(epoch)
        xi = 1 - 4 * epoch / 8 if epoch <= 2 else (4 * epoch / 8 - 1) / 3

        def slow(z, t, xi=xi):
            rows, _, row_weight = softmax_reference(
                z, t, gamma_pos=2.0, gamma_neg=2.0, xi=xi, gamma_hc=3.0, smoothing=0.1, weight=weight, offset=prior
            )
            return rows.sum() / row_weight.sum()

        same(loss, slow, logits, targets)
        values.add(round(loss(logits, targets).item(), 9))
    assert len(values) > 5


def test_recall_loss_is_its_slow_form():
    logits, targets = logits_of(30, C), indices_of((30, C), ignored=0.2, absent=(1,))
    for min_errors in (0.0, 1.0, 2.5):
        weight = slow_recall(logits, targets, min_errors)

        def slow(z, t, weight=weight):
            rows, valid, _ = softmax_reference(z, t, weight=weight)
            return rows.sum() / valid.sum()

        same(RecallLoss(C, min_errors=min_errors), slow, logits, targets)


def test_distribution_balanced_loss_is_its_slow_form():
    counts, samples = [900, 100, 30, 5], 1000
    loss = DistributionBalancedLoss(counts, samples)
    logits, targets = logits_of(12, C), multilabel_of((12, C), ignored=0.2)
    targets[3] = 0.0  # drawn for nothing: weight 1 + alpha
    inverse = [1 / count for count in counts]
    weight = torch.empty(12, C, dtype=torch.float64)
    for i, row in enumerate(targets.tolist()):
        drawn = sum(v for t, v in zip(row, inverse, strict=True) if t == 1)
        for k in range(C):
            r = inverse[k] / drawn if drawn else math.inf
            weight[i, k] = (1 / (1 + math.exp(-10 * (r - 0.2))) if drawn else 1.0) + 0.1
    options = {"gamma_pos": 2.0, "neg_scale": 2.0, "offset": balanced_bias(counts, samples), "weight": [2.0] * C}

    def slow(z, t):
        elements, known = sigmoid_reference(z, t, element_weight=weight, **options)
        return elements.sum() / known.sum()

    same(loss, slow, logits, targets)


gammas = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0]),
    st.floats(0.05, 6.0),
)


def vectors(elements, size):
    return st.lists(elements, min_size=size, max_size=size)


@st.composite
def exponents(draw, c, by_confidence=True):
    """(what the library takes, what the reference takes)."""
    kind = draw(st.sampled_from(["number", "per class", *(["by confidence"] if by_confidence else [])]))
    if kind == "number":
        gamma = draw(gammas)
        return gamma, gamma
    if kind == "per class":
        gamma = draw(vectors(gammas, c))
        return gamma, torch.tensor(gamma, dtype=torch.float64) if c > 1 else gamma[0]
    bounds = sorted(draw(st.sets(st.sampled_from([0.15, 0.3, 0.55, 0.8]), min_size=1)))
    table = tuple((bound, draw(gammas)) for bound in (*bounds, 1.0))
    return ByConfidence(table), table


@st.composite
def modulations(draw, c):
    """A modulation, and the same as arguments of the references."""
    kind = draw(st.sampled_from(["none", "focal", "asymmetric", "cyclical", "focal with xi"]))
    if kind == "none":
        return None, {}
    given_pos, gamma_pos = draw(exponents(c))
    if kind == "focal":
        return focal(given_pos), {"gamma_pos": gamma_pos}
    given_neg, gamma_neg = draw(exponents(c, by_confidence=False))
    if kind == "asymmetric":
        return asymmetric(given_pos, given_neg), {"gamma_pos": gamma_pos, "gamma_neg": gamma_neg}
    high = {"xi": draw(st.sampled_from([0.25, 0.5, 1.0])), "gamma_hc": draw(gammas)}
    if kind == "focal with xi":
        return Modulation(given_pos, **high), {"gamma_pos": gamma_pos, **high}
    return cyclical(high["xi"], high["gamma_hc"], given_pos, given_neg), {
        "gamma_pos": gamma_pos,
        "gamma_neg": gamma_neg,
        **high,
    }


shapes_of_places = st.sampled_from([(), (1,), (3,), (2, 2), (1, 2, 2)])
factors = st.one_of(st.just(0.0), st.floats(0.01, 3.0))  # nothing that vanishes in float32


def tolerance_of(dtype):
    """float64: the roundings of some dozen terms. float32: the same, and those of the hyper-parameters."""
    return {"rtol": 1e-9, "atol": 1e-11} if dtype is torch.float64 else {"rtol": 3e-5, "atol": 3e-6}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_softmax_losses_are_spec_1(data):
    draw = data.draw
    n, c, places, seed = (
        draw(st.integers(1, 5)),
        draw(st.integers(1, 5)),
        draw(shapes_of_places),
        draw(st.integers(0, 999)),
    )
    shape, dtype = (n, c, *places), draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    ignored = draw(st.sampled_from([0.0, 0.3, 0.9]))
    modulation, parts = draw(modulations(c))
    library = {"modulation": modulation}
    if draw(st.booleans()):
        library["weight"] = parts["weight"] = draw(vectors(factors, c))
    library["label_smoothing"] = parts["smoothing"] = draw(st.sampled_from([0.0, 0.1, 0.7, 1.0]))
    offset, margin = draw(st.booleans()), draw(st.booleans())
    scale = draw(st.sampled_from([1.0, 0.5, 3.0]))
    a = draw(vectors(st.floats(-2, 2), c)) if offset else []
    delta = draw(vectors(factors, c)) if margin else []
    tau, largest = draw(st.sampled_from([1.0, 0.5])), draw(st.sampled_from([0.5, 1.0]))
    library["adjustment"] = Adjustment(tuple(a), tau, tuple(delta), largest, scale)
    parts["offset"] = [tau * v for v in a] if offset else 0.0
    parts["margin"] = [largest * v for v in delta] if margin else 0.0
    parts["scale"] = scale
    reduction = draw(st.sampled_from(REDUCTIONS))
    logits = logits_of(*shape, seed=seed, dtype=dtype)
    dense = draw(st.booleans())
    if dense:
        targets = dense_of(shape, seed=seed, ignored=ignored).to(dtype)
    else:
        absent = (draw(st.integers(0, c - 1)),) if c > 1 else ()
        targets = indices_of(shape, seed=seed, ignored=ignored, absent=absent)

    def slow(z, t):
        rows, valid, row_weight = softmax_reference(z, t, **parts)
        return softmax_reduced(rows, valid, row_weight, reduction, dense=dense, n=n)

    actual = value_and_gradient(SoftmaxLoss(**library, reduction=reduction), logits, targets)
    assert actual[0].dtype is actual[1].dtype is dtype
    expected = value_and_gradient(slow, logits.double(), targets.double() if dense else targets)
    assert_close([part.double() for part in actual], list(expected), **tolerance_of(dtype))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_sigmoid_losses_are_spec_1(data):
    draw = data.draw
    n, c, places, seed = (
        draw(st.integers(1, 5)),
        draw(st.integers(1, 5)),
        draw(shapes_of_places),
        draw(st.integers(0, 999)),
    )
    shape, dtype = (n, c, *places), draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    ignored, soft = draw(st.sampled_from([0.0, 0.3, 1.0])), draw(st.booleans())
    modulation, parts = draw(modulations(c))
    library = {"modulation": modulation}
    for name in ("weight", "pos_weight"):
        if draw(st.booleans()):
            library[name] = parts[name] = draw(vectors(factors, c))
    if draw(st.booleans()):
        library["alpha"] = parts["alpha"] = draw(st.sampled_from([0.0, 0.25, 0.9]))
    library["margin"] = parts["margin"] = draw(st.sampled_from([0.0, 0.0, 1e-4, 0.05, 0.4]))
    a = draw(vectors(st.floats(-2, 2), c)) if draw(st.booleans()) else []
    parts["offset"], parts["neg_scale"] = a or 0.0, draw(st.sampled_from([1.0, 2.0, 0.5]))
    library["adjustment"] = NegativeTolerance(tuple(a), parts["neg_scale"])
    reduction = draw(st.sampled_from(REDUCTIONS))
    logits = logits_of(*shape, seed=seed, dtype=dtype)
    targets = multilabel_of(shape, seed=seed, ignored=ignored, soft=soft).to(dtype)
    weight = None
    if draw(st.booleans()):
        weight = logits_of(*(draw(st.sampled_from([1, size])) for size in shape), seed=1, grad=False).abs()
        parts["element_weight"] = weight

    def slow(z, t):
        return sigmoid_reduced(*sigmoid_reference(z, t, **parts), reduction)

    loss = SigmoidLoss(**library, reduction=reduction)
    actual = value_and_gradient(lambda z, t: loss(z, t, element_weight=weight), logits, targets)
    assert actual[0].dtype is actual[1].dtype is dtype
    expected = value_and_gradient(slow, logits.double(), targets.double())
    assert_close([part.double() for part in actual], list(expected), **tolerance_of(dtype))


# ---------------------------------------------------------------------------------------------------------------------
# Large batches are worked through block by block
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted_blocks(monkeypatch):
    """A switch to tiny blocks, and the number of blocks that were worked through."""
    seen = []
    whole = blocks._blocks

    def counting(*args):
        for block in whole(*args):
            seen.append(block)
            yield block

    monkeypatch.setattr(blocks, "_blocks", counting)

    def switch(elements):
        seen.clear()
        monkeypatch.setattr(blocks, "ELEMENTS_PER_THREAD", elements)
        return seen

    return switch


BLOCKED = {
    "smoothed": SoftmaxLoss(label_smoothing=0.1),
    "focal, weighted": SoftmaxLoss(focal(1.5), weight=WEIGHT, label_smoothing=0.1),
    "cyclical": SoftmaxLoss(cyclical(0.4), label_smoothing=0.1, reduction="none"),
    "by confidence": SoftmaxLoss(focal(ByConfidence(BOUNDS)), label_smoothing=0.1),
    "per class": SoftmaxLoss(asymmetric([1.0, 2.0, 0.0, 0.5], [0.5, 1.0, 2.0, 0.0]), label_smoothing=0.1),
    "adjusted": SoftmaxLoss(focal(2.0), adjustment=logit_adjustment(COUNTS), label_smoothing=0.1),
    "margin": LDAMLoss(COUNTS, scale=3.0, label_smoothing=0.1, reduction="none"),
    "brier": equipoise.BrierLoss(weight=WEIGHT, label_smoothing=0.2),
    "brier, smoothed": equipoise.BrierLoss(label_smoothing=0.1),
}
SHAPES = [(23, C), (7, C, 9), (1, C, 40), (3, C, 5, 7), (2, C, 2, 3, 4)]


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@kinds
@pytest.mark.parametrize("elements", [1, 13, 36])
def test_softmax_blocks_are_the_whole(counted_blocks, name, shape, kind, elements):
    loss, logits, targets = BLOCKED[name], logits_of(*shape), targets_of(kind, shape)
    expected = value_and_gradient(loss, logits, targets)
    monolith = counted_blocks(elements)
    actual = value_and_gradient(loss, logits, targets)
    assert len(monolith) > 1
    assert_close(actual, expected, rtol=1e-13, atol=1e-15)  # sums of the same few numbers, in another order at most
    if len(shape) == 4:
        last = logits.detach().to(memory_format=torch.channels_last)
        assert_close(value_and_gradient(loss, last, targets), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weighted", ["no", "full", "column", "row", "scalar"])
@pytest.mark.parametrize("elements", [1, 13, 36])
def test_sigmoid_blocks_are_the_whole(counted_blocks, shape, weighted, elements):
    logits, targets = logits_of(*shape), multilabel_of(shape, ignored=0.2)
    sizes = {"full": shape, "column": (1, *shape[1:]), "row": (shape[0], *(1 for _ in shape[1:])), "scalar": ()}
    weight = None if weighted == "no" else logits_of(*sizes[weighted], seed=5, grad=False).abs()
    loss = SigmoidLoss(
        asymmetric([1.0, 2.0, 0.0, 0.5], 1.5),
        margin=0.05,
        weight=WEIGHT,
        adjustment=NegativeTolerance((0.1, 0.2, 0.3, 0.4), 2.0),
        reduction="none",
    )
    expected = value_and_gradient(loss, logits, targets, element_weight=weight)
    monolith = counted_blocks(elements)
    actual = value_and_gradient(loss, logits, targets, element_weight=weight)
    assert len(monolith) > 1
    assert_close(actual, expected, rtol=1e-13, atol=1e-15)
    if len(shape) == 4:
        last = logits.detach().to(memory_format=torch.channels_last)
        actual = value_and_gradient(loss, last, targets, element_weight=weight)
        assert_close(actual, expected, rtol=1e-13, atol=1e-15)


@each(CATALOGUE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_blocks_of_every_loss_and_of_half_logits(counted_blocks, entry, dtype):
    logits, targets = batch_of(entry, (3, C, 5, 7), ignored=0.2, dtype=dtype)
    expected = value_and_gradient(entry.build(C), logits, targets)
    counted_blocks(8)
    actual = value_and_gradient(entry.build(C), logits, targets)
    # float32 sums in another order; a half gradient may then round the other way
    assert_close(actual[0], expected[0], rtol=1e-6, atol=1e-7)
    assert_close(actual[1], expected[1], rtol=1e-6 if dtype is torch.float32 else 1e-2, atol=1e-7)


def test_exponents_of_each_class_in_any_form():
    logits, targets = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    expected = FocalLoss(gamma=[0.5, 1.0, 2.0])(logits, targets)
    for gamma in ((0.5, 1.0, 2.0), torch.tensor([0.5, 1.0, 2.0]), np.array([0.5, 1.0, 2.0])):
        assert torch.equal(FocalLoss(gamma=gamma)(logits, targets), expected)
