"""Objectives that look at whole distributions or at the whole batch, against their definitions in plain Python loops.

float64 throughout. The loops do a few hundred operations on numbers of order 1, so 1e-12 leaves room for rounding only.
"""

import math

import pytest
import torch
from torch.testing import assert_close

import equipoise as eq
from equipoise import functional as F
from equipoise.losses.adjust import Adjustment
from equipoise.losses.base import Scalar
from equipoise.losses.objectives import _largest, mmce
from equipoise.weights import PrecisionWeights, RecallWeights

NEEDS_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)]
IGNORED = -100


def example(n=12, c=4, size=(), *, seed=0, ignored=0.2, spread=1.5):
    draw = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, c, *size, generator=draw, dtype=torch.float64)
    targets = torch.randint(0, c, (n, *size), generator=draw)
    targets[torch.rand(targets.shape, generator=draw) < ignored] = IGNORED
    return logits.requires_grad_(), targets


def softmax(row):
    top = max(row)
    powers = [math.exp(z - top) for z in row]
    return [power / sum(powers) for power in powers]


def places(logits, targets):
    """(probabilities, target) of every place; the target is an index, or a list of masses."""
    c = logits.shape[1]
    probs = [softmax(row) for row in logits.detach().movedim(1, -1).reshape(-1, c).tolist()]
    marks = targets.movedim(1, -1).reshape(-1, c) if targets.is_floating_point() else targets.flatten()
    return list(zip(probs, marks.tolist(), strict=True))


def dense(logits, targets, seed=5):
    """Random distributions, of mass zero where the target is ignored."""
    masses = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return masses / masses.sum(1, keepdim=True) * (targets != IGNORED).unsqueeze(1)


def gradient(value, logits):
    return torch.autograd.grad(value, logits)[0]


# ---------------------------------------------------------------------------------------------------------------------
# OHEM
# ---------------------------------------------------------------------------------------------------------------------


def kept_rows(losses, valid, keep, min_kept):
    """Places that are kept: the largest, of equal ones the first."""
    k = max(1, min_kept, math.floor(keep * sum(valid)))
    ranked = sorted((place for place in range(len(losses)) if valid[place]), key=lambda place: (-losses[place], place))
    return set(ranked[:k])


@pytest.mark.parametrize("size", [(), (3, 2)], ids=str)
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("min_kept", [0, 4, 1000])
def test_ohem_keeps_the_hardest_rows(size, keep, min_kept):
    logits, targets = example(12, size=size)
    weight = [0.5, 1.0, 2.0, 0.25]
    for given in (None, weight):
        rows = eq.CrossEntropyLoss(given, reduction="none")(logits, targets)
        kept = kept_rows(rows.flatten().tolist(), (targets != IGNORED).flatten().tolist(), keep, min_kept)
        mask = torch.tensor([place in kept for place in range(targets.numel())]).view_as(targets)
        hard = targets.masked_fill(~mask, IGNORED)  # cross-entropy that knows of the kept rows only
        for reduction in ("mean", "valid_mean", "batch_mean", "sum", "none"):
            value = eq.OHEMLoss(keep, min_kept=min_kept, weight=given, reduction=reduction)(logits, targets)
            expected = eq.CrossEntropyLoss(given, reduction=reduction)(logits, hard)
            assert_close(value, expected, **CLOSE)
            assert_close(gradient(value.sum(), logits), gradient(expected.sum(), logits), **CLOSE)
            also = F.ohem_loss(logits, targets, keep=keep, min_kept=min_kept, weight=given, reduction=reduction)
            assert torch.equal(value, also)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_number_of_kept_rows_is_that_of_python(dtype):
    """floor(0.7 * 10) is 7 in float64 and 6 in float32; floor(0.29 * 100) is 28 in Python."""
    for keep, valid in ((0.7, 10), (0.29, 100), (0.1, 30), (0.6, 5), (0.35, 20), (0.999, 1000), (0.05, 19), (1 / 3, 3)):
        logits, targets = torch.zeros(valid + 2, 2, dtype=dtype), torch.zeros(valid + 2, dtype=torch.long)
        targets[3] = targets[-1] = IGNORED
        rows = eq.OHEMLoss(keep, reduction="none")(logits, targets)
        assert int((rows > 0).sum()) == max(1, math.floor(keep * valid)), (keep, valid)
        assert int((F.ohem_loss(logits, targets, keep=keep, reduction="none") > 0).sum()) == max(
            1, math.floor(keep * valid)
        )


