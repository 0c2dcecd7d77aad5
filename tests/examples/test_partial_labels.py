import pytest
import torch

import equipoise
from tests.examples.running import numbers, run

pytestmark = pytest.mark.slow  # it trains


@pytest.fixture(scope="module")
def example():
    return run("partial_labels.py")


def test_leaving_unknown_labels_out_beats_taking_them_for_absent(example):
    known, absent, left_out, asymmetric = (
        numbers(example.printed, start)
        for start in ("all known, bce", "unknown is absent, bce", "unknown is -1, bce", "unknown is -1, asl")
    )
    assert known[0] > 60
    assert left_out[0] > absent[0]  # mAP
    assert asymmetric[0] > absent[0]
    assert left_out[3] > absent[3]  # F1
    for mean_average_precision, _, calibrated, _ in (left_out, asymmetric):
        assert mean_average_precision < known[0] + 5
        assert calibrated < absent[2] / 3  # a calibration learns the wrong frequencies as well


@pytest.mark.parametrize("loss", [equipoise.BinaryCrossEntropyLoss(), equipoise.AsymmetricLoss()])
def test_unknown_labels_have_no_gradient(example, loss):
    labels = example.hide(torch.ones(20, 10), 0.7, seed=0)
    unknown = labels == example.UNKNOWN
    assert 0.5 < unknown.float().mean() < 0.9
    logits = torch.randn(20, 10, requires_grad=True)
    (grad,) = torch.autograd.grad(loss(logits, labels), logits)
    assert not grad[unknown].any()
    assert grad[~unknown].all()
