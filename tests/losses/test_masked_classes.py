"""Logits of minus infinity take a class out: everything is what it tends to as the logit falls, and never NaN."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from equipoise import AsymmetricSoftmaxLoss, BrierLoss, CrossEntropyLoss, FocalLoss, SigmoidLoss, SoftmaxLoss
from equipoise.losses import Adjustment, ByConfidence, asymmetric, cyclical, focal
from tests.losses.helpers import REGION, SIGMOID, SOFTMAX, dense_of, each, logits_of, make, value_and_gradient

C = 4
N = 12
MASKED = (1, 3)
FORMS = {
    "cross-entropy": lambda **o: CrossEntropyLoss(**o),
    "focal": lambda **o: FocalLoss(2.0, **o),
    "focal 2.5": lambda **o: FocalLoss(2.5, **o),
    "focal by class": lambda **o: FocalLoss(gamma=[2.0, 0.0, 0.5, 5.0], **o),
    "by confidence": lambda **o: FocalLoss(ByConfidence(((0.2, 5.0), (1.0, 3.0))), **o),
    "asymmetric": lambda **o: AsymmetricSoftmaxLoss(1.0, gamma_neg=4.0, **o),
    "asymmetric 2.5": lambda **o: SoftmaxLoss(asymmetric(0.5, 2.5), **o),
    "asymmetric 0": lambda **o: SoftmaxLoss(asymmetric(2.0, [0.0, 0.0, 1.0, 2.5]), **o),
    "cycle starts": lambda **o: SoftmaxLoss(cyclical(1.0, 3.0, 2.0, 2.0), **o),
    "cycle 0.7": lambda **o: SoftmaxLoss(cyclical(0.7, 3.0, 2.0, 2.5), **o),
    "cycle 0.3": lambda **o: SoftmaxLoss(cyclical(0.3, 2.5, 1.5, 4.0), **o),
    "adjusted": lambda **o: SoftmaxLoss(
        focal(2.0), adjustment=Adjustment((0.5, -0.2, 1.0, 0.1), 1.0, (0.2, 0.4, 1.0, 0.3), 0.5, 2.0), **o
    ),
    "Brier": lambda **o: BrierLoss(**o),
}
KINDS = ("index", "masked index", "one-hot", "dense", "dense over masked")
forms = pytest.mark.parametrize("form", FORMS)
kinds = pytest.mark.parametrize("kind", KINDS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def masked_logits(dtype, low=-math.inf, classes=C, rows=N):
    logits = logits_of(rows, classes, dtype=dtype, grad=False)
    logits[:, MASKED[0]] = low
    logits[::2, MASKED[1]] = low
    logits[1] += 40.0 * F.one_hot(torch.tensor(0), classes)  # a row that is sure
    return logits


def targets_of(kind, dtype, rows=N):
    """Indices of classes that are there or not, and distributions that give masked classes nothing or something."""
    indices = torch.tensor([0, 2] * (rows // 2))
    if kind == "index":
        return indices
    if kind == "masked index":
        return torch.arange(rows) % C
    if kind == "one-hot":
        return F.one_hot(indices, C).to(dtype)
    dense = dense_of((rows, C), ignored=0.2).to(dtype)
    if kind == "dense":
        dense[:, list(MASKED)] = 0.0
    return dense


def limits(loss, logits, targets):
    """Loss and gradient for logits far below all others; a loss that grows with their distance tends to infinity."""
    far, farther = (torch.where(logits == -math.inf, low, logits.double()) for low in (-1e4, -2e4))
    wide = targets.double() if targets.is_floating_point() else targets
    (value, gradient), (further, _) = (value_and_gradient(copy.deepcopy(loss), z, wide) for z in (far, farther))
    return torch.where(further > value + 1e-3, math.inf, value), gradient


def check_limits(loss, logits, targets):
    value, gradient = value_and_gradient(copy.deepcopy(loss), logits, targets)
    expected, slope = limits(loss, logits, targets)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if logits.dtype is torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    assert_close(value.double(), expected, **tolerance)
    assert_close(gradient.double(), slope, **tolerance)


@forms
@kinds
@dtypes
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_forms_tend_to_their_limits(form, kind, dtype, smoothing):
    logits, targets = masked_logits(dtype), targets_of(kind, dtype)
    check_limits(FORMS[form](label_smoothing=smoothing, reduction="none"), logits, targets)
    weighted = FORMS[form](label_smoothing=smoothing, reduction="none", weight=[2.0, 0.0, 1.0, 0.5])
    check_limits(weighted, logits, targets)


@each(SOFTMAX + REGION)
@kinds
def test_every_softmax_loss_tends_to_its_limit(entry, kind):
    # which of several infinite rows are the hardest is open
    loss = make(entry, C, **({"keep": 1.0} if entry.name == "OHEMLoss" else {}))
    logits, targets = masked_logits(torch.float64), targets_of(kind, torch.float64)
    for epoch in (0, 2, 5, 8) if getattr(loss, "scheduled", False) else (None,):
        if epoch is not None:
            loss.set_epoch(epoch)
        check_limits(loss, logits, targets)


@pytest.mark.parametrize("low", [-1e4, -1e30, -3e38, -math.inf])
def test_the_gradient_of_a_masked_target(low):
    logits, targets = torch.tensor([[0.0, 1.0, low]]), torch.tensor([2])
    for loss in (FocalLoss(2.0), FocalLoss(2.5), CrossEntropyLoss(), SoftmaxLoss(cyclical(0.5, 2.0, 2.0, 2.0))):
        _, gradient = value_and_gradient(loss, logits, targets)
        assert_close(gradient, torch.tensor([[0.26894142, 0.73105858, -1.0]]))


def test_torch_agrees_where_it_has_a_number():
    logits = masked_logits(torch.float64)
    for targets in (targets_of("index", None), targets_of("masked index", None)):
        for smoothing in (0.0, 0.1):
            options = {"label_smoothing": smoothing, "reduction": "none"}
            actual = value_and_gradient(CrossEntropyLoss(**options), logits, targets)
            assert_close(actual, value_and_gradient(torch.nn.CrossEntropyLoss(**options), logits, targets))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@kinds
def test_non_finite_values_propagate(bad, kind):
    for form in FORMS.values():
        for smoothing in (0.0, 0.1):
            logits, targets = masked_logits(torch.float32), targets_of(kind, torch.float32)
            logits[3, 2] = bad
            rows = form(label_smoothing=smoothing, reduction="none")(logits, targets)
            if not targets.is_floating_point() or targets[3].any():
                assert rows[3].isnan()
            assert not rows[[0, 1, 2, 4]].isnan().any()
            if targets.is_floating_point():
                targets[5, 0] = math.nan
                assert form(label_smoothing=smoothing, reduction="none")(logits, targets)[5].isnan()


def test_all_classes_masked_is_nan_as_in_torch():
    logits, targets = torch.full((2, 3), -math.inf), torch.tensor([0, 1])
    assert FocalLoss()(logits, targets).isnan()
    assert F.cross_entropy(logits, targets).isnan()


SIGMOID_FORMS = {
    "binary cross-entropy": lambda **o: SigmoidLoss(**o),
    "focal": lambda **o: SigmoidLoss(focal(2.0), **o),
    "focal 2.5": lambda **o: SigmoidLoss(focal(2.5), **o),
    "asymmetric": lambda **o: SigmoidLoss(asymmetric(1.0, 4.0), **o),
    "asymmetric 2.5": lambda **o: SigmoidLoss(asymmetric(0.5, 2.5), **o),
    "cyclical": lambda **o: SigmoidLoss(cyclical(0.7, 3.0, 2.0, 2.0), **o),
    "cyclical 2.5": lambda **o: SigmoidLoss(cyclical(0.3, 3.0, 2.5, 0.5), **o),
}


def sigmoid_batch(dtype, low=-math.inf):
    logits = logits_of(4, 5, dtype=dtype, grad=False)
    logits[:, 1] = low
    logits[1, 2] = low
    targets = torch.tensor([0.0, 1.0, 0.3, -1.0], dtype=dtype).unsqueeze(1).expand(4, 5).clone()
    return logits, targets


@pytest.mark.parametrize("form", SIGMOID_FORMS)
@dtypes
@pytest.mark.parametrize("margin", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("detached", [False, True])
def test_sigmoid_forms_tend_to_their_limits(form, dtype, margin, detached):
    loss = SIGMOID_FORMS[form](margin=margin, detach_focus=detached, reduction="none", pos_weight=[2.0] * 5)
    check_limits(loss, *sigmoid_batch(dtype))


@each(SIGMOID)
def test_every_sigmoid_loss_ignores_masked_negatives(entry):
    logits, targets = sigmoid_batch(torch.float64)
    check_limits(make(entry, 5, reduction="none"), logits, targets)
    negatives = torch.where(logits == -math.inf, 0.0, targets)
    value, gradient = value_and_gradient(make(entry, 5), logits, negatives)
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert torch.equal(gradient[logits == -math.inf], torch.zeros_like(gradient[logits == -math.inf]))


def test_certain_sigmoid_labels_at_infinity():
    """The masked negative and its mirror image, a positive at plus infinity, cost nothing; the others all there is."""
    logits = torch.tensor([[-math.inf, math.inf, -math.inf, math.inf]])
    targets = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    for form in SIGMOID_FORMS.values():
        value, gradient = value_and_gradient(form(reduction="none"), logits, targets)
        assert value.tolist() == [[0.0, 0.0, math.inf, math.inf]]
        assert gradient.isfinite().all()


def test_large_batches_are_masked_in_blocks():
    """Of which some have masked classes and others have none."""
    logits = logits_of(9000, 80, dtype=torch.float32, grad=False)
    targets = torch.softmax(logits_of(9000, 80, seed=1, dtype=torch.float32, grad=False), 1)
    logits[7000:, 3], targets[7000:, 3] = -math.inf, 0.0
    for loss in (CrossEntropyLoss(reduction="none"), FocalLoss(2.0, reduction="none")):
        value, gradient = value_and_gradient(loss, logits, targets)
        few, slopes = value_and_gradient(loss, logits[6999:7010], targets[6999:7010])
        assert_close(value[6999:7010], few)
        assert value.isfinite().all()
        assert gradient.isfinite().all()
        assert_close((gradient[6999:7010] != 0).float(), (slopes != 0).float())
