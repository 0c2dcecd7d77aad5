"""The gradient that a kernel writes together with the loss: as close to the truth, and given away only once."""

import pytest
import torch

import equipoise as eq
from equipoise.kernels import use
from equipoise.kernels.spec import SoftmaxSpec
from equipoise.losses import SoftmaxLoss, asymmetric, focal, logit_adjustment, margin_adjustment
from tests.losses.helpers import SOFTMAX, batch_of, dense_of, each, indices_of, logits_of, make, multilabel_of
from tests.parity.budget import CUDA, DEVICE, check_parity, needs_kernels

pytest.importorskip("triton")

from equipoise.kernels.triton.launch import rows as rows_launch
from equipoise.kernels.triton.launch import softmax as softmax_launch

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")]

# Rows next to each other and strided, few classes and many, a tile that is full and one that is not.
SHAPES = [(33, 5), (5, 70), (3, 1100), (2, 19, 9, 31), (2, 19, 8, 16), (1, 4, 300), (2, 70, 4, 16), (1, 2)]


@pytest.fixture(autouse=True)
def small_batches_too(monkeypatch):
    """Allow the gradient in the forward pass for small batches; return a list of whether each call computed it."""
    monkeypatch.setattr(softmax_launch, "LEAST_AT_ONCE", 0)
    asked, original = [], softmax_launch.softmax_at_once

    def noted(*arguments):
        result = original(*arguments)
        asked.append(result is not None)
        return result

    monkeypatch.setattr(softmax_launch, "softmax_at_once", noted)
    return asked


@each(SOFTMAX)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_softmax_loss(entry, dtype):
    loss = make(entry, 7)
    for shape in ((37, 7), (2, 7, 5, 9)):
        logits, targets = batch_of(entry, shape, ignored=0.2, dtype=dtype, size=2.0)
        check_parity(loss, logits, targets)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_shapes(shape, dtype, small_batches_too):
    classes = shape[1]
    counts, by_class = [1000.0 / (1 + k) for k in range(classes)], [0.5 + k % 3 for k in range(classes)]
    logits, targets = logits_of(*shape, dtype=dtype, size=2.0), indices_of(shape, ignored=0.2)
    losses = (
        SoftmaxLoss(focal(1.5), weight=by_class, adjustment=logit_adjustment(counts)),
        SoftmaxLoss(asymmetric(1.0, 4.0), label_smoothing=0.1, weight=by_class, reduction="valid_mean"),
        SoftmaxLoss(adjustment=margin_adjustment(counts, scale=3.0), reduction="batch_mean"),
        eq.BrierLoss(reduction="sum"),
    )
    for loss in losses:
        check_parity(loss, logits, targets)
    wide = shape == (2, 70, 4, 16) and dtype is torch.float32
    assert small_batches_too == [not wide] * len(losses)


@pytest.mark.parametrize(("programs", "few"), [(1, 1), (3, 0)])
def test_programs_that_take_several_tiles(programs, few, monkeypatch):
    monkeypatch.setattr(softmax_launch, "MOST_PROGRAMS", programs)
    monkeypatch.setattr(rows_launch, "FEW_PROGRAMS", few)
    softmax_launch._forward_plan.cache_clear()
    for shape in ((3, 19, 30, 9), (2, 9, 16, 64), (300, 5)):
        weight = [0.5 + k % 3 for k in range(shape[1])]
        logits, targets = logits_of(*shape, dtype=torch.float32), indices_of(shape, ignored=0.2)
        check_parity(eq.FocalLoss(weight=weight), logits, targets)
    softmax_launch._forward_plan.cache_clear()


def test_channels_last():
    shape = (2, 19, 6, 7)
    logits = logits_of(*shape, dtype=torch.float32).to(memory_format=torch.channels_last)
    for loss in (eq.FocalLoss(), eq.FocalLoss(label_smoothing=0.1)):
        check_parity(loss, logits, indices_of(shape, ignored=0.2))


def test_two_passes_where_one_does_not_serve(small_batches_too):
    shape = (4, 5, 6)
    logits, targets = logits_of(*shape, dtype=torch.float32).detach().to(DEVICE), indices_of(shape).to(DEVICE)
    with use("triton"):
        eq.FocalLoss()(logits, targets)
        with torch.no_grad():
            eq.FocalLoss()(logits.clone().requires_grad_(), targets)
        assert small_batches_too == []  # no gradient is requested
        eq.FocalLoss()(logits.half().requires_grad_(), targets)  # what is divided by the rows may underflow
        eq.FocalLoss()(logits.double().requires_grad_(), targets)
        eq.FocalLoss()(logits.clone().requires_grad_(), dense_of(shape).float().to(DEVICE))
        eq.FocalLoss()(logits.clone().requires_grad_(), targets.mT.contiguous().mT)
        eq.FocalLoss()(logits[:, :, ::2].requires_grad_(), targets[:, ::2].contiguous())
    assert small_batches_too == [False] * 5


