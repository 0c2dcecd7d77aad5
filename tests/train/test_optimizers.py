"""Optimisers, and the learning rate over a training."""

import io
import math
from copy import deepcopy
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.train.builders import optimizer_of
from equipoise.train.optimizers import LEARNING_RATES, OPTIMIZERS, build_optimizer, learning_rate_factor
from equipoise.train.spec import RunSpec


def rates(factor, steps):
    """Learning rates of all steps as LambdaLR sets them, for a maximum of 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step / steps))
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_what_needs_a_gradient_is_trained(name):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = build_optimizer(name, model, lr=0.1, weight_decay=0.1, momentum=0.9)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert changed == [False, False, True, True]


def test_sgd_is_that_of_nesterov():
    ours, theirs = nn.Linear(2, 1), nn.Linear(2, 1)
    theirs.load_state_dict(ours.state_dict())
    settings = {"lr": 0.2, "weight_decay": 0.01, "momentum": 0.8}
    steps = [
        (ours, build_optimizer("sgd", ours, **settings)),
        (theirs, torch.optim.SGD(theirs.parameters(), nesterov=True, **settings)),
    ]
    for model, optimizer in steps:
        for i in range(3):
            optimizer.zero_grad()
            model(torch.tensor([[1.0, float(i)]])).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-7)
    assert build_optimizer("sgd", ours, lr=0.1, weight_decay=0.0, momentum=0.0).defaults["nesterov"] is False


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_momentum_is_that_of_polyak(momentum):
    """Without the look-ahead of Nesterov: v = m v + g + d w, w = w - lr v."""
    model = nn.Linear(3, 2).double()
    weight, velocity = model.weight.detach().clone(), torch.zeros(2, 3, dtype=torch.float64)
    optimizer = build_optimizer("momentum", model, lr=0.2, weight_decay=0.01, momentum=momentum)
    for i in range(4):
        gradient = torch.randn(2, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        model.weight.grad = gradient.clone()
        optimizer.step()
        velocity = momentum * velocity + gradient + 0.01 * weight
        weight = weight - 0.2 * velocity
    torch.testing.assert_close(model.weight.detach(), weight, rtol=1e-12, atol=0)


def test_adagrad_divides_by_the_root_of_the_summed_squares():
    model = nn.Linear(3, 2).double()
    weight, total = model.weight.detach().clone(), torch.zeros(2, 3, dtype=torch.float64)
    optimizer = build_optimizer("adagrad", model, lr=0.05, weight_decay=1e-4)
    for i in range(4):
        gradient = torch.randn(2, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        model.weight.grad = gradient.clone()
        optimizer.step()
        decayed = gradient + 1e-4 * weight
        total = total + decayed.square()
        weight = weight - 0.05 * decayed / (total.sqrt() + 1e-10)
    torch.testing.assert_close(model.weight.detach(), weight, rtol=1e-12, atol=0)


def test_every_optimiser_of_a_run_has_its_defaults():
    kind = RunSpec.model_fields["optimizer"].annotation
    assert set(get_args(kind)) == set(OPTIMIZERS)
    for name, (lr, weight_decay) in OPTIMIZERS.items():
        defaults = optimizer_of(RunSpec(data="digits-lt", optimizer=name), nn.Linear(2, 1)).defaults
        assert (defaults["lr"], defaults["weight_decay"]) == (lr, weight_decay)
    chosen = optimizer_of(RunSpec(data="digits-lt", optimizer="adagrad", lr=0.5, weight_decay=0.25), nn.Linear(2, 1))
    assert (chosen.defaults["lr"], chosen.defaults["weight_decay"]) == (0.5, 0.25)


def steps_of(optimizer, model, count, start=0):
    """Take some steps with a different gradient each."""
    for i in range(start, start + count):
        draw = torch.Generator().manual_seed(i)
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=draw)
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_fused_optimiser_is_the_other_one_up_to_rounding(name):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 3))
    theirs = deepcopy(ours)
    settings = {"lr": 0.05, "weight_decay": 0.01}
    fused = build_optimizer(name, ours, **settings)
    plain = build_optimizer(name, theirs, fused=False, **settings)
    assert fused.defaults["fused"] is True
    assert not plain.defaults["fused"]
    steps_of(fused, ours, 20)
    steps_of(plain, theirs, 20)
    for weight, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_optimiser_resumes_bit_for_bit(name):
    torch.manual_seed(0)
    ours = nn.Linear(30, 20)
    optimizer = build_optimizer(name, ours, lr=0.05, weight_decay=0.01)
    steps_of(optimizer, ours, 5)
    stored = io.BytesIO()
    torch.save({"model": ours.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    stored.seek(0)
    state = torch.load(stored, weights_only=True)
    again = nn.Linear(30, 20)
    again.load_state_dict(state["model"])
    resumed = build_optimizer(name, again, lr=0.05, weight_decay=0.01)
    resumed.load_state_dict(state["optimizer"])
    steps_of(optimizer, ours, 5, start=5)
    steps_of(resumed, again, 5, start=5)
    assert torch.equal(ours.weight, again.weight)


def test_devices_without_a_fused_optimiser_have_torchs():
    assert not build_optimizer("adamw", nn.Linear(2, 1, device="meta"), lr=0.1, weight_decay=0.0).defaults["fused"]


def test_adamw_decays_beside_the_gradient():
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    optimizer = build_optimizer("adamw", model, lr=0.1, weight_decay=0.5, momentum=0.5)
    assert optimizer.defaults["betas"] == (0.9, 0.999)
    (0.0 * model.weight.sum() + 0.0 * model.bias.sum()).backward()
    optimizer.step()
    torch.testing.assert_close(model.weight, before * (1 - 0.1 * 0.5))


def test_cosine_falls_to_zero_behind_a_linear_warmup():
    factor = learning_rate_factor("cosine", warmup=0.2)
    assert [factor(progress) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])
    peer = torch.optim.lr_scheduler.CosineAnnealingLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), T_max=50)
    expected = []
    for _ in range(50):
        expected.append(peer.get_last_lr()[0])
        peer.optimizer.step()
        peer.step()
    assert rates(learning_rate_factor("cosine"), 50) == pytest.approx(expected, abs=1e-12)


def test_steps_fall_at_their_epoch_with_and_without_warmup():
    epochs, in_each = 200, 7
    for warmup in (0.0, 5 / 200):
        actual = rates(
            learning_rate_factor("step", warmup=warmup, milestones=(160 / 200, 180 / 200), step_factor=0.1),
            epochs * in_each,
        )
        ends = [actual[epoch * in_each + step] for epoch, step in ((159, 6), (160, 0), (179, 6), (180, 0))]
        assert ends == pytest.approx([1.0, 0.1, 0.1, 0.01])
    assert learning_rate_factor("step")(0.9) == 1.0  # no milestone, no step


def test_one_cycle_is_that_of_torch():
    steps = 2000
    peer = torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1.0, total_steps=steps)
    expected = []
    for _ in range(steps):
        expected.append(peer.get_last_lr()[0])
        peer.optimizer.step()
        if len(expected) < steps:
            peer.step()
    actual = rates(learning_rate_factor("one-cycle", warmup=0.1), steps)  # the warm-up is not added to its own
    assert actual == pytest.approx(expected, abs=3e-3)  # torch's last step is progress 1, ours one step less
    assert actual[0] == pytest.approx(1 / 25)
    assert learning_rate_factor("one-cycle")(1.0) == pytest.approx(1e-4 / 25)


@given(st.sampled_from(LEARNING_RATES), st.floats(0.0, 0.7), st.floats(0.0, 1.0))
def test_a_factor_between_nothing_and_the_highest_rate(schedule, warmup, progress):
    factor = learning_rate_factor(schedule, warmup=warmup, milestones=(0.8, 0.9), step_factor=0.2)
    assert -1e-12 <= factor(progress) <= 1.0 + 1e-12
    assert math.isclose(factor(0.3 if schedule == "one-cycle" else warmup), 1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build_optimizer("adam", nn.Linear(1, 1), lr=0.1, weight_decay=0.0), "'adamw', got 'adam'"),
        (lambda: build_optimizer("sgd", nn.Linear(1, 1), lr=0.0, weight_decay=0.0), "lr must be"),
        (lambda: build_optimizer("sgd", nn.Linear(1, 1), lr=0.1, weight_decay=-1.0), "weight_decay must be"),
        (lambda: build_optimizer("sgd", nn.Linear(1, 1), lr=0.1, weight_decay=0.0, momentum=1.0), "momentum must be"),
        (lambda: build_optimizer("sgd", nn.ReLU(), lr=0.1, weight_decay=0.0), "ReLU without; unfreeze"),
        (lambda: learning_rate_factor("linear"), "schedule must be one of 'cosine'"),
        (lambda: learning_rate_factor("cosine", warmup=1.0), "warmup must be"),
        (lambda: learning_rate_factor("step", warmup=0.5, milestones=(0.5, 0.9)), "behind the warm-up of 0.5"),
        (lambda: learning_rate_factor("step", milestones=(0.9, 0.8)), "increasing fractions"),
        (lambda: learning_rate_factor("step", milestones=(0.8,), step_factor=1.0), "step_factor must be"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
