"""The fused kernels of the pointwise losses against plain PyTorch: as close to the float64 truth."""

import copy
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

import equipoise as eq
from equipoise.catalogue import CATALOGUE
from equipoise.kernels import explain, use
from equipoise.kernels.autograd import softmax_rows
from equipoise.kernels.spec import SoftmaxSpec
from equipoise.losses import SigmoidLoss, SoftmaxLoss, asymmetric, cyclical, focal, logit_adjustment, margin_adjustment
from equipoise.losses.base import Scalar
from equipoise.weights import RecallWeights
from equipoise.weights.recall import SPOILED
from tests.losses.helpers import (
    IGNORED,
    REDUCTIONS,
    SIGMOID,
    SOFTMAX,
    batch_of,
    check_gradients_at_once,
    dense_of,
    each,
    indices_of,
    logits_of,
    make,
    multilabel_of,
    value_and_gradient,
)
from tests.marks import slow
from tests.parity.budget import CUDA, DEVICE, DTYPES, captured, check_parity, needs_kernels

pytest.importorskip("triton")

from equipoise.kernels.triton import autograd as fused
from equipoise.kernels.triton import ops
from equipoise.kernels.triton.launch import rows as rows_launch
from equipoise.kernels.triton.launch import sigmoid as sigmoid_launch
from equipoise.kernels.triton.launch import softmax as softmax_launch

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")]

# On and off the block sizes: one tile and several, rows next to each other and strided, more classes than a tile holds.
SHAPES = [(33, 5), (3, 1), (2, 1100), (2, 19, 3, 31), (2, 3, 2, 3, 4)]
SHAPES += slow((1, 2), (130, 3), (2, 19, 9, 31), (1, 4, 300), (2, 70, 11))


@each(SOFTMAX)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_softmax_loss(entry, dtype):
    loss = make(entry, 7)
    for shape in ((37, 7), (2, 7, 5, 9)):
        logits, targets = batch_of(entry, shape, ignored=0.2, dtype=dtype, size=2.0)
        check_parity(loss, logits, targets)


@each(SIGMOID)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_sigmoid_loss(entry, dtype):
    loss = make(entry, 7)
    for shape in ((37, 7), (2, 7, 5, 9)):
        logits, targets = batch_of(entry, shape, ignored=0.2, dtype=dtype, size=2.0)
        check_parity(loss, logits, targets)