def test_of_equal_rows_the_first_are_kept():
    logits, targets = torch.zeros(7, 3), torch.tensor([0, IGNORED, 1, 2, 0, 1, 2])
    rows = eq.OHEMLoss(0.5, reduction="none")(logits, targets)
    assert (rows > 0).tolist() == [True, False, True, True, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_the_hardest_are_those_that_a_stable_sort_puts_first(dtype, device):
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(4000, generator=draw, dtype=dtype) * 10 ** torch.randint(-30, 30, (4000,), generator=draw)
    values[::3] = values[::3].round(decimals=1)  # ties, and zeros of either sign
    values[7::50], values[11::70], values[13::90] = math.inf, math.nan, -math.nan
    values[17::90] = torch.finfo(dtype).smallest_normal / 8
    valid = torch.rand(4000, generator=draw) < 0.8
    ranked = torch.where(valid, values, -math.inf).sort(descending=True, stable=True).indices
    ranked = ranked[valid[ranked]]
    for k in (0, 1, 2, 50, 51, 900, 1600, 3000, len(ranked), 5000):
        kept = torch.zeros_like(valid)
        kept[ranked[:k]] = True
        assert torch.equal(_largest(values.to(device), valid.to(device), torch.tensor(k, device=device)).cpu(), kept), k


def test_keeping_everything_is_cross_entropy():
    for size in ((), (2, 3)):
        logits, targets = example(size=size)
        for options in ({}, {"weight": [1.0, 2.0, 3.0, 4.0]}, {"label_smoothing": 0.2}):
            value, plain = eq.OHEMLoss(1.0, **options)(logits, targets), eq.CrossEntropyLoss(**options)(logits, targets)
            assert_close(value, plain, **CLOSE)
            assert_close(gradient(value, logits), gradient(plain, logits), **CLOSE)


def test_ohem_with_nothing_to_keep():
    for shape in ((4, 3), (0, 3), (2, 3, 4)):
        logits = torch.randn(shape, requires_grad=True)
        targets = torch.full((shape[0], *shape[2:]), IGNORED)
        value = eq.OHEMLoss(min_kept=3)(logits, targets)
        assert value.item() == 0
        assert torch.equal(gradient(value, logits), torch.zeros(shape))


def test_ohem_of_dense_targets():
    logits, targets = example()
    masses = dense(logits, targets)
    rows = eq.CrossEntropyLoss(reduction="none")(logits, masses)
    kept = kept_rows(rows.tolist(), (targets != IGNORED).tolist(), 0.5, 0)
    expected = sum(rows[place] for place in kept) / len(kept)
    assert_close(eq.OHEMLoss(0.5)(logits, masses), expected, **CLOSE)


# ---------------------------------------------------------------------------------------------------------------------
# MMCE
# ---------------------------------------------------------------------------------------------------------------------


def slow_mmce(pairs, normalization):
    """MMCE of (probabilities, label) pairs by a double loop over pairs of rows."""
    right, wrong = [], []
    for probs, label in pairs:
        top = max(probs)
        (right if probs.index(top) == label else wrong).append(top)
    m, n = len(right), len(wrong)
    if m == 0 or n == 0:
        return 0.0

    def total(first, second, weigh):
        return sum(weigh(a, b) * math.exp(-abs(a - b) / 0.4) for a in first for b in second)

    parts = [
        (m * m, total(right, right, lambda a, b: (1 - a) * (1 - b))),
        (n * n, total(wrong, wrong, lambda a, b: a * b)),
        (m * n, -2 * total(right, wrong, lambda a, b: (1 - a) * b)),
    ]
    if normalization == "definition":
        return math.sqrt(max(sum(part / pairs for pairs, part in parts), 0.0))
    # mean over the pairs, and divided again by their number, with the published constants
    return math.sqrt(max(sum(part / pairs / (pairs + 1e-5) for pairs, part in parts), 0.0) + 1e-10)


@pytest.mark.parametrize("normalization", ["published", "definition"])
@pytest.mark.parametrize("size", [(), (2, 2)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_mmce_by_a_double_loop(normalization, size, seed):
    logits, targets = example(8, 3, size, seed=seed)
    pairs = [(probs, label) for probs, label in places(logits, targets) if label != IGNORED]
    error = slow_mmce(pairs, normalization)
    assert error > 1e-3
    plain = eq.CrossEntropyLoss()(logits, targets)
    for strength in (2.0, 0.5, 8.0):
        value = eq.MMCELoss(strength, normalization=normalization)(logits, targets)
        assert_close(value - plain, torch.tensor(strength * error, dtype=torch.float64), **CLOSE)
        assert torch.equal(value, F.mmce_loss(logits, targets, strength=strength, normalization=normalization))
    assert torch.equal(eq.MMCELoss()(logits, targets), eq.MMCELoss(2.0, normalization="published")(logits, targets))


@pytest.mark.parametrize("normalization", ["published", "definition"])
def test_mmce_gradient_is_that_of_finite_differences(normalization):
    logits, targets = example(7, 3)
    loss = eq.MMCELoss(3.0, normalization=normalization)
    assert torch.autograd.gradcheck(lambda z: loss(z, targets), logits)


@pytest.mark.parametrize("normalization", ["published", "definition"])
@pytest.mark.parametrize("case", ["right", "wrong", "one right row", "ignored"])
def test_mmce_is_zero_when_all_are_right_or_all_are_wrong(normalization, case):
    logits, _ = example(9, 3, ignored=0)
    best = logits.argmax(1)
    targets = {
        "right": best,
        "wrong": (best + 1) % 3,
        "one right row": best.masked_fill(torch.arange(9) > 0, IGNORED),
        "ignored": torch.full((9,), IGNORED),
    }[case]
    value, plain = (
        eq.MMCELoss(5.0, normalization=normalization)(logits, targets),
        eq.CrossEntropyLoss()(logits, targets),
    )
    assert_close(value, plain)
    assert_close(gradient(value, logits), gradient(plain, logits))


def pairwise_mmce(confidence, right, valid):
    """By all pairs of rows, without the root; what lies at the same place pulls in no direction."""
    kernel = (-(confidence.unsqueeze(0) - confidence.unsqueeze(1)).abs() / 0.4).exp()
    is_right, is_wrong = (valid & right).double(), (valid & ~right).double()
    amounts = is_right * (1 - confidence) / is_right.sum() - is_wrong * confidence / is_wrong.sum()
    return (amounts * (kernel * amounts).sum(1)).sum()


@pytest.mark.parametrize("levels", [1, 3, 50, 100_000])
def test_mmce_by_running_sums_is_that_by_pairs(levels):
    """Also where many rows are equally confident."""
    torch.manual_seed(levels)
    confidence = (torch.randint(levels, (400,)) / levels).double().requires_grad_()
    right, valid = torch.rand(400) < 0.6, torch.rand(400) < 0.9
    slow = pairwise_mmce(confidence, right, valid)
    fast = mmce(confidence, right, valid, "definition")
    assert_close(fast.square(), slow)
    assert_close(2 * fast.detach() * gradient(fast, confidence), gradient(slow, confidence), rtol=1e-9, atol=1e-14)


def test_mmce_of_label_maps():
    """All pairs of these pixels would fill 128 GiB."""
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 3, 256, 256, requires_grad=True), torch.randint(3, (2, 256, 256))
    value = eq.MMCELoss(normalization="definition")(logits, targets) - eq.CrossEntropyLoss()(logits, targets)
    few = torch.randperm(256 * 256)[:3000]
    part = logits.detach().movedim(1, -1).reshape(-1, 3)[few], targets.reshape(-1)[few]
    estimate = eq.MMCELoss(normalization="definition")(*part) - eq.CrossEntropyLoss()(*part)
    assert_close(value.detach(), estimate, rtol=0.1, atol=0.0)
    assert torch.isfinite(gradient(value, logits)).all()


@pytest.mark.parametrize("normalization", ["published", "definition"])
def test_mmce_leaves_ignored_rows_out(normalization):
    logits, targets = example(14, ignored=0.4)
    loss = eq.MMCELoss(4.0, normalization=normalization)
    kept = targets != IGNORED
    assert_close(loss(logits, targets), loss(logits[kept], targets[kept]), **CLOSE)
    moved = torch.where(kept.unsqueeze(1), logits, 9.0)
    assert torch.equal(loss(logits, targets), loss(moved, targets))
    assert (gradient(loss(logits, targets), logits)[~kept] == 0).all()


@pytest.mark.parametrize("normalization", ["published", "definition"])
@pytest.mark.parametrize("spread", [0.0, 1e-12, 40.0, 1e4])
def test_mmce_gradient_is_finite_where_the_root_is_not(normalization, spread):
    """Sure and right beside sure and wrong, equal confidences, and a radicand of 0 (or below, by rounding)."""
    logits, targets = example(10, 3, ignored=0, spread=spread)
    value = eq.MMCELoss(normalization=normalization)(logits, targets)
    assert value.isfinite()
    assert gradient(value, logits).isfinite().all()
    balanced = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)  # (1 - r)(1 - r) + r r - 2 (1 - r) r = 0
    value = eq.MMCELoss(normalization=normalization)(balanced, torch.tensor([0, 1]))
    assert value.item() == pytest.approx(math.log(2) + (2e-5 if normalization == "published" else 0), abs=1e-12)
    assert gradient(value, balanced).isfinite().all()


@pytest.mark.parametrize("normalization", ["published", "definition"])
@pytest.mark.parametrize("reduction", ["mean", "valid_mean", "batch_mean", "sum"])
def test_mmce_is_added_to_the_mean_unscaled(normalization, reduction):
    """Objective = mean cross-entropy + strength * MMCE; summed, the term counts once for each valid row."""
    logits, targets = example(9, 3, ignored=0.3)
    valid = int((targets != IGNORED).sum())
    assert valid < 9
    pairs = [(probs, label) for probs, label in places(logits, targets) if label != IGNORED]
    factor = {"mean": 1, "valid_mean": 1, "batch_mean": valid / 9, "sum": valid}[reduction]
    value = eq.MMCELoss(2.0, normalization=normalization, reduction=reduction)(logits, targets)
    plain = eq.CrossEntropyLoss(reduction=reduction)(logits, targets)
    expected = torch.tensor(2.0 * factor * slow_mmce(pairs, normalization), dtype=torch.float64)
    assert_close(value - plain, expected, **CLOSE)


def test_class_weights_do_not_scale_the_calibration_error():
    logits, targets = example(40, 3, ignored=0.3)
    pairs = [(probs, label) for probs, label in places(logits, targets) if label != IGNORED]
    assert slow_mmce(pairs, "published") > 1e-3
    for weight in ([2.0, 2.0, 2.0], [0.1, 1.0, 5.0]):
        value = eq.MMCELoss(2.0, weight=weight)(logits, targets)
        plain = eq.CrossEntropyLoss(weight)(logits, targets)
        assert_close((value - plain).item(), 2.0 * slow_mmce(pairs, "published"), **CLOSE)


# ---------------------------------------------------------------------------------------------------------------------
# Brier
# ---------------------------------------------------------------------------------------------------------------------


def slow_brier(logits, targets, *, smoothing=0.0, weight=None):
    """Brier score of each place, 0 where it is ignored, and the weight of its target."""
    c, values, weights = logits.shape[1], [], []
    weight = weight or [1.0] * c
    for probs, mark in places(logits, targets):
        masses = mark if isinstance(mark, list) else [float(k == mark) for k in range(c)]
        if sum(masses) == 0:
            values.append(0.0)
            weights.append(0.0)
            continue
        smooth = [(1 - smoothing) * t + smoothing / c for t in masses]
        factor = sum(t * w for t, w in zip(masses, weight, strict=True))
        values.append(factor * sum((p - t) ** 2 for p, t in zip(probs, smooth, strict=True)))
        weights.append(factor)
    return values, weights


@pytest.mark.parametrize("size", [(), (2, 3)], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weight", [None, [0.5, 1.0, 2.0, 4.0]], ids=["plain", "weighted"])
@pytest.mark.parametrize("soft", [False, True], ids=["index", "dense"])
def test_brier_by_its_definition(size, smoothing, weight, soft):
    logits, targets = example(7, size=size)
    valid = int((targets != IGNORED).sum())
    targets = dense(logits, targets) if soft else targets
    values, weights = slow_brier(logits, targets, smoothing=smoothing, weight=weight)
    total = math.fsum(values)
    denominators = {
        "mean": valid if soft else math.fsum(weights),
        "valid_mean": valid,
        "batch_mean": 7,
        "sum": 1,
    }
    for reduction, denominator in denominators.items():
        value = eq.BrierLoss(weight=weight, label_smoothing=smoothing, reduction=reduction)(logits, targets)
        assert_close(value.item(), total / denominator, **CLOSE)
        assert torch.equal(
            value, F.brier_loss(logits, targets, weight=weight, label_smoothing=smoothing, reduction=reduction)
        )
    rows = eq.BrierLoss(weight=weight, label_smoothing=smoothing, reduction="none")(logits, targets)
    assert rows.shape == (7, *size)
    assert_close(rows.flatten(), torch.tensor(values, dtype=torch.float64), **CLOSE)
    loss = eq.BrierLoss(weight=weight, label_smoothing=smoothing)
    assert torch.autograd.gradcheck(lambda z: loss(z, targets), logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, [0.5, 1.0, 2.0, 4.0]], ids=["plain", "weighted"])
@pytest.mark.parametrize("soft", [False, True], ids=["index", "dense"])
def test_brier_of_adjusted_logits(smoothing, weight, soft):
    """Value and gradient by automatic differentiation of the definition."""
    logits, targets = example(7, size=(2,))
    masses = dense(logits, targets) if soft else torch.nn.functional.one_hot(targets.clamp(min=0), 4).movedim(-1, 1)
    masses = masses.double() * (targets != IGNORED).unsqueeze(1)
    adjustment = Adjustment((0.0, -1.0, 0.5, 2.0), 0.7, (1.0, 0.1, 0.4, 0.7), 0.6, 2.5)
    offset, margin = (
        torch.tensor(each, dtype=torch.float64)[:, None] for each in (adjustment.offset, adjustment.margin)
    )
    adjusted = 2.5 * (logits + 0.7 * offset - masses * 0.6 * margin)
    wanted = (1 - smoothing) * masses + smoothing / 4
    factor = (masses * torch.tensor(weight or [1.0] * 4, dtype=torch.float64)[:, None]).sum(1)
    expected = (factor * (adjusted.softmax(1) - wanted).square().sum(1)).sum()
    loss = eq.SoftmaxLoss(
        adjustment=adjustment,
        weight=weight,
        label_smoothing=smoothing,
        reduction="sum",
        more_parts=[Scalar("squared_error", 1.0)],
    )
    value = loss(logits, masses if soft else targets)
    assert_close(value, expected, **CLOSE)
    assert_close(gradient(value, logits), gradient(expected, logits), **CLOSE)


def test_brier_ends():
    logits = torch.tensor([[60.0, 0.0, 0.0]], dtype=torch.float64)
    assert eq.BrierLoss()(logits, torch.tensor([0])).item() == pytest.approx(0, abs=1e-15)
    assert eq.BrierLoss()(logits, torch.tensor([1])).item() == pytest.approx(2, abs=1e-15)
    assert eq.BrierLoss()(torch.zeros(1, 5), torch.tensor([3])).item() == pytest.approx(0.8, abs=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Distribution-balanced loss
# ---------------------------------------------------------------------------------------------------------------------

COUNTS, SAMPLES = [40.0, 12.0, 5.0, 0.0], 100.0
DEFAULTS = {"alpha": 0.1, "beta": 10.0, "mu": 0.2, "neg_scale": 2.0, "init_bias": 0.05, "gamma": 2.0, "balance": 2.0}


def slow_distribution_balanced(logits, targets, *, alpha, beta, mu, neg_scale, init_bias, gamma, balance):
    """Every element in plain Python, 0 where the label is unknown; the published code in its own order."""
    counts = [max(count, 1.0) for count in COUNTS]
    elements = []
    for scores, marks in zip(logits.tolist(), targets.tolist(), strict=True):
        drawn = sum(1 / n for n, t in zip(counts, marks, strict=True) if t == 1)
        for z, t, n in zip(scores, marks, counts, strict=True):
            if t == -1:
                elements.append(0.0)
                continue
            weight = (1 / (1 + math.exp(-beta * (1 / n / drawn - mu))) if drawn else 1.0) + alpha
            z = z - init_bias * math.log(SAMPLES / n - 1) / neg_scale
            if t == 0:
                z, weight = z * neg_scale, weight / neg_scale
            p_t = 1 / (1 + math.exp(-z if t == 1 else z))
            elements.append(balance * (1 - p_t) ** gamma * weight * -math.log(p_t))
    return elements


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"alpha": 0.5, "beta": 3.0, "mu": 0.6},
        {"neg_scale": 5.0},
        {"neg_scale": 1.0, "init_bias": 0.0},
        {"init_bias": -0.3},
        {"gamma": 0.0, "balance": 1.0},
        {"gamma": 1.3, "balance": 0.7},
    ],
    ids=str,
)
def test_distribution_balanced_loss_in_plain_loops(changes):
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(10, 4, generator=draw, dtype=torch.float64)
    targets = (torch.rand(10, 4, generator=draw) < 0.4).double()
    targets[0] = 0  # a sample without positives
    targets[1] = torch.tensor([0.0, -1.0, 0.0, -1.0])  # one that may have some, unknown
    targets[2] = torch.tensor([1.0, -1.0, 1.0, 0.0])
    targets[3] = -1
    values = slow_distribution_balanced(logits, targets, **{**DEFAULTS, **changes})
    unknown = int((targets == -1).sum())
    for reduction, denominator in (("mean", 40 - unknown), ("valid_mean", 9), ("batch_mean", 10), ("sum", 1)):
        value = eq.DistributionBalancedLoss(COUNTS, SAMPLES, reduction=reduction, **changes)(logits, targets)
        assert_close(value.item(), math.fsum(values) / denominator, **CLOSE)
        also = F.distribution_balanced_loss(logits, targets, COUNTS, SAMPLES, reduction=reduction, **changes)
        assert_close(value, also, rtol=0, atol=0)
    loss = eq.DistributionBalancedLoss(COUNTS, SAMPLES, reduction="none", **changes)
    assert_close(loss(logits, targets).flatten(), torch.tensor(values, dtype=torch.float64), **CLOSE)
    assert torch.autograd.gradcheck(lambda z: loss(z, targets).sum(), logits.requires_grad_())


