import pytest
import torch

import equipoise
from tests.examples.running import numbers, run

pytestmark = pytest.mark.slow  # it trains


@pytest.fixture(scope="module")
def example():
    return run("volumes.py")


@pytest.mark.parametrize("name", ["recall", "recall + dice"])
def test_lesions_are_found(example, name):
    start = name.ljust(14)
    *recall, background, organ, lesion, _ = numbers(example.printed, start)
    assert len(recall) == 3
    assert min(recall) > 20
    assert background > 85
    assert organ > 60
    assert lesion > 15


def test_slices_without_annotation_are_ignored(example):
    _, labels = example.make_scans(2, seed=2)
    labels[:, 1::2] = example.IGNORE
    logits = torch.randn(2, 3, *labels.shape[1:], requires_grad=True)
    for loss in (equipoise.RecallLoss(3, ignore_index=example.IGNORE), example.RecallAndDice()):
        value = loss(logits, labels)
        (grad,) = torch.autograd.grad(value, logits)
        assert not grad[:, :, 1::2].any()
        torch.testing.assert_close(loss(logits[:, :, ::2], labels[:, ::2]), value)