def softmax_loss(num_classes, **options):
    counts = [1000.0 / (1 + k) for k in range(num_classes)]
    return SoftmaxLoss(
        focal(1.5),
        weight=[0.5 + k % 3 for k in range(num_classes)],
        adjustment=logit_adjustment(counts),
        **options,
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1], ids=["plain", "smooth"])
def test_softmax_shapes(shape, smoothing):
    loss = softmax_loss(shape[1], label_smoothing=smoothing)
    check_parity(loss, logits_of(*shape, dtype=torch.float32, size=2.0), indices_of(shape, ignored=0.2))
    check_parity(loss, logits_of(*shape, dtype=torch.float32, size=2.0), dense_of(shape, ignored=0.2).float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sigmoid_shapes(shape):
    loss = SigmoidLoss(asymmetric(1.0, 2.5), margin=0.05, weight=[0.5 + k % 3 for k in range(shape[1])])
    check_parity(loss, logits_of(*shape, dtype=torch.float32), multilabel_of(shape, ignored=0.2).float())


def parts(num_classes):
    by_class = [0.5 + k % 3 for k in range(num_classes)]
    counts = [1000.0 / (1 + k) for k in range(num_classes)]
    return {
        "cross-entropy": {},
        "focal": {"modulation": focal(2.0)},
        "focal by class": {"modulation": focal(by_class)},
        "cyclical": {"modulation": cyclical(0.3, 2.5, 1.0, 3.0)},
        "asymmetric": {"modulation": asymmetric(1.0, 4.0)},
        "asymmetric by class": {"modulation": asymmetric(by_class, by_class)},
        "weighted": {"weight": by_class},
        "margin and scale": {"adjustment": margin_adjustment(counts, scale=3.0)},
        "offset": {"adjustment": logit_adjustment(counts), "modulation": focal(1.5), "weight": by_class},
    }


@pytest.mark.parametrize("name", parts(3))
@pytest.mark.parametrize("smoothing", [0.0, 0.2], ids=["plain", "smooth"])
@pytest.mark.parametrize("kind", ["index", "dense"])
def test_softmax_parts(name, smoothing, kind):
    shape = (3, 6, 20)
    loss = SoftmaxLoss(**parts(6)[name], label_smoothing=smoothing)
    targets = indices_of(shape, ignored=0.2) if kind == "index" else dense_of(shape, ignored=0.2).float()
    check_parity(loss, logits_of(*shape, dtype=torch.float32, size=2.0), targets)


@pytest.mark.parametrize("margin", [0.0, 0.001, 0.05, 0.3])
@pytest.mark.parametrize("gammas", [(0.0, 0.0), (0.0, 1.0), (1.0, 4.0), (0.5, 2.5), (2.0, 0.0)], ids=str)
@pytest.mark.parametrize("detach", [False, True], ids=["through", "detached"])
def test_sigmoid_parts(margin, gammas, detach):
    shape = (11, 9)
    loss = SigmoidLoss(
        asymmetric(*gammas), margin=margin, detach_focus=detach, pos_weight=[2.0] * 9, alpha=0.3, reduction="sum"
    )
    weight = torch.rand(11, 1, generator=torch.Generator().manual_seed(3))
    for soft in (False, True):
        targets = multilabel_of(shape, ignored=0.2, soft=soft).float()
        check_parity(loss, logits_of(*shape, dtype=torch.float32, size=3.0), targets, element_weight=weight)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions_and_statistics(reduction):
    shape = (3, 7, 4, 5)
    logits, targets = logits_of(*shape, dtype=torch.float32), indices_of(shape, ignored=0.2, absent=(2,))
    labels = multilabel_of(shape, ignored=0.2).float()
    for loss in (
        eq.FocalLoss(weight=[1.0, 2, 3, 4, 5, 6, 7], reduction=reduction),
        eq.RecallLoss(7, reduction=reduction),
        eq.RecallLoss(7, momentum=0.1, reduction=reduction),
        eq.RecallLoss(7, label_smoothing=0.1, weight=[1.0, 2, 3, 4, 5, 6, 7], reduction=reduction),
        eq.PrecisionLoss(7, reduction=reduction),
        eq.OHEMLoss(0.5, reduction=reduction),
    ):
        check_parity(loss, logits, targets)
        check_parity(loss.eval(), logits, targets)
    check_parity(eq.RecallLoss(7, reduction=reduction), logits, dense_of(shape, ignored=0.2).float())
    for loss in (
        eq.AsymmetricLoss(target_gap=0.2, reduction=reduction),
        eq.AsymmetricLoss(target_gap=0.2, per_class=True, reduction=reduction),
        eq.BinaryFocalLoss(reduction=reduction),
    ):
        check_parity(loss, logits, labels)
    if reduction != "none":
        check_parity(eq.RecallLoss(7, reduction=reduction), logits, targets, normalizer=17.0)
        check_parity(eq.FocalLoss(reduction=reduction), logits, targets, normalizer=torch.tensor(17.0))
        check_parity(eq.AsymmetricLoss(reduction=reduction), logits, labels, normalizer=17.0)


@pytest.mark.parametrize("shape", [(300, 5), (4, 1100), *slow((9, 1100), (3, 19, 30, 9), (2, 9, 16, 64))], ids=str)
def test_programs_that_take_several_tiles(shape, monkeypatch):
    """One with all tiles, and three of which the last has fewer; their sums added up by themselves and by a kernel."""
    by_class = [0.5 + k % 3 for k in range(shape[1])]
    losses = [
        eq.FocalLoss(weight=by_class),
        eq.AsymmetricSoftmaxLoss(reduction="valid_mean"),
        eq.RecallLoss(shape[1], momentum=0.1, reduction="batch_mean"),
    ]
    logits, targets = logits_of(*shape, dtype=torch.float32, size=2.0), indices_of(shape, ignored=0.2)
    labels = multilabel_of(shape, ignored=0.2).float()
    for programs, few in ((1, 1), (3, 0)):
        monkeypatch.setattr(softmax_launch, "MOST_PROGRAMS", programs)
        monkeypatch.setattr(rows_launch, "FEW_PROGRAMS", few)
        for cached in (softmax_launch._forward_plan, sigmoid_launch._forward_plan):
            cached.cache_clear()
        for loss in losses:
            check_parity(loss, logits, targets)
        check_parity(eq.AsymmetricLoss(weight=by_class, reduction="mean"), logits, labels)
        check_parity(eq.AsymmetricLoss(target_gap=0.2, reduction="mean"), logits, labels)
    for cached in (softmax_launch._forward_plan, sigmoid_launch._forward_plan):
        cached.cache_clear()


@pytest.mark.parametrize("classes", [7, *slow(1100)])
def test_classes_that_are_masked_out(classes):
    """Logits of minus infinity: no gradient there, and a loss that counts them as the reference does."""
    logits = logits_of(12, classes, dtype=torch.float32, grad=False)
    logits[:, 2] = float("-inf")
    targets = torch.arange(12) % classes
    targets[targets == 2] = 3
    for loss in (
        eq.FocalLoss(),
        eq.BrierLoss(),
        eq.RecallLoss(classes),
        SoftmaxLoss(asymmetric(1.0, 4.0)),
        eq.AsymmetricSoftmaxLoss(),
        SoftmaxLoss(asymmetric(1.0, 2.5), label_smoothing=0.1),
    ):
        check_parity(loss, logits, targets)
        with use("triton"):
            value, gradient = value_and_gradient(loss, logits.to(DEVICE), targets.to(DEVICE))
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert (gradient[:, 2] == 0).all()


@pytest.mark.parametrize("init", ["first", "published"])
@pytest.mark.parametrize("floor", [False, True])
def test_running_recall(init, floor):
    """Batches one after the other, of which the second lacks a class."""
    weights = [RecallWeights(5, momentum=0.3, init=init, floor_average=floor, min_errors=2.0) for _ in range(2)]
    losses = [SoftmaxLoss(weight=part).to(DEVICE) for part in weights]
    for step, absent in enumerate(((), (1,), (0, 4))):
        logits = logits_of(40, 5, dtype=torch.float32, seed=step).detach().to(DEVICE).requires_grad_()
        targets = indices_of((40, 5), ignored=0.1, absent=absent).to(DEVICE)
        values = []
        for loss, backend in zip(losses, ("triton", "reference"), strict=True):
            with use(backend):
                values.append(loss(logits, targets))
        torch.testing.assert_close(*values)
        for name in ("recall", "batches"):
            torch.testing.assert_close(*(getattr(part, name) for part in weights))


@pytest.mark.parametrize("classes", [127, 128, 300])
def test_counting_by_class_beyond_the_table(classes):
    shape = (40, classes)
    check_parity(eq.RecallLoss(classes), logits_of(*shape, dtype=torch.float32), indices_of(shape, ignored=0.2))


@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (40, 32), *slow((3, 19, 30, 9), (2, 4, 16, 64), (70, 10))], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_recall_of_short_rows(shape, dtype):
    """Forward keeps only their codes, and backward computes their sums again."""
    logits, targets = logits_of(*shape, dtype=dtype, size=2.0), indices_of(shape, ignored=0.2)
    for part in parts(shape[1]).values():
        fixed = [part["weight"]] if "weight" in part else []
        check_parity(SoftmaxLoss(**{**part, "weight": [*fixed, RecallWeights(shape[1])]}), logits, targets)


