"""Losses without values to look at: ``make_fx``, ``torch.export``, fake tensors, the meta device, compiled code."""

import copy

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import equipoise.functional as functional
from equipoise import AsymmetricLoss, RecallLoss, TverskyLoss
from equipoise.catalogue import CATALOGUE
from equipoise.kernels import use
from tests.losses.helpers import batch_of, each, indices_of, logits_of, make, multilabel_of, value_and_gradient

C = 4
SHAPE = (5, C, 2)
TIGHT = {"rtol": 1e-12, "atol": 1e-14}  # the same float64 operations, in another order at most


def losses_of(entry):
    """The loss of an entry, and where it has one, its form with statistics."""
    if entry.name == "RecallLoss":
        return [RecallLoss(C), RecallLoss(C, momentum=0.1)]
    if entry.name == "AsymmetricLoss":
        return [AsymmetricLoss(), AsymmetricLoss(target_gap=0.3), AsymmetricLoss(target_gap=0.3, per_class=True)]
    return [make(entry, C)]


def state_of(loss):
    return {name: value.clone() for name, value in loss.state_dict().items()}


def value_and_slope(loss):
    def traced(logits, targets):
        value = loss(logits, targets)
        return value, *torch.autograd.grad(value, logits)

    return traced


@each(CATALOGUE)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(entry, mode):
    """A trace gives the loss and its gradient on another batch; of another size where sizes are symbols."""
    for loss in losses_of(entry):
        before, run = state_of(loss), value_and_slope(loss)
        logits, targets = batch_of(entry, SHAPE, ignored=0.2)
        graph = make_fx(run, tracing_mode=mode)(logits.detach().requires_grad_(), targets)
        assert_close(loss.state_dict(), before, rtol=0, atol=0, equal_nan=True)
        logits, targets = batch_of(entry, (7, C, 3) if mode == "symbolic" else SHAPE, ignored=0.2, seed=3)
        logits = logits.detach().requires_grad_()
        loss.eval()  # a trace has no statistics that move
        assert_close(graph(logits, targets), run(logits, targets), **TIGHT)


@each(CATALOGUE)
def test_fake_tensors(entry):
    """Made inside and outside of the mode; the loss is as good as before afterwards."""
    logits, targets = batch_of(entry, SHAPE, ignored=0.2)
    logits = logits.detach()
    mode = FakeTensorMode()
    fake, labels = mode.from_tensor(logits).requires_grad_(), mode.from_tensor(targets)
    with mode:
        made_inside = losses_of(entry)
    for loss, twin in zip(losses_of(entry), made_inside, strict=True):
        before = state_of(loss)
        for one in (loss, twin):
            with mode:
                value = one(fake, labels)
                (gradient,) = torch.autograd.grad(value, fake)
            assert (value.shape, gradient.shape, gradient.dtype) == ((), SHAPE, torch.float64)
        assert_close(loss.state_dict(), before, rtol=0, atol=0, equal_nan=True)
        assert_close(value_and_gradient(twin, logits, targets), value_and_gradient(loss, logits, targets), **TIGHT)


@each(CATALOGUE)
def test_torch_export(entry):
    """An exported program computes the loss of another batch."""
    for loss in losses_of(entry):
        loss.eval()
        logits, targets = batch_of(entry, SHAPE, ignored=0.2)
        program = torch.export.export(loss, (logits.detach(), targets)).module()
        logits, targets = batch_of(entry, SHAPE, ignored=0.2, seed=3)
        assert_close(program(logits.detach(), targets), loss(logits.detach(), targets), **TIGHT)


MOVES = {
    "built": lambda build: build,
    "to meta": lambda build: lambda: build().to("meta"),
    "to_empty": lambda build: lambda: build().to("meta").to_empty(device="cpu"),
    "there and back": lambda build: lambda: build().to("meta").to("cpu"),
}


@each(CATALOGUE)
@pytest.mark.parametrize("move", MOVES)
def test_meta_device(entry, move):
    """Construction, a batch without values, and real batches afterwards."""
    logits, targets = batch_of(entry, SHAPE, ignored=0.2)
    for index, expected in enumerate(losses_of(entry)):
        with torch.device("meta"):
            loss = MOVES[move](lambda index=index: losses_of(entry)[index])()
        before = state_of(loss)
        empty = logits.detach().to("meta").requires_grad_()
        value = loss(empty, targets.to("meta"))
        (gradient,) = torch.autograd.grad(value, empty)
        assert (value.device.type, value.shape, gradient.shape) == ("meta", (), SHAPE)
        assert_close(loss.state_dict(), before, rtol=0, atol=0, equal_nan=True)
        for _ in range(2):  # statistics move on as if nothing had been
            assert_close(
                value_and_gradient(loss, logits, targets), value_and_gradient(expected, logits, targets), **TIGHT
            )


