"""The CPU backend computes what the reference defines, and runs only if no function transform or tracer is active."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.kernels import explain, use
from equipoise.kernels.choice import backend
from equipoise.losses import Modulation, SigmoidLoss, SoftmaxLoss
from tests.losses.helpers import (
    SIGMOID,
    SOFTMAX,
    batch_of,
    dense_of,
    each,
    indices_of,
    logits_of,
    make,
    multilabel_of,
    value_and_gradient,
)

C = 5
TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-13}, torch.float32: {"rtol": 2e-4, "atol": 2e-6}}
SHAPES = pytest.mark.parametrize("shape", [(40, C), (2, C, 3, 4)], ids=str)
MODULATIONS = [
    {"gamma_pos": 2.0},
    {"gamma_pos": 0.5},
    {"gamma_pos": 3.0, "gamma_neg": 4.0},
    {"gamma_pos": 1.0, "gamma_neg": 2.5},
    {"gamma_pos": 2.5, "gamma_neg": 1.0, "xi": 0.3, "gamma_hc": 3.0},
    {"xi": 0.4, "gamma_hc": 2.0},
]


def assert_same(build, logits, targets, **options):
    """Values, gradients and state of both backends on the CPU."""
    loss, definition = build(), build()
    fast = value_and_gradient(loss, logits, targets, **options)
    with use("reference"):
        defined = value_and_gradient(definition, logits, targets, **options)
    assert_close(fast, defined, equal_nan=True, **TOLERANCE[fast[0].dtype])
    assert_close(loss.state_dict(), definition.state_dict(), equal_nan=True)


@each(SOFTMAX + SIGMOID)
@SHAPES
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_loss(entry, shape, dtype):
    for reduction in ("mean", "none"):
        logits, targets = batch_of(entry, shape, ignored=0.3, dtype=dtype, size=3.0)
        assert_same(lambda reduction=reduction: make(entry, C, reduction=reduction), logits, targets)


@each(SOFTMAX)
@SHAPES
def test_dense_and_smoothed_targets(entry, shape):
    logits, targets = batch_of(entry, shape, ignored=0.3, size=3.0)
    weight = torch.linspace(0.5, 2.0, C).tolist()
    for smoothing in (0.0, 0.1):
        for batch in (targets, dense_of(shape, ignored=0.3)):
            assert_same(
                lambda smoothing=smoothing: make(entry, C, label_smoothing=smoothing, weight=weight), logits, batch
            )


@pytest.mark.parametrize("modulation", MODULATIONS, ids=str)
@pytest.mark.parametrize("size", [1.0, 30.0], ids=["likely", "saturated"])
def test_modulations(modulation, size):
    logits = logits_of(40, C, size=size)
    for smoothing in (0.0, 0.1):
        for targets in (indices_of((40, C), ignored=0.2), dense_of((40, C), ignored=0.2)):
            assert_same(lambda s=smoothing: SoftmaxLoss(Modulation(**modulation), label_smoothing=s), logits, targets)
    labels, element_weight = multilabel_of((40, C), ignored=0.2, soft=True), torch.linspace(0.5, 1.5, C)
    for margin in (0.0, 0.001, 0.05):
        for detached in (False, True):
            assert_same(
                lambda m=margin, d=detached: SigmoidLoss(Modulation(**modulation), margin=m, detach_focus=d, alpha=0.3),
                logits, labels, element_weight=element_weight,
            )  # fmt: skip


@each(SOFTMAX + SIGMOID)
def test_masked_classes(entry):
    logits, targets = batch_of(entry, (40, C), size=3.0)
    logits = logits.detach().index_fill(1, torch.tensor([C - 1]), -torch.inf)
    targets = targets.clamp(max=C - 2) if entry.link == "softmax" else targets.index_fill(1, torch.tensor([C - 1]), 0.0)
    assert_same(lambda: make(entry, C), logits, targets)


class Mutations(TorchDispatchMode):
    """Notes which operations write to their arguments."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation._schema.is_mutable:
            self.names.append(operation.name())
        return operation(*args, **(kwargs or {}))


@each(SOFTMAX + SIGMOID)
def test_the_reference_overwrites_nothing(entry):
    loss = make(entry, C).eval()
    for smoothing in (0.0, 0.1) if entry.link == "softmax" else (None,):
        loss = make(entry, C, **({} if smoothing is None else {"label_smoothing": smoothing})).eval()
        logits, targets = batch_of(entry, (8, C), ignored=0.3)
        with use("reference"), Mutations() as seen:
            loss(logits, targets).sum().backward()
        assert not [name for name in seen.names if "detach" not in name]


def test_who_serves():
    logits = torch.zeros(2, 3)
    assert backend(logits) == "cpu"
    assert str(explain(SoftmaxLoss(), logits)).startswith("cpu: ")
    assert backend(logits.to("meta")) == "reference"
    with use("reference"):
        assert backend(logits) == "reference"
        assert explain(SoftmaxLoss(), logits).backend == "reference"
    with Mutations():
        assert backend(logits) == "reference"
    chosen = []
    torch.func.grad(lambda z: (chosen.append(backend(z)), z.sum())[1])(logits)
    assert chosen == ["reference"]