@pytest.mark.parametrize(("classes", "kept"), [(2, False), (32, False), (33, True), (1100, True)])
def test_what_forward_keeps_of_rows_that_it_has_coded(classes, kept):
    loss, logits = eq.RecallLoss(classes).to(DEVICE), logits_of(6, classes, 2, dtype=torch.float32).to(DEVICE)
    targets, spec = torch.zeros(6, 2, dtype=torch.int64, device=DEVICE), SoftmaxSpec(loss.layout, IGNORED)
    arguments = (logits, targets, None, loss.hyper(logits), spec)
    with torch.no_grad():
        done = softmax_launch.softmax_forward(*arguments, keep_rows=True, hits=True, coded=True)
        assert (done.state is not None) == kept
        assert softmax_launch.softmax_forward(*arguments, keep_rows=True, hits=True).state is not None


def test_ties_go_to_the_first_class():
    logits = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
    check_parity(eq.RecallLoss(3, min_errors=0.0), logits, torch.tensor([1, 1, 2]))
    check_parity(eq.RecallLoss(3, min_errors=0.0), logits, torch.tensor([0, 2, 0]))


@pytest.mark.parametrize("targets", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_integer_targets_as_they_are(targets):
    shape = (3, 5, 40)
    drawn = indices_of(shape, ignored=0.2, ignore_index=255 if targets is torch.uint8 else IGNORED)
    ignored = 255 if targets is torch.uint8 else IGNORED
    for loss in (eq.FocalLoss(ignore_index=ignored), eq.RecallLoss(5, ignore_index=ignored)):
        check_parity(loss, logits_of(*shape, dtype=torch.float32), drawn.to(targets))
    check_parity(eq.BinaryFocalLoss(), logits_of(3, 5, dtype=torch.float32), multilabel_of((3, 5)).to(targets))


def test_a_class_that_small_types_take_for_an_ignored_one():
    """156 is -100 in uint8; compiled code reads the weights of recall loss by the labels."""
    logits, targets = logits_of(6, 200, dtype=torch.float32).detach(), torch.tensor([0, 0, 156, 156, 156, 7])
    logits[0, 0] = logits[2, 156] = logits[3, 156] = 9.0  # other recalls of both
    logits, targets = logits.to(DEVICE), targets.to(DEVICE)
    torch.compiler.reset()
    with use("triton"):
        compiled = torch.compile(eq.RecallLoss(200), fullgraph=True, backend="inductor" if CUDA else "aot_eager")
        expected = value_and_gradient(eq.RecallLoss(200), logits, targets)
        for loss in (compiled, eq.RecallLoss(200)):
            for got, wanted in zip(value_and_gradient(loss, logits, targets.to(torch.uint8)), expected, strict=True):
                torch.testing.assert_close(got, wanted)


def test_labels_that_small_types_take_for_unknown_ones(monkeypatch):
    """255 is -1 in uint8; without validation, as on a CUDA device, it is an invalid label for both backends."""
    monkeypatch.setattr("equipoise._checks.checks_values", lambda tensor, validate: validate)
    targets = multilabel_of((5, 4), ignored=0.2).to(torch.int16).to(torch.uint8)
    assert targets.max() == 255
    for loss in (eq.BinaryFocalLoss(), eq.AsymmetricLoss(target_gap=0.5), eq.DistributionBalancedLoss([4, 3, 2, 1], 9)):
        check_parity(loss, logits_of(5, 4, dtype=torch.float32), targets)
        check_parity(loss, logits_of(5, 4, dtype=torch.float32), targets.bool())


def strided(shape):
    """The same logits in several layouts."""
    logits = logits_of(*shape, dtype=torch.float32, size=2.0, grad=False)
    wide = torch.zeros(shape[0], shape[1] + 1, shape[2] + 1, shape[3] + 2)
    wide[:, 1:, 1:, :-2] = logits
    wide = wide.to(DEVICE)
    return {
        "channels last": logits.to(memory_format=torch.channels_last),
        "slice": wide[:, 1:, 1:, :-2],
        "transposed": logits.transpose(2, 3).contiguous().transpose(2, 3),
        "batch last": logits.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
        "expanded": logits[:1].expand(shape),
    }


@pytest.mark.parametrize("layout", strided((2, 5, 6, 7)))
def test_any_strides(layout):
    shape = (2, 5, 6, 7)
    logits = strided(shape)[layout].to(DEVICE)
    targets = indices_of(shape, ignored=0.2).transpose(1, 2).contiguous().transpose(1, 2)
    before = logits.clone()
    check_parity(eq.FocalLoss(), logits, targets)
    check_parity(eq.RecallLoss(5), logits, targets)
    check_parity(eq.FocalLoss(label_smoothing=0.1), logits, dense_of(shape).float())
    check_parity(eq.AsymmetricLoss(), logits, multilabel_of(shape, ignored=0.2).float())
    check_parity(eq.AsymmetricLoss(weight=[1.0, 2, 3, 4, 5]), logits, multilabel_of(shape, ignored=0.2).float())
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_second_pixel(dtype):
    """Aligned, in planes of a good size, but neighbours are not to be loaded at once."""
    shape = (2, 19, 24, 26)
    room = torch.full((2, 19, 48, 52), float("nan"), dtype=dtype, device=DEVICE)
    logits = room[:, :, ::2, ::2]
    logits.copy_(logits_of(*shape, dtype=torch.float32))
    targets = indices_of(shape, ignored=0.2)
    for loss in (eq.FocalLoss(), eq.RecallLoss(19), eq.CrossEntropyLoss(label_smoothing=0.1)):
        check_parity(loss, logits, targets)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_dense_targets_without_mass(dtype):
    """Rows that do not count, in tiles that hold neither all classes of a row nor one row a thread."""
    shape = (2, 40, 16, 24)
    targets = dense_of(shape).float()
    targets[torch.rand(2, 16, 24, generator=torch.Generator().manual_seed(1)).unsqueeze(1).expand(shape) < 0.3] = 0.0
    for loss in (eq.CrossEntropyLoss(), eq.BrierLoss(reduction="valid_mean")):
        check_parity(loss, logits_of(*shape, dtype=dtype), targets)


def test_dimensions_that_cannot_be_merged():
    shape = (2, 3, 4, 5, 2, 3)
    logits = logits_of(*(size + 1 for size in shape), dtype=torch.float32, grad=False)[1:, 1:, 1:, 1:, 1:, 1:]
    check_parity(eq.FocalLoss(), logits, indices_of(shape, ignored=0.2))
    check_parity(eq.RecallLoss(3), logits, indices_of(shape, ignored=0.2))
    check_parity(eq.AsymmetricLoss(weight=[1.0, 2.0, 3.0]), logits, multilabel_of(shape).float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, *slow(0.1, 1.0, 5.0)])
