"""Losses under the compiler and ``torch.func``, copied, pickled, and on another device."""

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch._dynamo
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

from equipoise import (
    AsymmetricLoss,
    CrossEntropyLoss,
    CyclicalFocalLoss,
    FocalLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    RecallLoss,
    SampleDependentFocalLoss,
    SigmoidLoss,
    SoftmaxLoss,
)
from equipoise.catalogue import CATALOGUE
from equipoise.losses import cyclical, focal, logit_adjustment
from equipoise.schedules import Linear
from equipoise.weights import RecallWeights
from tests.losses.helpers import (
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

C = 4
COUNTS = [1000, 200, 30, 4]
TIGHT = {"rtol": 1e-12, "atol": 1e-14}  # the same float64 operations, in another order at most


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def stateful(entry):
    """The loss of an entry, and where it has one, its form with statistics."""
    if entry.name == "RecallLoss":
        return [RecallLoss(C), RecallLoss(C, momentum=0.1), RecallLoss(C, momentum=0.1, preset="published")]
    if entry.name == "AsymmetricLoss":
        return [AsymmetricLoss(), AsymmetricLoss(target_gap=0.3), AsymmetricLoss(target_gap=0.3, per_class=True)]
    return [entry.build(C)]


# ---------------------------------------------------------------------------------------------------------------------
# torch.compile
# ---------------------------------------------------------------------------------------------------------------------


@each(CATALOGUE)
def test_compiles_without_a_graph_break(entry):
    for loss in stateful(entry):
        eager = copy.deepcopy(loss)
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        for seed in (0, 1):  # twice, as statistics move
            logits, targets = batch_of(entry, (6, C), ignored=0.2, seed=seed)
            actual = value_and_gradient(compiled, logits, targets)
            assert_close(actual, value_and_gradient(eager, logits, targets), **TIGHT)
        for name, buffer in eager.state_dict().items():
            assert_close(loss.state_dict()[name], buffer, **TIGHT)


# those whose paths differ: each takes a second or two
@each(
    [entry for entry in SOFTMAX if not entry.name.startswith(("Balanced", "Class", "Inverse", "Cyclical", "Precision"))]
)
def test_compiles_with_dense_targets_smoothing_and_weights(entry):
    loss = make(entry, C, label_smoothing=0.1, weight=[1.0, 2.0, 0.5, 1.0])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    logits, _ = batch_of(entry, (5, C))
    targets = dense_of((5, C), ignored=0.2)
    expected = value_and_gradient(copy.deepcopy(loss), logits, targets)
    assert_close(value_and_gradient(compiled, logits, targets), expected, **TIGHT)


@each(SIGMOID)
def test_compiles_with_element_weights(entry):
    loss = make(entry, C, weight=[1.0, 2.0, 0.5, 1.0])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    logits, targets = batch_of(entry, (5, C), ignored=0.2)
    weight = torch.linspace(0.1, 2.0, 5 * C, dtype=torch.float64).view(5, C)
    expected = value_and_gradient(copy.deepcopy(loss), logits, targets, element_weight=weight)
    assert_close(value_and_gradient(compiled, logits, targets, element_weight=weight), expected, **TIGHT)


SCHEDULED = {
    "cyclical": lambda: CyclicalFocalLoss(epochs=6, label_smoothing=0.1),
    "gamma": lambda: FocalLoss(gamma=Linear(0.0, 3.0), epochs=6),
    "table": lambda: SampleDependentFocalLoss(((0.2, Linear(5.0, 2.0)), (1.0, 3.0)), epochs=6),
    "smoothing": lambda: CrossEntropyLoss(label_smoothing=Linear(0.0, 0.2), epochs=6),
    "adjustment": lambda: LogitAdjustedLoss(COUNTS, tau=Linear(0.0, 1.0), epochs=6),
    "margin and scale": lambda: LDAMLoss(COUNTS, max_margin=Linear(0.0, 0.5), scale=Linear(1.0, 5.0), epochs=6),
    "sigmoid margin": lambda: AsymmetricLoss(margin=Linear(0.0, 0.2), gamma_neg=Linear(0.0, 4.0), epochs=6),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_schedule_moves_without_recompilation(name):
    loss, eager = SCHEDULED[name](), SCHEDULED[name]()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    logits = logits_of(6, C)
    targets = multilabel_of((6, C)) if name == "sigmoid margin" else indices_of((6, C), ignored=0.2)
    values = []
    with torch._dynamo.config.patch(error_on_recompile=True):
        for epoch in range(6):
            loss.set_epoch(epoch)
            eager.set_epoch(epoch)
            value, gradient = value_and_gradient(compiled, logits, targets)
            assert_close((value, gradient), value_and_gradient(eager, logits, targets), **TIGHT)
            values.append(value.item())
        loss.set_progress(0.123)
        eager.set_progress(0.123)
        assert_close(compiled(logits, targets), eager(logits, targets), **TIGHT)
    assert len(set(values)) > 2


def test_statistics_move_without_recompilation():
    for build, labels in (
        (lambda: RecallLoss(C, momentum=0.2), lambda seed: indices_of((12, C), seed=seed, ignored=0.2)),
        (lambda: AsymmetricLoss(target_gap=0.3), lambda seed: multilabel_of((12, C), seed=seed, ignored=0.2)),
    ):
        loss, eager = build(), build()
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        values = []
        for seed in range(4):
            logits = logits_of(12, C, seed=seed, dtype=torch.float32)
            with torch._dynamo.config.patch(error_on_recompile=seed > 0):
                actual = value_and_gradient(compiled, logits, labels(seed))
            # float32 sums of a dozen rows
            assert_close(actual, value_and_gradient(eager, logits, labels(seed)), rtol=1e-6, atol=1e-7)
            values.append({name: buffer.clone() for name, buffer in loss.state_dict().items()})
        assert any(not torch.equal(values[0][name], values[-1][name]) for name in values[0])
        for name, buffer in eager.state_dict().items():
            assert_close(loss.state_dict()[name], buffer, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("entry", [e for e in CATALOGUE if e.name in {"FocalLoss", "RecallLoss", "AsymmetricLoss"}])
def test_inductor(entry):
    loss = entry.build(C)
    compiled = torch.compile(loss, fullgraph=True)
    logits, targets = batch_of(entry, (32, C), ignored=0.2, dtype=torch.float32)
    expected = value_and_gradient(copy.deepcopy(loss), logits, targets)
    actual = value_and_gradient(compiled, logits, targets)
    assert_close(actual, expected, rtol=1e-5, atol=1e-6)  # fused float32, with other exponentials


def test_a_compiled_model_with_its_loss_trains_as_an_eager_one():
    features = torch.randn(10, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = indices_of((10, C), ignored=0.2)

    def step(model, loss):
        return loss(model(features), targets)

    results = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, C).double()
        loss = SoftmaxLoss(focal(2.0), weight=RecallWeights(C), adjustment=logit_adjustment(COUNTS))
        run = wrap(step)
        for _ in range(3):
            model.zero_grad()
            run(model, loss).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
        results.append(model.weight.detach().clone())
    assert_close(*results, **TIGHT)


# ---------------------------------------------------------------------------------------------------------------------
# torch.func
# ---------------------------------------------------------------------------------------------------------------------

SMOOTH = {
    "cross-entropy": lambda: CrossEntropyLoss(label_smoothing=0.1),
    "focal": lambda: FocalLoss(2.5, weight=[1.0, 2.0, 0.5, 1.0]),
    "by confidence": lambda: SampleDependentFocalLoss(label_smoothing=0.1),
    "cyclical, adjusted": lambda: SoftmaxLoss(cyclical(0.3), adjustment=logit_adjustment(COUNTS), label_smoothing=0.1),
    "ldam": lambda: LDAMLoss(COUNTS, scale=3.0),
    "recall": lambda: RecallLoss(C),
    "asymmetric": lambda: AsymmetricLoss(),
    "asymmetric, detached": lambda: AsymmetricLoss(1.0, detach_focus=True),
    "cyclical sigmoid": lambda: SigmoidLoss(cyclical(0.3), margin=0.05, alpha=0.3),
}
each_smooth = pytest.mark.parametrize("name", SMOOTH)


def example(loss, *shape, dense=False):
    logits = logits_of(*shape, grad=False)
    if isinstance(loss, SigmoidLoss):
        return logits, multilabel_of(shape, ignored=0.2)
    return logits, dense_of(shape, ignored=0.2) if dense else indices_of(shape, ignored=0.2)


def derivatives(loss, logits, targets):
    """Gradient and Hessian by plain autograd, reverse over reverse."""
    z = logits.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(z, targets), z, create_graph=True)
    rows = [torch.autograd.grad(part, z, retain_graph=True)[0] for part in first.flatten()]
    return first.detach(), torch.stack(rows).view(*z.shape, *z.shape)


@each(CATALOGUE)
def test_func_grad(entry):
    loss = entry.build(C).eval()
    logits, targets = batch_of(entry, (6, C), ignored=0.2)
    _, expected = value_and_gradient(loss, logits, targets)
    assert_close(grad(loss)(logits.detach(), targets), expected, **TIGHT)
    assert_close(jacrev(loss)(logits.detach(), targets), expected, **TIGHT)


@each(CATALOGUE)
def test_vmap_of_grad_is_the_gradient_of_each_sample(entry):
    loss = entry.build(C).eval()
    logits, targets = batch_of(entry, (3, C, 2), ignored=0.2)
    singles = [value_and_gradient(loss, z[None], t[None])[1][0] for z, t in zip(logits, targets, strict=True)]
    gradients = vmap(grad(lambda z, t: loss(z[None], t[None])))(logits.detach(), targets)
    assert_close(gradients, torch.stack(singles), **TIGHT)
    values = vmap(lambda z, t: loss(z[None], t[None]))(logits.detach(), targets)
    expected = [loss(z[None], t[None]) for z, t in zip(logits.detach(), targets, strict=True)]
    assert_close(values, torch.stack(expected), **TIGHT)


@each_smooth
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_first_derivatives_by_transforms(name, dense):
    loss = SMOOTH[name]()
    logits, targets = example(loss, 3, C, dense=dense)
    _, expected = value_and_gradient(loss, logits, targets)
    assert expected.abs().max() > 1e-3
    for transform in (grad, jacrev, jacfwd):
        assert_close(transform(loss)(logits, targets), expected, **TIGHT)
    direction = logits_of(3, C, seed=5, grad=False)
    value, change = jvp(lambda z: loss(z, targets), (logits,), (direction,))
    assert_close((value, change), (loss(logits, targets), (expected * direction).sum()), **TIGHT)


@each(CATALOGUE)
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_batched_gradients(entry, reduction):
    logits, targets = batch_of(entry, (5, C, 2), ignored=0.2)
    check_gradients_at_once(make(entry, C, reduction=reduction), logits, targets)


def test_batched_gradients_of_a_batch_in_blocks(monkeypatch):
    monkeypatch.setattr("equipoise.kernels.cpu.blocks.ELEMENTS_PER_THREAD", 1)
    check_gradients_at_once(AsymmetricLoss(reduction="none"), logits_of(7, C), multilabel_of((7, C), ignored=0.2))


@each_smooth
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
@pytest.mark.parametrize(
    "transform", [hessian, lambda f: jacrev(jacrev(f))], ids=["forward over reverse", "reverse over reverse"]
)
def test_second_derivatives_by_transforms(name, dense, transform):
    loss = SMOOTH[name]()
    logits, targets = example(loss, 2, C, dense=dense)
    _, expected = derivatives(loss, logits, targets)
    assert expected.abs().max() > 1e-3
    assert_close(transform(lambda z: loss(z, targets))(logits), expected, **TIGHT)


@each_smooth
def test_derivatives_of_a_forward_derivative_are_right_or_refused(name):
    """Reverse over forward is right; forward over forward cannot be had, and wrong numbers would be worse than none."""
    loss = SMOOTH[name]()
    logits, targets = example(loss, 2, C)
    _, expected = derivatives(loss, logits, targets)
    v = logits_of(2, C, seed=5, grad=False)

    def along(z):
        return jvp(lambda z: loss(z, targets), (z,), (v,))[1]

    product = (expected.view(2 * C, 2 * C) @ v.flatten()).view(2, C)
    assert_close(grad(along)(logits), product, **TIGHT)
    with pytest.raises(RuntimeError, match=r"differentiated forward once, got .*; use torch\.func\.hessian"):
        jvp(along, (logits,), (v,))


def test_transforms_in_float32_and_on_pixels():
    for loss in (FocalLoss(2.0, label_smoothing=0.1), AsymmetricLoss()):
        logits, targets = example(loss, 2, C, 2, 2)
        logits = logits.float()
        _, expected = value_and_gradient(loss, logits, targets)
        assert_close(grad(loss)(logits, targets), expected, rtol=1e-6, atol=1e-8)
        assert_close(jacfwd(loss)(logits, targets), expected, rtol=1e-5, atol=1e-7)


def test_a_gradient_through_functional_call():
    model = torch.nn.Linear(5, C).double()
    features = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets, loss = indices_of((6, C)), FocalLoss(2.0)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def objective(parameters, x, y):
        return loss(torch.func.functional_call(model, parameters, x), y)

    gradients = grad(objective)(parameters, features, targets)
    loss(model(features), targets).backward()
    assert_close(gradients["weight"], model.weight.grad, **TIGHT)
    each_sample = vmap(grad(objective), in_dims=(None, 0, 0))(parameters, features[:, None], targets[:, None])
    assert_close(each_sample["weight"].mean(0), model.weight.grad, **TIGHT)


def test_statistics_are_not_updated_inside_a_transform_but_refused():
    logits, targets = logits_of(6, C, grad=False), indices_of((6, C))
    recall, labels = RecallLoss(C, momentum=0.1), multilabel_of((6, C))
    with pytest.raises(RuntimeError, match=r"moving average of recalls cannot be updated.*call loss\.eval\(\) first"):
        grad(recall)(logits, targets)
    assert recall.batch_weights[0].batches.sum() == 0
    adaptive = AsymmetricLoss(target_gap=0.3)
    with pytest.raises(RuntimeError, match=r"adaptive exponent cannot be updated.*call loss\.eval\(\) first"):
        grad(adaptive)(logits, labels)
    assert adaptive.asymmetry.gamma_neg.item() == 4.0
    for loss, marks in ((recall, targets), (adaptive, labels)):
        loss.train()(logits, marks)
        loss.eval()
        _, expected = value_and_gradient(loss, logits, marks)
        assert_close(grad(loss)(logits, marks), expected, **TIGHT)


# ---------------------------------------------------------------------------------------------------------------------
# Copies
# ---------------------------------------------------------------------------------------------------------------------


def through_a_file(loss):
    buffer = io.BytesIO()
    torch.save(loss, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda loss: pickle.loads(pickle.dumps(loss)), "file": through_a_file}


@each(CATALOGUE)
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("when", ["fresh", "used", "used in float64"])
def test_copies_are_as_good_as_the_loss(entry, way, when):
    dtype = torch.float64 if when == "used in float64" else torch.float32
    for loss in stateful(entry):
        first = batch_of(entry, (9, C), ignored=0.2, dtype=dtype)
        if when != "fresh":
            loss(*first).backward()
        twin = COPIES[way](loss)
        assert type(twin) is type(loss)
        assert repr(twin) == repr(loss)
        before = {name: value.clone() for name, value in loss.state_dict().items()}
        for name, value in before.items():
            assert_close(twin.state_dict()[name], value, rtol=0, atol=0, equal_nan=True)
        for seed in (1, 2):
            batch = batch_of(entry, (9, C), ignored=0.2, seed=seed, dtype=dtype)
            actual = value_and_gradient(twin, *batch)
            if seed == 1:  # the twin has moved, the loss has not
                for name, value in before.items():
                    assert_close(loss.state_dict()[name], value, rtol=0, atol=0, equal_nan=True)
            assert_close(actual, value_and_gradient(loss, *batch), rtol=0, atol=0)
        for name, value in loss.state_dict().items():
            assert_close(twin.state_dict()[name], value, rtol=0, atol=0, equal_nan=True)


def test_a_copy_keeps_its_place_in_the_schedule():
    for way in COPIES.values():
        loss = CyclicalFocalLoss(epochs=10)
        loss.set_epoch(7)
        twin = way(loss)
        batch = logits_of(4, C), indices_of((4, C))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # neither was left at the start
            assert torch.equal(twin(*batch), loss(*batch))
        twin.set_epoch(2)
        assert not torch.equal(twin(*batch), loss(*batch))


# ---------------------------------------------------------------------------------------------------------------------
# Another device
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each(CATALOGUE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(33, C), (3, C, 5, 7)], ids=str)
def test_a_cuda_device_gives_what_the_cpu_gives(entry, dtype, shape):
    # half gradients may round to the other neighbour; losses of half logits are float32
    precision = {"rtol": 1e-11, "atol": 1e-13} if dtype is torch.float64 else {"rtol": 1e-4, "atol": 1e-6}
    rounding = torch.finfo(dtype).eps
    for loss in stateful(entry):
        twin = copy.deepcopy(loss)
        for seed in (0, 1):
            logits, targets = batch_of(entry, shape, ignored=0.2, dtype=dtype, seed=seed)
            value, gradient = value_and_gradient(loss, logits, targets)
            there, other = value_and_gradient(twin, logits.detach().cuda(), targets.cuda())
            assert there.is_cuda
            assert other.is_cuda
            assert_close(there.cpu(), value, **precision)
            slack = {**precision, "rtol": max(precision["rtol"], 2 * rounding)}
            assert_close(other.cpu(), gradient, **slack)
        for name, buffer in loss.state_dict().items():
            assert_close(twin.state_dict()[name].cpu(), buffer, **precision)
