"""Losses under activation checkpointing and saved-tensor hooks: the same loss, gradient and state as without."""

import copy

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from equipoise import AsymmetricLoss, RecallLoss
from equipoise.catalogue import CATALOGUE
from equipoise.kernels import use
from equipoise.losses import LiftedStructureLoss, RangeLoss
from tests.losses.helpers import SIGMOID, SOFTMAX, batch_of, dense_of, each, indices_of, logits_of, make, multilabel_of
from tests.parity.budget import DEVICE, needs_kernels

C = 4
EXACT = {"rtol": 0.0, "atol": 0.0}
BACKENDS = [
    pytest.param(("reference", "cpu"), id="reference"),
    pytest.param(("triton", DEVICE), id="triton", marks=[needs_kernels, pytest.mark.gpu]),
]
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_way = pytest.mark.parametrize("use_reentrant", [False, True], ids=["not reentrant", "reentrant"])
STATEFUL = {
    "recall": (lambda: RecallLoss(C, momentum=0.3), indices_of),
    "recall, published": (lambda: RecallLoss(C, momentum=0.3, preset="published"), indices_of),
    "recall, smoothed": (lambda: RecallLoss(C, momentum=0.3, label_smoothing=0.1), indices_of),
    "asymmetric": (lambda: AsymmetricLoss(target_gap=0.3), multilabel_of),
    "asymmetric by class": (lambda: AsymmetricLoss(target_gap=0.3, per_class=True), multilabel_of),
}


def outcome(call, loss, *tensors):
    """Value and gradient of the first tensor, and the state that is left."""
    first, *others = tensors
    first = first.detach().requires_grad_()
    value = call(loss, first, *others)
    value.sum().backward()
    return value.detach(), first.grad, dict(loss.state_dict())


def checkpointed(use_reentrant):
    return lambda loss, *tensors: checkpoint(loss, *tensors, use_reentrant=use_reentrant)


def under_hooks(hooks):
    def call(loss, *tensors):
        with hooks():
            return loss(*tensors)

    return call


def packed():
    """Hooks that hand back other tensors than were saved."""
    return saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor)


WAYS = [checkpointed(False), checkpointed(True), under_hooks(save_on_cpu), under_hooks(packed)]


@each(CATALOGUE)
@each_backend
def test_every_loss(entry, backend):
    name, device = backend
    loss = make(entry, C)
    logits, targets = (tensor.to(device) for tensor in batch_of(entry, (5, C, 2), ignored=0.2))
    with use(name):
        expected = outcome(lambda loss, *batch: loss(*batch), copy.deepcopy(loss), logits, targets)
        for call in WAYS:
            assert_close(outcome(call, copy.deepcopy(loss), logits, targets), expected, **EXACT)


@each([*SOFTMAX, *SIGMOID])
@each_backend
def test_unreduced_losses_of_dense_targets(entry, backend):
    name, device = backend
    loss = make(entry, C, reduction="none")
    logits, targets = batch_of(entry, (5, C), ignored=0.2)
    targets = (dense_of((5, C)) if entry.link == "softmax" else targets).to(device)
    with use(name):
        expected = outcome(lambda loss, *batch: loss(*batch), copy.deepcopy(loss), logits.to(device), targets)
        assert_close(outcome(checkpointed(False), loss, logits.to(device), targets), expected, **EXACT)


@pytest.mark.parametrize("loss", [LiftedStructureLoss(), RangeLoss()], ids=lambda loss: type(loss).__name__)
@each_way
def test_losses_of_embeddings(loss, use_reentrant):
    batch = logits_of(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    expected = outcome(lambda loss, *batch: loss(*batch), loss, *batch)
    assert_close(outcome(checkpointed(use_reentrant), loss, *batch), expected, **EXACT)


@each_backend
@each_way
@pytest.mark.parametrize("name", STATEFUL)
def test_statistics_are_updated_once(name, backend, use_reentrant):
    """In three steps of a checkpointed model with its loss, against the same without checkpoints."""
    build, targets_of = STATEFUL[name]
    torch.manual_seed(0)
    kernels, device = backend
    model = torch.nn.Linear(3, C, dtype=torch.float64, device=device)
    losses = {"plain": build(), "checkpointed": build()}
    for step in range(3):
        features = torch.randn(9, 3, dtype=torch.float64, device=device, requires_grad=True)
        targets = targets_of((9, C), seed=step).to(device)
        actual = {}
        for kind, loss in losses.items():

            def whole(features, targets, loss=loss):
                return loss(model(features), targets.clone())  # neither logits nor targets come from outside

            model.zero_grad()
            with use(kernels):
                if kind == "plain":
                    value = whole(features, targets)
                else:
                    value = checkpoint(whole, features, targets, use_reentrant=use_reentrant)
                value.backward()
            actual[kind] = model.weight.grad.clone(), dict(loss.state_dict())
            if not use_reentrant:  # whose first pass is one without gradients, which knows the recall before the batch
                actual[kind] += (value.detach(),)
        assert_close(actual["checkpointed"], actual["plain"], equal_nan=True, **EXACT)


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("order", ["together", "first in, first out", "twice"])
def test_several_passes_before_backward(name, order):
    build, targets_of = STATEFUL[name]
    batches = [(logits_of(9, C, seed=seed), targets_of((9, C), seed=seed)) for seed in range(3)]
    actual = []
    for call in (lambda loss, *batch: loss(*batch), checkpointed(False)):
        loss = build()
        inputs = [logits.detach().requires_grad_() for logits, _ in batches]
        values = [call(loss, z, targets) for z, (_, targets) in zip(inputs, batches, strict=True)]
        if order == "first in, first out":
            for value in values:
                value.backward()
        else:
            for _ in range(2 if order == "twice" else 1):
                sum(values).backward(retain_graph=True)
        actual.append(([value.detach() for value in values], [z.grad for z in inputs], dict(loss.state_dict())))
    assert_close(actual[1], actual[0], **EXACT)


def test_a_schedule_may_move_before_backward():
    loss = make(next(entry for entry in CATALOGUE if entry.name == "CyclicalFocalLoss"), C)
    batch = logits_of(5, C), indices_of((5, C))
    expected = outcome(lambda loss, *batch: loss(*batch), copy.deepcopy(loss), *batch)
    z = batch[0].detach().requires_grad_()
    value = checkpoint(loss, z, batch[1], use_reentrant=False)
    loss.set_epoch(8)
    value.backward()
    assert_close((value.detach(), z.grad), expected[:2], **EXACT)
    assert loss.moment().epoch == 8