def test_extreme_logits(dtype, gamma):
    size = 6e4 if dtype is torch.float16 else 1e4
    draw = torch.Generator().manual_seed(0)
    logits = (size * (2.0 * torch.rand(40, 6, generator=draw) - 1.0)).to(dtype)
    logits[:6] = size * (2.0 * torch.eye(6) - 1.0)
    targets = torch.arange(40) % 6
    recall = eq.FocalLoss(gamma, weight=RecallWeights(6))
    for loss in (eq.FocalLoss(gamma), eq.FocalLoss(gamma, label_smoothing=0.1), recall):
        check_parity(loss, logits, targets)
        value, gradient = value_and_gradient(loss, logits.to(DEVICE), targets.to(DEVICE))
        assert value.isfinite()
        assert gradient.isfinite().all()
    labels = (torch.rand(40, 6, generator=draw) < 0.5).float()
    for margin in (0.0, 0.05):
        check_parity(eq.AsymmetricLoss(gamma, gamma_neg=gamma, margin=margin), logits, labels)


@pytest.mark.parametrize("classes", [5, 1100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_margin_wider_than_the_exponential_reaches(classes, smoothing):
    loss = SoftmaxLoss(
        focal(1.5),
        adjustment=margin_adjustment([1.0] * classes, max_margin=2.0, scale=100.0),
        label_smoothing=smoothing,
    )
    logits = logits_of(6, classes, dtype=torch.float32, grad=False)
    targets = torch.arange(6) % classes
    logits[torch.arange(6), targets] += torch.tensor([1.0, 2.0, 4.0, 5.0, 6.0, 9.0])
    check_parity(loss, logits, targets)
    with use("triton"):
        assert all(
            result.isfinite().all() for result in value_and_gradient(loss, logits.to(DEVICE), targets.to(DEVICE))
        )


def test_no_valid_row():
    with use("triton"):
        for shape in ((0, 5), (2, 5, 0), (4, 5)):
            targets = torch.full((shape[0], *shape[2:]), IGNORED, device=DEVICE)
            for loss in (eq.FocalLoss(), eq.RecallLoss(5), eq.FocalLoss(label_smoothing=0.1)):
                logits = torch.randn(shape, device=DEVICE, requires_grad=True)
                value = loss(logits, targets)
                value.backward()
                assert value.item() == 0.0
                assert torch.equal(logits.grad, torch.zeros_like(logits))
            logits = torch.randn(shape, device=DEVICE, requires_grad=True)
            value = eq.AsymmetricLoss(reduction="mean")(logits, torch.full(shape, -1.0, device=DEVICE))
            value.backward()
            assert value.item() == 0.0
            assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_a_label_out_of_range_is_not_a_number():
    with use("triton"):
        for loss in (eq.FocalLoss(), eq.FocalLoss(label_smoothing=0.1)):
            logits = torch.randn(3, 5, 4, device=DEVICE)
            targets = torch.tensor([[0, 5, 1, -1], [2, 2, 2, 2], [4, 3, 1, 77]], device=DEVICE)
            wrong = (targets < 0) | (targets > 4)
            spec = SoftmaxSpec(loss.layout, IGNORED)
            values = softmax_rows("triton", logits, targets, None, loss.hyper(logits), spec)
            assert torch.equal(values.isnan(), wrong)


@pytest.mark.parametrize("classes", [5, 40])
def test_a_label_out_of_range_is_not_a_number_and_spoils_the_counts(classes):
    """Whether forward keeps sums of the rows or not."""
    logits = torch.randn(2, classes, 3, device=DEVICE, requires_grad=True)
    targets = torch.tensor([[0, classes, 1], [IGNORED, 1, -1]], device=DEVICE)
    wrong = torch.tensor([[False, True, False], [False, False, True]], device=DEVICE)
    counts = []

    def weigh(counted):
        counts.append(counted)
        return torch.ones(classes, device=DEVICE)

    loss, _, _ = fused.softmax_weighed(
        logits, targets, torch.empty(0, device=DEVICE), SoftmaxSpec(), weigh, "valid_mean"
    )
    loss.backward()
    assert loss.isnan()
    assert torch.equal(logits.grad.isnan().all(1), wrong)
    assert torch.equal(logits.grad.isnan().any(1), wrong)
    assert (counts[0][0] - SPOILED).tolist() == [1, 2] + [0] * (classes - 2)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_losses_may_be_changed_in_place(reduction):
    """As in ``loss += penalty``: what a loss returns is no view, and backward does not need it."""
    shape = (6, 5)
    logits, labels = torch.randn(shape, device=DEVICE), indices_of(shape).to(DEVICE)
    cases = [
        (eq.FocalLoss(reduction=reduction), labels),
        (eq.RecallLoss(5, reduction=reduction), labels),
        (eq.AsymmetricLoss(reduction=reduction), multilabel_of(shape).float().to(DEVICE)),
        (eq.AsymmetricLoss(target_gap=0.1, reduction=reduction), multilabel_of(shape).float().to(DEVICE)),
    ]
    for loss, targets in cases:
        gradients = []
        for in_place in (True, False):
            with use("triton"):
                leaf = logits.clone().requires_grad_()
                value = copy.deepcopy(loss)(leaf, targets)
            if in_place:
                value *= 3.0
            else:
                value = value * 3.0
            gradients.append(torch.autograd.grad(value.sum(), leaf)[0])
        assert torch.equal(*gradients)


def test_second_derivatives_and_transforms():
    shape = (2, 3, 2)  # each number costs some calls of the kernels
    targets = indices_of(shape).to(DEVICE)
    logits = logits_of(*shape).detach().to(DEVICE).requires_grad_()
    for loss in (eq.FocalLoss(1.5), eq.RecallLoss(3), eq.FocalLoss(reduction="none")):
        with use("triton"):
            assert torch.autograd.gradgradcheck(lambda z, loss=loss: loss(z, targets).sum(), logits)
    labels = multilabel_of(shape).to(DEVICE)
    with use("triton"):
        assert torch.autograd.gradgradcheck(lambda z: eq.AsymmetricLoss(margin=0.0)(z, labels), logits)
    # torch.func sees through plain operations only: the automatic choice falls back, an explicit one says so
    value = torch.func.grad(lambda z: eq.FocalLoss()(z, targets))(logits.detach())
    assert value.shape == logits.shape
    with use("triton"), pytest.raises(RuntimeError, match=r"torch\.func"):
        torch.func.grad(lambda z: eq.FocalLoss()(z, targets))(logits.detach())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_second_derivatives_with_small_labels(dtype):
    logits, targets = logits_of(4, 5).detach().to(DEVICE), indices_of((4, 5)).to(DEVICE)

    def second(loss, labels):
        leaf = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, labels).sum(), leaf, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), leaf)[0]

    for loss in (eq.FocalLoss(1.5), eq.RecallLoss(5), eq.FocalLoss(label_smoothing=0.1, reduction="none")):
        with use("triton"):
            assert torch.equal(second(loss, targets.to(dtype)), second(loss, targets))