def test_distribution_balanced_loss_takes_further_weights():
    logits, targets = torch.randn(5, 4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3, 0]]
    plain = eq.DistributionBalancedLoss(COUNTS, SAMPLES, reduction="none")(logits, targets)
    label, element = torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.rand(5, 4, dtype=torch.float64)
    loss = eq.DistributionBalancedLoss(COUNTS, SAMPLES, weight=label, reduction="none")
    assert_close(loss(logits, targets, element_weight=element), plain * label * element, **CLOSE)


@pytest.mark.parametrize("beta", [0.0, -10.0, 1e-3])
def test_distribution_balanced_loss_is_finite_for_every_beta_it_accepts(beta):
    logits = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    value = eq.DistributionBalancedLoss(COUNTS, SAMPLES, beta=beta)(logits, targets)
    assert value.isfinite()
    assert gradient(value, logits).isfinite().all()


# ---------------------------------------------------------------------------------------------------------------------
# Precision
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(), (3,)], ids=str)
def test_precision_loss_by_its_definition(size):
    logits, targets = example(15, size=size)
    logits = (logits - torch.tensor([0.0, 0.0, 0.0, 90.0]).view(4, *(1 for _ in size))).detach().requires_grad_()
    chosen, hits, total, valid = [0] * 4, [0] * 4, 0.0, 0
    pairs = [(probs, label) for probs, label in places(logits, targets) if label != IGNORED]
    for probs, label in pairs:
        guess = probs.index(max(probs))
        chosen[guess] += 1
        hits[guess] += guess == label
    weight = [1 - hits[k] / chosen[k] if chosen[k] else 1.0 for k in range(4)]
    assert weight[3] == 1.0
    for _, label in pairs:
        valid += 1
        total += weight[label]
    for reduction, denominator in (("valid_mean", valid), ("mean", total), ("batch_mean", 15), ("sum", 1)):
        summed = eq.CrossEntropyLoss(weight, reduction="sum")(logits, targets)
        value = eq.PrecisionLoss(4, reduction=reduction)(logits, targets)
        assert_close(value, summed / denominator, **CLOSE)
        assert_close(gradient(value, logits), gradient(summed / denominator, logits), **CLOSE)
        assert torch.equal(value, F.precision_loss(logits, targets, reduction=reduction))
    assert torch.equal(
        eq.PrecisionLoss(4)(logits, targets), eq.PrecisionLoss(4, reduction="valid_mean")(logits, targets)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("centre", [1.0, -1.0, 2.0**-10, 3e10, 0.0])
def test_the_largest_differ_in_the_last_bit(dtype, centre):
    ladder = [torch.tensor(centre, dtype=dtype)]
    for _ in range(6):
        ladder.append(torch.nextafter(ladder[-1], torch.tensor(torch.inf, dtype=dtype)))
    values = torch.stack(ladder)[torch.tensor([3, 0, 5, 1, 6, 2, 4])]
    for k in range(8):
        kept = _largest(values, torch.ones(7, dtype=torch.bool), torch.tensor(float(k)))
        assert torch.equal(kept, values > ladder[6 - k] if k < 7 else torch.ones(7, dtype=torch.bool))


def test_weights_of_a_batch_are_multiplied():
    """Each of them alone is an option of a loss; together they are the product."""
    logits, targets = example(15)
    fixed = [0.5, 1.0, 2.0, 4.0]
    recall, precision = RecallWeights(4), PrecisionWeights(4)
    labels = targets.clamp(min=0)
    both = recall(logits, labels, targets != IGNORED) * precision(logits, labels, targets != IGNORED)
    assert len({round(float(weight), 6) for weight in both}) > 1
    for weight, expected in (([recall, precision], both), ([fixed, recall, precision], both * torch.tensor(fixed))):
        for order in (weight, weight[::-1]):
            value = eq.SoftmaxLoss(weight=order, reduction="sum")(logits, targets)
            rows = torch.nn.functional.cross_entropy(logits, targets, expected.double(), reduction="sum")
            assert_close(value, rows, **CLOSE)
            assert_close(gradient(value, logits), gradient(rows, logits), **CLOSE)
