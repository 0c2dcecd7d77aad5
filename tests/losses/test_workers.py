"""Two workers as threads of one process: every loss with ``sync`` is that of the joined batch.

``test_distributed.py`` does the same with real processes, whose code and failures are harder to look into.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.testing import assert_close

import equipoise as eq
from equipoise.distributed import all_rows, all_sum, sum_before, world_size
from tests.losses.helpers import REGION, batch_of, each, make
from tests.losses.test_distributed import BATCHES, CLOSE, NONE, C, dealt, run, softmax_batch

PATIENCE = 20  # seconds for one exchange


class Workers:
    """Stand-in for ``torch.distributed`` in threads; outside of them there is one worker."""

    def __init__(self, monkeypatch, size=2):
        self.size, self.local = size, threading.local()
        self.barrier, self.given, self.exchanges = threading.Barrier(size), [None] * size, 0
        for name in ("is_initialized", "get_world_size", "get_rank", "all_reduce", "all_gather"):
            monkeypatch.setattr(dist, name, getattr(self, name))

    def __call__(self, function):
        """Results of ``function(rank)`` of every worker."""

        def work(rank):
            self.local.rank = rank
            try:
                return function(rank)
            except BaseException:
                self.barrier.abort()
                raise

        self.exchanges = 0
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(work, range(self.size)))

    def is_initialized(self):
        return hasattr(self.local, "rank")

    def get_world_size(self, group=None):
        return self.size

    def get_rank(self, group=None):
        return self.local.rank

    def exchange(self, tensor):
        self.given[self.local.rank] = tensor.clone()
        self.barrier.wait(PATIENCE)
        everyone, self.exchanges = list(self.given), self.exchanges + 1
        self.barrier.wait(PATIENCE)
        return everyone

    def all_reduce(self, tensor, op=None, group=None):
        tensor.copy_(torch.stack(self.exchange(tensor)).sum(0))

    def all_gather(self, parts, tensor, group=None):
        for part, given in zip(parts, self.exchange(tensor), strict=True):
            part.copy_(given)


@pytest.fixture
def workers(monkeypatch):
    return Workers(monkeypatch)


@pytest.mark.parametrize("shard", ["uneven", "class on one rank only", "one rank all ignored", "one rank empty"])
@pytest.mark.parametrize("name", BATCHES)
def test_loss_gradient_and_state_are_those_of_the_joined_batch(workers, name, shard):
    build, batch = BATCHES[name]
    losses, whole = [build(sync=True) for _ in range(2)], build(sync=False)
    for seed in range(2):
        (value, grad), (other, other_grad) = workers(
            lambda rank, seed=seed: run(losses[rank], *dealt(batch(shard, seed), shard, rank))
        )
        expected, expected_grad = run(whole, *batch(shard, seed))
        assert_close((value + other) / 2, expected, **CLOSE)
        assert_close(torch.cat([grad, other_grad]) / 2, expected_grad, **CLOSE)
    for key, buffer in whole.state_dict().items():
        for loss in losses:
            assert_close(loss.state_dict()[key], buffer, equal_nan=True, **CLOSE)


@pytest.mark.parametrize("name", BATCHES)
def test_neither_evaluation_nor_a_loss_without_sync_waits_for_others(workers, name):
    build, batch = BATCHES[name]
    for loss in (build(sync=True).eval(), build(sync=False)):
        workers(lambda rank, loss=loss: run(loss, *dealt(batch("uneven", 0), "uneven", rank)))
        assert workers.exchanges == 0


@pytest.mark.parametrize("name", NONE)
def test_a_normalizer_and_single_rows_take_no_factor(workers, name):
    build, batch = BATCHES[name]
    losses, singles = (
        [build(sync=True) for _ in range(2)],
        [type(build())(**NONE[name], reduction="none", sync=True) for _ in range(2)],
    )
    value = build()(*batch("uneven", 0), normalizer=7.0)
    parts = workers(lambda rank: losses[rank](*dealt(batch("uneven", 0), "uneven", rank), normalizer=7.0).detach())
    assert_close(sum(parts), value, **CLOSE)
    rows = workers(lambda rank: singles[rank](*dealt(batch("uneven", 0), "uneven", rank)).detach())
    assert_close(torch.cat(rows).sum() / 7.0, value, **CLOSE)


@pytest.mark.parametrize("loss", [eq.RecallLoss, eq.PrecisionLoss])
def test_recall_and_precision_are_shared_by_default(workers, loss):
    losses = [loss(C) for _ in range(2)]
    found = workers(lambda rank: run(losses[rank], *dealt(softmax_batch("uneven", 0), "uneven", rank)))
    value, grad = run(loss(C), *softmax_batch("uneven", 0))
    assert_close((found[0][0] + found[1][0]) / 2, value, **CLOSE)
    assert_close(torch.cat([part[1] for part in found]) / 2, grad, **CLOSE)


@each(REGION)
@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("cut", [3, 1, 4], ids=["uneven", "one", "one rank empty"])
def test_regions_are_those_of_the_joined_batch(workers, entry, per_image, reduction, cut):
    per_image = per_image or entry.name == "LovaszSoftmaxLoss"  # which offers no sort over workers
    logits, targets = batch_of(entry, (4, 3, 4, 4), ignored=0.2)
    options = {"per_image": per_image, "reduction": reduction}
    parts = [(logits[:cut], targets[:cut]), (logits[cut:], targets[cut:])]
    losses = [make(entry, 3, sync=True, **options) for _ in range(2)]
    found = workers(lambda rank: run(losses[rank], *(part.detach() for part in parts[rank])))
    value, grad = run(make(entry, 3, sync=False, **options), logits.detach(), targets)
    assert_close((found[0][0] + found[1][0]) / 2, value, **CLOSE)
    assert_close(torch.cat([part[1] for part in found]) / 2, grad, **CLOSE)


def test_sums_and_rows_over_workers(workers):
    assert world_size() == 1
    rows = [torch.arange(6.0).view(3, 2).requires_grad_(), torch.arange(4.0).view(2, 2).neg().requires_grad_()]

    def work(rank):
        joined = all_rows(rows[rank])
        (own,) = torch.autograd.grad((joined * torch.arange(1.0, 6.0)[:, None]).sum(), rows[rank])
        total = all_sum(rows[rank].sum())
        return world_size(), joined.detach(), own, total, sum_before(rows[rank].sum())

    for rank, (size, joined, own, total, before) in enumerate(workers(work)):
        assert size == 2
        assert torch.equal(joined, torch.cat(rows).detach())
        assert own.tolist() == [[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [[4.0, 4.0], [5.0, 5.0]]][rank]
        assert total.item() == 15.0 - 6.0
        assert not total.requires_grad
        assert before.item() == (0.0, 15.0)[rank]