@each(CATALOGUE)
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_several_gradients_at_once(entry, reduction, monkeypatch):
    for at_once in (softmax_launch.LEAST_AT_ONCE, 0):  # the gradient by backward, and where that is done by forward
        monkeypatch.setattr(softmax_launch, "LEAST_AT_ONCE", at_once)
        logits, targets = batch_of(entry, (5, 4, 2), ignored=0.2, dtype=torch.float32)
        with use("triton"):
            check_gradients_at_once(make(entry, 4, reduction=reduction), logits.to(DEVICE), targets.to(DEVICE))


NUMPY = {
    "ignore_index": (eq.FocalLoss, {"gamma": np.float32(2.0), "ignore_index": np.int64(1)}, indices_of),
    "recall": (eq.RecallLoss, {"num_classes": np.int64(3), "momentum": np.float32(0.5)}, indices_of),
    "precision": (eq.PrecisionLoss, {"num_classes": np.int32(3)}, indices_of),
    "regions": (eq.TverskyLoss, {"alpha": np.float32(0.5), "ignore_index": np.int16(2)}, indices_of),
    "ignore_value": (eq.AsymmetricLoss, {"margin": np.float32(0.25), "ignore_value": np.float32(1.0)}, multilabel_of),
    "exponents": (eq.AsymmetricLoss, {"target_gap": np.float32(0.5), "gap_step": np.float64(0.5)}, multilabel_of),
}


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_options_that_are_numbers_of_numpy(name, backend):
    make_loss, options, targets_of = NUMPY[name]
    batch = logits_of(4, 3, 2).detach().to(DEVICE, torch.float32), targets_of((4, 3, 2)).to(DEVICE)
    plain = {option: number.item() for option, number in options.items()}
    with use(backend):
        actual, expected = (value_and_gradient(make_loss(**given), *batch) for given in (options, plain))
        torch.compiler.reset()
        compiled = torch.compile(make_loss(**options), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(*batch), expected[0])
    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiles_without_a_graph_break(reduction):
    shape = (4, 7, 3, 5)
    labels = multilabel_of(shape, ignored=0.2).float()
    cases = [
        (eq.FocalLoss(reduction=reduction), indices_of(shape, ignored=0.2)),
        (eq.FocalLoss(label_smoothing=0.1, reduction=reduction), dense_of(shape).float()),
        (eq.RecallLoss(7, momentum=0.1, reduction=reduction), indices_of(shape, ignored=0.2)),
        (eq.AsymmetricLoss(target_gap=0.1, reduction=reduction), labels),
    ]
    for loss, targets in cases:
        torch.compiler.reset()
        logits, targets = logits_of(*shape, dtype=torch.float32).detach().to(DEVICE), targets.to(DEVICE)
        twin = copy.deepcopy(loss)
        with use("triton"):
            compiled = torch.compile(twin, fullgraph=True, backend="inductor" if CUDA else "aot_eager")
            for got, wanted in zip(
                value_and_gradient(compiled, logits, targets), value_and_gradient(loss, logits, targets), strict=True
            ):
                torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("permuted", [False, True])
