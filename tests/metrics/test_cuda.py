"""Metrics on a GPU: the values of the CPU, and no waiting for the device in an update that keeps sums only."""

import pytest
import torch
from torch.testing import assert_close

from tests.metrics.batches import EVERY, IGNORED, values

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SORTING = ("mass", "average precision", "open set")  # what needs a sort, unless there is a histogram
SUMS = [name for name in EVERY if "histogram" in name or not any(word in name for word in SORTING)]


@pytest.mark.parametrize("name", EVERY)
def test_a_gpu_gives_the_value_of_the_cpu(name):
    build, batch = EVERY[name]
    here, there = build(), build().to("cuda")
    for seed in range(2):
        scores, targets = batch(40, (3,), seed=seed)
        here.update(scores, targets)
        there.update(scores.cuda(), targets.cuda())
    for key, value in values(here.compute()).items():
        actual = values(there.compute())[key]
        assert actual.device.type == "cuda"
        assert_close(actual.cpu(), value, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", SUMS)
def test_an_update_does_not_wait_for_the_device(name):
    build, batch = EVERY[name]
    metric = build().to("cuda")
    scores, targets = (tensor.cuda() for tensor in batch(40, (3,)))
    metric.update(scores, targets)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        metric.update(scores, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_values_are_validated_on_request():
    build, batch = EVERY["nll"]
    scores, targets = (tensor.cuda() for tensor in batch())
    scores[targets != IGNORED] = torch.nan  # of rows that count
    with pytest.raises(ValueError, match="scores must be finite"):
        build(validate=True).to("cuda").update(scores, targets)
