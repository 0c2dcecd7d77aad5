"""Class weights from counts against their formulas in plain Python, and what must be true of them."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import equipoise as eq
from equipoise.kernels.autograd import softmax_rows_and_hits
from equipoise.kernels.spec import SoftmaxSpec
from equipoise.schedules import Moment
from equipoise.weights import (
    ClassWeights,
    Deferred,
    PrecisionWeights,
    RecallWeights,
    effective_number,
    inverse_frequency,
    median_frequency,
    normalized,
    square_root,
)
from equipoise.weights.rebalanced import Rebalanced, rebalanced_weight
from equipoise.weights.recall import SPOILED, count_hits, support_and_hits

CLOSE = {"rtol": 1e-14, "atol": 0}  # a few float64 operations
COUNTS = {
    "long tail": [5000, 1200, 300, 42, 7, 1],
    "even": [10, 10, 10],
    "one class": [3],
    "absent classes": [0, 9, 4, 0, 1],
    "only one present": [0, 0, 8],
    "fractions": [0.5, 2.25, 1e-3],
    "huge": [1e12, 1.0],
}
each_counts = pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
BETA = 0.9999


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


RULES = {
    "inverse": (inverse_frequency, lambda n, counts: 1 / n),
    "square root": (square_root, lambda n, counts: 1 / math.sqrt(n)),
    "effective": (effective_number, lambda n, counts: (1 - BETA) / -math.expm1(n * math.log(BETA))),
    "median": (median_frequency, lambda n, counts: median([m for m in counts if m > 0]) / n),
}
each_rule = pytest.mark.parametrize(("rule", "formula"), RULES.values(), ids=RULES)


@each_rule
@each_counts
@pytest.mark.parametrize("normalize", [None, "sum_to_C", "mean_one_over_samples"])
def test_rules_are_their_formulas(rule, formula, counts, normalize):
    raw = [formula(n, counts) if n > 0 else 0.0 for n in counts]
    factor = {
        None: 1.0,
        "sum_to_C": len(counts) / math.fsum(raw),
        "mean_one_over_samples": math.fsum(counts) / math.fsum(n * w for n, w in zip(counts, raw, strict=True)),
    }[normalize]
    weights = rule(counts, normalize=normalize)
    assert weights.dtype is torch.float64
    assert_close(weights, torch.tensor([w * factor for w in raw], dtype=torch.float64), **CLOSE)
    assert [w == 0 for w in weights.tolist()] == [n == 0 for n in counts]


@each_rule
def test_defaults_of_normalize(rule, formula):
    default = None if rule is median_frequency else "sum_to_C"
    assert torch.equal(rule(COUNTS["long tail"]), rule(COUNTS["long tail"], normalize=default))
    assert not torch.equal(rule(COUNTS["long tail"]), rule(COUNTS["long tail"], normalize="mean_one_over_samples"))


@each_rule
@each_counts
def test_what_the_normalisations_promise(rule, formula, counts):
    n = torch.tensor(counts, dtype=torch.float64)
    assert_close(rule(counts, normalize="sum_to_C").sum().item(), float(len(counts)), **CLOSE)
    mean = (rule(counts, normalize="mean_one_over_samples") * n).sum() / n.sum()
    assert_close(mean.item(), 1.0, **CLOSE)


@each_rule
def test_counts_may_be_any_sequence_of_numbers(rule, formula):
    expected = rule([3, 5, 8])
    for counts in (
        (3, 5, 8),
        torch.tensor([3, 5, 8]),
        torch.tensor([3, 5, 8], dtype=torch.int32),
        torch.tensor([3.0, 5, 8]),
    ):
        assert torch.equal(rule(counts), expected)
    given = torch.tensor([3.0, 0.0, 8.0])
    rule(given)
    assert given.tolist() == [3.0, 0.0, 8.0]


@pytest.mark.parametrize("rule", [inverse_frequency, square_root, median_frequency])
def test_fractions_of_the_samples_do_where_ratios_matter(rule):
    for normalize in ("sum_to_C", "mean_one_over_samples"):
        assert_close(rule([0.75, 0.25, 0.0], normalize), rule([3, 1, 0], normalize), **CLOSE)
    with pytest.raises(ValueError, match=r"which look like fractions of the classes"):
        effective_number([0.75, 0.25, 0.0])


@pytest.mark.parametrize("counts", [[2, 3, 5, 0], [100, 10, 1]], ids=str)
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.99])
def test_effective_number_by_exact_fractions(counts, beta):
    b = Fraction(beta)
    exact = [float((1 - b) / (1 - b**n)) if n else 0.0 for n in counts]
    assert_close(effective_number(counts, beta, None), torch.tensor(exact, dtype=torch.float64), rtol=1e-13, atol=0)


@pytest.mark.parametrize("distance", [1e-6, 1e-9, 1e-12, 1e-15])
def test_effective_number_goes_to_inverse_frequency_as_beta_goes_to_one(distance):
    """(1 - b) / (1 - b^n) = 1/n (1 + (n - 1) (1 - b) / 2 + ...): the difference must fall with 1 - b, not grow."""
    counts = torch.tensor([1000.0, 30.0, 1.0, 0.0], dtype=torch.float64)
    beta = 1 - distance
    gap = 1 - beta  # as a float has it
    inverse = inverse_frequency(counts, None)
    expected = inverse * (1 + (counts - 1) * gap / 2)
    # the next term is (n gap)^2 / 12; log(beta) and 1 - beta are exact to a unit in the last place
    assert_close(effective_number(counts, beta, None), expected, rtol=(1000 * gap) ** 2 / 12 + 1e-14, atol=0)
    assert torch.equal(effective_number(counts, 1.0, None), inverse)
    assert torch.equal(effective_number(counts, 1.0), inverse_frequency(counts))


def test_beta_zero_gives_no_weights():
    assert effective_number([50, 7, 1, 0], 0.0, None).tolist() == [1.0, 1.0, 1.0, 0.0]


def test_weights_of_the_losses_are_these():
    logits, targets = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 4
    counts = [90, 30, 5, 1]
    for loss, weight in (
        (eq.InverseFrequencyLoss(counts), inverse_frequency(counts)),
        (eq.InverseFrequencyLoss(counts, normalize=None), inverse_frequency(counts, None)),
        (eq.ClassBalancedLoss(counts), effective_number(counts, 0.9999)),
        (eq.ClassBalancedLoss(counts, beta=0.9), effective_number(counts, 0.9)),
        (
            eq.ClassBalancedLoss(counts, beta=0.9, normalize="mean_one_over_samples"),
            effective_number(counts, 0.9, "mean_one_over_samples"),
        ),
        (eq.ClassBalancedLoss(counts, weight=[1.0, 2.0, 3.0, 4.0]), effective_number(counts) * torch.arange(1, 5)),
    ):
        for call in ({}, {"normalizer": 3.0}):  # "mean" divides by the weights, so scale shows with a normalizer only
            expected = torch.nn.functional.cross_entropy(logits, targets, weight, reduction="sum")
            expected = expected / (call["normalizer"] if call else weight[targets].sum())
            assert_close(loss(logits, targets, **call), expected, rtol=1e-13, atol=0)


def test_normalized_gives_shares():
    for weights in (torch.tensor([1.0, 3.0]), torch.tensor([0.0, 2.0, 6.0], dtype=torch.float64)):
        shares = normalized(weights)
        assert shares.dtype is weights.dtype
        assert torch.equal(shares, weights / weights.sum())
    assert normalized(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_parts_are_values():
    assert ClassWeights([1, 2]) == ClassWeights(torch.tensor([1.0, 2.0]))
    assert ClassWeights([1, 2]) != ClassWeights([1, 3])
    assert Deferred([1, 2]) == Deferred((1.0, 2.0), start=0.8)
    assert Deferred([1, 2]) != Deferred([1, 2], start=0.7)
    assert hash(Deferred([1, 2], start_epoch=3)) == hash(Deferred([1, 2], start_epoch=3))


def test_weights_of_classes_that_come_once():
    logits = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])  # predictions 0, 0, 1
    labels, valid = torch.tensor([0, 0, 1]), torch.ones(3, dtype=torch.bool)
    assert RecallWeights(3, min_errors=0.0)(logits, labels, valid).tolist() == [0.0, 0.0, 1.0]
    assert RecallWeights(3)(logits, labels, valid).tolist() == [0.5, 1.0, 1.0]
    assert PrecisionWeights(3)(logits, labels, valid).tolist() == [0.0, 0.0, 1.0]
    assert PrecisionWeights(3)(logits, torch.tensor([0, 1, 2]), valid).tolist() == [0.5, 1.0, 1.0]


def test_rebalanced_weights_are_their_formula():
    assert Rebalanced((4, 1, 0)).values(Moment()) == {"rebalance": (0.1, 10.0, 0.2), "inverse_counts": (0.25, 1.0, 1.0)}
    counts, alpha, beta, mu = [40.0, 8.0, 2.0], 0.3, 5.0, 0.1
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, -1.0], [0.0, 0.0, -1.0]], dtype=torch.float64)
    weight = rebalanced_weight(
        targets, 1 / torch.tensor(counts, dtype=torch.float64), torch.tensor([alpha, beta, mu]).double(), -1.0
    )
    for sample, labels in ((0, (0, 2)), (1, (1,))):
        drawn = sum(1 / counts[label] for label in labels)
        for label, count in enumerate(counts):
            expected = 1 / (1 + math.exp(-beta * (1 / count / drawn - mu))) + alpha
            assert weight[sample, label].item() == pytest.approx(expected, rel=1e-6)
    assert weight[2].tolist() == pytest.approx([1.0 + alpha] * 3)  # drawn for none of its labels
    flat = rebalanced_weight(targets, 1 / torch.tensor(counts), torch.tensor([alpha, 0.0, mu]), -1.0)
    assert flat.unique().tolist() == pytest.approx([0.5 + alpha])


@settings(deadline=None)
@given(
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.sampled_from([(40, 6), (3, 5, 7, 4), (2, 4, 9), (5, 1), (0, 3)]),
    st.sampled_from([0.0, 0.5, 1.0, 30.0]),
    st.integers(0, 10**6),
)
def test_hits_beside_the_rows_are_those_of_the_logits(dtype, shape, width, seed):
    """Ties (coarse logits), near ties (fine ones) and saturated softmaxes: the hits of an argmax, first index first."""
    draw = torch.Generator().manual_seed(seed)
    logits = width * torch.randn(shape, generator=draw, dtype=torch.float64)
    logits = (logits.round() if seed % 2 else logits + 1e-7 * torch.randn(shape, generator=draw)).to(dtype)
    targets = torch.randint(-1, shape[1], (shape[0], *shape[2:]), generator=draw)
    hyper = torch.empty(0, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
    rows, hits = softmax_rows_and_hits(logits, targets, None, hyper, SoftmaxSpec((), -1))
    valid = targets != -1
    assert torch.equal(hits, (logits.max(1).indices == targets) & valid if logits.numel() else valid)
    expected = torch.nn.functional.cross_entropy(logits.to(rows.dtype), targets, ignore_index=-1, reduction="none")
    assert torch.allclose(rows, expected, rtol=1e-5, atol=1e-6)
    labels = targets.where(valid, 0)
    counted = count_hits(hits, labels, valid, rows, shape[1])
    assert torch.equal(counted, support_and_hits(logits, labels, valid))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_batch_with_logits_that_are_not_finite_says_nothing(bad):
    logits = torch.tensor([[bad, 0.0, 1.0], [0.0, 2.0, 1.0]])
    labels, valid = torch.tensor([0, 1]), torch.tensor([True, True])
    assert (support_and_hits(logits, labels, valid) == SPOILED).all()
    ignored = support_and_hits(logits, labels, torch.tensor([False, True]))
    assert ignored.tolist() == [[0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("samples", [1, 2])
def test_predictions_of_samples_larger_than_a_block(samples):
    """A block on the CPU holds a million logits; a sample of more is a block of its own."""
    logits = torch.zeros(samples, 3, 400_000)
    labels = torch.arange(400_000).remainder(3).expand(samples, -1)
    logits.scatter_(1, labels.unsqueeze(1), 1.0)
    labels = labels.clone()
    labels[:, :7] = 2
    counts = support_and_hits(logits, labels, torch.ones_like(labels, dtype=torch.bool))
    support = torch.stack([(labels == c).sum() for c in range(3)])
    assert counts.tolist() == [support.tolist(), [133_331 * samples, 133_331 * samples, 133_333 * samples]]


def test_messages_name_the_argument_that_weights_come_from():
    assert ClassWeights([1.0, 2.0]).called is None
    assert ClassWeights([1.0, 2.0], called="counts").called == "counts"
    for build in (eq.InverseFrequencyLoss, eq.ClassBalancedLoss):
        with pytest.raises(ValueError, match=r"^counts must have "):
            build([5, 3])(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"^weight must have "):
        eq.CrossEntropyLoss([5, 3])(torch.zeros(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize("total", [0.0, 1e-9, 0.4, 1.0, 1.5, 1e9])
def test_normalized_weights_sum_to_one_whatever_their_size(total):
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert_close(eq.weights.normalized(total * weights), weights if total else torch.zeros(2, dtype=torch.float64))