def test_operations_return_what_the_compiler_expects(permuted):
    """Shapes, types and strides, also of logits whose rows cannot be walked over in place."""
    logits = torch.randn(3, 2, 2, 3, 2, device=DEVICE).permute(1, 0, 4, 3, 2)
    logits = logits if permuted else logits.contiguous()
    labels = indices_of(logits.shape, ignored=0.2).to(DEVICE)
    known = multilabel_of(logits.shape, ignored=0.2).float().to(DEVICE)
    hyper, layout = torch.tensor([1.5], device=DEVICE), "gamma_pos:0:1:0"
    one, each_row = torch.ones((), device=DEVICE), torch.ones(labels.shape, device=DEVICE)
    state = ops._softmax_forward(logits, labels, None, hyper, layout, -100, False, False)[0]
    calls = [
        (ops._softmax_forward, (labels, None, hyper, layout, -100, True, True)),
        (ops._softmax_backward, (labels, None, hyper, layout, state, one)),
        (ops._softmax_backward, (labels, None, hyper, layout, state, each_row)),
        (ops._sigmoid_forward, (known, None, hyper, layout, -1.0, True, "labels")),
        (ops._sigmoid_backward, (known, None, hyper, layout, -1.0, False, one)),
        (ops._sigmoid_backward, (known, None, hyper, layout, -1.0, False, torch.ones_like(logits))),
    ]
    for operation, arguments in calls:
        with FakeTensorMode() as mode:
            faked = [mode.from_tensor(value) if torch.is_tensor(value) else value for value in (logits, *arguments)]
            expected = tree_leaves(operation(*faked))
        for tensor, fake in zip(tree_leaves(operation(logits, *arguments)), expected, strict=True):
            assert (tensor.dtype, tensor.shape, tensor.stride()) == (fake.dtype, fake.shape, fake.stride())


