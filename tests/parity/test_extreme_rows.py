"""Masked classes, ignored rows, NaN and the largest logits: the fused kernels do what the reference does."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

import equipoise as eq
from equipoise.kernels import use
from equipoise.losses import SigmoidLoss, SoftmaxLoss, asymmetric, cyclical, focal
from tests.losses.helpers import (
    IGNORED,
    REGION,
    SIGMOID,
    SOFTMAX,
    dense_of,
    each,
    indices_of,
    logits_of,
    make,
    value_and_gradient,
)
from tests.losses.test_masked_classes import FORMS, SIGMOID_FORMS, masked_logits, sigmoid_batch, targets_of
from tests.parity.budget import DEVICE, needs_kernels

pytest.importorskip("triton")

from equipoise.kernels.triton.launch import softmax as softmax_launch

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")]


def both(loss, logits, targets, state=True):
    """Value and gradient of the kernels and of the reference in float64, and that they agree; infinite ones too."""
    logits, targets = logits.detach().to(DEVICE), targets.to(DEVICE)
    twins = []
    for backend, dtype in (("triton", logits.dtype), ("reference", torch.float64)):
        twin = copy.deepcopy(loss)
        wide = targets.to(dtype) if targets.is_floating_point() else targets
        with use(backend):
            twins.append((twin, *value_and_gradient(twin, logits.to(dtype), wide)))
    (mine, value, gradient), (other, expected, slope) = twins
    torch.testing.assert_close(value.double(), expected, rtol=2e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(gradient.double(), slope, rtol=2e-5, atol=1e-6, equal_nan=True)
    for name, buffer in mine.state_dict().items() if state else ():
        torch.testing.assert_close(
            buffer, other.state_dict()[name], equal_nan=True, check_dtype=False, rtol=1e-5, atol=1e-6
        )
    return value, gradient


# ---------------------------------------------------------------------------------------------------------------------
# Masked classes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["masked index", "dense", "dense over masked"])
def test_softmax_forms(form, kind):
    logits, targets = masked_logits(torch.float32), targets_of(kind, torch.float32)
    for smoothing, weight in ((0.0, None), (0.1, None), (0.1, [2.0, 0.0, 1.0, 0.5])):
        value, gradient = both(FORMS[form](label_smoothing=smoothing, reduction="none", weight=weight), logits, targets)
        assert not value.isnan().any()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("gammas", [(2.0, 4.0), (2.5, 2.5)], ids=str)
@pytest.mark.parametrize("kind", ["masked index", "dense over masked"])
def test_more_classes_than_a_tile_holds(gammas, kind):
    classes = 1100
    logits = logits_of(5, classes, dtype=torch.float32, grad=False)
    logits[:, 2] = -math.inf
    logits[::2, 700:] = -math.inf
    logits[3, :1000] = -math.inf  # whose first tiles have nothing
    targets = torch.tensor([2, 0, 750, 5, 1])
    if kind.startswith("dense"):
        targets = dense_of((5, classes)).float()
        targets[:3] = F.normalize(targets.masked_fill(logits == -math.inf, 0.0), p=1)[:3]
    for modulation in (focal(gammas[0]), asymmetric(*gammas), cyclical(0.5, 2.0, *gammas)):
        value, gradient = both(SoftmaxLoss(modulation, label_smoothing=0.1, reduction="none"), logits, targets)
        assert not value.isnan().any()
        assert gradient.isfinite().all()


@each(SOFTMAX + REGION)
def test_every_softmax_loss(entry):
    for kind in ("masked index", "dense"):
        loss = make(entry, 4, **({"keep": 1.0} if entry.name == "OHEMLoss" else {}))
        _, gradient = both(loss, masked_logits(torch.float32), targets_of(kind, torch.float32))
        assert gradient.isfinite().all()


@pytest.mark.parametrize("form", SIGMOID_FORMS)
@pytest.mark.parametrize("margin", [0.0, 1e-3, 0.05])
def test_sigmoid_forms(form, margin):
    for detach in (False, True):
        loss = SIGMOID_FORMS[form](margin=margin, detach_focus=detach, reduction="none", pos_weight=[2.0] * 5)
        value, gradient = both(loss, *sigmoid_batch(torch.float32))
        assert not value.isnan().any()
        assert gradient.isfinite().all()


@each(SIGMOID)
def test_every_sigmoid_loss(entry):
    _, gradient = both(make(entry, 5), *sigmoid_batch(torch.float32))
    assert gradient.isfinite().all()


# ---------------------------------------------------------------------------------------------------------------------
# Ignored rows, and NaN in those that count
# ---------------------------------------------------------------------------------------------------------------------


@each(SOFTMAX + REGION)
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_ignored_rows(entry, dense):
    for shape in ((9, 4),) if dense else ((9, 4), (2, 4, 3, 5)):
        logits = logits_of(*shape, dtype=torch.float32, grad=False)
        targets = dense_of(shape, ignored=0.3).float() if dense else indices_of(shape, ignored=0.3)
        out = (targets == 0).all(1) if dense else targets == IGNORED
        clean, slope = both(make(entry, 4), logits, targets)
        for bad in (math.nan, -math.inf):
            spoiled = torch.where(out.unsqueeze(1), bad, logits)
            value, gradient = both(make(entry, 4), spoiled, targets)
            torch.testing.assert_close(value, clean)
            torch.testing.assert_close(gradient.cpu(), torch.where(out.unsqueeze(1), 0.0, slope.cpu()))


@pytest.mark.parametrize("shape", [(7, 1100), (9, 6), (2, 12, 4, 16), (2, 12, 3, 5)], ids=str)
@pytest.mark.parametrize("at_once", [False, True], ids=["two passes", "at once"])
def test_the_gradient_of_ignored_rows_is_0_for_any_logits(shape, at_once, monkeypatch):
    monkeypatch.setattr(softmax_launch, "LEAST_AT_ONCE", 0 if at_once else math.inf)
    logits, targets = logits_of(*shape, dtype=torch.float32, grad=False), indices_of(shape, ignored=0.5)
    out = (targets == IGNORED).unsqueeze(1)
    for form, smoothing in (("cross-entropy", 0.0), ("focal", 0.1), ("asymmetric", 0.1), ("Brier", 0.0)):
        loss = FORMS[form](label_smoothing=smoothing)
        clean, slope = both(loss, logits, targets)
        assert slope.cpu()[out.expand(shape)].eq(0).all()
        for bad in (math.nan, math.inf, -3e38):
            spoiled = logits.clone()
            spoiled[:, ::2] = torch.where(out, bad, logits[:, ::2])
            with use("triton"):
                value, gradient = value_and_gradient(loss, spoiled.to(DEVICE), targets.to(DEVICE))
            assert torch.equal(value, clean)
            assert torch.equal(gradient, slope)


@pytest.mark.parametrize(("classes", "bad"), [(4, math.nan), (4, math.inf), (700, math.nan)])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}], ids=str)
def test_a_batch_with_nan_leaves_the_running_recall_alone(classes, options, bad):
    logits, targets = logits_of(30, classes, grad=False, dtype=torch.float32), indices_of((30, classes), ignored=0.2)
    loss = eq.RecallLoss(classes, momentum=0.1, **options).to(DEVICE)
    logits, targets = logits.to(DEVICE), targets.to(DEVICE)
    with use("triton"):
        loss(logits, targets)
        before = copy.deepcopy(loss.state_dict())
        row = int((targets != IGNORED).nonzero()[-1])
        spoiled = logits.clone()
        spoiled[row, 2] = bad
        assert loss(spoiled, targets).isnan()
        for name, buffer in loss.state_dict().items():
            assert torch.equal(buffer, before[name]), name
        spoiled = torch.where((targets == IGNORED).unsqueeze(1), bad, logits)
        assert loss(spoiled, targets).isfinite()
        assert not torch.equal(loss.batch_weights[0].batches, before["batch_weights.0.batches"])


# ---------------------------------------------------------------------------------------------------------------------
# The largest logits
# ---------------------------------------------------------------------------------------------------------------------

LARGE = [
    [1e8, 1e8 - 8, 0.0, -1e8], [3e8, 3e8 - 32, 3e8, 1.0], [1.5e9, 1.5e9, 0.0, -1e9], [-1.5e9, -1.5e9 - 128, -2e9, -3e9],
    [1e31, 0.0, -1e31, 5.0], [-1e31, -2e31, -1e32, -1e31], [3e38, -3e38, 0.0, 1.0], [-3e38, -3.2e38, -3e38, -3.1e38],
    [2e38, 2e38, 2e38, 2e38], [-math.inf, -2e38, -math.inf, -3e38], [0.0, 1.0, 2.0, -3e38], [7e4, -7e4, 7e4, 6e4],
]  # fmt: skip


@pytest.mark.parametrize("form", ["cross-entropy", "focal", "focal 2.5", "asymmetric", "cycle 0.7", "Brier"])
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
@pytest.mark.parametrize("wide", [False, True], ids=["one tile", "several"])
def test_the_largest_logits(form, dense, wide):
    logits = torch.tensor(LARGE)
    targets = torch.arange(len(LARGE)) % 4
    if wide:
        logits = torch.cat([torch.full((len(LARGE), 1100), -math.inf), logits], 1)
        targets = targets + 1100
    if dense:
        targets = F.one_hot(targets, logits.shape[1]).float()
    for smoothing in (0.0, 0.1):
        loss = FORMS[form](label_smoothing=smoothing, reduction="none")
        with use("triton"):
            value, gradient = value_and_gradient(loss, logits.to(DEVICE), targets.to(DEVICE))
        with use("reference"):
            expected, slope = value_and_gradient(loss, logits.to(DEVICE), targets.to(DEVICE))
        assert not value.isnan().any()
        moderate = expected < 1e30  # beyond, what is counted in units of log 2 overflows earlier
        torch.testing.assert_close(value[moderate], expected[moderate], rtol=2e-5, atol=2e-4)
        torch.testing.assert_close(gradient, slope, rtol=2e-4, atol=2e-4)


@each(REGION)
def test_regions_of_the_largest_logits(entry):
    logits, loss = torch.tensor([row for row in LARGE if -math.inf not in row]), make(entry, 4)
    targets = torch.arange(len(logits)) % 4
    if entry.name != "LovaszSoftmaxLoss":
        both(loss, logits, targets)
    else:  # whose gradient depends on the order of errors that vanish in one precision and not in the other
        with use("triton"):
            value, gradient = value_and_gradient(loss, logits.to(DEVICE), targets.to(DEVICE))
        assert value.isfinite()
        assert gradient.isfinite().all()


def test_sigmoid_losses_of_the_largest_logits():
    logits = torch.tensor([[-3e38, -1e31, -1.5e9, 0.0, 1.5e9, 1e31, 3e38]]).repeat(3, 1)
    targets = torch.tensor([[0.0], [1.0], [0.4]]).expand_as(logits).contiguous()
    for gamma in (0.0, 0.5, 2.0, 4.0):
        for loss in (SigmoidLoss(focal(gamma)), eq.AsymmetricLoss(gamma, gamma_neg=gamma)):
            with use("triton"):
                value, gradient = value_and_gradient(loss, logits.to(DEVICE), targets.to(DEVICE))
            with use("reference"):
                _, slope = value_and_gradient(loss, logits.to(DEVICE), targets.to(DEVICE))
            assert not value.isnan()
            torch.testing.assert_close(gradient, slope)
