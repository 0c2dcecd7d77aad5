"""State of the losses: recall statistics, adaptive exponents, schedules, presets, and exact resume of all of them.

References are plain Python over lists. They run in float64, where the library does too, so they agree to the rounding
of a few dozen operations: ``EXACT`` is 1e-13, some 500 units in the last place of 1.
"""

import copy
import inspect
import math
import re
import warnings

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import equipoise as eq
from equipoise.catalogue import CATALOGUE
from equipoise.losses import AdaptiveAsymmetry, SigmoidLoss, SoftmaxLoss, asymmetric, current_settings, cyclical, focal
from equipoise.schedules import Constant, Cosine, Cyclical, Linear, Steps
from equipoise.weights import ClassWeights, Deferred, PrecisionWeights, RecallWeights, effective_number
from tests.losses.helpers import each, make

EXACT = {"rtol": 1e-13, "atol": 1e-13}
IGNORED = -100


def rows(n=24, c=4, size=(), *, seed=0, absent=(), ignored=0.2, dtype=torch.float64):
    """Logits and index targets; classes in ``absent`` do not occur."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, c, *size, generator=draw, dtype=torch.float64)
    there = torch.tensor([k for k in range(c) if k not in absent])
    targets = there[torch.randint(len(there), (n, *size), generator=draw)]
    targets[torch.rand(n, *size, generator=draw) < ignored] = IGNORED
    return logits.to(dtype), targets


def labels_of(n=12, c=3, *, seed=0, unknown=0.2, soft=False, dtype=torch.float64):
    """Logits and multi-label targets, some of them unknown (-1)."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, generator=draw, dtype=torch.float64)
    targets = torch.rand(n, c, generator=draw, dtype=torch.float64)
    targets = targets if soft else (targets < 0.35).double()
    targets[torch.rand(n, c, generator=draw) < unknown] = -1
    return logits.to(dtype), targets.to(dtype)


def pixels(logits, targets):
    """(scores, label) of every valid place as Python numbers; dense targets give their first largest class."""
    c = logits.shape[1]
    scores = logits.double().movedim(1, -1).reshape(-1, c).tolist()
    if targets.is_floating_point():
        masses = targets.double().movedim(1, -1).reshape(-1, c).tolist()
        return [(s, t.index(max(t))) for s, t in zip(scores, masses, strict=True) if sum(t) != 0]
    return [(s, t) for s, t in zip(scores, targets.flatten().tolist(), strict=True) if t != IGNORED]


def count(logits, targets):
    """N_c and FN_c in plain loops; the prediction is the first of the largest logits."""
    c = logits.shape[1]
    support, misses = [0] * c, [0] * c
    for scores, label in pixels(logits, targets):
        support[label] += 1
        misses[label] += scores.index(max(scores)) != label
    return support, misses


def batch_weights(logits, targets, min_errors):
    support, misses = count(logits, targets)
    return [max(fn, min_errors) / n if n else 1.0 for n, fn in zip(support, misses, strict=True)]


def weights_in(loss, logits, targets):
    """The class weights a loss uses: its rows over those of cross-entropy, NaN where a class is absent."""
    c = logits.shape[1]
    own = loss(logits, targets)
    plain = eq.CrossEntropyLoss(reduction="none")(logits, targets)
    actual = [math.nan] * c
    for k in range(c):
        there = targets == k
        if there.any():
            ratios = own[there] / plain[there]
            assert_close(ratios, ratios[:1].expand_as(ratios), **EXACT)
            actual[k] = ratios[0].item()
    return actual


def same(actual, expected, **tolerance):
    assert_close(torch.tensor(actual, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), **tolerance)


class MovingRecall:
    """Moving average of the recalls in plain Python."""

    def __init__(self, c, momentum, init, floor=None):
        self.momentum, self.init, self.floor = momentum, init, floor
        self.recall, self.batches, self.started = [0.0] * c, [0] * c, False

    def step(self, logits, targets):
        support, misses = count(logits, targets)
        for k, (n, fn) in enumerate(zip(support, misses, strict=True)):
            if n == 0:
                continue
            fn = fn if self.floor is None else max(fn, self.floor)
            self.batches[k] += 1
            if self.init == "first":
                rate = max(self.momentum, 1 / self.batches[k])
            else:
                rate = self.momentum if self.started else 1.0
            self.recall[k] = rate * (1 - fn / n) + (1 - rate) * self.recall[k]
        self.started = self.started or any(support)
        return [1 - r for r in self.recall]


# ---------------------------------------------------------------------------------------------------------------------
# Recall weights of a batch
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_errors", [1.0, 0.0, 2.5])
@pytest.mark.parametrize("size", [(), (5,), (3, 4)], ids=str)
def test_recall_weights_of_a_batch(min_errors, size):
    logits, targets = rows(size=size, absent=(2,))
    module = RecallWeights(4, min_errors=min_errors)
    valid = targets != IGNORED
    actual = module(logits, torch.where(valid, targets, 0), valid)
    expected = batch_weights(logits, targets, min_errors)
    assert expected[2] == 1.0
    assert actual.tolist() == expected  # quotients of small integers: not a bit may differ
    used = weights_in(eq.RecallLoss(4, min_errors=min_errors, reduction="none"), logits, targets)
    same([used[k] for k in (0, 1, 3)], [expected[k] for k in (0, 1, 3)], **EXACT)


def test_a_perfectly_recalled_class_keeps_one_error_or_none():
    logits, targets = torch.eye(3, dtype=torch.float64)[[0, 0, 0, 0, 1, 2]] * 5, torch.tensor([0, 0, 0, 0, 1, 1])
    assert weights_in(eq.RecallLoss(3, reduction="none"), logits, targets)[:2] == pytest.approx([0.25, 0.5], abs=1e-13)
    assert weights_in(eq.RecallLoss(3, min_errors=0.0, reduction="none"), logits, targets)[:2] == [0.0, 0.5]
    assert eq.RecallLoss(3, min_errors=0.0)(logits[:4], targets[:4]).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [(), (7,), (4, 5)], ids=str)
def test_ties_go_to_the_lowest_index(dtype, size):
    draw = torch.Generator().manual_seed(3)
    logits = torch.randint(0, 3, (200, 6, *size), generator=draw).to(dtype)  # three levels, six classes: many ties
    targets = torch.randint(0, 6, (200, *size), generator=draw)
    shared = (logits == logits.amax(1, keepdim=True)).sum(1) > 1
    assert shared.double().mean() > 0.5
    actual = RecallWeights(6)(logits, targets, targets >= 0)
    expected = torch.tensor(batch_weights(logits, targets, 1.0), dtype=actual.dtype)
    assert torch.equal(actual, expected)  # one division in the same type
    assert actual[0] < actual[5]  # the first class wins its ties, the last loses them


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(), (6, 6)], ids=str)
def test_ties_that_half_precision_makes(dtype, size):
    logits, targets = rows(60, 5, size, ignored=0.1)
    half = (logits / 100 + 4).to(dtype)
    assert ((half == half.amax(1, keepdim=True)).sum(1) > 1).any()
    valid = targets != IGNORED
    actual = RecallWeights(5)(half, torch.where(valid, targets, 0), valid)
    assert torch.equal(actual, torch.tensor(batch_weights(half, targets, 1.0)))


@pytest.mark.parametrize("num_classes", [2, 255, 256, 257])
def test_ties_and_the_number_of_classes(num_classes):
    """From 257 classes on another way of finding the prediction is taken."""
    for winner in (0, 1, num_classes - 1):
        logits = torch.zeros(1, num_classes, 2)
        logits[:, winner] = 1.0
        logits[:, -1] = 1.0
        actual = RecallWeights(num_classes, min_errors=0.0)(logits, torch.full((1, 2), winner), torch.ones(1, 2) > 0)
        assert actual[winner] == 0.0
        assert bool((actual == 0).sum() == 1)


