"""Two real processes (gloo) train as one process does on the joined batch.

Every check runs inside one pair of processes, which write what they found to files. Each process computes its loss on
its own shard. The mean of the two losses must be the loss of the joined batch, and so must be the gradient that
``DistributedDataParallel`` makes: the mean of the two parameter gradients. For the gradient with respect to the
logits this means: the gradients of the shards one after the other, divided by 2.

float64 throughout; sums in another order differ by some units in the last place, hence 1e-12.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import equipoise as eq
from equipoise.losses import SoftmaxLoss, cyclical, focal
from equipoise.schedules import Linear
from equipoise.weights import PrecisionWeights, RecallWeights
from tests.processes import leave, on_two_processes

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
IGNORED = -100
FEATURES, C = 3, 4
REDUCTIONS = ("mean", "valid_mean", "batch_mean", "sum")
PATIENCE = 120  # seconds for all the processes do; they need about five

# how the joined batch of 12 rows is dealt out, and what is done to the targets first
SHARDS = {
    "even": (6, 6),
    "uneven": (9, 3),
    "class on one rank only": (6, 6),
    "one rank all ignored": (7, 5),
    "all ignored everywhere": (6, 6),
    "one rank empty": (12, 0),
    "the other rank empty": (0, 12),
}

WEIGHT = [0.5, 1.0, 2.0, 3.0]
SOFTMAX = {
    **{f"cross-entropy {r}": lambda r=r, **o: eq.CrossEntropyLoss(WEIGHT, reduction=r, **o) for r in REDUCTIONS},
    **{f"focal {r}": lambda r=r, **o: eq.FocalLoss(label_smoothing=0.1, reduction=r, **o) for r in REDUCTIONS},
    **{f"recall {r}": lambda r=r, **o: eq.RecallLoss(C, reduction=r, **o) for r in REDUCTIONS},
    **{f"recall average {r}": lambda r=r, **o: eq.RecallLoss(C, momentum=0.3, reduction=r, **o) for r in REDUCTIONS},
    "recall published": lambda **o: eq.RecallLoss(C, momentum=0.3, preset="published", **o),
    "recall as in the text": lambda **o: eq.RecallLoss(C, min_errors=0.0, weight=WEIGHT, **o),
    "precision": lambda **o: eq.PrecisionLoss(C, **o),
    "precision mean": lambda **o: eq.PrecisionLoss(C, reduction="mean", **o),
    "brier": lambda **o: eq.BrierLoss(weight=WEIGHT, **o),
    **{f"hardest {r}": lambda r=r, **o: eq.OHEMLoss(0.4, weight=WEIGHT, reduction=r, **o) for r in REDUCTIONS},
    "hardest, at least": lambda **o: eq.OHEMLoss(0.1, min_kept=7, **o),
    **{f"calibration {r}": lambda r=r, **o: eq.MMCELoss(3.0, weight=WEIGHT, reduction=r, **o) for r in REDUCTIONS},
    "calibration by definition": lambda **o: eq.MMCELoss(normalization="definition", **o),
    "logit adjusted": lambda **o: eq.LogitAdjustedLoss([9, 5, 2, 1], **o),
    "all together": lambda **o: SoftmaxLoss(
        cyclical(0.3, 2.0, 1.5, 2.0),
        weight=[WEIGHT, RecallWeights(C, momentum=0.4), PrecisionWeights(C)],
        label_smoothing=0.1,
        **o,
    ),
}
SIGMOID = {
    **{f"binary {r}": lambda r=r, **o: eq.BinaryCrossEntropyLoss(WEIGHT, reduction=r, **o) for r in REDUCTIONS},
    **{
        f"adaptive {r}": lambda r=r, **o: eq.AsymmetricLoss(target_gap=0.4, gap_step=0.9, reduction=r, **o)
        for r in REDUCTIONS
    },
    "adaptive per class": lambda **o: eq.AsymmetricLoss(target_gap=0.4, gap_step=0.9, per_class=True, **o),
    "distribution balanced": lambda **o: eq.DistributionBalancedLoss([9, 5, 2, 1], 20, **o),
}
SCHEDULED = "scheduled focal"


def softmax_batch(shard, seed, *, dense=False, size=()):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, C, *size, generator=draw, dtype=torch.float64)
    targets = torch.randint(0, C, (12, *size), generator=draw)
    targets[torch.rand(targets.shape, generator=draw) < 0.15] = IGNORED
    cut = SHARDS[shard][0]
    if shard == "class on one rank only":
        targets[:cut][targets[:cut] == 2] = 1
        targets[-1] = 2
    if shard == "one rank all ignored":
        targets[cut:] = IGNORED
    if shard == "all ignored everywhere":
        targets[:] = IGNORED
    if dense:
        masses = torch.rand(logits.shape, generator=draw, dtype=torch.float64)
        return logits, masses / masses.sum(1, keepdim=True) * (targets != IGNORED).unsqueeze(1)
    return logits, targets


def sigmoid_batch(shard, seed):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(12, C, generator=draw, dtype=torch.float64)
    targets = (torch.rand(12, C, generator=draw) < 0.4).double()
    targets[torch.rand(12, C, generator=draw) < 0.15] = -1
    cut = SHARDS[shard][0]
    if shard == "class on one rank only":
        targets[:cut, 2] = 0
        targets[cut:, 0] = 1
    if shard == "one rank all ignored":
        targets[cut:] = -1
    if shard == "all ignored everywhere":
        targets[:] = -1
    return logits, targets


BATCHES = {
    **{name: (build, softmax_batch) for name, build in SOFTMAX.items()},
    **{
        f"{name}, {label}": (SOFTMAX[name], lambda shard, seed, o=options: softmax_batch(shard, seed, **o))
        for name in ("cross-entropy mean", "focal valid_mean", "recall mean", "recall average batch_mean", "precision")
        for label, options in (("dense", {"dense": True}), ("pixels", {"size": (3, 2)}))
    },
    "hardest, ties": (
        lambda **o: eq.OHEMLoss(0.6, **o),
        lambda shard, seed: (torch.zeros(12, C, dtype=torch.float64), softmax_batch(shard, seed)[1]),
    ),
    **{name: (build, sigmoid_batch) for name, build in SIGMOID.items()},
}
STEPS = 3


def run(loss, logits, targets):
    logits = logits.clone().requires_grad_()
    value = loss(logits, targets)
    assert value.requires_grad  # attached to the graph, also where there is nothing to learn from
    return value.detach(), torch.autograd.grad(value, logits)[0]


def dealt(tensors, shard, rank):
    return [tensor.split(SHARDS[shard])[rank] for tensor in tensors]


def model():
    torch.manual_seed(0)
    return nn.Linear(FEATURES, C, dtype=torch.float64)


def inputs(seed):
    return torch.randn(12, FEATURES, generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64)


def descend(network, loss, shard, batch, rank):
    """Parameter gradients of a few steps of gradient descent; ``rank`` None is the single process."""
    actual = []
    for step in range(STEPS):
        given, targets = inputs(step), batch(shard, step)[1]
        if rank is not None:
            given, targets = dealt((given, targets), shard, rank)
        network.zero_grad()
        loss(network(given), targets).backward()
        actual.append([parameter.grad.clone() for parameter in network.parameters()])
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.5 * parameter.grad
    return actual


DDP_CASES = [
    ("recall average valid_mean", "even"),
    ("recall mean", "class on one rank only"),
    ("cross-entropy mean", "uneven"),
    ("focal sum", "uneven"),
    ("all together", "one rank all ignored"),
    ("recall published", "one rank empty"),
    ("adaptive batch_mean", "the other rank empty"),
    ("adaptive per class", "class on one rank only"),
    ("adaptive mean", "uneven"),
    ("hardest mean", "uneven"),
    ("calibration mean", "class on one rank only"),
]


def on_one_process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    actual = {}
    for name, (build, batch) in BATCHES.items():
        for shard in SHARDS:
            loss = build(sync=True)
            steps = [run(loss, *dealt(batch(shard, seed), shard, rank)) for seed in range(STEPS)]
            actual[name, shard] = steps, {key: value.clone() for key, value in loss.state_dict().items()}
    for name, shard in DDP_CASES:
        build, batch = BATCHES[name]
        network = DistributedDataParallel(model())
        actual["ddp", name, shard] = descend(network, build(sync=True), shard, batch, rank)

    for name in ("focal valid_mean", "recall mean", "adaptive mean"):  # a number of one's own is the denominator
        build, batch = BATCHES[name]
        loss, (logits, targets) = build(sync=True), dealt(batch("uneven", 0), "uneven", rank)
        actual["normalizer", name] = loss(logits, targets, normalizer=7.0).detach()
        actual["none", name] = type(loss)(**NONE[name], reduction="none", sync=True)(logits, targets).detach()
    for name in ("recall valid_mean", "recall average mean", "adaptive mean", "cross-entropy mean"):  # sync=False
        build, batch = BATCHES[name]
        loss = build(sync=False)
        actual["alone", name] = run(loss, *dealt(batch("uneven", 0), "uneven", rank)), copy.deepcopy(loss.state_dict())
    loss, (logits, targets) = eq.RecallLoss(C), dealt(softmax_batch("uneven", 0), "uneven", rank)
    actual["default"] = run(loss, logits, targets)  # RecallLoss and PrecisionLoss share by default
    actual["default precision"] = run(eq.PrecisionLoss(C), logits, targets)
    scheduled = eq.FocalLoss(Linear(0.0, 2.0), epochs=4, sync=True)
    scheduled.set_epoch(3)
    actual[SCHEDULED] = run(scheduled, logits, targets)
    half = eq.RecallLoss(C)
    actual["half"] = run(half, logits.half(), targets)

    dist.barrier()
    if rank == 0:  # alone: if eval() communicated, this would wait for the other process until the time is over
        for name, (build, batch) in BATCHES.items():
            loss = build(sync=True).eval()
            actual["eval", name] = run(loss, *dealt(batch("uneven", 0), "uneven", rank))
    torch.save(actual, f"{folder}/{rank}.pt")
    leave()


NONE = {
    "focal valid_mean": {"label_smoothing": 0.1},
    "recall mean": {"num_classes": C},
    "adaptive mean": {"target_gap": 0.4, "gap_step": 0.9},
}


@pytest.fixture(scope="module")
def results_of_ranks(tmp_path_factory):
    return on_two_processes(on_one_process, tmp_path_factory.mktemp("processes"), PATIENCE)


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("name", BATCHES)
def test_loss_and_gradient_are_those_of_the_joined_batch(results_of_ranks, name, shard):
    build, batch = BATCHES[name]
    loss = build(sync=False)
    (first, first_state), (second, second_state) = (rank[name, shard] for rank in results_of_ranks)
    for step in range(STEPS):
        value, grad = run(loss, *batch(shard, step))
        (first_value, first_grad), (second_value, second_grad) = first[step], second[step]
        assert_close((first_value + second_value) / 2, value, **CLOSE)
        assert_close(torch.cat([first_grad, second_grad]) / 2, grad, **CLOSE)
        if shard == "all ignored everywhere":
            assert value.item() == 0
        else:
            assert value.item() > 0.01
            assert grad.abs().max() > 1e-4
    assert first_state.keys() == second_state.keys() == loss.state_dict().keys()
    for key, value in loss.state_dict().items():
        # bit by bit, or the processes would drift apart
        assert_close(first_state[key], second_state[key], rtol=0, atol=0, equal_nan=True)
        assert_close(first_state[key], value, equal_nan=True, **CLOSE)


@pytest.mark.parametrize(("name", "shard"), DDP_CASES)
def test_parameter_gradients_under_ddp_are_those_of_one_process(results_of_ranks, name, shard):
    build, batch = BATCHES[name]
    expected = descend(model(), build(sync=False), shard, batch, None)
    for rank in results_of_ranks:
        for step, grads in enumerate(rank["ddp", name, shard]):
            for grad, alone in zip(grads, expected[step], strict=True):
                assert alone.abs().max() > 1e-4
                assert_close(grad, alone, **CLOSE)


@pytest.mark.parametrize("name", NONE)
def test_a_normalizer_and_no_reduction_take_no_factor(results_of_ranks, name):
    build, batch = BATCHES[name]
    value = build()(*batch("uneven", 0), normalizer=7.0)
    assert_close(results_of_ranks[0]["normalizer", name] + results_of_ranks[1]["normalizer", name], value, **CLOSE)
    unreduced = torch.cat([rank["none", name] for rank in results_of_ranks])
    assert_close(unreduced.sum() / 7.0, value, **CLOSE)


@pytest.mark.parametrize("name", ["recall valid_mean", "recall average mean", "adaptive mean", "cross-entropy mean"])
def test_without_sync_every_process_is_alone(results_of_ranks, name):
    build, batch = BATCHES[name]
    for rank in range(2):
        loss = build(sync=False)
        value, grad = run(loss, *dealt(batch("uneven", 0), "uneven", rank))
        (alone, alone_grad), state = results_of_ranks[rank]["alone", name]
        assert torch.equal(alone, value)
        assert torch.equal(alone_grad, grad)
        for key, saved in state.items():
            assert_close(saved, loss.state_dict()[key], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("key", "loss"), [("default", eq.RecallLoss), ("default precision", eq.PrecisionLoss)])
def test_recall_and_precision_are_shared_by_default(results_of_ranks, key, loss):
    value, grad = run(loss(C), *softmax_batch("uneven", 0))
    assert_close((results_of_ranks[0][key][0] + results_of_ranks[1][key][0]) / 2, value, **CLOSE)
    assert_close(torch.cat([rank[key][1] for rank in results_of_ranks]) / 2, grad, **CLOSE)


def test_scheduled_losses_are_shared_too(results_of_ranks):
    value, grad = run(SoftmaxLoss(focal(1.5)), *softmax_batch("uneven", 0))
    assert_close((results_of_ranks[0][SCHEDULED][0] + results_of_ranks[1][SCHEDULED][0]) / 2, value, **CLOSE)
    assert_close(torch.cat([rank[SCHEDULED][1] for rank in results_of_ranks]) / 2, grad, **CLOSE)


def test_half_logits_are_shared_in_single_precision(results_of_ranks):
    logits, targets = softmax_batch("uneven", 0)
    value, grad = run(eq.RecallLoss(C), logits.half(), targets)
    values, grads = zip(*(rank["half"] for rank in results_of_ranks), strict=True)
    assert values[0].dtype is torch.float32
    assert_close((values[0] + values[1]) / 2, value, rtol=1e-6, atol=0)
    # Each gradient is rounded to half once, at twice the size: one unit in the last place of half, 2^-10.
    assert_close(torch.cat(grads).float() / 2, grad.float(), rtol=2**-10, atol=2**-24)


@pytest.mark.parametrize("name", BATCHES)
def test_eval_does_not_communicate(results_of_ranks, name):
    build, batch = BATCHES[name]
    value, grad = run(build(sync=False).eval(), *dealt(batch("uneven", 0), "uneven", 0))
    assert torch.equal(results_of_ranks[0]["eval", name][0], value)
    assert torch.equal(results_of_ranks[0]["eval", name][1], grad)


def test_sync_without_processes_changes_nothing():
    for build, batch in BATCHES.values():
        synced, plain = (build(sync=sync) for sync in (True, False))
        for seed in range(2):
            for one, other in zip(run(synced, *batch("even", seed)), run(plain, *batch("even", seed)), strict=True):
                assert torch.equal(one, other)
