import pytest
import torch

import equipoise
from tests.examples.running import numbers, run

pytestmark = pytest.mark.slow  # it trains


@pytest.fixture(scope="module")
def example():
    return run("extreme_labels.py", "--documents", 2000, "--epochs", 4)


def test_the_loss_keeps_nothing_of_the_size_of_the_logits(example):
    targets = example.table(torch.arange(20).view(4, 5))
    logits = torch.randn(targets.shape)
    assert example.bytes_kept(equipoise.AsymmetricLoss(), logits, targets) < 1000
    assert example.bytes_kept(example.plain_asymmetric_loss, logits, targets.float()) > 5 * logits.nbytes
    assert numbers(example.printed, "kept for backward by equipoise.AsymmetricLoss: ") == [0.0]
    assert numbers(example.printed, "a batch of 250: logits ") == [10.0, 2.5]


def test_the_plain_formula_is_the_same_loss(example):
    targets = example.table(torch.arange(20).view(4, 5))
    logits = torch.randn(targets.shape, dtype=torch.float64)
    torch.testing.assert_close(
        equipoise.AsymmetricLoss()(logits, targets), example.plain_asymmetric_loss(logits, targets.double())
    )


def test_labels_are_found(example):
    bce, asl = numbers(example.printed, "bce: precision at 1 "), numbers(example.printed, "asl: precision at 1 ")
    assert min(bce[0], asl[0]) > 50  # percent; the most frequent label alone has about 6
    assert asl[-2] > bce[-2]  # labels above 1/2