def test_dense_targets_count_by_their_argmax():
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(20, 4, 3, generator=draw, dtype=torch.float64)
    dense = torch.randint(0, 4, (20, 4, 3), generator=draw).double()  # ties, and rows of zeros, which are ignored
    dense[:4] = 0
    dense[7] = 1.0
    expected = batch_weights(logits, dense, 1.0)
    actual = eq.RecallLoss(4, reduction="sum")(logits, dense)
    assert_close(actual, eq.CrossEntropyLoss(expected, reduction="sum")(logits, dense), **EXACT)
    marks = torch.nn.functional.one_hot(torch.arange(20) % 4, 4).double()
    assert_close(
        eq.RecallLoss(4)(logits[..., 0], marks), eq.RecallLoss(4)(logits[..., 0], torch.arange(20) % 4), **EXACT
    )


def test_ignored_rows_have_no_effect():
    logits, targets = rows(30, ignored=0.4)
    kept = targets != IGNORED
    assert not kept.all()
    assert_close(eq.RecallLoss(4)(logits, targets), eq.RecallLoss(4)(logits[kept], targets[kept]), **EXACT)
    assert_close(  # a class may be the one to ignore
        eq.RecallLoss(4, ignore_index=3)(logits, targets.masked_fill(~kept, 3)),
        eq.RecallLoss(4)(logits, targets.masked_fill(targets == 3, IGNORED)),
        **EXACT,
    )


@pytest.mark.parametrize("size", [(), (3,)], ids=str)
def test_standalone_recall_weights_accept_unmasked_labels(size):
    logits, targets = rows(30, size=size, ignored=0.4)
    valid = targets != IGNORED
    actual = RecallWeights(4)(logits, targets, valid)
    assert_close(actual, RecallWeights(4)(logits, torch.where(valid, targets, 0), valid), **EXACT)


def test_recall_weights_have_no_gradient_and_multiply_with_others():
    logits, targets = rows(ignored=0.0)
    logits.requires_grad_()
    weights = torch.tensor(batch_weights(logits, targets, 1.0), dtype=torch.float64)
    extra = torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64)
    for given, expected in ((None, weights), (extra, weights * extra)):
        for reduction in ("valid_mean", "mean", "sum"):
            value = eq.RecallLoss(4, weight=given, reduction=reduction)(logits, targets)
            plain = eq.CrossEntropyLoss(expected, reduction=reduction)(logits, targets)
            assert_close(value, plain, **EXACT)
            assert_close(torch.autograd.grad(value, logits)[0], torch.autograd.grad(plain, logits)[0], **EXACT)


def test_precision_weights_in_plain_loops():
    logits, targets = rows(40, 5, (2,), seed=4)
    logits[:, 3] -= 50  # never predicted: weight 1
    hits, chosen = [0] * 5, [0] * 5
    for scores, label in pixels(logits, targets):
        guess = scores.index(max(scores))
        chosen[guess] += 1
        hits[guess] += guess == label
    expected = [(n - tp) / n if n else 1.0 for n, tp in zip(chosen, hits, strict=True)]
    valid = targets != IGNORED
    assert PrecisionWeights(5)(logits, torch.where(valid, targets, 0), valid).tolist() == expected
    same(weights_in(eq.PrecisionLoss(5, reduction="none"), logits, targets), expected, **EXACT)
    plain = eq.CrossEntropyLoss(expected, reduction="valid_mean")(logits, targets)
    assert_close(eq.PrecisionLoss(5)(logits, targets), plain, **EXACT)


# ---------------------------------------------------------------------------------------------------------------------
# Moving average of the recall
# ---------------------------------------------------------------------------------------------------------------------

ABSENCES = [(0, 3), (3,), (), (1,), (0, 1, 2), (3,), ()]


