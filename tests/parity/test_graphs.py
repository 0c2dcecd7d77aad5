"""A captured CUDA graph of a loss and its backward gives what eager calls give, and follows its schedule."""

import copy

import pytest
import torch

import equipoise as eq
from equipoise.kernels import use
from tests.losses.helpers import SIGMOID, SOFTMAX, batch_of, each, make
from tests.parity.budget import CUDA, captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device")]


def step(loss, logits, targets):
    value = loss(logits, targets)
    return value, torch.autograd.grad(value, logits)[0]


def agree(got, expected):
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


@each(SOFTMAX + SIGMOID)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 20), (4, 7, 5, 4)])
def test_every_loss_and_its_state(entry, dtype, shape):
    logits, targets = batch_of(entry, shape, dtype=dtype, ignored=0.1)
    logits, targets = logits.detach().cuda().requires_grad_(), targets.cuda()
    loss = make(entry, shape[1]).cuda()
    step(loss, logits, targets)  # what is taken from a first batch reads from the device
    graph, result = captured(lambda: step(loss, logits, targets))
    eager = copy.deepcopy(loss)
    for seed in range(3):
        with torch.no_grad():
            logits.copy_(batch_of(entry, shape, dtype=dtype, seed=seed)[0])
        graph.replay()
        agree(result, step(eager, logits, targets))
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(loss.get_buffer(name), buffer, equal_nan=True)


def test_schedules_options_streams_and_other_batches():
    logits, targets = torch.randn(64, 20, device="cuda", requires_grad=True), torch.randint(20, (64,), device="cuda")
    loss, eager = (eq.CyclicalFocalLoss(epochs=10).cuda() for _ in range(2))
    loss.set_epoch(0)
    graph, result = captured(lambda: step(loss, logits, targets))
    for epoch in range(5):
        loss.set_epoch(epoch), eager.set_epoch(epoch)
        with torch.no_grad():
            logits.mul_(0.9)
        graph.replay()
        expected = step(eager, logits, targets)
        assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.replay()
        agree(result, step(eager, logits, targets))
    torch.cuda.current_stream().wait_stream(side)
    for other in (loss, eager):  # an eager call in between has its own options and batch, and leaves the graph alone
        other.reduction = "sum"
    agree(step(loss, logits[:10], targets[:10]), step(eager, logits[:10], targets[:10]))
    loss.eval(), eager.eval()
    with use("reference"):
        agree(step(loss, logits, targets), step(eager, logits, targets))
    before = [one.clone() for one in result]
    graph.replay()
    agree(result, before)
