"""Any batching, any layout and any number of processes give the same value; nothing seen gives NaN."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch.testing import assert_close

from equipoise.metrics import CalibrationError, MultilabelAveragePrecision
from equipoise.metrics import _inputs as inputs
from tests.metrics.batches import EVERY, MULTI, link, values
from tests.processes import leave, on_two_processes

CLOSE = {"rtol": 1e-12, "atol": 1e-12, "equal_nan": True}
PATIENCE = 120  # seconds for all the processes do; they need about five
each_metric = pytest.mark.parametrize("name", EVERY)
SHARDS = {"even": (12, 12), "uneven": (20, 4), "one empty": (24, 0), "the other never updated": None}


def whole(name, **options):
    build, batch = EVERY[name]
    metric = build(**options)
    metric.update(*batch())
    return values(metric.compute())


def same(actual, expected):
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert_close(actual[key], value, **CLOSE)


@each_metric
def test_any_batching_and_order_gives_the_same_value(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(1))
    metric = build()
    for part in (order[:1], order[:0], order[1:8], order[8:]):
        metric.update(scores[part], targets[part])
    same(values(metric.compute()), whole(name))
    assert any(value.isfinite().any() for value in whole(name).values())


def test_groups_by_true_and_by_predicted_class():
    """Of a model that is perfectly calibrated, only those by predicted class are near 0."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(40_000, 4, generator=draw) + torch.tensor([3.0, 2.0, 0.0, -1.0])
    targets = torch.multinomial(logits.softmax(1), 1, generator=draw).squeeze(1)
    groups = torch.tensor([0, 0, 1, 1])
    by_true, by_predicted = (CalibrationError(groups=groups, by=by)(logits, targets) for by in ("true", "predicted"))
    assert float(by_true[1]) > 0.4
    assert float(by_predicted.max()) < 0.06
    predicted = groups[logits.argmax(1)] == 1
    assert_close(by_predicted[1], CalibrationError()(logits[predicted], targets[predicted]))
    assert_close(by_true, CalibrationError(groups=groups)(logits, targets))
    with pytest.raises(ValueError, match="by must be one of"):
        CalibrationError(groups=groups, by="label")


@each_metric
def test_blocks_do_not_show(name, monkeypatch):
    """Places next to one another, cut anywhere, in any memory layout, are so many samples."""
    build, batch = EVERY[name]
    scores, targets = batch(3, (4, 2))
    flat = [each.movedim(1, -1).flatten(0, -2) if each.ndim == 4 else each.flatten() for each in (scores, targets)]
    metric = build()
    metric.update(*flat)
    for block in (1, 40, 2**20):
        monkeypatch.setattr(inputs, "BLOCK", block)
        for layout in (scores, scores.movedim(1, -1).contiguous().movedim(-1, 1)):
            spatial = build()
            spatial.update(layout, targets)
            same(values(spatial.compute()), values(metric.compute()))


@each_metric
def test_forward_gives_the_value_of_the_batch_and_adds_it(name):
    build, batch = EVERY[name]
    metric, alone = build(), build()
    scores, targets = batch()
    for part in (slice(0, 10), slice(10, None)):
        alone.reset()
        alone.update(scores[part], targets[part])
        same(values(metric(scores[part], targets[part])), values(alone.compute()))
    same(values(metric.compute()), whole(name))


@each_metric
def test_nothing_seen_is_nan(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    for update in ((scores[:0], targets[:0]), (scores, torch.full_like(targets, -1 if name in MULTI else -100))):
        metric = build()
        metric.update(*update)
        for key, value in values(metric.compute()).items():
            if key == "left_out":
                assert value == 4
            else:
                assert value.isnan().all(), key


@each_metric
def test_probabilities_may_be_declared(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    metric = build(from_logits=False)
    metric.update(link(name)(scores), targets)
    actual, expected = values(metric.compute()), whole(name)
    for key, value in expected.items():
        assert_close(actual[key], value, rtol=1e-9, atol=1e-12, equal_nan=True)


@each_metric
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_types_are_read_and_sums_are_float64(name, dtype):
    build, batch = EVERY[name]
    scores, targets = batch()
    rounded = scores.to(dtype)
    metric, exact = build(), build()
    metric.update(rounded, targets.to(torch.int32))
    exact.update(rounded.double(), targets)
    actual, expected = values(metric.compute()), values(exact.compute())
    for key, value in expected.items():
        assert actual[key].dtype == value.dtype
        assert_close(actual[key], value, rtol=1e-5, atol=1e-6, equal_nan=True)


@each_metric
def test_the_batch_is_left_as_it_was_and_not_referred_to(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    scores.requires_grad_()
    before = scores.detach().clone(), targets.clone()
    metric = build()
    metric.update(scores, targets)
    assert torch.equal(scores, before[0])
    assert torch.equal(targets, before[1])
    with torch.no_grad():
        scores.zero_()
    targets.zero_()
    same(values(metric.compute()), whole(name))


@each_metric
def test_a_metric_is_copied_pickled_and_reset(name):
    build, batch = EVERY[name]
    metric = build()
    metric.update(*batch())
    for other in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone()):
        same(values(other.compute()), whole(name))
    metric.reset()
    metric.update(*batch())
    same(values(metric.compute()), whole(name))


SORTING = ("mass", "average precision", "open set")  # what needs a sort, unless there is a histogram


@pytest.mark.parametrize("name", [n for n in EVERY if "histogram" in n or not any(word in n for word in SORTING)])
def test_the_state_does_not_grow(name):
    build, batch = EVERY[name]
    metric = build()
    sizes = []
    for _ in range(3):
        metric.update(*batch())
        sizes.append({key: state.shape for key, state in metric.metric_state.items()})
    assert sizes[0] == sizes[1] == sizes[2]


# -------------------------------------------------------------------------------------------------------- two processes


def deal(name, shard, rank):
    scores, targets = EVERY[name][1]()
    if SHARDS[shard] is None:
        return (scores, targets) if rank == 0 else None
    return scores.split(SHARDS[shard])[rank], targets.split(SHARDS[shard])[rank]


def on_one_process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    actual = {}
    for name, (build, _) in EVERY.items():
        for shard in SHARDS:
            metric = build()
            batch = deal(name, shard, rank)
            if batch is not None:
                metric.update(*batch)
            actual[name, shard] = values(metric.compute())
            if isinstance(metric, CalibrationError):
                actual[name, shard]["curve"] = torch.cat([part.double().flatten() for part in metric.curve()])
            if isinstance(metric, MultilabelAveragePrecision):
                actual[name, shard]["left out"] = metric.left_out()
            if batch is not None:  # after the processes have shared, each is what it was
                metric.sync_on_compute = False
                metric._to_sync = False
                metric._computed = None
                actual[name, shard, "alone"] = values(metric.compute())
    torch.save(actual, f"{folder}/{rank}.pt")
    leave()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return on_two_processes(on_one_process, tmp_path_factory.mktemp("processes"), PATIENCE)


@pytest.mark.parametrize("shard", SHARDS)
@each_metric
def test_two_processes_are_one(results, name, shard):
    build, batch = EVERY[name]
    metric = build()
    metric.update(*batch())
    expected = dict(values(metric.compute()))
    if isinstance(metric, CalibrationError):
        expected["curve"] = torch.cat([part.double().flatten() for part in metric.curve()])
    if isinstance(metric, MultilabelAveragePrecision):
        expected["left out"] = metric.left_out()
    for rank in results:
        same(rank[name, shard], expected)
    alone = build()
    alone.update(*deal(name, shard, 0))
    same(results[0][name, shard, "alone"], values(alone.compute()))
