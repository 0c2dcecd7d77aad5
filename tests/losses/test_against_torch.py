"""CrossEntropyLoss and BinaryCrossEntropyLoss are torch's own losses, option by option."""

import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise import BinaryCrossEntropyLoss, CrossEntropyLoss
from equipoise.functional import binary_cross_entropy_loss, cross_entropy_loss
from tests.losses.helpers import dense_of, indices_of, logits_of, multilabel_of, value_and_gradient

C = 4
WEIGHT = torch.tensor([0.3, 1.0, 2.5, 0.7], dtype=torch.float64)
POS_WEIGHT = torch.tensor([2.0, 0.5, 1.0, 3.0], dtype=torch.float64)
TIGHT = {"rtol": 1e-12, "atol": 1e-14}  # float64 on both sides, sums of some dozen numbers

weights = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["even", "weighted"])
reductions = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
shapes = pytest.mark.parametrize("shape", [(9, C), (2, C, 5), (2, C, 3, 3)], ids=str)


def both_agree(ours, theirs, logits, *args, **options):
    value, gradient = value_and_gradient(ours, logits, *args, **options)
    expected_value, expected_gradient = value_and_gradient(theirs, logits, *args)
    assert_close(value, expected_value, **TIGHT)
    assert_close(gradient, expected_gradient, **TIGHT)


@weights
@reductions
@shapes
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("ignore_index", [-100, 255, 1])
@pytest.mark.parametrize("ignored", [0.0, 0.4])
def test_cross_entropy_with_indices(weight, reduction, shape, smoothing, ignore_index, ignored):
    options = {"label_smoothing": smoothing, "ignore_index": ignore_index, "reduction": reduction}
    logits = logits_of(*shape, size=3.0)
    targets = indices_of(shape, ignored=ignored, ignore_index=ignore_index)
    assert (targets == ignore_index).any() == (ignored > 0 or ignore_index == 1)
    theirs = nn.CrossEntropyLoss(weight, **options)
    both_agree(CrossEntropyLoss(weight, **options), theirs, logits, targets)
    both_agree(lambda *args: cross_entropy_loss(*args, weight=weight, **options), theirs, logits, targets)


@weights
@reductions
@shapes
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("mass", [1.0, 0.7], ids=["distributions", "less mass"])
def test_cross_entropy_with_dense_targets(weight, reduction, shape, smoothing, mass):
    options = {"label_smoothing": smoothing, "reduction": reduction}
    logits, targets = logits_of(*shape, size=3.0), mass * dense_of(shape)
    theirs = nn.CrossEntropyLoss(weight, **options)
    both_agree(CrossEntropyLoss(weight, **options), theirs, logits, targets)
    both_agree(lambda *args: cross_entropy_loss(*args, weight=weight, **options), theirs, logits, targets)


@weights
@reductions
def test_a_row_without_mass_is_one_that_torch_does_not_see(weight, reduction):
    """Where torch's mean counts a row of zeros, ours does not: it is torch's loss of the other rows."""
    logits, targets = logits_of(12, C), dense_of((12, C), ignored=0.4)
    rows = targets.sum(1) != 0
    assert 0 < rows.sum() < 12
    value, gradient = value_and_gradient(CrossEntropyLoss(weight, reduction=reduction), logits, targets)
    theirs = nn.CrossEntropyLoss(weight, reduction=reduction)
    if reduction == "none":
        assert_close(value, theirs(logits, targets).detach(), **TIGHT)
    else:
        expected, part = value_and_gradient(theirs, logits[rows], targets[rows])
        assert_close(value, expected, **TIGHT)
        assert_close(gradient[rows], part, **TIGHT)
    assert torch.equal(gradient[~rows], torch.zeros_like(gradient[~rows]))


@weights
@reductions
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("target", [2, -100, "dense"], ids=str)
def test_cross_entropy_of_one_row_without_a_batch(weight, reduction, smoothing, target):
    options = {"label_smoothing": smoothing, "reduction": reduction}
    targets = dense_of((1, C))[0] if target == "dense" else torch.tensor(target)
    theirs = nn.CrossEntropyLoss(weight, **options)
    if target == -100 and reduction == "mean":  # torch's mean of nothing is NaN, ours is 0
        theirs = nn.CrossEntropyLoss(weight, label_smoothing=smoothing, reduction="sum")
    both_agree(CrossEntropyLoss(weight, **options), theirs, logits_of(C), targets)