@pytest.mark.gpu
def test_backward_that_is_compiled_by_itself():
    """The loss of an eager call, with all of its denominator."""
    from torch._dynamo import compiled_autograd

    shape = (6, 5)
    cases = [
        (eq.FocalLoss(weight=[1.0, 2, 3, 4, 5]), indices_of(shape, ignored=0.2)),
        (eq.RecallLoss(5), indices_of(shape, ignored=0.2)),
        (eq.AsymmetricLoss(reduction="mean"), multilabel_of(shape, ignored=0.2).float()),
    ]
    for loss, targets in cases:
        logits = torch.randn(shape, device=DEVICE, requires_grad=True)
        with use("triton"):
            (expected,) = torch.autograd.grad(loss(logits, targets.to(DEVICE)), logits)
            value = loss(logits, targets.to(DEVICE))
            with compiled_autograd._enable(torch.compile(backend="eager")):
                value.backward()
        torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("per_class", [False, True], ids=["all", "labels"])
@pytest.mark.parametrize("most", [1, 1024])
def test_exponents_that_many_programs_have_seen(per_class, most, monkeypatch):
    from equipoise.kernels.triton.launch import statistics as statistics_launch

    monkeypatch.setattr(statistics_launch, "MOST_PARTS", most)
    shape = (300, 70)  # several tiles of rows, and of labels
    loss = eq.AsymmetricLoss(target_gap=0.3, gap_step=1.0, per_class=per_class)
    check_parity(loss, logits_of(*shape, dtype=torch.float32), multilabel_of(shape, ignored=0.2))


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("per_class", [False, True], ids=["all", "labels"])
def test_an_exponent_outlives_a_batch_with_nan(per_class, backend):
    loss = eq.AsymmetricLoss(target_gap=0.3, gap_step=1.0, per_class=per_class).to(DEVICE)
    logits, targets = logits_of(8, 3, dtype=torch.float32).to(DEVICE), multilabel_of((8, 3)).float().to(DEVICE)
    with use(backend):
        loss(logits.detach(), targets)
        before, gap = loss.asymmetry.gamma_neg.clone(), loss.asymmetry.gap.clone()
        broken = logits.detach().clone()
        broken[0, 1] = math.nan
        assert loss(broken, targets).isnan()
        kept = [0, 2] if per_class else []  # labels without NaN move on
        assert loss.asymmetry.gamma_neg.isfinite().all()
        still = [k for k in range(len(before)) if k not in kept]
        assert torch.equal(loss.asymmetry.gamma_neg[still], before[still])
        assert torch.equal(loss.asymmetry.gap[still], gap[still])
        assert (loss.asymmetry.gamma_neg[kept] != before[kept]).all()