def losses_and_targets():
    shape = (6, 5, 8)
    labels = multilabel_of(shape, ignored=0.2).float()
    return [
        (eq.FocalLoss(weight=[1.0, 2, 3, 4, 5]), indices_of(shape, ignored=0.2)),
        (eq.FocalLoss(label_smoothing=0.1), indices_of(shape, ignored=0.2)),
        (eq.AsymmetricLoss(), labels),
        (eq.AsymmetricLoss(reduction="batch_mean", detach_focus=True), labels),
        (eq.BinaryFocalLoss(), labels.clamp(min=0.0)),
        (eq.BinaryFocalLoss(), labels),
    ]


class Scaled(torch.nn.Module):
    def __init__(self, loss, factor):
        super().__init__()
        self.loss, self.factor = loss, factor

    def forward(self, logits, targets):
        return self.factor * self.loss(logits, targets)


@pytest.mark.parametrize("case", range(6))
def test_gradient_is_scaled_by_the_upstream_gradient(case):
    loss, targets = losses_and_targets()[case]
    check_parity(Scaled(loss, -2.5), logits_of(6, 5, 8, dtype=torch.float32), targets)
    check_parity(Scaled(loss, 0.25), logits_of(6, 5, 8, dtype=torch.bfloat16), targets)


@pytest.mark.parametrize("case", range(6))
def test_repeated_backward_gives_the_same_gradient(case):
    """The caller owns the first gradient and may write into it."""
    loss, targets = losses_and_targets()[case]
    logits, targets = logits_of(6, 5, 8, dtype=torch.float32).detach().to(DEVICE).requires_grad_(), targets.to(DEVICE)
    with use("triton"):
        value = loss(logits, targets)
        (first,) = torch.autograd.grad(value, logits, retain_graph=True)
        kept = first.clone()
        first.fill_(7.0)
        (second,) = torch.autograd.grad(value, logits, retain_graph=True)
        (third,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(second, kept)
    assert torch.equal(second, third)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, logits)


@pytest.mark.parametrize("case", range(6))
def test_a_gradient_that_has_one_itself(case):
    loss, targets = losses_and_targets()[case]
    logits, targets = logits_of(6, 5, 8, dtype=torch.float32).detach().to(DEVICE).requires_grad_(), targets.to(DEVICE)
    results = []
    for backend in ("triton", "reference"):
        with use(backend):
            (gradient,) = torch.autograd.grad(loss(logits, targets), logits, create_graph=True)
            results.append((gradient.detach(), torch.autograd.grad(gradient.square().sum(), logits)[0]))
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain)


def test_no_valid_row_and_labels_out_of_range():
    with use("triton"):
        for shape in ((0, 5), (2, 5, 0), (4, 5)):
            logits = torch.randn(shape, device=DEVICE, requires_grad=True)
            value = eq.FocalLoss(label_smoothing=0.1)(logits, torch.full((shape[0], *shape[2:]), -100, device=DEVICE))
            value.backward()
            assert value.item() == 0.0
            assert torch.equal(logits.grad, torch.zeros_like(logits))
    loss, logits = eq.FocalLoss(), torch.randn(3, 5, device=DEVICE)
    labels = torch.tensor([1, 5, 2], device=DEVICE)
    reduced, gradient = softmax_launch.softmax_at_once(
        logits, labels, None, loss.hyper(logits), SoftmaxSpec(loss.layout), "mean"
    )
    assert reduced.loss.isnan()
    assert torch.equal(gradient.isnan().any(1).cpu(), torch.tensor([False, True, False]))


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("case", range(6))
def test_captured_in_a_cuda_graph(case):
    loss, targets = losses_and_targets()[case]
    targets, scale = targets.cuda(), torch.ones((), device="cuda")
    logits = torch.randn(6, 5, 8, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            torch.autograd.grad(loss(logits, targets) * scale, logits)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (gradient,) = torch.autograd.grad(loss(logits, targets) * scale, logits)
    for factor in (1.0, 3.0, 1.0):  # the device finds out
        scale.fill_(factor)
        graph.replay()
        with use("reference"):
            (wanted,) = torch.autograd.grad(loss(logits, targets) * factor, logits)
        torch.testing.assert_close(gradient, wanted)