@pytest.mark.parametrize("name", ["FocalLoss", "DiceLoss", "AsymmetricLoss"])
def test_there_is_nothing_to_validate(name):
    entry = next(entry for entry in CATALOGUE if entry.name == name)
    loss = make(entry, C, validate=True)
    logits, targets = batch_of(entry, SHAPE)
    labels = [targets, logits.detach().softmax(1)]  # dense ones too
    for given in labels:
        assert loss(logits.to("meta"), given.to("meta")).device.type == "meta"
        graph = make_fx(loss)(logits.detach(), given)
        assert_close(graph(logits.detach(), given), loss(logits.detach(), given), **TIGHT)


def test_weights_without_values_are_refused_and_real_ones_taken():
    entry = next(entry for entry in CATALOGUE if entry.name == "FocalLoss")
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    logits, targets = batch_of(entry, SHAPE)
    expected = make(entry, C, weight=weight)(logits, targets)
    with torch.device("meta"):
        assert_close(make(entry, C, weight=weight)(logits, targets), expected, **TIGHT)
        with pytest.raises(
            TypeError, match=r"weight must be .*no values: create it outside of torch\.device\('meta'\)"
        ):
            make(entry, C, weight=torch.ones(C))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each(CATALOGUE)
def test_traces_on_a_cuda_device(entry):
    """The kernels stay out of traces, and serve again afterwards."""
    for loss in losses_of(entry):
        logits, targets = (tensor.cuda() for tensor in batch_of(entry, SHAPE, ignored=0.2))
        logits = logits.detach().requires_grad_()
        graph = make_fx(value_and_slope(loss), tracing_mode="fake")(logits, targets)
        actual = graph(logits, targets)
        with use("reference"):
            assert_close(actual, value_and_slope(copy.deepcopy(loss).eval())(logits, targets), **TIGHT)
        with use("triton"):
            assert_close(loss.eval()(logits, targets), actual[0], rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# torch.compile with numbers that change
# ---------------------------------------------------------------------------------------------------------------------

Z, Y, T = logits_of(6, C, grad=False), indices_of((6, C), ignored=0.2), multilabel_of((6, C), ignored=0.2)
COUNTS = [90, 30, 9, 3]
FUNCTIONS = {
    "focal": lambda x: functional.focal_loss(Z, Y, gamma=x),
    "focal, dense": lambda x: functional.focal_loss(Z, Z.softmax(1), gamma=x, label_smoothing=x / 10),
    "binary focal": lambda x: functional.binary_focal_loss(Z, T, gamma=x, alpha=x / 10),
    "asymmetric": lambda x: functional.asymmetric_loss(Z, T, gamma_neg=x, margin=x / 20),
    "weight": lambda x: functional.focal_loss(Z, Y, weight=[1.0, x, 0.5, 1.0]),
    "margins": lambda x: functional.ldam_loss(Z, Y, COUNTS, max_margin=x / 10, scale=1.0 + x),
    "recall": lambda x: functional.recall_loss(Z, Y, min_errors=x),
    "hardest": lambda x: functional.ohem_loss(Z, Y, keep=x / 10),
    "tversky": lambda x: functional.tversky_loss(Z, Y, alpha=x, beta=1.0, smooth=x),
    "normalizer": lambda x: functional.focal_loss(Z, Y, normalizer=1.0 + x),
}
NUMBERS = [2.0, 2.5, 0.4, 3.0, 1.0, 0.0, 4.0, 1.7]


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, None) for name in FUNCTIONS), ("focal", True), ("tversky", True)]
)
def test_numbers_of_functions_change_without_recompilation(name, dynamic):
    """One graph for the first number, one for all others, and one where a part is absent at 0."""
    function, counter = FUNCTIONS[name], CompileCounterWithBackend("eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter, dynamic=dynamic)
    for number in NUMBERS:
        assert_close(compiled(number), function(number), rtol=1e-9, atol=1e-12)
    assert counter.frame_count <= 3


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dynamic", [None, True])
def test_many_losses_of_a_kind_are_compiled(dynamic):
    for step in range(12):
        loss = TverskyLoss(0.1 + step / 20, 0.9 - step / 20)
        compiled = torch.compile(loss, fullgraph=True, backend="eager", dynamic=dynamic)
        assert_close(compiled(Z, Y), loss(Z, Y), **TIGHT)


@pytest.mark.usefixtures("fresh_compiler")
def test_losses_of_many_kinds_are_compiled():
    """More kinds than the compiler allows versions of one code; it counts those of each kind."""
    kinds = [entry for entry in CATALOGUE if entry.link == "softmax"][:10]
    for entry in kinds:
        logits, targets = batch_of(entry, (6, C))
        loss = make(entry, C)
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        assert_close(compiled(logits, targets), loss(logits, targets), **TIGHT)