@pytest.mark.parametrize("init", ["first", "published"])
@pytest.mark.parametrize("momentum", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("size", [(), (2, 2)], ids=str)
def test_moving_average_of_the_recall(init, momentum, size):
    loss = eq.RecallLoss(4, momentum=momentum, init=init, reduction="none")
    slow = MovingRecall(4, momentum, init)
    for seed, absent in enumerate(ABSENCES):
        logits, targets = rows(20, size=size, seed=seed, absent=absent)
        logits = logits + 1.5 * torch.nn.functional.one_hot(targets.clamp(min=0), 4).movedim(
            -1, 1
        )  # recalls of about a half
        used = weights_in(loss, logits, targets)
        expected = slow.step(logits, targets)  # the updated value is used in the same batch
        assert any(0 < w < 1 for w in expected)
        for k in range(4):
            assert math.isnan(used[k]) == (k in absent)
        same(
            [used[k] for k in range(4) if k not in absent], [expected[k] for k in range(4) if k not in absent], **EXACT
        )
        same(loss.batch_weights[0].recall.tolist(), slow.recall, **EXACT)
        assert loss.batch_weights[0].batches.tolist() == slow.batches


def test_first_sightings_are_a_plain_average():
    loss, seen = eq.RecallLoss(4, momentum=0.05), []
    for seed in range(6):
        logits, targets = rows(30, seed=seed)
        loss(logits, targets)
        seen.append([1 - w for w in batch_weights(logits, targets, 0.0)])
    same(loss.batch_weights[0].recall.tolist(), [sum(column) / 6 for column in zip(*seen, strict=True)], **EXACT)


def test_momentum_of_one_is_the_batch_without_a_floor():
    loss = eq.RecallLoss(4, momentum=1.0)
    for seed in range(3):
        logits, targets = rows(30, seed=seed)
        assert_close(loss(logits, targets), eq.RecallLoss(4, min_errors=0.0)(logits, targets), **EXACT)


def test_min_errors_does_not_apply_to_the_average_unless_published():
    logits, targets = torch.eye(3, dtype=torch.float64)[[0, 0, 1, 2]] * 5, torch.tensor([0, 0, 1, 1])
    loss = eq.RecallLoss(3, momentum=0.5, min_errors=1.0, reduction="none")
    assert weights_in(loss, logits, targets)[:2] == [0.0, 0.5]
    published = eq.RecallLoss(3, momentum=0.5, preset="published", reduction="none")
    assert weights_in(published, logits, targets)[:2] == pytest.approx([0.5, 0.5], abs=1e-13)


def test_average_starts_with_weight_one_and_an_all_ignored_batch_changes_nothing():
    for init in ("first", "published"):
        loss = eq.RecallLoss(4, momentum=0.3, init=init)
        logits, targets = rows()
        assert_close(loss.eval()(logits, targets), eq.CrossEntropyLoss()(logits, targets), **EXACT)
        loss.train()
        assert loss(logits, torch.full_like(targets, IGNORED)).item() == 0
        assert loss(logits[:0], targets[:0]).item() == 0
        fresh = eq.RecallLoss(4, momentum=0.3, init=init)
        assert torch.equal(loss(logits, targets), fresh(logits, targets))  # the first batch is still the first


@pytest.mark.parametrize("momentum", [None, 0.3])
def test_eval_and_no_grad_update_no_recall(momentum):
    loss = eq.RecallLoss(4, momentum=momentum)
    loss(*rows(seed=1))
    before = copy.deepcopy(loss.state_dict())
    logits, targets = rows(seed=2)
    values = [loss.eval()(logits, targets)]
    with torch.no_grad():
        values.append(loss.train()(logits, targets))
    with torch.inference_mode():
        values.append(loss.eval()(logits, targets))
    assert len({value.item() for value in values}) == 1
    assert before.keys() == loss.state_dict().keys()
    assert bool(before) == (momentum is not None)
    for name, value in before.items():
        assert torch.equal(loss.state_dict()[name], value)
    if momentum is not None:
        weights = [1 - r for r in before["batch_weights.0.recall"].tolist()]
        assert_close(values[0], eq.CrossEntropyLoss(weights, reduction="valid_mean")(logits, targets), **EXACT)
        loss.train()(logits, targets)
        assert not torch.equal(loss.state_dict()["batch_weights.0.recall"], before["batch_weights.0.recall"])


# ---------------------------------------------------------------------------------------------------------------------
# Adaptive asymmetry
# ---------------------------------------------------------------------------------------------------------------------


class SlowAsymmetry:
    """Equation 11 with the right sign, in plain Python; ``groups`` of columns share an exponent."""

    def __init__(self, groups, gamma, target_gap, step, gamma_max):
        self.groups, self.gamma = groups, [gamma] * len(groups)
        self.target_gap, self.step_size, self.gamma_max = target_gap, step, gamma_max
        self.gap = [math.nan] * len(groups)

    def step(self, logits, targets):
        for g, columns in enumerate(self.groups):
            positive = negative = p_positive = p_negative = 0.0
            for z_row, t_row in zip(logits.tolist(), targets.tolist(), strict=True):
                for k in columns:
                    p, t = 1 / (1 + math.exp(-z_row[k])), t_row[k]
                    if t == -1:
                        continue
                    positive += t
                    negative += 1 - t
                    p_positive += t * p
                    p_negative += (1 - t) * (1 - p)
            if positive > 0 and negative > 0:
                self.gap[g] = p_positive / positive - p_negative / negative
                moved = self.gamma[g] + self.step_size * (self.target_gap - self.gap[g])
                self.gamma[g] = min(max(moved, 0.0), self.gamma_max)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("start", [2.5, 2.3])  # 2.3 is no float32
def test_adaptive_asymmetry_in_plain_loops(per_class, soft, start):
    groups = [[0], [1], [2]] if per_class else [[0, 1, 2]]
    slow = SlowAsymmetry(groups, start, 0.4, 0.7, 3.0)
    loss = eq.AsymmetricLoss(
        0.5, gamma_neg=start, margin=0.1, target_gap=0.4, gap_step=0.7, gamma_max=3.0, per_class=per_class
    )
    clamped = False
    for seed in range(8):
        logits, targets = labels_of(seed=seed, soft=soft)
        logits = logits + (2 if seed > 3 else -1)  # first the gap is too small, then too large
        gamma = slow.gamma * (1 if per_class else 3)
        expected = eq.AsymmetricLoss(0.5, gamma_neg=gamma, margin=0.1)(logits, targets)  # the old value
        assert_close(loss(logits, targets), expected, **EXACT)
        slow.step(logits, targets)
        same(loss.asymmetry.gamma_neg.tolist(), slow.gamma, **EXACT)
        same(loss.asymmetry.gap.tolist(), slow.gap, **EXACT)
        clamped = clamped or 3.0 in slow.gamma
    assert clamped
    assert min(slow.gamma) < 3.0


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("gap_step", [0.0, 0.7], ids=["margin alone", "both"])
@pytest.mark.parametrize("start", [0.25, 0.1])  # 0.1 is no float32
def test_adaptive_margin_in_plain_loops(per_class, gap_step, start):
    """Section 2.7 of Ridnik et al.: the rule of equation 11 for the margin, alone or with the exponent."""
    groups = [[0], [1], [2]] if per_class else [[0, 1, 2]]
    slow = SlowAsymmetry(groups, 2.5, 0.4, gap_step, 3.0)
    slow_margin = SlowAsymmetry([[0, 1, 2]], start, 0.4, 0.2, 0.3)  # the same rule; one margin for all labels
    loss = eq.AsymmetricLoss(
        0.5,
        gamma_neg=2.5,
        margin=start,
        target_gap=0.4,
        gap_step=gap_step,
        gamma_max=3.0,
        per_class=per_class,
        margin_step=0.2,
        margin_max=0.3,
    )
    seen = set()
    for seed in range(8):
        logits, targets = labels_of(seed=seed)
        logits = (logits + (4 if seed > 3 else -1)).requires_grad_()
        gamma, margin = slow.gamma * (1 if per_class else 3), slow_margin.gamma[0]
        expected = eq.AsymmetricLoss(0.5, gamma_neg=gamma, margin=margin)(logits, targets)  # the old values
        found = loss(logits, targets)
        assert_close(found, expected, **EXACT)
        assert_close(*(torch.autograd.grad(value, logits)[0] for value in (found, expected)), **EXACT)
        slow.step(logits.detach(), targets)
        slow_margin.step(logits.detach(), targets)
        same(loss.asymmetry.margin.tolist(), slow_margin.gamma, **EXACT)
        same(loss.asymmetry.gamma_neg.tolist(), slow.gamma if gap_step else slow.gamma[:1] * len(groups), **EXACT)
        seen.add(slow_margin.gamma[0])
    assert 0.3 in seen
    assert min(seen) < start
    assert current_settings(loss)["margin"] == pytest.approx(slow_margin.gamma[0])
    assert sorted(loss.state_dict()) == ["asymmetry.gamma_neg", "asymmetry.gap", "asymmetry.margin"]
    resumed = eq.AsymmetricLoss(0.5, target_gap=0.4, per_class=per_class, margin_step=0.2, margin_max=0.3)
    resumed.load_state_dict(loss.state_dict())
    assert torch.equal(resumed.asymmetry.margin, loss.asymmetry.margin.float())
    before = loss.asymmetry.margin.clone()
    loss(torch.full_like(logits, torch.nan), targets)
    loss.eval()(logits, targets)
    assert torch.equal(loss.asymmetry.margin, before)


def test_an_adaptive_margin_may_reach_zero():
    loss = eq.AsymmetricLoss(target_gap=-1.0, margin=0.05, margin_step=1.0)
    targets = torch.tensor([[1.0, 0.0]])
    for _ in range(2):
        logits = torch.tensor([[2.0, 0.5]], requires_grad=True)
        value = loss(logits, targets)
        value.backward()
        assert logits.grad.isfinite().all()
    assert loss.asymmetry.margin.item() == 0.0
    gamma = loss.asymmetry.gamma_neg.item() + 0.01 * (1 + loss.asymmetry.gap.item())  # of the last batch
    assert_close(value, eq.AsymmetricLoss(gamma_neg=gamma, margin=0.0)(logits, targets))


def test_too_small_a_gap_raises_the_exponent_and_too_large_a_gap_lowers_it():
    targets = torch.tensor([[1.0, 0.0]])
    for z, direction in ((-2.0, 1), (2.0, -1)):  # positives at p = .12 (gap negative) and p = .88 (gap positive)
        loss = eq.AsymmetricLoss(target_gap=0.0, gap_step=0.5)
        loss(torch.tensor([[z, 0.0]]), targets)
        assert (loss.asymmetry.gamma_neg.item() - 4.0) * direction > 0.1
        assert loss.asymmetry.gap.item() * direction < 0


def test_the_exponent_stays_between_zero_and_its_maximum():
    targets = torch.tensor([[1.0, 0.0]])
    for z, end in ((-9.0, 5.0), (9.0, 0.0)):
        loss = eq.AsymmetricLoss(target_gap=0.0, gap_step=100.0, gamma_max=5.0)
        value = loss(torch.tensor([[z, 0.5]]), targets)
        assert_close(value, eq.AsymmetricLoss()(torch.tensor([[z, 0.5]]), targets))
        assert loss.asymmetry.gamma_neg.tolist() == [end]
        assert_close(
            loss(torch.tensor([[z, 0.5]]), targets), eq.AsymmetricLoss(gamma_neg=end)(torch.tensor([[z, 0.5]]), targets)
        )


@pytest.mark.parametrize("per_class", [False, True])
def test_batches_without_positives_or_negatives_change_nothing(per_class):
    loss = eq.AsymmetricLoss(target_gap=0.2, gap_step=1.0, per_class=per_class)
    logits, _ = labels_of()
    for targets in (torch.zeros(12, 3), torch.ones(12, 3), -torch.ones(12, 3)):
        loss(logits, targets.double())
        assert (loss.asymmetry.gamma_neg == 4.0).all()
        assert loss.asymmetry.gap.isnan().all()
    loss(logits[:0], torch.zeros(0, 3))
    assert (loss.asymmetry.gamma_neg == 4.0).all()
    mixed = torch.zeros(12, 3)
    mixed[:4, 1] = 1
    mixed[4:, 2] = -1
    loss(logits, mixed.double())
    moved = loss.asymmetry.gamma_neg != 4.0
    assert moved.tolist() == ([False, True, False] if per_class else [True])


@pytest.mark.parametrize("per_class", [False, True])
def test_a_batch_that_is_refused_does_not_tell_the_number_of_labels(per_class):
    loss = eq.AsymmetricLoss(target_gap=0.2, per_class=per_class)
    with pytest.raises(ValueError, match="targets"):
        loss(torch.zeros(4, 7), torch.zeros(4, 5))
    with pytest.raises(ValueError, match="logits must have shape"):
        loss(torch.tensor(0.0), torch.tensor(0.0))
    loss(torch.zeros(4, 5), torch.zeros(4, 5))
    assert loss.asymmetry.gamma_neg.shape == ((5,) if per_class else (1,))


def test_unknown_labels_are_excluded_from_the_gap():
    logits, targets = labels_of(unknown=0.4)
    first, second = (eq.AsymmetricLoss(target_gap=0.2, gap_step=1.0) for _ in range(2))
    first(logits, targets)
    second(torch.where(targets == -1, 7.0, logits), targets)
    assert torch.equal(first.asymmetry.gamma_neg, second.asymmetry.gamma_neg)
    known = targets.flatten() != -1
    flat = eq.AsymmetricLoss(target_gap=0.2, gap_step=1.0)
    flat(logits.flatten()[known], targets.flatten()[known])
    assert_close(first.asymmetry.gamma_neg, flat.asymmetry.gamma_neg, **EXACT)
    other = eq.AsymmetricLoss(target_gap=0.2, gap_step=1.0, ignore_value=-7)
    other(logits, targets.masked_fill(targets == -1, -7))
    assert torch.equal(first.asymmetry.gamma_neg, other.asymmetry.gamma_neg)


def test_eval_and_no_grad_update_no_exponent():
    for per_class in (False, True):
        loss = eq.AsymmetricLoss(target_gap=0.2, gap_step=1.0, per_class=per_class)
        loss(*labels_of(seed=1))
        before = copy.deepcopy(loss.state_dict())
        logits, targets = labels_of(seed=2)
        values = [loss.eval()(logits, targets)]
        with torch.no_grad():
            values.append(loss.train()(logits, targets))
        assert torch.equal(*values)
        assert sorted(before) == ["asymmetry.gamma_neg", "asymmetry.gap"]
        for name, value in before.items():
            assert torch.equal(loss.state_dict()[name], value)
        loss(logits, targets)
        assert not torch.equal(loss.state_dict()["asymmetry.gamma_neg"], before["asymmetry.gamma_neg"])


def test_per_class_exponents_also_for_places():
    logits, targets = labels_of(12, 3)
    loss = SigmoidLoss(asymmetry=AdaptiveAsymmetry(0.3, start=1.0, gap_step=0.5, per_class=True))
    images = SigmoidLoss(asymmetry=AdaptiveAsymmetry(0.3, start=1.0, gap_step=0.5, per_class=True))
    for _ in range(3):
        flat = loss(logits, targets)
        assert_close(images(*(t.view(2, 2, 3, 3).permute(0, 3, 1, 2) for t in (logits, targets))), flat, **EXACT)
    assert_close(loss.asymmetry.gamma_neg, images.asymmetry.gamma_neg, **EXACT)


# ---------------------------------------------------------------------------------------------------------------------
# Saving and resuming
# ---------------------------------------------------------------------------------------------------------------------

STATEFUL = {
    "recall": (lambda: eq.RecallLoss(4, momentum=0.3), rows),
    "recall published": (lambda: eq.RecallLoss(4, momentum=0.3, preset="published"), rows),
    "two averages": (
        lambda: SoftmaxLoss(weight=[RecallWeights(4, momentum=0.3), RecallWeights(4, momentum=1.0)]),
        rows,
    ),
    "adaptive": (lambda: eq.AsymmetricLoss(target_gap=0.3, gap_step=0.7), labels_of),
    "adaptive per class": (lambda: eq.AsymmetricLoss(target_gap=0.3, gap_step=0.7, per_class=True), labels_of),
    "scheduled": (lambda: eq.FocalLoss(Linear(0.0, 3.0), label_smoothing=Cosine(0.2, 0.0), epochs=6), rows),
    "cyclical": (lambda: eq.CyclicalFocalLoss(6, weight=Deferred([1, 2, 3, 4], start=0.5)), rows),
    "scheduled recall": (
        lambda: SoftmaxLoss(focal(Linear(0.0, 2.0)), weight=RecallWeights(4, momentum=0.3), epochs=6),
        rows,
    ),
    "scheduled adaptive": (
        lambda: eq.AsymmetricLoss(Linear(0.0, 1.0), target_gap=0.3, gap_step=0.7, epochs=6),
        labels_of,
    ),
}
each_stateful = pytest.mark.parametrize(("build", "example"), STATEFUL.values(), ids=STATEFUL)


def train(loss, example, epochs, dtype):
    """Values and gradients of some epochs of two batches."""
    outcome = []
    for epoch in epochs:
        loss.set_epoch(epoch)
        for batch in range(2):
            logits, targets = example(seed=10 * epoch + batch, dtype=dtype)
            logits.requires_grad_()
            value = loss(logits, targets)
            outcome += [value.detach(), torch.autograd.grad(value, logits)[0]]
    return outcome


@each_stateful
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fresh", [False, True], ids=["used", "fresh"])
def test_resume_is_exact(build, example, dtype, fresh, tmp_path):
    whole = build()
    train(whole, example, range(3), dtype)
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    expected = train(whole, example, range(3, 6), dtype)

    resumed = build()
    if not fresh:
        train(resumed, example, [4], dtype)  # somewhere else in its own training
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for value, again in zip(expected, train(resumed, example, range(3, 6), dtype), strict=True):
        assert torch.equal(value, again)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    unlike = train(build(), example, range(3, 6), dtype)
    assert all(torch.equal(*pair) for pair in zip(expected, unlike, strict=True)) == (
        build().state_dict().keys() == {"position"}
    )


@each_stateful
def test_resume_in_the_middle_of_an_epoch_needs_no_set_epoch(build, example, recwarn):
    whole = build()
    train(whole, example, range(2), torch.float32)
    whole.set_epoch(2)
    whole(*example(seed=1, dtype=torch.float32))
    resumed = build()
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    batch = example(seed=2, dtype=torch.float32)
    assert torch.equal(whole(*batch), resumed(*batch))
    assert not recwarn.list  # the position was restored, so there is nothing to warn of


@each_stateful
def test_a_start_state_takes_the_loss_back_to_the_start(build, example):
    loss = build()
    start = copy.deepcopy(loss.state_dict())
    first = train(loss, example, range(2), torch.float32)
    loss.load_state_dict(start)
    for value, again in zip(first, train(loss, example, range(2), torch.float32), strict=True):
        assert torch.equal(value, again)


def test_position_is_restored_and_hyper_parameters_follow():
    logits, targets = rows()
    loss = eq.FocalLoss(Linear(0.0, 4.0), epochs=8)
    loss.set_epoch(6)
    fresh = eq.FocalLoss(Linear(0.0, 4.0), epochs=8)
    fresh.load_state_dict(loss.state_dict())
    assert_close(fresh(logits, targets), eq.FocalLoss(3.0)(logits, targets), **EXACT)
    loss.set_progress(0.25)
    fresh.load_state_dict(loss.state_dict())
    assert_close(fresh(logits, targets), eq.FocalLoss(1.0)(logits, targets), **EXACT)


def test_a_state_of_a_training_with_other_epochs():
    """All schedules stand at its epoch, as after ``set_epoch``."""
    logits, targets = rows()

    def build(epochs):
        weight = Deferred([8, 4, 2, 1], start=0.6)
        return eq.CrossEntropyLoss(weight=weight, label_smoothing=Linear(0.0, 0.4), epochs=epochs)

    saved, loaded, moved = build(10), build(20), build(20)
    saved.set_epoch(8)
    loaded.load_state_dict(saved.state_dict())
    moved.set_epoch(8)
    assert torch.equal(loaded(logits, targets), moved(logits, targets))
    assert torch.equal(loaded.position, moved.position)
    assert saved(logits, targets) != moved(logits, targets)


def test_a_state_beyond_the_epochs_of_the_loss_warns():
    saved = eq.FocalLoss(Linear(0.0, 2.0), epochs=20)
    saved.set_epoch(15)
    with pytest.warns(UserWarning, match=r"FocalLoss is at epoch 15, but the loss has epochs=10"):
        eq.FocalLoss(Linear(0.0, 2.0), epochs=10).load_state_dict(saved.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epochs in (16, 30):
            eq.FocalLoss(Linear(0.0, 2.0), epochs=epochs).load_state_dict(saved.state_dict())


UNLIKE = {
    "exponents of labels": (
        lambda: eq.AsymmetricLoss(target_gap=0.3, per_class=True),
        lambda: eq.AsymmetricLoss(target_gap=0.3),
        "asymmetry.gamma_neg",
        labels_of,
    ),
    "one class": (
        lambda: eq.RecallLoss(1, momentum=0.3),
        lambda: eq.RecallLoss(4, momentum=0.3),
        "batch_weights.0.recall",
        None,
    ),
    "more classes": (
        lambda: eq.RecallLoss(4, momentum=0.3),
        lambda: eq.RecallLoss(1, momentum=0.3),
        "batch_weights.0.recall",
        None,
    ),
}


@pytest.mark.parametrize(("saved", "build", "name", "example"), UNLIKE.values(), ids=UNLIKE)
def test_a_state_of_another_size_is_refused(saved, build, name, example):
    first, loss = saved(), build()
    if example is not None:
        first(*example())
    before = {name: buffer.clone() for name, buffer in loss.state_dict().items()}
    with pytest.raises(RuntimeError, match=f"size mismatch for {name}"):
        loss.load_state_dict(first.state_dict())
    for name, buffer in loss.state_dict().items():
        assert buffer.shape == before[name].shape


def test_exponents_of_other_labels_are_refused():
    first, second = (eq.AsymmetricLoss(target_gap=0.3, per_class=True) for _ in range(2))
    first(torch.randn(4, 3), torch.zeros(4, 3))
    second(torch.randn(4, 5), torch.zeros(4, 5))
    with pytest.raises(RuntimeError, match=r"size mismatch for asymmetry\.gamma_neg"):
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("position", [torch.zeros(3), torch.tensor(0.5), torch.zeros(2, 2)], ids=["3", "none", "2, 2"])
def test_a_position_of_another_shape_is_refused(position):
    loss = eq.FocalLoss(Linear(0.0, 2.0), epochs=10)
    with pytest.raises(RuntimeError, match="size mismatch for position"):
        loss.load_state_dict({"position": position})


def test_a_state_inside_a_model_keeps_its_prefix():
    model = torch.nn.ModuleDict({"net": torch.nn.Linear(2, 3), "loss": eq.RecallLoss(4, momentum=0.3)})
    model["loss"](*rows())
    assert {"loss.batch_weights.0.recall", "loss.batch_weights.0.batches"} <= model.state_dict().keys()
    other = torch.nn.ModuleDict({"net": torch.nn.Linear(2, 3), "loss": eq.RecallLoss(4, momentum=0.3)})
    other.load_state_dict(model.state_dict())
    batch = rows(seed=1)
    assert torch.equal(model["loss"](*batch), other["loss"](*batch))


def test_losses_without_memory_have_an_empty_state():
    for loss in (eq.CrossEntropyLoss([1.0, 2.0]), eq.FocalLoss(), eq.RecallLoss(3), eq.AsymmetricLoss()):
        assert not loss.state_dict()


@pytest.mark.parametrize("cast", ["half", "bfloat16"])
@each_stateful
def test_buffers_keep_their_precision_when_a_model_is_cast(cast, build, example):
    loss, plain = build(), build()
    train(loss, example, [1], torch.float32)
    train(plain, example, [1], torch.float32)
    before = {name: buffer.clone() for name, buffer in loss.named_buffers()}
    model = getattr(torch.nn.Sequential(torch.nn.Linear(2, 2), loss), cast)()
    assert model[0].weight.dtype is getattr(torch, "float16" if cast == "half" else cast)
    for name, buffer in loss.named_buffers():
        assert torch.equal(buffer, before[name]), name
        assert buffer.dtype is before[name].dtype
    assert {value.dtype for name, value in loss.state_dict().items() if "position" not in name} <= {
        torch.float32,
        torch.int64,
    }
    for value, again in zip(*(train(some, example, [2, 3], torch.float16) for some in (plain, loss)), strict=True):
        assert torch.equal(value, again)


def test_a_move_that_fails_leaves_the_loss_as_it_was():
    loss, example = eq.RecallLoss(3, momentum=0.1), (torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))

    def full(tensor):
        raise torch.OutOfMemoryError("CUDA out of memory")

    before = copy.deepcopy(loss)
    with pytest.raises(torch.OutOfMemoryError):
        loss._apply(full)
    assert loss(*example) == before(*example)


@pytest.mark.parametrize(
    "build",
    [
        lambda: eq.AsymmetricLoss(target_gap=0.3),
        lambda: eq.RecallLoss(4, momentum=0.1),
        lambda: eq.FocalLoss(Linear(0.0, 2.0), epochs=4),
    ],
    ids=["adaptive", "recall", "scheduled"],
)
def test_losses_of_a_model_on_the_meta_device_have_their_numbers(build):
    with torch.device("meta"):
        loss = build()
    loss.to_empty(device="cpu")
    for name, buffer in build().named_buffers():
        assert_close(loss.get_buffer(name), buffer, rtol=0, atol=0, equal_nan=True)


class Copies(TorchDispatchMode):
    """Notes which copies wait for the device."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.copy_.default:
            self.waiting.append((args[1], args[0], len(args) > 2 and args[2]))
        if function is torch.ops.aten._to_copy.default:
            self.waiting.append((args[0], result, (kwargs or {}).get("non_blocking", False)))
        self.waiting = [item for item in self.waiting if item[0].device != item[1].device and not item[2]]
        return result


def test_numbers_travel_to_the_device_without_waiting_for_it():
    loss = eq.FocalLoss(Linear(0.0, 2.0), epochs=4).to("meta")
    logits, targets = torch.zeros(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    with Copies() as copies:
        loss.set_epoch(1)
        loss.set_progress(0.5)
        eq.functional.focal_loss(logits, targets, gamma=1.5)
        eq.functional.asymmetric_loss(logits, torch.zeros_like(logits))
        assert not copies.waiting
        torch.zeros(2).to("meta")
        assert copies.waiting


def test_to_keeps_precision_and_the_numbers_that_a_meta_device_would_lose():
    loss = eq.RecallLoss(4, momentum=0.5, weight=[1, 2, 3, 4])
    before = {name: buffer.clone() for name, buffer in loss.named_buffers()}
    for moved in (loss.to("cpu", torch.float16), loss.to("meta"), loss.to_empty(device="cpu")):
        after = dict(moved.named_buffers())
        assert after.keys() == before.keys()
        for name, buffer in before.items():
            assert after[name].dtype is buffer.dtype, name
            assert torch.equal(after[name], buffer), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_stateful
def test_a_validation_in_inference_mode_before_training_does_no_harm(build, example, dtype):
    """Lightning validates a little before it trains, in inference mode."""
    loss, plain = build(), build()
    loss.eval()
    with torch.inference_mode():
        loss(*example(seed=9, dtype=dtype))
    loss.train()
    expected = train(plain, example, [0, 1], dtype)
    for value, again in zip(expected, train(loss, example, [0, 1], dtype), strict=True):
        assert torch.equal(value, again)


# ---------------------------------------------------------------------------------------------------------------------
# Schedules in losses
# ---------------------------------------------------------------------------------------------------------------------

COUNTS = [50, 20, 5, 1]
LABEL_COUNTS = [40, 10, 3]
RAMP = Linear(0.1, 0.9)  # legal for every hyper-parameter below
SCHEDULED = {
    "gamma": (lambda v, **o: eq.FocalLoss(v, **o), rows),
    "label_smoothing": (lambda v, **o: eq.CrossEntropyLoss(label_smoothing=v, **o), rows),
    "smoothing of focal": (lambda v, **o: eq.FocalLoss(1.5, label_smoothing=v, **o), rows),
    "table": (lambda v, **o: eq.SampleDependentFocalLoss(((0.3, v), (1.0, 2.0)), **o), rows),
    "gamma_hc, gamma_lc": (
        lambda v, **o: SoftmaxLoss(cyclical(0.4, v, v, v), label_smoothing=0.1, **o),
        rows,
    ),
    "xi": (lambda v, **o: SoftmaxLoss(cyclical(v, 2.0, 3.0, 1.0), label_smoothing=0.1, **o), rows),
    "asymmetric softmax": (lambda v, **o: eq.AsymmetricSoftmaxLoss(v, gamma_neg=v, **o), rows),
    "tau": (lambda v, **o: eq.LogitAdjustedLoss(COUNTS, tau=v, **o), rows),
    "scale": (lambda v, **o: eq.LDAMLoss(COUNTS, scale=v, **o), rows),
    "max_margin": (lambda v, **o: eq.LDAMLoss(COUNTS, max_margin=v, scale=3.0, **o), rows),
    "keep": (lambda v, **o: eq.OHEMLoss(v, **o), rows),
    "strength": (lambda v, **o: eq.MMCELoss(v, normalization="definition", **o), rows),
    "smoothing of Brier": (lambda v, **o: eq.BrierLoss(label_smoothing=v, **o), rows),
    "margin": (lambda v, **o: eq.AsymmetricLoss(margin=v, **o), labels_of),
    "gamma_pos, gamma_neg": (lambda v, **o: eq.AsymmetricLoss(v, gamma_neg=v, **o), labels_of),
    "gamma_pos beside target_gap": (lambda v, **o: eq.AsymmetricLoss(v, target_gap=0.5, gap_step=0.0, **o), labels_of),
    "gamma of binary focal": (lambda v, **o: eq.BinaryFocalLoss(v, **o), labels_of),
    "alpha": (lambda v, **o: eq.BinaryFocalLoss(alpha=v, **o), labels_of),
    "alpha, beta, mu": (
        lambda v, **o: eq.DistributionBalancedLoss(LABEL_COUNTS, 60, alpha=v, beta=v, mu=v, **o),
        labels_of,
    ),
    "gamma, balance": (
        lambda v, **o: eq.DistributionBalancedLoss(LABEL_COUNTS, 60, gamma=v, balance=v, **o),
        labels_of,
    ),
}


@pytest.mark.parametrize(("build", "example"), SCHEDULED.values(), ids=SCHEDULED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_schedule_may_stand_for_any_number(build, example, dtype):
    loss = build(RAMP, epochs=4)
    logits, targets = example(dtype=dtype)
    logits.requires_grad_()
    # A fixed exponent that is whole is multiplied out and a fixed margin is treated apart from a moving one, so a few
    # units in the last place may differ; nothing cancels in these losses.
    tolerance = {"rtol": 1e-13, "atol": 1e-13} if dtype is torch.float64 else {"rtol": 2e-6, "atol": 2e-6}
    seen = set()
    moves = [(loss.set_epoch, epoch, epoch / 4) for epoch in (0, 1, 3, 2)]
    moves += [(loss.set_progress, progress, progress) for progress in (0.0, 0.3, 1.0)]
    for move, where, progress in moves:
        move(where)
        fixed = build(RAMP(progress))
        value, expected = loss(logits, targets), fixed(logits, targets)
        assert_close(value, expected, **tolerance)
        assert_close(torch.autograd.grad(value, logits)[0], torch.autograd.grad(expected, logits)[0], **tolerance)
        seen.add(round(value.item(), 9))
    assert len(seen) >= 4  # it matters where the schedule stands


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_a_schedule_may_pass_through_the_plain_case(number):
    """A number that would switch a part off when fixed must do so when scheduled."""
    logits, targets = rows()
    for build in (
        lambda v, **o: eq.FocalLoss(v, **o),
        lambda v, **o: eq.CrossEntropyLoss(label_smoothing=v, **o),
        lambda v, **o: SoftmaxLoss(cyclical(v, 2.0, 3.0, 1.0), label_smoothing=0.1, **o),
        lambda v, **o: eq.LogitAdjustedLoss(COUNTS, tau=v, **o),
        lambda v, **o: eq.OHEMLoss(v, **o),
    ):
        loss = build(Steps((0.5, number), at=(0.5,)), epochs=2)
        loss.set_epoch(1)
        assert_close(loss(logits, targets), build(number)(logits, targets), **EXACT)
    logits, targets = labels_of()
    for build in (
        lambda v, **o: eq.AsymmetricLoss(margin=v, **o),
        lambda v, **o: eq.BinaryFocalLoss(v, **o),
        lambda v, **o: eq.BinaryFocalLoss(alpha=v, **o),
    ):
        loss = build(Steps((0.5, number), at=(0.5,)), epochs=2)
        loss.set_epoch(1)
        assert_close(loss(logits, targets), build(number)(logits, targets), **EXACT)


@pytest.mark.parametrize("scale", [1.0, 1e-7])
def test_deferred_weights_start_where_they_should(scale):
    logits, targets = rows()
    weight = (effective_number(COUNTS) * scale).tolist()
    plain, weighted = eq.CrossEntropyLoss(reduction="sum"), eq.CrossEntropyLoss(weight, reduction="sum")
    for options in ({"start": 0.8}, {"start_epoch": 8}):
        loss = eq.CrossEntropyLoss(Deferred(weight, **options), epochs=10, reduction="sum")
        for epoch in range(10):
            loss.set_epoch(epoch)
            expected = (weighted if epoch >= 8 else plain)(logits, targets)
            assert_close(loss(logits, targets), expected, rtol=1e-13, atol=0)
    loss = eq.LDAMLoss(COUNTS, weight=Deferred(weight), epochs=200)  # LDAM-DRW, default start .8
    for epoch, expected in ((159, eq.LDAMLoss(COUNTS)), (160, eq.LDAMLoss(COUNTS, weight=weight))):
        loss.set_epoch(epoch)
        assert_close(loss(logits, targets), expected(logits, targets), **EXACT)


def test_deferred_weights_multiply_with_others():
    logits, targets = rows()
    loss = eq.RecallLoss(4, weight=[Deferred([2, 2, 4, 8], start=0.5), [1.0, 3.0, 1.0, 1.0]], epochs=2)
    for epoch, weight in ((0, [1.0, 3.0, 1.0, 1.0]), (1, [2.0, 6.0, 4.0, 8.0])):
        loss.set_epoch(epoch)
        assert_close(loss(logits, targets), eq.RecallLoss(4, weight=weight)(logits, targets), **EXACT)


def test_every_schedule_of_a_loss_has_its_own_progress():
    """e / E for most, e / (E - 1) for the published cyclical form; ``set_progress`` is the same for all."""
    logits, targets = rows()
    loss = SoftmaxLoss(cyclical(Cyclical(2.0), 2.0, Linear(0.0, 2.0), 1.0), label_smoothing=0.1, epochs=5)
    loss.set_epoch(3)
    expected = SoftmaxLoss(cyclical(Cyclical(2.0)(3 / 4), 2.0, 2.0 * 3 / 5, 1.0), label_smoothing=0.1)
    assert_close(loss(logits, targets), expected(logits, targets), **EXACT)
    loss.set_progress(0.75)
    expected = SoftmaxLoss(cyclical(Cyclical(2.0)(0.75), 2.0, 2.0 * 0.75, 1.0), label_smoothing=0.1)
    assert_close(loss(logits, targets), expected(logits, targets), **EXACT)


@pytest.mark.parametrize("end", ["last_epoch", "epochs"])
def test_cyclical_losses_follow_equation_8(end):
    logits, targets = rows()
    epochs, factor = 10, 4.0
    focal_form = eq.CyclicalFocalLoss(epochs, end=end)
    asymmetric_form = eq.CyclicalAsymmetricLoss(epochs, end=end)
    for epoch in range(epochs):
        x = factor * epoch / (epochs - 1 if end == "last_epoch" else epochs)
        xi = 1 - x if x <= 1 else (x - 1) / (factor - 1)
        focal_form.set_epoch(epoch)
        asymmetric_form.set_epoch(epoch)
        expected = eq.functional.cyclical_focal_loss(logits, targets, xi=xi)
        assert_close(focal_form(logits, targets), expected, **EXACT)
        expected = eq.functional.cyclical_asymmetric_loss(logits, targets, xi=xi)
        assert_close(asymmetric_form(logits, targets), expected, **EXACT)


def test_flsc_531_of_the_paper():
    logits, targets = rows()
    loss = eq.FocalLoss(gamma=Steps((5, 3, 1), at=(100 / 350, 250 / 350)), epochs=350)
    for epoch, gamma in ((0, 5), (99, 5), (100, 3), (249, 3), (250, 1), (349, 1)):
        loss.set_epoch(epoch)
        assert_close(loss(logits, targets), eq.FocalLoss(float(gamma))(logits, targets), **EXACT)


def test_a_loss_that_was_never_moved_warns_once_in_training_only():
    batch = rows()
    for build in (
        lambda: eq.CyclicalFocalLoss(5),
        lambda: eq.FocalLoss(Linear(0.0, 2.0), epochs=5),
        lambda: eq.CrossEntropyLoss(Deferred([1, 2, 3, 4]), epochs=5),
    ):
        loss = build()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss.eval()(*batch)
        loss.train()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                loss(*batch)
        assert [warning.category for warning in caught] == [UserWarning]
        assert re.search(r"schedule.*never advanced.*set_epoch.*set_progress", str(caught[0].message))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for move in ("set_epoch", "set_progress"):
                moved = build()
                getattr(moved, move)(0)
                moved(*batch)


SETTINGS = {
    "exponent": (lambda s: eq.FocalLoss(s, epochs=4), {"gamma": 0.25}),
    "both exponents": (lambda s: eq.CyclicalFocalLoss(4, gamma_lc=s), {"gamma_lc": 0.25, "gamma_hc": 3.0}),
    "confident": (lambda s: eq.CyclicalFocalLoss(4, gamma_hc=s), {"gamma_lc": 2.0, "gamma_hc": 0.25}),
    "by confidence": (
        lambda s: eq.SampleDependentFocalLoss(((0.2, s), (1.0, 3.0)), epochs=4),
        {"gamma": [0.25, 3.0]},
    ),
    "smoothing": (lambda s: eq.BrierLoss(label_smoothing=s, epochs=4), {"label_smoothing": 0.25}),
    "tau": (lambda s: eq.LogitAdjustedLoss([3, 2, 1, 1], tau=s, epochs=4), {"tau": 0.25}),
    "largest margin": (lambda s: eq.LDAMLoss([3, 2, 1, 1], max_margin=s, epochs=4), {"max_margin": 0.25}),
    "keep": (lambda s: eq.OHEMLoss(s, epochs=4), {"keep": 0.25}),
    "strength": (lambda s: eq.MMCELoss(s, epochs=4), {"strength": 0.25}),
    "margin": (lambda s: eq.AsymmetricLoss(margin=s, epochs=4), {"margin": 0.25, "gamma_neg": 4.0}),
    "alpha": (lambda s: eq.BinaryFocalLoss(alpha=s, epochs=4), {"alpha": 0.25, "gamma": 2.0}),
    "distribution": (
        lambda s: eq.DistributionBalancedLoss([3, 2, 1], 9, mu=s, balance=Linear(1.0, 3.0), epochs=4),
        {"mu": 0.25, "balance": 1.5, "gamma": 2.0},
    ),
}


@pytest.mark.parametrize(("build", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_current_settings_include_every_scheduled_value(build, expected):
    loss = build(Linear(0.0, 1.0))
    assert set(current_settings(loss)) - {"xi"} == set(expected)
    loss.set_epoch(1)
    text = current_settings(loss)
    text.pop("xi", None)
    assert text == expected
    loss.set_progress(1.0)
    assert current_settings(loss) != text


def test_deferred_weights_tell_whether_they_hold():
    loss = eq.CrossEntropyLoss([Deferred([1.0, 1.0, 1.0, 1.0], start_epoch=3), [1, 2, 3, 4]], epochs=4)
    assert current_settings(loss) == {"deferred_weights": 0.0}
    for epoch, holds in ((0, 0.0), (2, 0.0), (3, 1.0)):
        loss.set_epoch(epoch)
        assert current_settings(torch.nn.ModuleList([loss]))["deferred_weights"] == holds
    assert current_settings(eq.CrossEntropyLoss([1, 2, 3, 4])) == {}


def test_losses_without_schedules_never_warn_and_need_no_epochs():
    logits, targets = rows()
    for loss in (eq.FocalLoss(), eq.FocalLoss(epochs=3), eq.CrossEntropyLoss(), eq.RecallLoss(4, momentum=0.5)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            before = loss.eval()(logits, targets)
            loss.set_epoch(2)
            loss.set_progress(1.0)
            loss.train().eval()
            assert torch.equal(loss(logits, targets), before)
            loss.train()(logits, targets)
    eq.FocalLoss().set_epoch(10_000)  # no schedule and no number of epochs: any epoch is fine
    assert not eq.FocalLoss().state_dict()


def test_a_constant_is_a_schedule():
    batch = rows()
    loss = eq.FocalLoss(Constant(1.5))
    loss.set_progress(0.5)
    assert_close(loss(*batch), eq.FocalLoss(1.5)(*batch), **EXACT)


def test_moving_a_loss_between_forward_and_backward_does_not_change_the_gradient():
    """Hyper-parameters are written in place; the graph of an earlier value must keep its own or refuse."""
    for build, example in (
        (lambda v, **o: eq.FocalLoss(v, **o), rows),
        (lambda v, **o: eq.AsymmetricLoss(gamma_neg=v, **o), labels_of),
    ):
        logits, targets = example()
        logits.requires_grad_()
        loss = build(Linear(1.0, 3.0), epochs=2)
        loss.set_epoch(0)
        value = loss(logits, targets)
        loss.set_epoch(1)
        grad = gradient_unless_refused(value, logits)
        if grad is not None:
            assert_close(grad, torch.autograd.grad(build(1.0)(logits, targets), logits)[0], **EXACT)


def gradient_unless_refused(value, logits):
    try:
        return torch.autograd.grad(value, logits)[0]
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return None


# ---------------------------------------------------------------------------------------------------------------------
# Presets: SPEC section 9
# ---------------------------------------------------------------------------------------------------------------------


def agree(first, second, batches):
    for batch in batches:
        for epoch in (0, 2, 4):
            first.set_epoch(epoch)
            second.set_epoch(epoch)
            logits = batch[0].clone().requires_grad_()
            values = first(logits, batch[1]), second(logits, batch[1])
            assert_close(*values, **EXACT)
            assert_close(*(torch.autograd.grad(value, logits)[0] for value in values), **EXACT)


def differ(first, second, batches):
    for loss in (first, second):
        loss.set_epoch(2)
    values = [[loss(*batch).item() for batch in batches] for loss in (first, second)]
    assert values[0] != pytest.approx(values[1], rel=1e-3)


ROWS = [rows(seed=seed) for seed in range(3)]
LABELS = [labels_of(seed=seed) for seed in range(3)]
PRESETS = {
    "recall": (
        lambda **o: eq.RecallLoss(4, **o),
        lambda: SoftmaxLoss(weight=RecallWeights(4, min_errors=1.0), reduction="valid_mean"),
        ROWS,
        False,
    ),
    "recall average": (
        lambda **o: eq.RecallLoss(4, momentum=0.2, **o),
        lambda: SoftmaxLoss(
            weight=RecallWeights(4, momentum=0.2, min_errors=1.0, init="published", floor_average=True),
            reduction="valid_mean",
        ),
        ROWS,
        True,
    ),
    "cyclical focal": (
        lambda **o: eq.CyclicalFocalLoss(5, **o),
        lambda: SoftmaxLoss(cyclical(Cyclical(4.0, "last_epoch"), 3.0, 2.0, 2.0), label_smoothing=0.1, epochs=5),
        ROWS,
        True,
    ),
    "cyclical asymmetric": (
        lambda **o: eq.CyclicalAsymmetricLoss(5, **o),
        lambda: SoftmaxLoss(cyclical(Cyclical(4.0, "last_epoch"), 2.0, 0.0, 4.0), label_smoothing=0.1, epochs=5),
        ROWS,
        False,
    ),
    "asymmetric": (
        lambda **o: eq.AsymmetricLoss(**o),
        lambda: SigmoidLoss(asymmetric(0.0, 4.0), margin=0.05, detach_focus=True, reduction="sum"),
        LABELS,
        True,
    ),
    "focal": (lambda **o: eq.FocalLoss(**o), lambda: SoftmaxLoss(focal(2.0), reduction="sum"), ROWS, True),
    "sample dependent": (
        lambda **o: eq.SampleDependentFocalLoss(**o),
        lambda: eq.SampleDependentFocalLoss(((0.2, 5.0), (1.0, 3.0)), reduction="sum"),
        ROWS,
        True,
    ),
    "mmce": (lambda **o: eq.MMCELoss(**o), lambda: eq.MMCELoss(normalization="published"), ROWS, False),
}


@pytest.mark.parametrize(("build", "written_out", "batches", "matters"), PRESETS.values(), ids=PRESETS)
def test_published_presets(build, written_out, batches, matters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of those that it does nothing for
        if matters:
            differ(build(preset="published"), build(), batches)
        else:
            agree(build(preset="published"), build(), batches)
        agree(build(preset="published"), written_out(), batches)
    agree(build(preset=None), build(), batches)


@each([entry for entry in CATALOGUE if "preset" in inspect.signature(getattr(eq, entry.name)).parameters])
def test_a_preset_that_does_nothing_is_deprecated(entry):
    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        make(entry, 3, preset="published")
    kept = {
        "AsymmetricLoss", "CyclicalFocalLoss", "FocalLoss", "RecallLoss", "SampleDependentFocalLoss", "SoftIoULoss"
    }  # fmt: skip
    assert [warning.category for warning in lines] == ([] if entry.name in kept else [DeprecationWarning])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(entry, 3, preset=None)


EXPLICIT = {
    "recall init": (lambda **o: eq.RecallLoss(4, momentum=0.2, min_errors=0.0, **o), {"init": "first"}, ROWS),
    "recall min_errors": (lambda **o: eq.RecallLoss(4, **o), {"min_errors": 0.0}, ROWS),
    "cyclical smoothing": (lambda **o: eq.CyclicalFocalLoss(5, **o), {"label_smoothing": 0.0}, ROWS),
    "cyclical end": (lambda **o: eq.CyclicalFocalLoss(5, label_smoothing=0.1, **o), {"end": "epochs"}, ROWS),
    "asymmetric detach": (lambda **o: eq.AsymmetricLoss(reduction="mean", **o), {"detach_focus": False}, LABELS),
    "asymmetric reduction": (lambda **o: eq.AsymmetricLoss(detach_focus=True, **o), {"reduction": "mean"}, LABELS),
    "asymmetric gamma_pos": (
        lambda **o: eq.AsymmetricLoss(detach_focus=True, reduction="sum", **o),
        {"gamma_pos": 1.0},
        LABELS,
    ),
    "focal reduction": (lambda **o: eq.FocalLoss(**o), {"reduction": "mean"}, ROWS),
    "sample dependent reduction": (lambda **o: eq.SampleDependentFocalLoss(**o), {"reduction": "valid_mean"}, ROWS),
    "mmce normalization": (lambda **o: eq.MMCELoss(**o), {"normalization": "definition"}, ROWS),
}


@pytest.mark.parametrize(("build", "given", "batches"), EXPLICIT.values(), ids=EXPLICIT)
def test_what_you_pass_yourself_stays(build, given, batches):
    """``losses.named``: presets change defaults; what you pass yourself stays."""
    agree(build(preset="published", **given), build(**given), batches)


def test_losses_print_their_arguments():
    assert repr(eq.FocalLoss()) == "FocalLoss(gamma=2.0, ignore_index=-100, reduction='mean', sync=False)"
    assert repr(eq.BrierLoss()) == repr(eq.CrossEntropyLoss()).replace("CrossEntropy", "Brier")
    shown = {
        "gamma=Linear(start=5.0, stop=1.0), label_smoothing=0.1, epochs=9, ": eq.FocalLoss(
            Linear(5.0, 1.0), label_smoothing=0.1, epochs=9
        ),
        "gamma=[1, 2, 3], weight=[1, 1, 1, 1, 1, ... 9 in all], ": eq.FocalLoss(gamma=[1, 2, 3], weight=[1.0] * 9),
        "(weight=[1, 2] * [3, 4], start=0.5, ": eq.CrossEntropyLoss(
            [ClassWeights([1.0, 2.0]), Deferred([3.0, 4.0], start=0.5)]
        ),
        "(gamma_lc=2.0, xi=Cyclical(": eq.CyclicalFocalLoss(5),
        "(margin=0.05, gamma_pos=0.0, gamma_neg=4.0, ": eq.AsymmetricLoss(),
        "(offset=[-0.2877, -1.386], tau=1.0, ": eq.LogitAdjustedLoss([3, 1]),
        "(balance=2.0, gamma=2.0, offset=[": eq.DistributionBalancedLoss([3, 1], 9),
        "(keep=0.7, ": eq.OHEMLoss(),
    }
    for text, loss in shown.items():
        assert text in repr(loss)
        assert not re.search(r"Scalar|None|ModuleList|\n", repr(loss)), repr(loss)
    assert "(0): RecallWeights(3" in repr(eq.RecallLoss(3))
    assert "(asymmetry): AdaptiveAsymmetry(" in repr(eq.AsymmetricLoss(target_gap=0.5))