@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_squared_errors_of_adjusted_logits(dense, smoothing):
    """No named loss has both, but any parts can be combined."""
    options = {"label_smoothing": smoothing, "more_parts": [Scalar("squared_error", 1.0)]}
    targets = dense_of((8, 3), ignored=0.2) if dense else indices_of((8, 3), ignored=0.2)
    for adjustment in (logit_adjustment([100, 10, 1]), margin_adjustment([100, 10, 1], scale=3.0)):
        check_parity(SoftmaxLoss(adjustment=adjustment, **options), logits_of(8, 3, dtype=torch.float32), targets)
        loss, logits = SoftmaxLoss(adjustment=adjustment, **options), logits_of(8, 3)
        assert torch.autograd.gradcheck(lambda z, loss=loss: loss(z, targets), logits)
    loss, shifted = SoftmaxLoss(adjustment=logit_adjustment([100, 10, 1]), **options), torch.tensor([100, 10, 1]).log()
    torch.testing.assert_close(loss(logits, targets), SoftmaxLoss(**options)(logits + shifted, targets))


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_captured_in_a_cuda_graph_without_a_sync():
    shape = (4, 7, 33, 5)
    cases = [
        (eq.FocalLoss(), indices_of(shape, ignored=0.2)),
        (eq.RecallLoss(7, momentum=0.1), indices_of(shape, ignored=0.2)),
        (eq.AsymmetricLoss(target_gap=0.1), multilabel_of(shape, ignored=0.2).float()),
    ]
    for loss, targets in cases:
        loss, targets = loss.cuda(), targets.cuda()
        logits = torch.randn(shape, device="cuda", requires_grad=True)

        def step(loss=loss, logits=logits, targets=targets):
            value = loss(logits, targets)
            return value, *torch.autograd.grad(value, logits)

        graph, (value, gradient) = captured(step)
        before = copy.deepcopy(loss)
        with torch.no_grad():
            logits.copy_(torch.randn(shape, device="cuda"))
        graph.replay()
        wanted = value_and_gradient(before, logits, targets)
        torch.testing.assert_close(value.detach(), wanted[0])
        torch.testing.assert_close(gradient, wanted[1])


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_streams_have_separate_counters():
    """Small losses of two streams at once: each adds up the sums of its own programs."""
    loss, targets = eq.FocalLoss().cuda(), torch.randint(7, (4096,), device="cuda")
    batches = [torch.randn(4096, 7, device="cuda") for _ in range(2)]
    wanted = [loss(logits, targets) for logits in batches]
    streams = [torch.cuda.Stream() for _ in batches]
    torch.cuda.synchronize()
    got = []
    for _ in range(50):
        for logits, stream in zip(batches, streams, strict=True):
            with torch.cuda.stream(stream):
                got.append(loss(logits, targets))
    torch.cuda.synchronize()
    assert all(torch.equal(value, wanted[place % 2]) for place, value in enumerate(got))


def test_build_is_deprecated_and_says_what_to_do():
    with pytest.warns(DeprecationWarning, match=r"does nothing; .* capture the training step as a CUDA graph"):
        assert eq.kernels.build() is None


def test_explain_reports_the_backend():
    logits = torch.zeros(2, 3, device=DEVICE)
    with use("reference"):
        assert explain(eq.FocalLoss(), logits).backend == "reference"
    with use("triton"):
        assert explain(eq.FocalLoss(), logits).backend == "triton"
        assert "one fused kernel" in str(explain(eq.FocalLoss(), logits))
        assert "overlaps" in str(explain(eq.DiceLoss(), logits))
        assert "sort" in str(explain(eq.LovaszSoftmaxLoss(), logits))
        assert explain(eq.LovaszSoftmaxLoss(), logits).backend == "triton"
        for loss in (eq.losses.RangeLoss(), torch.nn.CrossEntropyLoss()):
            assert explain(loss, logits).backend == "reference"
            assert f"no kernel for {type(loss).__name__}" in str(explain(loss, logits))
        with pytest.raises(TypeError, match="loss must be a module, got 'focal'; pass the loss itself"):
            explain("focal", logits)
        assert explain(eq.FocalLoss(), logits.to("meta")).backend == "none"
        with pytest.raises(RuntimeError, match="meta"):
            eq.FocalLoss()(logits.to("meta"), torch.zeros(2, dtype=torch.int64, device="meta"))
    assert explain(eq.FocalLoss(), logits).backend == ("triton" if CUDA else "cpu")
    assert explain(eq.DiceLoss(), logits).backend == ("triton" if CUDA else "reference")
    with pytest.raises(ValueError, match="backend"):
        use("cuda")


@pytest.mark.slow
@pytest.mark.parametrize(("link", "least"), [("softmax", 60), ("sigmoid", 16)])
def test_kernels_compile_for_gpus_that_are_not_here(link, least, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.parity.compile_ahead", link]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) >= least


@pytest.mark.slow
@pytest.mark.parametrize(("batches", "hazard"), [("slices", 1), ("dense", 2), ("double", 3)])
def test_compiled_code_avoids_hazards(batches, hazard, tmp_path):
    """Load neighbours of strided pixels, reorder sums over dense targets, or round in float64."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.parity.compile_ahead", batches]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = [int(number) for number in done.stdout.split()]
    assert counts[0] >= 8
    assert counts[hazard] == 0