@reductions
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_float32_is_as_close_to_the_truth_as_torch(reduction, smoothing, dense):
    """Parity by error budget: as far from the float64 result as torch in float32 is, plus two roundings."""
    options = {"label_smoothing": smoothing, "reduction": reduction}
    logits = logits_of(50, C, size=4.0, dtype=torch.float32)
    targets = dense_of((50, C)).float() if dense else indices_of((50, C))
    exact = value_and_gradient(nn.CrossEntropyLoss(**options), logits.double(), targets.double() if dense else targets)
    plain = value_and_gradient(nn.CrossEntropyLoss(**options), logits, targets)
    ours = value_and_gradient(CrossEntropyLoss(**options), logits, targets)
    for truth, theirs, actual in zip(exact, plain, ours, strict=True):
        assert actual.dtype is torch.float32
        rounding = torch.finfo(torch.float32).eps * truth.abs()
        slack = 2 * rounding + 2 * rounding.max() * (actual.ndim > 0)
        excess = (actual.double() - truth).abs() - (theirs.double() - truth).abs() - slack
        assert excess.max() <= 0, f"{excess.max():.2e} beyond the budget"


@reductions
@shapes
@pytest.mark.parametrize(("weighted", "positive"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_binary_cross_entropy(reduction, shape, weighted, positive, soft):
    logits, targets = logits_of(*shape, size=4.0), multilabel_of(shape, soft=soft)
    weight, pos_weight = WEIGHT if weighted else None, POS_WEIGHT if positive else None
    places = tuple(1 for _ in shape[2:])
    theirs = nn.BCEWithLogitsLoss(
        None if weight is None else weight.view(-1, *places),
        pos_weight=None if pos_weight is None else pos_weight.view(-1, *places),
        reduction=reduction,
    )
    options = {"pos_weight": pos_weight, "reduction": reduction}
    both_agree(BinaryCrossEntropyLoss(weight, **options), theirs, logits, targets)
    both_agree(
        lambda *args: binary_cross_entropy_loss(*args, weight=weight, **options),
        theirs,
        logits,
        targets,
    )


@reductions
def test_binary_cross_entropy_with_a_weight_for_each_element(reduction):
    logits, targets = logits_of(6, C), multilabel_of((6, C))
    weight = torch.linspace(0.0, 3.0, 6 * C, dtype=torch.float64).view(6, C)
    ours = BinaryCrossEntropyLoss(reduction=reduction)
    theirs = nn.BCEWithLogitsLoss(weight, reduction=reduction)
    both_agree(lambda *args: ours(*args, element_weight=weight), theirs, logits, targets)


@reductions
@pytest.mark.parametrize("positive", [False, True])
def test_binary_cross_entropy_of_one_label(reduction, positive):
    logits, targets = logits_of(8), multilabel_of((8,))
    pos_weight = torch.tensor([3.0], dtype=torch.float64) if positive else None
    theirs = nn.BCEWithLogitsLoss(pos_weight=pos_weight, reduction=reduction)
    both_agree(BinaryCrossEntropyLoss(pos_weight=pos_weight, reduction=reduction), theirs, logits, targets)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32], ids=str)
def test_binary_targets_of_any_dtype(dtype):
    logits, targets = logits_of(6, C), multilabel_of((6, C))
    expected = value_and_gradient(nn.BCEWithLogitsLoss(), logits, targets)
    actual = value_and_gradient(BinaryCrossEntropyLoss(), logits, targets.to(dtype))
    assert_close(actual, expected, **TIGHT)


def test_binary_cross_entropy_in_float32_is_as_close_to_the_truth_as_torch():
    logits, targets = logits_of(40, C, size=15.0, dtype=torch.float32), multilabel_of((40, C)).float()
    options = {"pos_weight": POS_WEIGHT.float(), "reduction": "none"}
    exact_loss = nn.BCEWithLogitsLoss(pos_weight=POS_WEIGHT, reduction="none")
    exact = value_and_gradient(exact_loss, logits.double(), targets.double())
    plain = value_and_gradient(nn.BCEWithLogitsLoss(**options), logits, targets)
    ours = value_and_gradient(BinaryCrossEntropyLoss(**options), logits, targets)
    for truth, theirs, actual in zip(exact, plain, ours, strict=True):
        slack = 4 * torch.finfo(torch.float32).eps * truth.abs() + torch.finfo(torch.float32).tiny
        assert ((actual.double() - truth).abs() <= (theirs.double() - truth).abs() + slack).all()
